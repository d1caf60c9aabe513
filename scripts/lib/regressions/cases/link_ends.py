"""A1, A2, B4, B7: the end of a job for its trainer, and trainers that return late."""

import json
import os
import pathlib
import re
import signal
import socket
import time

from chaos import frames
from regressions.cases.link import BATCHES, RECORDS, data, exact, refusing, serve
from regressions.client import Client
from regressions.run import case
from regressions.world import Failed, expect


def state_of(world, job):
    return world.run("status", job, "--state-dir", "state", "--json").json["state"]


def patched(world, path, **position):
    saved = json.loads((world.folder / path).read_text())
    world.write(path, json.dumps({**saved, **position}))


def last_acknowledged(world, pipeline, *more):
    """A job whose trainer has acknowledged all to a fetcher that died before it could say so; the new service."""
    first = world.up()
    fetcher = serve(world, "a", pipeline, *more)
    log = {}
    client = Client(world, "a").hello((0, 0))
    client.rest(log, BATCHES - 1)
    end = client.batch()
    first.end()
    client.ack(*end[0])
    time.sleep(0.5)
    fetcher.end()
    client.close()
    log[end[0]] = end[1]
    exact(log)
    world.up()


@case("A1.collected", "a state file older than what is deleted: its trainer is refused, and the fetcher ends with one line")
def collected(world):
    pipeline = data(world, sleep_ms=2)
    world.up()
    fetcher = serve(world, "a", pipeline, "--state", "s.json")
    log = {}
    Client(world, "a").hello().rest(log, 40)
    # It reports what was acknowledged once a second, and what is behind that is deleted.
    time.sleep(3)
    fetcher.end()
    patched(world, "s.json", batch_index=1)
    fetcher = serve(world, "a", pipeline, "--state", "s.json")
    refusal = Client(world, "a").hello().refusal()
    expect("restore a newer one" in refusal and "s.json" in refusal, f"it is refused with: {refusal}")
    fetcher.wait(5)
    fetcher.failed_in_one_line(1, "s.json", "restore a newer one")
    patched(world, "s.json", batch_index=40)
    fetcher = serve(world, "a", pipeline, "--state", "s.json")
    # A trainer's own checkpoint is its own matter: the next one may have a newer.
    refusal = Client(world, "a").hello((0, 1)).refusal()
    expect("restore a newer one" in refusal, f"it is refused with: {refusal}")
    expect(Client(world, "a").hello().rest(log), "no end")
    exact(log)
    expect(fetcher.wait(20) == 0, "it does not end well")


@case("A1.closes-alone", "a fetcher that died between the last acknowledgement and the end closes the job alone")
def closes_alone(world):
    pipeline = data(world)
    last_acknowledged(world, pipeline, "--state", "s.json")
    expect(state_of(world, "a") == "running", "it is over already")
    fetcher = world.fetcher("a", "--state", "s.json")
    fetcher.wait_for("closing it without its trainer", 10)
    expect(fetcher.wait(20) == 0, f"exit {fetcher.code}: {fetcher.err}")
    expect(state_of(world, "a") == "done", f"the job is {state_of(world, 'a')}")


@case("A1.complete-checkpoint", "a trainer that comes back with all of the job gets its end, and the job is closed")
def complete_checkpoint(world):
    pipeline = data(world)
    last_acknowledged(world, pipeline)
    for position in ((0, BATCHES), (1, 0)):
        fetcher = serve(world, "a", pipeline)
        client = Client(world, "a").hello(position)
        expect(client.batch() is None, "batches come after the end")
        expect(fetcher.wait(10) == 0, f"exit {fetcher.code}: {fetcher.err}")
        expect(state_of(world, "a") == "done", f"the job is {state_of(world, 'a')}")


@case("A1.done-job", "a job that is done is reported as done at once to every client")
def done_job(world):
    pipeline = data(world)
    up = world.up()
    fetcher = serve(world, "a", pipeline, "--state", "s.json")
    log = {}
    expect(Client(world, "a").hello((0, 0)).rest(log) and fetcher.wait(10) == 0, f"{fetcher.err}")
    exact(log)
    # Its own state says so too.
    again = world.fetcher("a", "--pipeline", pipeline, "--state", "s.json")
    again.wait_for("job a is done", 3)
    expect(again.wait(15) == 0, f"exit {again.code}: {again.err}")
    for more in ([], ["--state", "t.json"]):
        fetcher = serve(world, "a", pipeline, *more)
        fetcher.wait_for("job a is done", 3)
        refusal = Client(world, "a").hello().refusal()
        expect("job a is done" in refusal and "another job name" in refusal, f"it is refused with: {refusal}")
        refusal = Client(world, "a").hello((0, 7)).refusal()
        expect("job a is done" in refusal, f"it is refused with: {refusal}")
        fetcher.wait(20)
        fetcher.failed_in_one_line(1, "job a is done", "another job name")
    endpoint = json.loads(up.lines("out")[-1])["endpoint"]
    # As the fetcher registered it.
    run = world.run("run", pipeline, "--endpoint", endpoint, "--job", "a", "--epochs", "1", "--workers", "2", "--json")
    run.failed_in_one_line(1, "job a is done", "another job name")


