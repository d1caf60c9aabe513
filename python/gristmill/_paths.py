"""Whether the files of a dataset are there, before anything starts."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Iterator, Sequence

from .errors import OptionError

__all__ = ["check_paths", "is_there"]

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def check_paths(paths: Sequence[str], base: str, what: str) -> None:
    """Raises OptionError, which begins with `what`, for a path of this machine at which there is nothing.

    Args:
        paths: Files, folders, globs, braces or addresses; relative ones begin at `base`.
        base: An absolute directory.
        what: The place that gives the paths, for the message.
    """
    for path in paths:
        if "://" in path or is_there(os.path.join(base, path)):
            continue
        if path.startswith("~"):
            raise OptionError(f"{what}: {path!r}: `~` stands for no folder here: write os.path.expanduser({path!r})")
        raise OptionError(f"{what}: there is no file or folder {path!r}{_instead(base, path)}")


def is_there(path: str) -> bool:
    """Whether a file or folder is at `path`, or a file matches it."""
    if os.path.exists(path):
        return True
    return any(_matches(pattern) for pattern in _expanded(path))


def _matches(pattern: str) -> bool:
    if not glob.has_magic(pattern):
        return os.path.exists(pattern)
    return next(glob.iglob(pattern, recursive=True, include_hidden=True), None) is not None


def _expanded(pattern: str) -> Iterator[str]:
    """The patterns that one with braces stands for, one after the other."""
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    numbers = _RANGE.fullmatch(found[1])
    if numbers:
        first, last = numbers.groups()
        words: Iterator[str] = (f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1))
    elif "," not in found[1] or "," not in found[1]:
        yield pattern
        return
    else:
        words = iter(found[1].split(","))
    for word in words:
        yield from _expanded(pattern[: found.start()] + word + pattern[found.end() :])


def _instead(base: str, path: str) -> str:
    """A name like the first part of the path that is not there."""
    there = "/" if path.startswith("/") else ""
    for name in filter(None, path.split("/")):
        if os.path.exists(os.path.join(base, there, name)):
            there = os.path.join(there, name)
            continue
        folder = os.path.join(base, there)
        if not os.path.isdir(folder):
            return f": {there} is a file"
        near = [] if glob.has_magic(name) else difflib.get_close_matches(name, sorted(os.listdir(folder)), 1, 0.6)
        return f": did you mean {os.path.join(there, near[0])!r}?" if near else f" in {folder}"
    return ""
