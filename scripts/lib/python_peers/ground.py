"""What the cases of all peers share: the list of cases, data, and a service."""

import contextlib
import itertools
import pathlib

import gristmill as gm
from gristmill import _native

# (peer, suite, case, function of a Ground)
CASES = []


def case(peer, suite, name, function):
    """Adds a case. Its three names tell it apart, also in the list of differences."""
    CASES.append((peer, suite, name, function))


class Ground:
    """Data and a service for the cases; closes what a case opened."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.service = gm.local()
        self.opened = []
        self.numbers = itertools.count()

    def path(self):
        """A new, empty folder."""
        path = self.folder / f"case-{next(self.numbers)}"
        path.mkdir()
        return path

    def records(self, count):
        """The files of the integers from 0 to `count`, in that order."""
        path = self.folder / f"integers-{count}"
        return (path if path.exists() else _native.generate("ints", count, dir=path)) / "train-*"

    def pipeline(self, count, batch=1, *, shuffled=False, is_sized=True):
        """Batches of the integers below `count`, in their order or in another one in each epoch."""
        read = gm.tfrecord(str(self.records(count)), value=gm.i64("value"))
        read = read.shuffle() if shuffled else read.in_order()
        # It leaves nothing out, but who knows?
        return (read if is_sized else read.filter(field="value", min=0)).batch(size=batch)

    def keep(self, opened):
        """Closes it at the end of the case."""
        self.opened.append(opened)
        return opened

    def end_case(self):
        with contextlib.ExitStack() as stack:
            while self.opened:
                stack.callback(self.opened.pop(0).close)

    def close(self):
        self.service.close()


def values(batches):
    """The integers of each batch, as lists."""
    return [batch["value"].tolist() for batch in batches]


def equal(found, expected, what):
    """Raises AssertionError with both ends of what differs."""
    if found != expected:
        raise AssertionError(f"{what}: expected {_brief(expected)}, found {_brief(found)}")


def _brief(batches):
    if not isinstance(batches, list) or len(batches) <= 4:
        return repr(batches)
    return f"{len(batches)} batches {batches[0]!r}, {batches[1]!r} .. {batches[-1]!r}"
