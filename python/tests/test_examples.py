"""The examples, written in Python, are those of YAML."""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable

import pytest

import gristmill as gm

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def image_and_label() -> gm.Pipeline:
    return gm.tfrecord("data/train-*", image=gm.bytes("image/encoded"), label=gm.i64("image/class/label"))


BUILT: dict[str, Callable[[], gm.Pipeline]] = {
    "autocache-train": lambda: (
        image_and_label()
        .decode()
        .resize(size=256)
        .autocache()
        .random_crop(size=224)
        .flip(p=0.5)
        .batch(size=64)
        .deliver(normalise=gm.IMAGENET)
    ),
    "autocache": lambda: (
        image_and_label()
        .decode()
        .resize_shorter(size=256)
        .autocache()
        .center_crop(size=224)
        .batch(size=64)
        .autocache()
        .deliver(normalise=gm.IMAGENET)
    ),
    "csv": lambda: gm.csv(
        "data/table-*.csv.gz",
        missing=["NA"],
        defaults={"age": -1},
        age=gm.i64(),
        weights=gm.f32(shape=[3]),
        text=gm.bytes("caption"),
    ).batch(size=32, ragged=True),
    "detection": lambda: (
        gm.webdataset("data/train-*.tar", image=gm.bytes("jpg;jpeg;png"), objects=gm.bytes("json"))
        .decode()
        .parse_json(field="objects", features={"boxes": gm.f32(shape=[-1, 4]), "labels": gm.i64(shape=[-1])})
        .random_resized_crop(size=320, scale=(0.3, 1.0), boxes=["boxes"], labels=["labels"], min_area=16)
        .flip(boxes="boxes", labels="labels", min_area=16)
        .padded_batch(size=16, values={"labels": -1})
        .deliver(normalise=gm.IMAGENET)
    ),
    "nlp": lambda: (
        gm.jsonl("data/tokens-*.jsonl", tokens=gm.i64(shape=[-1]))
        .length(field="tokens", into="n_tokens")
        .bucket_by_sequence_length(
            field="tokens", boundaries=[33, 65, 129, 257, 513], size=64, pad_to_bucket_boundary=True
        )
    ),
    "pecan-resnet50": lambda: (
        image_and_label()
        .decode(typical_size=[375, 500])
        .random_crop(size=320, pad_if_needed=True)
        .flip()
        .rotate(degrees=15)
        .shear(degrees=10)
        .resize(size=224)
        .normalise(mean=gm.IMAGENET["mean"], std=[1, 1, 1])
        .cast(dtype="f16")
        .one_hot(field="label", classes=1000)
        .batch(size=64)
    ),
    "pecan-retinanet": lambda: (
        image_and_label()
        .decode(typical_size=[480, 640])
        .resize(size=512)
        .normalise(**gm.IMAGENET)
        .flip()
        .cast(dtype="bf16")
        .batch(size=16)
    ),
    "pecan-simclr": lambda: (
        image_and_label()
        .decode(typical_size=[375, 500])
        .duplicate(copies=2)
        .random_resized_crop(size=224)
        .flip()
        .color_jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
        .gaussian_blur(kernel_size=23, sigma=[0.1, 2.0])
        .grayscale(channels=1)
        .scale()
        .batch(size=64)
    ),
    "resnet50": lambda: (
        image_and_label().decode().random_resized_crop(224).flip(p=0.5).batch(64).deliver(normalise=gm.IMAGENET)
    ),
    "segmentation": lambda: (
        gm.webdataset("data/train-*.tar", image=gm.bytes("jpg;jpeg;png"), mask=gm.bytes("mask.png"))
        .decode()
        .decode(field="mask", mode="indices")
        .random_resized_crop(size=256, scale=[0.5, 1.0], fields=["image", "mask"])
        .flip(fields=["image", "mask"])
        .color_jitter(brightness=0.2, contrast=0.2)
        .cast(field="mask", dtype="i64")
        .batch(size=16)
        .deliver(normalise=gm.IMAGENET)
    ),
    "simclr": lambda: (
        image_and_label()
        .decode()
        .duplicate(copies=2)
        .random_resized_crop(size=224)
        .flip(p=0.5)
        .color_jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=0.8)
        .grayscale(p=0.2)
        .gaussian_blur(kernel_size=23, sigma=[0.1, 2.0], p=0.5)
        .scale()
        .batch(size=128)
    ),
    "sleep": lambda: gm.tfrecord("data/train-*", value=gm.i64("value")).sleep(ms=2).batch(size=64),
    "zip": lambda: (
        gm.zip(
            gm.tfrecord("images/train-*", image=gm.bytes("image/encoded")),
            gm.jsonl("captions/train-*.jsonl", tokens=gm.i64(shape=[77]), score=gm.f32()),
        )
        .shuffle(blocks=16)
        .filter(field="score", min=0.3)
        .decode()
        .random_resized_crop(size=224)
        .batch(size=64)
        .deliver(normalise=gm.IMAGENET)
    ),
}


def examples() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def test_every_example_is_written_in_python() -> None:
    assert sorted(BUILT) == examples()


@pytest.mark.parametrize("name", examples())
def test_an_example_in_python_is_the_one_in_yaml(name: str) -> None:
    built = BUILT[name]().options(name=name)
    read = gm.Pipeline.from_yaml(EXAMPLES / f"{name}.yaml")
    assert built.canonical() == read.canonical()
    # The canonical form has no paths and no name.
    assert [part.keys for part in built._datasets] == [part.keys for part in read.options()._datasets]
    assert built._options == read.options()._options == {"name": name}


@pytest.mark.parametrize("name", examples())
def test_a_pipeline_is_read_back_from_its_yaml(name: str) -> None:
    built = BUILT[name]().options(name=name, compress="zstd", auto_order=False)
    read = gm.Pipeline.from_yaml(built.to_yaml())
    assert read == built
    assert hash(read) == hash(built)
    assert read.canonical() == built.canonical()
    assert read.options().to_yaml().count("\n") == built.to_yaml().count("\n")
    assert pickle.loads(pickle.dumps(built)) == built
    assert repr(pickle.loads(pickle.dumps(built))) == repr(built)


@pytest.mark.parametrize("name", examples())
def test_repr_is_the_code_of_the_pipeline(name: str) -> None:
    built = BUILT[name]().options(name=name)
    again = eval(repr(built), {"gm": gm})
    assert again == built
