"""The tensors of a batch as numpy arrays over the fetcher's buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _native

#: Suffix of the field that has the shapes of another.
SHAPES = ".shapes"

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "F16": np.dtype(np.float16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "F32": np.dtype(np.float32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F64": np.dtype(np.float64),
}


def dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a safetensors dtype; bf16 is ml_dtypes' if that is installed, else uint16."""
    known = _DTYPES.get(name)
    if known is None:
        known = _bf16() if name == "BF16" else np.dtype(name.lower())
        _DTYPES[name] = known
    return known


def _bf16() -> np.dtype[Any]:
    try:
        import ml_dtypes  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return np.dtype(np.uint16)
    return np.dtype[Any](ml_dtypes.bfloat16)


def arrays_of(batch: _native.Batch, keys: bool) -> dict[str, np.ndarray[Any, Any]]:
    """The fields of `batch`, each [rows, ...]; with `keys`, `__key__` and `__copy__` as well.

    The arrays share the buffer of the batch, are writable, and keep it alive. A field of images of different
    sizes is flat, and `field.shapes` has their shapes: `listed` makes a list of them.
    """
    array = np.ndarray
    get = _DTYPES.get
    arrays = {}
    for name, kind, shape, offset in batch.tensors:
        if not keys and (name == "__key__" or name == "__copy__"):
            continue
        arrays[name] = array(shape, get(kind) or dtype(kind), batch, offset)  # type: ignore[arg-type]
    for name in flat_fields(arrays):
        # The shapes say as much.
        del arrays[f"{name}.offsets"]
    return arrays


def flat_fields(batch: Mapping[str, Any]) -> list[str]:
    """The fields of images of different sizes."""
    names = [name[: -len(SHAPES)] for name in batch if name.endswith(SHAPES)]
    return [name for name in names if name in batch and batch[name].ndim == 1]


def listed(batch: dict[str, Any]) -> dict[str, Any]:
    """`batch`, with lists of images in place of flat fields: views of arrays or tensors."""
    for name in flat_fields(batch):
        flat, begin, images = batch[name], 0, []
        for shape in batch.pop(name + SHAPES).tolist():
            end = begin + math.prod(shape)
            images.append(flat[begin:end].reshape(shape))
            begin = end
        batch[name] = images
    return batch
