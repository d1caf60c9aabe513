"""Processes of a history of ranks, and one run of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["END", "EPOCHS", "START", "Child", "Cursor", "Run"]

EPOCHS = 2
Cursor = tuple[int, int]
START: Cursor = (0, 0)
END: Cursor = (EPOCHS, 0)


class Child:
    """A process that may be killed and stopped, and what it says."""

    def __init__(self, command: list[str], said: Path) -> None:
        self.said = said
        with said.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        self.was_killed = False

    def kill(self) -> None:
        self.was_killed = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    @property
    def code(self) -> int | None:
        return self.process.poll()


class Run:
    """One run of some ranks."""

    def __init__(self, drawn: random.Random, number: int, folder: Path, text: str | None) -> None:
        self.name, self.folder = f"run-{number}", folder
        self.text = text
        at = json.loads(text) if text else {"epoch": 0, "g": 0}
        self.begin: Cursor = at["epoch"], at["g"]
        self.of = drawn.choice([2, 2, 3, 4])
        self.kind = drawn.choice(["wire", "wire", "loader"])
        self.tail = drawn.choice(["drop", "repeat", "uneven"])
        hosts = drawn.randint(1, min(3, self.of))
        cuts = [0, *sorted(drawn.sample(range(1, self.of), hosts - 1)), self.of]
        self.ranges = list(pairwise(cuts))
        self.names_beginning = drawn.random() < 0.4
        self.options: dict[str, Any] = {
            "every": drawn.choice([1, 2, 3, 5]),
            "lag": drawn.choice([0, 1]),
            "meets": drawn.random() < 0.4,
            "stays": drawn.random() < 0.5,
            "acknowledge": drawn.choice(["auto", "state"]),
            "step_s": drawn.choice([0.005, 0.02, 0.05]),
        }
        #: The last state of a loader is taken after its last batch, and none after its last epoch.
        self.options["ends_inside"] = self.options["every"] == 1 and drawn.random() < 0.5
        #: When ranks kill themselves at their end.
        moments = [None, None, "unsaved", "saved", "acknowledged"]
        self.dies = [drawn.choice(moments) for _ in range(self.of)]
        self.ranks: dict[int, Child] = {}
        self.fetchers: dict[int, Child] = {}

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.of} ranks, {self.kind}, tail {self.tail}, hosts {self.ranges}, from {self.begin}, "
            f"{self.options}, dies {self.dies}, resume {self.names_beginning}"
        )

    def host_of(self, rank: int) -> int:
        return next(host for host, (first, last) in enumerate(self.ranges) if first <= rank < last)

    def socket(self, host: int) -> str:
        return str(self.folder / f"{host}.sock")

    def saved(self, rank: int) -> list[dict[str, Any]]:
        found = self.folder / f"{rank}.json"
        return json.loads(found.read_text()) if found.exists() else []

    def acked(self, rank: int) -> Cursor:
        found = self.folder / f"{rank}.acked"
        epoch, g = json.loads(found.read_text()) if found.exists() else (-1, 0)
        return epoch, g

    def is_over(self, rank: int) -> bool:
        return (self.folder / f"{rank}.over").exists()

    def are_over(self) -> bool:
        return all(self.is_over(rank) for rank in range(self.of))

    def predicted(self, counts: list[int], rank: int) -> Iterator[tuple[int, int, int, bool]]:
        """Epoch, first batch of the step, own batch and whether it is a repeat, of each step of a rank."""
        for epoch in range(self.begin[0], EPOCHS):
            first = self.begin[1] if epoch == self.begin[0] else 0
            for start in range(first, counts[epoch], self.of):
                present = min(counts[epoch] - start, self.of)
                is_whole = present == self.of
                if rank < present and (is_whole or self.tail != "drop"):
                    yield epoch, start, start + rank, False
                elif not is_whole and self.tail == "repeat":
                    yield epoch, start, start + rank, True
