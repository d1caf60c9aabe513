"""Batches as JAX arrays.

For example:
    import gristmill as gm, gristmill.jax

    with gm.jax.Loader(pipeline, epochs=90) as loader:
        for batch in loader:                  # dict[str, jax.Array]
            state = train_step(state, batch["image"], batch["label"])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from . import _batches, _loader
from .errors import OptionError

__all__ = ["Loader"]

_WIDE = {"i": np.int32, "u": np.uint32}


class Loader(_loader.Loader[dict[str, Any]]):
    """An iterable of batches, each a dict of JAX arrays.

    The options are those of `gm.numpy.Loader`, and:

    device: a `jax.Device` on which the arrays are placed. Without it they are on JAX's default
        device, and not committed to it, as those of `jax.numpy.asarray`.
    sharding: a `jax.sharding.Sharding` of all fields, or a dict of field to sharding; a field that
        the dict lacks is on the default device. With several JAX processes, the rows of this
        process are its part of a global array, which has the rows of all.
    ahead: how many batches are put on the device before they are asked for: by default 1, and 0
        where the device is a CPU.

    On a CPU an array at a multiple of 64 bytes is not copied; others are copied once.
    JAX has no 64-bit types unless `jax_enable_x64` is set: f64 fields become f32, and i64 and u64
    fields become i32 and u32; a value outside of these raises `OptionError`. fields whose
    names begin with `__` stay numpy arrays.

    Where `jax.distributed` is initialised, rank and world size are those of the JAX process; `run` names
    their run.
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        device: jax.Device | None = None,
        sharding: jax.sharding.Sharding | Mapping[str, jax.sharding.Sharding] | None = None,
        ahead: int | None = None,
        **options: Any,
    ) -> None:
        if device is not None and sharding is not None:
            raise OptionError("device and sharding exclude each other")
        if ahead is not None and ahead < 0:
            raise OptionError(f"ahead must be 0 or more, not {ahead}")
        if not {"rank", "world_size"} & options.keys() and jax.distributed.is_initialized():
            options |= {"rank": jax.process_index(), "world_size": jax.process_count()}
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
        return {name: self._place(name, array) for name, array in arrays.items()}

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
