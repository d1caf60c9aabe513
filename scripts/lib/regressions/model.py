"""A plain model of pipelines over small data: lists of dicts in, lists of rows out.

An element is a dict of fields; a value is a number, a list of numbers, or bytes. The model knows nothing of splits.
"""

import collections
import gzip
import json
import math
import struct

from regressions.world import FORMATS, Failed, expect
from tfrecord import framed

I64 = (-(2 ** 63), 2 ** 63 - 1)


def f32(number):
    """The nearest f32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


# -- datasets ---------------------------------------------------------------------------------------------------

def jsonl(records):
    """A file of one JSON object a line."""
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    return "".join(f"{line}\n" for line in lines).encode()


def varint(number):
    out = bytearray()
    while True:
        low, number = number & 0x7F, number >> 7
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def delimited(tag, content):
    return bytes([tag << 3 | 2]) + varint(len(content)) + content


def tfrecord(records):
    """A file of `tf.Example` messages: whole numbers as int64 lists, others as float lists, text as bytes."""
    out = bytearray()
    for record in records:
        features = b""
        for name, value in record.items():
            values = value if isinstance(value, list) else [value]
            flat = [x for row in values for x in row] if values and isinstance(values[0], list) else values
            if flat and isinstance(flat[0], str):
                feature = delimited(1, b"".join(delimited(1, text.encode()) for text in flat))
            elif flat and isinstance(flat[0], float):
                feature = delimited(2, delimited(1, struct.pack(f"<{len(flat)}f", *flat)))
            else:
                feature = delimited(3, delimited(1, b"".join(varint(number % 2 ** 64) for number in flat)))
            features += delimited(1, delimited(1, name.encode()) + delimited(2, feature))
        out += framed(delimited(1, features))
    return bytes(out)


WRITERS = {
    "jsonl": (jsonl, "jsonl", ".jsonl"),
    "jsonl.gz": (lambda records: gzip.compress(jsonl(records)), "jsonl", ".jsonl.gz"),
    "tfrecord": (tfrecord, "tfrecord", ""),
}


# -- operators ------------------------------------------------------------------------------------------

def interleaved(files, cycle_length=16, block_length=1):
    """As tf.data: `cycle_length` files are open, each gives a block in its turn."""
    waiting, cycle, out = list(files), [None] * cycle_length, []
    turn = 0
    while waiting or any(cycle):
        if cycle[turn] is None and waiting:
            cycle[turn] = list(waiting.pop(0))
        if cycle[turn]:
            block, cycle[turn] = cycle[turn][:block_length], cycle[turn][block_length:]
            out += block
            if len(block) < block_length:
                cycle[turn] = None
        else:
            cycle[turn] = None
        turn = (turn + 1) % cycle_length
    return out


def measured(value):
    return len(value) if isinstance(value, (list, bytes)) else value


def op_filter(element, field, min=None, max=None, **rest):
    value, listed = measured(element[field]), rest.get("in")
    exact = f32 if isinstance(value, float) else int
    kept = (min is None or value >= exact(min)) and (max is None or value <= exact(max))
    return [element] if kept and (listed is None or value in [exact(x) for x in listed]) else []


def op_flat_map(element, field):
    return [element | {field: item} for item in element[field]]


def op_duplicate(element, copies=2):
    return [element] * copies


def op_length(element, field, into):
    return [element | {into: len(element[field])}]


def op_copy(element, field, into):
    return [element | {into: element[field]}]


def op_drop(element, fields):
    return [{name: value for name, value in element.items() if name not in fields}]


def op_truncate(element, field, length):
    return [element | {field: element[field][:length]}]


def op_pad_sequence(element, field, length, value=0, truncate=False):
    items = element[field][:length] if truncate else element[field]
    return [element | {field: items + [value] * (length - len(items))}]


def op_clip(element, field, min=None, max=None):
    def bounded(x):
        x = x if min is None or x >= min else min
        return x if max is None or x <= max else max
    return [element | {field: each(element[field], bounded)}]


def op_cast(element, field, dtype):
    bounds = {"u8": (0, 255), "u16": (0, 65535), "i32": (-(2 ** 31), 2 ** 31 - 1), "i64": I64}
    low, high = bounds.get(dtype, (None, None))
    return [element | {field: each(element[field], lambda x: min(max(round(x), low), high) if low is not None else f32(x))}]


def op_one_hot(element, field, classes, dtype="f32"):
    one = 1.0 if dtype == "f32" else 1
    return [element | {field: [one if i == element[field] else one * 0 for i in range(classes)]}]


def op_nothing(element, **_):
    return [element]


def each(value, work):
    return [each(item, work) for item in value] if isinstance(value, list) else work(value)


OPS = {
    "filter": op_filter, "flat_map": op_flat_map, "duplicate": op_duplicate, "length": op_length, "copy": op_copy,
    "drop": op_drop, "truncate": op_truncate, "pad_sequence": op_pad_sequence, "clip": op_clip, "cast": op_cast,
    "one_hot": op_one_hot, "autocache": op_nothing, "sleep": op_nothing,
}
BATCHES = ("batch", "padded_batch", "bucket_by_sequence_length")


class Expected:
    """Expected delivery of an epoch: rows in dataset order, and their possible batching."""

    def __init__(self, files, ops):
        self.in_order = any(name == "in_order" for name, _ in ops)
        sequence = [record for file in files for record in file]
        for name, params in ops:
            if name == "interleave":
                sequence = interleaved(files, **params)
            elif name == "take":
                sequence = sequence[:params["count"]]
            elif name == "skip":
                sequence = sequence[params["count"]:]
            elif name == "repeat":
                sequence = sequence * params["count"]
            elif name in OPS:
                sequence = [out for element in sequence for out in OPS[name](element, **params)]
        self.rows = sequence
        self.batching, self.batch = next((name, params) for name, params in ops if name in BATCHES)

    @property
    def sizes(self):
        size, rows = self.batch["size"], len(self.rows)
        short = [] if rows % size == 0 or self.batch.get("drop_remainder") else [rows % size]
        return [size] * (rows // size) + short

    def check(self, batches):
        """Fails unless `batches`, lists of rows in their order, are what an epoch may deliver."""
        sizes = [len(batch.rows) for batch in batches]
        expect(sizes == self.sizes, f"batches of {sizes} rows, not {self.sizes}")
        delivered = [plain(row) for batch in batches for row in batch.rows]
        wanted = [plain(row) for row in self.rows]
        if self.in_order:
            expect(delivered == wanted[:len(delivered)], first_difference(delivered, wanted))
        else:
            extra = collections.Counter(delivered) - collections.Counter(wanted)
            expect(not extra, f"rows that the data does not have: {list(extra.items())[:2]}")
        for batch in batches:
            batch.check(self.batching, self.batch)


def plain(row):
    """A row as a key: fields by name, numbers as they are."""
    of = lambda value: tuple(map(of, value)) if isinstance(value, (list, tuple)) else value
    return tuple(sorted((name, of(value)) for name, value in row.items()))


def first_difference(got, wanted):
    at = next((i for i, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), min(len(got), len(wanted)))
    return f"row {at} is {got[at:at + 1]}, not {wanted[at:at + 1]}"


# -- deliveries -----------------------------------------------------------------------------------------

class Batch:
    """One batch of a sink: its rows, with sequences as long as their elements' `n_FIELD` say."""

    def __init__(self, blob, schema):
        (size,) = struct.unpack_from("<Q", blob)
        header = json.loads(bytes(blob[8:8 + size]))
        self.widths, columns = {}, {}
        for name, info in header.items():
            if name.startswith("__") or name.endswith(".offsets"):
                continue
            begin, end = (8 + size + offset for offset in info["data_offsets"])
            form = FORMATS[info["dtype"]]
            flat = list(struct.unpack(f"<{(end - begin) // struct.calcsize(form)}{form}", blob[begin:end]))
            if f"{name}.offsets" in header:
                offsets = header[f"{name}.offsets"]
                begin, end = (8 + size + offset for offset in offsets["data_offsets"])
                places = struct.unpack(f"<{(end - begin) // 8}Q", blob[begin:end])
                item = math.prod(info["shape"][1:])
                columns[name] = [shaped(flat[a * item:b * item], [b - a, *info["shape"][1:]])
                                 for a, b in zip(places, places[1:])]
            else:
                width = math.prod(info["shape"][1:])
                self.widths[name] = info["shape"][1:]
                columns[name] = [shaped(flat[i * width:(i + 1) * width], info["shape"][1:])
                                 for i in range(info["shape"][0])]
        self.padding = {}
        for name, values in columns.items():
            if f"n_{name}" in columns and name in self.widths:
                self.padding[name] = [value[n:] for value, n in zip(values, columns[f"n_{name}"])]
                columns[name] = [value[:n] for value, n in zip(values, columns[f"n_{name}"])]
        for name in schema.get("bytes", ()):
            if name in columns:
                columns[name] = [bytes(value) for value in columns[name]]
        self.rows = [dict(zip(columns, row)) for row in zip(*columns.values())]

    def check(self, batching, params):
        """Sequences are padded to the longest of the batch, or as the author said."""
        for name, rests in self.padding.items():
            longest = max((row[f"n_{name}"] for row in self.rows), default=0)
            width = params.get("lengths", {}).get(name, max(longest, 1))
            if batching == "bucket_by_sequence_length" and params.get("pad_to_bucket_boundary") and name == params["field"]:
                width = next((b - 1 for b in params["boundaries"] if longest < b), width)
            expect(self.widths[name][0] == width, f"`{name}` is padded to {self.widths[name][0]}, not {width}")
            value = params.get("values", {}).get(name, 0)
            padded = {x for rest in rests for x in flat(rest)}
            expect(padded <= {value}, f"`{name}` is padded with {padded}, not {value}")


