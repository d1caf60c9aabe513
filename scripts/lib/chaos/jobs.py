"""One job: its fetcher, its trainer, and intruders."""

from chaos import ledger, faults, processes, trainer

# Error of a fetcher whose objects have been deleted.
GONE = ("collected", "does not exist")


class Job:
    """Runs until everything is delivered and the fetcher has exited."""

    def __init__(self, name, dataset, seed, workers, setup, expected, stalls):
        self.name, self.dataset, self.seed, self.workers = name, dataset, seed, workers
        self.setup = setup
        self.directory = setup.root / "jobs" / name
        self.directory.mkdir(parents=True)
        self.ledger = ledger.JobLedger(dataset, expected, stalls)
        self.fetcher = self.new_fetcher("first")
        self.trainer = trainer.Trainer(self.fetcher.socket, self.ledger, f"{name}-trainer")
        self.intruder = None
        # The checkpoint that fetcher and trainer went back behind and have not written again.
        self.went_back = None

    def new_fetcher(self, name):
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        log = self.setup.root / "logs" / f"fetcher-{name}.log"
        program, service = self.setup.fetcher, self.setup.service
        return processes.Fetcher(program, service, log, self.setup.env, self, directory)

    def supervise(self, now):
        """Restarts dead processes; returns whether the job is done."""
        if self.went_back and self.trainer.checkpoints[-1] >= self.went_back:
            self.went_back = None
        for why in self.trainer.take_refusals():
            self.refused(why)
        code = self.fetcher.supervise(now)
        if code is not None and code > 0:
            self.note_exit(self.fetcher)
        if self.intruder is not None:
            self.intruder[0].supervise(now)
        return self.fetcher.done

    def note_exit(self, fetcher):
        said = [line for line in fetcher.tail() if line.startswith("gristmill-fetcher: ")]
        line = said[-1] if said else "it said nothing"
        self.ledger.note_exit(line)
        self.refused(line)

    def refused(self, line):
        if any(word in line for word in GONE):
            # Objects of an old checkpoint may be deleted, never those of the last one.
            if not self.went_back:
                self.ledger.wrong(f"what the last checkpoint needs is gone: {line}")
            self.return_to_last()

    def go_back(self, rng):
        if self.went_back or self.fetcher.pid is None or len(self.trainer.checkpoints) < 2:
            return False
        self.fetcher.end()
        rolled = self.trainer.roll_back(rng)
        if rolled is not None:
            _, self.went_back = rolled
        return True

    def return_to_last(self):
        if self.went_back:
            self.trainer.roll_forward(self.went_back)
            self.went_back = None

    def intrude(self, seed):
        fetcher = self.new_fetcher("second")
        faults.copy_cursor(self.fetcher.cursor, fetcher.cursor)
        reader = trainer.Intruder(fetcher.socket, self.ledger, seed)
        self.intruder = fetcher, reader
        reader.start()

    def expel(self):
        if self.intruder is not None:
            fetcher, reader = self.intruder
            self.intruder = None
            reader.stop()
            fetcher.end()

    def start(self):
        self.trainer.start()

    def end(self):
        self.expel()
        self.trainer.stop()
        self.fetcher.end()
        self.trainer.join(5)
