"""Every row of a table of the manual has a test, by the row's first cell: here, or the one that `TABLES` names."""

from __future__ import annotations

import builtins
import inspect
import json
import pickle
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manual import PAGES, ROOT, Place, rows, table, tables, until

import gristmill as gm

HERE = "python/tests/test_manual_tables.py"
FRAMES = "python/tests/test_manual_frames.py"
SERVE = "shared/serve/src"
#: The test of a table, which reads its rows from the page; or the tests of its rows, by first cell.
TABLES: dict[str, str | dict[str, str]] = {
    "README.md: to | read": "tests/tests/tidy/book.rs: links_between_documents_lead_somewhere",
    "docs/jobs.md: `--on-error` | effect on a record that cannot be decoded": f"{HERE}: test_bad_records",
    "docs/jobs.md: option | of | given for a job that exists": (
        "cli/tests/docs.rs: the_table_of_options_is_the_one_that_jobs_are_joined_by"
    ),
    "docs/training.md: bytes | field | ": f"{FRAMES}: test_the_tables_of_bytes",
    "docs/training.md: frame | payload": f"{FRAMES}: test_frames",
    "docs/training.md: frame | epoch, batch_index | payload": f"{FRAMES}: test_frames_of_ranks",
    "docs/training.md: option | meaning": f"{HERE}: test_options_of_ranks",
    "docs/training.md: mesh, slowest dimension first | `--replicas` | ranks of the first batch": (
        "shared/model/src/splits/ranks/tests.rs: replicas_take_the_batch_of_their_place_in_the_mesh"
    ),
    "docs/training.md: what | then": {
        "a rank": f"{SERVE}/server/tests.rs: a_rank_that_returns_gets_the_same_bytes_and_no_other_rank_a_step_twice",
        "a fetcher": f"{SERVE}/server/tests.rs: ranks_go_on_with_the_fetcher_that_succeeds_theirs",
        "a host, or all": f"{SERVE}/server/tests.rs: the_first_rank_with_a_checkpoint_decides_where_a_run_begins",
        "two clients say that they are one rank": (
            f"{SERVE}/server/tests.rs: a_second_client_of_a_rank_is_served_once_the_first_leaves"
        ),
        "a fetcher of an earlier run": "shared/model/src/splits/run/tests.rs: a_reader_of_a_superseded_run_is_fenced",
    },
    "docs/training.md: `--visitation` | guarantee": {
        "`exactly-once` (the default)": (
            f"{SERVE}/server/one_trainer_tests.rs: a_trainer_that_returns_goes_on_after_its_last_acknowledgement"
        ),
        "`at-most-once`": "cli/tests/visitation.rs: without_a_cursor_trainers_go_on_where_the_mode_says",
        "`zero-once-or-more`": "cli/tests/visitation.rs: without_a_cursor_trainers_go_on_where_the_mode_says",
    },
    "docs/training.md: code | meaning": f"{HERE}: test_exit_codes",
    "docs/python.md: option | default | meaning": f"{HERE}: test_defaults_of_a_loader",
    "docs/python.md: call from elsewhere | what it does | the iteration that waits": f"{HERE}: test_calls_of_a_row",
    "docs/python.md:  | ": f"{HERE}: test_services",
    "docs/python.md: exception | also a | when": f"{HERE}: test_exceptions",
    # Figures of a measurement.
    "docs/python.md:  | gristmill | torch's DataLoader": (
        "python/tests/test_train_resnet.py: test_torch_trains_on_the_same_images"
    ),
}


def test_every_row_has_a_test() -> None:
    found = {table.key: table for page in PAGES for table in tables(page)}
    assert found.keys() == TABLES.keys()
    named = []
    for key, tests in TABLES.items():
        if isinstance(tests, dict):
            assert tests.keys() == {row[0] for row in found[key].rows}
            named += tests.values()
        else:
            named.append(tests)
    for path, test in (place.split(": ") for place in named):
        assert re.search(rf"(fn|def) {test}\(", (ROOT / path).read_text()), f"{path} has no {test}"


def case(name: str, cases: dict[str, Any], row: str) -> Any:
    assert row in cases, f"no test of the row {row!r}: write one in {name}"
    return cases[row]


