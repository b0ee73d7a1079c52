"""The official Python SDKs against the server: every endpoint, streamed and not, and errors by class."""
import threading

import pytest

from client_lib import client
from server_lib import Server, call_block, calls, make_model

openai = pytest.importorskip("openai", reason="openai isn't installed (tests/requirements.txt)")
anthropic = pytest.importorskip("anthropic", reason="anthropic isn't installed (tests/requirements.txt)")

THINK = "Let me think.\n</think>\n\n"
TWO = calls(call_block("get_weather", city="Paris"), call_block("get_weather", city="日本", days=[1, 2]))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["city"]}
REPLAY = [
    {"when": "case-tools", "text": THINK + "I look." + TWO, "repeat": True},
    {"when": "case-long", "text": "word " * 700, "repeat": True},
    {"when": "case-json", "text": 'x</think>\n\n{"a": [1, 2]}', "repeat": True},
    {"when": "case-plain", "text": "Grüße, 日本 🦀!", "repeat": True},
    {"when": "case-stop", "text": "x</think>\n\none END two", "repeat": True},
    {"text": THINK + "Hello, 日本 🦀!", "repeat": True},
]


@pytest.fixture(scope="module")
def server(program, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdk")
    with Server(program, make_model(program, root, folder / "model"), replay=REPLAY, folder=folder, step=200) as s:
        yield s


@pytest.fixture(scope="module")
def oai(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def ant(server):
    return anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0, timeout=120)


def user(text):
    return [{"role": "user", "content": text}]


CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}]


# ---- Chat Completions ----

def test_chat(oai):
    r = oai.chat.completions.create(model="any-name", messages=user("hi"))
    m = r.choices[0].message
    assert (m.content, m.reasoning_content, r.choices[0].finish_reason, r.model) == ("Hello, 日本 🦀!", "Let me think.\n", "stop", "any-name") or m.reasoning_content == "Let me think."
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and r.id.startswith("chatcmpl-") and r._request_id.startswith("req_")


def test_chat_stream(oai):
    text = thought = ""
    last = None
    for chunk in oai.chat.completions.create(model="m", messages=user("hi"), stream=True, stream_options={"include_usage": True}):
        d = chunk.choices[0].delta
        text += d.content or ""
        thought += getattr(d, "reasoning_content", None) or ""
        last = chunk
    assert text == "Hello, 日本 🦀!" and thought.strip() == "Let me think." and last.choices[0].finish_reason == "stop" and last.usage.completion_tokens > 20


@pytest.mark.parametrize("stream", [False, True])
def test_chat_tools(oai, stream):
    kw = dict(model="m", messages=user("case-tools"), tools=CHAT_TOOLS)
    if stream:
        with oai.chat.completions.stream(**kw) as s:
            c = s.get_final_completion().choices[0]
    else:
        c = oai.chat.completions.create(**kw).choices[0]
    assert c.finish_reason == "tool_calls" and c.message.content == "I look."
    assert [(t.function.name, t.function.arguments) for t in c.message.tool_calls] == [("get_weather", '{"city": "Paris"}'), ("get_weather", '{"city": "日本", "days": [1, 2]}')]
    # and the next turn
    history = user("next") + [{"role": "assistant", "content": c.message.content, "tool_calls": [t.model_dump(include={"id", "type", "function"}) for t in c.message.tool_calls]}]
    history += [{"role": "tool", "tool_call_id": t.id, "content": "sunny"} for t in c.message.tool_calls]
    assert oai.chat.completions.create(model="m", messages=history, tools=CHAT_TOOLS).choices[0].message.content == "Hello, 日本 🦀!"


def test_chat_options(oai):
    r = oai.chat.completions.create(model="m", messages=user("case-plain"), n=3, seed=1, extra_body={"thinking": {"type": "disabled"}}, logprobs=True, top_logprobs=2)
    assert [c.index for c in r.choices] == [0, 1, 2] and all(c.message.content == "Grüße, 日本 🦀!" for c in r.choices)
    content = r.choices[1].logprobs.content
    assert bytes(b for t in content for b in t.bytes).decode() == "Grüße, 日本 🦀!" and len(content[0].top_logprobs) == 2
    assert oai.chat.completions.create(model="m", messages=user("case-stop"), stop="END").choices[0].message.content == "one "
    c = oai.chat.completions.create(model="m", messages=user("case-long"), max_completion_tokens=10)
    assert c.choices[0].finish_reason == "length" and c.usage.completion_tokens == 10
    r = oai.chat.completions.create(model="m", messages=user("case-json json"), response_format={"type": "json_object"})
    assert r.choices[0].message.content == '{"a": [1, 2]}'


