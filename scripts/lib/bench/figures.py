"""Measurements by program and round."""

import statistics
import typing


class Who(typing.NamedTuple):
    work: str
    name: str
    variant: str
    cores: int

    def __str__(self):
        return " ".join(filter(None, (self.work, self.name, self.variant)))


class Figure(typing.NamedTuple):
    samples_per_s: float | None
    cpu_ms: float
    """User and system CPU time of all processes per sample."""
    floor_cpu_ms: float | None = None
    """The same for the kernels alone, in a bare loop."""
    peak_rss_mb: float | None = None
    start_cpu_s: float | None = None
    """CPU seconds of a run beside those of its epochs."""


class Figures:
    def __init__(self):
        self.rounds = []

    def begin_round(self):
        self.rounds.append({})

    def add(self, found):
        self.rounds[-1].update(found)

    def everyone(self):
        """Programs in the order of their first measurement."""
        return list(dict.fromkeys(who for found in self.rounds for who in found))

    def of(self, who):
        return [found[who] for found in self.rounds if who in found]

    def median(self, who, field):
        values = [value for figure in self.of(who) if (value := getattr(figure, field)) is not None]
        return statistics.median(values) if values else None

    def ratios(self, over, under, field):
        """Ratios of one field of two programs, one per round."""
        pairs = ((found.get(over), found.get(under)) for found in self.rounds)
        return [getattr(one, field) / getattr(other, field) for one, other in pairs if one and other]
