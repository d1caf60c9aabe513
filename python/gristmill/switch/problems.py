"""What cannot be taken over from another library's loader, collected and reported in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError

__all__ = ["Problem", "Problems", "SwitchError"]


@dataclass(frozen=True)
class Problem:
    """One thing that has no equal here.

    Attributes:
        where: The place in what was given, such as `transform[2] RandomCrop` or `sampler`.
        what: The parameter and its value, or "" where the whole thing is meant.
        why: The reason.
        remedy: Something to do about it.

    Example:
        >>> print(gm.switch.Problem("sampler", "", "it draws twice", "leave it out"))
        sampler: it draws twice; leave it out
    """

    where: str
    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        subject = f"{self.where}, {self.what}" if self.what else self.where
        return f"{subject}: {self.why}; {self.remedy}"


class SwitchError(OptionError):
    """A loader has parts without an equal here. Nothing was started.

    Attributes:
        function: The function that was called.
        problems: All of them, in the order of what was given. The message has one line for each.

    Example:
        >>> from torchvision import datasets
        >>> dataset = datasets.ImageFolder("pictures")
        >>> try:
        ...     gm.from_dataloader(torch.utils.data.DataLoader(dataset, batch_size=4))
        ... except gm.switch.SwitchError as error:
        ...     print(error.problems[0].where)
        transform
    """

    def __init__(self, function: str, problems: Sequence[Problem]) -> None:
        self.function = function
        self.problems = tuple(problems)
        count = len(self.problems)
        found = "one thing has" if count == 1 else f"{count} things have"
        super().__init__("\n  ".join([f"{function}: {found} no equal here", *map(str, self.problems)]))

    def __reduce__(self) -> Any:
        return type(self), (self.function, self.problems)


# Users find it in the package itself.
SwitchError.__module__ = "gristmill.switch"


class Problems:
    """Collects problems of one place after another."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.where = ""

    def add(self, why: str, remedy: str, what: str = "") -> None:
        self.found.append(Problem(self.where, what, why, remedy))

    def check(self, function: str) -> None:
        """Raises SwitchError if there are any."""
        if self.found:
            raise SwitchError(function, self.found)
