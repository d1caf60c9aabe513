"""C: problems with sources that users encountered."""

import gzip
import csv as tables
import http.server
import io
import json
import random
import threading

import s3
from regressions.model import Batch
from regressions.run import case
from regressions.world import expect
from regressions.cases.a4_listing import read, trained


@case("C.braces", "braces in paths stand for what a shell makes of them; each must match a file")
def braces(world):
    world.integers([10, 10, 10, 10])
    pipeline = world.integers_pipeline(5, data="data/train-{00001..00002}")
    trained(world, pipeline)
    expect(read(world) == list(range(10, 30)), f"delivered {read(world)}")
    run = trained(world, pipeline, "--data", "{data,data}/train-0000{0,3}")
    expect(run.json["elements_delivered"] == 40, f"{run.json['elements_delivered']} of 40")
    run = world.run("run", pipeline, "--data", "data/train-{00002..00004}")
    run.failed_in_one_line(2, "no file matches", "train-00004")


@case("C.s3-of-others", "a local service reads other people's buckets with the user's credentials")
def s3_of_others(world):
    world.integers([20, 20], folder="set")
    (world.folder / "set/notes.json").write_text("x")
    theirs = {f"set/{path.name}": path.read_bytes() for path in (world.folder / "set").iterdir()}
    # A bucket that is called as the program is the user's like any other.
    server = s3.S3({"theirs": theirs, "gristmill": {"set/train-0": theirs["set/train-00001"]}})
    keys = server.variables
    pipeline = world.integers_pipeline(5)
    run = world.run("run", pipeline, "--data", "s3://theirs/set/", "--epochs", "1", "--step-time", "0ms", "--json", "--sink", "sink",
                    env=keys, seconds=90)
    expect(run.code == 0, f"exit {run.code}: {run.lines()[-2:]}")
    expect(read(world) == list(range(40)), f"delivered {len(read(world))} of 40")
    expect(run.json["files_left_out"]["files"] == {"set/notes.json": "not TFRecord"}, f"{run.json['files_left_out']}")
    local = world.run("run", pipeline, "--data", "s3://theirs/set/", "--epochs", "1", "--step-time", "0ms", "--json",
                      "--workers", "0", "--local-workers", "1", env=keys)
    expect(local.code == 0 and local.json["elements_delivered"] == 40, f"local workers: {local.lines()[-2:]}")
    for command in (("explain", pipeline, "--data", "s3://theirs/set/train-{00000..00001}", "--json"),
                    ("plan", pipeline, "--data", "s3://theirs/set", "--step-time", "1ms", "--json")):
        looked = world.run(*command, env=keys)
        expect(looked.code == 0, f"{looked.name}: exit {looked.code}: {looked.err}")
    trained(world, pipeline, "--data", "s3://gristmill/set/", env=keys)
    expect(read(world) == list(range(20, 40)), f"of s3://gristmill: {len(read(world))} of 20")
    run = world.run("run", pipeline, "--data", "s3://nobodys/set/", env=keys)
    run.failed_in_one_line(1, "s3://nobodys", "NoSuchBucket")
    run = world.run("run", pipeline, "--data", "s3://theirs/set/", env=keys | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    run.failed_in_one_line(1, "s3://theirs", "SignatureDoesNotMatch")
    without = {name: value for name, value in keys.items() if "KEY" not in name}
    run = world.run("run", pipeline, "--data", "s3://theirs/set/", env=without | {"AWS_EC2_METADATA_DISABLED": "true"})
    run.failed_in_one_line(1, "no AWS credentials found")
    server.shutdown()


class Answers(http.server.BaseHTTPRequestHandler):
    """An S3 that refuses all requests; each request's session token is kept."""

    status, code, headers_of, tokens = 403, "AccessDenied", {}, []

    def do_GET(self):
        self.tokens.append(self.headers.get("x-amz-security-token"))
        body = f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>No.</Message></Error>".encode()
        self.send_response(self.status)
        for name, value in {"content-type": "application/xml", "content-length": str(len(body)), **self.headers_of}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_):
        pass