# docs/jobs.md


@pytest.mark.parametrize("row", rows("docs/jobs.md", "`--on-error`"))
def test_bad_records(row: str, place: Place) -> None:
    place.numbers(200, bad=[77])
    up = place.start("gristmill up --state-dir state", "is ready at unix:")
    run = "gristmill run numbers.yaml --state-dir state --job j1 --epochs 1 --step-time 0ms --json"

    def fails() -> None:
        assert "numbers.jsonl line 78, record 77" in place.run(run, code=1).err

    def leaves_it_out(how: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(place.run(f"{run} --on-error {how}").out)
        assert (report["elements_delivered"], report["skipped"]) == (199, 1), report
        return report

    def copies() -> None:
        report = leaves_it_out("quarantine")
        kept = [path for path in place.stored() if "/quarantine+/" in str(path)]
        (copy,) = [path for path in kept if "skipped" not in path.name]
        assert copy.read_bytes().startswith(b'{"x": "none"}')
        named = "`t/NAMESPACE/quarantine/JOB/`"
        assert named in " ".join(rows("docs/jobs.md", "`--on-error`")[row])
        expected = named.strip("`").replace("NAMESPACE", "default").replace("JOB", "j1")
        assert report["quarantine"]["place"].endswith(f"/{expected}")

    cases = {"`fail` (the default)": fails, "`skip`": lambda: leaves_it_out("skip"), "`quarantine`": copies}
    case("test_bad_records", cases, row)()
    assert "ready" in up.read_text()


# docs/training.md


@pytest.mark.parametrize("row", rows("docs/training.md", "code"))
def test_exit_codes(row: str, place: Place) -> None:
    place.numbers(100)
    slow = "gristmill run numbers.yaml --epochs 1000 --step-time 10ms --sink out"

    def ended_by(command: str, by: signal.Signals, ready: Callable[[], object]) -> int:
        place.start(command, "")
        _, process, _ = place.background[-1]
        until(ready)
        process.send_signal(by)
        return process.wait(timeout=60)

    def has_delivered() -> bool:
        return (place.folder / "out").exists() and any((place.folder / "out").iterdir())

    def done() -> int:
        place.run("gristmill run numbers.yaml --epochs 1 --step-time 0ms", code=0)
        return 0

    def failed() -> int:
        place.numbers(100, bad=[7])
        place.run("gristmill run numbers.yaml --epochs 1 --step-time 0ms", code=1)
        return 1

    def bad() -> int:
        for command in ("gristmill run nothing.yaml", "gristmill run numbers.yaml --epochs none"):
            place.run(command, code=2)
        return 2

    def interrupted() -> int:
        assert "`gristmill up` exits with 0" in rows("docs/training.md", "code")[row][0]
        state = place.folder / "state"
        assert ended_by("gristmill up --state-dir state", signal.SIGINT, (state / "endpoint.json").exists) == 0
        return ended_by(slow, signal.SIGINT, has_delivered)

    cases: dict[str, Callable[[], int]] = {
        "0": done,
        "1": failed,
        "2": bad,
        "130": interrupted,
        "143": lambda: ended_by(slow, signal.SIGTERM, has_delivered),
    }
    assert case("test_exit_codes", cases, row)() == int(row)


@pytest.mark.parametrize("row", rows("docs/training.md", "option"))
def test_options_of_ranks(row: str, place: Place) -> None:
    """`test_manual_frames.py` and `cli/tests/rank_clients.rs` have what they do."""
    flag, value = row.strip("`").split()
    helped = place.run("gristmill-fetcher --help").out
    assert f"{flag} <" in helped, row
    tails = {"drop", "repeat", "uneven"}
    cases = {"A-B": set(), "C": set(), "NAME": set(), "CHECKPOINT": set(), "R": set(), "TAIL": tails}
    named = set(re.findall(r"`(\w+)`:", rows("docs/training.md", "option")[row][0]))
    assert named == case("test_options_of_ranks", cases, value)
    assert all(f"{name}:" in helped for name in named)


# docs/python.md


@pytest.mark.parametrize("row", rows("docs/python.md", "option"))
def test_defaults_of_a_loader(row: str, place: Place) -> None:
    parameters = inspect.signature(gm.numpy.Loader).parameters
    default = rows("docs/python.md", "option")[row][0]
    for name in re.findall(r"`(\w+)`", row):
        given = parameters[name].default if name in parameters else None
        cases = {"required": inspect.Parameter.empty, "false": False}
        if default == "as `gristmill run`":
            assert f"--{name.replace('_', '-')} <" in place.run("gristmill run --help").out, name
        literal = re.fullmatch(r'`"(\w+)"`|(\d+)', default)
        if literal and given is None:
            flag = f"--{name.replace('_', '-')} <"
            helped = place.run("gristmill run --help").out.partition(flag)[2].partition("[default: ")[2]
            assert helped.partition("]")[0] == (literal[1] or literal[2]), name
        elif literal:
            assert given == literal[1], name
        else:
            # Others are decided later, by what the manual says in words.
            assert given is cases.get(default), name


class Waiting:
    """A loader whose next batch does not come soon, and the thread that waits for it."""

    def __init__(self, directory: Path, is_within: bool) -> None:
        path = directory / "numbers.jsonl"
        path.write_text('{"x": 1}\n' * 100)
        # A batch within an epoch comes after a second, so that one can be before it.
        sleep = f"ops:\n  - sleep: {{ ms: {100 if is_within else 10000} }}\n"
        pipeline = gm.jsonl(path, x=gm.i64()).batch(10).to_yaml().replace("ops:\n", sleep)
        self.service = gm.local(state_dir=directory / "service")
        self.loader = gm.numpy.Loader(pipeline, epochs=50, workers=1, split_batches=1, service=self.service)
        self.state = self.loader.state_dict()
        self.iterator = iter(self.loader)
        if is_within:
            next(self.iterator)
        self.error: gm.Error | None = None
        self.thread = threading.Thread(target=self.wait, daemon=True)
        self.thread.start()
        until(lambda: "waiting_for" in self.loader.stats(), lambda: "it does not wait")

    def wait(self) -> None:
        try:
            next(self.iterator)
        except gm.Error as error:
            self.error = error

    def call(self, name: str) -> None:
        """A call as the first cells of the table name it."""
        loader = self.loader
        {
            "close()": loader.close,
            "close() of the service": self.service.close,
            "set_epoch": lambda: loader.set_epoch(7),
            "load_state_dict": lambda: loader.load_state_dict(self.state),
            "iter": loader.__iter__,
            "next of another iteration": lambda: next(iter(loader)),
            "next": lambda: next(self.iterator),
            "stats": loader.stats,
            "state_dict": lambda: self.equal(loader.state_dict()),
            "len": loader.__len__,
            "epoch": lambda: loader.epoch,
            "cursor": lambda: loader.cursor,
            "schema": loader.schema,
            "checkpointed": lambda: loader.checkpointed(self.state),
            "pickle": lambda: pickle.dumps(loader),
        }[name]()

    def equal(self, state: dict[str, Any]) -> None:
        assert state == self.state, "a state is that before the batch that is waited for"

    def end(self) -> None:
        self.loader.close(abandon=True)
        self.thread.join(timeout=60)
        self.service.close()
        assert not self.thread.is_alive()


def calls_of(row: str) -> list[str]:
    """The calls that a first cell names, in backticks."""
    names = re.findall(r"`([\w()]+)`((?: of the service| of another iteration)?)", row)
    return [name + of for name, of in names]


def check_call(directory: Path, name: str, does: str, then: str) -> None:
    waiting = Waiting(directory, is_within=name == "iter")
    raised = re.match(r"raises `(?:gm\.)?(\w+)`", does)
    if raised:
        with pytest.raises(getattr(gm, raised[1], getattr(builtins, raised[1], None))):
            waiting.call(name)
    else:
        waiting.call(name)
    if then == "raises `gm.Error`":
        waiting.thread.join(timeout=60)
        assert waiting.error is not None
    else:
        assert then == "goes on" and waiting.thread.is_alive() and waiting.error is None
    waiting.end()


@pytest.mark.parametrize(
    ("row", "name"),
    [(row, name) for row in rows("docs/python.md", "call from elsewhere") for name in calls_of(row)],
)
def test_calls_of_a_row(row: str, name: str, tmp_path: Path) -> None:
    check_call(tmp_path, name, *rows("docs/python.md", "call from elsewhere")[row])


def test_each_row_of_calls_names_one() -> None:
    assert [row for row in rows("docs/python.md", "call from elsewhere") if not calls_of(row)] == []


@pytest.mark.parametrize("row", rows("docs/python.md", "", ""))
def test_services(row: str, tmp_path: Path, place: Place) -> None:
    def local() -> None:
        with gm.local() as one, gm.local() as other, gm.local(state_dir=tmp_path / "s") as own:
            assert one.endpoint == other.endpoint != own.endpoint

    def connect() -> None:
        place.start("gristmill up --state-dir state", "is ready at unix:")
        with gm.connect(state_dir=place.folder / "state") as service:
            endpoint = service.endpoint
        assert endpoint is not None and endpoint.startswith("unix:")
        with gm.connect(endpoint) as service:
            assert service.endpoint == endpoint

    def aws() -> None:
        with pytest.raises(gm.Error, match="GRISTMILL_"):
            gm.connect(backend="aws")

    cases = {
        "`gm.local(state_dir=None)`": local,
        '`gm.connect(state_dir=..)`, `gm.connect("unix:..")`': connect,
        '`gm.connect(backend="aws")`': aws,
    }
    case("test_services", cases, row)()


@pytest.mark.parametrize("row", rows("docs/python.md", "exception"))
def test_exceptions(row: str, tmp_path: Path, service: gm.Service, place: Place) -> None:
    path = tmp_path / "numbers.jsonl"
    path.write_text('{"x": 1}\n{"x": "none"}\n')
    bad = gm.jsonl(path, x=gm.i64()).batch(1)
    (tmp_path / "good.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    good = gm.jsonl(tmp_path / "good.jsonl", x=gm.i64()).batch(1)

    def pipeline() -> None:
        gm.images("pictures").decode().resize(0).batch(8).canonical()

    def option() -> None:
        gm.numpy.Loader(good, service=service, epochs=0)

    def checkpoint() -> None:
        with gm.numpy.Loader(good, service=service, epochs=1) as other:
            state = other.state_dict()
        with gm.numpy.Loader(good, service=service, epochs=1, job="another") as loader:
            loader.load_state_dict(state)
            list(loader)

    def data() -> None:
        with gm.numpy.Loader(bad, service=service, epochs=1) as loader:
            list(loader)

    def stopped() -> None:
        place.start("gristmill up --state-dir state", "is ready at unix:")
        with gm.connect(state_dir=place.folder / "state") as service:
            loader = gm.numpy.Loader(good, service=service, epochs=99, job="j1")
            next(iter(loader))
            place.run("gristmill stop j1 --state-dir state")
            while True:
                list(loader)

    def silent() -> None:
        place.start("gristmill up --state-dir state", "is ready at unix:")
        service = gm.connect(state_dir=place.folder / "state")
        loader = gm.numpy.Loader(good, service=service, epochs=99, patience="1s")
        next(iter(loader))
        place.background[-1][1].kill()
        try:
            while True:
                list(loader)
        finally:
            loader.close(abandon=True)

    cases: dict[str, Callable[[], None]] = {
        "`gm.PipelineError`": pipeline,
        "`gm.OptionError`": option,
        "`gm.CheckpointError`": checkpoint,
        "`gm.DataError`": data,
        "`gm.JobError`": stopped,
        "`gm.ServiceError`": silent,
    }
    error = getattr(gm, row.strip("`").removeprefix("gm."))
    parent = rows("docs/python.md", "exception")[row][0]
    with pytest.raises(error) as raised:
        case("test_exceptions", cases, row)()
    assert raised.type is error and "\n" not in str(raised.value)
    assert parent in {base.__name__ for base in error.__mro__} and issubclass(error, gm.Error)
    if row == "`gm.PipelineError`":
        assert raised.value.filename == __file__ and raised.value.lineno == pipeline.__code__.co_firstlineno + 1


def test_the_table_of_exceptions_is_whole() -> None:
    listed = {row[0].strip("`").removeprefix("gm.") for row in table("docs/python.md", "exception").rows}
    assert listed == set(gm.errors.__all__) - {"Error"}
