"""Events and bodies of `deepserve parse` against deepseek-recipe (PyPI), on generated model outputs: the same order, kinds, text, calls and endings.

What both sides may cut differently (pieces of a delta) is joined first. Every intended difference is named here and explained in
docs/recipe-differences.md; anything else fails."""
import json
import random
import re

import pytest

recipe = pytest.importorskip("deepseek_recipe", reason="deepseek-recipe isn't installed")

EACH = 3400  # outputs for each protocol and encoding, half of them broken; 20,400 in all
CLASSES = {"chat": (recipe.ChatCompletionRequest, recipe.ChatCompletionResponse), "responses": (recipe.ResponsesRequest, recipe.ResponsesResponse),
           "messages": (recipe.MessagesRequest, recipe.MessagesResponse)}
REASONS = {"stop": recipe.InferenceFinishReason.Stop, "length": recipe.InferenceFinishReason.Length, "content_filter": recipe.InferenceFinishReason.ContentFilter}
D = "｜DSML｜"
WORDS = ("word", " ", "\n", "\n\n", "  indented", "a < b", "<b>", "</div>", "日本語", "🦀", "naïve", "</thin", "<think", "code();\n", "```\n", "{", "}", "\"q\"", "\\", "\t",
         "1.", "END", "EN", "\u2028", "<|DSML|", "｜", "<｜", "</think")
VALUES = ("1", "-2.5e3", "true", "null", "[1, 2]", "{\"k\": [\"v\", {}]}", "\"s\"", "[]", "{}", "12345678901234567890")
KEYS = ("a", "city", "ключ", "key_2", "x-y")


class Output:
    """One model output and the request that it answers."""

    def __init__(self, seed, protocol, v4):
        self.r = random.Random(seed)
        self.protocol = protocol
        self.b, self.i, self.p = ("tool_calls", "invoke", "parameter") if v4 else (" calls", " invoke", " parameter")
        self.thinking = self.r.random() < .6
        self.tools = self.r.random() < .7
        self.json = protocol != "messages" and self.r.random() < .1
        self.stop = protocol != "responses" and self.r.random() < .3
        self.model = "DeepSeek-V4-Pro" if v4 else "DeepSeek-V4.1-Flash"

    def text(self, most, least=0):
        return "".join(self.r.choice(WORDS) for _ in range(self.r.randint(least, most)))

    def request(self):
        b = {"model": self.model, "stream": True}
        on = "enabled" if self.thinking else "disabled"
        if self.protocol == "responses":
            b.update(input="json please", reasoning={"effort": "high" if self.thinking else "none"})
        else:
            b.update(messages=[{"role": "user", "content": "json please"}], thinking={"type": on})
        if self.protocol == "messages":
            b["max_tokens"] = 1000
        schema = {"type": "object", "properties": {}}
        if self.tools:
            b["tools"] = {"chat": [{"type": "function", "function": {"name": n, "parameters": schema}} for n in ("f", "get_weather")],
                          "responses": [{"type": "function", "name": n, "parameters": schema} for n in ("f", "get_weather")] +
                                       [{"type": "namespace", "name": "ns", "description": "n", "tools": [{"type": "function", "name": "g", "parameters": schema}]}],
                          "messages": [{"name": n, "input_schema": schema} for n in ("f", "get_weather")]}[self.protocol]
        if self.stop:
            b["stop_sequences" if self.protocol == "messages" else "stop"] = self.r.sample(["END", "日", "\n\n", "w"], self.r.randint(1, 3))
        if self.json:
            b["text" if self.protocol == "responses" else "response_format"] = {"format": {"type": "json_object"}} if self.protocol == "responses" else {"type": "json_object"}
        return b

    def value(self):
        if self.r.random() < .5:
            return "false", self.r.choice(VALUES)
        return "true", self.text(5)

    def call(self):
        inner = "ns__g" if self.b == "tool_calls" else "ns::g"  # what the peer makes of namespaces (we render ns::g and read both)
        name = self.r.choice(("f", "get_weather", "other", inner) if self.protocol == "responses" else ("f", "get_weather", "other"))
        params = []
        for key in self.r.sample(KEYS, self.r.randint(0, 3)):
            flag, value = self.value()
            params.append(f'<{D}{self.p} name="{key}" string="{flag}">{value}</{D}{self.p}>')
        return f'<{D}{self.i} name="{name}">\n' + "\n".join(params) + f"\n</{D}{self.i}>"

    def content(self):
        if self.json:
            value = self.r.choice(('{"a": [1, "]"]}', "[1, {\"b\": \"\\\"}\"}]"))
            return self.r.choice((value, f"```json\n{value}\n```", f"Sure:\n```\n{value}\n``` done"))
        return self.text(8)

    def block(self):
        calls = "\n".join(self.call() for _ in range(self.r.randint(1, 3)))
        return f"\n\n<{D}{self.b}>\n{calls}\n</{D}{self.b}>"

    def whole(self):
        out = self.text(8) + self.r.choice(("", "\n", "\n\n")) + "</think>" + self.r.choice(("", "\n\n")) if self.thinking else ""
        out += self.content()
        if self.tools and not self.json and self.r.random() < .6:  # the peer doesn't see where a bare JSON value ends (difference 3)
            out += self.block()
        return out

    def broken(self):
        """An output with something wrong in it that both sides read the same way."""
        out, kind = self.whole(), self.r.randint(0, 5)
        if kind == 0 and self.thinking:  # the reasoning doesn't end, or ends with the block
            out = out.replace("</think>", "", 1)
        elif kind == 1:  # a second </think>
            at = self.r.choice([i for i in range(len(out.split(f"<{D}")[0]) + 1) if not re.match(r"(</think>)*\n|</think>$", out[i:])])  # (difference 9)
            out = out[:at] + "</think>" + out[at:]
        elif kind == 2:  # text after the block
            out += self.text(4)
        elif kind == 3 and f"</{D}{self.b}>" in out:  # no end of the block
            out = out[:out.rindex(f"</{D}{self.b}>")]
        else:
            out = out[:self.r.choice(self.cuts(out))]
        return out

    def cuts(self, out):
        """Where the text can end so that both sides say the same: in text, in string values, after closing tags (differences 7 and 8)."""
        first = out.find(f"<{D}")
        points = list(range((len(out) if first < 0 else first) + 1))
        for m in re.finditer(f'string="true">(.*?)</{D}{self.p}>', out, re.S):
            points += list(range(m.start(1), m.end(1) + 1))
        return points + [m.end() for m in re.finditer(f"</{D}[^>]*>", out)]

    def finish(self):
        return self.r.choices(("stop", "length", "content_filter", "none"), (8, 2, 1, 1))[0]


