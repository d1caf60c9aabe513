"""Batches as a Grain dataset."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Unpack

import grain

from . import _batches, _loader
from . import numpy as gm_numpy
from ._options import LoaderOptions, checks_options
from .errors import OptionError
from .pipeline import Pipeline

__all__ = ["dataset"]


@checks_options
def dataset(
    pipeline: Pipeline | str | os.PathLike[str], *, keep: int | None = None, **options: Unpack[LoaderOptions]
) -> grain.IterDataset:
    """A `grain.IterDataset` of batches: dicts of numpy arrays, of one epoch after the other.

    Each iterator of it has a loader of its own. Its state is that of the loader (texts and integers), and an
    iterator of any process can go on from it; Orbax saves and restores it. Grain takes states that are never
    saved, so taking one acknowledges nothing.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        keep: Batches before the newest one that stay in the service's storage for states to go back to; for
            an older state they are computed again, in a new job, or with several ranks it is refused. Choose
            more than lie between two checkpoints. Default: all stay until the job ends.
        options: Those of `gm.LoaderOptions`.

    Raises:
        OptionError: An option cannot be used, or the data is not there.
        PipelineError: The pipeline is wrong.

    Example:
        >>> iterator = iter(gm.grain.dataset(pipeline, epochs=1).map(lambda batch: int(batch["x"].sum())))
        >>> next(iterator), next(iterator)
        (28, 92)
        >>> iterator.close()
    """
    if keep is not None and keep < 0:
        raise OptionError(f"keep must be 0 or more, not {keep}")
    if TYPE_CHECKING:
        # Editors that follow calls find the options.
        gm_numpy.Loader(pipeline, **options)
    return _Dataset(Pipeline._of(pipeline).check(options.get("data")), keep, options)


class _Dataset(grain.IterDataset):
    def __init__(self, pipeline: Pipeline, keep: int | None, options: LoaderOptions) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._keep = keep
        self._options = options

    def __iter__(self) -> grain.DatasetIterator:
        options: LoaderOptions = {**self._options}
        if self._keep is not None:
            options.setdefault("acknowledge", "state")
        return _Iterator(gm_numpy.Loader(self._pipeline, **options), self._keep)


class _Iterator(grain.DatasetIterator):
    def __init__(self, loader: _loader.Loader[Any], keep: int | None) -> None:
        super().__init__()
        self._loader = loader
        self._keep = keep
        self._handed: deque[_batches.Cursor] = deque()  # the cursors of the last batches, no more than `keep`
        self._state: dict[str, Any] | None = None  # None: the one after the last batch
        self._is_stated = False
        self._batches: Any = None

    def __next__(self) -> Any:
        self._assert_not_closed()
        while True:
            if self._batches is None:
                if self._loader.epochs is not None and self._loader.epoch >= self._loader.epochs:
                    raise StopIteration
                self._batches = iter(self._loader)
            batch = next(self._batches, None)
            if batch is not None:
                break
            self._batches = None
        self._state = None
        self._acknowledge()
        return batch

    def get_state(self) -> dict[str, Any]:
        if not self._is_stated:
            # From now on, the service keeps the batches.
            self._state, self._is_stated = self._loader.state_dict(), True
        if self._state is None:
            self._state = self._loader.state_after(self._loader.cursor)
        return dict(self._state)

    def set_state(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._state, self._is_stated = dict(state), True
        self._batches = None
        self._handed.clear()

    def close(self) -> None:
        if not self._closed:
            # Another iterator may go on from a state of this one.
            self._loader.close(abandon=self._is_stated)
        super().close()

    def _acknowledge(self) -> None:
        if self._keep is None:
            return
        self._handed.append(self._loader.cursor)
        if len(self._handed) > self._keep:
            self._loader.checkpointed(self._loader.state_after(self._handed.popleft()))
