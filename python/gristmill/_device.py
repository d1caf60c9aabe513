"""Batches on their way to a device: one thread copies them, ahead of the caller."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from ._arrays import SHAPES, flat_fields
from ._cuda import CopyEvent, DeviceCalls, calls_of
from ._pinned import PinnedBuffers
from .errors import Error

DEPTH = 3  # batches between the fetcher and the caller: one arriving, one copied, one ready
_ALIGNMENT = 64  # bytes; that of torch's own allocations

Tensors = dict[str, torch.Tensor]


class Batches(Protocol):
    """Pairs of tensors on the host and a mark. `close` ends a `next` that waits in another thread."""

    def __next__(self) -> tuple[Tensors, Any]: ...

    def close(self) -> None: ...


class Device:
    """Copies the tensors of a batch to `device`, on a stream of its own: copies overlap with the work of the trainer.

    CUDA reads the fetcher's buffers itself, once they are registered: a batch is held until its copy is done. What
    lies elsewhere, or cannot be registered, goes through pinned buffers that are used in turn. Copies to other devices
    are done before the batch is ready. Fields whose names begin with `__` stay on the host.
    """

    def __init__(
        self, device: torch.device, finish: Callable[[Tensors], Tensors], calls: DeviceCalls | None = None
    ) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        #: Bytes that went through the pinned buffers.
        self.staged_bytes = 0
        self._finish = finish
        self._calls = calls_of(device) if calls is None else calls
        self._slots = [_Slot() for _ in range(DEPTH)]
        self._next = 0
        # Batches that are copied, each with the event after which its memory is the fetcher's again.
        self._copying: deque[tuple[CopyEvent, Tensors]] = deque()
        self._end: Callable[[], object] = lambda: None
        if self._calls is not None:
            self._calls.buffers.join()
            end = self._end = weakref.finalize(self, self._calls.buffers.leave)
            # The process takes its registrations along.
            end.atexit = False

    @property
    def buffers(self) -> PinnedBuffers | None:
        """The fetcher's buffers that are registered. None if the device is no GPU of CUDA."""
        return None if self._calls is None else self._calls.buffers

    def send(self, tensors: Tensors) -> tuple[Tensors, CopyEvent | None]:
        """The tensors on the device, and the event after which they are complete (None: now)."""
        # Shapes are read on the host.
        staying = {name + SHAPES for name in flat_fields(tensors)}
        moving = {name: t for name, t in tensors.items() if not name.startswith("__") and name not in staying}
        if self._calls is None:
            moved = {name: torch.empty_like(t, device=self.device).copy_(t) for name, t in moving.items()}
            return self._finish({**tensors, **moved}), None
        self._give_back(DEPTH - 1)
        slot = self._slots[self._next]
        self._next = (self._next + 1) % DEPTH
        elsewhere = {name: t for name, t in moving.items() if not self._calls.buffers.cover(t)}
        sources = {**moving, **slot.fill(elsewhere, self._calls)}
        self.staged_bytes += sum(tensor.nbytes for tensor in elsewhere.values())
        with self._calls.on_stream():
            try:
                moved = {name: self._copy(source, self._calls) for name, source in sources.items()}
                slot.copied = copied = self._calls.event()
            except BaseException:
                self._calls.settle()  # the batch is given back
                raise
            self._copying.append((copied, tensors))
            finished = self._finish({**tensors, **moved})
            done = self._calls.event()
        return finished, done

    def receive(self, tensors: Tensors, done: CopyEvent | None) -> Tensors:
        """Makes the caller's stream wait for the copies."""
        if done is not None and self._calls is not None:
            found = (tensor if isinstance(tensor, list) else [tensor] for tensor in tensors.values())
            self._calls.hand_over(chain.from_iterable(found), done)
        return tensors

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes it the device of this thread. At the end, no batch is being copied."""
        if self._calls is None:
            yield
            return
        self._calls.buffers.join()
        try:
            self._calls.enter()
            yield
        finally:
            try:
                self._give_back(0)
            finally:
                self._copying.clear()
                self._calls.buffers.leave()

    def close(self) -> None:
        """Unregisters the fetcher's buffers, unless another loader uses them or a thread still copies."""
        self._end()

    def _give_back(self, most: int) -> None:
        """Drops the batches that are copied, and waits until at most that many are not."""
        while self._copying and (len(self._copying) > most or self._copying[0][0].query()):
            self._copying[0][0].synchronize()
            self._copying.popleft()

    def _copy(self, source: torch.Tensor, calls: DeviceCalls) -> torch.Tensor:
        there = torch.empty_like(source, device=self.device)
        calls.copy(there, source)
        return there


