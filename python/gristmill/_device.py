"""Batches on their way to a device: one thread copies them through three buffers, ahead of the caller."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from .errors import Error

DEPTH = 3  # batches between the fetcher and the caller: one filled, one copied, one ready
_ALIGNMENT = 64  # bytes; that of torch's own allocations

Tensors = dict[str, torch.Tensor]


class Batches(Protocol):
    """Pairs of tensors on the host and a mark. `close` ends a `next` that waits in another thread."""

    def __next__(self) -> tuple[Tensors, Any]: ...

    def close(self) -> None: ...


class Device:
    """Copies the tensors of a batch to `device`, through buffers that are used in turn.

    For CUDA the buffers are pinned and the copies run on a stream of their own, so that they overlap with the
    trainer's work. Other devices get the same copies, from ordinary memory, before the batch is ready.
    Fields whose names begin with `__` stay on the host.
    """

    def __init__(self, device: torch.device, finish: Callable[[Tensors], Tensors]) -> None:
        self.is_cuda = device.type == "cuda"
        if self.is_cuda and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self._finish = finish
        self._stream = torch.cuda.Stream(device) if self.is_cuda else None
        self._slots = [_Slot(self.is_cuda) for _ in range(DEPTH)]
        self._next = 0

    def send(self, tensors: Tensors) -> tuple[Tensors, Any]:
        """The tensors on the device, and the event after which they are complete (None: now)."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % DEPTH
        staged = slot.fill({name: t for name, t in tensors.items() if not name.startswith("__")})
        if self._stream is None:
            moved = {name: self._copy(tensor) for name, tensor in staged.items()}
            return self._finish({**tensors, **moved}), None
        with torch.cuda.stream(self._stream):
            moved = {name: self._copy(tensor) for name, tensor in staged.items()}
            slot.copied = torch.cuda.Event()
            slot.copied.record(self._stream)
            finished = self._finish({**tensors, **moved})
            done = torch.cuda.Event()
            done.record(self._stream)
        return finished, done

    def receive(self, tensors: Tensors, done: Any) -> Tensors:
        """Makes the caller's stream wait for the copies."""
        if done is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(done)
            for tensor in tensors.values():
                if tensor.is_cuda:
                    # Else the memory could be given to the next copy while the trainer still reads it.
                    tensor.record_stream(current)
        return tensors

    def enter(self) -> None:
        """Makes it the device of this thread."""
        # Else pinned memory would be made by device 0, and hold memory there for a rank that uses another.
        if self.is_cuda:
            torch.cuda.set_device(self.device)

    def _copy(self, staged: torch.Tensor) -> torch.Tensor:
        there = torch.empty_like(staged, device=self.device)
        return there.copy_(staged, non_blocking=self.is_cuda)


class _Slot:
    """One buffer on the host; it grows to the largest batch."""

    def __init__(self, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self.copied: Any = None  # the event after which the buffer may be overwritten

    def fill(self, tensors: Tensors) -> Tensors:
        if self.copied is not None:
            self.copied.synchronize()
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors.values()]
        if sum(sizes) > self._buffer.numel():
            self._buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=self._is_pinned)
        staged, start = {}, 0
        for (name, tensor), size in zip(tensors.items(), sizes, strict=True):
            place = self._buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            staged[name] = place.copy_(tensor)
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
    try:
        device.enter()
        while True:
            line.permits.get()
            if line.is_over:
                return
            try:
                tensors, mark = next(batches)
            except StopIteration:
                line.ready.put(None)
                return
            line.ready.put((*device.send(tensors), mark))
            del tensors  # not held while it waits
    except BaseException as error:  # the caller raises it
        line.ready.put(error)


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
