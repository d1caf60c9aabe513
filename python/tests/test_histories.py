"""Random histories of one job name: runs that are killed, interrupted, replaced and given other options.

Together they deliver what one run delivers.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import gristmill as gm
from gristmill.__main__ import launcher

#: More of them: GRISTMILL_RANDOM_JOBS=50 pytest tests/test_histories.py
HISTORIES = int(os.environ.get("GRISTMILL_RANDOM_JOBS", "3"))
EPOCHS = 3
BATCHES = 125


class History:
    """Runs of one job, each with a sink of its own."""

    def __init__(self, directory: Path, pipeline: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.pipeline = pipeline
        self.sinks: list[Path] = []

    def options(self) -> list[str]:
        """Options that a run of a job that exists may change."""
        drawn = self.random
        choices = [
            [],
            ["--epochs", str(drawn.randint(1, EPOCHS))],
            ["--workers", str(drawn.randint(1, 3))],
            ["--workers", "auto", "--max-workers", "2"],
            ["--local-workers", "1"],
            ["--compress", drawn.choice(["none", "zstd"])],
            ["--on-error", "skip"],
            ["--prefetch-mib", "1"],
        ]
        return drawn.choice(choices)

    def start(self, *options: str, step: str = "4ms") -> subprocess.Popen[str]:
        sink = self.directory / f"sink-{len(self.sinks)}"
        self.sinks.append(sink)
        command = [*launcher(), "run", str(self.pipeline), "--job", "history", "--sink", str(sink)]
        command += ["--state-dir", str(self.directory / "state"), "--step-time", step, *options]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def live(self) -> None:
        """One run, or two at a time, and how it ends."""
        run = self.start(*self.options())
        time.sleep(self.random.uniform(0.05, 1.5))
        end = self.random.choice(["finish", "kill", "kill", "interrupt", "terminate", "second"])
        if end == "second":
            second = self.start(*self.options())
            said = [process.communicate(timeout=90)[1] for process in (run, second)]
            codes = [run.returncode, second.returncode]
            assert 0 in codes, said
            # One that is late may find that the other has delivered all.
            replaced = [text for code, text in zip(codes, said, strict=True) if code != 0]
            assert all("another trainer" in text for text in replaced), said
            return
        if end == "kill":
            os.killpg(run.pid, signal.SIGKILL)
        elif end != "finish":
            run.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGTERM)
        said = run.communicate(timeout=90)[1]
        expected = {"finish": [0], "kill": [0, -9], "interrupt": [0, 130], "terminate": [0, 143]}[end]
        assert run.returncode in expected, (end, run.returncode, said)

    def delivered(self) -> dict[str, bytes]:
        """All batches, which are equal where they were delivered twice."""
        batches: dict[str, bytes] = {}
        for sink in self.sinks:
            for path in sorted(sink.glob("*.safetensors")):
                content = path.read_bytes()
                # A killed run leaves its last file in part.
                before = batches.get(path.name, b"")
                short, long = sorted([before, content], key=len)
                assert long.startswith(short), path
                batches[path.name] = long
        return batches


@pytest.fixture(scope="module")
def pipeline(numbers_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).shuffle().batch(size=8)
    path = tmp_path_factory.mktemp("history") / "pipeline.yaml"
    path.write_text(numbers.to_yaml())
    return path


@pytest.fixture(scope="module")
def whole(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run that nobody disturbs delivers."""
    history = History(tmp_path_factory.mktemp("whole"), pipeline, 0)
    run = history.start("--epochs", str(EPOCHS), step="0ms")
    said = run.communicate(timeout=90)[1]
    assert run.returncode == 0, said
    delivered = history.delivered()
    assert len(delivered) == EPOCHS * BATCHES
    return delivered


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_history_delivers_what_one_run_does(
    tmp_path: Path, pipeline: Path, whole: dict[str, bytes], seed: int
) -> None:
    history = History(tmp_path, pipeline, seed)
    for _ in range(history.random.randint(2, 5)):
        history.live()
    last = history.start("--epochs", str(EPOCHS), step="0ms")
    said = last.communicate(timeout=90)[1]
    assert last.returncode == 0, said
    assert history.delivered() == whole
