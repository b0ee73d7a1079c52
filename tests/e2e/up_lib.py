"""A cluster of `deepserve up` for end-to-end tests."""
import ctypes
import http.client
import json
import os
import signal
import subprocess
import threading

from conftest import ROOT
from server_lib import PATIENCE

MODEL = ROOT / "models" / "demo"
STORY = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
         "max_tokens": 400, "temperature": 1, "seed": 11, "stream": True}
ENGINES = "engines:\n  - {count: 2, role: mixed, memory: 300MiB, threads: 1}\n"


def there(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Up:
    """A running `up`; what it says as JSON when it is ready, and the lines that it writes."""

    def __init__(self, program, file, *args):
        libc = ctypes.CDLL(None)
        self.process = subprocess.Popen([program, "up", str(file), "--json", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=lambda: libc.prctl(1, signal.SIGKILL))  # it doesn't outlive a test that failed
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE)
            self.reader.join(PATIENCE)
            raise RuntimeError("".join(self.log))
        self.ready = json.loads(line)
        self.url = self.ready["ready"]
        self.processes = {p["name"]: p for p in self.ready["processes"]}

    def pid(self, name):
        """Of a process that may have been started again: as its parent has it."""
        return self.processes[name]["pid"]

    def children(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            return [int(x) for x in f.read().split()]

    def said(self, text):
        return any(text in line for line in self.log)

    def end(self, sig=signal.SIGINT):
        children = self.children()
        self.process.send_signal(sig)
        status = self.process.wait(2 * PATIENCE)
        self.process.stdout.close()
        return status, children


def stream(url, body):
    host, port = url.removeprefix("http://").split(":")
    c = http.client.HTTPConnection(host, int(port), timeout=2 * PATIENCE)
    c.request("POST", "/v1/chat/completions", json.dumps(body))
    r = c.getresponse()
    assert r.status == 200, r.read()
    for line in r:
        if line.startswith(b"data: {"):
            d = json.loads(line[6:])
            assert "error" not in d, d
            if d["choices"]:
                yield (d["choices"][0]["delta"].get("reasoning_content") or "") + (d["choices"][0]["delta"].get("content") or "")
    c.close()


def write(place, text, name="c.yaml"):
    path = os.path.join(place, name)
    with open(path, "w") as f:
        f.write(text.replace("MODEL", str(MODEL)))
    return path
