"""--kv-dir: prefixes outlive the process. A server that starts again finds what was computed, with the text of a cold run."""
import json
import random
import subprocess

import pytest

from server_lib import Server, wait
from test_kv_memory import metric, story

TURN = [{"role": "user", "content": story(1)}]


def serve(program, root, *args):
    return Server(program, root / "models/demo", "--context", 4096, "--max-running", 2, *args)


def chat(server, messages):
    status, _, answer = server.request("POST", "/v1/chat/completions", {
        "model": "demo", "messages": messages, "max_tokens": 150, "temperature": 0, "thinking": {"type": "disabled"}})
    assert status == 200, answer
    usage = answer["usage"]
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def second_turn(first):
    return TURN + [{"role": "assistant", "content": first}, {"role": "user", "content": "And what did the fox do then?"}]


@pytest.mark.parametrize("mode,engines", [("ced", 1), ("exact", 2)])
def test_a_restart_goes_on(program, root, tmp_path, mode, engines):
    how = ("--mode", mode, "--engines", engines, "--threads", engines)
    kv = ("--kv-dir", tmp_path / "kv")
    with serve(program, root, *how, *kv) as s:
        first, cached, _ = chat(s, TURN)
        assert cached == 0
        assert s.stop() == 0
    with serve(program, root, *how) as s:
        cold, cached, n = chat(s, second_turn(first))
        assert cached == 0
    with serve(program, root, *how, *kv) as s:
        warm, cached, _ = chat(s, second_turn(first))
        assert warm == cold
        assert cached == (n - 134) // 128 * 128 >= 512
        assert metric(s, "prefix_cache_hits_store_total") == cached
        assert metric(s, "prefix_cache_hits_replay_total") == 0  # from a window state that was kept too
        m = s.metrics()
        assert [m[f'prompt_tokens_by_source_total{{source="{x}"}}'] for x in ("computed", "device", "host", "store")] == [n - cached, 0, 0, cached]
        assert m["kv_fetch_seconds_count"] >= 1
        # one process has the directory
        p = subprocess.run([program, "serve", "--model", str(root / "models/demo"), "--port", "0", *map(str, kv)], capture_output=True, text=True, timeout=60)
        assert p.returncode == 1 and "another process" in p.stderr, p.stderr


def test_spoiled_files_cost_hits_only(program, root, tmp_path):
    kv = ("--kv-dir", tmp_path / "kv")
    with serve(program, root, *kv) as s:
        first, _, _ = chat(s, TURN)
        assert s.stop() == 0
    rng = random.Random(1)
    for segment in (tmp_path / "kv").rglob("*.seg"):
        data = bytearray(segment.read_bytes())
        for _ in range(400):
            data[rng.randrange(4096, len(data))] ^= 1 << rng.randrange(8)
        segment.write_bytes(data)
    with serve(program, root, *kv) as s:
        again, cached, n = chat(s, TURN)
        assert again == first and cached < (n - 134) // 128 * 128


