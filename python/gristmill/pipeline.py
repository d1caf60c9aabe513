"""Pipelines written in Python: a source, operators, and what is applied at delivery.

A `Pipeline` is written as the YAML of docs/pipelines.md, and the same checks read both.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

import numpy as np

from . import _native, _program
from ._advice import pipeline_in_python
from ._evaluation import LEADING, evaluated
from ._features import Feature, instead_of_feature
from ._names import no_operator, wrong_call
from ._operators import FORMATS, Operators
from ._parts import Lines, Part, Place, arguments, key_of, parts_of, shown, word_of
from ._paths import check_paths
from ._subsets import braces, image_files, indices_of, runs
from ._text import plain
from .errors import OptionError, PipelineError

__all__ = ["IMAGENET", "Pipeline", "Shown", "zip"]

# Largest pipeline file, as the reader of pipelines has it.
_MAX_BYTES = 4 << 20
# How `explain` names the line of an operator.
_LINE = re.compile(r" \(line (\d+)\)")

# The operators that make batches.
_BATCHES = ("batch", "padded_batch", "bucket_by_sequence_length", "group_by_window")

Path = str | os.PathLike[str]


class Statistics(TypedDict):
    """Mean and standard deviation of each channel, on the scale 0 to 1.

    Attributes:
        mean: One number for each channel.
        std: One number for each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


