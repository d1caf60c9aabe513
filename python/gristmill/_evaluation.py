"""The operators of a pipeline for evaluation: those of training without chance."""

from __future__ import annotations

import functools
import json
from typing import Any

from . import _native
from ._parts import Part

__all__ = ["LEADING", "evaluated"]

#: Operators on the dataset, which come first; others are put after them.
LEADING = ("interleave", "take", "skip", "select", "shard", "repeat")
# Random ones that do the same to every image where `p` is 1, with its default.
_CERTAIN = {"flip": 0.5, "vertical_flip": 0.5, "grayscale": 1.0, "solarize": 0.5, "posterize": 0.5}
# Parameters that random and plain crops share.
_SHARED = {"field", "fields", "masks", "boxes", "labels", "box_format", "normalised_boxes"}
_SHARED |= {"min_area", "min_size", "min_visibility"}
# torchvision's reference evaluates crops of 224 pixels on images whose shorter side has 256.
_LARGER = 256 / 224


@functools.cache
def _random() -> frozenset[str]:
    declared = json.loads(_native.operators())["operators"]
    return frozenset(operator["name"] for operator in declared if operator["randomness"] != "deterministic")


def evaluated(ops: tuple[Part, ...]) -> tuple[Part, ...]:
    """The operators in their order, in the order of the dataset, without those that draw."""
    made: list[Part] = []
    names = [_name(part) for part in ops]
    for name, part in zip(names, ops, strict=True):
        parameters = dict(part.keys[name] or {}) if isinstance(part.keys[name], (dict, type(None))) else None
        if name == "in_order":
            continue
        if parameters is None:
            made.append(part)
        elif name in ("random_resized_crop", "random_crop"):
            made += [Part(keys, part.place) for keys in _crops(name, parameters)]
        elif name in _random() and not (name in _CERTAIN and parameters.get("p", _CERTAIN[name]) == 1):
            continue
        elif parameters.pop("drop_remainder", None) is not None:
            made.append(Part({name: parameters}, part.place))
        else:
            made.append(part)
    # They bring like lengths or keys together, and have no order to keep.
    if ops and not {"bucket_by_sequence_length", "group_by_window"} & set(names):
        at = next((at for at, part in enumerate(made) if _name(part) not in LEADING), len(made))
        made.insert(at, Part({"in_order": {}}, ops[0].place))
    return tuple(made)


def _name(part: Part) -> str:
    (name,) = part.keys
    return name


def _crops(name: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The middle of the image in place of a random part: of `random_resized_crop`, 7/8 of its shorter side."""
    shared = {key: value for key, value in parameters.items() if key in _SHARED}
    size = parameters["size"]
    fill = {"mask_fill": parameters["mask_fill"]} if "mask_fill" in parameters else {}
    cropped = {"center_crop": {"size": size, **shared, **fill}}
    if name == "random_crop":
        return [cropped]
    shorter = round(max(size if isinstance(size, list) else [size]) * _LARGER)
    how = {key: parameters[key] for key in ("antialias", "interpolation") if key in parameters}
    return [{"resize_shorter": {"size": shorter, **how, **shared}}, cropped]
