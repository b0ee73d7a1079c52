"""Many clients of every bad kind at once: nothing stays behind, and whoever behaves gets the whole answer. (make chaos: for an hour)

CHAOS_SECONDS  how long (4)      CHAOS_RATE  new clients a second (150)      CHAOS_SEED  repeats a run's choices (7)
With -s it prints what happened and the server's memory."""
import collections
import json
import os
import random
import selectors
import signal
import socket
import statistics
import time

from server_lib import CHAT, Server, head, make_model
from test_server_http import REFUSED

SECONDS = float(os.environ.get("CHAOS_SECONDS", 4))
RATE = float(os.environ.get("CHAOS_RATE", 150))
SEED = int(os.environ.get("CHAOS_SEED", 7))
MAX_ALIVE = 500
PATIENCE = 90  # seconds that a client waits for its answer before that counts as hanging
TEXT = " ".join(str(i) for i in range(25))
REPLAY = [{"text": "word " * 700, "when": "for long", "repeat": True}, {"text": f"thinking</think>\n\n{TEXT}", "repeat": True}]
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def request(proto, stream, *, n=1, words="hi", close=True, **more):
    body = {"model": "m", "input": words} if proto == "responses" else {**CHAT, "messages": [{"role": "user", "content": words}]}
    if proto == "messages":
        body["max_tokens"] = 2000
    if proto == "chat" and n > 1:
        body["n"] = n
    data = json.dumps({**body, **more, "stream": stream}).encode()
    return head("POST", PATHS[proto], "Host: a", f"Content-Length: {len(data)}", *(["Connection: close"] if close else []), body=data)


def take_response(data):
    """(status, body, what follows it); ValueError if it isn't complete."""
    top, mark, rest = data.partition(b"\r\n\r\n")
    if not mark:
        raise ValueError("no head")
    while top.startswith(b"HTTP/1.1 100 "):
        top, mark, rest = rest.partition(b"\r\n\r\n")
    lines = top.split(b"\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    status = int(lines[0].split()[1])
    if b"content-length" in fields:
        n = int(fields[b"content-length"])
        if len(rest) < n:
            raise ValueError("body cut")
        return status, rest[:n], rest[n:]
    body = b""
    while True:
        size, mark, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        if len(rest) < n + 2 or rest[n:n + 2] != b"\r\n":
            raise ValueError("chunk cut")
        body += rest[:n]
        rest = rest[n + 2:]
        if n == 0:
            return status, body, rest


def texts(proto, stream, body):
    """The text of each choice."""
    if stream:
        events = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]
        out = collections.defaultdict(str)
        for e in events:
            if proto == "chat":
                for c in e["choices"]:
                    out[c["index"]] += c["delta"].get("content") or ""
            elif proto == "messages":
                out[0] += e.get("delta", {}).get("text", "") if e["type"] == "content_block_delta" else ""
            elif e["type"] == "response.output_text.delta":
                out[0] += e["delta"]
        last = {"chat": "data: [DONE]", "messages": "event: message_stop", "responses": "event: response.completed"}[proto]
        if last not in body.decode():
            raise ValueError("no end")
        return [out[i] for i in sorted(out)]
    data = json.loads(body)
    if proto == "chat":
        return [c["message"]["content"] for c in data["choices"]]
    if proto == "messages":
        return ["".join(b["text"] for b in data["content"] if b["type"] == "text")]
    return ["".join(p["text"] for item in data["output"] if item["type"] == "message" for p in item["content"])]


class Client:
    """One connection. `leave` is when it goes whatever it got, `check` what must hold for the bytes it got until the server closed."""

    def __init__(self, kind, data, *, check=None, leave=None, reset=False, reads=True, shut=False, small=False):
        self.kind, self.data, self.check, self.leave, self.reset, self.reads, self.shut = kind, data, check, leave, reset, reads, shut
        self.got, self.at, self.sent, self.watched = bytearray(), 0, False, True
        self.begin = time.monotonic()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if small:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def close(self):
        if self.reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


