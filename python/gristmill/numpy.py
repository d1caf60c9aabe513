"""Batches as numpy arrays, without copies."""

from __future__ import annotations

import numpy as np

from ._loader import Loader as _Loader

__all__ = ["Loader"]


class Loader(_Loader[dict[str, np.ndarray]]):
    """Batches as a dict of numpy arrays, each [rows, ...]: writable, over the fetcher's own buffer, which they keep alive."""
