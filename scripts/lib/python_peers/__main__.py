"""Runs the cases of the peers named: `python -P -m python_peers RESULTS PEER...`.

RESULTS gets a JSON object for each case: peer, suite, case, outcome (ok or failed) and log.
"""

import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings

MODULES = {
    "grain": "grain_checkpoint",
    "torchdata": "torchdata_state",
    "lightning": "lightning_restore",
    "mosaicml": "mosaicml_determinism",
}


def main(results, *peers):
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="gristmill-peers-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        from . import ground as grounds

        for peer in peers:
            importlib.import_module(f".{MODULES[peer]}", __package__)
        ground = grounds.Ground(folder)
        with open(results, "w") as file:
            for peer, suite, name, function in grounds.CASES:
                print(f"{peer} {suite} {name}", file=sys.stderr, flush=True)
                line = {"peer": peer, "suite": suite, "case": name, **run(ground, function)}
                file.write(json.dumps(line) + "\n")
                file.flush()
        ground.close()


def run(ground, function):
    """How a case ends; closing what it opened is part of it."""
    try:
        try:
            function(ground)
        finally:
            ground.end_case()
    except Exception:  # Any exception is how the case ends.
        return {"outcome": "failed", "log": traceback.format_exc()}
    return {"outcome": "ok", "log": ""}


if __name__ == "__main__":
    main(*sys.argv[1:])
