"""The operators of one image, and what the image is after them in the other library's words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from .problems import Problems

__all__ = ["Chain", "Kind", "Op", "Values"]

Op = tuple[str, dict[str, Any]]
Kind = Literal["pil", "tensor"]
Values = Literal["u8", "unit", "raw", "normalised"]

# Bounds of `normalise`.
_SMALLEST_STD = 1e-6
_LARGEST_MEAN = 1e6


class Chain:
    """Operators made so far, and the image after them.

    kind: "pil" or "tensor", as the other library has it.
    values: "u8"; "unit": f32 from 0 to 1; "raw": f32 from 0 to 255; "normalised": f32 after Normalize.
    stored: what our field holds: "u8" until f32 is needed. Moving pixels and scaling them may change places,
        so a conversion waits until then: u8 is smaller, and the last conversion runs beside the trainer.
    channels: 3, or 1 for grey.
    size: (height, width), or None where it differs between images.
    is_sure: False after something unknown: what depends on the image's kind is not judged then.
    """

    def __init__(self, problems: Problems, field: str = "image") -> None:
        self.problems = problems
        self.field = field
        self.ops: list[Op] = []
        self.kind: Kind = "pil"
        self.values: Values = "u8"
        self.stored: Literal["u8", "f32"] = "u8"
        self.channels = 3
        self.size: tuple[int, int] | None = None
        self.is_sure = True

    def emit(self, name: str, **parameters: Any) -> None:
        field = {} if self.field == "image" else {"field": self.field}
        self.ops.append((name, {**field, **parameters}))

    def refuse(self, why: str, remedy: str, what: str = "") -> None:
        self.problems.add(why, remedy, what)

    def convert(self) -> None:
        """Makes the field what the other library's tensor is, if that waits."""
        if self.stored == "f32" or self.values == "u8":
            return
        if self.values == "unit":
            self.emit("scale")
        else:
            self.emit("cast", dtype="f32")
        self.stored = "f32"

    def normalise(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """`(x - mean) / std` of what the tensor is."""
        # `normalise` divides by 255 first.
        factor = 1.0 if self.values == "unit" and self.stored == "u8" else 1 / 255
        mean, std = [x * factor for x in mean], [x * factor for x in std]
        if any(not abs(x) <= _LARGEST_MEAN for x in mean):
            self.refuse("it is too large", f"numbers up to {_LARGEST_MEAN:g} work", f"mean={mean}")
        if any(not _SMALLEST_STD <= x <= _LARGEST_MEAN for x in std):
            self.refuse("it is too small or too large", f"numbers from {_SMALLEST_STD / factor:g} work", f"std={std}")
        self.emit("normalise", mean=mean, std=std)
        self.values, self.stored = "normalised", "f32"

    def colours(self) -> bool:
        """Whether an operator on colours can come here, after what it needs."""
        if self.values in ("raw", "normalised"):
            self.refuse(
                "colours are changed on uint8, or on floats from 0 to 1",
                "put it before Normalize and before ToDtype(scale=False)",
            )
            return False
        self.convert()
        return True

    def pixels(self, what: str) -> bool:
        """Whether an operator that resamples u8 can come here."""
        if self.values == "u8":
            return True
        self.refuse(
            f"{what} works on uint8 pixels",
            "put it before ToTensor, ToDtype and Normalize: results differ by rounding to uint8 alone",
        )
        return False

    def fill(self, value: Any, name: str = "fill") -> float | int | None:
        """What the field gets where the tensor gets `value`; None if that is refused."""
        shown = f"{name}={value!r}"
        number = _one_number(value)
        if number is None:
            self.refuse("one number for all channels is needed", f"give {name} as one number", shown)
            return None
        if self.stored == "u8" and self.values != "u8":
            scaled = number * 255 if self.values == "unit" else number
            if _is_byte(scaled):
                return round(scaled)
            self.convert()
        if self.stored == "f32":
            return number
        if _is_byte(number):
            return round(number)
        self.refuse("uint8 pixels hold whole numbers from 0 to 255", f"give such a {name}", shown)
        return None

    def within(self, name: str, values: Sequence[Any], low: float, high: float) -> bool:
        """Whether all of `values` lie within the bounds of our operator."""
        if all(isinstance(x, (int, float)) and low <= x <= high for x in values):
            return True
        shown = values[0] if len(values) == 1 else tuple(values)
        self.refuse(f"it is taken from {low:g} to {high:g}", f"give {name} within these bounds", f"{name}={shown!r}")
        return False

    def finish(self) -> None:
        """Ends with what a batch needs."""
        if self.kind == "pil" and self.is_sure:
            self.refuse("it ends with a PIL image, which torch cannot stack", "end it with ToImage() and ToDtype(...)")
        if self.size is None and self.is_sure:
            self.refuse(
                "images would differ in size, and cannot be stacked",
                "use CenterCrop, RandomCrop, RandomResizedCrop or Resize((height, width)); if all images "
                "have one size already, CenterCrop of that size changes nothing",
            )
        self.convert()

    def channels_first(self) -> None:
        """Turns [h, w, c] to [c, h, w]."""
        self.emit("layout", to="nchw")

    def take_normalise(self) -> dict[str, Any] | None:
        """Takes the parameters of a `normalise` of u8 away, if it is last."""
        *others, last = self.ops or [("", {})]
        if last[0] != "normalise" or any(name in ("scale", "cast", "normalise") for name, _ in others):
            return None
        return self.ops.pop()[1]


def _one_number(value: Any) -> float | int | None:
    if value is None:
        return 0
    if isinstance(value, (list, tuple)):
        if not value or any(x != value[0] for x in value):
            return None
        value = value[0]
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _is_byte(number: float) -> bool:
    return 0 <= number <= 255 and abs(number - round(number)) < 1e-9
