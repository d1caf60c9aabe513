"""A3, A5, A6 and C: meaning of the data. Order, comparisons, new fields, large records."""

import json
import pathlib
import random
import time

from regressions.client import Client
from regressions.model import Pipeline, delimited, f32, files_of, jsonl
from regressions.run import case
from regressions.world import Failed, expect
from tfrecord import framed

NUMBERS = {"id": {"dtype": "i64"}}
B5 = ("batch", {"size": 5})
RAGGED = ("batch", {"size": 4, "ragged": True})
ORDER = ("in_order", {})


def endpoint(world):
    """The address of a service."""
    up = world.up()
    return json.loads(up.wait_for('"endpoint"', 30))["endpoint"]


def check_all(world, pipelines):
    """Runs each, and says of all of them what is wrong with the first few."""
    address, wrong = endpoint(world), []
    for i, pipeline in enumerate(pipelines):
        try:
            pipeline.check(world, f"p{i:02}", address)
        except Failed as failed:
            wrong.append(str(failed))
    expect(not wrong, f"{len(wrong)} of {len(pipelines)} differ: {' | '.join(wrong[:3])}")


def numbered(counts, ops, form="jsonl", **more):
    return Pipeline(files_of(*counts), ops, form, features=NUMBERS, **more)


@case("A3.in-order", "`in_order` is the dataset's order, leftovers included")
def in_order(world):
    odd = ("filter", {"field": "id", "in": [i for i in range(100) if i % 3]})
    everything = {name: {"dtype": "i64", "shape": [-1]} if name == "items" else {"dtype": "i64"} for name in ("id", "items")}
    several = lambda *ops: Pipeline(files_of(3, 6, 4, 0, 9), [ORDER, *ops], features=everything)
    check_all(world, [
        numbered([3, 6, 4], [ORDER, B5]),
        numbered([3, 6, 4], [ORDER, ("batch", {"size": 5, "drop_remainder": True})]),
        numbered([3, 6, 4], [ORDER, B5], "tfrecord", arguments=("--workers", "4", "--split-batches", "1")),
        numbered([41], [ORDER, odd, B5], arguments=("--split-batches", "1")),
        numbered([13, 1, 0, 27], [odd, ORDER, B5], "jsonl.gz", arguments=("--workers", "3", "--split-batches", "2")),
        several(("flat_map", {"field": "items"}), B5),
        several(("flat_map", {"field": "items"}), ("filter", {"field": "items", "max": 120}), ("duplicate", {"copies": 3}), B5),
        several(("length", {"field": "items", "into": "n_items"}), ("padded_batch", {"size": 5})),
        several(("length", {"field": "items", "into": "n_items"}), odd, ("padded_batch", {"size": 4, "drop_remainder": True})),
        several(odd, RAGGED),
        numbered([9, 5, 11], [("interleave", {"cycle_length": 2, "block_length": 2}), ("skip", {"count": 3}),
                              ("take", {"count": 17}), ("repeat", {"count": 3}), ORDER, odd, B5]),
        numbered([9, 5, 11], [ORDER, odd, B5], arguments=("--local-workers", "2", "--workers", "0")),
        numbered([9, 5, 11], [ORDER, ("batch", {"size": 100})]),
    ])


@case("A3.resume", "a trainer that comes back within an epoch in order goes on where it was")
def resume(world):
    world.integers([3, 6, 4, 8])
    ops = "  - in_order\n  - filter: { field: value, in: [0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14, 15, 17, 18, 20] }\n"
    pipeline = world.integers_pipeline(4, ops)
    wanted = [0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14, 15, 17, 18, 20]
    world.up()
    # Split into as many as there are batches, so that each is cut from several.
    for job, stop in [("r0", None), ("r1", 1), ("r2", 2), ("r3", 3)]:
        sink = world.folder / job
        arguments = ["--state-dir", "state", "--job", job, "--pipeline", pipeline, "--data", "data", "--epochs", "2",
                     "--socket", f"{job}.sock", "--state", f"{job}.cursor"]
        fetcher = world.start(world.fetcher_program, *arguments)
        fetcher.wait_for("serving", 20)
        delivered = serve(world, job, stop)
        if stop is not None:
            fetcher.end()
            (world.folder / f"{job}.sock").unlink(missing_ok=True)
            fetcher = world.start(world.fetcher_program, *arguments)
            fetcher.wait_for("serving", 20)
            delivered |= serve(world, job, None)
        for epoch in range(2):
            values = [x for (e, _), batch in sorted(delivered.items()) if e == epoch for x in batch]
            expect(values == wanted, f"{job}, epoch {epoch}: {values}, not {wanted}")


