"""B1: an invocation that is lost is replaced while others work."""

import signal
import time

from regressions.run import case
from regressions.world import Books, expect


def half_done(world, workers):
    """A job in its course, its service, its fetcher and its trainer."""
    world.integers([6000])
    up = world.up()
    pipeline = world.integers_pipeline(10, "  - sleep: { ms: 20 }\n")
    served = world.fetcher("a", "--pipeline", pipeline, "--workers", str(workers))
    served.wait_for("serving", 20)
    trainer = world.start(
        "python3", world.root / "examples/train.py", "--socket", "a.sock", "--step-time", "0ms", "--json",
    )
    end = time.monotonic() + 20
    while at_work(world) < workers:
        expect(time.monotonic() < end, "the workers did not come")
        time.sleep(0.3)
    return up, served, trainer


def at_work(world):
    status = world.run("status", "a", "--state-dir", "state", "--json")
    return status.json["workers"]["active"] if status.code == 0 else 0


@case("B1.lost-invocations", "workers on the books that nobody ever started are replaced within a minute")
def lost(world):
    up, served, trainer = half_done(world, 4)
    up.signal(signal.SIGINT)
    up.wait(30)
    with Books(world, "a") as books:
        # As a scaler leaves them that dies between writing them and invoking: one is at work, three never were.
        now_ms, first = int(time.time() * 1000), books.item["next_worker"]
        books.item["outstanding"] = [[first + i, now_ms] for i in range(3)]
        books.item["next_worker"] = first + 3
    world.up()
    began = time.monotonic()
    while at_work(world) < 4:
        expect(time.monotonic() - began < 60, f"{at_work(world)} of 4 workers are at work after a minute")
        expect(trainer.code is None, "the job ended too early to tell")
        time.sleep(1)
    expect(trainer.wait(120) == 0, f"exit {trainer.code}: {trainer.lines()[-2:]}")
    expect(trainer.json["batches"] == 600, f"{trainer.json}")
    expect(served.wait(30) == 0, f"exit {served.code}: {served.lines()[-2:]}")


@case("B4.version-gone", "a job whose worker version is gone goes on with the current one")
def version_gone(world):
    up, served, trainer = half_done(world, 2)
    up.signal(signal.SIGINT)
    up.wait(30)
    with Books(world, "a") as books:
        books.item["outstanding"] = []
        books.item["worker_function"] = "worker:7"
    world.up()
    expect(trainer.wait(150) == 0, f"exit {trainer.code}: {trainer.lines()[-2:]}")
    expect(trainer.json["batches"] == 600, f"{trainer.json}")
    expect(served.wait(30) == 0, f"exit {served.code}: {served.lines()[-2:]}")
