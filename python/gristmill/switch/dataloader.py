"""torch's DataLoader over an image folder, taken over with its transform, sampler and batches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch.utils.data as data
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets
from torchvision.datasets import folder

from .._options import checks_options
from .._sources import images
from .._subsets import braces
from ..errors import PipelineError
from ..pipeline import Pipeline
from ..torch import Loader as TorchLoader
from ..torch import TorchOptions
from . import transforms
from .chain import Chain
from .loader import TupleLoader, world_size
from .problems import Problems

__all__ = ["from_dataloader"]

# Most bytes of the names of a subset's files, with which a pipeline is within its 4 MiB, and their most.
_MAX_NAMES, _MAX_FILES = 4_000_000, 100_000
# Runs of neighbours in a split. The order of a folder mixes classes already.
_BLOCKS = 64


@checks_options
def from_dataloader(
    dataloader: data.DataLoader[Any], *, order: Literal["same", "any"] = "same", **options: Unpack[TorchOptions]
) -> TupleLoader:
    """A loader of the batches that a torch DataLoader over an image folder would make.

    Args:
        dataloader: Over a `torchvision.datasets.ImageFolder`, or a `Subset` of one, such as `random_split` makes,
            with torch's own samplers and collation, and a transform of torchvision's classes;
            docs/python-switch.md lists which, and with which parameters.
            It is read, and not iterated: its workers, pinned memory and prefetching play no part.
        order: "any": without shuffling, images may come in another order than that of `dataset.samples`; it
            is the same in every epoch. "same" refuses that. A shuffled order is another one in any case.
        options: Those of `gm.torch.Loader`. Those that follow from the DataLoader (seed, rank, world_size,
            tail, batch_size) take the place of its own.

    Returns:
        A loader of lists [images, labels]: images f32 [n, 3, h, w] (u8 if the transform makes no floats),
        labels i64 [n], the indices of `dataset.classes`. Draws are from the same distributions, but others.

    Raises:
        SwitchError: Something has no equal; it names all that has none. Nothing is started before that.
        TypeError: It is no DataLoader.

    Example:
        >>> from torchvision import datasets, transforms
        >>> transform = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
        >>> dataset = datasets.ImageFolder("pictures", transform)
        >>> loader = gm.from_dataloader(torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True), epochs=1)
        >>> images, labels = next(iter(loader))
        >>> images.shape, labels.shape
        (torch.Size([4, 3, 8, 8]), torch.Size([4]))
        >>> loader.close()
    """
    if not isinstance(dataloader, data.DataLoader):
        raise TypeError(f"from_dataloader takes a torch DataLoader, not {type(dataloader).__name__}")
    if TYPE_CHECKING:
        # Editors that follow calls find the options.
        TorchLoader(Pipeline.from_yaml(""), **options)
    problems = Problems()
    dataset, numbers = _whole(dataloader.dataset)
    root = _root(problems, dataset)
    chain = Chain(problems)
    transforms.apply(chain, getattr(dataset, "transform", None))
    problems.where = "transform"
    chain.finish()
    _check_batches(problems, dataloader)
    given: dict[str, Any] = {**options}
    is_shuffled, sampling = _sampling(problems, dataloader, order, given)
    source = None if problems.found else _source(problems, dataset, root, numbers)
    problems.check("from_dataloader")
    assert source is not None

    pipeline = source.shuffle(blocks=_BLOCKS) if is_shuffled else source.in_order()
    pipeline = pipeline.decode()
    normalise = None
    if options.get("device") is None:
        chain.channels_first()
    else:
        normalise = chain.take_normalise()
    for name, parameters in chain.ops:
        pipeline = pipeline.op(name, **parameters)
    size = given.pop("batch_size", dataloader.batch_size)
    pipeline = pipeline.batch(size=size, drop_remainder=dataloader.drop_last)
    if normalise is not None:
        pipeline = pipeline.deliver(normalise=normalise)
    fields = ("image", "label")
    sampler = dataloader.sampler if type(dataloader.sampler) is DistributedSampler else None
    given = {**sampling, **given}
    whole = dataloader.dataset
    return TupleLoader(pipeline, fields=fields, dataset=whole, batch_size=size, sampler=sampler, **given)


def _whole(dataset: Any) -> tuple[Any, list[int] | None]:
    """The dataset that a subset, or one of a subset, is of, and its indices; None for all."""
    numbers: list[int] | None = None
    while type(dataset) is data.Subset:
        within = [int(index) for index in dataset.indices]
        numbers = within if numbers is None else [within[number] for number in numbers]
        dataset = dataset.dataset
    return dataset, numbers


def _source(problems: Problems, dataset: Any, root: str, numbers: list[int] | None) -> Pipeline | None:
    """The images of the folder, or those of `numbers` among its samples."""
    if numbers is None:
        return images(root)
    problems.where = "dataset"
    files = [os.path.relpath(dataset.samples[number][0], root) for number in numbers]
    if len(files) > _MAX_FILES or sum(map(len, files)) > _MAX_NAMES:
        problems.add(
            f"{len(files)} names of files are too many for a pipeline",
            "use gm.images(...).train_test_split(...), or put the subset's images into a folder of their own",
            "Subset",
        )
        return None
    try:
        return images(braces(root, files), classes=dataset.classes)
    except PipelineError as error:
        problems.add(str(error).partition(": ")[2], "give other indices, or rename it", "Subset")
        return None


def _root(problems: Problems, dataset: Any) -> str:
    """The folder of an ImageFolder that reads what we read."""
    problems.where = "dataset"
    if type(dataset) is not datasets.ImageFolder:
        name = type(dataset).__name__
        remedy = "use torchvision.datasets.ImageFolder, or describe the files with gm.images, gm.webdataset, ..."
        problems.add("torchvision.datasets.ImageFolder is taken over alone", remedy, name)
        return ""
    root: str = os.path.abspath(dataset.root)
    if any(wild in root for wild in "*?[{"):
        problems.add(
            "`*`, `?`, `[` and `{` are patterns in paths",
            "rename the folder, or link to it",
            f"root={root!r}",
        )
    if dataset.target_transform is not None:
        problems.add("labels are class indices alone", "apply it to labels in the training loop", "target_transform")
    if dataset.loader is not folder.default_loader:
        problems.add("images are decoded as torchvision's default loader does", "leave loader out", "loader")
    if dataset.extensions != folder.IMG_EXTENSIONS:
        problems.add("files are chosen by their endings", "leave is_valid_file out", "is_valid_file")
    _check_files(problems, dataset, root)
    return root


def _check_files(problems: Problems, dataset: Any, root: str) -> None:
    """Whether the folder has the images of `dataset.samples` still, and we would read the same."""
    try:
        found = folder.make_dataset(dataset.root, dataset.class_to_idx, extensions=folder.IMG_EXTENSIONS)
    except (FileNotFoundError, ValueError) as error:
        problems.add(str(error).rstrip("."), "give every class an image", "classes")
        return
    if found != dataset.samples or dataset.class_to_idx != datasets.folder.find_classes(dataset.root)[1]:
        problems.add(
            "they are not what is in the folder",
            "change the folder, and not the dataset",
            "samples or classes",
        )
    hidden = [path for path, _ in found if any(part[:1] == "." for part in os.path.relpath(path, root).split(os.sep))]
    if hidden:
        problems.add("hidden files are not read", "rename or delete it", hidden[0])
    loose = [entry.path for entry in os.scandir(root) if entry.is_file() and _is_image(entry.name)]
    if loose:
        problems.add("it lies in no class, and ImageFolder ignores it", "move it elsewhere", loose[0])


def _is_image(name: str) -> bool:
    return name.lower().endswith(folder.IMG_EXTENSIONS) and not name.startswith(".")


def _check_batches(problems: Problems, dataloader: data.DataLoader[Any]) -> None:
    """Whether batches are made as ours are."""
    problems.where = "DataLoader"
    if dataloader.batch_size is None or type(dataloader.batch_sampler) is not data.BatchSampler:
        problems.add("batches are made of a fixed number of images", "give batch_size", "batch_size or batch_sampler")
    if dataloader.collate_fn is not data.default_collate:
        problems.add(
            "batches are stacked as torch's default_collate does",
            "apply it to each batch in the training loop",
            "collate_fn",
        )
    if dataloader.worker_init_fn is not None:
        problems.add("there are no such workers to call it in", "leave it out", "worker_init_fn")


def _sampling(
    problems: Problems, dataloader: data.DataLoader[Any], order: str, options: dict[str, Any]
) -> tuple[bool, dict[str, Any]]:
    """Whether images are shuffled; the seed and the ranks, as options."""
    problems.where = "sampler"
    sampler = dataloader.sampler
    is_shuffled = True
    found: dict[str, Any] = {}
    if type(sampler) is DistributedSampler:
        is_shuffled = sampler.shuffle
        found |= {"seed": sampler.seed, "tail": "drop" if sampler.drop_last else "repeat"}
        # A sampler is of data ranks, and the loader counts their replicas too.
        if not {"mesh", "replicas"} & options.keys():
            found |= {"rank": sampler.rank, "world_size": sampler.num_replicas}
    elif type(sampler) is data.RandomSampler:
        if sampler.replacement or sampler.num_samples != len(sampler.data_source):
            problems.add("every epoch has each image once", "leave it out", "replacement or num_samples")
        if sampler.generator is not None:
            found["seed"] = sampler.generator.initial_seed() % 2**63
    elif type(sampler) is data.SequentialSampler:
        is_shuffled = False
    else:
        remedy = "use shuffle=True, shuffle=False or a DistributedSampler"
        problems.add("it chooses images by rules of its own", remedy, type(sampler).__name__)
    if not is_shuffled and order != "any":
        problems.add(
            "without shuffling, images come in one order that mixes classes, and not in that of dataset.samples",
            "give order='any' to from_dataloader if nothing matches batches to dataset.samples",
        )
    if "rank" not in found and not {"rank", "mesh", "replicas"} & options.keys() and world_size() > 1:
        problems.add(
            "every rank would get all images, though there are several",
            "use a DistributedSampler, or give rank and world_size to from_dataloader",
        )
    return is_shuffled, found
