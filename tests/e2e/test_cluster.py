"""`deepserve entry` on engine processes: the answers are those of one process, and outlive the engines."""
import concurrent.futures
import http.client
import json
import os
import signal
import subprocess

import pytest

from conftest import ROOT
from server_lib import Server, wait

MODEL = ROOT / "models" / "demo"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a town.",
                                         "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}


def chat(text, **more):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 60, "temperature": 0, **more}


REQUESTS = [
    chat("What is 134 + 289?"),
    chat("Tell me a story about a fox.", temperature=1, seed=7),
    chat("Tell me a story about a lantern.", temperature=1, seed=8, n=3, max_tokens=30),
    chat("Who are you?", logprobs=True, top_logprobs=3),
    chat("Tell me a story about a bridge.", temperature=0.8, seed=3, frequency_penalty=0.5, presence_penalty=0.2, repetition_penalty=1.1),
    chat("Tell me a story about a house.", stop=["the"]),
    chat("A person", response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}),
    chat("What is the weather in Rome?", tools=[TOOL], tool_choice="required"),
    chat("Count.", logit_bias={"300": 5}, min_tokens=5, stop_token_ids=[400]),
]


def essence(answer):
    choices = json.loads(json.dumps(answer["choices"]))
    for c in choices:
        for call in c["message"].get("tool_calls") or []:
            call.pop("id")
    return choices, {k: answer["usage"][k] for k in ("prompt_tokens", "completion_tokens")}


class Engine:
    def __init__(self, program, address, *args):
        self.address, self.command = address, [program, "engine", "--model", str(MODEL), "--listen", address, "--memory", "300MiB", "--threads", "1", *args]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.address = line.split()[-1]

    def end(self, sig):
        self.process.send_signal(sig)
        self.process.stdout.close()
        return self.process.wait(60)


@pytest.fixture(scope="module")
def cluster(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    engines = [Engine(program, f"unix:{folder}/e0"), Engine(program, "127.0.0.1:0")]
    entry = Server(program, MODEL, *(x for e in engines for x in ("--engine", e.address)), command="entry")
    engines[1].command[5] = engines[1].address  # the port that it got, for when it comes back
    yield entry, engines
    assert entry.stop() == 0
    assert [e.end(signal.SIGTERM) for e in engines] == [0, 0]


@pytest.fixture(scope="module")
def wanted(program):
    with Server(program, MODEL, "--memory", "300MiB") as s:
        return [essence(s.request("POST", "/v1/chat/completions", r)[2]) for r in REQUESTS]


def test_answers_are_those_of_one_process(cluster, wanted):
    entry, _ = cluster
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS)) as pool:
        got = list(pool.map(lambda r: entry.request("POST", "/v1/chat/completions", r)[2], REQUESTS))
    for g, w, r in zip(got, wanted, REQUESTS):
        assert essence(g) == w, r
    assert json.loads(got[6]["choices"][0]["message"]["content"])["age"] in range(100)


def stream(entry, body):
    """The connection and a generator of its chunks."""
    c = http.client.HTTPConnection(entry.host, entry.port, timeout=120)
    c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}))
    r = c.getresponse()
    assert r.status == 200, r.read()
    return c, (json.loads(line[6:]) for line in r if line.startswith(b"data: {"))


