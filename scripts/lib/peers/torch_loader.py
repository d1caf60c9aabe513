"""torch: DataLoader with torchvision v2, or with a loop over JSON lines.

p1 works on tensors; p2 on PIL images, whose blur costs a fraction of that of tensors on a CPU. p4 runs in the
process of the trainer: one sequence is too little work to be worth sending between processes.
"""

import io
import json
import os
import random

import numpy
import torch
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from peers import measure
from peers.images import MEAN, STD, TarImages, tars

SIZE = 224
BATCH = 64
LENGTHS = [32, 64, 128, 256, 512]

RESNET = v2.Compose([
    v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
])


def resnet(jpeg):
    return (RESNET(decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), ImageReadMode.RGB)),)


def blurred(image):
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


SIMCLR = v2.Compose([
    v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(),
    v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8), v2.RandomGrayscale(0.2),
    v2.RandomApply([v2.Lambda(blurred)], 0.5), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True),
])


def simclr(jpeg):
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    return SIMCLR(image), SIMCLR(image)


class Images(Dataset):
    """Images again and again."""

    def __init__(self, paths, views):
        self.images, self.views = TarImages(paths), views

    def __len__(self):
        return len(self.images) * 1000

    def __getitem__(self, index):
        jpeg, label = self.images[index % len(self.images)]
        return *self.views(jpeg), label


class Tokens(IterableDataset):
    """Batches of sequences of about one length, again and again."""

    def __init__(self, paths):
        self.paths = paths

    def sequences(self):
        while True:
            for path in self.paths:
                with open(path) as lines:
                    for line in lines:
                        yield json.loads(line)["tokens"]

    def __iter__(self):
        buckets = {length: [] for length in LENGTHS}
        for sequence in self.sequences():
            length = next(length for length in LENGTHS if len(sequence) <= length)
            bucket = buckets[length]
            bucket.append(sequence)
            if len(bucket) == BATCH:
                batch = numpy.zeros((BATCH, length), numpy.int64)
                for row, tokens in zip(batch, bucket):
                    row[: len(tokens)] = tokens
                bucket.clear()
                yield torch.from_numpy(batch)


def loader(work, data):
    if work == "p4":
        return DataLoader(Tokens(sorted((data / "tokens").glob("tokens-*.jsonl"))), batch_size=None)
    images = Images(tars(data), {"p1": resnet, "p2": simclr}[work])
    return DataLoader(
        images, BATCH, drop_last=True, num_workers=len(os.sched_getaffinity(0)), prefetch_factor=4)


def main():
    args = measure.arguments(["p1", "p2", "p4"])
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    measure.run(args, loader(args.work, args.data), lambda batch: len(batch[0] if args.work != "p4" else batch))


if __name__ == "__main__":
    main()
