"""The parts of a pipeline written in Python, as lines of YAML that know where they stem from."""

from __future__ import annotations

import json
import keyword
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from ._features import Feature
from ._operators import FORMATS
from ._text import flow, plain

_PACKAGE = __name__.partition(".")[0]


def word_of(key: str) -> str:
    """The name in Python of a key of YAML: `in` is `in_`."""
    return f"{key}_" if keyword.iskeyword(key) else key


def key_of(word: str) -> str:
    """The key of YAML for a name in Python."""
    return word[:-1] if word.endswith("_") and keyword.iskeyword(word[:-1]) else word


def arguments(function: Callable[..., Any], given: dict[str, Any], what: str) -> dict[str, Any]:
    """What a function of an operator or a format was given, as keys of YAML, without what is by default."""
    defaults: dict[str, Any] = function.__kwdefaults__ or {}
    keys = {}
    for word, value in given.items():
        written = plain(value, f"{what}: {word}")
        default = plain(defaults[word], what) if word in defaults else ...
        if written != default or type(written) is not type(default):
            keys[key_of(word)] = written
    return keys


class Place(NamedTuple):
    """Where a part of a pipeline was written."""

    filename: str
    lineno: int | None

    @classmethod
    def of_caller(cls) -> Place | None:
        """The innermost line outside this package."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.partition(".")[0] != _PACKAGE:
                return cls(frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def __str__(self) -> str:
        name = self.filename
        if os.path.isabs(name):
            within = os.path.relpath(name)
            name = name if within.startswith(os.pardir) else within
        return name if self.lineno is None else f"{name}:{self.lineno}"


class Part(NamedTuple):
    """A dataset, an operator or the delivery: its keys as in YAML, and where it was written."""

    keys: dict[str, Any]
    place: Place | None


class Lines:
    """YAML text under construction: each line knows where its content was written."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.places: list[Place | None] = []

    def add(self, text: str, place: Place | None = None) -> None:
        self.texts.append(text)
        self.places.append(place)

    def dataset(self, part: Part, indent: str, first: str) -> None:
        """The keys of a dataset; `first` stands before the first of them, in place of `indent`."""
        for key, value in part.keys.items():
            if key == "features" and isinstance(value, dict) and value:
                self.add(f"{first}features:", part.place)
                for name, feature in value.items():
                    self.add(f"{indent}  {flow(name)}: {flow(feature)}", part.place)
            else:
                self.add(f"{first}{flow(key)}: {flow(value)}", part.place)
            first = indent

    @classmethod
    def of(
        cls, options: dict[str, Any], datasets: tuple[Part, ...], ops: tuple[Part, ...], delivery: Part | None
    ) -> Self:
        """The text of a pipeline."""
        lines = cls()
        source = datasets[0].place
        for key, value in options.items():
            lines.add(f"{flow(key)}: {flow(value)}")
        lines.add("source:", source)
        if len(datasets) == 1:
            lines.dataset(datasets[0], "  ", "  ")
        else:
            lines.add("  zip:", source)
            for part in datasets:
                lines.dataset(part, "      ", "    - ")
        lines.add("ops:" if ops else "ops: []", source)
        for keys, place in ops:
            ((name, parameters),) = keys.items()
            written = "" if parameters in ({}, None) else f": {flow(parameters)}"
            lines.add(f"  - {flow(name)}{written}", place)
        if delivery is not None:
            lines.add("deliver:", delivery.place)
            for key, value in delivery.keys.items():
                lines.add(f"  {flow(key)}: {flow(value)}", delivery.place)
        return lines


def parts_of(tree_and_lines: str, name: str | None) -> dict[str, Any] | None:
    """The parts of a pipeline that `_native.pipeline_tree` read from the file `name`, as `Pipeline` has them.

    None if it is not made of a source and a list of operators.
    """
    tree, lines = json.loads(tree_and_lines)
    if not isinstance(tree, dict):
        return None
    source, ops, delivery = (tree.pop(key, None) for key in ("source", "ops", "deliver"))
    ops = [{op: None} if isinstance(op, str) else op for op in ops] if isinstance(ops, list) else ops
    datasets = source.get("zip", [source]) if isinstance(source, dict) else None
    if not _are_mappings(datasets) or not datasets or not _are_mappings(ops or []):
        return None
    if any(len(op) != 1 for op in ops or []) or not (delivery is None or isinstance(delivery, dict)):
        return None
    places = [None if name is None else Place(name, line) for line in lines]
    return {
        "_options": tree,
        "_datasets": tuple(Part(dataset, None) for dataset in datasets),
        "_ops": tuple(Part(op, place) for op, place in zip(ops or [], places, strict=True)),
        "_delivery": None if delivery is None else Part(delivery, None),
    }


def _are_mappings(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


def shown(options: dict[str, Any], datasets: tuple[Part, ...], ops: tuple[Part, ...], delivery: Part | None) -> str:
    """The pipeline as calls."""
    sources = [_shown_dataset(dataset.keys) for dataset in datasets]
    text = sources[0] if len(sources) == 1 else f"gm.zip({', '.join(sources)})"
    for keys, _ in ops:
        ((name, parameters),) = keys.items()
        if "." in name:
            text += f".op({', '.join([repr(name), *_arguments(parameters)])})"
        else:
            text += f".{word_of(name)}({', '.join(_arguments(parameters))})"
    if options:
        text += f".options({', '.join(_arguments(options))})"
    if delivery is not None:
        text += f".deliver({', '.join(_arguments(delivery.keys))})"
    return text


def _shown_dataset(keys: dict[str, Any]) -> str:
    own = {key: value for key, value in keys.items() if key not in ("features", "repeat")}
    name = next((key for key in own if key in FORMATS), "?")
    others = {key: value for key, value in own.items() if key != name}
    features = {field: _shown_feature(spec) for field, spec in (keys.get("features") or {}).items()}
    arguments = [repr(own.get(name)), *_arguments(others), *_arguments(features)]
    repeated = f".repeat(count={keys['repeat']})" if "repeat" in keys else ""
    return f"gm.{name}({', '.join(arguments)}){repeated}"


def _shown_feature(spec: Any) -> Any:
    is_plain = isinstance(spec, dict) and "dtype" in spec and spec.keys() <= {"key", "dtype", "shape"}
    return Feature(**spec) if is_plain else spec


def _arguments(parameters: Any) -> list[str]:
    if parameters is None:
        return []
    if not isinstance(parameters, dict):
        return [repr(parameters)]
    return [f"{word_of(key)}={value!r}" for key, value in parameters.items()]
