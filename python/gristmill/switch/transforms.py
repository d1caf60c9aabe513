"""torchvision's transforms as operators.

A class maps only with parameters for which an operator draws from the same distribution; all else is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torchvision.transforms import _presets as presets
from torchvision.transforms import transforms as v1

from . import moves, values
from .advice import advice
from .chain import Chain

try:
    from torchvision.transforms import v2
except ImportError:  # torchvision below 0.15
    v2 = None

__all__ = ["apply"]


def _classes(name: str) -> list[type]:
    """The classes of that name in torchvision's two sets of transforms."""
    return [getattr(module, name) for module in (v1, v2) if hasattr(module, name)]


_COMPOSE = set(_classes("Compose"))
_RANDOM_APPLY = set(_classes("RandomApply"))
# Classes themselves: a class derived from one may do anything.
_MAPS = {cls: map_ for name, map_ in {**moves.MAPS, **values.MAPS}.items() for cls in _classes(name)}


def apply(chain: Chain, transform: Any, path: str = "transform") -> None:
    """Adds the operators of `transform` to `chain`, and what cannot be one to its problems."""
    steps = _steps(transform)
    if steps is not None:
        for number, step in enumerate(steps):
            apply(chain, step, f"{path}[{number}]")
        return
    chain.problems.where = path if transform is None else f"{path} {_name(transform)}"
    if type(transform) in _MAPS:
        _MAPS[type(transform)](chain, transform)
    elif type(transform) in _RANDOM_APPLY:
        _random_apply(chain, transform, path)
    elif type(transform) is presets.ImageClassification:
        _classification(chain, transform)
    else:
        chain.refuse(*advice(transform))
        chain.is_sure = False


def _steps(transform: Any) -> Iterable[Any] | None:
    """The transforms that `transform` applies one after the other, or None."""
    if type(transform) in _COMPOSE:
        return list(transform.transforms)
    if type(transform) is torch.nn.Sequential:
        return list(transform)
    return None


def _name(transform: Any) -> str:
    return getattr(transform, "__name__", None) or type(transform).__name__


def _random_apply(chain: Chain, t: Any, path: str) -> None:
    """RandomApply of one transform whose operator takes a probability."""
    inner = list(t.transforms)
    if len(inner) != 1:
        chain.refuse("it draws once for several transforms, operators draw one by one", "give it one transform alone")
        return
    before = (chain.kind, chain.values, chain.size, chain.channels)
    made, found = len(chain.ops), len(chain.problems.found)
    apply(chain, inner[0], f"{path}.transforms[0]")
    if len(chain.problems.found) > found:
        return
    ops = [op for op in chain.ops[made:] if op[0] not in ("scale", "cast")]
    unchanged = (chain.kind, chain.values, chain.size, chain.channels) == before
    if not unchanged or any(name not in values.WITH_P for name, _ in ops):
        chain.problems.where = f"{path} RandomApply"
        chain.refuse(
            f"the operator of {_name(inner[0])} takes no probability",
            f"it can be applied to what becomes {', '.join(sorted(values.WITH_P))}",
        )
        return
    for _, parameters in ops:
        parameters["p"] = parameters.get("p", 1.0) * t.p


def _classification(chain: Chain, t: Any) -> None:
    """What `Weights.transforms()` of a classifier is: Resize, CenterCrop, to f32, Normalize."""
    crop = list(t.crop_size) * (3 - len(t.crop_size))
    how = moves.filtered(chain, t)
    if how is not None:
        moves.resize(chain, list(t.resize_size), how)
    chain.emit("center_crop", size=crop)
    chain.size, chain.kind, chain.values = (crop[0], crop[1]), "tensor", "unit"
    chain.normalise(list(t.mean), list(t.std))
