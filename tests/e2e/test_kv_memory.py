"""serve --kv-memory: a prefix that others pushed out of the engine's blocks comes back from host memory, with the same answer."""
import subprocess

from server_lib import Server


def story(n):
    return f"Story {n}. " + f"The fox number {n} saw a lantern near the river. " * 45 + "Tell me a short story about this."


def ask(server, n):
    status, _, answer = server.request("POST", "/v1/chat/completions", {
        "model": "demo", "messages": [{"role": "user", "content": story(n)}], "max_tokens": 12, "temperature": 0, "thinking": {"type": "disabled"}})
    assert status == 200, answer
    return answer["choices"][0]["message"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(server, name):
    _, _, text = server.request("GET", "/metrics")
    return next(float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith(f"deepserve_{name} ") or line.startswith(f"deepserve_{name}{{"))


def rounds(program, root, *args):
    """Four stories that don't fit together, twice: the second answers, and how many tokens were found."""
    with Server(program, root / "models/demo", "--context", 1024, "--max-running", 1, *args) as s:
        first = [ask(s, n) for n in range(4)]
        second = [ask(s, n) for n in range(4)]
        return [m for m, _ in first], [m for m, _ in second], [c for _, c in second], metric(s, "prefix_cache_hits_host_total"), \
            metric(s, "host_kv_blocks_used")


def test_what_was_pushed_out_comes_back(program, root):
    first, second, cached, hits, used = rounds(program, root, "--kv-memory", "256MiB")
    assert first == second
    assert all(c >= 128 for c in cached), cached
    assert hits >= 128 * 4 and used > 0
    without, again, cached, hits, used = rounds(program, root)
    assert without == again == first
    assert cached == [0] * 4 and hits == 0 and used == 0


def test_refusals(program, root):
    def serve(*args):
        return subprocess.run([program, "serve", "--model", str(root / "models/demo"), "--port", "0", *args], capture_output=True, text=True, timeout=60)
    p = serve("--kv-memory", "1KiB")
    assert p.returncode != 0 and "not even one block and one state" in p.stderr
    p = serve("--kv-memory", "64MiB", "--no-prefix-cache")
    assert p.returncode != 0 and "without a prefix cache" in p.stderr
