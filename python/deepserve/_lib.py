"""The C library through ctypes: where it is, its structs and its functions. Everything else in the package goes through `lib` and `check`."""
import ctypes as C
import ctypes.util
import os
import pathlib

from .errors import ApiError, Error

NAME = "libdeepserve-recipe.so"
NONE = 0xFFFFFFFF

u8, u32, u64, size, p, text = C.c_uint8, C.c_uint32, C.c_uint64, C.c_size_t, C.c_void_p, C.c_char_p


class Err(C.Structure):
    _fields_ = [("rc", C.c_int), ("msg", C.c_char * 504)]


class CApiError(C.Structure):
    _fields_ = [("status", C.c_int), ("type", text), ("code", text), ("param", C.c_char * 160), ("message", C.c_char * 512)]


LOAD = C.CFUNCTYPE(C.c_int, p, text, C.POINTER(p), C.POINTER(size), C.POINTER(p), C.POINTER(Err))
RELEASE = C.CFUNCTYPE(None, p, p)
FILE = C.CFUNCTYPE(C.c_int, p, text, C.POINTER(text), C.POINTER(p), C.POINTER(size), C.POINTER(CApiError), C.POINTER(Err))
DOCUMENT = C.CFUNCTYPE(C.c_int, p, text, p, size, C.POINTER(p), C.POINTER(size), C.POINTER(CApiError), C.POINTER(Err))
SINK = C.CFUNCTYPE(None, p, text, p, size)
CANCELED = C.CFUNCTYPE(C.c_bool, p)


class ResponseStore(C.Structure):
    _fields_ = [("ctx", p), ("load", LOAD), ("release", RELEASE)]


class RequestIo(C.Structure):
    _fields_ = [("ctx", p), ("file", FILE), ("document", DOCUMENT), ("store", C.POINTER(ResponseStore)), ("seal", p)]


class ParseArgs(C.Structure):
    _fields_ = [("proto", C.c_int), ("opts", p), ("io", C.POINTER(RequestIo)), ("count_tokens", C.c_bool)]


class StreamOpts(C.Structure):
    _fields_ = [("id", text), ("created", C.c_int64), ("now", p), ("model", text), ("tokenizer", p), ("seal", p), ("sink", SINK), ("ctx", p),
                ("max_value_bytes", size), ("keep", p)]


class StreamUsage(C.Structure):
    _fields_ = [("prompt_tokens", u64), ("cached_tokens", u64), ("output_tokens", u64), ("reasoning_tokens", u64), ("reasoning_known", C.c_bool)]


class TopLogprob(C.Structure):
    _fields_ = [("id", u32), ("logprob", C.c_float)]


class TokenLogprob(C.Structure):
    _fields_ = [("logprob", C.c_float), ("n_top", u32), ("top", C.POINTER(TopLogprob))]


class Run(C.Structure):
    _fields_ = [("p", p), ("n", size), ("control", C.c_bool)]


class Ids(C.Structure):
    _fields_ = [("p", C.POINTER(u32)), ("n", size), ("cap", size)]


class EncoderOpts(C.Structure):
    _fields_ = [("n_threads", u32), ("cache_entries", u32)]


class CDecoder(C.Structure):
    _fields_ = [("t", p), ("held_tokens", u32), ("held", u8 * 3), ("n_held", u8), ("keep_dropped", C.c_bool)]


class Str(C.Structure):
    _fields_ = [("p", p), ("n", size)]


class CImage(C.Structure):
    _fields_ = [("kind", C.c_int), ("detail", C.c_int), ("media_type", Str), ("source", Str), ("percent", C.c_bool), ("param", text),
                ("width", u32), ("height", u32), ("fitted_w", u32), ("fitted_h", u32), ("rows", u32), ("cols", u32), ("tokens", u32)]


class ImageRule(C.Structure):
    _fields_ = [("patch", u32), ("merge", u32), ("max_tokens", u32), ("min_pixels", u64), ("max_wh_ratio", C.c_double)]


class ImageLimits(C.Structure):
    _fields_ = [("max_bytes", size), ("max_side", u32), ("max_pixels", u64), ("max_memory", size), ("max_ms", u32), ("canceled", CANCELED),
                ("cancel_ctx", p)]


class CPixels(C.Structure):
    _fields_ = [("width", u32), ("height", u32), ("rgb", p)]


class PrepareOpts(C.Structure):
    _fields_ = [("limits", ImageLimits), ("rule", ImageRule), ("size_only", C.c_bool)]


class CPicture(C.Structure):
    _fields_ = [("format", C.c_int), ("layout", CImage), ("pixels", p), ("patch", u32), ("n_h", u32), ("n_w", u32), ("digest", u8 * 32)]


