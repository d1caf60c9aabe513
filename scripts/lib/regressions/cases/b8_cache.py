"""B8: an interrupted removal from the cache is finished by the next caller."""

import signal
import time

from regressions.run import case
from regressions.world import expect

FEW = ("--epochs", "3", "--step-time", "0ms", "--json", "--state-dir", "state")


@case("B8.remove-again", "a removal that is killed can be repeated, and later jobs find what they store")
def remove_again(world):
    world.integers([400])
    pipeline = world.write("p.yaml", (
        "source:\n  tfrecord: data\n  features:\n    value: { key: value, dtype: i64 }\n"
        "ops:\n  - sleep: { ms: 5 }\n  - batch: { size: 8 }\n  - autocache\n"
    ))
    modes = lambda: [epoch["mode"] for epoch in world.run("run", pipeline, *FEW).json["epochs"]]
    expect(modes()[-1] == "get", "the first job did not read what it had stored")
    expect(modes() == ["get"] * 3, "the second job did not read what the first had stored")
    world.end_services()
    up = world.up()
    listed = lambda: world.run("cache", "ls", "--state-dir", "state", "--json").json
    expect(len(listed()["entries"]) == 1, f"{listed()}")
    name = listed()["entries"][0]["fingerprint"]
    # Killed at some moment of it; the service goes on.
    for wait in (0.0, 0.005, 0.02):
        removal = world.start(world.gristmill, "cache", "rm", name, "--state-dir", "state")
        time.sleep(wait)
        removal.signal(signal.SIGKILL)
        removal.wait(5)
    for _ in range(2):
        again = world.run("cache", "rm", name, "--state-dir", "state", "--json")
        expect(again.code in (0, 2), f"exit {again.code}: {again.lines()}")
    left = listed()
    expect(not left["entries"] and not left["removing"], f"{left}")
    up.signal(signal.SIGINT)
    up.wait(20)
    expect(modes()[-1] == "get" and modes() == ["get"] * 3, "what is stored after a removal is not found")
