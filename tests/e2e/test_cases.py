"""What the first users ran into, each case for its kind, against the demonstration model. Where ../shared/cases has the same case, its body is sent too."""
import json

import pytest

from server_lib import Server

STORY = "Story 4. " + "The fox saw a lantern near the river. " * 60 + "Tell me a short story about this."
OFF = {"type": "disabled"}


@pytest.fixture(scope="module")
def server(program, root):
    with Server(program, root / "models/demo") as s:
        yield s


def shared(root, name):
    path = root.parent / "shared/cases" / name
    if not path.exists():
        pytest.skip(f"{path} isn't there")
    return json.loads(path.read_text(encoding="utf-8"))["body"]


def chat(server, **body):
    status, _, answer = server.request("POST", "/v1/chat/completions", {"model": "demo", **body})
    assert status == 200, answer
    return answer


# ---- 09: a seed means reproducible ----


def again(server, **body):
    """The texts of one request made twice, and how many tokens the second found."""
    first, second = chat(server, **body), chat(server, **body)
    return [(c["message"], c["logprobs"]) for c in first["choices"]], [(c["message"], c["logprobs"]) for c in second["choices"]], \
        second["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("how", [{"seed": 7, "temperature": 1}, {"temperature": 0}, {"temperature": 1, "seed": 3, "n": 2}, {"seed": -5, "logprobs": True, "top_logprobs": 2}],
                         ids=["seed", "greedy", "samples", "logprobs"])
def test_reproducible_after_a_hit(server, how):
    text = STORY.replace("Story 4", "Story " + json.dumps(how))  # nobody else's prefix
    cold, hit, cached = again(server, messages=[{"role": "user", "content": text}], thinking=OFF, max_tokens=60, **how)
    assert cold == hit
    assert cached >= 128  # from saved state


def test_reproducible_beside_replays(server):
    """Requests without a seed leave what they like; one with a seed gives what a server gives that has seen nothing."""
    other = {"messages": [{"role": "user", "content": STORY.replace("Story 4", "Story 5")}], "thinking": OFF, "max_tokens": 40}
    for _ in range(3):
        chat(server, **other)
    seeded = chat(server, **other, seed=11, temperature=1)
    salted = chat(server, **other, seed=11, temperature=1, n=1)
    assert seeded["choices"] == salted["choices"]


def test_samples_have_one_rule_for_their_seeds(server, deepserve, root, tmp_path):
    """Sample k of a seeded request is the same text from the server and from `generate`, and never a neighbour's."""
    body = {"messages": [{"role": "user", "content": "Say something."}], "thinking": OFF, "max_tokens": 12, "temperature": 1, "n": 3}
    f = tmp_path / "in.jsonl"
    f.write_text("\n".join(json.dumps({**body, "seed": s}) for s in (7, 8)))
    lines = [json.loads(x)["text"] for x in deepserve("generate", "--model", root / "models/demo", "--input", f).stdout.splitlines()]
    served = [c["message"]["content"] for s in (7, 8) for c in chat(server, **body, seed=s)["choices"]]
    assert [x.strip() for x in served] == [x.strip() for x in lines] and len(set(lines)) == 6
    status, _, data = server.request("POST", "/v1/completions", {"model": "demo", "prompt": ["ab", "ab"], "n": 2, "seed": 7, "max_tokens": 12, "temperature": 1})
    f.write_text(json.dumps({"prompt": "ab", "n": 4, "seed": 7, "max_tokens": 12, "temperature": 1}))
    lines = [json.loads(x)["text"] for x in deepserve("generate", "--model", root / "models/demo", "--input", f).stdout.splitlines()]
    assert status == 200 and [c["text"] for c in data["choices"]] == lines


def test_case_09(server, root):
    cold, hit, cached = again(server, **shared(root, "09-seed-after-prefix-hit.json"))
    assert cold == hit and cached >= 128


# ---- 02, 08: members that change the answer are never ignored (what those do that are taken is in test_structured_output.py) ----

