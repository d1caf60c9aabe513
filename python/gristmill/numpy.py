"""Batches as numpy arrays, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._loader import Loader as _Loader

__all__ = ["Loader"]


class Loader(_Loader[dict[str, np.ndarray[Any, Any]]]):
    """Batches as a dict of numpy arrays, each [rows, ...]: writable, over the fetcher's own buffer, which they keep
    alive.
    """
