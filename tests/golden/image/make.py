#!/usr/bin/env python3
"""Writes the sample pictures beside this script and, for each, NAME.rgb: width and height (u16, little-endian) and the pixels that it must give.

Needs Pillow; the pixels are Pillow's convert("RGB"), except for 16-bit gray, where Pillow shows everything above 255 as white: there it's the
high byte. PNG forms that Pillow doesn't write are put together here."""
import io
import pathlib
import struct
import zlib

from PIL import Image

HERE = pathlib.Path(__file__).resolve().parent
W, H = 11, 7


def value(x, y, c):
    return (7 * x + 13 * y + 50 * c + ((x * y) >> 3)) & 255


PIXELS = bytes(value(x, y, c) for y in range(H) for x in range(W) for c in range(3))
RGB = Image.frombytes("RGB", (W, H), PIXELS)
ALPHA = Image.frombytes("L", (W, H), bytes((x * 23 + y * 31) & 255 for y in range(H) for x in range(W)))
RGBA = RGB.copy()
RGBA.putalpha(ALPHA)


def written(image, kind, **how):
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(depth, kind, raw, extra=b"", w=W, h=H, interlace=0):
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, kind, 0, 0, interlace)) + extra +
            chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def lines(samples, depth, per_pixel, w=W, h=H):
    """samples(x, y, c) -> rows of a PNG without filters."""
    out = bytearray()
    for y in range(h):
        bits = "".join(format(samples(x, y, c), f"0{depth}b") for x in range(w) for c in range(per_pixel))
        bits += "0" * (-len(bits) % 8)
        out += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes(out)


