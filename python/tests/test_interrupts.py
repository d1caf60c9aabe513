"""Ctrl-C ends any wait within 200 ms, as KeyboardInterrupt, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program

import gristmill as gm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

#: Longest time from the signal to the exception, in seconds.
TO = {"process": os.kill, "group": os.killpg}

# `work()`, which does not end by itself, is interrupted.
_RUN = """
say("ready")
try:
    work()
    say("not interrupted")
except KeyboardInterrupt:
    say("interrupted")
"""


def interrupt(
    directory: Path,
    code: str,
    send: Callable[[int, int], None],
    then: str = "",
    after_s: float = 0.4,
    is_clean: bool = True,
) -> str:
    """What the program said after the exception. Fails if it was not interrupted, or not at an end in time."""
    program = Program(directory, code + _RUN + then)
    program.wait_for("ready")
    time.sleep(after_s)
    send(program.pid, signal.SIGINT)
    code_, out, err = program.end(is_clean=is_clean)
    first, _, rest = out.partition("\n")
    assert (first, code_, err) == ("interrupted", 0, ""), (code_, out, err)
    return rest


@pytest.fixture(params=TO)
def send(request: pytest.FixtureRequest) -> Callable[[int, int], None]:
    """Sends a signal to the process alone, or, as a terminal does, to all of its group."""
    return TO[request.param]


@pytest.fixture
def begin(numbers: gm.Pipeline, tmp_path: Path) -> Callable[[float], str]:
    """Code that makes `loader`: each record takes so many milliseconds."""

    def begin(sleep_ms: float) -> str:
        path = tmp_path / f"{sleep_ms}.yaml"
        text = numbers.to_yaml()
        assert "ops:\n" in text
        path.write_text(text.replace("ops:\n", f"ops:\n  - sleep: {{ ms: {sleep_ms} }}\n"))
        return f"loader = gm.numpy.Loader({str(path)!r}, epochs=2)\n"

    return begin


Begin = Callable[[float], str]


def test_waiting_for_a_batch(begin: Begin, tmp_path: Path, send: Callable[[int, int], None]) -> None:
    code = begin(10_000) + "len(loader)\ndef work(): next(iter(loader))\n"
    interrupt(tmp_path, code, send)


def test_a_list(begin: Begin, tmp_path: Path, send: Callable[[int, int], None]) -> None:
    code = begin(20) + "batches = iter(loader)\nnext(batches)\ndef work(): list(batches)\n"
    interrupt(tmp_path, code, send)


def test_waiting_for_the_thread_that_fetches_ahead(
    begin: Begin, tmp_path: Path, send: Callable[[int, int], None]
) -> None:
    pytest.importorskip("torch")
    code = begin(20).replace("gm.numpy.Loader(", "gm.torch.Loader(device='cpu', pipeline=")
    code = "import gristmill.torch\n" + code + "batches = iter(loader)\nnext(batches)\ndef work(): list(batches)\n"
    interrupt(tmp_path, code, send)


def test_the_start_of_a_service(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """Of one that never accepts calls."""
    program = tmp_path / "never-ready"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    start = f"_native.Service.start([{str(program)!r}], {str(tmp_path / 'state')!r})"
    code = f"from gristmill import _native\ndef work(): {start}\n"
    interrupt(tmp_path, code, send)


def test_passing_to_a_later_epoch(begin: Begin, tmp_path: Path, send: Callable[[int, int], None]) -> None:
    code = begin(20) + "len(loader)\ndef work(): loader.set_epoch(1); next(iter(loader))\n"
    interrupt(tmp_path, code, send)


def test_using_a_service_that_hangs(begin: Begin, tmp_path: Path, send: Callable[[int, int], None]) -> None:
    state = str(tmp_path / "state")
    code = begin(0) + (
        f"service = gm.local({state!r})\n"
        "loader = gm.numpy.Loader(loader._pipeline, service=service, epochs=2)\n"
        "next(iter(loader))\n"
        "loader.close(abandon=True)\n"
        "import json\n"
        f"up = json.load(open({state!r} + '/endpoint.json'))['pid']\n"
        "os.kill(up, signal.SIGSTOP)\n"
        "import threading; threading.Timer(2, os.kill, [up, signal.SIGCONT]).start()\n"
        f"def work(): gm.local({state!r})\n"
    )
    interrupt(tmp_path, code, send)


def test_a_state_can_be_saved_after_it(begin: Begin, tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """The service does not take a terminal's Ctrl-C for itself."""
    code = begin(5) + (
        "batches = iter(loader)\nnext(batches); next(batches)\ndef work():\n    while True: time.sleep(0.01)\n"
    )
    then = (
        "state = loader.state_dict()\n"
        "say(str((state['epoch'], state['g'])))\n"
        "say(str(len(next(batches)['value'])))\n"
        "loader.checkpointed(loader.state_dict())\n"
        "loader.close()\n"
    )
    said = interrupt(tmp_path, code, send, then)
    assert said == "(0, 2)\n32\n"


@pytest.mark.parametrize("delay_s", [0.05, 0.15, 0.25, 0.35, 0.45, 0.6, 0.8])
def test_at_any_moment(begin: Begin, tmp_path: Path, delay_s: float) -> None:
    """A whole program is interrupted somewhere, and nothing is left of it."""
    code = "say('ready')\n" + begin(1) + "with loader:\n    for _ in range(2):\n        for batch in loader: pass\n"
    program = Program(tmp_path, code, prelude=_BARE)
    program.wait_for("ready")
    time.sleep(delay_s)
    os.killpg(program.pid, signal.SIGINT)
    code_, out, err = program.end()
    if (code_, out, err) == (0, "", ""):
        return  # it was faster
    assert (code_, out) == (-signal.SIGINT, ""), (code_, out, err)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "panicked" not in err and "Exception ignored" not in err


_BARE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
def say(word):
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()
import gristmill as gm
"""