def test_chat_cancel(server, oai):
    before = server.metrics()["client_disconnected_total"]
    s = oai.chat.completions.create(model="m", messages=user("case-long"), stream=True)
    next(iter(s))
    s.close()
    assert server.wait_metric("client_disconnected_total", before + 1) == before + 1
    assert server.wait_metric("num_requests_running", 0) == 0


# ---- Responses ----

def test_responses(oai):
    r = oai.responses.create(model="m", input="hi", instructions="Be nice.")
    assert r.output_text == "Hello, 日本 🦀!" and [i.type for i in r.output] == ["reasoning", "message"] and r.status == "completed"
    again = oai.responses.create(model="m", input="more", previous_response_id=r.id)
    assert again.previous_response_id == r.id and again.usage.input_tokens > r.usage.input_tokens
    assert oai.responses.retrieve(r.id).output_text == r.output_text
    items = oai.responses.input_items.list(again.id, order="asc")
    newest = [i.id for i in oai.responses.input_items.list(again.id, limit=3)]  # iterating fetches the next page, after the last
    assert newest == [i.id for i in items.data][::-1]
    for wrong in ({"limit": 101}, {"limit": 0}, {"order": "up"}, {"after": "nobody"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))) as e:
            oai.responses.input_items.list(again.id, **wrong)
        assert e.value.param == next(iter(wrong))
    assert [(type(i).__name__, i.content[0].type, i.content[0].text) for i in items.data if getattr(i, "role", "") == "user"] == [("ResponseInputMessageItem", "input_text", "hi"), ("ResponseInputMessageItem", "input_text", "more")]
    assert len({i.id for i in items.data}) == len(items.data) == 4 and (items.first_id, items.last_id) == (items.data[0].id, items.data[-1].id)
    assert {i.id for i in r.output} <= {i.id for i in items.data} and items.has_more is False
    oai.responses.delete(r.id)
    with pytest.raises(openai.NotFoundError):
        oai.responses.retrieve(r.id)
    with pytest.raises(openai.NotFoundError):
        oai.responses.create(model="m", input="more", previous_response_id=r.id)
    kept = oai.responses.create(model="m", input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        oai.responses.retrieve(kept.id)


def test_responses_stream(oai):
    tools = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
    with oai.responses.stream(model="m", input="case-tools", tools=tools, include=["reasoning.encrypted_content"]) as s:
        kinds = [e.type for e in s]
        r = s.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert [i.type for i in r.output] == ["reasoning", "message", "function_call", "function_call"] and r.output[0].encrypted_content
    # the client keeps the state: reasoning comes back sealed
    items = [{"role": "user", "content": "hi"}, {"type": "reasoning", "id": r.output[0].id, "summary": [], "encrypted_content": r.output[0].encrypted_content}]
    items += [i.model_dump(exclude_none=True, exclude={"status", "parsed_arguments"}) for i in r.output[2:]]
    items += [{"type": "function_call_output", "call_id": i.call_id, "output": "sunny"} for i in r.output[2:]]
    assert oai.responses.create(model="m", input=items, tools=tools, store=False).output_text == "Hello, 日本 🦀!"
    # retrieval right after the stream
    assert [i.type for i in oai.responses.retrieve(r.id).output] == [i.type for i in r.output]


# ---- completions ----

def test_completions(oai):
    r = oai.completions.create(model="m", prompt=["case-plain", "case-plain too"], n=2, logprobs=1)
    assert [c.index for c in r.choices] == [0, 1, 2, 3] and all(c.text == "Grüße, 日本 🦀!" for c in r.choices) and r.object == "text_completion"
    text, last = "", None
    for chunk in oai.completions.create(model="m", prompt="case-plain", stream=True):
        text += chunk.choices[0].text
        last = chunk
    assert text == "Grüße, 日本 🦀!" and last.choices[0].finish_reason == "stop" and last.usage
    assert oai.completions.create(model="m", prompt="case-plain", echo=True).choices[0].text == "case-plainGrüße, 日本 🦀!"
    assert oai.completions.create(model="m", prompt=[70, 71, 72], max_tokens=3).usage.prompt_tokens == 3


# ---- Messages ----

ANT_TOOLS = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]


@client("Anthropic's SDK", "anthropic", '`anthropic.Anthropic(base_url="http://127.0.0.1:8000", api_key="none")`')
def test_messages(ant):
    r = ant.messages.create(model="claude-x", max_tokens=100, messages=user("hi"), system="Be nice.")
    assert [b.type for b in r.content] == ["thinking", "text"] and r.content[1].text == "Hello, 日本 🦀!" and r.content[0].signature
    assert r.stop_reason == "end_turn" and r.model == "claude-x"
    n = ant.messages.count_tokens(model="m", messages=user("hi"), system="Be nice.").input_tokens
    assert n == r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0)
    r = ant.messages.create(model="m", max_tokens=100, messages=user("case-stop"), stop_sequences=["END"], thinking={"type": "enabled", "budget_tokens": 1024})
    assert (r.stop_reason, r.stop_sequence, r.content[-1].text) == ("stop_sequence", "END", "one ")


