"""The loader that takes the place of another library's: its batches are lists, [images, labels]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Unpack

import numpy as np
import torch

from .. import _ranks
from .. import torch as adapter
from .._options import SharedOptions, checks_options
from ..errors import OptionError
from ..pipeline import Pipeline

__all__ = ["SwitchOptions", "TupleLoader", "world_size"]


def world_size() -> int:
    """How many ranks there are, by torch.distributed or the environment."""
    return _ranks.find(None, None, "any").world_size


class SwitchOptions(SharedOptions, total=False):
    """The options of `from_webdataset`, and with `batch_size` those of `from_dataloader`."""

    sharding: Literal["dynamic", "off"] | None
    """Content of an epoch: the dataset once, or with "off" once for each worker. Default: "dynamic"."""
    device: str | torch.device | int | None
    """A torch device, or its name, that batches are copied to. Default: none, and batches stay in host memory."""


class TupleLoader(adapter.Loader):
    """A `gristmill.torch.Loader` whose batches are lists of tensors, as torch's `default_collate` makes them.

    `for images, labels in loader` is one epoch. Images are [n, c, h, w] in contiguous memory.

    Args:
        pipeline: The `gm.Pipeline` that was made.
        fields: The fields of a batch, in the order of its list.
        batch_size: Rows of a batch.
        dataset: The dataset that was given, which is not read from; None if there was none.
        sampler: A sampler whose `set_epoch` is followed; None if there was none.
        options: Those of `gm.torch.Loader`.

    Attributes:
        pipeline: The pipeline; `print(loader.pipeline.to_yaml())` shows it.
        dataset: The dataset.
        batch_size: Rows of a batch.

    Example:
        >>> pipeline = gm.images("pictures").decode().resize(8).layout(to="nchw").batch(4)
        >>> with gm.switch.TupleLoader(pipeline, fields=("image", "label"), batch_size=4, epochs=1) as loader:
        ...     for images, labels in loader:
        ...         pass
        >>> images.shape
        torch.Size([4, 3, 8, 8])
    """

    @checks_options
    def __init__(
        self,
        pipeline: Pipeline,
        *,
        fields: Sequence[str],
        batch_size: int,
        dataset: Any = None,
        sampler: Any = None,
        **options: Unpack[SwitchOptions],
    ) -> None:
        for name in ("keys", "channels_first", "normalise"):
            if name in options:
                raise OptionError(f"{name} is no option here: give it to gm.torch.Loader(loader.pipeline)")
        self._fields = tuple(fields)
        self.pipeline = pipeline
        self.batch_size = batch_size
        self.dataset = dataset
        self._sampler = sampler
        # The epoch of the sampler when it was last looked at.
        self._sampled = 0
        super().__init__(pipeline, channels_first=options.get("device") is not None, **options)

    def __iter__(self) -> Iterator[Any]:
        """One epoch: the next one, or that of `sampler.set_epoch`, if it was called since the last iteration.

        Raises:
            OptionError: That is an epoch before.
        """
        if self._sampler is not None and self._sampler.epoch != self._sampled:
            self._sampled = self._sampler.epoch
            self.set_epoch(self._sampled)
        return super().__iter__()

    def _listed(self, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [tensors[name].contiguous() for name in self._fields]

    def _convert(self, arrays: dict[str, np.ndarray]) -> Any:
        return self._listed(super()._convert(arrays))

    def _wrap(self, batches: Any) -> Any:
        wrapped = super()._wrap(batches)
        return wrapped if self._target is None else _Listed(wrapped, self._listed)


class _Listed:
    """Batches of dicts that were copied to a device, as lists."""

    def __init__(self, batches: Any, listed: Any) -> None:
        self._batches, self._listed = batches, listed
        self.close = batches.close

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        tensors, mark = next(self._batches)
        return self._listed(tensors), mark
