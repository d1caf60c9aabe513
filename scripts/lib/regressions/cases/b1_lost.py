"""B1: workers that are lost are replaced while a job runs."""

import json
import signal
import time

from regressions.run import case
from regressions.world import expect

WORKERS = 6


def at_work(world):
    status = world.run("status", "a", "--state-dir", "state", "--json")
    return status.json["workers"]["active"] if status.code == 0 else 0


@case("B1.lost-invocations", "workers that end with their service, busy or just asked for, are replaced within a minute")
def lost(world):
    world.integers([4000])
    up = world.up()
    endpoint = json.loads(up.lines("out")[-1])["endpoint"]
    # Long leases: of two that work one is always seen at work.
    pipeline = world.integers_pipeline(10, "  - sleep: { ms: 200 }\n")
    run = world.start(
        world.gristmill, "run", pipeline, "--endpoint", endpoint, "--job", "a", "--workers", str(WORKERS), "--epochs", "1",
        "--step-time", "0ms", "--json",
    )
    end = time.monotonic() + 20
    while at_work(world) < 1:
        expect(time.monotonic() < end, "no worker comes")
        time.sleep(0.1)
    up.end()
    world.up()
    began = time.monotonic()
    while at_work(world) < WORKERS:
        expect(time.monotonic() - began < 60, f"{at_work(world)} of {WORKERS} workers are at work after a minute")
        expect(run.code is None, f"the job ended too early to tell: {run.lines()[-2:]}")
        time.sleep(1)
    run.signal(signal.SIGINT)
    expect(run.wait(20) == 130, f"exit {run.code}: {run.lines()[-2:]}")
