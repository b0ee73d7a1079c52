"""The official Python SDKs accept every event stream and body: they talk to a small server that answers with what `deepserve parse` makes of a given
model output, and their accumulated view is compared with it."""
import http.server
import json
import subprocess
import threading

import pytest

openai = pytest.importorskip("openai", reason="openai isn't installed")
anthropic = pytest.importorskip("anthropic", reason="anthropic isn't installed")

D = "｜DSML｜"


def call(name, **params):
    inner = "\n".join(f'<{D} parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">{v if isinstance(v, str) else json.dumps(v)}</{D} parameter>'
                      for k, v in params.items())
    return f'<{D} invoke name="{name}">\n{inner}\n</{D} invoke>'


def block(*calls):
    return f"\n\n<{D} calls>\n" + "\n".join(calls) + f"\n</{D} calls>"


# name: (model output in thinking mode, finish)
OUTPUTS = {
    "text": ("Let me think.\n</think>\n\nHello, 日本 🦀\u2028\u0085 end", "stop"),
    "one call": ("plan</think>\n\nI look." + block(call("f", city="Paris \"x\"\n", n=3)), "stop"),
    "many calls": ("plan</think>" + block(call("f", a=[1, {"b": None}]), call("g"), call("f", city="日本")), "stop"),
    "nothing": ("", "stop"),
    "only thinking": ("still thinking", "length"),
    "cut call": ("x</think>" + block(call("f", city="Par"))[:-60], "length"),
    "bad value": ("x</think>" + block(call("f").replace("\n\n", f'\n<{D} parameter name="a" string="false">NaN</{D} parameter>\n')), "stop"),
    "filter": ("x</think>bad", "content_filter"),
    "no reason": ("x</think>y", "none"),
    "stop": ("x</think>one END two", "stop"),
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        path = self.path.split("?")[0]
        protocol = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages", "/v1/completions": "completions"}[path]
        stream = json.loads(body).get("stream")
        request = self.server.folder / "request.json"
        request.write_bytes(body)
        text, finish = self.server.output
        done = subprocess.run([self.server.program, "parse", "--protocol", protocol, "--request", request, "--finish", finish, "--prompt-tokens", "20", "--cached-tokens", "12",
                               "--split", "3", *(["--sse"] if stream else [])], input=text.encode(), capture_output=True, timeout=240)
        assert done.returncode == 0, (done.stdout, done.stderr)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8" if stream else "application/json")
        self.send_header("content-length", str(len(done.stdout)))
        self.end_headers()
        self.wfile.write(done.stdout)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    s.program, s.folder, s.output = program, tmp_path_factory.mktemp("sdk"), None
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.shutdown()


@pytest.fixture(scope="module")
def openai_client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0)


