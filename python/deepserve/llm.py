"""Generation in this process: LLM(model).generate(prompts, SamplingParams(...)), in the shape that users of vLLM know (ds/llm.h, ds/engine.h)."""
import ctypes as C
import dataclasses
import json
import math
import numbers
import os
import pathlib
import threading
from typing import Dict, List, Optional, Sequence, Union

from . import _engine as E
from ._lib import Err, ImageRule, bytes_of, check, decoded
from .errors import Error
from .request import Options, Request
from .tokenizer import Tokenizer

MODES = {"ced": 0, "exact": 1}
DTYPES = {"float32": False, "bfloat16": True}


@dataclasses.dataclass
class StructuredOutputsParams:
    """What answers must be, one of: json, a JSON Schema as a dict or as text; regex, for the whole text; choice, a list of texts; grammar, rules in the notation of GBNF or
    Lark; json_object, any JSON object."""
    json: Union[None, str, dict] = None
    regex: Optional[str] = None
    choice: Optional[Sequence[str]] = None
    grammar: Optional[str] = None
    json_object: Optional[bool] = None


@dataclasses.dataclass
class SamplingParams:
    """How to draw. seed None: another text every time. top_k 0 or -1: off. max_tokens None: to the end of the context. min_tokens: nothing
    ends a text before, no id and no stop string. logprobs N: of every token, and of the N most likely ones (at most 20); prompt_logprobs N: of every token of the prompt
    likewise. The model's own end-of-text ids always end a text, unless ignore_eos. include_stop_str_in_output: a stop string, or a token of stop_token_ids, belongs to the
    text. bad_words: words that aren't written, alone or behind a space. allowed_token_ids: no others are drawn. truncate_prompt_tokens N: the prompt's last N ids. structured_outputs: what the text must be, a StructuredOutputsParams or a dict of
    its members; with thinking, what follows the thought."""
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    max_tokens: Optional[int] = 16
    min_tokens: int = 0
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Optional[Sequence[int]] = None
    include_stop_str_in_output: bool = False
    bad_words: Optional[Sequence[str]] = None
    allowed_token_ids: Optional[Sequence[int]] = None
    truncate_prompt_tokens: Optional[int] = None
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: Optional[int] = None
    logit_bias: Optional[Dict[int, float]] = None
    prompt_logprobs: Optional[int] = None
    structured_outputs: Union[None, StructuredOutputsParams, dict] = None


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: Optional[int]  # 1 = most likely; None: drawn, and not among the most likely ones asked for
    decoded_token: str


@dataclasses.dataclass
class CompletionOutput:
    """token_ids: without the id that ended the text. text: up to a stop string. finish_reason: "stop" or "length". stop_reason: the stop string or the id
    of stop_token_ids that ended it, else None."""
    index: int
    text: str = ""
    token_ids: List[int] = dataclasses.field(default_factory=list)
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None


@dataclasses.dataclass
class RequestOutput:
    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    finished: bool = False
    prompt_logprobs: Optional[List[Optional[Dict[int, Logprob]]]] = None  # None for the first token, and inside pictures
    num_cached_tokens: int = 0


