"""Batches for Lightning: `DataModule`, whose position is part of Lightning's checkpoints."""

from __future__ import annotations

import inspect
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

import lightning

from . import _ranks
from . import torch as _torch
from ._options import checks_options
from .errors import OptionError
from .pipeline import Pipeline

__all__ = ["DataModule"]

_CURSOR = "__cursor__"
_KEYS = ("__key__", "__copy__", "__repeat__", _CURSOR)


class DataModule(lightning.LightningDataModule):
    """A pipeline as Lightning's training data: `trainer.fit(model, DataModule(pipeline), ckpt_path=...)`.

    Batches are dicts of torch tensors as `gm.torch.Loader` yields them; each epoch of the trainer is one of the
    pipeline. The loader begins when the trainer first asks for batches, so that its rank is that of the
    trainer's process. With `device="cuda"` it copies ahead to the trainer's GPU.

    A checkpoint holds the position after the last batch that was trained on, and `fit` with this checkpoint
    goes on there. That is why this is a data module: Lightning fetches one batch ahead of training where
    the length of an epoch is not known, so a loader that saves what it handed over would lose that batch.

    Args:
        pipeline: A `Pipeline`, the path of a pipeline file, or its text.
        val: The data of validation: a pipeline or the path of other files, read by `eval_loader` of the loader
            that trains; or any iterable that Lightning takes, such as a `gm.torch.Loader`.
        options: Those of `gm.torch.Loader`.

    Raises:
        OptionError: An option cannot be used, or the data is not there.
        PipelineError: The pipeline is wrong.

    Example:
        >>> data = gm.lightning.DataModule(pipeline, epochs=1)
        >>> len(data.train_dataloader())
        8
        >>> data.close()
    """

    @checks_options
    def __init__(
        self, pipeline: Pipeline | str | os.PathLike[str], *, val: Any = None, **options: Unpack[_torch.TorchOptions]
    ) -> None:
        super().__init__()
        if TYPE_CHECKING:
            # Editors that follow calls find the options.
            _torch.Loader(pipeline, **options)
        self._pipeline, self._options = Pipeline._of(pipeline).check(options.get("data")), options
        self._val = val
        self._evaluation: _torch.Loader | None = None
        self._drops_keys = not options.get("keys", False)
        self._loader: _torch.Loader | None = None
        self._state: dict[str, Any] | None = None  # to go on from
        self._trained: tuple[int, int] | None = None  # the cursor after the batches trained on

    @property
    def loader(self) -> _torch.Loader:
        """The loader that training batches come from.

        Example:
            >>> gm.lightning.DataModule(pipeline, epochs=1).loader.epochs
            1
        """
        if self._loader is None:
            self._loader = _torch.Loader(self._pipeline, **{**self._run(), **self._options, "keys": True})
            if self._state is not None:
                self._loader.load_state_dict(self._state)
        return self._loader

    def train_dataloader(self) -> Any:
        """The batches of one epoch at each iteration.

        Example:
            >>> len(gm.lightning.DataModule(pipeline, epochs=1).train_dataloader())
            8
        """
        if self.trainer is not None:
            step = inspect.signature(self.trainer.lightning_module.training_step)
            if "dataloader_iter" in step.parameters:
                raise OptionError("training_step(dataloader_iter) fetches batches unseen: take a batch instead")
        return _Epochs(self)

    def val_dataloader(self) -> Any:
        """The batches of validation.

        Example:
            >>> gm.lightning.DataModule(pipeline, val=[1]).val_dataloader()
            [1]
        """
        if not isinstance(self._val, (Pipeline, str, os.PathLike)):
            return [] if self._val is None else self._val
        if self._evaluation is None:
            self._evaluation = self.loader.eval_loader(self._val, keys=False)
        return self._evaluation

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Notes the batch that the trainer trains on next. Lightning calls it.

        Args:
            batch: The batch.
            dataloader_idx: Number of the loader it is from.
        """
        trainer = self.trainer
        assert trainer is not None  # whose hook this is
        if trainer.training and isinstance(batch, dict) and _CURSOR in batch:
            self._trained = tuple(batch[_CURSOR].tolist())
            if self._drops_keys:
                batch = {name: tensor for name, tensor in batch.items() if name not in _KEYS}
        # Lightning calls this hook in place of the model's.
        return trainer.lightning_module.on_before_batch_transfer(batch, dataloader_idx)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was trained on.

        Example:
            >>> gm.lightning.DataModule(pipeline, epochs=1).state_dict()["g"]
            0
        """
        return self.loader._take(self._trained or self.loader.cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next batch trained on is the first one after `state`.

        Args:
            state: What `state_dict` returned.

        Example:
            >>> state = gm.lightning.DataModule(pipeline, epochs=1).state_dict()
            >>> gm.lightning.DataModule(pipeline, epochs=1).load_state_dict(state)
        """
        self._state, self._trained = dict(state), None
        if self._loader is not None:
            self._loader.load_state_dict(self._state)

    def close(self) -> None:
        """Closes the loader, which otherwise stays open for the next `fit` until the process ends.

        Example:
            >>> gm.lightning.DataModule(pipeline).close()
        """
        if self._evaluation is not None:
            self._evaluation.close()
        if self._loader is not None:
            self._loader.close()

    def _run(self) -> dict[str, Any]:
        """The name of this run, where Lightning starts the ranks itself and nothing else names it."""
        trainer = self.trainer
        if trainer is None or trainer.world_size == 1 or _ranks.run_of_launcher() is not None:
            return {}
        return {"run": trainer.strategy.broadcast(secrets.token_hex(8))}

    def _begin(self) -> None:
        """Called before the first batch is fetched, which may be one ahead of training."""
        if self._trained is None:
            self._trained = self.loader.cursor


class _Epochs:
    """Each iteration is an epoch. It has no `state_dict`: Lightning would save it with a batch too many."""

    def __init__(self, data: DataModule) -> None:
        self._data = data
        self._is_first = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._data._begin()
        loader = self._data.loader
        is_resumed, self._is_first = self._is_first, False
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if is_resumed and count == 0:
            # The checkpoint was at the end of an epoch, and Lightning begins the next one.
            yield from loader

    def __len__(self) -> int:
        return len(self._data.loader)
