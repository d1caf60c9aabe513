"""Parts of a dataset by the numbers of records."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any

from .errors import PipelineError

__all__ = ["braces", "image_files", "indices_of", "runs"]

_ENDINGS = ("bmp", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp")
_SPECIAL = set("{},*?[]")


def indices_of(indices: Iterable[Any]) -> range | list[int]:
    """Whole numbers as a range, if they are consecutive, else as a list. Raises TypeError, PipelineError."""
    if isinstance(indices, range) and indices.step == 1:
        found: range | list[int] = indices
    else:
        found = [operator.index(index) for index in indices]
        if found and found == list(range(found[0], found[0] + len(found))):
            found = range(found[0], found[0] + len(found))
    if not found:
        raise PipelineError("subset: there is no index: a subset has at least one record")
    if min(found) < 0:
        raise PipelineError(f"subset: {min(found)} is less than 0: records are counted from 0")
    return found


def runs(numbers: list[int]) -> str:
    """The numbers in their order, neighbours as ranges with both ends: "0-9,12"."""
    if len(set(numbers)) < len(numbers):
        raise PipelineError("subset: an index is given twice: an epoch has each record once")
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def image_files(folder: str) -> list[str]:
    """The images of a folder relative to it, class by class and by name, as torchvision's ImageFolder counts them."""
    found = []
    for name in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        for root, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
            for file in sorted(files):
                if file.rpartition(".")[2].lower() in _ENDINGS and not file.startswith("."):
                    found.append(os.path.relpath(os.path.join(root, file), folder))
    return found


def braces(folder: str, files: list[str]) -> str:
    """The pattern of these files below the folder."""
    if len(set(files)) < len(files):
        raise PipelineError("subset: an index is given twice: an epoch has each record once")
    strange = next((name for name in (folder, *files) if _SPECIAL & set(name)), None)
    if strange is not None:
        raise PipelineError(f"subset: {strange!r} has a character of {''.join(sorted(_SPECIAL))}: rename it")
    if len(files) > 1:
        return os.path.join(folder, f"{{{','.join(files)}}}")
    # A file alone would lie in no class, which is a folder below the part of a path that is no pattern.
    name, rest = files[0].split(os.sep, 1)
    return os.path.join(folder, f"{name[:-1]}[{name[-1]}]", rest)
