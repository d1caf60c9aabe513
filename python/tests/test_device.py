"""Batches on their way to a GPU, with an imitation of CUDA that copies as late as it may."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm
from gristmill import _native

torch = pytest.importorskip("torch")

import gristmill.torch  # noqa: E402
from gristmill import _cuda, _device  # noqa: E402
from gristmill._pinned import PinnedBuffers  # noqa: E402

SIDE, ROWS, RECORDS = 160, 20, 200
BATCHES = RECORDS // ROWS


class Host:
    """Registers memory as CUDA does: none twice, and only what is registered is unregistered."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.asked = 0
        self.registered: dict[int, int] = {}
        self.history: list[int] = []

    def register(self, address: int, nbytes: int) -> None:
        self.asked += 1
        if self.most is not None and len(self.registered) >= self.most:
            raise RuntimeError("out of memory (CUDA error 2)")
        end = address + nbytes
        assert not any(start < end and address < start + size for start, size in self.registered.items())
        assert address % 4096 == nbytes % 4096 == 0 < nbytes
        self.registered[address] = nbytes
        self.history.append(address)

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def has(self, tensor: torch.Tensor) -> bool:
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(begin <= start and end <= begin + size for begin, size in self.registered.items())


class Event:
    def __init__(self, calls: Calls, copies: int) -> None:
        self._calls, self._copies = calls, copies

    def query(self) -> bool:
        return self._calls.done >= self._copies

    def synchronize(self) -> None:
        self._calls.run(self._copies)


class Calls:
    """One device. A copy is done when somebody waits for an event behind it, and no sooner."""

    def __init__(self, host: Host, limit: int = 1 << 40) -> None:
        self.host, self.buffers = host, PinnedBuffers(host, limit)
        self.done = 0
        self.copied_by_itself = 0
        self.fails_at = -1
        self._copies: list[Callable[[], Any]] = []
        self._staging: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def enter(self) -> None: ...

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        yield

    def copy(self, there: torch.Tensor, here: torch.Tensor) -> None:
        if len(self._copies) == self.fails_at:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        is_staged = any(
            buffer.data_ptr() <= here.data_ptr() < buffer.data_ptr() + buffer.nbytes for buffer in self._staging
        )
        assert is_staged or here.nbytes == 0 or self.host.has(here)
        self.copied_by_itself += 0 if is_staged else here.nbytes
        # By address: the device keeps nothing alive.
        here, source = here[:0], torch.frombuffer(_memory(here), dtype=torch.uint8) if here.nbytes else here
        there.zero_()

        def copy() -> None:
            there.view(-1).view(torch.uint8)[: there.nbytes].copy_(source)

        with self._lock:
            self._copies.append(copy)

    def run(self, copies: int) -> None:
        with self._lock:
            while self.done < copies:
                self._copies[self.done]()
                self.done += 1

    def event(self) -> Event:
        return Event(self, len(self._copies))

    def hand_over(self, tensors: Iterable[torch.Tensor], done: Event) -> None:
        done.synchronize()

    def settle(self) -> None:
        self.run(len(self._copies))

    def staging(self, nbytes: int) -> torch.Tensor:
        self._staging.append(torch.zeros(nbytes, dtype=torch.uint8))
        return self._staging[-1]


