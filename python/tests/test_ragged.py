"""Batches of images of different sizes, which are lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gristmill as gm

SIZES = [(1 + n % 5, 2 + n % 7) for n in range(23)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose first value is their number, and whose sizes differ."""
    folder = tmp_path_factory.mktemp("ragged")
    for number, (height, width) in enumerate(SIZES):
        pixels = np.arange(height * width * 3, dtype=np.uint8) + number
        path = folder / "all" / f"{number:02}.ppm"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"P6 {width} {height} 255\n".encode() + pixels.tobytes())
    return folder


@pytest.fixture
def pipeline(folder: Path) -> gm.Pipeline:
    return gm.images(folder).shuffle().decode().batch(4, ragged=True)


def check(image: Any) -> int:
    number = int(image[0, 0, 0])
    height, width = SIZES[number]
    wanted = (np.arange(height * width * 3, dtype=np.uint8) + number).reshape(height, width, 3)
    assert np.array_equal(np.asarray(image), wanted)
    return number


def test_images_of_different_sizes_are_a_list(pipeline: gm.Pipeline, service: gm.Service) -> None:
    with gm.numpy.Loader(pipeline, service=service, epochs=2, keys=True) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [len(batch["image"]) for batch in batches] == [4, 4, 4, 4, 4, 3]
            assert sorted(check(image) for batch in batches for image in batch["image"]) == list(range(23))
            assert "image.shapes" not in batches[0] and "image.offsets" not in batches[0]
            assert all(image.flags.writeable for image in batches[0]["image"])
    assert [image.shape for image in gm.rows(batches[0], "image")] == [image.shape for image in batches[0]["image"]]


def test_a_loader_of_lists_goes_on_where_it_was(pipeline: gm.Pipeline, service: gm.Service) -> None:
    with gm.numpy.Loader(pipeline, service=service, epochs=1) as loader:
        whole = [[check(image) for image in batch["image"]] for batch in loader]
    with gm.numpy.Loader(pipeline, service=service, epochs=1) as loader:
        begun = iter(loader)
        next(begun), next(begun)
        state = loader.state_dict()
    with gm.numpy.Loader(pipeline, service=service, epochs=1) as loader:
        loader.load_state_dict(state)
        assert [[check(image) for image in batch["image"]] for batch in loader] == whole[2:]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensors_are_a_list(pipeline: gm.Pipeline, service: gm.Service, device: str | None) -> None:
    pytest.importorskip("torch")
    for channels_first in (False, True, "image"):
        given: dict[str, Any] = {"channels_first": channels_first, "device": device}
        with gm.torch.Loader(pipeline, service=service, epochs=1, **given) as loader:
            images = [image for batch in loader for image in batch["image"]]
        images = [image.movedim(0, 2) if channels_first else image for image in images]
        assert sorted(check(image) for image in images) == list(range(23))


def test_jax_arrays_are_a_list(pipeline: gm.Pipeline, service: gm.Service) -> None:
    pytest.importorskip("jax")
    with gm.jax.Loader(pipeline, service=service, epochs=1) as loader:
        assert sorted(check(image) for batch in loader for image in batch["image"]) == list(range(23))


def test_tensors_of_tensorflow_are_a_list(pipeline: gm.Pipeline, service: gm.Service) -> None:
    pytest.importorskip("tensorflow")
    with gm.tf.Loader(pipeline, service=service, epochs=1) as loader:
        assert sorted(check(image) for batch in loader for image in batch["image"]) == list(range(23))
        with pytest.raises(gm.OptionError, match=r"field image: images of different sizes are lists"):
            gm.tf.dataset(loader)


def test_batches_without_an_item_have_width_0(tmp_path: Path, service: gm.Service) -> None:
    (tmp_path / "empty.jsonl").write_text('{"x": []}\n{"x": []}\n')
    padded = gm.jsonl(tmp_path / "empty.jsonl", x=gm.f32(shape=[-1])).padded_batch(2, values={"x": float("nan")})
    with gm.numpy.Loader(padded, service=service, epochs=1) as loader:
        assert [batch["x"].shape for batch in loader] == [(2, 0)]
    (tmp_path / "some.jsonl").write_text('{"x": []}\n{"x": [1, 2]}\n')
    padded = gm.jsonl(tmp_path / "some.jsonl", x=gm.f32(shape=[-1])).padded_batch(2, values={"x": float("-inf")})
    assert sorted(padded.peek()["x"].tolist()) == [[-np.inf, -np.inf], [1, 2]]
