"""gristmill: the service of this machine, which the loader starts, with the loader's defaults."""

import gristmill as gm

from peers import light


def pipeline(work, folder):
    batch = light.BATCH[work]
    if work == "tokens":
        return gm.jsonl(folder / "tokens.jsonl", tokens=gm.i64(shape=[-1])).shuffle().padded_batch(batch)
    if work == "lines":
        texts = gm.jsonl(folder / "texts.jsonl", text=gm.bytes()).shuffle()
        tokens = texts.tokenise(
            field="text", tokenizer=str(folder / "tokenizer.json"), max_length=light.MAX_LENGTH)
        return tokens.padded_batch(batch)
    if work == "robots":
        return gm.parquet(
            folder / "robots.parquet", frame=gm.i64(), state=gm.f32(shape=[14]), action=gm.f32(shape=[14]),
        ).shuffle().batch(batch)
    numbers = {name: gm.f32() for name in light.NUMBERS} | {name: gm.i64() for name in light.IDENTIFIERS}
    return gm.csv(folder / "clicks.csv", label=gm.i64(), **numbers).shuffle().batch(batch)


def epochs(work, folder, count, scratch):
    with gm.numpy.Loader(pipeline(work, folder), epochs=count) as loader:
        for _ in range(count):
            yield loader
