"""Grain, which has no image operators of its own, around a function of OpenCV: antialiased where it shrinks."""

import os

import cv2
import grain
import numpy

from peers import measure
from peers.images import MEAN, STD, TarImages, tars

SIZE = (224, 224)
MEAN_U8, STD_U8 = numpy.float32(MEAN) * 255, numpy.float32(STD) * 255


def random_box(width, height, random):
    """As torchvision's RandomResizedCrop: the whole image when ten tries do not fit."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = numpy.exp(random.uniform(numpy.log(3 / 4), numpy.log(4 / 3)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return random.integers(width - w + 1), random.integers(height - h + 1), w, h
    return 0, 0, width, height


class Resnet(grain.transforms.RandomMap):
    def random_map(self, element, random):
        jpeg, label = element
        image = cv2.imdecode(numpy.frombuffer(jpeg, numpy.uint8), cv2.IMREAD_COLOR_RGB)
        x, y, w, h = random_box(image.shape[1], image.shape[0], random)
        shrinks = w > SIZE[0] and h > SIZE[1]
        image = cv2.resize(
            image[y : y + h, x : x + w], SIZE, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        if random.uniform() < 0.5:
            image = image[:, ::-1]
        return {"image": (image.astype(numpy.float32) - MEAN_U8) / STD_U8, "label": label}


def main():
    args = measure.arguments(["p1"])
    cores = len(os.sched_getaffinity(0))
    cv2.setNumThreads(1)
    images = grain.MapDataset.source(TarImages(tars(args.data))).seed(1).shuffle().repeat().random_map(Resnet())
    read = grain.ReadOptions(num_threads=cores, prefetch_buffer_size=128)
    batches = images.to_iter_dataset(read).batch(64, drop_remainder=True)
    if cores > 1:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=cores, per_worker_buffer_size=2))
    measure.run(args, batches, lambda batch: len(batch["label"]))


if __name__ == "__main__":
    main()
