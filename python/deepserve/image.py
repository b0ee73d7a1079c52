"""Pictures for the vision tower (ds/image.h). Everything works without numpy; with it, arrays come out of `Pixels.array`, `Picture.array` and
`Picture.patches`."""
import array
import collections
import ctypes as C

from ._lib import (CApiError, CImage, CPicture, CPixels, Err, FetchItem, FetchOpts, ImageLimits, ImageRule, ImagesOpts, PrepareOpts, bytes_of, check,
                   decoded, lib)

FORMATS = ("unknown", "JPEG", "PNG", "GIF", "WebP")
Layout = collections.namedtuple("Layout", "width height fitted_w fitted_h rows cols tokens")
Fetched = collections.namedtuple("Fetched", "url data status reason")  # data: None on failure; status: 0, 400 or 500


def _set(struct, values, what):
    for name, value in values.items():
        if name not in dict(struct._fields_) or name in ("canceled", "cancel_ctx", "io"):
            raise TypeError(f"{what} has no '{name}'")
        setattr(struct, name, value)


def _limits(values):
    limits = ImageLimits()
    lib.ds_image_limits_init(limits)
    _set(limits, values, "image limits")
    return limits


def _rule(values):
    rule = ImageRule()
    lib.ds_image_rule_init(rule)
    _set(rule, values or {}, "size rule")
    return rule


def _prepare_opts(rule, size_only, limits):
    return PrepareOpts(_limits(limits), _rule(rule), size_only)


def image_layout(width, height, **rule):
    """The size rule: how a width x height picture is fitted and how many tokens it takes. rule: patch, merge, max_tokens, min_pixels, max_wh_ratio."""
    im, err = CImage(width=width, height=height), Err()
    check(lib.ds_image_layout_by(im, _rule(rule), err), err)
    return Layout(*(getattr(im, name) for name in Layout._fields))


class Pixels:
    """width, height and rgb (bytes, rows of R, G, B)."""

    def __init__(self, width, height, rgb):
        if len(rgb) != width * height * 3:
            raise ValueError(f"{width} x {height} pixels are {width * height * 3} bytes, not {len(rgb)}")
        self.width, self.height, self.rgb = width, height, bytes(rgb)

    @property
    def array(self):
        import numpy
        return numpy.frombuffer(self.rgb, numpy.uint8).reshape(self.height, self.width, 3)

    def resize(self, width, height):
        """Bicubic, as Pillow."""
        out, err = C.create_string_buffer(width * height * 3), Err()
        check(lib.ds_image_resize(out, width, height, self.rgb, self.width, self.height, err), err)
        return Pixels(width, height, out.raw)


class Picture:
    """A prepared picture: format, layout, pixels (bytes; None with size_only), patch, n_h, n_w, digest (bytes, for cache keys)."""

    def __init__(self, c):
        self._c = c  # owns its pixels
        self.format = FORMATS[c.format]
        self.layout = Layout(*(getattr(c.layout, name) for name in Layout._fields))
        self.patch, self.n_h, self.n_w, self.digest = c.patch, c.n_h, c.n_w, bytes(c.digest)

    def __del__(self):
        if getattr(self, "_c", None):
            lib.ds_picture_free(self._c)

    @property
    def pixels(self):
        return C.string_at(self._c.pixels, self.layout.fitted_w * self.layout.fitted_h * 3) if self._c.pixels else None

    @property
    def array(self):
        return Pixels(self.layout.fitted_w, self.layout.fitted_h, self.pixels).array

    def patches(self):
        """f32 values, n_h * n_w rows of 3 * patch * patch: a numpy array of that shape, without numpy an array.array."""
        if not self._c.pixels:
            raise ValueError("the picture was prepared with size_only")
        row = 3 * self.patch * self.patch
        out = array.array("f", bytes(4 * self.n_h * self.n_w * row))
        lib.ds_image_patches(self._c, (C.c_float * len(out)).from_buffer(out))
        try:
            import numpy
        except ImportError:
            return out
        return numpy.frombuffer(out, numpy.float32).reshape(self.n_h * self.n_w, row)


def image_decode(data, **limits):
    """JPEG, PNG, GIF or WebP to Pixels. limits: max_bytes, max_side, max_pixels, max_memory, max_ms."""
    p, err = CPixels(), Err()
    check(lib.ds_image_decode(p, bytes_of(data), len(data), _limits(limits), err), err)
    try:
        return Pixels(p.width, p.height, C.string_at(p.rgb, p.width * p.height * 3))
    finally:
        lib.ds_pixels_free(p)


def image_prepare(data, rule=None, size_only=False, **limits):
    """A file's bytes, or Pixels, to a Picture. rule: dict as for image_layout; the default is the released model's."""
    c, err, opts = CPicture(), Err(), _prepare_opts(rule, size_only, limits)
    if isinstance(data, Pixels):
        keep = C.create_string_buffer(data.rgb, len(data.rgb))
        check(lib.ds_image_prepare_pixels(c, CPixels(data.width, data.height, C.addressof(keep)), opts, err), err)
    else:
        check(lib.ds_image_prepare(c, bytes_of(data), len(data), opts, err), err)
    return Picture(c)


def _fetch_opts(values):
    o = FetchOpts()
    lib.ds_fetch_opts_init(o)
    values = {k: bytes_of(v) if isinstance(v, str) else v for k, v in (values or {}).items()}
    _set(o, values, "fetch options")
    return o


def fetch(urls, **options):
    """Several http(s) addresses at a time; a Fetched for each. options: max_bytes, max_redirects, connect_ms, total_ms, parallel, allow_private,
    user_agent. Only public addresses are asked, unless allow_private."""
    o, err, items = _fetch_opts(options), Err(), (FetchItem * len(urls))(*[FetchItem(url=bytes_of(u)) for u in urls])
    check(lib.ds_fetch(items, len(urls), o, None, None, err), err)
    out = []
    for url, i in zip(urls, items):
        out.append(Fetched(url, C.string_at(i.bytes, i.n) if i.bytes else None, i.status, decoded(i.reason)))
        lib.ds_recipe_free(i.bytes)
    return out


def request_images(request, n=None, rule=None, size_only=False, no_fetch=False, skip_urls=False, fetch=None, limits=None, max_inline_bytes=None,
                   max_pixel_bytes=None):
    """All pictures of a Request as a list of Picture. fetch: dict as for fetch(); limits: dict as for image_decode(); with skip_urls the
    pictures behind addresses are None."""
    if n is None:
        n = request.render()["images"]
    opts = ImagesOpts()
    lib.ds_images_opts_init(opts)
    opts.prepare, opts.fetch = _prepare_opts(rule, size_only, limits or {}), _fetch_opts(fetch)
    opts.no_fetch, opts.skip_urls, opts.io = no_fetch, skip_urls, C.pointer(request._io.io)
    if max_inline_bytes is not None:
        opts.max_inline_bytes = max_inline_bytes
    if max_pixel_bytes is not None:
        opts.max_pixel_bytes = max_pixel_bytes
    pictures, why, err = (CPicture * max(n, 1))(), CApiError(), Err()
    request._check(lib.ds_request_images(request, pictures, opts, why, err), why, err)
    return [Picture(CPicture.from_buffer_copy(c)) if c.layout.width else None for c in pictures[:n]]
