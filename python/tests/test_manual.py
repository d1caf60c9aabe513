"""The blocks of shell and YAML of the manual run as they are, in a folder with a small dataset.

The blocks of a section are one program: they run in their order, and services and fetchers end after the last. Blocks
of Python are those of `test_docs.py`. Figures are not compared: `Ran` has what a command printed, and the checks of
`SECTIONS` look for what the page says of it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from manual import IMAGES, PAGES, ROOT, SMALL_DEMO, Block, Place, Ran, blocks, says

import gristmill as gm

SECTIONS_OF_BLOCKS = [
    (page, section, list(found))
    for page in PAGES
    for section, found in groupby(blocks(page), lambda block: block.section)
]


def every_block() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


#: These build or install the program that is tested.
BUILDS = ("cargo build", "cargo test", "pip install")
FETCHERS = ("gristmill fetcher ", "gristmill-fetcher ")
#: A section continues where the program of another one is.
CONTINUES = {("docs/jobs.md", "Managing jobs"): ("docs/training.md", "Serving batches")}


def sections(is_run: bool) -> list[object]:
    """The sections with a block of shell, as parameters."""
    found = [
        it for it in SECTIONS_OF_BLOCKS if any(block.commands() and block.is_compiled != is_run for block in it[2])
    ]
    return [pytest.param(*it, id=f"{it[0]}: {it[1]}") for it in found]


@pytest.mark.parametrize(("page", "section", "found"), sections(is_run=True))
def test_a_section_runs(page: str, section: str, found: list[Block], place: Place) -> None:
    if (page, section) in CONTINUES:
        other = CONTINUES[page, section]
        run(next(block for block in SECTIONS_OF_BLOCKS if block[:2] == other)[2], place)
    ran = run(found, place)
    for result in ran:
        check_flags(result, place)
    if check := CHECKS.get((page, section)):
        check(place, ran)


def test_every_check_is_of_a_section() -> None:
    known = {(page, section) for page, section, _ in SECTIONS_OF_BLOCKS}
    assert known >= CHECKS.keys() | CONTINUES.keys() | set(CONTINUES.values())


def run(found: list[Block], place: Place) -> list[Ran]:
    """Runs blocks of shell. Services and fetchers go on in the background."""
    ran = []
    for block in found:
        for command in block.commands() if not block.is_compiled else []:
            if command.startswith(BUILDS):
                continue
            if command.startswith("gristmill up"):
                place.start(command, "is ready at unix:")
            elif command.startswith(FETCHERS):
                if "--backend aws" in command and not place.background:
                    place.start("gristmill up --state-dir state", "is ready at unix:")
                if "$(cat checkpoint.json)" in command:
                    text = place.run("gristmill status j1 --checkpoint --state-dir state").out
                    (place.folder / "checkpoint.json").write_text(text)
                place.start(command, "serving ")
            elif command.endswith("# each rank"):
                run_ranks(command, place)
            else:
                ran.append(place.run(command))
    return ran


def run_ranks(command: str, place: Place) -> None:
    """Runs the command of rank 0 for each rank of the fetchers that run, at its socket."""
    processes = []
    for fetcher in (command for command, _, _ in place.background if command.startswith(FETCHERS)):
        words = shlex.split(place.edited(fetcher), comments=True)
        options = dict(pairwise(words))
        first, last = map(int, options["--ranks"].split("-"))
        for rank in range(first, last + 1):
            own = command.replace("--rank 0", f"--rank {rank}").replace("rank0.json", f"rank{rank}.json")
            own = own.replace("/tmp/j1.sock", options["--socket"])
            processes.append(subprocess.Popen(place.edited(own), shell=True, cwd=place.folder, env=place.environment))
    assert [process.wait(timeout=60) for process in processes] == [0] * len(processes)


def check_flags(ran: Ran, place: Place) -> None:
    """A flag does what the manual says of it, in each command that has it."""
    words = shlex.split(ran.command, comments=True)
    options = dict(pairwise(words))
    if "--json" in words:
        report = json.loads(ran.out.splitlines()[-1])
        assert (report["lost"], report["duplicates"], report["elements_delivered"]) == (
            0,
            0,
            report["elements_expected"],
        )
    if "--report" in options:
        page = (place.folder / options["--report"]).read_text()
        assert page.startswith("<!DOCTYPE html>")
        assert re.findall(r"(?:src|href)=.?(?!#|data:)\w+|@import|url\(http", page) == [], "it is self-contained"
    if "--sink" in options:
        names = [path.name for path in (place.folder / options["--sink"]).iterdir()]
        assert names and [name for name in names if not re.fullmatch(r"e\d+-b\d{6}\.safetensors", name)] == []


# Checks of sections.


def check_demo(place: Place, ran: list[Ran]) -> None:
    epochs = re.findall(r"(?m)^ +(\d) +(\d+) +(\d+) ", ran[0].said)
    images, batch = int(SMALL_DEMO["--images"]), int(SMALL_DEMO["--batch-size"])
    assert epochs == [(str(epoch), str(images), str(images // batch)) for epoch in range(3)]
    assert re.findall(r"epoch \d waited .*; (.*):", ran[0].said), "whether more workers would help"
    for page in ("README.md", "docs/quickstart.md"):
        says(page, "2,000 JPEGs", "about 200 MB", "three epochs", "375 batches of 16")
    flags = place.run("gristmill demo --help").out
    assert re.search(r"--images <IMAGES>[^[]*\[default: 2000\]", flags) and 3 * 2000 / 16 == 375
    assert re.search(r"--epochs <EPOCHS>[^[]*\[default: 3\]", flags) and "; 16 without it" in flags
    files = Path(place.environment["XDG_CACHE_HOME"]).glob(f"gristmill/datasets/*-{images}-*/train-*")
    assert 0.8 < sum(file.stat().st_size for file in files) / images * 2000 / 200e6 < 1.2


def check_demos(place: Place, ran: list[Ran]) -> None:
    check_demo(place, ran)
    _, _, auto, killed, cached = ran
    assert all(change["reason"] for change in json.loads(auto.out)["scaling"])
    assert "0 lost, 0 twice" in killed.said
    assert cached.said.count("compute") < 4, "a mode of `examples/autocache.yaml` is not `compute`"
    check_report(place, ran)


def check_report(place: Place, _: list[Ran]) -> None:
    page = (place.folder / "report.html").read_text().lower()
    assert [word for word in ("batch time", "workers", "stall", "cost", "mode") if word not in page] == []


def check_data(_: Place, ran: list[Ran]) -> None:
    trained, explained, planned = ran
    assert f"delivered {2 * IMAGES} of {2 * IMAGES} elements: 0 skipped, 0 lost, 0 twice" in trained.said
    assert "image: u8 [224, 224, 3]" in explained.out and "It runs in this order." in explained.out
    check_plan(_, [planned])
    profiled, records = map(int, re.findall(r"profiled (\d+) of (\d+) records", planned.out)[0])
    assert 100 <= profiled <= records and abs(records / IMAGES - 1) < 0.05, "a few hundred, of an estimate"


def check_plan(_: Place, ran: list[Ran]) -> None:
    columns = ran[-1].out.split("an epoch on", 1)[1].splitlines()[0].split()
    assert columns == ["workers", "time", "compute", "requests", "storage", "transfer", "trainer", "total"]


def check_pipeline(place: Place, ran: list[Ran]) -> None:
    assert "It runs in this order." in ran[1].out and "fusion: " in ran[1].out
    check_plan(place, ran)


def check_served(place: Place, _: list[Ran]) -> None:
    """The fetcher ends with its job."""
    _, fetcher, output = place.background[1]
    assert fetcher.wait(timeout=60) == 0, output.read_text()
    assert (place.folder / "j1.cursor").exists()


def check_reported(place: Place, ran: list[Ran]) -> None:
    check_served(place, ran)
    assert (place.folder / "j1.html").exists()


def check_managed(_: Place, ran: list[Ran]) -> None:
    status, stop, forget, doctor = ran[-4:]
    assert re.match(r"job +j1: ", status.out) and "progress  epoch 3 of 3" in status.out
    assert stop.out == "job j1 is done\n"
    assert re.fullmatch(r"job j1 is forgotten: \d+ items and \d+ objects deleted; the name is free\n", forget.out)
    assert {line.split()[0] for line in doctor.out.splitlines()} == {"ok"}


def check_trainer(place: Place, ran: list[Ran]) -> None:
    check_managed(place, ran[:5])
    trained, status, services = ran[-3:]
    assert f"delivered {3 * IMAGES} of {3 * IMAGES} elements" in trained.said
    assert re.match(r"job +first: ", status.out) and re.search(r"disk \d", services.out)


def check_ranks(_: Place, ran: list[Ran]) -> None:
    resized, hosts = json.loads(ran[1].out), json.loads(ran[2].out)
    assert [len(steps) for steps in resized["runs"]] == [4, 3, 5]
    assert [set(steps) for steps in resized["runs"][:2]] == [{40}, {50}]
    assert resized["steps"] == [sum(run[rank] for run in resized["runs"] if rank < len(run)) for rank in range(5)]
    assert hosts["hosts"] == 4 and len(hosts["ranks"]) == 8 and all("parts" in it["stalls"] for it in hosts["ranks"])
    assert hosts["fetched_ratio"] == pytest.approx(hosts["fetched_bytes"] / hosts["chunk_bytes"], abs=0.01)


CHECKS: dict[tuple[str, str], Callable[[Place, list[Ran]], None]] = {
    ("README.md", "Two commands"): check_demo,
    ("README.md", "A pipeline"): check_pipeline,
    ("README.md", "From your trainer"): check_reported,
    ("docs/quickstart.md", "The demo"): check_demos,
    ("docs/quickstart.md", "Your data"): check_data,
    ("docs/quickstart.md", "Your trainer"): check_trainer,
    ("docs/jobs.md", "Workers"): check_plan,
    ("docs/jobs.md", "Why training waited"): check_report,
    ("docs/jobs.md", "Several ranks"): check_ranks,
    ("docs/jobs.md", "Managing jobs"): check_managed,
    ("docs/training.md", "Serving batches"): check_served,
}


# Blocks that are not run, and blocks of other languages.


@pytest.mark.parametrize("block", every_block(), ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_is_of_a_kind_that_is_tested(block: Block) -> None:
    if block.language == "shell":
        for command in block.commands():
            words = shlex.split(command, comments=True)
            if block.is_compiled:
                text = (ROOT / words[1]).read_text() if words[0] == "python" else ""
                assert [word for word in words if word.startswith("--") and word not in text] == []
    elif block.language == "python":
        compile(block.text, block.page, "exec")
    else:
        assert block.language in ("yaml", "text")


def test_the_files_that_pip_installs_are_there() -> None:
    manifest = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    says("docs/python.md", f"It needs Python {manifest['requires-python'].removeprefix('>=')} or later and numpy")
    assert [it for it in manifest["dependencies"] if not it.startswith("numpy")] == []
    installs = [line for block in every_block() for line in block.commands() if line.startswith("pip")]
    frameworks = [it.strip() for line in installs for it in line.partition("framework:")[2].split(",") if it]
    assert len(installs) == 3 and manifest["optional-dependencies"].keys() >= set(frameworks) != set()
    assert manifest["scripts"].keys() == {"gristmill", "gristmill-fetcher"}
    rust = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    for page in ("README.md", "docs/quickstart.md", "docs/python.md"):
        says(page, f"Rust {rust} or later and a C compiler")


def test_a_pipeline_of_the_manual_is_explained(place: Place) -> None:
    found = [block for block in every_block() if block.language == "yaml"]
    assert found
    for block in found:
        (place.folder / "page.yaml").write_text(block.text)
        explained = place.run("gristmill explain page.yaml --data shards")
        assert explained.out.startswith("as written:\n")


def test_the_pipelines_of_the_readme_are_one() -> None:
    """In YAML and in Python."""
    texts = {block.language: block.text for block in blocks("README.md")}
    names: dict[str, object] = {}
    exec(texts["python"].replace(", gristmill.torch", "").partition("with ")[0], names)
    written = gm.Pipeline.from_yaml(texts["yaml"].replace("data/", "shards/").replace("name: resnet50\n", ""))
    pipeline = names["pipeline"]
    assert isinstance(pipeline, gm.Pipeline) and written.canonical() == pipeline.canonical()


def test_a_mistake_in_a_pipeline_is_the_line_of_the_manual(place: Place) -> None:
    (message,) = [block.text for block in every_block() if block.text.startswith("gristmill: ")]
    number, name = re.findall(r"line (\d+): op `(\w+)`", message)[0]
    source = (
        "source:\n  tfrecord: shards\n  features:\n    image: { key: image/encoded, dtype: bytes }\nops:\n  - decode\n"
    )
    filler = "".join("  - flip\n" for _ in range(int(number) - 7))
    (place.folder / "my.yaml").write_text(f"{source}{filler}  - {name}: {{ size: 64 }}\n  - batch: {{ size: 4 }}\n")
    assert place.run("gristmill run my.yaml", code=2).err == message
