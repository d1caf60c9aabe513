"""Pipelines written in Python are those of YAML, and their errors name the line of Python."""

from __future__ import annotations

import enum
import inspect
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

import gristmill as gm


def image_and_label() -> gm.Pipeline:
    return gm.tfrecord("data/train-*", image=gm.bytes("image/encoded"), label=gm.i64("image/class/label"))


def test_methods_return_new_pipelines() -> None:
    first = image_and_label().decode()
    text = first.to_yaml()
    second = first.resize(8).batch(2)
    first.options(name="other").deliver(normalise=gm.IMAGENET)
    assert first.to_yaml() == text
    assert second != first
    assert "- resize: { size: 8 }\n" in second.to_yaml()


def test_each_operator_has_a_line() -> None:
    text = image_and_label().decode().resize([2, 3]).flip(p=0.5).flip(p=1).batch(2).to_yaml()
    assert text.splitlines() == [
        "source:",
        "  tfrecord: data/train-*",
        "  features:",
        "    image: { key: image/encoded, dtype: bytes }",
        "    label: { key: image/class/label, dtype: i64 }",
        "ops:",
        "  - decode",
        "  - resize: { size: [2, 3] }",
        "  - flip",
        "  - flip: { p: 1 }",
        "  - batch: { size: 2 }",
    ]


def line_here() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_an_error_names_the_line_of_python() -> None:
    line = line_here()
    pipeline = (
        image_and_label()
        .decode()
        .resize(size=-1)
        .batch(size=2)
    )  # fmt: skip
    with pytest.raises(gm.PipelineError) as raised:
        pipeline.canonical()
    error = raised.value
    assert (error.line, error.filename, error.lineno) == (8, __file__, line + 4)
    place, _, message = str(error).partition(": ")
    assert place.endswith(f"test_pipeline.py:{line + 4}")
    assert message.startswith("`resize` `size` must be")


def test_an_error_of_explain_names_the_line_of_python() -> None:
    pipeline = image_and_label().decode().cast(dtype="i128").batch(2)  # type: ignore[arg-type]
    line = line_here() - 1
    with pytest.raises(gm.PipelineError, match=rf"test_pipeline.py:{line}: `cast` `dtype` must be") as raised:
        pipeline.explain()
    assert (raised.value.line, raised.value.filename, raised.value.lineno) == (8, __file__, line)


def test_an_error_of_the_source_or_the_delivery_names_its_line() -> None:
    begin = gm.tfrecord("x", label=gm.u64())
    line = line_here() - 1
    with pytest.raises(gm.PipelineError, match="i64 and f32, not u64") as raised:
        begin.batch(2).canonical()
    assert raised.value.lineno == line
    delivered = image_and_label().decode().resize(8).batch(2).deliver(normalise={"mean": [0.5]})
    line = line_here() - 1
    with pytest.raises(gm.PipelineError, match="`std`") as raised:
        delivered.canonical()
    assert raised.value.lineno == line


def test_an_error_within_a_zip_names_the_line_of_its_dataset() -> None:
    first = gm.tfrecord("x", image=gm.bytes())
    second = gm.jsonl("y", tokens=gm.i64(shape=[0]))
    line = line_here() - 1
    with pytest.raises(gm.PipelineError, match="`shape` must be a whole number") as raised:
        gm.zip(first, second.repeat(2)).batch(2).canonical()
    assert raised.value.lineno == line


def test_an_error_of_a_file_names_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("# Text.\nsource:\n  images: x\nops:\n  - decode\n  - resize: { sise: 8 }\n  - batch: { size: 2 }")
    pipeline = gm.Pipeline.from_yaml(path)
    assert pipeline.base == str(tmp_path)
    for checked in (pipeline, pipeline.autocache()):
        with pytest.raises(gm.PipelineError, match=r"p.yaml:6: `resize` has no key `sise`") as raised:
            checked.canonical()
        assert (raised.value.filename, raised.value.lineno) == (str(path), 6)


def test_a_text_has_lines_of_its_own() -> None:
    with pytest.raises(gm.PipelineError, match=r"^line 3: op `decoed` is not known") as raised:
        gm.Pipeline.from_yaml("source: { images: x }\nops:\n  - decoed\n").canonical()
    assert (raised.value.line, raised.value.filename, raised.value.lineno) == (3, None, None)
    with pytest.raises(gm.PipelineError, match=r"^line 2: this is not valid YAML"):
        gm.Pipeline.from_yaml("source:\n  {]").canonical()
    with pytest.raises(gm.PipelineError, match="source"):
        gm.Pipeline.from_yaml("{ ops: [batch] }").batch(2)
    with pytest.raises(gm.PipelineError, match="ops"):
        gm.Pipeline.from_yaml("{ source: { images: x }, ops: 3 }").batch(2)


