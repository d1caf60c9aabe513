"""Reads the stages of a webdataset pipeline: its files, members, transforms and batches.

Stages are the objects that webdataset's own methods append; a function of the caller has no equal here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.data as data
from webdataset import autodecode, cache, compat, filters, handlers, pipeline, shardlists, tariterators

from .problems import Problems
from .samples import Samples

__all__ = ["read"]

_LEAVE_OUT = "leave it out, or apply it to each batch in the training loop"
_ERRORS = {
    handlers.reraise_exception: "fail",
    filters.reraise_exception: "fail",
    handlers.ignore_and_continue: "skip",
    handlers.warn_and_continue: "skip",
}
_BY_RANK = (shardlists.single_node_only, shardlists.split_by_node)
_WITHOUT_EFFECT = (compat.check_empty, shardlists.non_empty, shardlists.split_by_worker)


def read(source: Any, problems: Problems) -> Samples:
    """The samples of a `WebDataset`, `DataPipeline` or `WebLoader`, or of a DataLoader over one."""
    reader = _Reader(problems)
    for number, stage in enumerate(_flat(source, reader)):
        reader.stage(number, stage)
    return reader.samples


def _flat(source: Any, reader: _Reader) -> list[Any]:
    if isinstance(source, data.DataLoader):
        return [*_flat(source.dataset, reader), source]
    if not isinstance(source, pipeline.DataPipeline):
        reader.problems.where = "dataset"
        remedy = "use webdataset.WebDataset, or gm.from_dataloader for an ImageFolder"
        reader.problems.add("pipelines of webdataset are taken over alone", remedy, type(source).__name__)
        return []
    reader.epoch(source)
    stages = []
    for stage in source.pipeline:
        is_nested = isinstance(stage, (data.DataLoader, pipeline.DataPipeline))
        stages.extend(_flat(stage, reader) if is_nested else [stage])
    return stages


class _Reader:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.samples = Samples()
        self.names: dict[str, str] = {}  # The members that new names stand for.
        self.filters: dict[Any, Callable[..., None]] = {
            filters._batched: self._batched,
            filters._decode: self._decode,
            filters._map: self._map,
            filters._map_dict: self._map_dict,
            filters._map_tuple: self._map_tuple,
            filters._rename: self._rename,
            filters._shuffle: self._shuffle,
            filters._to_tuple: self._to_tuple,
            filters._unbatched: self._unbatched,
            tariterators.group_by_keys: self._group,
            tariterators.tar_file_expander: self._expand,
            tariterators.tarfile_samples: self._expand,
        }

    def epoch(self, source: Any) -> None:
        self.problems.where = type(source).__name__
        if source.repetitions != 1 or source.nsamples > 0:
            self.problems.add(
                "an epoch is the dataset once",
                "leave them out, and give epochs to the loader",
                "with_epoch or repeat",
            )

    def stage(self, number: int, stage: Any) -> None:
        function = getattr(stage, "f", stage)
        name = getattr(function, "__name__", type(stage).__name__).lstrip("_")
        self.problems.where = f"stage {number} {name}"
        if isinstance(stage, filters.FilterFunction) and stage.f in self.filters:
            arguments = dict(stage.kw)
            self._handler(arguments.pop("handler", None))
            self.filters[stage.f](*stage.args, **arguments)
        elif isinstance(stage, filters.detshuffle):
            self._shuffle(stage.bufsize)
        elif isinstance(stage, data.DataLoader):
            self._dataloader(stage)
        elif type(stage) is shardlists.SimpleShardList:
            self.samples.urls = list(stage.urls)
            self.samples.shuffled |= stage.seed is not None
        elif isinstance(stage, (cache.StreamingOpen, cache.FileCache)):
            self._handler(stage.handler)
        elif function in _BY_RANK:
            self.samples.is_split = True
        elif function in _WITHOUT_EFFECT:
            return
        elif isinstance(stage, (shardlists.ResampledShards, shardlists.MultiShardSample)):
            self.problems.add("every epoch has each record once", "give the tar files as a list, without resampling")
        else:
            self.problems.add("there is no operator for it", _LEAVE_OUT)

    def _handler(self, handler: Any) -> None:
        if handler is None:
            return
        if handler not in _ERRORS:
            self.problems.add(
                "bad records fail or are skipped", "use reraise_exception or warn_and_continue", "handler"
            )
        elif _ERRORS[handler] == "skip":
            self.samples.on_error = "skip"

    def _shuffle(self, bufsize: int = 1000, *_: Any, **__: Any) -> None:
        self.samples.shuffled |= bufsize > 1

    def _expand(self, *_: Any, select_files: Any = None, rename_files: Any = None, **__: Any) -> None:
        if select_files is not None or rename_files is not None:
            self.problems.add("members are found by their names", "leave them out", "select_files or rename_files")

    def _group(self, *arguments: Any, **options: Any) -> None:
        if arguments or options:
            self.problems.add("members are grouped by their names up to the first dot", "leave its options out")

    def _decode(self, *decoders: Any, pre: Any = None, post: Any = None, only: Any = None, **_: Any) -> None:
        made = [autodecode.ImageHandler(given) if isinstance(given, str) else given for given in decoders]
        self._decoder(autodecode.Decoder(made, pre=pre, post=post, only=only))

    def _decoder(self, decoder: Any) -> None:
        pre, post = autodecode.default_pre_handlers, autodecode.default_post_handlers
        own = decoder.handlers[len(pre) : -len(post)]
        is_plain = decoder.handlers == [*pre, *own, *post] and decoder.only is None
        if not is_plain or len(own) > 1 or any(type(given) is not autodecode.ImageHandler for given in own):
            self.problems.add("images are decoded in the ways of one word", 'use .decode("pil") alone')
        elif self.names or self.samples.decoded:
            self.problems.add("names are known to webdataset by their endings", "put one decode before rename")
        elif own:
            self.samples.decoded = own[0].imagespec

    def _map(self, function: Any, **_: Any) -> None:
        if isinstance(function, autodecode.Decoder):
            self._decoder(function)
        else:
            name = getattr(function, "__name__", type(function).__name__)
            self.problems.add("it is a function of whole samples, which may do anything", _LEAVE_OUT, name)

    def _resolved(self, keys: str | list[str]) -> str:
        parts = keys.split(";") if isinstance(keys, str) else keys
        return ";".join(self.names.get(part, part) for part in parts)

    def _rename(self, keep: bool = True, **names: Any) -> None:
        self.names |= {name: self._resolved(keys) for name, keys in names.items()}

    def _to_tuple(self, *keys: Any, missing_is_error: bool = True, **_: Any) -> None:
        if not missing_is_error:
            self.problems.add("a record without a member is bad", "leave it out", "missing_is_error=False")
        if len(keys) == 1 and isinstance(keys[0], str):
            keys = tuple(keys[0].split())
        self.samples.fields = tuple(self._resolved(key) for key in keys)

    def _map_dict(self, **functions: Any) -> None:
        for name, function in functions.items():
            self.samples.transforms.setdefault(self._resolved(name), []).append(function)

    def _map_tuple(self, *functions: Any) -> None:
        for key, function in zip(self.samples.fields or (), functions, strict=False):
            if function is not None:
                self.samples.transforms.setdefault(key, []).append(function)

    def _batched(
        self, batchsize: int = 20, collation_fn: Any = filters.default_collation_fn, partial: bool = True
    ) -> None:
        if collation_fn is not filters.default_collation_fn:
            self.problems.add("batches are stacked as default_collation_fn does", _LEAVE_OUT, "collation_fn")
        self._batch(batchsize, not partial)

    def _batch(self, size: int, drop_last: bool) -> None:
        if self.samples.batch_size is not None:
            self.problems.add("batches cannot be batched again", "batch once, or put unbatched() between")
        self.samples.batch_size, self.samples.drop_last = size, drop_last

    def _unbatched(self) -> None:
        self.samples.batch_size = None

    def _dataloader(self, loader: data.DataLoader[Any]) -> None:
        if loader.worker_init_fn is not None:
            self.problems.add("there are no such workers to call it in", "leave it out", "worker_init_fn")
        if loader.collate_fn not in (data.default_collate, data.default_convert):
            self.problems.add("batches are stacked as torch's default_collate does", _LEAVE_OUT, "collate_fn")
        if loader.batch_size is not None:
            self._batch(loader.batch_size, loader.drop_last)
