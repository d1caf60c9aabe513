"""Loaders for evaluation beside those of training, and parts of a dataset."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import example_data
import numpy as np
import pytest

import gristmill as gm


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    example_data.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def numbers() -> gm.Pipeline:
    return gm.jsonl("numbers.jsonl", x=gm.i64())


def values(pipeline: gm.Pipeline, shard: str | None = None) -> list[int]:
    with gm.numpy.Loader(pipeline.batch(8), epochs=1, workers=0, shard=shard) as loader:
        return [int(x) for batch in loader for x in batch["x"]]


def test_random_operators_are_left_out_or_become_the_middle(folder: Path) -> None:
    train = (
        gm.images("pictures")
        .take(48)
        .shuffle(seed=3)
        .decode()
        .random_resized_crop([14, 28], antialias=False, interpolation="bicubic")
    )
    train = train.flip().grayscale(p=1).grayscale(p=0.2).vertical_flip(p=1).color_jitter(brightness=(0.5, 1.5))
    train = train.random_erasing().normalise(**gm.IMAGENET).batch(4, drop_remainder=True)
    same = (
        gm.images("pictures").take(48).in_order().decode().resize_shorter(32, antialias=False, interpolation="bicubic")
    )
    same = same.center_crop([14, 28]).grayscale().vertical_flip(p=1).normalise(**gm.IMAGENET).batch(4)
    assert json.loads(train.for_evaluation().canonical()) == json.loads(same.canonical())
    cropped = gm.images("pictures").decode(field="image").random_crop(8, padding=2, mask_fill=1, masks=["image"])
    assert repr(cropped.batch(4).for_evaluation()) == (
        "gm.images('pictures').in_order().decode().center_crop(size=8, masks=['image'], mask_fill=1).batch(size=4)"
    )
    assert train.for_evaluation().for_evaluation() == train.for_evaluation()


def test_every_random_operator_is_known(folder: Path) -> None:
    """None is left in a pipeline for evaluation, but for those that always do the same."""
    declared = json.loads(gm._native.operators())["operators"]
    needed = {"size": 8, "degrees": 5, "kernel_size": 3, "bits": 2}
    for operator in declared:
        if operator["randomness"] == "deterministic":
            continue
        required = [p["name"] for p in operator["parameters"] if p["default"] == "required"]
        made = getattr(gm.images("pictures").decode(), operator["name"])(**{name: needed[name] for name in required})
        left = [name for part in made.resize(8).batch(2).for_evaluation()._ops for name in part.keys]
        always = operator["name"] == "grayscale"
        assert (operator["name"] in left) == always, operator["name"]


def test_buckets_have_no_order(folder: Path) -> None:
    tokens = gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1])).shuffle()
    made = tokens.bucket_by_sequence_length(field="tokens", boundaries=[3], size=2).for_evaluation()
    made.canonical()
    assert "in_order" not in repr(made) and "shuffle" not in repr(made)


def test_an_evaluation_beside_training(folder: Path) -> None:
    pipeline = numbers().shuffle().batch(16, drop_remainder=True)
    with gm.numpy.Loader(pipeline, epochs=2, seed=5, batch_size=10) as loader:
        with loader.eval_loader("others.jsonl") as evaluation:
            assert type(evaluation) is gm.numpy.Loader
            for epoch in range(2):
                trained = [int(x) for batch in loader for x in batch["x"]]
                assert sorted(trained) != trained and len(trained) == 60
                evaluated = [int(x) for batch in evaluation for x in batch["x"]]
                assert evaluated == list(range(100, 164))
                assert loader.epoch == epoch + 1
            assert evaluation.epochs is None
        assert loader.cursor == (2, 0)


def test_an_evaluation_has_the_options_of_training_and_its_own(folder: Path, service: gm.Service) -> None:
    given: Any = {"service": service, "workers": 1, "batch_size": 4, "keys": True, "job": "train", "epochs": 3}
    with gm.numpy.Loader(numbers().batch(8), **given) as loader, loader.eval_loader(batch_size=32, epochs=1) as other:
        [first, second] = list(other)
        assert len(first["x"]) == len(second["x"]) == 32 and "__key__" in first
        assert other.job != "train" and other.epochs == 1
        assert loader.eval_loader().schema()["batch_size"] == 4
    with pytest.raises(gm.OptionError, match="did you mean batch_size"):
        loader.eval_loader(batchsize=3)
    with pytest.raises(gm.OptionError, match="there is no file or folder 'nowhere'"):
        loader.eval_loader("nowhere")


def test_classes_of_other_images_are_those_of_training(folder: Path) -> None:
    (folder / "test/fish").mkdir(parents=True)
    (folder / "test/fish/a.ppm").write_bytes(example_data.picture(3))
    train = gm.images("pictures").decode().random_crop(8).batch(4)
    with gm.numpy.Loader(train, epochs=1) as loader, loader.eval_loader(folder / "test") as evaluation:
        [batch] = list(evaluation.eval_loader(epochs=1))
        assert batch["label"].tolist() == [example_data.CLASSES.index("fish")]
    pattern = gm.images("pictures/*").decode().random_crop(8).batch(4)
    with gm.numpy.Loader(pattern) as loader, pytest.raises(gm.OptionError, match="classes"):
        loader.eval_loader("test")


def test_a_torch_loader_evaluates_on_its_device(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    train = gm.images("pictures").shuffle().decode().random_crop(8).batch(4).deliver(normalise=gm.IMAGENET)
    with gm.torch.Loader(train, epochs=1, device="cpu", channels_first=True) as loader, loader.eval_loader() as other:
        batch = next(iter(other))
        assert batch["image"].shape == (4, 3, 8, 8) and batch["image"].dtype == torch.float32


def test_a_range_is_a_part_of_any_dataset(folder: Path) -> None:
    assert values(numbers().subset(range(10, 20))) == list(range(10, 20))
    assert values(numbers().subset([5, 6, 7])) == [5, 6, 7]
    assert values(numbers().subset(range(2))) == [0, 1]
    assert values(numbers().subset([40, 41, 7, 9])) == [40, 41, 7, 9]
    assert sorted(values(numbers().shuffle().subset([3, 1, 2]))) == [1, 2, 3]
    parts = [values(numbers().in_order(), f"{part}/5") for part in range(5)]
    assert parts[1] == [*range(8, 16), *range(48, 56)] and sorted(x for part in parts for x in part) == list(range(64))
    assert values(numbers().skip(10).subset(range(3, 5)).shuffle().in_order()) == [13, 14]
    assert sorted(values(numbers().shuffle().subset(np.arange(4, 8)))) == [4, 5, 6, 7]


def test_a_list_of_images_is_that_of_torchvision(folder: Path) -> None:
    chosen = [0, 17, 16, 40, 63]
    whole = sorted(
        os.path.join("pictures", name, file) for name in example_data.CLASSES for file in os.listdir(f"pictures/{name}")
    )
    pipeline = gm.images("pictures").decode().center_crop([32, 40]).subset(chosen).batch(8)
    batch = pipeline.peek()
    found = {(image.tobytes(), int(label)) for image, label in zip(batch["image"], batch["label"], strict=True)}
    offset = len(b"P6 40 32 255\n")
    wanted = {(Path(whole[n]).read_bytes()[offset:], n // 16) for n in chosen}
    assert found == wanted
    [label] = gm.images("pictures").decode().resize(8).subset([40]).batch(8).peek()["label"].tolist()
    assert label == 40 // 16
    assert gm.images("pictures").decode().resize(8).subset([40, 42]).batch(8).peek()["label"].tolist() == [2, 2]
    datasets = pytest.importorskip("torchvision.datasets")
    assert [path for path, _ in datasets.ImageFolder("pictures").samples] == whole


def test_lists_that_cannot_be(folder: Path) -> None:
    folder_of = gm.images("pictures")
    for indices, why in (([], "at least one"), ([1, 1, 2], "twice"), ([-1], "less than 0"), ([64], "64 images")):
        with pytest.raises(gm.PipelineError, match=why):
            folder_of.subset(indices)
    (folder / "pictures/bird/00.ppm").rename(folder / "pictures/bird/a,b.ppm")
    with pytest.raises(gm.PipelineError, match=r"a,b\.ppm.*rename it"):
        folder_of.subset([15, 20])
    with pytest.raises(TypeError):
        folder_of.subset(["a"])  # type: ignore[list-item]


@pytest.mark.parametrize("test", [0.25, 16])
def test_both_parts_are_the_dataset(folder: Path, test: float) -> None:
    train, held_out = numbers().shuffle().train_test_split(test=test)
    assert (train.count(), held_out.count()) == (48, 16)
    assert sorted(values(train) + values(held_out)) == list(range(64))
    with pytest.raises(gm.PipelineError, match="leaves 64 and 0"):
        numbers().train_test_split(test=0)


def test_counts(folder: Path) -> None:
    assert numbers().count() == 64
    assert numbers().repeat(2).skip(100).count() == 28
    assert gm.images("pictures").shuffle().decode().filter("label", max=0).count() == 64


def test_rows_of_any_length(folder: Path) -> None:
    texts = gm.jsonl("texts.jsonl", text=gm.bytes(), tokens=gm.i64(shape=[-1]), n=gm.i64("tokens", shape=[-1]))
    batch = texts.length(field="n", into="length").drop("n").batch(3, ragged=True).peek()
    assert [row.tolist() for row in gm.rows(batch, "tokens")] == [[1, 2], [3, 4, 5], [6]]
    assert gm.rows(batch, "length") == [2, 3, 1]
    with pytest.raises(gm.OptionError, match="no field 'x'; the batch has"):
        gm.rows(batch, "x")
