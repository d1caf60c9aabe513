"""Exceptions of gristmill. Each message is one line that says what failed, where, and what to do."""

from ._advice import in_python, pipeline_in_python

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
    """The base of all exceptions of gristmill.

    Example:
        >>> try:
        ...     gm.numpy.Loader(pipeline, epochs=0)
        ... except gm.Error as error:
        ...     print(error)
        gm.numpy.Loader: epochs=0: there is at least one
    """

    def __init__(self, message: str) -> None:
        super().__init__(in_python(message))

    # Users catch `gristmill.DataError`; the module that defines it is no part of the name.
    def __init_subclass__(cls) -> None:
        cls.__module__ = "gristmill"


class PipelineError(Error, ValueError):
    """A pipeline is not valid.

    Attributes:
        message: What is wrong, without its place.
        line: The line of the YAML text, from 1; None for what belongs to no line.
        filename: The file that added the operator, of Python or YAML; None where nobody knows.
        lineno: The line of that file.

    Example:
        >>> try:
        ...     gm.images("pictures").decode().resize(0).batch(8).canonical()
        ... except gm.PipelineError as error:
        ...     print(error.message)
        `resize` `size` must be a whole number from 1 to 16384, not 0
    """

    filename: str | None = None
    lineno: int | None = None

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class OptionError(Error, ValueError):
    """An option cannot be used, or what it names is not there.

    Example:
        >>> try:
        ...     gm.numpy.Loader(pipeline, num_workers=8)
        ... except gm.OptionError as error:
        ...     print(error)
        gm.numpy.Loader: num_workers is no option: write workers=8: that many processes work for this loader
    """


class CheckpointError(Error, ValueError):
    """A state belongs to another job, dataset, pipeline or seed, or its batches are no longer kept.

    Example:
        >>> try:
        ...     loader.load_state_dict({"epoch": 3})
        ... except gm.CheckpointError as error:
        ...     print(error)
        this is no state of a loader: give load_state_dict what state_dict returned
    """


class JobError(Error, RuntimeError):
    """The job was stopped, or another trainer reads it now.

    Example:
        >>> issubclass(gm.JobError, RuntimeError)
        True
    """


class DataError(JobError):
    """The job failed: a record could not be read or processed.

    Example:
        >>> bad = gm.csv("table.csv", name=gm.i64()).batch(2)
        >>> try:
        ...     bad.peek()
        ... except gm.DataError as error:
        ...     print("table.csv" in str(error))
        True
    """

    def __init__(self, message: str) -> None:
        super().__init__(pipeline_in_python(message))


class ServiceError(Error, RuntimeError):
    """The service does not answer, or an object of it cannot be read.

    Example:
        >>> issubclass(gm.ServiceError, RuntimeError)
        True
    """


Error.__module__ = "gristmill"
