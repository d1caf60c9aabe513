"""numpy: all records in memory, and an index for each batch. There is no less work than this."""

import numpy

from peers import light


def epochs(work, folder, count, _):
    batch_of, records = source(work, folder)
    generator = numpy.random.default_rng(1)
    for _ in range(count):
        order = generator.permutation(records)
        yield (batch_of(order[at : at + light.BATCH[work]]) for at in range(0, records, light.BATCH[work]))


def source(work, folder):
    """A function of records' places to their batch, and the number of records."""
    if work in ("clicks", "robots"):
        columns = light.columns(folder, work)
        records = len(next(iter(columns.values())))
        return lambda places: {name: column[places] for name, column in columns.items()}, records
    rows = light.sequences(folder) if work == "tokens" else light.tokenizer(folder)(light.texts(folder))
    return lambda places: {"tokens": light.padded([rows[place] for place in places])}, len(rows)
