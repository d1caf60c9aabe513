"""Ways through the epochs of a job: `break`, `set_epoch`, other states, other iterators."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import small
from places import Cursor, bytes_of, cursor_of, flat, place

import gristmill as gm

EPOCHS = small.EPOCHS
KINDS = [small.SIZED, small.UNSIZED]


def places(loader: gm.numpy.Loader) -> list[Cursor]:
    return [cursor_of(batch) for batch in loader]


def epoch_places(epoch: int, begin: int = 0) -> list[Cursor]:
    return [(epoch, g) for g in range(begin + 1, 4)]


@pytest.fixture(params=KINDS)
def loader(request: pytest.FixtureRequest, numbers_dir: Path, service: gm.Service) -> Any:
    """Three epochs of three batches, with cursors."""
    pipeline = small.pipeline(numbers_dir, request.param)
    with gm.numpy.Loader(pipeline, service=service, epochs=EPOCHS, keys=True) as loader:
        yield loader


def stop_after(loader: gm.numpy.Loader, count: int) -> None:
    for batch, _ in zip(loader, range(count), strict=False):
        if cursor_of(batch)[1] == count:
            return
    raise AssertionError("the epoch has fewer batches")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_after_a_break_comes_the_next_epoch(loader: gm.numpy.Loader, count: int) -> None:
    stop_after(loader, count)
    assert loader.epoch == 1 and place(loader.state_dict()) == (0, count)
    assert places(loader) == epoch_places(1)
    stop_after(loader, count)
    assert loader.epoch == 3 and places(loader) == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_after_a_break_the_epoch_goes_on(numbers_dir: Path, service: gm.Service, count: int) -> None:
    pipeline = small.pipeline(numbers_dir, small.UNSIZED)
    with gm.numpy.Loader(pipeline, service=service, epochs=2, keys=True, on_break="continue") as loader:
        stop_after(loader, count)
        assert loader.epoch == 0
        assert places(loader) == epoch_places(0, count)
        assert places(loader) == epoch_places(1)
        assert places(loader) == []


def test_set_epoch_goes_forward(loader: gm.numpy.Loader) -> None:
    loader.set_epoch(0)
    stop_after(loader, 2)
    loader.set_epoch(2)
    assert loader.epoch == 2 and place(loader.state_dict()) == (2, 0)
    assert places(loader) == epoch_places(2)
    loader.set_epoch(3)
    assert places(loader) == []


def test_set_epoch_each_epoch_as_samplers_want_it(loader: gm.numpy.Loader) -> None:
    found = []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        found += places(loader)
    assert found == flat(epoch_places(epoch) for epoch in range(EPOCHS))


def test_states_are_taken_before_their_epoch_is_read(numbers_dir: Path, service: gm.Service) -> None:
    """The service knows nothing of the batches before them yet, so `close` must not wait for that."""
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    loader = gm.numpy.Loader(pipeline, service=service, epochs=EPOCHS, keys=True, patience="20s")
    loader.state_dict()
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        loader.checkpointed(loader.state_dict())
    loader.close()
    with gm.numpy.Loader(pipeline, service=service, epochs=EPOCHS, keys=True) as loader:
        loader.set_epoch(1)
        loader.state_dict()
        assert places(loader) == epoch_places(1)


def test_set_epoch_does_not_go_back(loader: gm.numpy.Loader) -> None:
    assert places(loader) == epoch_places(0)
    with pytest.raises(gm.OptionError, match=r"set_epoch\(0\): the loader is in epoch 1"):
        loader.set_epoch(0)
    stop_after(loader, 1)
    with pytest.raises(gm.OptionError, match="epochs go forward"):
        loader.set_epoch(0)
    assert loader.epoch == 2 and places(loader) == epoch_places(2)


def test_a_resumed_epoch_is_set_once_more(loader: gm.numpy.Loader) -> None:
    """Loops call `set_epoch(epoch)` for the epoch that they resume."""
    stop_after(loader, 2)
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(0)
    assert places(loader) == epoch_places(0, 2)


def test_a_state_is_loaded_during_an_iteration(loader: gm.numpy.Loader) -> None:
    batches = iter(loader)
    first = bytes_of(next(batches))
    state = loader.state_dict()
    second = bytes_of(next(batches))
    next(batches)
    loader.load_state_dict(state)
    with pytest.raises(gm.Error, match="this iteration is over"):
        next(batches)
    again = [bytes_of(batch) for batch in loader]
    assert again[0] == second != first and len(again) == 2
    assert places(loader) == epoch_places(1)


def test_a_second_iteration_ends_the_first(loader: gm.numpy.Loader) -> None:
    first = iter(loader)
    assert cursor_of(next(first)) == (0, 1)
    second = iter(loader)
    assert cursor_of(next(second)) == (1, 1)
    with pytest.raises(gm.Error, match="this iteration is over"):
        next(first)
    assert [cursor_of(batch) for batch in second] == epoch_places(1, 1)


def test_a_state_of_a_job_of_another_loader(numbers_dir: Path, service: gm.Service) -> None:
    """A loader that has begun leaves its own job for that of the state."""
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    options: dict[str, Any] = {"service": service, "epochs": EPOCHS, "seed": 3, "keys": True}
    left = gm.numpy.Loader(pipeline, **options)
    whole = [bytes_of(batch) for batch in left]
    other = gm.numpy.Loader(pipeline, **options)
    next(iter(other))
    left.load_state_dict(other.state_dict())
    assert left.job == other.job
    assert [bytes_of(batch) for batch in left] == whole[1:] and len(whole) == 3
    other.close(abandon=True)
    left.close()


def test_a_second_reader_takes_the_job(images_dir: Path, service: gm.Service) -> None:
    pipeline = gm.tfrecord(images_dir / "train-*", image=gm.bytes("image/encoded")).decode().resize(size=256)
    options: dict[str, Any] = {"service": service, "epochs": 1, "job": "two-readers", "prefetch_mib": 3}
    first = gm.numpy.Loader(pipeline.batch(size=10), **options)
    batches = iter(first)
    next(batches)
    with gm.numpy.Loader(pipeline.batch(size=10), **options) as second:
        rows = sum(len(batch["image"]) for batch in second)
        with pytest.raises(gm.JobError, match="another trainer reads this job now"):
            for _ in batches:
                pass
    assert rows in (190, 200)
    first.close()


def test_pickling_keeps_the_place(loader: gm.numpy.Loader) -> None:
    batches = iter(loader)
    next(batches)
    copy = pickle.loads(pickle.dumps(loader))
    assert (copy.epoch, copy.cursor, copy.epochs) == (0, (0, 1), EPOCHS)
    rest = [bytes_of(batch) for batch in batches]
    loader.close(abandon=True)
    with copy:
        assert places(copy) == epoch_places(0, 1)
    assert len(rest) == 2


def test_a_named_job_goes_on_where_its_trainer_was(numbers_dir: Path, service: gm.Service) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    first = gm.numpy.Loader(pipeline, service=service, epochs=2, job="on", keys=True)
    assert places(first) == epoch_places(0)
    first.close()
    with gm.numpy.Loader(pipeline, service=service, epochs=2, job="on", keys=True) as again:
        assert again.epoch == 1
        assert places(again) == epoch_places(1)
