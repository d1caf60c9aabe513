"""B10: broken inputs. Each is one line with place and remedy, the documented exit code, and no wait."""

import json
import os
import socket

from regressions.run import case
from regressions.world import Failed, expect
from tfrecord import framed, int_example

GOOD = """name: integers
source:
  tfrecord: data
  features:
    value: { key: value, dtype: i64 }
ops:
  - batch: { size: 8 }
"""
MEMORY_KIB = 1_500_000
SECONDS = 5.0


def ops(*lines):
    """The good pipeline with these operators before its batch."""
    return GOOD.replace("ops:\n", "ops:\n" + "".join(f"  - {line}\n" for line in lines))


def changed(old, new):
    return GOOD.replace(old, new)


# Content of a pipeline file, and the required error beside the file's name.
PIPELINES = {
    "empty": ("", []),
    "comment": ("# nothing\n", []),
    "scalar": ("hello\n", []),
    "list": ("- a\n- b\n", []),
    "binary": (bytes(range(256)) * 8, ["text"]),
    "nul": (GOOD.replace("integers", "a\0b").encode(), []),
    "utf-16": (GOOD.encode("utf-16"), ["UTF-16"]),
    "utf-32": (GOOD.encode("utf-32"), []),
    "latin-1": (GOOD.replace("integers", "gr\xfcn").encode("latin-1"), ["text"]),
    "duplicate-key": (GOOD + "name: again\n", ["name"]),
    "tab": (changed("  tfrecord", "\ttfrecord"), ["line"]),
    "unclosed": (changed("dtype: i64 }", "dtype: i64"), ["line"]),
    "two-documents": (GOOD + "---\n" + GOOD, []),
    "deep": ("a: " + "[" * 5000 + "]" * 5000, []),
    "deep-map": ("".join(" " * i + "a:\n" for i in range(500)), []),
    "anchor-bomb": ("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)), []),
    "huge": ("# " + "x" * (5 << 20) + "\n" + GOOD, ["more than"]),
    "many-ops": (ops(*["flip: { p: 0.5 }"] * 20_000), []),
    "no-source": (GOOD[GOOD.index("ops:"):], ["source"]),
    "no-ops": (GOOD[:GOOD.index("ops:")], ["ops"]),
    "no-batch": (changed("  - batch: { size: 8 }", "  - copy: { field: value, to: other }"), ["batch"]),
    "unknown-op": (ops("resze: { size: 8 }"), ["resze", "resize", "line 7"]),
    "unknown-field": (ops("cast: { field: valeu, dtype: f32 }"), ["valeu", "line 7"]),
    "unknown-param": (changed("size: 8", "sise: 8"), ["sise", "size"]),
    "unknown-top": (GOOD + "sede: 1\n", ["sede"]),
    "unknown-source": (changed("tfrecord:", "tfrecrd:"), ["tfrecrd"]),
    "unknown-dtype": (changed("dtype: i64", "dtype: int64"), ["int64"]),
    "zero-batch": (changed("size: 8", "size: 0"), ["size", "line 7"]),
    "negative-batch": (changed("size: 8", "size: -8"), ["size"]),
    "huge-batch": (changed("size: 8", "size: 99999999999999999999"), ["size"]),
    "float-batch": (changed("size: 8", "size: 8.5"), ["size"]),
    "text-batch": (changed("size: 8", "size: many"), ["size"]),
    "null-batch": (changed("{ size: 8 }", "{ size: ~ }"), ["size"]),
    "nan": (ops("scale: { field: value, by: .nan }"), ["line 7"]),
    "two-ops-in-one": (ops("cast: { field: value, to: f32 }\n    copy: { field: value, to: w }"), ["line 8"]),
    "op-is-list": (ops("[cast]"), ["line 7"]),
    "decode-of-number": (ops("decode: { field: value }"), ["line 7"]),
    "after-batch": (GOOD + "  - cast: { field: value, to: f32 }\n", []),
    "empty-features": (changed("    value: { key: value, dtype: i64 }\n", ""), []),
    "bad-field-name": (changed("    value:", "    'a b/..':"), []),
    "bad-glob": (changed("tfrecord: data", "tfrecord: 'data/[a'"), []),
    "no-tokenizer": (ops("tokenise: { field: value, tokenizer: missing.json }"), []),
}


def judge(program, code, *parts):
    """What a broken input must come to."""
    program.failed_in_one_line(code, *parts)
    expect(program.seconds < SECONDS, f"{program.name}: {program.seconds:.1f} s")
    expect(program.rss_kib < MEMORY_KIB, f"{program.name}: {program.rss_kib >> 10} MiB")
    raw = [line for line in program.lines() if "panicked" in line or "\x1b[" in line]
    expect(not raw, f"{program.name}: a raw line: {raw[:1]}")


def each(found):
    """Runs every check and fails with all that failed."""
    failed = []
    for name, check in found:
        try:
            check()
        except Failed as why:
            failed.append(f"{name}: {why}")
    expect(not failed, f"{len(failed)} of {len(found)}: {' | '.join(failed[:8])}")


def run(world, *arguments, **options):
    """A program to its end, with the seconds it took."""
    program = world.run(*arguments, seconds=30, **options)
    program.seconds = program.ended - program.began
    return program


def edged(world, command, *more):
    def check(name):
        content, parts = PIPELINES[name]
        path = world.write(f"broken/{name}.yaml", content)
        judge(run(world, command, path, *more), 2, f"{name}.yaml", *parts)
    return lambda name: lambda: check(name)


@case("B10.pipelines", f"{len(PIPELINES)} broken pipeline files: exit 2, file, line and reason, from explain, plan and run")
def pipelines(world):
    world.integers([40])
    explain, plan = edged(world, "explain"), edged(world, "plan", "--step-time", "10ms")
    both = [(f"explain {name}", explain(name)) for name in PIPELINES if name != "bad-glob"]
    some = [name for name in PIPELINES if name in ("huge", "binary", "unknown-op", "zero-batch", "deep", "no-tokenizer")]
    each(both + [(f"plan {name}", plan(name)) for name in some])


@case("B10.files", "files without an end, pipes, directories and the like where a file is named")
def files(world):
    world.integers([40])
    good = world.integers_pipeline(8)
    (world.folder / "dir").mkdir()
    os.mkfifo(world.folder / "pipe")
    with open(world.folder / "large", "wb") as large:
        large.truncate(3 << 30)
    (world.folder / "loop").symlink_to("loop")
    (world.folder / "dangling").symlink_to("nothing")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(world.folder / "sock"))
    places = {"dir": "directory", "pipe": "pipe", "large": "more than", "/dev/zero": "more than", "loop": "loop",
              "dangling": "no such file", "missing": "no such file", "sock": "socket"}
    found = []
    for place, says in places.items():
        for command in (["explain", place], ["run", place], ["plan", place, "--step-time", "1ms"],
                        ["plan", good, "--step-time", "1ms", "--prices", place], ["demo", "--pipeline", place]):
            found.append((" ".join(map(str, command)),
                          lambda command=command, says=says: judge(run(world, *command), 2, says)))
        found.append((f"simulate {place}", lambda place=place: judge(run(world, "simulate", place), 2)))
    state = [("status", place) for place in ("dir", "large", "missing", "/dev/zero")]
    for command, place in state:
        found.append((f"{command} --state-dir {place}", lambda command=command, place=place: judge(
            run(world, command, "job", "--state-dir", place), 2)))
    each(found)
    listener.close()


