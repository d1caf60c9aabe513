"""Why classes of torchvision have no operator, and what to do."""

from __future__ import annotations

from typing import Any

__all__ = ["advice"]

_ONE_OF_MANY = (
    "it draws one of many changes for each image, for which there is no operator",
    "use RandomResizedCrop, ColorJitter and others that map, or keep torch's DataLoader",
)
_NO_OPERATOR = ("there is no operator of this distribution", "leave it out, or keep torch's DataLoader")
_SIZES = (
    "images would differ in size, and cannot be stacked",
    "use RandomResizedCrop, or Resize((height, width))",
)
_ON_BATCHES = ("it works on batches", "apply it to each batch in the training loop")
_NO_BOXES = ("an image folder has neither boxes nor masks", "leave it out")
_SEVERAL = ("it makes several images of one", "leave it out; CenterCrop makes one")

_ADVICE = {
    "AugMix": _ONE_OF_MANY,
    "AutoAugment": _ONE_OF_MANY,
    "ClampBoundingBoxes": _NO_BOXES,
    "ClampKeyPoints": _NO_BOXES,
    "ConvertBoundingBoxFormat": _NO_BOXES,
    "CutMix": _ON_BATCHES,
    "FiveCrop": _SEVERAL,
    "GaussianNoise": (
        "there is no operator of this distribution",
        "add noise to each batch in the training loop: torch.randn_like(images)",
    ),
    "LinearTransformation": ("there is no operator for it", "apply it to each batch in the training loop"),
    "MixUp": _ON_BATCHES,
    "RandAugment": _ONE_OF_MANY,
    "RandomChoice": _ONE_OF_MANY,
    "RandomIoUCrop": _NO_BOXES,
    "RandomOrder": ("operators have one order", "use Compose"),
    "RandomPhotometricDistort": (
        "each of its changes has a probability of its own, and channels change places",
        "use ColorJitter with the same bounds",
    ),
    "RandomResize": _SIZES,
    "RandomShortestSize": _SIZES,
    "RandomZoomOut": _SIZES,
    "SanitizeBoundingBoxes": _NO_BOXES,
    "SanitizeKeyPoints": _NO_BOXES,
    "ScaleJitter": _SIZES,
    "SetClampingMode": _NO_BOXES,
    "TenCrop": _SEVERAL,
    "TrivialAugmentWide": _ONE_OF_MANY,
    "UniformTemporalSubsample": ("it works on videos", "leave it out"),
}


def advice(transform: Any) -> tuple[str, str]:
    """Why `transform` has no operator, and what to do."""
    if transform is None:
        return (
            "there is none, and torch cannot stack PIL images",
            "give one that ends with ToImage() and ToDtype(...)",
        )
    cls = type(transform)
    if not cls.__module__.startswith("torchvision.transforms"):
        return (
            "it is not a transform of torchvision, and may do anything",
            "leave it out, or apply it to each batch in the training loop",
        )
    if cls.__name__ == "Lambda":
        return (
            "it is a function, which may do anything",
            "leave it out, or apply it to each batch in the training loop",
        )
    return _ADVICE.get(cls.__name__, _NO_OPERATOR)
