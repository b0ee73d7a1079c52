"""Constrained answers of the demonstration model through the server: each protocol's members, with thinking and without, streamed and whole, tools, limits. What the model would rather say doesn't
matter: at temperature 1 a small model leaves any schema within a few tokens unless it is held."""
import json
import random
import re

import pytest

from server_lib import Server, wait

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema isn't installed (tests/requirements.txt)")

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "likes": {"type": "array", "items": {"enum": ["tea", "rain"]}, "maxItems": 3}},
          "required": ["name", "age", "likes"], "additionalProperties": False}
ASK = [{"role": "user", "content": "Describe a person as json."}]
ON, OFF = {"type": "enabled"}, {"type": "disabled"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


@pytest.fixture(scope="module")
def server(program, root):
    with Server(program, root / "models/demo", "--engines", 2, "--threads", 2) as s:
        yield s


def post(server, path, body, status=200):
    got, _, answer = server.request("POST", path, {"model": "demo", **body})
    assert got == status, answer
    return answer


def chat(server, status=200, **body):
    return post(server, "/v1/chat/completions", {"messages": ASK, "max_tokens": 300, **body}, status)


def stopped(answer):
    return answer["choices"][0]["finish_reason"] == "stop"


def content(answer, i=0):
    choice = answer["choices"][i]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"]


def fits(text, schema=PERSON):
    jsonschema.validate(json.loads(text), schema)


def ended(ask, ends):
    """The first of some answers that the model ended: where a value has no bound, a small model may well never come to its end."""
    for seed in range(6):
        answer = ask(seed)
        if ends(answer):
            return answer
    pytest.fail(f"none of six answers ended: {answer}")


# ---- each protocol's own member ----


@pytest.mark.parametrize("thinking", [None, ON, OFF], ids=["auto", "on", "off"])
def test_chat(server, thinking):
    answer = ended(lambda seed: chat(server, response_format=FORMAT, max_tokens=800, seed=seed, **({"thinking": thinking} if thinking else {})), stopped)
    fits(content(answer))
    assert ("reasoning_content" in answer["choices"][0]["message"]) == (thinking == ON)


def test_samples_and_no_drafts_matter(server):
    """n samples, each by itself; a seed gives the same again, greedy too."""
    for how in ({"temperature": 1, "seed": 5, "n": 3}, {"temperature": 0}):
        first, second = (chat(server, response_format=FORMAT, **how) for _ in range(2))
        for i in range(how.get("n", 1)):
            fits(content(first, i))
            assert content(first, i) == content(second, i)


def test_json_object(server):
    answer = ended(lambda seed: chat(server, response_format={"type": "json_object"}, thinking=OFF, seed=seed), stopped)
    assert isinstance(json.loads(content(answer)), dict)


def test_responses(server):
    wanted = {"type": "json_schema", "name": "p", "strict": True, "schema": PERSON}
    answer = ended(lambda seed: post(server, "/v1/responses", {"input": "A person as json, please.", "max_output_tokens": 300, "seed": seed, "text": {"format": wanted}}), lambda a: a["status"] == "completed")
    fits(next(i for i in answer["output"] if i["type"] == "message")["content"][0]["text"])


@pytest.mark.parametrize("member", ["output_config", "output_format"])
def test_messages(server, member):
    wanted = {"type": "json_schema", "schema": PERSON}
    body = {"messages": ASK, "max_tokens": 800, member: wanted if member == "output_format" else {"format": wanted}}
    answer = ended(lambda seed: post(server, "/v1/messages", {**body, "seed": seed}), lambda a: a["stop_reason"] == "end_turn")
    fits("".join(b["text"] for b in answer["content"] if b["type"] == "text"))


# ---- vLLM's members ----

FORMS = {"json": (PERSON, None), "regex": ("[0-9]{3}-[0-9]{4}", r"[0-9]{3}-[0-9]{4}"), "choice": (["red", "green"], "red|green"),
         "grammar": ('root ::= "x" [0-9]{2,4} (" " root)?', r"x[0-9]{2,4}( x[0-9]{2,4})*")}
LARK = 'start: "x" NUMBER\nNUMBER: /[0-9]{2,4}/'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("old", [True, False], ids=["guided", "structured_outputs"])
def test_vllm_members(server, path, form, old):
    value, pattern = FORMS[form]
    body = {f"guided_{form}": value} if old else {"structured_outputs": {form: value}}
    body = {**body, "max_tokens": 300, **({"messages": ASK} if "chat" in path else {"prompt": ["One", "Two"]})}
    for choice in post(server, path, body)["choices"]:
        text = choice["message"]["content"] if "chat" in path else choice["text"]
        if choice["finish_reason"] == "length":  # a list of numbers need not end, nor does an indent
            assert form in ("grammar", "json")
        elif pattern:
            assert re.fullmatch(pattern, text), text
        else:
            fits(text)


def test_grammars_in_larks_notation(server):
    assert re.fullmatch("x[0-9]{2,4}", content(chat(server, guided_grammar=LARK)))


def test_json_as_text_and_json_object(server):
    fits(content(chat(server, guided_json=json.dumps(PERSON))))
    answer = ended(lambda seed: chat(server, structured_outputs={"json_object": True}, seed=seed), stopped)
    assert isinstance(json.loads(content(answer)), dict)


# ---- streams ----


def events(server, path, body):
    with server.connect() as s:
        text = json.dumps({"model": "demo", **body, "stream": True}).encode()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        raw = b"".join(iter(lambda: s.recv(65536), b""))
    return [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("thinking", [ON, OFF], ids=["on", "off"])
def test_streams(server, thinking):
    body = {"messages": ASK, "response_format": FORMAT, "thinking": thinking, "max_tokens": 800}
    whole = ended(lambda seed: post(server, "/v1/chat/completions", {**body, "seed": seed}), stopped)
    seed = next(s for s in range(6) if content(whole) == post(server, "/v1/chat/completions", {**body, "seed": s})["choices"][0]["message"]["content"])
    deltas = [c["choices"][0]["delta"] for c in events(server, "/v1/chat/completions", {**body, "seed": seed}) if c["choices"]]
    text = "".join(d.get("content") or "" for d in deltas)
    fits(text)
    assert text == content(whole)
    assert any(d.get("reasoning_content") for d in deltas) == (thinking == ON)


# ---- tools ----

TOOLS = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
                                                                                           "required": ["city", "days"], "additionalProperties": False}}},
         {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"])
@pytest.mark.parametrize("thinking", [None, ON], ids=["auto", "on"])
def test_forced_calls(server, choice, thinking):
    body = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 800, "parallel_tool_calls": False, **({"thinking": thinking} if thinking else {})}
    answer = ended(lambda seed: chat(server, seed=seed, **body), lambda a: a["choices"][0]["finish_reason"] == "tool_calls")["choices"][0]
    assert not answer["message"]["content"], answer
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" if choice != "required" else call["function"]["name"] in ("weather", "now")
    if call["function"]["name"] == "weather":
        fits(call["function"]["arguments"], TOOLS[0]["function"]["parameters"])


