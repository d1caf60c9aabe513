"""The run: jobs without faults for comparison, then jobs with faults until the time is over."""

import os
import pathlib
import random
import shutil
import tempfile
import time

from chaos import ledger, datasets, disk, faults, jobs, processes, proxy

TICK_SECONDS = 0.01
# Seconds without a new batch after which faults pause.
HOLD_SECONDS = 40.0
# Further seconds without a new batch and without faults after which the run has hung.
HANG_SECONDS = 120.0
START_SECONDS = 30.0
CALM_WORKERS, WORKERS = 6, 3
SEEDS = 2


class Hung(Exception):
    """A job makes no progress although there are no faults."""


class Setup:
    """Directories and permanent processes of a run."""

    def __init__(self, bin_dir, mounts):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="gristmill-chaos-"))
        self.gristmill, self.fetcher = self.root / "gristmill", self.root / "gristmill-fetcher"
        self.env = {
            "PATH": os.environ.get("PATH", ""), "HOME": str(self.root / "home"), "XDG_RUNTIME_DIR": str(self.root / "run"),
        }
        self.disk = self.links = self.service = None
        try:
            for name in ("gristmill", "gristmill-fetcher"):
                shutil.copy2(bin_dir / name, self.root / name)
            (self.root / "logs").mkdir()
            (self.root / "home").mkdir()
            (self.root / "run").mkdir(mode=0o700)
            self.disk = disk.Disk(self.root / "disk", mounts)
            self.links = proxy.Proxy(processes.LINKS, processes.link_of)
            state, log = self.root / "disk" / "state", self.root / "logs" / "service.log"
            self.service = processes.Service(self.gristmill, state, log, self.env, self.links)
        except BaseException:
            self.close(keep=False)
            raise

    def close(self, keep):
        if self.service is not None:
            self.service.end()
        if self.links is not None:
            self.links.close()
        if self.disk is not None:
            self.disk.free()
            if keep and self.disk.mounted:
                # The mount is private: its content is copied out.
                shutil.copytree(self.root / "disk", self.root / "kept", symlinks=True)
            self.disk.close()
        if not keep:
            shutil.rmtree(self.root, ignore_errors=True)


class Run:
    """All jobs of one seed."""

    def __init__(self, setup, seed, say):
        self.setup, self.seed, self.say = setup, seed, say
        self.totals, self.stalls = ledger.Totals(), ledger.Stalls()
        self.random = random.Random(f"{seed}-jobs")
        self.datasets, self.expected = [], {}
        self.injector, self.job = None, None

    def prepare(self):
        """Makes datasets, starts the service, and runs each job once without faults."""
        root, setup = self.setup.root / "data", self.setup
        self.datasets = [datasets.integers(root), datasets.images(root, setup.gristmill, setup.env)]
        self.start_service()
        for dataset in self.datasets:
            for seed in range(SEEDS):
                name = f"calm-{dataset.name}-{seed}"
                job = self.new_job(name, dataset, seed, CALM_WORKERS, None)
                self.drive(job, None)
                recount = job.ledger.recount()
                if recount.lost or recount.twice or job.ledger.errors:
                    raise Hung(f"{name}, undisturbed, came out wrong: {recount} {job.ledger.errors[:3]}")
                self.expected[dataset.name, seed] = dict(job.ledger.digests), recount.digest
                self.say(f"{name}: {recount.delivered} records, {recount.digest[:16]}")

    def start_service(self):
        def ready():
            self.setup.service.supervise(time.monotonic())
            return self.setup.service.ready

        if not processes.wait_until(ready, START_SECONDS):
            raise Hung(f"the service does not start: {self.setup.service.tail()}")

    def new_job(self, name, dataset, seed, workers, expected):
        return jobs.Job(name, dataset, seed, workers, self.setup, expected, self.stalls)

    def fire(self, minutes):
        """Runs jobs with faults; the last one finishes without."""
        self.injector = faults.Injector(self.seed, self.setup, self.totals, self.stalls)
        end = time.monotonic() + minutes * 60
        number = 0
        while time.monotonic() < end:
            dataset = self.datasets[number % len(self.datasets)]
            seed = self.random.randrange(SEEDS)
            digests, whole = self.expected[dataset.name, seed]
            name = f"{dataset.name}-{number}"
            job, began = self.new_job(name, dataset, seed, WORKERS, digests), time.monotonic()
            try:
                self.drive(job, end)
            finally:
                recount = job.ledger.recount()
                self.totals.add(name, job.ledger, recount, whole)
            self.say(
                f"{name}: {recount.delivered} records in {time.monotonic() - began:.1f} s, "
                f"lost {recount.lost}, twice {recount.twice}, {job.ledger.replays} batches again, "
                f"{self.totals.kills} kills so far"
            )
            shutil.rmtree(job.directory, ignore_errors=True)
            number += 1

    def drive(self, job, end):
        """Runs a job, with faults until `end`."""
        self.job = job
        self.stalls.begin()
        job.start()
        held = False
        try:
            while True:
                now = time.monotonic()
                code = self.setup.service.supervise(now)
                if code is not None and code >= 0:
                    self.totals.ends[f"service: {' '.join(self.setup.service.tail(1))}"] += 1
                if job.supervise(now):
                    return
                quiet = now - job.ledger.last_new
                if self.injector is not None:
                    held = self.aim(job, now, end, quiet, held)
                calm_since = job.ledger.last_new
                if self.injector is not None:
                    calm_since = max(calm_since, self.injector.last_fault)
                if now - calm_since > HANG_SECONDS:
                    said = f"{job.name} has not gone on for {quiet:.0f} s"
                    raise Hung("\n  ".join([said, *self.witness()]))
                time.sleep(TICK_SECONDS)
        finally:
            self.stalls.end()
            if self.injector is not None:
                self.injector.job = None
            job.end()

    def aim(self, job, now, end, quiet, held):
        """Injects faults, unless the job has made no progress for long or the time is over."""
        over = end is not None and now >= end
        hold = quiet > HOLD_SECONDS or over
        if hold and not held:
            self.injector.heal()
            self.totals.held += not over
        if held and not hold:
            self.injector.plan(now)
        self.injector.job = None if hold else job
        self.injector.tick(now)
        return hold

    def witness(self):
        """Live processes and their last output, for a run that hung."""
        service = self.setup.service
        parents = [service.pid]
        lines = []
        if self.job is not None:
            parents.append(self.job.fetcher.pid)
            for (epoch, g), count in [(self.job.trainer.next, 1)]:
                lines.append(f"the trainer waits for batch {g} of epoch {epoch}")
        lines += ["living:"] + [f"  {line}" for line in processes.living(parents)]
        logs = [*(self.setup.root / "logs").glob("*.log"), *service.state.glob("logs/*.log")]
        for log in logs:
            tail = log.read_text(errors="replace").splitlines()[-6:]
            lines += [f"{log.name}:"] + [f"  {line[:200]}" for line in tail]
        return lines
