"""Arguments and the measuring loop common to all peers."""

import argparse
import json
import os
import pathlib
import signal
import time

from process_tree import cpu_seconds, tree

# So many that it makes no difference which were made before the first, or after the last.
BATCHES_MIN = 20


def arguments(works):
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=works, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--warm", type=float, default=4, help="seconds before it is measured")
    parser.add_argument("--seconds", type=float, default=5, help="seconds that are measured")
    return parser.parse_args()


def run(args, batches, size_of):
    """Draws batches to warm up, measures while drawing more, prints the results, and ends."""
    batches, me = iter(batches), os.getpid()
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.warm:
        next(batches)
    size, count, cpu, begin = 0, 0, cpu_seconds(me), time.perf_counter()
    while (seconds := time.perf_counter() - begin) < args.seconds or count < BATCHES_MIN:
        size += size_of(next(batches))
        count += 1
    print(json.dumps({"size": size, "seconds": seconds, "cpu_seconds": cpu_seconds(me) - cpu}), flush=True)
    end(me)


def end(me):
    """Ends at once: some libraries take long to close, or hang."""
    for pid in tree(me):
        if pid != me:
            os.kill(pid, signal.SIGKILL)
    os._exit(0)