def test_a_pipeline_read_from_yaml_goes_on_in_python() -> None:
    text = "source:\n  images: x\nops:\n  - decode\n  - resize: { size: 8 }\n"
    pipeline = gm.Pipeline.from_yaml(text).flip().batch(2).deliver(normalise=gm.IMAGENET)
    same = gm.images("x").decode().resize(8).flip().batch(2).deliver(normalise=gm.IMAGENET)
    assert pipeline.canonical() == same.canonical()
    assert pipeline == same
    assert gm.Pipeline.from_yaml(text).to_yaml() == text


def test_files_that_are_no_pipelines(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        gm.Pipeline.from_yaml(tmp_path / "nowhere.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(gm.PipelineError, match="is not UTF-8"):
        gm.Pipeline.from_yaml(str(tmp_path / "bytes"))
    (tmp_path / "large").write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(gm.PipelineError, match="right file"):
        gm.Pipeline.from_yaml(tmp_path / "large")


def test_wrong_arguments_are_errors_of_python() -> None:
    with pytest.raises(TypeError, match="sise"):
        image_and_label().resize(sise=8)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="size"):
        image_and_label().resize()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        image_and_label().flip(0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="`delimter` is no parameter"):
        gm.csv("x", delimter=";")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="resize: size cannot be a set"):
        image_and_label().resize(size={8, 9})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a key is a text, not 3"):
        image_and_label().padded_batch(2, lengths={3: 4})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="given twice"):
        gm.csv("x", features={"a": gm.i64()}, a=gm.i64())
    with pytest.raises(TypeError, match="begins with"):
        gm.Pipeline()
    with pytest.raises(AttributeError):
        image_and_label().base = "elsewhere"  # type: ignore[misc]


def test_values_of_numpy_and_enumerations_are_plain() -> None:
    class Side(enum.IntEnum):
        SHORT = 8

    class Name(str, enum.Enum):  # noqa: UP042
        IMAGE = "image"

    values: list[Any] = [np.array([8, 9]), np.float64(0.25), np.float32(0.5), np.int64(2)]
    built = image_and_label().decode(field=Name.IMAGE).resize(values[0]).resize_shorter(Side.SHORT)
    built = built.flip(p=values[1]).scale(factor=values[2]).batch(values[3])
    same = image_and_label().decode().resize([8, 9]).resize_shorter(8).flip(p=0.25).scale(factor=0.5).batch(2)
    assert built.to_yaml() == same.to_yaml()
    gm.tfrecord([pathlib.Path("a"), "b"], image=gm.bytes()).batch(2).to_yaml().index("tfrecord: [a, b]")


@pytest.mark.parametrize(
    "text",
    ["true", "null", "~", "12", "1e3", "0x1f", "- a", "a: b", "a #b", "'", '"', "\\", "é ü", "😀", "[a]",
     "{a}", "*a", "&a", "!a", "%a", "@a", "|", "\u2028", "a b ", " a", "y", "s3://bucket/a,b", "..", ".nan",
     "-", "data/{train,val}-*", "C:\\data"],
)  # fmt: skip
def test_any_text_is_read_as_it_is(text: str) -> None:
    pipeline = gm.jsonl("x", a=gm.bytes(text)).batch(2, ragged=True)
    assert json.loads(pipeline.canonical())["source"]["jsonl"]["a"]["key"] == text


@pytest.mark.parametrize("value", [0.1, 1e-9, 1e9, 123456.789, 1 / 3, -0.5, 5, 1e-300, 2.5e-5])
def test_any_number_is_read_as_it_is(value: float) -> None:
    pipeline = image_and_label().decode().resize(8).scale(factor=1, offset=value).batch(2)
    scale = json.loads(pipeline.canonical())["ops"][2]
    assert scale["params"]["offset"] == value


def test_numbers_that_are_none_are_refused() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(gm.PipelineError, match="`scale` `offset` must be"):
            image_and_label().decode().scale(offset=value).batch(2).canonical()