#: Mean and standard deviation of ImageNet's training images: R, G, B on the scale 0 to 1.
IMAGENET: Statistics = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Pipeline(Operators):
    """A pipeline; every method returns a new one and leaves this one as it is.

    Made by `gm.tfrecord(...)` and the functions of other formats, by `gm.zip(...)`, or by
    `Pipeline.from_yaml(...)`. It is checked as a whole when it is used, or by `canonical()`. Two pipelines
    are equal if their texts and their directories are.

    Raises:
        TypeError: A value has no place in a pipeline.

    Example:
        >>> gm.images("pictures").shuffle().decode().random_resized_crop(224).flip().batch(64)
        gm.images('pictures').shuffle().decode().random_resized_crop(size=224).flip().batch(size=64)
    """

    _datasets: tuple[Part, ...]
    _ops: tuple[Part, ...]
    _delivery: Part | None
    _options: dict[str, Any]
    # The text it was read from, and its file; none if it was changed since.
    _file: tuple[str, str | None] | None
    _base: str

    def __init__(self) -> None:
        raise TypeError("a pipeline begins with gm.tfrecord(...), another source, or Pipeline.from_yaml(...)")

    @classmethod
    def _make(cls, **state: Any) -> Self:
        made = cls.__new__(cls)
        made._datasets = made._ops = ()
        made._delivery = made._file = None
        made._options = {}
        made._base = os.getcwd()
        return made._with(**state)

    def _with(self, **state: Any) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update({**self.__dict__, **state})
        return made

    @classmethod
    def _source(cls, function: Callable[..., Any], given: dict[str, Any]) -> Self:
        """A dataset with the arguments of the function of its format."""
        name = key_of(function.__name__)
        _check_source(name, given["path"], given["features"])
        path, features, fields = given.pop("path"), given.pop("features") or {}, given.pop("fields")
        for field, feature in [*features.items(), *fields.items()]:
            if not isinstance(feature, Feature):
                raise TypeError(f"gm.{name}: {instead_of_feature(field, feature, function.__kwdefaults__ or {})}")
            if field in features and field in fields:
                raise TypeError(f"gm.{name}: the field `{field}` is given twice")
        keys = {name: plain(path, f"gm.{name}: the path"), **arguments(function, given, f"gm.{name}")}
        if features or fields:
            keys["features"] = {**plain(features, f"gm.{name}"), **plain(fields, f"gm.{name}")}
        return cls._make(_datasets=(Part(keys, Place.of_caller()),))

    @classmethod
    def _of(cls, pipeline: Pipeline | Path) -> Pipeline:
        """The pipeline itself, or the one of a pipeline file: what loaders take.

        Args:
            pipeline: A pipeline, the path of a pipeline file, or its text.

        Raises:
            OptionError: It is something else, such as a dataset of another library, or a path of data.
        """
        if isinstance(pipeline, Pipeline):
            return pipeline
        if not isinstance(pipeline, (str, os.PathLike)):
            given = pipeline.__name__ if callable(pipeline) else type(pipeline).__name__
            hint = ": write gm.from_dataloader(...)" if given == "DataLoader" else ""
            raise OptionError(f"the pipeline is a gm.Pipeline or the path of a pipeline file, not {given}{hint}")
        text = os.fspath(pipeline)
        if "\n" not in text and (source := _source_of_data(text)):
            raise OptionError(f"{text!r} is data, and no pipeline file: write gm.{source}({text!r}, ...)")
        return cls.from_yaml(pipeline)

    @classmethod
    def from_yaml(cls, source: Path, *, base: Path | None = None) -> Self:
        """Reads a pipeline file, or the text of one.

        Args:
            source: The path of a file; or YAML, which has several lines or begins with `{`.
            base: Directory for the relative paths of the pipeline; by default the file's, or the present one
                for a text.

        Raises:
            OSError: The file cannot be read.
            PipelineError: It is no text. What the text says is checked later.

        Example:
            >>> gm.Pipeline.from_yaml("source: { images: pictures }\\nops: [decode]\\n").resize(8).batch(2)
            gm.images('pictures').decode().resize(size=8).batch(size=2)
        """
        name = None
        text = os.fspath(source)
        if isinstance(source, os.PathLike) or not ("\n" in text or text.lstrip().startswith("{")):
            name = os.path.abspath(text)
            text = _read(name)
            base = os.path.dirname(name) if base is None else base
        base = os.path.abspath(os.getcwd() if base is None else base)
        return cls._make(_file=(text, name), _base=base)

    @property
    def base(self) -> str:
        """The directory that relative paths of the pipeline start from.

        Example:
            >>> pipeline.base == os.getcwd()
            True
        """
        return self._base

    def to_yaml(self) -> str:
        """The pipeline as a file has it: one operator a line. What was read from YAML is as it was.

        Example:
            >>> print(gm.images("pictures").decode().resize(8).batch(2).to_yaml(), end="")
            source:
              images: pictures
            ops:
              - decode
              - resize: { size: 8 }
              - batch: { size: 2 }
        """
        return self._file[0] if self._file else "\n".join(self._lines().texts) + "\n"

    def canonical(self) -> str:
        """Checks everything, and returns the form that a job freezes, as JSON with all defaults.

        It has no name and no paths. Reads the files that operators name, and no data.

        Raises:
            PipelineError: The pipeline is wrong; the error names the line of the program that is.

        Example:
            >>> json.loads(pipeline.canonical())["ops"][-1]["op"]
            'batch'
        """
        try:
            return _native.canonical(self.to_yaml(), self._base)
        except PipelineError as error:
            raise self.located(error) from None

    def _check_paths(self) -> None:
        """Looks whether there is something at each path of this machine that the pipeline reads.

        Raises:
            OptionError: There is none. Addresses such as `s3://bucket/prefix` are not looked at.
        """
        folder = self._class_folder()
        if folder is not None and not any(entry.is_dir() for entry in os.scandir(folder)):
            part = self._unfiled()._datasets[0]
            raise OptionError(
                f"{'' if part.place is None else f'{part.place}: '}gm.images: {part.keys['images']!r} has no folders: "
                "name the folder that has a folder for each class"
            )
        for part in self._unfiled()._datasets:
            for name in FORMATS:
                if name not in part.keys:
                    continue
                paths = part.keys[name]
                what = f"gm.{word_of(name)}" if self._file is None else name
                what = what if part.place is None else f"{part.place}: {what}"
                if name == "images" and isinstance(paths, list) and len(paths) > 1:
                    raise OptionError(f"{what}: it is one folder with a folder for each class, and not {len(paths)}")
                check_paths(paths if isinstance(paths, list) else [str(paths)], self._base, what)

    def check(self, data: Path | None = None) -> Self:
        """This pipeline, if it is right and there is something at each path of this machine that it reads.

        Loaders do this when they are made. Reads no data, and looks at no address such as `s3://bucket/prefix`.

        Args:
            data: The dataset that is read instead of the pipeline's, relative to the current directory.

        Raises:
            PipelineError: The pipeline is wrong.
            OptionError: The data is not there.

        Example:
            >>> try:
            ...     gm.images("pictuers").decode().resize(8).batch(2).check()
            ... except gm.OptionError as error:
            ...     print(str(error).partition(": ")[2])
            gm.images: there is no file or folder 'pictuers': did you mean 'pictures'?
        """
        self.canonical()
        if data is None:
            self._check_paths()
        else:
            check_paths([os.fspath(data)], os.getcwd(), f"data={os.fspath(data)!r}")
        return self

    def peek(self, *, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """The first batch as numpy arrays, made by a thread of this process: to look at.

        A pipeline without a batch gets one of a single element.

        Args:
            seed: Seed of order and augmentation.

        Raises:
            PipelineError: The pipeline is wrong.
            OptionError: The data is not there.
            DataError: A record cannot be read or processed.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).take(3).batch(8).peek()
            {'x': array([0, 1, 2])}
        """
        # They import this module.
        from .numpy import Loader

        pipeline = self._unfiled()
        if not any(name in _BATCHES for part in pipeline._ops for name in part.keys):
            pipeline = pipeline.batch(1, ragged=True)
        with Loader(pipeline, epochs=1, workers=0, seed=seed) as loader:
            return next(iter(loader))

    def count(self) -> int:
        """How many records the dataset has, by its index; `take`, `skip` and `repeat` count, other operators do not.

        Raises:
            OptionError: The data is not there.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).count(), gm.images("pictures").take(3).decode().count()
            (64, 3)
        """
        from .numpy import Loader

        pipeline = self._unfiled()
        pipeline = pipeline._with(_ops=pipeline._leading(), _delivery=None).batch(1, ragged=True)
        with Loader(pipeline, epochs=1, workers=0, allow_empty=True) as loader:
            return len(loader)

    def subset(self, indices: Iterable[int]) -> Self:
        """The same pipeline over some records of the dataset, by their numbers from 0, as `torch.utils.data.Subset`.

        Args:
            indices: Numbers of records, in the order in which they are to come with `in_order`. Those of `gm.images` of
                a folder of this machine are those of `samples` of torchvision's `ImageFolder`, and their order is not
                kept. The list has to fit a pipeline of 4 MiB.

        Raises:
            PipelineError: An index is given twice, or is less than 0. One that names no record fails the job.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).subset(range(10, 13)).batch(8).peek()["x"]
            array([10, 11, 12])
            >>> gm.images("pictures").subset([0, 5, 63]).count()
            3
        """
        pipeline, numbers = self._unfiled(), indices_of(indices)
        part = pipeline._datasets[0]
        if len(pipeline._datasets) == 1 and self._class_folder() is not None and not pipeline._leading():
            return pipeline._with(_datasets=(Part(pipeline._chosen(part.keys, numbers), part.place),))
        if not isinstance(numbers, range):
            return pipeline._inserted([{"select": {"records": runs(numbers)}}])
        given = [{"skip": {"count": numbers.start}}] if numbers.start else []
        return pipeline._inserted([*given, {"take": {"count": len(numbers)}}])

    def _chosen(self, keys: dict[str, Any], numbers: range | list[int]) -> dict[str, Any]:
        folder = os.path.join(self._base, keys["images"])
        files = image_files(folder)
        if max(numbers) >= len(files):
            raise PipelineError(f"subset: there is no record {max(numbers)}: the folder has {len(files)} images")
        chosen = braces(keys["images"], [files[number] for number in numbers])
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        return {**keys, "images": chosen, "classes": keys.get("classes", classes)}

    def train_test_split(self, test: float = 0.1) -> tuple[Self, Self]:
        """Two pipelines, over the first records of the dataset and over the last ones.

        Records of `gm.images` have an order that mixes classes, so that both parts have all. Those of other formats are
        in the order of their files: let these be mixed. The second is for testing as it is; `for_evaluation` takes the
        random operators out of it.

        Args:
            test: Share of the records in the second pipeline, between 0 and 1; or their number.

        Raises:
            PipelineError: A part would be empty.
            OptionError: The data is not there.

        Example:
            >>> train, test = gm.images("pictures").decode().resize(8).batch(4).train_test_split(test=0.25)
            >>> train.count(), test.count()
            (48, 16)
        """
        total = self.count()
        if isinstance(test, (bool, str)) or not isinstance(test, (int, float)):
            raise TypeError(f"train_test_split: test is a share such as 0.1, or a number of records, not {test!r}")
        size = round(total * test) if isinstance(test, float) else test
        if not 0 < size < total:
            raise PipelineError(f"train_test_split: test={test} leaves {total - size} and {size} of {total} records")
        pipeline = self._unfiled()
        return (
            pipeline._inserted([{"take": {"count": total - size}}]),
            pipeline._inserted([{"skip": {"count": total - size}}]),
        )

    def for_evaluation(self) -> Self:
        """The same pipeline without chance: every epoch has all records, in the order of the dataset.

        `shuffle` and operators that draw are left out, but for those with `p=1` which then always do the same.
        `random_crop` becomes `center_crop`; `random_resized_crop(224)` becomes `resize_shorter(256)` and
        `center_crop(224)`, as torchvision evaluates. A last batch that is short is kept. Operators of your own stay.

        Example:
            >>> train = gm.images("pictures").shuffle().decode().random_resized_crop(224).flip().batch(64)
            >>> train.for_evaluation()
            gm.images('pictures').in_order().decode().resize_shorter(size=256).center_crop(size=224).batch(size=64)
        """
        pipeline = self._unfiled()
        return pipeline._with(_ops=evaluated(pipeline._ops))

    def _leading(self) -> tuple[Part, ...]:
        """The operators on the dataset at the beginning."""
        at = next((at for at, part in enumerate(self._ops) if not part.keys.keys() & set(LEADING)), len(self._ops))
        return self._ops[:at]

    def _inserted(self, ops: list[dict[str, Any]]) -> Self:
        """With operators on the dataset after those it has."""
        place, leading = Place.of_caller(), self._leading()
        made = (*leading, *(Part(keys, place) for keys in ops), *self._ops[len(leading) :])
        return self._with(_ops=made)

    def _with_classes(self) -> Self:
        """The same, with the classes of its own folder named, for other images of the same classes."""
        pipeline = self._unfiled()
        part, folder = pipeline._datasets[0], pipeline._class_folder()
        if "images" not in part.keys or "classes" in part.keys:
            return pipeline
        if folder is None:
            raise OptionError(
                "eval_loader: the classes of other images have to be named: write gm.images(..., classes=[...])"
            )
        return pipeline._with(_datasets=(Part({**part.keys, "classes": folder}, part.place),))

    def _class_folder(self) -> str | None:
        """The folder of this machine whose folders are the classes of `gm.images`."""
        keys = self._unfiled()._datasets[0].keys
        path = keys.get("images")
        folder = None if not isinstance(path, str) or "://" in path else os.path.join(self._base, path)
        return folder if folder is not None and os.path.isdir(folder) else None

    def explain(
        self,
        data: Path | None = None,
        sample: int | None = None,
        *,
        measure: Literal["on", "off"] = "on",
        json: bool = False,
    ) -> str:
        """The order in which a loader's job runs the operators, and why: `gristmill explain`.

        Args:
            data: Measure elements of this dataset; relative to the current directory.
            sample: How many elements to measure for the figures; without `data` those of the pipeline's dataset. They
                do not change the order, which depends on the first 64.
            measure: As of a loader.
            json: One JSON object, not a text for people.

        Raises:
            PipelineError: The pipeline is wrong.
            OptionError: An argument cannot be used.
            Error: The command fails.

        Example:
            >>> moved = gm.images("pictures").decode(typical_size=100).solarize().random_crop(8).batch(2)
            >>> [note["change"] for note in json.loads(moved.explain(json=True))["passes"]]
            ['moved']
            >>> json.loads(moved.explain(json=True))["pipeline"]
            ['decode', 'random_crop', 'solarize', 'batch']
        """
        text = _program.run(self, "explain", data=data, sample=sample, measure=measure, json=json)
        return text if json or self._file else _LINE.sub(self._shown_place, text)

    def plan(self, *, step_time: float | str, data: Path | None = None, **options: Any) -> str:
        """Predicts workers, time and cost of a job: `gristmill plan`.

        Args:
            step_time: The trainer's time for a batch without waiting, in seconds or such as "120ms".
            data: The dataset to measure, relative to the current directory; by default the pipeline's.
            options: Other flags of the command, such as `records=1281167`, `epochs=90` or `json=True`.

        Raises:
            PipelineError: The pipeline is wrong.
            OptionError: An argument cannot be used.
            Error: The command fails.

        Example:
            >>> plan = json.loads(pipeline.plan(step_time="10ms", json=True))
            >>> plan["plan"]["records"]
            64
        """
        return _program.run(self, "plan", data=data, step_time=step_time, **options)

    def show(self, n: int = 3, data: Path | None = None, *, seed: int = 0) -> Shown:
        """The first elements after each operator, before any run: `gristmill show`.

        Args:
            n: Records to run, from the start of the dataset's first file: 1 to 100.
            data: The dataset, relative to the current directory; by default the pipeline's.
            seed: Seed of random operators, which draw as in epoch 0.

        Returns:
            What prints as a text, and in a notebook as a table with pictures.

        Raises:
            PipelineError: The pipeline is wrong.
            OptionError: An argument cannot be used.
            Error: The command fails.

        Example:
            >>> shown = gm.images("pictures").decode().resize(size=8).batch(2).show(1)
            >>> [(step["op"], step["elements"][0]["image"]["shape"]) for step in shown.steps[1:]]
            [('decode', [32, 40, 3]), ('resize', [8, 8, 3]), ('batch', [8, 8, 3])]
        """
        return Shown(self, {"records": n, "data": data, "seed": seed})

    def profile(self, data: Path | None = None, sample: int | None = None, *, json: bool = False) -> str:
        """CPU time of each operator in microseconds a record, measured on a sample: `gristmill profile`.

        Args:
            data: The dataset, relative to the current directory; by default the pipeline's.
            sample: Records to run: 300 unless given.
            json: One JSON object, not a text for people.

        Raises:
            PipelineError: The pipeline is wrong.
            OptionError: An argument cannot be used.
            Error: The command fails.

        Example:
            >>> profile = json.loads(pipeline.profile(json=True))
            >>> [op["op"] for op in profile["ops"]]
            ['source', 'batch']
        """
        return _program.run(self, "profile", data=data, sample=sample, json=json)

    def op(self, name: str, /, **parameters: Any) -> Self:
        """Adds the operator `name`: for operators of your own, which have no method.

        Args:
            name: The name, such as `my_crate.cutout`.
            parameters: Its parameters. One called as a keyword of Python takes an underscore, as in `in_`.

        Example:
            >>> gm.images("pictures").decode().op("resize", size=8).batch(2)
            gm.images('pictures').decode().resize(size=8).batch(size=2)
        """
        keys = {key_of(word): plain(value, f"{name}: {word}") for word, value in parameters.items()}
        return self._add(name, keys)

    def deliver(self, *, normalise: Mapping[str, Any] | None) -> Self:
        """Sets what is applied to finished batches beside the trainer, so that u8 crosses the network.

        Args:
            normalise: The parameters of `normalise`, such as `gm.IMAGENET`; None for nothing.

        Example:
            >>> print(images.batch(2).deliver(normalise=gm.IMAGENET).to_yaml().splitlines()[-1])
              normalise: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }
        """
        keys = {"normalise": plain(normalise, "deliver: normalise")}
        delivery = None if normalise is None else Part(keys, Place.of_caller())
        return self._unfiled()._with(_delivery=delivery)

    def options(
        self,
        *,
        name: str | None = None,
        auto_order: Literal["exact", "pecan", False] | None = None,
        compress: Literal["none", "zstd", "auto"] | None = None,
    ) -> Self:
        """Sets what stands at the top of a pipeline file; None leaves it as it is.

        Args:
            name: A name for people.
            auto_order: Which operators may change places to reduce cost: "exact", those that change no byte, unless
                given; "pecan", more of them, which changes results; False, none.
            compress: How workers compress the objects they store: "auto" unless given.

        Example:
            >>> pipeline.options(name="numbers", compress="zstd").to_yaml().splitlines()[:2]
            ['name: numbers', 'compress: zstd']
        """
        given = {"name": name, "auto_order": auto_order, "compress": compress}
        given = {key: plain(value, key) for key, value in given.items() if value is not None}
        pipeline = self._unfiled()
        return pipeline._with(_options={**pipeline._options, **given})

    def located(self, error: PipelineError) -> PipelineError:
        """The same error about this pipeline's text, at the line of Python or of the file it stems from.

        `line` stays that of the text; `filename` and `lineno` are the place, where it is known.

        Args:
            error: An error about the text of `to_yaml`.

        Example:
            >>> error = pipeline.located(gm.PipelineError("it is too long", 1))
            >>> error.message, error.line
            ('it is too long', 1)
        """
        line = error.line
        message = str(error).removeprefix(f"line {line}: ")
        if self._file is None:
            message = pipeline_in_python(message)
        place = self._place(line)
        text = message
        if place is not None:
            message = f"{place}: {message}"
        elif self._file and line is not None:
            message = f"line {line}: {message}"
        located = PipelineError(message)
        located.message, located.line = text, line
        located.filename, located.lineno = place or (None, None)
        return located

    def _place(self, line: int | None) -> Place | None:
        if self._file:
            name = self._file[1]
            return None if name is None else Place(name, line)
        places = self._lines().places
        return places[line - 1] if line is not None and 0 < line <= len(places) else None

    def _shown_place(self, match: re.Match[str]) -> str:
        place = self._place(int(match[1]))
        return f" ({place})" if place else match[0]

    def _op(self, name: str, given: dict[str, Any]) -> Self:
        """Adds an operator with the arguments of its method; those that are defaults are left out."""
        del given["self"]
        if name == "drop" and isinstance(given["fields"], str):
            given["fields"] = [given["fields"]]
        return self._add(name, arguments(getattr(Operators, word_of(name)), given, name))

    def _add(self, name: str, parameters: dict[str, Any]) -> Self:
        pipeline = self._unfiled()
        return pipeline._with(_ops=(*pipeline._ops, Part({name: parameters}, Place.of_caller())))

    def _unfiled(self) -> Self:
        """This pipeline as parts, if it was read from YAML."""
        if self._file is None:
            return self
        text, name = self._file
        try:
            read = parts_of(_native.pipeline_tree(text), name)
        except PipelineError as error:
            raise self.located(error) from None
        if read is None:
            self.canonical()  # Says what is wrong.
            raise PipelineError("the pipeline needs `source` and a list of `ops`")
        return self._with(**read, _file=None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"a pipeline has no attribute {name!r}")
            raise AttributeError(no_operator(name, dir(type(self))))

        def __iter__(self) -> Any:
            raise TypeError("a pipeline has no batches by itself: write gm.numpy.Loader(pipeline), or gm.torch.Loader")

    def _lines(self) -> Lines:
        return Lines.of(self._options, self._datasets, self._ops, self._delivery)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pipeline):
            return NotImplemented
        return (self.to_yaml(), self._base) == (other.to_yaml(), other._base)

    def __hash__(self) -> int:
        return hash((self.to_yaml(), self._base))

    def __repr__(self) -> str:
        if self._file:
            return f"Pipeline.from_yaml({self._file[1] or self._file[0]!r})"
        return shown(self._options, self._datasets, self._ops, self._delivery)