class FetchOpts(C.Structure):
    _fields_ = [("max_bytes", size), ("max_redirects", u32), ("connect_ms", u32), ("total_ms", u32), ("parallel", u32), ("allow_private", C.c_bool),
                ("user_agent", text), ("canceled", CANCELED), ("cancel_ctx", p)]


class FetchItem(C.Structure):
    _fields_ = [("url", text), ("bytes", p), ("n", size), ("status", C.c_int), ("reason", C.c_char * 200)]


class ImagesOpts(C.Structure):
    _fields_ = [("prepare", PrepareOpts), ("fetch", FetchOpts), ("no_fetch", C.c_bool), ("skip_urls", C.c_bool), ("max_inline_bytes", size),
                ("max_pixel_bytes", size), ("io", C.POINTER(RequestIo))]


# As ds_recipe_abi lists them.
STRUCTS = [Err, CApiError, ParseArgs, RequestIo, ResponseStore, StreamOpts, StreamUsage, TopLogprob, TokenLogprob, Run, Ids, EncoderOpts, CDecoder,
           CImage, ImageRule, ImageLimits, CPixels, PrepareOpts, CPicture, FetchOpts, FetchItem, ImagesOpts]

_err, _why = C.POINTER(Err), C.POINTER(CApiError)
FUNCTIONS = {
    "ds_recipe_abi": (C.POINTER(size), [C.POINTER(size)]),
    "ds_recipe_free": (None, [p]),
    "ds_recipe_opts_create": (C.c_int, [C.POINTER(p), C.c_int, _err]),
    "ds_recipe_opts_set": (C.c_int, [p, text, _err]),
    "ds_recipe_opts_help": (text, [size]),
    "ds_recipe_opts_fit": (None, [p, p]),
    "ds_api_error_body": (size, [p, size, _why, C.c_int, C.c_bool, text]),
    "ds_tokenizer_open": (C.c_int, [C.POINTER(p), text, _err]),
    "ds_tokenizer_parse": (C.c_int, [C.POINTER(p), text, size, _err]),
    "ds_tokenizer_destroy": (None, [p]),
    "ds_tokenizer_size": (u32, [p]),
    "ds_tokenizer_bytes": (p, [p, u32, C.POINTER(size)]),
    "ds_tokenizer_max_bytes": (size, [p]),
    "ds_tokenizer_control_n": (u32, [p, text, size]),
    "ds_tokenizer_kind": (C.c_int, [p, u32]),
    "ds_tokenizer_engram_map": (C.c_int, [p, C.POINTER(u32), C.POINTER(u32), _err]),
    "ds_ids_free": (None, [C.POINTER(Ids)]),
    "ds_encoder_create": (C.c_int, [C.POINTER(p), p, C.POINTER(EncoderOpts), _err]),
    "ds_encoder_destroy": (None, [p]),
    "ds_encoder_text": (C.c_int, [p, text, size, C.POINTER(Ids), _err]),
    "ds_encoder_runs": (C.c_int, [p, C.POINTER(Run), size, C.POINTER(Ids), _err]),
    "ds_encoder_batch": (C.c_int, [p, C.POINTER(text), C.POINTER(size), size, C.POINTER(Ids), C.POINTER(size), _err]),
    "ds_decoder_init": (None, [C.POINTER(CDecoder), p, C.c_bool]),
    "ds_decoder_room": (size, [p]),
    "ds_decoder_push": (size, [C.POINTER(CDecoder), u32, p, C.POINTER(u32)]),
    "ds_decoder_finish": (size, [C.POINTER(CDecoder), C.c_bool, p, C.POINTER(u32)]),
    "ds_request_parse": (C.c_int, [C.POINTER(p), C.POINTER(ParseArgs), text, size, _why, _err]),
    "ds_request_destroy": (None, [p]),
    "ds_request_json": (C.c_int, [p, u32, p, C.POINTER(p), C.POINTER(size), _why, _err]),
    "ds_request_items": (C.c_int, [p, C.POINTER(Str), _err]),
    "ds_request_layout_image": (C.c_int, [p, u32, u32, u32, _err]),
    "ds_request_images": (C.c_int, [p, C.POINTER(CPicture), C.POINTER(ImagesOpts), _why, _err]),
    "ds_request_image_extra_tokens": (size, [p]),
    "ds_request_expand_images": (size, [p, u32, C.POINTER(u32), size, size]),
    "ds_stream_create": (C.c_int, [C.POINTER(p), p, C.POINTER(StreamOpts), _err]),
    "ds_stream_destroy": (None, [p]),
    "ds_stream_choices": (u32, [p]),
    "ds_stream_ready": (C.c_int, [p, u64, u64, text, _err]),
    "ds_stream_text": (C.c_int, [p, u32, text, size, u32, _err]),
    "ds_stream_token": (C.c_int, [p, u32, u32, C.POINTER(TokenLogprob), _err]),
    "ds_stream_done": (C.c_bool, [p, u32]),
    "ds_stream_finish": (C.c_int, [p, u32, C.c_int, _err]),
    "ds_stream_fail": (C.c_int, [p, _why, _err]),
    "ds_stream_finish_reason": (text, [p, u32]),
    "ds_stream_check": (C.c_int, [p, u32, C.POINTER(Err)]),
    "ds_stream_get_usage": (None, [p, C.POINTER(StreamUsage)]),
    "ds_stream_body": (C.c_int, [p, C.POINTER(p), C.POINTER(size), _err]),
    "ds_stream_items": (C.c_int, [p, C.POINTER(p), C.POINTER(size), _err]),
    "ds_sse_frame": (size, [p, size, text, text, size]),
    "ds_sse_end": (text, [C.c_int]),
    "ds_seal_create": (C.c_int, [C.POINTER(p), p, size, _err]),
    "ds_seal_destroy": (None, [p]),
    "ds_image_format_name": (text, [C.c_int]),
    "ds_image_rule_init": (None, [C.POINTER(ImageRule)]),
    "ds_image_layout_by": (C.c_int, [C.POINTER(CImage), C.POINTER(ImageRule), _err]),
    "ds_image_limits_init": (None, [C.POINTER(ImageLimits)]),
    "ds_image_decode": (C.c_int, [C.POINTER(CPixels), text, size, C.POINTER(ImageLimits), _err]),
    "ds_pixels_free": (None, [C.POINTER(CPixels)]),
    "ds_image_resize": (C.c_int, [p, u32, u32, p, u32, u32, _err]),
    "ds_prepare_opts_init": (None, [C.POINTER(PrepareOpts)]),
    "ds_image_prepare": (C.c_int, [C.POINTER(CPicture), text, size, C.POINTER(PrepareOpts), _err]),
    "ds_image_prepare_pixels": (C.c_int, [C.POINTER(CPicture), C.POINTER(CPixels), C.POINTER(PrepareOpts), _err]),
    "ds_picture_free": (None, [C.POINTER(CPicture)]),
    "ds_image_patches": (None, [C.POINTER(CPicture), C.POINTER(C.c_float)]),
    "ds_fetch_opts_init": (None, [C.POINTER(FetchOpts)]),
    "ds_fetch": (C.c_int, [C.POINTER(FetchItem), size, C.POINTER(FetchOpts), p, p, _err]),
    "ds_images_opts_init": (None, [C.POINTER(ImagesOpts)]),
}