def text_of(chunks):
    return "".join((c["choices"][0]["delta"].get("reasoning_content") or "") + (c["choices"][0]["delta"].get("content") or "") for c in chunks if c["choices"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_stream_outlives_its_engine(cluster, how):
    entry, engines = cluster
    body = chat("Tell me a story about a fox and a lantern.", max_tokens=400, ignore_eos=True, temperature=1, seed=11)
    whole = text_of(stream(entry, body)[1])
    for e in engines:  # whichever has it
        _, chunks = stream(entry, body)
        head = [next(chunks) for _ in range(20)]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, chunks)
            e.end(how)
            assert entry.request("GET", "/health")[0] == 200 and entry.request("GET", "/ready")[0] == 200
            assert text_of(head) + text_of(rest.result(120)) == whole
        e.start()
        assert wait(lambda: entry.metrics().get(f'engine_lost{{engine="{engines.index(e)}"}}') == 0)


def test_a_stream_outlives_an_engine_that_hangs(cluster):
    """Stopped, its connection stays open: only its silence says that it is gone. What it says later is nobody's."""
    entry, engines = cluster
    body = chat("Tell me a story about a fox and a lantern.", max_tokens=600, ignore_eos=True, temperature=1, seed=11)
    whole = text_of(stream(entry, body)[1])
    _, chunks = stream(entry, body)
    head = [next(chunks) for _ in range(5)]
    running = entry.metrics()
    i = next((k for k in range(2) if running[f'num_requests_running{{engine="{k}"}}']), 0)
    engines[i].process.send_signal(signal.SIGSTOP)
    try:
        assert text_of(head) + text_of(chunks) == whole
        assert wait(lambda: entry.metrics().get(f'engine_lost{{engine="{i}"}}') == 1)
    finally:
        engines[i].process.send_signal(signal.SIGCONT)
    assert wait(lambda: entry.metrics().get(f'engine_lost{{engine="{i}"}}') == 0)
    assert [entry.wait_metric(f'num_requests_running{{engine="{k}"}}', 0) for k in range(2)] == [0, 0]
    assert text_of(stream(entry, body)[1]) == whole


def test_without_any_engine(program, tmp_path):
    engine = Engine(program, f"unix:{tmp_path}/e")
    with Server(program, MODEL, "--engine", engine.address, command="entry") as entry:
        assert engine.end(signal.SIGKILL) == -signal.SIGKILL
        assert wait(lambda: entry.metrics().get('engine_lost') == 1)
        assert entry.request("GET", "/health")[0] == 200 and entry.request("GET", "/ready")[0] == 503
        status, _, body = entry.request("POST", "/v1/chat/completions", chat("Hello."))
        assert status == 503 and body["error"]["message"], body
        engine.start()
        assert wait(lambda: entry.metrics().get('engine_lost') == 0)
        assert entry.request("POST", "/v1/chat/completions", chat("Hello."))[0] == 200
        assert engine.end(signal.SIGTERM) == 0


def test_who_goes_leaves_nothing(cluster):
    entry, _ = cluster
    for _ in range(3):
        c, chunks = stream(entry, chat("Tell me a story.", max_tokens=400, ignore_eos=True))
        next(chunks)
        c.sock.close() if c.sock else None
        chunks.close()
        c.close()
    for engine in range(2):
        assert entry.wait_metric(f'num_requests_running{{engine="{engine}"}}', 0) == 0


def test_refusals(program, cluster, tmp_path):
    entry, engines = cluster
    status, _, body = entry.request("POST", "/v1/chat/completions", chat("x", response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "odd"}}}))
    assert status == 400, body
    other = tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        if (MODEL / name).exists():
            (other / name).write_bytes((MODEL / name).read_bytes())
    (other / "config.json").write_text((MODEL / "config.json").read_text() + "\n")
    for args, status, text in [
        (["entry", "--model", MODEL], 2, "--engine"),
        (["entry", "--model", other, "--engine", engines[0].address], 1, "config.json is"),
        (["entry", "--model", MODEL, "--engine", f"unix:{tmp_path}/nobody", "--engine-wait", "100ms"], 1, "nobody"),
        (["entry", "--model", MODEL, "--engine", "10.1.2.3:4"], 1, "TLS"),
        (["engine", "--model", MODEL, "--listen", engines[0].address], 1, "another process listens"),
        (["engine", "--model", MODEL, "--listen", "10.1.2.3:4"], 2, "TLS"),
        (["engine", "--model", MODEL], 2, "--listen"),
    ]:
        done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=60)
        assert done.returncode == status and text in done.stderr and not done.stdout, (args, done)
    assert os.path.exists(engines[0].address.removeprefix("unix:"))


def test_engines_have_the_same_weights(program, tmp_path):
    """A fine-tune has the same config.json and tokenizer.json: a text must never go on in it."""
    other = tmp_path / "other"
    other.mkdir()
    for f in MODEL.iterdir():
        if f.is_file():
            (other / f.name).write_bytes(f.read_bytes())
    with open(other / "model.safetensors", "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))
    engines = [Engine(program, f"unix:{tmp_path}/e0"), Engine(program, f"unix:{tmp_path}/e1")]
    engines[1].end(signal.SIGTERM)
    engines[1].command[3] = str(other)
    engines[1].start()
    p = subprocess.run([program, "entry", "--model", str(MODEL), "--port", "0", *(x for e in engines for x in ("--engine", e.address))], capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and f"engine unix:{tmp_path}/e1: its weights are " in p.stderr and f"those of engine unix:{tmp_path}/e0 " in p.stderr, p.stderr
    assert [e.end(signal.SIGTERM) for e in engines] == [0, 0]
