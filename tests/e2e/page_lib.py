"""For the tests of the web page: a server with scripted answers, and a small WebDriver client (the protocol is JSON over HTTP)."""
import http.client
import http.server
import importlib.util
import json
import pathlib
import shutil
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("embed", ROOT / "web" / "embed.py")
embed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(embed)

MARKDOWN = """Here is **what** you asked for, with `code`, a [link](https://example.invalid/a) and <b>no markup</b>.

## Steps

1. First
2. Second
   - nested *item*

| op | time |
| :-- | --: |
| read | 12 µs |

- [x] a task that is done
- [ ] one to do

It costs $5 and $6, and \\(x_1^2 \\leq \\frac{a+b}{2}\\) holds for $\\alpha$.

$$
E = mc^2
$$

```c
int main(void) { return 0; } /* <script>alert(1)</script> */
```

> A quotation, and [a bad link](javascript:alert(1)) ![picture](https://example.invalid/p.png).
"""


def metrics(seconds):
    """Numbers as after so much time of steady work."""
    look = int(seconds)
    out = [f"deepserve_num_requests_running{{model_name=\"demo\"}} {6 + look % 5}", f"deepserve_num_requests_waiting{{model_name=\"demo\"}} {look % 3}",
           f"deepserve_generation_tokens_total {1000 + seconds * 412:.0f}", f"deepserve_prompt_tokens_total {9000 + look * 2300}",
           f"deepserve_prefix_cache_queries_total {9000 + look * 2300}", f"deepserve_prefix_cache_hits_total {4000 + look * 1400}", f"deepserve_kv_cache_usage_perc {0.3 + look % 11 * 0.02}",
           f"deepserve_spec_decode_num_drafts_total {100 + look * 90}"]
    for i, p in enumerate((0.86, 0.71, 0.55, 0.41, 0.3)):
        out.append(f'deepserve_spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {(100 + look * 90) * p:.0f}')
    for name, edges in (("time_to_first_token_seconds", (0.05, 0.1, 0.2, 0.5, 1)), ("inter_token_latency_seconds", (0.005, 0.01, 0.02, 0.04, 0.08))):
        for edge, share in zip(edges, (0.1, 0.55, 0.9, 0.98, 1)):
            out.append(f'deepserve_{name}_bucket{{le="{edge}"}} {look * 40 * share:.0f}')
        out += [f'deepserve_{name}_bucket{{le="+Inf"}} {look * 40}', f"deepserve_{name}_sum {look * 40 * edges[1]}", f"deepserve_{name}_count {look * 40}"]
    for phase, mean in (("prefill", 0.031), ("decode", 0.0112)):
        out += [f"deepserve_engine_step_{phase}_seconds_sum {look * 30 * mean}", f"deepserve_engine_step_{phase}_seconds_count {look * 30}"]
    for phase, ns in (("device_busy", 7.1e8), ("device_idle", 2.9e8), ("plan", 4e7), ("finish", 3e7), ("draft", 1.2e8)):
        out.append(f'deepserve_engine_nanoseconds_total{{phase="{phase}"}} {seconds * ns:.0f}')
    out.append(f"deepserve_memory_plan_bytes {2690 << 20}")
    for part, size in (("kv", 2 << 30), ("states", 300 << 20), ("buffers", 90 << 20)):
        out.append(f"deepserve_memory_plan_{part}_bytes {size}")
    out += [f'deepserve_request_success_total{{finished_reason="stop"}} {70 + look}', 'deepserve_request_success_total{finished_reason="length"} 0',
            'deepserve_request_failed_total{reason="abort"} 4', 'deepserve_request_refused_total{reason="queue_full"} 3',
            f'deepserve_lost_tokens_total{{reason="canceled"}} {900 + look}', "deepserve_dropped_tokens_total 250"]
    return "# HELP x y\n" + "\n".join(out) + "\n"


