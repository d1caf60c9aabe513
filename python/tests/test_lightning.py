"""`gristmill.lightning.DataModule`: Lightning's checkpoints name the batch after the last one trained on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")
import small  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

import gristmill.lightning  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Model(lightning.LightningModule):
    """Keeps the bytes that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[small.Bytes] = []
        self.transferred = 0

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.transferred += 1
        return batch

    def training_step(self, batch: dict[str, Any], index: int) -> Any:
        self.seen.append(small.bytes_of(batch))
        return self.layer(batch["value"].float()[:, None]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-6)


def trainer(**options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options.setdefault("enable_checkpointing", "callbacks" in options)
    return lightning.Trainer(accelerator="cpu", devices=1, **quiet, **options)


def fit(data: Any, checkpoint: Path | None = None, model: Model | None = None, **options: Any) -> list[small.Bytes]:
    model = model or Model()
    trainer(**options).fit(model, data, ckpt_path=checkpoint, weights_only=checkpoint and True)
    return model.seen


def whole(pipeline: gm.Pipeline, service: gm.Service) -> list[small.Bytes]:
    with gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS) as loader:
        batches = small.epochs_of(loader)
    assert len(batches) == 9
    return batches


@pytest.mark.parametrize("kind", [small.SIZED, small.UNSIZED])
def test_resumes_after_each_batch(numbers_dir: Path, service: gm.Service, kind: str, tmp_path: Path) -> None:
    pipeline = small.pipeline(numbers_dir, kind)

    def data() -> gm.lightning.DataModule:
        return gm.lightning.DataModule(pipeline, service=service, epochs=small.EPOCHS)

    def run(count: int) -> list[small.Bytes]:
        saving = ModelCheckpoint(dirpath=tmp_path, filename="last", every_n_train_steps=1, enable_version_counter=False)
        source = data()
        found = fit(source, max_steps=count, callbacks=[saving])
        source.close()
        return found

    def rest() -> list[small.Bytes]:
        source = data()
        found = fit(source, tmp_path / "last.ckpt", max_epochs=small.EPOCHS)
        source.close()
        return found

    small.resumes_everywhere(whole(pipeline, service), run, rest)


@pytest.mark.parametrize("kind", [small.SIZED, small.UNSIZED])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_resumes_after_each_epoch(
    numbers_dir: Path, service: gm.Service, kind: str, epochs: int, tmp_path: Path
) -> None:
    pipeline = small.pipeline(numbers_dir, kind)
    expected = whole(pipeline, service)
    saving = ModelCheckpoint(dirpath=tmp_path, filename="last", save_on_train_epoch_end=True)
    # It is not done after these epochs: a done job is over.
    source = gm.lightning.DataModule(pipeline, service=service, epochs=small.EPOCHS + 1, device="cpu")
    assert fit(source, max_epochs=epochs, callbacks=[saving]) == expected[: 3 * epochs]
    source.close()
    source = gm.lightning.DataModule(pipeline, service=service, epochs=small.EPOCHS + 1, device="cpu")
    assert fit(source, tmp_path / "last.ckpt", max_epochs=small.EPOCHS) == expected[3 * epochs :]
    source.close()


def test_both_checkpoints_before_the_last_batch_are_kept(
    numbers_dir: Path, service: gm.Service, tmp_path: Path
) -> None:
    pipeline = small.pipeline(numbers_dir, small.UNSIZED)
    expected = whole(pipeline, service)
    saving = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    source = gm.lightning.DataModule(pipeline, service=service, epochs=small.EPOCHS)
    fit(source, max_steps=5, callbacks=[saving])
    job = source.loader.job
    source.close()
    # The state before the last one is acknowledged, not what Lightning fetched ahead.
    assert service._native.join(job).durable() == (1, 1)
    for step in (4, 5):
        source = gm.lightning.DataModule(pipeline, service=service, epochs=small.EPOCHS)
        resumed = fit(source, tmp_path / f"step={step}.ckpt", max_steps=6)
        source.close()
        assert resumed == expected[step:6]


