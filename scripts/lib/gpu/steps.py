"""The steps of scripts/bench-gpu, each in a process of its own: `steps.py STEP OPTIONS`, where OPTIONS is one JSON object.

Each row of the result is one line of JSON on standard output, written when it is known: a step that runs out of time has said
what it found until then.
"""

import hashlib
import json
import os
import pathlib
import sys
import threading
import time

import gristmill as gm
import gristmill.numpy
from gristmill import _native

sys.dont_write_bytecode = True
WORKERS = (1, 2, 4, 8, 15)
RATE_BATCH, RATE_SIDE = 256, 128
# Bars on a host whose link gives 50 GB/s (docs/benchmarks.md): GB/s, part of a plain pinned copy, CPU seconds a GB.
DEVICE_GB_S, DEVICE_PART, DEVICE_CPU_S = 10.0, 0.2, 0.15
# A batch that takes longer than this is taken for a hang.
WATCHDOG_S = 25


def row(what, value=None, unit="", holds=None, note=""):
    print(json.dumps({"what": what, "value": value, "unit": unit, "holds": holds, "note": note}), flush=True)


def serviced(loader_type, pipeline, options, **more):
    """A loader on the service of this run, which keeps nothing."""
    return loader_type(pipeline, service=gm.local(state_dir=options["state"]), **more)


def images_of(options):
    """The generated photographs, about 100 KB each, and their labels."""
    data = _native.generate("images", options["images"])
    return gm.tfrecord(data / "train-*", image=gm.bytes("image/encoded"), label=gm.i64("image/class/label"))


def data(options):
    began = time.monotonic()
    images_of(options)
    row(f"{options['images']} JPEGs of about 100 KB, generated or found", time.monotonic() - began, "s")


def rates(options):
    """Images a second by number of workers: from the first batch on, in epochs that follow each other."""
    pipeline = images_of(options).shuffle().decode().random_resized_crop(RATE_SIDE).flip().batch(RATE_BATCH)
    counts = [count for count in WORKERS if count < (os.cpu_count() or 1) or count == 1]
    for kind in "local_workers", "workers":
        base = None
        for count in counts:
            workers = {"workers": 0, "local_workers": count} if kind == "local_workers" else {"workers": count}
            rate = rate_of(pipeline, options, workers)
            base = base or rate
            row(f"{kind}={count}", rate, "images/s", note=f"{rate / base / count:.2f} of linear")


def rate_of(pipeline, options, workers):
    with serviced(gm.numpy.Loader, pipeline, options, **workers) as loader:
        images, began = 0, None
        while True:
            for batch in loader:
                now = time.monotonic()
                # Batches that were made while the first one was waited for do not count.
                began = began or now
                if now - began >= options["rate_s"]:
                    return images / (now - began)
                images += len(batch["image"])


def hang(options):
    """Small budgets for memory must cost speed only."""
    pipeline = images_of(options).decode().resize(size=224).batch(size=options["hang_batch"])
    count = len(range(0, options["images"], options["hang_batch"]))
    for number in range(options["hang_runs"]):
        watch = Watchdog(f"prefetch of 1 MiB, {options['hang_workers']} local workers, run {number + 1}")
        more = {"epochs": 1, "prefetch_mib": 1, "workers": 0, "local_workers": options["hang_workers"]}
        with serviced(gm.numpy.Loader, pipeline, options, **more) as loader:
            watch.loader = loader
            began, batches = time.monotonic(), 0
            for _ in loader:
                watch.seen()
                batches += 1
        watch.end()
        row(watch.what, time.monotonic() - began, "s", batches == count, f"{batches} of {count} batches")


class Watchdog:
    """Ends the process, with a row that failed, if no batch comes for a while."""

    def __init__(self, what):
        self.what, self.loader = what, None
        self._last, self._over = time.monotonic(), threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def seen(self):
        self._last = time.monotonic()

    def end(self):
        self._over.set()

    def _watch(self):
        while not self._over.wait(0.2):
            if time.monotonic() - self._last > WATCHDOG_S:
                why = "nothing is known" if self.loader is None else self.loader.stats().get("waiting_for", "no reason")
                row(self.what, None, "", False, f"no batch for {WATCHDOG_S} s: {why}")
                os._exit(1)


