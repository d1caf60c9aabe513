"""Exceptions of gristmill. Each message is one line that says what failed, where, and what to do."""

__all__ = [
    "CheckpointError",
    "DataError",
    "Error",
    "JobError",
    "OptionError",
    "PipelineError",
    "ServiceError",
]


class Error(Exception):
    """The base of all exceptions of gristmill."""

    # Users catch `gristmill.DataError`; the module that defines it is no part of the name.
    def __init_subclass__(cls) -> None:
        cls.__module__ = "gristmill"


class PipelineError(Error, ValueError):
    """A pipeline is not valid.

    ``line`` is the line of the YAML text, from 1; None for what belongs to no line. For pipelines built in Python,
    ``filename`` and ``lineno`` name the caller's line that added the operator.
    """

    filename: str | None = None
    lineno: int | None = None

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class OptionError(Error, ValueError):
    """An option cannot be used, or what it names is not there."""


class CheckpointError(Error, ValueError):
    """A state belongs to another job, dataset, pipeline or seed, or its batches are no longer kept."""


class JobError(Error, RuntimeError):
    """The job was stopped, or another trainer reads it now."""


class DataError(JobError):
    """The job failed: a record could not be read or processed."""


class ServiceError(Error, RuntimeError):
    """The service does not answer, or an object of it cannot be read."""


Error.__module__ = "gristmill"
