"""`from_dataloader` delivers what torchvision makes: equal values, or draws from equal distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import InterpolationMode, v2  # noqa: E402

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
CROP = v2.CenterCrop(32)
BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
IMAGES = 24

# Values of u8 may differ by one; f32 by rounding.
ONE, ROUNDING = 1.01 / 255, 2e-6
EXACT: list[tuple[str, list[Any], float]] = [
    ("resize", [v1.Resize((20, 30)), v1.ToTensor()], ONE),
    ("resize_shorter", [v2.Resize(30), v2.CenterCrop(28), *TO_FLOAT], ONE),
    ("enlarge", [v2.Resize((100, 120)), *TO_FLOAT], ONE),
    ("resize_tensor", [v2.ToImage(), v2.Resize((20, 30)), *TO_FLOAT], ONE),
    ("resize_tensor_alias", [v2.ToImage(), v2.Resize((20, 30), antialias=False), *TO_FLOAT], ONE),
    ("bicubic", [v1.Resize((20, 30), interpolation=BICUBIC), v1.ToTensor()], ROUNDING),
    ("bicubic_tensor_alias", [v2.ToImage(), v2.Resize((20, 30), BICUBIC, antialias=False), *TO_FLOAT], 2 * ONE),
    (
        "evaluation",
        [v1.Resize(30), v1.CenterCrop(28), v1.ToTensor(), v1.Normalize(MEAN, STD)],
        ONE / min(STD),
    ),
    ("normalise", [v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(MEAN, STD)], ROUNDING),
    ("normalise_floats", [CROP, *TO_FLOAT, v2.RandomGrayscale(1.0), v2.Normalize(MEAN, STD)], ROUNDING),
    (
        "normalise_unscaled",
        [v2.PILToTensor(), CROP, v2.ToDtype(torch.float32), v2.Normalize([120, 110, 100], [60, 61, 62])],
        ROUNDING,
    ),
    ("pad", [CROP, v2.Pad((1, 2, 3, 4), fill=9), *TO_FLOAT], ROUNDING),
    ("pad_normalised", [*TO_FLOAT, CROP, v2.Normalize(MEAN, STD), v2.Pad((1, 2, 3, 4), fill=0.5)], ROUNDING),
    # The only place for the crop, so that nothing is drawn.
    ("random_crop", [CROP, v2.RandomCrop((38, 36), padding=(1, 2, 3, 4), fill=9), *TO_FLOAT], ROUNDING),
    ("random_crop_v1", [CROP, v1.RandomCrop((38, 36), padding=(1, 2, 3, 4), fill=9), v1.ToTensor()], ROUNDING),
    ("enlarging_crop", [v2.CenterCrop(100), *TO_FLOAT], ROUNDING),
    ("mirror", [CROP, v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), *TO_FLOAT], ROUNDING),
    ("grey", [CROP, v1.Grayscale(), v1.ToTensor()], ONE),
    ("grey_tensor", [v2.ToImage(), CROP, v2.Grayscale(3), *TO_FLOAT], ONE),
    ("brightness", [CROP, v1.ColorJitter(brightness=(1.3, 1.3)), *TO_FLOAT], ONE),
    ("contrast", [CROP, v1.ColorJitter(contrast=(0.6, 0.6)), *TO_FLOAT], ONE),
    ("saturation", [CROP, v1.ColorJitter(saturation=(1.5, 1.5)), *TO_FLOAT], ONE),
    ("hue_tensor", [v2.ToImage(), CROP, v2.ColorJitter(hue=(0.1, 0.1)), *TO_FLOAT], ONE),
    # Pillow turns hues in steps of 1 / 256.
    ("hue_pil", [CROP, v1.ColorJitter(hue=(0.1, 0.1)), *TO_FLOAT], 12 / 255),
    ("hue_floats", [*TO_FLOAT, CROP, v2.ColorJitter(hue=(0.1, 0.1))], 1e-5),
    ("blur", [CROP, v1.GaussianBlur(5, (1.0, 1.0)), *TO_FLOAT], ONE),
    ("solarize", [CROP, v1.RandomSolarize(128, 1.0), *TO_FLOAT], ROUNDING),
    ("solarize_floats", [*TO_FLOAT, CROP, v2.RandomSolarize(128 / 255, 1.0)], ROUNDING),
    (
        "solarize_jittered",
        [*TO_FLOAT, CROP, v2.ColorJitter((0.5, 0.5)), v2.RandomSolarize(0.4, 1.0)],
        ROUNDING,
    ),
    ("invert", [CROP, v1.RandomInvert(1.0), *TO_FLOAT], ROUNDING),
    ("posterize", [CROP, v1.RandomPosterize(3, 1.0), *TO_FLOAT], ROUNDING),
    ("rotate", [v2.ToImage(), CROP, v2.RandomRotation((23, 23), BILINEAR, fill=5), *TO_FLOAT], ONE),
    ("affine", [v2.ToImage(), CROP, v2.RandomAffine((23, 23), interpolation=BILINEAR), *TO_FLOAT], ONE),
    ("shear", [v2.ToImage(), CROP, v2.RandomAffine(0, shear=(12, 12, 7, 7)), *TO_FLOAT], ONE),
    ("no_chance", [CROP, v2.RandomApply([v2.ColorJitter(hue=(0.2, 0.2))], p=0.0), *TO_FLOAT], ROUNDING),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 JPEGs of different sizes in three classes; every second has sharp edges."""
    root = tmp_path_factory.mktemp("folder")
    draw = np.random.default_rng(1)
    for number in range(IMAGES):
        height, width = draw.integers(48, 90, 2)
        y, x = np.mgrid[0:height, 0:width]
        waves = [np.sin(x / draw.uniform(4, 15) + y / draw.uniform(4, 15) + draw.uniform(0, 6)) for _ in range(3)]
        pixels = 128 + 90 * np.stack(waves, axis=-1)
        if number % 2:
            pixels[height // 3 : height // 2, width // 4 : width // 2] = draw.integers(0, 255, 3)
        directory = root / ("ape", "Bee", "cat")[number % 3] / ("deep" if number > 15 else "")
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{number}.JPG" if number == 5 else f"{number}.jpg"
        Image.fromarray(pixels.astype(np.uint8)).save(directory / name, "JPEG", quality=95)
    return root


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 equal PNGs of 64 x 64: red rises from left to right, green from top to bottom, blue is 100."""
    root = tmp_path_factory.mktemp("plain")
    y, x = np.mgrid[0:64, 0:64]
    image = Image.fromarray(np.stack([x * 3, y * 3, np.full_like(x, 100)], axis=-1).astype(np.uint8))
    for number in range(128):
        directory = root / str(number % 2)
        directory.mkdir(exist_ok=True)
        image.save(directory / f"{number}.png")
    return root


def delivered(loader: Any) -> tuple[Any, Any]:
    """Images and labels of all epochs."""
    with loader:
        batches = [batch for _ in range(loader.epochs) for batch in loader]
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


@pytest.mark.parametrize(("steps", "bound"), [case[1:] for case in EXACT], ids=[case[0] for case in EXACT])
def test_values_are_those_of_torchvision(service: gm.Service, folder: Path, steps: list[Any], bound: float) -> None:
    dataset = ImageFolder(folder, transform=v2.Compose(steps))
    dataloader = DataLoader(dataset, batch_size=5)
    ours, labels = delivered(gm.from_dataloader(dataloader, order="any", service=service, epochs=1))
    theirs, classes = (
        torch.cat([batch[0] for batch in dataloader]),
        torch.cat([batch[1] for batch in dataloader]),
    )
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    # Each image is that of the nearest, as images come in another order.
    nearest = torch.cdist(ours.flatten(1), theirs.flatten(1)).argmin(dim=1)
    assert sorted(nearest.tolist()) == list(range(IMAGES))
    assert labels.tolist() == classes[nearest].tolist()
    assert (ours - theirs[nearest]).abs().max() <= bound


def test_pillow_turns_the_same_way_but_for_edges(service: gm.Service, folder: Path) -> None:
    steps = [CROP, v2.RandomRotation((23, 23), BILINEAR), v2.CenterCrop(16), *TO_FLOAT]
    dataset = ImageFolder(folder, transform=v2.Compose(steps))
    ours, _ = delivered(gm.from_dataloader(DataLoader(dataset, 8), order="any", service=service, epochs=1))
    theirs = torch.stack([image for image, _ in dataset])
    nearest = torch.cdist(ours.flatten(1), theirs.flatten(1)).argmin(dim=1)
    assert (ours - theirs[nearest]).abs().max() <= 2 * ONE


def drawn(service: gm.Service, plain: Path, steps: list[Any], epochs: int = 8) -> tuple[Any, Any]:
    """1,024 images of ours, and as many of torchvision's."""
    dataset = ImageFolder(plain, transform=v2.Compose(steps))
    loader = gm.from_dataloader(
        DataLoader(dataset, batch_size=64, shuffle=True), service=service, epochs=epochs, seed=3
    )
    ours, _ = delivered(loader)
    torch.manual_seed(1)
    theirs = torch.stack([dataset[i % len(dataset)][0] for i in range(len(ours))])
    assert len(ours) == 128 * epochs
    return ours, theirs


def agree(ours: Any, theirs: Any) -> None:
    """Two samples of one distribution: means within four standard errors, deviations within a tenth."""
    error = (ours.var() / len(ours) + theirs.var() / len(theirs)).sqrt()
    assert (ours.mean() - theirs.mean()).abs() <= 4 * error
    assert 0.9 <= ours.std() / theirs.std() <= 1.1
    assert ours.std() > 0


def test_probabilities(service: gm.Service, plain: Path) -> None:
    steps = [v2.RandomHorizontalFlip(0.3), v2.RandomApply([v2.RandomVerticalFlip(0.5)], 0.4), CROP, *TO_FLOAT]
    ours, theirs = drawn(service, plain, steps)
    for channel, p, first, last in ((0, 0.3, (16, 0), (16, 31)), (1, 0.2, (0, 16), (31, 16))):
        mirrored = (ours[:, channel, first[0], first[1]] > ours[:, channel, last[0], last[1]]).float()
        assert abs(mirrored.mean().item() - p) <= 4 * (p * (1 - p) / len(ours)) ** 0.5
    agree(ours[:, 0, 16, 0], theirs[:, 0, 16, 0])
    agree(ours[:, 1, 0, 16], theirs[:, 1, 0, 16])


def test_random_resized_crops(service: gm.Service, plain: Path) -> None:
    ours, theirs = drawn(service, plain, [v2.RandomResizedCrop(16, scale=(0.1, 0.9)), *TO_FLOAT])

    def measures(images: Any) -> list[Any]:
        width = images[:, 0, :, 14].mean(dim=1) - images[:, 0, :, 1].mean(dim=1)
        height = images[:, 1, 14, :].mean(dim=1) - images[:, 1, 1, :].mean(dim=1)
        return [
            width,
            height,
            width * height,
            width / height,
            images[:, 0].mean((1, 2)),
            images[:, 1].mean((1, 2)),
        ]

    for mine, other in zip(measures(ours), measures(theirs), strict=True):
        agree(mine, other)


def test_jitter_erasing_and_crops(service: gm.Service, plain: Path) -> None:
    steps = [
        v2.RandomCrop(48),
        v2.RandomApply([v2.ColorJitter(brightness=0.4)], p=0.8),
        *TO_FLOAT,
        v2.RandomErasing(0.5, value=1.0),
    ]
    ours, theirs = drawn(service, plain, steps)

    def factor(images: Any) -> Any:
        return images[:, 2].flatten(1).median(dim=1).values * 255 / 100

    def erased(images: Any) -> Any:
        return (images[:, 2] == 1).float().mean((1, 2))

    agree(factor(ours), factor(theirs))
    assert 0.59 <= factor(ours).min() < 0.63 and 1.37 < factor(ours).max() <= 1.41
    agree(erased(ours), erased(theirs))
    assert abs((erased(ours) > 0).float().mean().item() - 0.5) <= 4 * (0.25 / len(ours)) ** 0.5
    agree(ours[:, 0, :, 24].median(dim=1).values, theirs[:, 0, :, 24].median(dim=1).values)


def test_epochs_and_seeds_draw_anew(service: gm.Service, plain: Path) -> None:
    dataset = ImageFolder(plain, transform=v2.Compose([v2.RandomCrop(8), *TO_FLOAT]))
    dataloader = DataLoader(dataset, batch_size=128, shuffle=True)

    def epochs(**options: Any) -> list[Any]:
        with gm.from_dataloader(dataloader, service=service, epochs=2, **options) as loader:
            return [images for _ in range(2) for images, _ in loader]

    first, again, other = epochs(seed=1), epochs(seed=1), epochs(seed=2)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], other[0])
