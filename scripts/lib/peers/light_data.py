"""Records that are light work: made once, the same for all programs, in the formats that each reads.

  lines    JSON lines of text, 20 to 120 words, and a tokenizer for them
  clicks   a CSV table of eight numbers, four identifiers and a label
  robots   a Parquet table of a state and an action of 14 numbers each
  tokens   JSON lines of token ids, 50 to 350 a record

Run in the environment `datasets`, which has pyarrow and tokenizers.
"""

import argparse
import csv
import json
import pathlib
import random

import numpy
import pyarrow
import pyarrow.parquet
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

RECORDS = {"lines": 2_000, "clicks": 20_000, "robots": 20_000, "tokens": 10_000}
NUMBERS = [f"n{place}" for place in range(8)]
IDENTIFIERS = [f"c{place}" for place in range(4)]
VOCABULARY = 4_000


def lines(folder, draw):
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(5_000)]
    texts = [" ".join(draw.choices(words, k=draw.randint(20, 120))) for _ in range(RECORDS["lines"])]
    with (folder / "texts.jsonl").open("w") as out:
        for text in texts:
            out.write(json.dumps({"text": text}) + "\n")
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def clicks(folder, draw):
    with (folder / "clicks.csv").open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["label", *NUMBERS, *IDENTIFIERS])
        for _ in range(RECORDS["clicks"]):
            numbers = [round(draw.random(), 5) for _ in NUMBERS]
            table.writerow([draw.randrange(2), *numbers, *(draw.randrange(10**6) for _ in IDENTIFIERS)])


def robots(folder, draw):
    generator = numpy.random.default_rng(draw.randrange(2**32))
    columns = {
        name: generator.random((RECORDS["robots"], 14), numpy.float32) for name in ("state", "action")
    }
    frames = numpy.arange(RECORDS["robots"], dtype=numpy.int64)
    numpy.savez(folder / "robots.npz", frame=frames, **columns)
    lists = {name: pyarrow.array(list(values), pyarrow.list_(pyarrow.float32())) for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table({"frame": frames, **lists}), folder / "robots.parquet")


def tokens(folder, draw):
    with (folder / "tokens.jsonl").open("w") as out:
        for _ in range(RECORDS["tokens"]):
            ids = [draw.randrange(50_000) for _ in range(draw.randint(50, 350))]
            out.write(json.dumps({"tokens": ids}) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    draw = random.Random(1)
    for make in (lines, clicks, robots, tokens):
        make(folder, draw)
    print(json.dumps(RECORDS))


if __name__ == "__main__":
    main()
