"""The pages of the manual as data: their sections with blocks of code, and their tables. And a place to run them.

A block of code is fenced, or indented by four spaces. A block after `<!-- compiled only -->` needs AWS, a GPU, the
network or a framework: it is checked, and not run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gristmill.__main__ import launcher

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/quickstart.md", "docs/jobs.md", "docs/training.md", "docs/python.md"]
COMPILED = "<!-- compiled only -->"
LONGEST_S = 60.0
#: The dataset is five batches of 64.
IMAGES = 320
#: A demo is small unless a page gives these flags itself; one that resizes has as many batches as it has by default.
SMALL_DEMO = {"--images": "32", "--batch-size": "2", "--step-time": "0ms"}
RESIZED_DEMO = SMALL_DEMO | {"--images": "250"}

#: A service and data here in place of those on AWS.
OF_AWS = {"--backend aws": "--state-dir state", "s3://my-datasets/imagenet/": "shards/"}


@dataclass
class Block:
    """A block of code. The language of an indented one is `shell`, or `text` for a message."""

    page: str
    section: str
    line: int
    language: str
    text: str
    is_compiled: bool

    def commands(self) -> list[str]:
        """The commands of a block of shell, each with its comment."""
        return re.sub(r"\\\n\s*", "", self.text).splitlines() if self.language == "shell" else []


@dataclass
class Table:
    page: str
    line: int
    header: list[str]
    rows: list[list[str]]

    @property
    def key(self) -> str:
        """The page and the header."""
        return f"{self.page}: {' | '.join(self.header)}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str) -> list[Block]:
    """The blocks of code of a page."""
    found, section, mark = [], "top", False
    lines = text_of(page).splitlines()
    at = 0
    while at < len(lines):
        line, begin = lines[at], at
        if line.startswith("```"):
            at = lines.index("```", at + 1)
            text = "".join(f"{line}\n" for line in lines[begin + 1 : at])
            found.append(Block(page, section, begin + 2, line[3:], text, mark))
        elif line.startswith("    ") and (mark or not lines[at - 1].strip()):
            while at + 1 < len(lines) and lines[at + 1].startswith("    "):
                at += 1
            text = "".join(f"{line[4:]}\n" for line in lines[begin : at + 1])
            language = "text" if text.startswith("gristmill: ") else "shell"
            found.append(Block(page, section, begin + 1, language, text, mark))
        elif line.startswith("## "):
            section = line[3:]
        if line.strip():
            mark = line == COMPILED
        at += 1
    return found


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def tables(page: str) -> list[Table]:
    """The tables of a page."""
    found = []
    text = text_of(page)
    for match in re.finditer(r"^(\|.*)\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Table(page, line, cells(match[1]), [cells(row) for row in match[2].splitlines()]))
    return found


def table(page: str, *header: str) -> Table:
    """The one table of a page with a header that begins so."""
    (found,) = [table for table in tables(page) if tuple(table.header[: len(header)]) == header]
    return found


def rows(page: str, *header: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell."""
    return {row[0]: row[1:] for row in table(page, *header).rows}


def says(page: str, *sentences: str) -> None:
    """Fails unless the page says each of these, which the test proves."""
    text = " ".join(text_of(page).split())
    for sentence in sentences:
        assert sentence in text, f"{page} no longer says: {sentence}"


@dataclass
class Ran:
    """A command that ended well."""

    command: str
    out: str
    err: str

    @property
    def said(self) -> str:
        """With `--json`, what is for people is on standard error."""
        return self.out + self.err


class Place:
    """A folder with the commands, examples and data that the manual talks about."""

    def __init__(self, folder: Path, shards: Path) -> None:
        self.folder = folder
        self.background: list[tuple[str, subprocess.Popen[str], Path]] = []
        commands = {"gristmill": launcher(), "gristmill-fetcher": [*launcher(), "fetcher"], "python3": [sys.executable]}
        (folder / "bin").mkdir()
        (folder / "host-2").mkdir()
        for name, command in commands.items():
            path = folder / "bin" / name
            path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            path.chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "shards").symlink_to(shards)
        whole = (ROOT / "examples/resnet50.yaml").read_text()
        (folder / "my.yaml").write_text(whole.replace("size: 64", "size: 32").replace("data/", "shards/"))
        self.environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def numbers(self, count: int, bad: Iterable[int] = (), ops: str = "") -> None:
        """Writes `numbers.yaml`: batches of 8 of that many numbers, of which some cannot be read."""
        lines = [json.dumps({"x": "none" if number in bad else number}) for number in range(count)]
        (self.folder / "numbers.jsonl").write_text("".join(f"{line}\n" for line in lines))
        source = "source:\n  jsonl: numbers.jsonl\n  features:\n    x: { key: x, dtype: i64 }\nops:\n"
        (self.folder / "numbers.yaml").write_text(f"{source}{ops}  - batch: {{ size: 8 }}\n")

    def stored(self) -> list[Path]:
        """The files of the service on `state`, which come and go."""
        return [Path(folder) / name for folder, _, names in os.walk(self.folder / "state") for name in names]

    def edited(self, command: str) -> str:
        """The command as it is run: small, in this folder, and on a service there in place of a stack on AWS."""
        command = re.sub(r"^cargo run --release (--no-default-features )?--(?= )", "gristmill", command)
        host = "host-2/" if command.endswith("# on the second host") else ""
        command = command.replace("/tmp/", f"./{host}")  # paths of sockets are short
        for other, here in OF_AWS.items():
            command = command.replace(other, here)
        words = shlex.split(command, comments=True)
        if words[:2] == ["gristmill", "demo"]:
            small = RESIZED_DEMO if "--resize" in words else SMALL_DEMO
            small = small | {"--step-time": "10ms"} if "--report" in words else small  # long enough for its panels
            more = {flag: value for flag, value in small.items() if flag not in words}
            command = shlex.join([*words, *(word for pair in more.items() for word in pair)])
        return command

    def run(self, command: str, code: int = 0) -> Ran:
        """Runs a command of the manual to its end."""
        edited = self.edited(command)
        done = subprocess.run(
            edited,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        assert done.returncode == code, f"{edited}: exit {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        return Ran(command, done.stdout, done.stderr)

    def start(self, command: str, ready: str) -> Path:
        """Starts a program that goes on in the background, and waits until it says `ready`. Returns its output."""
        output = self.folder / f"background-{len(self.background)}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                f"exec {self.edited(command)}",
                shell=True,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                text=True,
            )
        self.background.append((command, process, output))
        until(lambda: ready in output.read_text() or process.poll() is not None, output.read_text)
        assert ready in output.read_text(), f"{command}: {output.read_text()}"
        return output

    def end(self) -> None:
        """Ends what runs in the background, the latest first."""
        while self.background:
            _, process, _ = self.background.pop()
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def until(is_so: object, why: object = None) -> None:
    """Waits until `is_so()`."""
    began = time.monotonic()
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() - began < LONGEST_S, why() if why else "it did not happen"  # type: ignore[operator]
        time.sleep(0.02)
