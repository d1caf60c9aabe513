"""Every public class, function, method and operator has a docstring of one style with an example, which runs."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import example_data
import pytest

import gristmill as gm

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/make-python-api"
# The module that `gm.X` imports, if it is not X, and others that its examples import.
NEEDED = {
    "tf": ["tensorflow"],
    "switch": ["torch", "torchvision"],
    "lightning": ["torch", "lightning"],
    "transformers": ["torch", "transformers", "accelerate"],
}
# Their base class calls them, or they are read and not called.
WITHOUT_EXAMPLE = {
    "DataModule.on_before_batch_transfer",
    "Statistics",
    "SwitchOptions",
    "TrainerMixin.get_train_dataloader",
}
MADE_BY_THE_PACKAGE = {"Service", "Shown", "DataError", "Error", "PipelineError", "SwitchError"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _script() -> Any:
    loader = SourceFileLoader("make_python_api", str(SCRIPT))
    spec = importlib.util.spec_from_loader("make_python_api", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_python_api"] = module
    loader.exec_module(module)
    return module


API = _script()
ENTRIES = [entry for _, entry in API.all_entries()]
NAMES = [f"{entry.module}.{entry.name}" for entry in ENTRIES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    example_data.write(folder)
    return folder


def test_the_page_is_fresh() -> None:
    ran = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_all_public_names_are_on_the_page() -> None:
    assert len(set(NAMES)) == len(NAMES)
    modules = {"errors", "numpy"}
    absent = [
        name for name in gm.__all__ if name not in modules and f"gm.{name}" not in NAMES and callable(getattr(gm, name))
    ]
    assert absent == []
    operators = {operator["name"] for operator in json.loads(gm._native.operators())["operators"]}
    assert {f"gm.Pipeline.{name}" for name in operators} <= set(NAMES)


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_a_docstring_has_the_style(entry: Any) -> None:
    assert entry.doc, "it has no docstring"
    assert entry.doc.splitlines()[0].rstrip().endswith((".", ":")) or len(entry.doc.splitlines()) > 1
    prose, sections = API.sections(entry.doc)
    assert not re.search(r"(?m)^(Raises|Returns) ", prose), "a section is `Raises:` on a line of its own"
    if entry.name not in MADE_BY_THE_PACKAGE and (entry.signature or not entry.name[0].isupper()):
        _check_parameters(entry, sections)
    assert "Example" in sections or entry.name in WITHOUT_EXAMPLE, "it has no example"


def _check_parameters(entry: Any, sections: dict[str, str]) -> None:
    documented = {name for name, _ in API.items(sections.get("Args", ""))}
    given = {word.lstrip("*") for word in re.findall(r"(?:^\(|, )(\**[a-z_]\w*)(?=[:=,)])", signature(entry))}
    # Every operator has them, and the class documents them.
    given -= {"keep_position", "assume_commutes", "self"}
    assert given == documented, f"parameters {given ^ documented} differ"


def signature(entry: Any) -> str:
    """The parameters without what is between brackets."""
    text: str = entry.signature.partition(" -> ")[0]
    if not text.startswith("("):
        return ""
    while (plain := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = plain
    inner = text[1:-1]
    while (plain := re.sub(r"\([^()]*\)", "", inner)) != inner:
        inner = plain
    return f"({re.sub(r'=[^,]*', '', inner)})"


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_an_example_runs(entry: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = API.sections(entry.doc)[1].get("Example")
    if example is None:
        pytest.skip("it has none")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow" if importlib.util.find_spec("tensorflow") else "torch")
    names: dict[str, Any] = {"gm": gm, "os": os, "json": json}
    module = entry.module.partition(".")[2]
    for needed in [] if module in ("", "numpy") else NEEDED.get(module, [module]):
        names["tf" if needed == "tensorflow" else needed] = pytest.importorskip(needed)
    if module == "keras":
        pytest.importorskip(os.environ["KERAS_BACKEND"])
    if module:
        importlib.import_module(f"gristmill.{module}")
    names["pipeline"] = gm.jsonl("numbers.jsonl", x=gm.i64()).batch(8)
    names["images"] = gm.images("pictures").decode().resize([32, 40])
    with contextlib.closing(gm.numpy.Loader(names["pipeline"], epochs=2)) as loader:
        names["loader"] = loader
        test = doctest.DocTestParser().get_doctest(f"{example}\n", names, entry.name, None, 0)
        assert test.examples
        said: list[str] = []
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert not said, "".join(said)