def test_keys_only_where_they_are_asked_for(numbers_dir: Path, service: gm.Service) -> None:
    pipeline = small.pipeline(numbers_dir, small.UNSIZED)
    for keys, names in ((False, {"value"}), (True, {"value", "__key__", "__copy__", "__repeat__", "__cursor__"})):
        source = gm.lightning.DataModule(pipeline, service=service, epochs=1, keys=keys)
        model = Model()
        seen = fit(source, model=model, max_epochs=1)
        assert [batch.keys() for batch in seen] == [names] * 3
        assert model.transferred == 3
        source.close()


def test_validation_reads_another_loader(numbers_dir: Path, service: gm.Service) -> None:
    class Validated(Model):
        rows = 0

        def validation_step(self, batch: dict[str, Any], index: int) -> None:
            self.rows += len(batch["value"])

    pipeline = small.pipeline(numbers_dir, small.UNSIZED)
    val = gm.torch.Loader(small.pipeline(numbers_dir, small.SIZED), service=service, keys=True)
    source = gm.lightning.DataModule(pipeline, val=val, service=service, epochs=2)
    model = Validated()
    assert len(fit(source, model=model, max_epochs=2, num_sanity_val_steps=0)) == 6
    assert model.rows == 2 * 24
    assert source.loader.cursor[0] == 2
    source.close()
    val.close()


def test_limited_epochs(numbers_dir: Path, service: gm.Service) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    source = gm.lightning.DataModule(pipeline, service=service, epochs=small.EPOCHS)
    expected = whole(pipeline, service)
    assert fit(source, max_epochs=small.EPOCHS, limit_train_batches=2) == [
        *expected[0:2],
        *expected[3:5],
        *expected[6:8],
    ]
    source.close()


RANKS = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
import lightning, torch
import gristmill as gm, gristmill.lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append(batch["value"].tolist())
        return self.layer(batch["value"].float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)

if __name__ == "__main__":
    folder, pipeline = sys.argv[1:]
    data = gm.lightning.DataModule(pipeline, epochs=1)
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )
    trainer.fit(model, data)
    with open(f"{folder}/{trainer.global_rank}.json", "w") as file:
        json.dump(model.seen, file)
    data.close()
"""


def test_ranks_that_lightning_starts(numbers_dir: Path, tmp_path: Path) -> None:
    pipeline = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).take(count=64).batch(size=8)
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(tmp_path), pipeline.to_yaml()]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(batches) for batches in seen] == [4, 4]
    assert sorted(value for batches in seen for batch in batches for value in batch) == list(range(64))


def test_validation_beside_training(numbers_dir: Path, service: gm.Service) -> None:
    class Validated(Model):
        def __init__(self) -> None:
            super().__init__()
            self.validated: list[int] = []

        def validation_step(self, batch: dict[str, Any], index: int) -> None:
            self.validated += batch["value"].tolist()

    train, test = (
        gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).take(32).shuffle().batch(8).train_test_split(8)
    )
    data = gm.lightning.DataModule(train, service=service, epochs=2, val=test)
    model = Validated()
    trainer(max_epochs=2, num_sanity_val_steps=0).fit(model, data)
    assert model.validated == [*range(24, 32)] * 2 and len(model.seen) == 6
    data.close()


def test_a_step_that_fetches_batches_is_refused(numbers_dir: Path, service: gm.Service) -> None:
    class Fetching(Model):
        def training_step(self, dataloader_iter: Any) -> Any:
            raise AssertionError("it is not called")

    source = gm.lightning.DataModule(small.pipeline(numbers_dir, small.SIZED), service=service)
    with pytest.raises(gm.OptionError, match="take a batch instead"):
        fit(source, model=Fetching(), max_epochs=1)
