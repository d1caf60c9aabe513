"""Runs programs that print their results as a JSON object in the last line, one at a time; leaves none running."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import time

from process_tree import tree

PR_SET_CHILD_SUBREAPER = 36
SECONDS_TO_END = 5
# A service ends by itself so long after its last client.
SECONDS_TO_FOLLOW = 20


class Failed(Exception):
    """A program failed; the reason in one line."""


def adopt():
    """Makes orphans of programs children of this process, so that `end_all` finds them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def answer(command, log, seconds, cores=None, env=None):
    """The object that a program prints last. It has the last so many cores; what else it says goes to a file."""
    mine = sorted(os.sched_getaffinity(0))
    allowed = mine[-cores:] if cores else mine
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        # Its own session: Ctrl-C interrupts only this process, which then ends its programs.
        child = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, **(env or {})}, start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )
    try:
        printed, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer within {seconds:.0f} s; see {log}") from None
    if child.returncode != 0:
        raise Failed(f"{last_words(log)} (exit code {child.returncode}; see {log})")
    try:
        return json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        raise Failed(f"its last line is no JSON object: {' '.join(map(str, command))}") from None


def cpu_of(run):
    """CPU seconds of all processes that a function starts, until the last has ended; and what it returns."""
    before = children_cpu()
    found = run()
    deadline = time.monotonic() + SECONDS_TO_FOLLOW
    while below():
        if time.monotonic() > deadline:
            raise Failed(f"processes of the run have not ended after {SECONDS_TO_FOLLOW} s")
        reap()
        time.sleep(0.05)
    return children_cpu() - before, found


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reap():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass


def last_words(log):
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "it said nothing"


def below():
    me = os.getpid()
    return [pid for pid in tree(me) if pid != me]


def signal_all(number):
    for pid in below():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def end_all():
    """Ends all started programs: SIGTERM, then SIGKILL."""
    signal_all(signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_END
    while below():
        if time.monotonic() > deadline:
            signal_all(signal.SIGKILL)
        reap()
        time.sleep(0.01)
