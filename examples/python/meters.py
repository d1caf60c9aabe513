"""What training waited for and what loading cost: the figures of `train_resnet.py`."""

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

Batch = TypeVar("Batch")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def threads() -> set[int]:
    """The threads of this process."""
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def thread_cpu_s(thread: int) -> float:
    """Time that a thread of this process has computed."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def descendants_cpu_s(ignored: Iterable[int] = ()) -> float:
    """CPU time of all processes that this one has started, and of theirs, ended ones included."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold spaces.
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.name))
        # utime, stime, and those of children that have ended.
        spent[int(path.name)] = sum(map(int, fields[11:15]))
    ended = os.times()
    total = (ended.children_user + ended.children_system) * TICKS_PER_S
    rest = [child for child in parents.get(os.getpid(), []) if child not in set(ignored)]
    while rest:
        process = rest.pop()
        total += spent[process]
        rest += parents.get(process, [])
    return total / TICKS_PER_S


class LoadingMeter:
    """CPU time of loading: of other processes, of threads that do not train, and of `next()` in this one.

    `training` are the threads that train, and `ignored` processes that neither train nor load.
    """

    def __init__(self, training: set[int], ignored: Iterable[int] = ()) -> None:
        self.training = training
        self.ignored = list(ignored)
        self.in_next_s = 0.0
        self.waited_s = 0.0
        self.begun_s = self.total_s()

    def total_s(self) -> float:
        own = time.process_time() - sum(thread_cpu_s(thread) for thread in self.training & threads())
        return own + self.in_next_s + descendants_cpu_s(self.ignored)

    def cpu_s(self) -> float:
        """CPU seconds of loading since this meter was made."""
        return self.total_s() - self.begun_s

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches; how long each took to come is added up."""
        asked, computed = time.perf_counter(), time.thread_time()
        iterator = iter(batches)
        while True:
            batch = next(iterator, None)
            self.waited_s += time.perf_counter() - asked
            self.in_next_s += time.thread_time() - computed
            if batch is None:
                return
            yield batch
            asked, computed = time.perf_counter(), time.thread_time()


class StallMeter:
    """Time in which the device has nothing to do between two steps.

    A processor waits while it asks for a batch. A GPU has steps in its queue: it waits from the end of one
    to the beginning of the next, as its own clock says.
    """

    def __init__(self, device: torch.device, loading: LoadingMeter) -> None:
        self.is_cuda, self.loading = device.type == "cuda", loading
        self.epochs: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = []

    def begin(self) -> None:
        """An epoch begins: time since the last one is no stall."""
        if self.is_cuda:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
            self.epochs.append([(now, now)])

    def step(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Does one step, and remembers when it began and ended on the device."""
        if not self.is_cuda:
            return work()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = work()
        end.record()
        self.epochs[-1].append((begin, end))
        return result

    def seconds(self) -> float:
        if not self.is_cuda:
            return self.loading.waited_s
        torch.cuda.synchronize()
        pairs = itertools.chain.from_iterable(map(itertools.pairwise, self.epochs))
        return sum(before[1].elapsed_time(after[0]) for before, after in pairs) / 1000


class GpuMeter:
    """Samples of `nvidia-smi`, if it is there: the share of time in which a GPU computed."""

    def __init__(self, device: torch.device) -> None:
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = None
        if device.type == "cuda" and shutil.which("nvidia-smi"):
            query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
            index = device.index if device.index is not None else torch.cuda.current_device()
            self.process = subprocess.Popen(["nvidia-smi", *query, f"--id={index}"], stdout=self.output)

    def processes(self) -> list[int]:
        return [self.process.pid] if self.process else []

    def close(self) -> float | None:
        """Percent of time, or None."""
        with self.output:
            if self.process is None:
                return None
            self.process.terminate()
            self.process.wait()
            self.output.seek(0)
            samples = [float(line) for line in self.output if line.strip().isdigit()]
        return sum(samples) / len(samples) if samples else None
