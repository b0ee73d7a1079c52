"""Libraries for structured output and agents, as shipped, against the server. Where outputs are recorded, what is tested is that requests and answers fit; where the demonstration
model answers, that what a library asks for holds whatever the model would rather say: it draws at temperature 1, and knows nothing of the question."""
import json
import typing

import pytest

from client_lib import CLIENTS, client, written
from server_lib import Server, call_block, calls, make_model

ANSWER = {"who": "Ada", "age": 36}
PARIS = calls(call_block("get_weather", city="Paris"))
REPLAY = [  # the first line whose text is in the request
    {"when": "Sunny, 21", "text": "</think>It is sunny.", "repeat": True},
    {"when": '"name":"Person"', "text": call_block("Person", **ANSWER) + "\n</｜DSML｜ calls>", "repeat": True},
    {"when": "plain json", "text": "x</think>" + json.dumps(ANSWER), "repeat": True},
    {"when": "final_answer", "text": PARIS, "repeat": True},
    {"when": "get_weather", "text": "I ask.</think>" + PARIS, "repeat": True},
    {"text": "x</think>Hello!", "repeat": True},
]


@pytest.fixture(scope="module")
def server(program, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("libraries")
    with Server(program, make_model(program, root, folder / "model"), "--context", 1 << 18, replay=REPLAY, folder=folder) as s:
        yield s


@pytest.fixture(scope="module")
def held(program, root):
    """With a constrained decoder."""
    with Server(program, root / "models/demo", "--threads", 2) as s:
        yield s


def need(module, package):
    return pytest.importorskip(module, reason=f"{package} isn't installed (tests/requirements.txt, tests/requirements-nightly.txt)")


def person():
    pydantic = need("pydantic", "pydantic")
    return pydantic.create_model("Person", who=(str, ...), age=(int, ...))


def weather():
    """Every answer that fits is short."""
    pydantic = need("pydantic", "pydantic")
    return pydantic.create_model("Weather", sky=(typing.Literal["sun", "rain"], ...), cold=(bool, ...))


def openai_client(server):
    return need("openai", "openai").OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)


@client("instructor", "instructor", '`instructor.from_openai(openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"))`; modes TOOLS, TOOLS_STRICT, JSON_SCHEMA, RESPONSES_TOOLS; JSON and MD_JSON only ask')
def test_instructor(server, held):
    instructor, raw, made = need("instructor", "instructor"), openai_client(server), weather()
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA, instructor.Mode.RESPONSES_TOOLS):
        client = instructor.from_openai(openai_client(held), mode=mode)
        assert isinstance(client.chat.completions.create(model="m", response_model=made, max_retries=0, messages=[{"role": "user", "content": "The weather?"}]), made)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.MD_JSON):
        made = instructor.from_openai(raw, mode=mode)
        if mode == instructor.Mode.TOOLS:
            got = made.chat.completions.create(model="m", response_model=person(), max_retries=0, messages=[{"role": "user", "content": "Ada is 36."}])
        else:
            got = made.chat.completions.create(model="m", response_model=person(), max_retries=0, messages=[{"role": "user", "content": "Ada is 36, in plain json."}])
        assert got.model_dump() == ANSWER


@client("pydantic-ai", "pydantic-ai-slim", '`OpenAIChatModel("m", provider=OpenAIProvider(base_url="http://127.0.0.1:8000/v1", api_key="none"))`')
def test_pydantic_ai(server, held):
    need("pydantic_ai", "pydantic-ai-slim")
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    made, provider = weather(), OpenAIProvider(base_url=held.url + "/v1", api_key="k")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        for output in (made, NativeOutput(made)):
            assert isinstance(Agent(kind("m", provider=provider), output_type=output).run_sync("The weather?").output, made)
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=server.url + "/v1", api_key="k"))
    assert Agent(model).run_sync("hi").output == "Hello!"
    agent = Agent(model)
    asked = []

    @agent.tool_plain(strict=False)  # what is recorded isn't held to anything
    def get_weather(city: str) -> str:
        asked.append(city)
        return "Sunny, 21"

    assert agent.run_sync("Weather in Paris?").output == "It is sunny." and asked == ["Paris"]


@client("smolagents", "smolagents", '`OpenAIServerModel(model_id="m", api_base="http://127.0.0.1:8000/v1", api_key="none")`')
def test_smolagents(server, held):
    smolagents = need("smolagents", "smolagents")
    model, other = (smolagents.OpenAIServerModel(model_id="m", api_base=s.url + "/v1", api_key="k") for s in (server, held))
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
    said = other([{"role": "user", "content": [{"type": "text", "text": "Rain?"}]}], tools_to_call_from=[get_weather], max_tokens=400)
    assert said.tool_calls[0].function.name == "get_weather"  # the call is forced, its arguments aren't strict
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": weather().model_json_schema()}}
    weather().model_validate_json(other([{"role": "user", "content": [{"type": "text", "text": "Rain?"}]}], response_format=wanted).content)