def _memory(tensor: torch.Tensor) -> Any:
    """The memory of `tensor`, which it does not keep alive."""
    import ctypes

    return (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Every device is this one."""
    calls = Calls(Host())
    monkeypatch.setattr(_device, "calls_of", lambda device: calls)
    yield calls
    gc.collect()
    assert not calls.host.registered and calls.buffers.nbytes == 0
    assert calls.done == len(calls._copies), "a copy was not waited for"


@pytest.fixture(scope="module")
def pictures(images_dir: Path) -> gm.Pipeline:
    """Batches of 1.5 MB: images, and labels that are not in the first bytes of the buffer."""
    features = {"image": gm.bytes("image/encoded"), "label": gm.i64("image/class/label")}
    source = gm.tfrecord(images_dir / "train-*", **features).decode()
    return source.center_crop(size=SIDE).batch(size=ROWS)


def batches_of(loader: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: torch.as_tensor(tensor).clone() for name, tensor in batch.items()} for batch in loader]


@pytest.fixture(scope="module")
def expected(pictures: gm.Pipeline, service: gm.Service) -> list[dict[str, torch.Tensor]]:
    with gm.numpy.Loader(pictures, service=service, epochs=3) as loader:
        return [batch for _ in range(3) for batch in batches_of(loader)]


def assert_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert list(batch) == list(other)
        assert all(torch.equal(batch[name], other[name]) for name in other)


def make(pictures: gm.Pipeline, service: gm.Service, epochs: int = 3, **options: Any) -> gm.torch.Loader:
    return gm.torch.Loader(pictures, service=service, epochs=epochs, device="cpu", **options)


def test_the_device_reads_the_buffers_of_the_fetcher(
    calls: Calls, pictures: gm.Pipeline, service: gm.Service, expected: list[dict[str, Any]]
) -> None:
    with make(pictures, service, prefetch_mib=1) as loader:
        found = [batch for _ in range(3) for batch in batches_of(loader)]
        stats = loader.stats()
        assert stats["pinned_bytes"] == sum(calls.host.registered.values()) > 0
    assert_equal(found, expected)
    assert stats["staged_bytes"] == 0 and calls.copied_by_itself == 3 * RECORDS * (SIDE * SIDE * 3 + 8)


def test_many_epochs_use_the_same_buffers(calls: Calls, pictures: gm.Pipeline, service: gm.Service) -> None:
    epochs, most = 30, 0
    with make(pictures, service, epochs, prefetch_mib=1) as loader:
        for _ in range(epochs):
            for _ in loader:
                most = max(most, len(calls.host.registered))
        assert sum(calls.host.registered.values()) == loader.stats()["pinned_bytes"] > 0
    # 300 batches passed.
    assert len(calls.host.history) <= 40 and most <= 30


def test_buffers_of_services_that_are_gone_are_unregistered(
    calls: Calls, pictures: gm.Pipeline, service: gm.Service
) -> None:
    held = []
    with make(pictures, service, 1) as first:
        next(iter(first))
        for _ in range(10):
            # Each connection has pools of its own.
            other = gm.connect(service.endpoint)
            with make(pictures, other, 1) as loader:
                assert len(list(loader)) == BATCHES
            other.close()
            del loader, other
            gc.collect()
            held.append(len(calls.host.registered))
    assert len(calls.host.history) >= 10 and max(held) <= 4 * held[0], held


@pytest.mark.parametrize("most", [0, 1])
def test_memory_that_cannot_be_registered_is_staged(
    calls: Calls,
    pictures: gm.Pipeline,
    service: gm.Service,
    expected: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
    most: int,
) -> None:
    calls.host.most = most
    with caplog.at_level(logging.DEBUG, "gristmill"), make(pictures, service) as loader:
        found = [batch for _ in range(3) for batch in batches_of(loader)]
        stats = loader.stats()
    assert_equal(found, expected)
    assert stats["staged_bytes"] + calls.copied_by_itself == 3 * RECORDS * (SIDE * SIDE * 3 + 8)
    assert stats["staged_bytes"] > 0 and (calls.copied_by_itself > 0) == (most > 0)
    assert calls.host.asked == most + 1, "it is tried until it fails"
    said = [record for record in caplog.records if "cannot be registered" in record.message]
    assert len(said) == 1 and said[0].levelno == logging.DEBUG and "out of memory" in said[0].message


def test_the_rest_is_staged_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, pictures: gm.Pipeline, service: gm.Service, expected: list[dict[str, Any]]
) -> None:
    calls = Calls(Host(), limit=10 << 20)
    monkeypatch.setattr(_device, "calls_of", lambda device: calls)
    with make(pictures, service) as loader:
        kept: list[Any] = []
        found = []
        for _ in range(3):
            for batch in loader:
                kept.append(batch)
                assert 0 < calls.buffers.nbytes <= 10 << 20
        found = batches_of(kept)
    assert_equal(found, expected)
    assert not calls.host.registered


def test_batches_that_are_in_no_buffer_of_the_fetcher_are_staged(
    calls: Calls, images: gm.Pipeline, service: gm.Service
) -> None:
    with gm.torch.Loader(images, service=service, epochs=1, device="cpu", keys=True) as loader:
        found = batches_of(loader)
        assert loader.stats()["staged_bytes"] > 0
    with gm.numpy.Loader(images, service=service, epochs=1, keys=True) as loader:
        assert_equal(found, batches_of(loader))


@pytest.mark.parametrize("copies", [0, 1, 7])
def test_an_error_of_a_copy_unregisters_everything(
    calls: Calls, pictures: gm.Pipeline, service: gm.Service, copies: int
) -> None:
    calls.fails_at = copies
    with pytest.raises(RuntimeError, match="illegal memory access"), make(pictures, service) as loader:
        for _ in loader:
            pass
    assert calls.host.history and not calls.host.registered


def test_loaders_share_the_registrations(calls: Calls, pictures: gm.Pipeline, service: gm.Service) -> None:
    with make(pictures, service, 1) as first:
        iterator = iter(first)
        next(iterator)
        with make(pictures, service, 1) as second:
            assert len(list(second)) == BATCHES
        assert calls.host.registered, "the first loader still copies"
        assert len(list(iterator)) == BATCHES - 1


def test_a_loader_that_is_forgotten_unregisters(calls: Calls, pictures: gm.Pipeline, service: gm.Service) -> None:
    loader = make(pictures, service, 2)
    batches = iter(loader)
    next(batches)
    assert calls.host.registered
    del loader, batches
    gc.collect()
    assert not calls.host.registered


def test_close_in_another_thread_while_batches_are_copied(
    calls: Calls, pictures: gm.Pipeline, service: gm.Service
) -> None:
    for _ in range(5):
        loader = make(pictures, service, 50)
        batches = iter(loader)
        next(batches)
        threads = [threading.Thread(target=loader.close) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        with pytest.raises(gm.Error, match="closed"):
            list(batches)
        loader.close()
        assert not calls.host.registered


def test_memory_that_stays_registered_is_not_freed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Host):
        def unregister(self, address: int) -> None:
            raise RuntimeError("driver shutting down (CUDA error 4)")

    gone: list[int] = []
    monkeypatch.setattr(_native, "keep_buffer", lambda address: (address // 4096 * 4096, 8192))
    monkeypatch.setattr(_native, "unused_buffers", lambda: [])
    monkeypatch.setattr(_native, "let_go_buffer", gone.append)
    buffers = PinnedBuffers(Stuck())
    buffers.join()
    assert buffers.cover(torch.zeros(16)) and buffers.nbytes == 8192
    buffers.leave()
    assert gone == [] and buffers.nbytes == 0 and "is not freed" in caplog.text


class Cudart:
    """The module of CUDA's runtime in torch."""

    def __init__(self, result: int) -> None:
        self.result, self.called = result, []  # type: int, list[Any]

    def cudaHostRegister(self, *arguments: int) -> int:
        self.called.append((threading.current_thread().name, *arguments))
        return self.result

    def cudaHostUnregister(self, *arguments: int) -> int:
        self.called.append(arguments)
        return self.result

    def cudaGetErrorString(self, error: int) -> str:
        return f"error {error}"


def test_the_calls_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[int] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    for result in 0, 712:
        runtime = Cudart(result)
        monkeypatch.setattr(torch.cuda, "cudart", lambda runtime=runtime: runtime)
        for call in _cuda.CudaHostCalls().register, lambda start, _: _cuda.CudaHostCalls().unregister(start):
            if result == 0:
                call(4096, 8192)
            else:
                with pytest.raises(RuntimeError, match=r"error 712 \(CUDA error 712\)"):
                    call(4096, 8192)
        # An error is noted for a thread that ends, and not for the one that copies.
        assert runtime.called == [("gristmill-register", 4096, 8192, 1), (4096,)]
    assert devices == [3, 3]
    monkeypatch.setattr(torch.cuda, "cudart", lambda: None)
    with pytest.raises(RuntimeError, match="cudaHostRegister"):
        _cuda.CudaHostCalls().register(0, 1)
