"""Libraries for structured output and agents, as shipped, against the server. The model's outputs are recorded: what is tested is that requests and answers fit.

What forces a strict schema is skipped on a server that has no constrained decoder."""
import json

import pytest

from client_lib import CLIENTS, client, written
from server_lib import Server, call_block, calls, make_model

ANSWER = {"who": "Ada", "age": 36}
PARIS = calls(call_block("get_weather", city="Paris"))
REPLAY = [  # the first line whose text is in the request
    {"when": "Sunny, 21", "text": "</think>It is sunny.", "repeat": True},
    {"when": '"final_result"', "text": call_block("final_result", **ANSWER) + "\n</｜DSML｜ calls>", "repeat": True},
    {"when": '"name":"Person"', "text": call_block("Person", **ANSWER) + "\n</｜DSML｜ calls>", "repeat": True},
    {"when": "plain json", "text": "x</think>" + json.dumps(ANSWER), "repeat": True},
    {"when": '"strict":true', "text": json.dumps(ANSWER), "repeat": True},
    {"when": "final_answer", "text": PARIS, "repeat": True},
    {"when": "get_weather", "text": "I ask.</think>" + PARIS, "repeat": True},
    {"text": "x</think>Hello!", "repeat": True},
]


@pytest.fixture(scope="module")
def server(program, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("libraries")
    with Server(program, make_model(program, root, folder / "model"), "--context", 1 << 18, replay=REPLAY, folder=folder) as s:
        yield s


def need(module, package):
    return pytest.importorskip(module, reason=f"{package} isn't installed (tests/requirements.txt, tests/requirements-nightly.txt)")


def person():
    pydantic = need("pydantic", "pydantic")
    return pydantic.create_model("Person", who=(str, ...), age=(int, ...))


def constrains(server):
    body = {"model": "m", "messages": [{"role": "user", "content": "json"}], "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "strict": True, "schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}}}}
    return server.request("POST", "/v1/chat/completions", body)[0] == 200


def strict(server):
    if not constrains(server):
        pytest.skip("this server has no constrained decoder")


@client("instructor", "instructor", '`instructor.from_openai(openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"))`; modes TOOLS, JSON, MD_JSON')
def test_instructor(server):
    instructor, openai = need("instructor", "instructor"), need("openai", "openai")
    raw = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.MD_JSON):
        made = instructor.from_openai(raw, mode=mode)
        if mode == instructor.Mode.TOOLS:
            got = made.chat.completions.create(model="m", response_model=person(), max_retries=0, messages=[{"role": "user", "content": "Ada is 36."}])
        else:
            got = made.chat.completions.create(model="m", response_model=person(), max_retries=0, messages=[{"role": "user", "content": "Ada is 36, in plain json."}])
        assert got.model_dump() == ANSWER


@client("pydantic-ai", "pydantic-ai-slim", '`OpenAIChatModel("m", provider=OpenAIProvider(base_url="http://127.0.0.1:8000/v1", api_key="none"))`')
def test_pydantic_ai(server):
    need("pydantic_ai", "pydantic-ai-slim")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=server.url + "/v1", api_key="k"))
    assert Agent(model).run_sync("hi").output == "Hello!"
    if not constrains(server):
        return  # it declares its tools as strict
    assert Agent(model, output_type=person()).run_sync("Ada is 36.").output.model_dump() == ANSWER
    agent = Agent(model)
    asked = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        asked.append(city)
        return "Sunny, 21"

    assert agent.run_sync("Weather in Paris?").output == "It is sunny." and asked == ["Paris"]


@client("smolagents", "smolagents", '`OpenAIServerModel(model_id="m", api_base="http://127.0.0.1:8000/v1", api_key="none")`')
def test_smolagents(server):
    smolagents = need("smolagents", "smolagents")
    model = smolagents.OpenAIServerModel(model_id="m", api_base=server.url + "/v1", api_key="k")
    assert model([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]).content == "Hello!"

    @smolagents.tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return "rain"

    said = model([{"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]}], tools_to_call_from=[get_weather])
    assert [(c.function.name, json.loads(c.function.arguments) if isinstance(c.function.arguments, str) else c.function.arguments) for c in said.tool_calls] == \
        [("get_weather", {"city": "Paris"})]


@client("LangChain, ChatOpenAI", "langchain-openai", '`ChatOpenAI(model="m", base_url="http://127.0.0.1:8000/v1", api_key="none")`')
def test_langchain_openai_structured(server):
    lc = need("langchain_openai", "langchain-openai")
    m = lc.ChatOpenAI(model="m", base_url=server.url + "/v1", api_key="k", max_retries=0)
    assert m.with_structured_output(person(), method="function_calling").invoke("Ada is 36.").model_dump() == ANSWER
    assert m.with_structured_output(person(), method="json_mode").invoke("Ada is 36, as plain json.").model_dump() == ANSWER
    if constrains(server):
        assert m.with_structured_output(person(), method="json_schema").invoke("Ada is 36.").model_dump() == ANSWER


@client("LangChain, ChatAnthropic", "langchain-anthropic", '`ChatAnthropic(model="m", base_url="http://127.0.0.1:8000", api_key="none")`')
def test_langchain_anthropic_structured(server):
    la = need("langchain_anthropic", "langchain-anthropic")
    m = la.ChatAnthropic(model="claude-x", base_url=server.url, api_key="k", max_retries=0)
    assert m.with_structured_output(person()).invoke("Ada is 36.").model_dump() == ANSWER


@client("openai-agents", "openai-agents", '`OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"))`; `set_tracing_disabled(True)`')
def test_openai_agents(server):
    agents, openai = need("agents", "openai-agents"), need("openai", "openai")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel(model="m", openai_client=openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0))
    assert agents.Runner.run_sync(agents.Agent(name="a", model=model), "hi").final_output == "Hello!"

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "Sunny, 21"

    loose = agents.function_tool(get_weather, strict_mode=False)
    assert agents.Runner.run_sync(agents.Agent(name="a", model=model, tools=[loose]), "Weather in Paris?").final_output == "It is sunny."
    if constrains(server):
        as_shipped = agents.Agent(name="a", model=model, tools=[agents.function_tool(get_weather)])
        assert agents.Runner.run_sync(as_shipped, "Weather in Paris?").final_output == "It is sunny."


@client("openai, `.parse`", "openai", '`openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")`')
def test_openai_parse(server):
    openai = need("openai", "openai")
    strict(server)
    o = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)
    said = o.chat.completions.parse(model="m", messages=[{"role": "user", "content": "Ada is 36."}], response_format=person())
    assert said.choices[0].message.parsed.model_dump() == ANSWER
    assert o.responses.parse(model="m", input="Ada is 36.", text_format=person()).output_parsed.model_dump() == ANSWER


def test_table():
    """docs/server.md lists the clients that are tested, with the settings of their tests."""
    for module in ("test_server_agents", "test_server_clients", "test_server_sdk"):
        __import__(module)
    assert {name: settings for name, (settings, _, _) in CLIENTS.items()} == {name: settings for name, (settings, _) in written().items()}, \
        "docs/server.md: tests/e2e/client_lib.py --write"


def test_nobody_needs_more(root):
    """The packages named here are in a list that CI or the nightly run installs."""
    lists = "".join((root / "tests" / name).read_text() for name in ("requirements.txt", "requirements-nightly.txt"))
    assert all(f"{package}==" in lists or f"{package}[" in lists for _, package, _ in CLIENTS.values())
