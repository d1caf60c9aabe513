"""Batches as TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from . import _loader
from ._arrays import listed
from .errors import OptionError

__all__ = ["Loader", "dataset"]

_ALIGNMENT = 64  # bytes; TensorFlow ends the process where DLPack's memory is not at a multiple of it
_DTYPES = {
    "bytes": tf.uint8,
    "u8": tf.uint8,
    "f16": tf.float16,
    "bf16": tf.bfloat16,
    "f32": tf.float32,
    "f64": tf.float64,
    "u16": tf.uint16,
    "i32": tf.int32,
    "u32": tf.uint32,
    "i64": tf.int64,
    "u64": tf.uint64,
}


class Loader(_loader.Loader[dict[str, tf.Tensor]]):
    """An iterable of batches, each a dict of eager tensors in the memory of the CPU.

    An array at a multiple of 64 bytes is not copied; others are copied once. TensorFlow copies a tensor to a
    GPU when an operation there uses it.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        options: Those of `gm.LoaderOptions`.

    Raises:
        OptionError: An option cannot be used, or the data is not there.
        PipelineError: The pipeline is wrong.

    Example:
        >>> with gm.tf.Loader(pipeline, epochs=1) as loader:
        ...     int(tf.reduce_sum(next(iter(loader))["x"]))
        28
    """

    def _convert(self, arrays: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
        return {
            name: [_tensor(array) for array in value] if isinstance(value, list) else _tensor(value)
            for name, value in listed(arrays).items()
        }


def dataset(loader: _loader.Loader[Any]) -> tf.data.Dataset:
    """A `tf.data.Dataset` of the loader's batches: each iteration of it is one epoch of the loader.

    Its `element_spec` is a dict of field to `tf.TensorSpec`, in which the number of rows and the sizes in
    which elements differ are open.

    The loader's state counts the batches that tf.data has taken, which with `prefetch` are more
    than were trained on: then use a loader with `keys=True` and `acknowledge="state"`, and save
    `loader.state_after(batch["__cursor__"])`.

    Args:
        loader: A loader of any class, such as `gm.numpy.Loader`.

    Example:
        >>> with gm.tf.Loader(pipeline, epochs=1) as loader:
        ...     for batch in gm.tf.dataset(loader).take(1):
        ...         print(batch["x"].shape)
        (8,)
    """
    spec = _element_spec(loader)

    def batches() -> Iterator[dict[str, Any]]:
        yield from loader

    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def _element_spec(loader: _loader.Loader[Any]) -> dict[str, tf.TensorSpec]:
    spec = {}
    for name, field in loader.schema()["fields"].items():
        if name.startswith("__") and not loader._keys:
            continue
        dtype, shape = _DTYPES[field["dtype"]], field["shape"]
        if None in shape[1:]:
            raise OptionError(f"field {name}: images of different sizes are lists; iterate the loader, or resize them")
        if field["dtype"] == "bytes" or (shape and shape[0] is None):
            # Ragged: the items of all rows, and where each row begins.
            spec[name] = tf.TensorSpec([None, *shape[1:]], dtype)
            spec[name + ".offsets"] = tf.TensorSpec([None], tf.uint64)
        else:
            spec[name] = tf.TensorSpec([None, *shape], dtype)
    if loader._keys:
        spec["__repeat__"] = tf.TensorSpec([None], tf.bool)
        spec["__cursor__"] = tf.TensorSpec([2], tf.int64)
    return spec


def _tensor(array: np.ndarray) -> tf.Tensor:
    """The array as a tensor, which owns it if its memory need not be copied."""
    if array.size == 0 or array.ctypes.data % _ALIGNMENT or not array.flags.c_contiguous:
        return tf.convert_to_tensor(array)
    if array.dtype.name == "bfloat16":  # numpy does not pass it by DLPack
        return tf.bitcast(_tensor(array.view(np.uint16)), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
