"""However a training process ends, nothing of it is left: no process, no file, no noise; and a fork is recognised."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from programs import Program

import gristmill as gm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def begin(numbers: gm.Pipeline, tmp_path: Path) -> str:
    """Code that makes `loader`, two epochs of 32 batches, on a service of the process's own."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(numbers.to_yaml())
    return f"loader = gm.numpy.Loader({str(path)!r}, epochs=2)\n"


def test_a_list_of_all_batches(begin: str, tmp_path: Path) -> None:
    code = begin + "batches = list(loader)\nsay(str(len(batches)))"
    assert Program(tmp_path, code).end() == (0, "32\n", "")


def test_all_epochs_and_close(begin: str, tmp_path: Path) -> None:
    code = begin + "with loader:\n    for _ in range(3): say(str(len(list(loader))))"
    code_, out, err = Program(tmp_path, code).end()
    assert (code_, out) == (0, "32\n32\n0\n")
    assert (
        err.startswith("the epochs of this loader are over, all 2, and this iteration has no batches")
        and err.count("\n") == 1
    )


@pytest.mark.parametrize("how", ["break", "pass", "sys.exit(3)", "raise SystemExit(3)"])
def test_leaving_the_loop_without_close(begin: str, tmp_path: Path, how: str) -> None:
    code = begin + f"for batch in loader:\n    {how}"
    assert Program(tmp_path, code).end() == (3 if "xit" in how else 0, "", "")


@pytest.mark.parametrize("how", ["break", "sys.exit(3)"])
def test_leaving_the_loop_within_with(begin: str, tmp_path: Path, how: str) -> None:
    code = begin + f"with loader:\n    for batch in loader:\n        {how}"
    assert Program(tmp_path, code).end() == (3 if "xit" in how else 0, "", "")


@pytest.mark.parametrize("place", ["for batch in loader:\n    ", "with loader:\n  for batch in loader:\n    "])
def test_an_exception_in_the_loop(begin: str, tmp_path: Path, place: str) -> None:
    code, out, err = Program(tmp_path, begin + place + "raise ValueError('mine')").end()
    assert (code, out) == (1, "")
    assert err.count("Traceback") == 1 and err.endswith("ValueError: mine\n") and len(err.splitlines()) <= 5


def test_a_loader_that_was_never_used(begin: str, tmp_path: Path) -> None:
    assert Program(tmp_path, begin).end() == (0, "", "")


def test_an_iterator_that_is_held_at_the_end(begin: str, tmp_path: Path) -> None:
    code = begin + "batches = iter(loader)\nbatch = next(batches)\nsys.held = (batches, batch, loader)"
    assert Program(tmp_path, code).end() == (0, "", "")


def test_a_daemon_thread_iterates_while_the_process_ends(begin: str, tmp_path: Path) -> None:
    code = begin + (
        "took = threading.Event()\n"
        "def take():\n"
        "    while True:\n"
        "        for batch in loader:\n"
        "            took.set()\n"
        "            time.sleep(0.001)\n"
        "threading.Thread(target=take, daemon=True).start()\n"
        "took.wait()\n"
    )
    code_, out, err = Program(tmp_path, code).end()
    assert (code_, out) == (0, "")
    assert err == "" or "Fatal Python error" not in err


def test_a_thread_reads_to_the_end(begin: str, tmp_path: Path) -> None:
    code = begin + (
        "def take():\n"
        "    say(str(sum(len(batch['value']) for _ in range(2) for batch in loader)))\n"
        "threading.Thread(target=take).start()\n"
    )
    assert Program(tmp_path, code).end() == (0, "2000\n", "")


@pytest.mark.parametrize("closed", ["loader", "service"])
def test_closing_while_another_thread_waits(begin: str, tmp_path: Path, closed: str) -> None:
    code = begin.replace("loader = ", "service = gm.local()\nloader = ").replace("epochs=2", "service=service") + (
        "took, ended = threading.Event(), []\n"
        "def take():\n"
        "    try:\n"
        "        while True:\n"
        "            for batch in loader:\n"
        "                took.set()\n"
        "    except gm.Error as error:\n"
        "        ended.append(str(error))\n"
        "thread = threading.Thread(target=take)\n"
        "thread.start()\n"
        "took.wait()\n"
        f"{closed}.close()\n"
        "thread.join(10)\n"
        "assert not thread.is_alive() and len(ended) == 1 and 'clos' in ended[0], ended\n"
        "loader.close(abandon=True)\n"
        "service.close()\n"
    )
    assert Program(tmp_path, code).end() == (0, "", "")


def test_two_loaders_in_turns(begin: str, tmp_path: Path) -> None:
    code = begin + (
        "other = gm.numpy.Loader(loader._pipeline, epochs=1, seed=1)\n"
        "say(str(sum(len(a['value']) + len(b['value']) for a, b in zip(loader, other, strict=True))))\n"
    )
    assert Program(tmp_path, code).end() == (0, "2000\n", "")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_killed(begin: str, tmp_path: Path, how: signal.Signals) -> None:
    own = f"service = gm.local({str(tmp_path / 'state')!r})\n"
    code = own + begin.replace("epochs=2", "epochs=2, service=service")
    code += "batches = iter(loader)\nnext(batches)\nsay('ready')\ntime.sleep(60)"
    program = Program(tmp_path, code)
    program.wait_for("ready")
    assert len(program.processes()) > 1
    os.kill(program.pid, how)
    assert program.end() == (-how, "", "")


