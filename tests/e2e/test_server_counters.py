"""Counters of /metrics agree with each other and with what clients saw, whatever clients do: random traffic with early ends, deadlines and refusals."""
import json
import random
import threading

import pytest

from server_lib import Server, make_model, wait

N = 150
ANSWERS = [{"text": "</think>", "repeat": True, "when": "nothing"}, {"text": "a thought</think>" + "word " * 30, "repeat": True, "when": "long"}, {"text": "x</think>Hello.", "repeat": True}]


@pytest.fixture(scope="module")
def model(program, root, tmp_path_factory):
    return make_model(program, root, tmp_path_factory.mktemp("counters") / "model")


def total(m, name):
    return sum(v for k, v in m.items() if k == name or k.startswith(name + "{"))


def requests(rng):
    """(path, body, ends early)"""
    for i in range(N):
        text = rng.choice(["nothing", "long", "short"])
        stream, early, n = rng.random() < 0.5, rng.random() < 0.2, rng.choice([1, 1, 1, 3])
        kind = rng.randrange(10)
        if kind == 0:
            yield "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 99}, False
        elif kind == 1:
            yield "/v1/nothing", {}, False
        elif kind < 4:
            yield "/v1/completions", {"model": "m", "prompt": [text, text][:rng.choice([1, 2])], "n": n, "max_tokens": rng.choice([0, 1, 50]), "stream": stream}, early
        elif kind < 6:
            yield "/v1/messages", {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": text}], "stream": stream}, early
        elif kind < 8:
            yield "/v1/responses", {"model": "m", "input": text, "stream": stream}, early
        else:
            yield "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}], "n": n, "stream": stream, "stop": rng.choice([None, "o"])}, early


def ask(s, path, body, early):
    """The status, or None when this client didn't wait for it."""
    if not early:
        return s.request("POST", path, body)[0]
    data = json.dumps(body).encode()
    with s.connect() as c:
        c.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        if len(data) % 2:
            c.recv(1)
    return None


@pytest.mark.parametrize("more", [(), ("--engines", 2, "--request-timeout", "40ms")])
def test_invariants(program, model, tmp_path, more):
    with Server(program, model, "--max-running", 8, *more, replay=ANSWERS, folder=tmp_path, step=2000) as s:
        todo, seen, lock = list(requests(random.Random(7))), [], threading.Lock()

        def client():
            while True:
                with lock:
                    if not todo:
                        return
                    one = todo.pop()
                status = ask(s, *one)
                with lock:
                    seen.append((one, status))

        threads = [threading.Thread(target=client) for _ in range(12)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            m = s.metrics()
            assert 0 <= total(m, "requests_accepted_total") - total(m, "request_success_total") - total(m, "request_failed_total") <= 12 + N // 5
        for t in threads:
            t.join()
        assert s.wait_metric("num_requests_running{engine=\"0\"}" if more else "num_requests_running", 0) == 0
        settled = lambda m: m if total(m, "requests_accepted_total") == total(m, "request_success_total") + total(m, "request_failed_total") else None
        m = wait(lambda: settled(s.metrics())) or s.metrics()
        accepted, done, failed = (total(m, name) for name in ("requests_accepted_total", "request_success_total", "request_failed_total"))
        assert accepted == done + failed
        assert done == m["e2e_request_latency_seconds_count"] == m["request_generation_tokens_count"]
        assert accepted == m["request_prompt_tokens_count"]
        assert done <= m["time_to_first_token_seconds_count"] <= accepted
        assert m["request_prefill_time_seconds_count"] == m["request_decode_time_seconds_count"]
        assert all(total(m, name) == 0 for name in ("num_requests_running", "num_requests_waiting", "num_requests_parked", "num_requests_waiting_by_reason", "streams"))
        # what clients saw
        waited = [(one, status) for one, status in seen if status is not None]
        answered = [one for one, status in waited if status == 200]
        assert total(m, "request_refused_total") == sum(400 <= status < 500 for _, status in waited) > 0
        whole = [body for _, body, _ in answered if not body.get("stream")]
        assert len(whole) <= done <= len(whole) + sum(1 for (_, body, early), _ in seen if body.get("stream") or early)
        choices = lambda body: body.get("n", 1) * (len(body["prompt"]) if "prompt" in body else 1)
        assert total(m, "choice_success_total") >= sum(map(choices, whole))
        assert total(m, "choice_success_total") + total(m, "choice_failed_total") <= sum(choices(body) for (_, body, _), status in seen if status in (None, 200, 504))
        if not more and not any(early for (_, _, early), _ in seen):
            assert failed == 0
