"""Measurements of gristmill by its own commands, and of its Python package."""

import os

from bench import light, programs
from bench.figures import Figure, Who

# Resizes like the peer; normalised f32 at the trainer.
SERVICE_PIPELINE = """name: bench-service
source:
  tfrecord: .
  features:
    image: { key: image/encoded, dtype: bytes }
    label: { key: image/class/label, dtype: i64 }
ops:
  - decode
  - random_resized_crop: { size: 224, antialias: false }
  - flip: { p: 0.5 }
  - batch: { size: 64 }
deliver:
  normalise: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }
"""
# Approximate rate of two cores, so that a run takes about the requested time.
SERVICE_IMAGES_PER_SECOND = 1000
IMAGES = 2000
# The first run writes the data; a run measures several variants.
SECONDS_MAX, SLOW = 600, 60


class Gristmill:
    def __init__(self, args, program, python):
        self.args, self.program, self.python = args, program, python
        self.work, self.data, self.seconds = args.work, args.data, args.seconds

    def answer(self, *arguments):
        log = self.work / "logs" / f"gristmill-{'-'.join(arguments[:2])}.log"
        return programs.answer([self.program, *arguments, "--json"], log, SECONDS_MAX + SLOW * self.seconds)

    def make_data(self, name):
        self.pipelines(name, seconds=0.1)

    def pipelines(self, name, seconds=None):
        """Figures of a pipeline, by variant and number of cores."""
        found = self.answer(
            "bench", "pipelines", "--only", name, "--data", str(self.data), "--seconds", str(seconds or self.seconds))
        entries = [entry for entry in found["pipelines"] if entry["name"] == name]
        # A pipeline with a single variant needs no name for it.
        named = len({entry.get("variant") for entry in entries}) > 1
        return {
            Who(name, "gristmill", entry["variant"] if named else "", entry["cores"]): Figure(
                entry["samples_per_s"], entry["cpu_ms_per_sample"], entry.get("floor_cpu_ms"), entry.get("mb_peak_rss"))
            for entry in entries
        }

    def service(self):
        """All processes of a job: the service, its workers and the fetcher."""
        pipeline = self.work / "service.yaml"
        pipeline.write_text(SERVICE_PIPELINE)
        cores = len(os.sched_getaffinity(0))
        epochs = max(2, round(self.seconds * SERVICE_IMAGES_PER_SECOND / IMAGES))
        found = self.answer(
            "run", str(pipeline), "--data", str(self.data / "images"), "--epochs", str(epochs), "--step-time", "0ms",
            "--workers", str(cores))
        seconds = sum(epoch["seconds"] for epoch in found["epochs"])
        cpu_ms = sum(found["cpu_ms_per_sample"].values())
        return {Who("service", "gristmill", "", cores): Figure(found["elements_delivered"] / seconds, cpu_ms)}

    def ingest(self):
        """The fetcher alone; a sample is a megabyte."""
        found = self.answer("bench", "ingest")
        return {Who("ingest", "gristmill", "", 1): Figure(None, 1e9 / found["bytes_per_cpu_second"])}

    def measure(self, work):
        if work in light.WORKS:
            return light.measure(self.args, self.python, "gristmill", "gristmill", work)
        return {"service": self.service, "ingest": self.ingest}.get(work, lambda: self.pipelines(work))()
