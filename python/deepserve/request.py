"""Requests: the body of an API call to the prompt and its ids (ds/request.h)."""
import ctypes as C
import json

from . import _lib
from ._lib import CApiError, Err, ParseArgs, RequestIo, ResponseStore, Str, api_error, bytes_of, check, decoded, lib
from .errors import ApiError

PROTOCOLS = {"chat": 0, "responses": 1, "messages": 2, "completions": 3}
ENCODINGS = {"v4.1": 0, "v4": 1}


def _choice(table, value, what):
    if value not in table:
        raise ValueError(f"{what} '{value}'; expected one of: {', '.join(table)}")
    return table[value]


class Options:
    """The recipe's switches by name: Options("v4.1", keep_all=True, max_images=20). help(Options.help) lists them."""

    def __init__(self, encoding="v4.1", **switches):
        err, self._as_parameter_ = Err(), C.c_void_p()
        self._kept = []  # options may point into what set them
        check(lib.ds_recipe_opts_create(self._as_parameter_, _choice(ENCODINGS, encoding, "encoding"), err), err)
        self.openai_errors = switches.get("openai_errors", False)
        for name, value in switches.items():
            word = str(value).lower() if isinstance(value, bool) else str(value)
            assignment = f"{name}={word}".encode()
            self._kept.append(assignment)
            check(lib.ds_recipe_opts_set(self, assignment, err), err)

    def __del__(self):
        if getattr(self, "_as_parameter_", None):
            lib.ds_recipe_free(self._as_parameter_)

    def fit(self, tokenizer):
        """Takes the spelling of the image placeholder from the tokenizer, and whether there are grounding tokens."""
        lib.ds_recipe_opts_fit(self, tokenizer)
        return self

    @staticmethod
    def help():
        """One line for each switch."""
        out = []
        while (line := lib.ds_recipe_opts_help(len(out))) is not None:
            out.append(decoded(line))
        return out


class Seal:
    """Keys of encrypted reasoning, 32 bytes each. The first seals, all open."""

    def __init__(self, *keys):
        if any(len(k) != 32 for k in keys):
            raise ValueError("a key has 32 bytes")
        err, self._as_parameter_ = Err(), C.c_void_p()
        check(lib.ds_seal_create(self._as_parameter_, b"".join(keys), len(keys), err), err)

    def __del__(self):
        if getattr(self, "_as_parameter_", None):
            lib.ds_seal_destroy(self._as_parameter_)


class _Io:
    """Python callables as a ds_request_io. An exception in one is raised again by the call that it interrupted."""

    def __init__(self, files, documents, stored, seal):
        self.raised, self.kept, self.seal = None, None, seal
        self.io = RequestIo()
        self.held = {}
        if seal:
            self.io.seal = seal._as_parameter_
        if files:
            self.io.file = self.file = _lib.FILE(self._guard(self._file(files)))
        if documents:
            self.io.document = self.document = _lib.DOCUMENT(self._guard(self._document(documents)))
        if stored:
            self.store = ResponseStore(None, _lib.LOAD(self._guard(self._load(stored))), _lib.RELEASE(lambda ctx, hold: self.held.pop(hold, None)))
            self.io.store = C.pointer(self.store)

    def _guard(self, f):
        def call(*arguments):
            try:
                return f(*arguments)
            except BaseException as e:  # must not unwind through C
                self.raised = e
                return -4
        return call

    def again(self):
        raised, self.raised = self.raised, None
        if raised:
            raise raised

    @staticmethod
    def _refuse(why, e):
        why.contents.status = getattr(e, "status", 400)
        why.contents.type, why.contents.code = b"invalid_request_error", b"invalid_request_error"
        why.contents.message = bytes_of(str(e))[:511]
        return -3

    def _file(self, files):
        def call(ctx, id, type, data, n, why, err):
            try:
                media, content = files(decoded(id))
            except LookupError as e:
                return self._refuse(why, ApiError(404, "", None, None, f"no such file: {e}", ""))
            self.kept = C.create_string_buffer(content, len(content)), bytes_of(media)
            data[0], n[0], type[0] = C.addressof(self.kept[0]), len(content), self.kept[1]
            return 0
        return call

    def _document(self, documents):
        def call(ctx, type, base64, n, out, out_n, why, err):
            try:
                words = bytes_of(documents(decoded(type), C.string_at(base64, n)))
            except ValueError as e:
                return self._refuse(why, e)
            self.kept = C.create_string_buffer(words, len(words))
            out[0], out_n[0] = C.addressof(self.kept), len(words)
            return 0
        return call

    def _load(self, stored):
        def call(ctx, id, out, n, hold, err):
            record = stored(decoded(id))
            if record is None:
                out[0] = None
                return 0
            data = bytes_of(record)
            buffer = C.create_string_buffer(data, len(data))
            out[0], n[0], hold[0] = C.addressof(buffer), len(data), C.addressof(buffer)
            self.held[C.addressof(buffer)] = buffer
            return 0
        return call