def candidates():
    """Where the library may be: DEEPSERVE_LIBRARY alone if it is set; else beside this file, in the build folder of a source tree, on the system."""
    given = os.environ.get("DEEPSERVE_LIBRARY")
    if given:
        return [given]
    here = pathlib.Path(__file__).resolve().parent
    places = [here / NAME, here.parent.parent / "build" / "src" / NAME]
    return [str(x) for x in places if x.exists()] + [ctypes.util.find_library("deepserve-recipe") or NAME]


def load_bundled():
    """The libraries that a wheel brings with it, each behind those that it needs: who is linked with one finds it loaded, by its SONAME."""
    libs = pathlib.Path(__file__).resolve().parent / "libs"
    for name in (libs / "order.txt").read_text().split() if libs.exists() else []:
        C.CDLL(str(libs / name))


def load():
    load_bundled()
    tried = []
    for path in candidates():
        try:
            found = C.CDLL(path)
            break
        except OSError as e:
            tried.append(str(e))
    else:
        raise ImportError(f"{NAME} isn't found ({'; '.join(tried)}); build it, and set DEEPSERVE_LIBRARY to its path")
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            f = getattr(found, name)
        except AttributeError:
            raise ImportError(f"{path} has no {name}: it is of another version than this package") from None
        f.restype, f.argtypes = result, arguments
    n = size()
    sizes = found.ds_recipe_abi(n)
    if sizes[:n.value] != [C.sizeof(s) for s in STRUCTS]:
        raise ImportError(f"{path} is of another version than this package")
    return found


lib = load()


def bytes_of(value):
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"expected text or bytes, not {type(value).__name__}")  # bytes(5) would be five zeros
    return bytes(value)


def decoded(data):
    return data.decode("utf-8", "replace")


def check(rc, err):
    """Raises Error unless rc is DS_OK."""
    if rc:
        raise Error(rc, decoded(err.msg))


def api_error(why, proto, openai_errors=False, request_id=None):
    """A filled CApiError as the exception with the protocol's body."""
    request_id = None if request_id is None else bytes_of(request_id)
    n = lib.ds_api_error_body(None, 0, why, proto, openai_errors, request_id)
    body = C.create_string_buffer(n + 1)
    lib.ds_api_error_body(body, n + 1, why, proto, openai_errors, request_id)
    return ApiError(why.status, decoded(why.type or b""), decoded(why.code) if why.code else None, decoded(why.param) or None, decoded(why.message),
                    decoded(body.value))
