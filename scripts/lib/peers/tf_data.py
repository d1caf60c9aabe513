"""tf.data: the work as in its own documentation and models."""

import tensorflow as tf

from peers import measure
from peers.images import MEAN, STD

AUTOMATIC = tf.data.AUTOTUNE
IMAGE_SIZE = [224, 224]
BATCH = 64
BUCKETS = [33, 65, 129, 257, 513]
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
BLUR_SIZE, BLUR_SIGMA = 23, (0.1, 2.0)


def example(record):
    return tf.io.parse_single_example(record, {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    })


def random_box(shape):
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape, tf.zeros([1, 0, 4]), area_range=AREA, aspect_ratio_range=RATIO, min_object_covered=0.1,
        max_attempts=10, use_image_if_no_bounding_boxes=True,
    )
    return begin, size


def resnet(record):
    """As the official ResNet input: decodes the crop alone."""
    features = example(record)
    jpeg = features["image/encoded"]
    begin, size = random_box(tf.io.extract_jpeg_shape(jpeg))
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    image = tf.image.decode_and_crop_jpeg(jpeg, window, channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, IMAGE_SIZE))
    return (image / 255.0 - tf.constant(MEAN)) / tf.constant(STD), features["image/class/label"]


def blurred(image):
    sigma = tf.random.uniform([], *BLUR_SIGMA)
    at = tf.range(-(BLUR_SIZE // 2), BLUR_SIZE // 2 + 1, dtype=tf.float32)
    kernel = tf.exp(-(at**2) / (2 * sigma**2))
    kernel /= tf.reduce_sum(kernel)
    column = tf.tile(tf.reshape(kernel, [-1, 1, 1, 1]), [1, 1, 3, 1])
    row = tf.transpose(column, [1, 0, 2, 3])
    image = tf.nn.depthwise_conv2d(image[None], column, [1] * 4, "SAME")
    return tf.nn.depthwise_conv2d(image, row, [1] * 4, "SAME")[0]


def jittered(image):
    image = tf.image.random_contrast(tf.image.random_brightness(image, 0.4), 0.6, 1.4)
    image = tf.image.random_hue(tf.image.random_saturation(image, 0.6, 1.4), 0.1)
    return tf.clip_by_value(image, 0.0, 1.0)


def grey(image):
    return tf.tile(tf.image.rgb_to_grayscale(image), [1, 1, 3])


def view(image):
    def perhaps(share, change, image):
        return tf.cond(tf.random.uniform([]) < share, lambda: change(image), lambda: image)

    begin, size = random_box(tf.shape(image))
    image = tf.image.resize(tf.slice(image, begin, size), IMAGE_SIZE) / 255.0
    image = tf.ensure_shape(tf.image.random_flip_left_right(image), [*IMAGE_SIZE, 3])
    image = perhaps(0.5, blurred, perhaps(0.2, grey, perhaps(0.8, jittered, image)))
    return tf.ensure_shape(image, [*IMAGE_SIZE, 3])


def simclr(record):
    features = example(record)
    image = tf.io.decode_jpeg(features["image/encoded"], channels=3)
    return view(image), view(image), features["image/class/label"]


def tokens(record):
    return tf.io.parse_single_example(record, {"tokens": tf.io.RaggedFeature(tf.int64)})["tokens"]


def dataset(work, data):
    """Endless batches, before prefetching."""
    folder = "tokens-tfrecord" if work == "p4" else "images"
    files = tf.data.Dataset.from_tensor_slices(sorted(map(str, (data / folder).glob("*-of-*"))))
    records = files.shuffle(1000).repeat().interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=AUTOMATIC, deterministic=False)

    def mapped(records, function):
        return records.map(function, num_parallel_calls=AUTOMATIC, deterministic=False)

    if work == "p4":
        return mapped(records, tokens).bucket_by_sequence_length(
            tf.size, BUCKETS, [BATCH] * (len(BUCKETS) + 1), pad_to_bucket_boundary=True, drop_remainder=True)
    images = mapped(records.shuffle(256), simclr if work == "p2" else resnet)
    return images.batch(BATCH, drop_remainder=True)


def size_of(batch):
    return int((batch[0] if isinstance(batch, tuple) else batch).shape[0])


def main():
    args = measure.arguments(["p1", "p2", "p4"])
    batches = dataset(args.work, args.data).prefetch(AUTOMATIC)
    measure.run(args, batches, size_of)


if __name__ == "__main__":
    main()
