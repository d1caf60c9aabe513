"""The features of a record that a pipeline reads: `gm.bytes`, `gm.i64`, `gm.u64`, `gm.f32`, `gm.f64`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Feature", "bytes", "f32", "f64", "i64", "u64"]


@dataclass(frozen=True)
class Feature:
    """A value of a record that becomes a field of the element; made by `gm.bytes`, `gm.i64` and so on."""

    dtype: str
    key: str | None = None
    shape: tuple[int, ...] | None = None

    def _spec(self) -> dict[str, Any]:
        given = {"key": self.key, "dtype": self.dtype, "shape": self.shape}
        return {name: value for name, value in given.items() if value is not None}

    def __repr__(self) -> str:
        key = [] if self.key is None else [repr(self.key)]
        shape = [] if self.shape is None else [f"shape={list(self.shape)}"]
        return f"gm.{self.dtype}({', '.join(key + shape)})"


def bytes(key: str | None = None) -> Feature:
    """One byte string, such as an encoded image or a text, under `key`; by default the field's name."""
    return Feature("bytes", key)


def i64(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Whole numbers of 64 bits with a sign, read exactly.

    Args:
        key: The key in the record; by default the field's name.
        shape: One number unless given. `[3]` or `[2, 3]`: so many numbers. `[-1]` or `[-1, 80]`: records
            differ in length.
    """
    return _numbers("i64", key, shape)


def u64(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Whole numbers of 64 bits without a sign; else as `gm.i64`."""
    return _numbers("u64", key, shape)


def f32(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Numbers rounded to single precision; else as `gm.i64`."""
    return _numbers("f32", key, shape)


def f64(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Numbers of double precision; else as `gm.i64`."""
    return _numbers("f64", key, shape)


def _numbers(dtype: str, key: str | None, shape: int | Sequence[int] | None) -> Feature:
    if shape is None or isinstance(shape, int):
        return Feature(dtype, key, None if shape is None else (shape,))
    return Feature(dtype, key, tuple(shape))
