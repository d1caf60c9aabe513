"""A6: large records in Parquet files, and large splits in a cache: in bounded memory."""

import shutil
import struct
import time
import zlib

from regressions import parquet
from regressions.cases.a3_a6_data import LARGE, largest_descendant, member
from regressions.run import case
from regressions.world import expect

OPS = "{ truncate: { field: text, length: 4 } }, { padded_batch: { size: 64 } }"
RECORDS = 70
MEMORY_KIB = 1_500_000


def text(number):
    return bytes([65 + number % 26]) * LARGE


def train(world, pipeline, epochs, *arguments):
    """A run to its end, which stays within memory; its program."""
    shutil.rmtree(world.folder / "sink", ignore_errors=True)
    ran = world.start(
        world.gristmill, "run", pipeline, "--epochs", epochs, "--step-time", "0ms", "--workers", "2", "--sink", "sink", "--json",
        *arguments,
    )
    most = 0
    while ran.code is None:
        most = max(most, largest_descendant(ran.pid))
        time.sleep(0.05)
    ran.wait(120)
    expect(ran.code == 0, f"exit {ran.code}: {ran.lines('err')[-1:]}")
    expect(most < MEMORY_KIB, f"a process took {most} KiB")
    return ran


def check(world, epochs):
    ids, texts = world.sunk("sink", "id"), world.sunk("sink", "text")
    for epoch in range(epochs):
        got = [number for (e, _), batch in sorted(ids.items()) if e == epoch for number in batch]
        expect(got == list(range(RECORDS)), f"epoch {epoch}: {got}")
        heads = bytes(x for (e, _), batch in sorted(texts.items()) if e == epoch for x in batch)
        expect(heads == b"".join(text(number)[:4] for number in range(RECORDS)), f"epoch {epoch}: other texts")


@case("A6.large-parquet", "a batch of 64 rows of 5 MiB each is read from one row group and from many, in bounded memory")
def large_parquet(world):
    features = "{ text: { dtype: bytes }, id: { dtype: i64 } }"
    pipeline = world.write("p.yaml", f"source: {{ parquet: a.parquet, features: {features} }}\nops: [in_order, {OPS}]\n")
    for rows, page_rows in ((RECORDS, 1), (RECORDS, 8), (9, 2), (1, 1)):
        starts = range(0, RECORDS, rows)
        groups = ([list(group), [text(number) for number in group]]
                  for group in (range(start, min(RECORDS, start + rows)) for start in starts))
        with open(world.folder / "a.parquet", "wb") as file:
            parquet.write(file, [("id", "i64"), ("text", "bytes")], groups, page_rows)
        train(world, pipeline, 1)
        check(world, 1)
    (world.folder / "a.parquet").unlink()


@case("A6.cached-parts", "what is cached of a split is stored in parts, and read back, where it is more than an object holds")
def cached_parts(world):
    with open(world.folder / "a.jsonl", "wb") as file:
        for number in range(RECORDS):
            file.write(b'{"id": %d, "text": "%s"}\n' % (number, text(number)))
    features = "{ text: { dtype: bytes }, id: { dtype: i64 } }"
    pipeline = world.write("p.yaml", (
        f"source: {{ jsonl: a.jsonl, features: {features} }}\nops: [in_order, {{ sleep: {{ ms: 150 }} }}, autocache, {OPS}]\n"))
    epochs = 4
    ran = train(world, pipeline, epochs)
    check(world, epochs)
    modes = [epoch["mode"] for epoch in ran.json["epochs"]]
    expect("get" in modes, f"nothing was read from the cache: {modes}")
    (world.folder / "a.jsonl").unlink()


def png(side, value):
    """A grey square of one value: few bytes, many pixels."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows = zlib.compress((b"\0" + bytes([value]) * side) * side, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@case("A6.cached-pixels", "64 decoded images of 27 MB each in one split are cached and read back in bounded memory")
def cached_pixels(world):
    with open(world.folder / "a.tar", "wb") as file:
        for number in range(64):
            file.write(member(f"{number:04}.png", png(3000, number)) + member(f"{number:04}.cls", b"%d" % number))
        file.write(bytes(1024))
    pipeline = world.write("p.yaml", (
        "source: { webdataset: a.tar, features: { image: { key: png, dtype: bytes }, id: { key: cls, dtype: i64 } } }\n"
        "ops: [in_order, decode, { sleep: { ms: 150 } }, autocache, { resize: { size: 4 } }, { batch: { size: 64 } }]\n"))
    ran = train(world, pipeline, 3)
    for epoch in range(3):
        ids = [number for (e, _), batch in world.sunk("sink", "id").items() if e == epoch for number in batch]
        expect(ids == list(range(64)), f"epoch {epoch}: {ids}")
        pixels = [x for (e, _), batch in world.sunk("sink", "image").items() if e == epoch for x in batch]
        expect(pixels == [number for number in range(64) for _ in range(48)], f"epoch {epoch}: other pixels")
    modes = [epoch["mode"] for epoch in ran.json["epochs"]]
    expect("put" in modes, f"nothing was stored: {modes}")
