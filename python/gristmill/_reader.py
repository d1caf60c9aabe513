"""A job that is open: its stream, and how far it was read."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import _native
from ._service import Service
from .errors import CheckpointError, Error, JobError
from .pipeline import Pipeline

if TYPE_CHECKING:
    from ._batches import Cursor

__all__ = ["Opening", "Reader", "open_reader"]

_LOG = logging.getLogger("gristmill")
# How long a thread waits for another one that starts the loader.
_STARTS_IN_S = 10.0
_LOOK_S = 0.005


class Opening:
    """Lets one thread at a time open a reader; it may be interrupted at any moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupt: _native.Interrupt | None = None

    @property
    def is_running(self) -> bool:
        """Whether a thread opens a reader."""
        return self._lock.locked()

    def interrupt(self) -> None:
        """Ends the opening, which raises Error."""
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt.set()

    @contextmanager
    def entered(self, check: Callable[[], None], is_open: Callable[[], bool]) -> Iterator[_native.Interrupt]:
        """Waits for another thread that opens a reader, as long as `check` does not raise.

        Raises Error in a signal handler of the thread that opens one, if it takes long, or if nothing is open then.
        """
        last = time.monotonic() + _STARTS_IN_S
        has_waited = False
        while not self._lock.acquire(blocking=False):
            check()
            if self._thread == threading.get_ident() or time.monotonic() > last:
                raise Error("the loader is starting: only `close` and `stats` can be called now")
            has_waited = True
            time.sleep(_LOOK_S)
        try:
            if has_waited and not is_open():
                raise Error("the loader did not start: the thread that started it has the error")
            self._thread, self._interrupt = threading.get_ident(), _native.Interrupt()
            yield self._interrupt
        finally:
            self._thread = self._interrupt = None
            self._lock.release()


class Reader:
    """The stream of a job."""

    def __init__(
        self,
        job: _native.Job,
        flags: list[str],
        ranks: list[str],
        at: Cursor | None,
        interrupt: _native.Interrupt,
    ) -> None:
        self.job, self.epochs = job, job.epochs
        self._flags, self._ranks = flags, ranks
        # Set while the reader is open.
        self.service: Service | None = None
        self.stream = self._open(at, interrupt)
        #: The first batch to read.
        self.begin = self.stream.begin if at is None else at

    def _open(self, at: Cursor | None, interrupt: _native.Interrupt) -> _native.Stream:
        try:
            return self.job.open([*self._flags, *self._ranks], at, interrupt)
        except CheckpointError:
            if at is None or self._ranks:
                raise
            # A service that has lost the job, or never had it, makes the batches before `at` again.
            durable = self.job.durable()
            if durable >= at:
                raise
            _LOG.warning(
                "the service does not have the batches before epoch %d, batch %d of job %s: they are computed again",
                *at,
                self.job.name,
            )
            return self.job.open(self._flags, durable, interrupt)

    def pass_to(self, turn: int, to: Cursor, *, acknowledge: bool) -> None:
        """Passes over the batches before `to`: they are computed, and not handed over."""
        # Those before the first batch to read are in a checkpoint.
        self.stream.pass_to(turn, *min(self.begin, to), True)
        at = self.stream.at
        if at < to:
            _LOG.info("passing over the batches from epoch %d, batch %d to epoch %d, batch %d", *at, *to)
            self.stream.pass_to(turn, *to, acknowledge)

    def close(self) -> None:
        """Closes the stream, and leaves the job as it is."""
        self.stream.close()
        self._leave()

    def end(self, *, is_wanted: bool) -> None:
        """Reports what was acknowledged. A job that nobody can go on with is stopped."""
        try:
            if is_wanted:
                self._finish()
            else:
                self.stream.close()
                self.job.stop()
        finally:
            self._leave()

    def _finish(self) -> None:
        try:
            self.stream.finish()
        except JobError as error:
            # Another trainer goes on with the job: what it reports counts.
            _LOG.info("%s", error)
            self.stream.close()

    def _leave(self) -> None:
        if self.service is not None:
            service, self.service = self.service, None
            service._leaves(self)


def open_reader(
    service: Service,
    pipeline: Pipeline,
    flags: list[str],
    *,
    job: str | None,
    state: str | None,
    ranks: list[str],
    is_named: bool,
    interrupt: _native.Interrupt,
) -> Reader:
    """Starts or joins a job, and opens it at `state`, the text of a checkpoint, or where its last trainer was.

    `is_named`: the caller named the job; else another one may be started if that one is done, or no longer has the
    batches.
    """
    text, base = pipeline.to_yaml(), pipeline.base
    named = flags if job is None else [*flags, f"--job={job}"]
    started = service._native.submit(text, base, named, state, interrupt)
    if state is None:
        return service._reads(Reader(started, flags, ranks, None, interrupt))
    at = started.position(state)
    try:
        return service._reads(Reader(started, flags, ranks, at, interrupt))
    except CheckpointError as error:
        if ranks or is_named:
            raise
        _LOG.info("%s", error)
        _LOG.warning("job %s does not have the batches after the state: they are computed again, in a new job", job)
    started = service._native.submit(text, base, flags, state, interrupt)
    at = started.position(json.dumps({**json.loads(state), "job": started.name}))
    return service._reads(Reader(started, flags, [], at, interrupt))
