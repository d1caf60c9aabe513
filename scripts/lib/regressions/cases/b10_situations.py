"""B10: situations. Unusable directories, missing homes, interruptions, and job names in use."""

import gzip
import json
import os
import signal
import socket
import time

from regressions.cases.b10_broken import SECONDS, each, judge, run
from regressions.model import delimited
from regressions.run import case
from regressions.world import expect
from tfrecord import framed, int_example


@case("B10.places", "outputs that cannot be written: exit code, place and remedy before anything is trained")
def places(world):
    world.integers([40])
    good = world.integers_pipeline(8)
    world.write("file", "x")
    at = ["--epochs", "1", "--step-time", "0ms"]
    commands = [
        (["run", good, *at, "--sink", "file"], "file"),
        (["run", good, *at, "--sink", "file/below"], "file/below"),
        (["run", good, *at, "--sink", "/proc/nothing"], "/proc/nothing"),
        (["run", good, *at, "--report", "missing/report.html"], "missing/report.html"),
        (["run", good, *at, "--report", "data"], "data"),
        (["run", good, *at, "--state-dir", "file"], "file"),
        (["run", good, *at, "--state-dir", "/proc/nothing"], "/proc/nothing"),
        (["up", "--state-dir", "file"], "file"),
        (["up", "--state-dir", "/proc/nothing"], "/proc/nothing"),
    ]

    def check(command, says):
        program = run(world, *command)
        expect(program.code in (1, 2), f"exit {program.code}")
        judge(program, program.code, says)

    each([(" ".join(map(str, command)), lambda command=command, says=says: check(command, says))
          for command, says in commands])


@case("B10.garbage-state", "a state directory that holds garbage, or is in use: one line with the file")
def garbage_state(world):
    world.integers([40])
    good = world.integers_pipeline(8)
    # As a version before left it, or nobody did.
    world.write("one/table.sqlite", b"no table" * 600)
    world.write("two/format", b"\0" * 100)
    world.up(state="three").end()
    for path in (world.folder / "three/table").iterdir():
        path.write_bytes(b"no table" * 600)
    found = []
    for state, code, says in (("one", 2, "another version"), ("two", 2, "another version"), ("three", 1, "table")):
        for command in (["up"], ["run", good, "--epochs", "1"]):
            found.append((f"{command[0]} {state}", lambda command=command, state=state, code=code, says=says: judge(
                run(world, *command, "--state-dir", state), code, state, says)))
    world.up(state="used")
    found.append(("up used", lambda: judge(run(world, "up", "--state-dir", "used"), 1, "another service")))
    each(found)


@case("B10.environments", "HOME that is missing, unset or a file; a port that is taken; few descriptors")
def environments(world):
    world.integers([40])
    good = world.integers_pipeline(8)
    world.write("file", "x")
    at = [good, "--epochs", "1", "--step-time", "0ms"]

    def works(env):
        program = run(world, "run", *at, env=env)
        expect(program.code == 0, f"exit {program.code}: {program.err}")

    def says(code, parts, *command, env=None):
        judge(run(world, *command, env=env), code, *parts)

    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = str(taken.getsockname()[1])
    each([
        ("HOME missing", lambda: works({"HOME": str(world.folder / "nowhere")})),
        ("HOME empty", lambda: works({"HOME": ""})),
        ("HOME relative", lambda: works({"HOME": "home-here"})),
        ("no colour", lambda: works({"NO_COLOR": "1"})),
        ("TMPDIR missing", lambda: works({"TMPDIR": str(world.folder / "nowhere")})),
        ("port taken", lambda: says(2, [port], "up", "--ephemeral", "--port", port)),
        ("HOME a file", lambda: works({"HOME": str(world.folder / "file")})),
    ])
    taken.close()
    few = world.start("bash", "-c", 'ulimit -n 64; exec "$@"', "few", world.gristmill, "run", *at)
    code = few.wait(60)
    expect(code in (0, 1), f"64 descriptors: exit {code}: {few.err}")
    closed = world.start("bash", "-c", 'exec "$@" <&- >&-', "closed", world.gristmill, "run", *at)
    expect(closed.wait(30) == 0, f"closed stdin and stdout: exit {closed.code}: {closed.err}")


