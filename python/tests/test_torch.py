"""`gristmill.torch.Loader`: whose memory its tensors are, what it does on a device, and its states."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gristmill as gm

torch = pytest.importorskip("torch")
import small  # noqa: E402

import gristmill.torch  # noqa: E402
from gristmill._device import DEPTH, Device, Prefetch  # noqa: E402

DEVICES = [None, "cpu"]
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))


def first(loader: gm.torch.Loader) -> dict[str, torch.Tensor]:
    with loader:
        return next(iter(loader))


def test_tensors_are_the_memory_of_the_batch(images: gm.Pipeline, service: gm.Service) -> None:
    addresses = []

    class Noting(gm.torch.Loader):
        def _convert(self, arrays: dict[str, np.ndarray]) -> Any:
            addresses.append({name: (array.ctypes.data, array.nbytes, array.base) for name, array in arrays.items()})
            return super()._convert(arrays)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Noting(images, service=service, epochs=1, keys=True) as loader:
            batches = list(loader)
    assert len(batches) == len(addresses) == 13
    for batch, noted in zip(batches, addresses, strict=True):
        assert batch.keys() == noted.keys() == {"image", "label", "__key__", "__copy__", "__repeat__", "__cursor__"}
        for name, tensor in batch.items():
            address, nbytes, buffer = noted[name]
            assert (tensor.data_ptr(), tensor.nbytes) == (address, nbytes)
            if name not in ("__repeat__", "__cursor__"):
                memory = np.frombuffer(buffer, np.uint8)
                assert memory.ctypes.data <= address and address + nbytes <= memory.ctypes.data + memory.nbytes
            tensor.zero_()
    assert batches[0]["image"].dtype == torch.uint8 and batches[0]["image"].shape == (16, 32, 32, 3)
    assert batches[0]["label"].dtype == torch.int64 and batches[-1]["label"].shape == (8,)


def test_a_tensor_keeps_its_memory(numbers: gm.Pipeline, service: gm.Service) -> None:
    with gm.torch.Loader(numbers, service=service, epochs=1) as loader:
        values = [batch["value"] for batch in loader]
    assert sorted(torch.cat(values).tolist()) == list(range(1000))


@pytest.mark.parametrize("device", DEVICES)
def test_bf16(numbers_dir: Path, service: gm.Service, device: str | None) -> None:
    source = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).take(count=64)
    as_bf16 = source.cast(field="value", dtype="bf16").batch(size=64)
    exact = first(gm.torch.Loader(source.batch(size=64), service=service))["value"]
    found = first(gm.torch.Loader(as_bf16, service=service, device=device))["value"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.to(torch.bfloat16))


def test_bf16_that_numpy_does_not_know() -> None:
    bits = torch.arange(6.0).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    layout = gm.torch._Layout({"x"}, False, None)
    found = layout.tensors({"x": bits, "y": bits})
    assert found["x"].tolist() == [0, 1, 2, 3, 4, 5] and found["x"].data_ptr() == bits.ctypes.data
    assert found["y"].dtype == torch.uint16


@pytest.mark.parametrize("device", DEVICES)
def test_channels_first_is_a_view(images: gm.Pipeline, service: gm.Service, device: str | None) -> None:
    last = first(gm.torch.Loader(images, service=service, device=device))
    for option in (True, "image", ["image"]):
        batch = first(gm.torch.Loader(images, service=service, device=device, channels_first=option))
        assert batch["image"].shape == (16, 3, 32, 32)
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch["image"].permute(0, 2, 3, 1), last["image"])
        assert torch.equal(batch["label"], last["label"])


@pytest.mark.parametrize("device", DEVICES)
def test_channels_first_of_no_image(images: gm.Pipeline, service: gm.Service, device: str | None) -> None:
    for name in ("label", "absent"):
        with pytest.raises(gm.OptionError, match=f"`{name}` is no field of images"):
            first(gm.torch.Loader(images, service=service, device=device, channels_first=name))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_device_normalises_as_the_operator_does(images_dir: Path, service: gm.Service, device: str) -> None:
    features = {"image": gm.bytes("image/encoded"), "label": gm.i64("image/class/label")}
    source = gm.tfrecord(images_dir / "train-*", **features).decode().center_crop(size=32)
    by_operator = source.normalise(**gm.IMAGENET).batch(size=16)
    on_device = source.batch(size=16).deliver(normalise=gm.IMAGENET)
    with gm.torch.Loader(by_operator, service=service, epochs=1) as loader:
        expected = list(loader)
    with gm.torch.Loader(on_device, service=service, epochs=1, device=device, keys=True) as loader:
        found = list(loader)
    assert len(found) == len(expected) == 13
    for batch, other in zip(found, expected, strict=True):
        assert batch["image"].dtype == torch.float32 and batch["image"].device.type == device
        assert torch.equal(batch["image"].cpu(), other["image"])
        assert torch.equal(batch["label"].cpu(), other["label"])
        assert batch["__key__"].device.type == "cpu"


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(gm.OptionError, match="device='abacus': "):
        gm.torch.Loader("ops: []", device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(gm.OptionError, match="device='cuda': torch finds no GPU"):
            gm.torch.Loader("ops: []", device="cuda")


def test_without_a_device_nothing_is_normalised(images: gm.Pipeline, service: gm.Service) -> None:
    pipeline = images.deliver(normalise=gm.IMAGENET)
    plain = first(gm.torch.Loader(pipeline, service=service))["image"]
    assert plain.dtype == torch.uint8
    assert torch.equal(first(gm.torch.Loader(pipeline, service=service, device="cpu", normalise=False))["image"], plain)
    with pytest.raises(gm.OptionError, match="normalise needs a device"):
        gm.torch.Loader(pipeline, normalise=True)


@pytest.mark.parametrize("device", [*DEVICES, GPU])
@pytest.mark.parametrize("kind", [small.SIZED, small.UNSIZED])
def test_resumes_after_each_batch(numbers_dir: Path, service: gm.Service, kind: str, device: str | None) -> None:
    pipeline = small.pipeline(numbers_dir, kind)
    options = {"service": service, "epochs": small.EPOCHS, "device": device}
    with gm.torch.Loader(pipeline, **options) as loader:
        if kind == small.UNSIZED:
            with pytest.raises(TypeError, match="not known"):
                len(loader)
        else:
            assert len(loader) == 3
        whole = small.epochs_of(loader)
    assert len(whole) == 9
    saved: list[dict[str, Any]] = []

    def run(count: int) -> list[small.Bytes]:
        with gm.torch.Loader(pipeline, **options) as loader:
            found = []
            for epoch in range(small.EPOCHS):
                for batch in loader:
                    found.append(small.bytes_of(batch))
                    state = loader.state_dict()
                    assert (state["epoch"], state["g"]) == (epoch, (len(found) - 1) % 3 + 1)
                    if len(found) == count:
                        saved.append(state)
                        return found
        raise AssertionError("it ended too early")

    def rest() -> list[small.Bytes]:
        with gm.torch.Loader(pipeline, **options) as loader:
            loader.load_state_dict(saved[-1])
            return small.epochs_of(loader)

    small.resumes_everywhere(whole, run, rest)


@pytest.mark.parametrize("device", DEVICES)
def test_back_to_a_state(numbers_dir: Path, service: gm.Service, device: str | None) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    with gm.torch.Loader(pipeline, service=service, epochs=small.EPOCHS, device=device) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [small.bytes_of(batch) for batch in batches] + small.epochs_of(loader)
        loader.load_state_dict(state)
        assert small.epochs_of(loader) == expected and len(expected) == 8


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("on_break", "then"), [("next", [(1, 1), (1, 2), (1, 3)]), ("continue", [(0, 2), (0, 3)])])
def test_break(
    numbers_dir: Path, service: gm.Service, device: str | None, on_break: str, then: list[tuple[int, int]]
) -> None:
    pipeline = small.pipeline(numbers_dir, small.SIZED)
    with gm.torch.Loader(pipeline, service=service, epochs=2, device=device, keys=True, on_break=on_break) as loader:
        for _ in loader:
            break
        assert [tuple(batch["__cursor__"].tolist()) for batch in loader] == then


@pytest.mark.parametrize("device", DEVICES)
def test_a_list_of_more_than_the_memory_ends(images_dir: Path, service: gm.Service, device: str | None) -> None:
    source = gm.tfrecord(images_dir / "train-*", image=gm.bytes("image/encoded"))
    pipeline = source.decode().center_crop(size=160).batch(size=16)
    with gm.torch.Loader(pipeline, service=service, epochs=1, prefetch_mib=1, device=device) as loader:
        batches = list(loader)
    assert sum(batch["image"].nbytes for batch in batches) == 200 * 160 * 160 * 3
    assert len({batch["image"].data_ptr() for batch in batches}) == 13


class Fake:
    """Batches for `Prefetch`: it counts those taken, and waits or fails where it is asked to."""

    def __init__(self, count: int, error: Exception | None = None, waits: bool = False) -> None:
        self.count, self.error, self.waits = count, error, waits
        self.taken = 0
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
        return self

    def __next__(self) -> tuple[dict[str, torch.Tensor], int]:
        if self.taken == self.count:
            if self.error is not None:
                raise self.error
            if self.waits:
                assert self.closed.wait(60)
            raise StopIteration
        self.taken += 1
        return {"x": torch.full((self.taken,), self.taken), "empty": torch.zeros(0, 3)}, self.taken

    def close(self) -> None:
        self.closed.set()


def cpu() -> Device:
    return Device(torch.device("cpu"), lambda tensors: tensors)


def settles_at(fake: Fake, taken: int) -> None:
    for _ in range(600):
        if fake.taken >= taken:
            break
        time.sleep(0.01)
    time.sleep(0.05)
    assert fake.taken == taken


def test_only_so_many_batches_are_taken_ahead() -> None:
    fake = Fake(100)
    batches = Prefetch(fake, cpu())
    for handed in range(5):
        settles_at(fake, handed + DEPTH)
        tensors, cursor = next(batches)
        assert cursor == handed + 1 and tensors["x"].tolist() == [cursor] * cursor
    batches.close()
    assert fake.closed.is_set() and next(batches, None) is None
    assert fake.taken <= 5 + DEPTH


def test_batches_do_not_share_memory() -> None:
    found = list(Prefetch(Fake(20), cpu()))
    assert [tensors["x"].tolist() for tensors, _ in found] == [[n] * n for n in range(1, 21)]


def test_an_error_comes_in_its_place() -> None:
    batches = Prefetch(Fake(5, gm.DataError("record 7 is bad")), cpu())
    assert [cursor for _, cursor in (next(batches) for _ in range(5))] == [1, 2, 3, 4, 5]
    with pytest.raises(gm.DataError, match="record 7 is bad"):
        next(batches)
    assert next(batches, None) is None


def test_close_ends_a_wait() -> None:
    before = threading.active_count()
    fake = Fake(1, waits=True)
    batches = Prefetch(fake, cpu())
    next(batches)
    settles_at(fake, 1)
    batches.close()
    assert threading.active_count() == before


def test_an_interrupt_ends_a_wait() -> None:
    fake = Fake(0, waits=True)
    batches = Prefetch(fake, cpu())
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert not fake.closed.is_set()
    batches.close()


def test_a_forgotten_prefetch_ends_its_thread() -> None:
    before = threading.active_count()
    fake = Fake(100)
    batches = Prefetch(fake, cpu())
    next(batches)
    del batches
    assert fake.closed.is_set() and threading.active_count() == before
