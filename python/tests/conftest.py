"""Data and a service that the tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from manual import IMAGES, Place

import gristmill as gm
from gristmill import _native

RECORDS = 1000
BATCH = 32


@pytest.fixture(scope="session", autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gm.Service]:
    """Tests neither use the user's cache nor take part in a launcher's run. Programs that they start find a service."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="gm-") as sockets:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # Paths of sockets are short.
        patch.setenv("XDG_RUNTIME_DIR", sockets)
        for name in list(os.environ):
            if name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") or name.startswith(("GRISTMILL_", "TORCHELASTIC_")):
                patch.delenv(name)
        with gm.local() as service:
            yield service


@pytest.fixture(scope="session")
def service(_isolated: gm.Service) -> gm.Service:
    return _isolated


@pytest.fixture(scope="session")
def numbers_dir(_isolated: gm.Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TFRecord files of the integers from 0 to 999 under `value`."""
    return _native.generate("ints", RECORDS, dir=tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="session")
def images_dir(_isolated: gm.Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TFRecord files of 200 JPEGs under `image/encoded`, with `image/class/label`."""
    return _native.generate("images", 200, dir=tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def numbers(numbers_dir: Path) -> gm.Pipeline:
    """Batches of 32 of 1,000 integers, `value` i64 [32]; the last batch has 8."""
    return gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).batch(size=BATCH)


@pytest.fixture(scope="session")
def images(images_dir: Path) -> gm.Pipeline:
    """Batches of 16 of 200 images: `image` u8 [16, 32, 32, 3], `label` i64 [16]."""
    features = {"image": gm.bytes("image/encoded"), "label": gm.i64("image/class/label")}
    return gm.tfrecord(images_dir / "train-*", **features).decode().center_crop(size=32).batch(size=16)


@pytest.fixture(scope="session")
def shards(_isolated: gm.Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TFRecord files of JPEGs for the commands of the manual."""
    return _native.generate("images", IMAGES, dir=tmp_path_factory.mktemp("shards"))


@pytest.fixture
def place(tmp_path: Path, shards: Path) -> Iterator[Place]:
    """A folder in which the commands of the manual run."""
    place = Place(tmp_path, shards)
    yield place
    place.end()
