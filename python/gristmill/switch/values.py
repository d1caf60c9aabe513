"""torchvision's transforms that change values: colours, conversions from PIL images to tensors, Normalize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .chain import Chain

__all__ = ["MAPS", "WITH_P"]

# Operators with a probability `p`.
WITH_P = {
    "color_jitter",
    "flip",
    "gaussian_blur",
    "grayscale",
    "posterize",
    "random_erasing",
    "solarize",
    "vertical_flip",
}


def _color_jitter(chain: Chain, t: Any) -> None:
    given = {name: getattr(t, name) for name in ("brightness", "contrast", "saturation", "hue")}
    drawn = {name: list(bounds) for name, bounds in given.items() if bounds is not None}
    in_bounds = [
        chain.within(name, bounds, *((-0.5, 0.5) if name == "hue" else (0, 15.9))) for name, bounds in drawn.items()
    ]
    if drawn and all(in_bounds) and chain.colours():
        chain.emit("color_jitter", **drawn)


def _grayscale(chain: Chain, t: Any) -> None:
    if chain.channels == 3 and chain.colours():
        chain.emit("grayscale", channels=t.num_output_channels)
        chain.channels = t.num_output_channels
    elif chain.channels != t.num_output_channels:
        chain.refuse("grey images stay grey", "leave the second Grayscale out")


def _random_grayscale(chain: Chain, t: Any) -> None:
    if chain.channels == 3 and chain.colours():
        chain.emit("grayscale", p=t.p)


def _gaussian_blur(chain: Chain, t: Any) -> None:
    width, height = t.kernel_size
    if width != height:
        chain.refuse("kernels are square", "give one kernel_size", f"kernel_size={t.kernel_size!r}")
    in_bounds = chain.within("kernel_size", [width], 1, 255) & chain.within("sigma", list(t.sigma), 0.001, 100)
    if width == height and in_bounds and chain.colours():
        chain.emit("gaussian_blur", kernel_size=width, sigma=list(t.sigma))


def _solarize(chain: Chain, t: Any) -> None:
    most = 255 if chain.values == "u8" else 1
    if chain.within("threshold", [t.threshold], 0, most):
        _inverted(chain, t, t.threshold)


def _invert(chain: Chain, t: Any) -> None:
    # No value is below 0: all are inverted.
    _inverted(chain, t, 0)


def _inverted(chain: Chain, t: Any, threshold: float) -> None:
    """Inverts values from `threshold` on, which is exact on u8 that are divided by 255 later."""
    if chain.stored == "u8" and chain.values == "unit":
        # Rounding, so that 128 / 255 is 128.
        chain.emit("solarize", threshold=round(threshold * 255, 6), p=t.p)
    elif chain.colours():
        # No `scale` may come between this threshold and the values it was meant for.
        place = {"keep_position": True} if chain.stored == "f32" else {}
        chain.emit("solarize", threshold=threshold, p=t.p, **place)


def _posterize(chain: Chain, t: Any) -> None:
    if chain.pixels("RandomPosterize") and chain.within("bits", [t.bits], 0, 8):
        chain.emit("posterize", bits=t.bits, p=t.p)


def _random_erasing(chain: Chain, t: Any) -> None:
    if not _is_tensor(chain):
        return
    if t.value in (None, "random"):
        chain.refuse("rectangles get one value", "give value as a number", "value='random'")
        return
    in_bounds = chain.within("scale", list(t.scale), 0, 1) & chain.within("ratio", list(t.ratio), 1e-6, 1e6)
    value = chain.fill(t.value, "value")
    if in_bounds and value is not None:
        chain.emit("random_erasing", p=t.p, scale=list(t.scale), ratio=list(t.ratio), value=value)


def _normalize(chain: Chain, t: Any) -> None:
    if not _is_tensor(chain):
        return
    mean, std = list(t.mean), list(t.std)
    if chain.values == "u8" and chain.is_sure:
        chain.refuse("it takes floats, in torchvision too", "put ToDtype(torch.float32, scale=True) before it")
    elif len(mean) != chain.channels or len(std) != chain.channels:
        chain.refuse(
            f"the image has {chain.channels} channels here",
            "give as many numbers as there are channels",
            f"mean of {len(mean)}, std of {len(std)}",
        )
    else:
        chain.normalise(mean, std)


def _is_tensor(chain: Chain) -> bool:
    if chain.kind == "tensor" or not chain.is_sure:
        return True
    chain.refuse("it has no effect on a PIL image, or fails", "put ToImage() before it")
    return False


def _to_tensor(chain: Chain, t: Any) -> None:
    if chain.kind == "pil":
        chain.kind, chain.values = "tensor", "unit"
    elif ".v2." not in type(t).__module__ and chain.is_sure:
        chain.refuse("it takes a PIL image, in torchvision too", "leave it out")


def _to_image(chain: Chain, t: Any) -> None:
    chain.kind = "tensor"


def _to_pil(chain: Chain, t: Any) -> None:
    if chain.values == "u8":
        chain.kind = "pil"
    else:
        chain.refuse("it rounds floats to uint8", "leave it out")


def _to_dtype(chain: Chain, t: Any) -> None:
    if not _is_tensor(chain):
        return
    scale = getattr(t, "scale", True)
    if t.dtype is torch.float32:
        if chain.values == "u8":
            chain.values = "unit" if scale else "raw"
    elif t.dtype is not torch.uint8 or chain.values != "u8":
        chain.refuse("images become float32 alone", "convert batches in the training loop", f"dtype={t.dtype!r}")


def _nothing(chain: Chain, t: Any) -> None:
    pass


def _rgb(chain: Chain, t: Any) -> None:
    if chain.channels != 3:
        chain.refuse("grey images stay grey", "use Grayscale(3)")


MAPS: dict[str, Callable[[Chain, Any], None]] = {
    "ColorJitter": _color_jitter,
    "ConvertImageDtype": _to_dtype,
    "GaussianBlur": _gaussian_blur,
    "Grayscale": _grayscale,
    "Identity": _nothing,
    "Normalize": _normalize,
    "PILToTensor": _to_image,
    "RandomErasing": _random_erasing,
    "RandomGrayscale": _random_grayscale,
    "RandomInvert": _invert,
    "RandomPosterize": _posterize,
    "RandomSolarize": _solarize,
    "RGB": _rgb,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "ToPILImage": _to_pil,
    "ToPureTensor": _nothing,
    "ToTensor": _to_tensor,
}
