#!/usr/bin/env python3
"""Train a synthetic model on the batches that a gristmill fetcher serves.

    gristmill-fetcher ... --socket /tmp/job.sock &
    python3 examples/train.py --socket /tmp/job.sock --checkpoint job.json

A real trainer replaces `train_step` and `save`; the rest reads batches from a fetcher, with only the
standard library and numpy.

The socket carries, all little endian:

  fetcher -> trainer   magic, u32 epoch, u64 batch_index, u64 payload_len, then payload_len bytes
      GMBH   hello, first of all: a JSON object with job, dataset and fingerprint (which batches
             these are) and epochs
      GMB1   that batch of the epoch, as one safetensors blob
      GMBE   end of job: epoch is the number of epochs, batch_index is 0, the payload a JSON summary
      GMBX   error: one line of UTF-8
  trainer -> fetcher
      GMAH   u32 payload_len, then a JSON object: job, dataset and fingerprint as the checkpoint has
             them, and the epoch and batch_index of the first batch that is not in it
      GMA1   u32 epoch, u64 batch_index: everything up to and including it is in a checkpoint and need
             not be sent again
      GMAW   the magic alone, before each frame that is read: the trainer waits from now on

The first batch is the one that the trainer's hello asks for. Save first, then acknowledge: a crash at
any point neither loses nor repeats a batch.
"""

import argparse
import json
import os
import re
import socket
import struct
import sys
import time

try:
    import numpy as np
except ImportError:  # The synthetic model works without it.
    np = None

HEADER = struct.Struct("<4sIQQ")
ACK = struct.Struct("<4sIQ")
HELLO = struct.Struct("<4sI")
NAMES = ("job", "dataset", "fingerprint")  # which batches a position counts
PAYLOAD_BYTES_MAX = 1 << 32  # a longer one is a broken stream, not a batch
DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "BF16": "<u2",  # numpy has no bfloat16: the bits; view them with ml_dtypes or torch
}


class Stop(Exception):
    """Ends the program with one line."""


def receive(sock, length):
    """Exactly `length` bytes, writable, in one buffer."""
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = sock.recv_into(view[filled:])
        if count == 0:
            raise Stop("the fetcher went away; start it again, then this script")
        filled += count
    return data


