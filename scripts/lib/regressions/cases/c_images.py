"""C: images with masks and boxes."""

import io
import json
import random
import struct
import tarfile
import zlib

from regressions.run import case
from regressions.world import expect, tensor

HEAD = """name: images
source:
  webdataset: data
  features:
    image: { key: png, dtype: bytes }
    mask: { key: mask.png, dtype: bytes }
    objects: { key: json, dtype: bytes }
ops:
  - decode: { channels: 1 }
  - decode: { field: mask, mode: indices }
  - parse_json: { field: objects, features: { boxes: { dtype: f32, shape: [-1, 4] }, labels: { dtype: i64, shape: [-1] } } }
"""
ALL = "fields: [image, mask], boxes: [boxes], labels: [labels]"


def png(rows, palette=False):
    """A PNG of numbers 0 to 255: grey, or indices into a palette of one colour."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3 if palette else 0, 0, 0, 0)
    colours = chunk(b"PLTE", bytes([9] * 768)) if palette else b""
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + colours + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def shard(world, elements):
    """A tar of (image, mask, boxes, labels), the first two as rows of numbers."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i, (image, mask, boxes, labels) in enumerate(elements):
            objects = json.dumps({"boxes": boxes, "labels": labels}).encode()
            for kind, body in ("png", png(image)), ("mask.png", png(mask, palette=True)), ("json", objects):
                member = tarfile.TarInfo(f"{i:05}.{kind}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
    world.write("data/train-0.tar", out.getvalue())


def scene(draw):
    """Random numbers, a bright rectangle of 255 in them, and a box around it; the mask has the same numbers."""
    height, width = draw.randint(30, 60), draw.randint(30, 60)
    rows = [[draw.randint(0, 250) for _ in range(width)] for _ in range(height)]
    left, top = draw.randint(0, width - 12), draw.randint(0, height - 12)
    right, bottom = left + draw.randint(4, 12), top + draw.randint(4, 12)
    for y in range(top, bottom):
        rows[y][left:right] = [255] * (right - left)
    return rows, rows, [[left, top, right, bottom]], [7]


def batches(world, ops):
    """Runs the pipeline and yields its batches, as functions of a field's name."""
    pipeline = world.write("p.yaml", HEAD + ops)
    ran = world.run("run", pipeline, "--sink", "out", "--workers", "2", "--epochs", "1")
    expect(ran.code == 0, f"exit {ran.code}: {ran.err[-300:]}")
    for path in sorted((world.folder / "out").glob("*.safetensors")):
        blob = path.read_bytes()
        yield lambda name: tensor(blob, name)


@case("C.image-and-mask", "image, mask and boxes are cropped and mirrored alike in all draws")
def image_and_mask(world):
    draw = random.Random(5)
    shard(world, [scene(draw) for _ in range(48)])
    side, size = 24, 4
    ops = (
        f"  - random_crop: {{ size: {side}, {ALL} }}\n  - flip: {{ {ALL} }}\n  - vertical_flip: {{ {ALL} }}\n"
        f"  - padded_batch: {{ size: {size}, values: {{ labels: -1 }} }}\n"
    )
    seen, boxes, empty = 0, 0, 0
    for batch in batches(world, ops):
        images, masks, found, labels = (batch(name) for name in ("image", "mask", "boxes", "labels"))
        expect(images == masks, "an image and its mask differ")
        rows = len(labels) // size
        for i in range(size):
            pixels = images[i * side * side:(i + 1) * side * side]
            bright = [divmod(at, side) for at, value in enumerate(pixels) if value == 255]
            seen += 1
            if not bright:
                expect(labels[i * rows] == -1, "a box is left of a rectangle that is not in its image")
                empty += 1
                continue
            wanted = [min(x for _, x in bright), min(y for y, _ in bright),
                      max(x for _, x in bright) + 1, max(y for y, _ in bright) + 1]
            got = found[i * rows * 4:i * rows * 4 + 4]
            expect(got == wanted, f"a box is {got}, the rectangle is {wanted}")
            expect(labels[i * rows] == 7, "a box lost its label")
            boxes += 1
    expect(seen == 48 and boxes > 10 and empty > 2, f"{seen} images, {boxes} boxes, {empty} without")


@case("C.mask-numbers", "a mask's class numbers come through a resize as they are stored")
def mask_numbers(world):
    elements = []
    for i in range(8):
        rows = [[10 * i + (x // 9 + y // 7) % 3 for x in range(50)] for y in range(40)]
        elements.append((rows, rows, [], []))
    shard(world, elements)
    ops = (
        "  - random_resized_crop: { size: [31, 67], fields: [image, mask] }\n  - resize: { size: 45, fields: [image, mask] }\n"
        "  - cast: { field: mask, dtype: i64 }\n  - drop: { fields: [boxes, labels] }\n  - batch: { size: 1 }\n"
    )
    kinds = set()
    for batch in batches(world, ops):
        numbers = set(batch("mask"))
        kinds |= numbers
        first = min(numbers) // 10 * 10
        expect(numbers <= {first, first + 1, first + 2}, f"a mask has numbers that were not in it: {sorted(numbers)}")
    expect(len(kinds) == 24, f"{len(kinds)} class numbers of 24")


@case("C.mask-size", "a mask of another size than its image is one bad record, named with both sizes")
def mask_size(world):
    draw = random.Random(6)
    elements = [scene(draw) for _ in range(4)]
    image, mask, boxes, labels = elements[2]
    elements[2] = (image, [row[:-1] for row in mask], boxes, labels)
    shard(world, elements)
    pipeline = world.write("p.yaml", HEAD + f"  - random_crop: {{ size: 8, {ALL} }}\n  - padded_batch: {{ size: 2 }}\n")
    ran = world.run("run", pipeline, "--sink", "out", "--workers", "1", "--epochs", "1")
    sizes = f"`mask` is {len(mask)} x {len(mask[0]) - 1}", f"`image` is {len(image)} x {len(image[0])}"
    ran.failed_in_one_line(1, "random_crop", *sizes)


def bmp(rows):
    """24 bits, the lowest row first, filled up to four bytes."""
    body = b"".join(bytes(x for red, green, blue in row for x in (blue, green, red)) + bytes(-3 * len(row) % 4)
                    for row in reversed(rows))
    header = struct.pack("<IiiHHIIiiII", 40, len(rows[0]), len(rows), 1, 24, 0, len(body), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, 54) + header + body


def tiff(rows):
    """RGB, one plain strip, big-endian."""
    body = b"".join(bytes(pixel) for row in rows for pixel in row)
    tags = [(256, 3, 1, len(rows[0]) << 16), (257, 3, 1, len(rows) << 16), (258, 3, 3, 8), (259, 3, 1, 1 << 16),
            (262, 3, 1, 2 << 16), (273, 4, 1, 14), (277, 3, 1, 3 << 16), (278, 3, 1, len(rows) << 16), (279, 4, 1, len(body))]
    bits = struct.pack(">3H", 8, 8, 8)
    directory = 14 + len(body) + len(body) % 2
    entries = b"".join(struct.pack(">HHII", *tag) for tag in tags)
    return (b"MM\0*" + struct.pack(">I", directory) + bits + body + bytes(len(body) % 2)
            + struct.pack(">H", len(tags)) + entries + bytes(4))


@case("C.image-formats", "what a folder of images lists is decoded: .bmp, .tif, .pgm and .ppm as .png")
def image_formats(world):
    draw = random.Random(9)
    rows = [[tuple(draw.randint(0, 255) for _ in range(3)) for _ in range(13)] for _ in range(7)]
    grey = [[(value, value, value) for value in (draw.randint(0, 255) for _ in range(13))] for _ in range(7)]
    flat = bytes(x for row in rows for pixel in row for x in pixel)
    grey_flat = bytes(pixel[0] for row in grey for pixel in row)
    files = {
        "a.bmp": (rows, bmp(rows)), "b.tif": (rows, tiff(rows)), "c.TIFF": (grey, tiff(grey)),
        "d.ppm": (rows, b"P6\n13 7\n255\n" + flat), "e.pgm": (grey, b"P5 13 7 255\n" + grey_flat),
        "f.png": (grey, png([[pixel[0] for pixel in row] for row in grey])),
    }
    for name, (_, blob) in files.items():
        world.write(f"data/class/{name}", blob)
    pipeline = world.write("p.yaml", "source: { images: data }\nops: [decode, crop: { height: 7, width: 13 }, batch: { size: 1 }]\n")
    ran = world.run("run", pipeline, "--sink", "out", "--workers", "1", "--epochs", "1")
    expect(ran.code == 0, f"exit {ran.code}: {ran.err[-300:]}")
    got = [tensor(path.read_bytes(), "image") for path in (world.folder / "out").glob("*.safetensors")]
    wanted = [[x for row in pixels for pixel in row for x in pixel] for pixels, _ in files.values()]
    expect(sorted(got) == sorted(wanted), f"{len(got)} of 6 images, or other pixels")
    world.write("data/class/g.bmp", bmp(rows)[:100])
    ran = world.run("run", pipeline, "--sink", "again", "--workers", "1", "--epochs", "1")
    ran.failed_in_one_line(1, "g.bmp", "decode", "BMP")
