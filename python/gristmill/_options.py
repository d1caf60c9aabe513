"""The options of loaders: their names and types, and the messages about wrong ones."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from ._ranks import DeviceMesh
from ._service import Service
from .errors import OptionError

__all__ = ["CommonOptions", "LoaderOptions", "SharedOptions", "checks_options", "name_of"]

Function = TypeVar("Function", bound=Callable[..., Any])


class SharedOptions(TypedDict, total=False):
    """The options of every loader; `LoaderOptions` has two more, which some classes take in another sense."""

    service: Service | None
    """Where the workers run: `gm.local(...)` or `gm.connect(...)`. Default: the service of this machine, which ends
    soon after the last process has left it."""
    job: str | None
    """Name of the job to start, or to go on with; options that are not given are then the job's. Default: a new
    name."""
    data: str | os.PathLike[str] | None
    """Dataset to read instead of the pipeline's, relative to the current directory. Default: the pipeline's."""
    epochs: int | None
    """Passes over the dataset. Default: until `close()`."""
    seed: int | None
    """Seed of order and augmentation. Default: 0."""
    workers: int | Literal["auto"] | None
    """Workers to run, or "auto" to follow the trainer's pace. Default: 2."""
    max_workers: int | None
    """Most workers of `workers="auto"`. Default: 16 on this machine, 1000 on AWS."""
    policy: Literal["coverage", "cachew", "hpa", "tfdata", "pecan", "fastflow"] | None
    """How `workers="auto"` decides: "coverage" has the workers at which a batch costs least; the others are those of
    papers, to compare with: "cachew" adds one while batch time improves; "hpa" keeps CPUs busy for 80 % of the time;
    "tfdata" divides the trainer's rate by a worker's; "pecan" removes workers again while cost falls; "fastflow"
    profiles one worker and stays. Default: "coverage"."""
    placement: str | os.PathLike[str] | None
    """Where batches are made: "auto" where it costs least, by workers and by at most `local_workers`, both as the
    trainer's pace asks for; "remote" by workers alone; "local" by this process alone; the path of a file that
    `gristmill plan --json` printed: by both, as many as it says, with its share of local splits. Default: by both, as
    many as `workers` and `local_workers` say."""
    budget_usd: float | None
    """Dollars that the job may spend on functions, requests, storage and transfer, at list prices, over all its runs.
    When they are spent, `local_workers` finish; without any, reading raises DataError, and a loader with more goes on.
    Default: no limit."""
    budget_usd_per_hour: float | None
    """Dollars an hour that workers may cost at one time. Default: no limit."""
    local_workers: int | None
    """Threads of this process that work; with `workers=0` the cheapest way on one machine. Default: 0, or 1 if the job
    has no other workers."""
    rank: int | None
    """Number of this process among the ranks, from 0. Default: torch.distributed's, else RANK, else 0."""
    world_size: int | None
    """Number of ranks. Default: torch.distributed's, else WORLD_SIZE, else 1."""
    run: str | None
    """Name of this run of all ranks, another one whenever they start again. Default: that of torch.distributed,
    torchrun or Slurm."""
    replicas: int | str | None
    """Ranks that take the same batches, as tensor-, pipeline- and context-parallel peers do: a number of neighbours, or
    "2x4" with 2 ranks in the mesh before its data dimension and 4 after it. Default: 1."""
    mesh: DeviceMesh | None
    """The `DeviceMesh` of all ranks, which says rank, world_size and replicas. Default: none."""
    mesh_data: str | Sequence[str] | None
    """Name of the data dimension of `mesh`, or names of several that follow one another. Default: none."""
    tail: Literal["drop", "repeat", "uneven"] | None
    """What becomes of last batches that are fewer than the ranks. Default: "drop" if the pipeline drops its remainder,
    else "repeat"."""
    prefetch_mib: int | None
    """Memory for objects that are fetched ahead, and as much for those made by local workers, in MiB. Less than the
    work needs costs speed only. Default: what the work needs, at most an eighth of the memory that this process may
    use, shared with the other ranks of this host."""
    patience: float | str | None
    """How long the service may not answer: seconds, or such as "90s" or "10m". Default: 120."""
    split_batches: int | None
    """Batches of a split, the unit of work. Default: chosen by the cost of the pipeline and the size of the dataset."""
    on_error: Literal["fail", "skip", "quarantine"] | None
    """What becomes of a record that cannot be read or processed: the job fails, or leaves it out, or also keeps a copy
    of it. Default: "fail"."""
    max_skipped: int | str | None
    """Records of an epoch that may be left out before the job fails: a number, or a share such as "1%". Default:
    "1%"."""
    removal: Literal["split", "now"] | None
    """When a worker leaves that is not wanted any more: after the split at hand, or at once, so that another one does
    that split again. Default: "split"."""
    visitation: Literal["exactly-once", "at-most-once", "zero-once-or-more"] | None
    """What holds for batches if the trainer fails and returns. Default: "exactly-once"."""
    shard: str | None
    """Part of the dataset to read, as "3/5": part 3 of five, counted from 0, as a job of its own. Ranks of one job need
    none. Default: all of it."""
    shard_by: Literal["data", "file", "file-or-data", "hint"] | None
    """What shards take in turn: batches of records; files; files if there are enough, else batches; or what the
    operator `shard` of the pipeline says. Default: "data"."""
    compress: Literal["none", "zstd", "auto"] | None
    """How workers compress the objects they store. Default: the pipeline's, else "auto"."""
    measure: Literal["on", "off"] | None
    """Whether the first elements of the dataset are measured where `auto_order="pecan"` needs their sizes; "off" keeps
    declared sizes. Default: "on"."""
    keys: bool
    """Adds `__key__` (uint64 [rows]) and `__copy__` (uint32 [rows]), which name each element, `__repeat__` (bool
    [rows]), whether `tail="repeat"` gives the batch again, and `__cursor__` (int64 [2]), the place after the batch.
    Default: False."""
    on_break: Literal["next", "continue"]
    """What `iter()` does after an epoch was left early: it goes to the next epoch, or goes on. Default: "next"."""
    acknowledge: Literal["auto", "state"]
    """When the service may forget batches: "auto" once the next one is asked for, until the first state is taken, and
    then by states; "state" by states alone. Default: "auto"."""
    progress: bool
    """Writes a line about the pace to standard error. Default: False."""
    allow_empty: bool
    """Whether an epoch may have no batches; else reading one raises OptionError. Default: False."""


