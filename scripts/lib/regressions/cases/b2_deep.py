"""B2: a trainer comes back deep in an epoch of very many splits."""

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
