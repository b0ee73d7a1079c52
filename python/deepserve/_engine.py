"""libdeepserve.so through ctypes: its structs and functions. Loaded when the first LLM is made."""
import ctypes as C
import ctypes.util
import functools
import os
import pathlib

from ._lib import CPicture, Err, ImageRule, p, size, text, u8, u32, u64

NAME = "libdeepserve.so"
i32 = C.c_int32
START, TOKEN, END, PROMPT = range(4)
STOP_ID, STOP_STRING, LENGTH, CANCELED, DEADLINE, FAILED, LOST = range(7)
AGAIN = -5
DRAFTS_AUTO = -1
CHAT, COMPLETIONS = 0, 3


class LlmOpts(C.Structure):
    _fields_ = [("device", text), ("kernels", text), ("mode", C.c_int), ("bf16", C.c_bool), ("pin", C.c_bool), ("threads", u32), ("max_context", u32), ("max_running", u32), ("drafts", C.c_int),
                ("step_tokens", u32), ("kv_dir", text), ("kv_capacity", u64), ("cache_dir", text)]


class Sampling(C.Structure):
    _fields_ = [("temperature", C.c_double), ("top_p", C.c_double), ("min_p", C.c_double), ("top_k", u32), ("repetition_penalty", C.c_double),
                ("presence_penalty", C.c_double), ("frequency_penalty", C.c_double), ("seed", u64), ("seeded", C.c_bool)]


class Bias(C.Structure):
    _fields_ = [("id", u32), ("bias", C.c_float)]


class Ids(C.Structure):
    _fields_ = [("ids", C.POINTER(i32)), ("n", u32)]


class Str(C.Structure):
    _fields_ = [("p", text), ("n", size)]


class EngineImage(C.Structure):
    _fields_ = [("pos", u32), ("n", u32), ("embedding", p), ("digest", u8 * 32)]


class EngineRequest(C.Structure):
    _fields_ = [("prompt", C.POINTER(i32)), ("n_prompt", u32), ("max_tokens", u32), ("min_tokens", u32), ("n", u32), ("sampling", Sampling), ("bias", C.POINTER(Bias)),
                ("n_bias", size), ("bad", C.POINTER(Ids)), ("n_bad", size), ("allowed", C.POINTER(i32)), ("n_allowed", size),
                ("stop_ids", C.POINTER(i32)), ("n_stop_ids", size), ("report_stop_id", C.c_bool), ("stop", C.POINTER(Str)),
                ("n_stop", size), ("logprobs", C.c_bool), ("n_top", u32), ("prompt_logprobs", C.c_bool), ("n_prompt_top", u32), ("priority", u32), ("deadline_us", u64), ("cache_domain", text),
                ("cache_salt", text), ("no_cache", C.c_bool), ("replay", C.c_int), ("images", p), ("n_images", size), ("grammar", p), ("cookie", u64), ("tag", u64),
                ("output", C.POINTER(i32)), ("n_output", u32), ("hand_over", C.c_bool), ("handed", p)]


class EngineLogprob(C.Structure):
    _fields_ = [("id", i32), ("logprob", C.c_float)]


class Start(C.Structure):
    _fields_ = [("n_prompt", u32), ("cached", u32), ("replayed", u32), ("queued_us", u64)]


class Token(C.Structure):
    _fields_ = [("id", i32), ("index", u32), ("held_bytes", u32), ("logprob", C.c_float), ("rank", u32), ("n_top", u32), ("readable_us", u64),
                ("top", EngineLogprob * 20)]


class End(C.Structure):
    _fields_ = [("reason", C.c_int), ("rc", C.c_int), ("stop_id", i32), ("stop", u32), ("cut_bytes", u32), ("n_tokens", u32), ("completion_tokens", u32),
                ("drafted", u32), ("accepted", u32), ("prefill_us", u64), ("decode_us", u64), ("ticket", u64), ("last", C.c_bool)]


class _What(C.Union):
    _fields_ = [("start", Start), ("token", Token), ("end", End)]


class Event(C.Structure):
    _anonymous_ = ["what"]
    _fields_ = [("kind", C.c_int), ("sample", u32), ("request", u64), ("cookie", u64), ("what", _What)]


# As ds_llm_abi lists them.
STRUCTS = [Err, LlmOpts, Sampling, Bias, EngineRequest, Event, EngineImage, ImageRule, CPicture]

_err = C.POINTER(Err)
FUNCTIONS = {
    "ds_llm_abi": (C.POINTER(size), [C.POINTER(size)]),
    "ds_llm_open": (C.c_int, [C.POINTER(p), text, C.POINTER(LlmOpts), _err]),
    "ds_llm_close": (None, [p]),
    "ds_llm_engine": (p, [p]),
    "ds_llm_stop_ids": (C.POINTER(i32), [p, C.POINTER(size)]),
    "ds_llm_context": (u32, [p]),
    "ds_llm_vocab": (u32, [p]),
    "ds_llm_bos": (i32, [p]),
    "ds_llm_pictures": (C.c_bool, [p, C.POINTER(ImageRule), C.POINTER(u32)]),
    "ds_llm_embed": (C.c_int, [p, C.POINTER(CPicture), p, _err]),
    "ds_llm_hidden": (u32, [p]),
    "ds_llm_constrain": (C.c_int, [p, C.c_int, text, size, u32, C.POINTER(p), _err]),
    "ds_llm_constraint_grammar": (p, [p]),
    "ds_llm_constraint_failure": (text, [p]),
    "ds_llm_constraint_end": (None, [p]),
    "ds_engine_add": (C.c_int, [p, C.POINTER(EngineRequest), C.POINTER(u64), _err]),
    "ds_engine_cancel": (None, [p, u64]),
    "ds_engine_poll": (size, [p, C.POINTER(Event), size]),
    "ds_engine_wait": (C.c_bool, [p, u32]),
}


def candidates():
    """DEEPSERVE_ENGINE_LIBRARY alone if it is set; else beside this file, in the build folder of a source tree, on the system."""
    given = os.environ.get("DEEPSERVE_ENGINE_LIBRARY")
    if given:
        return [given]
    here = pathlib.Path(__file__).resolve().parent
    places = [here / NAME, here.parent.parent / "build" / "src" / NAME]
    return [str(x) for x in places if x.exists()] + [ctypes.util.find_library("deepserve") or NAME]


@functools.lru_cache(None)
def load():
    tried = []
    for path in candidates():
        try:
            found = C.CDLL(path)
            break
        except OSError as e:
            tried.append(str(e))
    else:
        raise ImportError(f"{NAME} isn't found ({'; '.join(tried)}); build it, and set DEEPSERVE_ENGINE_LIBRARY to its path")
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            f = getattr(found, name)
        except AttributeError:
            raise ImportError(f"{path} has no {name}: it is of another version than this package") from None
        f.restype, f.argtypes = result, arguments
    n = size()
    sizes = found.ds_llm_abi(n)
    if sizes[:n.value] != [C.sizeof(s) for s in STRUCTS]:
        raise ImportError(f"{path} is of another version than this package")
    return found
