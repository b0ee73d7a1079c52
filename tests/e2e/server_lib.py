"""A server for end-to-end tests: `deepserve serve` on a free port, answering recorded outputs (--replay-file) or computing with a random tiny model.

Time-outs here are for a machine that is slow and busy: what a test waits for comes at once or never.
"""
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time

D = "｜DSML｜"
PATIENCE = 60  # seconds
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def call_block(name, **params):
    inner = "\n".join(f'<{D} parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">{v if isinstance(v, str) else json.dumps(v)}</{D} parameter>'
                      for k, v in params.items())
    return f'<{D} invoke name="{name}">\n{inner}\n</{D} invoke>'


def calls(*blocks):
    return f"\n\n<{D} calls>\n" + "\n".join(blocks) + f"\n</{D} calls>"


def wait(condition, seconds=PATIENCE):
    """Its value as soon as that is true, the last one after the time-out."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.005)


def receive(sock):
    """One response whose length its head gives: the bytes of head and body."""
    out = b""
    while b"\r\n\r\n" not in out:
        piece = sock.recv(65536)
        assert piece, out
        out += piece
    head = out[:out.index(b"\r\n\r\n") + 4]
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(out) < len(head) + length:
        piece = sock.recv(65536)
        assert piece, out
        out += piece
    return out


class Server:
    def __init__(self, program, model, *args, replay=None, folder=None, step=None, port=True, command="serve"):
        command = [program, command, "--model", str(model), *map(str, args)]
        if port:
            command += ["--port", "0"]
        if replay is not None:
            path = folder / f"replay-{time.monotonic_ns()}.jsonl"
            path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in replay), encoding="utf-8")
            command += ["--replay-file", str(path)]
        if step is not None:
            command += ["--replay-step", str(step)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace")
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.process.wait(PATIENCE)
            self.reader.join(PATIENCE)
            raise RuntimeError("".join(self.log))
        self.url = line.split()[-1]
        if self.url.startswith("http"):
            self.host, port = self.url.split("://")[1].rsplit(":", 1)
            self.port = int(port)

    def connect(self, timeout=PATIENCE):
        return socket.create_connection((self.host.strip("[]"), self.port), timeout)

    def request(self, method, path, body=None, headers=None, timeout=2 * PATIENCE):
        """(status, headers, body): JSON is taken apart."""
        c = http.client.HTTPConnection(self.host.strip("[]"), self.port, timeout=timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            c.request(method, path, body.encode() if isinstance(body, str) else body, headers or {})
            r = c.getresponse()
            data = r.read()
            if r.headers.get_content_type() == "application/json" and data:
                data = json.loads(data)
            return r.status, r.headers, data
        finally:
            c.close()

    def raw(self, data, timeout=PATIENCE, half_close=False):
        """What comes back for these bytes until the server closes, or None after the time-out."""
        with self.connect(timeout) as s:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            out = b""
            try:
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        return out
                    out += piece
            except ConnectionResetError:
                return out
            except socket.timeout:
                return None

    def metrics(self):
        """By name without prefix, and labels but for the model's name."""
        text = re.sub(r'model_name="[^"]*",?', "", self.request("GET", "/metrics")[2].decode()).replace("{}", "")
        return {line.rsplit(" ", 1)[0].removeprefix("deepserve_"): float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}

    def wait_metric(self, name, value, seconds=PATIENCE):
        """The metric, once it has this value or after the time-out."""
        got = []
        wait(lambda: got.append(self.metrics()[name]) or got[-1] == value, seconds)
        return got[-1]

    def stop(self, sig=signal.SIGTERM, seconds=2 * PATIENCE):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.reader.join(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:  # the second one ends it; two that come together count as one
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
        self.stop()


def make_model(program, root, folder):
    """A random model with a byte-level tokenizer."""
    subprocess.run([program, "synth", "--config", str(root / "tests/configs/tiny-a.json"), "--seed", "1", "--out", str(folder)], check=True, capture_output=True)
    return folder


def head(method, path, *lines, body=b"", version="HTTP/1.1"):
    """The bytes of a request."""
    first = f"{method} {path} {version}"
    return b"\r\n".join(x if isinstance(x, bytes) else x.encode() for x in (first, *lines)) + b"\r\n\r\n" + body
