"""A5: numbers of 64 bits are exact from file to batch, or refused."""

import json
import math

from regressions import parquet
from regressions.run import case
from regressions.world import expect, tensor

WHOLE = [0, 1, 2 ** 53 + 1, 2 ** 63 - 1, 2 ** 63, 2 ** 63 + 1, 2 ** 64 - 1]
REAL = [0.1, 0.1 + 0.2, -1 / 3, 2.0 ** 53, 1e308, 5e-324, -0.0]
OPS = "ops: [in_order%s, { batch: { size: 3 } }]\n"


def tables(world):
    """The same rows as JSON lines, CSV and Parquet; `(form, file)` of each."""
    rows = list(zip(WHOLE, REAL))
    world.write("a.jsonl", "".join(json.dumps({"u": whole, "d": real}) + "\n" for whole, real in rows))
    world.write("a.csv", "u,d\n" + "".join(f"{whole},{real!r}\n" for whole, real in rows))
    with open(world.folder / "a.parquet", "wb") as file:
        parquet.write(file, [("u", "u64"), ("d", "f64")], [[WHOLE[:4], REAL[:4]], [WHOLE[4:], REAL[4:]]])
    return [("jsonl", "a.jsonl"), ("csv", "a.csv"), ("parquet", "a.parquet")]


def pipeline(world, form, file, u="u64", d="f64", ops=""):
    return world.write(f"{form}.yaml", (
        f"source: {{ {form}: {file}, features: {{ u: {{ dtype: {u} }}, d: {{ dtype: {d} }} }} }}\n{OPS % ops}"))


def delivered(world, path, field):
    ran = world.run("run", path, "--epochs", "1", "--step-time", "0ms", "--sink", "sink")
    expect(ran.code == 0, f"{path.name}: exit {ran.code}: {ran.lines('err')[-1:]}")
    batches = sorted((world.folder / "sink").glob("*.safetensors"))
    values = [value for batch in batches for value in tensor(batch.read_bytes(), field)]
    for batch in batches:
        batch.unlink()
    return values


@case("A5.wide-numbers", "u64 and f64 of JSON lines, CSV and Parquet are exact, and compared exactly")
def wide_numbers(world):
    for form, file in tables(world):
        for field, wanted in (("u", WHOLE), ("d", REAL)):
            got = delivered(world, pipeline(world, form, file), field)
            same = [math.copysign(1, x) for x in got] == [math.copysign(1, x) for x in wanted]
            expect(got == wanted and same, f"{form}: `{field}` is {got}, not {wanted}")
        filters = [
            ("filter: { field: u, min: 9223372036854775809 }", "u", [x for x in WHOLE if x > 2 ** 63]),
            ("filter: { field: u, in: [9007199254740993, 18446744073709551615] }", "u", [2 ** 53 + 1, 2 ** 64 - 1]),
            ("filter: { field: d, in: [0.30000000000000004] }", "d", [0.1 + 0.2]),
            ("filter: { field: d, max: 0.1 }", "d", [x for x in REAL if x <= 0.1]),
            ("clip: { field: u, max: 9223372036854775808 }", "u", [min(x, 2 ** 63) for x in WHOLE]),
            ("cast: { field: u, dtype: i64 }", "u", [min(x, 2 ** 63 - 1) for x in WHOLE]),
        ]
        for ops, field, wanted in filters:
            got = delivered(world, pipeline(world, form, file, ops=f", {{ {ops} }}"), field)
            expect(got == wanted, f"{form}, {ops}: {got}, not {wanted}")


@case("A5.too-wide", "a number that i64, u64 or f32 cannot hold is a bad record, reported with its value")
def too_wide(world):
    for form, file in tables(world):
        ran = world.run("run", pipeline(world, form, file, u="i64"), "--epochs", "1")
        ran.failed_in_one_line(1, file, "no i64")
        # Splits may arrive in any order.
        expect(any(str(number) in ran.err for number in WHOLE if number >= 2 ** 63), f"the value is not reported: {ran.err}")
        ran = world.run("run", pipeline(world, form, file, d="f32"), "--epochs", "1")
        ran.failed_in_one_line(1, file, "no f32")
    world.write("n.jsonl", '{"u": -1, "d": 1}\n')
    world.run("run", pipeline(world, "jsonl", "n.jsonl"), "--epochs", "1").failed_in_one_line(1, "holds -1, which is no u64")
    world.write("n.jsonl", '{"u": 1.0, "d": 1}\n')
    world.run("run", pipeline(world, "jsonl", "n.jsonl"), "--epochs", "1").failed_in_one_line(1, "holds 1.0, which is no u64")
    world.write("t", b"")
    world.run("run", pipeline(world, "tfrecord", "t"), "--epochs", "1").failed_in_one_line(2, "line 1", "i64 and f32")
