"""The batches of one epoch, and the place of a loader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import _native
from ._arrays import arrays_of
from ._reader import Reader

__all__ = ["Arrays", "Batches", "Cursor", "Mark", "Place"]

#: Epoch and number of a batch.
Cursor = tuple[int, int]
Arrays = dict[str, np.ndarray[Any, Any]]


class Mark(NamedTuple):
    """Beside a batch, on its way to the program."""

    #: The place after it.
    next: Cursor
    #: Whether `tail="repeat"` gives it again.
    is_repeat: bool


@dataclass(eq=False)
class Place:
    """The place of a loader. It belongs to one iteration, which alone changes it: others put a new one in its place."""

    #: The first batch that was not handed over.
    next: Cursor
    #: Whether batches of the epoch were handed over, and the epoch has not ended.
    is_inside: bool = False
    #: Batches as the program is given them; wraps `source`.
    items: Iterator[tuple[Any, Mark]] | None = None
    source: Batches | None = None
    #: Held while the next batch is taken.
    taking: threading.Lock = field(default_factory=threading.Lock)

    def leave(self) -> None:
        """Ends the iteration. What was taken ahead is lost: all callers go forward, or reopen the job."""
        source, items = self.source, self.items
        self.source = self.items = None
        if source is not None:
            source.close()
        close = getattr(items, "close", None)
        if close is not None:
            # A generator that runs, in another thread or below this signal handler, ends with its source.
            with suppress(ValueError):
                close()


class Batches:
    """The batches of one epoch as arrays, from `at` on, each with its mark."""

    def __init__(
        self,
        reader: Reader,
        at: Cursor,
        keys: bool,
        is_acknowledged: bool,
        if_empty: Callable[[_native.EpochEnd, int], None],
    ) -> None:
        self._reader, self._stream = reader, reader.stream
        self._turn = reader.stream.turn()
        self._at, self._keys = at, keys
        self._is_acknowledged = is_acknowledged
        self._if_empty = if_empty
        # Whether the batches before `at` were passed over.
        self._is_there = False
        self._is_empty = at[1] == 0
        self._is_over = False

    def __iter__(self) -> Iterator[tuple[Arrays, Mark]]:
        return self

    def __next__(self) -> tuple[Arrays, Mark]:
        if self._is_over:
            raise StopIteration
        if not self._is_there:
            self._reader.pass_to(self._turn, self._at, acknowledge=self._is_acknowledged)
            self._is_there = True
        epoch = self._at[0]
        batch = self._stream.next(self._turn, epoch)
        if not isinstance(batch, _native.Batch):
            self._is_over = True
            if batch is not None and self._is_empty:
                self._if_empty(batch, epoch)
            raise StopIteration
        self._is_empty = False
        arrays = arrays_of(batch, self._keys)
        mark = Mark(batch.next, batch.repeated_for is not None)
        if self._keys:
            arrays["__repeat__"] = np.full(batch.rows, mark.is_repeat)
            arrays["__cursor__"] = np.array(mark.next, np.int64)
        return arrays, mark

    def close(self) -> None:
        """Ends a wait for the next batch; called from any thread."""
        self._stream.end_turn(self._turn)
