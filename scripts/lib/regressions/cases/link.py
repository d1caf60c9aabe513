"""A1, A2, B4, B5, B7: the connection between a job and its trainer, and waiting for it."""

import contextlib
import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import socketserver
import stat
import threading
import time

from chaos.proxy import take_over
from regressions.client import Client
from regressions.run import case
from regressions.world import expect

RECORDS, BATCH = 320, 4
BATCHES = RECORDS // BATCH


def data(world, sleep_ms=0):
    """320 integers in two files, and a pipeline of 80 batches."""
    world.integers([RECORDS // 2, RECORDS // 2])
    ops = f"  - sleep: {{ ms: {sleep_ms} }}\n" if sleep_ms else ""
    return world.integers_pipeline(BATCH, ops)


def serve(world, job, pipeline, *more, **options):
    fetcher = world.fetcher(job, "--pipeline", pipeline, *more, **options)
    fetcher.wait_for("serving", 20)
    return fetcher


def exact(log):
    values = sorted(value for batch in log.values() for value in batch)
    expect(values == list(range(RECORDS)), f"{len(values)} values and not 0..{RECORDS} once each")


@case("A1.leftover-checkpoint", "a checkpoint of another job is refused by name, and nothing is trained")
def leftover_checkpoint(world):
    pipeline = data(world)
    world.up()
    first = serve(world, "a", pipeline)
    trained = world.train("a", "--checkpoint", "c.json")
    expect(trained.code == 0 and trained.json["batches"] == BATCHES, f"{trained.lines()}")
    expect(first.wait(20) == 0, "the first job did not end well")
    serve(world, "b", pipeline)
    refused = world.train("b", "--checkpoint", "c.json")
    expect(refused.code == 1, f"exit {refused.code}: {refused.lines()}")
    expect("job a" in refused.err and "job b" in refused.err, f"it does not name the jobs: {refused.err}")
    expect(not refused.out, f"it trained: {refused.out}")
    whole = world.train("b", "--checkpoint", "d.json")
    expect(whole.json["batches"] == BATCHES, f"{whole.lines()}")


@case("A1.leftover-state", "a state file of another job, of no shape, or beyond the job is refused in one line")
def leftover_state(world):
    pipeline = data(world)
    world.up()
    names = {"dataset": "d" * 64, "fingerprint": "f" * 64, "epoch": 0, "batch_index": 3}
    for text in (json.dumps({"job": "other", **names}), "[1,2]", '{"epoch": 0, "batch_index": 3}', "x" * 100):
        world.write("s.json", text)
        fetcher = world.fetcher("a", "--pipeline", pipeline, "--state", "s.json")
        fetcher.wait(20)
        fetcher.failed_in_one_line(2, "s.json")
    good = serve(world, "a", pipeline, "--state", "t.json")
    good.signal(signal.SIGTERM)
    good.wait(10)
    saved = json.loads((world.folder / "t.json").read_text())
    expect((saved["job"], saved["epoch"], saved["batch_index"]) == ("a", 0, 0), f"saved is {saved}")
    for epoch, g in ((0, BATCHES + 1), (0, 500), (1, 5), (7, 999), (2**32 - 1, 2**64 - 1)):
        world.write("t.json", json.dumps({**saved, "epoch": epoch, "batch_index": g}))
        fetcher = world.fetcher("b", "--pipeline", pipeline, "--state", "t.json")
        fetcher.wait(20)
        fetcher.failed_in_one_line(2, "job a", "job b")
        fetcher = world.fetcher("a", "--pipeline", pipeline, "--state", "t.json", "--workers", "0")
        fetcher.wait(20)
        fetcher.failed_in_one_line(2, "t.json")
    # The service may have lost what it knew of a batch of the job: its splits are made again.
    world.write("t.json", json.dumps({**saved, "epoch": 0, "batch_index": 60}))
    serve(world, "a", pipeline, "--state", "t.json")
    expect(Client(world, "a").hello().batch()[0] == (0, 60), "it does not begin at the saved batch")


@case("A1.wild-acks", "an acknowledgement beyond what was sent is refused, and nothing of it is kept")
def wild_acks(world):
    pipeline = data(world)
    world.up()
    serve(world, "a", pipeline, "--state", "s.json")
    for ack in ((7, 999), (0, 15), (0, 2**64 - 1), (2**32 - 1, 2**64 - 1), (1, 0)):
        client = Client(world, "a").hello()
        expect(client.batch()[0] == (0, 0), "it does not begin at the start")
        client.ack(*ack)
        expect("acknowledges" in client.refusal(), f"{ack} is not refused")
        saved = json.loads((world.folder / "s.json").read_text())
        expect((saved["epoch"], saved["batch_index"]) == (0, 0), f"after {ack} saved is {saved}")
    log = {}
    client = Client(world, "a").hello((0, 0))
    expect(client.rest(log), "no end")
    exact(log)


@case("A1.hello", "a trainer says hello, and one that does not, or names another job, is refused with the reason")
def hello(world):
    pipeline = data(world)
    world.up()
    serve(world, "a", pipeline)
    for says, word in (
        (lambda client: client.ack(0, 0), "before a hello"),
        (lambda client: client.sock.sendall(b"GET / HTTP/1.1\r\n\r\n"), "docs/training.md"),
        (lambda client: client.hello(job="z"), "job z"),
        (lambda client: client.hello(dataset="0" * 64), "another dataset"),
        (lambda client: client.hello(fingerprint="0" * 64), "pipeline or seed"),
        (lambda client: client.hello((0, BATCHES + 1)), "batch 81 of epoch 0"),
        (lambda client: client.hello((9, 0)), "epoch 9"),
        (lambda client: None, "no hello"),
    ):
        client = Client(world, "a")
        says(client)
        said = client.refusal()
        expect(word in said and "\n" not in said, f"it is refused with `{said}` and not `{word}`")
    log = {}
    expect(Client(world, "a").hello().rest(log), "no end")
    exact(log)


@case("A1.resume", "a trainer goes on at its checkpoint, independently of the fetcher and its state")
def resume(world):
    pipeline = data(world, sleep_ms=2)
    world.up()
    log = {}
    fetcher = serve(world, "a", pipeline, "--state", "s.json")
    client = Client(world, "a").hello((0, 0))
    client.rest(log, 30)
    fetcher.end()
    # No state at all: the trainer knows.
    (world.folder / "s.json").unlink()
    fetcher = serve(world, "a", pipeline)
    client = Client(world, "a").hello((0, 30))
    client.rest(log, 30)
    fetcher.end()
    fetcher = serve(world, "a", pipeline, "--state", "s.json")
    expect(Client(world, "a").hello((0, 60)).rest(log), "no end")
    exact(log)
    expect(fetcher.wait(20) == 0, "it does not end well")


@case("A1.new-service", "a checkpoint of the same job on a new service, where nothing was made, is served; one beyond the job is refused")
def new_service(world):
    pipeline = data(world, sleep_ms=30)
    first = world.up()
    serve(world, "a", pipeline)
    client, whole = Client(world, "a").hello(), {}
    expect(client.rest(whole, limit=70, ack=False) is False, "the job ended early")
    client.close()
    first.end()
    world.up(state="other")
    serve(world, "a", pipeline, state="other", socket="a2.sock")
    (world.folder / "a.sock").unlink(missing_ok=True)
    os.symlink("a2.sock", world.folder / "a.sock")
    said = Client(world, "a").hello((0, BATCHES + 1)).refusal()
    expect(f"batch {BATCHES + 1} of epoch 0" in said, f"it is refused with: {said}")
    again = {}
    expect(Client(world, "a").hello((0, 60)).rest(again), "the end did not come")
    expect(list(again) == [(0, g) for g in range(60, BATCHES)], f"these came: {list(again)}")
    common = again.keys() & whole.keys()
    expect(len(common) == 10 and all(again[at] == whole[at] for at in common), "other batches came")


@case("A1.stdout", "`--socket -` begins with a hello")
def stdout(world):
    pipeline = data(world)
    world.up()
    with open(world.folder / "out", "wb") as out:
        fetcher = world.fetcher("a", "--pipeline", pipeline, socket="-")
        fetcher.wait(1) if fetcher.code is not None else None
        fetcher.end()
        fetcher = world.start(
            world.fetcher_program, "--state-dir", "state", "--job", "b", "--socket", "-", "--pipeline", pipeline,
            stdout=out,
        )
        expect(fetcher.wait(60) == 0, fetcher.err)
    text = (world.folder / "out").read_bytes()
    expect(text[:4] == b"GMBH" and b'"job":"b"' in text[24:400], f"it begins with {text[:60]}")


@case("A2.state-files", "two jobs of a folder share no file, and one file has one user")
def state_files(world):
    pipeline = data(world)
    world.up()
    fetchers = [serve(world, job, pipeline, "--state", f"cur.{job}") for job in ("a1", "b1")]
    logs = {"a1": {}, "b1": {}}
    clients = {job: Client(world, job).hello() for job in logs}
    for _ in range(20):
        for job, client in clients.items():
            client.rest(logs[job], 1)
    second = world.fetcher("a1", "--pipeline", pipeline, "--state", "cur.a1", socket="other.sock")
    second.wait(20)
    second.failed_in_one_line(2, "cur.a1", "another process")
    for job in logs:
        saved = json.loads((world.folder / f"cur.{job}").read_text())
        expect(saved["job"] == job, f"cur.{job} is {saved}")
        expect(clients[job].rest(logs[job]), "no end")
        exact(logs[job])
    expect([fetcher.wait(20) for fetcher in fetchers] == [0, 0], "they do not end well")
    left = [path.name for path in world.folder.iterdir() if "draft" in path.name]
    expect(not left, f"left behind: {left}")


@case("A2.socket", "only a dead socket is replaced, nobody else may connect, and none is left behind")
def sockets(world):
    pipeline = data(world)
    world.up()
    world.write("model.pt", "weights")
    refused = world.fetcher("a", "--pipeline", pipeline, socket="model.pt")
    refused.wait(20)
    refused.failed_in_one_line(2, "model.pt")
    expect((world.folder / "model.pt").read_text() == "weights", "the file is gone")
    path = world.folder / "a.sock"
    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)):
        fetcher = serve(world, "a", pipeline)
        mode = stat.S_IMODE(path.stat().st_mode)
        expect(mode == 0o600, f"the socket's mode is {mode:o}")
        fetcher.signal(number)
        expect(fetcher.wait(10) == code, f"exit {fetcher.code} and not {code}")
        expect(path.exists() == (number == signal.SIGKILL), f"after signal {number}: {path.exists()}")