def flat(value):
    return [x for item in value for x in flat(item)] if isinstance(value, list) else [value]


def shaped(values, shape):
    if not shape:
        return values[0]
    if len(shape) == 1:
        return values
    step = len(values) // max(shape[0], 1)
    return [shaped(values[i * step:(i + 1) * step], shape[1:]) for i in range(shape[0])]


def yaml(value):
    """A parameter as YAML's flow style, which JSON is."""
    return json.dumps(value, ensure_ascii=False)


class Pipeline:
    """One pipeline over one dataset, to be run by the program and by the model."""

    def __init__(self, files, ops, form="jsonl", keys=None, features=None, arguments=(), bad=()):
        self.files, self.ops, self.form, self.keys = files, ops, form, keys or {}
        self.features, self.arguments, self.bad = features or FEATURES, arguments, bad

    def write(self, world, folder):
        writer, source, suffix = WRITERS[self.form]
        for i, records in enumerate(self.files):
            kept = lambda record: {name: record[name] for name in self.features}
            renamed = [{self.keys.get(name, name): value for name, value in kept(record).items()} for record in records]
            world.write(f"{folder}/data/part-{i:03}{suffix}", writer(renamed))
        features = "".join(
            f"    {name}: {yaml({'key': self.keys.get(name, name), **feature})}\n" for name, feature in self.features.items()
        )
        ops = "".join(f"  - {name}: {yaml(params)}\n" if params else f"  - {name}\n" for name, params in self.ops)
        text = f"source:\n  {source}: data\n  features:\n{features}ops:\n{ops}"
        return world.write(f"{folder}/p.yaml", text)

    def expected(self):
        of = lambda value: value.encode() if isinstance(value, str) else value
        kept = lambda record: {name: of(record[name]) for name in self.features}
        return Expected([[kept(record) for record in file if record not in self.bad] for file in self.files], self.ops)

    def check(self, world, folder, endpoint, epochs=2):
        path = self.write(world, folder)
        sink = world.folder / folder / "sink"
        ran = world.run(
            "run", path, "--data", world.folder / folder / "data", "--endpoint", endpoint, "--epochs", epochs,
            "--step-time", "0ms", "--sink", sink, "--json", *self.arguments, seconds=90,
        )
        expected = self.expected()
        if not expected.sizes:
            expect(not list(sink.glob("*.safetensors")), "batches of nothing")
            return
        expect(ran.code == 0, f"exit {ran.code}: {ran.lines('err')[-1:]}")
        schema = {"bytes": [name for name, feature in self.features.items() if feature["dtype"] == "bytes"]}
        for epoch in range(epochs):
            files = sorted(sink.glob(f"e{epoch}-b*.safetensors"))
            try:
                expected.check([Batch(file.read_bytes(), schema) for file in files])
            except Failed as failed:
                shown = "; ".join(f"{name} {yaml(params)}" for name, params in self.ops)
                raise Failed(f"{folder} (epoch {epoch}; files of {[len(f) for f in self.files]}; {shown}): {failed}") from None


FEATURES = {
    "id": {"dtype": "i64"}, "score": {"dtype": "f32"}, "items": {"dtype": "i64", "shape": [-1]},
    "rows": {"dtype": "i64", "shape": [-1, 2]}, "name": {"dtype": "bytes"},
}


def record(number, items=None):
    """Record `number`: lists of differing length, some of them empty, and text beyond ASCII."""
    length = (number * 7 + 3) % 6 if items is None else items
    return {
        "id": number, "score": f32(number / 8), "items": [number * 10 + i for i in range(length)],
        "rows": [[number, i] for i in range(length % 3)], "name": ["é", "日本", "", "a\"b\\c"][number % 4] + str(number),
    }


def files_of(*counts):
    """Files of so many records, numbered through."""
    first, files = 0, []
    for count in counts:
        files.append([record(number) for number in range(first, first + count)])
        first += count
    return files
