"""The server's HTTP: framing, limits, connections that go away, drain. (docs/server.md)"""
import json
import os
import signal
import socket
import ssl
import subprocess
import time

import pytest

from server_lib import CHAT, PATIENCE, Server, head, make_model, receive, wait

BODY = json.dumps(CHAT).encode()
STREAM = json.dumps({**CHAT, "stream": True}).encode()
LONG = [{"text": "word " * 4000, "repeat": True}]


@pytest.fixture(scope="module")
def model(program, root, tmp_path_factory):
    return make_model(program, root, tmp_path_factory.mktemp("server") / "model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def server(program, model, folder):
    with Server(program, model, "--max-body", "64KiB", replay=[{"text": "x</think>\n\nHello.", "repeat": True}], folder=folder) as s:
        yield s


def post(*lines, body=BODY, path="/v1/chat/completions"):
    return head("POST", path, "Host: a", *lines, f"Content-Length: {len(body)}", body=body)


REFUSED = {
    "length and coding": head("POST", "/v1/chat/completions", "Host: a", "Content-Length: 2", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "lengths differ": head("POST", "/v1/chat/completions", "Host: a", "Content-Length: 2", "Content-Length: 3", body=b"{}"),
    "length list": head("POST", "/v1/chat/completions", "Host: a", "Content-Length: 2, 2", body=b"{}"),
    "length sign": head("POST", "/v1/chat/completions", "Host: a", "Content-Length: +2", body=b"{}"),
    "length hex": head("POST", "/v1/chat/completions", "Host: a", "Content-Length: 0x2", body=b"{}"),
    "length empty": head("POST", "/v1/chat/completions", "Host: a", "Content-Length: ", body=b"{}"),
    "two codings": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "coding list": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "other coding": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: identity", body=b"{}"),
    "coding misspelled": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "coding with control": head("POST", "/v1/chat/completions", "Host: a", b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "coding in 1.0": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", body=b"0\r\n\r\n", version="HTTP/1.0"),
    "space before colon": head("POST", "/v1/chat/completions", "Host: a", "Content-Length : 2", body=b"{}"),
    "tab before colon": head("GET", "/health", "Host: a", "X-A\t: 2"),
    "bad name": head("GET", "/health", "Host: a", "X(A): 2"),
    "no name": head("GET", "/health", "Host: a", ": 2"),
    "no colon": head("GET", "/health", "Host: a", "foo"),
    "fold": head("GET", "/health", "Host: a", "X-A: 1", "  2", "X-B: 3"),
    "folded length": head("POST", "/v1/chat/completions", "Host: a", "Content-Length:", " 2", body=b"{}"),
    "fold first": b"GET /health HTTP/1.1\r\n Host: a\r\nX-A: 1\r\n\r\n",
    "fold at end": head("GET", "/health", "Host: a", "X-A: 1", " "),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": head("GET", "/health", "Host: a", "Host: b"),
    "control in value": head("GET", "/health", "Host: a", b"X-A: a\x01b"),
    "nul in value": head("GET", "/health", "Host: a", b"X-A: a\x00b"),
    "nul in name": head("GET", "/health", "Host: a", b"X\x00A: ab"),
    "nul in length": head("POST", "/v1/chat/completions", "Host: a", b"Content-Length: 2\x00", body=b"{}"),
    "carriage return in value": head("GET", "/health", "Host: a", b"X-A: a\rb"),
    "delete in value": head("GET", "/health", "Host: a", b"X-A: a\x7fb"),
    "chunk size": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", body=b"zz\r\nhi\r\n0\r\n\r\n"),
    "chunk size sign": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", body=b"-2\r\nhi\r\n0\r\n\r\n"),
    "chunk size hex mark": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", body=b"0x2\r\nhi\r\n0\r\n\r\n"),
    "chunk end": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", body=b"2\r\nhi0\r\n\r\n"),
    "method": head("G@T", "/health", "Host: a"),
    "two spaces": b"GET  /health HTTP/1.1\r\nHost: a\r\n\r\n",
    "control in target": b"GET /hea\x01lth HTTP/1.1\r\nHost: a\r\n\r\n",
    "gaps that add up": b"GET /health HTTP/1.1\r\nHost: a\nX: b\0\r\nY: c\r\n\r\n",
    "bare line feed": b"GET /health HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "version 1.2": head("GET", "/health", "Host: a", version="HTTP/1.2"),
}


REFUSED_WITH = {
    "length too large": (413, head("POST", "/v1/messages", "Host: a", "Content-Length: 99999999999999999999999")),
    "chunk size too large": (413, head("POST", "/v1/messages", "Host: a", "Transfer-Encoding: chunked", body=b"fffffffffffffffff\r\nhi\r\n0\r\n\r\n")),
    "many lines": (431, head("GET", "/health", "Host: a", *[f"X{i}: 1" for i in range(3000)])),
    "no version": (400, b"GET /health\r\n\r\n"),
    "version 2.0": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "length of a message": (400, head("POST", "/v1/messages", "Host: a", "Content-Length: x", body=b"{}")),
    **{name: (400, data) for name, data in REFUSED.items()},
}


@pytest.mark.parametrize("name", REFUSED_WITH)
def test_framing_refused(server, name):
    # A second request behind the refused one must never be answered: it may be somebody else's body.
    status, data = REFUSED_WITH[name]
    for _ in range(50):
        out = server.raw(data + head("GET", "/version", "Host: a"), timeout=20)
        assert out is not None, "left hanging"
        assert (out.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"HTTP/1.1 %d " % status)) or (name.startswith("version") and b" 505 " in out)), out[:200]
        assert b" 200 " not in out and b"connection: close" in out.lower()
        body = out.partition(b"\r\n\r\n")[2]
        if body.startswith(b"{"):
            break
        time.sleep(0.05)  # the connection of the request before may still be closing, and the library's answer is for either
    assert json.loads(body)["error"]["message"] and (b'"type":"error"' in body) == (b"/v1/messages" in data)
    assert out.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.0 %d " % status)) and b"x-request-id: " in out.lower()


def test_framing_refused_among_others(server):
    """Whoever is in the middle of a head or a body isn't given another's refusal."""
    heads = [server.connect() for _ in range(3)]
    bodies = [server.connect() for _ in range(3)]
    data = post("Connection: close")
    for c in heads:
        c.sendall(data[:30])
    for c in bodies:
        c.sendall(data[:-10])
    for name in REFUSED:
        out = server.raw(REFUSED[name], timeout=20)
        assert out.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")) and b" 200 " not in out, (name, out)
    for c, at in [(c, 30) for c in heads] + [(c, -10) for c in bodies]:
        c.sendall(data[at:])
        out = b""
        while piece := c.recv(65536):
            out += piece
        assert b"HTTP/1.1 200" in out and b"Hello." in out, out
        c.close()


TAKEN = {
    "length": post(),
    "chunked": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "chunk extension and trailer": head("POST", "/v1/chat/completions", "Host: a", "Transfer-Encoding: chunked", body=b"%x;a=b\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(BODY), BODY)),
    "equal lengths": post(f"Content-Length: {len(BODY)}"),
    "white space": post("X-A: \t  1  \t", "X-B:2", "X-C:"),
    "old version": head("POST", "/v1/chat/completions", "Host: a", f"Content-Length: {len(BODY)}", body=BODY, version="HTTP/1.0"),
    "query": post(path="/v1/chat/completions?beta=true&x=%20"),
    "form type": post("Content-Type: application/x-www-form-urlencoded"),
    "latin-1 in value": post(b"X-A: \xe4"),
    "absolute target": post(path="http://a/v1/chat/completions"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_framing_taken(server, name):
    with server.connect() as s:
        for _ in range(1 if name == "old version" else 3):  # the connection stays good
            s.sendall(TAKEN[name])
            r = receive(s)
            assert b" 200 OK\r\n" in r and b"Hello." in r, r


def test_head_in_pieces(server):
    """A large head, however it arrives."""
    data = post(*[f"X-{i}: {'v' * i}" for i in range(220)])
    for size in (1, 7, 1000, 5000):
        with server.connect() as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(0, len(data), size):
                s.sendall(data[i:i + size])
                if size >= 1000:
                    time.sleep(0.005)
            assert b" 200 OK\r\n" in receive(s), size


def test_pipelined(server):
    with server.connect() as s:
        s.sendall(post() * 3 + head("GET", "/version", "Host: a", "Connection: close"))
        out = b""
        while piece := s.recv(65536):
            out += piece
    assert out.count(b"HTTP/1.1 200") == 4 and out.count(b"Hello.") == 3


def test_sizes(server):
    out = server.raw(head("POST", "/v1/chat/completions", "Host: a", "Content-Length: 9999999"))
    assert out.startswith(b"HTTP/1.1 413") and b"request_too_large" in out
    chunk = b"%x\r\n%s\r\n" % (70000, b" " * 70000)
    out = server.raw(head("POST", "/v1/messages", "Host: a", "Transfer-Encoding: chunked", body=chunk + b"0\r\n\r\n"))
    assert out.startswith(b"HTTP/1.1 413") and b'"type":"error"' in out
    out = server.raw(head("GET", "/health", "Host: a", "X-A: " + "a" * 40000))
    assert out.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400", b"HTTP/1.1 413")), out[:100]
    out = server.raw(head("GET", "/" + "a" * 60000, "Host: a"))
    assert out.startswith((b"HTTP/1.1 414", b"HTTP/1.1 431")), out[:100]


def test_errors(server):
    for path, body, status, code in [("/v1/chat/completions", "", 400, None), ("/v1/chat/completions", "{", 400, None), ("/v1/chat/completions", '{"model":NaN}', 400, None),
                                     ("/v1/chat/completions", '{"model":"a","messages":[{"role":"user","content":"\\ud83d"}]}', 400, None),
                                     ("/v1/nothing", "{}", 404, "not_found"), ("/v1/responses/none", None, 404, "not_found")]:
        got, headers, data = server.request("GET" if body is None else "POST", path, body, {"X-Request-Id": "my.id-1"})
        assert got == status and headers["x-request-id"] == "my.id-1" and data["error"]["message"], (path, data)
        assert code is None or data["error"]["code"] == code
    status, headers, data = server.request("POST", "/v1/messages", "{}", {"X-Request-Id": "bad id"})
    assert status == 400 and data["type"] == "error" and data["error"]["type"] == "invalid_request_error"
    assert data["request_id"] == headers["request-id"] == headers["x-request-id"] != "bad id"
    assert server.request("POST", "/v1/chat/completions", "{}", {"Content-Type": "multipart/form-data; boundary=x"})[0] == 415
    assert server.request("POST", "/v1/chat/completions", "{}", {"Content-Encoding": "gzip"})[0] == 415
    status, headers, data = server.request("DELETE", "/v1/chat/completions")
    assert status == 405 and headers["allow"] == "POST"
    assert data["error"]["message"] == "this endpoint takes POST, not DELETE"
    assert server.request("HEAD", "/")[0] == 200
    version = {"anthropic-version": "2023-06-01"}
    for path, more in (("/v1/messages/nothing", {}), ("/anthropic/v1/nothing", {}), ("/v1/nothing", version), ("/v1/models/nothing", version), ("/anthropic/v1/models/nothing", version)):
        status, headers, data = server.request("GET", path, headers=more)
        assert (status, data["type"], data["error"]["type"], data["request_id"]) == (404, "error", "not_found_error", headers["request-id"]), path
    assert "nothing" in server.request("GET", "/v1/models/nothing")[2]["error"]["message"]


def test_small_endpoints(server):
    assert server.request("GET", "/health")[0] == server.request("GET", "/ready")[0] == 200
    assert set(server.request("GET", "/version")[2]) == {"version"}
    assert [m["id"] for m in server.request("GET", "/v1/models")[2]["data"]] == ["model"]
    assert server.request("GET", "/v1/models/model")[2]["id"] == "model"
    assert server.request("GET", "/v1/models/other")[2]["error"]["code"] == "model_not_found"
    status, _, t = server.request("POST", "/tokenize", {"prompt": "Grüße <think>"})
    assert status == 200 and t["count"] == len(t["tokens"]) and t["max_model_len"] == 4096
    assert server.request("POST", "/detokenize", {"tokens": t["tokens"]})[2] == {"prompt": "Grüße <think>"}
    status, _, bad = server.request("POST", "/detokenize", {"tokens": [3, 4, 288]})
    assert status == 400 and bad["error"]["message"] == "tokens[2]: expected a token id of this model, 0 to 287"
    n = server.request("POST", "/tokenize", {"messages": CHAT["messages"]})[2]["count"]
    assert server.request("POST", "/v1/messages/count_tokens", CHAT)[2] == {"input_tokens": n}
    assert server.request("POST", "/v1/chat/completions", CHAT)[2]["usage"]["prompt_tokens"] == n
    assert server.request("GET", "/openapi.json")[0] == server.request("GET", "/")[0] == 200


def wait_idle(s, seconds=PATIENCE):
    return s.wait_metric("num_requests_running", 0, seconds) == 0 and s.wait_metric("num_requests_waiting", 0, seconds) == 0


def open_stream(s, body=STREAM, path="/v1/chat/completions"):
    c = s.connect()
    c.sendall(post(body=body, path=path))
    got = b""
    while b"data: " not in got:
        piece = c.recv(4096)
        assert piece, got
        got += piece
    return c


@pytest.mark.parametrize("way", ["between tokens", "reset", "queued", "not streamed", "prefilling"])
def test_client_gone(program, model, folder, way):
    """Its work is freed within 20 ms of the kernel's report, whatever it waits for. The server measures it; on a busy machine one of some tries must be that quick, and
    each within seconds."""
    def count(m, le="+Inf"):
        return m[f'request_cancel_time_seconds_bucket{{le="{le}"}}']

    long = json.dumps({**CHAT, "stream": True, "messages": [{"role": "user", "content": "word " * 600}]}).encode()
    with Server(program, model, "--max-running", 1, "--step-tokens", 4 if way == "prefilling" else 512, replay=LONG, folder=folder, step=5000) as s:
        first = open_stream(s) if way == "queued" else None
        for n in range(1, 51):
            before, read = (s.metrics()[name] for name in ("requests_accepted_total", "prompt_tokens_total"))
            if way in ("between tokens", "reset"):
                c = open_stream(s)
            else:
                c = s.connect()
                c.sendall(post(body={"not streamed": BODY, "prefilling": long}.get(way, STREAM)))
                assert s.wait_metric("requests_accepted_total", before + 1, 60) == before + 1
            if way == "reset":
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            c.close()
            assert s.wait_metric('request_cancel_time_seconds_bucket{le="+Inf"}', n, 60) == n, s.log
            running = 1 if first else 0
            assert s.wait_metric("num_requests_waiting", 0) == 0 and s.wait_metric("num_requests_running", running) == running
            m = s.metrics()
            assert m["client_disconnected_total"] == count(m, "30") == n, m
            if count(m, "0.02") and (way != "prefilling" or m["prompt_tokens_total"] == read):  # that is, before its first token
                break
        assert count(m, "0.02"), [(k, v) for k, v in m.items() if k.startswith("request_cancel_time")]
        if first:
            first.close()
        assert wait_idle(s)


@pytest.mark.parametrize("stream", [True, False])
def test_half_close_is_served(server, stream):
    out = server.raw(post(body=STREAM if stream else BODY), half_close=True)
    assert b"HTTP/1.1 200" in out and (out.rstrip().endswith(b"0") and b"[DONE]" in out if stream else b"Hello." in out), out


def test_half_close_slow(program, model, folder):
    """One that waits for long is asked whether it is still there, and is."""
    with Server(program, model, replay=[{"text": "x" * 40}], folder=folder, step=10000) as s:
        out = s.raw(post(), half_close=True)
        assert out.count(b"HTTP/1.1 100 Continue") == 1 and b"HTTP/1.1 200 OK" in out and b"x" * 40 in out


def test_half_close_many(program, model, folder):
    """Those whose answers become ready at the same time, too: the end of their sending has long been there then."""
    import threading
    outs = []
    with Server(program, model, "--max-running", 32, replay=[{"text": "x" * 40, "repeat": True}], folder=folder, step=5000) as s:
        threads = [threading.Thread(target=lambda: outs.append(s.raw(post(), half_close=True, timeout=30))) for _ in range(24)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(outs) == 24 and all(b"HTTP/1.1 200 OK" in out and b"x" * 40 in out for out in outs), outs


def test_slow_reader(program, model, folder):
    """A client that doesn't read is disconnected when its queue is full; others don't notice."""
    with Server(program, model, "--max-output-queue", "64KiB", replay=LONG, folder=folder) as s:
        slow = s.connect()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(post(body=json.dumps({**CHAT, "stream": True, "n": 8, "max_tokens": 3900}).encode()))
        assert s.wait_metric("client_stalled_total", 1) == 1
        assert wait_idle(s)
        assert s.request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5})[0] == 200
        slow.close()


def test_stalled_reader(program, model, folder):
    with Server(program, model, "--client-stall-timeout", "300ms", replay=LONG, folder=folder) as s:
        slow = s.connect()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(post(body=json.dumps({**CHAT, "stream": True, "n": 8, "max_tokens": 3900}).encode()))
        assert s.wait_metric("client_stalled_total", 1) == 1
        assert wait_idle(s)
        slow.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_reader_that_stops_while_the_kernel_takes_more(program, model, folder, tls, tmp_path):
    """Little is written, so that no buffer of the server is ever full: what counts is that the client's kernel acknowledges nothing more."""
    more = ()
    if tls:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "k.pem", "-out", tmp_path / "c.pem", "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
        more = ("--tls-cert", tmp_path / "c.pem", "--tls-key", tmp_path / "k.pem")
    with Server(program, model, "--client-stall-timeout", "1s", *more, replay=LONG, folder=folder, step=2000) as s:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it connects: the window is small from the start
        slow.connect((s.host, s.port))
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            slow = context.wrap_socket(slow)
        begin = time.monotonic()
        slow.sendall(post(body=json.dumps({**CHAT, "stream": True, "max_tokens": 3900}).encode()))
        wait(lambda: any("client stalled" in line for line in s.log), 30)
        took = time.monotonic() - begin
        assert 1 < took < 5, took
        slow.close()


def test_a_slow_reader_is_no_stalled_one(program, model, folder):
    with Server(program, model, "--client-stall-timeout", "1s", replay=LONG, folder=folder, step=200) as s:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((s.host, s.port))
        slow.settimeout(PATIENCE)
        slow.sendall(post("Connection: close", body=json.dumps({**CHAT, "stream": True, "max_tokens": 400}).encode()))
        out = b""
        while piece := slow.recv(2048):
            out += piece
            time.sleep(0.03)
        assert out.rstrip().endswith(b"[DONE]\r\n\r\n0") or b"[DONE]" in out[-100:]
        assert s.metrics()["client_stalled_total"] == 0


def test_clocks(program, model, folder):
    """A head or a body that doesn't come to an end."""
    with Server(program, model, "--header-timeout", "300ms", "--body-timeout", "300ms", replay=LONG, folder=folder) as s:
        begin = time.monotonic()
        with s.connect() as c:  # trickles: each byte is progress, the head as a whole isn't
            c.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
            try:
                while time.monotonic() < begin + PATIENCE:
                    c.sendall(b"X: y\r\n")
                    time.sleep(0.05)
            except OSError:
                pass
        assert time.monotonic() - begin < 9  # without the option: 10
        for data in (b"", b"GE", b"GET / HTTP/1.1\r\nHo", head("POST", "/v1/chat/completions", "Host: a", "Content-Length: 100", body=b"{")):
            begin = time.monotonic()
            assert s.raw(data) is not None and time.monotonic() - begin < 9, data


def test_rate_of_a_body(program, model, folder):
    """Bytes that come, and too slowly."""
    with Server(program, model, "--body-timeout", "300ms", "--body-rate", "100KiB", replay=LONG, folder=folder) as s:
        with s.connect() as c:
            c.sendall(head("POST", "/v1/chat/completions", "Host: a", "Content-Length: 100000000"))
            begin = time.monotonic()
            try:
                while time.monotonic() < begin + PATIENCE:
                    c.sendall(b"x")
                    time.sleep(0.02)
            except OSError:
                pass
        assert time.monotonic() - begin < PATIENCE
        assert s.request("POST", "/tokenize", {"prompt": "x" * 200_000})[0] == 200


def test_keep_alive_comments(program, model, folder):
    with Server(program, model, "--keepalive-interval", "100ms", replay=[{"text": "x"}], folder=folder, step=1000000) as s:
        out = s.raw(post("Connection: close", body=STREAM))
        assert out.count(b": keep-alive\n\n") >= 2 and b"[DONE]" in out


def test_drain(program, model, folder):
    """Running answers end, new ones are refused, the program leaves with 0."""
    with Server(program, model, replay=[{"text": "y" * 600, "repeat": True}], folder=folder, step=8000) as s:
        running = open_stream(s)
        idle = s.connect()
        idle.sendall(head("GET", "/ready", "Host: a"))
        assert b"200 OK" in receive(idle)
        s.process.send_signal(signal.SIGTERM)
        assert wait(lambda: s.request("GET", "/ready")[0] == 503)
        status, headers, data = s.request("POST", "/v1/chat/completions", CHAT)
        assert status == 503 and headers["retry-after"] and headers["connection"] == "close" and data["error"]["type"] == "overloaded"
        assert s.request("POST", "/v1/messages", CHAT)[2]["error"]["type"] == "overloaded_error"
        assert s.request("GET", "/health")[0] == 200
        assert idle.recv(10) == b""
        rest = b""
        while piece := running.recv(65536):
            rest += piece
        assert b"[DONE]" in rest
        assert s.process.wait(PATIENCE) == 0


def test_drain_ends(program, model, folder):
    with Server(program, model, "--drain-timeout", "300ms", replay=LONG, folder=folder, step=20000) as s:
        streams = [open_stream(s), open_stream(s, json.dumps({"model": "m", "input": "hi", "stream": True}).encode(), "/v1/responses"),
                   open_stream(s, json.dumps({**CHAT, "stream": True}).encode(), "/v1/messages")]
        whole = s.connect()
        whole.sendall(post())
        assert s.wait_metric("num_requests_running", 4) == 4
        begin = time.monotonic()
        assert s.stop() == 0
        assert 0.2 < time.monotonic() - begin < 30  # without the option: 60
        ends = []
        for c in (*streams, whole):  # nobody is cut off without a word
            with c:
                ends.append(b"".join(iter(lambda: c.recv(65536), b"")).decode())
        assert all("the server is shutting down" in end for end in ends), [end[-300:] for end in ends]
        assert "[DONE]" not in ends[0] and "response.failed" in ends[1] and "event: error" in ends[2] and ends[3].startswith("HTTP/1.1 503") and "Retry-After: 5" in ends[3]


def test_second_signal(program, model, folder):
    with Server(program, model, replay=LONG, folder=folder, step=20000) as s:
        c = open_stream(s)
        s.process.send_signal(signal.SIGTERM)
        assert wait(lambda: s.request("GET", "/ready")[0] == 503)
        begin = time.monotonic()
        assert s.stop() == 0
        assert time.monotonic() - begin < 30  # the answer takes 80
        c.close()


def test_queue_full(program, model, folder):
    with Server(program, model, "--max-requests", 1, replay=LONG, folder=folder, step=5000) as s:
        c = open_stream(s)
        status, headers, data = s.request("POST", "/v1/chat/completions", CHAT)
        assert status == 429 and headers["retry-after"] and data["error"]["code"] == "rate_limit_exceeded"
        status, headers, data = s.request("POST", "/v1/messages", CHAT)
        assert status == 529 and headers["retry-after"] and data["error"]["type"] == "overloaded_error"
        c.close()
        assert wait_idle(s)
        assert s.metrics()['request_refused_total{reason="queue_full"}'] == 2


def test_deadline(program, model, folder):
    with Server(program, model, "--request-timeout", "1500ms", replay=LONG, folder=folder, step=5000) as s:
        assert s.request("POST", "/v1/chat/completions", CHAT)[0] == 504
        out = s.raw(post("Connection: close", body=STREAM))
        assert b"HTTP/1.1 200" in out and b'data: {"error":' in out and b"[DONE]" not in out


def test_keys(program, model, folder, deepserve):
    keys = folder / "keys.txt"
    made = [deepserve("keys", "add", name, "--api-keys", keys) for name in ("alice", "bob")]
    assert all(m.returncode == 0 for m in made) and deepserve("keys", "add", "bob", "--api-keys", keys).returncode == 1
    alice, bob = (m.stdout.decode().strip() for m in made)
    assert alice not in keys.read_text() and os.stat(keys).st_mode & 0o77 == 0
    lines = keys.read_text().splitlines()
    keys.write_text(f"# comment\n{lines[0]} concurrent=1\n{lines[1]} tenant=team rps=0.001\n")
    with Server(program, model, "--api-keys", keys, replay=[{"text": "x" * 3000, "when": "slow", "repeat": True}, {"text": "y", "repeat": True}], folder=folder, step=3000) as s:
        for headers in ({}, {"Authorization": "Bearer no"}, {"x-api-key": ""}, {"Authorization": alice}):
            status, got, data = s.request("POST", "/v1/chat/completions", CHAT, headers)
            assert status == 401 and data["error"]["type"] == "authentication_error" and got["www-authenticate"], headers
        assert s.request("POST", "/v1/messages", CHAT)[2]["error"]["type"] == "authentication_error"
        assert s.request("GET", "/v1/models")[0] == s.request("GET", "/v1/responses/x")[0] == 401
        for path in ("/", "/health", "/ready", "/version", "/metrics", "/openapi.json"):
            assert s.request("GET", path)[0] == 200
        for headers in ({"Authorization": f"Bearer {alice}"}, {"x-api-key": alice}, {"x-api-key": alice, "Authorization": "Bearer no"}, {"x-api-key": "no", "Authorization": f"bearer {alice}"}):
            assert s.request("POST", "/v1/chat/completions", CHAT, headers)[0] == 200, headers
        # stored responses belong to the tenant
        made = s.request("POST", "/v1/responses", {"model": "m", "input": "a"}, {"x-api-key": alice})[2]["id"]
        assert s.request("GET", f"/v1/responses/{made}", headers={"x-api-key": alice})[0] == 200
        assert s.request("GET", f"/v1/responses/{made}", headers={"x-api-key": bob})[0] == 404
        # quotas
        assert s.request("POST", "/v1/chat/completions", CHAT, {"x-api-key": bob})[0] == 200
        status, headers, data = s.request("POST", "/v1/chat/completions", CHAT, {"x-api-key": bob})
        assert status == 429 and int(headers["retry-after"]) > 1 and "try again in" in data["error"]["message"]
        slow, before = s.connect(), s.metrics()["requests_accepted_total"]
        slow.sendall(post(f"x-api-key: {alice}", body=json.dumps({**CHAT, "stream": True, "user": "slow"}).encode()))
        assert s.wait_metric("requests_accepted_total", before + 1) == before + 1
        assert s.request("POST", "/v1/chat/completions", CHAT, {"x-api-key": alice})[0] == 429
        slow.close()
        assert wait_idle(s)
        assert s.request("POST", "/v1/chat/completions", CHAT, {"x-api-key": alice})[0] == 200
        # the file is read again; a bad one changes nothing
        keys.write_text("nonsense\n")
        s.process.send_signal(signal.SIGHUP)
        assert wait(lambda: any("keys" in line and "nonsense" not in line and "line 1" in line for line in s.log)), s.log
        assert s.request("GET", "/v1/models", headers={"x-api-key": alice})[0] == 200
        keys.write_text(lines[1] + "\n")
        s.process.send_signal(signal.SIGHUP)
        assert wait(lambda: s.request("GET", "/v1/models", headers={"x-api-key": alice})[0] == 401)
        assert s.request("POST", "/v1/chat/completions", CHAT, {"x-api-key": bob})[0] == 200
        s.stop()
        log = "".join(s.log)
        assert alice not in log and bob not in log and '"key":"alice"' in log
    done = deepserve("serve", "--model", model, "--api-keys", folder / "none", "--port", 0)
    assert done.returncode == 1 and done.stdout == b""


def test_sockets(program, model, folder):
    path, admin = folder / "s.sock", folder / "admin.sock"

    def ask(where, data):
        with socket.socket(socket.AF_UNIX) as c:
            c.settimeout(PATIENCE)
            c.connect(str(where))
            c.sendall(data)
            return receive(c)

    with Server(program, model, "--unix-socket", path, "--no-tcp", "--admin-socket", admin, replay=[{"text": "x</think>Hello.", "repeat": True}], folder=folder, port=False) as s:
        assert s.url == f"unix:{path}"
        assert b"Hello." in ask(path, post())
        assert b'"ready":true' in ask(admin, head("GET", "/status", "Host: a")) and b" 404 " in ask(path, head("GET", "/status", "Host: a"))
        assert b" 202 " in ask(admin, head("POST", "/drain", "Host: a"))
        assert s.process.wait(PATIENCE) == 0
    assert not path.exists() and not admin.exists()


def test_restart(program, model, folder):
    """Stored responses outlive kill -9."""
    db = folder / "responses.db"
    with Server(program, model, "--responses-db", db, replay=[{"text": "x</think>Hello.", "repeat": True}], folder=folder) as s:
        made = s.request("POST", "/v1/responses", {"model": "m", "input": "a"})[2]["id"]
        s.stop(signal.SIGKILL)
    with Server(program, model, "--responses-db", db, replay=[{"text": "x</think>Hello.", "repeat": True}], folder=folder) as s:
        assert s.request("GET", f"/v1/responses/{made}")[2]["id"] == made
        assert s.request("POST", "/v1/responses", {"model": "m", "input": "b", "previous_response_id": made})[0] == 200


def test_token_counts(program, model, folder):
    """What clients got, what they didn't."""
    with Server(program, model, replay=[{"text": "w" * 3000, "when": "long", "repeat": True}, {"text": "w" * 50, "repeat": True}], folder=folder, step=4000) as s:
        r = s.request("POST", "/v1/chat/completions", CHAT)[2]["usage"]
        m = s.metrics()
        assert (m["prompt_tokens_total"], m["generation_tokens_total"]) == (r["prompt_tokens"], r["completion_tokens"]) and r["completion_tokens"] == 51
        for n, stream in ((1, True), (2, False)):
            c = s.connect()
            c.sendall(post(body=json.dumps({**CHAT, "stream": stream, "user": "long"}).encode()))
            assert s.wait_metric("time_to_first_token_seconds_count", n + 1) == n + 1
            c.close()
            assert s.wait_metric("client_disconnected_total", n) == n and wait_idle(s)
        m = s.metrics()
        assert 51 < m["generation_tokens_total"] < 51 + 3000 and 0 < m['lost_tokens_total{reason="canceled"}'] < 3000


def test_cors(program, model, folder):
    with Server(program, model, "--cors-origin", "https://example.org", replay=[{"text": "x"}], folder=folder) as s:
        status, headers, _ = s.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "https://example.org", "Access-Control-Request-Method": "POST"})
        assert status == 204 and headers["access-control-allow-origin"] == "https://example.org" and "POST" in headers["access-control-allow-methods"]
        assert s.request("GET", "/health")[1]["access-control-allow-origin"] == "https://example.org"


def test_tls(program, model, folder):
    import ssl
    import subprocess
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    with Server(program, model, "--tls-cert", cert, "--tls-key", key, replay=[{"text": "x</think>Hello.", "repeat": True}], folder=folder) as s:
        assert s.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        for body in (BODY, STREAM):
            with context.wrap_socket(s.connect(), server_hostname="127.0.0.1") as c:
                c.sendall(post("Connection: close", body=body))
                out = b""
                while piece := c.recv(65536):
                    out += piece
                assert b"200 OK" in out and (b"[DONE]" in out or b"Hello." in out)


def png(color, size=(120, 80)):
    import base64
    import struct
    import zlib

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(color) * size[0]) * size[1]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")).decode()