class Chaos:
    def __init__(self, server, rng):
        self.server, self.rng = server, rng
        self.selector = selectors.DefaultSelector()
        self.alive = set()
        self.count = collections.Counter()
        self.result = collections.Counter()
        self.bad = []
        self.peak = 0

    # ---- kinds ----

    def whole_answer(self, proto, stream, n):
        def check(got):
            status, body, rest = take_response(got)
            if status in (429, 529):
                return "refused"
            if status != 200 or rest or texts(proto, stream, body) != [TEXT] * n:
                raise ValueError(f"status {status}, not the answer")
            return "answered"
        return check

    def pipelined(self, got):
        seen = 0
        while got:
            status, body, got = take_response(got)
            if status not in (200, 429) or (status == 200 and texts("chat", False, body) != [TEXT]):
                raise ValueError(f"status {status}, not the answer")
            seen += 1
        if seen != 3:
            raise ValueError(f"{seen} of 3 answers")
        return "answered"

    @staticmethod
    def not_answered(got):
        if b" 200 " in got or (got and not got.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))):
            raise ValueError("answered")
        return "refused" if got else "closed"

    @staticmethod
    def ok(got):
        status, _, rest = take_response(got)
        if status != 200 or rest:
            raise ValueError(f"status {status}")
        return "answered"

    def make(self):
        rng, now = self.rng, time.monotonic()
        kind = rng.choices(["reads all", "leaves", "leaves early", "half-closes", "stalls", "half a request", "silent", "idles", "smuggles", "rubbish", "pipelines",
                            "asks small things", "sends much"], [20, 25, 10, 5, 2, 10, 8, 8, 10, 4, 4, 5, 3])[0]
        proto, stream = rng.choice(list(PATHS)), rng.random() < 0.7
        n = rng.choice([1, 1, 3]) if proto == "chat" else 1
        reset = rng.random() < 0.3
        if kind == "reads all":
            return Client(kind, request(proto, stream, n=n), check=self.whole_answer(proto, stream, n))
        if kind == "half-closes":
            return Client(kind, request(proto, stream, n=n), check=self.whole_answer(proto, stream, n), shut=True)
        if kind == "leaves":
            return Client(kind, request(proto, stream, n=n, words=rng.choice(["hi", "for long"])), leave=now + rng.expovariate(1 / 0.3), reset=reset, reads=rng.random() < 0.7)
        if kind == "leaves early":
            return Client(kind, request(proto, stream, n=n), leave=now + rng.uniform(0, 0.005), reset=reset)
        if kind == "stalls":
            return Client(kind, request("chat", True, n=8, words="for long"), leave=now + rng.uniform(0.5, 60), reset=reset, reads=False, small=True)
        if kind == "half a request":
            data = request(proto, stream)
            return Client(kind, data[:rng.randrange(1, len(data))], leave=now + rng.choice([0.01, 0.3, 15]), reset=reset, shut=rng.random() < 0.3, check=self.not_answered)
        if kind == "silent":
            return Client(kind, b"", leave=now + rng.choice([0.1, 15]), reset=reset)
        if kind == "idles":
            return Client(kind, request(proto, stream, n=n, close=False), check=self.whole_answer(proto, stream, n))
        if kind == "smuggles":
            return Client(kind, REFUSED[rng.choice(list(REFUSED))] + head("GET", "/version", "Host: a"), check=self.not_answered)
        if kind == "rubbish":
            data = bytearray(request(proto, stream))
            if rng.random() < 0.5:
                data = bytearray(rng.randbytes(rng.randrange(1, 4000)))
            else:
                data[rng.randrange(len(data))] = rng.randrange(256)
            return Client(kind, bytes(data), leave=now + rng.choice([0.05, 1, 8]), reset=reset)
        if kind == "pipelines":
            return Client(kind, request("chat", False, close=False) * 2 + request("chat", False), check=self.pipelined)
        if kind == "asks small things":
            return Client(kind, head("GET", rng.choice(["/metrics", "/health", "/ready", "/v1/models", "/openapi.json", "/"]), "Host: a", "Connection: close"), check=self.ok)
        return Client(kind, request(proto, stream, n=n, words="hi", metadata={"x": "y" * rng.randrange(30000, 60000)}), leave=now + rng.expovariate(1 / 0.5), reset=reset)

    # ---- the loop ----

    def start(self):
        c = self.make()
        self.count[c.kind] += 1
        c.socket.connect_ex((self.server.host, self.server.port))
        self.alive.add(c)
        self.peak = max(self.peak, len(self.alive))
        self.selector.register(c.socket, selectors.EVENT_WRITE, c)

    def end(self, c, why):
        if c.watched:
            self.selector.unregister(c.socket)
        c.close()
        self.alive.discard(c)
        if why in ("closed", "reset") and c.check:
            try:
                why = c.check(bytes(c.got))
            except (ValueError, KeyError, IndexError) as e:
                self.bad.append(f"{c.kind} {why}: {type(e).__name__} {e}: sent {c.data[:200]!r} got {bytes(c.got[:300])!r} … {bytes(c.got[-200:])!r}")
                why = "bad"
        if why == "hangs":
            self.bad.append(f"{c.kind} hangs: sent {c.data[:300]!r} got {bytes(c.got[-300:])!r}")
        self.result[f"{c.kind}: {why}"] += 1

    def on_ready(self, c):
        try:
            if c.sent:
                piece = c.socket.recv(65536)
                c.got += piece
                if not piece:
                    self.end(c, "closed")
                return
            c.at += c.socket.send(c.data[c.at:]) if c.data else 0
            c.sent = c.at == len(c.data)
            if c.sent:
                if c.shut:
                    c.socket.shutdown(socket.SHUT_WR)
                c.watched = c.reads
                if c.reads:
                    self.selector.modify(c.socket, selectors.EVENT_READ, c)
                else:
                    self.selector.unregister(c.socket)
        except BlockingIOError:
            pass
        except OSError:
            self.end(c, "reset")

    def turn(self, until):
        """Serves clients until then."""
        while (now := time.monotonic()) < until:
            for key, _ in self.selector.select(until - now):
                if key.data in self.alive:
                    self.on_ready(key.data)
        for c in [c for c in self.alive if now > (c.leave or c.begin + PATIENCE)]:
            self.end(c, "left" if c.leave else "hangs")


