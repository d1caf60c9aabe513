"""Random files of each format, against Python's own readers: what they read is read, or refused in one line.

`GRISTMILL_RANDOM_SOURCES` is the number of files of each format, 8 by default."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

SEEDS = int(os.environ.get("GRISTMILL_RANDOM_SOURCES", "8"))
seeds = pytest.mark.parametrize("seed", range(SEEDS))

Row = tuple[int, bytes]
# The rows that a file has; none if it has a fault, so that it must be refused.
Rows = list[Row] | None


def delivered(pipeline: gm.Pipeline) -> list[Row] | str:
    """The rows as a trainer gets them, or the refusal."""
    rows: list[Row] = []
    try:
        with gm.numpy.Loader(pipeline.batch(size=7, ragged=True)) as batches:
            for batch in batches:
                text, ends = batch["t"].tobytes(), batch["t.offsets"].tolist()
                texts = [text[start:end] for start, end in itertools.pairwise(ends)]
                rows += zip(batch["id"].tolist(), texts, strict=True)
    except gm.Error as error:
        return str(error)
    return rows


def check(pipeline: gm.Pipeline, expected: Rows, odd: str | None = None) -> None:
    """The rows are the expected ones, or are refused in one line.

    A sound file is `odd` if it may be refused, with this word."""
    got = delivered(pipeline)
    if isinstance(got, str):
        assert "\n" not in got
        assert expected is None or (odd and odd in got), got
    else:
        assert expected is not None
        assert sorted(got) == sorted(expected)


def features() -> dict[str, Any]:
    return {"id": gm.i64("id"), "t": gm.bytes("t")}


def text_of(draw: random.Random, letters: list[str]) -> str:
    return "".join(draw.choices(letters, k=draw.randrange(9)))


@seeds
def test_csv_is_what_the_csv_module_reads(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    letters = ["a", ",", '"', "\n", "\r\n", "\r", "é", " ", "\0", "'", "\t", "\u2028"]
    end = draw.choice(["\n", "\r\n", "\r"])
    quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end, quoting=quoting)
    writer.writerow(["t", "id"])
    for row in range(draw.randrange(1, 40)):
        writer.writerow([text_of(draw, letters), row])
        if draw.random() < 0.1:
            out.write(end)
    if draw.random() < 0.3:
        out.write(draw.choice(["x", '"x" y,5', "x,5,6", "a,7,", 'b"c,8', '"', '""']))
    text = out.getvalue()
    if draw.random() < 0.3:
        text = text.removesuffix(end)
    # Python's reader of files takes the mark away too.
    data = draw.choice([b"", b"\xef\xbb\xbf"]) + text.encode()
    (tmp_path / "d.csv").write_bytes(data)
    header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    good = all(len(row) == len(header) for row in rows)
    is_open = text.rstrip("\r\n").endswith(('\n"', '\r"'))
    expected = [(int(id), t.encode()) for t, id in rows] if good and not is_open else None
    check(gm.csv(tmp_path / "d.csv", **features()), expected)


@seeds
def test_json_lines_are_what_the_json_module_reads(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    letters = ["a", '"', "\\", "\n", "é", "\u2028", "\0", "\U0001f600", "/", "\x7f"]
    lines = []
    for row in range(draw.randrange(1, 40)):
        record: dict[str, Any] = {"x": [1, {"id": 5, "t": "no"}, None], "id": row, "t": text_of(draw, letters)}
        keys = draw.sample(list(record), k=3)
        separators = draw.choice([(",", ":"), (" , ", " :\t")])
        shuffled = {key: record[key] for key in keys}
        lines.append(json.dumps(shuffled, ensure_ascii=draw.random() < 0.5, separators=separators))
        if draw.random() < 0.1:
            lines.append(draw.choice(["", " ", "\t"]))
    fault = draw.choice(["", "", "{", '{"id": 1}', '{"id": 1, "t": "a\tb"}', '{"id": 1, "t": "x"} x', "[]", "\0"])
    twice = draw.choice(["", "", '{"id": 7, "t": "a", "id": 8}'])
    lines += [line for line in (twice, fault) if line]
    end = draw.choice(["\n", "\r\n"])
    data = end.join(lines) + draw.choice(["", end])
    (tmp_path / "d.jsonl").write_bytes(data.encode())
    read = [json.loads(line) for line in lines if line.strip() and line != fault]
    expected = [(record["id"], record["t"].encode()) for record in read]
    odd = "id" if twice else None
    check(gm.jsonl(tmp_path / "d.jsonl", **features()), None if fault else expected, odd)


def members(archive: tarfile.TarFile) -> Iterator[tuple[str, str, bytes | None]]:
    """Records and keys with their contents as WebDataset divides them, links followed; none if it is not there."""
    for member in archive:
        folder, _, name = member.name.rpartition("/")
        stem, _, key = name.partition(".")
        if not (member.isreg() or member.issym() or member.islnk()) or not stem or not key:
            continue
        try:
            file = archive.extractfile(member)
            yield f"{folder}/{stem}", key, file and file.read()
        except (KeyError, RecursionError):
            yield f"{folder}/{stem}", key, None


def rows_of(archive: tarfile.TarFile) -> Rows:
    records: list[tuple[str, dict[str, bytes]]] = []
    for stem, key, content in members(archive):
        if not records or records[-1][0] != stem:
            records.append((stem, {}))
        if key in records[-1][1] or content is None:
            return None
        records[-1][1][key] = content
    if any(record.keys() != {"id", "t"} for _, record in records):
        return None
    return [(int(record["id"]), record["t"]) for _, record in records]


def add_tar_record(draw: random.Random, archive: tarfile.TarFile, number: int, before: list[str]) -> None:
    stem = draw.choice(["{}", "./{}", "d/{}", "é{}", "l" * 120 + "{}", f"{'d' * 90}/{'e' * 90}/{{}}"]).format(number)
    stem = draw.choice([stem, stem, os.fsdecode(b"\xff") + stem])
    for key in draw.sample(["id", "t"], k=2):
        content = str(number).encode() if key == "id" else draw.randbytes(draw.choice([0, 1, 511, 512, 513, 3000]))
        member = tarfile.TarInfo(f"{stem}.{key}")
        targets = [name for name in before if name.endswith(f".{key}")]
        kind = draw.random()
        if targets and kind < 0.15:
            member.type, member.linkname = tarfile.LNKTYPE, draw.choice(targets)
        elif targets and kind < 0.3:
            target = draw.choice(targets)
            up = os.path.dirname(member.name).strip("./").count("/") + 1 if "/" in member.name.strip("./") else 0
            member.type, member.linkname = tarfile.SYMTYPE, "../" * up + target
        else:
            member.size = len(content)
            member.type = draw.choice([tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE])
        archive.addfile(member, io.BytesIO(content))
        before.append(member.name)


def add_other_member(draw: random.Random, archive: tarfile.TarFile) -> None:
    other = tarfile.TarInfo(draw.choice(["README", "folder", "f.d", "p.q"]))
    other.type = draw.choice([tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
    archive.addfile(other)


@seeds
def test_tar_is_what_the_tarfile_module_reads(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    kind = draw.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    headers = {"comment": "global"} if kind == tarfile.PAX_FORMAT and draw.random() < 0.5 else None
    out, before = io.BytesIO(), []
    with tarfile.open(fileobj=out, mode="w", format=kind, pax_headers=headers, errors="surrogateescape") as archive:
        for number in range(draw.randrange(1, 30)):
            try:
                add_tar_record(draw, archive, number, before)
            except ValueError:  # the name does not fit into this kind of header
                return
            if draw.random() < 0.1:
                add_other_member(draw, archive)
        fault = draw.choice(["", "", "", "dangling", "twice", "cut"])
        if fault == "dangling":
            member = tarfile.TarInfo("last.id")
            member.type, member.linkname = tarfile.SYMTYPE, draw.choice(["nowhere", "last.id", "/last.t"])
            archive.addfile(member)
        if fault == "twice":
            archive.addfile(tarfile.TarInfo("last.t"))
            archive.addfile(tarfile.TarInfo("last.t"))
        end = archive.offset
    data = out.getvalue()
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        expected = rows_of(archive)
    if fault == "cut":
        data, expected = data[: draw.randrange(end // 512 + 1) * 512], None
    packed = draw.choice([gzip.compress, bz2.compress, lzma.compress, bytes, bytes, bytes])(data)
    (tmp_path / "d.tar").write_bytes(packed)
    check(gm.webdataset(tmp_path / "d.tar", **features()), expected)


def parquet_table(draw: random.Random, pa: Any) -> tuple[Any, dict[str, Any], Rows]:
    """A table, the features to read, and the rows expected of it."""
    rows = draw.randrange(1, 60)
    ids = pa.array(range(rows), draw.choice([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32()]))
    values = [draw.randbytes(draw.randrange(9)) for _ in range(rows)]
    texts = pa.array(values, draw.choice([pa.binary(), pa.large_binary()]))
    plain = [(i, value) for i, value in enumerate(values)]
    case = draw.choice(["plain", "plain", "struct", "null", "twice", "other twice"])
    if case == "struct":
        table = pa.table({"s": pa.StructArray.from_arrays([ids, texts], names=["id", "t"]), "t": texts})
        return table, {"id": gm.i64("s.id"), "t": gm.bytes("s.t")}, plain
    if case == "null":
        numbers = pa.array([None, *range(1, rows)], pa.int64())
        return pa.table({"id": numbers, "t": texts}), features(), None
    if case == "twice":
        table = pa.Table.from_arrays([ids, texts, ids], names=["id", "t", "id"])
        return table, features(), None
    if case == "other twice":
        table = pa.Table.from_arrays([ids, texts, texts, texts], names=["id", "t", "x", "x"])
        return table, features(), plain
    return pa.table({"x": texts, "t": texts, "id": ids}), features(), plain


@seeds
def test_parquet_is_what_pyarrow_reads(seed: int, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    draw = random.Random(seed)
    table, wanted, expected = parquet_table(draw, pa)
    parquet.write_table(
        table,
        tmp_path / "d.parquet",
        row_group_size=draw.choice([1, 7, 1000]),
        data_page_version=draw.choice(["1.0", "2.0"]),
        compression=draw.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=draw.random() < 0.5,
        data_page_size=draw.choice([50, 1 << 20]),
        write_page_index=draw.random() < 0.5,
    )
    check(gm.parquet(tmp_path / "d.parquet", **wanted), expected)


@pytest.mark.parametrize("name", [b"b\xff.csv", b"\xff/b.csv"])
@pytest.mark.parametrize("pattern", ["", "*.csv", "**/*.csv"])
def test_a_name_that_is_not_utf_8_is_refused(name: bytes, pattern: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,t\n1,a\n")
    odd = os.path.join(os.fsencode(tmp_path), name)
    os.makedirs(os.path.dirname(odd), exist_ok=True)
    with open(odd, "w") as file:
        file.write("id,t\n2,b\n")
    got = delivered(gm.csv(tmp_path / pattern if pattern else tmp_path, **features()))
    if b"/" in name and pattern == "*.csv":
        assert got == [(1, b"a")]
    else:
        assert isinstance(got, str) and "its name is not UTF-8" in got


def test_defaults_stand_in_for_missing_and_null_values(tmp_path: Path) -> None:
    rows = [{"id": 1, "v": [1, 2.5]}, {"id": None}, {"v": None, "id": 3.0}]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "d.csv").write_text('id,v\n1,"1,2.5"\n,\n3.0,\n')
    wanted: dict[str, Any] = {"id": gm.i64(), "v": gm.f32(shape=[2])}
    wanted["defaults"] = {"id": -1, "v": [float("nan"), 7]}
    for source in (gm.jsonl(tmp_path / "d.jsonl", **wanted), gm.csv(tmp_path / "d.csv", **wanted)):
        batch = source.batch(3).peek()
        assert batch["id"].tolist() == [1, -1, 3]
        assert str(batch["v"].tolist()) == "[[1.0, 2.5], [nan, 7.0], [nan, 7.0]]"
