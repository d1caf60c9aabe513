"""`gristmill.transformers.TrainerMixin`, and loaders in programs that use Accelerate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
import small  # noqa: E402

import gristmill.torch  # noqa: E402
import gristmill.transformers  # noqa: E402


class Model(torch.nn.Module):
    """Keeps the bytes that it is trained on; its weight depends on all of them and on when it was updated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[small.Bytes] = []

    def forward(self, value: Any) -> dict[str, Any]:
        self.seen.append(small.bytes_of({"value": value}))
        return {"loss": (self.weight * value.float() / 24).square().mean()}


class Trainer(gm.transformers.TrainerMixin, transformers.Trainer):
    pass


def trainer(loader: gm.torch.Loader, folder: Path, **options: Any) -> Any:
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"}
    options = {"save_steps": 1, "learning_rate": 0.1, "lr_scheduler_type": "constant", **options}
    arguments = transformers.TrainingArguments(str(folder), **quiet, **options)
    return Trainer(Model(), arguments, train_loader=loader)


class Interrupt(transformers.TrainerCallback):
    """Ends training after a step, once it is saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


@pytest.mark.parametrize("kind", [small.SIZED, small.UNSIZED])
@pytest.mark.parametrize("per_update", [1, 2])
def test_resumes_after_each_step(
    numbers_dir: Path, service: gm.Service, kind: str, per_update: int, tmp_path: Path
) -> None:
    pipeline = small.pipeline(numbers_dir, kind)
    # With two batches an update, an epoch's second update has one, if the Trainer knows that it is the last.
    steps = {(small.SIZED, 1): 9, (small.SIZED, 2): 6, (small.UNSIZED, 1): 9, (small.UNSIZED, 2): 3}[kind, per_update]
    options: dict[str, Any] = {"num_train_epochs": small.EPOCHS} if kind == small.SIZED else {"max_steps": steps}
    options |= {"gradient_accumulation_steps": per_update}

    def loader() -> gm.torch.Loader:
        return gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS + 1)

    with loader() as batches:
        all_of_it = trainer(batches, tmp_path / "whole", **{**options, "save_strategy": "no"})
        all_of_it.train()
        seen, weight = all_of_it.model.seen, all_of_it.model.weight.item()
    with loader() as batches:
        assert seen == small.epochs_of(batches, small.EPOCHS)[: len(seen)]
    assert len(seen) >= 8
    for step in range(1, steps + 1):
        folder = tmp_path / f"until-{step}"
        with loader() as batches:
            first = trainer(batches, folder, **options)
            first.add_callback(Interrupt(step))
            first.train()
        with loader() as batches:
            second = trainer(batches, folder, **options, restore_callback_states_from_checkpoint=step % 2 == 0)
            second.train(resume_from_checkpoint=True)
        assert first.model.seen + second.model.seen == seen, f"after step {step}"
        assert second.model.weight.item() == weight
        assert second.state.global_step == steps


def test_resumes_from_the_checkpoint_before_the_last(numbers_dir: Path, service: gm.Service, tmp_path: Path) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    with gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS) as loader:
        first = trainer(loader, tmp_path, max_steps=5)
        first.train()
    with gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS) as loader:
        second = trainer(loader, tmp_path, max_steps=5)
        second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert second.model.seen == first.model.seen[4:] and len(first.model.seen) == 5


def test_a_checkpoint_of_another_trainer(numbers_dir: Path, service: gm.Service, tmp_path: Path) -> None:
    with gm.torch.Loader(small.pipeline(numbers_dir, small.SIZED), service=service, epochs=1) as loader:
        trainer(loader, tmp_path, max_steps=1).train()
    path = tmp_path / "checkpoint-1" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["_Position"]
    path.write_text(json.dumps(state))
    with gm.torch.Loader(small.pipeline(numbers_dir, small.SIZED), service=service, epochs=1) as loader:
        again = trainer(loader, tmp_path, max_steps=2)
        with pytest.raises(gm.CheckpointError, match="saved without TrainerMixin"):
            again.train(resume_from_checkpoint=True)


def test_other_objects_than_loaders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(gm.OptionError, match=r"must be a gristmill\.torch\.Loader, not list"):
        trainer([{"value": 1}], tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [small.SIZED, small.UNSIZED])
def test_accelerate_resumes_after_each_batch(numbers_dir: Path, service: gm.Service, kind: str, tmp_path: Path) -> None:
    pipeline = small.pipeline(numbers_dir, kind)

    def prepared() -> tuple[Any, gm.torch.Loader]:
        accelerator = accelerate.Accelerator(cpu=True)
        loader = gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS)
        found, _ = accelerator.prepare(loader, torch.nn.Linear(1, 1))
        assert found is loader
        accelerator.register_for_checkpointing(found)
        return accelerator, found

    with prepared()[1] as loader:
        whole = small.epochs_of(loader)
    assert len(whole) == 9

    def run(count: int) -> list[small.Bytes]:
        accelerator, loader = prepared()
        found: list[small.Bytes] = []
        with loader:
            for _ in range(small.EPOCHS):
                for batch in loader:
                    found.append(small.bytes_of(batch))
                    if len(found) == count:
                        accelerator.save_state(str(tmp_path))
                        return found
        raise AssertionError("it ended too early")

    def rest() -> list[small.Bytes]:
        accelerator, loader = prepared()
        with loader:
            accelerator.load_state(str(tmp_path))
            return small.epochs_of(loader)

    small.resumes_everywhere(whole, run, rest)
