"""A rank that returns: to its run, with each of its last two states, and to a job that is done."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gristmill as gm
import gristmill.numpy

EPOCHS, RANKS = 2, 2
Loader = gm.numpy.Loader


@pytest.fixture(params=["drop", "repeat", "uneven"])
def options(request: pytest.FixtureRequest, service: gm.Service, tmp_path: Path) -> dict[str, Any]:
    """Loaders of ranks of one job: eleven batches, and thus a last step that lacks one."""
    (tmp_path / "numbers.jsonl").write_text("".join(f'{{"value": {number}}}\n' for number in range(53)))
    pipeline = gm.jsonl(tmp_path / "numbers.jsonl", value=gm.i64()).shuffle().batch(5)
    job = f"returns-{uuid.uuid4().hex[:8]}"
    return dict(
        pipeline=pipeline, service=service, job=job, epochs=EPOCHS, patience="20s", tail=request.param, world_size=RANKS
    )


def loaders(options: dict[str, Any], run: str = "first") -> list[Loader]:
    return [gm.numpy.Loader(**options, rank=rank, run=run) for rank in range(RANKS)]


def steps(loader: Loader) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """The numbers of each step, and the state after it."""
    for _ in range(loader.epoch, EPOCHS):
        for batch in loader:
            yield batch["value"], loader.state_dict()


def whole_of(loader: Loader) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """All steps of a rank, whose loader is closed then: that waits for the other ranks."""
    found = list(steps(loader))
    loader.close()
    return found


def read(loaders: list[Loader]) -> list[list[tuple[np.ndarray, dict[str, Any]]]]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(whole_of, loaders))


def test_a_rank_returns_to_its_run_with_either_of_its_last_two_states(options: dict[str, Any]) -> None:
    whole = read(loaders({**options, "job": f"{options['job']}-whole"}))
    other, mine = loaders(options)
    with ThreadPoolExecutor() as pool:
        others = pool.submit(whole_of, other)
        taken = list(islice(steps(mine), 4))
        mine.close(abandon=True)
        for back in (2, 1):
            again = loaders(options)[1]
            again.load_state_dict(taken[-back][1])
            value, _ = next(steps(again))
            assert np.array_equal(value, whole[1][4 + 1 - back][0])
            again.close(abandon=True)
        again = loaders(options)[1]
        again.load_state_dict(taken[-1][1])
        taken += whole_of(again)
        for found, expected in zip([others.result(), taken], whole, strict=True):
            assert [value.tolist() for value, _ in found] == [value.tolist() for value, _ in expected]


def test_a_rank_returns_with_its_last_state_to_a_job_that_is_done(options: dict[str, Any]) -> None:
    taken = read(loaders(options))
    for run in ("first", "second"):
        again = loaders(options, run)
        for rank, loader in enumerate(again):
            loader.load_state_dict(taken[rank][-1][1])
        assert read(again) == [[], []]
