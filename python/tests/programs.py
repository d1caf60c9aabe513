"""Programs of tests: processes of their own, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

#: The variable that marks a program and all it starts.
MARK = "TEST_PROGRAM"
#: Longest time of a program, and of what it starts, in seconds.
LONGEST_S = 60.0

_PRELUDE = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import gristmill as gm

def say(word):
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()

"""


class Program:
    """A Python program in a session of its own, with its own directory for temporary files.

    It begins with `import gristmill as gm`, and with `say(word)`, which writes a line at once.
    """

    def __init__(self, directory: Path, code: str, prelude: str = _PRELUDE) -> None:
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.temporary = directory / f"tmp-{self.mark[-8:]}"
        self.temporary.mkdir()
        name, value = self.mark.split("=")
        self._process = subprocess.Popen(
            [sys.executable, "-c", prelude + textwrap.dedent(code)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, name: value, "TMPDIR": str(self.temporary)},
            start_new_session=True,
            preexec_fn=_default_signals,
        )
        self.pid = self._process.pid

    def wait_for(self, word: str) -> None:
        """Waits until the program says `word`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != word:
            self._process.kill()
            raise AssertionError(f"it said {line!r}, not {word!r}; {self._process.communicate()[1]}")

    def end(self, *, is_clean: bool = True) -> tuple[int, str, str]:
        """Exit code, standard output and standard error, once the program and all that it started are gone.

        Fails if it does not end, leaves a process or, unless `is_clean` is false, a temporary file.
        """
        began = time.monotonic()
        try:
            out, err = self._process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            found = self._process.communicate()
            raise AssertionError(f"it does not end: {found}") from None
        while left := self.processes():
            if time.monotonic() - began > LONGEST_S:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"it left processes: {left}; {err}")
            time.sleep(0.02)
        files = sorted(str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*"))
        assert not files or not is_clean, f"it left files: {files}; {err}"
        return self._process.returncode, out, err

    def processes(self) -> dict[int, str]:
        """The processes that the program has started and that still run, and itself: command lines by id."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if self.mark.encode() in variables and command:
                found[int(entry.name)] = command
        return found


def _default_signals() -> None:
    # A shell in the background, or a runner of tests, may have it ignored or blocked.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
