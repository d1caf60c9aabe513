"""B9: records are not blamed for deaths of workers that do not depend on the record."""

from regressions.run import case
from regressions.world import expect


def chaos(world, ms, batch, workers, *more, seconds=400):
    """A run of slow splits whose workers are killed at random, to its end."""
    world.integers([256, 256])
    pipeline = world.integers_pipeline(batch, f"  - sleep: {{ ms: {ms} }}\n")
    return world.run(
        "run", pipeline, "--epochs", "1", "--step-time", "0ms", "--workers", str(workers), "--chaos", "kill-workers",
        "--json", *more, seconds=seconds,
    )


def blames_nobody(ended):
    blamed = [line for line in ended.lines() if "killed its worker" in line or "correct the data" in line]
    expect(not blamed, f"blamed: {blamed[:1]}")
    if ended.code == 0:
        report = ended.json
        expect((report["lost"], report["duplicates"], report["skipped"]) == (0, 0, 0), f"{report}")
        return
    ended.failed_in_one_line(1, "workers died or could not start within", "last error")


@case("B9.last-split", "chaos on splits of 2.6 s: the last one left is not blamed")
def last_split(world):
    blames_nobody(chaos(world, 40, 64, 8))


@case("B9.in-step", "splits of half the time a lone worker lives are not blamed, nor skipped")
def in_step(world):
    blames_nobody(chaos(world, 40, 30, 4, "--on-error", "skip", "--max-skipped", "100%"))


@case("B9.everything-dies", "where every worker dies the job says so, backs off and fails")
def everything_dies(world):
    ended = chaos(world, 200, 64, 2, "--chaos-interval", "100ms", seconds=420)
    blames_nobody(ended)
