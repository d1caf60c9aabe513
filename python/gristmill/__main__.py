"""The command line: `gristmill`, and `gristmill-fetcher`.

A local service runs this file for each of its functions, so it imports neither numpy nor the package.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILE = os.path.abspath(__file__)


def launcher() -> list[str]:
    """The command that runs the command line again. Isolated: the user's modules and variables do not reach it."""
    return [sys.executable, "-I", "-S", _FILE]


def _native() -> Any:
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    if module := sys.modules.get("gristmill._native"):
        return module
    path = os.path.join(os.path.dirname(_FILE), "_native.abi3.so")
    spec = spec_from_file_location("_native", path, loader=ExtensionFileLoader("_native", path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(args: list[str]) -> int:
    import signal

    # The program handles Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code: int = _native().main(launcher(), args)
    return code


def main() -> int:
    """Runs `gristmill` with the arguments of this process."""
    return _run(["gristmill", *sys.argv[1:]])


def fetcher() -> int:
    """Runs `gristmill-fetcher` with the arguments of this process."""
    return _run(["gristmill", "fetcher", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
