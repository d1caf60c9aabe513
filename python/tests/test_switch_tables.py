"""The lines that docs/python-switch.md gives for calls of other libraries are calls that there are."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import typing
from typing import Any

import pytest
from manual import tables

import gristmill as gm
from gristmill._options import LoaderOptions

PAGE = "docs/python-switch.md"
#: Headers of the tables whose second column has lines to write.
LINES = ("PyTorch, torchvision | here", "webdataset | here", "datasets | here", "tf.data | here")
OPTIONS = set(typing.get_type_hints(LoaderOptions)) | {"device", "channels_first"}


def lines() -> list[str]:
    found = []
    for table in tables(PAGE):
        if " | ".join(table.header) in LINES:
            found += [code for row in table.rows for code in re.findall(r"`([^`]+)`", row[1])]
    return found


def test_there_are_tables() -> None:
    headers = [" | ".join(table.header) for table in tables(PAGE)]
    assert [header for header in LINES if header not in headers] == [] and len(set(lines())) > 60


def test_every_row_has_a_line_or_a_plain_no() -> None:
    for table in tables(PAGE):
        for call, here in table.rows if " | ".join(table.header) in LINES else []:
            assert "`" in here or re.match(r"no\b|always|operators", here), f"{call}: {here}"


@pytest.mark.parametrize("code", sorted(set(lines())))
def test_a_line(code: str) -> None:
    text = code.replace("(...)", "()").replace("=...", "=None").replace(", ...)", ")")
    if re.fullmatch(r"\w+", text):
        assert text in OPTIONS | set(dir(gm.Pipeline)) | {"drop", "repeat"} or text[0].isupper(), text
        return
    if re.fullmatch(r"\w+=.*", text):
        assert text.partition("=")[0] in OPTIONS | {"on_error"}, text
        return
    if re.fullmatch(r'"\w+"|huggingface-cli .*|dataset\..*', text):
        return
    tree = ast.parse(f"pipeline{text}" if text.startswith(".") else text)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) in ("len", "range"):
            continue
        function = function_of(call.func)
        parameters = inspect.signature(function).parameters
        takes_more = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        unknown = [word.arg for word in call.keywords if word.arg not in parameters]
        assert takes_more or unknown == [], f"{ast.unparse(call)} has no {unknown}"
        positional = [p for p in parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        is_open = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in positional)
        assert is_open or len(call.args) <= len(positional), ast.unparse(call)


def function_of(node: ast.expr) -> Any:
    """The function that is called: of the package, of a pipeline or of a loader."""
    path = ast.unparse(node)
    if re.fullmatch(r"gm(\.\w+)+", path):
        found: Any = gm
        for name in path.split(".")[1:]:
            if name in ("torch", "tf") and importlib.util.find_spec({"tf": "tensorflow"}.get(name, name)) is None:
                pytest.skip(f"{name} is not installed")
            found = getattr(found, name)
        return found
    assert isinstance(node, ast.Attribute)
    owner = gm.numpy.Loader if path.startswith("loader.") else gm.Pipeline
    method = getattr(owner, node.attr)
    return method if inspect.ismethod(method) else method.__get__(object())
