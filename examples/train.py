#!/usr/bin/env python3
"""Train a synthetic model on the batches that a gristmill fetcher serves.

    gristmill fetcher ... --socket /tmp/job.sock &
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

With --rank, it is one rank of several, of a fetcher with --ranks:

    python3 examples/train.py --socket /tmp/job.sock --rank 2 --of 4 --checkpoint rank2.json

  fetcher -> rank      each step is two frames
      GMBC   epoch and batch_index are where the step after this one begins; the payload is the text
             of a checkpoint, the same on all ranks, to be saved once this step is trained
      GMB1   the rank's batch of the step, or
      GMBR   another batch of the step, because the epoch has too few: give it weight 0 in metrics;
             batch_index is the number of the batch that the epoch lacks
      GMBE   no more steps; once more, with `closed` in its payload, when all ranks have acknowledged
  rank -> fetcher
      GMH1   instead of GMAH: also rank, of, and the name of the run; epoch and batch_index are those
             of a GMBC, the step to begin with
      GMA1   the rank's own batch: this step and all before are in its checkpoint

A rank outlives its fetcher: it connects to the next one, and goes on where it is.
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
MAGICS = (b"GMBH", b"GMB1", b"GMBR", b"GMBC", b"GMBE", b"GMBX")
NAMES = ("job", "dataset", "fingerprint")  # which batches a position counts
PAYLOAD_BYTES_MAX = 1 << 32  # a longer one is a broken stream, not a batch
DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "BF16": "<u2",  # numpy has no bfloat16: the bits; view them with ml_dtypes or torch
}


class Stop(Exception):
    """Ends the program with one line."""


class Gone(Stop):
    """The fetcher went away."""


def receive(sock, length):
    """Exactly `length` bytes, writable, in one buffer."""
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = sock.recv_into(view[filled:])
        if count == 0:
            raise Gone("the fetcher went away; start it again, then this script")
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


def keys_of(blob):
    """The `__key__`s of a batch, which name its records."""
    (header_bytes,) = struct.unpack_from("<Q", blob)
    start = 8 + header_bytes
    begin, end = json.loads(bytes(blob[8:start]))["__key__"]["data_offsets"]
    return struct.unpack_from(f"<{(end - begin) // 8}Q", blob, start + begin)


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


def save(path, content):
    """Writes the checkpoint whole or not at all. A real one holds the model's weights as well."""
    if path is None:
        return
    draft = f"{path}.{os.getpid()}.draft"
    with open(draft, "w") as file:
        json.dump(content, file)
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
    if magic not in MAGICS:
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


def send(sock, message):
    try:
        sock.sendall(message)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the next frame says why, or the job is over


def run(sock, args):
    trainer = Trainer(args.step_time)
    names, done = greet(sock, args)
    begun, unacked = done, None
    counts = {"batches": 0, "elements": 0}
    waited, started = 0.0, time.monotonic()

    def checkpoint(position):
        save(args.checkpoint, {**names, "epoch": position[0], "batch_index": position[1]})
        send(sock, ACK.pack(b"GMA1", *position))

    while True:
        asked = time.monotonic()
        send(sock, b"GMAW")
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


class Log:
    """One line for each batch that was trained: epoch, batch index, keys of its records."""

    def __init__(self, path, length):
        self.file = None
        if path is not None:
            # The batches that the checkpoint does not contain are trained again.
            self.file = open(path, "a+b")
            self.file.truncate(length)

    def write(self, words):
        if self.file is not None:
            self.file.write(" ".join(map(str, words)).encode() + b"\n")

    def flush(self):
        """Bytes that are safe."""
        if self.file is None:
            return 0
        self.file.flush()
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size


