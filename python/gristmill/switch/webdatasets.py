"""webdataset's pipelines over tar files, taken over with their fields, transforms and batches."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from .._features import Feature, i64
from .._features import bytes as bytes_of
from .._options import checks_options
from .._sources import webdataset
from ..pipeline import Pipeline
from . import transforms
from .chain import Chain, Kind, Op, Values
from .loader import SwitchOptions, TupleLoader, world_size
from .problems import Problems
from .samples import Samples

__all__ = ["from_webdataset"]

_IMAGES = {"bmp", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp"}
_NUMBERS = {"cls", "cls2", "id", "index", "inx"}
# By webdataset's words for decoded images: kind, values and channels.
_DECODED: dict[str | None, tuple[Kind, Values, int]] = {
    "pil": ("pil", "u8", 3),
    "pill": ("pil", "u8", 1),
    "pilrgb": ("pil", "u8", 3),
    "torch": ("tensor", "unit", 3),
    "torchrgb": ("tensor", "unit", 3),
    "torchrgb8": ("tensor", "u8", 3),
}


@checks_options
def from_webdataset(
    source: Any,
    *,
    fields: Sequence[str] | None = None,
    transform: Any = None,
    decode: str | None = None,
    batch_size: int | None = None,
    drop_last: bool | None = None,
    shuffle: bool | None = None,
    **options: Unpack[SwitchOptions],
) -> TupleLoader:
    """A loader of the batches that a webdataset pipeline over tar files would make.

    Args:
        source: A `webdataset.WebDataset`, `DataPipeline` or `WebLoader`, or a torch DataLoader over one: its
            stages are read, and not run; docs/python-switch.md lists which can be. Or tar files: a path,
            glob, brace pattern or address, or a list of them, with the following arguments.
        fields: The members that make a sample, such as `("jpg;png", "cls")`: images, and whole numbers.
        transform: For the first image: a transform of torchvision's classes.
        decode: What images are when `transform` gets them: "pil" unless given, "torchrgb" or "torchrgb8".
        batch_size: Records of a batch.
        drop_last: Whether an incomplete last batch is left out.
        shuffle: Whether records come in random order; else in that of the files.
        options: Those of `gm.torch.Loader`.

    Returns:
        A loader of lists, one tensor for each field: images f32 [n, 3, h, w] (u8 if the transform makes
        no floats), numbers i64 [n]. An epoch has each record once.

    Raises:
        SwitchError: Something has no equal; it names all that has none. Nothing is started before that.
        TypeError: The source is of another library.

    Example:
        >>> from torchvision import transforms
        >>> transform = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
        >>> loader = gm.from_webdataset(
        ...     "shards.tar", fields=("ppm", "cls"), transform=transform, batch_size=4, epochs=1
        ... )
        >>> images, labels = next(iter(loader))
        >>> images.shape, labels
        (torch.Size([4, 3, 8, 8]), tensor([0, 1, 2, 3]))
        >>> loader.close()
    """
    if TYPE_CHECKING:
        # Editors that follow calls find the options.
        TupleLoader(Pipeline.from_yaml(""), fields=(), batch_size=1, **options)
    problems = Problems()
    explicit: dict[str, Any] = {"fields": fields, "transform": transform, "decode": decode, "batch_size": batch_size}
    explicit |= {"drop_last": drop_last, "shuffle": shuffle}
    if isinstance(source, (str, os.PathLike, list, tuple)):
        samples = _declared(source, **explicit)
    else:
        given = [name for name, value in explicit.items() if value is not None]
        if given:
            raise TypeError(f"from_webdataset takes {', '.join(given)} with paths of tar files alone")
        samples = _read(source, problems)
    made = _fields(problems, samples, on_device=options.get("device") is not None)
    paths = _paths(problems, samples.urls)
    problems.where = "batches"
    if samples.batch_size is None:
        problems.add("there are none", "put .batched(n) at the end")
    if not samples.is_split and not {"rank", "mesh", "replicas"} & options.keys() and world_size() > 1:
        problems.add("every rank would get all records", "use split_by_node, or give rank and world_size")
    problems.check("from_webdataset")
    size = samples.batch_size or 1

    pipeline = webdataset(paths, features=made.features)
    pipeline = pipeline.shuffle() if samples.shuffled else pipeline.in_order()
    for name, parameters in made.ops:
        pipeline = pipeline.op(name, **parameters)
    pipeline = pipeline.batch(size=size, drop_remainder=samples.drop_last)
    if made.normalise is not None:
        pipeline = pipeline.deliver(normalise=made.normalise)
    if samples.on_error == "skip":
        options.setdefault("on_error", "skip")
    return TupleLoader(pipeline, fields=tuple(made.features), batch_size=size, **options)


def _declared(source: Any, **given: Any) -> Samples:
    for name in ("fields", "batch_size"):
        if given[name] is None:
            raise TypeError(f"from_webdataset needs {name} with paths of tar files")
    urls = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    fields = tuple(given["fields"])
    image = next((key for key in fields if _kind(key) == "image"), None)
    return Samples(
        urls=[os.fspath(url) for url in urls],
        fields=fields,
        transforms={} if given["transform"] is None or image is None else {image: [given["transform"]]},
        decoded=given["decode"] or "pil",
        batch_size=given["batch_size"],
        drop_last=bool(given["drop_last"]),
        shuffled=bool(given["shuffle"]),
        is_split=True,
    )


def _read(source: Any, problems: Problems) -> Samples:
    """The samples of a webdataset pipeline, whose library is installed then."""
    if not hasattr(source, "pipeline") and not hasattr(source, "dataset"):
        given = type(source).__name__
        raise TypeError(f"from_webdataset takes a WebDataset, WebLoader or paths of tar files, not {given}")
    from . import stages

    return stages.read(source, problems)


def _paths(problems: Problems, urls: Sequence[str]) -> list[str] | str:
    """What the source reads: absolute paths and addresses."""
    problems.where = "urls"
    paths = []
    for url in urls:
        scheme = re.match(r"([a-z0-9]+):", url)
        if scheme is None:
            paths.append(os.path.abspath(url))
        elif scheme[1] == "file":
            paths.append(re.sub(r"^file:(//)?", "", url))
        elif scheme[1] in ("http", "https", "s3"):
            paths.append(url)
        else:
            problems.add("files, s3:// and https:// are read", "give such an address", repr(url))
            break
    return paths[0] if len(paths) == 1 else paths


@dataclass
class _Fields:
    """Features and operators of all fields, and what the loader does on its device."""

    features: dict[str, Feature]
    ops: list[Op]
    normalise: dict[str, Any] | None


def _fields(problems: Problems, samples: Samples, *, on_device: bool) -> _Fields:
    """The fields of samples, with the operators of each."""
    made = _Fields({}, [], None)
    problems.where = "to_tuple"
    if samples.fields is None:
        problems.add("samples are not tuples", "put .to_tuple(...) into the pipeline, such as to_tuple('jpg', 'cls')")
    for key in samples.fields or ():
        problems.where = f"field {key!r}"
        kind = _kind(key)
        if kind is None:
            problems.add(
                "it is no image and no whole number to webdataset",
                f"images end in {', '.join(sorted(_IMAGES))}, numbers in {', '.join(sorted(_NUMBERS))}; for "
                "others write the pipeline with gm.webdataset(...)",
            )
            continue
        earlier = [name for name in made.features if name.rstrip("0123456789") == kind]
        name = f"{kind}{len(earlier) + 1}" if earlier else kind
        if kind == "label":
            made.features[name] = i64(key)
            if any(function is not int for function in samples.transforms.get(key, [])):
                problems.add("numbers are delivered as they are", "leave its function out")
            continue
        made.features[name] = bytes_of(key)
        chain = _image(problems, samples, name, key)
        if not on_device:
            chain.channels_first()
        elif made.normalise is None:
            made.normalise = chain.take_normalise()
        made.ops.extend(chain.ops)
    return made


def _image(problems: Problems, samples: Samples, name: str, key: str) -> Chain:
    """The operators of the image `name`, from its bytes on."""
    chain = Chain(problems, name)
    if samples.decoded not in _DECODED:
        given = "not decoded" if samples.decoded is None else f"decoded as {samples.decoded!r}"
        problems.add(f"it is {given}", f"decode it as one of {', '.join(map(repr, _DECODED))}")
        chain.is_sure = False
    else:
        chain.kind, chain.values, chain.channels = _DECODED[samples.decoded]
    chain.emit("decode", **({"channels": 1} if chain.channels == 1 else {}))
    functions = samples.transforms.get(key, [])
    for number, transform in enumerate(functions):
        path = f"transform of {key!r}"
        transforms.apply(chain, transform, path if len(functions) == 1 else f"{path} ({number})")
    problems.where = f"transform of {key!r}"
    chain.finish()
    return chain


def _kind(key: str) -> str | None:
    """Whether webdataset makes an image or a number of the member `key`, by its ending."""
    endings = {part.rpartition(".")[2] for part in key.split(";")}
    if endings <= _IMAGES:
        return "image"
    return "label" if endings <= _NUMBERS else None
