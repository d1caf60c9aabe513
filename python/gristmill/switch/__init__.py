"""From other libraries' loaders to gristmill's, with nothing else of the program changed."""

from .dataloader import from_dataloader
from .loader import TupleLoader
from .problems import Problem, SwitchError
from .webdatasets import from_webdataset

__all__ = ["Problem", "SwitchError", "TupleLoader", "from_dataloader", "from_webdataset"]
