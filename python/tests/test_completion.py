"""Editors complete and type the options of every loader: jedi and pyright, where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm
from gristmill._options import CommonOptions, LoaderOptions, SharedOptions

PACKAGE = Path(gm.__file__).parent
OPTIONS = set(typing.get_type_hints(LoaderOptions))
SHARED = set(typing.get_type_hints(SharedOptions))
OF_TORCH = {"device", "normalise", "channels_first"}
#: What a call takes by name, beside the pipeline.
CALLS = {
    "gm.numpy.Loader": OPTIONS,
    "gm.torch.Loader": OPTIONS | OF_TORCH,
    "gm.torch.Dataset": OPTIONS | OF_TORCH,
    "gm.jax.Loader": OPTIONS | {"device", "ahead"},
    "gm.tf.Loader": OPTIONS,
    "gm.grain.dataset": OPTIONS | {"keep"},
    "gm.lightning.DataModule": OPTIONS | OF_TORCH | {"val"},
    "gm.from_dataloader": OPTIONS | OF_TORCH | {"order"},
    "gm.from_webdataset": SHARED | {"sharding", "device", "fields", "transform", "decode", "batch_size", "shuffle"},
}
HEAD = "import gristmill as gm\npipeline = gm.images('x').decode().resize(8).batch(8)\n"


@pytest.mark.parametrize("call", CALLS)
def test_jedi_completes_every_option(call: str) -> None:
    jedi = pytest.importorskip("jedi")
    code = f"{HEAD}{call}(pipeline, "
    script = jedi.Script(code, project=jedi.Project(PACKAGE.parent))
    line = code.splitlines()[-1]
    at = (len(code.splitlines()), len(line))
    names = {found.name.rstrip("=") for found in script.complete(*at) if found.name.endswith("=")}
    assert CALLS[call] - names == set()
    parameters = {p.name: p.to_string() for signature in script.get_signatures(*at) for p in signature.params}
    untyped = [name for name in CALLS[call] if ":" not in parameters.get(name, "")]
    assert untyped == []


def pyright(tmp_path: Path, code: str) -> list[dict[str, Any]]:
    """What pyright says about a program."""
    pytest.importorskip("pyright")
    (tmp_path / "program.py").write_text(code)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(PACKAGE.parent)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    if not ran.stdout.lstrip().startswith("{"):
        pytest.skip(f"pyright does not run here: {ran.stderr[-200:]}")
    found: list[dict[str, Any]] = json.loads(ran.stdout)["generalDiagnostics"]
    return [one for one in found if one["severity"] == "error"]


def test_pyright_takes_the_program_of_the_readme(tmp_path: Path) -> None:
    code = (
        "import gristmill as gm, gristmill.torch\n"
        "pipeline = gm.images('x').shuffle().decode().random_resized_crop(8).flip().batch(8)\n"
        "with gm.torch.Loader(pipeline, epochs=90, workers='auto', device='cuda', channels_first=True) as loader:\n"
        "    for batch in loader:\n"
        "        print(batch['image'], loader.epoch)\n"
        "    with loader.eval_loader('y') as evaluation:\n"
        "        print(len(evaluation))\n"
    )
    assert pyright(tmp_path, code) == []


def test_pyright_types_every_option(tmp_path: Path) -> None:
    """A wrong type of each option of each call is an error in its line, and so is a wrong name."""
    pairs = [(call, name) for call in CALLS for name in sorted(CALLS[call])]
    first = {call: "dataloader" if call == "gm.from_dataloader" else "pipeline" for call in CALLS}
    head = "import gristmill as gm\nfrom typing import Any\npipeline: Any = None\ndataloader: Any = None\n"
    # Any type is right, or JAX has none.
    untyped = {("gm.lightning.DataModule", "val"), ("gm.from_webdataset", "transform"), ("gm.jax.Loader", "device")}
    # The types of a framework that is not installed are unknown.
    if importlib.util.find_spec("torch") is None:
        untyped |= {(call, "device") for call in CALLS}
    if importlib.util.find_spec("jax") is None:
        untyped.add(("gm.jax.Loader", "sharding"))
    wrong = [f"{call}({first[call]}, {name}=object())" for call, name in pairs if (call, name) not in untyped]
    wrong += [f"{call}({first[call]}, no_such_option=1)" for call in CALLS]
    found = {error["range"]["start"]["line"] for error in pyright(tmp_path, head + "\n".join(wrong) + "\n")}
    lines = range(head.count("\n"), head.count("\n") + len(wrong))
    missed = [line for number, line in zip(lines, wrong, strict=True) if number not in found]
    assert not missed, missed


def test_the_options_by_name_are_those_of_the_class() -> None:
    """The options of `LoaderOptions` have the types and the texts of the parameters of a loader."""
    loader = gm.numpy.Loader
    parameters = dict(list(inspect.signature(loader).parameters.items())[1:])
    assert set(parameters) == OPTIONS
    hints = typing.get_type_hints(inspect.unwrap(loader.__init__))
    assert {name: hints[name] for name in OPTIONS} == typing.get_type_hints(LoaderOptions)
    source = (PACKAGE / "_options.py").read_text()
    documented = " ".join((inspect.getdoc(loader.__mro__[1]) or "").split())
    for owner in (SharedOptions, CommonOptions, LoaderOptions):
        for name in owner.__annotations__.keys() & OPTIONS:
            begin = source.index(f"\n    {name}: ")
            text = source[begin:].split('"""')[1]
            assert f"{name}: {' '.join(text.split())}" in documented, name


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tf"])
def test_help_names_every_option(name: str) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(name, name))
    module = importlib.import_module(f"gristmill.{name}")
    if name != "jax":
        lines = (inspect.getdoc(module.Loader) or "").splitlines()
        assert [option for option in OPTIONS if not any(line.startswith(f"    {option}: ") for line in lines)] == []
    assert set(inspect.signature(module.Loader).parameters) - {"pipeline", "ahead"} - OF_TORCH == OPTIONS - (
        {"device"} if name == "jax" else set()
    )