def processes_of(world):
    """Processes whose command line or environment names the case's folder."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as environ, open(f"/proc/{entry}/cmdline", "rb") as command:
                if str(world.folder).encode() in environ.read():
                    found.append(command.read().replace(b"\0", b" ").decode(errors="replace")[:100])
        except OSError:
            pass
    return found


@case("B10.interrupts", "Ctrl-C and SIGTERM at 24 moments: exit 130 or 143, at most one line, and nothing is left behind")
def interrupts(world):
    world.integers([400])
    slow = world.integers_pipeline(8, ops="  - sleep: { ms: 20 }\n")

    def check(after, number):
        program = world.start(world.gristmill, "run", slow, "--epochs", "3", "--step-time", "0ms")
        time.sleep(after)
        program.signal(number)
        asked = time.monotonic()
        code = program.wait(15)
        allowed = (130,) if number == signal.SIGINT else (130, 143, -signal.SIGTERM)
        # Before the program has begun, the system ends it.
        expect(code in allowed or after < 0.05 and code == -number, f"exit {code} after {after} s: {program.err}")
        expect(time.monotonic() - asked < SECONDS, f"it took {time.monotonic() - asked:.1f} s to end")
        errors = [line for line in program.lines("err") if line.startswith("gristmill")]
        expect(len(errors) <= 1 and "panicked" not in program.err, f"it said {program.lines('err')}")
        world.end_services()
        # A service that was just started ends by itself.
        none_is_left(12, f"after {after} s")

    def none_is_left(seconds, when):
        give_up = time.monotonic() + seconds
        while (left := processes_of(world)) and time.monotonic() < give_up:
            time.sleep(0.05)
        expect(not left, f"left behind {when}: {left[:3]}")

    each([(f"{number.name} {after}", lambda after=after, number=number: check(after, number))
          for after in (0, 0.02, 0.05, 0.08, 0.12, 0.2, 0.3, 0.4, 0.6, 0.9, 1.3, 1.8)
          for number in (signal.SIGINT, signal.SIGTERM)])
    # The service ends by itself too, a few seconds after its last client.
    program = world.start(world.gristmill, "run", slow, "--epochs", "3", "--step-time", "0ms")
    time.sleep(1.5)
    program.signal(signal.SIGINT)
    expect(program.wait(15) == 130, f"exit {program.code}: {program.err}")
    none_is_left(12, "by itself")
    expect(not world.services(), f"services that are gone are named: {world.services()[:3]}")


@case("B10.two-demos", "two demos at a time in one HOME: both end well, with the same batches")
def two_demos(world):
    arguments = ("demo", "--images", "60", "--epochs", "1", "--step-time", "0ms", "--json")
    both = [world.start(world.gristmill, *arguments) for _ in range(2)]
    codes = [program.wait(60) for program in both]
    expect(codes == [0, 0], f"exits {codes}: {both[0].err} {both[1].err}")
    first, second = (program.json["batches_blake3"] for program in both)
    expect(first == second, "their batches differ")


@case("B10.jobs", "names of jobs that are taken, stopped or not there: exit code and one line")
def jobs(world):
    world.integers([400])
    good = world.integers_pipeline(8)
    slow = world.integers_pipeline(8, ops="  - sleep: { ms: 50 }\n", path="slow.yaml")
    up = world.up()
    at = ["--endpoint", json.loads(up.lines("out")[0])["endpoint"]]
    short = ["--epochs", "1", "--step-time", "0ms", *at]
    expect(world.run("run", good, "--job", "taken", *short).code == 0, "the first run failed")
    each([
        ("other epochs", lambda: judge(run(world, "run", good, "--job", "taken", "--epochs", "2", *at), 2, "taken", "another")),
        ("other seed", lambda: judge(run(world, "run", good, "--job", "taken", "--seed", "9", *short), 2, "taken", "another")),
        ("other pipeline", lambda: judge(run(world, "run", slow, "--job", "taken", *short), 2, "taken", "another")),
        ("status", lambda: judge(run(world, "status", "nobody", *at), 2, "nobody")),
        ("stop", lambda: judge(run(world, "stop", "nobody", *at), 2, "nobody")),
        ("cache rm", lambda: judge(run(world, "cache", "rm", "nobody", *at), 2, "nobody")),
        ("cache explain", lambda: judge(run(world, "cache", "explain", good, *at), 2, "autocache")),
    ])
    running = world.start(world.gristmill, "run", slow, "--job", "endless", "--epochs", "500", *at)
    while world.run("status", "endless", *at).code != 0 and running.code is None:
        time.sleep(0.2)
    expect(world.run("stop", "endless", *at).code == 0, "it cannot be stopped")
    running.wait(10)
    running.failed_in_one_line(1, "stopped")


@case("B10.sampled-gzip", "`plan` and `explain` look into files that are compressed, and say so of folders of images")
def sampled_gzip(world):
    lines = "".join(json.dumps({"value": value}) + "\n" for value in range(400))
    world.write("data/part-0.jsonl.gz", gzip.compress(lines.encode()))
    pipeline = world.write("p.yaml", (
        "name: gz\nsource:\n  jsonl: data\n  features: { value: { key: value, dtype: i64 } }\n"
        "ops:\n  - cast: { field: value, dtype: f32 }\n  - batch: { size: 8 }\n"))
    for command in (["plan", pipeline, "--step-time", "1ms"], ["explain", pipeline, "--sample", "50"]):
        program = run(world, *command)
        expect(program.code == 0, f"{command[0]}: exit {program.code}: {program.lines('err')[-1:]}")
    world.write("folder/a/x.jpg", b"\xff\xd8\xff")
    images = world.write("i.yaml", "name: i\nsource:\n  images: folder\nops:\n  - decode\n  - resize: { size: 8 }\n"
                                   "  - batch: { size: 1 }\n")
    judge(run(world, "plan", images, "--step-time", "1ms"), 2, "x.jpg", "not sampled")


@case("B10.sampled-large", "`plan` and `explain` look at the beginning of files of 5 GB, within 5 s and 1.5 GB")
def sampled_large(world):
    lines = "".join(json.dumps({"value": value, "text": "x" * 1000}) + "\n" for value in range(40_000)).encode()
    example = int_example("value", [1])
    large = framed(delimited(1, delimited(1, delimited(1, b"text") + delimited(2, delimited(1, delimited(1, bytes(6 << 20)))))
                             + delimited(1, delimited(1, b"value") + delimited(2, delimited(3, delimited(1, b"\1"))))))
    csv = b"value,text\n" + b"".join(b"%d,%s\n" % (value, b"y" * 1000) for value in range(40_000))
    noise = b"".join(b'{"value": %d, "text": "%s"}\n' % (value, os.urandom(500).hex().encode()) for value in range(80_000))
    heads = {
        "jsonl": lines, "tfrecord": framed(example) * 1_000_000, "csv": csv, "large.tfrecord": large * 24,
        "jsonl.gz": gzip.compress(noise, 1),
    }
    for name, head in heads.items():
        path = world.write(f"data/{name}", head)
        # The rest is a hole and holds no record: it is not looked at.
        os.truncate(path, 5_000_000_000)
        form = name.removesuffix(".gz").removeprefix("large.")
        text = "" if name == "tfrecord" else ", text: { dtype: bytes }"
        ops = "" if name == "tfrecord" else "{ truncate: { field: text, length: 9 } }, "
        pipeline = world.write(f"{name}.yaml", (
            f"source: {{ {form}: data/{name}, features: {{ value: {{ dtype: i64 }}{text} }} }}\n"
            f"ops: [{ops}{{ batch: {{ size: 8, ragged: true }} }}]\n"))
        for command in (["plan", pipeline, "--step-time", "1ms"], ["explain", pipeline, "--sample", "300"]):
            program = run(world, *command)
            expect(program.code == 0, f"{command[0]} {name}: exit {program.code}: {program.lines('err')[-1:]}")
            expect(program.seconds < SECONDS, f"{command[0]} {name}: {program.seconds:.1f} s")
            expect(program.rss_kib < 1_500_000, f"{command[0]} {name}: {program.rss_kib >> 10} MiB")