def test_content_by_schema_or_calls(server):
    """With tools that may be called, what isn't a call fits the schema."""
    for seed in range(4):
        answer = chat(server, tools=TOOLS, response_format=FORMAT, thinking=OFF, seed=seed)["choices"][0]
        if answer["finish_reason"] != "length":
            assert answer["message"]["content"] or answer["message"]["tool_calls"]
            fits(answer["message"]["content"] or "null", PERSON if answer["message"]["content"] else {})


@pytest.mark.parametrize("syntax, definition", [("regex", "20[0-9]{2}-[01][0-9]"), ("lark", 'start: "20" D D "-" ("0" | "1") D\nD: /[0-9]/')], ids=["regex", "lark"])
def test_custom_tools(server, syntax, definition):
    tool = {"type": "custom", "custom": {"name": "day", "format": {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}}}
    answer = chat(server, tools=[tool], tool_choice="required", thinking=OFF, parallel_tool_calls=False)["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert re.fullmatch("20[0-9]{2}-[01][0-9]", call["custom"]["input"]), call


def test_messages_tools(server):
    tool = {"name": "weather", "strict": True, "input_schema": TOOLS[0]["function"]["parameters"]}
    body = {"messages": ASK, "max_tokens": 300, "tools": [tool], "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}}
    answer = ended(lambda seed: post(server, "/v1/messages", {**body, "seed": seed}), lambda a: a["stop_reason"] == "tool_use")
    assert [b["type"] for b in answer["content"]] == ["tool_use"]
    jsonschema.validate(answer["content"][0]["input"], tool["input_schema"])


# ---- limits and refusals ----


def test_a_limit_inside_the_value(server):
    answer = chat(server, response_format=FORMAT, max_tokens=6)["choices"][0]
    assert answer["finish_reason"] == "length"
    with pytest.raises(ValueError):
        json.loads(answer["message"]["content"])


REFUSED = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"unevaluatedItems": {}}}}}}}, "response_format.json_schema.schema", "#/properties/a/unevaluatedItems"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-ahead"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "guided_regex"),
    ({"guided_grammar": "root ::= other"}, "guided_grammar", "other"),
    ({"structured_outputs": {"json": {"type": "string"}}, "response_format": FORMAT}, "response_format.json_schema.schema", "structured_outputs.json"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
    ({"guided_grammar": "start: other"}, "guided_grammar", "other"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "string"),
    ({"guided_json": "{"}, "guided_json", "JSON"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {"unevaluatedItems": {}}}}}}]}, "tools", "#/properties/a/unevaluatedItems"),
    ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex", "together with tools"),
]


@pytest.mark.parametrize("body, param, says", REFUSED, ids=range(len(REFUSED)))
def test_refusals_name_the_place(server, body, param, says):
    error = chat(server, status=400, **body)["error"]
    assert error["param"] == param and says in error["message"], error