def test_generate(program, root, tmp_path):
    """A prompt that an earlier run computed: a hit, with the same ids. A server has the same store."""
    def run(*args):
        p = subprocess.run([program, "generate", "--model", str(root / "models/demo"), "--mode", "exact", "--context", "2048", "--prompt", story(2), "--temperature", "0",
                            "--max-tokens", "10", "--json", *map(str, args)], capture_output=True, text=True, timeout=60)
        assert p.returncode == 0, p.stderr
        return json.loads(p.stdout)
    kv = ("--kv-dir", tmp_path / "kv")
    cold, first, second = run(), run(*kv), run(*kv)
    assert cold["ids"] == first["ids"] == second["ids"]
    n = cold["usage"]["prompt_tokens"]
    assert [x["usage"]["cached_tokens"] for x in (cold, first, second)] == [0, 0, (n - 134) // 128 * 128]
    with serve(program, root, "--mode", "exact", *kv) as s:
        status, _, answer = s.request("POST", "/v1/completions", {"model": "demo", "prompt": story(2), "max_tokens": 10, "temperature": 0})
        assert status == 200 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == second["usage"]["cached_tokens"], answer


def test_servers_on_one_kvd(program, root, tmp_path):
    """Another server hits what the first one computed; without the store both go on."""
    address = f"unix:{tmp_path}/s"

    def kvd():
        p = subprocess.Popen([program, "kvd", "--dir", str(tmp_path / "kv"), "--listen", address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert p.stdout.readline() == f"listening on {address}\n"
        return p
    (tmp_path / "kv").mkdir()
    how = ("--mode", "exact", "--kv", address)
    p = kvd()
    try:
        with serve(program, root, *how) as a, serve(program, root, *how) as b:
            first, cached, n = chat(a, TURN)
            assert cached == 0
            most = (n - 134) // 128 * 128
            assert wait(lambda: chat(b, TURN)[:2] == (first, most))  # as soon as it is durable
            assert metric(b, "prefix_cache_hits_store_total") in range(128, 100 * most)
            p.kill()
            p.wait()
            assert chat(b, TURN)[0] == first and chat(a, second_turn(first))[0]
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


def kvd_of(program, tmp_path, *options):
    address = f"unix:{tmp_path}/s"
    (tmp_path / "kv").mkdir()
    p = subprocess.Popen([program, "kvd", "--dir", str(tmp_path / "kv"), "--listen", address, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert p.stdout.readline() == f"listening on {address}\n"
    return p, address


def answer(server, ids, greedy):
    """Text and, of a greedy one, the bits of its log-probabilities; cached tokens."""
    status, _, a = server.request("POST", "/v1/completions", {
        "model": "demo", "prompt": ids, "max_tokens": 20, **({"temperature": 0, "logprobs": 3} if greedy else {"temperature": 1})})
    assert status == 200, a
    return (a["choices"][0]["text"], a["choices"][0].get("logprobs")), a["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("mode,windows,greedy", [("ced", "64MiB", True), ("exact", "64MiB", True), ("ced", "64MiB", False), ("ced", "0", False)])
def test_window_states_reach_another_engine(program, root, tmp_path, mode, windows, greedy):
    """What one server computed another one goes on from, with the bits of a cold run. A text that is drawn at random can do without its
    state: it isn't on the devices, and when it is lost a replay takes its place."""
    rng = random.Random(3)
    ids = [rng.randrange(300, 2000) for _ in range(1700)]
    p, address = kvd_of(program, tmp_path, "--windows", windows)
    how = ("--mode", mode)
    try:
        with serve(program, root, *how, "--kv", address) as b:
            with serve(program, root, *how, "--kv", address) as a:
                assert answer(a, ids[:1400], greedy)[1] == 0 and a.stop() == 0  # all is saved
            warm, cached = answer(b, ids, greedy)
            assert cached == 1400 // 128 * 128
            assert metric(b, "prefix_cache_hits_store_total") == cached
            assert metric(b, "prefix_cache_hits_replay_total") == (cached if windows == "0" else 0)
            stat = json.loads(subprocess.run([program, "ctl", "kv", "stat", "--store", address, "--json"], capture_output=True, text=True, check=True).stdout)
            assert (stat["windows"] > 0) == (stat["window_hits"] > 0) == (windows != "0"), stat
        if greedy:
            with serve(program, root, *how) as s:
                assert answer(s, ids, greedy) == (warm, 0)
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


def test_refusals(program, root, tmp_path):
    def serve_once(*args):
        return subprocess.run([program, "serve", "--model", str(root / "models/demo"), "--port", "0", *map(str, args)], capture_output=True, text=True, timeout=60)
    p = serve_once("--kv-dir", tmp_path / "kv", "--no-prefix-cache")
    assert p.returncode == 1 and "without a prefix cache" in p.stderr
    p = serve_once("--kv-dir", tmp_path / "not" / "there")
    assert p.returncode == 1 and "can't be made" in p.stderr
    p = serve_once("--kv", f"unix:{tmp_path}/nobody")
    assert p.returncode == 1 and len(p.stderr.splitlines()) <= 4
    assert serve_once("--kv", f"unix:{tmp_path}/nobody", "--kv-dir", tmp_path / "kv").returncode == 2
    (tmp_path / "file").write_text("")
    p = serve_once("--kv-dir", tmp_path / "file")
    assert p.returncode == 1 and len(p.stderr.splitlines()) <= 4
