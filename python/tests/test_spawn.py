"""Ranks that `torch.multiprocessing.spawn` starts agree on their run by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import Program

pytest.importorskip("torch")

CODE = """
import gristmill as gm
import json, sys
import torch.distributed as dist
import torch.multiprocessing as mp

def rank(number, folder, again):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{again}", rank=number, world_size=2)
    pipeline = gm.jsonl(f"{folder}/numbers.jsonl", x=gm.i64()).batch(4)
    for turn in range(2):
        with gm.torch.Loader(pipeline, epochs=1) as loader:
            seen = [batch["x"].tolist() for batch in loader]
        with open(f"{folder}/seen-{again}-{turn}-{number}.json", "w") as file:
            json.dump(seen, file)
    dist.destroy_process_group()

if __name__ == "__main__":
    for again in range(2):
        mp.spawn(rank, args=(sys.argv[1], again), nprocs=2)
"""


def test_spawned_ranks_share_a_run_and_the_next_ones_another(tmp_path: Path) -> None:
    (tmp_path / "numbers.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in range(32)))
    script = tmp_path / "ranks.py"
    script.write_text(CODE)
    program = Program(
        tmp_path,
        f"import runpy; sys.argv = ['ranks.py', {str(tmp_path)!r}]; import subprocess; "
        f"sys.exit(subprocess.call([sys.executable, {str(script)!r}, {str(tmp_path)!r}]))",
    )
    code, _, err = program.end(is_clean=False)
    assert code == 0, err
    for again in range(2):
        for turn in range(2):
            parts = [json.loads((tmp_path / f"seen-{again}-{turn}-{n}.json").read_text()) for n in range(2)]
            assert [len(part) for part in parts] == [4, 4]
            assert sorted(x for part in parts for batch in part for x in batch) == list(range(32))
