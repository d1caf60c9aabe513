"""B3: coordinator and scaler have concurrency in an account that workers could exhaust."""

import json

from regressions.run import case
from regressions.world import expect

RECORDS = 400


def account_of_ten(world, *more):
    """Trains with 40 workers wanted where ten functions run at a time; the doctor's words."""
    world.integers([RECORDS])
    pipeline = world.integers_pipeline(4, ops="  - sleep: { ms: 5 }\n")
    up = world.up("--account-concurrency", "10", *more)
    endpoint = json.loads(up.lines("out")[0])["endpoint"]
    run = world.run("run", pipeline, "--endpoint", endpoint, "--workers", "40", "--epochs", "1", "--step-time", "0ms",
                    "--sink", "out", "--json", seconds=120)
    expect(run.code == 0, f"exit {run.code}: {run.err}")
    values = sorted(value for batch in world.sunk("out").values() for value in batch)
    expect(values == list(range(RECORDS)), f"{len(values)} of {RECORDS} records came, {len(set(values))} distinct")
    doctor = world.run("doctor", "--endpoint", endpoint, "--workers", "40")
    return next((line for line in doctor.lines("out") if " concurrency " in line), "no line of concurrency")


@case("B3.account-of-ten", "40 workers wanted, 10 functions at a time, nothing reserved: every record once")
def shared(world):
    said = account_of_ten(world)
    expect("10 at a time, 0 of them reserved: 7 workers can run" in said, f"the doctor says: {said}")


@case("B3.account-of-ten-reserved", "the same where coordinator and scaler have places of their own")
def reserved(world):
    said = account_of_ten(world, "--reserved-concurrency", "4")
    expect("10 at a time, 4 of them reserved: 6 workers can run" in said, f"the doctor says: {said}")


@case("B3.bad-reservation", "a reservation that leaves workers nothing is refused")
def bad(world):
    for reserve in ("1", "10", "999"):
        up = world.run("up", "--account-concurrency", "10", "--reserved-concurrency", reserve)
        up.failed_in_one_line(2, "--reserved-concurrency")
