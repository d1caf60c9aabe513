"""Pipelines written in Python: a source, operators, and what is applied at delivery.

A `Pipeline` is written as the YAML of docs/pipelines.md, and the same checks read both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, TypedDict

from . import _native, _program
from ._features import Feature
from ._operators import Operators
from ._parts import Lines, Part, Place, arguments, key_of, parts_of, shown, word_of
from ._text import plain
from .errors import PipelineError

__all__ = ["IMAGENET", "Pipeline", "zip"]

# Largest pipeline file, as the reader of pipelines has it.
_MAX_BYTES = 4 << 20
# How `explain` names the line of an operator.
_LINE = re.compile(r" \(line (\d+)\)")

Path = str | os.PathLike[str]


class Statistics(TypedDict):
    """Mean and standard deviation of each channel, on the scale 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


#: Mean and standard deviation of ImageNet's training images: R, G, B on the scale 0 to 1.
IMAGENET: Statistics = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Pipeline(Operators):
    """A pipeline; every method returns a new one and leaves this one as it is.

    Made by `gm.tfrecord(...)` and the functions of other formats, by `gm.zip(...)`, or by
    `Pipeline.from_yaml(...)`. It is checked as a whole when it is used, or by `canonical()`. Two pipelines
    are equal if their texts and their directories are.

    Raises TypeError for values that have no place in a pipeline, PipelineError when it is checked.
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
        path, features, fields = given.pop("path"), given.pop("features") or {}, given.pop("fields")
        for field, feature in [*features.items(), *fields.items()]:
            if not isinstance(feature, Feature):
                raise TypeError(
                    f"gm.{name}: `{field}` is no parameter, and a field is gm.bytes(...), gm.i64(...), "
                    f"gm.u64(...), gm.f32(...) or gm.f64(...), not {feature!r}"
                )
            if field in features and field in fields:
                raise TypeError(f"gm.{name}: the field `{field}` is given twice")
        keys = {name: plain(path, f"gm.{name}: the path"), **arguments(function, given, f"gm.{name}")}
        if features or fields:
            keys["features"] = {**plain(features, f"gm.{name}"), **plain(fields, f"gm.{name}")}
        return cls._make(_datasets=(Part(keys, Place.of_caller()),))

    @classmethod
    def from_yaml(cls, source: Path, *, base: Path | None = None) -> Self:
        """Reads a pipeline file, or the text of one.

        Args:
            source: The path of a file; or YAML, which has several lines or begins with `{`.
            base: Directory for the relative paths of the pipeline; by default the file's, or the present one
                for a text.

        Raises OSError if the file cannot be read, PipelineError if it is no text. What it says is checked
        later.
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
        """The directory that relative paths of the pipeline start from."""
        return self._base

    def to_yaml(self) -> str:
        """The pipeline as a file has it: one operator a line. What was read from YAML is as it was."""
        return self._file[0] if self._file else "\n".join(self._lines().texts) + "\n"

    def canonical(self) -> str:
        """Checks everything, and returns the form that a job freezes, as JSON with all defaults.

        It has no name and no paths. Reads the files that operators name, and no data. Raises PipelineError.
        """
        try:
            return _native.canonical(self.to_yaml(), self._base)
        except PipelineError as error:
            raise self.located(error) from None

    def explain(self, data: Path | None = None, sample: int | None = None, *, json: bool = False) -> str:
        """Says which operators were moved or removed, which were not, and why: `gristmill explain`.

        Args:
            data: Measure elements of this dataset; relative to the current directory.
            sample: How many elements to measure; without `data` those of the pipeline's dataset.
            json: One JSON object, not a text for people.

        Raises PipelineError, OptionError for values it does not take, and Error if it fails.
        """
        text = _program.run(self, "explain", data=data, sample=sample, json=json)
        return text if json or self._file else _LINE.sub(self._shown_place, text)

    def plan(self, *, step_time: float | str, data: Path | None = None, **options: Any) -> str:
        """Predicts workers, time and cost of a job: `gristmill plan`.

        Args:
            step_time: The trainer's time for a batch without waiting, in seconds or such as "120ms".
            data: The dataset to measure, relative to the current directory; by default the pipeline's.
            options: Other flags of the command, such as `records=1281167`, `epochs=90` or `json=True`.

        Raises as `explain`.
        """
        return _program.run(self, "plan", data=data, step_time=step_time, **options)

    def op(self, name: str, /, **parameters: Any) -> Self:
        """Adds the operator `name`: for operators of your own, which have no method.

        A parameter called as a keyword of Python takes an underscore at its end, as in `in_`.
        """
        keys = {key_of(word): plain(value, f"{name}: {word}") for word, value in parameters.items()}
        return self._add(name, keys)

    def deliver(self, *, normalise: Mapping[str, Any] | None) -> Self:
        """Sets what is applied to finished batches beside the trainer, so that u8 crosses the network.

        Args:
            normalise: The parameters of `normalise`, such as `gm.IMAGENET`; None for nothing.
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
        """
        given = {"name": name, "auto_order": auto_order, "compress": compress}
        given = {key: plain(value, key) for key, value in given.items() if value is not None}
        pipeline = self._unfiled()
        return pipeline._with(_options={**pipeline._options, **given})

    def located(self, error: PipelineError) -> PipelineError:
        """The same error about this pipeline's text, at the line of Python or of the file it stems from.

        `line` stays that of the text; `filename` and `lineno` are the place, where it is known.
        """
        line = error.line
        message = str(error).removeprefix(f"line {line}: ")
        place = self._place(line)
        if place is not None:
            message = f"{place}: {message}"
        elif self._file and line is not None:
            message = f"line {line}: {message}"
        located = PipelineError(message)
        located.line = line
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


def zip(*datasets: Pipeline) -> Pipeline:
    """Puts 2 to 16 datasets side by side: record i of the first goes with record i of the others.

    Each is a source such as `gm.tfrecord(...)`, which may be followed by `.repeat(count=n)` alone. The result
    is as long as the shortest of them, and has the fields of all.

    Raises PipelineError if a dataset has other operators or settings; they come after `zip`.
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


def _read(path: str) -> str:
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise PipelineError(f"{path} has more than {_MAX_BYTES} bytes: is this the right file?")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PipelineError(f"{path} is not UTF-8: is this the right file?") from None
