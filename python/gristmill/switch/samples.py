"""What a webdataset pipeline delivers, in the words of webdataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Samples"]


@dataclass
class Samples:
    """The samples of a webdataset pipeline.

    urls: of its tar files, in order.
    fields: the keys of a sample's members, such as `jpg;png`; None if samples are not tuples.
    transforms: by key, the functions applied to it.
    decoded: webdataset's word for what images become, such as `pil`; None if they stay bytes.
    batch_size: None if samples are not batched.
    drop_last: whether an incomplete last batch is left out.
    shuffled: whether they come in random order.
    on_error: what bad records do: "fail" or "skip".
    is_split: whether each rank gets a part.
    """

    urls: list[str] = field(default_factory=list)
    fields: tuple[str, ...] | None = None
    transforms: dict[str, list[Any]] = field(default_factory=dict)
    decoded: str | None = None
    batch_size: int | None = None
    drop_last: bool = False
    shuffled: bool = False
    on_error: str = "fail"
    is_split: bool = False
