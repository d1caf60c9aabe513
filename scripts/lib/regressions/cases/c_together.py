"""C: images, masks and boxes by the rules of torchvision's v2 transforms, written here once more."""

import json
import random

from regressions.cases.c_images import ALL, HEAD, shard
from regressions.model import f32
from regressions.run import case
from regressions.world import expect, tensor


def nearest(rows, height, width):
    """As `F.resize` of a mask: positions in f32, cut to the pixel before."""
    places = lambda length, to: [min(int(f32(at * f32(length / to))), length - 1) for at in range(to)]
    columns = places(len(rows[0]), width)
    return [[rows[y][x] for x in columns] for y in places(len(rows), height)]


def kept(boxes, height, width, least):
    """As `clamp_bounding_boxes`, then `sanitize_bounding_boxes`: (label, box) of those that stay."""
    out = []
    for label, (left, top, right, bottom) in boxes:
        left, right = (min(max(x, 0), width) for x in (left, right))
        top, bottom = (min(max(y, 0), height) for y in (top, bottom))
        w, h = right - left, bottom - top
        if w >= least["min_size"] and h >= least["min_size"] and w * h >= least["min_area"]:
            out.append((label, (left, top, right, bottom)))
    return out


def moved(boxes, x, y):
    return [(label, (a + x, b + y, c + x, d + y)) for label, (a, b, c, d) in boxes]


def step(draw, height, width):
    """One operator that takes `height` x `width`: its YAML, its size after, and what it does to rows and boxes."""
    kind = draw.choice(["crop", "resize", "flip", "vertical_flip", "center_crop", "pad", "resize_shorter"])
    if kind == "crop":
        h, w = draw.randint(height // 2, height), draw.randint(width // 2, width)
        top, left = draw.randint(0, height - h), draw.randint(0, width - w)
        params = f"top: {top}, left: {left}, height: {h}, width: {w}"
        return (kind, params, h, w, lambda rows: [row[left:left + w] for row in rows[top:top + h]],
                lambda boxes: moved(boxes, -left, -top))
    if kind == "center_crop":
        h, w = draw.randint(height // 2, height), draw.randint(width // 2, width)
        top, left = round((height - h) / 2), round((width - w) / 2)
        return (kind, f"size: [{h}, {w}]", h, w, lambda rows: [row[left:left + w] for row in rows[top:top + h]],
                lambda boxes: moved(boxes, -left, -top))
    if kind == "pad":
        left, top, right, bottom = (draw.randint(0, 7) for _ in range(4))
        h, w = height + top + bottom, width + left + right
        middle = lambda rows: [[255] * left + row + [255] * right for row in rows]
        return (kind, f"padding: [{left}, {top}, {right}, {bottom}], mask_fill: 255", h, w,
                lambda rows: [[255] * w] * top + middle(rows) + [[255] * w] * bottom, lambda boxes: moved(boxes, left, top))
    if kind in ("flip", "vertical_flip"):
        sideways = kind == "flip"
        turn = lambda box: (width - box[2], box[1], width - box[0], box[3]) if sideways else (
            box[0], height - box[3], box[2], height - box[1])
        return (kind, "p: 1", height, width, lambda rows: [row[::-1] for row in rows] if sideways else rows[::-1],
                lambda boxes: [(label, turn(box)) for label, box in boxes])
    if kind == "resize":
        h, w = draw.randint(5, 61), draw.randint(5, 61)
        params = f"size: [{h}, {w}]"
    else:
        size = draw.randint(9, 47)
        h, w = (size, int(size * width / height)) if height <= width else (int(size * height / width), size)
        params = f"size: {size}"
    scaled = lambda box: (box[0] * w / width, box[1] * h / height, box[2] * w / width, box[3] * h / height)
    return (kind, params, h, w, lambda rows: nearest(rows, h, w), lambda boxes: [(label, scaled(box)) for label, box in boxes])


def scene(draw, height, width):
    rows = [[(x // 3 + 5 * (y // 2)) % 40 + 60 * (draw.random() < 0.1) for x in range(width)] for y in range(height)]
    boxes = []
    for _ in range(draw.randint(0, 6)):
        xs, ys = sorted(draw.uniform(-5, width + 5) for _ in range(2)), sorted(draw.uniform(-5, height + 5) for _ in range(2))
        boxes.append([f32(x) for x in (xs[0], ys[0], xs[1], ys[1])])
    return rows, rows, boxes, list(range(len(boxes)))


def check(world, folder, endpoint, draw):
    height, width = draw.randint(21, 60), draw.randint(21, 60)
    scenes = [scene(draw, height, width) for _ in range(4)]
    shard(world, scenes)
    least = {"min_area": draw.choice([1, 1, 0, 25, 100.5]), "min_size": draw.choice([1, 1, 0.25, 4])}
    masks, boxes = [mask for _, mask, _, _ in scenes], [list(zip(s[3], map(tuple, s[2]))) for s in scenes]
    ops, resized = "", False
    for _ in range(draw.randint(1, 4)):
        kind, params, height, width, of_rows, of_boxes = step(draw, height, width)
        limits = ", ".join(f"{name}: {value}" for name, value in least.items())
        ops += f"  - {kind}: {{ {params}, {ALL}, {limits} }}\n"
        masks = [of_rows(rows) for rows in masks]
        boxes = [kept(of_boxes(found), height, width, least) for found in boxes]
        resized = resized or kind.startswith("resize") or kind == "pad"
    ops += f"  - crop: {{ top: 0, left: 0, height: {height}, width: {width}, fields: [image, mask] }}\n"
    ops += "  - in_order\n  - padded_batch: { size: 1, values: { labels: -1 } }\n"
    pipeline = world.write("p.yaml", HEAD + ops)
    ran = world.run("run", pipeline, "--sink", folder, "--epochs", "1", "--step-time", "0ms", "--endpoint", endpoint)
    expect(ran.code == 0, f"{ops}exit {ran.code}: {ran.lines('err')[-1:]}")
    paths = sorted((world.folder / folder).glob("*.safetensors"))
    expect(len(paths) == len(scenes), f"{len(paths)} batches")
    for path, rows, wanted in zip(paths, masks, boxes):
        blob = path.read_bytes()
        flat = [value for row in rows for value in row]
        expect(tensor(blob, "mask") == flat, f"{ops}another mask")
        expect(resized or tensor(blob, "image") == flat, f"{ops}another image")
        labels, values = tensor(blob, "labels"), tensor(blob, "boxes")
        found = [(label, values[4 * i:4 * i + 4]) for i, label in enumerate(labels) if label >= 0]
        expect([label for label, _ in found] == [label for label, _ in wanted], f"{ops}{found}, not {wanted}")
        far = [abs(x - y) for (_, a), (_, b) in zip(found, wanted) for x, y in zip(a, b)]
        expect(max(far, default=0) < 1e-3, f"{ops}{found}, not {wanted}")


@case("C.torchvision-rules", "masks and boxes follow random operators as torchvision's rules say: nearest, clipped, by min_area and min_size")
def torchvision_rules(world):
    endpoint = json.loads(world.up().wait_for('"endpoint"', 30))["endpoint"]
    for seed in range(30):
        check(world, f"out-{seed}", endpoint, random.Random(seed))
