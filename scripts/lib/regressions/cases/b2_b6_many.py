"""B2 and B6: many splits and many files cost what one does, so many times."""

import json
import time

from regressions.client import Client
from regressions.run import case
from regressions.world import expect

# More entries than one answer of the platform holds.
SPLITS = 30_000


@case("B2.deep-resume", f"a trainer that comes back at the end of an epoch of {SPLITS} splits has a batch within 3 s")
def deep_resume(world):
    world.integers([SPLITS])
    pipeline = world.integers_pipeline(1, "  - sleep: { ms: 0 }\n")
    up = world.up()
    endpoint = json.loads(up.lines("out")[-1])["endpoint"]
    # Registered with splits of one batch, which only `run` can ask for; its trainer takes one batch and is gone.
    run = world.start(
        world.gristmill, "run", pipeline, "--endpoint", endpoint, "--job", "a", "--workers", "4", "--epochs", "1",
        "--split-batches", "1", "--step-time", "60s", "--json",
    )
    end = time.monotonic() + 20
    while world.run("status", "a", "--state-dir", "state", "--json").code != 0:
        expect(time.monotonic() < end, "the job does not begin")
        time.sleep(0.2)
    run.end()
    fetcher = world.fetcher("a")
    fetcher.wait_for("serving", 30)
    log, last = {}, SPLITS - 10
    expect(not Client(world, "a").hello((0, 0)).rest(log, last, ack=False), "the epoch ended early")
    fetcher.end()
    began = time.monotonic()
    # Without its state: entries from the epoch's first on say which batch is which.
    world.fetcher("a").wait_for("serving", 30)
    client = Client(world, "a").hello((0, last))
    began_waiting = time.monotonic()
    at, values = client.batch()
    log[at] = values
    seconds = time.monotonic() - began_waiting
    expect(at == (0, last), f"batch {at} and not {last} comes first")
    expect(seconds < 3, f"the first batch came after {seconds:.1f} s, {time.monotonic() - began:.1f} s after the start")
    expect(client.rest(log), "no end")
    records = sorted(value for values in log.values() for value in values)
    expect(records == list(range(SPLITS)), f"{len(records)} records, {len(set(records))} different, of {SPLITS}")


def indexed(world, files, folder):
    """Seconds until a job over so many files of one line has run, and the longest time it said nothing."""
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
    return time.monotonic() - began, run.longest_silence()


@case("B6.files", "10,000 files of one line are indexed and trained on in 30 s, five times as long as 2,000 and little more")
def files(world):
    few, _ = indexed(world, 2_000, "few")
    many, silence = indexed(world, 10_000, "many")
    expect(many < 30, f"10,000 files took {many:.1f} s, 2,000 {few:.1f} s")
    expect(many < 7.5 * few, f"10,000 files took {many:.1f} s, 2,000 {few:.1f} s")
    expect(silence < 6, f"it said nothing for {silence:.1f} s")
