"""Which transforms become which operators, and which are refused, by name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import InterpolationMode, v2  # noqa: E402

from gristmill.switch import SwitchError  # noqa: E402
from gristmill.switch import transforms as switched  # noqa: E402
from gristmill.switch.advice import _ADVICE, _NO_OPERATOR, advice  # noqa: E402

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
BILINEAR = InterpolationMode.BILINEAR


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two JPEGs."""
    root = tmp_path_factory.mktemp("folder")
    for number in range(2):
        directory = root / "class"
        directory.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), (number * 20, 0, 0)).save(directory / f"{number}.jpg")
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
        "resize_bicubic",
        [v2.Resize((9, 9), interpolation=3), v2.RandomResizedCrop(8, interpolation="bicubic"), *TENSOR],
        [
            "resize: { size: [9, 9], interpolation: bicubic }",
            "random_resized_crop: { size: [8, 8], scale: [0.08, 1.0], ratio: [0.75, 1.3333333333333333], "
            "interpolation: bicubic }",
            "scale",
        ],
    ),
    (
        "random_resized_crop",
        [
            v1.RandomResizedCrop(24, scale=(0.2, 1.0)),
            v1.RandomHorizontalFlip(0.3),
            *TENSOR,
            v1.Normalize(MEAN, STD),
        ],
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
        [
            v2.CenterCrop(20),
            v2.RandomInvert(0.4),
            v2.RandomPosterize(3, 0.7),
            v2.RandomVerticalFlip(),
            *TO_FLOAT,
        ],
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
        [
            "grayscale: { channels: 1 }",
            "center_crop: { size: [20, 20] }",
            "normalise: { mean: [0.5], std: [0.25] }",
        ],
    ),
    (
        "bytes",
        [v2.CenterCrop(20), v2.RGB(), v2.Identity(), v2.PILToTensor(), v2.ToPureTensor()],
        ["center_crop: { size: [20, 20] }"],
    ),
    (
        "unscaled",
        [
            v2.PILToTensor(),
            v2.CenterCrop(20),
            v2.ToDtype(torch.float32),
            v2.Normalize([255, 0, 0], [510, 255, 255]),
        ],
        ["center_crop: { size: [20, 20] }", "normalise: { mean: [1.0, 0.0, 0.0], std: [2.0, 1.0, 1.0] }"],
    ),
    (
        "unscaled_alone",
        [v2.PILToTensor(), v2.CenterCrop(20), v2.ToPILImage(), v2.ToImage(), v2.ToDtype(torch.float32)],
        ["center_crop: { size: [20, 20] }", "cast: { dtype: f32 }"],
    ),
    (
        "nested",
        [
            v1.Compose([torch.nn.Sequential(v1.CenterCrop(20))]),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float32),
        ],
        ["center_crop: { size: [20, 20] }", "scale"],
    ),
]


@pytest.mark.parametrize(("steps", "ops"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN])
def test_transforms_become_operators(folder: Path, steps: list[Any], ops: list[str]) -> None:
    assert ops_of(folder, v2.Compose(steps)) == [*ops, "layout: { to: nchw }"]


def test_pipelines_are_valid(folder: Path) -> None:
    for _, steps, _ in GOLDEN:
        loader_of(folder, v2.Compose(steps)).pipeline.canonical()


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
    assert ops_of(folder, transform)[:3] == [
        "resize_shorter: { size: 232 }",
        "center_crop: { size: [224, 224] }",
        RESNET,
    ]


def test_every_class_of_v2_maps_or_is_named() -> None:
    classes = {
        name: cls for name, cls in vars(v2).items() if isinstance(cls, type) and issubclass(cls, torch.nn.Module)
    }
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


