"""Serverless input-data preprocessing for machine-learning training.

Example:
    >>> import gristmill as gm
    >>> pipeline = gm.images("pictures").shuffle().decode().random_resized_crop(224).batch(16)
    >>> with gm.numpy.Loader(pipeline, epochs=1) as loader:
    ...     for batch in loader:
    ...         print(batch["image"].shape, batch["label"].shape)
    (16, 224, 224, 3) (16,)
    (16, 224, 224, 3) (16,)
    (16, 224, 224, 3) (16,)
    (16, 224, 224, 3) (16,)
"""

from typing import TYPE_CHECKING

from . import _native, errors, numpy
from ._features import *  # noqa: F403
from ._features import __all__ as _features
from ._names import no_name
from ._options import LoaderOptions
from ._rows import rows
from ._service import Service, connect, local
from ._sources import *  # noqa: F403
from ._sources import __all__ as _sources
from .errors import CheckpointError, DataError, Error, JobError, OptionError, PipelineError, ServiceError
from .pipeline import *  # noqa: F403
from .pipeline import __all__ as _pipeline

if TYPE_CHECKING:
    # They import torch: see __getattr__.
    from .switch import from_dataloader as from_dataloader
    from .switch import from_webdataset as from_webdataset

__version__ = _native.__version__

__all__ = [
    *_features,
    *_pipeline,
    *_sources,
    "CheckpointError",
    "DataError",
    "Error",
    "JobError",
    "LoaderOptions",
    "OptionError",
    "PipelineError",
    "Service",
    "ServiceError",
    "connect",
    "errors",
    "local",
    "numpy",
    "rows",
]


def __getattr__(name: str) -> object:
    # They import torch.
    if name in ("from_dataloader", "from_webdataset"):
        from . import switch

        return getattr(switch, name)
    raise AttributeError(no_name(name, __all__))
