"""B1: an invocation that is lost is replaced while others work."""

import json
import os
import pathlib
import signal
import time

from regressions.run import case
from regressions.world import ScalerState, expect


def half_done(world, workers, records=3000, ms=20):
    """A service, and a run on it in its course."""
    world.integers([records])
    up = world.up()
    endpoint = json.loads(up.lines("out")[-1])["endpoint"]
    pipeline = world.integers_pipeline(10, f"  - sleep: {{ ms: {ms} }}\n")
    run = world.start(
        world.gristmill, "run", pipeline, "--endpoint", endpoint, "--job", "a", "--workers", str(workers), "--epochs", "1",
        "--step-time", "0ms", "--json",
    )
    end = time.monotonic() + 20
    while at_work(world) < workers:
        expect(time.monotonic() < end, "the workers did not come")
        time.sleep(0.3)
    return up, run


def at_work(world):
    status = world.run("status", "a", "--state-dir", "state", "--json")
    return status.json["workers"]["active"] if status.code == 0 else 0


def all_there(run, seconds, records=3000):
    expect(run.wait(seconds) == 0, f"exit {run.code}: {run.lines()[-2:]}")
    report = run.json
    expect((report["elements_delivered"], report["lost"], report["duplicates"]) == (records, 0, 0), f"{report}")


def kill_workers(up):
    """Kills every worker process of the service."""
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rsplit(")", 1)[1].split()[1])
            command = (status.parent / "cmdline").read_bytes().split(b"\0")
            if parent == up.pid and b"worker" in command:
                os.kill(int(status.parent.name), signal.SIGKILL)
        except (OSError, IndexError):
            pass


@case("B1.lost-invocations", "outstanding workers that were never started are replaced within a minute")
def lost(world):
    # Long leases: of two that work one is always seen at work.
    up, run = half_done(world, 6, 4000, 200)
    with ScalerState(world, "a") as scaler:
        # As a scaler leaves them that dies between writing them and invoking.
        now_ms, first = int(time.time() * 1000), scaler.item["next_worker"]
        scaler.item["outstanding"] = [[now_ms, first, "0f"]]
        scaler.item["next_worker"] = first + 4
    # Two come, and work on: the other four are not there.
    kill_workers(up)
    began = time.monotonic()
    time.sleep(3)
    while at_work(world) < 6:
        expect(time.monotonic() - began < 60, f"{at_work(world)} of 6 workers are at work after a minute")
        expect(run.code is None, f"the job ended too early to tell: {run.lines()[-2:]}")
        time.sleep(1)
    run.signal(signal.SIGINT)
    expect(run.wait(20) == 130, f"exit {run.code}: {run.lines()[-2:]}")


@case("B4.version-gone", "a job whose worker version is gone goes on with the current one")
def version_gone(world):
    up, run = half_done(world, 2)
    up.signal(signal.SIGINT)
    up.wait(30)
    with ScalerState(world, "a") as scaler:
        scaler.item["outstanding"] = []
        scaler.item["worker_function"] = "worker:7"
    world.up()
    all_there(run, 150)