@case("B10.tokenizers", "a tokenizer that is none: file, line and reason from explain, plan and run")
def tokenizers(world):
    world.write("d.jsonl", '{"text": "a"}\n')
    texts = {"empty": b"", "object": b"{}", "other": b'{"x": 1}', "cut": b'{"version": "1.0", "model": {"type"', "list": b"[]",
             "binary": bytes(range(256)), "number": b"7", "model": b'{"version":"1.0","model":{"type":"Nope"}}',
             "deep": b"[" * 100_000}
    found = []
    for name, content in texts.items():
        world.write(f"{name}.json", content)
        pipeline = world.write(f"{name}.yaml", (
            "name: t\nsource:\n  jsonl: d.jsonl\n  features: { text: { key: text, dtype: bytes } }\nops:\n"
            f"  - tokenise: {{ field: text, tokenizer: {name}.json }}\n  - padded_batch: {{ size: 2 }}\n"))
        for command in (["explain"], ["plan", "--step-time", "1ms"], ["run"]):
            found.append((f"{command[0]} {name}", lambda command=command, pipeline=pipeline, name=name: judge(
                run(world, command[0], pipeline, *command[1:]), 2, f"{name}.yaml", "line 6", f"{name}.json")))
    each(found)


ARGUMENTS = [
    ["--epochs", "0"], ["--epochs", "-1"], ["--epochs", "many"], ["--epochs", "99999999999"], ["--workers", "-1"],
    ["--workers", "x"], ["--batch-size", "0"], ["--step-time", "fast"], ["--step-time", "-1s"], ["--seed", "-1"],
    ["--on-error", "ignore"], ["--visitation", "twice"], ["--sharding", "on"], ["--job", "A b"], ["--job", ""],
    ["--job", "x" * 500], ["--endpoint", "nonsense"], ["--endpoint", "http://127.0.0.1:1"],
    ["--endpoint", "http://127.0.0.1:99999"], ["--backend", "gcp"], ["--local-workers", "257"],
    ["--workers", "0"], ["--budget-usd-per-hour", "-1"], ["--max-workers", "0"], ["--prefetch-mib", "0"],
    ["--chaos", "all"], ["--unknown"], ["--endpoint", "http://127.0.0.1:1", "--state-dir", "s"],
    ["--data", ""], ["--data", "missing"], ["--data", "missing/*"], ["--data", "data/["],
]