def serve(world, job, stop):
    """Trains on JOB.sock, acknowledging each batch; ends after `stop` batches, or with the job. What came."""
    delivered = {}
    client = Client(world, job).hello()
    if not client.rest(delivered, *[] if stop is None else [stop]):
        # The fetcher saves what was acknowledged before it reads on.
        time.sleep(0.5)
    client.close()
    return delivered


@case("A5.exact-numbers", "`filter` and `clip` compare integers of 64 bits exactly")
def exact_numbers(world):
    big = 2 ** 53
    ids = [0, 1, -1, big - 1, big, big + 1, big + 2, -big - 1, -big, 2 ** 63 - 1, 2 ** 63 - 2, -(2 ** 63), -(2 ** 63) + 1]
    files = [[{"id": number, "score": 0.0} for number in ids]]
    features = NUMBERS | {"score": {"dtype": "f32"}}
    of = lambda *ops: Pipeline(files, [ORDER, *ops, ("batch", {"size": 3})], features=features)
    check_all(world, [
        of(("filter", {"field": "id", "in": [big + 1]})),
        of(("filter", {"field": "id", "min": big + 1})),
        of(("filter", {"field": "id", "max": -big - 1})),
        of(("filter", {"field": "id", "in": [2 ** 63 - 1, -(2 ** 63), 7]})),
        of(("clip", {"field": "id", "min": -big - 1, "max": big + 1})),
        of(("clip", {"field": "id", "max": 2 ** 63 - 2})),
        of(("cast", {"field": "id", "dtype": "i32"}), ("filter", {"field": "id", "min": 2 ** 31 - 1})),
    ])


@case("A5.literals", "a number that its field cannot hold, and a new field of an old name, are refused")
def literals(world):
    world.write("data/a.jsonl", jsonl([{"id": 1, "label": 2, "items": [1]}]))
    head = ("source:\n  jsonl: data\n  features:\n    id: { dtype: i64 }\n    label: { dtype: i64 }\n"
            "    items: { dtype: i64, shape: [-1] }\nops:\n")
    for i, (op, *parts) in enumerate([
        ("filter: { field: id, min: 1.5 }", "line 8", "1.5", "`id`"),
        ("filter: { field: id, in: [9223372036854775808] }", "9223372036854775808"),
        ("filter: { field: items, min: -1 }", "-1", "length"),
        ("cast: { field: id, dtype: u8 }\n  - filter: { field: id, min: -1 }", "line 9", "-1", "0 to 255"),
        ("clip: { field: id, max: 0.5 }", "0.5"),
        ("pad_sequence: { field: items, length: 3, value: 0.5 }", "0.5"),
        ("copy: { field: id, into: label }", "`label`", "drop"),
        ("length: { field: items, into: label }", "`label`", "drop"),
        ("in_order\n  - bucket_by_sequence_length: { size: 2, field: items, boundaries: [4] }", "line 8", "`in_order`"),
    ]):
        last = "" if "bucket" in op else "  - padded_batch: { size: 2 }\n"
        pipeline = world.write(f"{i}.yaml", f"{head}  - {op}\n{last}")
        world.run("run", pipeline, "--epochs", "1").failed_in_one_line(2, *parts)


