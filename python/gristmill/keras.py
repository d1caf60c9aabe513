"""Training of Keras models, with checkpoints that go on at the batch after the last trained one.

Works with Keras's TensorFlow, JAX and torch backends.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from . import _loader
from .errors import CheckpointError, Error, OptionError

__all__ = ["fit"]

Fields = str | Sequence[str] | Mapping[str, str]

_FILE = "checkpoint.json"
_VERSION = 1
_NAMES = {"version", "steps_per_epoch", "batches", "weights", "loader"}


def fit(
    model: keras.Model,
    loader: _loader.Loader[Any],
    inputs: Fields,
    targets: Fields | None = None,
    sample_weight: str | None = None,
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **options: Any,
) -> keras.callbacks.History:
    """Calls `model.fit` on the loader's batches.

    Args:
        model: A compiled model.
        loader: A loader of any class, such as `gm.numpy.Loader`.
        inputs: The name of the field that the model reads; a list, or a dict of the model's input name to the
            field, for a model of several inputs.
        targets: The field of the targets, likewise.
        sample_weight: The field of the weights of samples.
        epochs: How many epochs there are in all; by default the loader's.
        steps_per_epoch: Batches in one epoch of Keras; by default `len(loader)`. Needed where that is not
            known in advance: an epoch of Keras is then not one of the loader, and `epochs` is needed too.
        checkpoint: A folder for the model's and optimizer's weights and the loader's state. It is written
            after each epoch, and after each `every` batches. If it has a checkpoint, training goes on from
            there, also in mid-epoch; that epoch then has the rest of its batches only. The state of
            other callbacks is not in it.
        every: Batches between two checkpoints within an epoch.
        callbacks: Callbacks of Keras.
        options: Passed to `model.fit`.

    Returns:
        What `model.fit` returns.

    Raises:
        OptionError: The batches lack a field, an option is wrong, or there are more epochs than the loader has.
        CheckpointError: The checkpoint does not fit.

    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> pipeline = gm.jsonl("numbers.jsonl", x=gm.f32("v", shape=[1]), y=gm.f32("v", shape=[1])).batch(8)
        >>> with gm.numpy.Loader(pipeline, epochs=2) as loader:
        ...     history = gm.keras.fit(model, loader, inputs="x", targets="y", verbose=0)
        >>> len(history.epoch)
        2
    """
    given = {"x", "y", "shuffle", "initial_epoch", "batch_size"} & options.keys()
    if given:
        raise OptionError(f"{', '.join(sorted(given))}: not an option with a loader")
    if every is not None and (every < 1 or checkpoint is None):
        raise OptionError("every must be 1 or more, and needs checkpoint")
    saved = None if checkpoint is None else _Saved(checkpoint)
    if saved is not None and saved.content is not None:
        loader.load_state_dict(saved.content["loader"])
    steps, total = _lengths(loader, epochs, steps_per_epoch, saved)
    done = _start(loader, steps, saved, steps_per_epoch is None)
    if done >= total * steps:
        if saved is not None:
            saved.restore(model)
        return keras.callbacks.History()
    batches = _Batches(loader, (inputs, targets, sample_weight), steps, done)
    progress = _Progress(batches, saved, every)
    try:
        history = model.fit(
            batches,
            epochs=total,
            initial_epoch=done // steps,
            shuffle=False,
            callbacks=[*callbacks, progress],
            **options,
        )
    except Exception:
        if batches.failure is not None:
            # TensorFlow reports it as text within an error of its own.
            raise batches.failure from None
        batches.give_back()
        raise
    finally:
        progress.stop()
    batches.give_back()
    return history


def _lengths(
    loader: _loader.Loader[Any], epochs: int | None, steps: int | None, saved: _Saved | None
) -> tuple[int, int]:
    if steps is None:
        # The checkpoint of a finished training needs no service.
        steps = saved.content["steps_per_epoch"] if saved is not None and saved.content is not None else None
        try:
            steps = len(loader) if steps is None else steps
        except TypeError:
            raise OptionError("the batches of an epoch are not known in advance: give steps_per_epoch") from None
        epochs = loader.epochs if epochs is None else epochs
    if epochs is None:
        raise OptionError("epochs is needed: neither it nor the epochs of the loader were given")
    if steps < 1 or epochs < 1:
        raise OptionError(f"steps_per_epoch={steps}, epochs={epochs}: there is at least one")
    return steps, epochs


def _start(loader: _loader.Loader[Any], steps: int, saved: _Saved | None, is_whole: bool) -> int:
    """How many batches were trained on before."""
    if saved is not None and saved.content is not None:
        before = saved.content["steps_per_epoch"]
        if before != steps:
            raise CheckpointError(f"{saved.path} has {before} steps per epoch, not {steps}")
        return int(saved.content["batches"])
    epoch, g = loader.cursor
    return epoch * steps + g if is_whole else 0


class _Batches(keras.utils.PyDataset):
    """The loader's batches by number, from the first one that was not trained on.

    Keras reads some ahead, and some twice to learn their shapes: a batch is kept until it was trained on.
    """

    def __init__(self, loader: _loader.Loader[Any], fields: tuple[Any, ...], steps: int, done: int) -> None:
        super().__init__()
        self.loader = loader
        self.steps = steps
        self.done = done
        self.failure: Error | None = None
        self.training = False
        self._fields = fields
        self._first = done  # of the present epoch of Keras
        self._next = done
        self._held: dict[int, tuple[Any, Any]] = {}
        self._last: Any = None
        self._cursor = loader.cursor
        # A batch that Keras has read ahead must come again if training stops before it.
        loader._acknowledges = "state"
        self._stream = self._read()
        self._lock = threading.Lock()

    @property
    def num_batches(self) -> int:
        # Keras asks for the length of all epochs before training, and reads this many in each.
        return self.steps - self.done % self.steps if self.training else self.steps

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        with self._lock:
            number = self._first + index
            try:
                if number not in self._held:
                    self._take(number)
            except Error as error:
                self.failure = error
                raise
            batch: tuple[Any, ...] = self._held[number][0] if number in self._held else self._last
            return batch

    def begin_epoch(self) -> None:
        self.training = True
        self._first = self.done

    def trained(self, done: int) -> None:
        """Batches up to `done`, counted from the very first, were trained on."""
        with self._lock:
            if done > self.done:
                self._cursor = self._held[done - 1][1]
            for number in range(self.done, done):
                del self._held[number]
            self.done = done

    def state(self) -> dict[str, Any]:
        """The loader's state after the last batch that was trained on."""
        return self.loader.state_after(self._cursor)

    def give_back(self) -> None:
        """Puts the loader back to the first batch that was not trained on."""
        with self._lock:
            stream, self._stream = self._stream, iter(())
            if self._held:
                self._held.clear()
                self.loader.load_state_dict(self.state())
            elif self._is_at_end():
                # The loader learns that nothing follows, and its `close()` then closes the job.
                next(stream, None)

    def _is_at_end(self) -> bool:
        epoch, g = self.loader.cursor
        try:
            return epoch + 1 == self.loader.epochs and g == len(self.loader)
        except TypeError:
            return False

    def _take(self, number: int) -> None:
        if number != self._next:
            raise IndexError(f"batch {number} was asked for, and the next one is {self._next}")
        item = next(self._stream, None)
        if item is not None:
            self._held[number] = item
            self._last = item[0]
            self._next += 1
        elif self.training or self._last is None:
            raise OptionError(f"the loader has no more batches after {number}")

    def _read(self) -> Iterator[tuple[Any, Any]]:
        while self.loader.epochs is None or self.loader.epoch < self.loader.epochs:
            for batch in self.loader:
                yield self._select(batch), self.loader.cursor

    def _select(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        def pick(fields: Fields) -> Any:
            if isinstance(fields, Mapping):
                return {name: pick(field) for name, field in fields.items()}
            if not isinstance(fields, str):
                return tuple(pick(field) for field in fields)
            if fields not in batch:
                raise OptionError(f"no field {fields!r}; the batches have {', '.join(batch)}")
            return batch[fields]

        inputs, targets, weight = self._fields
        if weight is not None:
            return pick(inputs), None if targets is None else pick(targets), pick(weight)
        return (pick(inputs),) if targets is None else (pick(inputs), pick(targets))


class _Progress(keras.callbacks.Callback):
    """Counts the batches that were trained on, and saves and restores."""

    def __init__(self, batches: _Batches, saved: _Saved | None, every: int | None) -> None:
        super().__init__()
        self._batches = batches
        self._saved = saved
        self._every = every
        self._written = batches.done
        self._first = batches.done
        self._quiet = ExitStack()

    def on_train_begin(self, logs: Any = None) -> None:
        if self._saved is not None:
            self._saved.restore(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first = self._batches.done
        self._batches.begin_epoch()
        if self._batches.num_batches < self._batches.steps:
            # Keras takes the rest of an epoch for data that ran out.
            self._quiet.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="Your input ran out of data")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        left = self._batches.steps - self._first % self._batches.steps
        # With steps_per_execution, the last number may be after the epoch's end.
        self._batches.trained(self._first + min(batch + 1, left))
        if self._saved is None:
            self._batches.loader.checkpointed(self._batches.state())
        elif self._every is not None and self._batches.done - self._written >= self._every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._quiet.close()
        self._save()

    def stop(self) -> None:
        self._quiet.close()

    def _save(self) -> None:
        if self._saved is not None and self._written != self._batches.done:
            self._saved.save(self.model, self._batches)
            self._written = self._batches.done


class _Saved:
    """The folder of a checkpoint: weights of the model and optimizer, and a JSON file that names them."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self.path = self._folder / _FILE
        self.content: dict[str, Any] | None = None
        if not self.path.exists():
            return
        try:
            content = json.loads(self.path.read_text())
        except ValueError as error:
            raise CheckpointError(f"{self.path} is no checkpoint: {error}") from None
        if not isinstance(content, dict) or content.get("version") != _VERSION or content.keys() != _NAMES:
            raise CheckpointError(f"{self.path} is no checkpoint of version {_VERSION}")
        self.content = content

    def restore(self, model: keras.Model) -> None:
        if self.content is None:
            return
        if not model.built:
            raise OptionError("the model must be built before its weights can be loaded")
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(self._folder / self.content["weights"])

    def save(self, model: keras.Model, batches: _Batches) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"batch-{batches.done}.weights.h5"
        model.save_weights(self._folder / name, overwrite=True)
        with (self._folder / name).open("rb") as file:
            os.fsync(file.fileno())
        state = batches.state()
        content = {
            "version": _VERSION,
            "steps_per_epoch": batches.steps,
            "batches": batches.done,
            "weights": name,
            "loader": state,
        }
        part = self._folder / (_FILE + ".part")
        with part.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)
        if self.content is not None and self.content["weights"] != name:
            (self._folder / self.content["weights"]).unlink(missing_ok=True)
        self.content = content
        batches.loader.checkpointed(state)
