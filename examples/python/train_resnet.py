#!/usr/bin/env python3
"""Train a ResNet on generated JPEGs of ten classes, with batches of gristmill or of torch's DataLoader.

    pip install gristmill torch torchvision
    python train_resnet.py                                # three minutes on two processor cores
    python train_resnet.py --loader torch --json          # the same training on torch's loader
    python train_resnet.py --checkpoint run-1             # kill it and start it again: it goes on

The images are drawn once and kept in `--cache`, as a folder for torchvision and as archives for gristmill.
Both loaders crop, flip and normalise them in the same way, and train the same network. It ends with figures:
speed, waiting time, CPU time of loading, accuracy on images that were held out.

With `--checkpoint DIR` it writes DIR/checkpoint.pt and, for every step, a line of DIR/losses.jsonl. Started
again after any end, it continues at the checkpoint. With gristmill the losses are those of a run that was
never interrupted; on a GPU, up to the order of its additions.
"""

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

# isort: split
import checkpoints
import feeds
import meters
import networks
import shapes


def arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill"
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add, cores = parser.add_argument, os.cpu_count() or 2
    add("--loader", choices=("gristmill", "torch"), default="gristmill")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--network", choices=networks.NAMES, help="default: slim on a processor, resnet18 on a GPU")
    add("--epochs", type=positive, default=12)
    add("--batch-size", type=positive, default=64)
    add("--images", type=positive, default=4000, help="for training; an eighth as many are held out")
    add("--size", type=positive, default=64, help="height and width of a crop, in pixels")
    add("--workers", type=positive, default=2, help="threads of gristmill, or processes of torch, that load")
    add("--threads", type=positive, default=max(1, cores - 1), help="of training on a processor")
    add("--learning-rate", type=float, default=0.2, help="the highest, for batches of 64")
    add("--seed", type=int, default=0)
    add("--checkpoint", type=Path, metavar="DIR", help="save here, and go on from here")
    add("--checkpoint-every", type=positive, default=50, metavar="STEPS")
    add("--ideal-steps", type=positive, default=30, help="of one batch, for the speed without loading")
    add("--cache", type=Path, default=cache, metavar="DIR", help="keeps the images (default: %(default)s)")
    add("--json", action="store_true", help="the last line is one JSON object, and no other is printed")
    args = parser.parse_args()
    if not Path("/proc/self/task").exists():
        parser.error("it reads CPU times in /proc, which only Linux has")
    if args.images < args.batch_size:
        parser.error(f"--images {args.images} is less than one batch of {args.batch_size}")
    args.network = args.network or ("resnet18" if args.device == "cuda" else "slim")
    return args


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


class Training:
    """A network, its optimiser and the number of steps it has taken."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.device = torch.device(args.device)
        self.peak = args.learning_rate * args.batch_size / 64
        self.steps = args.epochs * (args.images // args.batch_size)
        self.taken = 0
        self.model = networks.network(args.network, len(shapes.CLASSES), self.device)
        self.optimiser = torch.optim.SGD(
            self.model.parameters(), self.peak, momentum=0.9, nesterov=True, weight_decay=5e-4
        )

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Trains on one batch; its loss, on the device."""
        for group in self.optimiser.param_groups:
            group["lr"] = networks.learning_rate(self.taken, self.steps, self.peak)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = nn.functional.cross_entropy(self.model(images), labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.taken += 1
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, batches: list[feeds.Pair]) -> float:
        self.model.eval()
        right = sum((self.model(images).argmax(1) == labels).sum().item() for images, labels in batches)
        self.model.train()
        return right / sum(len(labels) for _, labels in batches)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "taken": self.taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.taken = state["taken"]

    def replay_s(self, args: argparse.Namespace) -> float:
        """Seconds of a step without loading: a copy of the network trains on one batch again and again."""
        twin = copy.deepcopy(self)
        images = torch.randn(args.batch_size, 3, args.size, args.size, device=self.device)
        labels = torch.arange(args.batch_size, device=self.device) % len(shapes.CLASSES)
        images = images.contiguous(memory_format=torch.channels_last)
        for number in range(args.ideal_steps + 3):
            if number == 3:  # the first ones reserve memory and choose kernels
                finish(self.device)
                begun = time.perf_counter()
            twin.step(images, labels)
        finish(self.device)
        return (time.perf_counter() - begun) / args.ideal_steps


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def save(training: Training, feed: Any, saved: checkpoints.Checkpoints) -> None:
    saved.save(training.device, {"training": training.state_dict(), "feed": feed.state_dict()})


