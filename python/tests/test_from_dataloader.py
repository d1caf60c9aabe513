"""A torch DataLoader over an image folder gives the loader of the same batches, or one error that names all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gristmill as gm
import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from gristmill.switch import SwitchError  # noqa: E402
from gristmill.switch import transforms as switched  # noqa: E402
from gristmill.switch.advice import _ADVICE, _NO_OPERATOR, advice  # noqa: E402
from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import InterpolationMode, v2  # noqa: E402

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
BILINEAR = InterpolationMode.BILINEAR


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 JPEGs of different sizes in three classes, smooth, with sharp edges in some."""
    root = tmp_path_factory.mktemp("folder")
    draw = np.random.default_rng(1)
    for number in range(24):
        height, width = draw.integers(48, 90, 2)
        y, x = np.mgrid[0:height, 0:width]
        waves = [np.sin(x / draw.uniform(4, 15) + y / draw.uniform(4, 15) + draw.uniform(0, 6)) for _ in range(3)]
        pixels = 128 + 90 * np.stack(waves, axis=-1)
        if number % 2:
            pixels[height // 3 : height // 2, width // 4 : width // 2] = draw.integers(0, 255, 3)
        directory = root / ("ape", "Bee", "cat")[number % 3]
        directory.mkdir(exist_ok=True)
        name = f"{number}.JPG" if number == 5 else f"{number}.jpg"
        Image.fromarray(pixels.astype(np.uint8)).save(directory / name, "JPEG", quality=95)
    return root


def loader_of(folder: Path, transform: Any, **options: Any) -> Any:
    dataloader = DataLoader(ImageFolder(folder, transform=transform), batch_size=8, shuffle=True)
    return gm.from_dataloader(dataloader, **options)


def ops_of(folder: Path, transform: Any, **options: Any) -> list[str]:
    """The operators between `decode` and `batch`, as YAML has them."""
    lines = loader_of(folder, transform, **options).pipeline.to_yaml().splitlines()
    ops = [line.removeprefix("  - ") for line in lines if line.startswith("  - ")]
    return ops[ops.index("decode") + 1 : -1]


TENSOR = [v1.ToTensor()]
RESNET = "normalise: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }"
GOLDEN: list[tuple[str, list[Any], list[str]]] = [
    ("resize", [v1.Resize((20, 30)), *TENSOR], ["resize: { size: [20, 30] }", "scale"]),
    (
        "resize_shorter",
        [v2.Resize(30), v2.CenterCrop(20), *TENSOR],
        ["resize_shorter: { size: 30 }", "center_crop: { size: [20, 20] }", "scale"],
    ),
    (
        "resize_tensor",
        [v2.ToImage(), v2.Resize((9, 9), antialias=False), v2.ToDtype(torch.float32, scale=True)],
        ["resize: { size: [9, 9], antialias: false }", "scale"],
    ),
    (
        "random_resized_crop",
        [v1.RandomResizedCrop(24, scale=(0.2, 1.0)), v1.RandomHorizontalFlip(0.3), *TENSOR, v1.Normalize(MEAN, STD)],
        [
            "random_resized_crop: { size: [24, 24], scale: [0.2, 1.0], ratio: [0.75, 1.3333333333333333] }",
            "flip: { p: 0.3 }",
            RESNET,
        ],
    ),
    (
        "random_crop",
        [v1.RandomCrop(20, padding=(1, 2, 3, 4), pad_if_needed=True, fill=7), *TENSOR],
        ["random_crop: { size: [20, 20], padding: [1, 2, 3, 4], pad_if_needed: true, fill: 7 }", "scale"],
    ),
    (
        "random_crop_v2",
        [v2.RandomCrop((20, 21), padding=(1, 2, 3, 4)), *TENSOR],
        ["random_crop: { size: [20, 21], padding: [1, 2, 3, 4], fill: 0 }", "scale"],
    ),
    (
        "pad",
        [v2.CenterCrop(20), v2.Pad((2, 3)), *TO_FLOAT],
        ["center_crop: { size: [20, 20] }", "pad: { padding: [2, 3, 2, 3], fill: 0 }", "scale"],
    ),
    # The fill of f32 is one of u8, as long as nothing needs f32.
    (
        "pad_float",
        [*TO_FLOAT, v2.CenterCrop(20), v2.Pad(2, fill=1.0)],
        ["center_crop: { size: [20, 20] }", "pad: { padding: [2, 2, 2, 2], fill: 255 }", "scale"],
    ),
    (
        "pad_normalised",
        [*TO_FLOAT, v2.CenterCrop(20), v2.Normalize(MEAN, STD), v2.Pad(2, fill=0.5)],
        ["center_crop: { size: [20, 20] }", RESNET, "pad: { padding: [2, 2, 2, 2], fill: 0.5 }"],
    ),
    (
        "simclr",
        [
            v2.RandomResizedCrop(24),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(5, (0.1, 2.0))], p=0.5),
            v2.RandomSolarize(128, 0.2),
            *TO_FLOAT,
        ],
        [
            "random_resized_crop: { size: [24, 24], scale: [0.08, 1.0], ratio: [0.75, 1.3333333333333333] }",
            "color_jitter: { brightness: [0.6, 1.4], contrast: [0.6, 1.4], saturation: [0.8, 1.2], "
            "hue: [-0.1, 0.1], p: 0.8 }",
            "grayscale: { p: 0.2 }",
            "gaussian_blur: { kernel_size: 5, sigma: [0.1, 2.0], p: 0.5 }",
            "solarize: { threshold: 128, p: 0.2 }",
            "scale",
        ],
    ),
    (
        "tones",
        [v2.CenterCrop(20), v2.RandomInvert(0.4), v2.RandomPosterize(3, 0.7), v2.RandomVerticalFlip(), *TO_FLOAT],
        [
            "center_crop: { size: [20, 20] }",
            "solarize: { threshold: 0, p: 0.4 }",
            "posterize: { bits: 3, p: 0.7 }",
            "vertical_flip: { p: 0.5 }",
            "scale",
        ],
    ),
    (
        "turns",
        [
            v2.CenterCrop(20),
            v2.RandomRotation(10, BILINEAR, fill=5),
            v2.RandomAffine((5, 10)),
            v2.RandomAffine(0, shear=(1, 2, 3, 4)),
            *TO_FLOAT,
        ],
        [
            "center_crop: { size: [20, 20] }",
            "rotate: { degrees: [-10.0, 10.0], interpolation: bilinear, fill: 5 }",
            "rotate: { degrees: [-10.0, -5.0], interpolation: nearest, fill: 0 }",
            "shear: { degrees: [1.0, 2.0, 3.0, 4.0], interpolation: nearest, fill: 0 }",
            "scale",
        ],
    ),
    (
        "erasing",
        [*TO_FLOAT, v2.CenterCrop(20), v2.Normalize(MEAN, STD), v2.RandomErasing(0.3, value=0.25)],
        [
            "center_crop: { size: [20, 20] }",
            RESNET,
            "random_erasing: { p: 0.3, scale: [0.02, 0.33], ratio: [0.3, 3.3], value: 0.25 }",
        ],
    ),
    (
        "grey",
        [v1.Grayscale(), v1.CenterCrop(20), v1.ToTensor(), v1.Normalize([0.5], [0.25])],
        ["grayscale: { channels: 1 }", "center_crop: { size: [20, 20] }", "normalise: { mean: [0.5], std: [0.25] }"],
    ),
    (
        "bytes",
        [v2.CenterCrop(20), v2.RGB(), v2.Identity(), v2.PILToTensor(), v2.ToPureTensor()],
        ["center_crop: { size: [20, 20] }"],
    ),
    (
        "unscaled",
        [v2.PILToTensor(), v2.CenterCrop(20), v2.ToDtype(torch.float32), v2.Normalize([255, 0, 0], [510, 255, 255])],
        ["center_crop: { size: [20, 20] }", "normalise: { mean: [1.0, 0.0, 0.0], std: [2.0, 1.0, 1.0] }"],
    ),
    (
        "unscaled_alone",
        [v2.PILToTensor(), v2.CenterCrop(20), v2.ToPILImage(), v2.ToImage(), v2.ToDtype(torch.float32)],
        ["center_crop: { size: [20, 20] }", "cast: { dtype: f32 }"],
    ),
    (
        "nested",
        [v1.Compose([torch.nn.Sequential(v1.CenterCrop(20))]), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)],
        ["center_crop: { size: [20, 20] }", "scale"],
    ),
]