class CommonOptions(SharedOptions, total=False):
    """The options of loaders that do not make their batches of another library's."""

    batch_size: int | None
    """Records in a batch. Default: the pipeline's."""


class LoaderOptions(CommonOptions, total=False):
    """The options of `gm.numpy.Loader`, which other loaders take as well, for the types of functions that pass them on.

    Example:
        >>> from typing import Unpack
        >>> def loader(**options: Unpack[gm.LoaderOptions]) -> gm.numpy.Loader:
        ...     return gm.numpy.Loader(pipeline, **options)
        >>> loader(epochs=1).epochs
        1
    """

    sharding: Literal["dynamic", "off"] | None
    """Content of an epoch: the dataset once, or with "off" once for each worker. Default: "dynamic"."""


# Smallest value of numbers; a number without one begins at 1.
_LEAST = {
    "seed": 0,
    "workers": 0,
    "local_workers": 0,
    "rank": 0,
    "max_skipped": 0,
    "budget_usd": 0,
    "budget_usd_per_hour": 0,
}
# Options of other libraries, and names that people try, with the line to write here.
_ELSEWHERE = {
    "num_workers": "write workers={value}: that many processes work for this loader",
    "n_workers": "write workers={value}",
    "num_epochs": "write epochs={value}",
    "bs": "write batch_size={value}",
    "shuffle": "the pipeline shuffles: write .shuffle() after its source",
    "drop_last": "write .batch(size, drop_remainder=True) in the pipeline",
    "drop_remainder": "write .batch(size, drop_remainder=True) in the pipeline",
    "collate_fn": "the pipeline makes batches with .batch(...): apply the function to each batch in the training loop",
    "sampler": "the pipeline chooses and orders records: .shuffle(), .take(...), .skip(...); ranks get their parts "
    "by themselves",
    "batch_sampler": "the pipeline makes batches: write .batch(...) or .bucket_by_sequence_length(...) in it",
    "pin_memory": 'leave it out: device="cuda" of gm.torch.Loader copies batches ahead of the trainer',
    "prefetch_factor": "leave it out, or bound the memory with prefetch_mib=...",
    "prefetch": "leave it out, or bound the memory with prefetch_mib=...",
    "persistent_workers": "leave it out: workers stay as long as the loader",
    "multiprocessing_context": "leave it out: workers are processes of the service",
    "worker_init_fn": "leave it out: workers run operators, and no code of this program",
    "generator": "write seed=...",
    "timeout": "write patience={value}",
    "transform": "write it as operators of the pipeline, such as .decode().resize(224)",
    "num_replicas": "write world_size={value}",
    "local_rank": "write rank=..., the number among all ranks",
    "path": "write data={value}",
    "normalize": "write normalise={value}, an option of gm.torch.Loader",
    "device": "it is an option of gm.torch.Loader and gm.jax.Loader",
    "transforms": "write it as operators of the pipeline, such as .decode().resize(224)",
    "seq_len": "write .pad_sequence(...) or .padded_batch(...) in the pipeline",
    "channels_first": "it is an option of gm.torch.Loader",
    "normalise": "it is an option of gm.torch.Loader; or write .normalise(...) before .batch(...) in the pipeline",
}
_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    Sequence[str]: "names",
    DeviceMesh: "a torch.distributed.device_mesh.DeviceMesh",
}
# The parameters of a loader that has no others.
_all: dict[str, inspect.Parameter] = {}


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(LoaderOptions)


