"""torchvision's transforms that move pixels: resizing, crops, padding, mirror images, rotation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .chain import Chain

__all__ = ["MAPS", "filtered", "resize"]

# With the numbers that Pillow has for them.
_BILINEAR = {"bilinear": ("bilinear", "2")}
_NEAREST_TOO = {"nearest": ("nearest", "0"), **_BILINEAR}
_BICUBIC_TOO = {**_BILINEAR, "bicubic": ("bicubic", "3")}


def filtered(chain: Chain, t: Any) -> dict[str, Any] | None:
    """How `t` resizes, as parameters of an operator; None if that is refused."""
    name = _interpolation(chain, t, _BICUBIC_TOO)
    if name is None:
        return None
    # PIL always averages; tensors do if asked to.
    antialias = {} if chain.kind == "pil" or t.antialias is True else {"antialias": False}
    return antialias if name == "bilinear" else {**antialias, "interpolation": name}


def _interpolation(chain: Chain, t: Any, offered: Mapping[str, tuple[str, ...]]) -> str | None:
    """The name of one of `offered`, or None."""
    given = getattr(t.interpolation, "value", t.interpolation)
    for name, spellings in offered.items():
        if str(given).lower() in spellings:
            return name
    names = " or ".join(repr(name) for name in offered)
    chain.refuse(f"there is {names} alone", f"use interpolation={names}", f"interpolation={given!r}")
    return None


def _resize(chain: Chain, t: Any) -> None:
    size = [t.size] if isinstance(t.size, int) else t.size
    if t.max_size is not None or size is None:
        chain.refuse("there is no bound of the longer side", "leave max_size out", f"max_size={t.max_size!r}")
    how = filtered(chain, t)
    if chain.pixels("Resize") and how is not None and size is not None:
        resize(chain, list(size), how)
    elif size is not None and len(size) == 2:
        chain.size = (size[0], size[1])


def resize(chain: Chain, size: list[int], how: dict[str, Any]) -> None:
    """To [height, width], or to [shorter side]."""
    if len(size) == 2:
        chain.emit("resize", size=size, **how)
        chain.size = (size[0], size[1])
        return
    chain.emit("resize_shorter", size=size[0], **how)
    if chain.size is not None:
        shorter, longer = min(chain.size), max(chain.size)
        other = int(size[0] * longer / shorter)
        chain.size = (size[0], other) if chain.size[0] == shorter else (other, size[0])


def _center_crop(chain: Chain, t: Any) -> None:
    height, width = chain.size = _pair(t.size)
    chain.emit("center_crop", size=[height, width])


def _random_resized_crop(chain: Chain, t: Any) -> None:
    chain.size = _pair(t.size)
    how = filtered(chain, t)
    in_bounds = chain.within("scale", t.scale, 1e-6, 1) & chain.within("ratio", t.ratio, 1e-6, 1e6)
    if chain.pixels("RandomResizedCrop") and how is not None and in_bounds:
        chain.emit(
            "random_resized_crop",
            size=list(_pair(t.size)),
            scale=list(t.scale),
            ratio=list(t.ratio),
            **how,
        )


def _random_crop(chain: Chain, t: Any) -> None:
    padding = 0 if t.padding is None else t.padding
    if ".v2." in type(t).__module__ and t.padding is not None:
        # v2 keeps left, right, top, bottom.
        left, right, top, bottom = t.padding
        padding = [left, top, right, bottom]
    fill = chain.fill(t.fill)
    sides = _sides(chain, padding)
    chain.size = _pair(t.size)
    if _is_constant(chain, t) and fill is not None and sides is not None:
        padded: dict[str, Any] = {"padding": sides} if any(sides) else {}
        if t.pad_if_needed:
            padded["pad_if_needed"] = True
        chain.emit("random_crop", size=list(chain.size), **padded, **({"fill": fill} if padded else {}))


def _pad(chain: Chain, t: Any) -> None:
    fill = chain.fill(t.fill)
    sides = _sides(chain, t.padding)
    if _is_constant(chain, t) and fill is not None and sides is not None:
        chain.emit("pad", padding=sides, fill=fill)
        if chain.size is not None:
            left, top, right, bottom = sides
            chain.size = (chain.size[0] + top + bottom, chain.size[1] + left + right)


def _is_constant(chain: Chain, t: Any) -> bool:
    if t.padding_mode == "constant":
        return True
    chain.refuse("edges are padded with one value alone", "use 'constant'", f"padding_mode={t.padding_mode!r}")
    return False


def _sides(chain: Chain, padding: Any) -> list[int] | None:
    """Left, top, right, bottom."""
    given = [padding] if isinstance(padding, int) else list(padding)
    if not chain.within("padding", given, 0, 16384):
        return None
    return {1: given * 4, 2: given * 2, 4: given}[len(given)]


def _horizontal_flip(chain: Chain, t: Any) -> None:
    chain.emit("flip", p=t.p)


def _vertical_flip(chain: Chain, t: Any) -> None:
    chain.emit("vertical_flip", p=t.p)


def _rotation(chain: Chain, t: Any) -> None:
    if t.expand:
        chain.refuse("images would differ in size", "leave it out", "expand=True")
    _turn(chain, t, "rotate", t.degrees, 360)


def _affine(chain: Chain, t: Any) -> None:
    turns, shears = any(t.degrees), t.shear is not None and any(t.shear)
    for name, given, nothing in (("translate", t.translate, (0, 0)), ("scale", t.scale, (1, 1))):
        if given is not None and tuple(given) != nothing:
            chain.refuse("there is no operator of this distribution", "leave it out", f"{name}={given!r}")
    if turns and shears:
        chain.refuse("no operator turns and shears at once", "give degrees=0 or shear=None", "degrees and shear")
    elif shears:
        _turn(chain, t, "shear", list(t.shear), 89)
    elif turns:
        # RandomAffine turns clockwise, RandomRotation and `rotate` the other way.
        _turn(chain, t, "rotate", [-t.degrees[1], -t.degrees[0]], 360)


def _turn(chain: Chain, t: Any, op: str, degrees: list[float], most: float) -> None:
    if t.center is not None:
        chain.refuse("images are turned about their middle alone", "leave it out", f"center={t.center!r}")
    sampled = _interpolation(chain, t, _NEAREST_TOO)
    in_bounds = chain.within("shear" if op == "shear" else "degrees", degrees, -most, most)
    if sampled == "bilinear":
        chain.convert()
    fill = chain.fill(t.fill)
    if sampled and in_bounds and fill is not None:
        chain.emit(op, degrees=list(degrees), interpolation=sampled, fill=fill)


def _pair(size: Any) -> tuple[int, int]:
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return int(height), int(width)


MAPS: dict[str, Callable[[Chain, Any], None]] = {
    "CenterCrop": _center_crop,
    "Pad": _pad,
    "RandomAffine": _affine,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _horizontal_flip,
    "RandomResizedCrop": _random_resized_crop,
    "RandomRotation": _rotation,
    "RandomVerticalFlip": _vertical_flip,
    "Resize": _resize,
}
