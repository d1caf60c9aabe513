"""What it costs a trainer to take batches: in this process, through a socket, and in the program."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from .. import _native, _service
from .. import numpy as gm_numpy
from ..__main__ import launcher
from .._loader import Loader
from ..pipeline import Pipeline

BATCH = 64
PIXELS = 224 * 224 * 3
SMALL_RECORDS, SMALL_BATCH = 100_000, 32
# Least share of the program's and of the socket's rate; most microseconds for a small batch.
OF_PROGRAM, OF_SOCKET, SMALL_US = 0.95, 1.3, 30.0

# That of `gristmill bench ingest`, whose cached batches it then reads.
_PIXELS = """
source:
  tfrecord: .
  features:
    image: { key: image/encoded, dtype: bytes }
    label: { key: image/class/label, dtype: i64 }
ops:
  - take: { count: IMAGES }
  - decode
  - center_crop: { size: 224 }
  - batch: { size: 64 }
  - autocache
"""
_SMALL = f"""
source:
  tfrecord: .
  features:
    a: {{ key: value, dtype: i64 }}
    b: {{ key: value, dtype: i64 }}
    c: {{ key: value, dtype: i64 }}
    d: {{ key: value, dtype: i64 }}
ops:
  - batch: {{ size: {SMALL_BATCH} }}
"""


class Failed(Exception):
    """A process that is measured did not end well."""


def measure(images: int, epochs: int, rounds: int) -> dict[str, Any]:
    """Medians, ratios and every round's figure. Rates are bytes per second of CPU, the small batch's microseconds."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float, text: str) -> None:
        found.setdefault(name, []).append(value)
        print(f"round {len(found[name]) - 1}: {name}: {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as state, _service.local(state) as service:
        pixels = _Pixels(service, images, Path(state))
        pixels.in_process(1)
        for _ in range(rounds):
            for name in ("program", "in process", "socket"):
                if name == "program":
                    value = _program(images, epochs)
                else:
                    value = pixels.rate(epochs, pixels.socket if name == "socket" else pixels.in_process)
                note(name, value, f"{value / 1e9:.2f} GB/s of CPU")
            for name, loader in _small_loaders().items():
                value = _small(loader, service)
                note(name, value, f"{value:.1f} us of CPU a batch")
    return _results(found)


def _results(found: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: median(values) for name, values in found.items()}
    ratios = {
        "of program": medians["in process"] / medians["program"],
        "of socket": medians["in process"] / medians["socket"],
    }
    small = [value for name, value in medians.items() if name.startswith("small")]
    held = ratios["of program"] >= OF_PROGRAM and ratios["of socket"] >= OF_SOCKET and max(small) <= SMALL_US
    return {"medians": medians, "ratios": ratios, "rounds": found, "held": held}


def table(results: dict[str, Any]) -> str:
    """The results for people."""
    lines = []
    for name, value in results["medians"].items():
        if name.startswith("small"):
            lines.append(f"{name:<14}{value:8.1f} us     bar: at most {SMALL_US:g}: {_said(value <= SMALL_US)}")
        else:
            lines.append(f"{name:<14}{value / 1e9:8.2f} GB a second of CPU")
    for name, bar in (("of program", OF_PROGRAM), ("of socket", OF_SOCKET)):
        value = results["ratios"][name]
        lines.append(f"in process, {name:<12}{value:6.2f}   bar: at least {bar:g}: {_said(value >= bar)}")
    return "\n".join(lines)


def _said(is_held: bool) -> str:
    return "held" if is_held else "MISSED"


def _program(images: int, epochs: int) -> float:
    """Bytes per second of CPU of the fetcher in `gristmill bench ingest`."""
    command = [*launcher(), "bench", "ingest", f"--images={images}", f"--epochs={epochs}", "--rounds=1", "--json"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return float(_last_line(ran, "gristmill bench ingest")["bytes_per_cpu_second"])


def _last_line(ran: subprocess.CompletedProcess[str], what: str) -> dict[str, Any]:
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Failed(f"{what} ended with {ran.returncode}: {last}")
    line: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return line


class _Pixels:
    """Batches of pixels, stored in a service's cache by the first job."""

    def __init__(self, service: _service.Service, images: int, folder: Path) -> None:
        self.service = service
        self.text = _PIXELS.replace("IMAGES", str(images // BATCH * BATCH))
        self.data = _native.generate("images", images) / "train-*"
        self.epoch_bytes = images // BATCH * BATCH * PIXELS
        self.file = folder / "bench.yaml"
        self.file.write_text(self.text)
        self.jobs = 0

    def rate(self, epochs: int, run: Callable[[int], tuple[float, int]]) -> float:
        """Bytes per second of CPU, by the difference of `1 + epochs` and one. `run` gives seconds and bytes."""
        (short_s, short_bytes), (long_s, long_bytes) = run(1), run(1 + epochs)
        if long_bytes - short_bytes < epochs * self.epoch_bytes:
            raise Failed(f"{long_bytes - short_bytes} bytes came, not {epochs * self.epoch_bytes}")
        return (long_bytes - short_bytes) / max(long_s - short_s, 1e-3)

    def in_process(self, epochs: int) -> tuple[float, int]:
        """Reads a job here. The service and its workers are other processes."""
        total, began = 0, time.process_time()
        pipeline = Pipeline.from_yaml(self.text)
        with gm_numpy.Loader(pipeline, service=self.service, data=self.data, epochs=epochs) as loader:
            for _ in range(epochs):
                for batch in loader:
                    total += batch["image"].nbytes
        return time.process_time() - began, total

    def socket(self, epochs: int) -> tuple[float, int]:
        """Reads a job in a process of its own, from the socket of a fetcher."""
        self.jobs += 1
        endpoint = self.service.endpoint
        fetcher = [*launcher(), "fetcher", f"--endpoint={endpoint}", f"--job=bench-socket-{self.jobs}"]
        fetcher += [f"--pipeline={self.file}", f"--data={self.data}", f"--epochs={epochs}"]
        command = [sys.executable, "-P", "-m", "gristmill.bench.socket_reader", *fetcher]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        line = _last_line(ran, "the reader of the socket")
        return line["cpu_s"], line["bytes"]


def _small_loaders() -> dict[str, type[Loader[Any]]]:
    loaders: dict[str, type[Loader[Any]]] = {"small, numpy": gm_numpy.Loader}
    if importlib.util.find_spec("torch") is not None:
        from .. import torch as gm_torch

        loaders["small, torch"] = gm_torch.Loader
    return loaders


def _small(loader_type: type[Loader[Any]], service: _service.Service) -> float:
    """Microseconds of CPU of this thread for a batch of four tensors, in the second epoch of a job."""
    data = _native.generate("ints", SMALL_RECORDS) / "train-*"
    taken: list[float] = []
    with loader_type(Pipeline.from_yaml(_SMALL), service=service, data=data, epochs=2) as loader:
        for _ in range(2):
            count, began = 0, time.thread_time()
            for _ in loader:
                count += 1
            taken.append((time.thread_time() - began) / count * 1e6)
    return taken[1]