@case("A5.cast", "`cast` saturates for all inputs")
def cast(world):
    ids = [0, 1, -1, 127, 128, 255, 256, 65535, 65536, 70000, -70000, 2 ** 31 - 1, 2 ** 31, -(2 ** 31) - 1, 2 ** 62]
    files = [[{"id": number, "score": f32(number / 2)} for number in ids]]
    features = NUMBERS | {"score": {"dtype": "f32"}}
    batch = ("batch", {"size": 4})
    check_all(world, [
        Pipeline(files, [ORDER, ("cast", {"field": field, "dtype": dtype}), batch], features=features)
        for field in ("id", "score") for dtype in ("u8", "i32", "i64")
    ] + [Pipeline(files, [ORDER, ("clip", {"field": "score", "min": -3, "max": 300}), ("cast", {"field": "score", "dtype": "u8"}), batch],
                  features=features)])


UNUSUAL = [
    # Counts of records, operators, form, more.
    ([1], [("batch", {"size": 100, "ragged": True})], "jsonl", {}),
    ([0, 0, 1, 0], [RAGGED], "tfrecord", {}),
    ([0, 5], [("filter", {"field": "id", "min": 1000}), RAGGED], "jsonl", {}),
    ([7], [("take", {"count": 3}), RAGGED], "jsonl", {}),
    ([7, 2], [("skip", {"count": 8}), ("batch", {"size": 3, "ragged": True, "drop_remainder": True})], "jsonl", {}),
    ([4, 9, 2], [("repeat", {"count": 5}), ("skip", {"count": 1}), RAGGED], "tfrecord", {}),
    ([13, 1, 6], [("take", {"count": 11}), ("shuffle", {"blocks": 4}), RAGGED], "jsonl.gz", {}),
    ([13, 1, 6], [("shuffle", {"blocks": 1}), ("repeat", {"count": 2}), ("shuffle", {"blocks": 3, "seed": 5}), RAGGED], "jsonl", {}),
    ([5, 5, 5], [("interleave", {"cycle_length": 7, "block_length": 3}), ORDER, RAGGED], "tfrecord", {}),
    ([3, 0, 8, 1], [("interleave", {"cycle_length": 2}), RAGGED], "jsonl", {}),
    ([9, 4], [("flat_map", {"field": "items"}), ("drop", {"fields": ["rows", "name"]}), ("batch", {"size": 7})], "jsonl", {}),
    ([9, 4], [("flat_map", {"field": "rows"}), ("drop", {"fields": ["items", "name"]}), ("batch", {"size": 2})], "tfrecord", {}),
    ([9, 4], [("filter", {"field": "items", "max": 0}), ("flat_map", {"field": "items"}), RAGGED], "jsonl", {}),
    ([17], [("length", {"field": "name", "into": "n_name"}), ("length", {"field": "items", "into": "n_items"}),
            ("length", {"field": "rows", "into": "n_rows"}), ("padded_batch", {"size": 4, "values": {"items": -1}})], "jsonl", {}),
    ([17, 3], [ORDER, ("length", {"field": "items", "into": "n_items"}), ("drop", {"fields": ["rows", "name"]}),
               ("padded_batch", {"size": 6, "lengths": {"items": 9}, "values": {"items": 2 ** 63 - 1}, "drop_remainder": True})],
     "jsonl", {}),
    ([40, 31], [("length", {"field": "items", "into": "n_items"}), ("drop", {"fields": ["rows", "name"]}),
                ("bucket_by_sequence_length", {"size": 4, "field": "items", "boundaries": [2, 4]})], "jsonl", {}),
    ([40, 31], [("length", {"field": "items", "into": "n_items"}), ("drop", {"fields": ["rows", "name"]}),
                ("bucket_by_sequence_length", {"size": 3, "field": "items", "boundaries": [3], "pad_to_bucket_boundary": True,
                                               "drop_remainder": True})], "tfrecord", {"arguments": ("--split-batches", "4")}),
    ([11], [("truncate", {"field": "items", "length": 2}), ("pad_sequence", {"field": "items", "length": 4, "value": -(2 ** 63)}), RAGGED],
     "jsonl", {}),
    ([11, 6], [("duplicate", {"copies": 3}), ("autocache", {}), RAGGED], "jsonl", {}),
    ([11, 6], [("filter", {"field": "score", "in": [0.125, 0.5, 1]}), RAGGED], "jsonl", {}),
    ([23], [("copy", {"field": "items", "into": "again"}), ("flat_map", {"field": "again"}), ("filter", {"field": "again", "min": 60}), RAGGED],
     "tfrecord", {}),
    ([10], [("clip", {"field": "id", "max": 9}), ("one_hot", {"field": "id", "classes": 10}), RAGGED], "jsonl", {}),
    ([6, 6], [ORDER, ("copy", {"field": "name", "into": "other"}), ("drop", {"fields": ["name"]}), ("truncate", {"field": "other", "length": 3}),
              ("drop", {"fields": ["other"]}), RAGGED], "jsonl.gz", {}),
    ([12, 5], [RAGGED], "jsonl", {"keys": {"id": "größe", "items": "項目", "name": "a b"}}),
    ([12, 5], [("cast", {"field": "id", "dtype": "u8"}), ("cast", {"field": "score", "dtype": "i32"}), RAGGED], "tfrecord", {}),
    ([3] * 30, [("batch", {"size": 64, "ragged": True})], "jsonl", {"arguments": ("--workers", "3")}),
    ([3] * 30, [ORDER, ("autocache", {}), ("filter", {"field": "rows", "min": 1}), ("batch", {"size": 7, "ragged": True})], "jsonl",
     {"arguments": ("--workers", "3", "--split-batches", "1")}),
    ([2, 2], [("repeat", {"count": 40}), ORDER, ("batch", {"size": 9, "ragged": True}), ("autocache", {})], "jsonl", {}),
    ([19], [("flat_map", {"field": "items"}), ("duplicate", {"copies": 2}), ORDER, ("batch", {"size": 100, "ragged": True})], "jsonl", {}),
]


