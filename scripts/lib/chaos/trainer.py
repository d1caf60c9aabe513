"""A trainer: receives batches, checkpoints occasionally, dies and resumes from a checkpoint."""

import random
import socket
import threading
import time

from chaos import frames

CHECKPOINT_EVERY = (1, 12)
CHECKPOINTS_KEPT = 6
RETRY_SECONDS = 0.05
# A paused fetcher keeps its socket: after this time without an answer the trainer reconnects.
SILENCE_SECONDS = 600


class Trainer(threading.Thread):
    """Reads one socket until stopped. Positions are (epoch, g) of the next batch."""

    def __init__(self, path, ledger, seed):
        super().__init__(daemon=True)
        self.path, self.ledger, self.random = str(path), ledger, random.Random(seed)
        self.lock = threading.Lock()
        self.sock, self.stopping, self.ended = None, False, False
        self.next = (0, 0)
        # Identity of the batches that positions count, and the fetcher's reason for a refusal.
        self.names, self.refusals = None, []
        # Checkpoints, oldest first; each is acknowledged once it is written.
        self.checkpoints = [(0, 0)]
        self.due = 1

    def after(self, name):
        epoch, g = name
        return (epoch, g + 1) if g + 1 < self.ledger.dataset.batches else (epoch + 1, 0)

    def last_before(self, position):
        epoch, g = position
        return (epoch, g - 1) if g > 0 else (epoch - 1, self.ledger.dataset.batches - 1)

    def crash(self):
        """Dies, and resumes from its last checkpoint."""
        with self.lock:
            self.come_back()

    def roll_back(self, rng):
        """Dies, and resumes from a checkpoint before its last; returns both, or None if there is none."""
        with self.lock:
            if len(self.checkpoints) < 2:
                return None
            last, to = self.checkpoints[-1], rng.randrange(len(self.checkpoints) - 1)
            self.checkpoints = self.checkpoints[:to + 1]
            self.come_back()
            return self.checkpoints[-1], last

    def roll_forward(self, last):
        """Dies, and comes back from `last`, which it had written and gone back behind."""
        with self.lock:
            self.checkpoints.append(last)
            self.come_back()

    def come_back(self):
        self.next, self.ended = self.checkpoints[-1], False
        self.hang_up()

    def hang_up(self):
        sock, self.sock = self.sock, None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self):
        with self.lock:
            self.stopping = True
            self.hang_up()

    def run(self):
        while not self.stopping:
            try:
                self.visit()
            except (OSError, frames.Closed):
                time.sleep(RETRY_SECONDS)
            except Exception as error:  # any error must fail the run
                self.ledger.wrong(f"the trainer cannot read: {error!r}")
                time.sleep(1)

    def visit(self):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(SILENCE_SECONDS)
            sock.connect(self.path)
            names = frames.read_hello(sock)
            with self.lock:
                if self.stopping:
                    return
                self.sock = sock
                if self.names not in (None, names):
                    self.ledger.wrong(f"the fetcher serves {names}, not {self.names}")
                self.names = names
                sock.sendall(frames.hello(names, self.begins()))
            previous = None
            while True:
                magic, epoch, g, payload = frames.read_frame(sock)
                if magic == b"GMBX":
                    self.refuse(payload.decode(errors="replace"))
                    raise frames.Closed("error frame")
                if magic == b"GMB1":
                    self.record(epoch, g, payload)
                with self.lock:
                    if self.sock is not sock:
                        return  # it crashed: what it holds is gone with it
                    if magic == b"GMBE":
                        self.end(sock)
                    else:
                        self.step(sock, (epoch, g), previous)
                        previous = (epoch, g)

    def begins(self):
        return self.checkpoints[-1]

    def refuse(self, why):
        self.ledger.note_exit(why)
        with self.lock:
            self.refusals.append(why)

    def take_refusals(self):
        with self.lock:
            refusals, self.refusals = self.refusals, []
            return refusals

    def record(self, epoch, g, payload):
        self.ledger.take(epoch, g, payload)

    def step(self, sock, name, previous):
        if previous is not None and name != self.after(previous):
            self.ledger.wrong(f"batch {name} follows {previous}")
            if name <= previous:
                self.ledger.twice += 1
        if name > self.next:
            self.ledger.wrong(f"batch {name} came where {self.next} was due")
        if name < self.next:
            return
        self.next = self.after(name)
        self.due -= 1
        if self.due <= 0:
            self.checkpoint(sock)

    def checkpoint(self, sock):
        self.due = self.random.randint(*CHECKPOINT_EVERY)
        if self.next != self.checkpoints[-1]:
            self.checkpoints = [*self.checkpoints[1 - CHECKPOINTS_KEPT:], self.next]
        self.say(sock)

    def say(self, sock):
        if self.checkpoints[-1] > (0, 0):
            sock.sendall(frames.ack(*self.last_before(self.checkpoints[-1])))

    def end(self, sock):
        if self.next != (self.ledger.dataset.epochs, 0):
            self.ledger.wrong(f"the end came where {self.next} was due")
        self.checkpoint(sock)
        self.ended = True


class Intruder(Trainer):
    """A second trainer of the same job: receives batches and acknowledges none."""

    def begins(self):
        return None  # wherever its fetcher's cursor is

    def record(self, epoch, g, payload):
        self.ledger.compare(epoch, g, payload)

    def step(self, sock, name, previous):
        pass

    def say(self, sock):
        pass

    def end(self, sock):
        self.stopping = True
        raise frames.Closed("all is taken")
