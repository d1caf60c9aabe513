"""B10: unusual inputs. Names that are not UTF-8, and pipelines that drop all data."""

import json
import os
import struct
import zlib

from regressions.cases.b10_broken import each, judge, run
from regressions.run import case
from regressions.world import expect

NUMBERS = "source: { jsonl: data, features: { v: { dtype: i64 } } }\nops: [%s{ batch: { size: 4 } }]\n"
IMAGES = "source: { images: folder }\nops: [decode, { resize: { size: 8 } }, { batch: { size: 1 } }]\n"


def png(width, height, rows):
    """An RGB file; `rows` are its bytes before they are compressed."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@case("B10.odd-names", "names with line ends and colour codes come to one plain line; names of 255 bytes are read")
def odd_names(world):
    world.write("data/a\nb\x1b[31m.jsonl", "x\n")
    pipeline = world.write("p.yaml", NUMBERS % "")
    for command in (["run"], ["explain"], ["plan", "--step-time", "1ms"]):
        program = run(world, command[0], pipeline, "--data", "data", *command[1:])
        judge(program, 1, ".jsonl")
        expect(not any("\x1b" in line for line in program.lines()), f"{command[0]}: a colour code")
    world.write(f"long/{'x' * 249}.jsonl", '{"v": 1}\n')
    program = run(world, "run", pipeline, "--data", "long", "--epochs", "1", "--step-time", "0ms")
    expect(program.code == 0, f"a name of 255 bytes: {program.lines('err')[-1:]}")


@case("B10.nothing-left", "a pipeline that skips every record, and files that hold none, are distinguished")
def nothing_left(world):
    world.write("data/a.jsonl", "".join(json.dumps({"v": value}) + "\n" for value in range(40)))
    world.write("empty/a.jsonl", "\n")
    skips = world.write("skips.yaml", NUMBERS % "{ skip: { count: 40 } }, ")
    plain = world.write("plain.yaml", NUMBERS % "")
    judge(run(world, "run", skips, "--epochs", "1"), 1, "none of the dataset's 40 records", "skip")
    # Indexed before, so it is reported at once.
    judge(run(world, "run", skips, "--epochs", "1"), 1, "none of the dataset's 40 records", "skip")
    judge(run(world, "run", plain, "--data", "empty", "--epochs", "1"), 1, "empty/a.jsonl (1 bytes) holds none", "check `--data`")


@case("B10.odd-images", "images that are damaged, or of a format that is not read: one line with the file, no structures")
def odd_images(world):
    good = png(2, 2, bytes(14))
    at = good.index(b"IDAT") + 6
    files = {
        "crc.png": good[:at] + bytes([good[at] ^ 1]) + good[at + 1:], "short.png": png(9, 9, bytes(5)), "none.png": png(0, 0, b""),
        "bomb.png": png(100_000, 100_000, b""), "magic.png": good[:8], "text.jpg": b"hello", "empty.jpg": b"", "cut.jpg": b"\xff\xd8\xff\xe0",
    }

    def check(name, content):
        world.write(f"{name}/cat/{name}", content)
        pipeline = world.write(f"{name}.yaml", IMAGES.replace("folder", name))
        program = run(world, "run", pipeline, "--epochs", "1", "--step-time", "0ms")
        judge(program, 1, name)
        expect(" { " not in program.err, f"a structure: {program.err}")

    def left_out():
        world.write("gifs/cat/a.gif", b"GIF89a")
        world.write("gifs/dog/b.HEIC", b"x")
        pipeline = world.write("gifs.yaml", IMAGES.replace("folder", "gifs"))
        for command in (["run"], ["explain", "--sample", "3"], ["plan", "--step-time", "1ms"]):
            program = run(world, command[0], pipeline, "--data", "gifs", *command[1:])
            judge(program, 2, "a.gif (.gif is not read)", "b.HEIC", "JPEG, PNG, WebP, BMP, TIFF, PGM and PPM")

    each([(name, lambda name=name, content=content: check(name, content)) for name, content in files.items()]
         + [("gifs", left_out)])


@case("B10.odd-places", "pipes, sockets, devices and loops as data, many braces, long paths: one line at once")
def odd_places(world):
    os.mkfifo(world.folder / "fifo")
    (world.folder / "loop").symlink_to("loop")
    (world.folder / "one").symlink_to("two")
    (world.folder / "two").symlink_to("one")
    world.write("data/a.jsonl", '{"v": 1}\n')
    pipeline = world.write("p.yaml", NUMBERS % "")
    places = ["fifo", "loop", "one/x", "/dev/zero", "/dev/null", "x" * 256, "/".join(["y" * 200] * 30), "s3://",
              "ftp://x/y", "[!", "{a", "{1..99999999999}", "{a,b}" * 18, "../" * 300]
    found = []
    for place in places:
        for command in (["run"], ["explain"], ["plan", "--step-time", "1ms"]):
            found.append((f"{command[0]} {place[:20]}", lambda place=place, command=command: judge(
                run(world, command[0], pipeline, "--data", place, *command[1:]), 2)))
    each(found)
    program = world.start(world.fetcher_program, "--state-dir", "state", "--job", "a", "--pipeline", pipeline, "--socket", "a.sock",
                          "--epochs", "0")
    expect(program.wait(5) == 2, "a fetcher for 0 epochs")
