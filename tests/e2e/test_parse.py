"""`deepserve parse` as cli.md has it: whole and streamed, in any pieces, from text and from ids; refusals and wrong use."""
import json

import pytest

D = "｜DSML｜"
OUTPUT = f"plan\n</think>\n\nOk 🦀\n\n<{D} calls>\n<{D} invoke name=\"f\">\n<{D} parameter name=\"a\" string=\"true\">x\"y</{D} parameter>\n" \
         f"<{D} parameter name=\"b\" string=\"false\">[1, 2]</{D} parameter>\n</{D} invoke>\n</{D} calls>"
SCHEMA = {"type": "object", "properties": {}}
REQUESTS = {
    "chat": {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]},
    "responses": {"model": "m", "stream": True, "input": "hi", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
    "messages": {"model": "m", "stream": True, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "f", "input_schema": SCHEMA}]},
}


@pytest.fixture
def parse(deepserve, tmp_path):
    def run(protocol, *args, stdin=OUTPUT, request=None, status=0):
        f = tmp_path / "request.json"
        f.write_text(json.dumps(request or REQUESTS[protocol]))
        done = deepserve("parse", "--protocol", protocol, "--request", f, *args, stdin=stdin.encode())
        assert done.returncode == status, done.stderr
        return [json.loads(x) for x in done.stdout.decode().split("\n")[:-1]]

    return run


def joined(events):
    """Neighbouring deltas as one."""
    out = []
    for e in events:
        e = json.loads(json.dumps(e))
        d = e.get("data", e)
        last = out[-1].get("data", out[-1]) if out else {}
        if d.get("type", "").endswith(".delta") and last.get("type") == d["type"] and last["item_id"] == d["item_id"]:
            last["delta"] += d["delta"]
            continue
        if d.get("type") == "content_block_delta" and last.get("type") == d["type"] and last["delta"]["type"] == d["delta"]["type"]:
            for k in set(d["delta"]) - {"type"}:
                last["delta"][k] += d["delta"][k]
            continue
        if "choices" in d and out:
            a, b = last["choices"][0]["delta"], d["choices"][0]["delta"]
            same = [k for k in ("content", "reasoning_content") if isinstance(a.get(k), str) and isinstance(b.get(k), str)]
            if d["choices"][0]["finish_reason"] is None and "role" not in a and same and list(a) == list(b):
                a[same[0]] += b[same[0]]
                continue
            if "tool_calls" in a and "tool_calls" in b and "id" not in a["tool_calls"][0] and "id" not in b["tool_calls"][0]:
                a["tool_calls"][0]["function"]["arguments"] += b["tool_calls"][0]["function"]["arguments"]
                continue
        d.pop("sequence_number", None)
        out.append(e)
    return out


@pytest.mark.parametrize("protocol", list(REQUESTS))
def test_every_split_is_the_same(parse, protocol):
    body = parse(protocol)
    events = joined(parse(protocol, "--stream"))
    for split in (1, 2, 3, 5, 8, 13, 64):
        assert parse(protocol, "--split", split) == body
        assert joined(parse(protocol, "--stream", "--split", split)) == events


def test_shapes(parse):
    chunks = parse("chat", "--stream", "--prompt-tokens", 20, "--cached-tokens", 12)
    assert all(c["id"] == "id-0" and c["created"] == 0 and c["object"] == "chat.completion.chunk" for c in chunks)
    assert chunks[-1]["usage"]["prompt_cache_hit_tokens"] == 12 and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    (body,) = parse("chat")
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("plan", "Ok 🦀")
    assert message["tool_calls"] == [{"id": "call_id-0_0", "type": "function", "function": {"name": "f", "arguments": '{"a": "x\\"y", "b": [1, 2]}'}}]
    for protocol in ("responses", "messages"):
        for e in parse(protocol, "--stream"):
            assert set(e) == {"event", "data"} and e["data"]["type"] == e["event"]
    (body,) = parse("responses")
    assert [i["id"] for i in body["output"]] == ["rs_id-0_0", "msg_id-0_1", "fc_id-0_2"] and body["created_at"] == 0
    (body,) = parse("messages", "--finish", "length")
    assert body["stop_reason"] == "max_tokens" and body["content"][2]["id"] == "toolu_id-0_0"


@pytest.mark.parametrize("finish,reason", [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("none", "stop")])
def test_finish(parse, finish, reason):
    (body,) = parse("chat", "--finish", finish, stdin="a</think>b")
    assert body["choices"][0]["finish_reason"] == reason


def test_ids(parse, root):
    tokenizer = root / "tests" / "golden" / "tokenizer" / "small.json"
    special = {t["content"]: t["id"] for t in json.loads(tokenizer.read_text())["added_tokens"]}
    vocabulary = json.loads(tokenizer.read_text())["model"]["vocab"]
    ids = [vocabulary["h"], vocabulary["i"], special["</think>"], vocabulary["ĊĊ"], vocabulary["o"], 99999, special["<｜end▁of▁sentence｜>"]]
    (body,) = parse("chat", "--ids", "--tokenizer", tokenizer, stdin=json.dumps(ids))
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hi", "o")
    assert body["usage"]["completion_tokens"] == 7 and body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_options(parse, deepserve):
    (body,) = parse("chat", "--set", "strict_thinking=true", stdin=OUTPUT.replace("</think>", ""))
    assert "tool_calls" not in body["choices"][0]["message"]
    names = deepserve("parse", "--set", "help").stdout.decode()
    for name in ("keep_all", "strict_thinking", "recover_orphan_invoke", "preserve_newlines", "recipe_call_order", "usage_shape"):
        assert name in names


def test_refused(parse):
    (body,) = parse("chat", request={"model": "m", "messages": []}, status=1)
    assert body["error"]["type"] == "invalid_request_error"
    (body,) = parse("messages", request={"model": "m", "messages": []}, status=1)
    assert body["type"] == "error"


@pytest.mark.parametrize("args,status", [((), 2), (("--request",), 2), (("--protocol", "x"), 2), (("--request", "f", "--ids"), 2), (("--request", "f", "--split", "-1"), 2),
                                         (("--request", "f", "--stream", "--sse"), 2), (("--set", "nothing=1"), 2), (("--request", "/does/not/exist"), 1)])
def test_wrong_use(deepserve, args, status):
    done = deepserve("parse", *args)
    assert done.returncode == status and done.stdout == b"" and done.stderr


def test_many(deepserve):
    lines = [{"request": REQUESTS["chat"], "text": "a</think>b"}, {"request": {"model": "m"}, "text": "x"}, {"request": REQUESTS["chat"], "text": "c", "finish": "length", "split": 1}]
    done = deepserve("parse", "--jsonl", stdin="\n".join(json.dumps(x) for x in lines).encode())
    out = [json.loads(x) for x in done.stdout.decode().split("\n")[:-1]]
    assert done.returncode == 1 and len(out) == 3 and "error" in out[1] and out[2]["choices"][0]["finish_reason"] == "length"
    done = deepserve("parse", "--jsonl", "--stream", stdin=b'{"request":1}\n')
    assert done.returncode == 1 and b"line 1" in done.stderr and done.stdout == b""
    for bad in ({"finish": "end"}, {"finish": None}, {"split": "a"}, {"split": -1}, {"split": 1.5}):
        done = deepserve("parse", "--jsonl", stdin=b"\n" + json.dumps(lines[0] | bad).encode())
        assert done.returncode == 1 and b"line 2" in done.stderr and next(iter(bad)).encode() in done.stderr and done.stdout == b""