@pytest.mark.parametrize(("steps", "ops"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN])
def test_transforms_become_operators(folder: Path, steps: list[Any], ops: list[str]) -> None:
    assert ops_of(folder, v2.Compose(steps)) == [*ops, "layout: { to: nchw }"]


def test_a_pipeline_is_valid_and_reads_the_folder(folder: Path) -> None:
    for _, steps, _ in GOLDEN:
        loader_of(folder, v2.Compose(steps)).pipeline.canonical()
    dataset = ImageFolder(folder, transform=v2.Compose([v2.CenterCrop(8), *TO_FLOAT]))
    shuffled = gm.from_dataloader(DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True))
    assert shuffled.pipeline.to_yaml().splitlines()[:5] == [
        "source:",
        f"  images: {folder}",
        "ops:",
        "  - shuffle: { blocks: 64 }",
        "  - decode",
    ]
    assert "- batch: { size: 4, drop_remainder: true }" in shuffled.pipeline.to_yaml()
    ordered = gm.from_dataloader(DataLoader(dataset, batch_size=4), order="any")
    assert "  - in_order\n" in ordered.pipeline.to_yaml()


def test_a_device_gets_bytes_and_normalises(folder: Path) -> None:
    steps = [v2.CenterCrop(20), *TO_FLOAT, v2.Normalize(MEAN, STD)]
    loader = loader_of(folder, v2.Compose(steps), device="cpu")
    assert loader.pipeline.to_yaml().splitlines()[-4:] == [
        "  - center_crop: { size: [20, 20] }",
        "  - batch: { size: 8 }",
        "deliver:",
        f"  {RESNET}",
    ]


def test_weights_of_a_classifier(folder: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    transform = models.ResNet50_Weights.IMAGENET1K_V2.transforms()
    assert ops_of(folder, transform)[:3] == ["resize_shorter: { size: 232 }", "center_crop: { size: [224, 224] }", RESNET]


def test_every_class_of_v2_maps_or_is_named() -> None:
    classes = {name: cls for name, cls in vars(v2).items() if isinstance(cls, type) and issubclass(cls, torch.nn.Module)}
    mapped = set(switched._MAPS) | switched._COMPOSE | switched._RANDOM_APPLY
    named = {name for name, cls in classes.items() if cls in mapped}
    assert len(named) == 29
    assert not named & set(_ADVICE)
    # The advice names no class that is not there.
    assert set(_ADVICE) <= set(classes)
    general = set(classes) - named - set(_ADVICE)
    assert general == {
        *("ElasticTransform", "JPEG", "Lambda", "RandomAdjustSharpness", "RandomAutocontrast"),
        *("RandomChannelPermutation", "RandomEqualize", "RandomPerspective", "Transform"),
    }
    assert advice(v2.RandomEqualize()) == _NO_OPERATOR
