"""Services: one on this machine, or a deployed one."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import tempfile
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from . import _native
from .errors import Error, OptionError, ServiceError

if TYPE_CHECKING:
    from ._reader import Reader

__all__ = ["Service", "connect", "local"]

_LOG = logging.getLogger("gristmill")
# How long another process on this machine may take to start the service that is shared.
_START_S = 60.0
# How long the process that started a shared service waits for the others when it ends.
_LEAVE_S = 30.0
# How long the service of a process that was killed may take to end.
_END_S = 15.0
_LOOK_S = 0.05


class Service:
    """A connection to a service; made by `gristmill.local` or `gristmill.connect`. A context manager."""

    def __init__(self, native: _native.Service, shared: _Shared | None = None) -> None:
        self._native = native
        self._shared = shared
        self._pid = os.getpid()
        self._open = True
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        _OPEN.add(self)

    @property
    def endpoint(self) -> str | None:
        """The address of a service on this machine; None for a deployed one."""
        return self._native.endpoint

    def close(self) -> None:
        """Ends a service that this process started; leaves any other as it is."""
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        # Batches that they fetched ahead are dropped.
        for reader in list(self._readers):
            reader.close()
        if self._shared is not None:
            self._shared.leave()
        try:
            self._native.close()
        finally:
            if self._shared is not None:
                self._shared.release()

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reads(self, reader: Reader) -> Reader:
        """Notes a reader, which is closed before the service."""
        self._readers.add(reader)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        if self.endpoint is None:
            return connect, (None, None, "aws")
        return connect, (self.endpoint,)

    def __repr__(self) -> str:
        return f"<gristmill service {self.endpoint or 'on AWS'}>"


def local(state_dir: str | os.PathLike[str] | None = None) -> Service:
    """Starts a service on this machine; it ends with this process, or with `close()`.

    Args:
        state_dir: Directory for its jobs, so that a later process can go on with them. Processes of this machine
            that name
            one directory share one service: the first starts it. Default: nothing stays.

    Raises OptionError if the directory cannot be used, ServiceError if the service does not start.
    """
    if state_dir is None:
        return Service(_native.Service.start(_launcher()))
    return _share(Path(state_dir))


def connect(
    endpoint: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    backend: str = "local",
) -> Service:
    """Connects to a running service.

    Args:
        endpoint: Address of a service on this machine, as `gristmill up` prints it.
        state_dir: State directory of a service on this machine.
        backend: "aws" for the stack that the GRISTMILL_* and AWS_* variables name.

    Raises OptionError if there is none.
    """
    return Service(_native.Service.connect(endpoint, state_dir, backend))


def _launcher() -> list[str]:
    # Not above: with `python -m gristmill`, the package is imported before that module runs.
    from .__main__ import launcher

    return launcher()


class _Shared:
    """Locks on two files of a directory, by which processes of this machine share its service."""

    def __init__(self, directory: Path, owner: IO[bytes] | None) -> None:
        self._directory = directory
        # The lock of the process that started the service.
        self._owner = owner
        self._user = open(directory / "python-users.lock", "wb")  # noqa: SIM115
        fcntl.flock(self._user, fcntl.LOCK_SH)

    def leave(self) -> None:
        """This process needs the service no longer. The one that started it waits for the others."""
        fcntl.flock(self._user, fcntl.LOCK_UN)
        if self._owner is None:
            return
        began, said = time.monotonic(), False
        while not _locked(self._user, fcntl.LOCK_EX):
            waited = time.monotonic() - began
            if waited > 3 and not said:
                _LOG.warning("waiting for other processes of this machine to end with the service")
                said = True
            if waited > _LEAVE_S:
                _LOG.warning("ending the service, which other processes of this machine still use")
                return
            time.sleep(_LOOK_S)

    def release(self) -> None:
        self._user.close()
        if self._owner is not None:
            self._owner.close()


def _locked(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _share(directory: Path) -> Service:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = open(directory / "python-owner.lock", "wb")  # noqa: SIM115
    except OSError as error:
        raise OptionError(f"state_dir={str(directory)!r}: {error.strerror}") from None
    if _locked(owner, fcntl.LOCK_EX):
        try:
            return Service(_start(directory), _Shared(directory, owner))
        except BaseException:
            owner.close()
            raise
    began = time.monotonic()
    while True:
        # It is there once the service accepts calls. One that is left of an earlier service does not answer.
        if (directory / "endpoint.json").exists():
            owner.close()
            return Service(_native.Service.connect(None, directory), _Shared(directory, None))
        if _locked(owner, fcntl.LOCK_EX):
            owner.close()
            return _share(directory)
        if time.monotonic() - began > _START_S:
            raise ServiceError(f"the process that uses {directory} did not start its service in {_START_S:.0f} s")
        time.sleep(_LOOK_S)


def _start(directory: Path) -> _native.Service:
    """Starts a service in `directory`. That of a process which was killed may take a moment to end."""
    began = time.monotonic()
    while True:
        try:
            return _native.Service.start(_launcher(), directory)
        except (ServiceError, OptionError) as error:
            if "another service is running" not in str(error) or time.monotonic() - began > _END_S:
                raise
            time.sleep(_LOOK_S)


_OPEN: weakref.WeakSet[Service] = weakref.WeakSet()
_DEFAULT_LOCK = threading.Lock()
_default: Service | None = None


def default(world_size: int, run: str | None) -> Service:
    """The service of loaders that name none: one for this process, or for all ranks of a run on this machine."""
    global _default
    with _DEFAULT_LOCK:
        if _default is not None and _default._open:
            if _default._pid != os.getpid():
                raise Error(
                    "gristmill was used before this process was forked: make loaders in one process alone, or start "
                    "processes with the method `spawn`"
                )
            return _default
        _default = local() if world_size == 1 else _share(_directory_of(world_size, run))
        return _default


def _directory_of(world_size: int, run: str | None) -> Path:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if here < world_size:
        raise OptionError(
            f"{here} of {world_size} ranks run on this machine, and a service on it is out of the others' reach: "
            "give all loaders service=gristmill.connect(...)"
        )
    digest = hashlib.blake2b((run or "").encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"gristmill-{os.getuid()}-{digest}"


@atexit.register
def _close_all() -> None:
    for service in list(_OPEN):
        try:
            service.close()
        except Error as error:
            _LOG.warning("the service could not be ended: %s", error)
