"""Each option given for a job that exists means what the table of docs/jobs.md says: on a running job and on a paused
one whose service has started again, from `gristmill run`, `gristmill-fetcher` and a loader.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm
from gristmill.__main__ import launcher
from gristmill._flags import flags_of

#: The option, its value for the job, and another one, as `status` shows them.
FIXED = [
    ("seed", 7, "0", "7"),
    ("split_batches", 3, "1", "3"),
    ("sharding", "off", "dynamic", "off"),
    ("visitation", "at-most-once", "exactly-once", "at-most-once"),
    ("batch_size", 16, "(32,", "16)"),
]
CHANGED = [
    ("workers", 3, "auto, at most 2", "3"),
    ("placement", "auto", "remote", "auto"),
    ("max_workers", 5, "auto, at most 2", "auto, at most 5"),
    ("policy", "hpa", None, "hpa"),
    ("budget_usd", 9, "none", "$9"),
    ("budget_usd_per_hour", 9, "none", None),
    ("compress", "zstd", "auto", "zstd"),
    ("max_skipped", "7", "1%", "7"),
    ("on_error", "skip", "fail", "skip"),
    ("removal", "now", "split", "now"),
]
OF_READER = [("local_workers", 1), ("prefetch_mib", 8), ("patience", "90s"), ("measure", "off")]

FRONTS = ["run", "fetcher", "loader"]
#: Shown by `status` under the name of another option.
SHOWN_AS = {"max_workers": "workers"}


class JobThatExists:
    """A job of two epochs, of which some batches are delivered, on a service of its own."""

    def __init__(self, directory: Path, numbers: gm.Pipeline, is_restarted: bool) -> None:
        self.name = f"job-{uuid.uuid4().hex[:8]}"
        self.directory = directory
        self.pipeline = directory / "pipeline.yaml"
        self.pipeline.write_text(numbers.to_yaml())
        self._open = ExitStack()
        self._start()
        given = {"epochs": 2, "workers": "auto", "max_workers": 2, "split_batches": 1}
        loader = self._open.enter_context(gm.numpy.Loader(numbers, service=self.service, job=self.name, **given))
        for _, _batch in zip(range(3), loader, strict=False):
            pass
        while not is_restarted and self.status()["durable"]["batch_index"] < 2:
            time.sleep(0.05)
        # The trainer of a running job stays until the one that joins takes over.
        if is_restarted:
            loader.close()
            self.end()
            self._open = ExitStack()
            self._start()

    def _start(self) -> None:
        state = str(self.directory / "state")
        up = subprocess.Popen([*launcher(), "up", "--state-dir", state, "--json"], stdout=subprocess.PIPE, text=True)
        self._open.callback(up.wait)
        self._open.callback(up.kill)
        assert up.stdout is not None
        self.endpoint = json.loads(up.stdout.readline())["endpoint"]
        self.service = self._open.enter_context(gm.connect(self.endpoint))

    def end(self) -> None:
        with suppress(gm.Error):
            self._open.close()

    def status(self) -> dict[str, Any]:
        ran = self._run("status", self.name, "--json")
        status: dict[str, Any] = json.loads(ran.stdout)
        return status

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*launcher(), *arguments, "--endpoint", self.endpoint]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def join(self, front: str, **given: Any) -> str | None:
        """Joins the job by `front`. Returns the error, if it is refused."""
        if front == "loader":
            try:
                loader = gm.numpy.Loader(self.pipeline, service=self.service, job=self.name, **given)
                loader.job  # noqa: B018
                loader.close(abandon=True)
            except gm.Error as error:
                return str(error)
            return None
        flags = [*flags_of(given), f"--job={self.name}"]
        if front == "run":
            ran = self._run("run", str(self.pipeline), *flags, "--step-time", "1ms")
            return None if ran.returncode == 0 else ran.stderr
        command = [*launcher(), "fetcher", *flags, "--endpoint", self.endpoint, "--socket", str(self.directory / "s")]
        fetcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert fetcher.stderr is not None
        said = ""
        for line in fetcher.stderr:
            said += line
            if "serving a trainer" in line:
                fetcher.kill()
                fetcher.wait()
                return None
        fetcher.wait()
        return said


@pytest.fixture(params=["running", "restarted"])
def job(request: pytest.FixtureRequest, tmp_path: Path, numbers: gm.Pipeline) -> Iterator[JobThatExists]:
    job = JobThatExists(tmp_path, numbers, request.param == "restarted")
    yield job
    job.end()


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(("option", "value", "registered", "requested"), FIXED)
def test_an_option_of_the_job_is_refused_with_both_values(
    job: JobThatExists, front: str, option: str, value: Any, registered: str, requested: str
) -> None:
    before = job.status()
    why = job.join(front, **{option: value})
    assert why is not None and registered in why and requested in why, why
    assert job.status()["options"] == before["options"]


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(("option", "value", "registered", "requested"), CHANGED)
def test_a_joiner_changes_the_option_and_nothing_else(
    job: JobThatExists, front: str, option: str, value: Any, registered: str | None, requested: str | None
) -> None:
    before = job.status()
    assert job.join(front, **{option: value}) is None
    after = job.status()
    [change] = after["changes"]
    name = option.replace("_", "-")
    assert change["option"] == name
    assert registered in (None, change["from"]) and requested in (None, change["to"])
    # The trainer may go on meanwhile.
    places = [(at["epoch"], at["batch_index"]) for at in (before["durable"], change["since"], after["durable"])]
    assert places == sorted(places)
    shown = SHOWN_AS.get(option, name)
    assert after["options"] == {**before["options"], shown: change["to"]}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(("option", "value"), OF_READER)
def test_an_option_of_a_reader_leaves_the_job_as_it_is(job: JobThatExists, front: str, option: str, value: Any) -> None:
    before = job.status()
    assert job.join(front, **{option: value}) is None
    after = job.status()
    assert (after["options"], after["changes"]) == (before["options"], [])


@pytest.mark.parametrize("front", FRONTS)
def test_an_option_that_is_not_given_is_that_of_the_job(job: JobThatExists, front: str) -> None:
    before = job.status()
    assert job.join(front) is None
    after = job.status()
    assert (after["options"], after["changes"], after["epochs"]) == (before["options"], [], 2)


@pytest.mark.parametrize("front", FRONTS)
def test_a_trainer_reads_its_epochs_and_the_job_goes_to_the_largest_number(job: JobThatExists, front: str) -> None:
    assert job.join(front, epochs=1) is None
    after = job.status()
    assert (after["epochs"], after["changes"], after["run"]["epochs"] if front == "run" else 1) == (2, [], 1)
    if front == "run":
        assert after["durable"] == {"epoch": 1, "batch_index": 0}
    assert job.join(front, epochs=3) is None
    after = job.status()
    assert after["epochs"] == 3
    [change] = after["changes"]
    assert (change["option"], change["from"], change["to"]) == ("epochs", "2", "3")
    if front == "run":
        assert after["durable"] == {"epoch": 3, "batch_index": 0}


@pytest.mark.parametrize("option", [("max_workers", 4), ("policy", "hpa")])
@pytest.mark.parametrize("front", FRONTS)
def test_a_limit_of_auto_is_refused_for_a_fixed_number_of_workers(
    job: JobThatExists, front: str, option: tuple[str, Any]
) -> None:
    assert job.join(front, workers=1) is None
    why = job.join(front, **dict([option]))
    name = option[0] if front == "loader" else option[0].replace("_", "-")
    assert why is not None and name in why and "write both" in why, why


@pytest.mark.parametrize("front", ["fetcher", "loader"])
@pytest.mark.parametrize(("given", "words"), [({"tail": "uneven"}, "tail uneven"), ({"epochs": 1}, "1 epochs")])
def test_readers_of_a_run_agree_on_tail_and_epochs(
    job: JobThatExists, front: str, given: dict[str, Any], words: str
) -> None:
    ranks = {"service": job.service, "job": job.name, "world_size": 2, "run": "r"}
    with gm.numpy.Loader(job.pipeline, rank=0, tail="drop", epochs=2, **ranks) as loader:
        assert loader.job == job.name
        run = job.status()["run"]
        assert (run["ranks"], run["tail"], run["epochs"]) == (2, "drop", 2)
        given = {"tail": "drop", **given}
        match front:
            case "fetcher":
                why = job.join("fetcher", ranks=1, of=2, run="r", **given)
            case _:
                with pytest.raises(gm.Error) as refused:
                    gm.numpy.Loader(job.pipeline, rank=1, **ranks, **given).job  # noqa: B018
                why = str(refused.value)
        assert why is not None and words in why and "start all its readers alike" in why, why
        loader.close(abandon=True)


def test_a_job_that_failed_goes_on_when_somebody_joins_it(tmp_path: Path, service: gm.Service) -> None:
    lines = [json.dumps({"x": i}) for i in range(64)]
    lines[40] = '{"x": "no number"}'
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    pipeline = gm.jsonl(tmp_path / "data.jsonl", x=gm.i64("x")).batch(size=8)
    name = f"job-{uuid.uuid4().hex[:8]}"
    seen: list[int] = []

    def read(**given: Any) -> None:
        with gm.numpy.Loader(pipeline, service=service, job=name, **given) as loader:
            for batch in loader:
                seen.extend(batch["x"].tolist())

    for given in [{"epochs": 1}, {}]:
        with pytest.raises(gm.Error, match="holds a string"):
            read(**given)
    read(on_error="skip")
    # A batch that was handed over last may come again: its loader failed before the next one was asked for.
    assert set(seen) == set(range(64)) - {40} and len(seen) - len(set(seen)) <= 16