# ---- SDKs ----


def test_openai_parse(server):
    openai, pydantic = (pytest.importorskip(name, reason=f"{name} isn't installed (tests/requirements.txt)") for name in ("openai", "pydantic"))

    class Step(pydantic.BaseModel):
        title: str = pydantic.Field(max_length=20)
        minutes: int = pydantic.Field(le=500, ge=0)

    class Recipe(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        vegan: bool
        steps: list[Step] = pydantic.Field(max_length=3)

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def stream(seed):
        with client.chat.completions.stream(model="demo", messages=ASK, response_format=Step, max_tokens=800, seed=seed) as events:
            return events.get_final_completion().choices[0].message.parsed

    def whole(kind, **more):
        return lambda seed: client.chat.completions.parse(model="demo", messages=ASK, response_format=kind, max_tokens=800, seed=seed, **more).choices[0].message.parsed

    def parsed(ask):
        def try_it(seed):
            try:
                return ask(seed)
            except openai.LengthFinishReasonError:
                return None
        return ended(try_it, bool)

    assert isinstance(parsed(whole(Recipe)), Recipe) and isinstance(parsed(whole(Recipe, extra_body={"thinking": ON})), Recipe)
    assert isinstance(parsed(stream), Step)
    assert isinstance(parsed(lambda seed: client.responses.parse(model="demo", input=ASK, text_format=Step, max_output_tokens=800, extra_body={"seed": seed}).output_parsed), Step)


# ---- random schemas ----


def random_schema(rnd, depth=0):
    kind = rnd.choice(["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"] + ["object", "array", "anyOf"] * (depth < 3))
    if kind == "object":
        names = rnd.sample(["a", "bb", "name", "x y", "ü"], rnd.randint(0, 3))
        return {"type": "object", "properties": {n: random_schema(rnd, depth + 1) for n in names}, "required": [n for n in names if rnd.random() < 0.7], "additionalProperties": False}
    if kind == "array":
        low = rnd.randint(0, 2)
        return {"type": "array", "items": random_schema(rnd, depth + 1), "minItems": low, "maxItems": low + rnd.randint(0, 2)}
    return {"anyOf": lambda: {"anyOf": [random_schema(rnd, depth + 1) for _ in range(rnd.randint(1, 3))]},
            "string": lambda: {"type": "string", "maxLength": rnd.randint(0, 12)},
            "integer": lambda: {"type": "integer", "minimum": -rnd.randint(0, 50), "maximum": rnd.randint(0, 5000)},
            "number": lambda: {"type": "number", "minimum": 0, "maximum": rnd.randint(1, 100)},
            "enum": lambda: {"enum": rnd.sample([1, "two", None, True, [3], {"k": "v"}], rnd.randint(1, 4))}, "const": lambda: {"const": rnd.choice(["x", 5, None])},
            "pattern": lambda: {"type": "string", "pattern": rnd.choice(["^[A-Z]{2}[0-9]{3}$", "^(yes|no)$", "^a+b$"])}, "format": lambda: {"type": "string", "format": rnd.choice(["date", "uuid", "ipv4", "time"])}}.get(
        kind, lambda: {"type": kind})()


def test_random_schemas(server, pytestconfig):
    """At temperature 1; each answer that ends validates. DEEPSERVE_SCHEMAS=2000 asks for more."""
    import concurrent.futures
    import os

    n = int(os.environ.get("DEEPSERVE_SCHEMAS", "200"))

    def one(seed):
        schema = random_schema(random.Random(seed))
        answer = chat(server, response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}, temperature=1, seed=seed, max_tokens=400,
                      thinking=ON if seed % 8 == 0 else OFF)["choices"][0]
        if answer["finish_reason"] == "stop":
            fits(answer["message"]["content"], schema)
        return answer["finish_reason"]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(one, range(n)))
    assert set(ends) <= {"stop", "length"} and ends.count("stop") > 0.9 * n, ends


def metric(server, name):
    page = server.request("GET", "/metrics")[2]
    page = page if isinstance(page, str) else page.decode()
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"deepserve_{name}{{"))


def test_metrics(server):
    """A constraint is compiled once and found again; one that is refused counts; nothing is in use when all answers are there."""
    names = [f"grammars_{n}_total" for n in ("compiled", "found", "refused")]
    before = [metric(server, n) for n in names]
    for _ in range(3):
        chat(server, guided_regex="metrics [0-9]", max_tokens=20)
    chat(server, 400, guided_regex="(?=metrics)")
    assert [metric(server, n) - b for n, b in zip(names, before)] == [1, 2, 1]
    assert wait(lambda: metric(server, "grammars_in_use") == 0) and metric(server, "grammars") >= 1 and metric(server, "grammars_bytes") > 0
    assert metric(server, "grammars_compile_nanoseconds_total") > 0
