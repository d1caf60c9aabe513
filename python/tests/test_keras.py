"""Keras training: which batches a model is trained on, also after a stop at any batch."""

from itertools import chain

import numpy as np
import pytest

keras = pytest.importorskip("keras")

import gristmill as gm  # noqa: E402
import gristmill.keras  # noqa: E402
import gristmill.numpy  # noqa: E402

EPOCHS = 3


class Stop(Exception):
    """Stands for a crash."""


class StopAfter(keras.callbacks.Callback):
    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Stop


class Log(keras.layers.Layer):
    """Passes its input on, and keeps the sum of each batch that it was called with."""

    def __init__(self, kept):
        super().__init__()
        self.keep = kept.append  # Keras would copy a list

    def call(self, x, training=False):
        if training:
            self.keep(int(keras.ops.sum(x)))
        return x


def model(kept, jit=False):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((1,)), Log(kept), keras.layers.Rescaling(0.001), keras.layers.Dense(1)]
    result = keras.Sequential(layers if not jit else layers[:1] + layers[2:])
    # Only eager layers see numbers.
    result.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=not jit, jit_compile=False)
    return result


def loader(numbers, service, **options):
    return gm.numpy.Loader(numbers, service=service, **{"epochs": EPOCHS, "batch_size": 350} | options)


@pytest.fixture
def sums(numbers, service):
    """The sum of `value` in each batch of each epoch."""
    with loader(numbers, service) as source:
        return [[int(batch["value"].sum()) for batch in source] for _ in range(EPOCHS)]


def test_each_batch_is_trained_on_once_and_in_order(numbers, service, sums):
    kept = []
    with loader(numbers, service) as source:
        history = gm.keras.fit(model(kept), source, "value", "value", verbose=0)
        state = source.state_dict()
    assert (state["epoch"], state["g"]) == (EPOCHS, 0)
    assert kept == list(chain(*sums))
    assert len(history.history["loss"]) == EPOCHS


@pytest.mark.parametrize(
    ("options", "lengths"),
    [({}, {}), ({"on_error": "skip"}, {"epochs": EPOCHS, "steps_per_epoch": 3})],
    ids=["sized", "not sized"],
)
def test_resume_after_each_batch(numbers, service, sums, tmp_path, options, lengths):
    whole = list(chain(*sums))
    assert len(whole) == EPOCHS * 3
    weights = []
    for stop in range(1, len(whole)):
        kept = []
        arguments = {"checkpoint": tmp_path / str(stop), "every": 1, "verbose": 0} | lengths
        with loader(numbers, service, **options) as source, pytest.raises(Stop):
            crash = [StopAfter(stop + 1)]
            gm.keras.fit(model(kept), source, "value", "value", callbacks=crash, **arguments)
        # The crash comes before the last batch is saved.
        assert kept == whole[: stop + 1]
        kept.clear()
        with loader(numbers, service, **options) as source:
            trained = model(kept)
            gm.keras.fit(trained, source, "value", "value", **arguments)
        assert kept == whole[stop:]
        weights.append(trained.get_weights())
    for other in weights[1:]:
        np.testing.assert_equal(other, weights[0])


def test_a_finished_training_is_not_repeated(numbers, service, tmp_path):
    kept = []
    first = model(kept)
    with loader(numbers, service, epochs=1) as source:
        gm.keras.fit(first, source, "value", "value", checkpoint=tmp_path, verbose=0)
    kept.clear()
    second = model(kept)
    with loader(numbers, service, epochs=1) as source:
        gm.keras.fit(second, source, "value", "value", checkpoint=tmp_path, verbose=0)
    assert kept == []
    np.testing.assert_equal(second.get_weights(), first.get_weights())
    assert len(list(tmp_path.iterdir())) == 2
    # A job that is done goes on for a loader of more epochs.
    with loader(numbers, service, epochs=2) as source:
        gm.keras.fit(model(kept), source, "value", "value", checkpoint=tmp_path, verbose=0)
        assert len(kept) == len(source)


def test_an_unknown_length_needs_steps(numbers, service, sums, tmp_path):
    with (
        loader(numbers, service, on_error="skip") as source,
        pytest.raises(gm.OptionError, match="steps_per_epoch"),
    ):
        gm.keras.fit(model([]), source, "value", "value")
    kept = []
    with loader(numbers, service, on_error="skip") as source, pytest.raises(Stop):
        gm.keras.fit(
            model(kept),
            source,
            "value",
            "value",
            epochs=4,
            steps_per_epoch=2,
            checkpoint=tmp_path,
            every=1,
            verbose=0,
            callbacks=[StopAfter(5)],
        )
    with loader(numbers, service, on_error="skip") as source:
        gm.keras.fit(
            model(kept),
            source,
            "value",
            "value",
            epochs=4,
            steps_per_epoch=2,
            checkpoint=tmp_path,
            every=1,
            verbose=0,
        )
        state = source.state_dict()
    whole = list(chain(*sums))
    assert kept == whole[:5] + whole[4:8]
    assert (state["epoch"], state["g"]) == (2, 8 - 2 * len(sums[0]))


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras refuses it with torch")
def test_several_steps_per_execution(numbers, service, sums, tmp_path):
    def compiled():
        result = model([], jit=True)
        result.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=2, jit_compile=False)
        return result

    once = compiled()
    with loader(numbers, service) as source:
        gm.keras.fit(once, source, "value", "value", verbose=0)
    with loader(numbers, service) as source, pytest.raises(Stop):
        gm.keras.fit(
            compiled(),
            source,
            "value",
            "value",
            checkpoint=tmp_path,
            every=1,
            verbose=0,
            callbacks=[StopAfter(3)],
        )
    again = compiled()
    with loader(numbers, service) as source:
        gm.keras.fit(again, source, "value", "value", checkpoint=tmp_path, every=1, verbose=0)
    np.testing.assert_equal(again.get_weights(), once.get_weights())


def test_the_loader_is_where_training_stopped(numbers, service):
    class StopEarly(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.stop_training = True

    with loader(numbers, service) as source:
        gm.keras.fit(model([]), source, "value", "value", verbose=0, callbacks=[StopEarly()])
        state = source.state_dict()
        assert (state["epoch"], state["g"]) == (0, 2)


def test_fields_by_list_and_name(numbers, service):
    a, b = keras.layers.Input((1,), name="a"), keras.layers.Input((1,), name="b")
    pair = keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])))
    pair.compile("sgd", "mse")
    for fields in (["value", "value"], {"a": "value", "b": "value"}):
        with loader(numbers, service, epochs=1) as source:
            gm.keras.fit(pair, source, fields, "value", "value", verbose=0)


def test_errors_are_ours(numbers, service, tmp_path):
    with loader(numbers, service) as source:
        with pytest.raises(gm.OptionError, match="no field 'label'; the batches have value"):
            gm.keras.fit(model([]), source, "value", "label", verbose=0)
        with pytest.raises(gm.OptionError, match="shuffle"):
            gm.keras.fit(model([]), source, "value", "value", shuffle=True)
        with pytest.raises(gm.OptionError, match="every"):
            gm.keras.fit(model([]), source, "value", "value", every=1)
    with loader(numbers, service, epochs=1) as source, pytest.raises(gm.OptionError, match="no more batches"):
        gm.keras.fit(model([]), source, "value", "value", epochs=2, verbose=0)
    (tmp_path / "checkpoint.json").write_text("{}")
    with loader(numbers, service) as source, pytest.raises(gm.CheckpointError, match="no checkpoint"):
        gm.keras.fit(model([]), source, "value", "value", checkpoint=tmp_path)