def _with_messages(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of an operator, whose wrong calls say what to write."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def called(self: Pipeline, *args: Any, **given: Any) -> Any:
        try:
            signature.bind(self, *args, **given)
        except TypeError as error:
            raise TypeError(f".{name}: {wrong_call(error, args, given, signature.parameters)}") from None
        return method(self, *args, **given)

    return called


# The methods themselves are what editors read.
for _name, _method in vars(Operators).items():
    if not _name.startswith("_"):
        setattr(Pipeline, _name, _with_messages(_name, _method))


class Shown:
    """The first elements of a dataset after each operator: what `Pipeline.show` returns.

    Attributes:
        steps: A dict for the source and for each operator: `op`, its `line`, the `schema` of its elements, and the
            `elements`: by field `dtype`, `shape`, `min`, `mean` and `max`, and `values` if they are few.
        skipped: A sentence for each record that an operator refused.

    Example:
        >>> shown = gm.jsonl("numbers.jsonl", x=gm.i64()).batch(8).show(2)
        >>> shown.steps[0]["elements"][1]["x"]["values"]
        [1.0]
        >>> print(shown)  # doctest: +ELLIPSIS
        source
           0  x  i64  0
           1  x  i64  1
        batch...
    """

    def __init__(self, pipeline: Pipeline, options: dict[str, Any]) -> None:
        self._pipeline, self._options = pipeline, options
        found = json.loads(self._run(json=True))
        self.steps: list[dict[str, Any]] = found["steps"]
        self.skipped: list[str] = found["skipped"]

    def _run(self, **form: Any) -> str:
        return _program.run(self._pipeline, "show", **self._options, **form)

    def __repr__(self) -> str:
        return self._run().rstrip("\n")

    def _repr_html_(self) -> str:
        return self._run(html="-")


def zip(*datasets: Pipeline) -> Pipeline:
    """Puts 2 to 16 datasets side by side: record i of the first goes with record i of the others.

    The result is as long as the shortest of them, and has the fields of all.

    Args:
        datasets: Each is a source such as `gm.tfrecord(...)`, which may be followed by `.repeat(count=n)` alone.

    Raises:
        PipelineError: A dataset has other operators or settings; they come after `zip`.
        TypeError: One is no pipeline.

    Example:
        >>> numbers, texts = gm.jsonl("numbers.jsonl", x=gm.i64()), gm.jsonl("texts.jsonl", text=gm.bytes())
        >>> sorted(gm.zip(numbers, texts).batch(3, ragged=True).peek())
        ['text', 'text.offsets', 'x']
    """
    if len(datasets) < 2:
        raise PipelineError(f"`zip` puts 2 to 16 datasets side by side, not {len(datasets)}")
    parts = [_member(number, dataset) for number, dataset in enumerate(datasets, 1)]
    bases = {dataset.base for dataset in datasets}
    if len(bases) > 1:
        raise PipelineError("`zip`: the relative paths of its datasets begin in different directories")
    return Pipeline._make(_datasets=tuple(parts), _base=bases.pop())


def _member(number: int, dataset: Pipeline) -> Part:
    if not isinstance(dataset, Pipeline):
        raise TypeError(f"dataset {number} of `zip` is a source such as gm.tfrecord(...), not {dataset!r}")
    pipeline = dataset._unfiled()
    is_alone = len(pipeline._datasets) == 1 and not (pipeline._options or pipeline._delivery)
    repeats: list[Any] = [keys.get("repeat") for keys, _ in pipeline._ops]
    are_plain = all(isinstance(repeat, dict) and repeat.keys() == {"count"} for repeat in repeats)
    if not is_alone or len(repeats) > 1 or not are_plain:
        raise PipelineError(
            f"dataset {number} of `zip` can only be repeated, with `.repeat(count=n)`: everything else comes "
            "after `zip`"
        )
    (part,) = pipeline._datasets
    keys = dict(part.keys)
    for repeat in repeats:
        keys["repeat"] = repeat["count"]
    return Part(keys, part.place)


# By the ending of a file.
_FORMATS_OF_FILES = {
    "csv": "csv",
    "json": "jsonl",
    "jsonl": "jsonl",
    "npy": "npy",
    "npz": "npz",
    "parquet": "parquet",
    "tar": "webdataset",
    "tfrecord": "tfrecord",
    "tsv": "tsv",
}


def _source_of_data(path: str) -> str | None:
    """The function for the data at a path; None if it may be a pipeline file."""
    if os.path.isdir(path):
        return "images"
    return _FORMATS_OF_FILES.get(path.rpartition(".")[2].lower())


def _check_source(name: str, path: Any, features: Any) -> None:
    paths = path if isinstance(path, (list, tuple)) else [path]
    if not paths or not all(isinstance(each, (str, os.PathLike)) for each in paths):
        raise TypeError(f"gm.{name}: the path is a text, a pathlib.Path or a list of them, not {path!r}")
    if features is not None and not isinstance(features, Mapping):
        raise TypeError(
            f"gm.{name}: features is a dict of the fields, such as features={{'x': gm.i64()}}, not {features!r}"
        )


def _read(path: str) -> str:
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise PipelineError(f"{path} has more than {_MAX_BYTES} bytes: is this the right file?")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PipelineError(f"{path} is not UTF-8: is this the right file?") from None
