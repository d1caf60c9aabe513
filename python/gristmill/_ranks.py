"""Which rank of how many this process is."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ._flags import flags_of
from .errors import OptionError

_RUN_KEY = "gristmill-run"
# Loaders that this process has made for ranks, by what they read.
_made: Counter[str] = Counter()


@runtime_checkable
class DeviceMesh(Protocol):
    """The part of `torch.distributed.device_mesh.DeviceMesh` that says which ranks there are."""

    mesh_dim_names: tuple[str, ...] | None

    @property
    def mesh(self) -> Any:
        """The ranks, as a tensor with the mesh's dimensions."""

    def get_coordinate(self) -> Sequence[int] | None:
        """The place of this process."""


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, the number of ranks, the name of their run, and which take the same batches."""

    rank: int
    world_size: int
    run: str | None
    replicas: str | None = None

    @property
    def data_ranks(self) -> int:
        """Batches of a step: ranks that take the same one count once."""
        each = math.prod(int(size) for size in (self.replicas or "1").split("x"))
        return self.world_size // each

    def flags(self, tail: str | None) -> list[str]:
        """The flags of `gristmill-fetcher` for these ranks; none for one, whose steps are its batches."""
        if self.world_size == 1:
            return []
        return flags_of(
            {"ranks": self.rank, "of": self.world_size, "run": self.run, "replicas": self.replicas, "tail": tail}
        )


def find(
    rank: int | None,
    world_size: int | None,
    run: str | None,
    replicas: int | str | None = None,
    mesh: DeviceMesh | None = None,
    mesh_data: str | Sequence[str] | None = None,
) -> Ranks:
    """The ranks by arguments, else by torch.distributed, else by RANK and WORLD_SIZE; one rank if none names them.

    `replicas` says which ranks take the same batches, or else the dimensions `mesh_data` of a device mesh.

    The run of ranks that torch.distributed has brought together is that of their process group.

    Raises OptionError if they contradict each other, or nothing names the run of several ranks.
    """
    if (mesh is None) != (mesh_data is None):
        raise OptionError("mesh and mesh_data go together: give both")
    if mesh is not None:
        if rank is not None or world_size is not None or replicas is not None:
            raise OptionError("mesh says what rank, world_size and replicas say: leave these out")
        rank, world_size, replicas = place_in_mesh(mesh, mesh_data)
    if (rank is None) != (world_size is None):
        raise OptionError("rank and world_size go together: give both")
    if rank is None or world_size is None:
        rank, world_size = _of_torch() or _of_environment() or (0, 1)
    if not 0 <= rank < world_size:
        raise OptionError(f"rank={rank} is not between 0 and world_size={world_size}, exclusive")
    if world_size == 1:
        if replicas not in (None, 1, "1", "1x1"):
            raise OptionError(f"replicas={replicas!r} is about several ranks, and there is one")
        return Ranks(0, 1, None)
    name = run or run_of_launcher() or _run_of_torch(world_size)
    if not name:
        raise OptionError(
            "run names this run of the training program: make loaders after torch.distributed.init_process_group, or "
            "give all ranks the same run=..., and another one whenever they start again (torchrun and Slurm name it in "
            "the environment)"
        )
    return Ranks(rank, world_size, name, None if replicas is None else str(replicas))


def place_in_mesh(mesh: DeviceMesh, data: str | Sequence[str] | None) -> tuple[int, int, str]:
    """This process's rank in a `torch.distributed.device_mesh.DeviceMesh`, the number of ranks, and which of them take
    the same batches: those that differ in other dimensions than `data`, one or several neighbours.

    Raises OptionError if the mesh has no such dimensions, or is not of all processes.
    """
    names = [data] if isinstance(data, str) else list(data or ())
    known = list(mesh.mesh_dim_names or ())
    if not names or any(name not in known for name in names):
        raise OptionError(f"mesh_data={data!r} names no dimensions of this mesh, which has {known}")
    sizes = list(mesh.mesh.shape)
    places = [known.index(name) for name in names]
    if places != list(range(places[0], places[0] + len(places))):
        raise OptionError(
            f"mesh_data={data!r}: the dimensions of data follow one another in the mesh, which has {known}"
        )
    everybody = _of_torch()
    count = math.prod(sizes)
    if everybody is not None and everybody[1] != count:
        raise OptionError(
            f"this mesh has {count} processes of {everybody[1]}: give the whole mesh, because a part of it does not "
            "say how many processes take the same batch"
        )
    at = mesh.get_coordinate()
    if at is None:
        raise OptionError("this process is in no place of the mesh")
    rank = 0
    for place, size in zip(at, sizes, strict=True):
        rank = rank * size + place
    outer, inner = math.prod(sizes[: places[0]]), math.prod(sizes[places[-1] + 1 :])
    return rank, count, f"{outer}x{inner}"


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
