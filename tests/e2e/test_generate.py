"""deepserve generate and chat: result lines, options against lines, refusals, stop strings, signals; greedy ids are the argmax of logits."""
import base64
import json
import re
import shutil
import signal
import struct
import subprocess
import time
import zlib

import numpy as np
import pytest


@pytest.fixture(scope="session")
def model(root):
    return root / "tests" / "golden" / "tiny-a" / "model"


def lines(r):
    return [json.loads(x) for x in r.stdout.decode().splitlines()]


def one(deepserve, model, *args):
    r = deepserve("generate", "--model", model, "--json", *args)
    assert r.returncode == 0, r.stderr
    return lines(r)[0]


@pytest.mark.parametrize("mode", ["exact", "ced"])
@pytest.mark.parametrize("act", ["f32", "bf16"])
def test_greedy_is_argmax_of_logits(deepserve, model, tmp_path, mode, act):
    ids = [0] + [(7 * i) % 250 + 3 for i in range(40)]
    text = ",".join(map(str, ids))
    got = one(deepserve, model, "--tokens", text, "--temperature", 0, "--max-tokens", 1, "--mode", mode, "--act", act)["ids"]
    out = tmp_path / "l.npy"
    r = deepserve("logits", "--model", model, "--tokens", text, "--mode", mode, "--act", act, "--last", 1, "--out", out)
    assert r.returncode == 0, r.stderr
    assert got == [int(np.argmax(np.load(out)[0]))]


def test_drafts_never_change_the_text(deepserve, model):
    for temperature in (0, 1):
        plain = one(deepserve, model, "--prompt", "abc", "--temperature", temperature, "--max-tokens", 40, "--seed", 5, "--speculate", "off")
        for how in ("auto", "1", "3", "5"):
            other = one(deepserve, model, "--prompt", "abc", "--temperature", temperature, "--max-tokens", 40, "--seed", 5, "--speculate", how)
            assert other == plain
    assert "drafts" in deepserve("generate", "--model", model, "--prompt", "a", "--speculate", "6").stderr.decode()


def test_chunks_and_threads_never_change_the_text(deepserve, model):
    ids = ",".join(str((11 * i) % 250 + 3) for i in range(60))
    results = [one(deepserve, model, "--tokens", ids, "--max-tokens", 12, "--chunk", c, "--threads", t) for c, t in ((512, 1), (1, 2), (7, 2), (64, 3))]
    results.append(one(deepserve, model, "--tokens", ids, "--max-tokens", 12, "--threads", 2, "--pin"))
    assert all(x == results[0] for x in results)


def test_device(deepserve, model, tmp_path):
    """What a name gives or refuses is said; where there is a GPU its f32 text is the CPU's."""
    args = ("generate", "--model", model, "--json", "--tokens", "0,17,42", "--temperature", 0, "--max-tokens", 12, "--device")
    cpu, auto, cuda = (deepserve(*args, d) for d in ("cpu", "auto", "cuda"))
    assert cpu.returncode == auto.returncode == 0 and b"device" not in cpu.stderr
    assert lines(auto) == lines(cpu)
    said = [l for l in auto.stderr.decode().splitlines() if l.startswith("device: ")]
    assert len(said) == 1
    if cuda.returncode == 0:
        assert said[0] == "device: cuda:0" and lines(cuda) == lines(cpu)
    else:
        assert said[0].startswith("device: cpu") and cuda.returncode == 1 and b"device 'cuda'" in cuda.stderr
    for word, what in (("tpu", "no such kind"), ("cpu:1", "this machine has 1"), ("cuda:x", "no such kind")):
        r = deepserve(*args, word)
        assert r.returncode == 1 and f"device '{word}'" in r.stderr.decode() and what in r.stderr.decode()
    for command in (("inspect",), ("logits", "--tokens", "1", "--out", tmp_path / "l.npy"), ("draft", "--tokens", "1", "--json"), ("serve", "--port", "0")):
        r = deepserve(*command, "--model", model, "--device", "tpu")
        assert r.returncode == 1 and b"device 'tpu'" in r.stderr


