"""TFRecord files and the tf.Example messages in them, with nothing but the standard library."""

import os
import struct

CASTAGNOLI = 0x82F63B78


def crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (CASTAGNOLI if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc_table()


def masked_crc(data):
    """CRC-32C as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(record):
    length = struct.pack("<Q", len(record))
    sums = struct.pack("<I", masked_crc(length)), struct.pack("<I", masked_crc(record))
    return length + sums[0] + record + sums[1]


def record_sizes(path):
    """The length of each record of a file, by which the next is found."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            (length,) = struct.unpack("<Q", file.read(8))
            file.seek(length + 8, os.SEEK_CUR)
            yield length


def records(path):
    """Each record of a file; checksums are not looked at."""
    with path.open("rb") as file:
        while head := file.read(12):
            (length,) = struct.unpack_from("<Q", head)
            yield file.read(length)
            file.seek(4, os.SEEK_CUR)


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, data):
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def int_example(name, values):
    """A tf.Example with one list of int64, none of them negative."""
    int64_list = field(3, field(1, b"".join(map(varint, values))))
    return field(1, field(1, field(1, name.encode()) + field(2, int64_list)))


def read_varint(data, at):
    number, shift = 0, 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
        shift += 7


def fields(data):
    """(number, value) of each field of a message; of a length-delimited one, its bytes."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 not in (0, 2):
            raise ValueError(f"wire type {key & 7} is not one of a tf.Example of bytes and integers")
        value, at = read_varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        yield key >> 3, value


def integers(int64_list):
    for _, value in fields(int64_list):
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            number, at = read_varint(value, at)
            yield number


def features(example):
    """Values by name: a list of bytes or of integers, none of them negative."""
    found = {}
    ((_, message),) = fields(example)
    for _, entry in fields(message):
        parts = dict(fields(entry))
        ((kind, values),) = fields(parts[2])
        found[parts[1].decode()] = list(integers(values)) if kind == 3 else [value for _, value in fields(values)]
    return found