def test_pictures(program, model, folder):
    """With a model that sees: what is in the picture decides, and counting counts it."""
    def ask(s, color, path="/v1/chat/completions"):
        content = ([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + png(color)}}] if "chat" in path else
                   [{"type": "text", "text": "What?"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(color)}}])
        return s.request("POST", path, {"model": "m", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": content}]})[2]

    with Server(program, model, "--threads", 1) as s:
        red, blue, again = (ask(s, c) for c in [(255, 0, 0), (0, 0, 255), (255, 0, 0)])
        assert red["choices"] == again["choices"] != blue["choices"]
        assert ask(s, (255, 0, 0), "/v1/messages/count_tokens") == {"input_tokens": red["usage"]["prompt_tokens"]}
        for url, text in [("data:image/png;base64,aGVsbG8=", "not a JPEG"), ("http://127.0.0.1:9/x.png", "public")]:
            status, _, data = s.request("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]})
            assert status == 400 and text in data["error"]["message"] and data["error"]["param"].startswith("messages[0].content[0].image_url")
    with Server(program, model, replay=LONG, folder=folder) as s:
        assert "takes no images" in ask(s, (1, 2, 3))["error"]["message"]


def test_refuses_to_start(deepserve, model, folder, server):
    """With a message, nothing on standard output, and the right status."""
    (folder / "bad.jsonl").write_text("nonsense\n")
    for args, status, text in [
        (("--model", folder / "none", "--port", 0), 1, "none: No such file"),
        (("--model", model, "--port", server.port), 1, "in use"),
        (("--model", model, "--port", 99999), 2, "--port"),
        (("--model", model, "--port", 0, "--context", 1 << 30), 1, "limit"),
        (("--model", model, "--port", 0, "--replay-file", folder / "bad.jsonl"), 1, "line 1"),
        (("--model", model, "--port", 0, "--tls-cert", folder / "bad.jsonl"), 2, "--tls-key"),
        (("--model", model, "--port", 0, "--tls-cert", folder / "bad.jsonl", "--tls-key", folder / "bad.jsonl"), 1, "PEM"),
        (("--model", model, "--no-tcp", "--port", 0), 2, "--unix-socket"),
        (("--model", model, "--port", 0, "--unix-socket", folder / "bad.jsonl"), 1, "no socket"),
    ]:
        done = deepserve("serve", *args)
        assert done.returncode == status and done.stdout == b"" and text in done.stderr.decode(), (args, done)


def test_spans(program, model, folder):
    import http.server
    import threading
    got = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    trace, parent = "a" * 31 + "1", "b" * 16
    with Server(program, model, "--otlp", f"http://127.0.0.1:{collector.server_port}", replay=[{"text": "x</think>Hello.", "repeat": True}], folder=folder, step=2000) as s:
        status, headers, _ = s.request("POST", "/v1/chat/completions", CHAT, {"traceparent": f"00-{trace}-{parent}-01", "X-Request-Id": "r1"})
        assert status == 200 and headers["traceparent"] == f"00-{trace}-{parent}-01"
        s.request("POST", "/v1/chat/completions", CHAT, {"traceparent": f"00-{trace}-{parent}-00"})
        s.request("POST", "/v1/messages", "{}")
        assert s.stop() == 0
    collector.shutdown()
    assert {path for path, _ in got} == {"/v1/traces"}
    spans = [x for _, body in got for x in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert sorted(x["name"] for x in spans) == ["chat", "decode", "messages", "prefill", "prepare", "queue"]
    chat = next(x for x in spans if x["name"] == "chat")
    assert chat["traceId"] == trace and chat["parentSpanId"] == parent
    assert all(x["traceId"] == trace and x["parentSpanId"] == chat["spanId"] and int(x["startTimeUnixNano"]) <= int(x["endTimeUnixNano"]) for x in spans if x["name"] not in ("chat", "messages"))
