"""A webdataset pipeline over tar files gives the loader of the same batches, or one error that names all."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
wds = pytest.importorskip("webdataset")

from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from gristmill.switch import SwitchError  # noqa: E402

RECORDS = 30
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
EVALUATION = v2.Compose([v2.Resize(30), v2.CenterCrop(24), *TO_FLOAT, v2.Normalize(MEAN, STD)])
ONE = 1.01 / 255


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three tar files of 10 records: `jpg`, or `png` for each third, `cls`, and `seg.png` of one channel."""
    root = tmp_path_factory.mktemp("shards")
    draw = np.random.default_rng(2)
    for shard in range(3):
        with tarfile.open(root / f"train-{shard:03}.tar", "w") as tar:
            for number in range(shard * 10, shard * 10 + 10):
                add(tar, number, draw)
    return f"{root}/train-{{000..002}}.tar"


def add(tar: tarfile.TarFile, number: int, draw: Any) -> None:
    height, width = draw.integers(32, 60, 2)
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 4 % 256, y * 4 % 256, np.full_like(x, number * 8)], axis=-1).astype(np.uint8)
    kind = "png" if number % 3 == 0 else "jpg"
    members = {f".{kind}": encoded(pixels, kind), ".cls": f"{number}\n".encode()}
    members[".seg.png"] = encoded(pixels[..., 0], "png")
    for ending, content in members.items():
        member = tarfile.TarInfo(f"dir/{number:05}{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def encoded(pixels: Any, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, {"jpg": "JPEG", "png": "PNG"}[kind], **({"quality": 95} if kind == "jpg" else {}))
    return out.getvalue()


def dataset_of(shards: str, **options: Any) -> Any:
    return wds.WebDataset(shards, **{"shardshuffle": False, **options})


def ops_of(source: Any, **options: Any) -> list[str]:
    lines = gm.from_webdataset(source, **options).pipeline.to_yaml().splitlines()
    return [line.removeprefix("  - ") for line in lines[lines.index("ops:") + 1 :]]


PLAIN = [
    "decode",
    "resize_shorter: { size: 30 }",
    "center_crop: { size: [24, 24] }",
    "normalise: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }",
    "layout: { to: nchw }",
]


def sources(shards: str) -> dict[str, Any]:
    """One pipeline, written in the ways of webdataset."""
    urls = wds.shardlists.expand_urls(shards)
    base = dataset_of(shards).decode("pil")
    tuples = base.to_tuple("jpg;png", "cls").map_tuple(EVALUATION, None)
    return {
        "fluid": tuples.batched(7),
        "one_text": base.to_tuple("jpg;png cls").map_tuple(EVALUATION).batched(7, partial=True),
        "renamed": base.rename(image="jpg;png", label="cls")
        .map_dict(image=EVALUATION)
        .to_tuple("image", "label")
        .batched(7),
        "web_loader": wds.WebLoader(tuples.batched(3), batch_size=None, num_workers=2).unbatched().batched(7),
        "dataloader": DataLoader(tuples, batch_size=7),
        "stages": wds.DataPipeline(
            wds.SimpleShardList(urls),
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            wds.decode("pil"),
            wds.to_tuple("jpg;png", "cls"),
            wds.map_tuple(EVALUATION, int),
            wds.batched(7),
        ),
    }


WAYS = ["dataloader", "fluid", "one_text", "renamed", "stages", "web_loader"]


@pytest.mark.parametrize("way", WAYS)
def test_stages_become_a_pipeline(shards: str, way: str) -> None:
    assert sorted(sources(shards)) == WAYS
    loader = gm.from_webdataset(sources(shards)[way])
    text = loader.pipeline.to_yaml()
    paths = ", ".join(wds.shardlists.expand_urls(shards))
    assert f"webdataset: [{paths}]" in text
    assert 'image: { dtype: bytes, key: "jpg;png" }' in text or 'image: { key: "jpg;png", dtype: bytes }' in text
    assert ops_of(sources(shards)[way]) == ["in_order", *PLAIN, "batch: { size: 7 }"]
    loader.pipeline.canonical()


def test_values_and_order_are_webdatasets(service: gm.Service, shards: str) -> None:
    source = sources(shards)["fluid"]
    with gm.from_webdataset(source, service=service, epochs=1) as loader:
        ours = list(loader)
    theirs = list(source)
    assert [len(labels) for _, labels in ours] == [len(labels) for _, labels in theirs] == [7, 7, 7, 7, 2]
    for (images, labels), (expected, classes) in zip(ours, theirs, strict=True):
        assert images.dtype == torch.float32 and images.shape == expected.shape
        assert labels.dtype == torch.int64 and labels.tolist() == classes.tolist()
        assert (images - expected).abs().max() <= ONE / min(STD)


def test_files_and_members_by_arguments(service: gm.Service, shards: str) -> None:
    fields = ("cls", "jpg;png", "seg.png")
    options = {"fields": fields, "transform": EVALUATION, "batch_size": 10, "decode": "pil"}
    with pytest.raises(SwitchError) as raised:
        gm.from_webdataset(shards, **options)
    assert [(p.where, p.what) for p in raised.value.problems] == [("transform of 'seg.png'", "")] * 2
    with gm.from_webdataset(shards, **options | {"fields": fields[:2]}, service=service, epochs=1) as loader:
        labels = torch.cat([labels for labels, _ in loader])
    assert labels.tolist() == list(range(RECORDS))
    assert ops_of(shards, **options | {"fields": fields[:2], "shuffle": True, "drop_last": True}) == [
        "shuffle",
        *PLAIN,
        "batch: { size: 10, drop_remainder: true }",
    ]


def test_two_images_of_a_record(service: gm.Service, shards: str) -> None:
    crop = v2.Compose([v2.CenterCrop(24), *TO_FLOAT])
    source = dataset_of(shards).decode("pill").to_tuple("seg.png", "jpg;png").map_tuple(crop, crop).batched(10)
    with gm.from_webdataset(source, service=service, epochs=1) as loader:
        ours = list(loader)
    for batch, expected in zip(ours, source, strict=True):
        for images, others in zip(batch, expected, strict=True):
            assert images.shape == others.shape == (10, 1, 24, 24)
            assert (images - others).abs().max() <= ONE


def test_tensors_of_webdataset(service: gm.Service, shards: str) -> None:
    for word, steps in (("torchrgb", []), ("torchrgb8", [v2.ToDtype(torch.float32, scale=True)])):
        source = dataset_of(shards).decode(word).to_tuple("jpg;png").map_tuple(v2.Compose([v2.CenterCrop(20), *steps]))
        with gm.from_webdataset(source.batched(RECORDS), service=service, epochs=1) as loader:
            [[images]] = loader
        [[expected]] = source.batched(RECORDS)
        assert images.dtype == torch.float32
        assert (images - expected).abs().max() <= ONE


def test_shuffling_and_bad_records(shards: str) -> None:
    end = {"decode": "pil", "keys": ("jpg;png", "cls")}

    def finished(dataset: Any) -> Any:
        return dataset.decode(end["decode"]).to_tuple(*end["keys"]).map_tuple(EVALUATION).batched(5, partial=False)

    for dataset in (
        dataset_of(shards).shuffle(100),
        dataset_of(shards, shardshuffle=10),
        dataset_of(shards, shardshuffle=10, detshuffle=True),
    ):
        assert ops_of(finished(dataset)) == ["shuffle", *PLAIN, "batch: { size: 5, drop_remainder: true }"]
    skipping = dataset_of(shards, handler=wds.warn_and_continue)
    assert "--on-error=skip" in gm.from_webdataset(finished(skipping))._flags
    assert "--on-error=skip" not in gm.from_webdataset(finished(dataset_of(shards)))._flags


def problems_of(source: Any, **options: Any) -> list[str]:
    with pytest.raises(SwitchError) as raised:
        gm.from_webdataset(source, **options)
    assert str(raised.value).startswith("from_webdataset: ")
    return [f"{problem.where}: {problem.what}" for problem in raised.value.problems]


def test_one_error_names_everything(shards: str) -> None:
    source = (
        dataset_of(shards, select_files=bool)
        .map(dict)
        .select(bool)
        .decode("rgb", handler=wds.ignore_and_stop)
        .to_tuple("jpg", "txt", "cls")
        .map_tuple(v2.Compose([v2.RandAugment(), v2.CenterCrop(8), *TO_FLOAT]), None, str)
        .batched(5, collation_fn=list)
        .with_epoch(100)
    )
    assert problems_of(source) == [
        "WebDataset: with_epoch or repeat",
        "stage 5 tar_file_expander: select_files or rename_files",
        "stage 8 map: dict",
        "stage 9 select: ",
        "stage 10 map: handler",
        "stage 13 batched: collation_fn",
        "field 'jpg': ",
        "transform of 'jpg'[0] RandAugment: ",
        "field 'txt': ",
        "field 'cls': ",
    ]


def test_missing_members_are_named(shards: str) -> None:
    dataset = dataset_of(shards)
    assert problems_of(dataset.decode("pil")) == ["to_tuple: ", "batches: "]
    assert problems_of(dataset.to_tuple("jpg", "cls").batched(3)) == ["field 'jpg': "]
    resampled = dataset_of(shards, resampled=True).decode("pil").to_tuple("cls").batched(3)
    assert problems_of(resampled) == ["stage 0 ResampledShards: "]
    piped = dataset_of("pipe:cat x.tar").to_tuple("cls").batched(3)
    assert problems_of(piped) == ["urls: 'pipe:cat x.tar'"]
    nested = DataLoader([1, 2], batch_size=2)
    assert problems_of(nested)[0] == "dataset: list"
    twice = dataset.to_tuple("cls").batched(3).batched(2)
    assert problems_of(twice) == ["stage 10 batched: "]
    late = dataset.rename(image="jpg").decode("pil").to_tuple("image").batched(2)
    assert problems_of(late)[0] == "stage 9 map: "


def test_arguments_that_do_not_fit(shards: str) -> None:
    with pytest.raises(TypeError, match="needs fields with paths of tar files"):
        gm.from_webdataset(shards, batch_size=3)
    with pytest.raises(TypeError, match="takes batch_size with paths of tar files alone"):
        gm.from_webdataset(dataset_of(shards), batch_size=3)
    with pytest.raises(TypeError, match="takes a WebDataset, WebLoader or paths of tar files, not int"):
        gm.from_webdataset(3)


def test_addresses(tmp_path: Path) -> None:
    here = tmp_path / "a.tar"
    here.write_bytes(b"")
    for url, path in (
        ("s3://bucket/a.tar", "s3://bucket/a.tar"),
        ("https://host/a.tar", "https://host/a.tar"),
        (f"file:{here}", str(here)),
        (f"file://{here}", str(here)),
        (str(here), str(here)),
    ):
        loader = gm.from_webdataset(dataset_of([url]).to_tuple("cls").batched(3))
        assert (
            f'webdataset: "{path}"' in loader.pipeline.to_yaml() or f"webdataset: {path}\n" in loader.pipeline.to_yaml()
        )


def test_each_rank_has_its_part(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def finished(dataset: Any) -> Any:
        return dataset.to_tuple("cls").batched(3)

    loader = gm.from_webdataset(finished(dataset_of(shards, nodesplitter=wds.split_by_node)), run="test")
    assert (loader._ranks.rank, loader._ranks.world_size) == (1, 2)
    assert problems_of(finished(dataset_of(shards, nodesplitter=None))) == ["batches: "]