def test_zip_repeats_its_datasets() -> None:
    images = gm.tfrecord("a", image=gm.bytes())
    captions = gm.jsonl("b", tokens=gm.i64(shape=[4]))
    built = gm.zip(images, captions.repeat(10)).decode().resize(8).batch(2)
    source = json.loads(built.canonical())["source"]
    assert [member.get("repeat", 1) for member in source["zip"]] == [1, 10]
    assert "      repeat: 10\n" in built.to_yaml()
    read = gm.zip(images, gm.Pipeline.from_yaml(captions.to_yaml()).repeat(10)).decode().resize(8).batch(2)
    assert read.canonical() == built.canonical()


def test_zip_refuses_what_it_cannot_pair() -> None:
    images = gm.tfrecord("a", image=gm.bytes())
    captions = gm.jsonl("b", tokens=gm.i64(shape=[4]))
    with pytest.raises(gm.PipelineError, match="2 to 16 datasets"):
        gm.zip(images)
    for wrong in (captions.take(3), captions.repeat(2).repeat(2), captions.options(name="c")):
        with pytest.raises(gm.PipelineError, match="dataset 2 of `zip` can only be repeated"):
            gm.zip(images, wrong)
    with pytest.raises(gm.PipelineError, match="dataset 1 of `zip` can only be repeated"):
        gm.zip(gm.zip(images, captions), gm.jsonl("c", x=gm.i64()))
    with pytest.raises(TypeError, match="dataset 2 of `zip` is a source"):
        gm.zip(images, "b")  # type: ignore[arg-type]


def test_formats_have_their_own_parameters() -> None:
    written = gm.tsv("x", header=False, columns=["id", "path"], features={"path": gm.bytes()}).batch(2, ragged=True)
    source = json.loads(written.canonical())["source"]
    assert source["table"]["delimiter"] == "\t"
    assert (
        json.loads(gm.images("x").decode().resize(8).batch(2).canonical())["source"]
        == json.loads(gm.images("x", image=gm.bytes(), label=gm.i64()).decode().resize(8).batch(2).canonical())[
            "source"
        ]
    )
    assert json.loads(gm.parquet("x", a=gm.f64("b.c", shape=3)).batch(2).canonical())["source"] == {
        "parquet": {"a": {"key": "b.c", "dtype": "f64", "shape": [3]}}
    }


def test_operators_of_users_have_no_method() -> None:
    pipeline = image_and_label().decode().op("user_operator.cutout", size=16, in_=[1]).batch(2)
    assert "  - user_operator.cutout: { size: 16, in: [1] }\n" in pipeline.to_yaml()
    line = line_here() - 2
    with pytest.raises(gm.PipelineError, match=r"op `user_operator.cutout` is not known") as raised:
        pipeline.canonical()
    assert raised.value.lineno == line


def test_explain_says_what_is_changed_and_why() -> None:
    pipeline = image_and_label().decode(typical_size=100).solarize()
    line = line_here() + 1
    pipeline = pipeline.random_crop(8).batch(2)
    assert re.search(rf"`random_crop` \(\S*test_pipeline.py:{line}\) moves from place", pipeline.explain())
    assert "`random_crop` (line 9) moves" in gm.Pipeline.from_yaml(pipeline.to_yaml()).explain()
    moved = [note for note in json.loads(pipeline.explain(json=True))["passes"] if note["change"] == "moved"]
    assert [(note["op"], note["line"]) for note in moved] == [("random_crop", 9)]
    assert "moves from place" not in pipeline.options(auto_order=False).explain()
    resized = image_and_label().decode(typical_size=100).flip().resize(8).batch(2)
    assert "moves from place" not in resized.options(auto_order="exact").explain()
    assert "moves from place 2 to 1, which changes results" in resized.options(auto_order="pecan").explain()
    with pytest.raises(gm.PipelineError, match="`auto_order` must be `exact`"):
        resized.options(auto_order=True).canonical()  # type: ignore[arg-type]


def test_explain_and_plan_refuse_by_name(tmp_path: pathlib.Path) -> None:
    pipeline = image_and_label().decode().resize(8).batch(2)
    with pytest.raises(gm.OptionError, match="sample"):
        pipeline.explain(sample=0)
    with pytest.raises(gm.Error, match="nowhere"):
        pipeline.explain(data=tmp_path / "nowhere")
    with pytest.raises(gm.OptionError, match="no_such_flag is no option"):
        pipeline.plan(step_time=0.1, no_such_flag=3)
    with pytest.raises(gm.OptionError, match="step_time='soon'"):
        pipeline.plan(step_time="soon")
