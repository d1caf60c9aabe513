"""Light records: the CPU of a library's later epochs, and of its start, from a short and a long run."""

import shutil
import tempfile

from bench import environments
from bench.figures import Figure, Who
from bench.programs import Failed, answer, cpu_of

WORKS = ("lines", "clicks", "robots", "tokens")
# The first epochs of a run overlap its start, and a run that is too short shows little else.
SHORT, LONG = 2, 42
SECONDS_MAX = 300


def make_data(args, say):
    """The records, made by the environment `datasets`, unless they are there."""
    folder = args.data / "light"
    if folder.is_dir():
        return
    say("data: light records")
    draft = folder.with_name("light.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    command = [environments.python(args.work, "datasets"), "-m", "peers.light_data", draft]
    answer(command, args.work / "logs" / "light-data.log", SECONDS_MAX, env=environments.VARIABLES)
    draft.rename(folder)


def measure(args, python, library, name, work):
    """CPU milliseconds of a record in later epochs, and CPU seconds of the start."""
    short, _ = run(args, python, library, work, SHORT)
    long, records = run(args, python, library, work, LONG)
    epoch = (long - short) / (LONG - SHORT)
    if epoch <= 0:
        raise Failed(f"{library}, {work}: {LONG} epochs took no more CPU than {SHORT}: other programs disturb it")
    figure = Figure(None, epoch * 1000 / records, start_cpu_s=max(0.0, short - SHORT * epoch))
    return {Who(work, name, "", environments.cores()): figure}


def run(args, python, library, work, epochs):
    """CPU seconds of all processes, and the records of an epoch."""
    with tempfile.TemporaryDirectory(prefix="bench-light-") as scratch:
        command = [python, "-m", "peers.light", library, "--work", work, "--data", args.data / "light"]
        command += ["--epochs", epochs, "--scratch", scratch]
        log = args.work / "logs" / f"light-{library}-{work}.log"
        variables = {**environments.VARIABLES, "XDG_CACHE_HOME": scratch, "HF_HUB_OFFLINE": "1"}
        cpu, found = cpu_of(lambda: answer(command, log, SECONDS_MAX, env=variables))
        return cpu, found["records"]