def tensors(blob):
    """The arrays of a safetensors blob by name, as views into it."""
    if len(blob) < 8:
        raise ValueError(f"{len(blob)} bytes are no safetensors")
    (header_bytes,) = struct.unpack_from("<Q", blob)
    start = 8 + header_bytes
    if start > len(blob):
        raise ValueError("the header of a batch is longer than the batch")
    arrays = {}
    for name, info in json.loads(bytes(blob[8:start])).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        if not 0 <= begin <= end <= len(blob) - start:
            raise ValueError(f"tensor {name} lies outside its batch")
        if np is None:
            arrays[name] = range(info["shape"][0])  # as many as there are elements
            continue
        dtype = np.dtype(DTYPES[info["dtype"]])
        flat = np.frombuffer(blob, dtype, (end - begin) // dtype.itemsize, start + begin)
        arrays[name] = flat.reshape(info["shape"])
    return arrays


class Trainer:
    """A stand-in for a model: normalises images as a GPU would, and takes its time."""

    def __init__(self, step_seconds):
        self.step_seconds = step_seconds
        if np is None:
            print("train.py: numpy is not installed: batches are received and left as they are", file=sys.stderr)
            return
        mean = np.array([0.485, 0.456, 0.406], np.float32)
        std = np.array([0.229, 0.224, 0.225], np.float32)
        # x / 255, less the mean, over the deviation: one multiplication and one addition.
        self.scale, self.shift = 1 / (255 * std), -mean / std

    def train_step(self, batch):
        started = time.monotonic()
        for name, array in batch.items() if np is not None else ():
            if array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3:
                batch[name] = array * self.scale + self.shift
                assert batch[name].dtype == np.float32
        time.sleep(max(0.0, self.step_seconds - (time.monotonic() - started)))


def save(path, names, epoch, batch_index):
    """Writes the checkpoint whole or not at all. A real one holds the model's weights as well."""
    if path is None:
        return
    draft = f"{path}.{os.getpid()}.draft"
    with open(draft, "w") as file:
        json.dump({**names, "epoch": epoch, "batch_index": batch_index}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def load(path):
    """(names, position of the last batch) of the checkpoint, or None."""
    if not os.path.exists(path):
        return None
    try:
        with open(path) as file:
            saved = json.load(file)
        return {name: str(saved[name]) for name in NAMES}, (int(saved["epoch"]), int(saved["batch_index"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Stop(f"{path} is no checkpoint of this script: {error!r}") from error


def read_frame(sock, args):
    """(magic, epoch, batch index, payload) of the next frame."""
    magic, epoch, batch_index, length = HEADER.unpack(receive(sock, HEADER.size))
    if magic not in (b"GMBH", b"GMB1", b"GMBE", b"GMBX"):
        raise Stop(f"{magic!r} is no frame of a fetcher: is {args.socket} the right socket?")
    if length > PAYLOAD_BYTES_MAX:
        raise Stop(f"a frame of {length} bytes cannot be: the stream is broken")
    payload = receive(sock, length)
    if magic == b"GMBX":
        raise Stop(payload.decode(errors="replace"))
    return magic, epoch, batch_index, payload


def greet(sock, args):
    """Says where training goes on; (names of the job's batches, last batch of the checkpoint or None)."""
    sock.settimeout(15)
    try:
        magic, _, _, payload = read_frame(sock, args)
    except TimeoutError:
        raise Stop(f"nobody says hello at {args.socket}: another trainer is connected, or it is no fetcher") from None
    sock.settimeout(None)
    if magic != b"GMBH":
        raise Stop(f"a fetcher says hello first, not {magic!r}")
    served = json.loads(payload)
    names, done = {name: served[name] for name in NAMES}, None
    hello = dict(names)
    if args.checkpoint is not None:
        saved = load(args.checkpoint)
        if saved is not None:
            hello, done = dict(saved[0]), saved[1]
        hello.update(epoch=done[0] if done else 0, batch_index=done[1] + 1 if done else 0)
    text = json.dumps(hello).encode()
    sock.sendall(HELLO.pack(b"GMAH", len(text)) + text)
    return names, done


def run(sock, args):
    trainer = Trainer(args.step_time)
    names, done = greet(sock, args)
    begun, unacked = done, None
    counts = {"batches": 0, "elements": 0}
    waited, started = 0.0, time.monotonic()

    def send(message):
        try:
            sock.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the next frame says why, or the job is over

    def checkpoint(position):
        save(args.checkpoint, names, *position)
        send(ACK.pack(b"GMA1", *position))

    while True:
        asked = time.monotonic()
        send(b"GMAW")
        magic, epoch, batch_index, payload = read_frame(sock, args)
        waited += time.monotonic() - asked
        if magic == b"GMBE":
            break
        try:
            batch = tensors(payload)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Stop(f"batch {batch_index} of epoch {epoch} is no safetensors: {error!r}") from error
        trainer.train_step(batch)
        counts["batches"] += 1
        counts["elements"] += len(next(iter(batch.values()), ()))
        done = unacked = (epoch, batch_index)
        if counts["batches"] % args.ack_every == 0:
            checkpoint(done)
            unacked = None
    if unacked is not None:
        checkpoint(unacked)
    if counts["batches"] == 0 and begun is not None:
        print(f"train.py: {args.checkpoint} is at the end of job {names['job']}: nothing is left to train on",
              file=sys.stderr)
    seconds = time.monotonic() - started
    counts.update(seconds=round(seconds, 3), stall_fraction=round(waited / max(seconds, 1e-9), 4))
    counts["job"] = json.loads(payload or b"{}")
    return counts


def duration(text):
    """Seconds, from `50ms`, `0.2s` or `1m`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"`{text}` is no duration: write 50ms or 0.2s")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60}[match[2]]


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main():
    parser = argparse.ArgumentParser(description="Trains on the batches of a gristmill fetcher.")
    parser.add_argument("--socket", required=True, metavar="PATH", help="socket of the fetcher")
    parser.add_argument("--step-time", type=duration, default=0.05, metavar="50ms",
                        help="least time a step takes")
    parser.add_argument("--ack-every", type=positive, default=10, metavar="N",
                        help="batches between checkpoints (10)")
    parser.add_argument("--checkpoint", metavar="FILE", help="where to save, and continue from")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    args = parser.parse_args()
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(args.socket)
            except OSError as error:
                raise Stop(f"no fetcher at {args.socket}: {error}; start one first") from error
            result = run(sock, args)
    except (Stop, OSError) as error:
        print("train.py:", " ".join(str(error).split()), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps(result))
    else:
        print("{batches} batches, {elements} elements in {seconds} s, "
              "waiting {0:.1%} of it".format(result["stall_fraction"], **result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
