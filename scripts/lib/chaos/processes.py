"""Processes of gristmill: starts, finds, signals and restarts them, as a supervisor would."""

import json
import os
import pathlib
import signal
import subprocess
import time

WORKER = ["function", "worker", "--local"]
LINKS = ("fetcher calls", "worker calls")


def send(pid, number, is_it=lambda: True):
    """Signals a process if its pid was not reused; returns whether it did."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_it():
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def arguments(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


def stat(pid):
    """(state, parent) of a process; Z for one that is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "Z", 0
    return fields[0], int(fields[1])


def children(parent):
    found = []
    for task in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found += [int(pid) for pid in task.read_text().split()]
        except OSError:
            pass
    return found


def is_worker(pid):
    return arguments(pid)[-len(WORKER):] == WORKER and stat(pid)[0] != "Z"


def link_of(pid):
    """The link by which a process calls the service."""
    return "worker calls" if is_worker(pid) else "fetcher calls"


class Program:
    """A program that is restarted whenever it ends."""

    def __init__(self, log, env):
        self.log, self.env, self.child = log, env, None
        self.not_before, self.said_before = 0.0, 0

    def command(self):
        raise NotImplementedError

    def spawn(self):
        # The interrupt of a terminal is for this script, which then ends what it started. Signals
        # that Python ignores stay ignored: a file-size limit is then an error and not a death.
        with open(self.log, "ab") as log:
            self.said_before = log.tell()
            self.child = subprocess.Popen(
                self.command(), env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, restore_signals=False,
            )

    @property
    def pid(self):
        return self.child.pid if self.child is not None and self.child.poll() is None else None

    def signal(self, number):
        pid = self.pid
        return pid is not None and send(pid, number, lambda: self.pid == pid)

    def tail(self, lines=8):
        """Last output of the current or the last process."""
        try:
            with open(self.log, "rb") as log:
                log.seek(self.said_before)
                return log.read().decode(errors="replace").splitlines()[-lines:]
        except OSError:
            return []

    def end(self):
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
        if self.child is not None:
            self.child.wait()


class Service(Program):
    """`gristmill up` on a state directory, behind the proxy."""

    def __init__(self, gristmill, state, log, env, proxy):
        super().__init__(log, env)
        self.gristmill, self.state, self.proxy = gristmill, state, proxy
        self.ready = False
        self.starts = 0

    def command(self):
        return [self.gristmill, "up", "--json", "--state-dir", self.state]

    def supervise(self, now):
        """Starts it if it is not running; returns the exit code of the last process."""
        if self.child is None:
            self.start()
        elif (code := self.child.poll()) is None:
            if not self.ready:
                self.look()
        elif self.not_before == 0.0:
            self.not_before = now + 0.2
            return code
        elif now >= self.not_before:
            self.start()
        return None

    def start(self):
        self.ready, self.not_before = False, 0.0
        self.starts += 1
        self.spawn()

    def look(self):
        try:
            file = json.loads((self.state / "endpoint.json").read_text())
        except (OSError, ValueError):
            return
        if file["pid"] != self.child.pid:
            return
        try:
            self.proxy.stand_before(file["endpoint"])
        except FileNotFoundError:
            return  # it has ended since
        self.ready = True

    def workers(self):
        pid = self.pid
        mine = children(pid) if pid is not None else []
        return [child for child in mine if is_worker(child)]

    def signal_worker(self, pid, number):
        return send(pid, number, lambda: is_worker(pid))

    def writers(self):
        """All processes that write below the state directory."""
        pid = self.pid
        return [] if pid is None else [pid, *self.workers()]


class Fetcher(Program):
    """`gristmill-fetcher` of one job, behind the proxy."""

    def __init__(self, program, service, log, env, job, directory):
        super().__init__(log, env)
        self.program, self.service, self.job = program, service, job
        self.socket, self.cursor = directory / "socket", directory / "cursor"
        self.done = False

    def command(self):
        dataset = self.job.dataset
        return [
            self.program, "--state-dir", self.service.state, "--job", self.job.name,
            "--pipeline", dataset.pipeline, "--data", dataset.directory,
            "--epochs", str(dataset.epochs), "--seed", str(self.job.seed),
            "--workers", str(self.job.workers), "--socket", self.socket, "--state", self.cursor,
        ]

    def supervise(self, now):
        """Starts it unless it has finished; returns the exit code of the last process."""
        if self.done or not self.service.state.joinpath("endpoint.json").exists():
            return None
        if self.child is None or self.child.poll() is not None:
            code = None if self.child is None else self.child.returncode
            if code == 0:
                self.done = True
                return 0
            if self.not_before == 0.0:
                self.not_before = now + (0.2 if self.child is not None else 0.0)
                return code
            if now >= self.not_before:
                self.not_before = 0.0
                self.spawn()
        return None


def living(parents):
    """Live processes of gristmill, for a report."""
    lines = []
    for parent in parents:
        if parent is not None:
            for pid in [parent, *children(parent)]:
                lines.append(f"{pid} {stat(pid)[0]} {' '.join(arguments(pid))[:160]}")
    return lines


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False