PROTOCOLS = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "Who are you?"}]}, "/v1/responses": {"input": "Who are you?"},
             "/v1/messages": {"messages": [{"role": "user", "content": "Who are you?"}]}, "/v1/completions": {"prompt": "Who are you?"}}
CONSTRAINTS = {"structured_outputs": {"regex": "[0-9]+"}, "guided_json": {"type": "object"}, "guided_regex": "[0-9]+", "guided_choice": ["a", "b"], "guided_grammar": "x", "grammar": "root ::= [0-9]",
               "json_schema": {"type": "object"}, "regex": "[0-9]+", "ebnf": "root ::= [0-9]"}
TAKEN = {(path, member) for path in ("/v1/chat/completions", "/v1/completions") for member in ("structured_outputs", "guided_json", "guided_regex", "guided_choice")}


@pytest.mark.parametrize("path", PROTOCOLS)
@pytest.mark.parametrize("member", CONSTRAINTS)
def test_constraints_of_peers(server, path, member):
    status, _, answer = server.request("POST", path, {"model": "demo", "max_tokens" if path != "/v1/responses" else "max_output_tokens": 5, **PROTOCOLS[path], member: CONSTRAINTS[member]})
    assert status == 200 if (path, member) in TAKEN else status == 400 and member in answer["error"]["message"], answer


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_nosuch"}])
def test_thread(server, thread):
    status, _, answer = server.request("POST", "/v1/messages", {"model": "demo", "max_tokens": 6, "messages": [{"role": "user", "content": "What is my name?"}], "thread": thread})
    assert status == 400 and "thread" in answer["error"]["message"], answer
    assert answer["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_tool_runner_goes_on_without_a_thread(server):
    anthropic = pytest.importorskip("anthropic", reason="anthropic isn't installed (tests/requirements.txt)")

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather in a city

        Args:
            city: its name
        """
        return f"Sunny in {city}, 21 degrees."

    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    runner = client.beta.messages.tool_runner(model="demo", max_tokens=300, tools=[get_weather], extra_body={"temperature": 0}, messages=[{"role": "user", "content": "What is the weather in Paris?"}],
                                              thinking={"type": "disabled"})
    turns = list(runner)
    assert any(block.type == "tool_use" for block in turns[0].content) and turns[-1].stop_reason == "end_turn", turns


def test_case_02(server, root):
    status, _, answer = server.request("POST", "/v1/messages", shared(root, "02-thread-continue.json"))
    assert status == 400 and "thread" in answer["error"]["message"]


def test_case_08(server, root):
    answer = chat(server, **{"max_tokens": 200, **shared(root, "08-constraints-of-peers-ignored.json")})
    assert answer["choices"][0]["message"]["content"].isdigit()


@pytest.mark.parametrize("how, refused", [("ignore", False), ("warn", False), ("refuse", True)])
def test_unknown_members(program, root, how, refused, tmp_path):
    with Server(program, root / "models/demo", "--unknown-members", how, replay=[{"text": "x", "repeat": True}], folder=tmp_path) as s:
        status, _, answer = s.request("POST", "/v1/chat/completions", {"messages": PROTOCOLS["/v1/chat/completions"]["messages"], "frobnicate": 1})
        assert status == (400 if refused else 200) and (not refused or "frobnicate" in answer["error"]["message"])
        s.stop()
        assert any('unknown="frobnicate"' in line for line in s.log) == (how == "warn")


# ---- 03: a forced tool and nobody asked for thinking; 04: strict is kept or refused ----

WEATHER = {"name": "get_weather", "description": "Weather in a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
STRICT = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": False}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


def forced(path, strict=False):
    """A request that forces the weather tool, or declares one that is strict; nothing about thinking."""
    schema = STRICT if strict else WEATHER["parameters"]
    if path == "/v1/chat/completions":
        tool = {"type": "function", "function": {**WEATHER, "parameters": schema, **({"strict": True} if strict else {})}}
        return {"messages": ASK, "tools": [tool], **({} if strict else {"tool_choice": "required"})}
    if path == "/v1/responses":
        return {"input": ASK[0]["content"], "tools": [{"type": "function", **WEATHER, "parameters": schema, "strict": strict}], **({} if strict else {"tool_choice": "required"})}
    tool = {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": schema, **({"strict": True} if strict else {})}
    return {"max_tokens": 200, "messages": ASK, "tools": [tool], **({} if strict else {"tool_choice": {"type": "any"}})}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_forced_tool(server, path):
    status, _, answer = server.request("POST", path, {"model": "demo", "temperature": 0, **forced(path)})
    assert status == 200, answer
    if path == "/v1/chat/completions":
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather" and "reasoning_content" not in choice["message"]
    elif path == "/v1/responses":
        assert [item["type"] for item in answer["output"]] == ["function_call"]
    else:
        assert answer["stop_reason"] == "tool_use" and [block["type"] for block in answer["content"]] == ["tool_use"]


def calls_of(path, answer):
    """The arguments of an answer's calls."""
    if path == "/v1/chat/completions":
        return [json.loads(c["function"]["arguments"]) for c in answer["choices"][0]["message"].get("tool_calls", [])]
    if path == "/v1/responses":
        return [json.loads(i["arguments"]) for i in answer["output"] if i["type"] == "function_call"]
    return [b["input"] for b in answer["content"] if b["type"] == "tool_use"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_strict_tool(server, path):
    """Called or not, as the model likes; what it calls with is what the schema says."""
    status, _, answer = server.request("POST", path, {"model": "demo", "temperature": 0, **forced(path, strict=True)})
    assert status == 200, answer
    for arguments in calls_of(path, answer):
        assert list(arguments) == ["name", "age"] and isinstance(arguments["name"], str) and isinstance(arguments["age"], int)


def test_case_03(server, root):
    answer = chat(server, **shared(root, "03-forced-tool-default-thinking.json"))
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_case_04(server, root):
    answer = chat(server, **shared(root, "04-strict-tool-not-enforced.json"))
    assert all(list(arguments) == ["name", "age"] for arguments in calls_of("/v1/chat/completions", answer))


@pytest.mark.parametrize("default, thinks", [("auto", True), ("on", True), ("off", False)])
def test_default_thinking(program, root, default, thinks, tmp_path):
    with Server(program, root / "models/demo", "--thinking", default, replay=[{"text": "x</think>y", "repeat": True}], folder=tmp_path) as s:
        message = chat(s, messages=ASK)["choices"][0]["message"]
        assert ("reasoning_content" in message) == thinks and message["content"] == ("y" if thinks else "xy")
        assert "reasoning_content" in chat(s, messages=ASK, reasoning_effort="low")["choices"][0]["message"]
        assert "reasoning_content" not in chat(s, messages=ASK, thinking=OFF)["choices"][0]["message"]


# ---- 05: an output limit beyond the context ----


@pytest.mark.parametrize("path, limit", [("/v1/chat/completions", "max_tokens"), ("/v1/chat/completions", "max_completion_tokens"), ("/v1/responses", "max_output_tokens"),
                                         ("/v1/messages", "max_tokens"), ("/v1/completions", "max_tokens")])
def test_output_limit_beyond_the_context(program, root, path, limit, tmp_path):
    with Server(program, root / "models/demo", "--context", 256, replay=[{"text": "word " * 400, "repeat": True}], folder=tmp_path) as s:
        status, _, answer = s.request("POST", path, {"model": "claude-x", **PROTOCOLS[path], limit: 128000})
        assert status == 200, answer
        assert answer.get("status", answer.get("stop_reason")) in ("incomplete", "max_tokens") if "choices" not in answer else answer["choices"][0]["finish_reason"] == "length"
        usage = answer["usage"]
        assert sum(usage.get(k, 0) for k in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")) == 256
        long = json.loads(json.dumps(PROTOCOLS[path]).replace("Who are you?", "word " * 300))
        status, _, answer = s.request("POST", path, {"model": "claude-x", **long, limit: 1})
        assert status == 400 and "prompt is too long" in answer["error"]["message"] and "no room" in answer["error"]["message"]


def test_case_05(server, root):
    status, _, answer = server.request("POST", "/v1/messages", shared(root, "05-output-limit-beyond-context.json"))
    assert status == 200, answer


# ---- 01: every token of the answer has one entry, also when a character is cut (the prompt's own are in test_prompt_logprobs.py) ----


def events(server, path, body):
    with server.connect() as s:
        text = json.dumps({"model": "demo", **body, "stream": True}).encode()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        raw = b"".join(iter(lambda: s.recv(65536), b""))
    return [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]


def test_cut_characters_keep_their_entries(program, root, tmp_path):
    with Server(program, root / "models/demo", replay=[{"text": "a🦀é日🦀", "repeat": True}], folder=tmp_path) as s:
        for limit in range(1, 12):
            body = {"messages": ASK, "thinking": OFF, "max_tokens": limit, "logprobs": True, "top_logprobs": 2}
            answer = chat(s, **body)
            entries, text = answer["choices"][0]["logprobs"]["content"], answer["choices"][0]["message"]["content"]
            stop = answer["choices"][0]["finish_reason"] == "stop"  # its id is counted and has no text
            assert len(entries) == answer["usage"]["completion_tokens"] - stop
            assert bytes(b for e in entries for b in e["bytes"]).decode("utf-8", "ignore") == text
            streamed = [c["choices"][0] for c in events(s, "/v1/chat/completions", body) if c["choices"]]
            assert sum((c["logprobs"]["content"] for c in streamed if c["logprobs"] and c["logprobs"]["content"]), []) == entries
            legacy = s.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": limit, "logprobs": 1})[2]
            lp = legacy["choices"][0]["logprobs"]
            assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(entries)
            assert sum((c["choices"][0]["logprobs"]["tokens"] for c in events(s, "/v1/completions", {"prompt": "x", "max_tokens": limit, "logprobs": 1}) if c["choices"][0]["logprobs"]), []) == lp["tokens"]


# ---- 06, 07: a call that the limit cuts shows no markup ----


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_cut_calls(server, path):
    """Every limit up to the whole answer: no text, no piece of a tag in the arguments; streams say the same."""
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {**forced(path), name: 40, "model": "demo", "temperature": 0}
    body.pop("tool_choice")
    body.update({"reasoning": {"effort": "none"}} if path == "/v1/responses" else {"thinking": OFF})
    for limit in range(1, 40):
        body[name] = limit
        status, _, answer = server.request("POST", path, body)
        assert status == 200, answer
        if path == "/v1/chat/completions":
            choice = answer["choices"][0]
            text, calls = choice["message"]["content"], [c["function"]["arguments"] for c in choice["message"].get("tool_calls", [])]
            deltas = [c["choices"][0]["delta"] for c in events(server, path, body)]
            streamed = "".join(d.get("content") or "" for d in deltas)
            pieces = "".join(t["function"]["arguments"] for d in deltas for t in d.get("tool_calls", []))
            assert (streamed, pieces) == (text, "".join(calls)), limit
        elif path == "/v1/responses":
            text, calls = "".join(p["text"] for i in answer["output"] if i["type"] == "message" for p in i["content"]), [i["arguments"] for i in answer["output"] if i["type"] == "function_call"]
        else:
            text, calls = "".join(b["text"] for b in answer["content"] if b["type"] == "text"), [json.dumps(b["input"]) for b in answer["content"] if b["type"] == "tool_use"]
        assert "<" not in text and "DSML" not in text and "invoke" not in text, (limit, text)
        assert all("<" not in c and "DSML" not in c for c in calls), (limit, calls)
    assert calls and json.loads(calls[0]) == {"city": "Paris"}


def test_case_06(server, root):
    choice = chat(server, **shared(root, "06-call-cut-in-opener.json"))["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""


@pytest.mark.parametrize("limit", [28, 29, 30])
def test_case_07(server, root, limit):
    choice = chat(server, **{**shared(root, "07-call-cut-in-closing-tag.json"), "max_tokens": limit})["choices"][0]
    assert not any("<" in c["function"]["arguments"] for c in choice["message"].get("tool_calls", []))
