"""Small epochs, for tests that resume at each of their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gristmill as gm

EPOCHS = 3
SIZED, UNSIZED = "sized", "unsized"

Bytes = dict[str, bytes]


def pipeline(numbers_dir: Path, kind: str) -> gm.Pipeline:
    """Three batches of at most eight numbers an epoch; `UNSIZED`: a filter leaves two of 24 out."""
    taken = gm.tfrecord(numbers_dir / "train-*", value=gm.i64("value")).take(count=24)
    if kind == UNSIZED:
        taken = taken.filter(field="value", min=2)
    return taken.batch(size=8)


def bytes_of(batch: dict[str, Any]) -> Bytes:
    """The bytes of each tensor of a batch."""
    return {name: tensor.cpu().numpy().tobytes() for name, tensor in batch.items()}


def epochs_of(loader: Iterable[dict[str, Any]], epochs: int = EPOCHS) -> list[Bytes]:
    """The batches of that many iterations."""
    return [bytes_of(batch) for _ in range(epochs) for batch in loader]


def resumes_everywhere(whole: list[Bytes], run: Callable[[int], list[Bytes]], rest: Callable[[], list[Bytes]]) -> None:
    """Interrupts a job after each of its batches: what came before and what comes after are all of `whole`.

    `run` delivers that many batches and saves; `rest` delivers what follows what `run` saved last.
    """
    for count in range(1, len(whole) + 1):
        assert run(count) == whole[:count], f"the first {count} batches"
        assert rest() == whole[count:], f"the batches after {count}"
