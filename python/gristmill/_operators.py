"""The operators as methods.

Written by scripts/make-operators from `gristmill operators --json`: change the declarations in Rust.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from ._features import Feature

FORMATS = ("tfrecord", "webdataset", "images", "jsonl", "csv", "tsv", "parquet", "npy", "npz")


class Operators:
    """A pipeline with a method for each operator, which returns the pipeline with the operator added.

    With `keep_position` an operator stays in its place, and nothing is moved across it. With
    `assume_commutes` it may change places with any operator of its field, even if results change. Values that
    have no place in a pipeline are a TypeError; what they mean is checked when it is used.
    """

    def _op(self, name: str, parameters: dict[str, Any]) -> Self:
        raise NotImplementedError

    def take(self, count: int, *, keep_position: bool = False, assume_commutes: bool = False) -> Self:
        """Keeps the first `count` records of the dataset, as far as there are so many. It counts records, so
        it stands before operators that make more or fewer elements of them.

        Args:
            count: Records, at least 1. From 1 on.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).take(3).batch(8).peek()["x"]
            array([0, 1, 2])
        """
        return self._op("take", locals())

    def skip(self, count: int, *, keep_position: bool = False, assume_commutes: bool = False) -> Self:
        """Leaves out the first `count` records of the dataset: `.take(count=5000)` and `.skip(count=5000)`
        divide it in two.

        Args:
            count: Records. From 0 on.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).skip(60).batch(8).peek()["x"]
            array([60, 61, 62, 63])
        """
        return self._op("skip", locals())

    def select(self, records: str, *, keep_position: bool = False, assume_commutes: bool = False) -> Self:
        """Keeps the records with these numbers, in the order in which they are given (with `in_order`);
        others are not read. It counts records, so it stands before operators that make more or fewer
        elements. A number twice is refused, and one beyond the dataset fails the job.

        Args:
            records: Numbers from 0 and ranges with both ends, such as `0-9, 12, 40`.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).select("60-62, 3").in_order().batch(8).peek()["x"]
            array([60, 61, 62,  3])
        """
        return self._op("select", locals())

    def shard(
        self,
        *,
        index: int = 0,
        count: int = 1,
        by: Literal["record", "file"] = "record",
        block: int = 1,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Keeps one of `count` parts of the dataset, number `index` from 0: of every `count` runs of `block`
        records one, or of every `count` files one. The parts have no record in common and are the whole
        together. It stands before `shuffle`, and by file before other dataset operators. The option `shard`
        of a job gives it its part, with or without this operator.

        Args:
            index: The part, from 0. From 0 to 1048575.
            count: Parts. From 1 to 1048576.
            by: What is dealt in turn.
            block: Records in a turn, with `by="record"`. From 1 to 1048576.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).shard(index=1, count=16).in_order().batch(8).peek()["x"]
            array([ 1, 17, 33, 49])
        """
        return self._op("shard", locals())

    def repeat(self, count: int, *, keep_position: bool = False, assume_commutes: bool = False) -> Self:
        """All records `count` times, one time after the other; random operators draw anew each time, and
        `__copy__` tells the times apart. To train on the dataset again and again, rather ask the job for
        `epochs`: an epoch has a cursor of its own.

        Args:
            count: Times. From 1 to 100000.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).take(2).repeat(3).batch(8).peek()["x"]
            array([0, 1, 0, 1, 0, 1])
        """
        return self._op("repeat", locals())

    def interleave(
        self,
        *,
        cycle_length: int = 16,
        block_length: int = 1,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Reads `cycle_length` files in turn, `block_length` records of each; when a file ends, the next one
        takes its place. The order is that of `tf.data.Dataset.interleave` without parallel calls. It comes
        before other dataset operators. Splits still come in random order, unless `in_order` is given.

        Args:
            cycle_length: Files read in turn. From 1 to 4096.
            block_length: Records of a file in its turn. From 1 to 1048576.

        Example:
            >>> two = gm.jsonl(["numbers.jsonl", "others.jsonl"], x=gm.i64())
            >>> two.interleave(cycle_length=2).in_order().batch(6).peek()["x"]
            array([  0, 100,   1, 101,   2, 102])
        """
        return self._op("interleave", locals())

    def shuffle(
        self,
        *,
        blocks: int = 16,
        seed: int = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Every split is made of `blocks` runs of neighbouring records drawn from all over the dataset, and
        its records are put in random order before they are batched; another order each epoch, keyed by the
        job's seed and `seed`. Without it, the records of a batch are neighbours in a file, and only splits
        come in random order. More blocks mix better and cost a read each: reads below 4 MiB are slow on S3,
        so a split of 64 MiB takes about 16. It draws at random.

        Args:
            blocks: Runs of neighbours in a split. From 1 to 1024.
            seed: Tells two shuffles apart. From 0 on.

        Example:
            >>> numbers = gm.jsonl("numbers.jsonl", x=gm.i64()).shuffle().batch(64).peek()["x"]
            >>> sorted(numbers.tolist()) == list(range(64)), numbers.tolist() == list(range(64))
            (True, False)
        """
        return self._op("shuffle", locals())

    def in_order(self, *, keep_position: bool = False, assume_commutes: bool = False) -> Self:
        """Delivers every epoch in the order of the dataset, record for record: for validation, and for data
        whose order means something. Records left over at the end of a split begin the next batch, also after
        `filter` or `flat_map`. Otherwise splits come in another random order each epoch, and what they leave
        over is batched after their whole batches. With `bucket_by_sequence_length` it is refused. The order
        of a folder of `images` is one that mixes classes, the same every time. It has no parameters.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).in_order().batch(4).peek()["x"]
            array([0, 1, 2, 3])
        """
        return self._op("in_order", locals())

    def decode(
        self,
        *,
        field: str = "image",
        channels: Literal[1, 3] = 3,
        mode: Literal["colours", "indices"] = "colours",
        dtype: Literal["u8", "u16"] = "u8",
        apply_exif_orientation: bool = False,
        typical_size: int | Sequence[int] | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """bytes (JPEG, PNG, WebP, BMP, GIF, TIFF, PGM or PPM, detected by their first bytes) -> u8 `[h, w,
        3]` RGB, 0 to 255; or grey `[h, w, 1]`, weighed as Pillow's `convert("L")`. JPEG as libjpeg-turbo's
        accurate DCT with fancy upsampling, within 1 of Pillow and TensorFlow; PNG and lossless WebP exactly;
        lossy WebP within 3 of Pillow; BMP, GIF, TIFF, PGM and PPM exactly. Of GIF the first frame; of TIFF
        the first image: grey, RGB, palette or CMYK, plain, PackBits, LZW or deflate; others are errors of
        their records. Grey is repeated over the channels, transparency dropped, sixteen bits cut to eight.
        EXIF orientation is applied on request only, also to TIFFs, which Pillow turns when it opens them. A
        JPEG or PNG that is cut short is an error of its record; a PNG may lack what follows its data, whose
        own checksum alone counts.

        With `mode="indices"` bytes (PNG, BMP, GIF or TIFF with a palette; PNG, BMP, TIFF or PGM of grey) ->
        u8 or u16 `[h, w, 1]`: the numbers that the file stores, regardless of the colours in its palette. A
        file of sixteen bits needs `dtype="u16"`; one that stores colours is an error of its record.

        Args:
            field: The field.
            channels: 3, or 1 for grey; always 1 with `mode="indices"`.
            mode: `colours`, or `indices` for masks.
            dtype: Of `mode="indices"`: u8 or u16.
            apply_exif_orientation: Turn the image upright, as the EXIF orientation of a JPEG, PNG, WebP or
                TIFF says. As Pillow's `ImageOps.exif_transpose`.
            typical_size: Height and width that images typically have, for judging what the operators after it
                gain before any image was looked at. Changes no result, unless `auto_order` is `pecan`. One
                number or [height, width], each from 1 to 16384.

        Example:
            >>> image = gm.images("pictures").decode().center_crop([32, 40]).peek()["image"]
            >>> image.shape, image.dtype
            ((1, 32, 40, 3), dtype('uint8'))
        """
        return self._op("decode", locals())

    def resize(
        self,
        size: int | Sequence[int],
        *,
        antialias: bool = True,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 1 or 3]` -> the same dtype, `[size[0], size[1], c]`. With `antialias` every
        source pixel under the (then wider) curve counts, as in Pillow; without, the nearest 4 (bilinear) or
        16 (bicubic), as in torch. Bilinear u8 is within 1 of both. Bicubic equals Pillow's `BICUBIC` (Pillow
        13 resizes some tall images along columns first, which rounds otherwise); without `antialias` u8 is
        within 1 of torchvision's (2 in 1 of 1,000 values). f32 is within 1e-5 of the largest value.

        Args:
            size: Height and width in pixels. One number or [height, width], each from 1 to 16384.
            antialias: Whether shrinking averages over all pixels that it covers, and not over neighbours
                alone.
            interpolation: How pixels are weighed; bicubic is sharper, and takes eight times as long.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.

        Example:
            >>> images.resize([8, 12]).peek()["image"].shape
            (1, 8, 12, 3)
        """
        return self._op("resize", locals())

    def resize_shorter(
        self,
        size: int,
        *,
        antialias: bool = True,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 1 or 3]` -> the same dtype, `[h', w', c]` whose shorter side is `size` and whose
        longer one is the integer below `size * longer / shorter`, resized as `resize` does. As torchvision's
        `Resize` with one number.

        Args:
            size: The shorter side in pixels. From 1 to 16384.
            antialias: Whether shrinking averages over all pixels that it covers, and not over neighbours
                alone.
            interpolation: How pixels are weighed; bicubic is sharper, and takes eight times as long.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.

        Example:
            >>> images.resize_shorter(16).peek()["image"].shape
            (1, 16, 20, 3)
        """
        return self._op("resize_shorter", locals())

    def center_crop(
        self,
        size: int | Sequence[int],
        *,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        mask_fill: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]`: the middle; a smaller image is
        surrounded by zeros. Exactly as torchvision's `CenterCrop`.

        Args:
            size: Height and width in pixels. One number or [height, width], each from 1 to 16384.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.
            mask_fill: What masks hold where the image was not, such as 255 to be ignored. Of `center_crop`,
                `random_crop`, `pad`, `rotate` and `shear`. From -1000000000 to 1000000000.

        Example:
            >>> images.center_crop(24).peek()["image"].shape
            (1, 24, 24, 3)
        """
        return self._op("center_crop", locals())

    def random_crop(
        self,
        size: int | Sequence[int],
        *,
        padding: int | Sequence[int] = (0, 0, 0, 0),
        pad_if_needed: bool = False,
        fill: float = 0.0,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        mask_fill: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[size[0], size[1], c]` at a random place of the image
        with `padding` around it. As torchvision's `RandomCrop`: with `pad_if_needed` an image that is still
        too small is padded on both sides by what it lacks; without, it is an error of its record. It draws at
        random.

        Args:
            size: Height and width in pixels. One number or [height, width], each from 1 to 16384.
            padding: Left, top, right, bottom; written as one number, or as [left and right, top and bottom],
                too. Each: from 0 to 16384.
            pad_if_needed: Whether an image that is too small is padded; otherwise it is an error of its
                record.
            fill: Value of what was outside the image. From -1000000000 to 1000000000.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.
            mask_fill: What masks hold where the image was not, such as 255 to be ignored. Of `center_crop`,
                `random_crop`, `pad`, `rotate` and `shear`. From -1000000000 to 1000000000.

        Example:
            >>> images.random_crop(32, padding=4).peek()["image"].shape
            (1, 32, 32, 3)
        """
        return self._op("random_crop", locals())

    def crop(
        self,
        *,
        height: int,
        width: int,
        top: int = 0,
        left: int = 0,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> `[height, width, c]`, the same part of every image, which
        must hold it. Exactly as `tf.image.crop_to_bounding_box`.

        Args:
            height: Rows. From 1 to 16384.
            width: Columns. From 1 to 16384.
            top: First row. From 0 to 100000000.
            left: First column. From 0 to 100000000.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.

        Example:
            >>> images.crop(top=2, left=4, height=8, width=16).peek()["image"].shape
            (1, 8, 16, 3)
        """
        return self._op("crop", locals())

    def pad(
        self,
        *,
        padding: int | Sequence[int] | None = None,
        size: int | Sequence[int] | None = None,
        fill: float = 0.0,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        mask_fill: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> larger, the rest being `fill`: by `padding` on each side,
        exactly as torchvision's `Pad`; or to `size` with the image in the middle (the odd pixel right and
        below), as `tf.image.resize_with_crop_or_pad` pads. An image larger than `size` is an error of its
        record.

        Args:
            padding: Left, top, right, bottom; written as one number, or as [left and right, top and bottom],
                too. Each: from 0 to 16384.
            size: Height and width to pad to, in place of `padding`. One number or [height, width], each from
                1 to 16384.
            fill: Value of what was outside the image. From -1000000000 to 1000000000.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.
            mask_fill: What masks hold where the image was not, such as 255 to be ignored. Of `center_crop`,
                `random_crop`, `pad`, `rotate` and `shear`. From -1000000000 to 1000000000.

        Example:
            >>> images.pad(padding=1).peek()["image"].shape
            (1, 34, 42, 3)
        """
        return self._op("pad", locals())

    def random_resized_crop(
        self,
        size: int | Sequence[int],
        *,
        scale: float | Sequence[float] = (0.08, 1.0),
        ratio: float | Sequence[float] = (0.75, 1.3333333333333333),
        antialias: bool = True,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 1 or 3]` -> the same dtype, `[size[0], size[1], c]`: a rectangle of random area
        and aspect ratio at a random place, resized as `resize` does. Chosen as torchvision's
        `RandomResizedCrop`: ten tries, then the largest centred rectangle within the ratio bounds. It draws
        at random.

        Args:
            size: Height and width in pixels. One number or [height, width], each from 1 to 16384.
            scale: Bounds of the area, as a fraction of the image's; 0 < low <= high <= 1. Each: from 1e-06 to
                1.
            ratio: Bounds of width / height; drawn uniformly in its logarithm; 0 < low <= high. Each: from
                1e-06 to 1000000.
            antialias: Whether shrinking averages over all pixels that it covers, and not over neighbours
                alone.
            interpolation: How pixels are weighed; bicubic is sharper, and takes eight times as long.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.

        Example:
            >>> images.random_resized_crop(16, scale=(0.25, 1)).peek()["image"].shape
            (1, 16, 16, 3)
        """
        return self._op("random_resized_crop", locals())

    def flip(
        self,
        *,
        p: float = 0.5,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """`[h, w, 1 or 3]` of u8, f16, bf16 or f32 -> the same, mirrored left to right with probability `p`.
        It draws at random.

        Args:
            p: Probability, 0 to 1. From 0 to 1.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.

        Example:
            >>> bool((images.flip(p=1).peek()["image"] == images.peek()["image"][:, :, ::-1]).all())
            True
        """
        return self._op("flip", locals())

    def vertical_flip(
        self,
        *,
        p: float = 0.5,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> the same, mirrored top to bottom with probability `p`.
        Exactly as torchvision's `RandomVerticalFlip`. It draws at random.

        Args:
            p: Probability, 0 to 1. From 0 to 1.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.

        Example:
            >>> bool((images.vertical_flip(p=1).peek()["image"] == images.peek()["image"][:, ::-1]).all())
            True
        """
        return self._op("vertical_flip", locals())

    def rotate(
        self,
        degrees: float | Sequence[float],
        *,
        interpolation: Literal["nearest", "bilinear"] = "nearest",
        fill: float = 0.0,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        mask_fill: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 1 or 3]` -> the same, turned counter-clockwise about its middle by an angle drawn
        uniformly from `degrees`; what was outside is `fill`. As torchvision's `RandomRotation` without
        `expand`, on tensors: bilinear within 1 (u8) or 1e-3 (f32) of torchvision 0.29, whose f32 positions
        are less exact; nearest equal but for pixels that lie between two (1 in 200; more at angles such as 30
        degrees). It draws at random.

        Args:
            degrees: Bounds of the angle. Written as one number d: -d to d. Each: from -360 to 360.
            interpolation: How pixels between pixels are taken.
            fill: Value of what was outside the image. From -1000000000 to 1000000000.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.
            mask_fill: What masks hold where the image was not, such as 255 to be ignored. Of `center_crop`,
                `random_crop`, `pad`, `rotate` and `shear`. From -1000000000 to 1000000000.

        Example:
            >>> images.rotate(degrees=15).peek()["image"].shape
            (1, 32, 40, 3)
        """
        return self._op("rotate", locals())

    def shear(
        self,
        degrees: float | Sequence[float],
        *,
        interpolation: Literal["nearest", "bilinear"] = "nearest",
        fill: float = 0.0,
        field: str = "image",
        fields: str | Sequence[str] | None = None,
        masks: str | Sequence[str] | None = None,
        boxes: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        box_format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",
        normalised_boxes: bool = False,
        min_area: float = 1,
        min_size: float = 1,
        min_visibility: float = 0,
        mask_fill: float = 0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 1 or 3]` -> the same, slanted about its middle by angles drawn uniformly; what
        was outside is `fill`. As torchvision's `RandomAffine(0, shear=degrees)`, as close as `rotate`. It
        draws at random.

        Args:
            degrees: Bounds along x, then along y. Written as one number d: x from -d to d; as [low, high]: x.
                Each: from -89 to 89.
            interpolation: How pixels between pixels are taken.
            fill: Value of what was outside the image. From -1000000000 to 1000000000.
            field: The image; `fields` where there are several.
            fields: Images and masks, in place of `field`. They must have one height and width: where a
                record's differ, it is bad, and its error names both. Draws depend on the first.
            masks: Which of them hold class numbers, beside those decoded with `mode="indices"`; names that
                `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.
            boxes: Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.
            labels: Fields `[n, ..]` with a row for each box: rows leave with their boxes.
            box_format: Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle,
                width, height.
            normalised_boxes: Boxes are shares of width and height, 0 to 1, and not pixels.
            min_area: Boxes with less area, in pixels of what comes out, leave. From 0 to 1000000000.
            min_size: As `min_area`, of width and height. From 0 to 1000000000.
            min_visibility: Boxes of which less than this share of the area lies within the image after the
                move leave. From 0 to 1.
            mask_fill: What masks hold where the image was not, such as 255 to be ignored. Of `center_crop`,
                `random_crop`, `pad`, `rotate` and `shear`. From -1000000000 to 1000000000.

        Example:
            >>> images.shear(degrees=10).peek()["image"].shape
            (1, 32, 40, 3)
        """
        return self._op("shear", locals())

    def color_jitter(
        self,
        *,
        field: str = "image",
        brightness: float | Sequence[float] = (1.0, 1.0),
        contrast: float | Sequence[float] = (1.0, 1.0),
        saturation: float | Sequence[float] = (1.0, 1.0),
        hue: float | Sequence[float] = (0.0, 0.0),
        p: float = 1.0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; gray has no hue or saturation. With
        probability `p` each of the four is drawn uniformly from its bounds, and they are applied in random
        order. As torchvision's `ColorJitter` on tensors: one change of u8 within 1 of torchvision 0.29, all
        four within 2 in 99 of 100 values (a nearly grey pixel can turn a difference of 1 into another hue);
        f32 within 1e-5. It draws at random.

        Args:
            field: The field.
            brightness: Bounds of the factor. Written as one number b: 1 - b, but at least 0, to 1 + b. Each:
                from 0 to 15.9.
            contrast: As `brightness`: away from the image's mean grey. Each: from 0 to 15.9.
            saturation: As `brightness`: away from each pixel's grey. Each: from 0 to 15.9.
            hue: Bounds of what is added to the hue, in turns, -0.5 to 0.5. Written as one number h: -h to h.
                Each: from -0.5 to 0.5.
            p: Probability, 0 to 1. From 0 to 1.

        Example:
            >>> images.color_jitter(brightness=(0.8, 1.2), hue=(-0.1, 0.1)).peek()["image"].shape
            (1, 32, 40, 3)
        """
        return self._op("color_jitter", locals())

    def grayscale(
        self,
        *,
        field: str = "image",
        channels: Literal[1, 3] = 3,
        p: float = 1.0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 3]` -> the same with three equal channels, `0.2989 r + 0.587 g + 0.114 b` cut to
        the integer below for u8, with probability `p`; or `[h, w, 1]` with `channels=1`. As torchvision's
        `RandomGrayscale` and `Grayscale` on tensors: u8 within 1 of torchvision 0.29, f32 within 1e-6. It
        draws at random.

        Args:
            field: The field.
            channels: 1 or 3.
            p: Probability, 0 to 1; 1 with one channel. From 0 to 1.

        Example:
            >>> images.grayscale(channels=1).peek()["image"].shape
            (1, 32, 40, 1)
        """
        return self._op("grayscale", locals())

    def gaussian_blur(
        self,
        kernel_size: int,
        *,
        field: str = "image",
        sigma: float | Sequence[float] = (0.1, 2.0),
        p: float = 1.0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same, with probability `p` convolved with a
        Gaussian whose sigma is drawn uniformly; edges are reflected. As torchvision's `GaussianBlur`: u8
        within 1 of torchvision 0.29, f32 within 1e-3, for what lies beyond three sigmas (f32: four) is left
        out. It draws at random.

        Args:
            kernel_size: Width and height of the kernel in pixels, odd. From 1 to 255.
            field: The field.
            sigma: Bounds of sigma in pixels. Written as one number: always that. Each: from 0.001 to 100.
            p: Probability, 0 to 1. From 0 to 1.

        Example:
            >>> images.gaussian_blur(5).peek()["image"].shape
            (1, 32, 40, 3)
        """
        return self._op("gaussian_blur", locals())

    def solarize(
        self,
        *,
        field: str = "image",
        threshold: float = 128.0,
        p: float = 0.5,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; with probability `p` every value of at
        least `threshold` becomes 255 (1) minus itself. Exactly as torchvision's `RandomSolarize`. It draws at
        random.

        Args:
            field: The field.
            threshold: Values from it on are inverted. From 0 to 255.
            p: Probability, 0 to 1. From 0 to 1.

        Example:
            >>> int(images.solarize(threshold=100, p=1).peek()["image"].max()) <= 155
            True
        """
        return self._op("solarize", locals())

    def posterize(
        self,
        bits: int,
        *,
        field: str = "image",
        p: float = 0.5,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 `[h, w, 1 or 3]` -> the same; with probability `p` only the upper `bits` bits of each value
        stay. Exactly as torchvision's `RandomPosterize`. It draws at random.

        Args:
            bits: Bits of each value that are kept, 0 to 8. From 0 to 8.
            field: The field.
            p: Probability, 0 to 1. From 0 to 1.

        Example:
            >>> image = images.posterize(1, p=1).peek()["image"]
            >>> sorted(set(image.ravel().tolist()))
            [0, 128]
        """
        return self._op("posterize", locals())

    def random_erasing(
        self,
        *,
        field: str = "image",
        p: float = 0.5,
        scale: float | Sequence[float] = (0.02, 0.33),
        ratio: float | Sequence[float] = (0.3, 3.3),
        value: float = 0.0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> the same; with probability `p` a rectangle of random area
        and aspect ratio at a random place becomes `value`. Chosen as torchvision's `RandomErasing`: ten
        tries, then none. It draws at random.

        Args:
            field: The field.
            p: Probability, 0 to 1. From 0 to 1.
            scale: Bounds of the area, as a fraction of the image's. Each: from 0 to 1.
            ratio: Bounds of height / width; drawn uniformly in its logarithm. Each: from 1e-06 to 1000000.
            value: Value of the rectangle. From -1000000000 to 1000000000.

        Example:
            >>> image = images.random_erasing(p=1, value=255).peek()["image"]
            >>> bool((image == 255).all(axis=-1).any())
            True
        """
        return self._op("random_erasing", locals())

    def add(
        self,
        field: str,
        *,
        value: float | None = None,
        by: str | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Numbers of any shape, item by item, plus `value` or the field `by` of the same shape; either of two
        fields may be one number. In numpy's dtype: that of both, or the next that holds both; an integer
        field and a fraction make f64. As numpy, but a result that an integer dtype cannot hold is an error of
        its record: `cast` to a wider one before. u8, u16, i32, i64, u64, f16, f32 or f64.

        Args:
            field: The first operand, which the result replaces.
            value: The second operand: a number. `2.0` is 2.
            by: Or a field.

        Example:
            >>> numbers = gm.jsonl("numbers.jsonl", x=gm.i64()).take(3)
            >>> numbers.add(field="x", value=10).batch(3).peek()["x"]
            array([10, 11, 12])
        """
        return self._op("add", locals())

    def subtract(
        self,
        field: str,
        *,
        value: float | None = None,
        by: str | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Minus `value` or the field `by`; else as `add`.

        Args:
            field: The first operand, which the result replaces.
            value: The second operand: a number. `2.0` is 2.
            by: Or a field.

        Example:
            >>> numbers = gm.jsonl("numbers.jsonl", x=gm.i64()).take(3)
            >>> numbers.subtract(field="x", value=0.5).batch(3).peek()["x"]
            array([-0.5,  0.5,  1.5])
        """
        return self._op("subtract", locals())

    def multiply(
        self,
        field: str,
        *,
        value: float | None = None,
        by: str | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Times `value` or the field `by`; else as `add`.

        Args:
            field: The first operand, which the result replaces.
            value: The second operand: a number. `2.0` is 2.
            by: Or a field.

        Example:
            >>> numbers = gm.jsonl("numbers.jsonl", x=gm.i64()).take(3)
            >>> numbers.multiply(field="x", by="x").batch(3).peek()["x"]
            array([0, 1, 4])
        """
        return self._op("multiply", locals())

    def divide(
        self,
        field: str,
        *,
        value: float | None = None,
        by: str | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Divided by `value` or the field `by`; else as `add`. Integers make f64, as numpy's `true_divide`;
        an integer divided by an integer field that is 0 is an error of its record.

        Args:
            field: The first operand, which the result replaces.
            value: The second operand: a number. `2.0` is 2.
            by: Or a field.

        Example:
            >>> numbers = gm.jsonl("numbers.jsonl", x=gm.i64()).take(3)
            >>> numbers.divide(field="x", value=4).batch(3).peek()["x"]
            array([0.  , 0.25, 0.5 ])
        """
        return self._op("divide", locals())

    def scale(
        self,
        *,
        field: str = "image",
        factor: float = 0.00392156862745098,
        offset: float = 0.0,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Any shape of u8, f16, bf16 or f32 -> f32: `x * factor + offset`, by default u8 0 to 255 to f32 0 to
        1. One f32 multiplication and one addition: within 1e-6 of torchvision's `ToDtype(scale=True)`, which
        divides.

        Args:
            field: The field.
            factor: Factor; 1/255 unless given. From -1000000000 to 1000000000.
            offset: Added after the multiplication. From -1000000000 to 1000000000.

        Example:
            >>> image = images.scale().peek()["image"]
            >>> image.dtype, bool(image.max() <= 1)
            (dtype('float32'), True)
        """
        return self._op("scale", locals())

    def clip(
        self,
        *,
        field: str = "image",
        min: float | None = None,
        max: float | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Numbers of any shape -> the same, none below `min` or above `max`; not-a-number stays. Exactly as
        `tf.clip_by_value`. One of the bounds may be left out; each is one that the field's type can hold.

        Args:
            field: The field.
            min: Lower bound.
            max: Upper bound.

        Example:
            >>> image = images.clip(min=10, max=20).peek()["image"]
            >>> int(image.min()), int(image.max())
            (10, 20)
        """
        return self._op("clip", locals())

    def normalise(
        self,
        *,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        field: str = "image",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 3]` -> f32 `[h, w, 3]`: `(x / 255 - mean) / std` per channel, computed as one f32
        multiplication and one addition. Grey `[h, w, 1]` with one mean and one std.

        Args:
            mean: Per channel R, G, B, or one for grey, on the scale 0 to 1. Each: from -1000000 to 1000000.
            std: As many as `mean`, on the scale 0 to 1. Each: from 1e-06 to 1000000.
            field: The field.

        Example:
            >>> images.normalise(**gm.IMAGENET).peek()["image"].dtype
            dtype('float32')
        """
        return self._op("normalise", locals())

    def standardise(
        self,
        *,
        field: str = "image",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """u8 or f32 `[h, w, 1 or 3]` -> f32 of the same shape: (x - mean) / max(deviation, 1 / sqrt(n)) with
        the mean and deviation of all n values of the image. As `tf.image.per_image_standardization`, within
        1e-4.

        Args:
            field: The field.

        Example:
            >>> image = images.standardise().peek()["image"]
            >>> abs(float(image.mean())) < 1e-3
            True
        """
        return self._op("standardise", locals())

    def cast(
        self,
        dtype: Literal["u8", "u16", "i32", "i64", "u64", "f16", "bf16", "f32", "f64"],
        *,
        field: str = "image",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Numbers of any shape -> the same shape of `dtype`: u8, u16, i32, i64, u64, f16, bf16, f32 or f64.
        Rounds to nearest, ties to even (`tf.cast` and torch cut towards zero); what an integer type cannot
        hold becomes its nearest bound, infinities too, and not-a-number becomes 0. To floats exactly as
        TensorFlow and torch: what is beyond f16 becomes infinite.

        Args:
            dtype: The type of what comes out.
            field: The field.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).cast(field="x", dtype="f32").batch(2).peek()["x"]
            array([0., 1.], dtype=float32)
        """
        return self._op("cast", locals())

    def layout(
        self,
        to: Literal["nchw", "chw", "nhwc", "hwc"],
        *,
        field: str = "image",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Numbers `[h, w, c]` -> `[c, h, w]` (`to="nchw"`), or back (`to="nhwc"`). Image operators take `[h,
        w, c]` alone, so that this comes after them.

        Args:
            to: The order of what comes out; `chw` and `hwc` mean the same as `nchw` and `nhwc`.
            field: The field.

        Example:
            >>> images.layout("nchw").peek()["image"].shape
            (1, 3, 32, 40)
        """
        return self._op("layout", locals())

    def one_hot(
        self,
        *,
        field: str,
        classes: int,
        dtype: Literal["f32", "u8"] = "f32",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """An integer scalar -> f32 or u8 `[classes]`. As `tf.one_hot`, but that a number outside 0 to
        `classes` - 1 is an error of its record.

        Args:
            field: The field of class numbers.
            classes: Number of classes. From 1 to 16777216.
            dtype: f32 or u8.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).take(2).one_hot(field="x", classes=3).batch(2).peek()["x"]
            array([[1., 0., 0.],
                   [0., 1., 0.]], dtype=float32)
        """
        return self._op("one_hot", locals())

    def length(
        self,
        *,
        field: str,
        into: str,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """A sequence `[n, ..]` or byte string of n bytes -> i64 scalar n, in the new field `into`, whose name
        the element must not have yet. The sequence stays.

        Args:
            field: The sequence or byte string.
            into: The new field.

        Example:
            >>> tokens = gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1]))
            >>> tokens.length(field="tokens", into="n").batch(3, ragged=True).peek()["n"]
            array([2, 3, 1])
        """
        return self._op("length", locals())

    def truncate(
        self,
        *,
        field: str,
        length: int,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """A sequence `[n, ..]` or byte string -> its first `length` items; shorter ones stay as they are.

        Args:
            field: The sequence or byte string.
            length: Most items that are kept. From 1 to 16777216.

        Example:
            >>> tokens = gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1]))
            >>> tokens.truncate(field="tokens", length=2).padded_batch(3).peek()["tokens"].tolist()
            [[1, 2], [3, 4], [6, 0]]
        """
        return self._op("truncate", locals())

    def pad_sequence(
        self,
        *,
        field: str,
        length: int,
        value: float = 0,
        truncate: bool = False,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """A sequence `[n, ..]` of numbers -> `[length, ..]`: `value` follows what is there. A longer one is
        an error of its record, or cut with `truncate`.

        Args:
            field: The sequence.
            length: Items of every sequence that comes out. From 1 to 16777216.
            value: What is filled in; the field's dtype must be able to hold it, as floats do `.nan` and
                `.inf`.
            truncate: Whether only the first `length` items of a longer sequence are kept.

        Example:
            >>> tokens = gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1]))
            >>> tokens.pad_sequence(field="tokens", length=4).batch(3).peek()["tokens"].tolist()
            [[1, 2, 0, 0], [3, 4, 5, 0], [6, 0, 0, 0]]
        """
        return self._op("pad_sequence", locals())

    def tokenise(
        self,
        *,
        field: str,
        tokenizer: str,
        add_special_tokens: bool = True,
        max_length: int | None = None,
        dtype: Literal["i64", "i32", "u16"] = "i64",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """bytes (UTF-8) -> `dtype` `[n]`: the numbers of its tokens, as Hugging Face's `tokenizers` makes
        them with that `tokenizer.json`; exactly those of its Python package 0.23. The file's own truncation
        and padding are left aside: `max_length` and `pad_sequence` or `padded_batch` do that. A file with BPE
        dropout is refused, for it draws anew each time; text that is not UTF-8 or has more than 1 MiB is an
        error of its record.

        Args:
            field: The text.
            tokenizer: A `tokenizer.json` of at most 64 MiB. Its content, not its path, is part of the
                fingerprint.
            add_special_tokens: Whether the file's post-processor adds its tokens, such as `[CLS]` and
                `[SEP]`.
            max_length: Most tokens of a text, special ones included: as the package's `enable_truncation`.
                From 1 to 1048576.
            dtype: i64, i32 or u16, which must be able to hold every token of the file.

        Example:
            >>> texts = gm.jsonl("texts.jsonl", text=gm.bytes()).tokenise(field="text", tokenizer="tokenizer.json")
            >>> texts.padded_batch(3).peek()["text"].tolist()
            [[1, 2], [3, 4], [1, 5]]
        """
        return self._op("tokenise", locals())

    def parse_json(
        self,
        *,
        field: str,
        features: Mapping[str, Feature],
        keep: bool = False,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """bytes (one JSON object, RFC 8259) -> a field for each of `features`, found and typed as the source
        `jsonl` does: `a.b` is `b` of the object under `a`, whole numbers, `true` and `false` are i64 or u64,
        numbers f32 or f64, strings their UTF-8. What is null, missing or of another kind is an error of its
        record.

        Args:
            field: The byte string.
            features: By the name of the new field: `{"size": gm.i64()}`.
            keep: Whether the byte string stays a field of the element.

        Example:
            >>> lines = gm.webdataset("shards.tar", line=gm.bytes("json"))
            >>> lines.parse_json(field="line", features={"size": gm.i64()}).batch(3).peek()["size"]
            array([0, 1, 2])
        """
        return self._op("parse_json", locals())

    def parse_csv(
        self,
        *,
        field: str,
        columns: Sequence[str],
        features: Mapping[str, Feature],
        delimiter: str = ",",
        keep: bool = False,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """bytes (one line of comma-separated values, RFC 4180) -> a field for each of `features`. Values may
        be quoted with `"`, and then hold delimiters, line ends and `""` for `"`. Numbers are decimal text,
        several in one value stand apart by spaces or commas. A line with more or fewer values than `columns`,
        a quote that does not end and a number that is none are errors of its record.

        Args:
            field: The line.
            columns: The names of all values of a line, in order: what the `key` of a feature names.
            features: By the name of the new field: `{"size": gm.i64()}`.
            delimiter: One ASCII character between values; `"\\t"` for tabs.
            keep: Whether the byte string stays a field of the element.

        Example:
            >>> lines = gm.webdataset("shards.tar", line=gm.bytes("csv"))
            >>> lines.parse_csv(field="line", columns=["a", "b"], features={"b": gm.i64()}).batch(3).peek()["b"]
            array([0, 1, 2])
        """
        return self._op("parse_csv", locals())

    def parse_example(
        self,
        *,
        field: str,
        features: Mapping[str, Feature],
        keep: bool = False,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """bytes (one serialised `tf.train.Example` or `SequenceExample`) -> a field for each of `features`,
        as the source `tfrecord` finds them: of a `shape` as TensorFlow's `FixedLenFeature`, of `[-1]` as its
        `RaggedFeature`. A feature that is missing or of another type is an error of its record.

        Args:
            field: The byte string.
            features: By the name of the new field: `{"size": gm.i64()}`.
            keep: Whether the byte string stays a field of the element.

        Example:
            >>> examples = gm.webdataset("shards.tar", example=gm.bytes("ex"))
            >>> examples.parse_example(field="example", features={"n": gm.i64()}).batch(3).peek()["n"]
            array([0, 1, 2])
        """
        return self._op("parse_example", locals())

    def parse_raw(
        self,
        *,
        field: str,
        dtype: Literal["u8", "u16", "u32", "u64", "i32", "i64", "f16", "bf16", "f32", "f64"],
        shape: Sequence[int],
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """bytes -> the numbers `[shape]` of `dtype` that they are, little-endian and in the order of the
        dimensions, as `numpy.frombuffer(value, dtype).reshape(shape)` takes them. The first dimension may be
        `-1`, which follows from the length. A byte string of another length is an error of its record, which
        names both.

        Args:
            field: The byte string.
            dtype: The type of the numbers.
            shape: The dimensions: whole numbers, of which the first may be -1 where elements differ; `[]` for
                one number. A list of dimensions.

        Example:
            >>> digits = gm.webdataset("shards.tar", digit=gm.bytes("cls"))
            >>> digits.parse_raw(field="digit", dtype="u8", shape=[1]).batch(3).peek()["digit"].tolist()
            [[48], [49], [50]]
        """
        return self._op("parse_raw", locals())

    def copy(
        self,
        into: str,
        *,
        field: str = "image",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Any field -> the same, and again in the new field `into`, whose name the element must not have yet.
        What follows can treat them apart.

        Args:
            into: The new field.
            field: The field.

        Example:
            >>> two = images.copy("small").resize(8, field="small").peek()
            >>> two["image"].shape, two["small"].shape
            ((1, 32, 40, 3), (1, 8, 8, 3))
        """
        return self._op("copy", locals())

    def drop(
        self,
        fields: str | Sequence[str],
        *,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Any element -> the same without `fields`.

        Args:
            fields: The fields that are left out.

        Example:
            >>> sorted(images.drop(["label"]).peek())
            ['image']
        """
        return self._op("drop", locals())

    def filter(
        self,
        field: str,
        *,
        min: float | None = None,
        max: float | None = None,
        in_: float | Sequence[float] | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Keeps the elements whose `field` passes every test given. Of a number the tests look at its value,
        of a sequence or byte string at its length. They compare in the field's own type: integers exactly,
        floats with the number rounded to that type. A number that the type cannot hold is refused. Elements
        left out are no errors and are not listed.

        Args:
            field: The number, sequence or byte string that is tested.
            min: Smallest value or length kept.
            max: Largest value or length kept.
            in_: Only these values or lengths are kept.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).filter("x", min=10, max=12).batch(8).peek()["x"]
            array([10, 11, 12])
        """
        return self._op("filter", locals())

    def duplicate(
        self,
        *,
        copies: int = 2,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """One element -> `copies` of it, one after the other: the views of contrastive learning, such as
        SimCLR's two. What comes before runs once; random operators after it draw anew for each.

        Args:
            copies: Elements made of each. From 1 to 1024.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).duplicate(copies=2).batch(4).peek()["x"]
            array([0, 0, 1, 1])
        """
        return self._op("duplicate", locals())

    def flat_map(self, field: str, *, keep_position: bool = False, assume_commutes: bool = False) -> Self:
        """`[n, ..shape]` in `field` -> n elements of `[..shape]`, in order; the other fields are repeated. As
        `tf.data.Dataset.flat_map(Dataset.from_tensor_slices)`; no item, no element.

        Args:
            field: The list.

        Example:
            >>> gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1])).flat_map("tokens").batch(6).peek()["tokens"]
            array([1, 2, 3, 4, 5, 6])
        """
        return self._op("flat_map", locals())

    def unbatch(
        self,
        *,
        fields: str | Sequence[str] | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Lists `[n, ..shape]` -> n elements of `[..shape]`, item i of each list side by side: of a record
        with a batch of rows, its rows. All fields, or those of `fields`; the others are repeated. Lists of
        different lengths are an error of their record; without items there is no element. As
        `tf.data.Dataset.unbatch`, which takes all fields. Rows of one record have its `__key__` and the
        `__copy__` 0, 1, 2 and so on. Splits remain runs of records: a split of `[n, ..shape]` of a fixed `n`
        has n rows a record, which is allowed for in its size; of `[?, ..shape]` it has what the lists have.
        `take`, `skip`, `shard` and `select` count records and come before.

        Args:
            fields: The lists, of equally many items; all fields if left out.

        Example:
            >>> pairs = gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1])).copy(field="tokens", into="again")
            >>> pairs.add(field="again", value=10).unbatch().batch(3).peek()["again"]
            array([11, 12, 13])
        """
        return self._op("unbatch", locals())

    def batch(
        self,
        size: int,
        *,
        drop_remainder: bool = False,
        ragged: bool = False,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """`size` elements -> one batch, every field with a new first dimension. With `ragged` sequences and
        byte strings are delivered as values and offsets (`x` and `x.offsets`), and images of different sizes
        as values, offsets and shapes (`x.shapes`, i64 `[size, 3]`), of which Python's loaders make a list of
        images. Across the splits of an epoch only the last batch can be short, and `drop_remainder` leaves
        that one out.

        Args:
            size: Elements of a batch. From 1 to 1048576.
            drop_remainder: Leave the last batch of an epoch out if it is short.
            ragged: Whether sequences of different lengths and byte strings are delivered as values and
                offsets, and images of different sizes as lists.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).batch(4).peek()["x"]
            array([0, 1, 2, 3])
            >>> [image.shape for image in gm.images("pictures").decode().batch(2, ragged=True).peek()["image"]]
            [(32, 40, 3), (32, 40, 3)]
        """
        return self._op("batch", locals())

    def padded_batch(
        self,
        size: int,
        *,
        drop_remainder: bool = False,
        lengths: Mapping[str, int] | None = None,
        values: Mapping[str, float] | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """`size` elements -> one batch. A sequence `[?, ..]` or byte string becomes `[size, n, ..]`: padded
        at its end to `lengths` if the field is named there, else to the longest of the batch; where all are
        empty, `n` is 0. As `tf.data.Dataset.padded_batch`.

        Args:
            size: Elements of a batch. From 1 to 1048576.
            drop_remainder: Leave the last batch of an epoch out if it is short.
            lengths: Items each of these fields is padded to, such as `{ tokens: 128 }`. Each: from 1 to
                16777216.
            values: What each of these fields is padded with; floats also with `.nan`, `.inf` and `-.inf`.

        Example:
            >>> gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1])).padded_batch(3).peek()["tokens"].tolist()
            [[1, 2, 0], [3, 4, 5], [6, 0, 0]]
        """
        return self._op("padded_batch", locals())

    def bucket_by_sequence_length(
        self,
        *,
        field: str,
        boundaries: int | Sequence[int],
        size: int | None = None,
        sizes: int | Sequence[int] | None = None,
        drop_remainder: bool = False,
        pad_to_bucket_boundary: bool = False,
        lengths: Mapping[str, int] | None = None,
        values: Mapping[str, float] | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Elements -> batches of `size` whose sequences in `field` have like lengths, padded as
        `padded_batch` pads; with `pad_to_bucket_boundary` `field` is padded to the longest its bucket can
        hold. As `tf.data.Dataset.bucket_by_sequence_length`; `sizes` are its `bucket_batch_sizes`, so that
        batches of long sequences have fewer rows. Buckets are filled within a split, which has four batches
        to a bucket or more, as far as the dataset has so many and `split_batches` says nothing else; what is
        left in them at its end is batched with its neighbours in length, so that every batch is full but the
        last of an epoch. With `sizes` one batch of a split may have fewer rows than its bucket says, none has
        more than that of its longest sequence, and rows for less than the smallest size are joined with those
        of later splits. Batches of several sizes cannot be cached whole, and `batch_size` is refused. Where
        splits are one batch, buckets do nothing: `explain data`, `plan` and `run` say so, and what helps.

        Args:
            field: The sequence whose length decides.
            boundaries: Ascending, in items: bucket `i` ends before boundary `i`; the last bucket has no end.
                Each: from 2 to 16777216.
            size: Elements of a batch; else `sizes` says it. From 1 to 1048576.
            sizes: Elements of a batch of each bucket: one more than `boundaries`, in their order. Each: from
                1 to 1048576.
            drop_remainder: Leave the last batch of an epoch out if it is short.
            pad_to_bucket_boundary: Pad `field` to the longest its bucket can hold (its boundary - 1), not to
                the longest of the batch.
            lengths: Items each of these fields is padded to, such as `{ tokens: 128 }`. Each: from 1 to
                16777216.
            values: What each of these fields is padded with; floats also with `.nan`, `.inf` and `-.inf`.

        Example:
            >>> tokens = gm.jsonl("texts.jsonl", tokens=gm.i64(shape=[-1]))
            >>> buckets = tokens.bucket_by_sequence_length(field="tokens", boundaries=[3], size=2)
            >>> buckets.peek()["tokens"].tolist()
            [[1, 2], [6, 0]]
            >>> sizes = tokens.bucket_by_sequence_length(field="tokens", boundaries=[3], sizes=[2, 1])
            >>> sizes.peek()["tokens"].tolist()
            [[3, 4, 5]]
        """
        return self._op("bucket_by_sequence_length", locals())

    def group_by_window(
        self,
        field: str,
        *,
        boundaries: int | Sequence[int] | None = None,
        size: int | None = None,
        sizes: int | Sequence[int] | None = None,
        lengths: Mapping[str, int] | None = None,
        values: Mapping[str, float] | None = None,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Elements -> batches of elements of one key alone: the whole number in `field`, or the length of a
        sequence. With `boundaries` a key is what is between two of them, and `sizes` may say the elements of
        a batch of each. A batch comes as soon as its key has enough elements; sequences are padded as
        `padded_batch` pads. As `tf.data.Dataset.group_by_window` with `key_func` as said and `padded_batch`
        as `reduce_func`. Groups are filled within a split, and what is left of each key at its end is a short
        batch, as at the end of a dataset in tf.data: a split has 64 batches or more, with `boundaries` four
        to a key, as far as the dataset has so many and `split_batches` says nothing else. Its batches cannot
        be cached whole, and `batch_size` is refused.

        Args:
            field: The key: a whole number, or a sequence by its length.
            boundaries: Ascending: key `i` ends before boundary `i`; the last key has no end. Left out, each
                number is a key. Each: from 1 to 16777216.
            size: Elements of a batch; else `sizes` says it. From 1 to 1048576.
            sizes: Elements of a batch of each key: one more than `boundaries`, in their order. Each: from 1
                to 1048576.
            lengths: Items each of these fields is padded to, such as `{ tokens: 128 }`. Each: from 1 to
                16777216.
            values: What each of these fields is padded with; floats also with `.nan`, `.inf` and `-.inf`.

        Example:
            >>> numbers = gm.jsonl("numbers.jsonl", x=gm.i64()).shuffle()
            >>> halves = numbers.group_by_window(field="x", boundaries=[32], size=4).peek()["x"] // 32
            >>> len(set(halves.tolist()))
            1
        """
        return self._op("group_by_window", locals())

    def autocache(
        self,
        *,
        reuse_random: bool = False,
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Any element -> the same. The service may store elements that come here, and read them from then on
        instead of computing them, if measuring says that it pays; it changes no result. There may be any
        number of them: after operators on elements, where nothing is moved across it, and after the batch,
        where it means the batches as they are delivered. What comes before may draw at random only with
        `reuse_random`. Operators on the dataset come before all of them.

        Args:
            reuse_random: What comes before may draw at random: every epoch then has the draws of the first,
                at the price of less variety.

        Example:
            >>> images.resize(8).autocache().flip().batch(4).peek()["image"].shape
            (4, 8, 8, 3)
        """
        return self._op("autocache", locals())

    def sleep(
        self,
        ms: float,
        *,
        per: Literal["element"] = "element",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Any element -> the same, `ms` milliseconds later. Uses no CPU.

        Args:
            ms: 0 to 60,000; fractions count. From 0 to 60000.
            per: What one sleep is for.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).take(2).sleep(1).batch(2).peek()["x"]
            array([0, 1])
        """
        return self._op("sleep", locals())

    def inflate(
        self,
        factor: int,
        *,
        field: str = "image",
        keep_position: bool = False,
        assume_commutes: bool = False,
    ) -> Self:
        """Any numeric `[..shape]` -> `[factor, ..shape]` of the same dtype: the value, `factor` times.

        Args:
            factor: How many times the value is repeated. From 1 to 1000000.
            field: The field.

        Example:
            >>> gm.jsonl("numbers.jsonl", x=gm.i64()).inflate(3, field="x").batch(2).peek()["x"].tolist()
            [[0, 0, 0], [1, 1, 1]]
        """
        return self._op("inflate", locals())