def run_peer(protocol, request, text, finish, cuts):
    parse, whole = CLASSES[protocol]
    body = parse(json.dumps(request, ensure_ascii=False))
    options = recipe.ConversionOptions()
    extra = (body.namespace_tool_map(options), body.echo()) if protocol == "responses" else None
    converted = body.convert(options)
    generator = parse.chunk_generator(converted, "id-0", request["model"])
    if extra:
        generator = generator.with_namespace_tool_map(extra[0]).with_echo(extra[1])
    processor = recipe.StreamProcessor(generator, converted.parsing_options)
    events = processor.push(recipe.InferenceChunk.ready(prompt_usage=recipe.PromptUsage(prompt_tokens=20, prompt_cache_hit_tokens=12)))
    for a, b in zip([0] + cuts, cuts + [len(text)]):
        if not processor.finished:
            events += processor.push(recipe.InferenceChunk.text(text[a:b], 0))
    if finish != "none" and not processor.finished:
        events += processor.push(recipe.InferenceChunk.finish(REASONS[finish]))
    events += processor.finish()
    listed = [json.loads(e.to_json()) for e in events]
    response = whole("id-0", request["model"], 0, 20, 12)
    for e in events:
        response.accumulate(e)
    return listed, json.loads(response.to_json())


# ---- what is compared ----

def chat_events(chunks):
    out = []
    for c in chunks:
        choice = c["choices"][0]
        delta = dict(choice["delta"])
        if choice["finish_reason"] is None and "role" not in delta and "tool_calls" not in delta:
            kind = next(k for k in ("reasoning_content", "content") if delta.get(k) is not None)
            if out and out[-1][0] == kind:
                out[-1][1] += delta[kind]
                continue
            out.append([kind, delta[kind]])
            continue
        if "tool_calls" in delta:
            call = delta["tool_calls"][0]
            if "id" not in call:
                key = ("arguments", call["index"])
                if out and out[-1][0] == key:
                    out[-1][1] += call["function"]["arguments"]
                else:
                    out.append([key, call["function"]["arguments"]])
                continue
            delta = {"tool_calls": [dict(call, id="")]}
        out.append(["chunk", delta, choice["finish_reason"], choice["logprobs"], c.get("usage"), sorted(c)])
    return out


def chat_body(b):
    b = json.loads(json.dumps(b))
    b["created"] = 0
    for call in b["choices"][0]["message"].get("tool_calls") or []:
        call["id"] = ""
        call.pop("index", None)
    return b


def strip_item(item, added):
    item = dict(item)
    if "call_id" in item:
        item["call_id"] = ""
    item.pop("encrypted_content", None)
    if added:
        item.pop("phase", None)
    return item


def same_status(items):
    """How a call's item ended is ours to say (difference 6)."""
    return [dict(i, status="") if i["type"] == "function_call" else i for i in items]


