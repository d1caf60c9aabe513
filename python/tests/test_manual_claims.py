"""Sentences of the manual with a definite number, message or effect, which each test names."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from manual import ROOT, Place, says, until

import gristmill as gm

JOBS, TRAINING, PYTHON = "docs/jobs.md", "docs/training.md", "docs/python.md"

QUICK = "gristmill run numbers.yaml --step-time 0ms"


def report(place: Place, more: str) -> dict[str, Any]:
    """The report of a run with `--json`."""
    found: dict[str, Any] = json.loads(place.run(f"{QUICK} --json {more}").out)
    return found


# README.md and docs/quickstart.md


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    says("README.md", "tf.data and DALI take 2.6 times the CPU time")
    text = (ROOT / "docs/benchmarks.md").read_text()
    ratios = re.findall(r"\| `p1` \| tf.data \| ([\d.]+) .*\n\| \| DALI \| ([\d.]+) ", text)
    assert [{f"{float(ratio):.1f}" for ratio in of} for of in ratios] == [{"2.6"}]


def test_the_modules_that_the_readme_names_are_there() -> None:
    says(
        "README.md",
        "loaders for PyTorch, JAX, TensorFlow and numpy,",
        "adapters for Lightning, Accelerate, Transformers, Keras and Grain",
    )
    modules = {path.stem for path in Path(gm.__file__).parent.glob("*.py")}
    assert modules >= {"torch", "jax", "tf", "numpy", "lightning", "transformers", "keras", "grain"}
    assert "from_dataloader" in Path(gm.__file__).read_text()


def test_a_shared_service_ends_after_the_last_that_uses_it(place: Place) -> None:
    says(
        "docs/quickstart.md",
        "It starts with the first of them, keeps named jobs below `~/.cache/gristmill`, and ends 5 s after the last",
    )
    place.environment["XDG_CACHE_HOME"] = str(place.folder / "own")
    place.numbers(40)
    place.run(f"{QUICK} --job first --epochs 1")
    services = place.run("gristmill ps").out
    assert str(place.folder / "own/gristmill") in services
    until(lambda: str(place.folder / "own/gristmill") not in place.run("gristmill ps").out)
    assert report(place, "--job first --epochs 2")["elements_delivered"] == 40, "the job goes on"


# docs/jobs.md


def test_auto_starts_with_two_workers(place: Place) -> None:
    says(JOBS, "`--workers auto` starts with two", "(`--json`: `scaling`)")
    place.numbers(200)
    scaling = report(place, "--workers auto")["scaling"]
    assert scaling[0]["workers"] == 2 and all(change["reason"] for change in scaling)


def test_a_policy_that_is_not_the_default_is_named(place: Place) -> None:
    says(JOBS, "`gristmill run --help` lists them", "`gristmill status` names a policy that is not the default.")
    place.numbers(40)
    place.start("gristmill up --state-dir state", "is ready at unix:")
    listed = re.findall(r"(?m)^ +- (\w+): ", place.run("gristmill run --help").out.partition("--policy")[2])
    assert {"coverage", "cachew"} <= set(listed)
    for policy in ("coverage", "cachew"):
        place.run(f"{QUICK} --state-dir state --job {policy} --workers auto --policy {policy}")
        status = place.run(f"gristmill status {policy} --state-dir state").out
        assert bool(re.search(rf"(?m)^policy +{policy}$", status)) == (policy != "coverage")


def test_local_workers_store_no_objects(place: Place) -> None:
    says(JOBS, "with `--workers 0` there is one by default", "their batches are not stored as objects")
    place.numbers(160)
    place.start("gristmill up --state-dir state", "is ready at unix:")
    seen = []
    for workers in (0, 1):
        more = f"--state-dir state --job w{workers} --epochs 2 --workers {workers}"
        place.start(f"gristmill run numbers.yaml --step-time 20ms {more}", "")
        process, kept = place.background[-1][1], False
        while process.poll() is None:
            kept |= any(".gmc" in path.name for path in place.stored())
            time.sleep(0.01)
        seen.append(kept)
        assert process.returncode == 0
    assert seen == [False, True]


def test_a_scenario_is_compared_with_its_optimum(place: Place) -> None:
    says(JOBS, "`gristmill simulate --all` compares the scaling policy in modelled environments with the optimum")
    assert "--all" in place.run("gristmill simulate --help").out
    assert "chosen; the sweep says" in place.run("gristmill simulate cachew-fig11-job1 --sweep").out


def test_a_run_ends_with_its_causes_of_waiting(place: Place) -> None:
    says(JOBS, "by cause (queueing, reading, each operator, storing, fetching, decoding)")
    run = "gristmill run my.yaml --data shards --epochs 1 --step-time 0ms"
    said = place.run(run).said
    (causes,) = re.findall(r"epoch 0 waited .*\): (.*?); ", said)
    known = {"queue", "source read", "object put", "fetch", "decode", "other", "workers"}
    named = {re.sub(r" [\d.]+ \w+$", "", cause) for cause in causes.split(", ")}
    assert [name for name in named - known if not name.startswith("op ")] == []
    # The queue is no cause where workers are ahead of the trainer from the first batch on.
    assert named >= {"fetch", "op flip"}


def test_too_many_bad_records_fail_the_job_with_counts_that_agree(place: Place) -> None:
    says(JOBS, "fails the job with the most common reason and the first record")
    bad = [3, 77, 140, 141, 142]
    place.numbers(200, bad)
    place.start("gristmill up --state-dir state", "is ready at unix:")
    error = place.run(f"{QUICK} --state-dir state --job j1 --epochs 1 --on-error skip", code=1).err
    found = re.search(
        r"(\d+) of (\d+) records of epoch 0 are skipped so far, and --max-skipped 1% allows (\d+); "
        r"most often \((\d+) of (?:the )?(\d+)( looked at)?\): source: (.*?); "
        r"the first: \S+numbers.jsonl line \d+, record (\d+) ",
        error,
    )
    assert found, error
    skipped, records, allowed, times, looked_at = map(int, found.groups()[:5])
    assert (records, allowed) == (200, 2) and allowed < skipped <= len(bad)
    assert times <= looked_at <= skipped and bool(found[6]) == (looked_at != skipped)
    assert int(found[8]) in bad and len(error.splitlines()) == 1
    listed = place.run("gristmill status j1 --skipped --state-dir state").said
    assert f"{found[7]} [epoch 0]" in listed and "records were reported as left out" in listed


def test_a_share_allows_at_least_one_bad_record(place: Place) -> None:
    says(JOBS, "(default `1%`; a number, or a share of its records that allows at least one)")
    place.numbers(50, [7])
    assert report(place, "--epochs 1 --on-error skip")["skipped"] == 1
    place.run(f"{QUICK} --epochs 1 --on-error skip --max-skipped 0", code=1)


@pytest.mark.parametrize(
    ("count", "ops", "why"),
    [
        (0, "", "the dataset has no records"),
        (20, "  - skip: { count: 20 }\n", "leaves none"),
        (20, "  - filter: { field: x, min: 99 }\n", "dropped all 20 records"),
        (3, "remainder", "fewer than a batch"),
    ],
    ids=["no record", "skip", "filter", "remainder"],
)
def test_a_run_without_batches_says_why(count: int, ops: str, why: str, place: Place) -> None:
    says(JOBS, "exits with 0 and gives the reason on standard error and as `empty` in `--json`")
    place.numbers(count, ops=ops.replace("remainder", ""))
    path = place.folder / "numbers.yaml"
    if ops == "remainder":
        path.write_text(path.read_text().replace("size: 8", "size: 8, drop_remainder: true"))
    ran = place.run(f"{QUICK} --epochs 1 --json")
    assert why in json.loads(ran.out)["empty"] and why in ran.err


@pytest.mark.parametrize(
    ("tail", "left_out", "repeats", "steps"),
    [("drop", 1, 0, [1, 1]), ("repeat", 0, 1, [2, 2]), ("uneven", 0, 0, [2, 1])],
)
def test_the_last_batches_of_an_epoch(tail: str, left_out: int, repeats: int, steps: list[int], place: Place) -> None:
    says(JOBS, "`--tail drop` leaves them out and counts them as `left_out_batches`")
    says(JOBS, "`uneven` gives the last ranks one step less", "`tail_repeats` the batches that `repeat` gave again")
    place.numbers(20)  # three batches
    found = report(place, f"--epochs 1 --ranks 2 --tail {tail}")
    assert (found["left_out_batches"], found["tail_repeats"], found["steps"]) == (left_out, repeats, steps)
    assert found["batches_blake3"] == report(place, "--epochs 1")["batches_blake3"], "of those left out too"


def test_status_shows_the_workers_that_a_job_is_given(place: Place) -> None:
    place.numbers(40)
    place.start("gristmill up --state-dir state", "is ready at unix:")
    for workers in (2, 3):
        place.run(f"{QUICK} --state-dir state --job j1 --workers {workers}")
        status = json.loads(place.run("gristmill status j1 --state-dir state --json").out)
        assert (status["workers"]["desired"], status["options"]["workers"]) == (workers, str(workers))
    assert ", 3 desired" in place.run("gristmill status j1 --state-dir state").out
    place.run(f"{QUICK} --state-dir state --job j2 --workers auto --max-workers 9")
    status = json.loads(place.run("gristmill status j2 --state-dir state --json").out)
    decided = status["scaling"][-1]["workers"] if status["scaling"] else 0
    assert status["workers"]["desired"] == decided, "the number that the scaler decided"


def test_a_named_job_goes_on_with_more_epochs_until_it_is_stopped(place: Place) -> None:
    says(JOBS, "has read its last epoch, and `gristmill stop` ends it", "Jobs without a name end with their run.")
    place.numbers(40)
    place.start("gristmill up --state-dir state", "is ready at unix:")
    assert [report(place, f"--state-dir state --job j1 --epochs {n}")["elements_delivered"] for n in (1, 3)] == [40, 80]
    unnamed = report(place, "--state-dir state --epochs 1")["job"]
    assert re.match(r"job +\S+: (done|stopped)", place.run(f"gristmill status {unnamed} --state-dir state").out)


def test_stop_keeps_objects_for_a_while_and_forget_deletes_them(place: Place) -> None:
    says("docs/commands.md", "Stop a job: its workers leave; its objects stay for an hour, or until `gristmill forget`")
    says("docs/commands.md", "The job's chunks, its reports of skipped records and its quarantined records are deleted")
    says("docs/commands.md", "A running job is refused: stop it first.")
    place.numbers(400, [3])
    place.start("gristmill up --state-dir state", "is ready at unix:")

    def objects() -> set[str]:
        found = [path for path in place.stored() if "/j1+/" in str(path)]
        return {"chunk" if ".gmc" in path.name else path.name.partition(".")[2] or "record" for path in found}

    place.start("gristmill run numbers.yaml --state-dir state --job j1 --step-time 20ms --on-error quarantine", "")
    until(lambda: objects() == {"chunk", "skipped.json=", "record"}, lambda: str(objects()))
    assert "stop it first" in place.run("gristmill forget j1 --state-dir state", code=1).err
    place.background[-1][1].send_signal(signal.SIGKILL)
    place.run("gristmill stop j1 --state-dir state")
    assert objects() == {"chunk", "skipped.json=", "record"}
    place.run("gristmill forget j1 --state-dir state")
    assert objects() == set()


# docs/training.md


def test_a_report_has_the_documented_fields(place: Place) -> None:
    says(
        TRAINING,
        "scaling decisions, skipped records, and a hash over all batches. The page also has the cost of the run",
    )
    place.numbers(400)
    found = json.loads(
        place.run("gristmill run numbers.yaml --epochs 2 --step-time 20ms --json --report page.html").out
    )
    assert {"epochs", "scaling", "skipped_records", "batches_blake3", "repeated_batches"} <= found.keys()
    assert all("parts" in epoch["stalls"] and "workers_max" in epoch for epoch in found["epochs"])
    assert "Cost so far" in (place.folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("sentence", "flags"),
    [
        ("Several ranks need `--visitation exactly-once`.", "--ranks 2 --visitation at-most-once"),
        ("(`auto` is refused)", "--sharding off --workers auto"),
    ],
)
def test_documented_refusals(sentence: str, flags: str, place: Place) -> None:
    says(TRAINING, sentence)
    place.numbers(20)
    assert len(place.run(f"{QUICK} {flags}", code=2).err.splitlines()) == 1


# docs/python.md


def test_a_ragged_field_is_two_arrays(service: gm.Service, tmp_path: Path) -> None:
    says(PYTHON, "are two arrays: `name` with all values, and `name.offsets` with where each row begins")
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(f'{{"text": "{"a" * n}"}}\n' for n in range(1, 5)))
    with gm.numpy.Loader(gm.jsonl(path, text=gm.bytes()).batch(4, ragged=True), service=service, epochs=1) as loader:
        (batch,) = list(loader)
        assert "text" in loader.schema()["fields"]
    assert batch["text"].tobytes() == b"a" * 10 and batch["text.offsets"].tolist()[:4] == [0, 1, 3, 6]


def test_an_underscore_follows_a_keyword() -> None:
    says(PYTHON, "A parameter called as a keyword of Python takes an underscore: `in_`.")
    lines = gm.jsonl("x.jsonl", label=gm.i64()).filter(field="label", in_=[1]).to_yaml()
    assert re.search(r"filter: \{ field: label, in: \[1\] \}", lines)


def test_a_loader_without_a_service_uses_the_one_of_this_machine(numbers: gm.Pipeline, place: Place) -> None:
    says(PYTHON, "A loader without `service` uses the one of `gm.local()`, from when it first needs it.")
    with gm.numpy.Loader(numbers, epochs=1) as loader:
        next(iter(loader))
        assert "running" in place.run(f"gristmill status {loader.job}").out


def test_stats_has_the_documented_fields(service: gm.Service, numbers: gm.Pipeline) -> None:
    says(PYTHON, "`loader.stats()` has waiting time, batches, workers and memory")
    with gm.numpy.Loader(numbers, service=service, epochs=1) as loader:
        next(iter(loader))
        assert {"batches", "waited_s", "workers", "prefetch_bytes", "local_bytes"} <= loader.stats().keys()
