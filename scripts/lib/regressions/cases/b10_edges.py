"""B10: edges of the programs."""

from regressions.run import case
from regressions.world import expect


@case("B10.full-output", "`--json` to a full disk is an error, not a success")
def full_output(world):
    world.integers([40])
    pipeline = world.integers_pipeline(8)
    with open("/dev/full", "wb") as full:
        explain = world.run("explain", pipeline, "--json", stdout=full)
    expect(explain.code == 1, f"exit {explain.code}: {explain.err}")
    explain.failed_in_one_line(1, "standard output")
