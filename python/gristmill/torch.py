"""Batches as PyTorch tensors: `Loader` for a training loop, `Dataset` for code that wants a DataLoader."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import torch.utils.data

from . import _loader
from ._arrays import listed
from ._device import Device, Prefetch, Tensors
from ._options import LoaderOptions, checks_options
from .errors import OptionError
from .pipeline import Pipeline

__all__ = ["Dataset", "Loader", "TorchOptions"]


class TorchOptions(LoaderOptions, total=False):
    """The options of `gm.torch.Loader`, which other loaders of torch tensors take as well.

    Example:
        >>> sorted(gm.torch.TorchOptions.__annotations__.keys() - gm.LoaderOptions.__annotations__.keys())
        ['channels_first', 'device', 'normalise']
    """

    device: str | torch.device | int | None
    """A torch device, or its name, that batches are copied to. Default: none, and batches stay in host memory."""
    normalise: bool | None
    """Whether the pipeline's `deliver` is applied on `device`. Default: yes if there is a device."""
    channels_first: bool | str | Sequence[str]
    """Images [n, h, w, c] become views [n, c, h, w]: all, or those of the fields named. Default: False."""


class Loader(_loader.Loader[Tensors]):
    """Batches of a pipeline as dicts of torch tensors. Iterating it yields the batches of one epoch.

    Each tensor has a leading batch dimension and the dtype of its field. It is writable and shares the memory
    that the batch arrived in, without a copy. Ragged fields are two tensors: `name` (the values of all
    rows) and `name.offsets`. `state_dict()` is the state of the batches handed to the caller; those copied
    ahead are not part of it.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        device: A torch device, or its name, that batches are copied to. One thread copies them ahead of the
            caller; at most three batches wait on the device. For CUDA the copies run on a stream of their own,
            out of the fetcher's buffers, which are registered with CUDA when they are first met; what cannot be
            registered goes through three pinned buffers. Fields whose names begin with `__` stay on the host.
            None: batches stay in host memory, as they arrived.
        normalise: Whether `.deliver(normalise=...)` of the pipeline is applied on `device`: its field, u8 or f32
            [n, h, w, c], becomes f32 of the same shape, (x / 255 - mean) / std. Default: yes if there is a
            device. Without one it is refused, and images stay u8.
        channels_first: Images [n, h, w, c] become views [n, c, h, w], in memory as torch's channels_last. True:
            all fields of four dimensions with 1, 3 or 4 channels. A name or several: these fields, whose last
            dimension becomes the third to last.
        options: Those of `gm.LoaderOptions`.

    Raises:
        OptionError: An option cannot be used, options do not fit together, or the data is not there.
        PipelineError: The pipeline is wrong.

    Example:
        >>> pipeline = gm.images("pictures").decode().resize(8).batch(4)
        >>> with gm.torch.Loader(pipeline, epochs=1, channels_first=True) as loader:
        ...     batch = next(iter(loader))
        >>> batch["image"].shape, batch["label"].dtype
        (torch.Size([4, 3, 8, 8]), torch.int64)
    """

    @checks_options
    def __init__(
        self,
        pipeline: Pipeline | str | os.PathLike[str],
        *,
        device: str | torch.device | int | None = None,
        normalise: bool | None = None,
        channels_first: bool | str | Sequence[str] = False,
        **options: Unpack[LoaderOptions],
    ) -> None:
        if device is None and normalise:
            raise OptionError("normalise needs a device: give device='cuda', or 'cpu'")
        self._target = _target(device)
        self._is_normalised = self._target is not None and normalise is not False
        self._channels_first = channels_first
        self._layout: _Layout | None = None
        self._device: Device | None = None
        super().__init__(pipeline, **options)

    def _convert(self, arrays: dict[str, np.ndarray]) -> Tensors:
        if self._layout is None:
            self._layout = self._make_layout()
        return self._layout.views(self._layout.tensors(arrays))

    def _wrap(self, batches: Any) -> Any:
        if self._target is None:
            return super()._wrap(batches)
        if self._layout is None or self._device is None:
            self._layout = self._make_layout()
            self._device = Device(self._target, self._layout.finish)
        return Prefetch(_Tensors(self._layout, batches), self._device)

    def stats(self) -> _loader.Stats:
        """As that of `gm.numpy.Loader`. On a GPU of CUDA it has `pinned_bytes` and `staged_bytes` too.

        Example:
            >>> gm.torch.Loader(pipeline, device="cpu").stats()["batches"]
            0
        """
        found, device = super().stats(), self._device
        if device is not None and device.buffers is not None:
            found |= {"pinned_bytes": device.buffers.nbytes, "staged_bytes": device.staged_bytes}
        return found

    def close(self, *, abandon: bool = False) -> None:
        """As that of `gm.numpy.Loader`; the fetcher's buffers are not registered with CUDA any more.

        Args:
            abandon: Leaves the job as it is, and waits for nothing.

        Example:
            >>> gm.torch.Loader(pipeline).close()
        """
        try:
            super().close(abandon=abandon)
        finally:
            if self._device is not None:
                self._device.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_layout": None, "_device": None}

    def _make_layout(self) -> _Layout:
        fields = self.schema()["fields"]
        bf16 = {name for name, field in fields.items() if field["dtype"] == "bf16"}
        normalise = json.loads(self._begin().job.pipeline)["deliver"]["normalise"]
        return _Layout(bf16, self._channels_first, normalise if self._is_normalised else None)


