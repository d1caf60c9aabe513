"""Reads a fetcher's frames with the standard library."""

import array
import json
import struct
import sys

HEADER = struct.Struct("<4sIQQ")
ACK = struct.Struct("<4sIQ")
HELLO = struct.Struct("<4sI")
PAYLOAD_BYTES_MAX = 1 << 30


class Closed(Exception):
    """The connection ended, possibly with a reason."""


def receive(sock, length):
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = sock.recv_into(view[filled:])
        if count == 0:
            raise Closed("end of stream")
        filled += count
    return data


def read_frame(sock):
    """(magic, epoch, g, payload) of the next frame."""
    magic, epoch, g, length = HEADER.unpack(receive(sock, HEADER.size))
    if magic not in (b"GMBH", b"GMB1", b"GMBE", b"GMBX") or length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"no frame begins with {magic!r} and a length of {length}")
    return magic, epoch, g, receive(sock, length)


def ack(epoch, g):
    return ACK.pack(b"GMA1", epoch, g)


def read_hello(sock):
    """The identity of the job's batches, from the server's hello, for a checkpoint."""
    magic, _, _, payload = read_frame(sock)
    if magic == b"GMBX":
        raise Closed(payload.decode(errors="replace"))
    if magic != b"GMBH":
        raise ValueError(f"the first frame is {magic!r} and no hello")
    said = json.loads(payload)
    return {name: said[name] for name in ("job", "dataset", "fingerprint")}


def hello(names, position):
    """A client's hello; `position` is the first batch it wants, or None."""
    said = dict(names)
    if position is not None:
        said["epoch"], said["batch_index"] = position
    text = json.dumps(said).encode()
    return HELLO.pack(b"GMAH", len(text)) + text


def keys_of(blob):
    """The `__key__` values of a batch, from its safetensors header."""
    (header_bytes,) = struct.unpack_from("<Q", blob)
    start = 8 + header_bytes
    info = json.loads(bytes(blob[8:start]))["__key__"]
    begin, end = info["data_offsets"]
    if info["dtype"] != "U64" or not 0 <= begin <= end <= len(blob) - start:
        raise ValueError(f"__key__ is {info}")
    keys = array.array("Q", bytes(blob[start + begin:start + end]))
    if sys.byteorder == "big":
        keys.byteswap()
    return keys
