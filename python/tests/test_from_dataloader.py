"""A torch DataLoader over an image folder gives the loader of the same batches, or one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from gristmill.switch import SwitchError  # noqa: E402

TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
READY = v2.Compose([v2.CenterCrop(8), *TO_FLOAT])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 JPEGs in three classes, whose names sort otherwise without regard to case."""
    root = tmp_path_factory.mktemp("folder")
    for number in range(12):
        directory = root / ("ape", "Bee", "cat")[number % 3]
        directory.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), (number * 20, 0, 0)).save(directory / f"{number}.jpg")
    return root


def test_the_pipeline_reads_the_folder(folder: Path) -> None:
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


def test_subsets_are_their_images(folder: Path) -> None:
    """Also nested ones, as `random_split` of a subset makes them."""
    dataset = ImageFolder(folder, transform=READY)
    outer = torch.utils.data.Subset(dataset, [11, 3, 0, 5, 8])
    first, second = torch.utils.data.random_split(outer, [3, 2])
    found = []
    for part in (first, second):
        loader = gm.from_dataloader(DataLoader(part, batch_size=2, shuffle=True), epochs=1)
        with loader:
            found.append(sorted(int(label) for _, labels in loader for label in labels))
        assert found[-1] == sorted(label for _, label in part)
        assert loader.dataset is part
    assert sorted(found[0] + found[1]) == sorted(dataset.targets[n] for n in outer.indices)


def problems_of(dataset: Any, **arguments: Any) -> list[str]:
    """Place and parameter of each problem."""
    options = {name: arguments.pop(name) for name in ("order",) if name in arguments}
    with pytest.raises(SwitchError) as raised:
        gm.from_dataloader(DataLoader(dataset, **arguments), **options)
    return [f"{problem.where}: {problem.what}" for problem in raised.value.problems]


def test_parts_of_the_dataloader_that_are_refused(folder: Path) -> None:
    dataset = ImageFolder(folder, transform=READY)
    found = problems_of(
        dataset,
        batch_size=None,
        sampler=WeightedRandomSampler([1.0] * 12, 12),
        collate_fn=list,
        worker_init_fn=print,
    )
    assert found == [
        "DataLoader: batch_size or batch_sampler",
        "DataLoader: collate_fn",
        "DataLoader: worker_init_fn",
        "sampler: WeightedRandomSampler",
    ]
    assert problems_of(dataset) == ["sampler: "]
    assert problems_of(dataset, sampler=SubsetRandomSampler([1, 2])) == ["sampler: SubsetRandomSampler"]
    many = torch.utils.data.RandomSampler(dataset, replacement=True)
    assert problems_of(dataset, sampler=many) == ["sampler: replacement or num_samples"]
    assert problems_of(torch.utils.data.Subset(dataset, [0, 0]), shuffle=True) == ["dataset: Subset"]


