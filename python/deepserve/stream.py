"""Model output to responses and events (ds/stream.h)."""
import collections
import ctypes as C
import json
import math

from ._lib import SINK, CApiError, Err, StreamOpts, StreamUsage, TokenLogprob, TopLogprob, bytes_of, check, decoded, lib
from .request import PROTOCOLS, Options, Request

ENDS = {"stop": 0, "length": 1, "content_filter": 2, "none": 3}
Usage = collections.namedtuple("Usage", "prompt_tokens cached_tokens output_tokens reasoning_tokens reasoning_known")


class Event(collections.namedtuple("Event", "name data")):
    """name: None for Chat and completions. data: JSON as text."""

    def json(self):
        return json.loads(self.data)

    def sse(self):
        """The bytes that go over the wire."""
        name, data = None if self.name is None else bytes_of(self.name), bytes_of(self.data)
        n = lib.ds_sse_frame(None, 0, name, data, len(data))
        out = C.create_string_buffer(n + 1)
        lib.ds_sse_frame(out, n + 1, name, data, len(data))
        return out.raw[:n]


def sse_end(protocol):
    """What ends a stream: b"data: [DONE]\\n\\n" or b""."""
    return lib.ds_sse_end(PROTOCOLS[protocol])


class Stream:
    """What the model says to a Request, in any pieces. Each call returns the events that it caused, a list of Event."""

    def __init__(self, request, id="id-0", created=0, model=None, tokenizer=None, seal=None, max_value_bytes=0):
        self.request, self.tokenizer, self.seal = request, tokenizer, seal  # they must outlive the stream
        self._as_parameter_, self._err, self._events = C.c_void_p(), Err(), []
        events = self._events  # the sink must not refer to self
        self._sink = SINK(lambda ctx, name, data, n: events.append(Event(None if name is None else decoded(name), decoded(C.string_at(data, n)))))
        self._model = None if model is None else bytes_of(model)
        opts = StreamOpts(bytes_of(id), created, None, self._model, tokenizer and tokenizer._as_parameter_, seal and seal._as_parameter_, self._sink,
                          None, max_value_bytes)
        check(lib.ds_stream_create(self._as_parameter_, request, opts, self._err), self._err)

    def __del__(self):
        if getattr(self, "_as_parameter_", None):
            lib.ds_stream_destroy(self._as_parameter_)

    def _after(self, rc):
        out = self._events[:]
        self._events.clear()
        check(rc, self._err)
        return out

    @property
    def choices(self):
        return lib.ds_stream_choices(self)

    def ready(self, prompt_tokens, cached_tokens=0, fingerprint=None):
        return self._after(lib.ds_stream_ready(self, prompt_tokens, cached_tokens, None if fingerprint is None else bytes_of(fingerprint), self._err))

    def text(self, text, choice=0, n_tokens=0):
        """text: str, or bytes that may end inside a character."""
        data = bytes_of(text)
        return self._after(lib.ds_stream_text(self, choice, data, len(data), n_tokens, self._err))

    def token(self, id, choice=0, logprob=None, top=()):
        """top: (id, logprob) pairs, best first. The stream needs a tokenizer."""
        lp = None
        if logprob is not None or top:
            pairs = (TopLogprob * len(top))(*[TopLogprob(*t) for t in top])
            lp = TokenLogprob(math.nan if logprob is None else logprob, len(top), pairs)
        return self._after(lib.ds_stream_token(self, choice, id, lp, self._err))

    def done(self, choice=0):
        """Nothing that the model still says can matter."""
        return lib.ds_stream_done(self, choice)

    def finish(self, end="stop", choice=0):
        return self._after(lib.ds_stream_finish(self, choice, ENDS[end], self._err))

    def fail(self, message, status=500, type="internal_error", code="internal_error"):
        """The response failed after events were sent: the protocol's error event."""
        why = CApiError(status, bytes_of(type), bytes_of(code), b"", bytes_of(message)[:511])
        return self._after(lib.ds_stream_fail(self, why, self._err))

    def finish_reason(self, choice=0):
        reason = lib.ds_stream_finish_reason(self, choice)
        return None if reason is None else decoded(reason)

    def check(self, choice=0):
        """Whether a finished choice's text is what response_format asked for: None, or a line that says where and why it isn't."""
        rc = lib.ds_stream_check(self, choice, self._err)
        if rc == -3:
            return decoded(self._err.msg)
        check(rc, self._err)

    @property
    def usage(self):
        u = StreamUsage()
        lib.ds_stream_get_usage(self, u)
        return Usage(u.prompt_tokens, u.cached_tokens, u.output_tokens, u.reasoning_tokens, u.reasoning_known)

    def _json(self, f):
        out, n = C.c_void_p(), C.c_size_t()
        check(f(self, out, n, self._err), self._err)
        return C.string_at(out, n.value) if n.value else b""

    def body(self):
        """The complete response, once every choice has finished."""
        return json.loads(self._json(lib.ds_stream_body))

    def items(self):
        """Responses: the output items."""
        return json.loads(b"[" + self._json(lib.ds_stream_items) + b"]")


def parse(output, body, protocol="chat", encoding="v4.1", tokenizer=None, finish="stop", prompt_tokens=0, cached_tokens=0, **switches):
    """What `deepserve parse` writes: the response to `body` when the model said `output` (text, or a list of ids with a tokenizer), as a dict."""
    s = Stream(Request(body, protocol, Options(encoding, **switches)), tokenizer=tokenizer)
    s.ready(prompt_tokens, cached_tokens)
    if isinstance(output, (str, bytes, bytearray)):
        s.text(output)
    else:
        for id in output:
            s.token(id)
    s.finish(finish)
    return s.body()