class Stub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, metrics_text=metrics):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.aborted, self.metrics_text, self.begin, self.answer = [], threading.Event(), metrics_text, None, None
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def chats(self):
        return [body for path, body in self.requests if path == "/v1/chat/completions"]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def reply(self, status, kind, body, more=()):
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.requests.append((self.path, None))
        if self.path == "/":
            html = (ROOT / "web" / "index.html").read_text(encoding="utf-8")
            self.reply(200, "text/html; charset=utf-8", html.encode(), [("Content-Security-Policy", embed.policy(html))])
        elif self.path == "/v1/models":
            self.reply(200, "application/json", b'{"object":"list","data":[{"id":"demo","object":"model"},{"id":"other","object":"model"}]}')
        elif self.path == "/metrics":
            self.server.begin = self.server.begin or time.monotonic() - 1
            self.reply(200, "text/plain", self.server.metrics_text(time.monotonic() - self.server.begin).encode())
        else:
            self.reply(404, "text/plain", b"no")

    def event(self, delta, finish=None, **more):
        chunk = {"id": "r", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
        text = f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()
        for i in range(0, len(text), 37):  # cut anywhere, in the middle of characters too
            self.wfile.write(text[i:i + 37])
            self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(body, key=self.headers.get("Authorization"))))
        last = body["messages"][-1]
        say = last["content"]
        if say == "refuse late":
            time.sleep(1)
        if say.startswith("refuse"):
            return self.reply(429, "application/json", b'{"error":{"message":"The queue is full.","type":"rate_limit_error"}}')
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        usage = {"prompt_tokens": 384, "completion_tokens": 57, "total_tokens": 441, "prompt_cache_hit_tokens": 128}
        self.wfile.write(b": keep-alive\r\n\r\n")
        self.event({"role": "assistant", "content": None, "reasoning_content": ""})
        if say == "long":
            try:
                for i in range(2000):
                    self.event({"content": f"word{i} "})
                    time.sleep(0.02)
            except OSError:
                self.server.aborted.set()
            return None
        if say == "cut":
            return self.event({"content": "half an ans"})
        for word in ("The user ", "wants to know ", "something ", "– let me see."):
            self.event({"content": None, "reasoning_content": word})
            time.sleep(0.01)
        if say == "tool" or "weather" in say:
            self.event({"tool_calls": [{"index": 0, "id": "call_r_0", "type": "function", "function": {"name": "get_weather", "arguments": ""}}]})
            for piece in ('{"city": ', '"Köln"', ', "days": 3}'):
                self.event({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
            self.event({"content": ""}, "tool_calls", usage=usage)
        else:
            text = "It is 9 °C." if last["role"] == "tool" else self.server.answer or MARKDOWN
            step = len(text) if self.server.answer else 9
            for i in range(0, len(text), step):
                self.event({"content": text[i:i + step]})
                time.sleep(0.002)
            self.event({"content": ""}, "stop", usage=usage)
        self.wfile.write(b"data: [DONE]\n\n")
        return None


class Browser:
    """A session of headless Chromium. None of it is installed by pip: skip(reason) is called when Debian's chromium-driver is missing."""

    def __init__(self, skip, width=1200, height=860, dark=False):
        driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
        if not driver or not chromium:
            skip("no chromium and chromedriver (Debian: chromium-driver)")
        self.process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = None
        for line in self.process.stdout:
            if "successfully on port" in line:
                port = int(line.rstrip().rstrip(".").split()[-1])
                break
        if not port:
            self.process.kill()
            skip("chromedriver doesn't start")
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--window-size={width},{height}",
                 "--disable-background-networking", "--no-first-run"]
        if dark:
            flags.append("--blink-settings=preferredColorScheme=0")
        want = {"goog:chromeOptions": {"binary": chromium, "args": flags}, "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"}}
        try:
            self.session = "/session/" + self.call("POST", "/session", {"capabilities": {"alwaysMatch": want}}, at="")["sessionId"]
        except Exception:
            self.process.kill()
            raise

    def call(self, method, path, body=None, at=None):
        self.http.request(method, (self.session if at is None else at) + path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        answer = json.loads(self.http.getresponse().read())["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message'][:300]}")
        return answer

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def devtools(self, cmd, **params):
        return self.call("POST", "/goog/cdp/execute", {"cmd": cmd, "params": params})

    def size(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def js(self, code, *args):
        return self.call("POST", "/execute/sync", {"script": code, "args": list(args)})

    def find(self, css):
        return next(iter(self.call("POST", "/element", {"using": "css selector", "value": css}).values()))

    def type(self, css, text):
        self.call("POST", f"/element/{self.find(css)}/value", {"text": text})

    def press(self, *keys):
        """At the element that has the focus."""
        actions = [{"type": kind, "value": k} for k in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]})

    def click(self, css):
        self.call("POST", f"/element/{self.find(css)}/click", {})

    def until(self, code, seconds=120):
        end = time.monotonic() + seconds
        while True:
            value = self.js("return " + code)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"never true: {code}\n" + self.js("return document.body.innerText"))
            time.sleep(0.05)

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})
