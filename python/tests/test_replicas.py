"""Ranks that take the same batches: equal bytes at every step, each record once, and other numbers go on exactly."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gristmill as gm
from gristmill import _ranks

RECORDS, BATCH = 384, 12  # 32 batches: steps of four data ranks, and of two, divide them
EPOCHS = 2


@dataclass
class Mesh:
    """The part of a torch `DeviceMesh` that loaders read."""

    sizes: tuple[int, ...]
    mesh_dim_names: tuple[str, ...] | None
    place: list[int] | None

    @property
    def mesh(self) -> np.ndarray:
        return np.arange(math.prod(self.sizes)).reshape(self.sizes)

    def get_coordinate(self) -> list[int] | None:
        return self.place


def found_by(sizes: tuple[int, ...], names: tuple[str, ...], data: str | Sequence[str]) -> list[tuple[int, int, str]]:
    places = itertools.product(*map(range, sizes))
    return [_ranks.place_in_mesh(Mesh(sizes, names, list(place)), data) for place in places]


@pytest.mark.parametrize(
    ("names", "data", "replicas"),
    [
        (("dp", "pp", "tp"), "dp", "1x8"),
        (("pp", "dp", "tp"), "dp", "2x4"),
        (("pp", "tp", "dp"), "dp", "6x1"),
        (("replicate", "shard", "tp"), ("replicate", "shard"), "1x4"),
        (("replicate", "shard", "cp"), ["replicate", "shard", "cp"], "1x1"),
    ],
)
def test_a_mesh_says_which_ranks_take_the_same_batches(
    names: tuple[str, ...], data: str | Sequence[str], replicas: str
) -> None:
    sizes = (2, 3, 4) if names[0] != "dp" else (3, 2, 4)
    found = found_by(sizes, names, data)
    assert [rank for rank, _, _ in found] == list(range(24))
    assert {(count, said) for _, count, said in found} == {(24, replicas)}


def test_a_mesh_that_does_not_say_it_is_refused() -> None:
    names = ("pp", "dp", "tp")
    mesh = Mesh((2, 2, 2), names, [0, 1, 0])
    for wrong in ("data", [], ["dp", "data"]):
        with pytest.raises(gm.OptionError, match="names no dimensions of this mesh"):
            _ranks.find(None, None, "run", None, mesh, wrong)
    with pytest.raises(gm.OptionError, match="follow one another"):
        _ranks.find(None, None, "run", None, mesh, ("pp", "tp"))
    with pytest.raises(gm.OptionError, match="go together"):
        _ranks.find(None, None, "run", None, mesh, None)
    with pytest.raises(gm.OptionError, match="leave these out"):
        _ranks.find(0, 8, "run", None, mesh, "dp")
    with pytest.raises(gm.OptionError, match="no place of the mesh"):
        _ranks.find(None, None, "run", None, Mesh((2, 2, 2), names, None), "dp")
    ranks = _ranks.find(None, None, "run", None, mesh, "dp")
    assert (ranks.rank, ranks.world_size, ranks.replicas, ranks.data_ranks) == (2, 8, "2x2", 2)


def test_replicas_divide_the_ranks(numbers_dir: Path) -> None:
    pipeline = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).batch(size=BATCH)
    with pytest.raises(gm.OptionError, match="4 ranks are no multiple of 3 replicas"):
        gm.numpy.Loader(pipeline, rank=0, world_size=4, run="r", replicas=3)
    with pytest.raises(gm.OptionError, match="are no replicas"):
        gm.numpy.Loader(pipeline, rank=0, world_size=4, run="r", replicas="2x")
    with pytest.raises(gm.OptionError, match="and there is one"):
        gm.numpy.Loader(pipeline, replicas=2)


Taken = list[tuple[int, list[int], bytes]]


def run(service: gm.Service, pipeline: str, name: str, **options: Any) -> tuple[list[Taken], list[dict[str, Any]]]:
    """What each of eight ranks is given, and its state at the end."""
    stop_after, state = options.pop("stop_after"), options.pop("state", None)

    def train(rank: int) -> tuple[Taken, dict[str, Any]]:
        taken: Taken = []
        with gm.numpy.Loader(
            pipeline,
            service=service,
            job="train",
            epochs=EPOCHS,
            keys=True,
            rank=rank,
            world_size=8,
            run=name,
            acknowledge="state",
            **options,
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for epoch in range(loader.epoch, EPOCHS):
                for batch in loader:
                    whole = b"".join(batch[name].tobytes() for name in sorted(batch))
                    taken.append((epoch, batch["__key__"].tolist(), whole))
                    if len(taken) == stop_after:
                        return taken, loader.state_dict()
            return taken, loader.state_dict()

    with ThreadPoolExecutor(8) as ranks:
        given = list(ranks.map(train, range(8)))
    return [taken for taken, _ in given], [state for _, state in given]


@pytest.mark.parametrize(("before", "after"), [("2", "4"), ("2x1", "4x1"), ("2", "2x2")])
def test_four_times_two_goes_on_as_two_times_four(numbers_dir: Path, tmp_path: Path, before: str, after: str) -> None:
    source = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value"))
    pipeline = source.take(count=RECORDS).batch(size=BATCH).to_yaml()
    with gm.local(state_dir=tmp_path / "state") as service:
        first, states = run(service, pipeline, "one", replicas=before, stop_after=11)
        assert all(state == states[0] for state in states), "any copy resumes"
        assert (states[0]["epoch"], states[0]["g"]) == (1, 12)
        rest, _ = run(service, pipeline, "two", replicas=after, stop_after=-1, state=states[0])
    seen: dict[int, list[int]] = {0: [], 1: []}
    for given, replicas, data_ranks in [(first, before, 4), (rest, after, 2)]:
        outer, inner = map(int, f"1x{replicas}".split("x")[-2:])
        assert outer * inner * data_ranks == 8
        groups: dict[int, list[Taken]] = {}
        for rank, taken in enumerate(given):
            groups.setdefault(rank // inner % data_ranks, []).append(taken)
        for peers in groups.values():
            assert len(peers) == 8 // data_ranks and all(taken == peers[0] for taken in peers)
            for epoch, keys, _ in peers[0]:
                seen[epoch] += keys
    for keys in seen.values():
        assert len(keys) == RECORDS and len(set(keys)) == RECORDS


# A rank of a mesh, which writes what it was given.
RANK = """
import json, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

