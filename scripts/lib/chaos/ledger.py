"""The ledger of a run: delivered frames, faults, and the trainer's waits after them.

Does not rely on the product's own counts: a job is recounted from the bytes that arrived.
"""

import collections
import dataclasses
import hashlib
import statistics
import threading
import time

from chaos import frames

ERRORS_KEPT = 20


@dataclasses.dataclass
class Recount:
    """Result of one job."""

    delivered: int
    lost: int
    twice: int
    digest: str


class JobLedger:
    """All frames of one job, to any client, including replays."""

    def __init__(self, dataset, expected, stalls):
        self.dataset, self.expected, self.stalls = dataset, expected, stalls
        self.lock = threading.Lock()
        self.digests, self.keys = {}, {}
        self.replays = self.twice = 0
        self.errors, self.said = [], collections.Counter()
        self.last_new = time.monotonic()

    def wrong(self, text):
        with self.lock:
            self.errors.append(text)

    def note_exit(self, text):
        """Counts an exit message of a fetcher, which is no error by itself."""
        with self.lock:
            self.said[text] += 1

    def compare(self, epoch, g, payload):
        """Checks a frame delivered to another client: its bytes must be the same."""
        digest, name = hashlib.blake2b(payload, digest_size=32).digest(), (epoch, g)
        with self.lock:
            self.replays += 1
            if self.expected is not None and self.expected.get(name) != digest:
                self.errors.append(f"a second trainer got another batch {name}")

    def take(self, epoch, g, payload):
        """Records a frame of the trainer, and checks it against earlier and expected ones."""
        now, name = time.monotonic(), (epoch, g)
        digest = hashlib.blake2b(payload, digest_size=32).digest()
        with self.lock:
            before = self.digests.setdefault(name, digest)
            if name in self.keys:
                self.replays += 1
                if before != digest:
                    self.errors.append(f"batch {name} came again with other bytes")
                return
            self.keys[name] = frames.keys_of(payload)
            self.last_new = now
            if self.expected is not None and self.expected.get(name) != digest:
                self.errors.append(f"batch {name} differs from that of an undisturbed run")
        self.stalls.arrived(now)

    def recount(self):
        """Recounts the records of every epoch from the frames."""
        wanted, lost, twice = self.dataset.keys(), 0, self.twice
        for epoch in range(self.dataset.epochs):
            seen = collections.Counter()
            for (of, _), keys in self.keys.items():
                if of == epoch:
                    seen.update(keys)
            lost += len(wanted - seen.keys())
            twice += sum(count - 1 for count in seen.values() if count > 1)
            strangers = len(seen.keys() - wanted)
            if strangers:
                self.errors.append(f"epoch {epoch} holds {strangers} records that do not exist")
        whole = hashlib.blake2b(digest_size=32)
        for name in sorted(self.digests):
            whole.update(self.digests[name])
        delivered = sum(len(keys) for keys in self.keys.values())
        return Recount(delivered, lost, twice, whole.hexdigest())


@dataclasses.dataclass
class Open:
    """A kill without a new batch since."""

    kind: str
    at: float
    alone: bool


class Stalls:
    """Time from each kill to the next new batch."""

    def __init__(self):
        self.lock = threading.Lock()
        self.open, self.closed = [], []
        self.streaming = False

    def begin(self):
        """A job begins to stream."""
        with self.lock:
            self.open, self.streaming = [], True

    def end(self):
        """Discards open kills: there is no next batch."""
        with self.lock:
            self.open, self.streaming = [], False

    def disturbed(self):
        """Records a fault that is no kill: current waits are no longer due to kills alone."""
        with self.lock:
            for kill in self.open:
                kill.alone = False

    def killed(self, kind, alone):
        with self.lock:
            if self.streaming:
                self.open.append(Open(kind, time.monotonic(), alone))

    def arrived(self, now):
        with self.lock:
            still = [kill for kill in self.open if kill.at > now]
            self.closed += [(kill.kind, now - kill.at, kill.alone)
                            for kill in self.open if kill.at <= now]
            self.open = still

    def worst_recovery(self):
        """The longest wait due to kills alone: (kind, seconds), if any."""
        alone = [(seconds, kind) for kind, seconds, by_itself in self.closed if by_itself]
        if not alone:
            return None
        seconds, kind = max(alone)
        return kind, round(seconds, 3)

    def summary(self):
        """By kind: number, median and maximum, and the same for waits due to kills alone."""
        kinds = collections.defaultdict(list)
        for kind, seconds, alone in self.closed:
            kinds[kind].append((seconds, alone))
        return {kind: figures(stalls) for kind, stalls in sorted(kinds.items())}


def figures(stalls):
    every = [seconds for seconds, _ in stalls]
    alone = [seconds for seconds, by_itself in stalls if by_itself]
    return {
        "count": len(every), "median_s": middle(every), "worst_s": worst(every),
        "alone": len(alone), "alone_median_s": middle(alone), "alone_worst_s": worst(alone),
    }


def middle(seconds):
    return round(statistics.median(seconds), 3) if seconds else None


def worst(seconds):
    return round(max(seconds), 3) if seconds else None


class Totals:
    """Results of the whole run."""

    def __init__(self):
        self.faults, self.said = collections.Counter(), collections.Counter()
        self.ends = collections.Counter()
        self.jobs = self.batches = self.delivered = self.lost = self.twice = 0
        self.skipped = self.replays = self.hash_mismatches = self.held = 0
        self.errors, self.hung = [], []

    def add(self, job, ledger, recount, expected_digest):
        self.jobs += 1
        self.batches += len(ledger.digests)
        self.delivered += recount.delivered
        self.lost += recount.lost
        self.twice += recount.twice
        self.replays += ledger.replays
        self.said.update(ledger.said)
        self.hash_mismatches += recount.digest != expected_digest
        self.errors += [f"{job}: {error}" for error in ledger.errors[:ERRORS_KEPT]]

    @property
    def kills(self):
        verbs = ("kill ", "trap ")
        return sum(count for kind, count in self.faults.items() if kind.startswith(verbs))

    @property
    def good(self):
        bad = (self.lost, self.twice, self.hash_mismatches, self.errors, self.hung)
        return self.jobs > 0 and not any(bad)
