"""Commands of the program `gristmill` about a pipeline."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from ._advice import in_python, invalid_in_python
from ._flags import flags_of
from ._paths import check_paths
from .errors import Error, OptionError, PipelineError

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from .pipeline import Pipeline

# The exit code of a request that cannot be met as it was made.
_USAGE = 2
_SIMILAR = re.compile(r"a similar argument exists: '--([a-z-]+)'")
_OF_PIPELINE = re.compile(r"-: (?:line (?P<line>\d+): )?(?P<message>.*)")


def run(pipeline: Pipeline, command: str, **options: Any) -> str:
    """Runs `gristmill COMMAND -` with the pipeline, and returns what it prints.

    Raises PipelineError, OptionError, or Error, with the program's one line.
    """
    # Not above: with `python -m gristmill`, the package is imported before that module runs, and most programs run
    # no command.
    import subprocess

    from .__main__ import launcher

    if options.get("data") is not None:
        check_paths([os.fspath(options["data"])], os.getcwd(), f"{command}: data")
    arguments = [*launcher(), command, "-", *_flags(pipeline, options)]
    text = pipeline.to_yaml()
    ran = subprocess.run(
        arguments, input=text, capture_output=True, encoding="utf-8", errors="replace", cwd=pipeline.base
    )
    if ran.returncode == 0:
        return ran.stdout
    raise _failure(pipeline, command, ran)


def _flags(pipeline: Pipeline, options: dict[str, Any]) -> list[str]:
    given = dict(options)
    if given.get("data") is not None:
        given["data"] = _from(pipeline.base, os.fspath(given["data"]))
    if isinstance(step_time := given.get("step_time"), (int, float)) and not isinstance(step_time, bool):
        given["step_time"] = f"{round(step_time * 1e6)}us"
    return flags_of(given)


def _from(base: str, data: str) -> str:
    """A path relative to this process's directory, for a program that runs in `base`."""
    if "://" in data or os.path.isabs(data) or os.path.samefile(base, os.getcwd()):
        return data
    return os.path.join(os.getcwd(), data)


def _failure(pipeline: Pipeline, command: str, ran: CompletedProcess[str]) -> Error:
    if ran.returncode < 0:
        return Error(f"`gristmill {command}` was ended by signal {-ran.returncode}")
    lines = [line for line in ran.stderr.splitlines() if line.startswith(("gristmill: ", "error: "))]
    if not lines:
        end = ran.stderr.strip().rpartition("\n")[2]
        return Error(f"`gristmill {command}` failed with exit code {ran.returncode}: {end}")
    message = lines[-1].partition(": ")[2]
    about = _OF_PIPELINE.fullmatch(message)
    if about:
        error = PipelineError(about["message"])
        error.line = int(about["line"]) if about["line"] else None
        return pipeline.located(error)
    if ran.returncode != _USAGE:
        return Error(message)
    near = _SIMILAR.search(ran.stderr)
    hint = f": did you mean {near[1].replace('-', '_')}?" if near else ""
    return OptionError(f"{command}: {invalid_in_python(in_python(message))}{hint}")
