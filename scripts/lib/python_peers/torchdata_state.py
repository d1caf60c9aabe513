"""torchdata's test_state_dict.py, restated: it is in no package on PyPI. Its factories of loaders are replaced by ours.

Names of cases are torchdata's, less `TestStatefulDataLoader` and `Test`. Cases for processes are run with none, as ours
have none, except those two that say so: they must be refused. Cases for map datasets and samplers are left out where
they differ from others in nothing else: a pipeline is neither.
"""

import itertools
import json

import torch.utils.data
from torchdata.stateful_dataloader import StatefulDataLoader

import gristmill.torch as gm_torch

from .ground import case, equal, values

RECORDS = 137
INTERRUPTS = (0, 1, 10)


class Factory:
    """Makes loaders of one kind over the same records."""

    def __init__(self, ground, kind, *, workers=0, batch=1, shuffled=False, snapshot_every=1):
        self.ground, self.kind, self.workers, self.snapshot_every = ground, kind, workers, snapshot_every
        self.pipeline = ground.pipeline(RECORDS, batch, shuffled=shuffled)

    def __call__(self):
        options = {"service": self.ground.service}
        if self.kind == "Loader":
            return self.ground.keep(gm_torch.Loader(self.pipeline, **options))
        dataset = self.ground.keep(gm_torch.Dataset(self.pipeline, **options))
        return self.stateful(dataset)

    def stateful(self, dataset):
        return StatefulDataLoader(
            dataset, batch_size=None, num_workers=self.workers, snapshot_every_n_steps=self.snapshot_every
        )


