"""Pictures against Pillow: pixels of files that it writes, its resize, and the released preparation (convert, ImageOps.pad with bicubic and gray).

Bytes are equal where the format is lossless, and for our resize; decoders of lossy formats may differ by library version, there within 1/255.

Pillow resizes rows first and columns second; from version 13 on the other way round where that takes less work, which is when the height loses more
than twice what the width loses. The released model is older than that, so rows are first here always; where Pillow 13 differs, it's asked for
the two passes one after the other."""
import io
import os
import pathlib
import random
import sys

import pytest

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
PIL_MAJOR = int(pytest.importorskip("PIL").__version__.split(".")[0])
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ds(program):
    os.environ["DEEPSERVE_LIBRARY"] = str(pathlib.Path(program).parent / "src" / "libdeepserve-recipe.so")
    sys.path.insert(0, str(ROOT / "python"))
    import deepserve
    return deepserve


def picture(r, w, h, mode="RGB"):
    """Smooth and noisy parts, so that both filters and clipping have work."""
    small = Image.frombytes(mode, (3, 3), r.randbytes(9 * len(Image.new(mode, (1, 1)).getbands()))).resize((w, h), Image.BICUBIC)
    noise = Image.frombytes(mode, (w, h), r.randbytes(w * h * len(small.getbands())))
    return Image.composite(noise, small, Image.frombytes("L", (w, h), bytes(255 * ((x // 5 + y // 3) % 3 == 0) for y in range(h) for x in range(w))))


def written(image, kind, **how):
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def resized(image, to):
    columns_first = to[1] < image.height and image.height - to[1] > 2 * (image.width - to[0])
    if PIL_MAJOR >= 13 and columns_first:
        image = image.resize((to[0], image.height), Image.BICUBIC)
    return image.resize(to, Image.BICUBIC)


def padded(image, to):
    """ImageOps.pad with our resized()."""
    probe = ImageOps.contain(Image.new("L", image.size), to).size
    out, small = Image.new("RGB", to, (127, 127, 127)), resized(image, probe)
    out.paste(small, (round((to[0] - probe[0]) * 0.5), round((to[1] - probe[1]) * 0.5)))
    return out


def far(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


@pytest.mark.parametrize("kind, mode, how, equal", [
    ("PNG", "RGB", {}, True), ("PNG", "RGBA", {}, True), ("PNG", "L", {}, True), ("PNG", "LA", {}, True), ("PNG", "P", {}, True), ("PNG", "1", {}, True),
    ("GIF", "P", {}, True), ("GIF", "L", {"interlace": 1}, True), ("WEBP", "RGB", {"lossless": True}, True),
    ("WEBP", "RGBA", {"lossless": True, "exact": True}, True), ("WEBP", "RGB", {"quality": 60}, False),
    ("JPEG", "RGB", {"quality": 75}, False), ("JPEG", "RGB", {"quality": 95, "subsampling": 0, "progressive": True}, False),
    ("JPEG", "L", {"quality": 75}, False), ("JPEG", "CMYK", {"quality": 75}, False)])
def test_decoded_as_pillow_does(ds, kind, mode, how, equal):
    r = random.Random(f"{kind} {mode} {how}")
    for w, h in ((1, 1), (17, 9), (64, 33), (131, 77)):
        image = picture(r, w, h)
        image = image.quantize(37) if mode == "P" else image.convert(mode)
        data = written(image, kind, **how)
        mine, theirs = ds.image_decode(data), Image.open(io.BytesIO(data)).convert("RGB")
        assert (mine.width, mine.height) == theirs.size
        assert far(mine.rgb, theirs.tobytes()) <= (0 if equal else 1)


def test_resized_as_pillow_does(ds):
    r = random.Random(5)
    for _ in range(150):
        w, h, to = r.randint(1, 90), r.randint(1, 90), (r.randint(1, 120), r.randint(1, 120))
        image = picture(r, w, h)
        assert ds.Pixels(w, h, image.tobytes()).resize(*to).rgb == resized(image, to).tobytes(), (w, h, to)
    for w, h, to in ((1500, 3, (7, 3)), (3, 1500, (3, 7)), (2000, 1000, (301, 149)), (5, 5, (700, 900))):
        image = picture(r, w, h)
        assert ds.Pixels(w, h, image.tobytes()).resize(*to).rgb == resized(image, to).tobytes(), (w, h, to)


@pytest.mark.parametrize("ratio", [0, 3.0])
def test_prepared_as_the_released_model_was_trained(ds, ratio):
    r = random.Random(7)
    sizes = [(1, 1), (640, 480), (97, 61), (60, 60), (300, 90), (90, 300), (1001, 13), (13, 1001), (1300, 1300), (2000, 600), (545, 543)]
    for w, h in sizes + [(r.randint(1, 900), r.randint(1, 900)) for _ in range(6)]:
        image = picture(r, w, h)
        mine = ds.image_prepare(ds.Pixels(w, h, image.tobytes()), rule={"max_wh_ratio": ratio})
        size = mine.layout.fitted_w, mine.layout.fitted_h
        if ratio and w > h * ratio:
            theirs = resized(image, size)
        else:
            theirs = padded(image, size)
            whole = ImageOps.pad(image, size, method=Image.BICUBIC, color=(127, 127, 127), centering=(0.5, 0.5))
            assert h > 2 * w or theirs.tobytes() == whole.tobytes()
        assert mine.pixels == theirs.tobytes(), (w, h)