@case("A1.no-batch", "a trainer of a done job without a batch gets its end, without mention of a checkpoint")
def no_batch(world):
    world.integers([40])
    pipeline = world.integers_pipeline(4, "  - filter: { field: value, in: [100] }\n")
    world.up()
    for _ in range(2):
        fetcher = serve(world, "a", pipeline)
        client = Client(world, "a").hello((0, 0))
        expect(client.batch() is None, "a batch comes")
        expect(fetcher.wait(15) == 0, f"exit {fetcher.code}: {fetcher.err}")
    expect(state_of(world, "a") == "done", f"the job is {state_of(world, 'a')}")


@case("A2.no-file", "what is no state file, or no place for a socket, is refused before anything starts, and left alone")
def no_file(world):
    pipeline = data(world)
    world.up()
    os.mkfifo(world.folder / "fifo")
    (world.folder / "folder").mkdir()
    with open(world.folder / "large", "wb") as large:
        large.truncate(1 << 30)
    world.write("text", "weights")
    long = "s" * 150
    for option, names in (("--state", ["/dev/zero", "/dev/null", "folder", "fifo", "large", "text", "no/such"]),
                          ("--socket", ["folder", "fifo", "text", "/dev/null", long, "no/such"])):
        for name in names:
            more = [option, name] if option == "--state" else []
            fetcher = world.fetcher("a", "--pipeline", pipeline, *more, socket="a.sock" if more else name)
            fetcher.wait(10)
            fetcher.failed_in_one_line(2, name)
            expect(fetcher.rss_kib < 200_000, f"{name}: {fetcher.rss_kib} KiB of memory")
    expect((world.folder / "text").read_text() == "weights", "a file is changed")
    expect((world.folder / "large").stat().st_size == 1 << 30, "a file is changed")
    expect(world.run("status", "a", "--state-dir", "state").code == 2, "a job was started")


@case("B4.refused-registration", "401 at registration is tried again, and ends after the patience if it lasts")
def refused_registration(world):
    pipeline = data(world)
    up = world.up()
    with refusing(up, lambda call, _: {1: 401, 2: 500, 3: 401, 5: 401, 7: 503}.get(call)):
        fetcher = serve(world, "a", pipeline)
        log = {}
        expect(Client(world, "a").hello().rest(log), "no end")
        exact(log)
        expect(fetcher.wait(20) == 0, f"exit {fetcher.code}: {fetcher.err}")
    with refusing(up, lambda *_: 401):
        began = time.monotonic()
        fetcher = world.fetcher("b", "--pipeline", pipeline, "--patience", "5s")
        expect("401" in fetcher.wait_for("waiting for", 3), "it does not say what was answered")
        fetcher.wait(20)
        expect(time.monotonic() - began < 12, "it has another patience")
        fetcher.failed_in_one_line(1, "401")


@case("B4.failed-at-once", "a job that fails when it is registered is reported as failed, though the answer got lost")
def failed_at_once(world):
    world.integers([4])
    empty = world.write("empty.jsonl", "")
    pipeline = world.write("e.yaml", (
        f"source:\n  jsonl: {empty.name}\n  features: {{ x: {{ dtype: i64 }} }}\nops:\n  - batch: {{ size: 4 }}\n"
    ))
    up = world.up()
    # Indexed now, so that the next job over it fails as it is registered.
    first = world.fetcher("first", "--pipeline", pipeline)
    first.wait(40)
    first.failed_in_one_line(1, "no records")
    lost = {"left": 1}

    def loses(call, body):
        if b'"call":"register"' in body and lost["left"]:
            lost["left"] = 0
            return "lose"
        return None

    with refusing(up, loses):
        fetcher = world.fetcher("a", "--pipeline", pipeline)
        fetcher.wait(20)
        fetcher.failed_in_one_line(1, "no records")
        expect("exists" not in fetcher.err and "forget" not in fetcher.err, fetcher.err)
        expect(not lost["left"], "nothing was lost")


@case("B4.named-folder", "the fetcher names the user's folder in errors of a job that runs, to its trainer too")
def named_folder(world):
    world.integers([40])
    bad = world.write("data/train-00000", (world.folder / "data/train-00000").read_bytes()[:-7])
    world.up()
    fetcher = world.fetcher("a", "--pipeline", world.integers_pipeline(4))
    fetcher.wait_for("serving", 20)
    refusal = Client(world, "a").hello().refusal()
    fetcher.wait(20)
    fetcher.failed_in_one_line(1, str(bad))
    expect(str(bad) in refusal, f"its trainer is refused with: {refusal}")
    expect("s3://dir-" not in fetcher.err, fetcher.err)
