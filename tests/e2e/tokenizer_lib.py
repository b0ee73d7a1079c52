"""The tokenizer of libdeepserve-recipe.so through ctypes, for tests and benchmarks that call it often."""
import ctypes as C
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
NONE = 0xFFFFFFFF


class Err(C.Structure):
    _fields_ = [("rc", C.c_int), ("msg", C.c_char * 504)]


class Ids(C.Structure):
    _fields_ = [("p", C.POINTER(C.c_uint32)), ("n", C.c_size_t), ("cap", C.c_size_t)]


class Run(C.Structure):
    _fields_ = [("p", C.c_char_p), ("n", C.c_size_t), ("control", C.c_bool)]


class EncoderOpts(C.Structure):
    _fields_ = [("n_threads", C.c_uint32), ("cache_entries", C.c_uint32)]


class Decoder(C.Structure):
    _fields_ = [("t", C.c_void_p), ("held_tokens", C.c_uint32), ("held", C.c_uint8 * 3), ("n_held", C.c_uint8), ("keep_dropped", C.c_bool)]


def library_path():
    program = pathlib.Path(os.environ.get("DEEPSERVE", ROOT / "build" / "deepserve"))
    return program.parent / "src" / "libdeepserve-recipe.so"


def load():
    lib = C.CDLL(str(library_path()))
    p, size, u32 = C.c_void_p, C.c_size_t, C.c_uint32
    err = C.POINTER(Err)
    for name, result, arguments in [
        ("ds_tokenizer_open", C.c_int, [C.POINTER(p), C.c_char_p, err]),
        ("ds_tokenizer_destroy", None, [p]),
        ("ds_tokenizer_size", u32, [p]),
        ("ds_tokenizer_control", u32, [p, C.c_char_p]),
        ("ds_tokenizer_bytes", C.POINTER(C.c_char), [p, u32, C.POINTER(size)]),
        ("ds_tokenizer_kind", C.c_int, [p, u32]),
        ("ds_tokenizer_engram_map", C.c_int, [p, C.POINTER(u32), C.POINTER(u32), err]),
        ("ds_ids_free", None, [C.POINTER(Ids)]),
        ("ds_encoder_create", C.c_int, [C.POINTER(p), p, C.POINTER(EncoderOpts), err]),
        ("ds_encoder_destroy", None, [p]),
        ("ds_encoder_text", C.c_int, [p, C.c_char_p, size, C.POINTER(Ids), err]),
        ("ds_encoder_runs", C.c_int, [p, C.POINTER(Run), size, C.POINTER(Ids), err]),
        ("ds_encoder_batch", C.c_int, [p, C.POINTER(C.c_char_p), C.POINTER(size), size, C.POINTER(Ids), C.POINTER(size), err]),
        ("ds_decoder_init", None, [C.POINTER(Decoder), p, C.c_bool]),
        ("ds_decoder_room", size, [p]),
        ("ds_decoder_push", size, [C.POINTER(Decoder), u32, C.c_char_p, C.POINTER(u32)]),
        ("ds_decoder_finish", size, [C.POINTER(Decoder), C.c_bool, C.c_char_p, C.POINTER(u32)]),
    ]:
        f = getattr(lib, name)
        f.restype, f.argtypes = result, arguments
    return lib


class Tokenizer:
    def __init__(self, path, threads=1):
        self.lib, self.err = load(), Err()
        self.t, self.e = C.c_void_p(), C.c_void_p()
        self.check(self.lib.ds_tokenizer_open(self.t, str(path).encode(), self.err))
        self.check(self.lib.ds_encoder_create(self.e, self.t, EncoderOpts(threads, 0), self.err))
        self.out = C.create_string_buffer(self.lib.ds_decoder_room(self.t))

    def check(self, rc):
        if rc:
            raise RuntimeError(self.err.msg.decode())

    def close(self):
        self.lib.ds_encoder_destroy(self.e)
        self.lib.ds_tokenizer_destroy(self.t)

    def take(self, ids):
        out = ids.p[: ids.n]
        self.lib.ds_ids_free(ids)
        return out

    def encode(self, text):
        ids = Ids()
        self.check(self.lib.ds_encoder_text(self.e, text, len(text), ids, self.err))
        return self.take(ids)

    def runs(self, runs):
        """[(bytes, is control), …]"""
        ids = Ids()
        self.check(self.lib.ds_encoder_runs(self.e, (Run * len(runs))(*[Run(p, len(p), c) for p, c in runs]), len(runs), ids, self.err))
        return self.take(ids)

    def batch(self, texts):
        ids, ends = Ids(), (C.c_size_t * len(texts))()
        self.check(self.lib.ds_encoder_batch(self.e, (C.c_char_p * len(texts))(*texts), (C.c_size_t * len(texts))(*map(len, texts)), len(texts), ids,
                                             ends, self.err))
        flat, at, out = self.take(ids), 0, []
        for end in ends:
            out.append(flat[at:end])
            at = end
        return out

    def bytes_of(self, token):
        n = C.c_size_t()
        p = self.lib.ds_tokenizer_bytes(self.t, token, n)
        return p[: n.value]

    def pieces(self, ids, replace=False, keep_dropped=True):
        """[(text released after each id, tokens it accounts for), …, what the end releases]"""
        d, n, out = Decoder(), C.c_uint32(), []
        self.lib.ds_decoder_init(d, self.t, keep_dropped)
        for token in ids:
            k = self.lib.ds_decoder_push(d, token, self.out, n)
            out.append((self.out.raw[:k], n.value))
        k = self.lib.ds_decoder_finish(d, replace, self.out, n)
        out.append((self.out.raw[:k], n.value))
        return out

    def engram(self):
        n = self.lib.ds_tokenizer_size(self.t)
        classes, count = (C.c_uint32 * n)(), C.c_uint32()
        self.check(self.lib.ds_tokenizer_engram_map(self.t, classes, count, self.err))
        return list(classes), count.value
