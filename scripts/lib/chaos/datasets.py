"""Datasets and pipelines of the jobs: integers, and images made by `gristmill demo`."""

import dataclasses
import pathlib
import subprocess

from tfrecord import framed, int_example, record_sizes

INTS_PIPELINE = """name: chaos-sleep
source:
  tfrecord: .
  features:
    value: {{ key: value, dtype: i64 }}
ops:
  - sleep: {{ ms: {sleep_ms} }}
  - batch: {{ size: {batch} }}
"""
IMAGES_PIPELINE = """name: chaos-images
source:
  tfrecord: .
  features:
    image: {{ key: image/encoded, dtype: bytes }}
    label: {{ key: image/class/label, dtype: i64 }}
ops:
  - decode
  - random_resized_crop: {{ size: 64 }}
  - flip: {{ p: 0.5 }}
  - sleep: {{ ms: {sleep_ms} }}
  - batch: {{ size: {batch} }}
"""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Files of records, and the parameters of a job over them."""

    name: str
    directory: pathlib.Path
    pipeline: pathlib.Path
    files: tuple  # records of each file, in the order of their names
    batch: int
    epochs: int

    def keys(self):
        """Every record's `__key__`: file index << 32 | record index."""
        numbered = enumerate(self.files)
        return {file << 32 | record for file, count in numbered for record in range(count)}

    @property
    def batches(self):
        """Batches of an epoch."""
        return -(-sum(self.files) // self.batch)


def made(name, directory, pipeline, batch, epochs):
    path = directory.parent / f"{name}.yaml"
    path.write_text(pipeline)
    files = sorted(path for path in directory.iterdir() if path.name.startswith("train-"))
    counts = tuple(sum(1 for _ in record_sizes(path)) for path in files)
    return Dataset(name, directory, path, counts, batch, epochs)


def integers(root, records=1990, shards=5, sleep_ms=4, batch=8, epochs=3):
    """Small splits that only take time."""
    directory = root / "integers"
    directory.mkdir(parents=True)
    for shard in range(shards):
        first, end = records * shard // shards, records * (shard + 1) // shards
        path = directory / f"train-{shard:05}-of-{shards:05}"
        path.write_bytes(b"".join(framed(int_example("value", [value])) for value in range(first, end)))
    pipeline = INTS_PIPELINE.format(sleep_ms=sleep_ms, batch=batch)
    return made("sleep", directory, pipeline, batch, epochs)


def images(root, gristmill, env, count=250, sleep_ms=15, batch=8, epochs=4):
    """JPEGs that are decoded, cropped and mirrored at random."""
    command = [gristmill, "demo", "--images", str(count), "--epochs", "1", "--step-time", "0ms"]
    home = root / "home"
    command += ["--batch-size", "64", "--json"]
    subprocess.run(
        command, env={**env, "HOME": str(home)}, check=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    (found,) = (home / ".cache/gristmill/datasets").glob("imagenet-like-*")
    directory = root / "images"
    found.rename(directory)
    pipeline = IMAGES_PIPELINE.format(sleep_ms=sleep_ms, batch=batch)
    return made("images", directory, pipeline, batch, epochs)
