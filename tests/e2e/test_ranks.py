"""--ranks: the experts on several processes. Answers are those of one, and a process that is gone ends all of them, with its name."""
import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import zlib

import pytest

from server_lib import CHAT, PATIENCE, Server, wait


@pytest.fixture(scope="session")
def tiny(root):
    return root / "tests" / "golden" / "tiny-a" / "model"  # 8 experts a layer, 4 in drafts


@pytest.fixture(scope="session")
def demo(root):
    return root / "models" / "demo"


def others(process):
    """The ranks that a process started: their ids."""
    found = []
    for p in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = p.read_text().rsplit(")", 1)[1]
        except OSError:
            continue
        if rest.split()[1] == str(process) and rest.split()[0] != "Z":
            found.append(int(p.parent.name))
    return sorted(found)


def gone(processes):
    return not any(pathlib.Path(f"/proc/{p}/stat").exists() and " Z " not in pathlib.Path(f"/proc/{p}/stat").read_text() for p in processes)


def picture():
    rows = b"".join(b"\0" + bytes((x * 7 + y * 13) % 256 for x in range(3 * 56)) for y in range(56))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 56, 56, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(file).decode()}}


def prompts():
    """Long and short, several samples, shared beginnings, seeds and greedy ones, a picture."""
    for i in range(8):
        line = {"prompt": ("the same beginning of it all " * 60 if i % 2 else "") + f"number {i}", "max_tokens": 10 + i, "seed": i, "temperature": 0.8 * (i % 3)}
        if i % 4 == 0:
            line["n"] = 2
        if i % 3 == 1:
            line["logprobs"] = 2
        yield json.dumps(line)
    yield json.dumps({"model": "m", "max_tokens": 12, "seed": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, picture()]}]})


def results(r):
    assert r.returncode == 0, r.stderr
    return [{k: v for k, v in json.loads(x).items() if "ms" not in k} for x in r.stdout.decode().splitlines()]


def test_generate_on_any_number(deepserve, tiny, tmp_path):
    """5 and 8 don't divide what they share; 8 ranks are more than there are experts of drafts."""
    (tmp_path / "in.jsonl").write_text("\n".join(prompts()) + "\n")
    args = ["generate", "--model", tiny, "--input", tmp_path / "in.jsonl", "--json", "--threads", 2, "--parallel", 4]
    alone = results(deepserve(*args))
    for n in (2, 5, 8):
        assert results(deepserve(*args, "--ranks", n)) == alone, n


@pytest.mark.parametrize("more", [["--mode", "exact"], ["--act", "bf16"], ["--speculate", "off"], ["--kernels", "ref"]])
def test_generate_in_any_mode(deepserve, tiny, more):
    args = ["generate", "--model", tiny, "--prompt", "on and on " * 20, "--json", "--max-tokens", 20, "--seed", 3, *more]
    assert results(deepserve(*args, "--ranks", 3)) == results(deepserve(*args))


def bodies():
    for i in range(5):
        yield {**CHAT, "messages": [{"role": "user", "content": f"tell me {i} " * (1 + 60 * (i % 2))}], "max_tokens": 12 + i, "seed": i, "n": 1 + i % 2}


def answers(s):
    out = []
    for body in list(bodies()) * 2:  # the second time they find their prefixes
        status, _, got = s.request("POST", "/v1/chat/completions", body)
        out.append((status, [(c["message"], c["finish_reason"]) for c in got["choices"]] if status == 200 else got))
    return out


def test_serve_answers_as_one(program, demo):
    few = ["--threads", 2, "--kv-blocks", 40, "--context", 4096, "--max-running", 4]
    with Server(program, demo, *few) as s:
        alone = answers(s)
        assert s.stop() == 0
    assert all(status == 200 for status, _ in alone), alone
    with Server(program, demo, *few, "--ranks", 2) as s:
        assert len(others(s.process.pid)) == 1
        assert answers(s) == alone
        ranks = others(s.process.pid)
        assert s.stop() == 0
        assert gone(ranks)


@pytest.mark.parametrize("how", ["KILL", "STOP"])
@pytest.mark.parametrize("busy", [False, True])
def test_a_rank_that_is_gone(program, tiny, how, busy):
    s = Server(program, tiny, "--ranks", 3, "--threads", 1)
    ranks = others(s.process.pid)
    assert len(ranks) == 2
    if busy:
        c = http.client.HTTPConnection(s.host, s.port, timeout=PATIENCE)
        c.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True, "max_tokens": 100000}), {"content-type": "application/json"})
        answer = c.getresponse()
        assert answer.status == 200 and answer.readline()
    os.kill(ranks[1], getattr(signal, "SIG" + how))
    assert s.process.wait(PATIENCE) == 1
    s.reader.join(PATIENCE)
    assert re.search(r"rank [12] of 3 \(process %d\) has (ended|given no sign of life)" % ranks[1], "".join(s.log)), s.log
    if busy:
        with contextlib.suppress(http.client.IncompleteRead):
            assert b"[DONE]" not in answer.read()
    assert wait(lambda: gone(ranks))


def test_rank_0_gone_ends_the_others(program, tiny):
    s = Server(program, tiny, "--ranks", 3, "--threads", 1)
    ranks = others(s.process.pid)
    s.process.kill()
    s.process.wait(PATIENCE)
    assert len(ranks) == 2 and wait(lambda: gone(ranks))


def test_generate_says_who_is_gone(program, tiny):
    p = subprocess.Popen([program, "generate", "--model", str(tiny), "--prompt", "a", "--ranks", "2", "--max-tokens", "100000", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ranks = wait(lambda: others(p.pid))
    assert len(ranks) == 1
    os.kill(ranks[0], signal.SIGKILL)
    _, said = p.communicate(timeout=PATIENCE)
    assert p.returncode == 1 and b"rank 1 of 2 (process %d) has ended" % ranks[0] in said, said


def test_interrupted(program, tiny):
    """Ctrl-C reaches every process of the terminal, and rank 0 alone decides."""
    p = subprocess.Popen([program, "generate", "--model", str(tiny), "--prompt", "a", "--ranks", "2", "--max-tokens", "100000", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    ranks = wait(lambda: others(p.pid))
    os.killpg(p.pid, signal.SIGINT)
    p.communicate(timeout=PATIENCE)
    assert p.returncode == 130 and wait(lambda: gone(ranks))


def test_refusals(deepserve, tiny, program, tmp_path):
    def refused(*args):
        r = deepserve("generate", "--model", tiny, "--prompt", "a", *args)
        assert r.returncode in (1, 2) and not r.stdout
        return r.stderr.decode()

    assert "9 ranks: the model has 8 experts a layer" in refused("--ranks", 9)
    assert "--ranks" in refused("--ranks", 0)
    r = deepserve("serve", "--model", tiny, "--ranks", 2, "--engines", 2, "--port", 0)
    assert r.returncode == 1 and "2 ranks and 2 engines" in r.stderr.decode()
    r = deepserve("generate", "--model", tmp_path, "--prompt", "a", "--ranks", 2)
    assert r.returncode == 1 and str(tmp_path) in r.stderr.decode()
    r = deepserve("rank", "--model", tiny, "--fd", 0, "--rank", 1)
    assert r.returncode == 1 and "no memory of ranks" in r.stderr.decode()
