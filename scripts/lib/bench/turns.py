"""Rounds in which gristmill and its peers alternate on each kind of work."""

import pathlib
import time

from bench import environments, light
from bench.figures import Figure, Figures
from bench.programs import Failed, answer

# Libraries start threads, compile and tune themselves first.
WARM_SECONDS = 4
START_SECONDS_MAX = 120
# A machine used by other programs may take this many times as long.
SLOW = 20


def measure_peer(run, args):
    if run.work in light.WORKS:
        python = environments.python(args.work, run.environment)
        return light.measure(args, python, run.module, run.name, run.work)
    command = [environments.python(args.work, run.environment), "-m", f"peers.{run.module}"]
    command += ["--work", run.work, "--data", args.data, "--warm", WARM_SECONDS, "--seconds", args.seconds]
    log = args.work / "logs" / f"{run.module}-{run.work}.log"
    found = answer(command, log, START_SECONDS_MAX + SLOW * (WARM_SECONDS + args.seconds), run.cores, environments.VARIABLES)
    size = found["size"] / 1e6 if run.work == "ingest" else found["size"]
    return {run.who(): Figure(size / found["seconds"], found["cpu_seconds"] * 1000 / size)}


def cpu_ticks():
    """(all, idle or waiting for a disk) of this machine since it started."""
    times = list(map(int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]))
    return sum(times), sum(times[3:5])


def others_busy():
    """Share of this machine's CPU used by other programs."""
    before = cpu_ticks()
    time.sleep(0.5)
    ticks, idle = (now - then for now, then in zip(cpu_ticks(), before))
    return 1 - idle / max(1, ticks)


def take(args, runs, gristmill, missing, say):
    """Figures of all rounds, and the largest share of CPU that others were seen to use. A peer that fails is named
    in `missing` and has no turn again."""
    figures, busiest = Figures(), 0.0
    for place in range(args.rounds):
        figures.begin_round()
        for work in args.only:
            busiest = max(busiest, others_busy())
            note(figures, place, gristmill.measure(work), say)
            for run in runs:
                if run.work == work and run.environment not in missing:
                    try:
                        note(figures, place, measure_peer(run, args), say)
                    except Failed as failed:
                        missing[run.environment] = f"{run.name}, {work}: {failed}"
                        say(f"{run.name}: {work} failed: {failed}")
    return figures, busiest


def note(figures, place, found, say):
    figures.add(found)
    for who, figure in found.items():
        cores = f"{who.cores} core{'s' * (who.cores > 1)}"
        say(f"round {place + 1}: {who}, {cores}: {figure.cpu_ms:.4g} ms of CPU a sample")
