"""The package: what importing it does, its command line, its types and its exceptions."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gristmill as gm
from gristmill import _native, errors
from gristmill.__main__ import launcher

PACKAGE = Path(gm.__file__).parent
MANUAL = Path(__file__).parents[2] / "docs/python.md"


def python(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, *args], capture_output=True, text=True, env=environment, timeout=60, **options
    )


def gristmill(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return python("-P", "-m", "gristmill", *args, **options)


# Importing.


def test_all_names_are_there() -> None:
    assert len(set(gm.__all__)) == len(gm.__all__)
    assert [name for name in gm.__all__ if not hasattr(gm, name)] == []
    assert gm.__version__ == _native.__version__ and re.fullmatch(r"\d+\.\d+\.\d+\S*", gm.__version__)
    with pytest.raises(AttributeError, match="'gristmill' has no attribute 'nothing'"):
        _ = gm.nothing


def test_importing_it_imports_no_framework_and_starts_nothing() -> None:
    code = (
        "import sys, threading, os, gristmill\n"
        "heavy = {'torch', 'jax', 'tensorflow', 'keras', 'grain', 'lightning', 'transformers', 'PIL', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)), threading.active_count(), len(os.listdir('/proc/self/task')))\n"
    )
    if sys.platform != "linux":
        code = code.replace("len(os.listdir('/proc/self/task'))", "1")
    # numpy may bring threads of its own.
    ran = python("-W", "error", "-c", "import numpy, os\n" + code)
    assert ran.stderr == "" and ran.stdout.startswith("[] 1 ")
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "OPENBLAS_NUM_THREADS": "1"}
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert again.stdout == "[] 1 1\n"


def test_the_command_line_imports_neither_numpy_nor_the_package() -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['gristmill', '--version']\n"
        "try:\n"
        f"    runpy.run_path({str(PACKAGE / '__main__.py')!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "print(sorted({'numpy', 'gristmill', 'gristmill._loader', 'site'} & set(sys.modules)))\n"
    )
    ran = python("-I", "-S", "-c", code)
    assert ran.stdout == f"gristmill {gm.__version__}\n[]\n", ran.stderr


def test_logging_has_no_handler_of_ours() -> None:
    logger = logging.getLogger("gristmill")
    assert logger.handlers == [] and logger.level == logging.NOTSET


# The command line.


def test_version_and_help() -> None:
    assert gristmill("--version").stdout == f"gristmill {gm.__version__}\n"
    helped = gristmill("--help")
    assert helped.returncode == 0 and "Usage: gristmill" in helped.stdout
    fetcher = python(
        "-c",
        "import sys; sys.argv = ['gristmill-fetcher', '--help']; "
        "from gristmill.__main__ import fetcher; sys.exit(fetcher())",
    )
    assert fetcher.returncode == 0 and "--socket" in fetcher.stdout


def test_exit_codes() -> None:
    assert gristmill("nonsense").returncode == 2
    missing = gristmill("explain", "there-is-none.yaml")
    assert missing.returncode == 2 and len(missing.stderr.splitlines()) == 1
    assert missing.stderr.startswith("gristmill: ") and "there-is-none.yaml" in missing.stderr


def test_modules_of_the_current_directory_are_not_imported(tmp_path: Path) -> None:
    for name in ("numpy", "signal", "importlib", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    assert gristmill("--version", cwd=tmp_path).stdout == f"gristmill {gm.__version__}\n"
    isolated = subprocess.run(
        [*launcher(), "--version"], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
    assert isolated.stdout == f"gristmill {gm.__version__}\n"


def test_a_run_has_the_batches_of_a_loader(tmp_path: Path) -> None:
    """The command line, with its workers, works from the package alone."""
    (tmp_path / "numbers.jsonl").write_text("".join(f'{{"value": {n}}}\n' for n in range(100)))
    pipeline = gm.jsonl(tmp_path / "numbers.jsonl", value=gm.i64()).shuffle().batch(32)
    (tmp_path / "pipeline.yaml").write_text(pipeline.to_yaml())
    flags = ["--epochs=1", "--seed=4", f"--sink={tmp_path / 'out'}"]
    ran = gristmill("run", str(tmp_path / "pipeline.yaml"), *flags)
    assert ran.returncode == 0, ran.stderr
    written = [tensor(path, "value") for path in sorted((tmp_path / "out").glob("*.safetensors"))]
    with gm.numpy.Loader(pipeline, epochs=1, seed=4) as loader:
        loaded = [batch["value"].tolist() for batch in loader]
    assert written == loaded and len(loaded) == 4


def tensor(path: Path, name: str) -> list[int]:
    """A tensor of i64 of a safetensors file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8 : 8 + length])[name]["data_offsets"]
    values: list[int] = np.frombuffer(content[8 + length :][begin:end], "<i8").tolist()
    return values


# Types and documentation.


def test_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_native.pyi").exists()


def test_public_names_are_documented() -> None:
    for name in gm.__all__:
        named = getattr(gm, name)
        if inspect.isclass(named) or inspect.isfunction(named) or inspect.ismodule(named):
            assert (named.__doc__ or "").strip(), name
    for cls in (gm.numpy.Loader, gm.Service, gm.Pipeline):
        for name, member in inspect.getmembers(cls):
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert (inspect.getdoc(member) or "").strip(), f"{cls.__name__}.{name}"


