"""Prefill apart from decode: `deepserve entry` on engines with roles gives the answers of one process, whoever goes and
whenever, and leaves nothing behind."""
import concurrent.futures
import json
import signal
import subprocess

import pytest

from server_lib import Server, wait
from test_cluster import MODEL, REQUESTS, Engine, chat, essence, stream, text_of

LONG = chat("Tell me a story about a fox and a lantern. " * 30, max_tokens=200, ignore_eos=True, temperature=1, seed=11)
MORE = [chat("Say it again.", prompt_logprobs=2), chat("Tell me a story about a mill. " * 20, max_tokens=1), chat("Tell me a story about a well. " * 20, max_tokens=2, temperature=1, seed=3)]


class Roles:
    """An entry on engines of these roles."""

    def __init__(self, program, folder, *roles, args=()):
        self.engines = [Engine(program, f"unix:{folder}/{i}", "--role", role, *args) for i, role in enumerate(roles)]
        self.entry = Server(program, MODEL, *(x for e in self.engines for x in ("--engine", e.address)), command="entry")

    def idle(self):
        """Nothing is held anywhere."""
        metrics = self.entry.metrics()
        return not any(metrics[f'{name}{{engine="{i}"}}'] for name in ("num_requests_running", "num_requests_waiting", "num_requests_parked", "kv_cache_usage_perc")
                       for i in range(len(self.engines)) if not metrics[f'engine_lost{{engine="{i}"}}'])

    def stop(self):
        assert wait(self.idle)
        assert self.entry.stop() == 0
        assert [e.end(signal.SIGTERM) for e in self.engines] == [0] * len(self.engines)


@pytest.fixture(scope="module", params=[(), ("--speculate", "off")], ids=["drafts", "no-drafts"])
def roles(request, program, tmp_path_factory):
    r = Roles(program, tmp_path_factory.mktemp("roles"), "prefill", "decode", args=request.param)
    yield r
    r.stop()


@pytest.fixture(scope="module")
def wanted(program):
    with Server(program, MODEL, "--memory", "300MiB") as s:
        return [essence(s.request("POST", "/v1/chat/completions", r)[2]) for r in REQUESTS + MORE], text_of(stream(s, LONG)[1])


def test_answers_are_those_of_one_process(roles, wanted):
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS) + len(MORE)) as pool:
        got = list(pool.map(lambda r: roles.entry.request("POST", "/v1/chat/completions", r)[2], REQUESTS + MORE))
    for g, w, r in zip(got, wanted[0], REQUESTS + MORE):
        assert essence(g) == w, r
    assert text_of(stream(roles.entry, LONG)[1]) == wanted[1]
    assert wait(roles.idle)
    steps = [roles.entry.metrics()[f'engine_steps_total{{engine="{i}"}}'] for i in range(2)]
    assert 0 < steps[0] < steps[1] / 2, steps  # the first ones only begin texts


def test_what_is_canceled_leaves_nothing(roles):
    for n in [0, 1, 2, 3, 20]:  # chunks that its reader waits for
        c, chunks = stream(roles.entry, LONG)
        for _ in range(n):
            next(chunks)
        c.sock.close() if c.sock else None
        chunks.close()
        c.close()
    assert wait(roles.idle)


@pytest.mark.parametrize("who", [0, 1])
def test_engines_are_killed(program, tmp_path, wanted, who):
    r = Roles(program, tmp_path, "prefill", "decode")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for n in [0, 1, 2, 20]:
            streams = [stream(r.entry, LONG) for _ in range(2)]
            heads = [[next(chunks) for _ in range(n)] for _, chunks in streams]
            r.engines[who].end(signal.SIGKILL)
            rest = [pool.submit(list, chunks) for _, chunks in streams]
            if who == 0:  # nobody else computes prompts
                r.engines[who].start()
            for head, tail in zip(heads, rest):
                assert text_of(head) + text_of(tail.result(120)) == wanted[1]
            if who == 1:  # the other one decoded; it is used again when it is back
                r.engines[who].start()
            assert wait(lambda: r.entry.metrics().get(f'engine_lost{{engine="{who}"}}') == 0)
            assert wait(r.idle)
    r.stop()


def test_roles_that_are_missing(program, tmp_path):
    for role, other in [("prefill", "decoding"), ("decode", "prompts")]:
        e = Engine(program, f"unix:{tmp_path}/{role}", "--role", role)
        done = subprocess.run([program, "entry", "--model", str(MODEL), "--engine", e.address, "--port", "0"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and f"none for {other}" in done.stderr, done.stderr
        assert e.end(signal.SIGTERM) == 0
    done = subprocess.run([program, "engine", "--model", str(MODEL), "--listen", f"unix:{tmp_path}/x", "--role", "decode", "--engines", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--role" in done.stderr
