"""Buffers of the fetcher that are registered with CUDA: a device copies from them at the full speed of its link."""

from __future__ import annotations

import bisect
import logging
import os
import threading
from typing import Protocol

import torch

from . import _native

_LOG = logging.getLogger("gristmill")
# Part of the machine's memory that is registered at most.
_SHARE = 4


class HostCalls(Protocol):
    """How memory is registered, so that a device reads it by itself. Each raises RuntimeError if it cannot."""

    def register(self, address: int, nbytes: int) -> None: ...

    def unregister(self, address: int) -> None: ...


class PinnedBuffers:
    """Registers each of the fetcher's buffers once, and knows which are.

    The fetcher uses its buffers again and again. One that it frees stays allocated until it is unregistered here: at
    the next registration, or when the last user leaves. All loaders of a process share the registrations.
    """

    def __init__(self, calls: HostCalls, limit: int | None = None) -> None:
        self._calls = calls
        #: Most bytes that are registered.
        self.limit = _default_limit() if limit is None else limit
        #: Bytes that are registered.
        self.nbytes = 0
        #: Why no more buffers are registered, after one could not be.
        self.refusal: str | None = None
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._users = 0
        # A signal handler may close a loader while its thread closes another one.
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def join(self) -> None:
        """Begins a use; `leave` ends it."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Ends a use. The last one unregisters everything: no copy may be under way."""
        if os.getpid() != self._pid:
            return  # the registrations, and perhaps the lock, belong to the parent
        with self._lock:
            self._users -= 1
            if self._users == 0:
                while self._starts:
                    self._drop(self._starts[-1])
                self.refusal = None

    def cover(self, tensor: torch.Tensor) -> bool:
        """Whether a device may copy from the memory of `tensor`: registers the buffer that it lies in."""
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        if start == end or not tensor.is_contiguous():
            return False
        with self._lock:
            return self._has(start, end) or (self.refusal is None and self._add(start, end))

    def _has(self, start: int, end: int) -> bool:
        at = bisect.bisect_right(self._starts, start) - 1
        return at >= 0 and end <= self._starts[at] + self._sizes[self._starts[at]]

    def _add(self, start: int, end: int) -> bool:
        for unused in _native.unused_buffers():
            if unused in self._sizes:
                self._drop(unused)
        place = _native.keep_buffer(start)
        if place is None:
            return False
        begin, nbytes = place
        if end > begin + nbytes or self.nbytes + nbytes > self.limit:
            self._let_go(begin)
            return False
        try:
            self._calls.register(begin, nbytes)
        except RuntimeError as error:
            self._let_go(begin)
            self.refusal = str(error)
            _LOG.debug("batches cross pinned buffers: the fetcher's own cannot be registered with CUDA: %s", error)
            return False
        bisect.insort(self._starts, begin)
        self._sizes[begin] = nbytes
        self.nbytes += nbytes
        return True

    def _let_go(self, begin: int) -> None:
        if begin not in self._sizes:
            _native.let_go_buffer(begin)

    def _drop(self, begin: int) -> None:
        self._starts.remove(begin)
        self.nbytes -= self._sizes.pop(begin)
        try:
            self._calls.unregister(begin)
        except RuntimeError as error:
            # The device would read these pages for any memory that comes to lie here: they stay allocated.
            _LOG.warning("a buffer cannot be unregistered with CUDA, and is not freed: %s", error)
        else:
            _native.let_go_buffer(begin)


def _default_limit() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE
    except (OSError, ValueError):
        return 1 << 30
