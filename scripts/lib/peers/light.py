"""Light records, through one library: an epoch of shuffled batches, as often as asked. Prints the records of the last epoch.

Each reads the files and makes the batches as its documentation shows, in one process: a record is too little work to be
worth sending between processes. What a library need not do again it does once: torch, Grain and numpy hold the parsed
records in memory, and `datasets` keeps the tokens of `map` on disk.
"""

import argparse
import csv
import importlib
import json
import pathlib

BATCH = {"lines": 64, "clicks": 256, "robots": 256, "tokens": 64}
LABEL, NUMBERS, IDENTIFIERS = "label", [f"n{place}" for place in range(8)], [f"c{place}" for place in range(4)]
MAX_LENGTH = 128


def texts(folder):
    with (folder / "texts.jsonl").open() as lines:
        return [json.loads(line)["text"] for line in lines]


def tokenizer(folder):
    """A function of texts to token ids."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.enable_truncation(MAX_LENGTH)
    return lambda some: [encoding.ids for encoding in made.encode_batch(some)]


def parsed(folder):
    """The records of the work `tokens`."""
    with (folder / "tokens.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def sequences(folder):
    """The tokens of each record of the work `tokens`."""
    import numpy

    return [numpy.array(record["tokens"], numpy.int64) for record in parsed(folder)]


def columns(folder, work):
    """A table in memory: an array for each column of `clicks` or `robots`."""
    import numpy

    if work == "robots":
        return dict(numpy.load(folder / "robots.npz"))
    with (folder / "clicks.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    types = {LABEL: numpy.int64, **dict.fromkeys(NUMBERS, numpy.float32), **dict.fromkeys(IDENTIFIERS, numpy.int64)}
    return {name: numpy.array([row[name] for row in rows]).astype(dtype) for name, dtype in types.items()}


def padded(rows):
    """Rows of numbers as one array, zeros after the shorter ones."""
    import numpy

    batch = numpy.zeros((len(rows), max(map(len, rows))), numpy.int64)
    for place, row in zip(batch, rows):
        place[: len(row)] = row
    return batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=("gristmill", "torch", "datasets", "grain", "numpy"))
    parser.add_argument("--work", choices=BATCH, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True, help="a new folder for what the library stores")
    args = parser.parse_args()
    library = importlib.import_module(f"peers.light_{args.library}")
    for batches in library.epochs(args.work, args.data, args.epochs, args.scratch):
        records = sum(len(next(iter(batch.values()))) for batch in batches)
    print(json.dumps({"records": records}), flush=True)


if __name__ == "__main__":
    main()
