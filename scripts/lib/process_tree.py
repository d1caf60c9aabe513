"""Descendants of a process, and their CPU time, from /proc."""

import os
import pathlib

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def processes():
    """(parent, CPU ticks) by process. Ticks are user and system, those of children it waited for included."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = pathlib.Path(entry.path, "stat").read_text()
        except OSError:
            continue  # It has ended since.
        fields = text.rpartition(")")[2].split()
        found[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    return found


def tree(root):
    """CPU ticks of a process and of all below it, by process, parents first."""
    found = processes()
    children = {}
    for pid, (parent, _) in found.items():
        children.setdefault(parent, []).append(pid)
    pids = [root] if root in found else []
    for pid in pids:
        pids += children.get(pid, [])
    return {pid: found[pid][1] for pid in pids}


def cpu_seconds(root):
    return sum(tree(root).values()) / TICKS_PER_SECOND