REFUSED: list[tuple[list[Any], list[str]]] = [
    (
        [
            v2.RandAugment(),
            v2.Resize(256, interpolation="lanczos"),
            v2.CenterCrop(20),
            v2.Lambda(len),
            *TO_FLOAT,
        ],
        [
            "transform[0] RandAugment: ",
            "transform[1] Resize, interpolation='lanczos': ",
            "transform[3] Lambda: ",
        ],
    ),
    (
        [v1.RandomResizedCrop(8, scale=(0.5, 2.0), interpolation=InterpolationMode.NEAREST), v1.ToTensor()],
        [
            "transform[0] RandomResizedCrop, interpolation='nearest': ",
            "transform[0] RandomResizedCrop, scale=(0.5, 2.0): ",
        ],
    ),
    (
        [v2.Resize((8, 8)), v2.Compose([v2.Pad(3, padding_mode="reflect"), v2.Pad(-1)]), *TO_FLOAT],
        ["transform[1][0] Pad, padding_mode='reflect': ", "transform[1][1] Pad, padding=-1: "],
    ),
    (
        [
            v2.RandomRotation(5, expand=True, center=(1, 2), fill=(1, 2, 3)),
            v2.Resize(8, max_size=9),
            *TO_FLOAT,
        ],
        [
            "transform[0] RandomRotation, expand=True: ",
            "transform[0] RandomRotation, center=(1, 2): ",
            "transform[0] RandomRotation, fill=(1, 2, 3): ",
            "transform[1] Resize, max_size=9: ",
            "transform: images would differ in size",
        ],
    ),
    (
        [
            v2.CenterCrop(8),
            v2.RandomAffine(5, translate=(0.1, 0.2), shear=3),
            v2.RandomAffine(0, scale=(1, 2)),
            *TO_FLOAT,
        ],
        [
            "transform[1] RandomAffine, translate=(0.1, 0.2): ",
            "transform[1] RandomAffine, degrees and shear: ",
            "transform[2] RandomAffine, scale=(1, 2): ",
        ],
    ),
    (
        [v2.CenterCrop(8), v2.RandomApply([v2.RandomCrop(8)], 0.5), v2.RandomApply(TO_FLOAT, 0.5), *TO_FLOAT],
        ["transform[1] RandomApply: the operator of RandomCrop", "transform[2] RandomApply: it draws once"],
    ),
    (
        [
            v2.CenterCrop(8),
            v2.Normalize(MEAN, STD),
            v2.ToImage(),
            v2.Normalize(MEAN, STD),
            v2.ToDtype(torch.float16),
        ],
        [
            "transform[1] Normalize: it has no effect on a PIL image",
            "transform[3] Normalize: it takes floats",
            "transform[4] ToDtype, dtype=torch.float16: ",
        ],
    ),
    (
        [
            *TO_FLOAT,
            v2.Resize((8, 8)),
            v2.Normalize(MEAN, STD),
            v2.ColorJitter(0.5),
            v2.RandomErasing(value="random"),
            v2.Normalize([0.5], [0.5]),
        ],
        [
            "transform[2] Resize: Resize works on uint8 pixels; put it before",
            "transform[4] ColorJitter: ",
            "transform[5] RandomErasing, value='random': ",
            "transform[6] Normalize, mean of 1, std of 1: ",
        ],
    ),
    ([v2.CenterCrop(8), v2.RandomPosterize(3)], ["transform: it ends with a PIL image"]),
    (
        [v2.CenterCrop(8), v2.GaussianBlur((3, 5)), v2.ToImage()],
        ["transform[1] GaussianBlur, kernel_size=(3, 5): "],
    ),
    ([v2.CenterCrop(8), v2.Pad(1, fill=0.5), v2.ToImage()], ["transform[1] Pad, fill=0.5: uint8 pixels"]),
    (
        [v2.ToImage(), v2.ToDtype({torch.Tensor: torch.float32}), v2.CenterCrop(8)],
        ["transform[1] ToDtype, dtype={"],
    ),
]


@pytest.mark.parametrize(("steps", "problems"), REFUSED)
def test_one_error_names_everything(folder: Path, steps: list[Any], problems: list[str]) -> None:
    with pytest.raises(SwitchError) as raised:
        loader_of(folder, v2.Compose(steps))
    first, *lines = str(raised.value).split("\n  ")
    assert first.startswith("from_dataloader: ") and len(lines) == len(problems) == len(raised.value.problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(problem), line
        assert line.count(": ") >= 1 and "; " in line
    assert isinstance(raised.value, gm.OptionError)
    assert pickle.loads(pickle.dumps(raised.value)).problems == raised.value.problems


def test_classes_of_ones_own_are_refused(folder: Path) -> None:
    class Crop(v2.CenterCrop):
        pass

    class Folder(ImageFolder):
        pass

    with pytest.raises(SwitchError, match=r"transform\[0\] Crop: it is not a transform of torchvision"):
        loader_of(folder, v2.Compose([Crop(8), *TO_FLOAT]))
    with pytest.raises(SwitchError, match="dataset, Folder: "):
        gm.from_dataloader(DataLoader(Folder(folder), shuffle=True))
