"""Finds the cases, runs them in sequence, and reports their results."""

import dataclasses
import importlib
import json
import pathlib
import pkgutil
import re
import shutil
import sys
import tempfile
import time
import traceback
import typing

from regressions import cases as package
from regressions.world import Failed, World


@dataclasses.dataclass(frozen=True)
class Case:
    """A case for a fixed defect: `name` begins with its group, such as A1."""

    name: str
    says: str
    check: typing.Callable[[World], None]


REGISTERED: list[Case] = []

# Known open defects, without a case.
OPEN: dict[str, str] = {}


def case(name, says):
    """Registers `check(world)` as a case; it raises `Failed`, or returns."""

    def register(check):
        REGISTERED.append(Case(name, says, check))
        return check

    return register


def natural(text):
    """A sort key by which A2 comes before A10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def load():
    """The cases of every module in `cases/`, in the order of their names."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(REGISTERED, key=lambda found: natural(found.name))


def select(found, only):
    """Those that `only` names, whole or by group (`A1` is all of `A1.…`); all if it is empty."""
    wanted = [name for name in only.split(",") if name]
    named = lambda name: any(name == w or name.startswith(f"{w}.") for w in wanted)
    return [one for one in found if not wanted or named(one.name)]


def still_open(only):
    """The items of `OPEN` named by `only`; all if it is empty."""
    groups = {name.split(".")[0] for name in only.split(",") if name}
    return {item: says for item, says in OPEN.items() if not groups or item in groups}


def attempt(one, folder, programs, root):
    """Why the case failed, or None."""
    world = World(folder, programs, root)
    try:
        one.check(world)
        return world.left_behind()
    except Failed as failed:
        return str(failed)
    except Exception:  # A case that raises any other error has shown nothing.
        (folder / "traceback").write_text(traceback.format_exc())
        return f"the case itself broke: {traceback.format_exc().splitlines()[-1]}"
    finally:
        world.close()


def run(found, programs, root, keep, as_json, known=None):
    """Runs the cases, and lists the defects that are `known` and open; the exit code."""
    # Not in memory: gristmill would look for a disk outside of the case's HOME.
    base = pathlib.Path(tempfile.mkdtemp(prefix="gristmill-regressions-", dir="/var/tmp"))
    results, kept = [], []
    try:
        for one in found:
            folder = base / one.name
            folder.mkdir()
            began = time.monotonic()
            why = attempt(one, folder, programs, root)
            seconds = round(time.monotonic() - began, 1)
            results.append({"name": one.name, "says": one.says, "failed": why, "seconds": seconds})
            if keep or why:
                kept.append(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            if not as_json:
                mark = "FAIL" if why else "ok  "
                print(f"{mark} {one.name:<28} {seconds:>6.1f} s  {one.says}{f': {why}' if why else ''}", flush=True)
    finally:
        if kept:
            print(f"kept: {', '.join(map(str, kept))}", file=sys.stderr)
        else:
            shutil.rmtree(base, ignore_errors=True)
    failed = sum(1 for result in results if result["failed"])
    if as_json:
        print(json.dumps({"passed": len(results) - failed, "failed": failed, "cases": results, "open": known or {}}))
    else:
        for item, says in (known or {}).items():
            print(f"open {item:<28} {'':>6}    {says}")
        summary = f"{len(results) - failed} passed, {failed} failed"
        print(f"{summary}, {len(known)} known and open: {', '.join(known)}" if known else summary)
    return 1 if failed else 0
