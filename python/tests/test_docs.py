"""The code blocks of docs/python*.md and of both READMEs run as they are.

A section (a heading `##` and its text) is one program: its blocks of Python in their order, after those of
the page before its first section. A block of text that follows one of Python is its output. A block after
`<!-- compiled only -->` is not run. A section that imports a framework that is not installed is skipped.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import gristmill as gm

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("python*.md")), ROOT / "python" / "README.md", ROOT / "README.md"]
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
FRAMEWORKS = {"tf": "tensorflow"}  # that `gristmill.X` imports, where it is not X
OURS = ("", "numpy")  # modules of gristmill that need no framework
COMPILED = "<!-- compiled only -->\n"
MARK = "end of block"  # a line that no block prints


@dataclass
class Section:
    page: Path
    title: str
    blocks: list[tuple[str, str, int]] = field(default_factory=list)  # code, what it prints or "", line
    compiled: list[tuple[str, int]] = field(default_factory=list)


def sections(page: Path) -> list[Section]:
    text = page.read_text()
    heads = [(0, "top")] + [(match.start(), match[1]) for match in re.finditer(r"^## (.*)$", text, re.MULTILINE)]
    found = [Section(page, title) for _, title in heads]
    previous_end = -1
    for match in BLOCK.finditer(text):
        section = found[max(index for index, (start, _) in enumerate(heads) if start <= match.start())]
        line = text.count("\n", 0, match.start()) + 2
        if match[1] == "python" and text[: match.start()].endswith(COMPILED):
            section.compiled.append((match[2], line))
        elif match[1] == "python":
            section.blocks.append((match[2], "", line))
        elif match[1] == "text" and not text[previous_end : match.start()].strip() and section.blocks:
            code, _, line = section.blocks.pop()
            section.blocks.append((code, match[2], line))
        previous_end = match.end()
    return found


def programs() -> list[Section]:
    made = []
    for page in PAGES:
        top, *rest = sections(page)
        for section in rest or [top]:
            if section.blocks and section is not top:
                section.blocks[:0] = top.blocks
            made.append(section)
    return [section for section in made if section.blocks or section.compiled]


def missing(section: Section) -> str | None:
    """A module that the section imports and that is not installed."""
    for code, _, _ in section.blocks:
        for node in ast.walk(ast.parse(code)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                root, _, rest = name.partition(".")
                needed = FRAMEWORKS.get(rest, rest) if root == "gristmill" and rest not in OURS else root
                if importlib.util.find_spec(needed) is None:
                    return needed
    return None


def test_pages_have_programs() -> None:
    assert len(programs()) >= 10


@pytest.mark.parametrize("section", programs(), ids=lambda section: f"{section.page.name}: {section.title}")
def test_section(section: Section, tmp_path: Path) -> None:
    for code, line in section.compiled:
        compile("\n" * (line - 1) + code, str(section.page), "exec")
    if not section.blocks:
        return
    absent = missing(section)
    if absent is not None:
        pytest.skip(f"{absent} is not installed")
    program = "".join(f"{code}\nprint({MARK!r}, flush=True)\n" for code, _, _ in section.blocks)
    (tmp_path / "page.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(Path(gm.__file__).parents[1]), "KERAS_BACKEND": backend()}
    command = [sys.executable, "page.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    for (code, expected, line), printed in zip(section.blocks, ran.stdout.split(f"{MARK}\n"), strict=False):
        if expected:
            assert printed == expected, f"{section.page.name}:{line}: {code}"


def backend() -> str:
    """A backend of Keras that is installed."""
    return "tensorflow" if importlib.util.find_spec("tensorflow") else "torch"
