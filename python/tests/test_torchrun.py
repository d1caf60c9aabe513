"""Ranks started by torchrun: equal counts, no record twice, and another number of ranks goes on exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

torch = pytest.importorskip("torch")

RECORDS, BATCH = 288, 12  # 24 batches: steps of two ranks, and of three, divide them
EPOCHS = 2

# Each rank trains, and writes what it was given.
RANK = """
import json, sys
import torch.distributed as dist

options = json.loads(sys.argv[1])
if options["accelerate"]:
    import accelerate
    accelerator = accelerate.Accelerator(cpu=True)
else:
    dist.init_process_group("gloo")
import gristmill as gm, gristmill.torch

state, found, saved = options["state"], [], None
with gm.local(state_dir=options["state_dir"]) as service:
    loader = gm.torch.Loader(
        options["pipeline"], service=service, epochs=options["epochs"], keys=True, device="cpu"
    )
    if options["accelerate"]:
        prepared = accelerator.prepare(loader)
        assert prepared is loader
    if state is not None:
        loader.load_state_dict(state)
    steps = len(loader)
    for epoch in range(loader.epoch, options["epochs"]):
        for batch in loader:
            dist.all_reduce(batch["value"].sum())  # as training does: it waits for a rank without a batch
            found.append((epoch, batch["__key__"].tolist()))
            if len(found) == options["stop_after"]:
                saved = loader.state_dict()
                break
        if saved is not None:
            break
    dist.barrier()
    loader.close()
    dist.barrier()
with open(f"{options['out']}/{dist.get_rank()}-of-{dist.get_world_size()}.json", "w") as file:
    json.dump({"steps": steps, "found": found, "saved": saved}, file)
dist.destroy_process_group()
"""


def torchrun(ranks: int, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """What each rank was given."""
    script = folder / "rank.py"
    script.write_text(RANK)
    options = {"out": str(folder), "state_dir": str(folder / "state"), "epochs": EPOCHS, **options}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    process = subprocess.Popen(
        [*command, str(script), json.dumps(options)], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        _, errors = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its ranks
        _, errors = process.communicate()
    assert process.returncode == 0, errors[-4000:]
    return [json.loads((folder / f"{rank}-of-{ranks}.json").read_text()) for rank in range(ranks)]


def keys(reports: list[dict[str, Any]]) -> list[Counter[int]]:
    """How often each record was delivered, by epoch."""
    counts: list[Counter[int]] = [Counter() for _ in range(EPOCHS)]
    for report in reports:
        for epoch, found in report["found"]:
            counts[epoch].update(found)
    return counts


def test_two_ranks_then_three(numbers_dir: Path, tmp_path: Path) -> None:
    source = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value"))
    pipeline = source.take(count=RECORDS).batch(size=BATCH).to_yaml()
    common = {"pipeline": pipeline, "accelerate": False}
    # One epoch, and three steps of the next.
    first = torchrun(2, tmp_path, **common, state=None, stop_after=15)
    assert [report["steps"] for report in first] == [12, 12]
    assert [len(report["found"]) for report in first] == [15, 15]
    assert first[0]["saved"] == first[1]["saved"]
    assert (first[0]["saved"]["epoch"], first[0]["saved"]["g"]) == (1, 6)
    one, other = ({key for _, found in report["found"][:12] for key in found} for report in first)
    assert not one & other and len(one | other) == RECORDS

    rest = torchrun(3, tmp_path, pipeline=pipeline, accelerate=True, state=first[0]["saved"], stop_after=-1)
    assert [report["steps"] for report in rest] == [8, 8, 8]
    assert [len(report["found"]) for report in rest] == [6, 6, 6]
    for delivered in keys(first + rest):
        assert len(delivered) == RECORDS and set(delivered.values()) == {1}