def device(options):
    """Cached batches of u8 pixels to the host and to the device, beside a plain copy out of pinned memory."""
    import torch

    import gristmill.torch

    is_gpu = options["device"] != "cpu"
    plain = plain_copy(torch, options) if is_gpu else None
    if plain is not None:
        row("a plain copy out of pinned memory", plain, "GB/s")
    pipeline = images_of(options).decode().center_crop(size=224).batch(size=options["device_batch"]).autocache()
    seconds = options["device_s"]
    to_host = cached(gm.numpy.Loader, pipeline, seconds, options)
    row("cached batches to the host", to_host["gb_s"], "GB/s", note=f"{to_host['cpu_s']:.2f} CPU s a GB")
    found = cached(gm.torch.Loader, pipeline, seconds, options, device=options["device"])
    bar = None if plain is None else min(DEVICE_GB_S, DEVICE_PART * plain)
    to_device = "cached batches to the device"
    row(to_device, found["gb_s"], "GB/s", bar and found["gb_s"] >= bar, f"at least {bar:.1f}" if bar else "")
    row(
        "CPU of this process", found["cpu_s"], "s a GB", found["cpu_s"] <= DEVICE_CPU_S if is_gpu else None,
        f"at most {DEVICE_CPU_S}" if is_gpu else "",
    )
    if is_gpu:
        stats = found["stats"]
        part = stats["staged_bytes"] / max(found["all_bytes"], 1)
        row("staged, since not registered with CUDA", 100 * part, "%", part < 0.05, f"{stats['pinned_bytes'] / 1e6:.0f} MB are")
        from gristmill import _cuda

        _cuda._BUFFERS.limit = 0
        staged = cached(gm.torch.Loader, pipeline, seconds / 2, options, device=options["device"])
        row("the same, all of it staged", staged["gb_s"], "GB/s", note=f"{staged['cpu_s']:.2f} CPU s a GB")


def plain_copy(torch, options):
    """GB/s of a plain copy of 256 MiB."""
    here = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(here, device=options["device"])
    for number in range(13):
        if number == 3:
            torch.cuda.synchronize()
            began = time.monotonic()
        there.copy_(here, non_blocking=True)
    torch.cuda.synchronize()
    return 10 * here.nbytes / (time.monotonic() - began) / 1e9


def cached(loader_type, pipeline, seconds, options, **more):
    """Reads epochs for so long, once two have filled the cache and the buffers."""
    torch = sys.modules.get("torch") if more.get("device", "cpu") != "cpu" else None
    total = read = 0
    with serviced(loader_type, pipeline, options, **more) as loader:
        began = cpu = None
        for epoch in range(1 << 30):
            for batch in loader:
                nbytes = batch["image"].nbytes
                total += nbytes
                read += nbytes if began is not None else 0
            if torch is not None:
                torch.cuda.synchronize()
            if epoch == 1:
                began, cpu = time.monotonic(), time.process_time()
            elif began is not None and time.monotonic() - began >= seconds:
                break
        took, used = time.monotonic() - began, time.process_time() - cpu
        return {"gb_s": read / took / 1e9, "cpu_s": used / read * 1e9, "all_bytes": total, "stats": loader.stats()}


def equal(options):
    """The same bytes in numpy, torch and JAX, on the host and on the device."""
    # Else JAX would take most of the GPU's memory from torch.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    taken = images_of(options).take(count=options["some_images"])
    pipeline = taken.shuffle().decode().random_resized_crop(size=160).flip().batch(size=32)
    host = digests(serviced(gm.numpy.Loader, pipeline, options, epochs=2, seed=5))
    row("numpy, on the host", len(host), "batches", bool(host))
    kinds = [("torch", {}), ("torch", {"device": options["device"]}), ("jax", {})]
    for name, more in kinds:
        on = f"on {more['device']}" if more else "on its default device" if name == "jax" else "on the host"
        what = f"{name}, {on}"
        try:
            module = __import__(f"gristmill.{name}", fromlist=[name])
        except ImportError as error:
            row(what, note=f"skipped: {error}")
            continue
        found = digests(serviced(module.Loader, pipeline, options, epochs=2, seed=5, **more))
        wrong = sum(one != other for one, other in zip(found, host, strict=False)) + abs(len(found) - len(host))
        row(what, len(found), "batches", wrong == 0, f"{wrong} differ" if wrong else "equal")


def digests(loader):
    """A hash of each batch."""
    import numpy

    found = []
    with loader:
        for _ in range(2):
            for batch in loader:
                digest = hashlib.blake2b(digest_size=16)
                # JAX has no 64-bit integers by default; labels fit 32 bits.
                for name, value in sorted(batch.items()):
                    value = numpy.asarray(value.cpu() if hasattr(value, "cpu") else value)
                    digest.update(name.encode() + (value.astype("int32") if value.dtype.kind == "i" else value).tobytes())
                found.append(digest.hexdigest())
    return found


STEPS = {step.__name__: step for step in (data, rates, hang, device, equal)}


def main():
    from losses import losses

    name, options = sys.argv[1], json.loads(sys.argv[2])
    ({**STEPS, "losses": losses})[name](options)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    main()
