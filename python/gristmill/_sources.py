"""The formats of files as functions that begin a pipeline.

Written by scripts/make-operators from `gristmill operators --json`: change the declarations in Rust.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ._features import Feature
from .pipeline import Pipeline

__all__ = ["csv", "images", "jsonl", "npy", "npz", "parquet", "tfrecord", "tsv", "webdataset"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def tfrecord(
    path: Paths,
    /,
    *,
    defaults: Mapping[str, float | str | Sequence[float]] | None = None,
    features: Mapping[str, Feature] | None = None,
    **fields: Feature,
) -> Pipeline:
    """Begins a pipeline with files of the format `tfrecord`.

    Records: `tf.Example` or `tf.SequenceExample` messages. Keys of features: keys of the example; of a
    sequence, those of its context and of its lists.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        defaults: By field, the value to read in place of one that is missing or null. Without it the record
            is bad. Each: a number, a text or a list of numbers.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.tfrecord("records.tfrecord", n=gm.i64()).batch(3).peek()["n"]
        array([0, 1, 2])
    """
    return Pipeline._source(tfrecord, locals())


def webdataset(
    path: Paths,
    /,
    *,
    defaults: Mapping[str, float | str | Sequence[float]] | None = None,
    features: Mapping[str, Feature] | None = None,
    **fields: Feature,
) -> Pipeline:
    """Begins a pipeline with files of the format `webdataset`.

    Records: members of a tar file that share a name up to its first dot. Keys of features: the rest of the
    name, in lower case: `jpg`, `cls`; `jpg;png` is whichever is present, `*.png` the one that ends so;
    numbers are text or `.npy`.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        defaults: By field, the value to read in place of one that is missing or null. Without it the record
            is bad. Each: a number, a text or a list of numbers.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.webdataset("shards.tar", label=gm.i64("cls")).batch(4).peek()["label"]
        array([0, 1, 2, 3])
    """
    return Pipeline._source(webdataset, locals())


def images(
    path: Paths,
    /,
    *,
    classes: str | os.PathLike[str] | Sequence[str] | None = None,
    features: Mapping[str, Feature] | None = None,
    **fields: Feature,
) -> Pipeline:
    """Begins a pipeline with files of the format `images`.

    Records: one image per file (JPEG, PNG, WebP, BMP, TIFF, PGM, PPM), in one directory per class. Keys of
    features: `image` and `label` (the position of its directory's name among all); `features` may be omitted.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        classes: The classes in order of their labels: their names, or the folder whose directories they are,
            such as that of the training images. By default the directories that are found, those without an
            image included. A list of names, or a folder of this machine.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.images("pictures").decode().resize(8).batch(64).peek()["label"].max()
        np.int64(3)
    """
    return Pipeline._source(images, locals())


def jsonl(
    path: Paths,
    /,
    *,
    defaults: Mapping[str, float | str | Sequence[float]] | None = None,
    features: Mapping[str, Feature] | None = None,
    **fields: Feature,
) -> Pipeline:
    """Begins a pipeline with files of the format `jsonl`.

    Records: lines that are not blank, each a JSON object. Keys of features: keys of the object; `a.b` is `b`
    of the object under `a`.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        defaults: By field, the value to read in place of one that is missing or null. Without it the record
            is bad. Each: a number, a text or a list of numbers.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.jsonl("numbers.jsonl", x=gm.i64()).batch(4).peek()["x"]
        array([0, 1, 2, 3])
        >>> gm.jsonl("numbers.jsonl", y=gm.i64(shape=[2]), defaults={"y": [0, 1]}).batch(2).peek()["y"].tolist()
        [[0, 1], [0, 1]]
    """
    return Pipeline._source(jsonl, locals())


def csv(
    path: Paths,
    /,
    *,
    delimiter: str = ",",
    header: bool = True,
    quotes: bool = True,
    columns: Sequence[str] | None = None,
    missing: Sequence[str] = (),
    defaults: Mapping[str, float | str | Sequence[float]] | None = None,
    features: Mapping[str, Feature] | None = None,
    **fields: Feature,
) -> Pipeline:
    """Begins a pipeline with files of the format `csv`.

    Records: lines of values (RFC 4180); quoted values may span lines. Keys of features: the names in the
    first line, or `columns`.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        delimiter: The character between values; a tab by default for `tsv`. One ASCII character.
        header: Whether the first line names the columns.
        quotes: Whether values may be quoted with `"`.
        columns: The names of all columns, with `header=False`.
        missing: Texts, beside an empty one, that stand for a missing value.
        defaults: By field, the value to read in place of one that is missing or null. Without it the record
            is bad. Each: a number, a text or a list of numbers.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.csv("table.csv", price=gm.f32()).batch(2).peek()["price"]
        array([0.5, 1.5], dtype=float32)
    """
    return Pipeline._source(csv, locals())


def tsv(
    path: Paths,
    /,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    quotes: bool | None = None,
    columns: Sequence[str] | None = None,
    missing: Sequence[str] | None = None,
    defaults: Mapping[str, float | str | Sequence[float]] | None = None,
    features: Mapping[str, Feature] | None = None,
    **fields: Feature,
) -> Pipeline:
    """Begins a pipeline with files of the format `tsv`.

    Records: lines of values (RFC 4180); quoted values may span lines. Keys of features: the names in the
    first line, or `columns`.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        delimiter: The character between values; a tab by default for `tsv`. One ASCII character.
        header: Whether the first line names the columns.
        quotes: Whether values may be quoted with `"`.
        columns: The names of all columns, with `header=False`.
        missing: Texts, beside an empty one, that stand for a missing value.
        defaults: By field, the value to read in place of one that is missing or null. Without it the record
            is bad. Each: a number, a text or a list of numbers.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.tsv("table.tsv", price=gm.f32()).batch(2).peek()["price"]
        array([0.5, 1.5], dtype=float32)
    """
    return Pipeline._source(tsv, locals())


def parquet(
    path: Paths,
    /,
    *,
    defaults: Mapping[str, float | str | Sequence[float]] | None = None,
    features: Mapping[str, Feature] | None = None,
    **fields: Feature,
) -> Pipeline:
    """Begins a pipeline with files of the format `parquet`.

    Records: rows. Keys of features: columns; `a.b` is the field `b` of `a`.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        defaults: By field, the value to read in place of one that is missing or null. Without it the record
            is bad. Each: a number, a text or a list of numbers.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.parquet("table.parquet", price=gm.f32("price")).decode(field="price")
        gm.parquet('table.parquet', price=gm.f32('price')).decode(field='price')
    """
    return Pipeline._source(parquet, locals())


def npy(path: Paths, /, *, features: Mapping[str, Feature] | None = None, **fields: Feature) -> Pipeline:
    """Begins a pipeline with files of the format `npy`.

    Records: entries of the first axis of numpy's arrays (`.npy`, `.npz`). Keys of features: names of arrays;
    of an `.npy`, which has one, any.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.npy("vectors.npy", x=gm.f32(shape=[2])).batch(2).peek()["x"].tolist()
        [[0.0, 1.0], [2.0, 3.0]]
    """
    return Pipeline._source(npy, locals())


def npz(path: Paths, /, *, features: Mapping[str, Feature] | None = None, **fields: Feature) -> Pipeline:
    """Begins a pipeline with files of the format `npz`.

    Records: entries of the first axis of numpy's arrays (`.npy`, `.npz`). Keys of features: names of arrays;
    of an `.npy`, which has one, any.

    Args:
        path: A file, a directory, a glob, an address such as s3://bucket/prefix, or a list of them.
        features: By the name of the field; for those whose names are parameters.
        fields: The fields of an element, such as `label=gm.i64("class")`.

    Example:
        >>> gm.npz("arrays.npz", x=gm.f32(shape=[2]), label=gm.i64()).batch(4).peek()["label"]
        array([0, 1, 2, 3])
    """
    return Pipeline._source(npz, locals())
