"""Batches as numpy arrays, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._loader import Loader as _Loader

__all__ = ["Loader"]


class Loader(_Loader[dict[str, np.ndarray[Any, Any]]]):
    """Batches as a dict of numpy arrays, each [rows, ...]: writable, over the fetcher's own buffer, which they keep
    alive.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        options: Those of `gm.LoaderOptions`.

    Example:
        >>> with gm.numpy.Loader(pipeline, epochs=1) as loader:
        ...     next(iter(loader))
        {'x': array([0, 1, 2, 3, 4, 5, 6, 7])}
    """
