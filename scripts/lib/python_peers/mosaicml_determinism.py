"""Cases of MosaicML streaming's test_streaming.py, restated: the originals need datasets of its own format, MDS."""

import itertools
import multiprocessing

import gristmill as gm
import gristmill.torch as gm_torch

from .ground import case, equal, values

RECORDS = 117
EXIT_RECORDS, EXIT_S = 9867, 60


def loader(ground, batch, shuffled, workers):
    pipeline = ground.pipeline(RECORDS, batch, shuffled=shuffled)
    return ground.keep(gm_torch.Loader(pipeline, service=ground.service, seed=1111, workers=workers))


def whole(*arguments):
    """All batches of a loader that ends before the next one begins."""
    with loader(*arguments) as batches:
        return values(batches)


def determinism(ground):
    """Two loaders with the same arguments have the same order."""
    for batch, shuffled, workers in itertools.product((1, 4), (False, True), (1, 8)):
        first, second = (whole(ground, batch, shuffled, workers) for _ in range(2))
        equal(sum(len(rows) for rows in first), RECORDS, "elements")
        equal(second, first, f"batches of {batch}, shuffled: {shuffled}, {workers} workers")


def take_one(pipeline):
    """A process that takes one batch and ends, with the loader open."""
    next(iter(gm.numpy.Loader(pipeline, seed=1234)))


def mid_epoch_exit(ground):
    pipeline = ground.pipeline(EXIT_RECORDS, 1)
    process = multiprocessing.get_context("spawn").Process(target=take_one, args=(pipeline.to_yaml(),))
    process.start()
    process.join(EXIT_S)
    process.terminate()
    process.join()
    equal(process.exitcode, 0, "exit code of a process that leaves an epoch")


def mid_epoch_resumption(ground):
    """Leaves an epoch in its middle, and goes on in a new loader: each element comes once."""
    for batch, shuffled, workers in itertools.product((1, 4), (False, True), (1, 4)):
        first = loader(ground, batch, shuffled, workers)
        found = []
        for index, rows in enumerate(first):
            found += rows["value"].tolist()
            if index == RECORDS // (batch * 2):
                state = first.state_dict()
                break
        second = loader(ground, batch, shuffled, workers)
        second.load_state_dict(state)
        for rows in second:
            found += rows["value"].tolist()
        equal(sorted(found), list(range(RECORDS)), "elements")


case("mosaicml", "restated", "test_dataloader_determinism", determinism)
case("mosaicml", "restated", "test_dataloader_mid_epoch_exit", mid_epoch_exit)
case("mosaicml", "restated", "test_streamingdataloader_mid_epoch_resumption", mid_epoch_resumption)
