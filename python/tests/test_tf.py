"""TensorFlow tensors: values at any address, lifetime, tf.data, and resuming at every batch."""

import gc
import weakref

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import gristmill as gm  # noqa: E402
import gristmill.numpy  # noqa: E402
import gristmill.tf  # noqa: E402

EPOCHS = 3


def loader(pipeline, service, **options):
    return gm.tf.Loader(pipeline, service=service, **{"epochs": EPOCHS} | options)


@pytest.mark.parametrize("rows", [50, 64])
def test_values_are_numpys(images, service, rows):
    options = {"service": service, "epochs": 1, "batch_size": rows, "keys": True}
    with gm.numpy.Loader(images, **options) as plain, gm.tf.Loader(images, **options) as tensors:
        expected, got = list(plain), list(tensors)
    assert sum(len(batch["label"]) for batch in got) == 200
    for a, b in zip(expected, got, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert b[name].dtype == a[name].dtype
            np.testing.assert_array_equal(a[name], b[name])
        assert isinstance(b["image"], tf.Tensor)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "uint64", "float16", "float64", "bfloat16"])
@pytest.mark.parametrize("offset", [0, 64, 32, 16, 8])
def test_tensors_own_their_memory(offset, dtype):
    # DLPack of a misaligned address would end the process.
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    raw = np.zeros(8192 + 1000, np.uint8)
    start = -raw.ctypes.data % 4096 + offset
    array = raw[start : start + 960].view(dtype).reshape(3, -1)
    array[:] = np.arange(array.size).reshape(3, -1) % 2
    expected = array.copy()
    alive = weakref.ref(raw)
    tensor = gm.tf.Loader._convert(None, {"x": array})["x"]
    assert tensor.dtype == dtype
    del array, raw
    gc.collect()
    assert (alive() is not None) == (offset % 64 == 0)
    np.testing.assert_array_equal(tensor, expected)
    del tensor
    gc.collect()
    assert alive() is None


def test_views_and_empty_arrays():
    pixels = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3).transpose(0, 3, 1, 2)
    got = gm.tf.Loader._convert(None, {"x": pixels, "none": np.zeros((0, 3), np.float32)})
    np.testing.assert_array_equal(got["x"], pixels)
    assert got["none"].shape == (0, 3)


def test_tensors_outlive_the_loader(images, service):
    with gm.numpy.Loader(images, service=service, epochs=1, batch_size=64) as plain:
        expected = [batch["image"] for batch in plain]
    source = loader(images, service, epochs=1, batch_size=64)
    kept = [batch["image"] for batch in source]
    source.close()
    del source
    gc.collect()
    for a, b in zip(expected, kept, strict=True):
        np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}], ids=["sized", "not sized"])
def test_resume_at_every_batch(numbers, service, options):
    options = {"batch_size": 150} | options

    def rest(source):
        return [batch["value"].numpy().tobytes() for _ in range(source.epoch, EPOCHS) for batch in source]

    source = loader(numbers, service, keys=True, acknowledge="state", **options)
    whole, states = [], [source.state_dict()]
    for _ in range(EPOCHS):
        for batch in source:
            whole.append(batch["value"].numpy().tobytes())
            states.append(source.state_after(batch["__cursor__"]))
    source.close(abandon=True)
    for taken, state in enumerate(states):
        again = loader(numbers, service, **options)
        again.load_state_dict(state)
        assert rest(again) == whole[taken:]
        again.close(abandon=True)
    assert len(whole) == EPOCHS * 7


@pytest.mark.parametrize("kind", ["tf", "numpy"])
def test_dataset_is_an_epoch(images, service, kind):
    options = {"service": service, "epochs": 2, "batch_size": 50}
    with gm.numpy.Loader(images, **options) as plain:
        expected = [[batch["image"] for batch in plain] for _ in range(2)]
    with (gm.tf.Loader if kind == "tf" else gm.numpy.Loader)(images, **options) as source:
        data = gm.tf.dataset(source)
        assert data.element_spec["image"] == tf.TensorSpec((None, 32, 32, 3), tf.uint8)
        assert data.element_spec["label"] == tf.TensorSpec((None,), tf.int64)
        for epoch in expected:
            np.testing.assert_array_equal([batch["image"] for batch in data], epoch)
        assert list(data) == []


def test_dataset_resumes_in_mid_epoch(numbers, service):
    source = loader(numbers, service, batch_size=150, keys=True, acknowledge="state", epochs=1)
    whole, states = [], []
    for batch in gm.tf.dataset(source).prefetch(3):
        whole.append(batch["value"].numpy().tolist())
        states.append(source.state_after(batch["__cursor__"]))
    source.close(abandon=True)
    for taken, state in enumerate(states, 1):
        again = loader(numbers, service, batch_size=150, epochs=1)
        again.load_state_dict(state)
        assert [batch["value"].numpy().tolist() for batch in gm.tf.dataset(again)] == whole[taken:]
        again.close(abandon=True)
    assert len(whole) == 7


def test_dataset_of_ragged_fields(images_dir, service):
    pipeline = gm.tfrecord(images_dir / "train-*", image=gm.bytes("image/encoded")).batch(size=50, ragged=True)
    with loader(pipeline, service, epochs=1, keys=True) as source:
        data = gm.tf.dataset(source)
        batches = list(data)
    assert len(batches) == 4
    for batch in batches:
        assert batch["image"].dtype == tf.uint8
        assert batch["image.offsets"].shape == (51,)
        assert batch["image.offsets"][-1] == batch["image"].shape[0]
        assert bytes(batch["image"][:2].numpy()) == b"\xff\xd8"
