"""Arrays over the fetcher's own memory: where they lie, who keeps it, and that it comes back."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest

import gristmill as gm
from gristmill import _native


def owner(array):
    """What an array's memory belongs to."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def bounds(array):
    start = array.ctypes.data
    return start, start + array.nbytes


@pytest.mark.parametrize("rows", [16, 50, 64])
def test_the_arrays_of_a_batch_lie_in_one_buffer(images, service, rows):
    with gm.numpy.Loader(images, service=service, epochs=1, batch_size=rows, keys=True) as loader:
        for batch in loader:
            fields = {name: array for name, array in batch.items() if name not in ("__repeat__", "__cursor__")}
            owners = {id(owner(array)): owner(array) for array in fields.values()}
            (buffer,) = owners.values()
            assert isinstance(buffer, _native.Batch)
            low, high = bounds(np.frombuffer(buffer, np.uint8))
            for array in fields.values():
                start, end = bounds(array)
                assert low <= start and end <= high
                assert array.flags.aligned and array.flags.c_contiguous


def test_arrays_are_writable_and_do_not_overlap(images, service):
    with gm.numpy.Loader(images, service=service, epochs=1) as loader:
        batches = list(loader)
    copies = [{name: array.copy() for name, array in batch.items()} for batch in batches]
    for batch in batches:
        batch["label"] += 1
        batch["image"][:, 0] = 7
    for batch, copy in zip(batches, copies, strict=True):
        np.testing.assert_array_equal(batch["label"], copy["label"] + 1)
        np.testing.assert_array_equal(batch["image"][:, 1:], copy["image"][:, 1:])
        assert (batch["image"][:, 0] == 7).all()
    spans = sorted(bounds(array) for batch in batches for array in batch.values())
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start


def test_arrays_outlive_loader_and_service(images):
    with gm.local() as service:
        loader = gm.numpy.Loader(images, service=service, epochs=1)
        kept = [batch["image"] for batch in loader]
        loader.close()
        again = gm.numpy.Loader(images, service=service, epochs=1)
        expected = [batch["image"].copy() for batch in again]
        again.close()
        gone = weakref.ref(loader)
        del loader, again
    del service
    gc.collect()
    assert gone() is None
    for array, copy in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_list_of_more_than_the_memory_for_prefetching_ends(images_dir, service):
    features = {"image": gm.bytes("image/encoded")}
    pipeline = gm.tfrecord(images_dir / "train-*", **features).decode().resize(size=256).batch(size=20)
    with gm.numpy.Loader(pipeline, service=service, epochs=1, prefetch_mib=3) as loader:
        batches = list(loader)
    held = sum(batch["image"].nbytes for batch in batches)
    assert held == 200 * 256 * 256 * 3
    assert held > 10 * (3 << 20)
    assert sum(len(batch["image"]) for batch in batches) == 200
