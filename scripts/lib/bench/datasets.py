"""Converts gristmill's data to the peers' formats: the same images and sequences, in the same order."""

import io
import json
import shutil
import tarfile

import tfrecord


def newest(paths):
    return max(path.stat().st_mtime for path in paths)


def converted(sources, target, convert, say):
    """Converts each file into one of the same place in `target`, unless it has been done since they were made."""
    if not sources:
        raise FileNotFoundError(f"{target.parent} holds nothing to make {target.name} of")
    if target.is_dir() and target.stat().st_mtime >= newest(sources):
        return
    say(f"data: {target.name}, from {len(sources)} files")
    draft = target.with_name(f"{target.name}.draft")
    for old in (draft, target):
        shutil.rmtree(old, ignore_errors=True)
    draft.mkdir()
    for place, source in enumerate(sources):
        convert(source, draft, place, len(sources))
    draft.rename(target)


def tar_of_images(source, target, place, _):
    """Pairs of NAME.jpg and NAME.cls, as in WebDataset."""
    with tarfile.open(target / f"train-{place:05}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, record in enumerate(tfrecord.records(source)):
            features = tfrecord.features(record)
            (image,), (label,) = features["image/encoded"], features["image/class/label"]
            for suffix, body in (("jpg", image), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{place:05}-{number:05}.{suffix}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))


def tfrecord_of_tokens(source, target, place, places):
    path = target / f"tokens-{place:05}-of-{places:05}"
    with source.open() as lines, path.open("wb") as out:
        for line in lines:
            out.write(tfrecord.framed(tfrecord.int_example("tokens", json.loads(line)["tokens"])))


def convert_images(data, say):
    converted(sorted((data / "images").glob("train-*-of-*")), data / "images-tar", tar_of_images, say)


def convert_tokens(data, say):
    converted(sorted((data / "tokens").glob("tokens-*.jsonl")), data / "tokens-tfrecord", tfrecord_of_tokens, say)