def train(
    args: argparse.Namespace,
    training: Training,
    feed: Any,
    saved: checkpoints.Checkpoints,
    loading: meters.LoadingMeter,
    stall: meters.StallMeter,
) -> Iterator[tuple[float, float]]:
    """Trains all steps that are left, and logs and saves; mean loss and seconds of each epoch."""
    late: list[tuple[int, int, torch.Tensor]] = []  # losses that were not read yet: reading waits for a GPU
    total = torch.zeros((), device=training.device)

    def log(keep: int) -> None:
        while len(late) > keep:
            step, epoch, loss = late.pop(0)
            saved.log(step, epoch, loss.item())

    for epoch in range(feed.next_epoch(), args.epochs):
        count, begun = 0, time.perf_counter()
        stall.begin()
        for images, labels in loading.watch(feed.epoch(epoch)):
            loss = stall.step(lambda images=images, labels=labels: training.step(images, labels))
            late.append((training.taken, epoch, loss))
            total, count = total + loss, count + 1
            log(keep=1)
            if training.taken % args.checkpoint_every == 0 or training.taken == training.steps:
                log(keep=0)
                save(training, feed, saved)
        log(keep=0)
        finish(training.device)
        if count:
            yield total.item() / count, time.perf_counter() - begun
        total.zero_()


def run(args: argparse.Namespace, say: Any) -> dict[str, Any]:
    """Trains to the end; the figures of this process's share of it."""
    say(f"images of {len(shapes.CLASSES)} classes in {args.cache}")
    folder = shapes.folder_of_images(args.cache, args.images, max(args.images // 8, len(shapes.CLASSES)))
    torch.set_num_threads(args.threads)
    training = Training(args)
    ideal_s = training.replay_s(args)
    training_threads = meters.threads()
    settings = feeds.Settings(
        folder.resolve(), args.size, args.batch_size, args.epochs, args.workers, args.seed, training.device,
        args.checkpoint and args.checkpoint.resolve(),
    )  # fmt: skip
    feed, gpu = feeds.feed(args.loader, settings), meters.GpuMeter(training.device)
    saved = checkpoints.Checkpoints(args.checkpoint)
    try:
        held_out = feed.held_out()
        restored = saved.restore(training.device)
        if restored:
            training.load_state_dict(restored["training"])
            feed.load_state_dict(restored["feed"])
            say(f"goes on after step {training.taken} of {training.steps}")
        else:
            # Without it, a run that is killed before its first checkpoint would not begin at the first batch.
            save(training, feed, saved)
        begun_at = training.taken
        loading = meters.LoadingMeter(training_threads, gpu.processes())
        stall = meters.StallMeter(training.device, loading)
        seconds = 0.0
        for loss, epoch_s in train(args, training, feed, saved, loading, stall):
            seconds += epoch_s
            done = training.taken / training.steps
            say(f"{done:5.0%}  loss {loss:.3f}  accuracy {training.accuracy(held_out):.1%}")
        cpu_s, stalled_s = loading.cpu_s(), stall.seconds()
    finally:
        utilisation = gpu.close()
        feed.close()
    images = (training.taken - begun_at) * args.batch_size
    return {
        "loader": args.loader,
        "device": args.device,
        "network": args.network,
        "steps": training.taken,
        "images": images,
        "seconds": round(seconds, 3),
        "images_per_s": round(images / seconds, 1) if images else None,
        "ideal_images_per_s": round(args.batch_size / ideal_s, 1),
        "stall_share": round(stalled_s / seconds, 4) if images else None,
        "loading_cpu_s_per_1000_images": round(cpu_s / images * 1000, 3) if images else None,
        "gpu_utilisation_percent": utilisation,
        "accuracy": training.accuracy(held_out),
    }


def main() -> None:
    args = arguments()
    say = (lambda text: None) if args.json else (lambda text: print(text, flush=True))
    figures = run(args, say)
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):>30}  {value if value is not None else '-'}")


if __name__ == "__main__":
    sys.exit(main())