class Rank:
    """One rank of several, which outlives its fetcher."""

    def __init__(self, args):
        self.args, self.trainer = args, Trainer(args.step_time)
        saved = load_rank(args.checkpoint)
        self.names = saved.get("names")  # which batches these are
        self.next = saved.get("next")  # where the next step begins
        self.saved = saved.get("last")  # own batch of the last step that the checkpoint contains
        self.unsaved = None  # the same of a later step, and the text of the checkpoint after it
        self.log = Log(args.log, saved.get("log_bytes", 0))
        self.is_over = False  # all steps are trained and saved
        self.counts = {"rank": args.rank, "batches": 0, "repeats": 0, "elements": 0}
        self.waited = 0.0
        self.was_served = False

    def run(self):
        started = since = time.monotonic()
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(self.args.socket)
                payload = self.session(sock)
                break
            except (Gone, ConnectionError, FileNotFoundError, TimeoutError) as error:
                if self.was_served:
                    since, self.was_served = time.monotonic(), False
                if time.monotonic() - since > self.args.patience:
                    if self.is_over:
                        print(f"train.py: rank {self.args.rank} has trained and saved everything, and the fetcher "
                              "left before it said that the job is closed", file=sys.stderr)
                        payload = b"{}"
                        break
                    raise Stop(f"no fetcher at {self.args.socket} for {self.args.patience:.0f} s ({error}): "
                               "start it, then this script") from error
                time.sleep(0.1)
            finally:
                sock.close()
        seconds = time.monotonic() - started
        self.counts.update(seconds=round(seconds, 3), stall_fraction=round(self.waited / max(seconds, 1e-9), 4))
        self.counts["job"] = json.loads(payload or b"{}")
        return self.counts

    def greet(self, sock):
        sock.settimeout(15)
        magic, _, _, payload = read_frame(sock, self.args)
        sock.settimeout(None)
        if magic != b"GMBH":
            raise Stop(f"a fetcher says hello first, not {magic!r}")
        served = json.loads(payload)
        if "ranks" not in served:
            raise Stop(f"the fetcher at {self.args.socket} serves one trainer of all batches: start it with --ranks")
        if self.names is None:
            self.names = {name: served[name] for name in NAMES}
        hello = {**self.names, "rank": self.args.rank, "of": self.args.of}
        if self.args.run is not None:
            hello["run"] = self.args.run
        if self.next is not None:
            hello.update(epoch=self.next[0], batch_index=self.next[1])
        text = json.dumps(hello).encode()
        send(sock, HELLO.pack(b"GMH1", len(text)) + text)
        if self.saved is not None:
            # The acknowledgement may have been lost with the last fetcher.
            send(sock, ACK.pack(b"GMA1", *self.saved))

    def session(self, sock):
        """Trains until the job is closed: the payload of its last frame."""
        self.greet(sock)
        checkpoint, steps = None, 0
        while True:
            asked = time.monotonic()
            send(sock, b"GMAW")
            magic, epoch, batch_index, payload = read_frame(sock, self.args)
            self.was_served = True
            if magic == b"GMBC":
                checkpoint = [epoch, batch_index], payload.decode()
                magic, epoch, batch_index, payload = read_frame(sock, self.args)
            self.waited += time.monotonic() - asked
            if magic == b"GMBE":
                self.checkpoint(sock)
                self.is_over = True
                if json.loads(payload).get("closed"):
                    return payload
                continue
            self.train(magic, epoch, batch_index, payload)
            self.next = checkpoint[0]
            self.unsaved = [epoch, batch_index], checkpoint[1]
            steps += 1
            if steps % self.args.ack_every == 0:
                self.checkpoint(sock)

    def train(self, magic, epoch, batch_index, payload):
        try:
            batch, keys = tensors(payload), keys_of(payload)
        except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise Stop(f"batch {batch_index} of epoch {epoch} is no safetensors: {error!r}") from error
        self.trainer.train_step(batch)
        is_repeat = magic == b"GMBR"
        self.log.write((["repeat"] if is_repeat else []) + [epoch, batch_index, *keys])
        self.counts["repeats" if is_repeat else "batches"] += 1
        self.counts["elements"] += 0 if is_repeat else len(keys)

    def checkpoint(self, sock):
        """Saves what is trained, then acknowledges it."""
        if self.unsaved is None:
            return
        last, text = self.unsaved
        save(self.args.checkpoint, {
            "names": self.names, "next": self.next, "last": last, "log_bytes": self.log.flush(), "checkpoint": text,
        })
        self.saved, self.unsaved = last, None
        send(sock, ACK.pack(b"GMA1", *last))


def load_rank(path):
    """The checkpoint of a rank; empty if there is none."""
    if path is None or not os.path.exists(path):
        return {}
    try:
        with open(path) as file:
            saved = json.load(file)
        saved["names"] = {name: str(saved["names"][name]) for name in NAMES}
        for name in ("next", "last"):
            epoch, batch_index = saved[name]
            saved[name] = [int(epoch), int(batch_index)]
        saved["log_bytes"] = int(saved["log_bytes"])
        return saved
    except (ValueError, KeyError, TypeError) as error:
        raise Stop(f"{path} is no checkpoint of a rank of this script: {error!r}") from error


def from_environment(*names):
    """The number that torchrun or Slurm gives in the first of these variables that is set."""
    values = (os.environ.get(name) for name in names)
    return next((int(value) for value in values if value), None)


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
    ranks = parser.add_argument_group("several ranks")
    ranks.add_argument("--rank", type=int, default=from_environment("RANK", "SLURM_PROCID"), metavar="R",
                       help="the number of this rank (RANK, SLURM_PROCID)")
    ranks.add_argument("--of", type=positive, default=from_environment("WORLD_SIZE", "SLURM_NTASKS"), metavar="C",
                       help="number of ranks (WORLD_SIZE, SLURM_NTASKS)")
    ranks.add_argument("--run", metavar="NAME", help="name of the run, as the fetcher's --run")
    ranks.add_argument("--log", metavar="FILE", help="a line for each batch: epoch, batch index, keys of records")
    ranks.add_argument("--patience", type=duration, default=60.0, metavar="60s",
                       help="how long to wait for a fetcher that is gone")
    args = parser.parse_args()
    if args.rank is not None and (args.of is None or not 0 <= args.rank < args.of):
        parser.error(f"--rank {args.rank} needs --of with the number of ranks, which is larger")
    if args.rank is None and (args.log or args.run):
        parser.error("--log and --run are of a rank: give --rank and --of")
    try:
        if args.rank is not None:
            return finish(args, Rank(args).run())
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
    return finish(args, result)


def finish(args, result):
    if args.json:
        print(json.dumps(result))
    else:
        print("{batches} batches, {elements} elements in {seconds} s, "
              "waiting {0:.1%} of it".format(result["stall_fraction"], **result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