def test_messages_stream(ant):
    with ant.messages.stream(model="m", max_tokens=500, messages=user("case-tools"), tools=ANT_TOOLS) as s:
        kinds = [e.type for e in s]
        m = s.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and m.stop_reason == "tool_use"
    uses = [b for b in m.content if b.type == "tool_use"]
    assert [u.input for u in uses] == [{"city": "Paris"}, {"city": "日本", "days": [1, 2]}]
    history = user("next") + [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in m.content]},
                              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": u.id, "content": "sunny"} for u in uses]}]
    assert ant.messages.create(model="m", max_tokens=100, messages=history, tools=ANT_TOOLS).content[-1].text == "Hello, 日本 🦀!"


def test_models(oai, ant):
    assert [m.id for m in oai.models.list()] == ["model"] and oai.models.retrieve("model").id == "model"
    assert [m.id for m in ant.models.list()] == ["model"]
    with pytest.raises(openai.NotFoundError):
        oai.models.retrieve("org/other")


# ---- errors ----

def test_errors_by_class(oai, ant, server):
    with pytest.raises(openai.BadRequestError) as e:
        oai.chat.completions.create(model="m", messages=[{"role": "user", "content": [{"type": "video_url"}]}])
    assert e.value.param == "messages[0].content[0].type" and e.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as e:
        oai.chat.completions.create(model="m", messages=user("x" * 5000))
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        oai.chat.completions.create(model="m", messages=user("hi"), temperature=3)
    with pytest.raises(anthropic.BadRequestError) as a:
        ant.messages.create(model="m", max_tokens=0, messages=user("hi"))
    assert a.value.body["error"]["type"] == "invalid_request_error" and a.value.request_id.startswith("req_")


def test_overload_and_keys(program, root, tmp_path):
    model = make_model(program, root, tmp_path / "model")
    (tmp_path / "keys").write_text("a sha256:" + "0" * 64 + "\n")
    with Server(program, model, "--max-requests", 1, "--strict-model", replay=REPLAY, folder=tmp_path, step=20000) as s:
        o = openai.OpenAI(base_url=s.url + "/v1", api_key="k", max_retries=0)
        a = anthropic.Anthropic(base_url=s.url, api_key="k", max_retries=0)
        with pytest.raises(openai.NotFoundError) as e:
            o.chat.completions.create(model="gpt-9", messages=user("hi"))
        assert e.value.code == "model_not_found"
        running = o.chat.completions.create(model="model", messages=user("case-long"), stream=True)
        next(iter(running))
        with pytest.raises(openai.RateLimitError):
            o.chat.completions.create(model="model", messages=user("hi"))
        with pytest.raises(anthropic.APIStatusError) as e:
            a.messages.create(model="model", max_tokens=10, messages=user("hi"))
        assert e.value.status_code == 529 and e.value.body["error"]["type"] == "overloaded_error"
        # with retries a client gets through by itself
        end = threading.Timer(0.3, running.close)
        end.start()
        assert openai.OpenAI(base_url=s.url + "/v1", api_key="k", max_retries=20).chat.completions.create(model="model", messages=user("hi")).choices
        end.join()
    with Server(program, model, "--api-keys", tmp_path / "keys", replay=REPLAY, folder=tmp_path) as s:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=s.url + "/v1", api_key="k", max_retries=0).models.list()
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=s.url, api_key="k", max_retries=0).messages.create(model="m", max_tokens=10, messages=user("hi"))


def test_real_model(program, root, tmp_path):
    """Computed, not replayed: random weights, but the same greedy ids as `generate`, also by stream and with a prefix from the cache."""
    model = make_model(program, root, tmp_path / "model")
    with Server(program, model, "--threads", 1) as s:
        o = openai.OpenAI(base_url=s.url + "/v1", api_key="k", max_retries=0)
        kw = dict(model="m", messages=user("Tell me something about the sea. " * 12), max_tokens=24, temperature=0, logprobs=True,
                  logit_bias={"1": -100, "263": -100, "264": -100})  # nothing that would end its thinking
        whole, again = ([t["bytes"] for t in r.choices[0].logprobs.model_dump()["reasoning_content"]] for r in (o.chat.completions.create(**kw), o.chat.completions.create(**kw)))
        assert whole == again and len(whole) > 10
        again = o.chat.completions.create(**kw)
        assert again.usage.prompt_tokens_details.cached_tokens >= 128
        text = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in o.chat.completions.create(stream=True, **kw))
        assert text == again.choices[0].message.reasoning_content
