"""Services: one on this machine, or a deployed one."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from . import _native
from .errors import Error, OptionError

if TYPE_CHECKING:
    from ._reader import Reader

__all__ = ["Service", "connect", "local"]

_LOG = logging.getLogger("gristmill")
_IS_CLOSED = "the service of the loader is closed"
T = TypeVar("T")


class Service:
    """A connection to a service; made by `gm.local` or `gm.connect`. A context manager.

    Example:
        >>> with gm.local() as service, gm.numpy.Loader(pipeline, service=service, epochs=1) as loader:
        ...     len(loader)
        8
    """

    def __init__(self, native: _native.Service) -> None:
        self._native = native
        self._pid = os.getpid()
        self._open = True
        # By identity: a copy of the values is taken in one step, also in a signal handler.
        self._readers: weakref.WeakValueDictionary[int, Reader] = weakref.WeakValueDictionary()
        # They end the start of loaders.
        self._interrupts: set[_native.Interrupt] = set()
        _OPEN[id(self)] = self

    @property
    def endpoint(self) -> str | None:
        """The address of a service on this machine; None for a deployed one.

        Example:
            >>> with gm.local() as service:
            ...     service.endpoint.partition(":")[0]
            'unix'
        """
        return self._native.endpoint

    def close(self) -> None:
        """Leaves the service. One on this machine ends soon after the last process has left it.

        Example:
            >>> service = gm.local()
            >>> service.close()
        """
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        for interrupt in tuple(self._interrupts):
            interrupt.set()
        # Batches that they fetched ahead are dropped.
        for reader in _alive(self._readers):
            reader.close()
        self._native.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reads(self, reader: Reader) -> Reader:
        """Notes a reader, which is closed before the service."""
        self._readers[id(reader)] = reader
        reader.service = self
        if not self._open:
            reader.close()
            raise Error(_IS_CLOSED)
        return reader

    def _leaves(self, reader: Reader) -> None:
        """A reader is closed. The service of loaders that name none is left with its last reader."""
        with _DEFAULT_LOCK:
            self._readers.pop(id(reader), None)
            is_last = _default.is_left(self)
        if is_last:
            self.close()

    @contextmanager
    def _opens(self, interrupt: _native.Interrupt) -> Iterator[Service]:
        """Meanwhile `close` sets `interrupt`."""
        self._interrupts.add(interrupt)
        try:
            if not self._open:
                raise Error(_IS_CLOSED)
            yield self
        finally:
            self._interrupts.discard(interrupt)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.endpoint is None:
            return connect, (None, None, "aws")
        return connect, (self.endpoint,)

    def __repr__(self) -> str:
        return f"<gristmill service {self.endpoint or 'on AWS'}>"


def local(state_dir: str | os.PathLike[str] | None = None) -> Service:
    """The service on this machine that all processes of this user share; starts it if it does not run.

    It belongs to no process, and ends a few seconds after the last one has left it: with `close()`, or by ending. Its
    jobs stay in its state directory, so that a later process can go on with them.

    Args:
        state_dir: Directory of another such service. Default: one below the user's cache.

    Raises:
        OptionError: The directory cannot be used.
        ServiceError: The service does not start.

    Example:
        >>> with gm.local(state_dir="state") as service:
        ...     with gm.numpy.Loader(pipeline, service=service, job="train", epochs=1) as loader:
        ...         sum(len(batch["x"]) for batch in loader)
        64
    """
    _check_state_dir("gm.local", state_dir)
    return _start(state_dir, None)


def _check_state_dir(what: str, state_dir: Any) -> None:
    if state_dir is not None and not isinstance(state_dir, (str, os.PathLike)):
        raise OptionError(f"{what}: state_dir={state_dir!r}: it is the path of a directory")


def _start(state_dir: str | os.PathLike[str] | None, interrupt: _native.Interrupt | None) -> Service:
    try:
        return Service(_native.Service.start(_launcher(), state_dir, interrupt))
    except OptionError as error:
        if state_dir is None:
            raise
        raise OptionError(f"state_dir={os.fspath(state_dir)!r}: {error}") from None


def connect(
    endpoint: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    backend: Literal["local", "aws"] = "local",
) -> Service:
    """Connects to a running service.

    Args:
        endpoint: Address of a service on this machine, as `gristmill up` prints it.
        state_dir: State directory of a service on this machine.
        backend: "aws" for the stack that the GRISTMILL_* and AWS_* variables name.

    Raises:
        OptionError: There is none.
        ServiceError: It does not answer.

    Example:
        >>> with gm.local() as service, gm.connect(service.endpoint) as same:
        ...     same.endpoint == service.endpoint
        True
    """
    _check_state_dir("gm.connect", state_dir)
    if endpoint is not None and not isinstance(endpoint, str):
        raise OptionError(f"gm.connect: endpoint={endpoint!r}: it is a text, as `gristmill up` prints it")
    if endpoint in ("aws", "local"):
        raise OptionError(f'gm.connect: endpoint="{endpoint}": write gm.connect(backend="{endpoint}")')
    if backend not in ("local", "aws"):
        raise OptionError(f'gm.connect: backend={backend!r}: it is "local" or "aws"')
    return Service(_native.Service.connect(endpoint, state_dir, backend))


def _launcher() -> list[str]:
    # Not above: with `python -m gristmill`, the package is imported before that module runs.
    from .__main__ import launcher

    return launcher()


class _Default:
    """The service of loaders that name none. `_DEFAULT_LOCK` guards it."""

    def __init__(self) -> None:
        self.service: Service | None = None
        # Loaders that are about to open a reader.
        self.opening = 0

    def is_left(self, service: Service) -> bool:
        """Whether `service` is this one, and nobody uses it; it is then forgotten."""
        if self.service is not service or self.opening or len(service._readers):
            return False
        self.service = None
        return True


_OPEN: weakref.WeakValueDictionary[int, Service] = weakref.WeakValueDictionary()
# A signal handler may run while its thread has it.
_DEFAULT_LOCK = threading.RLock()
_default = _Default()


def _alive(found: weakref.WeakValueDictionary[int, T]) -> list[T]:
    return [value for reference in found.valuerefs() if (value := reference()) is not None]


@contextmanager
def used_by_loader(named: Service | None, world_size: int, interrupt: _native.Interrupt) -> Iterator[Service]:
    """The service for a loader that opens a reader: the one it names, or that of this machine."""
    if named is not None:
        with named._opens(interrupt):
            yield named
        return
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if here < world_size:
        raise OptionError(
            f"{here} of {world_size} ranks run on this machine, and a service on it is out of the others' reach: "
            "give all loaders service=gristmill.connect(...)"
        )
    service = _default_service(interrupt)
    try:
        with service._opens(interrupt):
            yield service
    finally:
        with _DEFAULT_LOCK:
            _default.opening -= 1
            is_last = _default.is_left(service)
        if is_last:
            service.close()


def _default_service(interrupt: _native.Interrupt) -> Service:
    """The service of loaders that name none, for one that opens a reader."""
    started = None
    while True:
        with _DEFAULT_LOCK:
            service = _default.service
            if service is not None and service._pid != os.getpid():
                raise Error(
                    "gristmill was used before this process was forked: make loaders in one process alone, or start "
                    "processes with the method `spawn`"
                )
            if service is None or not service._open:
                service = _default.service = started
            if service is not None:
                _default.opening += 1
        if service is None:
            # Not under the lock: it takes a while, and a signal handler may close another loader meanwhile.
            started = _start(None, interrupt)
            continue
        if started is not None and started is not service:
            started.close()
        return service


@atexit.register
def _close_all() -> None:
    for service in _alive(_OPEN):
        try:
            service.close()
        except Error as error:
            _LOG.warning("the service could not be left: %s", error)