def test_lines(deepserve, model, tmp_path):
    f = tmp_path / "in.jsonl"
    f.write_text("\n".join([
        '{"prompt":"Hi","max_tokens":5,"temperature":0}',
        "",
        '{"tokens":[0,5,6],"max_tokens":4,"n":2,"logprobs":2}',
        '{"messages":[{"role":"user","content":"Hi"}],"model":"m","max_tokens":4,"temperature":0}',
        '{"prompt":5}',
        '{"tokens":[99999]}',
        '{"tokens":[]}',
        '{"prompt":"x","temperature":-1}',
        "nonsense",
        '{"prompt":"x","max_tokens":2.5}',
        '{"prompt":"a","tokens":[1]}',
        '{"prompt":"last"}',
    ]))
    r = deepserve("generate", "--model", model, "--input", f, "--max-tokens", 3, "--seed", 9)
    assert r.returncode == 1
    got = lines(r)
    assert [x["index"] for x in got] == [0, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [x.get("sample") for x in got[:4]] == [None, 0, 1, None]
    assert len(got[0]["ids"]) == 5 and got[0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "cached_tokens": 0}
    assert got[1]["ids"] != got[2]["ids"] and len(got[1]["logprobs"]) == 4 and len(got[1]["logprobs"][0]["top"]) == 2
    assert got[3]["usage"]["prompt_tokens"] > 3
    for at, word in ((4, "prompt"), (5, "99999"), (6, "empty"), (7, "temperature"), (8, "column 1"), (9, "max_tokens"), (10, "one of")):
        assert word in got[at]["error"]["message"], got[at]
    assert got[11] == dict(one(deepserve, model, "--prompt", "last", "--max-tokens", 3, "--seed", 9 + 11), index=11)


def png(color, size=(120, 80)):
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(color) * size[0]) * size[1]
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


def test_pictures(deepserve, model, tmp_path):
    """What is in a picture decides, wherever it stands and whatever runs beside it; each takes its place in the prompt."""
    def line(*content, **more):
        return json.dumps({"model": "m", "messages": [{"role": "user", "content": list(content)}], "max_tokens": 24, "temperature": 0, **more})

    def picture(url):
        return {"type": "image_url", "image_url": {"url": url}}

    red, blue = (picture("data:image/png;base64," + base64.b64encode(png(c)).decode()) for c in ((255, 0, 0), (0, 0, 255)))
    text = {"type": "text", "text": "What?"}
    f = tmp_path / "in.jsonl"
    f.write_text("\n".join([line(text, red), line(text, blue), line(text, red, n=2), line(text), line(blue, text, red), line(picture("data:image/png;base64,aGVsbG8=")),
                            line(picture("http://127.0.0.1:9/x.png"))]))
    r = deepserve("generate", "--model", model, "--input", f, "--mode", "exact")
    assert r.returncode == 1
    got = lines(r)
    first, other, twice, none, both = got[0], got[1], got[2:4], got[4], got[5]
    assert [x["ids"] for x in twice] == [first["ids"]] * 2 and first["ids"] != other["ids"] and first["ids"] != none["ids"]
    assert "not a JPEG" in got[6]["error"]["message"] and got[6]["error"]["message"].startswith("messages[0].content[0].image_url")
    assert "not fetched" in got[7]["error"]["message"]
    n, with_one, with_two = (x["usage"]["prompt_tokens"] for x in (none, first, both))
    assert with_two - with_one == with_one - n > 8
    f.write_text(line(picture("http://127.0.0.1:9/x.png")))
    assert "public" in lines(deepserve("generate", "--model", model, "--input", f, "--fetch"))[0]["error"]["message"]


SLOW_SERVER = """
import json, os, signal, socket, subprocess, sys, time
if subprocess.run("ip link set lo up && ip addr add 93.184.215.14/32 dev lo", shell=True, stderr=subprocess.DEVNULL).returncode:
    sys.exit(77)
server = socket.create_server(("93.184.215.14", 8080))
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
connection = server.accept()[0]
connection.recv(1000)
begin = time.monotonic()
p.send_signal(signal.SIGINT)
out, err = p.communicate()
print(json.dumps([p.returncode, out.decode(), err.decode(), time.monotonic() - begin]))
"""


