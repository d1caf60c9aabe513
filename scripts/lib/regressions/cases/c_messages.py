"""C: messages about the data: encodings, folders by their paths, web servers, idle buckets."""

import json

from regressions.run import case
from regressions.world import expect

TABLE = "source: { csv: a.csv, features: { value: { dtype: i64 } } }\nops: [{ batch: { size: 4 } }]\n"
BUCKETS = (
    "source: {{ jsonl: data, features: {{ t: {{ dtype: i64, shape: [-1] }} }} }}\n"
    "ops: [{ops}{{ bucket_by_sequence_length: {{ size: {size}, field: t, boundaries: [4, 8] }} }}]\n"
)


@case("C.encodings", "UTF-16 and UTF-32 are refused by name, with what to do; UTF-8 with a mark is read")
def encodings(world):
    pipeline = world.write("p.yaml", TABLE)
    lines = world.write("l.yaml", TABLE.replace("csv: a.csv", "jsonl: a.jsonl"))
    texts = {"csv": "value,note\n1,ä\n2,b\n", "jsonl": '{"value": 1}\n{"value": 2}\n'}
    for form, path in (("csv", pipeline), ("jsonl", lines)):
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            name = encoding[:6].upper()
            world.write(f"{encoding}.{form}", texts[form].encode(encoding))
            for command in (["run"], ["explain"], ["plan", "--step-time", "1ms"]):
                ran = world.run(command[0], path, "--data", f"{encoding}.{form}", *command[1:])
                ran.failed_in_one_line(1, f"{encoding}.{form}", f"the text is {name}", "iconv")
        world.write(f"mark.{form}", texts[form].encode("utf-8-sig"))
        ran = world.run("run", path, "--data", f"mark.{form}", "--epochs", "1", "--step-time", "0ms", "--json")
        expect(ran.code == 0 and ran.json["elements_delivered"] == 2, f"{form} with a mark: {ran.lines()[-1:]}")


@case("C.idle-buckets", "`plan`, `explain` and `run` say that buckets do nothing where splits are one batch, and what to do")
def idle_buckets(world):
    for file in range(20):
        rows = [[1] * (5 * i % 13) for i in range(5)]
        world.write(f"data/{file:02}.jsonl", "".join(json.dumps({"t": row}) + "\n" for row in rows))

    def said(ops, size, *arguments):
        path = world.write("p.yaml", BUCKETS.format(ops=ops, size=size))
        found = []
        for command in (["explain", "--data", "data"], ["plan", "--data", "data", "--step-time", "1ms"],
                        ["run", "--epochs", "1", "--step-time", "0ms", *arguments]):
            if arguments and command[0] != "run":
                continue
            ran = world.run(command[0], path, *command[1:])
            expect(ran.code == 0, f"{command[0]}: exit {ran.code}: {ran.lines('err')[-1:]}")
            found.append("\n".join(line for line in ran.lines() if "`bucket_by_sequence_length` does nothing" in line))
        return found

    for why, remedy, found in (
        ("files have about 5 records", "shuffle", said("", 8)),
        ("the dataset has 100 records", "smaller `size`", said("{ shuffle: { blocks: 3 } }, ", 100)),
        ("--split-batches says so", "--split-batches 12", said("{ shuffle: { blocks: 3 } }, ", 8, "--split-batches", "1")),
    ):
        for text in found:
            expect(why in text and remedy in text, f"`{why}` is not reported: {text or 'nothing'}")
    for text in said("{ shuffle: { blocks: 3 } }, ", 8):
        expect(not text, f"reported without a reason: {text}")


@case("C.joined-names", "a fetcher that joins a job, and `status`, name files of this machine by their paths")
def joined_names(world):
    world.write("data/a.jsonl", "".join(f'{{"value": {value}}}\n' for value in range(40)) + "broken\n")
    pipeline = world.write("p.yaml", TABLE.replace("csv: a.csv", "jsonl: data"))
    world.up()
    first = world.fetcher("j", "--pipeline", pipeline)
    first.wait_for("serving", 20)
    first.end()
    (world.folder / "j.sock").unlink()
    joined = world.fetcher("j")
    joined.wait_for("serving", 20)
    world.train("j")
    joined.wait(30)
    name = f"{world.folder.resolve()}/data/a.jsonl"
    joined.failed_in_one_line(1, name)
    for more in ([], ["--json"]):
        status = world.run("status", "j", "--state-dir", "state", *more)
        expect(name in status.out and "s3://dir-" not in status.out, f"status {more}: {status.out[:300]}")
    skips = world.fetcher("k", "--pipeline", pipeline, "--on-error", "skip", "--max-skipped", "5")
    skips.wait_for("serving", 20)
    world.train("k")
    skips.wait(30)
    status = world.run("status", "k", "--skipped", "--state-dir", "state")
    expect(name in status.out and "s3://dir-" not in status.out, f"status --skipped: {status.out[:300]}")


@case("C.web-folders", "a folder of a web server is refused with what to give instead; its trouble is called a web server's")
def web_folders(world):
    pipeline = world.write("p.yaml", TABLE)
    for command in (["run"], ["explain"], ["plan", "--step-time", "1ms"]):
        for address in ("http://127.0.0.1:1", "http://127.0.0.1:1/", "http://127.0.0.1:1/data/"):
            ran = world.run(command[0], pipeline, "--data", address, *command[1:])
            ran.failed_in_one_line(2, address, "listings of web servers are not read", "shard-{000..146}")
        ran = world.run(command[0], pipeline, "--data", "http://127.0.0.1:1/a.csv", *command[1:])
        ran.failed_in_one_line(1, "web server: http://127.0.0.1:1/a.csv", "refused")
        expect("object store" not in ran.err, f"{command[0]}: {ran.err}")


@case("C.schemes", "places that are not read, and wrong defaults and lists of a pipeline, are refused with what to give")
def schemes(world):
    pipeline = world.write("p.yaml", TABLE)
    for place in ("gs://b/k", "file:///a.csv", "S3://b/k", "hdfs://h/k"):
        for command in (["run"], ["explain"], ["plan", "--step-time", "1ms"]):
            ran = world.run(command[0], pipeline, "--data", place, *command[1:])
            ran.failed_in_one_line(2, place, "is not read", "s3://bucket/prefix")
    for place, why in (("https://:80/x", "not a valid address"), ("http://127.0.0.1:1/*.csv", "braces")):
        world.run("run", pipeline, "--data", place).failed_in_one_line(2, why)
    world.write("a.csv", "value\n1\n")
    for text, parts in (
        (TABLE.replace("csv: a.csv", "csv: a.csv, defaults: { value: abc }"), ("line 1", "default of `value`", "i64", "abc")),
        (TABLE.replace("[{ batch", "[{ drop: { fields: [value, value] } }, { batch"), ("line 2", "`value` twice")),
    ):
        path = world.write("w.yaml", text)
        for command in (["run"], ["explain"], ["plan", "--step-time", "1ms"]):
            world.run(command[0], path, *command[1:]).failed_in_one_line(2, "w.yaml", *parts)
    world.write("file", "x")
    world.run("run", pipeline, "--state-dir", "file", "--epochs", "1").failed_in_one_line(2, "file", "not a directory")
