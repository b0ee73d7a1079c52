"""LiteLLM and LangChain against the server, and generated requests that hold or break the OpenAPI document."""
import typing

import pytest

from client_lib import client
from server_lib import Server, call_block, calls, make_model

REPLAY = [
    {"when": "get_weather", "text": "x</think>\n\n" + calls(call_block("get_weather", city="Paris")), "repeat": True},
    {"text": "Let me think.\n</think>\n\nHello!", "repeat": True},
]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


@pytest.fixture(scope="module")
def server(program, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    with Server(program, make_model(program, root, folder / "model"), "--context", 1 << 18, replay=REPLAY, folder=folder) as s:
        yield s


@client("LiteLLM", "litellm", '`litellm.completion(model="openai/m", api_base="http://127.0.0.1:8000/v1", api_key="none")`; `deepseek/…` and `anthropic/…` without `/v1`')
def test_litellm(server, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm", reason="litellm isn't installed (tests/requirements.txt)")
    messages = [{"role": "user", "content": "hi"}]
    for kw in ({"model": "openai/m", "api_base": server.url + "/v1"}, {"model": "deepseek/deepseek-chat", "api_base": server.url}, {"model": "anthropic/claude-x", "api_base": server.url}):
        assert litellm.completion(messages=messages, api_key="k", **kw).choices[0].message.content == "Hello!"
        text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(messages=messages, api_key="k", stream=True, **kw))
        assert text == "Hello!"
        r = litellm.completion(messages=messages, api_key="k", tools=[TOOL], **kw)
        assert r.choices[0].finish_reason == "tool_calls" and r.choices[0].message.tool_calls[0].function.arguments.replace(" ", "") == '{"city":"Paris"}'


def test_litellm_structured(program, root, monkeypatch):
    """A pydantic model as response_format, and a forced strict tool, by four ways; the demonstration model answers."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm", reason="litellm isn't installed (tests/requirements.txt)")
    import pydantic
    made = pydantic.create_model("Weather", sky=(typing.Literal["sun", "rain"], ...), cold=(bool, ...))
    tool = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {**made.model_json_schema(), "additionalProperties": False}}}
    with Server(program, root / "models/demo", "--threads", 2) as s:
        for model, base in (("openai/m", s.url + "/v1"), ("hosted_vllm/m", s.url + "/v1"), ("deepseek/m", s.url), ("anthropic/claude-sonnet-4-5", s.url)):
            ask = {"model": model, "api_base": base, "api_key": "k", "max_tokens": 400, "messages": [{"role": "user", "content": "The weather?"}]}
            assert made.model_validate_json(litellm.completion(response_format=made, **ask).choices[0].message.content)
            call = litellm.completion(tools=[tool], tool_choice="required", **ask).choices[0].message.tool_calls[0]
            assert made.model_validate_json(call.function.arguments)


def test_langchain(server):
    lc = pytest.importorskip("langchain_openai", reason="langchain-openai isn't installed (tests/requirements.txt)")
    m = lc.ChatOpenAI(model="m", base_url=server.url + "/v1", api_key="k", max_retries=0)
    assert m.invoke("hi").content == "Hello!"
    assert "".join(c.content for c in m.stream("hi")) == "Hello!"
    assert m.bind_tools([TOOL]).invoke("hi").tool_calls[0]["args"] == {"city": "Paris"}
    la = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic isn't installed (tests/requirements.txt)")
    a = la.ChatAnthropic(model="claude-x", base_url=server.url, api_key="k", max_retries=0)
    assert a.invoke("hi").text == "Hello!" or "Hello!" in str(a.invoke("hi").content)
    assert a.bind_tools([{"name": "get_weather", "description": "Weather", "input_schema": TOOL["function"]["parameters"]}]).invoke("hi").tool_calls[0]["args"] == {"city": "Paris"}


def test_document(server):
    """Every path of the document is served, and every answer to generated requests, good and bad, is one that it allows."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis isn't installed (tests/requirements.txt)")
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
    hypothesis = pytest.importorskip("hypothesis")
    schema = schemathesis.openapi.from_dict(server.request("GET", "/openapi.json")[2])
    schema.config.update(base_url=server.url)
    seen = set()
    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.settings(max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(case=operation.as_strategy())
        def check(case):
            response = case.call(timeout=120)
            assert response.status_code < 500, (case.method, case.path, response.status_code, response.text)
            case.validate_response(response, checks=[response_schema_conformance, content_type_conformance])
            declared = operation.definition.raw["responses"]
            assert str(response.status_code) in declared, (case.method, case.path, response.status_code, response.text)

        check()
        seen.add(operation.label)
    assert len(seen) >= 19
