"""B4: what is gone or refused heals or is told, and a name can be freed."""

from regressions.run import case
from regressions.world import expect


def failed_job(world, name):
    """A job that fails on its first record; its pipeline."""
    world.integers([40])
    pipeline = world.write("bad.yaml", (
        "source:\n  tfrecord: data\n  features:\n    value: { key: wrong, dtype: i64 }\nops:\n  - batch: { size: 8 }\n"
    ))
    served = world.fetcher(name, "--pipeline", pipeline)
    served.wait_for("serving", 20)
    world.train(name)
    served.wait(30)
    expect(served.code == 1, f"exit {served.code}: {served.lines()[-2:]}")
    return pipeline


@case("B4.forget", "the name of a failed job is free after `gristmill forget`, and the error says so")
def forget(world):
    world.up()
    failed_job(world, "a")
    good = world.integers_pipeline(8)
    again = world.fetcher("a", "--pipeline", good)
    again.wait(30)
    expect(again.code != 0 and "gristmill forget a" in again.err, f"exit {again.code}: {again.err[-300:]}")
    forgotten = world.run("forget", "a", "--state-dir", "state", "--json")
    expect(forgotten.code == 0 and forgotten.json["items"] > 0, f"{forgotten.lines()}")
    expect(world.run("status", "a", "--state-dir", "state").code == 2, "it is still there")
    expect(world.run("forget", "a", "--state-dir", "state").code == 2, "it is forgotten twice")
    served = world.fetcher("a", "--pipeline", good)
    served.wait_for("serving", 20)
    trained = world.train("a")
    expect(trained.code == 0, f"exit {trained.code}: {trained.lines()[-2:]}")
    expect(trained.json["batches"] == 5, f"{trained.json}")
    served.wait(30)
    expect(served.code == 0, f"exit {served.code}: {served.lines()[-2:]}")


@case("B4.forget-running", "a job that runs is not forgotten")
def forget_running(world):
    world.integers([40])
    world.up()
    served = world.fetcher("a", "--pipeline", world.integers_pipeline(8))
    served.wait_for("serving", 20)
    refused = world.run("forget", "a", "--state-dir", "state")
    refused.failed_in_one_line(refused.code, "is running", "gristmill stop a")
    expect(refused.code != 0, "it was forgotten")

