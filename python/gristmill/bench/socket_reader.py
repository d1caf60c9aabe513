"""A trainer that reads a fetcher's socket: `python -m gristmill.bench.socket_reader FETCHER-COMMAND...`.

It turns batches into numpy arrays, and prints how much CPU it and the fetcher used. docs/training.md describes the
socket.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from .._arrays import dtype

_HEADER = struct.Struct("<4sIQQ")
_ACKNOWLEDGE = struct.Struct("<4sIQ")
_HELLO = struct.Struct("<4sI")
_START_S = 60.0
_ACKNOWLEDGE_EVERY = 10


def receive(connection: socket.socket, length: int) -> bytearray:
    """Exactly `length` bytes, in one buffer."""
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = connection.recv_into(view[filled:])
        if count == 0:
            sys.exit("the fetcher went away")
        filled += count
    return data


def arrays(blob: bytearray) -> dict[str, np.ndarray]:
    """The tensors of a batch, as views into it."""
    (header_bytes,) = struct.unpack_from("<Q", blob)
    start = 8 + header_bytes
    found = {}
    for name, info in json.loads(bytes(blob[8:start])).items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            kind = dtype(info["dtype"])
            flat = np.frombuffer(blob, kind, (end - begin) // kind.itemsize, start + begin)
            found[name] = flat.reshape(info["shape"])
    return found


def send(connection: socket.socket, message: bytes) -> None:
    """Sends `message`. A fetcher whose last batch is acknowledged may have ended; a failed one sends no next frame."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(message)


def read(connection: socket.socket) -> int:
    """Reads a job to its end; the bytes of its images."""
    total, unsent = 0, None
    while True:
        magic, epoch, index, length = _HEADER.unpack(receive(connection, _HEADER.size))
        payload = receive(connection, length)
        if magic == b"GMBX":
            sys.exit(payload.decode(errors="replace"))
        if magic == b"GMBE":
            break
        if magic == b"GMBH":
            hello = json.loads(payload)
            names = json.dumps({name: hello[name] for name in ("job", "dataset", "fingerprint")}).encode()
            send(connection, _HELLO.pack(b"GMAH", len(names)) + names)
        else:
            total += arrays(payload)["image"].nbytes
            unsent = (epoch, index)
            if index % _ACKNOWLEDGE_EVERY == 0:
                send(connection, _ACKNOWLEDGE.pack(b"GMA1", epoch, index))
                unsent = None
        send(connection, b"GMAW")
    if unsent is not None:
        send(connection, _ACKNOWLEDGE.pack(b"GMA1", *unsent))
    return total


def connect(path: Path, fetcher: subprocess.Popen[bytes]) -> socket.socket:
    """A connection to the fetcher, once it listens."""
    deadline = time.monotonic() + _START_S
    while fetcher.poll() is None and time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(0.02)
        else:
            return connection
    fetcher.kill()
    sys.exit("the fetcher did not start")


def main() -> None:
    """Starts the fetcher that the arguments name, reads its batches, and prints CPU seconds and bytes."""
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder:
        path = Path(folder) / "socket"
        with subprocess.Popen([*sys.argv[1:], f"--socket={path}"], stdout=subprocess.DEVNULL) as fetcher:
            with connect(path, fetcher) as connection:
                total = read(connection)
            code = fetcher.wait()
    if code:
        sys.exit(f"the fetcher ended with {code}")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = time.process_time() + children.ru_utime + children.ru_stime
    print(json.dumps({"cpu_s": cpu_s, "bytes": total}))


if __name__ == "__main__":
    main()
