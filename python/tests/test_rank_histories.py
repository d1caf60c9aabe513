"""Random histories of ranks: ranks, fetchers and the service are killed and stopped, and runs begin with other ranks.

Each history ends, and each rank is given exactly its batches, those after a checkpoint that it returned to once.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_program import REFUSED, digest, tensors
from rank_runs import END, EPOCHS, START, Child, Cursor, Run

import gristmill as gm
from gristmill.__main__ import launcher

#: Of each pipeline. More of them: GRISTMILL_RANDOM_RANKS=50 pytest tests/test_rank_histories.py
HISTORIES = int(os.environ.get("GRISTMILL_RANDOM_RANKS", "1"))
#: Longest time of a history, in seconds.
LONGEST_S = 100.0
PROGRAM = Path(__file__).with_name("rank_program.py")
#: Refusals that the manual promises, of a rank that returns to a checkpoint older than what it said is stored.
OLD = re.compile(r"its run is safe up to|job \S+ is done: all its batches")
#: Of a program that starts while the service does not run: it is started again.
NO_SERVICE = re.compile(r"no service of yours listens|no service runs on")


class History:
    """A service, and runs of one job."""

    def __init__(self, directory: Path, pipeline: Path, whole: list[list[str]], seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.directory, self.pipeline, self.whole = directory, pipeline, whole
        self.counts = [len(batches) for batches in whole]
        self.began = time.monotonic()
        self.events: list[tuple[float, Run | None, Callable[[], None]]] = []
        self.log: list[str] = []
        self.children: list[Child] = []
        self.runs: list[Run] = []
        self.is_starting: set[object] = set()
        #: Programs of earlier runs that were stopped meanwhile.
        self.stale: list[Child] = []
        self.service = self.serve()

    # Its record.

    def note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self.began:6.2f} {text}")

    def fail(self, why: str) -> None:
        said = [f"--- {path.relative_to(self.directory)}\n{path.read_text()[-1500:]}" for path in self.says()]
        pytest.fail("\n".join([f"seed {self.seed}: {why}", *self.log, *said]))

    def says(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*.err") if path.stat().st_size)

    def start(self, command: list[str], said: Path) -> Child:
        child = Child(command, said)
        self.children.append(child)
        return child

    def close(self) -> None:
        for child in self.children:
            child.kill()

    # Processes.

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def serve(self) -> Child:
        endpoint = self.state / "endpoint.json"
        endpoint.unlink(missing_ok=True)
        command = [*launcher(), "up", "--state-dir", str(self.state)]
        service = self.start(command, self.directory / "service.err")
        end = time.monotonic() + 20
        while not endpoint.exists():
            if service.code is not None or time.monotonic() > end:
                self.fail("the service does not start")
            time.sleep(0.02)
        self.endpoint = json.loads(endpoint.read_text())["endpoint"]
        return service

    def begin_run(self, text: str | None) -> Run:
        number = len(self.runs)
        folder = self.directory / f"r{number}"
        folder.mkdir()
        run = Run(self.random, number, folder, text)
        self.runs.append(run)
        self.note(str(run))
        if run.kind == "wire":
            for host in range(len(run.ranges)):
                self.start_fetcher(run, host)
        for rank in range(run.of):
            self.start_rank(run, rank, 0)
        return run

    def start_fetcher(self, run: Run, host: int) -> None:
        first, last = run.ranges[host]
        command = [*launcher(), "fetcher", "--endpoint", self.endpoint, "--job", "j", "--workers", "2"]
        command += ["--pipeline", str(self.pipeline), "--epochs", str(EPOCHS), "--socket", run.socket(host)]
        command += ["--ranks", f"{first}-{last - 1}", "--of", str(run.of), "--run", run.name, "--tail", run.tail]
        if run.names_beginning and run.text:
            command += ["--resume", run.text]
        self.note(f"start fetcher {host} of {run.name}")
        run.fetchers[host] = self.start(command, run.folder / f"fetcher-{host}.err")

    def start_rank(self, run: Run, rank: int, back: int) -> None:
        if run.is_over(rank):
            return
        options = {
            **run.options,
            **dict(kind=run.kind, rank=rank, of=run.of, run=run.name, job="j", epochs=EPOCHS, back=back),
            **dict(text=run.text, dies=run.dies[rank], folder=str(run.folder), tail=run.tail),
            **dict(socket=run.socket(run.host_of(rank)), endpoint=self.endpoint, pipeline=str(self.pipeline)),
        }
        saved = [tuple(one["next"] or START) for one in run.saved(rank)]
        self.note(f"start rank {rank} of {run.name}, saved {saved}, acknowledged {run.acked(rank)}, back {back}")
        command = ["env", f"RANK={rank}", f"WORLD_SIZE={run.of}", f"PYTHONPATH={os.pathsep.join(sys.path)}"]
        command += [sys.executable, str(PROGRAM), json.dumps(options)]
        run.ranks[rank] = self.start(command, run.folder / f"rank-{rank}.err")

    # Accidents.

    def later(self, seconds: float, what: Callable[[], None], run: Run | None = None) -> None:
        """Does something later, unless its run has ended."""
        self.events.append((time.monotonic() + seconds, run, what))

    def return_rank(self, run: Run, rank: int) -> None:
        """A rank starts again with one of its last two checkpoints."""
        self.is_starting.discard((run, "rank", rank))
        saved = run.saved(rank)
        back = self.random.choice([0, 0, 1]) if len(saved) > 1 else 0
        self.start_rank(run, rank, back)

    def is_allowed(self, run: Run, rank: int) -> bool:
        """Whether the manual promises that the rank's last start is refused."""
        saved = run.saved(rank)
        return len(saved) > 1 and tuple(saved[-2]["next"] or START) < run.acked(rank)

    def pause(self, name: str, child: Child) -> None:
        seconds = self.random.uniform(0.3, 4)
        self.note(f"stop {name} for {seconds:.1f} s")
        child.signal(signal.SIGSTOP)
        self.later(seconds, lambda: child.signal(signal.SIGCONT))

    def kill_rank(self, run: Run, rank: int) -> None:
        child = run.ranks[rank]
        if child.code is None and (run, "rank", rank) not in self.is_starting:
            self.note(f"kill rank {rank}")
            child.kill()
            self.is_starting.add((run, "rank", rank))
            self.later(self.random.choice([0, 0.2, 1.5]), lambda: self.return_rank(run, rank), run)

    def kill_fetcher(self, run: Run, host: int) -> None:
        child = run.fetchers[host]
        if child.code is None and (run, "fetcher", host) not in self.is_starting:
            self.note(f"kill fetcher {host}")
            child.kill()
            self.restart_fetcher(run, host)

    def restart_fetcher(self, run: Run, host: int) -> None:
        def again() -> None:
            self.is_starting.discard((run, "fetcher", host))
            self.start_fetcher(run, host)

        self.is_starting.add((run, "fetcher", host))
        self.later(self.random.choice([0, 0.3, 1.5, 4]), again, run)

    def kill_service(self) -> None:
        if "service" in self.is_starting:
            return

        def again() -> None:
            self.is_starting.discard("service")
            self.note("start service")
            self.service = self.serve()

        self.note("kill service")
        self.service.kill()
        self.is_starting.add("service")
        self.later(self.random.choice([0, 0.3, 2]), again)

    def act(self, run: Run) -> None:
        """One or two things at once."""
        rank, host = self.random.randrange(run.of), self.random.randrange(len(run.ranges))
        is_wire = run.kind == "wire"
        acts: list[Callable[[], object]] = [
            lambda: self.kill_rank(run, rank),
            lambda: self.kill_rank(run, rank),
            lambda: self.pause(f"rank {rank}", run.ranks[rank]),
            self.kill_service,
            lambda: self.pause("service", self.service),
        ]
        if is_wire:
            acts += [
                lambda: self.kill_fetcher(run, host),
                lambda: self.kill_fetcher(run, host),
                lambda: self.pause(f"fetcher {host}", run.fetchers[host]),
            ]
        for one in self.random.sample(acts, self.random.choice([1, 1, 2])):
            one()

    def tick(self, run: Run) -> None:
        now = time.monotonic()
        if now - self.began > LONGEST_S:
            over = [run.is_over(rank) for rank in range(run.of)]
            left = [child.said.name for child in [*run.fetchers.values(), *self.stale] if child.code is None]
            self.fail(f"it does not end; over: {over}, still at work: {left}")
        due = [event for event in self.events if event[0] <= now]
        for event in due:
            self.events.remove(event)
            event[2]()
        if "service" not in self.is_starting and self.service.code is not None:
            self.fail(f"the service ended with {self.service.code}")
        for rank in range(run.of):
            self.watch_rank(run, rank)
        for host in run.fetchers:
            self.watch_fetcher(run, host)
        time.sleep(0.02)

    def watch_rank(self, run: Run, rank: int) -> None:
        code = run.ranks[rank].code
        if code is None or run.is_over(rank) or (run, "rank", rank) in self.is_starting:
            return
        self.note(f"rank {rank} ended with {code}")
        self.is_starting.add((run, "rank", rank))
        if code == REFUSED:
            said = run.ranks[rank].said.read_text().splitlines()[-1]
            is_allowed = self.is_allowed(run, rank) and OLD.search(said)
            if not is_allowed and not NO_SERVICE.search(said):
                self.fail(f"rank {rank} was refused: {said}")

            def again() -> None:
                self.is_starting.discard((run, "rank", rank))
                self.start_rank(run, rank, 0)

            self.later(0.2, again, run)
            return
        if code != -signal.SIGKILL:
            self.fail(f"rank {rank} ended with {code}")
        # It killed itself at its end, and returns once the others have ended, or do not without it.
        self.late(run, rank, time.monotonic() + self.random.choice([0, 1, 6]))

    def late(self, run: Run, rank: int, until: float) -> None:
        others = [run.is_over(other) for other in range(run.of) if other != rank]
        if all(others) or time.monotonic() > until:
            self.return_rank(run, rank)
        else:
            self.later(0.05, lambda: self.late(run, rank, until), run)

    def watch_fetcher(self, run: Run, host: int) -> None:
        code = run.fetchers[host].code
        if code is None or (run, "fetcher", host) in self.is_starting:
            return
        first, last = run.ranges[host]
        needed = [rank for rank in range(first, last) if not run.is_over(rank)]
        said = run.fetchers[host].said.read_text().splitlines()[-1:]
        is_early = bool(NO_SERVICE.search(str(said)))
        if code != 0 and not is_early and (needed or "is done" not in str(said)):
            self.fail(f"fetcher {host} ended with {code}: {said}")
        if needed:
            self.note(f"fetcher {host} ended with {code}, and ranks {needed} have not")
            self.restart_fetcher(run, host)

    def settle(self, run: Run) -> None:
        """Waits until everything is over: the ranks, and then the fetchers."""
        since = None
        while not run.are_over() or any(child.code is None for child in [*run.fetchers.values(), *self.stale]):
            self.tick(run)
            if since is None and run.are_over() and not self.is_starting:
                since = time.monotonic()
            if since is not None and not run.options["stays"] and time.monotonic() - since > 8:
                self.call_back(run)
                since = None

    def call_back(self, run: Run) -> None:
        """What ranks that left early had acknowledged was lost with their fetcher: they come back, and say it again."""
        run.options["stays"] = True
        for host in [host for host, child in run.fetchers.items() if child.code is None]:
            for rank in range(*run.ranges[host]):
                self.note(f"rank {rank} is called back")
                (run.folder / f"{rank}.over").unlink()
                self.start_rank(run, rank, 0)

    def end_run(self, run: Run) -> str | None:
        """Kills all of a run; the text of a checkpoint that all ranks have come to."""
        self.note(f"end {run.name}")
        stale = self.draw_stale(run)
        for child in [*run.ranks.values(), *run.fetchers.values()]:
            if child is not stale:
                child.kill()
        self.events = [event for event in self.events if event[1] is None]
        places = []
        for rank in range(run.of):
            saved = run.saved(rank)
            last = saved[-1] if saved else {"next": run.begin, "text": run.text}
            places.append((tuple(last["next"] or run.begin), last["text"] or run.text))
        return min(places, key=lambda place: place[0])[1]

    def draw_stale(self, run: Run) -> Child | None:
        """Stops a program that talks to the service, which goes on while the next run is at work."""
        talk = [*(run.fetchers if run.kind == "wire" else run.ranks).values()]
        alive = [child for child in talk if child.code is None]
        # A run that never began is not known to be over.
        has_begun = any((run.folder / f"{rank}.log").exists() for rank in range(run.of))
        if not alive or not has_begun or self.random.random() < 0.6:
            return None
        stale = self.random.choice(alive)
        self.stale.append(stale)
        self.note(f"{stale.said.name} of {run.name} is stopped, and goes on later")
        stale.signal(signal.SIGSTOP)
        self.later(self.random.uniform(0.5, 4), lambda: stale.signal(signal.SIGCONT))
        return stale

    def check(self) -> None:
        for number, run in enumerate(self.runs):
            until = self.runs[number + 1].begin if number + 1 < len(self.runs) else END
            for rank in range(run.of):
                self.check_rank(run, rank, until)

    def check_rank(self, run: Run, rank: int, until: Cursor) -> None:
        predicted = list(run.predicted(self.counts, rank))
        expected = [step for step in predicted if step[:2] < until]
        for kind in ("log", "seen"):
            found = run.folder / f"{rank}.{kind}"
            lines = found.read_text().splitlines() if found.exists() else []
            steps = []
            for line in lines:
                epoch, start, batch, content, repeat = line.split()
                step = int(epoch), int(start), int(batch), repeat == "repeat"
                steps.append(step)
                of_step = self.whole[step[0]][step[1] : step[1] + run.of]
                is_right = content in of_step if step[3] else self.whole[step[0]][step[2] : step[2] + 1] == [content]
                if step not in predicted or not is_right:
                    self.fail(f"rank {rank} of {run.name} was given {line!r}")
            if kind == "log" and [step for step in steps if step[:2] < until] != expected:
                self.fail(f"rank {rank} of {run.name} until {until} trained {steps} in place of {expected}")


