"""A rank of a data-parallel program: over a fetcher's socket, or with a loader.

It logs each step, saves a checkpoint every few of them, and may kill itself at its end. Run as a program, with a JSON
object of options.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<4sIQQ")
#: How long it waits for a fetcher, a service or the other ranks.
PATIENCE_S = 60.0
#: Exit code of a rank that was refused; it says why on standard error.
REFUSED = 3

Cursor = tuple[int, int]


class RefusedError(Exception):
    """The fetcher sent an error in place of a frame."""


class GoneError(Exception):
    """The fetcher went away."""


def tensors(payload: bytes) -> dict[str, bytes]:
    """The bytes of each tensor of a safetensors blob."""
    (size,) = struct.unpack_from("<Q", payload)
    header = json.loads(payload[8 : 8 + size])
    header.pop("__metadata__", None)
    places = {name: (8 + size + first, 8 + size + last) for name, (first, last) in _offsets(header).items()}
    return {name: payload[first:last] for name, (first, last) in places.items()}


def _offsets(header: dict[str, Any]) -> dict[str, list[int]]:
    return {name: value["data_offsets"] for name, value in header.items()}


def digest(named: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(named):
        whole.update(name.encode() + b"\0" + named[name])
    return whole.hexdigest()[:16]


class Rank:
    """The steps of a rank, and what it saves of them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.rank, self.of, self.epochs = options["rank"], options["of"], options["epochs"]
        self.folder = Path(options["folder"])
        found = self.file("json")
        saved = json.loads(found.read_text()) if found.exists() else []
        self.checkpoints: list[dict[str, Any]] = saved[: len(saved) - options["back"]] if saved else []
        checkpoint = self.checkpoints[-1] if self.checkpoints else None
        #: Where the next step begins, and the text of the checkpoint there.
        self.next: Cursor | None = None
        self.text: str | None = options["text"]
        self.log_bytes = 0
        if self.text is not None:
            at = json.loads(self.text)
            self.next = at["epoch"], at["g"]
        if checkpoint is not None:
            self.next, self.text = tuple(checkpoint["next"]), checkpoint["text"]
            self.log_bytes = checkpoint["log_bytes"]
        #: Own batch of the last step.
        self.last: Cursor | None = checkpoint and checkpoint["last"]
        self.steps = 0
        self.log: int | None = None
        self.seen = os.open(self.file("seen"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def file(self, kind: str, rank: int | None = None) -> Path:
        return self.folder / f"{self.rank if rank is None else rank}.{kind}"

    def write(self, kind: str, value: object) -> None:
        """Replaces a file as a whole."""
        draft = self.file(f"{kind}.draft")
        draft.write_text(json.dumps(value))
        draft.replace(self.file(kind))

    def acked(self) -> Cursor:
        """All before this place may be gone, as this rank has said that it is stored."""
        found = self.file("acked")
        epoch, g = json.loads(found.read_text()) if found.exists() else (-1, 0)
        return epoch, g

    def meet(self, at: Cursor) -> None:
        """Waits until all ranks have come to the step at `at`, as in a collective operation."""
        self.write("at", at)
        end = time.monotonic() + PATIENCE_S
        behind = set(range(self.of)) if self.options["meets"] else set()
        while behind:
            behind = {rank for rank in behind if self.place_of(rank) < at}
            if time.monotonic() > end:
                raise RefusedError(f"waited in vain for ranks {behind} at {at}")
            if behind:
                time.sleep(0.003)

    def place_of(self, rank: int) -> Cursor:
        found = self.file("at", rank)
        epoch, g = json.loads(found.read_text()) if found.exists() else (-1, 0)
        return epoch, g

    def step(self, start: Cursor, batch: Cursor, content: str, *, is_repeat: bool) -> None:
        """Trains a step."""
        line = f"{start[0]} {start[1]} {batch[1]} {content} {'repeat' if is_repeat else 'own'}\n".encode()
        if self.log is None:
            # Steps after the checkpoint are trained again.
            self.write("json", self.checkpoints)
            self.log = os.open(self.file("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.truncate(self.log, self.log_bytes)
        self.meet(start)
        time.sleep(self.options["step_s"])
        os.write(self.log, line)
        os.write(self.seen, line)
        self.log_bytes = os.fstat(self.log).st_size
        self.steps += 1

    def save(self) -> None:
        checkpoint = {"next": self.next, "last": self.last, "text": self.text, "log_bytes": self.log_bytes}
        self.checkpoints = [*self.checkpoints, checkpoint][-2:]
        self.write("json", self.checkpoints)

    def may_die(self, moment: str) -> None:
        """Kills this process if it is to end at this moment, the first time."""
        died = self.file("died")
        if self.options["dies"] == moment and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def over(self) -> None:
        self.may_die("acknowledged")
        self.write("over", self.next)


class WireRank(Rank):
    """A rank that talks to a fetcher."""

    def run(self) -> None:
        since = time.monotonic()
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self.options["socket"])
                if self.session(connection):
                    return
            except (GoneError, OSError) as error:
                if isinstance(error, GoneError):
                    since = max(since, self.served)
                if time.monotonic() - since > PATIENCE_S:
                    raise RefusedError(f"no fetcher in {PATIENCE_S} s: {error}") from None
                time.sleep(0.05)
            finally:
                connection.close()

    served = 0.0

    def frame(self, connection: socket.socket) -> tuple[bytes, Cursor, bytes]:
        magic, epoch, batch, size = HEADER.unpack(receive(connection, HEADER.size))
        payload = receive(connection, size)
        if magic == b"GMBX":
            raise RefusedError(payload.decode())
        return magic, (epoch, batch), payload

    def session(self, connection: socket.socket) -> bool:
        """Trains until the fetcher says that all is over; whether it does."""
        _, _, payload = self.frame(connection)
        served = json.loads(payload)
        hello = {name: served[name] for name in ("job", "dataset", "fingerprint")}
        hello |= {"rank": self.rank, "of": self.of, "run": self.options["run"]}
        if self.next is not None:
            hello |= {"epoch": self.next[0], "batch_index": self.next[1]}
        text = json.dumps(hello).encode()
        send(connection, struct.pack("<4sI", b"GMH1", len(text)) + text)
        again = [one for one in self.checkpoints if tuple(one["next"]) <= self.acked()]
        if again:
            # It may have been lost with the last fetcher.
            self.send_ack(connection, again[-1])
        after: Cursor = served["from"]["epoch"], served["from"]["batch_index"]
        while True:
            send(connection, b"GMAW")
            magic, place, payload = self.frame(connection)
            self.served = time.monotonic()
            if magic == b"GMBC":
                after, text_after = place, payload.decode()
                magic, batch, payload = self.frame(connection)
                start = batch[0], batch[1] - self.rank
                self.step(start, batch, digest(tensors(payload)), is_repeat=magic == b"GMBR")
                self.next, self.last, self.text = after, batch, text_after
                if self.steps % self.options["every"] == 0:
                    self.checkpoint(connection, self.options["lag"])
                continue
            assert magic == b"GMBE", magic
            is_closed = json.loads(payload)["closed"]
            if not is_closed:
                self.write("at", (self.epochs, 0))
                self.may_die("unsaved")
                self.checkpoint(connection, 0, is_last=True)
            if is_closed or not self.options["stays"]:
                self.over()
                return True

    def checkpoint(self, connection: socket.socket, lag: int, *, is_last: bool = False) -> None:
        """Saves what is trained, and acknowledges it or what was saved before it."""
        if not self.checkpoints or (self.checkpoints[-1]["last"] != self.last and self.last is not None):
            self.save()
        if is_last:
            self.may_die("saved")
        acknowledged = self.checkpoints[-1 - lag :][:1] if len(self.checkpoints) > lag else []
        for checkpoint in acknowledged:
            self.write("acked", max(self.acked(), tuple(checkpoint["next"] or (-1, 0))))
            self.send_ack(connection, checkpoint)

    def send_ack(self, connection: socket.socket, checkpoint: dict[str, Any]) -> None:
        if checkpoint["last"] is not None:
            send(connection, struct.pack("<4sIQ", b"GMA1", *checkpoint["last"]))


def receive(connection: socket.socket, count: int) -> bytes:
    out = bytearray()
    while len(out) < count:
        part = connection.recv(count - len(out))
        if not part:
            raise GoneError("the fetcher went away")
        out += part
    return bytes(out)


def send(connection: socket.socket, data: bytes) -> None:
    # Else the next frame says why.
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


class LoaderRank(Rank):
    """A rank with a loader, which has a stream of its own."""

    def run(self) -> None:
        import gristmill as gm

        try:
            self.train(gm)
        except gm.Error as error:
            raise RefusedError(f"{type(error).__name__}: {error}") from error

    def train(self, gm: Any) -> None:
        options = self.options
        loader = gm.numpy.Loader(
            options["pipeline"],
            service=gm.connect(endpoint=options["endpoint"]),
            job=options["job"],
            epochs=self.epochs,
            keys=True,
            acknowledge=options["acknowledge"],
            run=options["run"],
            tail=options["tail"],
        )
        if self.text is not None:
            loader.load_state_dict({"version": 2, **json.loads(self.text)})
        if not self.checkpoints:
            self.take(loader)
        start = loader.cursor
        for epoch in range(loader.epoch, self.epochs):
            for batch in loader:
                content = {name: array.tobytes() for name, array in batch.items()}
                is_repeat, _ = bool(batch["__repeat__"][0]), [content.pop(n) for n in ("__repeat__", "__cursor__")]
                own = epoch, start[1] + self.rank
                self.step((epoch, start[1]), own, digest(content), is_repeat=is_repeat)
                start = tuple(batch["__cursor__"].tolist())
                if self.steps % options["every"] == 0:
                    self.take(loader)
            start = epoch + 1, 0
        self.write("at", (self.epochs, 0))
        self.may_die("unsaved")
        if not options["ends_inside"]:
            self.take(loader)
        self.may_die("saved")
        self.write("acked", (self.epochs, 0))
        loader.close()
        self.over()

    def take(self, loader: Any) -> None:
        """Saves a state. Taking it says that the one before is stored."""
        if self.checkpoints:
            self.write("acked", max(self.acked(), tuple(self.checkpoints[-1]["next"])))
        state = loader.state_dict()
        self.next = state["epoch"], state["g"]
        self.text = json.dumps({name: value for name, value in state.items() if name != "version"})
        self.save()


def main() -> int:
    options = json.loads(sys.argv[1])
    rank = LoaderRank(options) if options["kind"] == "loader" else WireRank(options)
    try:
        rank.run()
    except RefusedError as error:
        print(f"refused: {error}", file=sys.stderr, flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
