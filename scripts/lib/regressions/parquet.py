"""Parquet files of required columns: plain, not compressed, without a page index."""

import struct

from .model import varint

# By kind: the physical type, the converted type or None, and how a value is written.
KINDS = {
    "i64": (2, None, lambda value: struct.pack("<q", value)),
    "u64": (2, 14, lambda value: struct.pack("<Q", value)),
    "f32": (4, None, lambda value: struct.pack("<f", value)),
    "f64": (5, None, lambda value: struct.pack("<d", value)),
    "bytes": (6, None, lambda value: struct.pack("<I", len(value)) + value),
}
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def thrift(kind, value):
    """A value in Thrift's compact protocol: a struct is {field: (kind, value)}, a list (kind, values)."""
    if kind in (I32, I64):
        return varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == BINARY:
        return varint(len(value)) + value
    if kind == LIST:
        inner, values = value
        size = bytes([len(values) << 4 | inner]) if len(values) < 15 else bytes([0xF0 | inner]) + varint(len(values))
        return size + b"".join(thrift(inner, item) for item in values)
    out, before = b"", 0
    for number, (inner, item) in value.items():
        out += bytes([(number - before) << 4 | inner]) + thrift(inner, item)
        before = number
    return out + b"\0"


def page(kind, values):
    """A data page, and its header."""
    body = b"".join(KINDS[kind][2](value) for value in values)
    data = {1: (I32, len(values)), 2: (I32, 0), 3: (I32, 3), 4: (I32, 3)}
    header = {1: (I32, 0), 2: (I32, len(body)), 3: (I32, len(body)), 5: (STRUCT, data)}
    return thrift(STRUCT, header) + body


def write(file, columns, groups, page_rows=1 << 30):
    """Writes to `file`: `columns` are (name, kind), `groups` yield a list of values for each column of a row group."""
    at, row_groups, rows = file.write(b"PAR1"), [], 0
    for group in groups:
        chunks = []
        for (name, kind), values in zip(columns, group):
            start = at
            for first in range(0, len(values), page_rows):
                at += file.write(page(kind, values[first:first + page_rows]))
            meta = {
                1: (I32, KINDS[kind][0]), 2: (LIST, (I32, [0])), 3: (LIST, (BINARY, [name.encode()])), 4: (I32, 0),
                5: (I64, len(values)), 6: (I64, at - start), 7: (I64, at - start), 9: (I64, start),
            }
            chunks.append({2: (I64, start), 3: (STRUCT, meta)})
        count = len(group[0])
        rows += count
        size = sum(chunk[3][1][7][1] for chunk in chunks)
        row_groups.append({1: (LIST, (STRUCT, chunks)), 2: (I64, size), 3: (I64, count)})
    schema = [{4: (BINARY, b"rows"), 5: (I32, len(columns))}]
    for name, kind in columns:
        physical, converted, _ = KINDS[kind]
        leaf = {1: (I32, physical), 3: (I32, 0), 4: (BINARY, name.encode())}
        schema.append(leaf if converted is None else leaf | {6: (I32, converted)})
    footer = thrift(STRUCT, {
        1: (I32, 1), 2: (LIST, (STRUCT, schema)), 3: (I64, rows), 4: (LIST, (STRUCT, row_groups)),
    })
    file.write(footer + struct.pack("<I", len(footer)) + b"PAR1")
