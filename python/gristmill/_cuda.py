"""The calls of CUDA that bring batches to a GPU. Tests put others in their place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ._pinned import PinnedBuffers

# Memory is registered for all devices of the process.
_PORTABLE = 1


class CopyEvent(Protocol):
    """A point behind work that a stream was given."""

    def query(self) -> bool:
        """Whether that work is done."""
        ...

    def synchronize(self) -> None:
        """Waits until it is."""
        ...


class DeviceCalls(Protocol):
    """Copies to one device, on a stream of their own."""

    #: The fetcher's buffers that may be copied from.
    buffers: PinnedBuffers

    def enter(self) -> None:
        """Makes it the device of this thread."""
        ...

    def on_stream(self) -> AbstractContextManager[Any]:
        """Within it, work is given to the stream."""
        ...

    def copy(self, there: torch.Tensor, here: torch.Tensor) -> None:
        """Copies later, in the order of the stream."""
        ...

    def event(self) -> CopyEvent:
        """An event behind what the stream was given so far."""
        ...

    def hand_over(self, tensors: Iterable[torch.Tensor], done: CopyEvent) -> None:
        """What this thread gives its device from now on runs after `done`."""
        ...

    def settle(self) -> None:
        """Waits until the stream has done all its work."""
        ...

    def staging(self, nbytes: int) -> torch.Tensor:
        """A pinned buffer of bytes."""
        ...


class CudaCalls:
    """Those of torch."""

    def __init__(self, device: torch.device) -> None:
        self.buffers = _BUFFERS
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def enter(self) -> None:
        """Makes it the device of this thread."""
        # Else pinned memory would be made by device 0, and hold memory there for a rank that uses another.
        torch.cuda.set_device(self._device)

    def on_stream(self) -> AbstractContextManager[Any]:
        """Within it, work is given to the stream."""
        return torch.cuda.stream(self._stream)

    def copy(self, there: torch.Tensor, here: torch.Tensor) -> None:
        """Copies later, in the order of the stream."""
        there.copy_(here, non_blocking=True)

    def event(self) -> CopyEvent:
        """An event behind what the stream was given so far."""
        # A thread that waits for it sleeps; CUDA's default is to spin.
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def hand_over(self, tensors: Iterable[torch.Tensor], done: CopyEvent) -> None:
        """What this thread gives its device from now on runs after `done`."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)  # type: ignore[arg-type, unused-ignore]
        for tensor in tensors:
            if tensor.is_cuda:
                # Else the memory could be given to the next copy while the trainer still reads it.
                tensor.record_stream(current)

    def settle(self) -> None:
        """Waits until the stream has done all its work."""
        self._stream.synchronize()

    def staging(self, nbytes: int) -> torch.Tensor:
        """A pinned buffer of bytes."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


class CudaHostCalls:
    """Registers memory by CUDA's runtime, through torch."""

    def register(self, address: int, nbytes: int) -> None:
        """Lets devices read that memory."""
        device = torch.cuda.current_device()

        def call() -> Any:
            torch.cuda.set_device(device)
            return torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE)

        # CUDA notes an error for the thread that met it, and torch raises what is noted at that thread's next kernel.
        _check(_apart(call))

    def unregister(self, address: int) -> None:
        """The memory is as any other again."""
        _check(torch.cuda.cudart().cudaHostUnregister(address))


def _check(result: Any) -> None:
    """Raises RuntimeError unless a call of CUDA's runtime succeeded."""
    if int(result):
        raise RuntimeError(f"{torch.cuda.cudart().cudaGetErrorString(result)} (CUDA error {int(result)})")


def _apart(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises in a thread of its own. All its errors are RuntimeError."""
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="gristmill-register", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise RuntimeError(str(errors[0])) from errors[0]
    return results[0]


# A registration is the process's.
_BUFFERS = PinnedBuffers(CudaHostCalls())


def calls_of(device: torch.device) -> DeviceCalls | None:
    """The calls for `device`; None for one that is no GPU of CUDA: copies to it are done when they return."""
    return CudaCalls(device) if device.type == "cuda" else None
