"""`deepserve up`: a cluster from one file, which answers while its engines die, and leaves nothing behind."""
import concurrent.futures
import os
import re
import signal
import socket
import tempfile

import pytest

from server_lib import PATIENCE, wait
from up_lib import ENGINES, STORY, Up, stream, there, write

@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory(prefix="ds-up-", dir="/tmp") as d:  # sockets want short names
        yield d


@pytest.fixture(scope="module")
def cluster(program, place):
    up = Up(program, write(place, f"model: MODEL\ndir: run\nstores: [{{name: kv, capacity: 256MiB}}]\n"
                                  f"{ENGINES.replace('threads', 'store: kv, threads')}entries:\n  - {{count: 2, port: 0}}\n"))
    yield up
    if up.process.poll() is None:
        up.end()


def test_it_says_what_it_started(cluster, place):
    assert list(cluster.processes) == ["coord", "kv", "engine0", "engine1", "entry0", "entry1"]
    assert [p["role"] for p in cluster.processes.values()] == ["coord", "store", "mixed", "mixed", "entry", "entry"]
    assert sorted(cluster.children()) == sorted(p["pid"] for p in cluster.processes.values())
    assert cluster.url == cluster.processes["entry0"]["address"] and re.fullmatch(r"http://127\.0\.0\.1:\d+", cluster.url)
    assert cluster.processes["kv"]["address"] == f"unix:{os.path.realpath(place)}/run/kv.socket"
    assert all(os.path.exists(p["log"]) for p in cluster.processes.values())


def test_the_sdk_streams_through_it(cluster):
    openai = pytest.importorskip("openai", reason="openai isn't installed")
    texts = []
    for name in ("entry0", "entry1"):
        client = openai.OpenAI(base_url=cluster.processes[name]["address"] + "/v1", api_key="none", max_retries=0)
        chunks = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Who are you?"}], temperature=0, max_tokens=40, stream=True)
        texts.append("".join((getattr(c.choices[0].delta, "reasoning_content", None) or "") + (c.choices[0].delta.content or "") for c in chunks))
    assert texts[0] and texts[0] == texts[1]


def test_a_stream_outlives_whatever_it_needs_no_more(cluster):
    whole = "".join(stream(cluster.url, STORY))
    known = {cluster.pid(n) for n in cluster.processes}
    for name in ("engine0", "engine1", "kv", "coord"):
        chunks = stream(cluster.url, STORY)
        head = [next(chunks) for _ in range(20)]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, chunks)
            os.kill(cluster.pid(name), signal.SIGKILL)
            assert "".join(head) + "".join(rest.result(2 * PATIENCE)) == whole
        assert wait(lambda: cluster.said(f"{name} is back")), cluster.log
        assert cluster.said(f"{name} is gone: killed by signal 9, Killed"), cluster.log
        new = set(cluster.children()) - known
        assert len(new) == 1 and not there(cluster.pid(name))
        cluster.processes[name]["pid"] = new.pop()
        known.add(cluster.pid(name))
    assert "".join(stream(cluster.url, STORY)) == whole


def test_nobody_else_runs_it(cluster, deepserve, place):
    done = deepserve("up", f"{place}/c.yaml")
    assert done.returncode == 1 and done.stdout == b"" and f"process {cluster.process.pid} has".encode() in done.stderr, done
    assert "".join(stream(cluster.url, {**STORY, "max_tokens": 5}))


def test_the_end_lets_running_streams_end(cluster):
    whole = "".join(stream(cluster.url, STORY))
    chunks = stream(cluster.url, STORY)
    head = [next(chunks) for _ in range(5)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, chunks)
        status, children = cluster.end()
        assert "".join(head) + "".join(rest.result(2 * PATIENCE)) == whole
    assert status == 0 and len(children) == 6 and not any(map(there, children))
    order = [line for line in cluster.log if line.startswith("ending")]
    assert len(order) == 1, cluster.log


def test_nothing_is_left_when_it_is_killed(program, place):
    up = Up(program, write(place, f"model: MODEL\ndir: run\n{ENGINES}entries: [{{port: 0}}]\n"))
    status, children = up.end(signal.SIGKILL)
    assert status == -signal.SIGKILL and len(children) == 4
    assert wait(lambda: not any(map(there, children)))


def test_somebody_elses_folder(deepserve, place):
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's folder")
    with tempfile.TemporaryDirectory(prefix="ds-up-", dir="/tmp") as d:
        os.chmod(d, 0o1777)
        os.mkdir(f"{d}/trap")
        os.chown(f"{d}/trap", 12345, 12345)
        os.symlink(place, f"{d}/link")
        for name in ("trap", "link"):
            done = deepserve("up", write(place, f"model: MODEL\ndir: {d}/{name}/run\n{ENGINES}entries: [{{port: 0}}]\n"))
            assert done.returncode == 1 and f"{d}/{name}: it is another user's, or no directory" in done.stderr.decode(), done


def test_who_dies_stays_away_when_so_asked(program, place):
    up = Up(program, write(place, f"model: MODEL\ndir: run\n{ENGINES}entries: [{{port: 0}}]\n"), "--no-restart")
    os.kill(up.pid("engine1"), signal.SIGKILL)
    assert wait(lambda: up.said("engine1 is gone: killed by signal 9, Killed; --no-restart")), up.log
    assert "".join(stream(up.url, {**STORY, "max_tokens": 5}))
    status, children = up.end(signal.SIGHUP)
    assert status == 0 and len(children) == 3 and not any(map(there, children))