@case("B10.arguments", f"{len(ARGUMENTS)} wrong arguments of run: exit 2, and what is wrong")
def arguments(world):
    world.integers([40])
    good = world.integers_pipeline(8)

    def check(more):
        program = run(world, "run", good, "--epochs", "1", *more) if "--epochs" not in more else run(
            world, "run", good, *more)
        expect(program.code == 2, f"exit {program.code}: {program.lines('err')[-2:]}")
        expect(program.seconds < SECONDS, f"{program.seconds:.1f} s")
        expect(program.lines("err") and "panicked" not in program.err, "it says nothing of use")

    def refused(command):
        program = run(world, *command)
        expect(program.code == 2 and program.lines("err"), f"exit {program.code}: {program.lines('err')[-2:]}")

    others = [
        ["up", "--max-workers", "0"], ["up", "--port", "99999"], ["demo", "--images", "0"], ["simulate", "--random", "0"],
        ["plan", good, "--step-time", "1ms", "--function-slowdown", "nan"], ["plan", good, "--step-time", "1ms",
        "--accelerator-usd-per-hour", "inf"], ["plan", good], ["status"], ["doctor"], ["cache", "rm"], ["frobnicate"], [],
    ]
    each([(" ".join(more), lambda more=more: check(more)) for more in ARGUMENTS]
         + [(" ".join(map(str, command)), lambda command=command: refused(command)) for command in others])


