"""Small picture files of rare kinds, made of random numbers: `odd_pictures(seed)` yields them.

Not among them is what `decode` refuses by name, and what Pillow reads against the format.
"""

import io
import random
import struct
import zlib

import numpy as np
from PIL import Image


class OddPictures:
    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.numbers = np.random.RandomState(seed)

    def side(self, most=24):
        return self.draw.randint(1, most)

    def smooth(self, height, width, channels):
        """Blobs and noise, so that JPEG's coefficients are small and large."""
        y, x, c = np.mgrid[0:height, 0:width, 0:channels]
        a, b = self.draw.uniform(1, 9), self.draw.uniform(1, 9)
        noise = self.numbers.randint(-20, 21, (height, width, channels))
        return np.clip(127 + 120 * np.sin(x / a + c) * np.cos(y / b - c) + noise, 0, 255).astype(np.uint8)

    def random(self, *shape):
        return self.numbers.randint(0, 256, shape).astype(np.uint8)

    def bytes(self, count):
        return bytes(self.random(count))

    def saved(self, array, mode, kind, **options):
        out = io.BytesIO()
        array = array[:, :, 0] if array.shape[2] == 1 else array
        image = Image.frombytes(mode, array.shape[1::-1], np.ascontiguousarray(array).tobytes())
        image.save(out, kind, **options)
        return out.getvalue()

    # JPEG

    def jpeg(self, modes="RGB L CMYK", **options):
        mode = self.draw.choice(modes.split() + ["RGB"] * 3)
        channels = {"L": 1, "CMYK": 4}.get(mode, 3)
        options = {"quality": self.draw.randint(20, 98), "subsampling": self.draw.randint(0, 2)} | options
        if self.draw.random() < 0.3:
            options["restart_marker_blocks"] = self.draw.randint(1, 5)
        if mode == "RGB" and self.draw.random() < 0.2:
            options |= {"keep_rgb": True, "subsampling": 0}
        return self.saved(self.smooth(self.side(40), self.side(40), channels), mode, "JPEG", **options)

    @staticmethod
    def segments(jpeg):
        """The parts of a JPEG: SOI, each segment, each scan's data, EOI."""
        parts, at = [jpeg[:2]], 2
        while at < len(jpeg):
            end = at + 2
            if jpeg[at + 1] != 0xD9:
                end += struct.unpack(">H", jpeg[at + 2 : at + 4])[0]
            parts.append(jpeg[at:end])
            at = end
            if parts[-1][1] == 0xDA:
                while jpeg[end] != 0xFF or jpeg[end + 1] in (0, *range(0xD0, 0xD8)):
                    end += 1
                parts[-1] += jpeg[at:end]
                at = end
        return parts

    def jpeg_markers(self):
        parts = self.segments(self.jpeg(progressive=self.draw.random() < 0.3))
        if self.draw.random() < 0.6:
            parts = [part for part in parts if part[1] not in (0xE0, 0xEE)]
        for _ in range(self.draw.randint(0, 3)):
            marker, body = self.draw.choice([
                (0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([self.draw.randint(0, 2)]) + self.bytes(5)),
                (0xE0, b"JFIF\0\1\2\0\0\1\0\1\0\0" + self.bytes(5)),
                (0xE0, b"JFXX\0" + self.bytes(15)), (0xFE, self.bytes(20)), (0xE1, b"Exif\0\0" + self.bytes(20)),
                (0xE2, b"ICC_PROFILE\0\1\1" + self.bytes(20)), (0xED, b"Photoshop 3.0\0" + self.bytes(20))])
            body = body[: self.draw.choice([0, 4, 5, 7, 11, 12, 13, 14, 15, 17, 99])]
            fill = b"\xff" * self.draw.choice([0, 0, 0, 1, 3])
            last = len(parts) - 1 if self.draw.random() < 0.2 else [part[1] for part in parts].index(0xDA)
            parts.insert(self.draw.randint(1, last), fill + bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body)
        ids = self.draw.choice([b"\1\2\3\4", b"RGBA", b"\0\1\2\3"])
        return b"".join(self.renamed(part, ids) for part in parts)

    def renamed(self, part, ids):
        """A frame or scan whose components, 1 to 4, have other ids."""
        part = bytearray(part)
        if part[1] in (0xC0, 0xC1, 0xC2, 0xDA):
            first, step, count = (5, 2, part[4]) if part[1] == 0xDA else (10, 3, part[9])
            for at in range(first, first + step * count, step):
                part[at] = ids[part[at] - 1] if part[at] in (1, 2, 3, 4) else part[at]
        return bytes(part)

    def jpeg_fewer_scans(self):
        parts = self.segments(self.jpeg("RGB L", progressive=True))
        scans = [n for n, part in enumerate(parts) if part[1] == 0xDA]
        first_dropped = (scans + [len(parts) - 1])[self.draw.randint(1, len(scans))]
        return b"".join(parts[:first_dropped] + parts[-1:])

    def jpeg_end(self):
        file = self.jpeg(progressive=self.draw.random() < 0.5)
        ends = [file[:-2], file[:-1], file[:-2] + b"\xff\xff\xd9", file + self.bytes(9), file[:-2] + self.bytes(5) + b"\xff\xd9",
                file[:-2] + b"\0\0\xff\xd9", file[: -self.draw.randint(3, 9)], file[:-2] + b"\xff\xfe\0\4ab"]
        return self.draw.choice(ends)

    def jpeg_scans(self, factors=None, order=None):
        """Of random coefficients: any sampling factors, any order of sequential scans."""
        count = self.draw.choice([1, 3, 3, 3, 3, 4])
        if factors is None:
            while True:
                factors = [(self.draw.choice([1, 1, 2, 2, 3, 4]), self.draw.choice([1, 1, 2, 2, 4])) for _ in range(count)]
                if sum(h * v for h, v in factors) <= 10:
                    break
        count = len(factors)
        if order is None:
            order = self.draw.choice([[list(range(count))]] * 2 + [[[n] for n in range(count)], [[0], list(range(1, count))],
                                      [list(range(count - 1)), [count - 1]], [[n] for n in reversed(range(count))]])
            order = [scan for scan in order if scan]
        height, width, restart = self.side(40), self.side(40), self.draw.choice([0, 0, 0, 1, 3])
        symbols = [0, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]
        out = b"\xff\xd8\xff\xdb\0\x43\0" + bytes(self.numbers.randint(1, 12, 64).astype(np.uint8))
        out += b"\xff\xc0" + struct.pack(">HBHHB", 8 + 3 * count, 8, height, width, count)
        out += b"".join(bytes([n + 1, h << 4 | v, 0]) for n, (h, v) in enumerate(factors))
        out += b"\xff\xc4\0\x1f\0" + bytes([0, 0, 0, 12] + 12 * [0]) + bytes(range(12))
        out += b"\xff\xc4" + struct.pack(">H", 19 + len(symbols)) + b"\x10" + bytes(7 * [0] + [len(symbols)] + 8 * [0]) + bytes(symbols)
        if count == 4:
            out += b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([self.draw.choice([0, 2])])
        if restart:
            out += b"\xff\xdd\0\4" + struct.pack(">H", restart)
        most = [max(f[i] for f in factors) for i in (0, 1)]
        for scan in order:
            out += b"\xff\xda" + struct.pack(">HB", 6 + 2 * len(scan), len(scan))
            out += b"".join(bytes([n + 1, 0]) for n in scan) + b"\0\x3f\0"
            if len(scan) > 1:
                units = -(-height // (8 * most[1])) * -(-width // (8 * most[0]))
                blocks = sum(factors[n][0] * factors[n][1] for n in scan)
            else:
                (h, v), blocks = factors[scan[0]], 1
                units = -(-height * v // (8 * most[1])) * -(-width * h // (8 * most[0]))
                if count == 1:
                    units = -(-height // 8) * -(-width // 8)
            for first in range(0, units, restart or units):
                if first:
                    out += bytes([0xFF, 0xD0 + (first // restart - 1) % 8])
                out += self.coefficients(min(restart or units, units - first) * blocks, symbols)
        return out + b"\xff\xd9"

    def coefficients(self, blocks, symbols):
        bits = ""
        for _ in range(blocks):
            size = self.draw.choice([0, 1, 3, 5])
            bits += f"{size:04b}" + "".join(self.draw.choice("01") for _ in range(size))
            at = 1
            while at < 64 and self.draw.random() < 0.7:
                run, size = self.draw.randint(0, 6), self.draw.choice([1, 1, 2, 3])
                if at + run > 63:
                    break
                bits += f"{symbols.index(run << 4 | size):08b}" + "".join(self.draw.choice("01") for _ in range(size))
                at += run + 1
            if at < 64:
                bits += "00000000"
        bits += "1" * (-len(bits) % 8)
        return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")

    # PNG

    def png(self):
        draw, kind = self.draw, self.draw.choice([0, 2, 3, 4, 6])
        depth = draw.choice({0: [1, 2, 4, 8, 16], 3: [1, 2, 4, 8]}.get(kind, [8, 16]))
        height, width, interlaced = self.side(), self.side(), draw.random() < 0.3
        samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
        rows = b""
        for x, y, dx, dy in passes if interlaced else [(0, 0, 1, 1)]:
            across = len(range(x, width, dx))
            for _ in range(y, height, dy) if across else ():
                rows += bytes([draw.randint(0, 4)]) + self.bytes((across * samples * depth + 7) // 8)
        data = zlib.compress(rows, draw.randint(0, 9))
        cut = draw.randint(0, len(data))
        colours = draw.choice([1 << depth, 1 << depth, draw.randint(1, 1 << depth)])
        chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced))]
        odd = [(b"gAMA", struct.pack(">I", 45455)), (b"tEXt", b"a\0" + self.bytes(9)), (b"iCCP", b"a\0\0" + zlib.compress(self.bytes(50))),
               (b"iCCP", b"a\0\0" + zlib.compress(bytes(100000))), (b"pHYs", self.bytes(9)), (b"abCd", self.bytes(5)), (b"zTXt", b"a\0\0" + zlib.compress(b"b" * 50)),
               (b"eXIf", self.bytes(12)), (b"sRGB", b"\0"), (b"bKGD", self.bytes(6)), (b"tIME", self.bytes(7)), (b"iCCP", self.bytes(9)),
               (b"gAMA", self.bytes(3)), (b"cHRM", self.bytes(32)), (b"iTXt", self.bytes(12)), (b"sBIT", bytes([4] * samples))]
        chunks += draw.sample(odd, draw.choice([0, 0, 1, 2]))
        if kind == 3:
            chunks.append((b"PLTE", self.bytes(3 * colours)))
        if draw.random() < 0.3 and kind in (0, 2, 3):
            chunks.append((b"tRNS", self.bytes({0: 2, 2: 6, 3: draw.randint(1, colours)}[kind])))
        chunks += draw.choice([[(b"IDAT", data)], [(b"IDAT", data[:cut]), (b"IDAT", data[cut:])], [(b"IDAT", data), (b"IDAT", b"")]])
        chunks += draw.sample(odd, draw.choice([0, 0, 1]))
        return chunks + [(b"IEND", b"")]

    def png_file(self, chunks, wrong=()):
        out = b"\x89PNG\r\n\x1a\n"
        for n, (name, body) in enumerate(chunks):
            out += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body) ^ (n in wrong))
        return out

    def png_plain(self):
        return self.png_file(self.png())

    def png_end(self):
        chunks = self.png()
        file = self.png_file(chunks)
        return self.draw.choice([file[:-12], file[:-4], file[:-8], file[: -12 - self.draw.randint(1, 4)], file + self.bytes(20),
                                 self.png_file(chunks[:-1] + [(b"abCd", b"x")])])

    def png_checksum(self):
        chunks = self.png()
        return self.png_file(chunks, [self.draw.randrange(len(chunks))])

    def png_adler(self):
        return self.png_file([(name, body[:-1] + bytes([body[-1] ^ 1]) if name == b"IDAT" and body else body) for name, body in self.png()])

    # TIFF

    def tiff(self):
        draw = self.draw
        order, big = draw.choice("<>"), draw.random() < 0.2
        photometric, bits, samples = draw.choice(
            [(0, b, 1) for b in (1, 2, 4, 8)] + [(1, b, 1) for b in (1, 2, 4, 8, 16)] + [(2, 8, 3), (2, 16, 3), (2, 8, 4), (2, 16, 4), (2, 8, 5)]
            + [(3, b, 1) for b in (1, 2, 4, 8)] + [(5, 8, 4), (5, 16, 4), (5, 8, 5), (1, 8, 2), (1, 16, 2), (0, 8, 2), (3, 8, 2)])
        normal = {2: 3, 5: 4}.get(photometric, 1)
        # Pillow reads other planes by its own rules.
        planar = draw.choice([1, 1, 2]) if samples > 1 and bits == 8 else 1
        height, width = self.side(), self.side()
        fill = 1 if planar == 2 else draw.choice([1, 1, 1, 2])
        compression, predictor = draw.choice([1, 1, 32773, 8, 32946, 5]), 1
        if compression in (8, 32946, 5) and bits >= 8 and draw.random() < 0.3:
            predictor = 2
        tiled = planar == 1 and compression != 5 and draw.random() < 0.25
        planes, across = (samples, 1) if planar == 2 else (1, samples)
        rows = draw.choice([height, self.side(), 1])
        if tiled:
            tile = draw.choice([16, 32])
            shapes = [(tile, tile)] * (planes * -(-height // tile) * -(-width // tile))
        else:
            rows = min(rows, height)
            shapes = [(min(rows, height - y), width) for _ in range(planes) for y in range(0, height, rows)]
        data = [self.packed(self.bytes(h * ((w * across * bits + 7) // 8)), compression, (w * across * bits + 7) // 8) for h, w in shapes]
        if fill == 2:
            turn = bytes(int(f"{n:08b}"[::-1], 2) for n in range(256))
            data = [part.translate(turn) for part in data]
        tags = {256: (4, [width]), 257: (4, [height]), 258: (3, [bits] * samples), 259: (3, [compression]), 262: (3, [photometric]), 266: (3, [fill]),
                277: (3, [samples]), 284: (3, [planar]), 317: (3, [predictor])}
        if fill == 1 and draw.random() < 0.5:
            del tags[266]
        if photometric == 3:
            tags[320] = (3, [int(n) for n in self.numbers.randint(0, 65536, 3 << bits)])
        if samples > normal:
            tags[338] = (3, [draw.choice([0, 1, 2, 2])] + [0] * (samples - normal - 1))
        header = 16 if big else 8
        places = [header + sum(map(len, data[:n])) for n in range(len(data))]
        names = [322, 323, 324, 325] if tiled else [278, None, 273, 279]
        if tiled:
            tags |= {322: (3, [tile]), 323: (3, [tile])}
        else:
            tags[278] = (4, [rows])
        tags |= {names[2]: (4, places), names[3]: (4, [len(part) for part in data])}
        start = header + sum(map(len, data)) + sum(map(len, data)) % 2
        word, entry = ("Q", 20) if big else ("I", 12)
        after = start + (8 if big else 2) + entry * len(tags) + (8 if big else 4)
        fields = extra = b""
        for tag, (kind, values) in sorted(tags.items()):
            body = struct.pack(order + "HI"[kind == 4] * len(values), *values)
            fields += struct.pack(order + "HH" + word, tag, kind, len(values))
            if len(body) <= struct.calcsize("=" + word):
                fields += body.ljust(struct.calcsize("=" + word), b"\0")
            else:
                fields += struct.pack(order + word, after + len(extra))
                extra += body + bytes(len(body) % 2)
        mark = b"II" if order == "<" else b"MM"
        head = struct.pack(order + "HHHQ", 43, 8, 0, start) if big else struct.pack(order + "HI", 42, start)
        count = struct.pack(order + ("Q" if big else "H"), len(tags))
        return (mark + head + b"".join(data)).ljust(start, b"\0") + count + fields + bytes(8 if big else 4) + extra

    def packed(self, data, compression, row):
        if compression in (8, 32946):
            return zlib.compress(data)
        if compression == 32773:
            parts = [data[y : y + row] for y in range(0, len(data), row)]
            return b"".join(bytes([len(part[x : x + 128]) - 1]) + part[x : x + 128] for part in parts for x in range(0, len(part), 128))
        if compression == 5:
            codes = "".join(f"{256:09b}" + "".join(f"{byte:09b}" for byte in data[at : at + 200]) for at in range(0, len(data), 200)) + f"{257:09b}"
            codes += "0" * (-len(codes) % 8)
            return int(codes, 2).to_bytes(len(codes) // 8, "big")
        return data

    # BMP

    def bmp(self):
        draw, bits = self.draw, self.draw.choice([1, 4, 8, 4, 8, 16, 24, 32])
        height, width = self.side(), self.side()
        compression = {4: draw.choice([0, 2, 2]), 8: draw.choice([0, 1, 1])}.get(bits, 0)
        colours = draw.choice([0, 0, draw.randint(1, 1 << bits)]) if bits <= 8 else 0
        palette = self.bytes(4 * (colours or 1 << bits)) if bits <= 8 else b""
        rows = self.run_lengths(height, width, bits) if compression else self.bytes(height * ((width * bits + 31) // 32 * 4))
        gap = bytes(draw.choice([0, 0, 0, 4]))
        start = 54 + len(palette) + len(gap)
        down = -1 if not compression and draw.random() < 0.3 else 1
        header = struct.pack("<IiiHHIIiiII", 40, width, height * down, 1, bits, compression, len(rows), 0, 0, colours, 0)
        file = b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + header + palette + gap + rows
        return file + self.bytes(draw.choice([0, 0, 3]))

    def run_lengths(self, height, width, bits):
        draw, out = self.draw, b""
        for y in range(height):
            x = 0
            # Pillow drops rows of no runs, against the format.
            while x < width and (x == 0 or draw.random() < 0.97):
                count = draw.randint(1, min(12, width - x))
                kind = draw.random()
                if kind < 0.5:
                    out += bytes([count]) + self.bytes(1)
                elif kind < 0.95 and count >= 3:
                    body = self.bytes(count if bits == 8 else (count + 1) // 2)
                    out += bytes([0, count]) + body + bytes(len(body) % 2)
                elif kind > 0.97:
                    out += bytes([0, 2, count, 0])
                else:
                    continue
                x += count
            out += b"\0\0"
        return out + draw.choice([b"\0\1", b"\0\1", b""])

    # GIF

    def gif(self):
        draw = self.draw
        height, width = self.side(), self.side()
        tall, wide = height + draw.choice([0, 0, 0, 5]), width + draw.choice([0, 0, 0, 7])
        bits, local = draw.randint(1, 8), draw.random() < 0.3
        shared = draw.random() < 0.8 or not local
        top, left = draw.randint(0, tall - height), draw.randint(0, wide - width)
        wide -= draw.choice([0] * 8 + [min(wide - 1, 2)])
        out = draw.choice([b"GIF89a", b"GIF87a"]) + struct.pack("<HHBBB", wide, tall, 0x80 * shared | (bits - 1), draw.randint(0, (1 << bits) - 1), 0)
        out += self.bytes(3 << bits) if shared else b""
        for _ in range(draw.choice([1, 1, 2])):
            if draw.random() < 0.5:
                out += b"\x21\xf9\4" + bytes([draw.randint(0, 3) << 2 | draw.randint(0, 1), 0, 0, draw.randint(0, (1 << bits) - 1)]) + b"\0"
            if draw.random() < 0.2:
                out += b"\x21\xfe\3abc\0"
            least = max(bits, 2)
            out += b"," + struct.pack("<HHHHB", left, top, width, height, 0x80 * local | 0x40 * (draw.random() < 0.3) | (bits - 1))
            out += self.bytes(3 << bits) if local else b""
            clear, size = 1 << least, least + 1
            pixels = self.numbers.randint(0, 1 << draw.choice([bits, bits, bits, least]), height * width)
            codes, run = [], (1 << least) - 2
            for at in range(0, len(pixels), run):
                codes += [clear, *map(int, pixels[at : at + run])]
            value = sum(code << size * n for n, code in enumerate(codes + [clear + 1]))
            data = value.to_bytes((size * (len(codes) + 1) + 7) // 8, "little")
            out += bytes([least]) + b"".join(bytes([len(data[n : n + 255])]) + data[n : n + 255] for n in range(0, len(data), 255)) + b"\0"
        return out + draw.choice([b";", b";", b"", b";abc"])

    def gif_by_pillow(self):
        options = {"interlace": self.draw.randint(0, 1)}
        return self.saved(self.smooth(self.side(40), self.side(40), 3), "RGB", "GIF", **options)

    # PGM and PPM

    def pnm(self):
        kind = self.draw.choice("2356")
        height, width, channels = self.side(), self.side(), 3 if kind in "36" else 1
        most = self.draw.choice([1, 15, 100, 255] + [1000, 65535] * (channels == 3))
        numbers = self.numbers.randint(0, most + 1, height * width * channels)
        space = self.draw.choice([b" ", b"\n", b" # c\n"])
        head = b"P%s" % kind.encode() + b"".join(space + str(number).encode() for number in (width, height, most))
        if kind in "23":
            return head + b"\n" + b" ".join(str(number).encode() for number in numbers)
        return head + b"\n" + numbers.astype("u1" if most < 256 else ">u2").tobytes() + self.draw.choice([b"", b"xx"])

    # EXIF

    def turned(self, kind):
        exif = Image.Exif()
        exif[0x0112] = self.draw.randint(1, 8)
        options = {"lossless": True} if kind == "WEBP" else {}
        return self.saved(self.smooth(self.side(20), self.side(20), 3), "RGB", kind, exif=exif, **options)

    def turned_jpeg(self):
        return self.turned("JPEG")

    def turned_png(self):
        return self.turned("PNG")

    def turned_webp(self):
        return self.turned("WEBP")

    def turned_tiff(self):
        return self.turned("TIFF")

    KINDS = (jpeg_markers, jpeg_fewer_scans, jpeg_end, jpeg_scans, png_plain, png_end, png_checksum, png_adler, tiff, bmp, gif,
             gif_by_pillow, pnm, turned_jpeg, turned_png, turned_webp, turned_tiff)


def odd_pictures(seed):
    """Pairs of a kind and a file. Those of kinds `turned_*` have an EXIF orientation."""
    for kind in OddPictures.KINDS:
        yield kind.__name__, kind(OddPictures(seed))