def checks_options(function: Function) -> Function:
    """Makes wrong names and types of options an OptionError of the call, and lets `help` name all options.

    `function` takes the options of `LoaderOptions`, by name or as `**options`.
    """
    own = inspect.signature(function).parameters
    named = {name: p for name, p in own.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    if len(named) == len(own):
        _all.update({name: p for name, p in named.items() if p.kind is inspect.Parameter.KEYWORD_ONLY})
    is_method = "self" in named
    others = [name for name in _names_of_others(function, own) if name not in named]
    parameters = {**named, **{name: _all.get(name, _keyword(name)) for name in others}}

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        what = name_of(function, args)
        for name, value in given.items():
            if name not in parameters:
                raise OptionError(f"{what}: {unknown(name, value, parameters)}")
            if name in _all and (name not in named or len(named) == len(own)):
                given[name] = _checked(name, value, what)
        if is_method and "_given" not in vars(args[0]):
            # To make another one like it.
            args[0]._given = {name: value for name, value in given.items() if name != "pipeline"}
        return function(*args, **given)

    checked.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def _names_of_others(function: Callable[..., Any], own: Mapping[str, inspect.Parameter]) -> list[str]:
    """The names in the TypedDict of `**options`."""
    (*_, last) = own.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return []
    (options,) = get_args(eval(last.annotation, function.__globals__))
    return list(get_type_hints(options))


def _keyword(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)


def name_of(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The name that the caller wrote, such as `gm.torch.Loader`."""
    named: Any = type(args[0]) if function.__name__ == "__init__" else function
    module = named.__module__.replace("gristmill", "gm", 1) if named.__module__.startswith("gristmill.") else ""
    if module.startswith("gm.switch"):
        module = "gm"
    return f"{module}.{named.__name__}".lstrip(".")


def unknown(name: str, value: Any, known: Mapping[str, Any]) -> str:
    """The sentence about an option that there is not."""
    if name in _ELSEWHERE:
        return f"{name} is no option: {_ELSEWHERE[name].format(value=repr(value))}"
    near = difflib.get_close_matches(name, [option for option in known if option != "self"], 1, 0.6)
    if near:
        return f"{name} is no option: did you mean {near[0]}={value!r}?"
    return f"{name} is no option; there are {', '.join(option for option in _hints())}"


def _checked(name: str, value: Any, what: str) -> Any:
    """The value of an option as a plain one. Raises OptionError if it has another type, or is too small."""
    hint = _hints()[name]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        plain = _plain(kind, value)
        if plain is not _NOTHING:
            break
    else:
        raise OptionError(f"{what}: {name}={_shown(value)}: {_wanted(name, value, kinds)}")
    least = _LEAST.get(name, 1)
    if isinstance(plain, (int, float)) and not isinstance(plain, bool) and plain < least:
        said = "there is at least one" if name == "epochs" else f"it is {least} or more"
        raise OptionError(f"{what}: {name}={plain}: {said}")
    return plain


_NOTHING = object()


def _plain(kind: Any, value: Any) -> Any:
    """`value` as one of `kind`, or `_NOTHING`."""
    if kind is type(None):
        return None if value is None else _NOTHING
    if get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else _NOTHING
    if kind is bool:
        return bool(value) if isinstance(value, (bool, np.bool_)) else _NOTHING
    if kind in (int, float):
        if isinstance(value, (bool, np.bool_, str)):
            return _NOTHING
        try:
            return operator.index(value) if kind is int else float(value) if value % 1 else int(value)
        except (TypeError, ValueError, OverflowError):
            return _NOTHING
    return value if isinstance(value, get_origin(kind) or kind) else _NOTHING


def _wanted(name: str, value: Any, kinds: tuple[Any, ...]) -> str:
    """What to write in place of a wrong value."""
    words = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            words += [f'"{word}"' for word in get_args(kind)]
        elif kind is Service:
            words.append("gm.local(...) or gm.connect(...)")
        elif get_origin(kind) is os.PathLike:
            words[-1:] = ["a path"]
        elif kind is not type(None):
            words.append(_KINDS[kind])
    text = f"it is {', '.join(words[:-1])}{' or ' if words[1:] else ''}{words[-1]}"
    if isinstance(value, str) and int in kinds and value.strip().isdecimal():
        return f"{text}: write {name}={int(value)}"
    for kind in kinds:
        if get_origin(kind) is Literal and isinstance(value, str):
            near = difflib.get_close_matches(value.lower(), get_args(kind), 1, 0.6)
            return f'{text}; did you mean "{near[0]}"?' if near else text
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"{text}: write {name}={int(value)}"
    if str in kinds and isinstance(value, int) and name != "data":
        return f'{text}: write {name}="{value}"'
    return text


def _shown(value: Any) -> str:
    """A value in a message, on one line and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"