@case("B5.reconnects", "400 connections that leave at once, some of them before others end, disturb nothing")
def reconnects(world):
    pipeline = data(world)
    world.up()
    fetcher = serve(world, "a", pipeline, "--state", "s.json")
    log, at = {}, (0, 0)
    for n in range(400):
        client = Client(world, "a")
        if n % 2:
            client.hello(at if n % 4 == 1 else None)
        if n % 20 == 19:
            client.rest(log, 1)
            at = (0, at[1] + 1)
        client.close()
        expect(fetcher.code is None, f"it ended after {n}: {fetcher.lines('err')[-2:]}")
    expect(Client(world, "a").hello(at).rest(log), "no end")
    exact(log)
    expect(fetcher.wait(20) == 0, "it does not end well")


class ToService(http.client.HTTPConnection):
    """A connection to the socket of a service."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Refusing(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Passes requests on to the service, in whose place it listens; answers some calls otherwise, and loses the answers
    of others."""

    daemon_threads = True

    def __init__(self, endpoint, refuses):
        self.path, self.target = take_over(endpoint)
        self.refuses, self.calls = refuses, 0
        super().__init__(str(self.path), RefusingHandler)

    def handle_error(self, request, client_address):
        """A client that goes away is no failure."""

    def end(self):
        """The service listens in its place again."""
        self.shutdown()
        self.server_close()
        os.replace(self.target, self.path)


class RefusingHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        verdict, answer = None, b'{"message":"not now"}'
        if self.path == "/call":
            self.server.calls += 1
            verdict = self.server.refuses(self.server.calls, body)
        status = verdict
        if verdict in (None, "lose"):
            link = ToService(self.server.target)
            link.request(self.command, self.path, body, dict(self.headers))
            reply = link.getresponse()
            status, answer = reply.status, reply.read()
            link.close()
        if verdict == "lose":
            status, answer = 500, b'{"message":"lost"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def refusing(up, refuses):
    """A proxy that refuses, in the place of the service `up`."""
    server = Refusing(json.loads(up.lines("out")[0])["endpoint"], refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.end()


@case("B4.refused-poll", "an answer of 401 or 500 to a poll is tried again, and said if it lasts")
def refused_poll(world):
    pipeline = data(world)
    up = world.up()
    codes = {5: 401, 8: 500, 9: 503, 12: 401, 13: 401, 20: 502}

    def refuses(call, body):
        return codes.get(call) if b'"call":"poll"' in body else None

    with refusing(up, refuses):
        fetcher = serve(world, "a", pipeline)
        log = {}
        expect(Client(world, "a").hello().rest(log), "no end")
        exact(log)
        expect(fetcher.wait(20) == 0, f"exit {fetcher.code}: {fetcher.err}")
    always = lambda _, body: 401 if b'"call":"poll"' in body else None
    with refusing(up, always):
        fetcher = serve(world, "b", pipeline, "--patience", "8s")
        expect("401" in fetcher.wait_for("waiting for", 3), "it does not say what was answered")
        client = Client(world, "b").hello()
        expect("401" in client.refusal(), "its trainer is not refused with it")
        fetcher.wait(20)
        fetcher.failed_in_one_line(1, "401")


@case("B4.missing-chunk", "committed objects that vanish or are damaged are made again, and named")
def missing_chunk(world):
    pipeline = data(world)
    world.up()
    fetcher = serve(world, "a", pipeline, "--prefetch-mib", "1")
    log = {}
    client = Client(world, "a").hello()
    client.rest(log, 2)
    time.sleep(2)
    chunks = [path for path in (world.folder / "state/objects").rglob("*.gmc=") if "/jobs+/a+/" in str(path)]
    expect(chunks, "no chunks found below state/objects")
    for n, path in enumerate(sorted(chunks)):
        if n % 2:
            path.write_bytes(b"\0" * path.stat().st_size)
        else:
            path.unlink()
    expect(client.rest(log), "no end")
    exact(log)
    expect(fetcher.wait(20) == 0, f"exit {fetcher.code}: {fetcher.err}")


@case("B7.service-dies", "a run whose service dies says so within 3 s, and ends after its patience in one line")
def service_dies(world):
    pipeline = data(world, sleep_ms=20)
    up = world.up()
    endpoint = json.loads(up.lines("out")[0])["endpoint"]
    run = world.start(
        world.gristmill, "run", pipeline, "--endpoint", endpoint, "--step-time", "10ms", "--patience", "12s",
    )
    time.sleep(2.5)
    expect(run.code is None, f"it ended early: {run.lines()}")
    up.end()
    died = time.monotonic()
    run.wait_for("waiting for the service", 3)
    run.wait(40)
    expect(time.monotonic() - died < 25, "its patience is longer")
    expect(run.code == 1, f"exit {run.code}")
    run.failed_in_one_line(1, "no answer from the service")


@case("B7.fetcher-waits", "a fetcher says what it waits for: a trainer, the last acknowledgement")
def fetcher_waits(world):
    pipeline = data(world)
    world.up()
    fetcher = serve(world, "a", pipeline)
    fetcher.wait_for("waiting for a trainer", 4)
    client = Client(world, "a").hello()
    client.rest({}, ack=False)
    fetcher.wait_for("acknowledge the last batch", 4)


@case("B10.safe", "a job that is done does not speak of an epoch that it does not have")
def safe(world):
    pipeline = data(world)
    world.up()
    fetcher = serve(world, "a", pipeline)
    world.train("a")
    expect(fetcher.wait(20) == 0, "it does not end well")
    status = world.run("status", "a", "--state-dir", "state")
    expect("epoch 2" not in status.out and "every batch is acknowledged" in status.out, status.out)


@case("C.sigterm", "SIGTERM ends every program as Ctrl-C does, with 143")
def sigterm(world):
    pipeline = data(world, sleep_ms=30)
    up = world.up()
    own = world.start(world.gristmill, "run", pipeline, "--epochs", "50")
    fetcher = serve(world, "a", pipeline)
    time.sleep(3)
    for program in (own, fetcher, up):
        expect(program.code is None, f"{program.name} ended early: {program.lines()[-2:]}")
        program.signal(signal.SIGTERM)
        expect(program.wait(20) == 143, f"{program.name}: exit {program.code}")
    expect(not pathlib.Path(world.folder / "a.sock").exists(), "the socket is left behind")
