"""Serverless input-data preprocessing for machine-learning training.

>>> import gristmill as gm, gristmill.torch
>>> pipeline = gm.tfrecord("data/*", image=gm.bytes("image/encoded")).decode().resize(size=224).batch(size=64)
>>> with gm.torch.Loader(pipeline, epochs=1) as loader:  # doctest: +SKIP
...     for batch in loader:
...         train(batch["image"])
"""

from . import _native, errors, numpy
from ._features import *  # noqa: F403
from ._features import __all__ as _features
from ._service import Service, connect, local
from ._sources import *  # noqa: F403
from ._sources import __all__ as _sources
from .errors import CheckpointError, DataError, Error, JobError, OptionError, PipelineError, ServiceError
from .pipeline import *  # noqa: F403
from .pipeline import __all__ as _pipeline

__version__ = _native.__version__

__all__ = [
    *_features,
    *_pipeline,
    *_sources,
    "CheckpointError",
    "DataError",
    "Error",
    "JobError",
    "OptionError",
    "PipelineError",
    "Service",
    "ServiceError",
    "connect",
    "errors",
    "local",
    "numpy",
]


def __getattr__(name: str) -> object:
    # They import torch.
    if name in ("from_dataloader", "from_webdataset"):
        from . import switch

        return getattr(switch, name)
    raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