@pytest.fixture(scope="module")
def anthropic_client(server):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="k", max_retries=0)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT = dict(model="m", messages=[{"role": "user", "content": "hi"}], stop=["END"],
            tools=[{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in ("f", "g")])
RESPONSES = dict(model="m", input="hi", tools=[{"type": "function", "name": n, "parameters": SCHEMA, "strict": False} for n in ("f", "g")], extra_body={"stop": ["END"]})
MESSAGES = dict(model="m", max_tokens=100, messages=[{"role": "user", "content": "hi"}], stop_sequences=["END"], tools=[{"name": n, "input_schema": SCHEMA} for n in ("f", "g")])


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("usage", [False, True])
def test_chat(server, openai_client, name, usage):
    server.output = OUTPUTS[name]
    whole = openai_client.chat.completions.create(**CHAT)
    text, reasoning, calls, finish, last = "", "", {}, None, None
    for chunk in openai_client.chat.completions.create(**CHAT, stream=True, **({"stream_options": {"include_usage": True}} if usage else {})):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for c in choice.delta.tool_calls or []:
            entry = calls.setdefault(c.index, {"id": "", "name": "", "arguments": ""})
            entry["id"] += c.id or ""
            entry["name"] += c.function.name or ""
            entry["arguments"] += c.function.arguments or ""
        finish = choice.finish_reason or finish
        last = chunk
    message = whole.choices[0].message
    assert text == message.content and reasoning == message.reasoning_content and finish == whole.choices[0].finish_reason
    assert [dict(id=c.id, name=c.function.name, arguments=c.function.arguments) for c in message.tool_calls or []] == list(calls.values())
    assert last.usage.prompt_tokens == 20 and last.usage.prompt_tokens_details.cached_tokens == 12
    if name == "many calls":
        assert [json.loads(c["arguments"]) for c in calls.values()] == [{"a": [1, {"b": None}]}, {}, {"city": "日本"}]
    if name == "text":
        assert text == "Hello, 日本 🦀\u2028\u0085 end"


def test_chat_helper(server, openai_client):
    """The SDK's own accumulation."""
    for name in ("text", "one call", "many calls"):
        server.output = OUTPUTS[name]
        with openai_client.chat.completions.stream(**CHAT) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        assert final.choices[0].finish_reason == ("stop" if name == "text" else "tool_calls")
        for c in final.choices[0].message.tool_calls or []:
            assert isinstance(json.loads(c.function.arguments), dict)


@pytest.mark.parametrize("name", OUTPUTS)
def test_responses(server, openai_client, name):
    server.output = OUTPUTS[name]
    whole = openai_client.responses.create(**RESPONSES)
    numbers, items, final = [], [], None
    for event in openai_client.responses.create(**RESPONSES, stream=True):
        assert type(event).__name__.startswith("Response")  # a known event, not a bare model
        numbers.append(event.sequence_number)
        if event.type == "response.output_item.done":
            items.append(event.item)
        if event.type in ("response.completed", "response.incomplete"):
            final = event.response
    assert numbers == list(range(len(numbers)))
    assert final.to_dict() == whole.to_dict()
    assert [i.to_dict() for i in items] == [i.to_dict() for i in whole.output]
    assert final.usage.input_tokens_details.cached_tokens == 12 and final.usage.output_tokens_details.reasoning_tokens == 0
    assert final.status == ("incomplete" if OUTPUTS[name][1] in ("length", "content_filter") else "completed")


def test_responses_helper(server, openai_client):
    for name in ("text", "one call", "only thinking"):
        server.output = OUTPUTS[name]
        with openai_client.responses.stream(**RESPONSES) as stream:
            for event in stream:
                last = event
        assert last.type in ("response.completed", "response.incomplete")
        if name == "text":
            assert last.response.output_text == "Hello, 日本 🦀\u2028\u0085 end"


@pytest.mark.parametrize("name", OUTPUTS)
def test_messages(server, anthropic_client, name):
    server.output = OUTPUTS[name]
    whole = anthropic_client.messages.create(**MESSAGES)
    with anthropic_client.messages.stream(**MESSAGES) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    got, want = final.to_dict(), whole.to_dict()
    for m in (got, want):
        m.pop("stop_details", None)
        for b in m["content"]:
            b.pop("parsed_output", None)
    if name == "cut call":  # the SDK guesses at the rest of the input; the body says {}
        got["content"][-1]["input"] = {}
    assert got == want
    assert final.usage.input_tokens == 8 and final.usage.cache_read_input_tokens == 12
    for b in final.content:
        if b.type == "thinking":
            assert b.signature
    if name == "stop":
        assert final.stop_reason == "stop_sequence" and final.stop_sequence == "END"


def test_completions(server, openai_client):
    server.output = ("one </think> two END three", "stop")
    kw = dict(model="m", prompt="say", stop=["END"])
    whole = openai_client.completions.create(**kw)
    text = "".join(c.choices[0].text for c in openai_client.completions.create(**kw, stream=True))
    assert text == whole.choices[0].text == "one </think> two "
    assert whole.usage.prompt_tokens == 20
