"""Messages about names that there are not, such as those of other libraries."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import Any

__all__ = ["MODULES", "module_of", "no_name", "no_operator", "wrong_call"]

# Methods of tf.data, torch, webdataset and Hugging Face datasets, and what to write here.
_OPERATORS = {
    "map": "it is made of operators, and runs no Python function: see docs/operators.md, or apply the function to each "
    "batch in the training loop",
    "apply": "it is made of operators, and runs no Python function: apply the function to each batch in the training "
    "loop",
    "prefetch": "leave it out: a loader reads ahead by itself",
    "cache": "write .autocache()",
    "normalize": "write .normalise(...)",
    "standardize": "write .standardise()",
    "rescale": "write .scale()",
    "to_tensor": "write .scale() for floats from 0 to 1; a loader gives tensors",
    "colour_jitter": "write .color_jitter(...)",
    "greyscale": "write .grayscale(...)",
    "tokenize": "write .tokenise(...)",
    "centre_crop": "write .center_crop(size)",
    "random_flip": "write .flip()",
    "horizontal_flip": "write .flip()",
    "random_horizontal_flip": "write .flip()",
    "random_vertical_flip": "write .vertical_flip()",
    "random_rotation": "write .rotate(...)",
    "gaussian_noise": "there is no such operator: add it to each batch in the training loop",
    "batched": "write .batch(size)",
    "distributed_sampler": "leave it out: ranks get their parts by themselves",
    "to_tuple": "leave it out: batches are dicts of fields",
    "rename": "name the fields in the source, such as image=gm.bytes('jpg')",
    "rename_columns": "name the fields in the source, such as image=gm.bytes('jpg')",
    "select_columns": "name the fields in the source, or write .drop(fields)",
    "remove_columns": "write .drop(fields)",
    "split": "write .train_test_split(test=0.1)",
    "random_split": "write .train_test_split(test=0.1)",
    "limit": "write .take(count)",
    "head": "write .take(count)",
    "with_epoch": "leave it out: give the loader epochs=...",
    "with_format": "leave it out: the loader chooses, such as gm.torch.Loader",
    "set_format": "leave it out: the loader chooses, such as gm.torch.Loader",
    "concatenate": "give the source a list of paths",
    "loader": "write gm.numpy.Loader(pipeline), or gm.torch.Loader(pipeline)",
    "iter_batches": "write gm.numpy.Loader(pipeline), or gm.torch.Loader(pipeline)",
}
#: Modules that import a framework, and the package to install for each.
MODULES = {
    "grain": "grain",
    "jax": "jax",
    "keras": "keras",
    "lightning": "lightning",
    "switch": "torch torchvision",
    "tf": "tensorflow",
    "torch": "torch",
    "transformers": "transformers accelerate",
}
_MODULE_NAMES = {
    "Loader": "write gm.numpy.Loader, or another module's, such as gm.torch.Loader",
    "DataLoader": "write gm.numpy.Loader, or another module's, such as gm.torch.Loader",
    "tensorflow": "write gm.tf",
    "pytorch": "write gm.torch",
    "flax": "write gm.jax",
    "imagefolder": "write gm.images(folder)",
    "ImageFolder": "write gm.images(folder)",
    "image_folder": "write gm.images(folder)",
    "json": "write gm.jsonl(path, ...)",
    "string": "write gm.bytes(key)",
    "str": "write gm.bytes(key)",
    "int": "write gm.i64(key)",
    "int64": "write gm.i64(key)",
    "i32": "write gm.i64(key), and .cast(...) in the pipeline",
    "int32": "write gm.i64(key), and .cast(...) in the pipeline",
    "float": "write gm.f32(key)",
    "float32": "write gm.f32(key)",
    "float64": "write gm.f64(key)",
}


def module_of(name: str) -> ModuleType:
    """The module of a framework. Raises ModuleNotFoundError, which says what to install, if that is not there."""
    try:
        return importlib.import_module(f"gristmill.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gristmill"):
            raise
        message = f"gm.{name} needs {error.name}, which is not installed: pip install {MODULES[name]}"
        raise ModuleNotFoundError(message, name=error.name) from None


def no_operator(name: str, known: Iterable[str]) -> str:
    """The message about a method that a pipeline lacks."""
    said = f"a pipeline has no operator `{name}`"
    if name in _OPERATORS:
        return f"{said}: {_OPERATORS[name]}"
    return said + _near(name, known, ".")


def wrong_call(error: TypeError, args: tuple[Any, ...], given: Iterable[str], parameters: Iterable[str]) -> str:
    """The message about arguments that an operator does not take."""
    known = [name for name in parameters if name not in ("self", "keep_position", "assume_commutes")]
    unknown = next((name for name in given if name not in (*known, "keep_position", "assume_commutes")), None)
    takes = f"it takes {', '.join(known)}" if known else "it has no parameters"
    if unknown is not None:
        near = difflib.get_close_matches(unknown, known, 1, 0.6)
        return f"{unknown} is no parameter: {f'did you mean {near[0]}?' if near else takes}"
    if len(args) == 2 and known[:1] == ["size"]:
        return f"height and width are one argument: write size=[{args[0]!r}, {args[1]!r}]"
    return f"{error}: {takes}"


def no_name(name: str, known: Iterable[str]) -> str:
    """The message about a name that the package lacks."""
    said = f"module 'gristmill' has no attribute {name!r}"
    if name in _MODULE_NAMES:
        return f"{said}: {_MODULE_NAMES[name]}"
    return said + _near(name, known, "gm.")


def _near(name: str, known: Iterable[str], before: str) -> str:
    near = difflib.get_close_matches(name, [word for word in known if not word.startswith("_")], 1, 0.6)
    return f": did you mean {before}{near[0]}?" if near else ""
