"""Lightning's test_fit_loop_save_and_restore_dataloaders, restated: no package on PyPI has its tests.

It trains for two steps, saves a checkpoint, and trains from it for two more, with stateful loaders of ours.
"""

import lightning
import torch
from lightning.pytorch.utilities import CombinedLoader

import gristmill.lightning as gm_lightning
import gristmill.torch as gm_torch

from .ground import case, equal

STEPS = 2


class Model(lightning.LightningModule):
    """Notes the integers that it is trained on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, index):
        batches = batch if isinstance(batch, list) else [batch]
        self.seen.append([one["value"].tolist() for one in batches])
        return self.layer(batches[0]["value"].float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)


class Stateless:
    """A loader that Lightning cannot save."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)


def fit(data, steps, path, checkpoint=None):
    """What a model was trained on, and the trainer."""
    quiet = dict.fromkeys(("enable_checkpointing", "enable_model_summary", "enable_progress_bar", "logger"), False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, default_root_dir=path, max_steps=steps, num_sanity_val_steps=0, **quiet
    )
    model = Model()
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=checkpoint and True)
    return model.seen, trainer


def check(ground, make, stateless=()):
    """The second fit begins where the first one ended; a loader without state begins anew."""
    path = ground.path()
    seen, trainer = fit(make(), STEPS, path)
    trainer.save_checkpoint(path / "checkpoint.ckpt")
    saved = torch.load(path / "checkpoint.ckpt")
    is_saved = "combined_loader" in saved["loops"]["fit_loop"]["state_dict"]
    assert is_saved or "DataModule" in saved, "the checkpoint has no state of the loader"
    whole, _ = fit(make(), 2 * STEPS, path)
    equal(seen, whole[:STEPS], "batches before the checkpoint")
    after, _ = fit(make(), 2 * STEPS, path, path / "checkpoint.ckpt")
    expected = [
        [whole[step - STEPS if place in stateless else step][place] for place in range(len(whole[step]))]
        for step in range(STEPS, 2 * STEPS)
    ]
    equal(after, expected, "batches after the checkpoint")


def loader(ground, seed=0, is_sized=True):
    pipeline = ground.pipeline(100, 8, shuffled=True, is_sized=is_sized)
    return ground.keep(gm_torch.Loader(pipeline, service=ground.service, seed=seed))


def module(ground, is_sized):
    pipeline = ground.pipeline(100, 8, shuffled=True, is_sized=is_sized)
    return ground.keep(gm_lightning.DataModule(pipeline, service=ground.service))


def combined(ground, is_sized):
    check(ground, lambda: CombinedLoader(loader(ground, is_sized=is_sized)))


def several(ground, is_sized):
    check(ground, lambda: CombinedLoader([loader(ground, seed, is_sized) for seed in (3, 1)]))


def mixed(ground):
    def make():
        one, two, three = (loader(ground, seed) for seed in (3, 1, 2))
        return CombinedLoader([Stateless(one), two, Stateless(three)])

    check(ground, make, stateless=(0, 2))


for name, sized in (("sized", True), ("not_sized", False)):
    case("lightning", name, "loader", lambda g, s=sized: check(g, lambda: loader(g, is_sized=s)))
    case("lightning", name, "CombinedLoader", lambda g, s=sized: combined(g, s))
    case("lightning", name, "several_loaders", lambda g, s=sized: several(g, s))
    case("lightning", name, "DataModule", lambda g, s=sized: check(g, lambda: module(g, s)))
case("lightning", "sized", "some_without_state", mixed)
