"""Requests of libdeepserve-recipe.so through ctypes: body -> runs -> ids, for tests and benchmarks that call it often."""
import ctypes as C

import tokenizer_lib

PROTOCOLS = {"chat": 0, "responses": 1, "messages": 2, "completions": 3}


class Args(C.Structure):
    _fields_ = [("proto", C.c_int), ("opts", C.c_void_p), ("io", C.c_void_p), ("count_tokens", C.c_bool)]


class ApiError(C.Structure):
    _fields_ = [("status", C.c_int), ("type", C.c_char_p), ("code", C.c_char_p), ("param", C.c_char * 160), ("message", C.c_char * 512)]


class Renderer:
    """Default options (V4.1) and one tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.lib = lib = tokenizer.lib
        p, size, err = C.c_void_p, C.c_size_t, C.POINTER(tokenizer_lib.Err)
        lib.ds_request_parse.argtypes = [C.POINTER(p), C.POINTER(Args), C.c_char_p, size, C.POINTER(ApiError), err]
        lib.ds_request_destroy.argtypes = [p]
        lib.ds_request_destroy.restype = None
        lib.ds_request_render.argtypes = [p, C.c_uint32, C.POINTER(p), C.POINTER(size), err]
        self.encode_runs = lib.ds_encoder_runs
        self.err, self.why = tokenizer_lib.Err(), ApiError()

    def ids(self, protocol, body):
        """How many ids the body's prompt has; raises ValueError with the refusal's message."""
        r, runs, n, ids = C.c_void_p(), C.c_void_p(), C.c_size_t(), tokenizer_lib.Ids()
        if self.lib.ds_request_parse(r, Args(PROTOCOLS[protocol], None, None, False), body, len(body), self.why, self.err):
            raise ValueError(self.err.msg.decode())
        try:
            self.tokenizer.check(self.lib.ds_request_render(r, 0, runs, n, self.err))
            self.tokenizer.check(self.encode_runs(self.tokenizer.e, C.cast(runs, C.POINTER(tokenizer_lib.Run)), n, ids, self.err))
            return self.tokenizer.take(ids)
        finally:
            self.lib.ds_request_destroy(r)
