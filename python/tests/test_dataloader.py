"""`gristmill.torch.Dataset` in DataLoaders of torch and torchdata."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm

torch = pytest.importorskip("torch")
import small  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import gristmill.torch  # noqa: E402


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("kind", [small.SIZED, small.UNSIZED])
def test_stateful_dataloader_resumes_after_each_batch(
    numbers_dir: Path, service: gm.Service, kind: str, device: str | None
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    pipeline = small.pipeline(numbers_dir, kind)

    def dataset() -> gm.torch.Dataset:
        return gm.torch.Dataset(pipeline, service=service, epochs=small.EPOCHS, device=device)

    with gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS) as loader:
        whole = small.epochs_of(loader)
    assert len(whole) == 9
    saved: list[dict[str, Any]] = []

    def run(count: int) -> list[small.Bytes]:
        data = dataset()
        batches = stateful(data, batch_size=None, num_workers=0)
        found: list[small.Bytes] = []
        while len(found) < count:
            for batch in batches:
                found.append(small.bytes_of(batch))
                if len(found) == count:
                    saved.append(batches.state_dict())
                    break
        data.close()
        return found

    def rest() -> list[small.Bytes]:
        data = dataset()
        batches = stateful(data, batch_size=None, num_workers=0)
        batches.load_state_dict(saved[-1])
        found = small.epochs_of(batches)
        data.close()
        return found

    small.resumes_everywhere(whole, run, rest)


def test_a_state_before_the_first_batch(numbers_dir: Path, service: gm.Service) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    whole = small.epochs_of(gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS))
    data = gm.torch.Dataset(pipeline, service=service, epochs=small.EPOCHS)
    state = stateful(data, batch_size=None, num_workers=0).state_dict()
    data.close()
    data = gm.torch.Dataset(pipeline, service=service, epochs=small.EPOCHS)
    batches = stateful(data, batch_size=None, num_workers=0)
    batches.load_state_dict(state)
    assert small.epochs_of(batches) == whole and len(whole) == 9
    data.close()


def test_plain_dataloader(numbers: gm.Pipeline, service: gm.Service) -> None:
    data = gm.torch.Dataset(numbers, service=service, epochs=2)
    batches = DataLoader(data, batch_size=None, num_workers=0)
    assert len(batches) == len(data) == 32
    for _ in range(2):
        assert sorted(torch.cat([batch["value"] for batch in batches]).tolist()) == list(range(1000))
    assert list(batches) == []
    data.close()


def test_len_of_an_unsized_one(numbers_dir: Path, service: gm.Service) -> None:
    data = gm.torch.Dataset(small.pipeline(numbers_dir, small.UNSIZED), service=service, epochs=1)
    batches = DataLoader(data, batch_size=None, num_workers=0)
    with pytest.raises(TypeError, match="not known in advance"):
        len(batches)
    assert [len(batch["value"]) for batch in batches] == [8, 8, 6]
    data.close()


@pytest.mark.parametrize(("context", "is_used"), [("fork", False), ("fork", True), ("spawn", True)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_are_refused(numbers: gm.Pipeline, service: gm.Service, context: str, is_used: bool) -> None:
    data = gm.torch.Dataset(numbers, service=service, epochs=1, device="cpu")
    if is_used:
        next(iter(data))
    batches = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context=context)
    with pytest.raises(gm.OptionError, match="give num_workers=0"):
        next(iter(batches))
    data.close()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_pickling_keeps_the_place(numbers_dir: Path, service: gm.Service, device: str | None) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    whole = small.epochs_of(gm.torch.Loader(pipeline, service=service, epochs=2), 2)
    data = gm.torch.Dataset(pipeline, service=service, epochs=2, device=device, acknowledge="state")
    assert small.bytes_of(next(iter(data))) == whole[0]
    copy = pickle.dumps(data)
    data.close()
    data = pickle.loads(copy)
    assert small.epochs_of(data, 2) == whole[1:] and len(whole) == 6
    data.close()
