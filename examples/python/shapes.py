"""JPEGs of ten classes that a small network can learn: the data of `train_resnet.py`.

A class is a shape or a texture. Colour, size, place, rotation, background and noise say nothing about it.
"""

import io
import json
import math
import os
import shutil
import tarfile
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("checks", "cross", "disc", "dots", "grid", "ring", "square", "star", "stripes", "triangle")
TEXTURES = ("checks", "dots", "grid", "stripes")
VERSION = 2  # of the pictures; another number is another folder
SIDES = (224, 289)  # bounds of an image's height and width
SHARDS = 4  # archives of the images for training
NOISE = 22.0  # deviation of each pixel


def folder_of_images(cache: Path, images: int, held_out: int) -> Path:
    """A folder of images, drawn if it is not there yet, in two forms with the same JPEGs.

    For torchvision's ImageFolder `train/CLASS/*.jpg` and `held-out/CLASS/*.jpg`; for gristmill, which reads an
    archive with fewer requests, `train-*.tar` and `held-out-*.tar`.
    """
    folder = cache / f"shapes-v{VERSION}-{images}-{held_out}"
    if (folder / "complete.json").exists():
        return folder
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.draft")
    for part in ("train", "held-out"):
        for name in CLASSES:
            (draft / part / name).mkdir(parents=True, exist_ok=True)
    tasks = [(draft, "train", number) for number in range(images)]
    tasks += [(draft, "held-out", number) for number in range(held_out)]
    # The command line's main module is not imported anew in processes that are forked.
    with get_context("fork").Pool(os.cpu_count()) as pool:
        jpeg_bytes = sum(pool.imap_unordered(write, tasks, chunksize=32))
    for part, shards in (("train", SHARDS), ("held-out", 1)):
        archive(draft, part, shards)
    about = {"images": images, "held_out": held_out, "classes": CLASSES, "jpeg_bytes": jpeg_bytes}
    (draft / "complete.json").write_text(json.dumps(about))
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(draft, folder)
    return folder


def archive(folder: Path, part: str, shards: int) -> None:
    """Copies images into tar files of the WebDataset format: N.jpg, then N.cls with the class's number."""
    files = sorted((folder / part).glob("*/*.jpg"), key=lambda path: path.name)
    for shard in range(shards):
        with tarfile.open(folder / f"{part}-{shard}.tar", "w") as tar:
            for path in files[shard::shards]:
                tar.add(path, path.name)
                label = str(CLASSES.index(path.parent.name)).encode()
                member = tarfile.TarInfo(f"{path.stem}.cls")
                member.size = len(label)
                tar.addfile(member, io.BytesIO(label))


def write(task: tuple[Path, str, int]) -> int:
    """Draws one image and writes it; its bytes."""
    folder, part, number = task
    rng = np.random.default_rng([VERSION, part == "train", number])
    name = CLASSES[number % len(CLASSES)]
    jpeg = io.BytesIO()
    draw(name, rng).save(jpeg, "JPEG", quality=int(rng.integers(80, 95)))
    return (folder / part / name / f"{number:06}.jpg").write_bytes(jpeg.getvalue())


def draw(name: str, rng: np.random.Generator) -> Image.Image:
    """An image of a class."""
    width, height = (int(side) for side in rng.integers(*SIDES, size=2))
    back = rng.integers(0, 256, 3)
    front = rng.integers(0, 256, 3)
    while np.abs(front - back).sum() < 180:
        front = rng.integers(0, 256, 3)
    mask = texture(name, width, height, rng) if name in TEXTURES else shape(name, width, height, rng)
    # A slope of light over the whole image.
    across, down = rng.normal(0, 25, 2)
    light = np.linspace(-across, across, width) + np.linspace(-down, down, height)[:, None]
    pixels = np.where(mask[..., None], front, back) + light[..., None]
    pixels += rng.standard_normal(pixels.shape, np.float32) * NOISE
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def turned(width: int, height: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of each pixel in a plane that is turned and moved at random."""
    angle = rng.uniform(0, 2 * math.pi)
    x, y = np.arange(width) - rng.uniform(0, width), np.arange(height)[:, None] - rng.uniform(0, height)
    return x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)


def texture(name: str, width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """Which pixels of an image are in front, for a class that covers it all."""
    across, along = turned(width, height, rng)
    period = rng.uniform(28, 56)
    across, along = across / period % 1, along / period % 1
    match name:
        case "stripes":
            return across < 0.5
        case "checks":
            return (across < 0.5) ^ (along < 0.5)
        case "grid":
            return (across < 0.22) | (along < 0.22)
        case _:
            return (across - 0.5) ** 2 + (along - 0.5) ** 2 < 0.09


def shape(name: str, width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """Which pixels of an image are in front, for a class that is one figure."""
    radius = min(width, height) * rng.uniform(0.25, 0.42)
    centre = width * rng.uniform(0.4, 0.6), height * rng.uniform(0.4, 0.6)
    image = Image.new("1", (width, height))
    pen = ImageDraw.Draw(image)
    if name in ("disc", "ring"):
        for share, ink in ((1.0, 1), (0.6, 0))[: 2 if name == "ring" else 1]:
            corners = [centre[axis] + sign * radius * share for sign in (-1, 1) for axis in (0, 1)]
            pen.ellipse(corners, fill=ink)
    else:
        turn = rng.uniform(0, 2 * math.pi)
        points = [(turn + angle, radius * share) for angle, share in outline(name)]
        pen.polygon([(centre[0] + far * math.cos(at), centre[1] + far * math.sin(at)) for at, far in points], fill=1)
    return np.asarray(image)


def outline(name: str) -> list[tuple[float, float]]:
    """The corners of a figure: angle, and distance from its middle between 0 and 1."""
    if name == "cross":
        inner, arm = 0.28 * math.sqrt(2), math.atan2(0.28, 0.96)
        corners = [(-arm, 1.0), (arm, 1.0), (math.pi / 4, inner)]
        return [(side * math.pi / 2 + angle, far) for side in range(4) for angle, far in corners]
    count, shares = {"square": (4, [1.0]), "star": (10, [1.0, 0.42]), "triangle": (3, [1.0])}[name]
    return [(2 * math.pi * corner / count, shares[corner % len(shares)]) for corner in range(count)]
