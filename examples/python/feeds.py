"""The two loaders that `train_resnet.py` compares, over the same images."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = (0.25, 1.0)  # of an image's area, that a random crop keeps
Pair = tuple[torch.Tensor, torch.Tensor]  # images f32 [n, 3, size, size], labels i64 [n]


@dataclass
class Settings:
    """What both loaders are asked for."""

    folder: Path  # of `shapes.folder_of_images`
    size: int
    batch_size: int
    epochs: int
    workers: int
    seed: int
    device: torch.device
    state: Path | None  # a folder that outlives this process


class GristmillFeed:
    """Batches of gristmill, from a service on this machine and threads of this process."""

    def __init__(self, settings: Settings) -> None:
        import gristmill as gm
        import gristmill.torch

        self.gm, self.settings = gm, settings
        self.service = gm.local(state_dir=settings.state and settings.state / "service")
        pipeline = (
            self.images("train")
            .shuffle()
            .decode()
            .random_resized_crop(settings.size, scale=SCALE)
            .flip()
            .batch(settings.batch_size, drop_remainder=True)
            .deliver(normalise={"mean": MEAN, "std": STD})
        )
        self.loader = self.open(pipeline, job="train", epochs=settings.epochs, seed=settings.seed)

    def images(self, part: str) -> Any:
        gm = self.gm
        return gm.webdataset(self.settings.folder / f"{part}-*.tar", image=gm.bytes("jpg"), label=gm.i64("cls"))

    def open(self, pipeline: Any, **options: Any) -> Any:
        # Workers in this process need not store their batches for the loader to fetch.
        return self.gm.torch.Loader(
            pipeline, service=self.service, workers=0, local_workers=self.settings.workers,
            device=self.settings.device, channels_first=True, **options,
        )  # fmt: skip

    def epoch(self, epoch: int) -> Iterator[Pair]:
        return ((batch["image"], batch["label"]) for batch in self.loader)

    def held_out(self) -> list[Pair]:
        size = self.settings.size
        pipeline = (
            self.images("held-out")
            .decode()
            .resize_shorter(size)
            .center_crop(size)
            .batch(self.settings.batch_size)
            .deliver(normalise={"mean": MEAN, "std": STD})
        )
        with self.open(pipeline, epochs=1) as loader:
            return [(batch["image"], batch["label"]) for batch in loader]

    def next_epoch(self) -> int:
        return self.loader.epoch

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.close()
        self.service.close()


class Order(torch.utils.data.Sampler[int]):
    """A random order of each epoch, which may begin at any batch."""

    def __init__(self, records: int, seed: int) -> None:
        self.records, self.seed, self.epoch, self.first = records, seed, 0, 0

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.records, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        return iter(order[self.first :].tolist())

    def __len__(self) -> int:
        return self.records - self.first


class TorchFeed:
    """Batches of torch's DataLoader with torchvision's transforms.

    It goes on at the batch of its state, with other crops: its workers do not keep their random numbers.
    """

    def __init__(self, settings: Settings) -> None:
        from torchvision.transforms import v2

        self.settings = settings
        crop = [v2.RandomResizedCrop(settings.size, SCALE), v2.RandomHorizontalFlip()]
        dataset = self.dataset("train", crop)
        self.order = Order(len(dataset), settings.seed)
        self.loader = self.dataloader(dataset, sampler=self.order, drop_last=True, persistent=True)
        self.batches = 0

    def dataset(self, part: str, transforms: list[Any]) -> torch.utils.data.Dataset[Any]:
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        return ImageFolder(str(self.settings.folder / part), v2.Compose([v2.ToImage(), *transforms, *last]))

    def dataloader(self, dataset: Any, *, persistent: bool, **options: Any) -> Any:
        return torch.utils.data.DataLoader(
            dataset,
            self.settings.batch_size,
            num_workers=self.settings.workers,
            persistent_workers=persistent,
            pin_memory=self.settings.device.type == "cuda",
            generator=torch.Generator().manual_seed(self.settings.seed),
            **options,
        )

    def pair(self, batch: list[torch.Tensor]) -> Pair:
        images, labels = (tensor.to(self.settings.device, non_blocking=True) for tensor in batch)
        return images, labels

    def epoch(self, epoch: int) -> Iterator[Pair]:
        if self.order.epoch != epoch:
            self.order.epoch, self.order.first, self.batches = epoch, 0, 0
        for batch in self.loader:
            self.batches += 1
            yield self.pair(batch)

    def held_out(self) -> list[Pair]:
        from torchvision.transforms import v2

        size = self.settings.size
        dataset = self.dataset("held-out", [v2.Resize(size), v2.CenterCrop(size)])
        return [self.pair(batch) for batch in self.dataloader(dataset, persistent=False)]

    def next_epoch(self) -> int:
        return self.order.epoch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.order.epoch, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.epoch, self.batches = state["epoch"], state["batches"]
        self.order.first = self.batches * self.settings.batch_size

    def close(self) -> None:
        del self.loader


def feed(name: str, settings: Settings) -> GristmillFeed | TorchFeed:
    return {"gristmill": GristmillFeed, "torch": TorchFeed}[name](settings)
