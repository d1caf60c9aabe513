"""Chains of operators give what torchvision's transforms give in the order that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from PIL import Image  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

HEIGHT, WIDTH = 61, 70
CHAINS = 60
# Operators that round as torchvision does, and those that may differ by one: at most one of them in a chain, and
# none that makes more of the difference.
EQUAL = ["crop", "center_crop", "pad", "flip", "vertical_flip", "posterize", "solarize", "normalise"]
WITHIN_ONE = ["resize", "gaussian_blur", "contrast", "rotate"]
WIDENING = ["posterize", "solarize"]


def drawn(draw: Any, name: str, size: tuple[int, int]) -> tuple[str, dict[str, Any], Any, tuple[int, int]]:
    """The operator, its parameters, torchvision's function, and the size of what it makes."""
    height, width = size
    if name == "crop":
        low, wide = int(draw.integers(5, height + 1)), int(draw.integers(5, width + 1))
        top, left = int(draw.integers(0, height - low + 1)), int(draw.integers(0, width - wide + 1))
        params = {"top": top, "left": left, "height": low, "width": wide}
        return name, params, lambda image: F.crop(image, top, left, low, wide), (low, wide)
    if name in ("center_crop", "resize"):
        to = [int(side) for side in draw.integers(5, 80, 2)]
        function = F.center_crop if name == "center_crop" else F.resize
        return name, {"size": to}, lambda image: function(image, to), (to[0], to[1])
    if name == "pad":
        left, top, right, bottom = sides = [int(side) for side in draw.integers(0, 9, 4)]
        return (
            name,
            {"padding": sides},
            lambda image: F.pad(image, sides),
            (height + top + bottom, width + left + right),
        )
    if name == "posterize":
        bits = int(draw.integers(1, 8))
        return name, {"bits": bits, "p": 1}, lambda image: F.posterize(image, bits), size
    if name == "solarize":
        threshold = int(draw.integers(0, 256))
        return name, {"threshold": threshold, "p": 1}, lambda image: F.solarize(image, threshold), size
    if name == "normalise":
        scaled = lambda image: F.normalize(F.to_dtype(image, torch.float32, scale=True), [0.5] * 3, [0.5] * 3)  # noqa: E731
        return name, {"mean": [0.5] * 3, "std": [0.5] * 3}, scaled, size
    if name == "gaussian_blur":
        return name, {"kernel_size": 5, "sigma": 1.5}, lambda image: F.gaussian_blur(image, [5, 5], [1.5, 1.5]), size
    if name == "contrast":
        return "color_jitter", {name: [0.6, 0.6]}, lambda image: F.adjust_contrast(image, 0.6), size
    if name == "rotate":
        turned = lambda image: F.rotate(image, 30, F.InterpolationMode.BILINEAR, fill=0)  # noqa: E731
        return name, {"degrees": [30, 30], "interpolation": "bilinear"}, turned, size
    function = F.horizontal_flip if name == "flip" else F.vertical_flip
    return name, {"p": 1}, function, size


def chain(draw: Any, source: gm.Pipeline) -> tuple[gm.Pipeline, list[str], Any]:
    """A pipeline that is valid, the names of its operators, and the same in torchvision."""
    while True:
        names = [str(name) for name in draw.choice(EQUAL + WITHIN_ONE, draw.integers(2, 6), replace=False)]
        rounding = len({*names} & {*WITHIN_ONE})
        if rounding > 1 or (rounding and {*names} & {*WIDENING}):
            continue
        # So that operators are worth moving.
        typical = int(draw.choice([8, 1000]))
        pipeline = source.decode(typical_size=typical).crop(height=HEIGHT, width=WIDTH)
        functions, size = [], (HEIGHT, WIDTH)
        for name in names:
            op, params, function, size = drawn(draw, name, size)
            pipeline = pipeline.op(op, **params)
            functions.append(function)
        pipeline = pipeline.batch(1)
        try:
            pipeline.canonical()
        except gm.PipelineError:
            continue

        def theirs(image: Any, functions: list[Any] = functions) -> Any:
            for function in functions:
                image = function(image)
            return image.permute(1, 2, 0).numpy()

        return pipeline, names, theirs


def test_random_chains_are_those_of_torchvision(service: gm.Service, tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    board = 255 * ((x // 9 + y // 7) % 2)
    pixels = np.stack([128 + 100 * np.sin(x / 7), 128 + 100 * np.sin(y / 9), board], axis=-1).astype(np.uint8)
    (tmp_path / "one").mkdir()
    Image.fromarray(pixels).save(tmp_path / "one" / "image.png")
    given = torch.from_numpy(pixels).permute(2, 0, 1)
    for _ in range(CHAINS):
        pipeline, names, theirs = chain(draw, gm.images(tmp_path))
        with gm.numpy.Loader(pipeline, service=service, epochs=1) as loader:
            (batch,) = loader
        ours, wanted = batch["image"][0], theirs(given)
        assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), pipeline.to_yaml()
        unit = 2 / 255 if "normalise" in names else 1
        bound = 1.01 * unit if {*names} & {*WITHIN_ONE} else 1e-6 * unit
        assert np.abs(ours.astype(np.float64) - wanted).max() <= bound, pipeline.to_yaml()