def test_parts_of_the_folder_that_are_refused(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "some[thing]"
    for name in ("a/1.png", "a/.2.png", "3.png", "b/4.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(root / name)
    dataset = ImageFolder(root, transform=READY, target_transform=int, loader=Image.open, is_valid_file=lambda _: True)
    dataset.samples = dataset.samples[1:]
    assert problems_of(dataset, shuffle=True) == [
        f"dataset: root='{root}'",
        "dataset: target_transform",
        "dataset: loader",
        "dataset: is_valid_file",
        "dataset: samples or classes",
        f"dataset: {root}/a/.2.png",
        f"dataset: {root}/3.png",
    ]
    (tmp_path / "empty" / "c").mkdir(parents=True)
    dataset = ImageFolder(tmp_path / "empty", transform=READY, allow_empty=True)
    assert problems_of(dataset, sampler=torch.utils.data.SequentialSampler([]), order="any") == ["dataset: classes"]


def test_ranks_and_seeds_are_the_samplers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageFolder(folder, transform=READY)
    sampler = DistributedSampler(dataset, num_replicas=3, rank=1, seed=7, drop_last=True)
    loader = gm.from_dataloader(DataLoader(dataset, batch_size=2, sampler=sampler), run="test")
    assert (loader._ranks.rank, loader._ranks.world_size) == (1, 3)
    assert "--seed=7" in loader._flags and "--tail=drop" in loader._rank_flags
    ordered = DistributedSampler(dataset, num_replicas=3, rank=1, shuffle=False)
    loader = gm.from_dataloader(DataLoader(dataset, sampler=ordered), order="any", rank=0, world_size=1)
    assert (loader._ranks.world_size, loader._rank_flags) == (1, [])
    assert "- in_order" in loader.pipeline.to_yaml()
    generator = torch.Generator().manual_seed(11)
    loader = gm.from_dataloader(DataLoader(dataset, shuffle=True, generator=generator))
    assert "--seed=11" in loader._flags and loader._ranks.world_size == 1
    loader = gm.from_dataloader(DataLoader(dataset, shuffle=True, generator=generator), seed=5)
    assert "--seed=5" in loader._flags

    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "6")
    loader = gm.from_dataloader(DataLoader(dataset, batch_size=2, sampler=sampler), run="test", replicas=2)
    assert (loader._ranks.rank, loader._ranks.world_size, loader._ranks.data_ranks) == (5, 6, 3)

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert problems_of(dataset, shuffle=True) == ["sampler: "]


def test_a_loader_takes_the_place_of_the_dataloader(service: gm.Service, folder: Path) -> None:
    dataset = ImageFolder(folder, transform=READY)
    for drop_last in (False, True):
        dataloader = DataLoader(dataset, batch_size=5, shuffle=True, drop_last=drop_last)
        with gm.from_dataloader(dataloader, service=service) as loader:
            assert len(loader) == len(dataloader) == 3 - drop_last
            assert (loader.batch_size, loader.dataset) == (5, dataset)
            for _ in range(2):
                seen = []
                for images, labels in loader:
                    assert images.dtype == torch.float32 and images.shape[1:] == (3, 8, 8) and images.is_contiguous()
                    assert labels.dtype == torch.int64 and labels.shape == images.shape[:1]
                    seen += labels.tolist()
                assert drop_last or sorted(seen) == sorted(dataset.targets)
    with gm.from_dataloader(dataloader, service=service, batch_size=12, device="cpu") as loader:
        [(images, labels)] = loader
        assert images.shape == (12, 3, 8, 8) and images.is_contiguous() and loader.batch_size == 12
        # JPEGs of one colour, whose reds are 20 apart.
        reds = (images[:, 0].mean((1, 2)) * 255 / 20).round().int().tolist()
        assert [dataset.class_to_idx[("ape", "Bee", "cat")[red % 3]] for red in reds] == labels.tolist()


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_a_state_goes_on_in_mid_epoch(service: gm.Service, folder: Path, options: dict[str, Any]) -> None:
    dataset = ImageFolder(folder, transform=v2.Compose([v2.RandomCrop(8), *TO_FLOAT]))
    dataloader = DataLoader(dataset, batch_size=2, shuffle=True)
    with gm.from_dataloader(dataloader, service=service, epochs=2, acknowledge="state", **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [next(batches) for _ in range(2)]
        with gm.from_dataloader(dataloader, service=service, epochs=2, **options) as other:
            other.load_state_dict(state)
            again = iter(other)
            for images, labels in rest:
                resumed = next(again)
                assert torch.equal(resumed[0], images) and torch.equal(resumed[1], labels)
            assert other.state_dict()["epoch"] == 0


def test_options_that_do_not_fit(folder: Path) -> None:
    dataloader = DataLoader(ImageFolder(folder, transform=READY), shuffle=True)
    with pytest.raises(gm.OptionError, match="keys is no option here"):
        gm.from_dataloader(dataloader, keys=True)
    with pytest.raises(TypeError, match="takes a torch DataLoader, not ImageFolder"):
        gm.from_dataloader(dataloader.dataset)


def test_the_samplers_epoch_is_followed(folder: Path, service: gm.Service) -> None:
    dataset = ImageFolder(folder, transform=READY)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=7)
    with gm.from_dataloader(DataLoader(dataset, batch_size=2, sampler=sampler), service=service, epochs=3) as loader:
        sampler.set_epoch(1)
        assert len(list(loader)) > 0 and loader.epoch == 2
        sampler.set_epoch(2)
        assert len(list(loader)) > 0 and loader.epoch == 3
        sampler.set_epoch(0)
        with pytest.raises(gm.OptionError, match="epochs go forward"):
            iter(loader)
