"""States of `gristmill.numpy.Loader`: from each place of a job the rest follows, with equal bytes."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import small
from places import Cursor, bytes_of, cursor_of, flat, place

import gristmill as gm

EPOCHS = small.EPOCHS
KINDS = [small.SIZED, small.UNSIZED]
# Batches of an epoch of `augmented`.
COUNT = 13


def augmented(images_dir: Path, kind: str) -> gm.Pipeline:
    """13 batches of 16 images, in each epoch in another order and cropped otherwise; a filter leaves some out."""
    image, label = gm.bytes("image/encoded"), gm.i64("image/class/label")
    source = gm.tfrecord(images_dir / "train-*", image=image, label=label).shuffle()
    if kind == small.UNSIZED:
        source = source.filter(field="label", min=3)
    return source.decode().random_resized_crop(size=24).flip().batch(size=16)


def by_epochs(loader: gm.numpy.Loader, epochs: int) -> list[list[small.Bytes]]:
    return [[bytes_of(batch) for batch in loader] for _ in range(epochs)]


class Whole:
    """A job that was read to its end: its batches by epoch, and the state at each place of it."""

    def __init__(self, loader: gm.numpy.Loader) -> None:
        self.epochs: list[list[small.Bytes]] = []
        self.keys: list[Counter[int]] = []
        self.states = [loader.state_after((0, 0))]
        for epoch in range(EPOCHS):
            batches, keys = [], Counter[int]()
            for batch in loader:
                batches.append(bytes_of(batch))
                keys.update(batch["__key__"].tolist())
                self.states.append(loader.state_after(cursor_of(batch)))
            self.epochs.append(batches)
            self.keys.append(keys)
            self.states.append(loader.state_after((epoch + 1, 0)))

    def rest(self, at: Cursor) -> list[list[small.Bytes]]:
        """What the iterations from `at` on deliver."""
        epoch, g = at
        if epoch == EPOCHS:
            return []
        return [self.epochs[epoch][g:], *self.epochs[epoch + 1 :]]


def read(pipeline: gm.Pipeline, service: gm.Service, **options: Any) -> Whole:
    with gm.numpy.Loader(
        pipeline, service=service, epochs=EPOCHS, seed=5, keys=True, acknowledge="state", **options
    ) as loader:
        return Whole(loader)


@pytest.mark.parametrize("kind", KINDS)
def test_from_each_place_the_rest_follows(images_dir: Path, service: gm.Service, kind: str) -> None:
    pipeline = augmented(images_dir, kind)
    options: dict[str, Any] = {"service": service, "epochs": EPOCHS, "seed": 5, "keys": True}
    with gm.numpy.Loader(pipeline, acknowledge="state", **options) as first:
        whole = Whole(first)
        counts = {len(batches) for batches in whole.epochs}
        assert counts == ({COUNT} if kind == small.SIZED else {len(whole.epochs[0])}) and max(counts) > 5
        # Each record once an epoch, and the epochs differ.
        assert whole.keys[0] == whole.keys[1] == whole.keys[2] and set(whole.keys[0].values()) == {1}
        assert len({json.dumps([sorted(map(hash, b.values())) for b in e]) for e in whole.epochs}) == EPOCHS
        states = whole.states
        # In this order: going on from a state says that it is stored, so that earlier ones may be forgotten.
        for state in states:
            at = place(state)
            loader = gm.numpy.Loader(pipeline, **options)
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert (loader.epoch, loader.cursor) == (at[0], at)
            assert by_epochs(loader, EPOCHS - at[0]) == whole.rest(at), f"from {at}"
            assert list(loader) == []
            loader.close(abandon=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_for_each_batch(images_dir: Path, service: gm.Service, kind: str) -> None:
    pipeline = augmented(images_dir, kind)
    whole = read(pipeline, service)
    state, found = None, []
    while state is None or state["epoch"] < EPOCHS:
        loader = gm.numpy.Loader(pipeline, service=service, epochs=EPOCHS, seed=5, keys=True)
        if state is not None:
            loader.load_state_dict(state)
        batch = next(iter(loader), None)
        if batch is not None:
            found.append(bytes_of(batch))
            state = loader.state_dict()
        else:
            # The end of an epoch: nothing was left of it.
            assert state is not None
            ended = state["epoch"]
            state = loader.state_dict()
            assert place(state) == (ended + 1, 0)
        loader.close(abandon=True)
    assert found == flat(whole.epochs)


def test_services_that_follow_each_other(images_dir: Path, tmp_path: Path, service: gm.Service) -> None:
    pipeline = augmented(images_dir, small.UNSIZED)
    whole = flat(read(pipeline, service).epochs)
    found: list[small.Bytes] = []
    state: dict[str, Any] | None = None
    for count in (7, len(whole) // EPOCHS - 7, 9, len(whole)):
        with gm.local(state_dir=tmp_path) as own:
            loader = gm.numpy.Loader(pipeline, service=own, epochs=EPOCHS, seed=5, keys=True)
            if state is not None:
                loader.load_state_dict(state)
            wanted = min(len(found) + count, len(whole))
            while len(found) < wanted:
                for batch in loader:
                    found.append(bytes_of(batch))
                    if len(found) == wanted:
                        state = loader.state_dict()
                        break
            loader.close(abandon=True)
    assert found == whole


def test_places_that_states_name(numbers_dir: Path, service: gm.Service) -> None:
    with gm.numpy.Loader(small.pipeline(numbers_dir, small.SIZED), service=service, epochs=2, seed=9) as loader:
        assert len(loader) == 3 and loader.epochs == 2
        state = loader.state_dict()
        assert set(state) == {"version", "job", "fingerprint", "seed", "split_batches", "epoch", "g"}
        assert (state["version"], state["job"], state["seed"]) == (2, loader.job, 9) and place(state) == (0, 0)
        assert all(type(value) in (str, int) for value in state.values())
        for epoch in range(2):
            assert loader.epoch == epoch
            within = [place(loader.state_dict()) for _ in loader]
            assert within == [(epoch, 1), (epoch, 2), (epoch, 3)]
            assert place(loader.state_dict()) == (epoch + 1, 0)
        assert list(loader) == [] and place(loader.state_dict()) == (2, 0)


def test_len_is_not_known_behind_a_filter(numbers_dir: Path, service: gm.Service) -> None:
    with (
        gm.numpy.Loader(small.pipeline(numbers_dir, small.UNSIZED), service=service, epochs=1) as loader,
        pytest.raises(TypeError, match="not known in advance: operators"),
    ):
        len(loader)


def test_a_state_after_the_last_batch_has_nothing_left(numbers_dir: Path, service: gm.Service) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    with gm.numpy.Loader(pipeline, service=service, epochs=2) as loader:
        states = [loader.state_dict() for _ in loader]
        rest = by_epochs(loader, 1)
        assert place(states[-1]) == (0, 3)
        loader.load_state_dict(states[-1])
        assert loader.epoch == 0
        assert by_epochs(loader, 2) == [[], *rest] and len(rest[0]) == 3


@pytest.mark.parametrize("stays", [True, False])
def test_a_done_job_goes_on_at_any_state(numbers_dir: Path, service: gm.Service, stays: bool) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    name = f"done-{stays}".lower()
    with gm.numpy.Loader(pipeline, service=service, epochs=2, job=name) as loader:
        states = [loader.state_dict()]
        whole = []
        for _ in range(2):
            for batch in loader:
                whole.append(bytes_of(batch))
                states.append(loader.state_dict())
        for at in (1, 5, 0, 4) if stays else ():
            loader.load_state_dict(states[at])
            assert [bytes_of(batch) for _ in range(loader.epoch, 2) for batch in loader] == whole[at:]
    for at in (3, 6, 0, 2):
        with gm.numpy.Loader(pipeline, service=service, epochs=2, job=name) as loader:
            loader.load_state_dict(states[at])
            assert [bytes_of(batch) for _ in range(loader.epoch, 2) for batch in loader] == whole[at:]


# Refusals.


@pytest.fixture(scope="module")
def taken(numbers_dir: Path, service: gm.Service) -> dict[str, Any]:
    """The state after one of three batches of the job `taken`, seed 3."""
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    loader = gm.numpy.Loader(pipeline, service=service, epochs=2, seed=3, job="taken")
    next(iter(loader))
    state = loader.state_dict()
    loader.close(abandon=True)
    return state


def refused(loader: gm.numpy.Loader, state: Any) -> str:
    with pytest.raises(gm.CheckpointError) as raised:
        loader.load_state_dict(state)
        next(iter(loader))
    loader.close(abandon=True)
    message = str(raised.value)
    assert message and "\n" not in message
    return message


def test_a_state_of_another_job(numbers_dir: Path, service: gm.Service, taken: dict[str, Any]) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    message = refused(gm.numpy.Loader(pipeline, service=service, epochs=2, seed=3, job="other"), taken)
    assert "job taken" in message and "job other" in message


@pytest.mark.parametrize(
    ("differs", "named"),
    [({"fingerprint": "0" * 64}, "pipeline"), ({"seed": 4}, "seed")],
)
def test_a_state_of_other_batches(
    numbers_dir: Path, service: gm.Service, taken: dict[str, Any], differs: dict[str, Any], named: str
) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    message = refused(gm.numpy.Loader(pipeline, service=service, epochs=2, seed=3), {**taken, **differs})
    assert named in message


@pytest.mark.parametrize("change", ["pipeline", "seed", "batch_size"])
def test_a_loader_of_other_batches(numbers_dir: Path, service: gm.Service, taken: dict[str, Any], change: str) -> None:
    pipeline = small.pipeline(numbers_dir, small.UNSIZED if change == "pipeline" else small.SIZED)
    seed, batch_size = 4 if change == "seed" else 3, 4 if change == "batch_size" else None
    loader = gm.numpy.Loader(pipeline, service=service, epochs=2, seed=seed, batch_size=batch_size)
    with pytest.raises(gm.Error) as raised:
        loader.load_state_dict(taken)
        next(iter(loader))
    loader.close(abandon=True)
    message = str(raised.value)
    differs = {"pipeline": "saved with pipeline", "seed": "saved with seed 3", "batch_size": "saved with batch size 8"}
    assert differs[change] in message and "\n" not in message


def test_a_state_that_is_none(numbers_dir: Path, service: gm.Service, taken: dict[str, Any]) -> None:
    def loader() -> gm.numpy.Loader:
        return gm.numpy.Loader(small.pipeline(numbers_dir, small.SIZED), service=service, epochs=2, seed=3)

    assert "version 1" in refused(loader(), {**taken, "version": 1})
    assert "no state" in refused(loader(), {"epoch": 0})
    assert "no state" in refused(loader(), [1])
    assert "more" in refused(loader(), {**taken, "more": 1})
    assert "neither text nor integer" in refused(loader(), {**taken, "g": None})
    assert refused(loader(), {**taken, "epoch": -1})
    assert refused(loader(), {**taken, "epoch": 7})
    assert refused(loader(), {**taken, "fingerprint": "no hash"})


def wait_until_durable(service: gm.Service, job: str, at: Cursor) -> None:
    deadline = time.monotonic() + 20
    while (durable := service._native.join(job).durable()) < at:
        assert time.monotonic() < deadline, f"the service knows of {durable}, not of {at}"
        time.sleep(0.02)


@pytest.mark.parametrize("is_named", [True, False])
def test_two_states_are_kept(
    numbers_dir: Path, service: gm.Service, is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).batch(size=8)
    options: dict[str, Any] = {"service": service, "epochs": 1, "split_batches": 1}
    with gm.numpy.Loader(pipeline, **options) as loader:
        whole = [bytes_of(batch) for batch in loader]
    options["job"] = "keeps-two" if is_named else None
    loader = gm.numpy.Loader(pipeline, **options)
    states: list[dict[str, Any]] = []
    for batch in loader:
        assert bytes_of(batch) == whole[len(states)]
        states.append(loader.state_dict())
        if len(states) == 100:
            break
    job = loader.job
    wait_until_durable(service, job, (0, 99))
    assert service._native.join(job).durable() == (0, 99)
    loader.close(abandon=True)
    for count in (99, 100):
        again = gm.numpy.Loader(pipeline, **options)
        again.load_state_dict(states[count - 1])
        assert [bytes_of(batch) for batch in again] == whole[count:] and again.job == job
        again.close(abandon=True)
    assert not caplog.records
    again = gm.numpy.Loader(pipeline, **options)
    # Splits that were deleted behind the last states are computed again.
    again.load_state_dict(states[0])
    assert [bytes_of(batch) for batch in again] == whole[1:] and again.job == job
    again.close()
    assert "computed here again" in caplog.text


def test_a_stored_state_is_acknowledged_at_once(numbers_dir: Path, service: gm.Service) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    with gm.numpy.Loader(pipeline, service=service, epochs=1) as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert service._native.join(loader.job).durable() == (0, 0)
        loader.checkpointed(state)
        wait_until_durable(service, loader.job, (0, 1))
        loader.checkpointed(state)
