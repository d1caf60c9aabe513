"""The loader: the batches of a job, in order, exactly once, with states to go on from."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, cast

import numpy as np

from . import _native, _ranks, _reader, _service
from ._advice import invalid_in_python
from ._arrays import listed
from ._batches import Arrays, Batches, Cursor, Mark, Place
from ._flags import flags_of
from ._options import checks_options, name_of
from ._progress import Progress
from ._ranks import DeviceMesh
from ._service import Service
from ._states import VERSION, State, text_of
from .errors import CheckpointError, Error, OptionError, PipelineError
from .pipeline import Pipeline

Item = TypeVar("Item")
_LOG = logging.getLogger("gristmill")
# A line of docstrings in place of all options.
_OPTIONS_ARE = "options: Those of `gm.LoaderOptions`."
# Options that a loader for evaluation does not share.
_OF_TRAINING = ("job", "epochs", "tail", "acknowledge", "sampler")
# How the service refuses a job that differs.
_OTHER_JOB = re.compile(r"job \S+ exists with another ([\w -]+) \((.*), not (.*)\): choose another job name", re.DOTALL)
_IS_CLOSED = "the loader is closed"
_IS_OVER = "this iteration is over: another one of this loader has begun, or its state was changed"


class Stats(TypedDict, total=False):
    """The result of `Loader.stats`, which lacks the numbers of a job that has not begun.

    Example:
        >>> sorted(gm.numpy.Loader(pipeline).stats())
        ['batches', 'elapsed_s', 'waited_s']
    """

    batches: int
    waited_s: float
    elapsed_s: float
    #: Why the batch is missing that the program waits for.
    waiting_for: str
    workers: int
    workers_max: int
    fetched_bytes: int
    recomputed_splits: int
    prefetch_bytes: int
    local_bytes: int
    #: Memory of the fetchers of this process that is registered with CUDA (`gristmill.torch.Loader` on a GPU).
    pinned_bytes: int
    #: Bytes of batches that were copied into pinned buffers first, because their memory is not registered.
    staged_bytes: int


class Loader(Generic[Item]):
    """The batches of a pipeline, one epoch for each `iter()`.

    Options, pipeline and paths are checked when it is made. Nothing is started before the first batch, length or state
    is asked for. A context manager.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        service: Where the workers run: `gm.local(...)` or `gm.connect(...)`. Default: the service of this machine,
            which ends soon after the last process has left it.
        job: Name of the job to start, or to go on with; options that are not given are then the job's. Default: a
            new name.
        data: Dataset to read instead of the pipeline's, relative to the current directory. Default: the pipeline's.
        epochs: Passes over the dataset. Default: until `close()`.
        seed: Seed of order and augmentation. Default: 0.
        batch_size: Records in a batch. Default: the pipeline's.
        workers: Workers to run, or "auto" to follow the trainer's pace. Default: 2.
        max_workers: Most workers of `workers="auto"`. Default: 16 on this machine, 1000 on AWS.
        policy: How `workers="auto"` decides: "coverage" has the workers at which a batch costs least; the others are
            those of papers, to compare with: "cachew" adds one while batch time improves; "hpa" keeps CPUs busy for
            80 % of the time; "tfdata" divides the trainer's rate by a worker's; "pecan" removes workers again while
            cost falls; "fastflow" profiles one worker and stays. Default: "coverage".
        placement: Where batches are made: "auto" where it costs least, by workers and by at most `local_workers`, both
            as the trainer's pace asks for; "remote" by workers alone; "local" by this process alone; the path of a file
            that `gristmill plan --json` printed: by both, as many as it says, with its share of local splits. Default:
            by both, as many as `workers` and `local_workers` say.
        budget_usd: Dollars that the job may spend on functions, requests, storage and transfer, at list prices, over
            all its runs. When they are spent, `local_workers` finish; without any, reading raises DataError, and a
            loader with more goes on. Default: no limit.
        budget_usd_per_hour: Dollars an hour that workers may cost at one time. Default: no limit.
        local_workers: Threads of this process that work; with `workers=0` the cheapest way on one machine. Default:
            0, or 1 if the job has no other workers.
        rank: Number of this process among the ranks, from 0. Default: torch.distributed's, else RANK, else 0.
        world_size: Number of ranks. Default: torch.distributed's, else WORLD_SIZE, else 1.
        run: Name of this run of all ranks, another one whenever they start again. Default: that of
            torch.distributed, torchrun or Slurm.
        replicas: Ranks that take the same batches, as tensor-, pipeline- and context-parallel peers do: a number of
            neighbours, or "2x4" with 2 ranks in the mesh before its data dimension and 4 after it. Default: 1.
        mesh: The `DeviceMesh` of all ranks, which says rank, world_size and replicas. Default: none.
        mesh_data: Name of the data dimension of `mesh`, or names of several that follow one another. Default: none.
        tail: What becomes of last batches that are fewer than the ranks. Default: "drop" if the pipeline drops its
            remainder, else "repeat".
        prefetch_mib: Memory for objects that are fetched ahead, and as much for those made by local workers, in
            MiB. Less than the work needs costs speed only. Default: what the work needs, at most an eighth of the
            memory that this process may use, shared with the other ranks of this host.
        patience: How long the service may not answer: seconds, or such as "90s" or "10m". Default: 120.
        split_batches: Batches of a split, the unit of work. Default: chosen by the cost of the pipeline and the
            size of the dataset.
        on_error: What becomes of a record that cannot be read or processed: the job fails, or leaves it out, or
            also keeps a copy of it. Default: "fail".
        max_skipped: Records of an epoch that may be left out before the job fails: a number, or a share such as
            "1%". Default: "1%".
        removal: When a worker leaves that is not wanted any more: after the split at hand, or at once, so that another
            one does that split again. Default: "split".
        visitation: What holds for batches if the trainer fails and returns. Default: "exactly-once".
        sharding: Content of an epoch: the dataset once, or with "off" once for each worker. Default: "dynamic".
        shard: Part of the dataset to read, as "3/5": part 3 of five, counted from 0, as a job of its own. Ranks of one
            job need none. Default: all of it.
        shard_by: What shards take in turn: batches of records; files; files if there are enough, else batches; or
            what the operator `shard` of the pipeline says. Default: "data".
        compress: How workers compress the objects they store. Default: the pipeline's, else "auto".
        measure: Whether the first elements of the dataset are measured where `auto_order="pecan"` needs their sizes;
            "off" keeps declared sizes. Default: "on".
        keys: Adds `__key__` (uint64 [rows]) and `__copy__` (uint32 [rows]), which name each element, `__repeat__`
            (bool [rows]), whether `tail="repeat"` gives the batch again, and `__cursor__` (int64 [2]), the place
            after the batch. Default: False.
        on_break: What `iter()` does after an epoch was left early: it goes to the next epoch, or goes on. Default:
            "next".
        acknowledge: When the service may forget batches: "auto" once the next one is asked for, until the first
            state is taken, and then by states; "state" by states alone. Default: "auto".
        progress: Writes a line about the pace to standard error. Default: False.
        allow_empty: Whether an epoch may have no batches; else reading one raises OptionError. Default: False.

    Raises:
        OptionError: An option cannot be used, or the data is not there.
        PipelineError: The pipeline is wrong.

    Reading batches raises DataError for a record that cannot be processed, and JobError and ServiceError.

    Example:
        >>> with gm.numpy.Loader(pipeline, epochs=2) as loader:
        ...     for epoch in range(2):
        ...         print(epoch, [int(batch["x"].sum()) for batch in loader])
        0 [28, 92, 156, 220, 284, 348, 412, 476]
        1 [28, 92, 156, 220, 284, 348, 412, 476]
    """

    def __init_subclass__(cls, **given: Any) -> None:
        """Names every option in the docstring of a class of loaders, which `help` shows."""
        super().__init_subclass__(**given)
        if _OPTIONS_ARE in (cls.__doc__ or "") and Loader.__doc__ is not None:
            every = inspect.cleandoc(Loader.__doc__).partition("\n    service: ")[2].partition("\n\nRaises:")[0]
            cls.__doc__ = inspect.cleandoc(cls.__doc__ or "").replace(_OPTIONS_ARE, f"service: {every}")

    @checks_options
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
        max_workers: int | None = None,
        policy: Literal["coverage", "cachew", "hpa", "tfdata", "pecan", "fastflow"] | None = None,
        placement: str | os.PathLike[str] | None = None,
        budget_usd: float | None = None,
        budget_usd_per_hour: float | None = None,
        local_workers: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        run: str | None = None,
        replicas: int | str | None = None,
        mesh: DeviceMesh | None = None,
        mesh_data: str | Sequence[str] | None = None,
        tail: Literal["drop", "repeat", "uneven"] | None = None,
        prefetch_mib: int | None = None,
        patience: float | str | None = None,
        split_batches: int | None = None,
        on_error: Literal["fail", "skip", "quarantine"] | None = None,
        max_skipped: int | str | None = None,
        removal: Literal["split", "now"] | None = None,
        visitation: Literal["exactly-once", "at-most-once", "zero-once-or-more"] | None = None,
        sharding: Literal["dynamic", "off"] | None = None,
        shard: str | None = None,
        shard_by: Literal["data", "file", "file-or-data", "hint"] | None = None,
        compress: Literal["none", "zstd", "auto"] | None = None,
        measure: Literal["on", "off"] | None = None,
        keys: bool = False,
        on_break: Literal["next", "continue"] = "next",
        acknowledge: Literal["auto", "state"] = "auto",
        progress: bool = False,
        allow_empty: bool = False,
    ) -> None:
        self._given: dict[str, Any]
        self._pipeline = Pipeline._of(pipeline)
        self._ranks = _ranks.find(rank, world_size, run, replicas, mesh, mesh_data)
        self._service = service
        self._job_name = job
        given = dict(
            epochs=epochs,
            seed=seed,
            workers=workers,
            max_workers=max_workers,
            policy=policy,
            placement=None if placement is None else os.fspath(placement),
            budget_usd=budget_usd,
            budget_usd_per_hour=budget_usd_per_hour,
            local_workers=local_workers,
            prefetch_mib=prefetch_mib,
            patience=patience if isinstance(patience, str) or patience is None else f"{round(patience)}s",
            data=None if data is None else os.fspath(data),
            batch_size=batch_size,
            split_batches=split_batches,
            on_error=on_error,
            max_skipped=max_skipped,
            removal=removal,
            visitation=visitation,
            sharding=sharding,
            shard=shard,
            shard_by=shard_by,
            compress=compress,
            measure=measure,
        )
        self._flags = flags_of(given)
        self._rank_flags = self._ranks.flags(tail)
        self._check_given(job, data)
        # Ranks that name no job share one.
        self._ranks_job = _ranks.job(self._ranks, self._pipeline.to_yaml(), self._flags) if job is None else None
        self._epochs = epochs
        self._keys = keys
        self._on_break = on_break
        self._acknowledges = acknowledge
        self._progress = Progress() if progress else None
        self._pid = os.getpid()
        self._reader: _reader.Reader | None = None
        # The state to begin with, once it is loaded.
        self._loaded: State | None = None
        # The state taken last, which the next one acknowledges.
        self._taken: Cursor | None = None
        # The name of the job that is or was open.
        self._name: str | None = None
        # Replaced as a whole, so that an iteration which goes on elsewhere notices.
        self._at = Place((0, 0))
        self._opening = _reader.Opening()
        self._closed = False
        self._allow_empty = allow_empty
        self._batches = 0
        self._is_repeat = False
        self._waited = 0.0
        # Since when the program waits for a batch.
        self._asked: float | None = None
        self._began = time.monotonic()

    def _check_given(self, job: str | None, data: str | os.PathLike[str] | None) -> None:
        """Raises what is wrong with options, pipeline and paths. Starts nothing."""
        try:
            _native.check_options([*self._flags, *self._rank_flags, *flags_of({"job": job})])
        except OptionError as error:
            raise OptionError(f"{name_of(type(self).__init__, (self,))}: {invalid_in_python(str(error))}") from None
        self._pipeline.check(data)

    # Subclasses change these.

    def _convert(self, arrays: Arrays) -> Any:
        """A batch as the caller gets it. `arrays` are writable, and share the fetcher's buffer, which they keep
        alive.
        """
        return listed(arrays)

    def _wrap(self, batches: Iterable[tuple[Arrays, Mark]]) -> Iterator[tuple[Any, Mark]]:
        """Turns the batches of an epoch into those handed to the caller, each with its mark.

        It may take batches ahead, in another thread too. It is closed, if it has `close()`, when the epoch is left;
        closing `batches` ends a wait for the next one.
        """
        return ((self._convert(arrays), mark) for arrays, mark in batches)

    # Iteration.

    def __iter__(self) -> Iterator[Item]:
        self._begin()
        place = self._at
        if place.is_inside and self._on_break == "next":
            self._go_to((place.next[0] + 1, 0))
        return self._epoch()

    def _epoch(self) -> Iterator[Item]:
        reader, place = self._start()
        epoch = place.next[0]
        items = place.items
        assert items is not None
        # Plain names: this loop is on the path of every batch.
        auto = self._acknowledges == "auto"
        clock = time.monotonic
        try:
            while True:
                asked = self._asked = clock()
                pair = self._next_of(place, items)
                if pair is None:
                    break
                item, mark = pair
                place.next, place.is_inside = mark.next, True
                self._asked = None
                self._batches += 1
                self._is_repeat = mark.is_repeat
                self._waited += clock() - asked
                if self._progress is not None:
                    self._progress.batch(self, mark.next)
                yield item
                self._check(place, items)
                if auto and self._acknowledges == "auto":
                    reader.stream.acknowledge(*place.next)
        finally:
            self._asked = None
        place.items = place.source = None
        place.is_inside = False
        place.next = (epoch + 1, 0) if epoch < reader.epochs else place.next
        if auto and self._acknowledges == "auto":
            reader.stream.acknowledge(*place.next)

    def _start(self) -> tuple[_reader.Reader, Place]:
        """The reader, and the place from which batches are read."""
        reader, place = self._begin(), self._at
        if place.items is not None:
            return reader, place
        if reader.stream.at > place.next:
            # An exception ended an iteration that had batches ahead of the program.
            self._reader, self._loaded = None, self.state_after(place.next)
            reader.close()
            reader, place = self._begin(), self._at
        if place.next[0] >= reader.epochs:
            _LOG.warning(
                "the epochs of this loader are over, all %d, and this iteration has no batches: make another loader, "
                "or give it more epochs",
                reader.epochs,
            )
        is_acknowledged = self._acknowledges == "auto"
        if_empty = partial(_refuse_empty, self._ranks, self._allow_empty)
        place.source = Batches(reader, place.next, self._keys, is_acknowledged, if_empty)
        place.items = self._wrap(place.source)
        return reader, place

    def _next_of(self, place: Place, items: Iterator[tuple[Item, Mark]]) -> tuple[Item, Mark] | None:
        if not place.taking.acquire(blocking=False):
            raise Error(
                "the next batch of this loader is waited for already, by another thread or below this signal handler"
            )
        try:
            pair = next(items, None)
        except BaseException as error:
            # Else what it has ahead, and a generator that has raised, would look like the end of the epoch.
            place.leave()
            if isinstance(error, Error):
                self._check(place, None)
            raise
        finally:
            place.taking.release()
        self._check(place, items)
        return pair

    def _check(self, place: Place, items: Iterator[tuple[Item, Mark]] | None) -> None:
        """Raises Error if another iteration has taken the place of this one."""
        if self._closed:
            raise Error(_IS_CLOSED)
        if place is not self._at or place.items is not items:
            raise Error(_IS_OVER)

    def __len__(self) -> int:
        """Batches (steps of this rank) in an epoch.

        Raises:
            TypeError: It is not known in advance: with operators such as `filter`, or bad records that are skipped.

        Example:
            >>> len(loader)
            8
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
        """The epoch that the next `iter()` delivers, from 0.

        Example:
            >>> loader.epoch
            0
        """
        epoch, g = self._position()
        return epoch + 1 if self._at.is_inside and g and self._on_break == "next" else epoch

    @property
    def epochs(self) -> int | None:
        """Passes over the dataset; None without an end.

        Example:
            >>> loader.epochs
            2
        """
        return self._epochs

    @property
    def job(self) -> str:
        """The name of the job, which other processes can go on with.

        Example:
            >>> with gm.numpy.Loader(pipeline, job="numbers") as named:
            ...     named.job
            'numbers'
        """
        if self._name is None:
            self._name = self._begin().job.name
        return self._name

    @property
    def cursor(self) -> Cursor:
        """Epoch and number of the first batch that was not handed over, as in a state. Acknowledges nothing.

        Example:
            >>> batch = next(iter(loader))
            >>> loader.cursor
            (0, 1)
        """
        return self._position()

    @property
    def is_repeat(self) -> bool:
        """Whether the batch handed over last is one that `tail="repeat"` gives again, in place of one that the epoch
        lacks.

        Example:
            >>> losses = [batch["x"].sum() for batch in loader if not loader.is_repeat]
        """
        return self._is_repeat

    def schema(self) -> dict[str, Any]:
        """Batch size, whether a last partial batch is left out, and for each field dtype and shape of an element.

        A dimension is None where elements differ.

        Example:
            >>> schema = loader.schema()
            >>> schema["batch_size"], schema["fields"]["x"]["dtype"]
            (8, 'i64')
        """
        schema: dict[str, Any] = json.loads(self._begin().job.schema())
        return schema

    def eval_loader(self, data: Pipeline | str | os.PathLike[str] | None = None, **options: Any) -> Self:
        """A loader for evaluation beside this one, with its service, ranks, device and other options.

        Its pipeline is `Pipeline.for_evaluation()`: the same operators without the random ones, in the order of the
        dataset, with all records. Each `iter()` is the whole dataset once, as often as there are evaluations, and takes
        nothing from this loader, whose state does not hold it. With several ranks every rank gets as many batches:
        leave out those for which `is_repeat` is true.

        Args:
            data: The files to evaluate on, of the same format, relative to the current directory; or a pipeline of its
                own, such as the second of `train_test_split`. Default: the data of this loader. Of `gm.images`, classes
                have the labels they have in training.
            options: In place of this loader's. `job`, `epochs`, `tail` and `acknowledge` are not taken over.

        Raises:
            OptionError: An option cannot be used, or the data is not there.
            PipelineError: The pipeline for evaluation is wrong.

        Example:
            >>> train, test = gm.images("pictures").shuffle().decode().random_crop(8).batch(4).train_test_split(0.25)
            >>> with gm.numpy.Loader(train, epochs=2) as loader, loader.eval_loader(test) as evaluation:
            ...     for epoch in range(2):
            ...         print(sum(len(batch["label"]) for batch in loader), end=" ")
            ...         print(sum(len(batch["label"]) for batch in evaluation))
            48 16
            48 16
        """
        kept = {name: value for name, value in self._given.items() if name not in _OF_TRAINING}
        pipeline = data if isinstance(data, Pipeline) else self._pipeline
        if data is not None:
            kept.pop("data", None)
        if not isinstance(data, Pipeline) and data is not None:
            pipeline, kept["data"] = pipeline._with_classes(), data
        return type(self)(pipeline.for_evaluation(), **{**kept, **options})

    # States.

    def state_dict(self) -> State:
        """The place of the first batch that was not handed over, as texts and integers.

        All ranks have the same after the same step, and any number of ranks can go on from it. Acknowledges the
        state that was taken before: with the two last states kept, training can always go on.

        Example:
            >>> batch = next(iter(loader))
            >>> state = loader.state_dict()
            >>> state["epoch"], state["g"]
            (0, 1)
        """
        self._begin()
        return self._take(self._at.next)

    def state_after(self, cursor: Cursor | np.ndarray[Any, Any]) -> State:
        """The state after the batch whose `__cursor__` is `cursor`. Acknowledges nothing.

        Args:
            cursor: Epoch and number of a batch, or the field of a batch that a loader with `keys=True` gave.

        Example:
            >>> with gm.numpy.Loader(pipeline, epochs=1, keys=True) as other:
            ...     batch = next(iter(other))
            ...     other.state_after(batch["__cursor__"])["g"]
            1
        """
        epoch, g = (int(part) for part in cursor)
        return {"version": VERSION, **json.loads(self._begin().job.checkpoint(epoch, g))}

    def checkpointed(self, state: Mapping[str, Any]) -> None:
        """Says that `state` is stored safely: the service may forget the batches before it.

        Args:
            state: What `state_dict` or `state_after` returned.

        Example:
            >>> state = loader.state_dict()
            >>> loader.checkpointed(state)
        """
        reader = self._begin()
        reader.stream.acknowledge(*reader.job.position(text_of(state)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter()` goes on at `state`, in the middle of an epoch too.

        Args:
            state: What `state_dict` of a loader of this pipeline returned, in any process.

        Raises:
            CheckpointError: It is no state of this loader's job; here, or when the loader starts.

        Example:
            >>> epoch = iter(loader)
            >>> next(epoch)["x"].tolist()
            [0, 1, 2, 3, 4, 5, 6, 7]
            >>> state = loader.state_dict()
            >>> next(epoch)["x"].tolist()
            [8, 9, 10, 11, 12, 13, 14, 15]
            >>> loader.load_state_dict(state)
            >>> next(iter(loader))["x"].tolist()
            [8, 9, 10, 11, 12, 13, 14, 15]
        """
        loaded = json.loads(text_of(state))
        if self._job_name not in (None, loaded["job"]):
            raise CheckpointError(
                f"the state is of job {loaded['job']}, and this loader reads job {self._job_name}: "
                "load a state of that job"
            )
        if self._reader is not None and self._reader.job.name == loaded["job"]:
            self._reader.job.position(text_of(state))
        is_wanted = self._taken is not None
        reader, self._reader = self._reader, None
        self._loaded, self._name = {"version": VERSION, **loaded}, loaded["job"]
        self._taken = (loaded["epoch"], loaded["g"])
        self._acknowledges = "state"
        self._go_to(self._taken)
        self._opening.interrupt()
        if reader is not None and reader.job.name == loaded["job"]:
            reader.close()
        elif reader is not None:
            reader.end(is_wanted=is_wanted)

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` delivers `epoch`; the rest of the present one is passed over.

        Args:
            epoch: Its number, from 0.

        Raises:
            OptionError: It is before the present one.

        Example:
            >>> loader.set_epoch(1)
            >>> loader.epoch
            1
        """
        if isinstance(epoch, (bool, float, str)) or not hasattr(epoch, "__index__"):
            raise OptionError(f"set_epoch({epoch!r}): the epoch is a whole number from 0")
        present, g = self._position()
        is_inside = self._at.is_inside
        if epoch < present or (epoch == present and g and not is_inside and self._loaded is None):
            raise OptionError(
                f"set_epoch({epoch}): the loader is in epoch {present}, and epochs go forward; load a state"
            )
        if epoch > present:
            self._begin()
            self._go_to((epoch, 0))
        elif self._on_break == "next":
            self._at.is_inside = False

    # The end.

    def stats(self) -> Stats:
        """Batches handed over, seconds waited for them, workers, bytes fetched, and bytes of memory.

        `waiting_for` is there while the program waits. `prefetch_bytes` is the bound for objects ahead of the trainer,
        `local_bytes` what splits of local workers take until they are read.

        Example:
            >>> batch = next(iter(loader))
            >>> loader.stats()["batches"]
            1
        """
        now, asked, reader = time.monotonic(), self._asked, self._reader
        found: Stats = {
            "batches": self._batches,
            "waited_s": self._waited + (0.0 if asked is None else now - asked),
            "elapsed_s": now - self._began,
        }
        if reader is not None:
            found |= cast(Stats, reader.stream.stats())
        if asked is not None or self._opening.is_running:
            found["waiting_for"] = "the job to start" if reader is None else reader.stream.waiting()
        return found

    def close(self, *, abandon: bool = False) -> None:
        """Ends the loader. A finished job is closed; one that no state can return to is stopped.

        Args:
            abandon: Leaves the job as it is, and waits for nothing.

        Example:
            >>> loader.close()
            >>> len(loader)
            Traceback (most recent call last):
            gristmill.Error: the loader is closed
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        at = self._at.next
        self._go_to(at)
        self._opening.interrupt()
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
        is_over = at[0] >= reader.epochs or at == (reader.epochs - 1, count)
        if is_over:
            # The trainer has come to the end of the job: nothing goes on from an earlier state.
            reader.stream.acknowledge_all()
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
            "_opening": None,
            "_at": self._at.next,
            "_asked": None,
            "_loaded": self.state_after(self._at.next) if self._reader else self._loaded,
            "_progress": self._progress and Progress(),
        }
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._at, self._opening = Place(state["_at"]), _reader.Opening()
        self._pid = os.getpid()

    # Inside.

    def _position(self) -> Cursor:
        # A job with a name may have come further before.
        if self._reader is None and self._loaded is None and self._job_name is not None:
            self._begin()
        return self._at.next

    def _begin(self) -> _reader.Reader:
        """The reader of the job, which is started or joined if it is not open."""
        self._check_process()
        reader = self._reader
        if reader is not None:
            return reader
        with self._opening.entered(self._check_process, lambda: self._reader is not None) as interrupt:
            if self._reader is None:
                self._open(interrupt)
            reader = self._reader
        if reader is None:
            self._check_process()
            raise Error(_IS_OVER)
        return reader

    def _check_process(self) -> None:
        if self._closed:
            raise Error(_IS_CLOSED)
        if self._pid != os.getpid():
            raise Error(
                "the loader was made before this process was forked: use it in one process alone, with num_workers=0"
            )

    def _open(self, interrupt: _native.Interrupt) -> None:
        loaded = self._loaded
        try:
            with _service.used_by_loader(self._service, self._ranks.world_size, interrupt) as service:
                reader = _reader.open_reader(
                    service,
                    self._pipeline,
                    self._flags,
                    job=(self._job_name or self._ranks_job) if loaded is None else loaded["job"],
                    state=None if loaded is None else text_of(loaded),
                    is_named=self._job_name is not None,
                    ranks=self._rank_flags,
                    interrupt=interrupt,
                )
        except PipelineError as error:
            raise self._pipeline.located(error) from None
        except OptionError as error:
            other = _OTHER_JOB.match(str(error))
            if loaded is None or other is None:
                raise
            name, saved, given = other.groups()
            raise CheckpointError(
                f"the state was saved with {name} {saved}, and this loader has {given}: load it into a loader with the "
                f"same {name}, or begin without it"
            ) from None
        self._reader, self._name, self._at = reader, reader.job.name, Place(reader.begin)
        # Another thread, or a signal handler, may have been faster.
        if self._closed or self._loaded is not loaded:
            if self._reader is reader:
                self._reader = None
            if self._loaded is not None:
                self._at = Place((self._loaded["epoch"], self._loaded["g"]))
            reader.close()
            raise Error(_IS_CLOSED if self._closed else _IS_OVER)

    def _take(self, cursor: Cursor) -> State:
        """The state at `cursor`, which is not after the batches handed over. Acknowledges the state taken before."""
        self._acknowledges = "state"
        if self._taken is not None and self._taken < cursor:
            self._begin().stream.acknowledge(*self._taken)
        self._taken = cursor
        return self.state_after(cursor)

    def _go_to(self, to: Cursor) -> None:
        """The next iteration begins at `to`: the present one ends."""
        before, self._at = self._at, Place(to)
        before.leave()


# No method: batches that a thread waits for would keep their loader alive.
def _refuse_empty(ranks: _ranks.Ranks, allow_empty: bool, end: _native.EpochEnd, epoch: int) -> None:
    """Raises OptionError for an epoch without batches."""
    why = end.why_empty
    if why is None:
        each = "ranks" if ranks.replicas is None else "data ranks"
        why = f"its {end.batches} batches are fewer than the {ranks.data_ranks} {each}"
        if end.left_out == 0:
            # The tail is uneven, and other ranks have them.
            _LOG.warning("epoch %d has no batch for rank %d: %s", epoch, ranks.rank, why)
            return
        why += ', and tail="drop" leaves them out'
    if not allow_empty:
        raise OptionError(f"epoch {epoch} has no batches: {why}; give allow_empty=True if that is meant")
