"""The methods of pipelines are the operators as Rust declares them."""

from __future__ import annotations

import inspect
import json
import pathlib
import subprocess
import sys

import pytest

import gristmill as gm
from gristmill import _native

ROOT = pathlib.Path(__file__).resolve().parents[2]
DECLARED = json.loads(_native.operators())


def make_operators(declared: object, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/make-operators"), "--from", "-", *options]
    return subprocess.run(command, input=json.dumps(declared), capture_output=True, text=True)


def test_the_methods_are_up_to_date() -> None:
    ran = make_operators(DECLARED, "--check")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("key", ["name", "kind", "default", "doc"])
def test_a_parameter_that_changes_in_rust_is_noticed(key: str) -> None:
    declared = json.loads(_native.operators())
    resize = next(operator for operator in declared["operators"] if operator["name"] == "resize")
    antialias = next(parameter for parameter in resize["parameters"] if parameter["name"] == "antialias")
    antialias[key] = {"name": "smooth", "kind": "text", "default": {"value": "false"}, "doc": "Other."}[key]
    ran = make_operators(declared, "--check")
    assert ran.returncode == 1
    assert "python/gristmill/_operators.py differs" in ran.stderr


def test_declarations_that_python_cannot_have_are_named() -> None:
    declared = json.loads(_native.operators())
    declared["operators"].append({"name": "explain", "parameters": []})
    ran = make_operators(declared, "--check")
    assert (ran.returncode, "method `explain`" in ran.stderr) == (1, True)
    declared["operators"][-1] = {"name": "unheard_of", "parameters": []}
    ran = make_operators(declared, "--check")
    assert (ran.returncode, "no section of `unheard_of`" in ran.stderr) == (1, True)


@pytest.mark.parametrize("operator", DECLARED["operators"], ids=lambda operator: operator["name"])
def test_a_method_has_the_parameters_of_its_operator(operator: dict[str, object]) -> None:
    method = getattr(gm.Pipeline, str(operator["name"]))
    parameters = inspect.signature(method).parameters
    declared = operator["parameters"]
    assert isinstance(declared, list)
    words = {"in_" if parameter["name"] == "in" else parameter["name"]: parameter for parameter in declared}
    assert set(parameters) == {"self", *words, "keep_position", "assume_commutes"}
    for word, parameter in words.items():
        required = parameters[word].default is inspect.Parameter.empty
        assert required == (parameter["default"] == "required")
        assert f"{word}: " in method.__doc__


def test_the_values_of_all_methods_by_default_are_those_of_rust() -> None:
    """A method that is called with its own defaults writes no parameter but those it needs."""
    needed = {"size": 8, "field": "image", "into": "other"}
    for operator in DECLARED["operators"]:
        required = [p["name"] for p in operator["parameters"] if p["default"] == "required"]
        given = {name: needed.get(name, 1) for name in required}
        method = getattr(gm.images("x"), operator["name"])
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(method).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        assert method(**given) == method(**given, **defaults)


def test_every_format_has_a_function() -> None:
    for source in DECLARED["sources"]:
        for name in [source["name"], *source["aliases"]]:
            parameters = inspect.signature(getattr(gm, name)).parameters
            own = {parameter["name"] for parameter in source["parameters"]}
            assert set(parameters) == {"path", *own, "features", "fields"}