def test_the_manual_lists_the_options_of_a_loader() -> None:
    page = MANUAL.read_text()
    table = page[page.index("| option | default |") :].split("\n\n")[0]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| ([^|]+) \|", table))))
    options = inspect.signature(gm.numpy.Loader).parameters
    assert set(options) == listed
    flags = gristmill("run", "--help").stdout
    assert [name for name in listed - set(options) if f"--{name.replace('_', '-')}" not in flags] == []
    text = re.sub(r"\s+", " ", gm.numpy.Loader.__mro__[1].__doc__ or "")
    assert [name for name in options if not re.search(rf"\b{name}\b[^.]*:", text)] == []


# Exceptions.


def test_exceptions() -> None:
    for name in errors.__all__:
        error = getattr(gm, name)
        assert issubclass(error, gm.Error) and error.__module__ == "gristmill" and error.__doc__
    assert issubclass(gm.DataError, gm.JobError)
    for error in (gm.OptionError, gm.CheckpointError, gm.PipelineError):
        assert issubclass(error, ValueError)
    for error in (gm.JobError, gm.ServiceError):
        assert issubclass(error, RuntimeError)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_break": "stop"}, "on_break"),
        ({"acknowledge": "never"}, "acknowledge"),
        ({"epochs": 0}, "epochs"),
        ({"rank": 0}, "world_size"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"rank": 0, "world_size": 2}, "run"),
        ({"on_eror": "skip"}, "on_eror"),
        ({"on_error": "ignore"}, "on_error"),
        ({"workers": "many"}, "workers"),
        ({"seed": -1}, "seed"),
        ({"batch_size": 0}, "batch_size"),
        ({"prefetch_mib": "much"}, "prefetch_mib"),
        ({"patience": "soon"}, "patience"),
        ({"data": "no/such/place-*"}, "no/such"),
    ],
)
def test_an_option_that_cannot_be(
    numbers: gm.Pipeline, service: gm.Service, options: dict[str, object], said: str
) -> None:
    with pytest.raises(gm.OptionError) as raised:
        next(iter(gm.numpy.Loader(numbers, service=service, **{"epochs": 1} | options)))  # type: ignore[arg-type]
    message = str(raised.value)
    assert said in message and "\n" not in message


def test_data_that_is_wrong(tmp_path: Path, service: gm.Service) -> None:
    (tmp_path / "numbers.jsonl").write_text('{"value": 1}\n{"value": "no number"}\n')
    pipeline = gm.jsonl(tmp_path / "numbers.jsonl", value=gm.i64()).batch(1)
    with gm.numpy.Loader(pipeline, service=service, epochs=1) as loader, pytest.raises(gm.DataError) as raised:
        list(loader)
    message = str(raised.value)
    assert "numbers.jsonl" in message and "\n" not in message
    with gm.numpy.Loader(pipeline, service=service, epochs=1, on_error="skip") as loader:
        assert sum(len(batch["value"]) for batch in loader) == 1


@pytest.mark.parametrize(("workers", "local_workers"), [(2, 0), (0, 2)])
def test_what_precedes_a_bad_record_is_delivered(tmp_path: Path, workers: int, local_workers: int) -> None:
    lines = [f'{{"value": {n}}}\n' for n in range(1000)]
    lines[700] = '{"value": "no number"}\n'
    (tmp_path / "numbers.jsonl").write_text("".join(lines))
    pipeline = gm.jsonl(tmp_path / "numbers.jsonl", value=gm.i64()).in_order().batch(16)
    state, values = None, []
    for on_error in ("fail", "skip"):
        options = {"workers": workers, "local_workers": local_workers, "on_error": on_error}
        with (
            gm.local(tmp_path / "state") as service,
            gm.numpy.Loader(pipeline, service=service, epochs=1, job="j", **options) as loader,
        ):
            if state is not None:
                loader.load_state_dict(state)
            try:
                for batch in loader:
                    values += batch["value"].tolist()
                    state = loader.state_dict()
                assert on_error == "skip"
            except gm.DataError as error:
                assert on_error == "fail" and "line 701" in str(error)
                assert values == list(range(688)), "all whole batches before the bad record"
    assert values == [n for n in range(1000) if n != 700]


def test_services_that_are_not_there(tmp_path: Path) -> None:
    for options in ({"endpoint": "http://127.0.0.1:1"}, {"state_dir": tmp_path / "none"}, {"backend": "other"}):
        with pytest.raises(gm.Error) as raised:
            gm.connect(**options)
        assert str(raised.value) and "\n" not in str(raised.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(gm.OptionError, match="state_dir"):
        gm.local(tmp_path / "file")


def test_a_service_that_goes_away(numbers: gm.Pipeline) -> None:
    service = gm.local()
    loader = gm.numpy.Loader(numbers, service=service, epochs=1)
    next(iter(loader))
    service.close()
    with pytest.raises(gm.Error) as raised:
        list(loader)
    assert "clos" in str(raised.value)
    loader.close(abandon=True)
