"""B6: the cost grows linearly with the number of files."""

import time

from regressions.run import case
from regressions.world import expect


def trained(world, files, folder):
    """Seconds until a job over so many files of one line has run."""
    for file in range(files):
        world.write(f"{folder}/{file:06}.jsonl", f'{{"value": {file}}}\n')
    pipeline = world.write(f"{folder}.yaml", (
        f"source:\n  jsonl: {folder}\n  features:\n    value: {{ dtype: i64 }}\nops:\n  - batch: {{ size: 100 }}\n"
    ))
    began = time.monotonic()
    run = world.run("run", pipeline, "--workers", "4", "--epochs", "1", "--step-time", "0ms", "--json", seconds=300)
    expect(run.code == 0, f"exit {run.code}: {run.lines()[-2:]}")
    report = run.json
    delivered = (report["elements_delivered"], report["lost"], report["duplicates"])
    expect(delivered == (files, 0, 0), f"delivered, lost, doubled: {delivered}")
    return time.monotonic() - began


@case("B6.files", "10,000 files of one line take at most 7.5 times as long as 2,000")
def files(world):
    few, many = trained(world, 2_000, "few"), trained(world, 10_000, "many")
    expect(many < 7.5 * few, f"10,000 files took {many:.1f} s, 2,000 {few:.1f} s")