def status(pid, name):
    return int(next(line for line in open(f"/proc/{pid}/status") if line.startswith(name)).split()[1])


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def kill_and_restart(program, model, folder, database):
    """kill -9 in the middle of everything; what a client was told is stored is there afterwards."""
    with Server(program, model, "--responses-db", database, replay=REPLAY, folder=folder, step=1000) as s:
        made = [s.request("POST", "/v1/responses", {"model": "m", "input": "a"})[2]["id"] for _ in range(3)]
        streams = [s.connect() for _ in range(10)]
        for c in streams:
            c.sendall(request("responses", True))
        assert streams[0].recv(1000)
        s.stop(signal.SIGKILL)
        for c in streams:
            c.close()
    with Server(program, model, "--responses-db", database, replay=REPLAY, folder=folder) as s:
        for id in made:
            assert s.request("GET", f"/v1/responses/{id}")[2]["id"] == id
            assert s.request("DELETE", f"/v1/responses/{id}")[0] == 200
        assert s.stop() == 0


def test_slow_reader_gets_everything(program, root, tmp_path):
    """What the kernel has no room for waits, and goes on where it was cut."""
    model = make_model(program, root, tmp_path / "model")
    long = " ".join(str(i) for i in range(700))
    with Server(program, model, "--max-output-queue", "16MiB", replay=[{"text": f"thinking</think>\n\n{long}", "repeat": True}], folder=tmp_path) as s:
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            c.settimeout(60)
            c.connect((s.host, s.port))
            c.sendall(request("chat", True, n=8, words="hi"))
            assert s.wait_metric("num_requests_running", 0, 60) == 0
            time.sleep(0.2)  # all that is left waits for this reader
            got = b""
            while piece := c.recv(1500 if len(got) < 300000 else 1 << 20):
                got += piece
        status, body, rest = take_response(got)
        assert status == 200 and rest == b"" and texts("chat", True, body) == [long] * 8
        assert s.metrics()["client_stalled_total"] == 0
        out = s.raw(request("chat", True).replace(b"HTTP/1.1", b"HTTP/1.0"))  # without chunks
        assert texts("chat", True, out.partition(b"\r\n\r\n")[2]) == [long]