@client("LangChain, ChatOpenAI", "langchain-openai", '`ChatOpenAI(model="m", base_url="http://127.0.0.1:8000/v1", api_key="none")`')
def test_langchain_openai_structured(server, held):
    lc = need("langchain_openai", "langchain-openai")
    m = lc.ChatOpenAI(model="m", base_url=server.url + "/v1", api_key="k", max_retries=0)
    assert m.with_structured_output(person(), method="function_calling").invoke("Ada is 36.").model_dump() == ANSWER
    assert m.with_structured_output(person(), method="json_mode").invoke("Ada is 36, as plain json.").model_dump() == ANSWER
    made, m = weather(), lc.ChatOpenAI(model="m", base_url=held.url + "/v1", api_key="k", max_retries=0)
    for how in ({"method": "json_schema"}, {"method": "json_schema", "strict": False}, {"method": "function_calling"}, {"method": "function_calling", "strict": True}):
        assert isinstance(m.with_structured_output(made, **how).invoke("The weather?"), made), how


@client("LangChain, ChatAnthropic", "langchain-anthropic", '`ChatAnthropic(model="m", base_url="http://127.0.0.1:8000", api_key="none")`')
def test_langchain_anthropic_structured(server, held):
    la = need("langchain_anthropic", "langchain-anthropic")
    m = la.ChatAnthropic(model="claude-x", base_url=server.url, api_key="k", max_retries=0)
    assert m.with_structured_output(person()).invoke("Ada is 36.").model_dump() == ANSWER
    made, m = weather(), la.ChatAnthropic(model="claude-x", base_url=held.url, api_key="k", max_retries=0)
    for method in ("function_calling", "json_schema"):
        assert isinstance(m.with_structured_output(made, method=method).invoke("The weather?"), made), method


@client("openai-agents", "openai-agents", '`OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"))`; `set_tracing_disabled(True)`')
def test_openai_agents(server, held):
    agents, openai = need("agents", "openai-agents"), need("openai", "openai")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel(model="m", openai_client=openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0))
    assert agents.Runner.run_sync(agents.Agent(name="a", model=model), "hi").final_output == "Hello!"

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "Sunny, 21"

    loose = agents.function_tool(get_weather, strict_mode=False)
    assert agents.Runner.run_sync(agents.Agent(name="a", model=model, tools=[loose]), "Weather in Paris?").final_output == "It is sunny."

    @agents.function_tool
    def where(city: typing.Literal["Rome", "Oslo"]) -> str:
        """The weather of a city."""
        return city

    made, other = weather(), openai.AsyncOpenAI(base_url=held.url + "/v1", api_key="k", max_retries=0)
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        model = kind(model="m", openai_client=other)
        assert isinstance(agents.Runner.run_sync(agents.Agent(name="a", model=model, output_type=made), "The weather?").final_output, made)
        forced = agents.Agent(name="a", model=model, tools=[where], tool_use_behavior="stop_on_first_tool", model_settings=agents.ModelSettings(tool_choice="required"))
        assert agents.Runner.run_sync(forced, "The weather?").final_output in ("Rome", "Oslo")


@client("openai, `.parse`", "openai", '`openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")`')
def test_openai_parse(held):
    openai, o, made, ask = need("openai", "openai"), openai_client(held), weather(), [{"role": "user", "content": "The weather?"}]
    assert isinstance(o.chat.completions.parse(model="m", messages=ask, response_format=made).choices[0].message.parsed, made)
    assert isinstance(o.responses.parse(model="m", input="The weather?", text_format=made).output_parsed, made)
    with o.chat.completions.stream(model="m", messages=ask, response_format=made) as events:
        list(events)
        assert isinstance(events.get_final_completion().choices[0].message.parsed, made)
    said = o.chat.completions.parse(model="m", messages=ask, tools=[openai.pydantic_function_tool(made)], tool_choice="required").choices[0].message
    assert said.tool_calls and all(isinstance(c.function.parsed_arguments, made) for c in said.tool_calls)


@client("anthropic, `.parse`", "anthropic", '`anthropic.Anthropic(base_url="http://127.0.0.1:8000", api_key="none")`')
def test_anthropic_parse(held):
    a, made, ask = need("anthropic", "anthropic").Anthropic(base_url=held.url, api_key="k", max_retries=0), weather(), [{"role": "user", "content": "The weather?"}]
    assert isinstance(a.messages.parse(model="m", max_tokens=500, messages=ask, output_format=made).parsed_output, made)
    tool = {"name": "weather", "strict": True, "input_schema": {**made.model_json_schema(), "additionalProperties": False}}
    said = a.messages.create(model="m", max_tokens=500, messages=ask, tools=[tool], tool_choice={"type": "any"}).content
    assert all(made.model_validate(b.input) for b in said if b.type == "tool_use") and said[-1].type == "tool_use"


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
