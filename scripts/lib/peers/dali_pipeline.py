"""NVIDIA DALI with CPU operators only, antialiased."""

import os

from nvidia.dali import fn, pipeline_def, types

from peers import measure
from peers.images import MEAN, STD, tars


@pipeline_def(batch_size=64, num_threads=len(os.sched_getaffinity(0)), device_id=None)
def resnet(paths):
    jpeg, label = fn.readers.webdataset(
        paths=paths, ext=["jpg", "cls"], random_shuffle=True, initial_fill=256, missing_component_behavior="error")
    image = fn.decoders.image_random_crop(
        jpeg, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
    image = fn.resize(image, size=(224, 224), interp_type=types.INTERP_LINEAR, antialias=True)
    image = fn.crop_mirror_normalize(
        image, dtype=types.FLOAT, output_layout="HWC", mirror=fn.random.coin_flip(),
        mean=[255 * mean for mean in MEAN], std=[255 * std for std in STD])
    return image, label


def main():
    args = measure.arguments(["p1"])
    pipeline = resnet(tars(args.data))
    pipeline.build()
    measure.run(args, iter(pipeline.run, None), lambda batch: len(batch[0]))


if __name__ == "__main__":
    main()
