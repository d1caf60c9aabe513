"""Values of a pipeline as YAML text. Everything but the outer structure is on one line."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Quoting every other text keeps it from being read as a number, or as a part of the structure.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./*-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
# Characters that YAML takes for line ends, or does not allow.
_ESCAPED = re.compile(r'[\x00-\x1f"\\\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]')


def plain(value: Any, what: str) -> Any:
    """`value` of None, booleans, numbers, texts, lists and mappings alone; `what` names it in messages.

    Tuples become lists, scalars and arrays of NumPy the numbers of Python, and paths texts.
    Raises TypeError for what has no place in a pipeline.
    """
    if value is None or isinstance(value, bool):
        return value
    # A member of an enumeration, or a number of NumPy, could print otherwise than its value.
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if hasattr(value, "_spec"):
        return plain(value._spec(), what)
    if isinstance(value, Mapping):
        return {key: plain(inner, f"{what}: {key!r}") for key, inner in _texts(value, what)}
    if hasattr(value, "tolist"):
        return plain(value.tolist(), what)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, set, frozenset)):
        return [plain(inner, what) for inner in value]
    raise TypeError(f"{what} cannot be a {type(value).__name__}")


def _texts(value: Mapping[Any, Any], what: str) -> Iterable[tuple[str, Any]]:
    for key, inner in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{what}: a key is a text, not {key!r}")
        yield key, inner


def flow(value: Any) -> str:
    """A value of `plain` as YAML on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        entries = ", ".join(f"{_text(key)}: {flow(inner)}" for key, inner in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    return f"[{', '.join(flow(inner) for inner in value)}]"


def _number(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return repr(value)


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return f'"{_ESCAPED.sub(_escape, value)}"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if character in '"\\':
        return f"\\{character}"
    return f"\\u{ord(character):04x}"