def test_chaos(program, root, tmp_path):
    model = make_model(program, root, tmp_path / "model")
    rng = random.Random(SEED)
    print(f"\nchaos: {SECONDS:g} s, {RATE:g} new clients a second, seed {SEED}", flush=True)
    options = ("--max-running", 64, "--max-requests", 200, "--header-timeout", "10s", "--body-timeout", "10s", "--client-stall-timeout", "2s", "--idle-timeout", "15s",
               "--keepalive-interval", "1s", "--max-body", "64KiB", "--max-output-queue", "64KiB", "--responses-bytes", "4MiB", "--access-log", "/dev/null")
    with Server(program, model, *options, replay=REPLAY, folder=tmp_path, step=5000) as s:
        pid = s.process.pid
        fds, threads = len(os.listdir(f"/proc/{pid}/fd")), status(pid, "Threads")
        chaos = Chaos(s, rng)
        begin = time.monotonic()
        next_start, next_kill, restarts, memory, said = begin, begin + min(SECONDS / 2, 30), 0, [], 0
        while (now := time.monotonic()) < begin + SECONDS:
            if len(chaos.alive) < MAX_ALIVE and now >= next_start:
                chaos.start()
                next_start = max(next_start + rng.expovariate(RATE), now - 0.1)
            chaos.turn(min(next_start, now + 0.05))
            if now >= begin + len(memory) * SECONDS / 400:
                memory.append(status(pid, "VmRSS"))
            if now >= next_kill:
                kill_and_restart(program, model, tmp_path, tmp_path / "responses.db")
                restarts += 1
                next_kill = time.monotonic() + 30
            if int(4 * (now - begin) / SECONDS) > said:
                said += 1
                print(f"chaos: {now - begin:.0f} s, {sum(chaos.count.values())} clients, {len(chaos.alive)} there, {memory[-1]} KiB resident", flush=True)
            assert len(chaos.bad) < 20, "\n".join(chaos.bad)
        at_end = memory[-1]
        for c in list(chaos.alive):
            chaos.end(c, "left at the end")
        wait_for(lambda: all(s.metrics()[name] == 0 for name in ("num_requests_running", "num_requests_waiting", "num_requests_parked", "streams", "kv_cache_usage_perc")))
        wait_for(lambda: s.metrics()["connections"] == 1)
        m = s.metrics()
        wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) == fds)
        quarters = [statistics.median(memory[len(memory) * i // 4:len(memory) * (i + 1) // 4]) for i in range(4)]
        print(f"chaos: {sum(chaos.count.values())} clients, at most {chaos.peak} at a time, {restarts} times kill -9 and restart of a second server")
        for name, n in sorted(chaos.result.items()):
            print(f"chaos:   {name} {n}")
        for name in sorted(m):
            if name.startswith(("request_success", "request_failed", "request_refused", "requests_accepted", "client_", "generation_tokens", "lost_tokens", "http_responses", "num_preemptions", "engine_ended")):
                print(f"chaos:   {name} {m[name]:.0f}")
        print(f"chaos: resident KiB, median of each quarter {quarters}, first {memory[0]}, at the end {at_end}, idle {status(pid, 'VmRSS')}, peak {status(pid, 'VmHWM')}", flush=True)
        assert not chaos.bad, "\n".join(chaos.bad)
        assert status(pid, "Threads") <= threads
        assert sum(n for name, n in chaos.result.items() if name.endswith(": answered")) > 0
        assert quarters[3] <= (1.02 * quarters[1] + 4096 if SECONDS >= 600 else 1.3 * quarters[1] + 16384), quarters
        assert s.request("POST", PATHS["chat"], CHAT)[2]["choices"][0]["message"]["content"] == TEXT
        assert s.stop() == 0
        assert not [line for line in s.log if "error" in line], s.log
