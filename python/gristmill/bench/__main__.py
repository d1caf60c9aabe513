"""The command line of the measurements."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from ..errors import Error

_INGEST = """Measures what it costs this process to take batches.

Four figures, in turns in each round; the medians count:

  program     GB of batches a second of the fetcher's own CPU, in the program: `gristmill bench ingest`
  in process  GB a second of this process's CPU, with gristmill.numpy.Loader
  socket      GB a second of the CPU of two processes: `gristmill fetcher`, and a reader of its socket in Python
  small       microseconds of CPU that the taking thread spends on a batch of four small tensors

The first three read batches of 64 images, 9.6 MB each, that are cached, so that no worker computes. Each is the
difference of a long and a short run: start and end cancel. Run it on a machine that is idle.

Bars: in process at least 0.95 of the program and 1.3 of the socket; at most 30 us for a small batch.

Examples:
  python -m gristmill.bench ingest                              # some minutes
  python -m gristmill.bench ingest --images 512 --epochs 4      # quicker, and less exact
  python -m gristmill.bench ingest --check && echo good         # exit code 1 if a bar is missed
"""


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m gristmill.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    ingest = commands.add_parser(
        "ingest", help="the cost of taking batches in this process", description=_INGEST, formatter_class=form
    )
    ingest.add_argument("--images", type=_number(64, 1_000_000), default=2000, metavar="N", help="[default: 2000]")
    ingest.add_argument(
        "--epochs", type=_number(1, 1000), default=10, metavar="E", help="times the images are read [default: 10]"
    )
    ingest.add_argument("--rounds", type=_number(1, 99), default=3, metavar="R", help="[default: 3]")
    ingest.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    ingest.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number


def main() -> int:
    """Runs the command that the arguments of this process name; the exit code."""
    arguments = _parser().parse_args()
    from . import ingest

    try:
        results = ingest.measure(arguments.images, arguments.epochs, arguments.rounds)
    except (Error, ingest.Failed) as error:
        print(f"gristmill.bench: {error}", file=sys.stderr)
        return 1
    print(ingest.table(results))
    if arguments.json:
        print(json.dumps(results))
    return int(arguments.check and not results["held"])


if __name__ == "__main__":
    sys.exit(main())
