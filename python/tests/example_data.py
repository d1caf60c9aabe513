"""The small data of the examples in docstrings."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np

CLASSES = ("bird", "cat", "dog", "fish")
PICTURES = 64


def picture(number: int) -> bytes:
    """A picture of 32 by 40 pixels as PPM."""
    pixels = np.random.default_rng(number).bytes(32 * 40 * 3)
    return b"P6 40 32 255\n" + pixels


def example(number: int) -> bytes:
    """A `tf.train.Example` with `n`, a list of one whole number."""

    def field(tag: int, content: bytes) -> bytes:
        return bytes([tag << 3 | 2, len(content)]) + content

    values = field(3, field(1, bytes([number])))
    return field(1, field(1, field(1, b"n") + field(2, values)))


def write(folder: Path) -> None:
    """Writes the data into a folder."""
    for number in range(PICTURES):
        path = folder / "pictures" / CLASSES[number % 4] / f"{number:02}.ppm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    for name, first, count in (("numbers", 0, 64), ("others", 100, 64)):
        lines = [json.dumps({"x": number, "v": [number / 64]}) for number in range(first, first + count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    texts = [("a cat", [1, 2]), ("two dogs", [3, 4, 5]), ("a bird", [6])]
    lines = [json.dumps({"text": text, "tokens": tokens}) for text, tokens in texts]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "table.csv").write_text("name,price\napple,0.5\npear,1.5\n")
    (folder / "table.tsv").write_text("name\tprice\napple\t0.5\npear\t1.5\n")
    np.save(folder / "vectors.npy", np.arange(8, dtype="f4").reshape(4, 2))
    np.savez(folder / "arrays.npz", x=np.arange(8, dtype="f4").reshape(4, 2), label=np.arange(4))
    words = {word: number for number, word in enumerate(["?", "a", "cat", "two", "dogs", "bird"])}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "?"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "records.tfrecord").write_bytes(b"".join(map(record, map(example, range(3)))))
    with tarfile.open(folder / "shards.tar", "w") as tar:
        for number in range(8):
            members = {"ppm": picture(number), "cls": b"%d" % number, "json": b'{"size": %d}' % number}
            members |= {"csv": b"x,%d" % number, "ex": example(number)}
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{number:03}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def record(content: bytes) -> bytes:
    """A record of a TFRecord file."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked(length)) + content + struct.pack("<I", masked(content))


def masked(content: bytes) -> int:
    """The masked CRC-32C of a TFRecord file."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