@pytest.fixture(scope="module", params=["plain", "filtered"])
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches whose number is known in advance, or not."""
    folder = tmp_path_factory.mktemp("ranks")
    for file in range(4):
        numbers = range(100 * file, 100 * file + 77)
        (folder / f"{file}.jsonl").write_text("".join(f'{{"value": {number}}}\n' for number in numbers))
    pipeline = gm.jsonl(folder / "*.jsonl", value=gm.i64()).shuffle()
    if request.param == "filtered":
        pipeline = pipeline.filter("value", min=20)
    path = folder / "pipeline.yaml"
    path.write_text(pipeline.batch(size=5).to_yaml())
    return path


@pytest.fixture(scope="module")
def whole(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The batches of each epoch that one rank reads which nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    command = [*launcher(), "run", str(pipeline), "--sink", str(folder / "sink"), "--step-time", "0ms"]
    command += ["--state-dir", str(folder / "state"), "--epochs", str(EPOCHS)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    paths = [sorted((folder / "sink").glob(f"e{epoch}-*.safetensors")) for epoch in range(EPOCHS)]
    return [[digest(tensors(path.read_bytes())) for path in of_epoch] for of_epoch in paths]


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_history_of_ranks_delivers_what_one_rank_is_given(
    tmp_path: Path, pipeline: Path, whole: list[list[str]], seed: int
) -> None:
    history = History(tmp_path, pipeline, whole, seed)
    try:
        text: str | None = None
        for is_last in [False] * history.random.choice([0, 0, 1, 2]) + [True]:
            run = history.begin_run(text)
            for _ in range(history.random.randint(1, 4)):
                until = time.monotonic() + history.random.uniform(0.1, 1.5)
                while time.monotonic() < until:
                    history.tick(run)
                history.act(run)
            if is_last:
                history.settle(run)
            else:
                text = history.end_run(run)
        history.check()
    finally:
        history.close()
