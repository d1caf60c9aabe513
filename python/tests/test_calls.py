"""Any call of a loader or its service, at any moment, from another thread or a signal handler, is done or refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from programs import Program

import gristmill as gm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

#: More of these make the test of random calls longer.
SEEDS = int(os.environ.get("GRISTMILL_RANDOM_CALLS", "3"))
KINDS = ["numpy", "torch", "jax"]

_PRELUDE = """
import faulthandler, pickle, random
faulthandler.dump_traceback_later(50, exit=True)
MOST_S = 30

def make(kind, **options):
    options |= {"keys": True, "seed": 5}
    if kind == "torch":
        import gristmill.torch
        return gm.torch.Loader(PATH, device="cpu", **options)
    if kind == "jax":
        import gristmill.jax
        return gm.jax.Loader(PATH, ahead=2, **options)
    return gm.numpy.Loader(PATH, **options)

def outcome(call):
    try:
        call()
    except gm.Error as error:
        return str(error)
    return "done"
"""

# The program waits for a batch that does not come; something else makes the call, and ends the wait 0.3 s later.
_WAITING = """
def outcome_of(name, by):
    service = gm.local()
    loader = make(KIND, epochs=50, workers=1, service=service)
    state = loader.state_dict()
    call = {
        "close": loader.close,
        "abandon": lambda: loader.close(abandon=True),
        "service": service.close,
        "stats": loader.stats,
        "state_dict": loader.state_dict,
        "load_state_dict": lambda: loader.load_state_dict(state),
        "set_epoch": lambda: loader.set_epoch(7),
        "len": loader.__len__,
        "schema": loader.schema,
        "iter": loader.__iter__,
        "pickle": lambda: pickle.dumps(loader),
    }[name]
    said, has_said = [], threading.Event()
    def act(*_):
        said.append(outcome(call))
        has_said.set()
        threading.Timer(0.3, loader.close, kwargs={"abandon": True}).start()
    def joined(*_):
        # The handler leaves the call to a thread, and waits for it.
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
    if by == "thread":
        threading.Timer(0.3, act).start()
    else:
        signal.signal(signal.SIGALRM, act if by == "handler" else joined)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        next(iter(loader))
        ended = "a batch"
    except gm.Error as error:
        ended = str(error)
    assert has_said.wait(MOST_S), (name, by, ended)
    service.close()
    return said, ended

for by in ("thread", "handler", "joined"):
    for name in NAMES:
        said, ended = outcome_of(name, by)
        assert said == ["done"], (name, by, said)
        over = name in ("load_state_dict", "set_epoch")
        assert ("this iteration is over" if over else "closed") in ended, (name, by, ended)