class Stateless(torch.utils.data.IterableDataset):
    """A dataset without states: torchdata passes over what came before."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)


def take(iterator, count):
    return values(itertools.islice(iterator, count))


def rest_is_restored(make, interrupt, *, through=lambda state: state):
    """Interrupts a loader, and goes on in a new one."""
    loader = make()
    iterator = iter(loader)
    take(iterator, interrupt)
    state = through(loader.state_dict())
    expected = values(iterator)
    loader = make()
    loader.load_state_dict(state)
    equal(values(loader), expected, f"after {interrupt} batches")


def no_mp(ground, kind, **options):
    for batch, interrupt in itertools.product((1, 7), INTERRUPTS):
        rest_is_restored(Factory(ground, kind, batch=batch, **options), interrupt)


def every_n_steps(ground, kind, **options):
    for every, interrupt in itertools.product((2, 5), INTERRUPTS):
        rest_is_restored(Factory(ground, kind, batch=7, snapshot_every=every, **options), interrupt)


def random_state(ground, kind):
    for interrupt in INTERRUPTS:
        rest_is_restored(Factory(ground, kind, batch=7, shuffled=True), interrupt)


def whole_is_restored(ground, kind, is_stateless=False):
    """What came before a state and what comes after it are all batches; also at the end."""
    for batch, interrupt in itertools.product((1, 7), (*INTERRUPTS, None)):
        make = Factory(ground, kind, batch=batch)
        if is_stateless:
            dataset_of = make

            def make(dataset_of=dataset_of):
                return dataset_of.stateful(Stateless(dataset_of().dataset))

        expected = values(make())
        count = len(expected) if interrupt is None else interrupt
        loader = make()
        found = take(iter(loader), count)
        state = loader.state_dict()
        equal(found, expected[:count], "batches before the state")
        loader = make()
        loader.load_state_dict(state)
        equal(found + values(loader), expected, f"all batches, interrupted after {count}")


def generator(ground, kind):
    whole_is_restored(ground, kind)


def generator_without_state(ground, kind):
    whole_is_restored(ground, kind, is_stateless=True)


def snapshot_zero(ground, kind, shuffled=False):
    """Back to a state before the first batch, in the same loader."""
    loader = Factory(ground, kind, batch=4, shuffled=shuffled, snapshot_every=10)()
    iterator = iter(loader)
    state = loader.state_dict()
    expected = values(iterator)
    loader.load_state_dict(state)
    equal(values(loader), expected, "from the first batch on")


def snapshot_zero_shuffled(ground, kind):
    snapshot_zero(ground, kind, shuffled=True)


def interrupted_shuffle(ground, kind):
    """Back to a later state and then to an earlier one, in the same loader."""
    for every in (1, 15):
        loader = Factory(ground, kind, batch=13, shuffled=True, snapshot_every=every)()
        iterator = iter(loader)
        first = loader.state_dict()
        expected = take(iterator, 4)
        second = loader.state_dict()
        loader.load_state_dict(second)
        expected += values(loader)
        loader.load_state_dict(first)
        equal(values(loader), expected, "from the first batch on")


def snapshot_end(ground, kind):
    """The same order in each epoch: an epoch follows the end of another, in this loader and in a new one."""
    for batch in (1, 4):
        make = Factory(ground, kind, batch=batch, snapshot_every=10)
        loader = make()
        expected = values(loader)
        state = loader.state_dict()
        equal(values(loader), expected, "the next epoch")
        loader = make()
        take(iter(loader), 2)
        loader.load_state_dict(state)
        equal(values(loader), expected, "the epoch after the state")


def snapshot_end_shuffled(ground, kind):
    """Another order in each epoch: that of the second one follows the end of the first."""
    for batch in (1, 4):
        make = Factory(ground, kind, batch=batch, shuffled=True, snapshot_every=10)
        loader = make()
        first = values(loader)
        state = loader.state_dict()
        expected = values(loader)
        assert first != expected, "both epochs have the same order"
        loader = make()
        loader.load_state_dict(state)
        equal(values(loader), expected, "the epoch after the state")


def workers_mismatch(ground, kind):
    """A state taken without workers is refused with some."""
    loader = Factory(ground, kind)()
    iter(loader)
    state = loader.state_dict()
    loader = Factory(ground, kind, workers=3)()
    loader.load_state_dict(state)
    try:
        iter(loader)
    except AssertionError:
        return
    raise RuntimeError("a state of other workers was taken")


def two_dataloaders(ground, kind):
    make = Factory(ground, kind, batch=7)
    expected = values(make())
    plain = torch.utils.data.DataLoader(
        ground.keep(gm_torch.Dataset(make.pipeline, service=ground.service)), batch_size=None
    )
    equal(values(plain), expected, "torch's DataLoader")


def fast_request(ground, kind, snapshot_every, interrupt):
    """A state soon after another one was loaded."""
    loader = Factory(ground, kind, batch=4, shuffled=True, snapshot_every=snapshot_every)()
    iterator = iter(loader)
    take(iterator, interrupt)
    state = loader.state_dict()
    take(iterator, 2)
    expected = values(iterator)
    loader.load_state_dict(state)
    take(iter(loader), 2)
    state = loader.state_dict()
    loader = Factory(ground, kind, batch=4, shuffled=True)()
    loader.load_state_dict(state)
    equal(values(loader), expected, "after the second state")


def json_serde(ground, kind, shuffled=False):
    make = Factory(ground, kind, shuffled=shuffled)

    def second_epoch():
        loader = make()
        if not seen:
            values(loader)
            seen.append(loader)
        return loader

    seen = []
    rest_is_restored(second_epoch, 4, through=lambda state: json.loads(json.dumps(state)))


BOTH = {
    "Iterable.test_no_mp": no_mp,
    "Iterable.test_random_state": random_state,
    "Generator.test_no_mp": generator,
    "SnapshotZero.test_generator": snapshot_zero,
    "SnapshotZero.test_iterable": snapshot_zero_shuffled,
    "SnapshotZero.test_map_iterrupted_shuffle": interrupted_shuffle,
    "SnapshotEnd.test_generator": snapshot_end,
    "SnapshotEnd.test_iterable": snapshot_end_shuffled,
    "ConcurrentDataLoaders.test_two_dataloaders": two_dataloaders,
    "FastStateDictRequest.test_fast_state_dict_request": lambda *of: fast_request(*of, 1, 11),
    "FastStateDictRequest.test_fast_state_dict_request_skip_steps": lambda *of: fast_request(*of, 17, 19),
    "JsonSerDe.test_json_serde_single_process": json_serde,
    "JsonSerDe.test_json_serde_single_process_map": lambda *of: json_serde(*of, shuffled=True),
}
STATEFUL = {
    "NumWorkersMismatch.test_num_workers_mismatch": workers_mismatch,
    "GeneratorNoState.test_no_mp": generator_without_state,
    "Iterable.test_mp_x": lambda *of: no_mp(*of, workers=3),
    "Iterable.test_mp_every_n_steps": lambda *of: every_n_steps(*of, workers=3),
}


def _add(kind, cases):
    for name, function in cases.items():
        case("torchdata", kind, name, lambda ground, function=function: function(ground, kind))


_add("Loader", BOTH)
_add("StatefulDataLoader", BOTH | STATEFUL)
