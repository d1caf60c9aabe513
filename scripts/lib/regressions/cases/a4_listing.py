"""A4: every file of a dataset is read, or named with the reason for skipping it."""

import os
import shutil
import socket

from regressions.run import case
from regressions.world import expect
from tfrecord import framed, int_example


def trained(world, *arguments, code=0, **options):
    """`gristmill run ARGUMENTS` for one epoch, which must end with `code`; what it delivered is in the folder sink."""
    shutil.rmtree(world.folder / "sink", ignore_errors=True)
    run = world.run("run", *arguments, "--epochs", "1", "--step-time", "0ms", "--json", "--sink", "sink", seconds=90, **options)
    expect(run.code == code, f"{run.name}: exit {run.code} and not {code}: {run.lines()[-2:]}")
    return run


def read(world):
    return sorted(value for batch in world.sunk("sink").values() for value in batch)


@case("A4.linked-files", "files and folders behind links that lead out of the folder are read")
def linked_files(world):
    world.integers([10, 10, 10, 10], folder="hub/blobs")
    snapshot = world.folder / "hub/snapshots/abc"
    (snapshot / "own").mkdir(parents=True)
    os.symlink("../../blobs/train-00000", snapshot / "a")
    os.symlink(world.folder / "hub/blobs/train-00001", snapshot / "b")
    os.symlink("../../../blobs/train-00002", snapshot / "own/c")
    more = world.folder / "more"
    more.mkdir()
    os.rename(world.folder / "hub/blobs/train-00003", more / "d")
    os.symlink(more, snapshot / "linked")
    os.symlink("..", snapshot / "up")
    pipeline = world.integers_pipeline(5, data="hub/snapshots/abc")
    run = trained(world, pipeline)
    expect(read(world) == list(range(40)), f"delivered {len(read(world))} of 40: {read(world)[:50]}")
    said = [line for line in run.lines("err") if line.startswith("left out")]
    expect(len(said) == 1 and "up (a link to a folder" in said[0], f"the loop is not named: {said}")


@case("A4.named", "what a folder holds beside its records is counted and named, on stderr, in --json and explain")
def named(world):
    world.integers([10, 10])
    data = world.folder / "data"
    for name in (".hidden", "_x", "notes.json"):
        (data / name).write_text("x")
    os.symlink("nowhere", data / "broken")
    os.mkfifo(data / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(data / "socket"))
    (data / os.fsdecode(b"caf\xe9")).write_text("x")
    pipeline = world.integers_pipeline(5)
    run = trained(world, pipeline)
    said = [line for line in run.lines("err") if line.startswith("left out")]
    expect(len(said) == 1 and "left out 7 of 9 files" in said[0], f"not one line that counts them: {said}")
    files = run.json["files_left_out"]
    expect((files["count"], files["of"]) == (7, 9), f"--json counts {files}")
    for name, why in {
        ".hidden": "hidden", "_x": "_", "notes.json": "not TFRecord", "broken": "broken link", "pipe": "pipe",
        "socket": "socket", "caf\ufffd": "UTF-8",
    }.items():
        expect(why in files["files"].get(name, ""), f"{name} is not named for `{why}`: {files['files']}")
    expect(read(world) == list(range(20)), "the others are not all read")
    explain = world.run("explain", pipeline, "--data", "data", "--json")
    expect(explain.json["files_left_out"] == files, f"explain names {explain.json.get('files_left_out')}")


@case("A4.explicit", "a file that a glob matches, or that is named, is read under any name")
def explicit(world):
    record = b"".join(framed(int_example("value", [value])) for value in range(10))
    for path in ("data/_x.json", "data/.hidden"):
        world.write(path, record)
    pipeline = world.integers_pipeline(5)
    for data in ("data/*.json", "data/_x.json", "data/.hid*", "data/.hidden"):
        run = trained(world, pipeline, "--data", data)
        expect(run.json["elements_delivered"] == 10, f"{data}: {run.json['elements_delivered']} of 10")
    run = trained(world, pipeline, code=2)
    run.failed_in_one_line(2, "no file matches", "left out 2 of 2 files", str(world.folder / "data"))


@case("A4.json-lines", "*.json of a folder is read where the source is JSON lines")
def json_lines(world):
    world.write("data/a.json", "".join(f'{{"value": {value}}}\n' for value in range(10)))
    pipeline = world.write(
        "p.yaml", "source: { jsonl: data, features: { value: { dtype: i64 } } }\nops: [{ batch: { size: 5 } }]\n")
    trained(world, pipeline)
    expect(read(world) == list(range(10)), f"delivered {read(world)}")


@case("A4.nothing-there", "a path with nothing to read is exit 2, and names the absolute place")
def nothing_there(world):
    world.integers([10])
    pipeline = world.integers_pipeline(5, data="elsewhere")
    world.run("run", pipeline).failed_in_one_line(2, str(world.folder / "elsewhere"), "relative to")
    run = world.run("run", pipeline, "--data", "data/x-*")
    run.failed_in_one_line(2, f"no file matches {world.folder.resolve()}/data/x-*")
    (world.folder / "empty").mkdir()
    world.run("run", pipeline, "--data", "empty").failed_in_one_line(2, "no file matches")
    os.mkfifo(world.folder / "data/pipe")
    world.run("run", pipeline, "--data", "data/pipe").failed_in_one_line(2, "data/pipe", "a pipe")