def test_signal_while_a_picture_is_fetched(program, model, tmp_path):
    """A public address that never answers, in a network of our own: the end doesn't wait for its 20 seconds, and the line counts as missing."""
    if not shutil.which("unshare") or not shutil.which("ip") or subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    f = tmp_path / "in.jsonl"
    url = {"type": "image_url", "image_url": {"url": "http://93.184.215.14:8080/x.png"}}
    f.write_text(json.dumps({"messages": [{"role": "user", "content": [url]}]}) + '\n{"prompt":"a"}\n')
    r = subprocess.run(["unshare", "-rn", "python3", "-c", SLOW_SERVER, program, "generate", "--model", model, "--input", f, "--fetch"], capture_output=True, timeout=120)
    if r.returncode == 77:
        pytest.skip("no addresses can be added here")
    status, out, err, seconds = json.loads(r.stdout)
    assert (status, out) == (130, "") and "0 results complete, 2 missing" in err and seconds < 10


def test_ends_held_back_and_bias(deepserve, model, tmp_path):
    """A text that the model would end goes on to min_tokens, or for good; by option and by line, in raw lines and chat requests alike."""
    ends = next(x for x in range(40) if one(deepserve, model, "--prompt", "abc", "--seed", x, "--max-tokens", 60)["finish_reason"] == "stop")
    short = one(deepserve, model, "--prompt", "abc", "--seed", ends, "--max-tokens", 60)
    n = len(short["ids"])
    held = one(deepserve, model, "--prompt", "abc", "--seed", ends, "--max-tokens", 60, "--min-tokens", n + 3)
    assert len(held["ids"]) >= n + 3
    assert one(deepserve, model, "--prompt", "abc", "--seed", ends, "--max-tokens", 60, "--ignore-eos")["usage"]["completion_tokens"] == 60
    f = tmp_path / "in.jsonl"
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
    f.write_text("\n".join(json.dumps(x) for x in [
        {"prompt": "abc", "seed": ends, "max_tokens": 60, "min_tokens": n + 3}, {"prompt": "abc", "seed": ends, "max_tokens": 60, "ignore_eos": True},
        {"prompt": "abc", "max_tokens": 5, "logit_bias": {"9": 1000}}, {"prompt": None, "tokens": [1], "max_tokens": 5, "stop": None, "logit_bias": {"9": 1000.0}},
        {**chat, "logit_bias": {"9": 100}, "temperature": 0, "ignore_eos": True}, {**chat, "min_tokens": 9},
        {"prompt": "a", "min_tokens": 9, "max_tokens": 8}, {"prompt": "a", "logit_bias": {"99999": 1}}, {"prompt": "a", "logit_bias": {"-1": 1}},
        {"prompt": "a", "logit_bias": {"1": "x"}}, {"prompt": "a", "logit_bias": 1}, {"prompt": "a", "ignore_eos": 1}, {"prompt": "a", "logit_bias": {"1": 1e99}}]))
    got = lines(deepserve("generate", "--model", model, "--input", f))
    assert got[0]["ids"] == held["ids"] and len(got[1]["ids"]) == 60
    assert got[2]["ids"] == got[3]["ids"] == [9] * 5
    assert len(got[4]["ids"]) == 9 and len(got[5]["ids"]) == 9
    for x, word in zip(got[6:], ("min_tokens: 9 is more", "'99999' is no token id", "'-1'", "numbers", "an object", "true or false", "not finite")):
        assert word in x["error"]["message"], x


def test_token_rules_of_chat_lines(deepserve, model, tmp_path):
    """What a chat request says of tokens holds here as it does at the server."""
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 6, "temperature": 1, "seed": 3}
    f = tmp_path / "in.jsonl"
    f.write_text("\n".join(json.dumps({**chat, **more}) for more in (
        {"allowed_token_ids": [50, 60]}, {"allowed_token_ids": [50, 60], "stop_token_ids": [60, 50]}, {"truncate_prompt_tokens": 2},
        {"allowed_token_ids": [50, 60], "stop_token_ids": [60, 50], "include_stop_str_in_output": True})))
    got = lines(deepserve("generate", "--model", model, "--input", f))
    assert set(got[0]["ids"]) <= {50, 60} and len(got[0]["ids"]) == 6
    assert got[1]["ids"] == [] and got[1]["finish_reason"] == "stop"
    assert got[2]["usage"]["prompt_tokens"] == 2
    assert got[3]["ids"] in ([50], [60])


