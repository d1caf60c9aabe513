"""The loader: the batches of a job, in order, exactly once, with states to go on from."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np

from . import _native, _ranks, _reader, _service
from ._flags import flags_of
from ._service import Service
from .errors import CheckpointError, Error, OptionError, PipelineError
from .pipeline import Pipeline

Item = TypeVar("Item")
#: Epoch and number of a batch.
Cursor = tuple[int, int]
Arrays = dict[str, np.ndarray[Any, Any]]
State = dict[str, Any]

_VERSION = 1
_IS_OVER = "this iteration is over: another one of this loader has begun, or its state was changed, or it was closed"


class Loader(Generic[Item]):
    """The batches of a pipeline, one epoch for each `iter()`.

    Nothing is started before the first batch, length or state is asked for. A context manager.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        service: Where the workers run: `gristmill.local(...)` or `gristmill.connect(...)`. Default: a service on
            this machine that ends with this process.
        job: Name of the job to start, or to go on with; options that are not given are then the job's. Default: a new
            name.
        data: Dataset to read instead of the pipeline's, relative to the current directory.
        epochs: Passes over the dataset. Default: until `close()`.
        seed: Seed of order and augmentation. Default: 0.
        batch_size: Records in a batch. Default: the pipeline's.
        workers: Workers to run, or "auto" to follow the trainer's pace. Default: 2.
        local_workers: Threads of this process that work; with workers=0 the cheapest way on one machine. Default: 0.
        rank, world_size: This process among the ranks. Default: torch.distributed's, else RANK and WORLD_SIZE, else
            one rank.
        run: Name of this run of all ranks. Default: torchrun's or Slurm's.
        tail: What becomes of last batches that are fewer than the ranks: "drop", "repeat" or "uneven". Default:
            "drop" if the pipeline drops its remainder, else "repeat".
        prefetch_mib: Memory for objects that are fetched ahead, and as much for those made by local workers, in MiB.
            Less than the work needs costs speed only. Default: what the work needs, at most an eighth of the memory
            that this process may use, shared with the other ranks of this host.
        patience: How long the service may not answer, such as "90s" or "10m". Default: "120s".
        keys: Adds `__key__` (uint64 [rows]) and `__copy__` (uint32 [rows]), which name each element, and `__cursor__`
            (int64 [2]), the place after the batch.
        on_break: What `iter()` does after an epoch was left early: "next" goes to the next epoch, "continue" goes on.
        acknowledge: When the service may forget batches: "auto" once the next one is asked for, until the first
            state is taken, and then by states; "state" by states alone.
        progress: Writes a line about the pace to standard error.
        options: Further flags of `gristmill run` by name, such as `on_error="skip"`.

    Raises OptionError for values that cannot be used; PipelineError, DataError, JobError and ServiceError when it
    starts and while it runs.
    """

    def __init__(
        self,
        pipeline: Pipeline | str | os.PathLike[str],
        *,
        service: Service | None = None,
        job: str | None = None,
        data: str | os.PathLike[str] | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        workers: int | Literal["auto"] | None = None,
        local_workers: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        run: str | None = None,
        tail: Literal["drop", "repeat", "uneven"] | None = None,
        prefetch_mib: int | None = None,
        patience: str | None = None,
        keys: bool = False,
        on_break: Literal["next", "continue"] = "next",
        acknowledge: Literal["auto", "state"] = "auto",
        progress: bool = False,
        **options: Any,
    ) -> None:
        if on_break not in ("next", "continue"):
            raise OptionError(f'on_break={on_break!r}: it is "next" or "continue"')
        if acknowledge not in ("auto", "state"):
            raise OptionError(f'acknowledge={acknowledge!r}: it is "auto" or "state"')
        if epochs is not None and epochs < 1:
            raise OptionError(f"epochs={epochs}: there is at least one")
        self._pipeline = pipeline if isinstance(pipeline, Pipeline) else Pipeline.from_yaml(pipeline)
        self._ranks = _ranks.find(rank, world_size, run)
        self._service = service
        self._job_name = job
        given = dict(
            epochs=epochs,
            seed=seed,
            workers=workers,
            local_workers=local_workers,
            prefetch_mib=prefetch_mib,
            patience=patience,
            data=None if data is None else os.fspath(data),
            batch_size=batch_size,
            **options,
        )
        self._flags = flags_of(given)
        self._rank_flags = self._ranks.flags(tail)
        _native.check_options([*self._flags, *self._rank_flags, *flags_of({"job": job})])
        # Ranks that name no job share one.
        self._ranks_job = _ranks.job(self._ranks, self._pipeline.to_yaml(), self._flags) if job is None else None
        self._epochs = epochs
        self._keys = keys
        self._on_break = on_break
        self._acknowledges = acknowledge
        self._progress = _Progress() if progress else None
        self._pid = os.getpid()
        self._reader: _reader.Reader | None = None
        # The state to begin with, once it is loaded.
        self._loaded: State | None = None
        # The state taken last, which the next one acknowledges.
        self._taken: Cursor | None = None
        # The name of the job that is or was open.
        self._name: str | None = None
        self._next: Cursor = (0, 0)
        # Whether batches of the present epoch were handed over, and the epoch has not ended.
        self._inside = False
        self._items: Iterator[tuple[Item, Cursor]] | None = None
        # Wrapped by `_items`.
        self._source: _Batches | None = None
        self._closed = False
        self._batches = 0
        self._waited = 0.0
        self._began = time.monotonic()

    # Subclasses change these.

    def _convert(self, arrays: Arrays) -> Any:
        """A batch as the caller gets it. `arrays` are writable, and share the fetcher's buffer, which they keep
        alive.
        """
        return arrays

    def _wrap(self, batches: Iterable[tuple[Arrays, Cursor]]) -> Iterator[tuple[Any, Cursor]]:
        """Turns the batches of an epoch into those handed to the caller, each with the cursor after it.

        It may take batches ahead, in another thread too. It is closed, if it has `close()`, when the epoch is left;
        closing `batches` ends a wait for the next one.
        """
        return ((self._convert(arrays), cursor) for arrays, cursor in batches)

    # Iteration.

    def __iter__(self) -> Iterator[Item]:
        self._begin()
        if self._inside and self._on_break == "next":
            self._pass_to((self._next[0] + 1, 0))
        return self._epoch()

    def _epoch(self) -> Iterator[Item]:
        epoch = self._next[0]
        if self._items is None:
            self._source = _Batches(self, epoch)
            self._items = self._wrap(self._source)
        items = self._items
        # Plain names: this loop is on the path of every batch.
        auto = self._acknowledges == "auto"
        reader = self._reader
        assert reader is not None
        clock = time.monotonic
        asked = clock()
        for item, cursor in items:
            if items is not self._items:
                raise Error(_IS_OVER)
            self._next, self._inside = cursor, True
            self._batches += 1
            self._waited += clock() - asked
            if self._progress is not None:
                self._progress.batch(self, cursor)
            yield item
            if items is not self._items:
                raise Error(_IS_OVER)
            if auto and self._acknowledges == "auto":
                reader.stream.acknowledge(*cursor)
            asked = clock()
        if items is not self._items:
            raise Error(_IS_OVER)
        self._items = None
        self._inside = False
        self._next = (epoch + 1, 0) if epoch < reader.epochs else self._next
        if auto and self._acknowledges == "auto":
            reader.stream.acknowledge(*self._next)

    def __len__(self) -> int:
        """Batches (steps of this rank) in an epoch.

        Raises TypeError where it is not known in advance: with operators such as `filter`, or bad records that are
            skipped.
        """
        count = self._begin().stream.batches_per_epoch
        if count is None:
            raise TypeError(
                "the number of batches is not known in advance: operators of the pipeline change the number of "
                'elements, or on_error="skip" leaves records out'
            )
        return count

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` delivers, from 0."""
        epoch, g = self._position()
        return epoch + 1 if self._inside and g and self._on_break == "next" else epoch

    @property
    def epochs(self) -> int | None:
        """Passes over the dataset; None without an end."""
        return self._epochs

    @property
    def job(self) -> str:
        """The name of the job, which other processes can go on with."""
        if self._name is None:
            self._name = self._begin().job.name
        return self._name

    @property
    def cursor(self) -> Cursor:
        """Epoch and number of the first batch that was not handed over, as in a state. Acknowledges nothing."""
        return self._position()

    def schema(self) -> dict[str, Any]:
        """Batch size, whether a last partial batch is left out, and for each field dtype and shape of an element.

        A dimension is None where elements differ.
        """
        schema: dict[str, Any] = json.loads(self._begin().job.schema())
        return schema

    # States.

    def state_dict(self) -> State:
        """The place of the first batch that was not handed over, as texts and integers.

        All ranks have the same after the same step, and any number of ranks can go on from it. Acknowledges the
        state that was
        taken before: with the two last states kept, training can always go on.
        """
        self._begin()
        return self._take(self._next)

    def state_after(self, cursor: Cursor | np.ndarray[Any, Any]) -> State:
        """The state after the batch whose `__cursor__` is `cursor`. Acknowledges nothing."""
        epoch, g = (int(part) for part in cursor)
        return {"version": _VERSION, **json.loads(self._begin().job.checkpoint(epoch, g))}

    def checkpointed(self, state: Mapping[str, Any]) -> None:
        """Says that `state` is stored safely: the service may forget the batches before it."""
        reader = self._begin()
        reader.stream.acknowledge(*reader.job.position(_text_of(state)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter()` goes on at `state`, in the middle of an epoch too.

        Raises CheckpointError if it is no state of this loader's job, here or when the loader starts.
        """
        loaded = json.loads(_text_of(state))
        if self._job_name not in (None, loaded["job"]):
            raise CheckpointError(
                f"the state is of job {loaded['job']}, and this loader reads job {self._job_name}: "
                "load a state of that job"
            )
        self._leave()
        if self._reader is not None:
            reader, self._reader = self._reader, None
            if reader.job.name == loaded["job"]:
                reader.job.position(_text_of(state))
                reader.close()
            else:
                reader.end(is_wanted=self._taken is not None)
        self._loaded, self._name = {"version": _VERSION, **loaded}, loaded["job"]
        self._next = (loaded["epoch"], loaded["g"])
        self._taken, self._inside = self._next, False
        self._acknowledges = "state"

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` delivers `epoch`; the rest of the present one is passed over.

        Raises OptionError for an epoch before the present one.
        """
        present, g = self._position()
        if epoch < present or (epoch == present and g and not self._inside and self._loaded is None):
            raise OptionError(
                f"set_epoch({epoch}): the loader is in epoch {present}, and epochs go forward; load a state"
            )
        if epoch > present:
            self._begin()
            self._pass_to((epoch, 0))
        elif self._on_break == "next":
            self._inside = False

    # The end.

    def stats(self) -> dict[str, float]:
        """Batches handed over, seconds waited for them, workers, bytes fetched, and bytes of memory.

        `prefetch_bytes` is the bound for objects ahead of the trainer, `local_bytes` what splits of local workers take
        until they are read.
        """
        found: dict[str, float] = {
            "batches": self._batches,
            "waited_s": self._waited,
            "elapsed_s": time.monotonic() - self._began,
        }
        if self._reader is not None:
            found = {**self._reader.stream.stats(), **found}
        return found

    def close(self, *, abandon: bool = False) -> None:
        """Ends the loader. A finished job is closed; one that no state can return to is stopped.

        With `abandon`, leaves the job as it is and waits for nothing.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._leave()
        if self._progress is not None:
            self._progress.end()
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if abandon:
            reader.close()
            return
        # Frameworks that know the number of batches take the last one, and do not ask for the end.
        count = reader.stream.batches_per_epoch if self._ranks.world_size == 1 else None
        is_over = self._next[0] >= reader.epochs or self._next == (reader.epochs - 1, count)
        if is_over:
            # The trainer has come to the end of the job: nothing goes on from an earlier state.
            reader.stream.acknowledge(reader.epochs, 0)
        reader.end(is_wanted=is_over or self._job_name is not None or self._acknowledges == "state")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(abandon=kind is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Configuration and place: another process goes on with the job."""
        kept = self.__dict__ | {
            "_reader": None,
            "_items": None,
            "_source": None,
            "_inside": False,
            "_loaded": self.state_after(self._next) if self._reader else self._loaded,
            "_progress": self._progress and _Progress(),
        }
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pid = os.getpid()

    # Inside.

    def _position(self) -> Cursor:
        # A job with a name may have come further before.
        if self._reader is None and self._loaded is None and self._job_name is not None:
            self._begin()
        return self._next

    def _begin(self) -> _reader.Reader:
        """The reader of the job, which is started or joined if it is not open."""
        if self._closed:
            raise Error("the loader is closed")
        if self._pid != os.getpid():
            raise Error(
                "the loader was made before this process was forked: use it in one process alone, with num_workers=0"
            )
        if self._reader is not None:
            return self._reader
        try:
            with _service.used_by_loader(self._service, self._ranks.world_size) as service:
                reader = _reader.open_reader(
                    service,
                    self._pipeline,
                    self._flags,
                    job=(self._job_name or self._ranks_job) if self._loaded is None else self._loaded["job"],
                    state=None if self._loaded is None else _text_of(self._loaded),
                    is_named=self._job_name is not None,
                    ranks=self._rank_flags,
                )
        except PipelineError as error:
            raise self._pipeline.located(error) from None
        self._reader, self._name = reader, reader.job.name
        self._next = reader.begin
        return reader

    def _take(self, cursor: Cursor) -> State:
        """The state at `cursor`, which is not after the batches handed over. Acknowledges the state taken before."""
        self._acknowledges = "state"
        if self._taken is not None and self._taken < cursor:
            self._begin().stream.acknowledge(*self._taken)
        self._taken = cursor
        return self.state_after(cursor)

    def _leave(self) -> None:
        """Ends the iteration. What was taken ahead of the caller is lost: all callers go forward, or reopen the job."""
        items, self._items = self._items, None
        if items is None:
            return
        if self._source is not None:
            self._source.close()
        close = getattr(items, "close", None)
        # A generator that runs in another thread cannot be closed: it ends with its source.
        if close is not None and not getattr(items, "gi_running", False):
            close()

    def _pass_to(self, to: Cursor) -> None:
        reader = self._begin()
        self._leave()
        reader.pass_to(to, acknowledge=self._acknowledges == "auto")
        self._next, self._inside = to, False


class _Batches:
    """The batches of one epoch as arrays, each with the cursor after it."""

    def __init__(self, loader: Loader[Any], epoch: int) -> None:
        reader = loader._reader
        assert reader is not None
        self._reader, self._epoch, self._keys = reader, epoch, loader._keys
        self._stopped = False

    def __iter__(self) -> Iterator[tuple[Arrays, Cursor]]:
        return self

    def __next__(self) -> tuple[Arrays, Cursor]:
        batch = None if self._stopped else self._reader.next_of(self._epoch, self)
        if batch is None:
            self._stopped = True
            raise StopIteration
        arrays = _reader.arrays_of(batch, self._keys)
        cursor = batch.next
        if self._keys:
            arrays["__cursor__"] = np.array(cursor, np.int64)
        return arrays, cursor

    @property
    def is_stopped(self) -> bool:
        """Whether a wait for the next batch is to end."""
        return self._stopped

    def close(self) -> None:
        """Ends a wait for the next batch; called from any thread."""
        self._stopped = True


class _Progress:
    """A line on standard error about the pace, at most twice a second."""

    def __init__(self) -> None:
        self._said = 0.0
        self._batches = 0
        self._is_written = False

    def batch(self, loader: Loader[Any], cursor: Cursor) -> None:
        now = time.monotonic()
        if now - self._said < 0.5:
            return
        pace = (loader._batches - self._batches) / (now - self._said) if self._said else 0.0
        self._said, self._batches = now, loader._batches
        stats = loader.stats()
        share = stats["waited_s"] / max(stats["elapsed_s"], 1e-9)
        line = f"epoch {cursor[0]}, batch {cursor[1]}: {pace:.1f} batches/s, {share:.0%} of the time waited"
        sys.stderr.write(f"\r\x1b[K{line}" if sys.stderr.isatty() else f"{line}\n")
        sys.stderr.flush()
        self._is_written = sys.stderr.isatty()

    def end(self) -> None:
        if self._is_written:
            sys.stderr.write("\n")


def _text_of(state: Mapping[str, Any]) -> str:
    """The text of the checkpoint in `state`. Raises CheckpointError if it is no state."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise CheckpointError("this is no state of a loader: give load_state_dict what state_dict returned")
    if state["version"] != _VERSION:
        raise CheckpointError(f"the state has version {state['version']}, and this gristmill reads version {_VERSION}")
    fields = {name: value for name, value in state.items() if name != "version"}
    if set(fields) != {"job", "fingerprint", "seed", "epoch", "g"}:
        raise CheckpointError(
            f"the state has the fields {', '.join(sorted(fields))}: it was changed, or is of another tool"
        )
    try:
        return json.dumps({name: value if isinstance(value, str) else int(value) for name, value in fields.items()})
    except (TypeError, ValueError):
        raise CheckpointError("the state holds a value that is neither text nor integer") from None