@case("A5.unusual-pipelines", "unusual pipelines deliver what a plain model says")
def unusual(world):
    check_all(world, [Pipeline(files_of(*counts), ops, form, **more) for counts, ops, form, more in UNUSUAL])


@case("A5.random-pipelines", "random pipelines deliver what a plain model says")
def random_pipelines(world):
    check_all(world, [drawn(random.Random(seed)) for seed in range(30)])


def drawn(draw):
    """One of countless pipelines."""
    counts = [draw.choice([0, 1, 2, 3, 5, 8, 13, 29]) for _ in range(draw.randint(1, 5))]
    counts[0] = max(counts[0], 1)
    total, ops = sum(counts), []
    if draw.random() < 0.3:
        ops.append(("interleave", {"cycle_length": draw.randint(1, 4), "block_length": draw.randint(1, 3)}))
    for _ in range(draw.randint(0, 2)):
        ops.append(draw.choice([
            ("take", {"count": draw.randint(1, total + 2)}), ("skip", {"count": draw.randint(0, total // 2)}),
            ("repeat", {"count": draw.randint(1, 3)}),
        ]))
    if draw.random() < 0.6:
        ops.append(ORDER)
    for _ in range(draw.randint(0, 3)):
        bound = draw.randint(-1, total)
        ops.append(draw.choice([
            ("filter", {"field": "id", "min": bound}), ("filter", {"field": "id", "max": bound}),
            ("filter", {"field": "id", "in": sorted({draw.randint(0, total) for _ in range(8)})}),
            ("filter", {"field": "items", "max": draw.randint(0, 5)}), ("duplicate", {"copies": draw.randint(1, 3)}),
            ("truncate", {"field": "items", "length": draw.randint(0, 4) or 1}), ("clip", {"field": "id", "min": 2}), ("autocache", {}),
        ]))
    ops = [op for i, op in enumerate(ops) if op[0] != "autocache" or "autocache" not in [name for name, _ in ops[:i]]]
    if draw.random() < 0.4:
        ops.append(("flat_map", {"field": "rows"}))
    size, drop = draw.randint(1, 9), draw.random() < 0.3
    if draw.random() < 0.5:
        ops += [("length", {"field": "items", "into": "n_items"}), ("length", {"field": "name", "into": "n_name"})]
        if ("flat_map", {"field": "rows"}) not in ops:
            ops.append(("length", {"field": "rows", "into": "n_rows"}))
        ops.append(("padded_batch", {"size": size, "drop_remainder": drop}))
    else:
        ops.append(("batch", {"size": size, "ragged": True, "drop_remainder": drop}))
    arguments = ("--workers", str(draw.randint(1, 3)), "--split-batches", str(draw.randint(1, 3)))
    return Pipeline(files_of(*counts), ops, draw.choice(["jsonl", "jsonl.gz", "tfrecord"]), arguments=arguments)


MIB = 1 << 20
LARGE = 5 * MIB


def large_records(form):
    """70 records of 5 MiB, one after the other."""
    for number in range(70):
        text = bytes([65 + number % 26]) * LARGE
        if form == "jsonl":
            yield b'{"id": %d, "text": "%s"}\n' % (number, text)
        elif form == "tfrecord":
            yield framed(large_example(number, text))
        else:
            yield member(f"{number:04}.txt", text) + member(f"{number:04}.cls", b"%d" % number)


def large_example(number, text):
    feature = lambda name, value: delimited(1, delimited(1, name) + delimited(2, value))
    return delimited(1, feature(b"id", delimited(3, delimited(1, bytes([number])))) + feature(b"text", delimited(1, delimited(1, text))))


def member(name, content):
    """A member of a tar file."""
    head = bytearray(name.encode().ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2)
    head += b"%011o\0" % len(content) + b"00000000000\0" + b" " * 8 + b"0" + b"\0" * 100 + b"ustar\0" + b"00"
    head = head.ljust(512, b"\0")
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + content + b"\0" * (-len(content) % 512)


@case("A6.large-records", "a batch of 64 records of 5 MiB each is read in bounded memory")
def large(world):
    keys = {"webdataset": ("txt", "cls")}
    for form, suffix in [("tfrecord", ""), ("jsonl", ".jsonl"), ("webdataset", ".tar")]:
        path = world.write(f"{form}/part{suffix}", b"")
        with path.open("wb") as file:
            for part in large_records(form):
                file.write(part)
            if form == "webdataset":
                file.write(b"\0" * 1024)
        text, number = keys.get(form, ("text", "id"))
        pipeline = world.write(f"{form}.yaml", (
            f"source:\n  {form}: {form}\n  features:\n    text: {{ key: {text}, dtype: bytes }}\n    id: {{ key: {number}, dtype: i64 }}\n"
            "ops:\n  - in_order\n  - truncate: { field: text, length: 4 }\n  - padded_batch: { size: 64 }\n"
        ))
        ran = world.start(
            world.gristmill, "run", pipeline, "--epochs", "1", "--step-time", "0ms", "--workers", "2", "--sink", f"sink-{form}", "--json",
        )
        most = 0
        while ran.code is None:
            most = max(most, largest_descendant(ran.pid))
            time.sleep(0.05)
        ran.wait(120)
        expect(ran.code == 0, f"{form}: exit {ran.code}: {ran.lines('err')[-1:]}")
        ids = [number for _, batch in sorted(world.sunk(f"sink-{form}", "id").items()) for number in batch]
        expect(ids == list(range(70)), f"{form}: {ids}")
        expect(most < 1_500_000, f"{form}: a process took {most} KiB")
        path.unlink()


def largest_descendant(pid):
    """The most memory, in KiB, that a process below `pid`, or itself, has taken so far."""
    parents, memory = {}, {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        except OSError:
            continue
        parents[int(folder.name)] = int(fields["PPid"])
        memory[int(folder.name)] = int(fields.get("VmHWM", "0 kB").split()[0])
    def below(child):
        while child and child != pid:
            child = parents.get(child, 0)
        return child == pid
    return max((memory[child] for child in memory if below(child)), default=0)


@case("C.sharding-auto", "`--sharding off` wants a number of workers")
def sharding_auto(world):
    world.integers([10])
    pipeline = world.integers_pipeline(4)
    world.run("run", pipeline, "--sharding", "off", "--workers", "auto").failed_in_one_line(2, "--workers N")