options = json.loads(sys.argv[1])
dist.init_process_group("gloo")
import gristmill as gm, gristmill.torch

mesh = init_device_mesh("cpu", tuple(options["sizes"]), mesh_dim_names=tuple(options["names"]))
found = []
with gm.local(state_dir=options["state_dir"]) as service:
    with gm.torch.Loader(
        options["pipeline"], service=service, epochs=1, keys=True, device="cpu", mesh=mesh, mesh_data="dp"
    ) as loader:
        for batch in loader:
            dist.all_reduce(batch["value"].sum())
            found.append(batch["__key__"].tolist())
        dist.barrier()
with open(f"{options['out']}/{dist.get_rank()}.json", "w") as file:
    json.dump({"found": found, "data_rank": mesh.get_local_rank("dp")}, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("names", [("dp", "tp"), ("pp", "dp", "tp"), ("pp", "dp")])
def test_peers_of_a_device_mesh_read_the_same(numbers_dir: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    pytest.importorskip("torch")
    sizes = [2] * len(names)
    source = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value"))
    pipeline = source.take(count=RECORDS).batch(size=BATCH).to_yaml()
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    options: dict[str, Any] = {"out": str(tmp_path), "state_dir": str(tmp_path / "state"), "pipeline": pipeline}
    options |= {"sizes": sizes, "names": names}
    ranks = math.prod(sizes)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    ran = subprocess.run(
        [*command, str(script), json.dumps(options)], env=environment, capture_output=True, text=True, timeout=180
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    groups: dict[int, list[list[list[int]]]] = {}
    for report in reports:
        groups.setdefault(report["data_rank"], []).append(report["found"])
    assert all(found == peers[0] for peers in groups.values() for found in peers)
    keys = [key for peers in groups.values() for batch in peers[0] for key in batch]
    assert len(keys) == RECORDS and len(set(keys)) == RECORDS
