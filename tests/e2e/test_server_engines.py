"""serve --engines: several engines behind one server. Texts are the same, requests are spread, and each is canceled where it is."""
import concurrent.futures
import json
import subprocess

import pytest

from server_lib import CHAT, Server, make_model, wait


@pytest.fixture(scope="module")
def model(program, root, tmp_path_factory):
    return make_model(program, root, tmp_path_factory.mktemp("model") / "tiny")


def bodies():
    for i in range(10):
        body = {**CHAT, "messages": [{"role": "user", "content": f"request {i} " * (1 + 40 * (i % 3))}], "max_tokens": 12 + i, "seed": i, "temperature": 0.9}
        if i % 3 == 0:
            body["n"] = 2
        if i % 4 == 1:
            body["logprobs"] = True
        yield body


def answers(s):
    """What all of them get at once, and of one as a stream."""
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        got = list(pool.map(lambda body: s.request("POST", "/v1/chat/completions", body), bodies()))
    assert all(status == 200 for status, _, _ in got), got
    status, _, stream = s.request("POST", "/v1/chat/completions", {**next(bodies()), "n": 1, "stream": True})
    assert status == 200 and stream.rstrip().endswith(b"[DONE]")
    text = "".join(c["delta"].get("content") or "" for line in stream.decode().splitlines() if line.startswith("data: {") for c in json.loads(line[6:])["choices"])
    return [[(c["message"], c["finish_reason"], c.get("logprobs")) for c in answer["choices"]] for _, _, answer in got], text


def test_texts_do_not_depend_on_the_number(program, model):
    with Server(program, model, "--threads", 2, "--max-running", 4) as s:
        alone = answers(s)
        assert "num_requests_running" in s.metrics()
    with Server(program, model, "--threads", 2, "--max-running", 4, "--engines", 2) as s:
        assert answers(s) == alone
        m = s.metrics()
        assert m['engine_steps_total{engine="0"}'] > 0 and m['engine_steps_total{engine="1"}'] > 0
        assert m['num_requests_running{engine="0"}'] == m['num_requests_running{engine="1"}'] == 0
        assert m["requests_accepted_total"] == 11 and m['engine_ended_total{reason="lost"}'] == 0
        assert s.stop() == 0


def running(s):
    m = s.metrics()
    return [int(m[f'num_requests_running{{engine="{i}"}}'] + m[f'num_requests_waiting{{engine="{i}"}}']) for i in range(3)]


def test_spread_canceled_and_full(program, model, tmp_path):
    """Recorded answers that never end: one on each engine, the fourth finds all full; who leaves makes room where it was."""
    stream = json.dumps({**CHAT, "stream": True}).encode()
    with Server(program, model, "--engines", 3, "--max-requests", 3, replay=[{"text": "word " * 3000, "repeat": True}], folder=tmp_path, step=5000) as s:
        def open_one():
            c = s.connect()
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(stream) + stream)
            return c

        clients = []
        for n in range(3):
            clients.append(open_one())
            assert wait(lambda: sum(running(s)) == n + 1)
        assert running(s) == [1, 1, 1]
        status, headers, _ = s.request("POST", "/v1/chat/completions", CHAT)
        assert status == 429 and headers["Retry-After"]
        clients[1].close()
        assert wait(lambda: running(s) == [1, 0, 1])
        clients.append(open_one())
        assert wait(lambda: running(s) == [1, 1, 1])
        for c in clients:
            c.close()
        assert wait(lambda: running(s) == [0, 0, 0])
        assert s.metrics()["client_disconnected_total"] == 4


def test_refusals(program, model):
    def refused(*args):
        r = subprocess.run([program, "serve", "--model", str(model), "--port", "0", *map(str, args)], capture_output=True, text=True, timeout=120)
        assert r.returncode != 0
        return r.stderr

    assert "3 engines: each needs a thread of the model, there are 2" in refused("--engines", 3, "--threads", 2)
    assert "each of 2 engines: engine: " in refused("--engines", 2, "--threads", 2, "--memory", "7MiB")
    assert "--engines" in refused("--engines", 65)
    assert "--engines" in refused("--engines", 0)
