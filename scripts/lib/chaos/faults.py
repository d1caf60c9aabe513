"""Faults and their schedule: a seed determines kinds, times and durations."""

import collections
import datetime
import heapq
import itertools
import math
import random
import shutil
import signal
import time

from chaos import processes, proxy

# Mean seconds between two faults of a kind.
EVERY = {
    "kill worker": 2.6, "kill service": 9.0, "kill fetcher": 13.0, "drop trainer": 11.0,
    "pause worker": 10.0, "pause service": 20.0, "pause fetcher": 25.0,
    "full disk": 35.0, "cut calls": 14.0, "slow calls": 18.0, "held calls": 25.0,
    "two trainers": 40.0, "old checkpoint": 35.0,
    "trap worker": 6.0, "trap service": 12.0, "trap fetcher": 18.0,
}
# Kills at one moment of a request: the link, words in the request, the moment.
TRAPS = {
    "worker": [
        ("worker calls", b'"call":"claim"', proxy.ANSWERED),
        ("worker calls", b'"call":"mark"', proxy.ANSWERED),
        ("worker calls", b'"call":"flush"', proxy.SENT),
        ("worker calls", b'"call":"flush"', proxy.ANSWERED),
    ],
    "service": [
        ("worker calls", b'"call":"claim"', proxy.SENT),
        ("worker calls", b'"call":"flush"', proxy.SENT),
        ("fetcher calls", b'"call":"poll"', proxy.SENT),
        ("fetcher calls", b'"ack":{', proxy.SENT),
    ],
    "fetcher": [
        ("fetcher calls", b'"ack":{', proxy.SENT),
        ("fetcher calls", b'"ack":{', proxy.ANSWERED),
    ],
}
# Times of kills and nothing else, in which the wait for the next batch is theirs, and times of everything.
PHASE_SECONDS = (15.0, 40.0)
PAUSE_SECONDS = (0.1, 40.0)
DISK_SECONDS = (0.5, 6.0)
CUT_SECONDS = (0.05, 4.0)
SLOW_SECONDS = (1.0, 8.0)
SLOW_DELAY_SECONDS = (0.002, 0.1)
INTRUDER_SECONDS = (2.0, 8.0)
# A split that dies three times with its worker is set aside as the culprit: one that works alone is let be.
LONE_SECONDS = 3.0