def test_context_and_length(deepserve, model):
    r = one(deepserve, model, "--prompt", "abcdef", "--max-tokens", 100, "--context", 10)
    assert r["finish_reason"] == "length" and len(r["ids"]) == 3  # 7 prompt tokens
    r = deepserve("generate", "--model", model, "--prompt", "abcdefghij", "--context", 11)
    assert r.returncode == 1 and r.stdout == b"" and b"no room" in r.stderr
    r = one(deepserve, model, "--prompt", "", "--max-tokens", 2)
    assert r["usage"]["prompt_tokens"] == 1


def test_stop_strings(deepserve, model):
    full = one(deepserve, model, "--prompt", "Hello", "--temperature", 0, "--max-tokens", 30)
    at = next(i for i in range(8, len(full["text"]) - 2) if full["text"].isascii() or "\ufffd" not in full["text"][i:i + 2])
    stop = full["text"][at:at + 2]
    cut = one(deepserve, model, "--prompt", "Hello", "--temperature", 0, "--max-tokens", 30, "--stop", stop, "--stop", "never occurs")
    assert cut["finish_reason"] == "stop" and cut["text"] == full["text"][:full["text"].index(stop)]
    assert cut["ids"] == full["ids"][:len(cut["ids"])] and cut["usage"]["completion_tokens"] == len(cut["ids"])


def test_any_stop_string(deepserve, model, tmp_path):
    """Every piece of a text, as a stop string, ends it where it occurs first: inside a token, over several, behind characters that aren't whole."""
    f = tmp_path / "in.jsonl"
    f.write_text("\n".join(json.dumps({"prompt": "ab", "max_tokens": 24, "seed": s, "ignore_eos": True}) for s in range(4)))
    full = [x["text"] for x in lines(deepserve("generate", "--model", model, "--input", f))]
    cases = [(s, text[at:at + n]) for s, text in enumerate(full) for at in range(0, len(text), 3) for n in (1, 2, 5)]
    cases = [(s, stop) for s, stop in cases if "\ufffd" not in stop]  # what stands for broken bytes is no text of the model's
    f.write_text("\n".join(json.dumps({"prompt": "ab", "max_tokens": 24, "seed": s, "ignore_eos": True, "stop": ["never there", stop]}) for s, stop in cases))
    got = lines(deepserve("generate", "--model", model, "--input", f))
    for (s, stop), x in zip(cases, got):
        assert x["text"] == full[s][:full[s].index(stop)] and x["finish_reason"] == "stop", (s, stop, full[s], x)


def test_stop_strings_behind_min_tokens(deepserve, model, tmp_path):
    f = tmp_path / "in.jsonl"

    def run(**how):
        f.write_text(json.dumps({"prompt": "Hi", "temperature": 0, "max_tokens": 12, **how}) + "\n")
        return json.loads(deepserve("generate", "--model", model, "--input", f).stdout)

    free = run()
    stop = free["text"][2:4]
    assert run(stop=stop)["text"] == free["text"][:free["text"].index(stop)]
    assert run(stop=stop, min_tokens=12)["text"] == free["text"]
    assert run(stop=stop, include_stop_str_in_output=True)["text"] == free["text"][:free["text"].index(stop) + len(stop)]


