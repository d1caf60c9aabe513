"""A7: skipping has a limit, and a run without a batch reports the reason."""

from regressions.run import case
from regressions.world import expect
from tfrecord import framed, int_example


def wrong_key(world, records, path="wrong.yaml"):
    """A pipeline over `records` records whose feature has another name than any has."""
    world.integers([records])
    return world.write(path, (
        "source:\n  tfrecord: data\n  features:\n    value: { key: wrong, dtype: i64 }\nops:\n  - batch: { size: 10 }\n"
    ))


def mixed(world, good, bad):
    """A pipeline over `good` whole records and then `bad` ones that lack the feature."""
    records = [framed(int_example("value", [value])) for value in range(good)]
    records += [framed(int_example("other", [value])) for value in range(bad)]
    world.write("data/train-00000", b"".join(records))
    return world.integers_pipeline(10)


@case("A7.wrong-key", "a wrong feature key fails the job: how many, why, which first, what to do")
def all_wrong(world):
    for policy in ("skip", "quarantine"):
        ended = world.run("run", wrong_key(world, 400), "--on-error", policy, "--epochs", "1", "--step-time", "0ms")
        ended.failed_in_one_line(1, "of 400 records", "1%", "wrong", "train-00000", "--max-skipped")


@case("A7.local-workers", "the cap holds for workers inside the trainer's process too")
def local_workers(world):
    ended = world.run(
        "run", wrong_key(world, 400), "--on-error", "skip", "--epochs", "1", "--step-time", "0ms", "--workers", "0",
        "--local-workers", "1",
    )
    ended.failed_in_one_line(1, "of 400 records", "wrong", "--max-skipped")


@case("A7.one-of-twenty", "one bad record of twenty is within the default, two are not")
def one_of_twenty(world):
    few = ("--on-error", "skip", "--epochs", "2", "--step-time", "0ms", "--json")
    ended = world.run("run", mixed(world, 19, 1), *few)
    expect(ended.code == 0 and ended.json["skipped"] == 2, f"exit {ended.code}: {ended.lines()[-2:]}")
    world.run("run", mixed(world, 18, 2), *few).failed_in_one_line(1, "2 of 20 records", "--max-skipped")


@case("A7.limits", "the cap is a number or a share; what is neither is bad usage")
def limits(world):
    pipeline = mixed(world, 380, 20)
    args = ("run", pipeline, "--on-error", "skip", "--epochs", "1", "--step-time", "0ms")
    for limit, code in (("20", 0), ("5%", 0), ("100%", 0), ("19", 1), ("4.9%", 1), ("0", 1), ("0%", 1)):
        ended = world.run(*args, "--max-skipped", limit)
        expect(ended.code == code, f"--max-skipped {limit}: exit {ended.code}: {ended.lines()[-2:]}")
    for limit in ("-1", "101%", "few", ""):
        expect(world.run(*args, f"--max-skipped={limit}").code == 2, f"--max-skipped {limit} is accepted")


@case("A7.fetcher", "gristmill-fetcher has the flag, and fails with the same line")
def fetcher(world):
    pipeline = wrong_key(world, 400)
    world.up()
    served = world.fetcher("a", "--pipeline", pipeline, "--on-error", "skip")
    served.wait_for("serving", 20)
    world.train("a")
    served.wait(30)
    expect(served.code == 1, f"exit {served.code}: {served.lines()[-2:]}")
    expect("of 400 records" in served.err and "--max-skipped" in served.err, served.err[-400:])


@case("A7.no-batch", "a run without a batch says why, and ends well")
def no_batch(world):
    world.integers([40])
    for name, ops, size, says in (
        ("filter", "  - filter: { field: value, in: [999999] }\n", 8, "dropped all 40 records"),
        ("drop", "", 64, "fewer than a batch of 64"),
    ):
        pipeline = world.write(f"{name}.yaml", (
            "source:\n  tfrecord: data\n  features:\n    value: { key: value, dtype: i64 }\n"
            f"ops:\n{ops}  - batch: {{ size: {size}, drop_remainder: true }}\n"
        ))
        ended = world.run("run", pipeline, "--epochs", "2", "--step-time", "0ms", "--json")
        expect(ended.code == 0, f"{name}: exit {ended.code}: {ended.lines()[-2:]}")
        reports = [line for line in ended.lines("err") if "no batch was delivered" in line]
        expect(len(reports) == 1 and says in reports[0], f"{name}: {ended.lines('err')[-3:]}")
        expect(says in (ended.json["empty"] or ""), f"{name}: {ended.json['empty']}")
    # A batch is not full, and nothing drops it: nothing to warn of.
    ended = world.run("run", world.integers_pipeline(64), "--epochs", "1", "--step-time", "0ms", "--json")
    expect(ended.code == 0 and ended.json["empty"] is None, f"{ended.lines()[-2:]}")
