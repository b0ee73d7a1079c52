"""deepserve bench http against a small server: what it sends, what it measures, that it doesn't wait for the server."""
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from load_stub import LoadStub


@pytest.fixture
def stub():
    """stub(gap) -> a running LoadStub with .url"""
    loops = []

    def start(gap=0.0):
        loop, s = asyncio.new_event_loop(), LoadStub(gap)
        port = loop.run_until_complete(s.start())
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        loops.append((loop, thread))
        s.url, s.loop = f"http://127.0.0.1:{port}", loop
        return s

    yield start
    async def end():
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for loop, thread in loops:
        asyncio.run_coroutine_threadsafe(end(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def load(deepserve):
    def run(s, *args, status=0):
        done = deepserve("bench", "http", "--json", "--url", s if isinstance(s, str) else s.url, *args)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout) if status == 0 else done.stderr.decode()

    return run


def test_streams_are_measured(stub, load):
    s = stub(gap=0.02)
    r = load(s, "--rate", 20, "--requests", 40, "--output", 10, "--input", 30, "--extra", '{"temperature": 0, "x": {"y": [1]}}')
    assert (r["op"], r["scheduled"], r["sent"], r["completed"], r["good"], r["errors"], r["without_usage"]) == ("http", 40, 40, 40, 40, {}, 0)
    assert (r["prompt_tokens"], r["cached_tokens"], r["completion_tokens"]) == (4000, 1600, 400)
    assert r["first_token_ms"]["n"] == r["per_token_ms"]["n"] == r["end_to_end_ms"]["n"] == r["send_lag_ms"]["n"] == 40
    assert r["between_events_ms"]["n"] == 360
    assert r["first_token_ms"]["p50"] >= 18 and r["per_token_ms"]["p50"] >= 18 and 190 <= r["end_to_end_ms"]["p50"] <= r["end_to_end_ms"]["max"] < 1000 * r["seconds"]
    for t in ("first_token_ms", "between_events_ms", "end_to_end_ms"):
        assert r[t]["p50"] <= r[t]["p90"] <= r[t]["p99"] <= r[t]["p99_9"] <= r[t]["max"]
    head, body = s.requests[0]
    assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\n") and f"Host: {s.url[7:]}" in head
    assert body["stream"] and body["stream_options"] == {"include_usage": True} and body["max_tokens"] == 10 and body["temperature"] == 0 and body["x"] == {"y": [1]}
    assert len(body["messages"]) == 1 and len(body["messages"][0]["content"].split()) == 30
    assert s.connections == r["connections"] < 40


def test_it_never_waits_for_the_server(stub, load):
    """The server answers nothing for a while: requests go on leaving when they are due, and the wait is in every number."""
    s = stub()
    s.hold = 3
    r = load(s, "--rate", 100, "--requests", 100, "--output", 2)
    assert r["completed"] == 100 and r["max_live"] >= 60
    assert r["first_token_ms"]["max"] > 2500 and r["first_token_ms"]["p50"] > 1500
    assert r["send_lag_ms"]["p50"] < 1000  # one that waits has 2500


def test_whole_answers_and_completions(stub, load):
    s = stub()
    r = load(s, "--no-stream", "--rate", 200, "--requests", 50, "--protocol", "completions", "--no-keepalive")
    assert r["completed"] == 50 and r["first_token_ms"] == {"n": 0} and r["connections"] == 50 and r["completion_tokens"] == 50 * 64
    head, body = s.requests[0]
    assert "POST /v1/completions " in head and "Connection: close" in head and "stream" not in body and len(body["prompt"].split()) == 256


def test_conversations(stub, load):
    s = stub()
    r = load(s, "--rate", 50, "--requests", 4, "--turns", 3, "--think", "20ms", "--output", 3, "--input", 5)
    assert r["completed"] == r["scheduled"] == 12
    longest = [b["messages"] for _, b in s.requests if len(b["messages"]) == 5]
    assert len(longest) == 4
    for messages in longest:
        assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert messages[1]["content"] == messages[3]["content"] == 'w"0 w"1 w"2 '
        assert messages[:3] in [b["messages"] for _, b in s.requests]
        assert messages[0] != messages[2]


def test_closed_loop(stub, load):
    s = stub()
    r = load(s, "--closed", 3, "--think", "0s", "--requests", 300, "--output", 2, "--no-stream")
    assert r["completed"] == r["scheduled"] == 300 and r["max_live"] == 3 and r["connections"] == 3 and r["closed"] == 3 and "rate" not in r
    r = load(s, "--closed", 2, "--think", "1ms", "--duration", "500ms", "--turns", 2, "--output", 2)
    assert r["completed"] > 1 and r["max_live"] <= 2 and r["seconds"] < 30
    assert "http_429" in load(s, "--closed", 2, "--think", "0s", "--duration", "200ms", "--model", "429", status=1)
    assert len(s.requests) < 300 + r["completed"] + 100  # whom a server refuses pauses


def test_prefixes_trace_and_seed(stub, load, tmp_path):
    s = stub()
    load(s, "--rate", 500, "--requests", 20, "--input", 60, "--prefix", 50, "--prefixes", 2, "--output", 1)
    texts = [b["messages"][0]["content"] for _, b in s.requests]
    assert len({" ".join(t.split()[:50]) for t in texts}) == 2 and len(set(texts)) == 20
    load(s, "--rate", 500, "--requests", 20, "--input", 60, "--prefix", 50, "--prefixes", 2, "--output", 1)
    assert sorted(texts) == sorted(b["messages"][0]["content"] for _, b in s.requests[20:])
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": t, "input_length": 520, "output_length": 3, "hash_ids": ids}) + "\n" for t, ids in ((0, [1, 2]), (2000, [1, 3]), (1000, [4, 5]))))
    begun = time.monotonic()
    r = load(s, "--trace", trace, "--speed", 4)
    assert r["completed"] == 3 and 0.5 < time.monotonic() - begun < 60
    a, b, c = [x["messages"][0]["content"].split() for _, x in s.requests[40:]]
    assert len(a) == 520 and a[:512] == c[:512] != b[:512] and a[512:] != c[512:]


@pytest.mark.parametrize(
    "model, kind",
    [("429", "http_429"), ("503", "http_503"), ("529", "http_503"), ("404", "http_4xx"), ("500", "http_5xx"), ("302", "protocol"), ("close", "closed"), ("garbage", "protocol"),
     ("break", "stream"), ("cut", "truncated"), ("silent", "timeout")],
)
def test_errors_by_kind(stub, load, model, kind):
    why = load(stub(), "--rate", 100, "--requests", 5, "--model", model, "--timeout", "300ms" if kind == "timeout" else "60s", status=1)
    assert f"of 5 requests none was completed: {kind} 5" in why


def test_kept_connections_that_the_server_closed(stub, load):
    r = load(stub(), "--rate", 100, "--requests", 50, "--model", "onceonly", "--output", 1, "--no-stream")
    assert r["completed"] == 50 and r["errors"] == {} and r["connections"] >= 25


def test_limit_warmup_and_wanted_times(stub, load):
    s = stub(gap=0.05)
    r = load(s, "--rate", 100, "--requests", 50, "--max-live", 5, "--output", 10)
    assert r["errors"] == {"limit": 50 - r["completed"]} and r["max_live"] == 5 and 5 <= r["completed"] < 50
    before = len(s.requests)
    r = load(s, "--rate", 50, "--duration", "1s", "--warmup", "500ms", "--output", 1, "--want-first", "10ms")
    assert r["warmup"] > 5 and r["scheduled"] == r["completed"] and r["good"] == 0
    assert r["warmup"] + r["scheduled"] == len(s.requests) - before


def test_unfinished_on_a_signal(stub, program):
    s = stub(gap=0.02)
    p = subprocess.Popen([program, "bench", "http", "--url", s.url, "--rate", "50", "--duration", "60s", "--output", "40", "--json"], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while (len(s.requests) < 130 or s.answered < 40) and time.monotonic() < deadline:
        time.sleep(0.05)
    p.send_signal(signal.SIGINT)
    r = json.loads(p.communicate(timeout=120)[0])
    assert p.returncode == 130 and r["errors"]["unfinished"] > 0 and r["completed"] + r["errors"]["unfinished"] == r["scheduled"]


def test_key_and_path(stub, load, tmp_path):
    s = stub()
    (tmp_path / "key").write_text("dsk-abc\nmore\n")
    r = load(s.url + "/base/", "--requests", 1, "--rate", 100, "--key-file", tmp_path / "key")
    assert r["completed"] == 1 and "Authorization: Bearer dsk-abc\r\n" in s.requests[0][0] and s.requests[0][0].startswith("POST /base/v1/chat")


def test_many_streams(stub, load):
    """300 at once, on a server that takes its time."""
    r = load(stub(gap=0.1), "--rate", 300, "--requests", 300, "--output", 15)
    assert r["completed"] == 300 and r["max_live"] > 200 and r["between_events_ms"]["n"] == 300 * 14


def test_table(stub, deepserve):
    done = deepserve("bench", "http", "--url", stub(gap=0.01).url, "--rate", 100, "--requests", 10, "--output", 3, "--want-pace", "60s")
    out = done.stdout.decode()
    assert done.returncode == 0 and done.stderr == b""
    for words in ("10 requests in", "10 completed, 0 failed", "40.0 % cached", "100.00 % good", "time to first token", "sent late (generator)", "p99.9"):
        assert words in out


def test_table_of_errors(stub, deepserve):
    done = deepserve("bench", "http", "--url", stub(gap=0.05).url, "--rate", 200, "--requests", 20, "--output", 5, "--max-live", 3)
    assert re.search(r"^20 requests in [\d.]+ s: \d+ completed, \d+ failed \(limit \d+\)$", done.stdout.decode().splitlines()[0])


def test_descriptors(stub, program):
    """The bound is what the process may open, or what was asked for, or a refusal."""
    s = stub()

    def run(limit, *args):
        return subprocess.run(["sh", "-c", f'ulimit -n {limit}; exec "$0" "$@"', program, "bench", "http", "--url", s.url, "--requests", "3", "--rate", "100", *args], capture_output=True, text=True)

    assert run(150).returncode == 0
    for limit, args in ((150, ["--max-live", "1000"]), (80, [])):
        done = run(limit, *args)
        assert done.returncode == 1 and f"may open {limit} files" in done.stderr and done.stdout == ""


def test_nobody_there(load):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        assert "connect 3" in load(f"http://127.0.0.1:{s.getsockname()[1]}", "--requests", 3, "--rate", 100, status=1)


@pytest.mark.parametrize(
    "args, status, words",
    [
        (["--url", "https://localhost"], 2, "TLS"), (["--url", "localhost:1"], 2, "http://"), (["--url", "http://:80"], 2, "host"), (["--url", "http://a:99999"], 2, "port"),
        (["--url", "http://[::1"], 2, "bracket"), (["--url", "http://u@h"], 2, "user"), (["--rate", "0"], 2, "rate"), (["--duration", "0"], 2, "no end"),
        (["--turns", "2", "--protocol", "completions"], 2, "chat"), (["--extra", "[1]"], 2, "object"), (["--extra", "{"], 2, "extra"), (["--trace", "x", "--rate", "3"], 2, "--rate"), (["--closed", "3", "--rate", "3"], 2, "--rate"),
        (["--trace", "/nonexistent"], 1, "/nonexistent"), (["--key-file", "/nonexistent"], 1, "/nonexistent"), (["word"], 2, "word"), (["--prefix", "300"], 2, "--input 256"),
    ],
)
def test_wrong_use(deepserve, args, status, words):
    done = deepserve("bench", "http", *args)
    assert done.returncode == status and done.stdout == b"" and words in done.stderr.decode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk(stub, program):
    with open("/dev/full", "w") as full:
        done = subprocess.run([program, "bench", "http", "--url", stub().url, "--requests", "1", "--rate", "100", "--json"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"standard output" in done.stderr