def _u(value, name, bits):
    """ctypes would take the low bits of any number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= value < 1 << bits:
        raise Error(-2, f"{name}: expected a whole number from 0 to {(1 << bits) - 1}, got {value!r}")
    return int(value)


def _real(value, name):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Error(-2, f"{name}: expected a number, got {value!r}")
    return float(value)


def _whole(value, name):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise Error(-2, f"{name}: expected a whole number, got {value!r}")
    return int(value)


def _stops(value):
    stops = [value] if isinstance(value, (str, bytes)) else value or []
    if not isinstance(stops, (list, tuple)) or not all(isinstance(s, (str, bytes)) for s in stops):
        raise Error(-2, f"stop: expected a text or a list of texts, got {value!r}")
    return [s if isinstance(s, str) else decoded(s) for s in stops]


def _drafts(word):
    if word == "auto":
        return E.DRAFTS_AUTO
    return 0 if word in ("off", None) else _u(word, "speculate", 6)


def _choice(table, value, name):
    if value not in table:
        raise Error(-2, f"{name}: '{value}'; expected one of: {', '.join(table)}")
    return table[value]


def _structured(value):
    """As the HTTP API has it; {}: nothing is asked for."""
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if not isinstance(value or {}, dict):
        raise Error(-2, f"structured_outputs: expected StructuredOutputsParams or a dict, got {value!r}")
    value = {k: v for k, v in (value or {}).items() if v is not None}
    return {"structured_outputs": value} if value else {}


class _Job:
    """One prompt on its way. body: of the Chat request that it comes from, None: raw."""

    def __init__(self, llm, index, prompt, ids, images, params, body=None):
        n = _u(params.n, "n", 16)
        ids = self._truncated(llm, ids, images, params.truncate_prompt_tokens)
        self.params, self.id, self.failed, self.images = params, None, None, images
        self.output = RequestOutput(str(index), prompt, ids, [CompletionOutput(k) for k in range(n)])
        self.stops = _stops(params.stop)
        self.decoders, self.pieces = [llm.tokenizer.decoder() for _ in range(n)], [[] for _ in range(n)]
        if params.prompt_logprobs is not None:
            self.output.prompt_logprobs = [None]
        for o in self.output.outputs if params.logprobs is not None else []:
            o.cumulative_logprob, o.logprobs = 0.0, []
        self.request = self._request(llm, ids, params, n)
        self.constraint = self._constraint(llm, body, params, n)
        self.request.grammar = self.constraint and llm._c.ds_llm_constraint_grammar(self.constraint)

    @staticmethod
    def _constraint(llm, body, params, n):
        """What the answers must be; ended when the request is."""
        proto = E.CHAT
        if body is None:
            asked = _structured(params.structured_outputs)
            if not asked:
                return None
            body = {"model": "local", "prompt": "", **asked}
            proto = E.COMPLETIONS
        text = json.dumps(body).encode("utf-8", "surrogatepass")
        err, made = Err(), C.c_void_p()
        check(llm._c.ds_llm_constrain(llm, proto, text, len(text), n, made, err), err)
        return made if made.value else None

    @staticmethod
    def _truncated(llm, ids, images, most):
        if most is None:
            return ids
        most = _whole(most, "truncate_prompt_tokens")
        if most < -1 or most == 0:
            raise Error(-2, f"truncate_prompt_tokens: {most} is neither -1 nor at least 1")
        most = llm.max_model_len - 1 if most == -1 else most
        if images and len(ids) > most:
            raise Error(-2, "truncate_prompt_tokens: not possible with pictures in the prompt")
        return ids[-most:]

    def _request(self, llm, ids, params, n):
        for at, id in enumerate(ids):
            if isinstance(id, bool) or not isinstance(id, numbers.Integral) or not 0 <= id < llm.vocab_size:
                raise Error(-2, f"token id {id!r} at position {at} is outside the vocabulary, 0..{llm.vocab_size - 1}")
        end = ([] if params.ignore_eos else llm.stop_ids) + [_u(x, "stop_token_ids", 31) for x in params.stop_token_ids or []]
        self.own_ends = set() if params.ignore_eos else {*llm.stop_ids} - set(params.stop_token_ids or [])  # no text, also where they are reported
        texts = [bytes_of(s) for s in self.stops]
        if not isinstance(params.logit_bias or {}, dict):
            raise Error(-2, f"logit_bias: expected a dict of ids and numbers, got {params.logit_bias!r}")
        bias = [E.Bias(_u(id, "logit_bias", 32), _real(b, "logit_bias")) for id, b in (params.logit_bias or {}).items()]
        seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else _whole(params.seed, "seed") & (1 << 64) - 1
        q = E.EngineRequest(n_prompt=len(ids), n=n, n_bias=len(bias), n_stop_ids=len(end), n_stop=len(texts))
        q.max_tokens = llm.max_model_len if params.max_tokens is None else _u(params.max_tokens, "max_tokens", 32)
        q.min_tokens = _u(params.min_tokens, "min_tokens", 32)
        top_k = 0 if params.top_k == -1 else _u(params.top_k, "top_k", 32)
        q.sampling = E.Sampling(*(_real(getattr(params, name), name) for name in ("temperature", "top_p", "min_p")), top_k,
                                *(_real(getattr(params, name), name) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")), seed, params.seed is not None)
        bad, allowed = self._bad(llm, params.bad_words), params.allowed_token_ids
        if allowed is not None and not len(allowed):
            raise Error(-2, "allowed_token_ids: the list is empty")
        allowed = [_u(x, "allowed_token_ids", 31) for x in allowed or []]
        q.bad, q.n_bad = (E.Ids * len(bad))(*(E.Ids((C.c_int32 * len(x))(*x), len(x)) for x in bad)), len(bad)
        q.allowed, q.n_allowed, q.report_stop_id = (C.c_int32 * len(allowed))(*allowed), len(allowed), bool(params.include_stop_str_in_output)
        q.prompt, q.stop_ids = (C.c_int32 * len(ids))(*map(int, ids)), (C.c_int32 * len(end))(*end)
        q.bias, q.stop = (E.Bias * len(bias))(*bias), (E.Str * len(texts))(*((s, len(s)) for s in texts))
        q.prompt_logprobs, q.n_prompt_top = params.prompt_logprobs is not None, _u(params.prompt_logprobs or 0, "prompt_logprobs", 32)
        q.logprobs, q.n_top = params.logprobs is not None, _u(params.logprobs or 0, "logprobs", 32)
        if self.images:
            q.images, q.n_images = C.cast(self.images[0], C.c_void_p), len(self.images[0])
        if n == 0:
            raise Error(-2, "n: expected at least 1, got 0")
        return q

    @staticmethod
    def _bad(llm, words):
        """The ids of each word, alone and behind a space."""
        if isinstance(words, (str, bytes)) or not all(isinstance(w, str) and w for w in words or []):
            raise Error(-2, f"bad_words: expected a list of texts that aren't empty, got {words!r}")
        spelled = [llm.tokenizer.encode(front + (w.lstrip(" ") or " ")) for w in words or [] for front in ("", " ")]
        return [list(x) for x in dict.fromkeys(map(tuple, spelled)) if x]

    @staticmethod
    def _ranked(llm, t, rank):
        top = {x.id: Logprob(x.logprob, at, llm._spelling(x.id)) for at, x in enumerate(t.top[:t.n_top], 1) if x.id >= 0}
        return {t.id: top.pop(t.id, None) or Logprob(t.logprob, rank, llm._spelling(t.id)), **top}

    def prompt_token(self, llm, t):
        self.output.prompt_logprobs.append(None if math.isnan(t.logprob) else self._ranked(llm, t, t.rank))

    def token(self, llm, sample, t):
        o = self.output.outputs[sample]
        if t.id in self.own_ends:
            return
        o.token_ids.append(t.id)
        self.pieces[sample].append(self.decoders[sample].push(t.id))
        if o.logprobs is None:
            return
        o.logprobs.append(self._ranked(llm, t, None))
        o.cumulative_logprob += t.logprob

    def end(self, llm, sample, e):
        o = self.output.outputs[sample]
        o.text = "".join(self.pieces[sample])
        o.finish_reason = "length" if e.reason == E.LENGTH else "stop"
        if e.reason == E.STOP_ID and (self.params.ignore_eos or e.stop_id not in llm.stop_ids):
            o.stop_reason = e.stop_id
        elif e.reason == E.STOP_STRING:
            o.stop_reason = self.stops[e.stop]
            at = o.text.find(o.stop_reason, max(0, len(o.text) - e.cut_bytes))  # an earlier one was held back
            if at >= 0:
                o.text = o.text[:at + (len(o.stop_reason) if self.params.include_stop_str_in_output else 0)]
        elif e.reason == E.FAILED and self.constraint and (why := llm._c.ds_llm_constraint_failure(self.constraint)):
            self.failed = Error(-3, decoded(why))
        elif e.reason == E.FAILED:
            self.failed = Error(e.rc or -3, f"the model gave values that are not finite after {e.n_tokens} tokens")
        elif e.reason == E.LOST:
            self.failed = Error(e.rc or -4, f"the engine was lost after {e.n_tokens} tokens")
        self.output.finished = bool(e.last)
        return self.output.finished


class LLM:
    """A model directory, opened. speculate: "auto", "off" or drafts a step; never changes a text. kv_dir: a directory in which prefixes are kept, for
    later uses of the same model too; one process has it at a time. Threads: calls of generate() wait for each other; prompts
    of one call run together, max_num_seqs at a time. Close it, or use it in a with statement."""

    def __init__(self, model, *, mode="ced", dtype="float32", device="cpu", kernels=None, threads=None, max_model_len=None, max_num_seqs=16, speculate="auto",
                 kv_dir=None):
        self._as_parameter_, self._lock, self._next = None, threading.Lock(), 0
        self._lent = {}  # embeddings and constraints that the engine may still use, by request
        self._c = E.load()
        o = E.LlmOpts(bytes_of(device), None if kernels is None else bytes_of(kernels), _choice(MODES, mode, "mode"), _choice(DTYPES, dtype, "dtype"), False, _u(threads or 0, "threads", 31),
                      _u(max_model_len or 0, "max_model_len", 31), _u(max_num_seqs, "max_num_seqs", 31), _drafts(speculate),
                      0, None if kv_dir is None else bytes_of(str(kv_dir)))
        err, opened = Err(), C.c_void_p()
        check(self._c.ds_llm_open(opened, bytes_of(str(model)), o, err), err)
        self._as_parameter_ = opened
        self._engine = C.c_void_p(self._c.ds_llm_engine(self))
        n = C.c_size_t()
        ids = self._c.ds_llm_stop_ids(self, n)
        self.stop_ids = ids[:n.value]
        self.max_model_len, self.vocab_size, self._bos = self._c.ds_llm_context(self), self._c.ds_llm_vocab(self), self._c.ds_llm_bos(self)
        self._at_once = min(4 * (max_num_seqs or 16), 4096)  # in the engine: enough to keep it busy
        self.tokenizer = Tokenizer(pathlib.Path(model) / "tokenizer.json")

    def close(self):
        with self._lock:
            self._close()

    def __del__(self):
        if getattr(self, "_as_parameter_", None):
            self._close()

    def _close(self):
        opened, self._as_parameter_ = self._as_parameter_, None
        if not opened:
            return
        for id in self._lent:  # what was interrupted
            self._c.ds_engine_cancel(self._engine, id)
        events = (E.Event * 64)()
        while self._lent:
            self._c.ds_engine_wait(self._engine, 50)
            for e in events[:self._c.ds_engine_poll(self._engine, events, len(events))]:
                if e.kind == E.END and e.end.last:
                    self._returned(e.request)
        self._c.ds_llm_close(opened)

    def _returned(self, id):
        """The engine has nothing of that request any more."""
        _, constraint = self._lent.pop(id, (None, None))
        if constraint:
            self._c.ds_llm_constraint_end(constraint)

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.close()

    def get_tokenizer(self):
        return self.tokenizer

    def _spelling(self, id):
        return decoded(self.tokenizer.bytes(id))

    def _prompt(self, prompt):
        """A prompt as (text or None, ids, images, body of the request or None): str, ids, {"prompt": str} or {"prompt_token_ids": ids}. Raw text gets the model's first id in front."""
        if isinstance(prompt, dict):
            if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
                raise TypeError("a prompt as a dict has either prompt or prompt_token_ids")
            prompt = prompt["prompt"] if "prompt" in prompt else list(prompt["prompt_token_ids"])
        if isinstance(prompt, str):
            return prompt, [self._bos, *self.tokenizer.encode(prompt)], None, None
        if isinstance(prompt, (list, tuple)):
            return None, list(prompt), None, None
        raise TypeError(f"a prompt is a str, a list of token ids or a dict, not {type(prompt).__name__}")

    def generate(self, prompts=None, sampling_params=None, *, prompt_token_ids=None, use_tqdm=False):
        """One RequestOutput for each prompt, in order. prompts: one or a list of them; prompt_token_ids: a list of ids or a list of such lists instead.
        sampling_params: one for all, or a list with one for each. The first prompt that is refused or fails ends the call with Error."""
        if (prompts is None) == (prompt_token_ids is None):
            raise TypeError("generate takes either prompts or prompt_token_ids")
        given = prompts if prompt_token_ids is None else prompt_token_ids
        if not isinstance(given, (str, dict, list, tuple)):
            raise TypeError(f"prompts: expected a prompt or a list of them, not {type(given).__name__}")
        if isinstance(given, (str, dict)) or (given and all(isinstance(x, numbers.Integral) for x in given)):
            given = [given]
        return self._run([lambda how, x=x: self._prompt(x) for x in given], sampling_params, use_tqdm)

    def chat(self, messages, sampling_params=None, *, use_tqdm=False, **body):
        """Answers to conversations: one list of messages of the Chat Completions API, or a list of such lists. body: other fields of the request, such as tools
        or reasoning_effort. Pictures are data: URLs or public addresses. The text is the model's own; deepserve.parse() takes it apart."""
        def prompt(one, how):
            options = Options()
            options.fit(self.tokenizer)
            whole = {"model": "local", **body, **_structured(how.structured_outputs), "messages": one}
            request = Request(whole, "chat", options)
            made = request.render(self.tokenizer)
            return made["prompt"], *(self._embedded(request, made["images"], made["ids"]) if made["images"] else (made["ids"], None)), whole

        if messages and isinstance(messages[0], dict):
            messages = [messages]
        return self._run([lambda how, x=x: prompt(x, how) for x in messages], sampling_params, use_tqdm)

    def _embedded(self, request, n, ids):
        """The ids with room for the request's pictures, and the pictures for the engine with what keeps them alive."""
        rule, token, hidden, err = ImageRule(), C.c_uint32(), self._c.ds_llm_hidden(self), Err()
        if not self._c.ds_llm_pictures(self, rule, token):
            raise Error(-3, "messages: this model takes no images")
        pictures = request.images(n, rule={name: getattr(rule, name) for name, _ in ImageRule._fields_})
        ids, images, floats, at = request.expand_images(ids, token.value), (E.EngineImage * n)(), [], 0
        for picture, image in zip(pictures, images):
            at = ids.index(token.value, at)
            floats.append((C.c_float * (picture.layout.tokens * hidden))())
            check(self._c.ds_llm_embed(self, picture._c, floats[-1], err), err)
            image.pos, image.n, image.embedding = at, picture.layout.tokens, C.addressof(floats[-1])
            image.digest[:] = picture.digest
            at += image.n
        return ids, (images, floats)

    def _run(self, prompts, params, use_tqdm):
        if isinstance(params, (list, tuple)):
            if len(params) != len(prompts):
                raise ValueError(f"{len(params)} sampling_params for {len(prompts)} prompts")
        else:
            params = [params or SamplingParams()] * len(prompts)
        for how in params:
            if not isinstance(how, SamplingParams):
                raise TypeError(f"sampling_params: expected SamplingParams, not {type(how).__name__}")
        bar = None
        if use_tqdm:
            from tqdm import tqdm
            bar = tqdm(total=len(prompts), desc="Processed prompts")
        with self._lock:
            if not self._as_parameter_:
                raise ValueError("this LLM is closed")
            try:
                return self._loop(prompts, params, bar)
            finally:
                if bar:
                    bar.close()

    def _loop(self, prompts, params, bar):
        outputs, running = [], {}
        events = (E.Event * 64)()
        todo, waiting = iter(enumerate(zip(prompts, params))), None
        more = True
        try:
            while more or running:
                while more and len(running) < self._at_once:
                    if waiting is None:
                        at, (prompt, how) = next(todo, (None, (None, None)))
                        more = at is not None
                        if not more:
                            break
                        waiting = self._make(at, len(prompts), prompt, how)
                    if not self._add(waiting, at, len(prompts)):
                        break
                    running[waiting.id] = waiting
                    outputs.append(waiting.output)
                    waiting = None
                self._take(running, events, bar)
            return outputs
        except BaseException:  # Ctrl-C too. What still comes of them the next call drops
            if waiting is not None:
                self._c.ds_llm_constraint_end(waiting.constraint)
            for id in list(running):
                self._c.ds_engine_cancel(self._engine, id)
            raise

    def _make(self, at, n, prompt, params):
        try:
            text, ids, images, body = prompt(params)
            self._next += 1
            return _Job(self, self._next - 1, text, ids, images, params, body)
        except Error as e:
            if n > 1:
                e.args = (f"prompts[{at}]: {e}",)
            raise

    def _add(self, job, at, n):
        err, id = Err(), C.c_uint64()
        rc = self._c.ds_engine_add(self._engine, job.request, id, err)
        if rc == E.AGAIN:
            return False
        if rc:
            raise Error(rc, (f"prompts[{at}]: " if n > 1 else "") + decoded(err.msg))
        job.id, job.request = id.value, None
        if job.images or job.constraint:
            self._lent[job.id] = job.images, job.constraint
        return True

    def _take(self, running, events, bar):
        """What happened, into the outputs. A wait is short, so that Ctrl-C is seen."""
        if not self._c.ds_engine_wait(self._engine, 50):
            return
        failed = None
        for e in events[:self._c.ds_engine_poll(self._engine, events, len(events))]:
            job = running.get(e.request)
            if job is None:
                if e.kind == E.END and e.end.last:
                    self._returned(e.request)
                continue
            if e.kind == E.START:
                job.output.num_cached_tokens = e.start.cached
            elif e.kind == E.PROMPT:
                job.prompt_token(self, e.token)
            elif e.kind == E.TOKEN:
                job.token(self, e.sample, e.token)
            elif job.end(self, e.sample, e.end):
                self._returned(e.request)
                del running[e.request]
                failed = failed or job.failed
                if bar:
                    bar.update()
        if failed:
            raise failed
