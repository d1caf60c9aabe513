"""The surroundings of a case: a folder, an environment, and programs with recorded output."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

from chaos import frames
from tfrecord import framed, int_example

# A program without output for this long must report what it waits for.
SILENCE_SECONDS = 5.0


class Failed(Exception):
    """A failure of a case, in one line."""


def expect(holds, says):
    """Fails the case with `says` unless `holds`."""
    if not holds:
        raise Failed(says)


class Program:
    """A running program; every line is recorded with its time."""

    def __init__(self, command, env, cwd, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL):
        self.command, self.began = [str(part) for part in command], time.monotonic()
        self.child = subprocess.Popen(
            self.command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE,
            start_new_session=True,
        )
        # (seconds since the start, "out" or "err", line)
        self.said, self.rss_kib, self.lock = [], 0, threading.Lock()
        self.ended = None
        pipes = [("out", self.child.stdout), ("err", self.child.stderr)]
        self.readers = [threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes if pipe[1]]
        for reader in self.readers:
            reader.start()

    def _read(self, name, pipe):
        for line in pipe:
            with self.lock:
                self.said.append((time.monotonic() - self.began, name, line.decode(errors="replace").rstrip("\n")))

    def lines(self, name=None):
        with self.lock:
            return [line for _, which, line in self.said if name in (None, which)]

    @property
    def out(self):
        return "\n".join(self.lines("out"))

    @property
    def err(self):
        return "\n".join(self.lines("err"))

    @property
    def json(self):
        """The last line of standard output, which is one JSON object."""
        return json.loads(self.lines("out")[-1])

    @property
    def code(self):
        return self.child.poll()

    @property
    def pid(self):
        return self.child.pid

    def wait(self, seconds):
        """Its exit code; the case fails if it takes longer."""
        end = time.monotonic() + seconds
        while self.child.poll() is None:
            self._look_at_memory()
            if time.monotonic() > end:
                said = (self.lines() or ["nothing"])[-1]
                raise Failed(f"{self.name} did not end within {seconds} s; it said last: {said}")
            time.sleep(0.02)
        self.ended = time.monotonic()
        for reader in self.readers:
            reader.join(5)
        return self.child.returncode

    def _look_at_memory(self):
        try:
            for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.rss_kib = max(self.rss_kib, int(line.split()[1]))
        except (OSError, ValueError):
            pass

    @property
    def name(self):
        return " ".join([pathlib.Path(self.command[0]).name, *self.command[1:]])[:120]

    def wait_for(self, text, seconds):
        """Waits until a line holds `text`; that line."""
        end = time.monotonic() + seconds
        while True:
            for line in self.lines():
                if text in line:
                    return line
            if time.monotonic() > end:
                raise Failed(f"{self.name} did not say `{text}` within {seconds} s; it said: {self.lines()[-3:]}")
            time.sleep(0.02)

    def longest_silence(self):
        """Seconds of the longest time without a line, from its start until now."""
        with self.lock:
            moments = [0.0, *(moment for moment, _, _ in self.said), time.monotonic() - self.began]
        return max(after - before for before, after in zip(moments, moments[1:]))

    def signal(self, number):
        if self.child.poll() is None:
            os.kill(self.pid, number)

    def end(self):
        """Kills it and all of its process group that is left."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass
        self.child.wait()

    def failed_in_one_line(self, code, *parts):
        """Fails the case unless it ended with `code` and one line of error that holds each of `parts`."""
        got = self.child.returncode
        expect(got == code, f"{self.name}: exit {got} and not {code}; it said: {self.lines()[-2:]}")
        said = [line for line in self.lines("err") if line.startswith("gristmill")]
        errors = [line for line in said if ": waiting for " not in line]
        expect(len(errors) == 1, f"{self.name}: {len(errors)} lines of error and not 1: {self.lines('err')[-4:]}")
        for part in parts:
            expect(part in errors[0], f"{self.name}: its error does not say `{part}`: {errors[0]}")


