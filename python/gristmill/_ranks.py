"""Which rank of how many this process is."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass

from ._flags import flags_of
from .errors import OptionError

_RUN_KEY = "gristmill-run"
# Loaders that this process has made for ranks, by what they read.
_made: Counter[str] = Counter()


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, the number of ranks, and the name of their run."""

    rank: int
    world_size: int
    run: str | None

    def flags(self, tail: str | None) -> list[str]:
        """The flags of `gristmill-fetcher` for these ranks; none for one, whose steps are its batches."""
        if self.world_size == 1:
            return []
        return flags_of({"ranks": self.rank, "of": self.world_size, "run": self.run, "tail": tail})


def find(rank: int | None, world_size: int | None, run: str | None) -> Ranks:
    """The ranks by arguments, else by torch.distributed, else by RANK and WORLD_SIZE; one rank if none names them.

    The run of ranks that torch.distributed has brought together is that of their process group.

    Raises OptionError if they contradict each other, or nothing names the run of several ranks.
    """
    if (rank is None) != (world_size is None):
        raise OptionError("rank and world_size go together: give both")
    if rank is None or world_size is None:
        rank, world_size = _of_torch() or _of_environment() or (0, 1)
    if not 0 <= rank < world_size:
        raise OptionError(f"rank={rank} is not between 0 and world_size={world_size}, exclusive")
    if world_size == 1:
        return Ranks(0, 1, None)
    name = run or run_of_launcher() or _run_of_torch(world_size)
    if not name:
        raise OptionError(
            "run names this run of the training program: make loaders after torch.distributed.init_process_group, or "
            "give all ranks the same run=..., and another one whenever they start again (torchrun and Slurm name it in "
            "the environment)"
        )
    return Ranks(rank, world_size, name)


def job(ranks: Ranks, pipeline: str, flags: list[str]) -> str | None:
    """The name of the job that all ranks read, if there are several: each process makes the same loaders in turn."""
    if ranks.world_size == 1:
        return None
    # Here, for it loads OpenSSL: most programs have one rank.
    import hashlib

    text = "\0".join([ranks.run or "", pipeline, *flags])
    _made[text] += 1
    digest = hashlib.blake2b(f"{_made[text]}\0{text}".encode(), digest_size=8).hexdigest()
    return f"ranks-{digest}"


def _of_torch() -> tuple[int, int] | None:
    # A program that uses it has imported it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _run_of_torch(world_size: int) -> str | None:
    """A name that the ranks of the process group agree on: the first to ask draws it. None without a group of them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() != world_size:
        return None
    # The store of the group, which every rank of it reaches. Its name is not public, but old; without it, ranks talk.
    store_of = getattr(distributed.distributed_c10d, "_get_default_store", None)
    drawn = os.urandom(8).hex()
    if store_of is not None:
        return f"torch {store_of().compare_set(_RUN_KEY, '', drawn).decode()}"
    agreed = [drawn]
    distributed.broadcast_object_list(agreed, src=0)
    return f"torch {agreed[0]}"


def _of_environment() -> tuple[int, int] | None:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    try:
        return int(rank), int(world_size)
    except ValueError:
        raise OptionError(f"RANK={rank} and WORLD_SIZE={world_size} are not whole numbers") from None


def run_of_launcher() -> str | None:
    """The name of the run by torchrun's or Slurm's variables, as `gristmill-fetcher` has it."""
    get = os.environ.get
    if (run := get("TORCHELASTIC_RUN_ID")) and run != "none":
        return f"torchrun {run} {get('TORCHELASTIC_RESTART_COUNT') or '0'}"
    if run == "none" and (port := get("MASTER_PORT")):
        # torchrun's default name; its port tells runs of this machine apart.
        return f"torchrun {get('MASTER_ADDR')}:{port} {get('TORCHELASTIC_RESTART_COUNT') or '0'} {os.getppid()}"
    if (job := get("SLURM_JOB_ID")) and (step := get("SLURM_STEP_ID")):
        return f"slurm {job}.{step} {get('SLURM_RESTART_COUNT') or '0'}"
    return None