class _Layout:
    """How arrays become tensors. It does not refer to the loader, which a waiting thread would keep alive."""

    def __init__(
        self, bf16: Set[str], channels_first: bool | str | Sequence[str], normalise: dict[str, Any] | None
    ) -> None:
        self._bf16 = bf16
        self._all_images = channels_first is True
        named = () if isinstance(channels_first, bool) else channels_first
        self._images = (named,) if isinstance(named, str) else tuple(named)
        self._normalise = normalise
        self._affine: tuple[torch.Tensor, torch.Tensor] | None = None

    def tensors(self, arrays: dict[str, np.ndarray]) -> Tensors:
        return {name: _tensor(array, name in self._bf16) for name, array in arrays.items()}

    def views(self, tensors: Tensors) -> Tensors:
        tensors = listed(tensors)
        if self._all_images:
            return {name: _channels_first(t) if _is_image(t) else t for name, t in tensors.items()}
        for name in self._images:
            found = tensors.get(name)
            if found is None or not (isinstance(found, list) or found.ndim >= 4):
                raise OptionError(f"channels_first: `{name}` is no field of images [n, h, w, c]")
            tensors[name] = _channels_first(found)
        return tensors

    def finish(self, tensors: Tensors) -> Tensors:
        """What is done on the device."""
        if self._normalise is None:
            return self.views(tensors)
        image = tensors[self._normalise["field"]]
        if self._affine is None:
            self._affine = _affine(self._normalise, image.device)
        factor, addend = self._affine
        # One multiplication and one addition in f32, as the operator does: the bytes are equal.
        pixels = image.view(-1, len(factor)) if image.ndim == 1 else image
        made = pixels.to(torch.float32, copy=True).mul_(factor).add_(addend)
        tensors[self._normalise["field"]] = made.view(image.shape)
        return self.views(tensors)


class _Tensors:
    """Batches of arrays as batches of tensors on the host."""

    def __init__(self, layout: _Layout, batches: Any) -> None:
        self._layout, self._batches = layout, batches
        self.close = batches.close

    def __iter__(self) -> _Tensors:
        return self

    def __next__(self) -> tuple[Tensors, Any]:
        arrays, mark = next(self._batches)
        return self._layout.tensors(arrays), mark


