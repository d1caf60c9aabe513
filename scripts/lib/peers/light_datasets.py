"""Hugging Face's datasets: Arrow files in its cache, shuffled by an index, in batches of numpy's arrays."""

import datasets

from peers import light

FILES = {
    "lines": ("json", "texts.jsonl"), "clicks": ("csv", "clicks.csv"), "robots": ("parquet", "robots.parquet"),
    "tokens": ("json", "tokens.jsonl"),
}


def padded(batch):
    return {"tokens": light.padded(batch["tokens"])}


def epochs(work, folder, count, scratch):
    datasets.disable_progress_bars()
    kind, name = FILES[work]
    records = datasets.load_dataset(kind, data_files=str(folder / name), split="train", cache_dir=str(scratch))
    if work == "lines":
        encode = light.tokenizer(folder)
        records = records.map(
            lambda batch: {"tokens": encode(batch["text"])}, batched=True, remove_columns=["text"], new_fingerprint="tokens")
    for seed in range(count):
        batches = records.shuffle(seed=seed, keep_in_memory=True).with_format("numpy").iter(light.BATCH[work])
        yield map(padded, batches) if work in ("lines", "tokens") else batches