say("all")
"""

_ENDS = ["close", "abandon", "service", "load_state_dict", "set_epoch"]
_GOES_ON = ["stats", "state_dict", "len", "schema", "pickle"]


@pytest.fixture
def slow(numbers: gm.Pipeline, tmp_path: Path) -> str:
    """Code of a pipeline whose first batch takes minutes."""
    return _code(numbers, tmp_path, 10_000)


@pytest.fixture
def quick(numbers: gm.Pipeline, tmp_path: Path) -> str:
    """Code of a pipeline whose batches the program waits for now and then."""
    return _code(numbers, tmp_path, 0.5)


def _code(numbers: gm.Pipeline, directory: Path, sleep_ms: float) -> str:
    path = directory / "slow.yaml"
    path.write_text(numbers.to_yaml().replace("ops:\n", f"ops:\n  - sleep: {{ ms: {sleep_ms} }}\n"))
    return f"PATH = {str(path)!r}\n" + _PRELUDE


def check(directory: Path, code: str, said: str) -> None:
    code_, out, err = Program(directory, code).end(is_clean=False)
    assert (code_, out, err) == (0, said, ""), f"{code_}\n{out}\n{err}"


@pytest.mark.parametrize("kind", KINDS)
def test_calls_while_the_program_waits(slow: str, tmp_path: Path, kind: str) -> None:
    if kind != "numpy":
        pytest.importorskip(kind)
    names = _ENDS + _GOES_ON if kind == "numpy" else _ENDS
    check(tmp_path, f"KIND, NAMES = {kind!r}, {names!r}\n{slow}{_WAITING}", "all\n")


def test_a_handler_that_raises_ends_the_wait(slow: str, tmp_path: Path) -> None:
    code = (
        "class Mine(Exception): pass\n"
        "def raises(*_): raise Mine\n"
        "signal.signal(signal.SIGALRM, raises)\n"
        "loader = make('numpy', epochs=1)\n"
        "for _ in range(2):\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "    try: next(iter(loader))\n"
        "    except Mine: say('mine')\n"
        "loader.close(abandon=True)\n"
    )
    check(tmp_path, slow + code, "mine\nmine\n")


def test_a_handler_cannot_read_the_batches_that_its_program_waits_for(slow: str, tmp_path: Path) -> None:
    code = (
        "loader = make('numpy', epochs=1)\n"
        "len(loader)\n"
        "signal.signal(signal.SIGALRM, lambda *_: say(outcome(lambda: next(iter(loader)))))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "threading.Timer(0.8, loader.close, kwargs={'abandon': True}).start()\n"
        "say(outcome(lambda: next(iter(loader))))\n"
    )
    _, out, err = Program(tmp_path, slow + code).end()
    handler, _, program = out.partition("\n")
    assert "below this signal handler" in handler and "closed" in program, (out, err)


@pytest.mark.parametrize("by", ["thread", "handler"])
@pytest.mark.parametrize("call", ["loader.close()", "loader.state_dict()", "len(loader)", "loader.stats()"])
def test_calls_while_the_loader_starts(slow: str, tmp_path: Path, call: str, by: str) -> None:
    """Its service does not answer."""
    state = str(tmp_path / "state")
    code = (
        f"import json\nservice = gm.local({state!r})\n"
        f"up = json.load(open({state!r} + '/endpoint.json'))['pid']\n"
        "loader = make('numpy', epochs=1, service=service, patience='3s')\n"
        "os.kill(up, signal.SIGSTOP)\n"
        f"act = lambda *_: say(outcome(lambda: {call}))\n"
        "signal.signal(signal.SIGALRM, act)\n"
        "if BY == 'thread': threading.Timer(0.3, act).start()\n"
        "else: signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "try: said = len(next(iter(loader)))\n"
        "except gm.Error as error: said = str(error)\n"
        "os.kill(up, signal.SIGCONT)\n"
        "say(said)\n"
    )
    _, text, err = Program(tmp_path, f"BY = {by!r}\n{slow}{code}").end(is_clean=False)
    out = text.splitlines()
    assert len(out) == 2, (out, err)
    # Both may end at the same time.
    if call == "loader.close()":
        assert "done" in out and any("closed" in line for line in out), (out, err)
    else:
        ends = ("done", "the loader is starting", "the loader did not start", "no answer")
        assert all(line.startswith(ends) for line in out), (out, err)


_RANDOM = """
rng = random.Random(SEED)
service = gm.local()
options = {"epochs": 3, "workers": 1, "service": service}
expected = {}
with make("numpy", **options) as whole:
    for _ in range(3):
        for batch in whole: expected[tuple(batch["__cursor__"].tolist())] = batch["value"].sum()

class Raised(Exception): pass

current = [make(KIND, **options)]
states = [current[0].state_dict()]
counts = {}

def act():
    loader = current[0]
    calls = {
        "close": loader.close,
        "abandon": lambda: loader.close(abandon=True),
        "stats": loader.stats,
        "state_dict": lambda: states.append(loader.state_dict()),
        "load_state_dict": lambda: loader.load_state_dict(states[-1]),
        "set_epoch": lambda: loader.set_epoch(rng.randrange(3)),
        "len": loader.__len__,
        "iter": loader.__iter__,
        "place": lambda: (loader.epoch, loader.cursor, loader.job),
        "checkpointed": lambda: loader.checkpointed(states[-1]),
        "pickle": lambda: pickle.dumps(loader),
        "service": gm.local().close,
    }
    name = rng.choice(list(calls))
    outcome(calls[name])
    counts[name] = counts.get(name, 0) + 1

over = threading.Event()
def other():
    while not over.wait(rng.random() * 0.05): act()
def handler(*_):
    if not over.is_set():
        signal.setitimer(signal.ITIMER_REAL, 0.001 + rng.random() * 0.05)
        act()
signal.signal(signal.SIGALRM, handler)
threads = [threading.Thread(target=other) for _ in range(2)]
for thread in threads: thread.start()
signal.setitimer(signal.ITIMER_REAL, 0.01)
last = time.monotonic() + SECONDS
while time.monotonic() < last:
    loader = current[0]
    try:
        before = None
        for batch in loader:
            cursor = tuple(batch["__cursor__"].tolist())
            assert batch["value"].sum() == expected[cursor], cursor
            assert before in (None, (cursor[0], cursor[1] - 1)), (before, cursor)
            before = cursor
        if loader.epoch >= 3: raise gm.Error("the end")
    except gm.Error:
        if loader._closed or loader.epoch >= 3:
            loader.close(abandon=True)
            current[0] = make(KIND, **options)
            outcome(lambda: states.append(current[0].state_dict()))
over.set()
signal.setitimer(signal.ITIMER_REAL, 0)
for thread in threads: thread.join()
current[0].close(abandon=True)
service.close()
say("all" if sum(counts.values()) > 20 else f"{counts}")
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_calls_at_random_moments(quick: str, tmp_path: Path, seed: int, kind: str) -> None:
    """Batches are those of an undisturbed loader, and in order."""
    if kind != "numpy":
        pytest.importorskip(kind)
    code = f"SEED, KIND, SECONDS = {seed}, {kind!r}, 2\nimport logging\nlogging.disable()\n{quick}{_RANDOM}"
    check(tmp_path, code, "all\n")
