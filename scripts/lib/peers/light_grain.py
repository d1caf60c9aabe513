"""Grain: a MapDataset of records in memory, in the process of the trainer."""

import grain

from peers import light


class Table:
    """The rows of a table as Grain takes them."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, place):
        return {name: column[place] for name, column in self.columns.items()}


def epochs(work, folder, count, _):
    batch = None
    if work in ("clicks", "robots"):
        records = grain.MapDataset.source(Table(light.columns(folder, work)))
    else:
        encode = light.tokenizer(folder) if work == "lines" else None
        batch = (lambda some: {"tokens": light.padded(encode(some) if encode else some)})  # noqa: E731
        records = grain.MapDataset.source(light.texts(folder) if encode else light.sequences(folder))
    read = grain.ReadOptions(num_threads=0)
    for epoch in range(count):
        shuffled = records.seed(epoch).shuffle()
        yield shuffled.to_iter_dataset(read).batch(light.BATCH[work], batch_fn=batch)
