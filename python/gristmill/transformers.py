"""Batches for Hugging Face transformers: `TrainerMixin`, for a Trainer that resumes exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from . import torch as _torch
from .errors import CheckpointError, OptionError

__all__ = ["TrainerMixin"]

_STATE = "gristmill"  # the name under which a checkpoint's trainer_state.json has the position


class TrainerMixin:
    """Makes a Trainer train on the batches of a `gm.torch.Loader`.

    The loader's batches go to the model as keyword arguments: name the pipeline's fields accordingly. Each
    epoch of the Trainer is one of the loader; where the length of an epoch is not known, transformers needs
    `max_steps`.

    A checkpoint's `trainer_state.json` holds the loader's state, and training goes on at the batch after it,
    without reading those before: the mixin sets `ignore_data_skip`. Resume with as many ranks as before: the
    Trainer counts its epochs by steps. The loader keeps the batches since the checkpoint before last; older
    checkpoints are refused.

    Args:
        args: Those of the Trainer.
        train_loader: A `gm.torch.Loader`.
        kwargs: Those of the Trainer.

    Raises:
        OptionError: `train_loader` is no `gm.torch.Loader`.
        CheckpointError: A checkpoint was written without the mixin.

    Example:
        >>> class Trainer(gm.transformers.TrainerMixin, transformers.Trainer):
        ...     pass
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(1, 1)
        ...     def forward(self, x):
        ...         return {"loss": self.layer(x).mean()}
        >>> pipeline = gm.jsonl("numbers.jsonl", x=gm.f32("v", shape=[1])).batch(8)
        >>> args = transformers.TrainingArguments("trained", max_steps=4, use_cpu=True, report_to=[], disable_tqdm=True)
        >>> with gm.torch.Loader(pipeline, epochs=1) as loader:
        ...     trainer = Trainer(Model(), args, train_loader=loader)
        ...     trainer.remove_callback(transformers.PrinterCallback)
        ...     trainer.train().global_step
        4
    """

    def __init__(self, *args: Any, train_loader: _torch.Loader, **kwargs: Any) -> None:
        if not isinstance(train_loader, _torch.Loader):
            raise OptionError(f"train_loader must be a gristmill.torch.Loader, not {type(train_loader).__name__}")
        super().__init__(*args, **kwargs)
        self.args: transformers.TrainingArguments
        self.args.ignore_data_skip = True
        self._epochs = _Epochs(train_loader)
        self.add_callback(_Position())  # type: ignore[attr-defined]

    def get_train_dataloader(self) -> Any:
        """The loader; each iteration is an epoch, and the first the rest of the one that was saved. The Trainer
        calls it.
        """
        return self._epochs

    def _run_epoch(self, **kwargs: Any) -> Any:
        # Without its own skipping, the Trainer takes the resumed epoch for a whole one. Its last update
        # would then not happen where it has fewer batches than `gradient_accumulation_steps`.
        done = self._epochs.done_steps()
        if done > 0:
            steps = kwargs["steps_in_epoch"] - done
            per_update = self.args.gradient_accumulation_steps
            kwargs |= {"steps_in_epoch": steps, "num_update_steps_per_epoch": -(-steps // per_update)}
        return super()._run_epoch(**kwargs)  # type: ignore[misc]


class _Epochs:
    """Each iteration is an epoch of the loader."""

    def __init__(self, loader: _torch.Loader) -> None:
        self.loader = loader
        self._resumed: dict[str, Any] | None = None
        self.is_over = False

    def resume(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)
        self._resumed = state

    def done_steps(self) -> int:
        """Steps of the next epoch that the checkpoint contains; 0 if that is all, or nobody knows."""
        if self._resumed is None:
            return 0
        try:
            steps = len(self)
        except TypeError:
            return 0
        return self._resumed["g"] // self.loader._ranks.data_ranks % steps if steps > 0 else 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.is_over:
            return
        is_resumed, self._resumed = self._resumed is not None, None
        count = 0
        for batch in self.loader:
            count += 1
            yield batch
        if is_resumed and count == 0:
            # The checkpoint was at the end of an epoch, and the Trainer begins the next one.
            yield from self.loader

    def __len__(self) -> int:
        return len(self.loader)


class _Position(transformers.TrainerCallback, ExportableState):
    """Keeps the loader's state in the Trainer's checkpoints."""

    # The Trainer may make another one of these when it restores callbacks, so there are no arguments.
    def __init__(self) -> None:
        self._epochs: _Epochs | None = None  # while it trains
        self._is_saved = False

    def state(self) -> dict[str, Any]:
        """What the checkpoint holds. The Trainer also asks before it trains: then nothing."""
        if self._epochs is None:
            return {}
        self._is_saved = True
        return {_STATE: self._epochs.loader.state_dict()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Goes on where the checkpoint was saved, if there is one."""
        epochs: _Epochs = kwargs["train_dataloader"]
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        if state.global_step > 0:
            if not isinstance(saved, dict) or _STATE not in saved:
                raise CheckpointError("the checkpoint was saved without TrainerMixin: it names no batch")
            epochs.resume(saved[_STATE])
        # Without the length of an epoch, the Trainer makes one more step before it looks.
        epochs.is_over = state.global_step >= state.max_steps
        self._epochs = epochs

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes the state on ranks that wrote none, as each acknowledges its own batches."""
        if self._epochs is not None and not self._is_saved:
            self._epochs.loader.state_dict()
        self._is_saved = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Holds nothing until it trains again."""
        self._epochs = None