class World:
    """One case's folder, programs and helpers."""

    def __init__(self, folder, programs, root):
        self.folder, self.root = folder, root
        self.gristmill = programs / "gristmill"
        self.fetcher_program = programs / "gristmill-fetcher"
        self.home = folder / "home"
        self.tmp = folder / "tmp"
        self.home.mkdir()
        self.tmp.mkdir()
        # Sockets and the register of services lie there. The path of a socket must be short.
        self.runtime = pathlib.Path(tempfile.mkdtemp(prefix="gm-"))
        dropped = ("AWS_", "GRISTMILL_", "RUST_LOG", "XDG_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self.env |= {"HOME": str(self.home), "TMPDIR": str(self.tmp), "XDG_RUNTIME_DIR": str(self.runtime)}
        self.programs = []

    # -- programs ---------------------------------------------------------------------------------------------

    def start(self, *command, env=None, cwd=None, **pipes):
        """Starts a program of any kind in the case's folder."""
        program = Program(command, self.env | (env or {}), cwd or self.folder, **pipes)
        self.programs.append(program)
        return program

    def run(self, *arguments, seconds=60, **options):
        """`gristmill ARGUMENTS`, to its end."""
        program = self.start(self.gristmill, *arguments, **options)
        program.wait(seconds)
        return program

    def up(self, *arguments, state="state", seconds=30, **options):
        """A service on the folder `state`, once it is ready."""
        program = self.start(self.gristmill, "up", "--json", "--state-dir", state, *arguments, **options)
        program.wait_for('"endpoint"', seconds)
        return program

    def services(self):
        """The entries of the services that run, in the register."""
        return sorted((self.runtime / "gristmill").glob("*.json"))

    def end_services(self):
        """Ends the services that programs have started and would leave for some seconds."""
        named = self._stops()
        ended = self.run("ps", *named)
        expect(ended.code == 0, f"{ended.name}: exit {ended.code}: {ended.lines()[-2:]}")

    def _stops(self):
        """The flags that end the services of this case, and no others of this user."""
        directories = [json.loads(entry.read_text())["state_dir"] for entry in self.services()]
        return [flag for directory in directories for flag in ("--stop", directory)]

    def fetcher(self, job, *arguments, state="state", socket=None, **options):
        """`gristmill-fetcher` for `job`, serving `socket` (default: JOB.sock)."""
        socket = socket or f"{job}.sock"
        if "--epochs" not in arguments:
            arguments = ("--epochs", "1", *arguments)
        return self.start(
            self.fetcher_program, "--state-dir", state, "--job", job, "--socket", socket, *arguments,
            **options,
        )

    def train(self, job, *arguments, seconds=60):
        """`examples/train.py` on JOB.sock, to its end."""
        program = self.start(
            "python3", self.root / "examples/train.py", "--socket", f"{job}.sock", "--step-time", "0ms", "--json",
            *arguments,
        )
        program.wait(seconds)
        return program

    # -- data -------------------------------------------------------------------------------------------------

    def write(self, path, content):
        """A file below the case's folder, from text or bytes."""
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def integers(self, counts, folder="data", first=0):
        """TFRecord files of consecutive integers `value`, with so many records each; their folder."""
        for shard, count in enumerate(counts):
            records = (framed(int_example("value", [value])) for value in range(first, first + count))
            self.write(f"{folder}/train-{shard:05}", b"".join(records))
            first += count
        return self.folder / folder

    def integers_pipeline(self, batch, ops="", path="p.yaml", data="data"):
        """A pipeline that batches what `integers` wrote, after `ops` (YAML lines such as `  - sleep: { ms: 1 }`)."""
        return self.write(path, (
            f"name: integers\nsource:\n  tfrecord: {data}\n  features:\n    value: {{ key: value, dtype: i64 }}\n"
            f"ops:\n{ops}  - batch: {{ size: {batch} }}\n"
        ))

    # -- deliveries -----------------------------------------------------------------------------------

    def sunk(self, folder, field="value"):
        """The i64 values of `field` in each batch that `--sink FOLDER` wrote, by (epoch, g)."""
        batches = {}
        for path in sorted((self.folder / folder).glob("e*-b*.safetensors")):
            epoch, g = path.stem[1:].split("-b")
            batches[int(epoch), int(g)] = tensor(path.read_bytes(), field)
        return batches

    # -- the end ----------------------------------------------------------------------------------------------

    def left_behind(self):
        """Files that ended programs left in the temporary folder, or None."""
        if any(program.code is None for program in self.programs):
            return None
        left = sorted(path.name for path in self.tmp.iterdir())
        return f"left behind in TMPDIR: {left[:3]}" if left else None

    def close(self):
        for program in self.programs:
            program.end()
        if self.services():
            # Those that were killed are in the register still.
            command = [self.gristmill, "ps", *self._stops()]
            null = subprocess.DEVNULL
            subprocess.run(command, env=self.env, stdin=null, stdout=null, stderr=null, timeout=60, check=False)
        shutil.rmtree(self.runtime, ignore_errors=True)


FORMATS = {"I64": "q", "I32": "i", "U64": "Q", "U32": "I", "U8": "B", "F32": "f", "F64": "d"}


def tensor(blob, name):
    """The numbers of one tensor of a safetensors blob, flat."""
    (header_bytes,) = struct.unpack_from("<Q", blob)
    info = json.loads(bytes(blob[8:8 + header_bytes]))[name]
    begin, end = (8 + header_bytes + offset for offset in info["data_offsets"])
    form = FORMATS[info["dtype"]]
    return list(struct.unpack(f"<{(end - begin) // struct.calcsize(form)}{form}", blob[begin:end]))


read_frame, ack = frames.read_frame, frames.ack