@case("C.s3-refusals", "s3:// data behind another region, a denial or an expired token: one line with the bucket and the reason, at once")
def s3_refusals(world):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipeline = world.integers_pipeline(5)
    keys = {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.server_port}", "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "a-token", "AWS_REGION": "eu-west-1",
    }
    refusals = [
        (403, "AccessDenied", {}, ["AccessDenied"]),
        (301, "PermanentRedirect", {"x-amz-bucket-region": "us-east-2"}, ["us-east-2"]),
        (400, "ExpiredToken", {}, ["ExpiredToken"]),
        (403, "InvalidAccessKeyId", {}, ["InvalidAccessKeyId"]),
    ]
    for Answers.status, Answers.code, Answers.headers_of, parts in refusals:
        for command in (["run", pipeline], ["explain", pipeline], ["plan", pipeline, "--step-time", "1ms"]):
            Answers.tokens.clear()
            program = world.run(*command, "--data", "s3://theirs/set/", env=keys, seconds=30)
            program.failed_in_one_line(1, "s3://theirs", *parts)
            expect(program.ended - program.began < 5, f"{program.name}: {program.ended - program.began:.1f} s")
            expect(set(Answers.tokens) == {"a-token"}, f"session tokens sent: {set(Answers.tokens)}")
    server.shutdown()


CSV = "source: {{ {source}, features: {{ value: {{ dtype: i64 }}, text: {{ key: note, dtype: bytes }} }} }}\n" \
      "ops: [{{ batch: {{ size: 4, ragged: true }} }}]\n"


@case("C.csv", "CSV and TSV, plain and gzip: quotes over lines, CRLF, a mark, columns in any order, missing values")
def csv(world):
    world.write("data/a.csv", '\ufeffvalue,note\r\n0,"a, ""b""\r\nc"\r\n1,plain\r\n\r\n2,\r\n')
    world.write("data/b.csv", "note,more,value\nx,,9007199254740993\ny,1,\nz,,NA")
    world.write("data/c.csv.gz", gzip.compress(b"value,note\n6,six\n" + b"7,seven\n" * 2))
    world.write("data/empty.csv", "")
    world.write("data/header.csv", "value,note\n")
    world.write("data/README.md", "x")
    source = "csv: data, missing: [NA], defaults: { value: -1 }"
    pipeline = world.write("p.yaml", CSV.format(source=source))
    run = trained(world, pipeline)
    expected = sorted([0, 1, 2, 9007199254740993, -1, -1, 6, 7, 7])
    expect(read(world) == expected, f"delivered {read(world)}")
    expect(list(run.json["files_left_out"]["files"]) == ["README.md"], f"left out {run.json['files_left_out']}")
    world.write("t.tsv", 'value\tnote\n1\t"unfinished\n2\tb\n')
    pipeline = world.write("t.yaml", CSV.format(source="tsv: t.tsv, quotes: false"))
    trained(world, pipeline)
    expect(read(world) == [1, 2], f"TSV delivered {read(world)}")
    world.write("plain.txt", "1;a\n2;b\n")
    pipeline = world.write("n.yaml", CSV.format(
        source='csv: plain.txt, delimiter: ";", header: false, columns: [value, note]'))
    trained(world, pipeline)
    expect(read(world) == [1, 2], f"without a header: {read(world)}")


