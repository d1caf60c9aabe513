"""The step that kills a training in the middle of an epoch, and compares its losses with those of a whole one."""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

TRAINING = pathlib.Path(__file__).resolve().parent / "training.py"


def losses(options):
    from steps import row

    with tempfile.TemporaryDirectory(prefix="gm-", ignore_cleanup_errors=True) as folder:
        whole, broken = pathlib.Path(folder, "whole"), pathlib.Path(folder, "broken")
        for path in whole, broken:
            path.mkdir()
        finish(start(whole, options))
        expected = lines(whole)
        steps = len(expected)
        # In the middle of the first epoch, and of the second.
        for part in 0.3, 0.7:
            killed = kill_after(start(broken, options), broken, int(steps * part))
            row(f"kill -9 after step {killed} of {steps}", holds=killed < steps)
        finish(start(broken, options))
        found = lines(broken)
        wrong = sum(one != other for one, other in zip(found, expected, strict=False)) + abs(len(found) - steps)
        row("losses", steps, "steps", wrong == 0 < steps, f"{wrong} differ" if wrong else "equal to the last bit")


def start(folder, options):
    with open(folder / "log", "a") as log:
        return subprocess.Popen([sys.executable, str(TRAINING), str(folder), json.dumps(options)], stdout=log, stderr=log)


def finish(process):
    if process.wait():
        folder = pathlib.Path(process.args[2])
        raise SystemExit(f"the training ended with {process.returncode}: {(folder / 'log').read_text()[-600:]}")


def kill_after(process, folder, steps):
    """Kills it once it has logged so many steps; the number that it logged."""
    while len(lines(folder)) < steps:
        if process.poll() is not None:
            finish(process)
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len(lines(folder))


def lines(folder):
    """The whole lines of the log."""
    path = folder / "losses.jsonl"
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
