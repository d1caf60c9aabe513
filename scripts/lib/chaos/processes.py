"""Processes of gristmill: starts, finds, signals and restarts them, as a supervisor would."""

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.parse

FUNCTIONS = ("worker", "coordinator", "scaler")
LINKS = ("fetcher objects", "fetcher coordinator", "worker objects", "worker coordinator")
LAUNCHER = """#!/bin/sh
# Takes the place of the service's own program: starts workers behind the proxies.
if [ "$2" = worker ]; then
    export AWS_ENDPOINT_URL_S3='{objects}' GRISTMILL_COORDINATOR_URL='{coordinator}'
fi
exec '{program}' "$@"
"""


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


def owner(port, pids):
    """The process with a connection from that local port."""
    inode = None
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            inode = f"socket:[{fields[9]}]"
            for pid in pids:
                if holds(pid, inode):
                    return pid
    return None


def holds(pid, link):
    try:
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(descriptor.path) == link:
                    return True
            except OSError:
                pass
    except OSError:
        pass
    return False


def rerouted(url, port):
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=f"{parts.hostname}:{port}"))


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
    """`gristmill up` on a state directory, its workers behind the proxies."""

    def __init__(self, gristmill, root, state, log, env, proxy):
        super().__init__(log, env)
        self.gristmill, self.state, self.proxy = gristmill, state, proxy
        self.program = root / "bin" / "gristmill"
        self.program.parent.mkdir(parents=True)
        self.via = root / "via"
        self.via.mkdir()
        self.ready = False
        self.starts = 0

    def command(self):
        return [self.program, "up", "--json", "--state-dir", self.state]

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
        """The service remembers by which path it was started, and starts its functions by it: the program lies there
        first, the launcher once the service is up."""
        self.ready, self.not_before = False, 0.0
        self.starts += 1
        self.place(lambda draft: os.link(self.gristmill, draft))
        self.spawn()

    def place(self, make):
        draft = self.program.with_name("draft")
        draft.unlink(missing_ok=True)
        make(draft)
        os.replace(draft, self.program)

    def look(self):
        try:
            file = json.loads((self.state / "endpoint.json").read_text())
        except (OSError, ValueError):
            return
        if file["pid"] != self.child.pid:
            return
        self.route(file)
        self.ready = True

    def route(self, file):
        """Connects the proxies to the service, and fetcher and workers to the proxies."""
        ports = {}
        for link in LINKS:
            url = file["s3"] if link.endswith("objects") else file["coordinator_url"]
            parts = urllib.parse.urlsplit(url)
            self.proxy.links[link].target = (parts.hostname, parts.port)
            ports[link] = self.proxy.links[link].port
        objects, coordinator = file["s3"], file["coordinator_url"]
        text = LAUNCHER.format(
            program=self.gristmill, objects=rerouted(objects, ports["worker objects"]),
            coordinator=rerouted(coordinator, ports["worker coordinator"]),
        )

        def launcher(draft):
            draft.write_text(text)
            draft.chmod(0o755)

        self.place(launcher)
        file["s3"] = rerouted(objects, ports["fetcher objects"])
        file["coordinator_url"] = rerouted(coordinator, ports["fetcher coordinator"])
        draft = self.via / "draft"
        draft.write_text(json.dumps(file))
        os.replace(draft, self.via / "endpoint.json")

    def functions(self, name):
        """Processes of a function, by their command."""
        pid = self.pid
        mine = children(pid) if pid is not None else []
        return [child for child in mine if self.is_function(child, name)]

    @staticmethod
    def is_function(pid, name):
        return arguments(pid)[-2:] == ["function", name] and stat(pid)[0] != "Z"

    def signal_function(self, pid, name, number):
        return send(pid, number, lambda: self.is_function(pid, name))


class Fetcher(Program):
    """`gristmill-fetcher` of one job, behind the proxies."""

    def __init__(self, program, service, log, env, job, directory):
        super().__init__(log, env)
        self.program, self.service, self.job = program, service, job
        self.socket, self.cursor = directory / "socket", directory / "cursor"
        self.done = False

    def command(self):
        dataset = self.job.dataset
        return [
            self.program, "--state-dir", self.service.via, "--job", self.job.name,
            "--pipeline", dataset.pipeline, "--data", dataset.directory,
            "--epochs", str(dataset.epochs), "--seed", str(self.job.seed),
            "--workers", str(self.job.workers), "--socket", self.socket, "--state", self.cursor,
        ]

    def supervise(self, now):
        """Starts it unless it has finished; returns the exit code of the last process."""
        if self.done or not self.service.via.joinpath("endpoint.json").exists():
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
