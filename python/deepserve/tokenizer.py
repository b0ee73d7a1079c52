"""tokenizer.json: text to token ids and back (ds/tokenizer.h)."""
import ctypes as C
import threading

from ._lib import NONE, CDecoder, EncoderOpts, Err, Ids, bytes_of, check, decoded, lib

KINDS = ("text", "control", "dropped", "unknown")


class _Encoder:
    """One thread's working memory."""

    def __init__(self, tokenizer, n_threads):
        err, self._as_parameter_ = Err(), C.c_void_p()
        self.tokenizer = tokenizer  # must outlive it
        check(lib.ds_encoder_create(self._as_parameter_, tokenizer, EncoderOpts(n_threads, 0), err), err)

    def __del__(self):
        if self._as_parameter_:
            lib.ds_encoder_destroy(self._as_parameter_)


def _take(ids):
    out = ids.p[:ids.n] if ids.n else []
    lib.ds_ids_free(ids)
    return out


class Tokenizer:
    """Tokenizer("tokenizer.json"), or Tokenizer.parse(json). Threads may share it; each that encodes gets its own encoder. n_threads: helper
    threads inside one call, for long texts."""

    def __init__(self, path, n_threads=1):
        self._open(lambda out, err: lib.ds_tokenizer_open(out, bytes_of(str(path)), err), n_threads)

    @classmethod
    def parse(cls, json, n_threads=1):
        data, self = bytes_of(json), cls.__new__(cls)
        self._open(lambda out, err: lib.ds_tokenizer_parse(out, data, len(data), err), n_threads)
        return self

    def _open(self, how, n_threads):
        err, self._as_parameter_ = Err(), C.c_void_p()
        self._local, self._n_threads = threading.local(), n_threads
        check(how(self._as_parameter_, err), err)

    def __del__(self):
        if getattr(self, "_as_parameter_", None):
            lib.ds_tokenizer_destroy(self._as_parameter_)

    def encoder(self):
        """This thread's encoder."""
        e = getattr(self._local, "encoder", None)
        if e is None:
            owner = _Borrowed(self._as_parameter_)
            e = self._local.encoder = _Encoder(owner, self._n_threads)
        return e

    @property
    def size(self):
        return lib.ds_tokenizer_size(self)

    @property
    def max_bytes(self):
        return lib.ds_tokenizer_max_bytes(self)

    def bytes(self, id):
        """What id stands for; b"" for an unknown one."""
        n = C.c_size_t()
        return C.string_at(lib.ds_tokenizer_bytes(self, id, n), n.value)

    def control(self, spelling):
        """The id of the added token with this spelling, or None."""
        data = bytes_of(spelling)
        id = lib.ds_tokenizer_control_n(self, data, len(data))
        return None if id == NONE else id

    def kind(self, id):
        """text, control, dropped or unknown."""
        return KINDS[lib.ds_tokenizer_kind(self, id)]

    def engram_map(self):
        """The Engram class of every id, and how many classes there are."""
        err, n, classes = Err(), C.c_uint32(), (C.c_uint32 * self.size)()
        check(lib.ds_tokenizer_engram_map(self, classes, n, err), err)
        return list(classes), n.value

    def encode(self, text):
        """Ids of str or bytes. Nothing in it becomes an added token, and none is put in front."""
        err, ids, data = Err(), Ids(), bytes_of(text)
        check(lib.ds_encoder_text(self.encoder(), data, len(data), ids, err), err)
        return _take(ids)

    def encode_batch(self, texts):
        data = [bytes_of(t) for t in texts]
        n, err, ids = len(data), Err(), Ids()
        ends = (C.c_size_t * n)()
        check(lib.ds_encoder_batch(self.encoder(), (C.c_char_p * n)(*data), (C.c_size_t * n)(*map(len, data)), n, ids, ends, err), err)
        whole = _take(ids)
        return [whole[a:b] for a, b in zip([0, *ends], ends)]

    def decode(self, ids):
        """The bytes of all ids, added tokens as they are spelled."""
        return b"".join(self.bytes(i) for i in ids)

    def decoder(self, keep_dropped=False):
        return Decoder(self, keep_dropped)


class _Borrowed:
    """The pointer alone: an encoder that refers to its Tokenizer would keep itself alive through the thread's storage."""

    def __init__(self, pointer):
        self._as_parameter_ = pointer


class Decoder:
    """Ids to text, one at a time. What is released is whole characters; see ds_decoder."""

    def __init__(self, tokenizer, keep_dropped=False):
        self.tokenizer, self._d = tokenizer, CDecoder()
        lib.ds_decoder_init(self._d, tokenizer, keep_dropped)
        self._out = C.create_string_buffer(lib.ds_decoder_room(tokenizer))
        self.n_tokens = 0  # how many ids the last text accounts for

    def push(self, id):
        n = C.c_uint32()
        out = decoded(C.string_at(self._out, lib.ds_decoder_push(self._d, min(id, NONE), self._out, n)))
        self.n_tokens = n.value
        return out

    def finish(self, replace=False):
        n = C.c_uint32()
        out = decoded(C.string_at(self._out, lib.ds_decoder_finish(self._d, replace, self._out, n)))
        self.n_tokens = n.value
        return out
