"""Grain: its own test of checkpoints, transformations, and Orbax."""

import time
from itertools import chain

import numpy as np
import pytest

grain = pytest.importorskip("grain")

import gristmill as gm  # noqa: E402
import gristmill.grain  # noqa: E402

EPOCHS = 3


@pytest.fixture(params=["sized", "not sized"])
def dataset(request, numbers, service):
    options = {"on_error": "skip"} if request.param == "not sized" else {}
    return gm.grain.dataset(numbers, service=service, epochs=EPOCHS, batch_size=96, **options)


def values(iterator):
    return [batch["value"].tolist() for batch in iterator]


def test_grains_own_test(dataset):
    # Grain documents it for authors of datasets, and does not export it.
    testing = pytest.importorskip("grain._src.python.testing.experimental")
    testing.assert_equal_output_after_checkpoint(dataset)


def test_each_element_comes_once_an_epoch(dataset):
    iterator = iter(dataset)
    batches = values(iterator)
    iterator.close()
    count = len(batches) // EPOCHS
    assert [len(batch) for batch in batches] == EPOCHS * ([96] * (count - 1) + [1000 - 96 * (count - 1)])
    for epoch in range(EPOCHS):
        rows = list(chain(*batches[epoch * count : (epoch + 1) * count]))
        assert len(set(rows)) == len(rows) == 1000
    with pytest.raises(ValueError, match="closed"):
        next(iterator)


def test_transformations_keep_the_state(dataset):
    mapped = dataset.map(lambda batch: {"value": batch["value"] * 2}).filter(lambda batch: len(batch["value"]) == 96)
    iterator = iter(mapped)
    whole, states = [], []
    for batch in iterator:
        whole.append(batch["value"].tolist())
        states.append(iterator.get_state())
    for taken in range(0, len(states), 7):
        again = iter(mapped)
        again.set_state(states[taken])
        assert values(again) == whole[taken + 1 :]
        again.close()
    iterator.close()


def test_prefetch_threads(dataset):
    ahead = grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=3)
    iterator = iter(ahead)
    first = [next(iterator)["value"].tolist() for _ in range(5)]
    state = iterator.get_state()
    rest = values(iterator)
    iterator.close()
    again = iter(ahead)
    again.set_state(state)
    assert values(again) == rest
    again.close()
    plain = iter(dataset)
    assert values(plain) == first + rest
    plain.close()


def test_orbax_manager(dataset, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    iterator = iter(dataset)
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in range(4):
            next(iterator)
            args = grain.checkpoint.CheckpointSave(iterator)
            manager.save(step, args=ocp.args.Composite(data=args))
        manager.wait_until_finished()
        rest = values(iterator)
        again = iter(dataset)
        manager.restore(3, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(again)))
        assert values(again) == rest
        again.close()
    iterator.close()


def test_orbax_stateful(dataset, tmp_path):
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    iterator = iter(dataset)
    next(iterator)
    v1.save_checkpointables(tmp_path / "c", {"data": iterator, "weights": {"w": np.ones(3)}})
    rest = values(iterator)
    again = iter(dataset)
    v1.load_checkpointables(tmp_path / "c", {"data": again})
    assert values(again) == rest
    again.close()
    iterator.close()


def test_keep_deletes_older_batches(numbers, service):
    plain = iter(gm.grain.dataset(numbers, service=service, epochs=2, batch_size=96))
    whole = values(plain)
    plain.close()
    dataset = gm.grain.dataset(numbers, service=service, epochs=2, batch_size=96, keep=3)
    iterator = iter(dataset)
    states = []
    for _ in range(15):
        states.append(iterator.get_state())
        next(iterator)
    reached = [(state["epoch"], state["g"]) for state in states]
    deadline = time.monotonic() + 20
    while iterator._loader._reader.job.durable() < reached[12] and time.monotonic() < deadline:
        time.sleep(0.05)
    again = iter(dataset)
    again.set_state(states[12])
    assert values(again) == whole[12:]
    assert again.get_state()["job"] == states[0]["job"]
    # The batches after this one are gone, and computed again.
    again = iter(dataset)
    again.set_state(states[0])
    assert values(again) == whole
    with pytest.raises(gm.OptionError, match="keep"):
        gm.grain.dataset(numbers, keep=-1)
