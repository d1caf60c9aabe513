"""A job that is open: its stream, and how far it was read."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

from . import _native
from ._arrays import arrays_of
from ._service import Service
from .errors import CheckpointError, Error, JobError
from .pipeline import Pipeline

if TYPE_CHECKING:
    from ._loader import Cursor, _Batches

__all__ = ["Reader", "arrays_of", "open_reader"]

_LOG = logging.getLogger("gristmill")
_SLICE_S = 0.05


class Reader:
    """The stream of a job."""

    def __init__(self, job: _native.Job, flags: list[str], ranks: list[str], at: Cursor | None) -> None:
        self.job, self.epochs = job, job.epochs
        self._flags, self._ranks = flags, ranks
        self._held: _native.Batch | None = None
        self._is_closed = False
        # Set while the reader is open.
        self.service: Service | None = None
        self.stream = self._open(at)

    def _open(self, at: Cursor | None) -> _native.Stream:
        try:
            stream = self.job.open([*self._flags, *self._ranks], at)
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
            stream = self.job.open(self._flags, durable)
        #: The place of the next batch of the stream; and that of the first one.
        self.at = self.begin = stream.begin
        if at is not None:
            self.begin = at
            if self.at < at:
                stream.pass_to(*at, acknowledge=True)
                self.at = at
        return stream

    def next_of(self, epoch: int, batches: _Batches) -> _native.Batch | None:
        """The next batch of `epoch`; None at its end, or once `batches` is stopped."""
        if self._held is not None:
            if self._held.epoch > epoch:
                return None
            held, self._held = self._held, None
            self.at = held.next
            return held
        while True:
            if self.at[0] > epoch or epoch >= self.epochs:
                return None
            item = self._item(batches)
            if item is None:
                return None
            if isinstance(item, _native.EpochEnd):
                self.at = (item.epoch + 1, 0)
                continue
            if item.epoch > epoch:
                self._held = item
                self.at = (item.epoch, item.index)
                return None
            self.at = item.next
            return item

    def _item(self, batches: _Batches) -> _native.Batch | _native.EpochEnd | None:
        if threading.current_thread() is threading.main_thread():
            return self.stream.next()
        # Nobody interrupts another thread: it looks for itself whether to go on.
        while not batches.is_stopped:
            if self._is_closed:
                raise Error("the service of the loader was closed")
            try:
                return self.stream.next(_SLICE_S)
            except TimeoutError:
                continue
        return None

    def pass_to(self, to: Cursor, *, acknowledge: bool) -> None:
        """Passes over the batches before `to`: they are computed, and not handed over."""
        to = min(to, (self.epochs, 0))
        if self._held is not None:
            held, self._held = self._held, None
            if (held.epoch, held.index) >= to:
                self._held = held
                return
            self.at = held.next
        if self.at < to:
            _LOG.info("passing over the batches from epoch %d, batch %d to epoch %d, batch %d", *self.at, *to)
            self.stream.pass_to(*to, acknowledge=acknowledge)
            self.at = to

    def close(self) -> None:
        """Closes the stream, and leaves the job as it is."""
        self._is_closed = True
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
) -> Reader:
    """Starts or joins a job, and opens it at `state`, the text of a checkpoint, or where its last trainer was.

    `is_named`: the caller named the job; else another one may be started if that one is done, or no longer has the
    batches.
    """
    text, base = pipeline.to_yaml(), pipeline.base
    started = service._native.submit(text, base, flags if job is None else [*flags, f"--job={job}"])
    if state is None:
        return service._reads(Reader(started, flags, ranks, None))
    at = started.position(state)
    try:
        return service._reads(Reader(started, flags, ranks, at))
    except CheckpointError as error:
        if ranks or is_named:
            raise
        _LOG.info("%s", error)
        _LOG.warning("job %s does not have the batches after the state: they are computed again, in a new job", job)
    started = service._native.submit(text, base, flags)
    at = started.position(json.dumps({**json.loads(state), "job": started.name}))
    return service._reads(Reader(started, flags, [], at))