def test_a_second_signal_hurries(program, place):
    up = Up(program, write(place, f"model: MODEL\ndir: run\n{ENGINES}entries: [{{port: 0}}]\n"))
    chunks = stream(up.url, {**STORY, "max_tokens": 4000, "ignore_eos": True})
    next(chunks)
    children = up.children()
    up.process.send_signal(signal.SIGINT)
    assert wait(lambda: up.said("ending: "))
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(PATIENCE) == 0 and not any(map(there, children))
    chunks.close()


E = "engines: [{count: 1}]\n"
BAD = [
    ("model: MODEL\n" + E + "entrys: [{}]\n", "c.yaml:3:1: entrys: no key of the file; did you mean entries?"),
    ("model: MODEL\n" + E, "c.yaml: no entries: a cluster needs at least one"),
    ("model: MODEL\nentries: [{}]\n", "c.yaml: no engines: a cluster needs at least one"),
    ("entries: [{}]\n" + E, "c.yaml: model: it isn't there"),
    ("model: MODEL\nengines:\n  - count: 2\n    memry: 1GiB\nentries: [{}]\n", "c.yaml:4:5: engine0: unknown option --memry; did you mean --memory?"),
    ("model: MODEL\nengines:\n  - count: 2\n    memory: lots\nentries: [{}]\n", "c.yaml:4:5: engine0: --memory 'lots'"),
    ("model: MODEL\nengines:\n  - role: dog\nentries: [{}]\n", "c.yaml:3:5: role: 'dog', expected mixed"),
    ("model: MODEL\nengines:\n  - count: many\nentries: [{}]\n", "c.yaml:3:5: count: 'many', expected a number from 0 to 64"),
    ("model: MODEL\nengines:\n  - store: kv\nentries: [{}]\n", "c.yaml:3:5: store: there is no store 'kv'"),
    ("model: MODEL\nengines:\n  - {count: 1, model: x}\nentries: [{}]\n", "c.yaml:3:16: model: `up` says this itself"),
    ("model: MODEL\nengines:\n  - {}\n  - {}\nentries: [{}]\n", "c.yaml:4:5: a second engine, the first is in line 3"),
    ("model: MODEL\n" + E + "entries:\n  - {name: a, port: 9000, count: 2}\n  - {name: b, port: 9001}\n", "c.yaml:5:5: port 9001 of b: a1 has it, in line 4"),
    ("model: MODEL\nstores: [{count: 2, dir: x}]\n" + E + "entries: [{}]\n", "c.yaml:2:21: dir: one place can't be that of 2 processes"),
    ("model: MODEL\ncoord: {lease: 1ms}\n" + E + "entries: [{}]\n", "c.yaml:2:9: coord: --lease '1ms'"),
    ("model: MODEL\ncoord: [x]\n" + E + "entries: [{}]\n", "c.yaml:2:1: coord: a list, expected options or an address"),
    ("model: MODEL\nengines:\n  - name: coord\nentries: [{}]\n", "c.yaml:3:5: the name coord is the coord's"),
    ("model: MODEL\n" + E + "entries: 5\n", "c.yaml:3:1: entries: a scalar, expected a list"),
    ("model: MODEL\nmodel: x\n", "c.yaml:2:1: model stands twice, first in line 1"),
    ("model: &a MODEL\ndir: *a\n", "c.yaml:2:6: an alias"),
    ("model: [\n", "c.yaml:2:1: "),
    ("", "c.yaml: nothing is in it"),
    ("model: MODEL\nname: ../x\n" + E + "entries: [{}]\n", "c.yaml:2:1: name: '../x', expected up to 31 letters"),
    ("model: MODEL\ndir: " + "d" * 120 + "\n" + E + "entries: [{}]\n", "`dir` gives a shorter place"),
]


@pytest.mark.parametrize("text, message", BAD, ids=[m[:40] for _, m in BAD])
def test_what_is_wrong_is_said_with_its_place(deepserve, place, text, message):
    done = deepserve("up", write(place, text))
    said = done.stderr.decode()
    assert done.returncode == 1 and done.stdout == b"" and message in said and said.count("\n") == 1, said


def test_what_fails_at_the_start_is_named(deepserve, place):
    done = deepserve("up", write(place, f"model: nowhere\ndir: run\n{ENGINES}entries: [{{port: 0}}]\n"))
    said = done.stderr.decode()
    assert done.returncode == 1 and done.stdout == b"" and re.search(r"^deepserve up: engine\d failed at its start: exit status 1: .*nowhere", said, re.M), said
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(1)
        port = s.getsockname()[1]
        if port > 65535 - 64:
            pytest.skip("no such port for a file")
        done = deepserve("up", write(place, f"model: MODEL\ndir: run\n{ENGINES}entries:\n  - {{port: {port}}}\n"))
    said = done.stderr.decode()
    assert done.returncode == 1 and f"c.yaml:6:5: entry can't have 127.0.0.1:{port}: Address already in use" in said and said.count("\n") == 1, said
    assert deepserve("up").returncode == 2 and deepserve("up", "a", "b").returncode == 2
    assert deepserve("up", f"{place}/nowhere.yaml").returncode == 1