class Request:
    """One request: Request(body, "chat"). body: a dict, or JSON as str or bytes. Refusals raise ApiError.

    files(id) -> (media_type, bytes), LookupError for an unknown one; documents(media_type, base64) -> text, ValueError to refuse; stored(response_id) ->
    the record {"items": […]} as JSON text, None for an unknown one; seal: a Seal."""

    def __init__(self, body, protocol="chat", options=None, *, files=None, documents=None, stored=None, seal=None, count_tokens=False):
        self.protocol, self.options = protocol, options or Options()
        self._proto = _choice(PROTOCOLS, protocol, "protocol")
        self._io = _Io(files, documents, stored, seal)
        self._as_parameter_, err, why = C.c_void_p(), Err(), CApiError()
        data = bytes_of(json.dumps(body, ensure_ascii=False)) if isinstance(body, dict) else bytes_of(body)
        args = ParseArgs(self._proto, self.options._as_parameter_, C.pointer(self._io.io), count_tokens)
        self._check(lib.ds_request_parse(self._as_parameter_, args, data, len(data), why, err), why, err)

    def __del__(self):
        if getattr(self, "_as_parameter_", None):
            lib.ds_request_destroy(self._as_parameter_)

    def _check(self, rc, why, err):
        self._io.again()
        if rc == -3 and why.status:
            raise api_error(why, self._proto, self.options.openai_errors)
        check(rc, err)

    def render(self, tokenizer=None, prompt=0):
        """What `deepserve render` writes, as a dict: prompt, runs, images, thinking, effort, stop, max_tokens, constraint; with a tokenizer ids too."""
        out, n, err, why = C.c_void_p(), C.c_size_t(), Err(), CApiError()
        rc = lib.ds_request_json(self, prompt, tokenizer.encoder() if tokenizer else None, out, n, why, err)
        self._check(rc, why, err)
        try:
            return json.loads(C.string_at(out, n.value))
        finally:
            lib.ds_recipe_free(out)

    def layout_image(self, i, width, height):
        """Tells the size of picture i, which was decoded elsewhere."""
        err = Err()
        check(lib.ds_request_layout_image(self, i, width, height, err), err)

    def images(self, n=None, **how):
        """All pictures of the request, fetched, prepared and laid out, in prompt order. Options as image.ImagesOptions."""
        from .image import request_images
        return request_images(self, n, **how)

    def expand_images(self, ids, image_id):
        """The ids with each picture's one placeholder widened to its tokens; the pictures must be laid out."""
        extra = lib.ds_request_image_extra_tokens(self)
        room = (C.c_uint32 * (len(ids) + extra))(*ids)
        n = lib.ds_request_expand_images(self, image_id, room, len(ids), len(room))
        if n == 0 and ids:
            raise ValueError("the ids don't have one placeholder for each picture")
        return room[:n]

    def items(self):
        """Responses: the input items of the chain up to here, as a list."""
        err, out = Err(), Str()
        check(lib.ds_request_items(self, out, err), err)
        return json.loads(b"[" + C.string_at(out.p, out.n) + b"]") if out.n else []

    def stream(self, **how):
        from .stream import Stream
        return Stream(self, **how)


def render(body, protocol="chat", encoding="v4.1", tokenizer=None, **switches):
    """Body to prompt and ids in one call. Pictures that come with the request are laid out."""
    options = Options(encoding, **switches)
    if tokenizer:
        options.fit(tokenizer)
    r = Request(body, protocol, options)
    first = r.render()
    if first["images"]:
        r.images(first["images"], skip_urls=True, size_only=True)
    return r.render(tokenizer) if tokenizer or first["images"] else first
