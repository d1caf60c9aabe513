"""The line of `progress=True`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._batches import Cursor
    from ._loader import Loader

__all__ = ["Progress"]


class Progress:
    """A line on standard error about the pace, at most twice a second."""

    def __init__(self) -> None:
        self._said = 0.0
        self._batches = 0
        self._is_written = False

    def batch(self, loader: Loader[Any], cursor: Cursor) -> None:
        now = time.monotonic()
        if now - self._said < 0.5:
            return
        pace = (loader._batches - self._batches) / (now - self._said) if self._said else 0.0
        self._said, self._batches = now, loader._batches
        stats = loader.stats()
        share = stats["waited_s"] / max(stats["elapsed_s"], 1e-9)
        line = f"epoch {cursor[0]}, batch {cursor[1]}: {pace:.1f} batches/s, {share:.0%} of the time waited"
        sys.stderr.write(f"\r\x1b[K{line}" if sys.stderr.isatty() else f"{line}\n")
        sys.stderr.flush()
        self._is_written = sys.stderr.isatty()

    def end(self) -> None:
        if self._is_written:
            sys.stderr.write("\n")
