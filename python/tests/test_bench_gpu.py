"""`scripts/bench-gpu`: what it prints and how it ends, on a host without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench-gpu"
HAS_TORCH = importlib.util.find_spec("torch") is not None
STEPS = ["data", "rates", "hang", "device", "equal", "losses"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(gm.__file__).parents[1])}
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=400)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, on a host that has all."""
    loader = SourceFileLoader("bench_gpu", str(SCRIPT))
    spec = importlib.util.spec_from_loader("bench_gpu", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "missing", lambda args: {})
    return module


def test_all_steps_on_a_host_without_a_gpu() -> None:
    ran = run("--no-gpu", "--json")
    result = json.loads(ran.stdout)
    assert result["failed"] == {}, ran.stderr
    left_out = [] if HAS_TORCH else ["device", "losses"]
    assert sorted(result["skipped"]) == left_out and ran.returncode == (3 if left_out else 0)
    rows = {step: [row for row in result["rows"] if row["step"] == step] for step in STEPS}
    assert [step for step in STEPS if not rows[step]] == left_out
    assert {row["what"] for row in rows["rates"]} >= {"local_workers=1", "workers=1"}
    assert all(row["value"] > 0 for row in rows["rates"])
    assert [row["holds"] for row in rows["hang"]] == [True]
    assert rows["equal"][0]["value"] == 20
    if HAS_TORCH:
        assert {row["holds"] for row in rows["losses"]} == {True} and rows["losses"][-1]["value"] == 40


def test_a_missing_dependency_is_named_in_one_line() -> None:
    if HAS_TORCH:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    ran = run("--only", "hang,losses")
    assert ran.returncode == 3
    skipped = [line for line in ran.stdout.splitlines() if line.startswith("skipped ")]
    assert len(skipped) == 2 and all("torch" in line for line in skipped)
    assert run("--only", "bogus").returncode == 2


@pytest.mark.parametrize(("holds", "code", "said"), [(False, 1, "FAILED equal: not so: torch"), (True, 0, "good")])
def test_a_check_that_fails(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    holds: bool,
    code: int,
    said: str,
) -> None:
    step = tmp_path / "step.py"
    made = {"what": "torch", "value": 1234.5, "unit": "batches", "holds": holds, "note": "as said"}
    step.write_text(f"print({json.dumps(made)!r})")
    monkeypatch.setattr(script, "STEP_FILE", step)
    monkeypatch.setattr(sys, "argv", ["bench-gpu", "--no-gpu", "--only", "equal"])
    assert script.main() == code
    out = capsys.readouterr().out
    assert said in out and "1,234.50 batches" in out and "as said" in out


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("import time; time.sleep(1000)", "FAILED data: not done after 2 s"),
        ("import sys; sys.exit('it is broken')", "FAILED data: it ended with 1: it is broken"),
    ],
)
def test_a_step_that_does_not_end_well(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    body: str,
    why: str,
) -> None:
    step = tmp_path / "step.py"
    made = {"what": "before that", "value": None, "unit": "", "holds": True, "note": ""}
    step.write_text(f"print({json.dumps(made)!r}, flush=True)\n{body}")
    monkeypatch.setattr(script, "STEP_FILE", step)
    monkeypatch.setitem(script.LIMITS_S, "data", 2)
    monkeypatch.setattr(sys, "argv", ["bench-gpu", "--only", "data"])
    assert script.main() == 1
    out = capsys.readouterr().out
    assert why in out and "before that" in out, "what was found until then is shown"


def test_it_takes_at_most_six_minutes(script: Any) -> None:
    assert sum(script.LIMITS_S.values()) <= 360 and list(script.LIMITS_S) == STEPS