def test_a_process_that_ends_at_once(begin: str, tmp_path: Path) -> None:
    assert Program(tmp_path, begin + "for batch in loader:\n    os._exit(7)").end() == (7, "", "")


# Forks.

_FORK = """
def forked(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except gm.Error as error:
            say(f"{type(error).__name__}: {error}")
            os._exit(9)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

"""


@pytest.mark.parametrize(
    "use",
    ["next(batches)", "next(iter(loader))", "len(loader)", "loader.state_dict()", "loader.set_epoch(1)"],
)
def test_a_loader_in_a_fork_is_refused_and_the_parent_goes_on(begin: str, tmp_path: Path, use: str) -> None:
    code = (
        begin
        + _FORK
        + (
            "batches = iter(loader)\n"
            "rows = len(next(batches)['value'])\n"
            f"assert forked(lambda: {use}) == 9\n"
            "rows += sum(len(batch['value']) for batch in batches)\n"
            "say(str(rows))\n"
            "loader.close()\n"
        )
    )
    code_, out, err = Program(tmp_path, "import warnings\nwarnings.simplefilter('ignore')\n" + code).end()
    assert (code_, err) == (0, "")
    error, rows = out.splitlines()
    assert rows == "1000"
    assert error.startswith("Error: ") and "fork" in error


def test_a_fork_that_drops_and_closes_all_disturbs_nothing(begin: str, tmp_path: Path) -> None:
    code = (
        begin
        + _FORK
        + (
            "import gc, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "batches = iter(loader)\n"
            "held = [next(batches)]\n"
            "def drop():\n"
            "    global loader, batches, held\n"
            "    loader.close()\n"
            "    del loader, batches, held\n"
            "    gc.collect()\n"
            "assert forked(drop) == 0\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    sys.exit(5)  # runs what is registered for the end of a process\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5\n"
            "say(str(sum(len(batch['value']) for batch in [*held, *batches])))\n"
        )
    )
    assert Program(tmp_path, code).end() == (0, "1000\n", "")


def test_a_service_in_a_fork_is_refused(begin: str, tmp_path: Path) -> None:
    code = (
        begin
        + _FORK
        + (
            "import warnings\n"
            "warnings.simplefilter('ignore')\n"
            "next(iter(loader))\n"
            "assert forked(lambda: next(iter(gm.numpy.Loader(loader._pipeline, epochs=1)))) == 9\n"
            "assert forked(lambda: gm.local()) == 9\n"
        )
    )
    code_, out, err = Program(tmp_path, code).end()
    assert (code_, err) == (0, "")
    assert len(out.splitlines()) == 2 and all("fork" in line for line in out.splitlines())


def test_a_fork_before_the_first_use_reads_for_itself(begin: str, tmp_path: Path) -> None:
    code = (
        begin
        + _FORK
        + (
            "pipeline = loader._pipeline\n"
            "def read():\n"
            "    with gm.local() as service, gm.numpy.Loader(pipeline, service=service, epochs=1) as own:\n"
            "        say(str(len(list(own))))\n"
            "assert forked(read) == 0\n"
            "read()\n"
        )
    )
    assert Program(tmp_path, code).end() == (0, "32\n32\n", "")


def test_arrays_are_readable_in_a_fork(begin: str, tmp_path: Path) -> None:
    code = (
        begin
        + _FORK
        + (
            "import warnings\n"
            "warnings.simplefilter('ignore')\n"
            "batch = next(iter(loader))\n"
            "assert forked(lambda: say(str(batch['value'].shape))) == 0\n"
        )
    )
    assert Program(tmp_path, code).end() == (0, "(32,)\n", "")


# Kept by a process that goes on.


def test_loaders_that_come_and_go_leave_no_thread_and_no_file(begin: str, tmp_path: Path) -> None:
    code = begin + (
        "def held():\n"
        "    return len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')), threading.active_count()\n"
        "def turn():\n"
        "    with gm.local() as service:\n"
        "        for seed in range(2):\n"
        "            with gm.numpy.Loader(loader._pipeline, service=service, epochs=1, seed=seed) as own:\n"
        "                for _ in own: pass\n"
        "turn(); turn()\n"
        "before = held()\n"
        "for _ in range(3): turn()\n"
        # Idle threads of blocking calls end after ten seconds.
        "deadline = time.monotonic() + 30\n"
        "while any(now > then for now, then in zip(held(), before)) and time.monotonic() < deadline: time.sleep(0.05)\n"
        "after = held()\n"
        "assert all(now <= then for now, then in zip(after, before)), (before, after)\n"
        "assert not os.listdir(os.environ['TMPDIR'])\n"
    )
    assert Program(tmp_path, code).end() == (0, "", "")
