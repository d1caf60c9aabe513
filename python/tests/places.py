"""Places of a job, and the bytes of its batches."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

#: Epoch and number of a batch.
Cursor = tuple[int, int]
Bytes = dict[str, bytes]


def bytes_of(batch: dict[str, np.ndarray]) -> Bytes:
    return {name: array.tobytes() for name, array in batch.items()}


def cursor_of(batch: dict[str, np.ndarray]) -> Cursor:
    epoch, g = batch["__cursor__"].tolist()
    return epoch, g


def place(state: dict[str, Any]) -> Cursor:
    return state["epoch"], state["g"]


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))