class Injector:
    """Injects faults into one run; `tick` is called often and does what is due."""

    def __init__(self, seed, setup, totals, stalls):
        self.random = random.Random(seed)
        self.service, self.links, self.disk = setup.service, setup.links, setup.disk
        self.log = setup.root / "logs" / "faults.log"
        self.totals, self.stalls = totals, stalls
        self.job = None
        self.undo, self.order = [], itertools.count()
        # Filled by the proxies' thread, emptied by `tick`.
        self.sprung = collections.deque()
        self.due = {}
        self.last_fault = self.last_worker_kill = 0.0
        self.kills_only, self.phase_ends = False, 0.0
        self.plan(time.monotonic())

    def plan(self, now):
        """Draws the next time of each kind of fault."""
        self.due = {kind: now + self.random.expovariate(1 / mean) for kind, mean in EVERY.items()}

    def tick(self, now):
        """Ends expired faults; begins those due while a job runs."""
        while self.undo and self.undo[0][0] <= now:
            heapq.heappop(self.undo)[2]()
        while self.sprung:
            self.count(*self.sprung.popleft())
        if self.job is None:
            return
        if now >= self.phase_ends:
            self.change_phase(now)
        for kind, mean in EVERY.items():
            if now >= self.due[kind]:
                self.due[kind] = now + self.random.expovariate(1 / mean)
                if kind.startswith(("kill ", "trap ")) or not self.kills_only:
                    self.inject(kind, now)

    def change_phase(self, now):
        self.phase_ends = now + self.random.uniform(*PHASE_SECONDS)
        self.kills_only = not self.kills_only
        if self.kills_only:
            self.heal()

    def inject(self, kind, now):
        verb, _, what = kind.partition(" ")
        alone = not self.undo
        method = verb if verb in ("kill", "pause", "trap") else kind.replace(" ", "_")
        # A trap counts when it springs.
        if getattr(self, method)(what) and verb != "trap":
            self.count(kind, alone)

    def count(self, kind, alone):
        verb = kind.partition(" ")[0]
        self.totals.faults[kind] += 1
        self.last_fault = time.monotonic()
        self.note(kind)
        if verb not in ("kill", "trap"):
            self.stalls.disturbed()
        if verb in ("kill", "trap", "drop"):
            self.stalls.killed(kind, alone)

    def note(self, text):
        with open(self.log, "a") as log:
            moment = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "milliseconds")
            log.write(f"{moment} {self.job.name if self.job else '-'} {text}\n")

    def heal(self):
        """Ends all active faults."""
        self.note("nothing any more")
        while self.undo:
            heapq.heappop(self.undo)[2]()
        self.last_fault = time.monotonic()

    def later(self, seconds, action):
        heapq.heappush(self.undo, (time.monotonic() + seconds, next(self.order), action))

    def length(self, bounds):
        """A duration; short ones are frequent, long ones rare."""
        low, high = bounds
        return math.exp(self.random.uniform(math.log(low), math.log(high)))

    def signal(self, what, number):
        """Signals one process; returns (pid, function to signal it again), or None."""
        if what == "worker":
            found = self.service.workers()
            if not found:
                return None
            pid = self.random.choice(found)
            again = lambda number: self.service.signal_worker(pid, number)
        else:
            program = self.service if what == "service" else self.job.fetcher
            child = program.child
            again = lambda number: program.child is child and program.signal(number)
        return again if again(number) else None

    def kill(self, what):
        now = time.monotonic()
        if what == "worker":
            lone = len(self.service.workers()) <= 1
            if lone and now - self.last_worker_kill < LONE_SECONDS:
                return False
        killed = self.signal(what, signal.SIGKILL) is not None
        if killed and what == "worker":
            self.last_worker_kill = now
        return killed

    def trap(self, what):
        """Kills a process at one moment of its next request of a kind."""
        link, words, moment = self.random.choice(TRAPS[what])
        seconds = self.random.uniform(0.0, 0.02)
        kind = f"trap {what}"

        def kill(caller):
            alone = not self.undo
            if what == "service":
                # The request is in transit; the service is busy with it shortly after.
                time.sleep(seconds)
            if what == "worker":
                killed = self.kill_caller(caller)
            else:
                killed = self.signal(what, signal.SIGKILL) is not None
            if killed:
                self.sprung.append((kind, alone))

        self.links.trap(link, proxy.Trap(words, moment, kill))
        return True

    def kill_caller(self, pid):
        """Kills the worker that has called, unless it works alone."""
        now = time.monotonic()
        if len(self.service.workers()) <= 1 and now - self.last_worker_kill < LONE_SECONDS:
            return False
        if not self.service.signal_worker(pid, signal.SIGKILL):
            return False
        self.last_worker_kill = now
        return True

    def drop_trainer(self, _):
        self.job.trainer.crash()
        return True

    def pause(self, what):
        again = self.signal(what, signal.SIGSTOP)
        if again is None:
            return False
        self.later(self.length(PAUSE_SECONDS), lambda: again(signal.SIGCONT))
        return True

    def full_disk(self, _):
        if self.service.pid is None or any(action == self.disk.free for _, _, action in self.undo):
            return False
        self.disk.fill(self.service.writers)
        self.later(self.length(DISK_SECONDS), self.disk.free)
        return True

    def cut_calls(self, _):
        return self.link(proxy.CUT, CUT_SECONDS)

    def slow_calls(self, _):
        return self.link(proxy.SLOW, SLOW_SECONDS, self.length(SLOW_DELAY_SECONDS))

    def held_calls(self, _):
        return self.link(proxy.HELD, SLOW_SECONDS)

    def link(self, mode, bounds, delay=0.0):
        name = self.random.choice(processes.LINKS)
        self.links.become(name, mode, delay)
        self.later(self.length(bounds), lambda: self.links.become(name, proxy.PASS))
        return True

    def two_trainers(self, _):
        """Runs a second fetcher with a copy of the cursor, and a second trainer, for a while."""
        job = self.job
        if job.intruder is not None:
            return False
        job.intrude(self.random.random())
        self.later(self.length(INTRUDER_SECONDS), job.expel)
        return True

    def old_checkpoint(self, _):
        """Restarts fetcher and trainer from a checkpoint before the last."""
        return self.job.go_back(self.random)


def copy_cursor(source, target):
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
