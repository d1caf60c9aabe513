"""A loader says why it has no batch, or waits; batches that are given again are marked."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gristmill as gm


def lines(directory: Path, count: int) -> gm.Pipeline:
    path = directory / f"{count}.jsonl"
    path.write_text("".join(f'{{"id": {n}}}\n' for n in range(count)))
    return gm.jsonl(path, id=gm.i64())


@pytest.mark.parametrize("workers", [{"workers": 0}, {"workers": 0, "local_workers": 2}, {"workers": 1}])
def test_no_workers_means_one_of_this_process(tmp_path: Path, service: gm.Service, workers: dict[str, Any]) -> None:
    with gm.numpy.Loader(lines(tmp_path, 50).batch(10), service=service, epochs=1, **workers) as loader:
        assert len(list(loader)) == 5


def test_a_joiner_of_a_job_without_workers_works(tmp_path: Path, service: gm.Service) -> None:
    pipeline = lines(tmp_path, 50).batch(10)
    first = gm.numpy.Loader(pipeline, service=service, job="no-workers", epochs=1, workers=0)
    state = first.state_dict()
    first.close(abandon=True)
    with gm.numpy.Loader(pipeline, service=service, job="no-workers") as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 5


def test_no_workers_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(gm.OptionError, match="leave nobody to work"):
        gm.numpy.Loader(lines(tmp_path, 50).batch(10), workers=0, local_workers=0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: p(0).batch(4), "the dataset has no records"),
        (lambda p: p(20).skip(20).batch(4), "`take`, `skip` or `shard` leaves none"),
        (lambda p: p(20).filter(field="id", min=99).batch(4), "dropped all 20 records"),
        (lambda p: p(3).batch(4, drop_remainder=True), "fewer than a batch"),
    ],
    ids=["no record", "skip", "filter", "remainder"],
)
def test_an_epoch_without_batches_is_an_error_unless_it_is_meant(
    tmp_path: Path, service: gm.Service, make: Any, why: str
) -> None:
    pipeline = make(lambda count: lines(tmp_path, count))
    with gm.numpy.Loader(pipeline, service=service, epochs=2) as loader, pytest.raises(gm.OptionError, match=why):
        list(loader)
    with gm.numpy.Loader(pipeline, service=service, epochs=2, allow_empty=True) as loader:
        assert [list(loader), list(loader)] == [[], []]
        assert loader.epoch == 2


def test_epochs_that_are_over_are_said(tmp_path: Path, service: gm.Service, caplog: pytest.LogCaptureFixture) -> None:
    with gm.numpy.Loader(lines(tmp_path, 20).batch(10), service=service, epochs=1) as loader:
        assert len(list(loader)) == 2
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            assert list(loader) == []
    assert "the epochs of this loader are over, all 1," in caplog.text


def run_ranks(pipeline: gm.Pipeline, service: gm.Service, tail: str, run: str, **options: Any) -> list[Any]:
    """The batches of each rank, or its error."""
    found: list[Any] = [None] * options.pop("count", 2)

    def read(rank: int) -> None:
        ranks = {"rank": rank, "world_size": len(found), "run": run, "tail": tail, "job": run}
        loader = gm.numpy.Loader(pipeline, service=service, epochs=1, keys=True, **ranks, **options)
        try:
            found[rank] = [(batch, loader.is_repeat) for batch in loader]
        except gm.Error as error:
            found[rank] = error
        loader.close(abandon=isinstance(found[rank], Exception))

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_batches_that_are_given_again_are_marked(tmp_path: Path, service: gm.Service) -> None:
    """Without them, the ranks have each record once."""
    found = run_ranks(lines(tmp_path, 50).batch(10), service, "repeat", "marks", count=3)
    marked = [(batch["__repeat__"], is_repeat) for batches in found for batch, is_repeat in batches]
    assert len(marked) == 6 and sum(is_repeat for _, is_repeat in marked) == 1
    assert all(np.array_equal(mark, np.full(10, is_repeat)) for mark, is_repeat in marked)
    ids = [batch["id"][~batch["__repeat__"]] for batches in found for batch, _ in batches]
    assert sorted(np.concatenate(ids)) == list(range(50))


def test_ranks_that_outnumber_the_batches_are_reported(tmp_path: Path, service: gm.Service) -> None:
    found = run_ranks(lines(tmp_path, 10).batch(10), service, "drop", "outnumber")
    assert all(isinstance(error, gm.OptionError) for error in found), found
    assert 'its 1 batches are fewer than the 2 ranks, and tail="drop"' in str(found[0])
    found = run_ranks(lines(tmp_path, 10).batch(10), service, "drop", "outnumber-2", allow_empty=True)
    assert found == [[], []]


def test_a_rank_without_its_peers_raises_after_its_patience(tmp_path: Path, service: gm.Service) -> None:
    """As one that has made a loader more than they have."""
    # A rank gets all batches of a dataset of one split without its peers.
    ranks: dict[str, Any] = {"world_size": 2, "run": "alone", "patience": "3s", "split_batches": 1}
    pipeline = lines(tmp_path, 2000).batch(10)
    for rank in (0, 1):
        loader = gm.numpy.Loader(pipeline, service=service, epochs=1, seed=rank, rank=rank, **ranks)
        with pytest.raises(gm.JobError, match=rf"rank {1 - rank} of 2 has no reader yet, for 3 s: all ranks"):
            list(loader)
        loader.close(abandon=True)


@pytest.mark.parametrize("classes", [None, ["ant", "bee", "cat"], "train"])
def test_a_class_without_an_image_keeps_its_label(tmp_path: Path, service: gm.Service, classes: Any) -> None:
    labels = {}
    for part, empty in (("train", None), ("val", 1)):
        for number, name in enumerate(("ant", "bee", "cat")):
            folder = tmp_path / part / name
            if number == empty and classes is not None:
                continue
            folder.mkdir(parents=True)
            if number != empty:
                (folder / "1.ppm").write_bytes(b"P6 2 2 255\n" + bytes([number] * 12))
        given = None if classes is None else tmp_path / classes if isinstance(classes, str) else classes
        pipeline = gm.images(tmp_path / part, classes=given).decode().center_crop(2).batch(1)
        with gm.numpy.Loader(pipeline, service=service, epochs=1) as loader:
            labels[part] = {int(b["image"][0, 0, 0, 0]): int(b["label"][0]) for b in loader}
    assert labels == {"train": {0: 0, 1: 1, 2: 2}, "val": {0: 0, 2: 2}}