def test_token_rules(deepserve, model, tmp_path):
    f = tmp_path / "in.jsonl"

    def run(fails=False, **how):
        f.write_text(json.dumps({"prompt": "Hi", "temperature": 0, "max_tokens": 12, **how}) + "\n")
        done = deepserve("generate", "--model", model, "--input", f)
        assert (done.returncode != 0) == fails, done
        return json.loads(done.stdout)

    free = run()["ids"]
    at = next(i for i in range(2, 12) if free[i] not in free[:i])
    assert run(stop_token_ids=[free[at]])["ids"] == free[:at]
    assert run(stop_token_ids=[free[at]], include_stop_str_in_output=True)["ids"] == free[:at + 1]
    assert set(run(allowed_token_ids=free[:2])["ids"]) <= set(free[:2])
    assert "bbb" not in run(bad_words=["b", "bb", "bbb"])["text"]
    whole, cut = run(prompt=None, tokens=[5, 6, 7]), run(prompt=None, tokens=[9, 9, 5, 6, 7], truncate_prompt_tokens=3)
    assert cut["ids"] == whole["ids"] and cut["usage"]["prompt_tokens"] == 3
    for wrong in (dict(allowed_token_ids=[]), dict(stop_token_ids=[1 << 20]), dict(bad_words="a"), dict(bad_words=[""]), dict(truncate_prompt_tokens=0)):
        assert next(iter(wrong)) in run(True, **wrong)["error"]["message"]


def test_constraints(deepserve, tmp_path, root):
    """Options for all lines, a line's own before them; what is refused is said for its line, or before any is read."""
    demo = ("generate", "--model", root / "models/demo", "--max-tokens", 200)
    schema, rules = tmp_path / "schema.json", tmp_path / "rules"
    schema.write_text('{"type":"object","properties":{"n":{"type":"integer"},"c":{"enum":["x","y"]}},"required":["n","c"],"additionalProperties":false}')
    rules.write_text('root ::= "<" [a-z]{2} ">"')
    for option, value, pattern in (("--regex", "[0-9]{4}", r"\d{4}"), ("--ebnf", rules, "<[a-z]{2}>"), ("--json-schema", schema, r'\{\s*"n"\s*:\s*-?\d+\s*,\s*"c"\s*:\s*"[xy]"\s*\}')):
        r = deepserve(*demo, "--prompt", "Now: ", option, value, "--json", "--seed", 2)
        assert r.returncode == 0, r.stderr
        line = json.loads(r.stdout)
        assert line["finish_reason"] == "length" or re.fullmatch(pattern, line["text"]), line
    rules.write_text('start: "ab" | "cd"')
    schema.write_text('["red", "green"]')
    assert deepserve(*demo, "--prompt", "x", "--lark", rules).stdout.strip() in (b"ab", b"cd")
    assert deepserve(*demo, "--prompt", "x", "--choices", schema).stdout.strip() in (b"red", b"green")
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(json.dumps(x) for x in [
        {"prompt": "x"}, {"prompt": "x", "structured_outputs": {"choice": ["one", "two"]}, "n": 2}, {"prompt": "x", "structured_outputs": {"regex": "(?=a)"}}, {"tokens": [0, 5], "structured_outputs": {}},
        {"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "disabled"}, "guided_choice": ["three", "four"]},
        {"messages": [{"role": "user", "content": "x"}], "guided_choice": ["three"], "guided_regex": "a"},
        {"prompt": "x", "guided_choice": ["five", "six"]}, {"prompt": "x", "regex": "a"}, {"prompt": "x", "response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": "x"}]}, {"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled"}, "seed": 3}]) + "\n")
    r = deepserve(*demo, "--input", lines, "--regex", "[0-9]{4}")
    assert r.returncode == 1
    got = [json.loads(x) for x in r.stdout.decode().splitlines()]
    assert got[0]["text"].isdigit() and {g["text"] for g in got[1:3]} <= {"one", "two"} and got[4]["text"].isdigit() and got[5]["text"] in ("three", "four")
    assert "structured_outputs.regex" in got[3]["error"]["message"] and "look-ahead" in got[3]["error"]["message"] and "already" in got[6]["error"]["message"]
    assert got[7]["text"] in ("five", "six") and "regex" in got[8]["error"]["message"] and "response_format" in got[9]["error"]["message"]
    assert got[10]["text"].isdigit(), "nobody asked for a thought"
    thought, end, answer = got[11]["text"].partition("</think>")
    assert got[11]["finish_reason"] == "length" if not end else answer.isdigit() and not thought.isdigit()
    for args, says in ((("--regex", "("), b"no end"), (("--ebnf", tmp_path / "none"), b"none")):
        r = deepserve(*demo, "--prompt", "x", *args)
        assert r.returncode == 1 and not r.stdout and says in r.stderr, r
    assert deepserve(*demo, "--prompt", "x", "--regex", "a", "--ebnf", rules).returncode == 2