class Dataset(torch.utils.data.IterableDataset[Tensors]):
    """A pipeline as an iterable dataset of whole batches, for code that insists on a DataLoader.

    `torchdata.stateful_dataloader.StatefulDataLoader(ds, batch_size=None, num_workers=0)` saves and restores
    its position exactly; `torch.utils.data.DataLoader` takes the same two arguments. `batch_size=None` is
    needed, as the pipeline makes the batches. An iteration is one epoch of dicts as `Loader` yields them;
    `len()` is the number of batches of an epoch. The loader begins when it is first used.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        options: Those of `gm.torch.Loader`.

    Raises:
        OptionError: An option cannot be used, the data is not there, or a worker of a DataLoader reads it: each
            worker would deliver all batches.
        PipelineError: The pipeline is wrong.

    Example:
        >>> dataset = gm.torch.Dataset(pipeline, epochs=1)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=None)
        >>> [int(batch["x"][0]) for batch in loader]
        [0, 8, 16, 24, 32, 40, 48, 56]
        >>> dataset.close()
    """

    @checks_options
    def __init__(self, pipeline: Pipeline | str | os.PathLike[str], **options: Unpack[TorchOptions]) -> None:
        super().__init__()
        if TYPE_CHECKING:
            # Editors that follow calls find the options.
            Loader(pipeline, **options)
        self._pipeline, self._options = Pipeline._of(pipeline).check(options.get("data")), options
        self._loader: Loader | None = None
        self._state: dict[str, Any] | None = None

    @property
    def loader(self) -> Loader:
        """The loader that batches come from.

        Example:
            >>> gm.torch.Dataset(pipeline, epochs=1).loader.epochs
            1
        """
        if torch.utils.data.get_worker_info() is not None:
            raise OptionError("DataLoader workers cannot read a gristmill.torch.Dataset: give num_workers=0")
        if self._loader is None:
            self._loader = Loader(self._pipeline, **self._options)
            if self._state is not None:
                self._loader.load_state_dict(self._state)
                self._state = None
        return self._loader

    def __iter__(self) -> Iterator[Tensors]:
        return iter(self.loader)

    def __len__(self) -> int:
        """Batches of an epoch.

        Example:
            >>> len(gm.torch.Dataset(pipeline, epochs=1))
            8
        """
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The state after the batches handed out.

        Example:
            >>> gm.torch.Dataset(pipeline, epochs=1).state_dict()["g"]
            0
        """
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where `state` was taken.

        Args:
            state: What `state_dict` returned.

        Example:
            >>> state = gm.torch.Dataset(pipeline, epochs=1).state_dict()
            >>> gm.torch.Dataset(pipeline, epochs=1).load_state_dict(state)
        """
        if self._loader is None:
            self._state = dict(state)
        else:
            self._loader.load_state_dict(state)

    def close(self) -> None:
        """Closes the loader.

        Example:
            >>> gm.torch.Dataset(pipeline).close()
        """
        if self._loader is not None:
            self._loader.close()


def _target(device: str | torch.device | int | None) -> torch.device | None:
    """The device of that name. Raises OptionError if there is none."""
    if device is None:
        return None
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device={device!r}: {str(error).splitlines()[0]}") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device={device!r}: torch finds no GPU")
    return target


def _tensor(array: np.ndarray, is_bf16: bool) -> torch.Tensor:
    """A tensor on the memory of `array`."""
    if not array.flags.aligned:
        array = array.copy()
    if is_bf16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _is_image(value: Any) -> bool:
    if isinstance(value, list):
        return all(tensor.shape[-1] in (1, 3, 4) for tensor in value)
    return value.ndim == 4 and value.shape[-1] in (1, 3, 4)


def _channels_first(value: Any) -> Any:
    if isinstance(value, list):
        return [tensor.movedim(-1, -3) for tensor in value]
    return value.movedim(-1, -3)


def _affine(normalise: dict[str, Any], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What each channel is multiplied by, and what is added."""
    pairs = list(zip(normalise["mean"], normalise["std"], strict=True))
    factor = torch.tensor([1.0 / (255.0 * std) for _, std in pairs], dtype=torch.float32, device=device)
    addend = torch.tensor([-mean / std for mean, std in pairs], dtype=torch.float32, device=device)
    return factor, addend
