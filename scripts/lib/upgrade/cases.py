"""Jobs whose service and trainer are of two releases, or whose service is replaced while they run."""

import json
import os
import signal
import subprocess
import time

RECORDS, BATCH, EPOCHS = 1990, 8, 2
BATCHES = EPOCHS * -(-RECORDS // BATCH)
# So slow that a service can be replaced several times.
STEP, SLEEP_MS = "20ms", 2
SECONDS = 180.0


class Failed(Exception):
    """A step of a case failed."""


class Place:
    """The directories of one case."""

    def __init__(self, root, name):
        self.root = root / name.replace(" ", "-")
        self.sink, self.state = self.root / "sink", self.root / "state"
        run = self.root / "run"
        run.mkdir(parents=True)
        run.chmod(0o700)
        self.env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.root), "XDG_RUNTIME_DIR": str(run)}

    def start(self, program, args, name):
        log = (self.root / f"{name}.log").open("ab")
        words = [program, *args]
        return subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)

    def batches(self):
        """The files of the batches that have come so far, with their content."""
        return {path.name: path.read_bytes() for path in self.sink.glob("e*-b*.safetensors")}

    def count(self):
        return sum(1 for _ in self.sink.glob("e*-b*.safetensors"))


class Service:
    """`gristmill up` on the state directory of a place."""

    def __init__(self, place, program):
        args = ["up", "--json", "--state-dir", place.state]
        self.process = place.start(program, args, "service")
        line = self.process.stdout.readline()
        if '"ready":true' not in line.replace(" ", ""):
            self.end(signal.SIGKILL)
            raise Failed(f"{program} up is not ready: {line.strip() or 'it ended'}")
        self.endpoint = json.loads(line)["endpoint"]

    def end(self, number):
        self.process.send_signal(number)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Trainer:
    """`gristmill run` of one job, which writes each batch to the sink of its place."""

    def __init__(self, place, program, endpoint):
        self.place = place
        args = ["run", place.root.parent / "p.yaml", "--json", "--endpoint", endpoint, "--epochs", str(EPOCHS)]
        args += ["--step-time", STEP, "--workers", "2", "--local-workers", "0", "--split-batches", "2", "--sink", place.sink]
        self.process = place.start(program, [str(arg) for arg in args], "trainer")

    def wait_for(self, batches):
        """Waits until so many batches have come, which must be before the end."""
        began = time.monotonic()
        while self.place.count() < batches:
            if self.process.poll() is not None:
                raise Failed(f"the trainer ended with {self.process.returncode} after {self.place.count()} batches")
            if time.monotonic() - began > SECONDS:
                raise Failed(f"{self.place.count()} batches came in {SECONDS:.0f} s")
            time.sleep(0.02)
        if self.place.count() >= BATCHES:
            raise Failed("the job was done before its service was replaced")

    def report(self):
        try:
            printed, _ = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"the trainer does not end: {self.place.count()} of {BATCHES} batches came") from error
        if self.process.returncode != 0:
            log = (self.place.root / "trainer.log").read_text(errors="replace").strip().splitlines()
            raise Failed(f"the trainer ended with {self.process.returncode}: {log[-1] if log else ''}")
        return json.loads(printed.strip().splitlines()[-1])


def write_dataset(root):
    data = root / "data"
    data.mkdir()
    for shard in range(5):
        lines = [json.dumps({"id": n}) for n in range(shard, RECORDS, 5)]
        (data / f"part-{shard}.jsonl").write_text("\n".join(lines) + "\n")
    source = f"source: {{ jsonl: {data}, features: {{ id: {{ dtype: i64 }} }} }}\n"
    (root / "p.yaml").write_text(source + f"ops: [sleep: {{ ms: {SLEEP_MS} }}, batch: {{ size: {BATCH} }}]\n")


def run_case(place, services, trainer):
    """One job of `trainer` on the first of `services`, each of which the next one replaces while the job runs."""
    service = Service(place, services[0])
    try:
        training = Trainer(place, trainer, service.endpoint)
        try:
            for turn, program in enumerate(services[1:], 1):
                training.wait_for(BATCHES * turn // (len(services) + 1))
                # Every other one ends as by a crash.
                service.end(signal.SIGKILL if turn % 2 == 0 else signal.SIGTERM)
                service = Service(place, program)
            return training.report()
        finally:
            training.process.kill()
            training.process.wait()
    finally:
        service.end(signal.SIGTERM)


def check(report, place, expected):
    """What differs from the batches of a run of one release alone."""
    wrong = [f"{report[count]} {count}" for count in ("lost", "duplicates") if report[count]]
    came = place.batches()
    if report["elements_delivered"] != EPOCHS * RECORDS:
        wrong.append(f"{report['elements_delivered']} of {EPOCHS * RECORDS} records")
    if expected is None:
        return wrong + ([f"{len(came)} of {BATCHES} batches"] if len(came) != BATCHES else [])
    hashed, batches = expected
    if report["batches_blake3"] != hashed:
        wrong.append("another hash")
    different = [name for name in sorted(came.keys() | batches.keys()) if came.get(name) != batches.get(name)]
    if different:
        wrong.append(f"{len(different)} other files, {different[0]} first")
    return wrong


def run_all(root, old, new):
    """Runs all cases, one line each; returns the names of those that failed."""
    write_dataset(root)
    cases = [
        ("new alone", [new], new),
        ("old alone", [old], old),
        ("old service, new trainer", [old], new),
        ("new service, old trainer", [new], old),
        ("stack first, then rolled back", [old, new, old, new], old),
        ("trainer first, then rolled back", [old, new, old, new], new),
    ]
    failed, expected = [], None
    for name, services, trainer in cases:
        place, began = Place(root, name.replace(",", "")), time.monotonic()
        try:
            report = run_case(place, services, trainer)
            wrong = check(report, place, expected)
            if expected is None:
                expected = report["batches_blake3"], place.batches()
        except Failed as error:
            wrong = [str(error)]
        took = time.monotonic() - began
        said = "; ".join(wrong) if wrong else f"{BATCHES} batches once, {len(services) - 1} replacements"
        print(f"{'FAILED' if wrong else 'ok':6}  {name:34} {took:5.1f} s  {said}", flush=True)
        failed += [name] if wrong else []
        if expected is None:
            break
    return failed
