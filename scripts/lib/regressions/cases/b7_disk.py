"""B7: a full disk is reported at once, and work continues when there is space."""

import json
import sys
import time

from regressions.run import case
from regressions.world import expect

# Runs a command in a mount namespace of its own with a small disk at DIR, which it fills when DIR.fill is there and
# frees when that is gone.
SMALL_DISK = r"""
import pathlib, subprocess, sys, time
from chaos import disk
where, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
if not disk.private_mounts():
    sys.exit(77)
small = disk.Disk(where, True)
if not small.mounted:
    sys.exit(77)
flag, full = where.with_name(where.name + ".fill"), False
if flag.exists():
    small.fill()
    full = True
child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
while child.poll() is None:
    if flag.exists() != full:
        full = not full
        small.fill() if full else small.free()
    time.sleep(0.05)
small.close()
sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)
"""
# Runs a command where that disk is mounted.
BESIDE = r"""
import os, sys
from chaos import disk
if not disk.join_mounts(int(sys.argv[1])):
    sys.exit(77)
os.execv(sys.argv[2], sys.argv[2:])
"""
NO_MOUNTS = 77


def python(world, code, *arguments):
    path = {"PYTHONPATH": str(world.root / "scripts/lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    return world.start(sys.executable, "-c", code, *arguments, env=path)


def on_small_disk(world, where, *command):
    return python(world, SMALL_DISK, world.folder / where, *command)


def fill(world, where, full=True):
    flag = world.folder / f"{where}.fill"
    flag.touch() if full else flag.unlink()


def plain(program):
    """No line of a log, and nothing in colour, reached the terminal."""
    for line in program.lines("err"):
        raw = "\x1b[" in line or "ERROR" in line or "WARN" in line or line.startswith("{") or "panicked" in line
        expect(not raw, f"a raw line: {line[:200]}")


def slow_job(world, records=600):
    world.integers([records])
    return world.integers_pipeline(4, ops="  - sleep: { ms: 10 }\n")


@case("B7.disk-service", "a disk that fills under a service: named within 5 s, and the job ends well when there is room")
def service(world):
    pipeline = slow_job(world)
    up = on_small_disk(world, "disk", world.gristmill, "up", "--json", "--state-dir", world.folder / "disk/state")
    ready = up.wait_for('"endpoint"', 30)
    run = python(world, BESIDE, up.pid, world.gristmill, "run", pipeline, "--endpoint", json.loads(ready)["endpoint"],
                 "--epochs", "1", "--step-time", "0ms", "--sink", "out", "--json")
    time.sleep(1.5)
    expect(run.code is None, f"the run ended before its disk was full: {run.err}")
    fill(world, "disk")
    for program in (up, run):
        line = program.wait_for("is full", 6)
        expect("disk under" in line and "bytes free" in line and "free some" in line, line)
    time.sleep(3)
    fill(world, "disk", False)
    expect(run.wait(60) == 0, f"exit {run.code}: {run.err}")
    plain(run)
    values = sorted(value for batch in world.sunk("out").values() for value in batch)
    expect(values == list(range(600)), f"{len(values)} of 600 records came")


@case("B7.disk-full", "a disk that is full from the start: one line, at once")
def full(world):
    pipeline = slow_job(world)
    fill(world, "disk")
    run = on_small_disk(world, "disk", world.gristmill, "run", pipeline, "--epochs", "1", "--json", "--state-dir",
                        world.folder / "disk/state")
    expect(run.wait(20) in (1, NO_MOUNTS), f"exit {run.code}: {run.err}")
    expect(run.code != NO_MOUNTS, "no mount of our own can be had here")
    run.failed_in_one_line(1, "full", "free some")
    plain(run)


@case("B7.disk-run", "a disk that fills while `run` works: named within 5 s, and it goes on")
def running(world):
    pipeline = slow_job(world)
    run = on_small_disk(world, "disk", world.gristmill, "run", pipeline, "--epochs", "1", "--step-time", "0ms", "--sink",
                        world.folder / "out", "--json", "--state-dir", world.folder / "disk/state")
    time.sleep(2)
    expect(run.code is None, f"the run ended before its disk was full: exit {run.code}: {run.err}")
    fill(world, "disk")
    run.wait_for("is full", 6)
    time.sleep(2)
    fill(world, "disk", False)
    expect(run.wait(60) == 0, f"exit {run.code}: {run.err}")
    plain(run)
    values = sorted(value for batch in world.sunk("out").values() for value in batch)
    expect(values == list(range(600)), f"{len(values)} of 600 records came")
