"""`examples/python/train_resnet.py`: its figures, and that a killed run goes on with equal losses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gristmill as gm

pytest.importorskip("torch")
pytest.importorskip("torchvision")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "python"
STEPS = 20  # two epochs of ten
SMALL = [
    "--images", "320", "--batch-size", "32", "--epochs", "2", "--checkpoint-every", "4", "--ideal-steps", "1",
    "--device", "cpu", "--threads", "1", "--json",
]  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def start(cache: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(gm.__file__).parents[1])}
    command = [sys.executable, str(EXAMPLE / "train_resnet.py"), *SMALL, "--cache", str(cache), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def losses(folder: Path) -> list[dict]:
    """Whole lines of the log."""
    path = folder / "losses.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def kill_after(process: subprocess.Popen[str], folder: Path, steps: int) -> int:
    """Kills the run once it has logged so many steps; the number that it logged."""
    deadline = time.monotonic() + 90
    while len(losses(folder)) < steps:
        if process.poll() is not None:
            pytest.fail(f"it ended too early: {process.communicate()[1]}")
        assert time.monotonic() < deadline, f"no {steps} steps in 90 s"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return len(losses(folder))


def processes_of(folder: Path) -> list[str]:
    """Commands of processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_a_killed_run_goes_on_with_equal_losses(cache: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    figures = finish(start(cache, "--checkpoint", str(whole)))
    assert figures["steps"] == STEPS and figures["images"] == STEPS * 32
    assert [line["step"] for line in losses(whole)] == list(range(1, STEPS + 1))

    # In the middle of the second epoch, after the checkpoint at 12 steps.
    trained = kill_after(start(cache, "--checkpoint", str(broken)), broken, 13)
    assert 13 <= trained < STEPS
    figures = finish(start(cache, "--checkpoint", str(broken)))
    assert figures["steps"] == STEPS and 0 < figures["images"] <= (STEPS - 12) * 32
    assert losses(broken) == losses(whole)

    assert processes_of(tmp_path) == [], "services end with their trainers"

    # Nothing is left to do.
    figures = finish(start(cache, "--checkpoint", str(broken)))
    assert figures["steps"] == STEPS and figures["images"] == 0 and figures["images_per_s"] is None
    assert losses(broken) == losses(whole)


def test_torch_trains_on_the_same_images(cache: Path, tmp_path: Path) -> None:
    figures = finish(start(cache, "--loader", "torch", "--checkpoint", str(tmp_path)))
    assert figures["loader"] == "torch" and figures["steps"] == STEPS and figures["images"] == STEPS * 32
    assert 0 <= figures["stall_share"] < 1 and figures["gpu_utilisation_percent"] is None
    assert figures["loading_cpu_s_per_1000_images"] > 0 and 0 <= figures["accuracy"] <= 1
    assert len(losses(tmp_path)) == STEPS
    assert len(list(cache.glob("shapes-*/train/*/*.jpg"))) == 320, "one set of images serves both loaders"


def test_too_few_images_are_refused(cache: Path) -> None:
    process = start(cache, "--images", "16")
    assert "--images 16 is less than one batch of 32" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_cpu_time_of_other_processes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import meters

    loading = meters.LoadingMeter(meters.threads())
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    alive = loading.cpu_s()
    assert alive >= 0.38, "a process that runs"
    process.communicate(b"\n")
    assert loading.cpu_s() >= alive, "and one that has ended"
    ignoring = meters.LoadingMeter(meters.threads(), [process.pid])
    assert ignoring.cpu_s() < 0.3
