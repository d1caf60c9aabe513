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
from ._names import MODULES, module_of, no_name
from ._options import LoaderOptions
from ._rows import rows
from ._service import Service, connect, local
from ._sources import *  # noqa: F403
from ._sources import __all__ as _sources
from .errors import CheckpointError, DataError, Error, JobError, OptionError, PipelineError, ServiceError
from .pipeline import *  # noqa: F403
from .pipeline import __all__ as _pipeline

if TYPE_CHECKING:
    # They import frameworks: see __getattr__.
    from . import grain as grain
    from . import jax as jax
    from . import keras as keras
    from . import lightning as lightning
    from . import switch as switch
    from . import tf as tf
    from . import torch as torch
    from . import transformers as transformers
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

if not TYPE_CHECKING:

    def __getattr__(name):
        """Modules of frameworks are imported when they are first used."""
        if name in ("from_dataloader", "from_webdataset"):
            return getattr(module_of("switch"), name)
        if name in MODULES:
            return module_of(name)
        raise AttributeError(no_name(name, __all__))
