"""B4: missing or refused resources are restored or reported, and a name can be freed."""

import json

from regressions.run import case
from regressions.world import expect


@case("B4.forget", "the name of a failed job is free after `gristmill forget`, and the error says so")
def forget(world):
    world.integers([40])
    bad = world.write("bad.yaml", (
        "source:\n  tfrecord: data\n  features:\n    value: { key: wrong, dtype: i64 }\nops:\n  - batch: { size: 8 }\n"
    ))
    good = world.integers_pipeline(8)
    up = world.up()
    endpoint = json.loads(up.lines("out")[-1])["endpoint"]
    run = lambda pipeline: world.run(
        "run", pipeline, "--endpoint", endpoint, "--job", "a", "--epochs", "1", "--step-time", "0ms", "--json",
    )
    run(bad).failed_in_one_line(1, "wrong")
    again = run(good)
    again.failed_in_one_line(again.code, "job a", "gristmill forget a")
    forgotten = world.run("forget", "a", "--state-dir", "state", "--json")
    expect(forgotten.code == 0 and forgotten.json["items"] > 0, f"{forgotten.lines()}")
    expect(world.run("status", "a", "--state-dir", "state").code == 2, "it is still there")
    expect(world.run("forget", "a", "--state-dir", "state").code == 2, "it is forgotten twice")
    trained = run(good)
    expect(trained.code == 0, f"exit {trained.code}: {trained.lines()[-2:]}")
    expect(trained.json["elements_delivered"] == 40, f"{trained.json}")


@case("B4.forget-running", "a job that runs is not forgotten")
def forget_running(world):
    world.integers([40])
    world.up()
    served = world.fetcher("a", "--pipeline", world.integers_pipeline(8))
    served.wait_for("serving", 20)
    refused = world.run("forget", "a", "--state-dir", "state")
    refused.failed_in_one_line(refused.code, "is running", "gristmill stop a")
    expect(refused.code != 0, "it was forgotten")