@case("B10.full-outputs", "standard output that cannot be written: exit 1 and one line, from every command")
def full_outputs(world):
    world.integers([40])
    good = world.integers_pipeline(8)
    up = world.up()
    endpoint = json.loads(up.lines("out")[0])["endpoint"]
    done = world.run("run", good, "--endpoint", endpoint, "--job", "done", "--epochs", "1", "--step-time", "0ms")
    expect(done.code == 0, done.err)
    at = ["--endpoint", endpoint]
    commands = [
        ["--help"], ["run", "--help"], ["--version"], ["explain", good], ["explain", good, "--json"],
        ["plan", good, "--step-time", "1ms", "--json"], ["run", good, "--epochs", "1", "--step-time", "0ms", "--json", *at],
        ["run", good, "--epochs", "1", "--step-time", "0ms", *at], ["status", "done", *at], ["status", "done", "--json", *at],
        ["stop", "done", *at], ["cache", "ls", *at], ["cache", "ls", "--json", *at], ["doctor", *at],
        ["doctor", "--json", *at], ["up"], ["up", "--json"], ["simulate", "hot-cache"],
    ]

    def check(command):
        with open("/dev/full", "wb") as full:
            program = run(world, *command, stdout=full)
        if command[0] == "simulate" and program.code == 2:
            return
        program.failed_in_one_line(1, "standard output")

    each([(" ".join(map(str, command)), lambda command=command: check(command)) for command in commands])


@case("B10.private", "the state directory and all in it are for their owner alone")
def private(world):
    os.umask(0o022)
    (world.folder / "there").mkdir(mode=0o755)
    for state in ("state", "there"):
        world.integers([40])
        good = world.integers_pipeline(8)
        up = world.up(state=state)
        endpoint = json.loads(up.lines("out")[0])["endpoint"]
        ran = world.run("run", good, "--endpoint", endpoint, "--epochs", "1", "--step-time", "0ms")
        expect(ran.code == 0, ran.err)
        paths = [world.folder / state, *(world.folder / state).rglob("*")]
        expect(any(path.parent.name == "table" for path in paths), "no table is kept")
        opened = [f"{path.name} {path.stat().st_mode & 0o777:o}" for path in paths
                  if not path.is_symlink() and path.stat().st_mode & 0o077]
        expect(not opened, f"{state}: others may see {opened[:5]}")
        up.signal(2)
        up.wait(20)


@case("B10.colours", "no colour codes in logs that are no terminal")
def colours(world):
    world.integers([40])
    good = world.integers_pipeline(8)
    up = world.up(env={"RUST_LOG": "debug"})
    endpoint = json.loads(up.lines("out")[0])["endpoint"]
    run(world, "run", good, "--endpoint", endpoint, "--epochs", "1", "--step-time", "0ms", env={"RUST_LOG": "debug"})
    fetcher = world.fetcher("j", "--pipeline", good, socket="-", env={"RUST_LOG": "debug"})
    fetcher.wait(20)
    logs = [path.read_text(errors="replace") for path in (world.folder / "state/logs").iterdir()]
    expect(any(logs), "no worker logged")
    said = [*logs, fetcher.err, up.err]
    expect(not any("\x1b[" in text for text in said), "a colour code")


def damaged(content):
    """Copies of a file that are cut short or changed."""
    yield "cut", content[:len(content) // 2 + 3]
    yield "cut-1", content[:-1]
    yield "first", bytes([content[0] ^ 255]) + content[1:]
    middle = len(content) // 2
    yield "middle", content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1:]
    yield "zeros", bytes(len(content))
    yield "text", b"hello\nworld\n" * 20


@case("B10.records", "damaged TFRecord and JSONL: exit 1, the file and the record, and `skip` goes on")
def records(world):
    tfrecord = b"".join(framed(int_example("value", [value])) for value in range(40))
    jsonl = "".join(json.dumps({"value": value}) + "\n" for value in range(40)).encode()
    up = world.up()
    endpoint = json.loads(up.lines("out")[0])["endpoint"]
    found = []
    for kind, content in (("tfrecord", tfrecord), ("jsonl", jsonl)):
        for name, broken in damaged(content):
            if kind == "jsonl" and name in ("cut", "cut-1", "middle"):
                continue  # Lines that are whole are records.
            folder = f"{kind}-{name}"
            world.write(f"{folder}/train-0.{kind}", broken)
            pipeline = world.write(f"{folder}.yaml", GOOD.replace("tfrecord: data", f"{kind}: {folder}"))
            found.append((folder, lambda pipeline=pipeline: judge(run(
                world, "run", pipeline, "--endpoint", endpoint, "--epochs", "1", "--step-time", "0ms"), 1, "train-0")))
    each(found)