def adam7(samples, depth, per_pixel):
    out = b""
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        w, h = -(-(W - x0) // dx), -(-(H - y0) // dy)
        if w > 0 and h > 0:
            out += lines(lambda x, y, c: samples(x0 + x * dx, y0 + y * dy, c), depth, per_pixel, w, h)
    return out


def lzw(pixels, least=2):
    """Uncompressed GIF codes: a clear code before the table would grow."""
    clear, size, bits, n, since = 1 << least, least + 1, 0, 0, 0
    codes = []
    for p in pixels:
        if since % ((1 << least) - 2) == 0:
            codes.append(clear)
        codes.append(p)
        since += 1
    codes.append(clear + 1)
    for i, c in enumerate(codes):
        bits |= c << (size * i)
        n += size
    data = bits.to_bytes(-(-n // 8), "little")
    return bytes([least]) + b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255)) + b"\0"


def table(colors):
    return 0x80 | (len(colors) // 3).bit_length() - 2


FOUR = bytes([1, 2, 3, 40, 50, 60, 70, 80, 90, 200, 210, 220])


def gif(w, h, frames, colors=FOUR, back=0):
    return b"GIF89a" + struct.pack("<HHBBB", w, h, table(colors) if colors else 0, back, 0) + colors + b"".join(frames) + b";"


def frame(x, y, w, h, pixels, colors=b"", interlace=False):
    flags = (table(colors) if colors else 0) | (0x40 if interlace else 0)
    return b"," + struct.pack("<HHHHB", x, y, w, h, flags) + colors + lzw(pixels)


def clear_color(i):
    return b"!\xf9\x04" + bytes([1, 0, 0, i]) + b"\0"


def high(x, y, c):
    return value(x, y, c) << 8 | (255 - value(x, y, c))


def main():
    g, n = [(x + y) % 4 for y in range(5) for x in range(6)], 6
    by_pass = [p for start, step in ((0, 8), (4, 8), (2, 4), (1, 2)) for y in range(start, 5, step) for p in g[y * n:y * n + n]]
    palette = b"".join(bytes([i * 3 & 255, 255 - i, i * 7 & 255]) for i in range(256))
    second = RGB.transpose(Image.FLIP_LEFT_RIGHT)
    samples = {
        "gray.jpg": written(RGB.convert("L"), "JPEG", quality=80),
        "ycc444.jpg": written(RGB, "JPEG", quality=85, subsampling=0),
        "ycc420.jpg": written(RGB, "JPEG", quality=85, subsampling=2),
        "ycc422.jpg": written(RGB, "JPEG", quality=85, subsampling=1),
        "progressive.jpg": written(RGB, "JPEG", quality=85, progressive=True, optimize=True),
        "restarts.jpg": written(RGB, "JPEG", quality=85, restart_marker_blocks=1),
        "rotated.jpg": written(RGB, "JPEG", quality=85, exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"),
        "cmyk.jpg": written(RGB.convert("CMYK"), "JPEG", quality=85),
        "gray1.png": png(1, 0, lines(lambda x, y, c: (x + y) & 1, 1, 1)),
        "gray2.png": png(2, 0, lines(lambda x, y, c: (x + y) & 3, 2, 1)),
        "gray4.png": png(4, 0, lines(lambda x, y, c: (x + y) & 15, 4, 1)),
        "gray8.png": png(8, 0, lines(value, 8, 1)),
        "gray8key.png": png(8, 0, lines(value, 8, 1), chunk(b"tRNS", b"\0\x07")),
        "gray16.png": png(16, 0, lines(high, 16, 1)),
        "grayalpha8.png": png(8, 4, lines(value, 8, 2)),
        "grayalpha16.png": png(16, 4, lines(high, 16, 2)),
        "rgb8.png": written(RGB, "PNG"),
        "rgb8key.png": png(8, 2, lines(value, 8, 3), chunk(b"tRNS", bytes([0, 0, 0, 50, 0, 100]))),
        "rgb8gamma.png": png(8, 2, lines(value, 8, 3), chunk(b"gAMA", struct.pack(">I", 100000)) + chunk(b"tEXt", b"a\0b")),
        "rgb16.png": png(16, 2, lines(high, 16, 3)),
        "rgba8.png": written(RGBA, "PNG"),
        "rgba16.png": png(16, 6, lines(high, 16, 4)),
        "palette1.png": png(1, 3, lines(lambda x, y, c: (x + y) & 1, 1, 1), chunk(b"PLTE", palette[30:36])),
        "palette4.png": png(4, 3, lines(lambda x, y, c: (x + y) & 15, 4, 1), chunk(b"PLTE", palette[:30])),
        "palette8.png": png(8, 3, lines(value, 8, 1), chunk(b"PLTE", palette) + chunk(b"tRNS", bytes(range(200)))),
        "interlaced.png": png(8, 2, adam7(value, 8, 3), interlace=1),
        "interlaced16.png": png(16, 6, adam7(high, 16, 4), interlace=1),
        "interlaced1.png": png(1, 0, adam7(lambda x, y, c: (x * y) & 1, 1, 1), interlace=1),
        "plain.gif": gif(6, 5, [frame(0, 0, 6, 5, g)]),
        "interlaced.gif": gif(6, 5, [frame(0, 0, 6, 5, by_pass, interlace=True)]),
        "offset.gif": gif(9, 8, [frame(1, 2, 6, 5, g)], back=3),
        "transparent.gif": gif(9, 8, [clear_color(2), frame(1, 2, 6, 5, g)]),
        "local.gif": gif(6, 5, [frame(0, 0, 6, 5, g, bytes(range(100, 112)))]),
        "shades.gif": gif(6, 5, [frame(0, 0, 6, 5, g)], b""),
        "few.gif": gif(6, 5, [frame(0, 0, 6, 5, g, bytes([9, 8, 7, 6, 5, 4]))]),
        "over.gif": gif(2, 2, [frame(1, 1, 6, 5, g)]),
        "animated.gif": gif(6, 5, [b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0", clear_color(1), frame(0, 0, 6, 5, g), frame(0, 0, 2, 2, [3, 3, 3, 3])]),
        "lossy.webp": written(RGB, "WEBP", quality=70),
        "lossy-alpha.webp": written(RGBA, "WEBP", quality=70, exact=True),
        "lossless.webp": written(RGB, "WEBP", lossless=True),
        "lossless-alpha.webp": written(RGBA, "WEBP", lossless=True, exact=True),
        "animated.webp": written(RGB, "WEBP", save_all=True, append_images=[second], lossless=True, duration=100),
    }
    for name, data in samples.items():
        image = Image.open(io.BytesIO(data))
        image.load()
        if image.mode.startswith("I"):
            w, h = image.size
            pixels = bytes(value(x, y, 0) for y in range(h) for x in range(w) for _ in range(3))
        else:
            pixels = image.convert("RGB").tobytes()
        assert len(data) < 1500, name
        (HERE / name).write_bytes(data)
        (HERE / (name + ".rgb")).write_bytes(struct.pack("<HH", *image.size) + pixels)


if __name__ == "__main__":
    main()
