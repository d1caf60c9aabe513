"""The features of a record that a pipeline reads: `gm.bytes`, `gm.i64`, `gm.u64`, `gm.f32`, `gm.f64`."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

import numpy as np

__all__ = ["Feature", "bytes", "f32", "f64", "i64", "u64"]

# Types that people write in place of a feature.
_MEANT = {
    "int": "i64",
    "int64": "i64",
    "int32": "i64",
    "i32": "i64",
    "float": "f32",
    "float32": "f32",
    "float64": "f64",
}
_MEANT |= {"bytes": "bytes", "str": "bytes", "string": "bytes", "image": "bytes"} | {name: name for name in __all__[1:]}
_P = ParamSpec("_P")


@dataclass(frozen=True)
class Feature:
    """A value of a record that becomes a field of the element; made by `gm.bytes`, `gm.i64` and so on.

    Attributes:
        dtype: The name of its type.
        key: The key in the record; None for the field's name.
        shape: Its shape; None for one number, or a byte string.

    Example:
        >>> gm.f32("price", shape=[2]).shape
        (2,)
    """

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


def _check_names(function: Callable[_P, Feature]) -> Callable[_P, Feature]:
    """The function, which says what to write in place of a parameter that it lacks."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: _P.args, **given: _P.kwargs) -> Feature:
        for name in given.keys() - known:
            takes = f"it takes {', '.join(known)}"
            if name.startswith("default"):
                takes = f"write defaults={{field: {given[name]!r}}} beside the path of the source"
            raise TypeError(f"gm.{function.__name__}: `{name}` is no parameter: {takes}")
        return function(*args, **given)

    return checked


@_check_names
def bytes(key: str | None = None) -> Feature:
    """One byte string, such as an encoded image or a text.

    Args:
        key: The key in the record; by default the field's name.

    Example:
        >>> gm.jsonl("texts.jsonl", text=gm.bytes()).peek()["text"].tobytes()
        b'a cat'
    """
    _check_key("bytes", key)
    return Feature("bytes", key)


@_check_names
def i64(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Whole numbers of 64 bits with a sign, read exactly.

    Args:
        key: The key in the record; by default the field's name.
        shape: One number unless given. `[3]` or `[2, 3]`: so many numbers. `[-1]` or `[-1, 80]`: records
            differ in length.

    Example:
        >>> gm.jsonl("numbers.jsonl", number=gm.i64("x")).batch(4).peek()["number"]
        array([0, 1, 2, 3])
    """
    return _numbers("i64", key, shape)


@_check_names
def u64(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Whole numbers of 64 bits without a sign.

    Args:
        key: The key in the record; by default the field's name.
        shape: As that of `gm.i64`.

    Example:
        >>> gm.u64("id")
        gm.u64('id')
    """
    return _numbers("u64", key, shape)


@_check_names
def f32(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Numbers rounded to single precision.

    Args:
        key: The key in the record; by default the field's name.
        shape: As that of `gm.i64`.

    Example:
        >>> gm.csv("table.csv", price=gm.f32()).batch(2).peek()["price"]
        array([0.5, 1.5], dtype=float32)
    """
    return _numbers("f32", key, shape)


@_check_names
def f64(key: str | None = None, shape: int | Sequence[int] | None = None) -> Feature:
    """Numbers of double precision.

    Args:
        key: The key in the record; by default the field's name.
        shape: As that of `gm.i64`.

    Example:
        >>> gm.csv("table.csv", price=gm.f64()).batch(2).peek()["price"]
        array([0.5, 1.5])
    """
    return _numbers("f64", key, shape)


def _check_key(dtype: str, key: Any) -> None:
    if key is not None and not isinstance(key, str):
        hint = f": write gm.{dtype}(shape={key!r})" if isinstance(key, (int, list, tuple)) and dtype != "bytes" else ""
        raise TypeError(f"gm.{dtype}: the key is a text, not {key!r}{hint}")


def _numbers(dtype: str, key: str | None, shape: int | Sequence[int] | None) -> Feature:
    _check_key(dtype, key)
    sizes = [] if shape is None else [shape] if isinstance(shape, int) else shape
    if isinstance(shape, (str, bool)) or not all(isinstance(size, (int, np.integer)) for size in sizes):
        raise TypeError(f"gm.{dtype}: shape is a list of whole numbers such as [3], or [-1], not {shape!r}")
    if shape is None or isinstance(shape, int):
        return Feature(dtype, key, None if shape is None else (shape,))
    return Feature(dtype, key, tuple(shape))


def instead_of_feature(field: str, given: Any, parameters: Iterable[str]) -> str:
    """The sentence about an argument of a source that is no feature."""
    near = difflib.get_close_matches(field, parameters, 1, 0.7)
    name = given if isinstance(given, str) else getattr(given, "__name__", getattr(given, "name", ""))
    meant = _MEANT.get(name)
    if given in (bytes, i64, u64, f32, f64):
        return f"{field}=gm.{meant} is a function: write {field}=gm.{meant}()"
    if near:
        return f"`{field}` is no parameter: did you mean `{near[0]}`?"
    if meant is not None:
        return f"the field {field} cannot be {given!r}: write {field}=gm.{meant}()"
    return (
        f"`{field}` is no parameter, and a field is gm.bytes(...), gm.i64(...), gm.u64(...), gm.f32(...) or "
        f"gm.f64(...), not {given!r}"
    )
