"""Ragged fields as lists."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from .errors import OptionError

__all__ = ["rows"]


def rows(batch: Mapping[str, Any], field: str) -> list[Any]:
    """The rows of a field of a batch, which may differ in length: views of the batch's memory.

    Args:
        batch: A batch of any loader.
        field: A ragged field, which is in the batch as `field` and `field.offsets`, or any other.

    Returns:
        An array or tensor for each element of the batch.

    Raises:
        OptionError: The batch has no such field.

    Example:
        >>> batch = gm.jsonl("texts.jsonl", text=gm.bytes()).batch(3, ragged=True).peek()
        >>> [row.tobytes() for row in gm.rows(batch, "text")]
        [b'a cat', b'two dogs', b'a bird']
    """
    if field not in batch:
        raise OptionError(f"no field {field!r}; the batch has {', '.join(batch)}")
    offsets = batch.get(f"{field}.offsets")
    if offsets is None:
        return list(batch[field])
    return [batch[field][begin:end] for begin, end in pairwise(offsets.tolist())]
