"""Batches as JAX arrays."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Unpack

import jax
import numpy as np

from . import _batches, _loader
from ._arrays import listed
from ._options import CommonOptions, checks_options
from .errors import OptionError
from .pipeline import Pipeline

__all__ = ["Loader"]

_WIDE = {"i": np.int32, "u": np.uint32}


class Loader(_loader.Loader[dict[str, Any]]):
    """An iterable of batches, each a dict of JAX arrays.

    On a CPU an array at a multiple of 64 bytes is not copied; others are copied once.
    JAX has no 64-bit types unless `jax_enable_x64` is set: f64 fields become f32, and i64 and u64
    fields become i32 and u32; a value outside of these raises `OptionError`. Fields whose
    names begin with `__` stay numpy arrays.

    If `jax.distributed` is initialised, rank and world size are those of the JAX process; `run` names
    their run.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        device: A `jax.Device` on which the arrays are placed. Without it they are on JAX's default
            device, and not committed to it, as those of `jax.numpy.asarray`.
        sharding: A `jax.sharding.Sharding` of all fields, or a dict of field to sharding; a field that
            the dict lacks is on the default device. With several JAX processes, the rows of this
            process are its part of a global array, which has the rows of all.
        ahead: Batches that are put on the device before they are asked for. Default: 1, and 0
            where the device is a CPU.
        options: Those of `gm.LoaderOptions`, but its `sharding`.

    Raises:
        OptionError: An option cannot be used, options do not fit together, or the data is not there.
        PipelineError: The pipeline is wrong.

    Example:
        >>> with gm.jax.Loader(pipeline, epochs=1) as loader:
        ...     next(iter(loader))["x"]
        Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """

    @checks_options
    def __init__(
        self,
        pipeline: Pipeline | str | os.PathLike[str],
        *,
        device: jax.Device | None = None,
        sharding: jax.sharding.Sharding | Mapping[str, jax.sharding.Sharding] | None = None,
        ahead: int | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        if device is not None and sharding is not None:
            raise OptionError("device and sharding exclude each other")
        if ahead is not None and ahead < 0:
            raise OptionError(f"ahead must be 0 or more, not {ahead}")
        if not {"rank", "world_size", "mesh"} & options.keys() and jax.distributed.is_initialized():
            options["rank"], options["world_size"] = jax.process_index(), jax.process_count()
        self._device = device
        self._sharding = sharding
        self._ahead = int(not self._on_cpu()) if ahead is None else ahead
        super().__init__(pipeline, **options)

    def _on_cpu(self) -> bool:
        shardings = self._sharding.values() if isinstance(self._sharding, Mapping) else [self._sharding]
        devices: list[Any] = [device for sharding in shardings if sharding for device in sharding.device_set]
        return all(device.platform == "cpu" for device in devices or [self._device or jax.devices()[0]])

    def _wrap(self, batches: Iterable[tuple[_batches.Arrays, _batches.Mark]]) -> Iterator[tuple[Any, _batches.Mark]]:
        waiting: deque[tuple[Any, _batches.Mark]] = deque()
        for arrays, mark in batches:
            waiting.append((self._convert(arrays), mark))
            if len(waiting) > self._ahead:
                yield waiting.popleft()
        yield from waiting

    def _convert(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: self._placed(name, value) for name, value in listed(arrays).items()}

    def _placed(self, name: str, value: Any) -> Any:
        return [self._place(name, array) for array in value] if isinstance(value, list) else self._place(name, value)

    def _place(self, name: str, array: np.ndarray) -> Any:
        if name.startswith("__"):
            return array
        _check_width(name, array)
        sharding = self._sharding.get(name) if isinstance(self._sharding, Mapping) else self._sharding
        if sharding is None:
            # Without a copy where the memory is aligned; the result then owns `array`.
            return jax.device_put(array, self._device)
        if jax.process_count() > 1:
            return jax.make_array_from_process_local_data(sharding, array)  # type: ignore[no-untyped-call]
        return jax.device_put(array, sharding)


def _check_width(name: str, array: np.ndarray) -> None:
    """JAX wraps 64-bit integers to 32 bits without a word; this refuses those that would change."""
    is_wide = array.dtype.kind in _WIDE and array.dtype.itemsize == 8
    if not is_wide or array.size == 0 or jax.config.jax_enable_x64:
        return
    limits = np.iinfo(_WIDE[array.dtype.kind])
    low, high = array.min(), array.max()
    if low < limits.min or high > limits.max:
        raise OptionError(
            f"field {name}: {low if low < limits.min else high} does not fit {limits.dtype}; "
            'set jax.config.update("jax_enable_x64", True)'
        )
