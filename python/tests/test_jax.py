"""JAX arrays: values, copies, lifetime, devices and shardings, and resuming at every batch."""

import gc
import os
import socket
import subprocess
import sys
import weakref

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import gristmill as gm  # noqa: E402
import gristmill.jax  # noqa: E402
import gristmill.numpy  # noqa: E402

EPOCHS = 3


def loader(pipeline, service, **options):
    return gm.jax.Loader(pipeline, service=service, **{"epochs": EPOCHS} | options)


@pytest.mark.parametrize("rows", [50, 64])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_values_are_numpys(images, service, rows, ahead):
    options = {"service": service, "epochs": 1, "batch_size": rows, "keys": True}
    with gm.numpy.Loader(images, **options) as plain, gm.jax.Loader(images, ahead=ahead, **options) as arrays:
        expected, got = list(plain), list(arrays)
    assert [len(batch["label"]) for batch in got] == [len(batch["label"]) for batch in expected]
    assert sum(len(batch["label"]) for batch in got) == 200
    for a, b in zip(expected, got, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
        assert isinstance(b["image"], jax.Array) and b["image"].dtype == np.uint8
        assert b["label"].dtype == np.int32
        assert isinstance(b["__key__"], np.ndarray) and b["__key__"].dtype == np.uint64


def test_aligned_arrays_are_not_copied(images, service, monkeypatch):
    addresses = []
    convert = gm.jax.Loader._convert

    def spy(self, arrays):
        addresses.append(arrays["image"].ctypes.data)
        return convert(self, arrays)

    monkeypatch.setattr(gm.jax.Loader, "_convert", spy)
    with loader(images, service, batch_size=64, epochs=1) as source:
        for batch in source:
            same = batch["image"].unsafe_buffer_pointer() == addresses[-1]
            assert same == (addresses[-1] % 64 == 0)
    assert len(addresses) == 4


@pytest.mark.parametrize("offset", [0, 64, 16, 4])
def test_arrays_own_their_memory(offset):
    source = object.__new__(gm.jax.Loader)
    source._device = source._sharding = None
    raw = np.zeros(8192 + 4000, np.uint8)
    start = -raw.ctypes.data % 4096 + offset
    array = raw[start : start + 4000].view(np.int32)
    array[:] = np.arange(1000)
    alive = weakref.ref(raw)
    placed = source._convert({"x": array})["x"]
    del array, raw
    gc.collect()
    assert (alive() is not None) == (offset % 64 == 0)
    np.testing.assert_array_equal(placed, np.arange(1000))
    del placed
    gc.collect()
    assert alive() is None


def test_arrays_outlive_the_loader(images, service):
    with gm.numpy.Loader(images, service=service, epochs=1, batch_size=64) as plain:
        expected = [batch["image"] for batch in plain]
    source = loader(images, service, epochs=1, batch_size=64)
    kept = [batch["image"] for batch in source]
    source.close()
    del source
    gc.collect()
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)
    for a, b in zip(expected, kept, strict=True):
        np.testing.assert_array_equal(b, a)
        np.testing.assert_array_equal(doubled(b), a * 2)


def test_integers_that_jax_would_wrap_are_refused():
    source = object.__new__(gm.jax.Loader)
    source._device = source._sharding = None
    good = source._convert({"x": np.array([-(2**31), 2**31 - 1]), "empty": np.array([], np.int64)})
    np.testing.assert_array_equal(good["x"], [-(2**31), 2**31 - 1])
    for array in (np.array([0, 2**31]), np.array([-(2**31) - 1]), np.array([2**32], np.uint64)):
        with pytest.raises(gm.OptionError, match=r"field x: .* does not fit .*jax_enable_x64"):
            source._convert({"x": array})


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}], ids=["sized", "not sized"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_resume_at_every_batch(numbers, service, options, ahead):
    options = {"batch_size": 150, "ahead": ahead} | options

    def rest(source):
        return [np.asarray(batch["value"]).tobytes() for _ in range(source.epoch, EPOCHS) for batch in source]

    source = loader(numbers, service, keys=True, acknowledge="state", **options)
    whole, states = [], [source.state_dict()]
    for _ in range(EPOCHS):
        for batch in source:
            whole.append(np.asarray(batch["value"]).tobytes())
            states.append(source.state_after(batch["__cursor__"]))
    source.close(abandon=True)
    for taken, state in enumerate(states):
        again = loader(numbers, service, **options)
        again.load_state_dict(state)
        assert rest(again) == whole[taken:]
        again.close(abandon=True)
    assert len(whole) == EPOCHS * 7


def test_states_count_what_was_handed_over(numbers, service):
    with loader(numbers, service, batch_size=150, ahead=3) as source:
        for number, _ in enumerate(source, 1):
            state = source.state_dict()
            assert (state["epoch"], state["g"]) == (0, number)
            if number == 2:
                break
        assert source.epoch == 1


def test_options_are_checked(numbers):
    with pytest.raises(gm.OptionError, match="exclude"):
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        gm.jax.Loader(numbers, device=jax.devices()[0], sharding=sharding)
    with pytest.raises(gm.OptionError, match="ahead"):
        gm.jax.Loader(numbers, ahead=-1)


SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import gristmill as gm, gristmill.jax
source = object.__new__(gm.jax.Loader)
source._device, source._sharding = None, NamedSharding(Mesh(jax.devices(), "data"), P("data"))
assert source._on_cpu()
array = np.arange(64 * 100, dtype=np.int32).reshape(64, 100)
x = source._convert({"x": array.copy()})["x"]
assert len(x.addressable_shards) == 4
for shard in x.addressable_shards:
    np.testing.assert_array_equal(shard.data, array[shard.index])
source._sharding = {"x": source._sharding}
both = source._convert({"x": array.copy(), "y": array.copy()})
assert len(both["x"].devices()) == 4 and len(both["y"].devices()) == 1
np.testing.assert_array_equal(both["y"], array)
source._device, source._sharding = jax.devices()[2], None
assert source._convert({"x": array})["x"].devices() == {jax.devices()[2]}
"""


def test_shardings_and_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    subprocess.run([sys.executable, "-c", SHARDED], check=True, env=os.environ | {"XLA_FLAGS": flags})


PROCESS = """
import sys
import jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import gristmill as gm, gristmill.jax
rows = NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data"))
total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(rows.mesh, PartitionSpec()))
pipeline = gm.tfrecord(sys.argv[4] + "/train-*", value=gm.i64("value")).batch(size=50)
options = {"service": gm.connect(sys.argv[3]), "job": "of-two-processes", "run": "one", "epochs": 1}
sums = []
with gm.jax.Loader(pipeline, sharding=rows, ahead=1, **options) as loader:
    for batch in loader:
        assert batch["value"].shape == (100,)
        sums.append(int(total(batch["value"])))
assert len(sums) == 10 and sum(sums) == 499500, sums
"""


def test_two_processes_share_global_arrays(numbers_dir, service):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=1"
    command = [sys.executable, "-c", PROCESS, address]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), service.endpoint, str(numbers_dir)], env=os.environ | {"XLA_FLAGS": flags}
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