@case("C.csv-errors", "a bad line of a CSV is named by file and line, follows the policy, and a wrong column says which there are")
def csv_errors(world):
    world.write("data/a.csv", 'value,note\n1,"a\nb"\n2\n3,c,d\nx,e\n5,f\n')
    pipeline = world.write("p.yaml", CSV.format(source="csv: data/a.csv"))
    world.run("run", pipeline).failed_in_one_line(1, f"{world.folder.resolve()}/data/a.csv", "line 4", "1 values")
    cap = ["--max-skipped", "1000"] if "--max-skipped" in world.run("run", "--help").out else []
    run = trained(world, pipeline, "--on-error", "quarantine", *cap)
    expect(read(world) == [1, 5], f"delivered {read(world)}")
    said = [line for line in run.lines("err") if line.startswith("quarantined: 3 records")]
    expect(len(said) == 1 and "s3://gristmill.local/t/" in said[0], f"where they lie is not said: {run.lines('err')[-8:]}")
    expect(run.json["quarantine"]["records"] == 3, f"--json: {run.json.get('quarantine')}")
    wrong = world.write("w.yaml", "source: { csv: data/a.csv, features: { v: { key: vale, dtype: i64 } } }\n"
                                  "ops: [{ batch: { size: 4 } }]\n")
    world.run("run", wrong).failed_in_one_line(1, "no column `vale`", "value, note")
    world.write("data/open.csv", 'value,note\n1,a\n2,"b\n3,c\n')
    world.run("run", pipeline, "--data", "data/open.csv").failed_in_one_line(1, "open.csv", "line 3", "quote")


def drawn_table(draw, header):
    """Rows of text with all that a table may hold, as a file, and what Python's reader finds in it."""
    delimiter = draw.choice([",", ",", "\t", ";", "|"])
    names = ["id", "text", *draw.sample(["größe", "a b", "c,d", 'q"t', "y\nz", ""], draw.randint(0, 4))]
    draw.shuffle(names)
    quoting = draw.choice([tables.QUOTE_MINIMAL, tables.QUOTE_ALL, tables.QUOTE_NONNUMERIC])
    end = "\r\n" if quoting == tables.QUOTE_MINIMAL else draw.choice(["\n", "\r\n", "\r"])
    file = io.StringIO(newline="")
    writer = tables.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
    if header:
        writer.writerow(names)
    cells = ["", "a", " ", "x,y", 'q"q', '"', "l\nm", "l\r\nm", "r\rs", "日本", "\ufeff", "\t", ";", " lead", "x" * 300]
    for number in range(draw.choice([1, 2, 5, 17, 60])):
        writer.writerow([number if name == "id" else draw.choice(cells) for name in names])
        if draw.random() < 0.1:
            file.write(end)
    text = file.getvalue()
    text = text.removesuffix(end) if draw.random() < 0.3 else text
    rows = [row for row in tables.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    named = rows.pop(0) if header else names
    found = [(int(row[named.index("id")]), row[named.index("text")].encode()) for row in rows]
    stored = text.encode()
    stored = b"\xef\xbb\xbf" + stored if draw.random() < 0.3 else stored
    return delimiter, names, stored, found


@case("C.csv-random", "random tables are read as Python's csv module reads them")
def csv_random(world):
    endpoint = json.loads(world.up().wait_for('"endpoint"', 30))["endpoint"]
    for seed in range(30):
        draw = random.Random(seed)
        header, packed = draw.random() < 0.8, draw.random() < 0.3
        delimiter, names, stored, found = drawn_table(draw, header)
        file = world.write(f"{seed}/a.csv{'.gz' if packed else ''}", gzip.compress(stored) if packed else stored)
        named = "" if header else f", header: false, columns: {json.dumps(names, ensure_ascii=False)}"
        pipeline = world.write(f"{seed}/p.yaml", (
            f"source: {{ csv: {file.name}, delimiter: {json.dumps(delimiter)}{named}, "
            "features: { id: { dtype: i64 }, text: { dtype: bytes } } }\n"
            f"ops: [in_order, {{ batch: {{ size: {draw.randint(1, 7)}, ragged: true }} }}]\n"))
        run = world.run("run", pipeline, "--endpoint", endpoint, "--epochs", "1", "--step-time", "0ms", "--sink", f"{seed}/sink",
                        "--split-batches", draw.randint(1, 3))
        expect(run.code == 0, f"table {seed}: exit {run.code}: {run.lines('err')[-1:]}")
        batches = [Batch(path.read_bytes(), {"bytes": ["text"]}) for path in sorted((world.folder / f"{seed}/sink").glob("*"))]
        delivered = [(row["id"], row["text"]) for batch in batches for row in batch.rows]
        expect(delivered == found, f"table {seed}: {delivered[:3]}, not {found[:3]}")