def test_interrupted_with_constraints(program, root):
    """What is in the engine when a signal comes is ended before its grammar is given back."""
    p = subprocess.Popen([program, "generate", "--model", str(root / "models/demo"), "--input", "-", "--ignore-eos"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    line = {"prompt": "x", "structured_outputs": {"regex": "a*"}}
    p.stdin.write("".join(json.dumps({**line, "max_tokens": n}) + "\n" for n in [1, *[4000] * 40]).encode())
    p.stdin.flush()
    p.stdout.readline()  # the others are in work, and their end isn't in sight: the input is open
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 143, (out, err)


def test_wrong_use(deepserve, model, tmp_path):
    for args in ((), ("--prompt", "a", "--tokens", "1"), ("--tokens", "1,x"), ("--prompt", "a", "--speculate", "maybe"), ("--prompt", "a", "--top-p", 0),
                 ("--prompt", "a", "--max-tokens", 0), ("--prompt", "a", "--temperature", "nan"), ("--prompt", "a", *["--stop", "x"] * 17),
                 ("--prompt", "a", "--stop", "x" * 257), ("--prompt", "a", "--max-tokens", 4, "--min-tokens", 5)):
        r = deepserve("generate", "--model", model, *args)
        assert r.returncode == 2 and r.stdout == b"" and r.stderr, args
    for args in (("--tokens", "99999"), ("--input", tmp_path / "absent"), ("--input", tmp_path)):
        r = deepserve("generate", "--model", model, *args)
        assert r.returncode == 1 and r.stdout == b"" and len(r.stderr.splitlines()) == 1, (args, r.stderr)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signals(program, model, tmp_path, sig):
    f = tmp_path / "in.jsonl"
    f.write_text('{"prompt":"abc","max_tokens":60}\n' * 3000)
    p = subprocess.Popen([program, "generate", "--model", model, "--input", f], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert p.stdout.readline()
    p.send_signal(sig)
    out, err = p.communicate(timeout=240)
    assert p.returncode == 128 + sig
    results = out.decode().splitlines()
    assert len(results) < 2000  # of 3000; it goes on with none of those that wait
    assert all(json.loads(x)["ids"] for x in results)
    assert f"{len(results) + 1} results complete, {3000 - len(results) - 1} missing" in err.decode()


def test_chat_without_terminal(deepserve, model):
    r = deepserve("chat", "--model", model, "--max-tokens", 8, "--seed", 3, stdin=b"Hello\n\nAgain\n")
    assert r.returncode == 0 and r.stdout.count(b"\n") >= 2, r.stderr


def test_many_at_once_equal_one_by_one(deepserve, model, tmp_path):
    """What runs beside a request changes nothing; a prompt that others share is computed once."""
    f = tmp_path / "in.jsonl"
    shared = [(13 * i) % 250 + 3 for i in range(300)]
    rows = [{"tokens": shared[: 5 + 7 * i] + [i + 3], "max_tokens": 4 + i, "temperature": i % 2, "seed": i} for i in range(12)]
    f.write_text("".join(json.dumps(r) + "\n" for r in rows))
    results = []
    for parallel in (1, 5, 16):
        r = deepserve("generate", "--model", model, "--input", f, "--mode", "exact", "--parallel", parallel)
        assert r.returncode == 0, r.stderr
        results.append([(x["index"], x["ids"], x["text"]) for x in lines(r)])
    assert results[0] == results[1] == results[2]

    f.write_text("".join(json.dumps({"tokens": shared + [i + 3], "max_tokens": 2}) + "\n" for i in range(6)))
    cached = [x["usage"]["cached_tokens"] for x in lines(deepserve("generate", "--model", model, "--input", f))]
    assert all(c % 128 == 0 and c <= 301 - 134 for c in cached) and cached.count(128) >= 5, cached