def strip_response(r, keys):
    r = {k: v for k, v in r.items() if k in keys}
    r["created_at"] = 0
    r["completed_at"] = r["completed_at"] is not None
    r["output"] = same_status([strip_item(i, False) for i in r["output"]])
    return r


RESPONSE_KEYS = ("id", "object", "created_at", "status", "completed_at", "error", "incomplete_details", "model", "output", "usage")


def responses_events(events):
    out = []
    for n, e in enumerate(events):
        assert e.pop("sequence_number") == n
        e = dict(e)
        e.pop("name", None)  # we name the function in arguments.done too
        if e["type"].endswith(".delta"):
            if out and out[-1]["type"] == e["type"] and out[-1]["item_id"] == e["item_id"]:
                out[-1]["delta"] += e["delta"]
                continue
        elif "response" in e:
            e["response"] = strip_response(e["response"], RESPONSE_KEYS)
        elif "item" in e:
            e["item"] = same_status([strip_item(e["item"], e["type"].endswith("added"))])[0]
        out.append(e)
    return out


def responses_body(b):
    return strip_response(b, RESPONSE_KEYS)


def messages_events(events):
    out = []
    for e in events:
        e = json.loads(json.dumps(e))
        if e["type"] == "content_block_delta" and out and out[-1]["type"] == e["type"] and out[-1]["delta"]["type"] == e["delta"]["type"]:
            key = next(k for k in e["delta"] if k != "type")
            out[-1]["delta"][key] += e["delta"][key]
            continue
        if e["type"] == "content_block_start" and "id" in e["content_block"]:
            e["content_block"]["id"] = ""
        out.append(e)
    return out


def messages_body(b):
    b = json.loads(json.dumps(b))
    for block in b["content"]:
        if "id" in block:
            block["id"] = ""
    return b


EVENTS = {"chat": chat_events, "responses": responses_events, "messages": messages_events}
BODY = {"chat": chat_body, "responses": responses_body, "messages": messages_body}


def ours(deepserve, protocol, encoding, lines, stream):
    done = deepserve("parse", "--protocol", protocol, "--encoding", encoding, "--jsonl", "--prompt-tokens", 20, "--cached-tokens", 12,
                     "--set", "eof_is_stop=true", *(["--stream"] if stream else []),
                     stdin="".join(json.dumps(x) + "\n" for x in lines).encode(), timeout=240)
    assert done.returncode == 0, done.stderr
    out = [json.loads(x) for x in done.stdout.decode().split("\n")[:-1]]
    assert len(out) == len(lines)
    return out


def strip_json(x, key=None):
    """JSON mode: the peer has spaces where text was dropped (difference 1)."""
    if isinstance(x, dict):
        return {k: strip_json(v, k) for k, v in x.items()}
    if isinstance(x, list):
        return [strip_json(v, "text" if x[0] == "content" else None) for v in x]
    return x.strip() if key in ("text", "delta", "content") and isinstance(x, str) else x


# The peer loses one of several newlines before a marker when they follow half of one (difference 2).
HALF = re.compile("<(｜(D(S(M(L)?)?)?)?|/(t(h(i(n(k)?)?)?)?)?)?\n")


def unwrap(events):
    return [e["data"] if "event" in e else e for e in events]


@pytest.mark.parametrize("encoding", ["v4", "v4.1"])
@pytest.mark.parametrize("protocol", list(CLASSES))
def test_same_as_peer(deepserve, protocol, encoding):
    lines, peer = [], []
    seed = 0
    while len(lines) < EACH:
        seed += 1
        o = Output(f"{protocol} {encoding} {seed}", protocol, encoding == "v4")
        request, finish = o.request(), o.finish()
        text = o.broken() if seed % 2 and not o.json else o.whole()
        if HALF.search(text):
            continue
        cuts = sorted(o.r.sample(range(len(text) + 1), min(len(text), o.r.randint(0, 6))))
        lines.append({"request": request, "text": text, "split": o.r.choice((0, 1, 2, 3, 5, 16)), "finish": finish})
        peer.append(run_peer(protocol, request, text, finish, cuts))
    events, bodies = ours(deepserve, protocol, encoding, lines, True), ours(deepserve, protocol, encoding, lines, False)
    for line, (peer_events, peer_body), our_events, our_body in zip(lines, peer, events, bodies):
        pairs = [(EVENTS[protocol](peer_events), EVENTS[protocol](unwrap(our_events))), (BODY[protocol](peer_body), BODY[protocol](our_body))]
        if "json_object" in json.dumps(line["request"]):
            pairs = [(strip_json(a), strip_json(b)) for a, b in pairs]
        for theirs, mine in pairs:
            assert mine == theirs, json.dumps(line, ensure_ascii=False)
