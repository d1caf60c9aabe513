"""The comparisons of like with like, and their bars."""

import statistics
import typing

from bench import environments, light
from bench.figures import Who

WORKS = ("p1", "p2", "p4", "service", "ingest", *light.WORKS)
ALL_CORES = None
TWO_CORES_MIN = 1.9
FLOOR_MAX = 1.15
INGEST_MB_MIN = 1500
START_CPU_S_MAX = 0.3


class Run(typing.NamedTuple):
    """A peer's program for one kind of work."""

    work: str
    environment: str
    name: str
    module: str
    cores: int | None
    against: tuple
    """(variant of ours, bar: how many times its CPU the peer has to use, or None for no bar). A
    pipeline of ours that has but one variant stands for all."""
    how: str

    def who(self):
        return Who(self.work, self.name, "", self.cores or environments.cores())


RUNS = (
    Run("p1", "tf", "tf.data", "tf_data", ALL_CORES, (("no_antialias", 2.2),),
        "no antialias; decodes the crop alone"),
    Run("p1", "dali", "DALI", "dali_pipeline", ALL_CORES, (("antialias", 1.55),), "antialias; CPU operators"),
    Run("p1", "torch", "torch", "torch_loader", ALL_CORES, (("antialias", None),), "antialias; torchvision v2"),
    Run("p1", "grain", "Grain", "grain_loader", ALL_CORES, (("antialias", None),), "antialias; OpenCV"),
    Run("p2", "tf", "tf.data", "tf_data", ALL_CORES, (("no_antialias", 2.5),), "no antialias"),
    Run("p2", "torch", "torch", "torch_loader", ALL_CORES, (("antialias", None),), "antialias; torchvision v2 on PIL"),
    Run("p4", "torch", "torch", "torch_loader", 1, (("", 1.0),), "json.loads of the same lines, in one process"),
    Run("p4", "tf", "tf.data", "tf_data", ALL_CORES, (("", None),), "TFRecord of the same sequences"),
    Run("service", "tf", "tf.data service", "tf_service", ALL_CORES, (("", 2.75),), "p1, not compressed; no antialias"),
    Run("ingest", "tf", "tf.data service", "tf_service", ALL_CORES, (), "u8 batches, not compressed; both ends"),
    Run("lines", "torch", "torch", "torch", ALL_CORES, (("", 1.0),), "tokenises texts in memory in `collate_fn`"),
    Run("lines", "datasets", "HF datasets", "datasets", ALL_CORES, (("", None),), "tokenises once, in `map`; then reads Arrow"),
    Run("lines", "grain", "Grain", "grain", ALL_CORES, (("", 1.0),), "tokenises texts in memory by batch"),
    Run("lines", "datasets", "numpy", "numpy", ALL_CORES, (("", None),), "tokenises once; all in memory"),
    *(
        Run(work, environment, name, module, ALL_CORES, (("", bar),), how)
        for work in ("clicks", "robots", "tokens")
        for environment, name, module, bar, how in (
            ("torch", "torch", "torch", 1.0, "a Dataset of records in memory, in the trainer's process"),
            ("datasets", "HF datasets", "datasets", 1.0, "Arrow files, shuffled by an index"),
            ("grain", "Grain", "grain", 1.0, "a MapDataset of records in memory"),
            # Nothing that passes batches between processes can be as fast as an index of an array.
            ("datasets", "numpy", "numpy", None, "arrays in memory"),
        )
    ),
)


class Comparison(typing.NamedTuple):
    what: str
    values: list
    """Ratios, one per round."""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def value(self):
        return statistics.median(self.values) if self.values else None

    @property
    def holds(self):
        """Whether the bar holds; None without a bar. A bar that was not measured does not hold."""
        if self.at_least is None and self.at_most is None:
            return None
        if self.value is None:
            return False
        return self.value <= self.at_most if self.at_least is None else self.value >= self.at_least


def with_peers(figures, runs):
    for run in runs:
        peer = run.who()
        for variant, bar in run.against:
            ours = peer._replace(name="gristmill", variant=variant)
            values = figures.ratios(peer, ours, "cpu_ms") or figures.ratios(peer, ours._replace(variant=""), "cpu_ms")
            yield Comparison(f"{label(ours)}: CPU of {run.name} / ours", values, at_least=bar)


def with_itself(figures):
    for who in figures.everyone():
        if who.name != "gristmill":
            continue
        starts = [figure.start_cpu_s for figure in figures.of(who) if figure.start_cpu_s is not None]
        if starts:
            yield Comparison(f"{who.work}: CPU seconds of the start", starts, at_most=START_CPU_S_MAX)
        if who.work == "ingest":
            values = [1000 / figure.cpu_ms for figure in figures.of(who)]
            yield Comparison("ingest: MB a CPU second of the fetcher", values, at_least=INGEST_MB_MIN)
        one = who._replace(cores=1)
        if who.cores > 1 and (values := figures.ratios(who, one, "samples_per_s")):
            # Half of the loss with two cores is lost with each.
            bar = TWO_CORES_MIN / 2 * who.cores
            yield Comparison(f"{label(who)}: samples/s of {who.cores} cores / one", values, at_least=bar)
        floors = [figure.cpu_ms / figure.floor_cpu_ms for figure in figures.of(who) if figure.floor_cpu_ms]
        if who.work == "p1" and who.cores == 1 and floors:
            yield Comparison(f"{label(who)}: CPU / floor of its kernels", floors, at_most=FLOOR_MAX)


def label(who):
    return f"{who.work} {who.variant}".strip()
