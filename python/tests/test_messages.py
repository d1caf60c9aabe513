"""Mistakes of Python users: each is one line that says what is wrong and what to write, raised by the call that is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import example_data
import numpy as np
import pytest

import gristmill as gm

Loader: Any = gm.numpy.Loader
any_gm: Any = gm


def images() -> Any:
    return gm.images("pictures").decode()


def sized() -> Any:
    return images().resize(8)


def numbers() -> Any:
    return gm.jsonl("numbers.jsonl", x=gm.i64())


def texts() -> Any:
    return gm.jsonl("texts.jsonl", text=gm.bytes(), tokens=gm.i64(shape=[-1]))


def load(pipeline: Any = None, **options: Any) -> Any:
    return Loader(numbers().batch(8) if pipeline is None else pipeline, **options)


OPTION, PIPELINE = gm.OptionError, gm.PipelineError
#: A mistake, its exception, and words of its message.
MISTAKES: list[tuple[Callable[[], object], type[Exception], str]] = [
    # Options of loaders.
    (lambda: load(epochs="2"), OPTION, "gm.numpy.Loader: epochs='2': it is a whole number: write epochs=2"),
    (lambda: load(epochs=2.5), OPTION, "epochs=2.5: it is a whole number"),
    (lambda: load(epochs=2.0), OPTION, "epochs=2.0: it is a whole number: write epochs=2"),
    (lambda: load(epochs=-1), OPTION, "epochs=-1: there is at least one"),
    (lambda: load(epoch=2), OPTION, "epoch is no option: did you mean epochs=2?"),
    (lambda: load(num_workers=8), OPTION, "num_workers is no option: write workers=8"),
    (lambda: load(shuffle=True), OPTION, "write .shuffle() after its source"),
    (lambda: load(drop_last=True), OPTION, "write .batch(size, drop_remainder=True)"),
    (lambda: load(collate_fn=len), OPTION, "apply the function to each batch in the training loop"),
    (lambda: load(pin_memory=True), OPTION, 'device="cuda" of gm.torch.Loader'),
    (lambda: load(timeout=30), OPTION, "write patience=30"),
    (lambda: load(device="cuda"), OPTION, "device is no option: it is an option of gm.torch.Loader"),
    (lambda: load(something=1), OPTION, "something is no option; there are service, job, data"),
    (lambda: load(mesh="dp"), OPTION, "it is a torch.distributed.device_mesh.DeviceMesh"),
    (lambda: load(seed="x"), OPTION, "seed='x': it is a whole number"),
    (lambda: load(batch_size=0), OPTION, "batch_size=0: it is 1 or more"),
    (lambda: load(batch_size=10**6), OPTION, "batch_size=1000000: it is not in 1 to 65536"),
    (lambda: load(workers="many"), OPTION, "workers='many': it is a whole number or \"auto\""),
    (lambda: load(workers="8"), OPTION, "write workers=8"),
    (lambda: load(workers=True), OPTION, 'workers=True: it is a whole number or "auto"'),
    (lambda: load(workers=-1), OPTION, "workers=-1: it is 0 or more"),
    (lambda: load(on_error="skipp"), OPTION, 'did you mean "skip"?'),
    (lambda: load(on_eror="skip"), OPTION, "on_eror is no option: did you mean on_error='skip'?"),
    (lambda: load(patience="soon"), OPTION, "patience='soon': `soon` is not a duration: write 90s or 10m"),
    (lambda: load(prefetch_mib="1 GB"), OPTION, "prefetch_mib='1 GB': it is a whole number"),
    (lambda: load(job="My Job"), OPTION, "job='My Job': job name"),
    (lambda: load(job=3), OPTION, 'job=3: it is a text: write job="3"'),
    (lambda: load(service="aws"), OPTION, "service='aws': it is gm.local(...) or gm.connect(...)"),
    (lambda: load(data="numbrs.jsonl"), OPTION, "did you mean 'numbers.jsonl'?"),
    (lambda: load(data=5), OPTION, "data=5: it is a path"),
    (lambda: load(max_workers=8), OPTION, '`max_workers` limits `workers="auto"`: write both'),
    (lambda: load(sharding="off", workers="auto"), OPTION, "write `workers=N`"),
    (lambda: load(max_skipped="lots"), OPTION, "max_skipped='lots'"),
    (lambda: load(rank=1), OPTION, "rank and world_size go together: give both"),
    (lambda: load(rank=2, world_size=2), OPTION, "rank=2 is not between 0 and world_size=2"),
    (lambda: load(rank=0, world_size=2), OPTION, "make loaders after torch.distributed.init_process_group"),
    (lambda: load(tail="pad"), OPTION, 'tail=\'pad\': it is "drop", "repeat" or "uneven"'),
    (lambda: load(keys="yes"), OPTION, "keys='yes': it is True or False"),
    # Pipelines and paths, when the loader is made.
    (lambda: load(numbers()), PIPELINE, "the pipeline has no `batch`; end it with `.batch(size=64)`"),
    (lambda: load("pictures"), OPTION, "'pictures' is data, and no pipeline file: write gm.images('pictures'"),
    (lambda: load("numbers.jsonl"), OPTION, "write gm.jsonl('numbers.jsonl'"),
    (lambda: load("pipeline.yaml"), FileNotFoundError, "pipeline.yaml"),
    (lambda: load([1, 2]), OPTION, "the pipeline is a gm.Pipeline or the path of a pipeline file, not list"),
    (lambda: load(gm.images("pictuers").decode().resize(8).batch(4)), OPTION, "did you mean 'pictures'?"),
    (lambda: load(gm.images("~/x").decode().resize(8).batch(4)), OPTION, "write os.path.expanduser('~/x')"),
    (lambda: load(gm.jsonl("n*.json", x=gm.i64()).batch(4)), OPTION, "no file or folder 'n*.json'"),
    (
        lambda: load(gm.images(["pictures"] * 2).decode().resize(8).batch(4)),
        OPTION,
        "one folder with a folder for each",
    ),
    (lambda: load(gm.images("pictures/cat").decode().resize(8).batch(4)), OPTION, "'pictures/cat' has no folders"),
    (lambda: load(gm.jsonl("numbers.jsonl").batch(4)), PIPELINE, "the source needs fields, such as `x=gm.i64()`"),
    (lambda: load(gm.images("pictures").resize(8).batch(4)), PIPELINE, "put `decode` before it"),
    (lambda: load(images().batch(4)), PIPELINE, "put a resize or crop before it"),
    (lambda: load(sized().batch(4).flip()), PIPELINE, "`flip` comes after `batch`; move it before"),
    (lambda: load(sized().batch(4).batch(2)), PIPELINE, "keep one of them"),
    (lambda: load(images().resize("big").batch(4)), PIPELINE, "`resize` `size` must be a whole number from 1 to 16384"),
    (lambda: load(sized().batch("4")), PIPELINE, "`batch` `size` must be a whole number from 1 to 1048576, not '4'"),
    (lambda: load(sized().flip(p=2).batch(4)), PIPELINE, "`flip` `p` must be a number from 0 to 1, not 2"),
    (lambda: load(sized().flip(field="img").batch(4)), PIPELINE, "name one with `field=...`"),
    (lambda: load(sized().cast(dtype="int8").batch(4)), PIPELINE, "`cast` `dtype` must be u8, u16"),
    (lambda: load(sized().normalise(mean=gm.IMAGENET, std=[1] * 3).batch(4)), PIPELINE, "not a dict"),
    (lambda: load(texts().batch(3)), PIPELINE, "or say `ragged=True`"),
    (lambda: load(texts().tokenise(field="text", tokenizer="no.json").padded_batch(3)), PIPELINE, "no such file"),
    (lambda: load(sized().batch(4).deliver(normalise="imagenet")), PIPELINE, "must be a dict, not 'imagenet'"),
    # Calls that make a pipeline.
    (lambda: any_gm.jsonl("numbers.jsonl", x=gm.i64), TypeError, "x=gm.i64 is a function: write x=gm.i64()"),
    (lambda: any_gm.jsonl("numbers.jsonl", x=int), TypeError, "write x=gm.i64()"),
    (lambda: any_gm.jsonl("numbers.jsonl", x=np.float32), TypeError, "write x=gm.f32()"),
    (lambda: any_gm.jsonl("numbers.jsonl", features=["x"]), TypeError, "features={'x': gm.i64()}"),
    (lambda: any_gm.csv("table.csv", delimter=";"), TypeError, "did you mean `delimiter`?"),
    (lambda: any_gm.images(5), TypeError, "gm.images: the path is a text, a pathlib.Path or a list of them, not 5"),
    (lambda: any_gm.i64(default=7), TypeError, "gm.i64: `default` is no parameter: write defaults={field: 7} beside"),
    (lambda: any_gm.i64(size=7), TypeError, "gm.i64: `size` is no parameter: it takes key, shape"),
    (lambda: load(gm.jsonl("a\x07.jsonl", x=gm.i64()).batch(4)), PIPELINE, "must be text without control characters"),
    (lambda: any_gm.i64(3), TypeError, "gm.i64: the key is a text, not 3: write gm.i64(shape=3)"),
    (lambda: any_gm.i64(shape="3"), TypeError, "shape is a list of whole numbers such as [3]"),
    (lambda: images().rezise(8), AttributeError, "did you mean .resize?"),
    (lambda: images().normalize(mean=[0.5]), AttributeError, "write .normalise(...)"),
    (lambda: images().map(len), AttributeError, "apply the function to each batch in the training loop"),
    (lambda: images().resize(sise=8), TypeError, ".resize: sise is no parameter: did you mean size?"),
    (lambda: images().resize(8, 8), TypeError, ".resize: height and width are one argument: write size=[8, 8]"),
    (lambda: images().resize(), TypeError, ".resize: missing a required argument: 'size': it takes size, antialias"),
    (lambda: images().flip(0.5), TypeError, ".flip: too many positional arguments: it takes p, field"),
    (lambda: numbers().in_order(seed=3), TypeError, ".in_order: seed is no parameter: it has no parameters"),
    (lambda: list(numbers().batch(8)), TypeError, "write gm.numpy.Loader(pipeline)"),
    (lambda: gm.zip(numbers(), texts().take(3)), PIPELINE, "everything else comes after `zip`"),
    (lambda: numbers().subset([3, 1, 3]), PIPELINE, "an index is given twice"),
    (lambda: gm.images("pictures").subset([100]), PIPELINE, "the folder has 64 images"),
    (lambda: numbers().train_test_split(test=1.5), PIPELINE, "test=1.5 leaves -32 and 96 of 64 records"),
    # Names of the package.
    (lambda: any_gm.tfrecords, AttributeError, "did you mean gm.tfrecord?"),
    (lambda: any_gm.DataLoader, AttributeError, "gm.torch.Loader"),
    (lambda: any_gm.ImageFolder, AttributeError, "write gm.images(folder)"),
    # Calls of loaders and services.
    (lambda: load().set_epoch("1"), OPTION, "set_epoch('1'): the epoch is a whole number from 0"),
    (lambda: load().load_state_dict({"epoch": 1}), gm.CheckpointError, "give load_state_dict what state_dict returned"),
    (lambda: gm.connect("aws"), OPTION, 'write gm.connect(backend="aws")'),
    (lambda: any_gm.connect(backend="gcp"), OPTION, 'backend=\'gcp\': it is "local" or "aws"'),
    (lambda: any_gm.local(5), OPTION, "gm.local: state_dir=5: it is the path of a directory"),
    (lambda: numbers().batch(8).explain(sample=0), OPTION, "explain: sample=0: it is not in 1 to 1000000"),
    (lambda: numbers().batch(8).plan(step_time=0.1, epoch=3), OPTION, "plan: epoch is no option: did you mean epochs?"),
    # Records, when they are read.
    (lambda: images().random_crop(64).batch(4).peek(), gm.DataError, "say `pad_if_needed=True`"),
]
#: Words of pipeline files and of the command line.
FOREIGN = re.compile(r"--[a-z]|`- |: true`|: false`|`field:`|`ops`|`features`|YAML|mapping")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    example_data.write(folder)
    return folder


@pytest.mark.parametrize(("mistake", "kind", "said"), MISTAKES, ids=[said for _, _, said in MISTAKES])
def test_a_mistake(
    mistake: Callable[[], object], kind: type[Exception], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(kind) as raised:
        mistake()
    message = str(raised.value)
    assert said in message
    assert "\n" not in message and not FOREIGN.search(message), message


def test_a_mistake_in_a_pipeline_names_its_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    wrong = gm.images("pictuers")
    with pytest.raises(gm.OptionError, match=r"test_messages.py:\d+: gm.images: ") as raised:
        load(wrong.decode().resize(8).batch(4))
    assert f":{wrong._datasets[0].place.lineno}:" in str(raised.value)  # type: ignore[union-attr]


def test_advice_on_a_pipeline_file_is_that_of_files(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("source: { images: . }\nops: [decode, { resize: { size: 8 } }]\n")
    with pytest.raises(gm.PipelineError, match=r"end `ops` with `- batch: \{ size: 64 \}`"):
        load(tmp_path / "p.yaml")


def test_a_state_of_another_pipeline_or_seed_is_a_checkpoint_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with load(epochs=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
        for other, name, differs in (
            (load(numbers().batch(7), epochs=2), "batch size", "8, and this loader has 7"),
            (load(numbers().take(3).batch(8), epochs=2), "pipeline", ".*, and this loader has .*take.*"),
            (load(epochs=2, seed=1), "seed", "0, and this loader has 1"),
        ):
            with other:
                other.load_state_dict(state)
                said = f"the state was saved with {name} {differs}: .*with the same {name}"
                with pytest.raises(gm.CheckpointError, match=said):
                    next(iter(other))


def test_a_framework_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "gristmill.jax", raising=False)
    monkeypatch.delitem(vars(gm), "jax", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"gm\.jax needs jax, which is not installed: pip install jax"):
        any_gm.jax  # noqa: B018


def test_patience_may_be_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with load(patience=90) as loader:
        assert "--patience=90s" in loader._flags