class _Slot:
    """One pinned buffer on the host; it grows to the largest batch."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self.copied: CopyEvent | None = None  # the event after which the buffer may be overwritten

    def fill(self, tensors: Tensors, calls: DeviceCalls) -> Tensors:
        if not tensors:
            return {}
        if self.copied is not None:
            self.copied.synchronize()
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors.values()]
        if sum(sizes) > self._buffer.numel():
            self._buffer = calls.staging(sum(sizes))
        staged, start = {}, 0
        for (name, tensor), size in zip(tensors.items(), sizes, strict=True):
            place = self._buffer[start : start + tensor.nbytes]
            # By this thread alone: torch would copy with one for each core, which then spin for a while.
            np.copyto(place.numpy(), tensor.contiguous().view(-1).view(torch.uint8).numpy())
            staged[name] = place.view(tensor.dtype).view(tensor.shape)
            start += size
        return staged


class Prefetch:
    """Iterates `batches`, pairs of tensors on the host and a mark, with the tensors on the device instead.

    Its thread takes at most `DEPTH` batches that the caller has not got. An error of the thread is raised to
    the caller, in its place among the batches.
    """

    def __init__(self, batches: Batches, device: Device) -> None:
        self._device = device
        self._pid = os.getpid()
        self._line = _Line()
        thread = threading.Thread(target=_run, args=(self._line, batches, device), daemon=True)
        thread.name = "gristmill-device"
        # Also runs at interpreter exit: a thread that still waits in native code then would abort the
        # process.
        self._end = weakref.finalize(self, _end, self._line, thread, self._pid, batches.close)
        thread.start()

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> tuple[Tensors, Any]:
        if os.getpid() != self._pid:
            raise Error("the process was forked: make a loader in the process that uses it")
        if not self._end.alive:
            raise StopIteration
        item = self._line.ready.get()
        self._line.permits.put(None)
        if item is None:
            self.close()
            raise StopIteration
        if isinstance(item, BaseException):
            self.close()
            raise item
        tensors, done, mark = item
        return self._device.receive(tensors, done), mark

    def close(self) -> None:
        """Ends the thread and drops what it holds."""
        self._end()


class _Line:
    """What the thread and the caller share."""

    def __init__(self) -> None:
        # Unlike other queues and semaphores, these may be used in a signal handler.
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(DEPTH):
            self.permits.put(None)
        self.is_over = False


def _run(line: _Line, batches: Batches, device: Device) -> None:
    last: BaseException | None = None
    try:
        with device.entered():
            _send_all(line, batches, device)
    except BaseException as error:  # the caller raises it
        last = error
    line.ready.put(last)
    # The error's traceback has this frame, and with it the device.
    last = None


def _send_all(line: _Line, batches: Batches, device: Device) -> None:
    while True:
        line.permits.get()
        if line.is_over:
            return
        try:
            tensors, mark = next(batches)
        except StopIteration:
            return
        line.ready.put((*device.send(tensors), mark))
        del tensors  # not held while it waits


def _end(line: _Line, thread: threading.Thread, pid: int, interrupt: Callable[[], None]) -> None:
    if os.getpid() != pid:
        return
    line.is_over = True
    if thread.is_alive():
        interrupt()
    line.permits.put(None)
    if thread is not threading.current_thread():
        thread.join()
    with suppress(queue.Empty):
        while True:
            line.ready.get_nowait()
    # The program may wait for a batch, in another thread or below this signal handler.
    line.ready.put(None)
