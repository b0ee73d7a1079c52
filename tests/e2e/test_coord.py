"""A cluster's coord: engines come, go and are replaced while requests run; the coord itself goes and comes back, and nobody notices. The same on etcd,
where that is installed."""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import urllib.request

import pytest

from segment_reader import crc32c
from server_lib import PATIENCE, wait
from up_lib import MODEL, STORY, Up, stream, there, write

FILE = """model: MODEL
dir: run
coord: COORD
stores: [{name: kv, capacity: 256MiB}]
engines:
  - {count: 2, store: kv, memory: 300MiB, threads: 1}
entries: [{count: 2, port: 0}]
"""


def free_port():
    """Outside of those that connections get, which would take it while nobody listens there."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Etcd:
    def __init__(self, place):
        self.urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
        self.place = place
        self.start()

    def start(self):
        client, peer = self.urls
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", f"{self.place}/etcd", "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--unsafe-no-fsync"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait(lambda: self.there() or self.process.poll() is not None) and self.there(), "etcd doesn't start"

    def there(self):
        try:
            return urllib.request.urlopen(self.urls[0] + "/health", timeout=1).status == 200
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


class Cluster:
    def __init__(self, program, kind, place):
        self.program, self.kind, self.place = program, kind, place
        self.etcd = Etcd(place) if kind == "etcd" else None
        self.up = Up(program, write(place, FILE.replace("COORD", f"etcd:{self.etcd.urls[0]}/test" if self.etcd else "{lease: 2s}")))
        self.coord = f"etcd:{self.etcd.urls[0]}/test" if self.etcd else self.up.processes["coord"]["address"]

    def ctl(self, *args):
        return subprocess.run([self.program, "ctl", *args, "--coord", self.coord], capture_output=True, text=True, timeout=4 * PATIENCE)

    def members(self):
        done = self.ctl("status", "--json")
        assert done.returncode == 0, done
        return {m["name"]: m for m in json.loads(done.stdout)["members"]}

    def epochs(self):
        return {name: m["epoch"] for name, m in self.members().items() if m["role"] != "coord"}

    def engines_of_entries(self):
        """How many engines each entry has, which aren't lost."""
        out = []
        for name in ("entry0", "entry1"):
            text = urllib.request.urlopen(self.up.processes[name]["address"] + "/metrics", timeout=PATIENCE).read().decode()
            out.append(sum(line.startswith("deepserve_engine_lost{") and line.endswith(" 0") for line in text.splitlines()))
        return out

    def kill_coord(self):
        if self.etcd:
            self.etcd.kill()
        else:
            os.kill(self.up.pid("coord"), signal.SIGKILL)

    def coord_is_back(self):
        if self.etcd:
            self.etcd.start()
        else:
            assert wait(lambda: self.up.said("coord is back")), self.up.log

    def end(self):
        if self.up.process.poll() is None:
            self.up.end()
        if self.etcd:
            self.etcd.kill()


@pytest.fixture(scope="module", params=["coord", "etcd"])
def cluster(request, program):
    if request.param == "etcd" and not shutil.which("etcd"):
        pytest.skip("etcd isn't installed (Debian: etcd-server)")
    with tempfile.TemporaryDirectory(prefix="ds-coord-", dir="/tmp") as place:
        c = Cluster(program, request.param, place)
        yield c
        c.end()


def test_status_shows_all(cluster):
    own = ["coord"] if cluster.kind == "coord" else []
    assert wait(lambda: len(cluster.members()) == 5 + len(own))
    m = cluster.members()
    assert sorted(m) == [*own, "engine0", "engine1", "entry0", "entry1", "kv"]
    assert all(x["state"] == "ready" and x["epoch"] > 0 and x["version"] for x in m.values())
    assert len({x["epoch"] for x in m.values()}) == len(m)
    assert m["entry0"]["address"] == cluster.up.url and m["kv"]["role"] == "store"
    assert wait(lambda: cluster.members()["engine0"]["kv_total"] > 0)
    table = cluster.ctl("status").stdout.splitlines()
    assert table[0].split() == ["name", "role", "state", "requests", "KV", "epoch", "version", "address"] and len(table) == 1 + len(m)
    chunks = stream(cluster.up.url, {**STORY, "ignore_eos": True, "max_tokens": 2000})
    next(chunks)
    assert wait(lambda: cluster.members()["entry0"]["requests"] == 1 and sum(cluster.members()[f"engine{i}"]["requests"] for i in range(2)) == 1)
    chunks.close()
    assert wait(lambda: cluster.members()["entry0"]["requests"] == 0)


class Bytes:
    """Numbers and texts as docs/formats/coord.md has them."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        assert self.at <= len(self.data)
        return self.data[self.at - n:self.at]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def u64(self):
        return struct.unpack("<Q", self.take(8))[0]

    def text(self):
        return self.take(self.u32()).decode()

    def member(self):
        m = {k: self.text() for k in ("name", "role", "address", "version")}
        m.update(instance=self.u64(), model=self.take(32), state=self.u32(), epoch=self.u64(), drain=self.u32(), live=self.u32(), used=self.u64(), total=self.u64())
        return m


def read_journal(path):
    """The table that the journal leads to: by name, and the revision."""
    data, at, table, revision, epoch = path.read_bytes(), 8, None, 0, 0
    assert data[:8] == b"DSCOORD1"
    while at < len(data):
        n, crc = struct.unpack("<II", data[at:at + 8])
        record = data[at + 8:at + 8 + n]
        assert len(record) == n and crc32c(record) == crc
        at += 8 + n
        b = Bytes(record)
        if table is None:
            assert b.u32() == 1
            revision, epoch = b.u64(), b.u64()
            table = {m["name"]: m for m in (b.member() for _ in range(b.u32()))}
        else:
            revision += 1
            assert b.u64() == revision
            what = b.u32()
            if what == 1:
                m = b.member()
                old = table.get(m["name"])
                if old and old["instance"] == m["instance"]:
                    m.update(epoch=old["epoch"], drain=old["drain"])
                else:
                    epoch += 1
                    m.update(epoch=epoch)
                table[m["name"]] = m
            else:
                name, instance = b.text(), b.u64()
                assert table[name]["instance"] == instance
                if what == 2:
                    del table[name]
                else:
                    assert what == 3
                    table[name]["drain"] = 1
        assert b.at == len(record)
    return table, revision


def test_the_journal_has_the_table(cluster):
    if cluster.etcd:
        pytest.skip("etcd has a journal of its own")
    assert wait(lambda: len(cluster.members()) == 6)
    table, revision = read_journal(pathlib.Path(cluster.place) / "run" / "coord" / "coord.journal")
    assert revision >= 5 and len({m["model"] for m in table.values() if m["role"] in ("mixed", "entry")}) == 1
    assert {n: (m["role"], m["address"], m["epoch"]) for n, m in table.items()} == {n: (m["role"], m["address"], m["epoch"]) for n, m in cluster.members().items()}


def test_engines_come_and_go_without_a_restart_of_the_entries(cluster):
    assert wait(lambda: cluster.engines_of_entries() == [2, 2])
    process = subprocess.Popen([cluster.program, "engine", "--model", str(MODEL), "--listen", f"unix:{cluster.place}/more", "--memory", "300MiB",
                                "--threads", "1", "--coord", cluster.coord, "--name", "more"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline().startswith("listening on ")
    assert wait(lambda: cluster.engines_of_entries() == [3, 3])
    assert cluster.members()["more"]["address"] == f"unix:{os.path.realpath(cluster.place)}/more"
    done = cluster.ctl("drain", "more")  # nothing starts it again
    assert done.returncode == 0 and "more has left after" in done.stderr, done
    assert process.wait(PATIENCE) == 0
    process.stdout.close()
    assert wait(lambda: cluster.engines_of_entries() == [2, 2])
    assert "more" not in cluster.members()


def restarted_under_load(cluster, restart):
    """The texts of streams that run all the time are those of a quiet cluster."""
    whole = "".join(stream(cluster.up.url, STORY))
    over = False

    def client(url):
        texts = []
        while not over:
            texts.append("".join(stream(url, STORY)))
        return texts

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(client, cluster.up.processes[n]["address"]) for n in ("entry0", "entry1")]
        try:
            restart()
        finally:
            over = True
        for c in clients:
            texts = c.result(4 * PATIENCE)
            assert texts and set(texts) == {whole}


def test_a_rolling_restart_loses_no_request(cluster):
    before = cluster.epochs()

    def restart():
        done = cluster.ctl("restart")
        assert done.returncode == 0 and [line.split(" is back after")[0] for line in done.stderr.splitlines()] == ["engine0", "engine1"], done

    restarted_under_load(cluster, restart)
    after = cluster.epochs()
    assert {n for n in after if after[n] != before[n]} == {"engine0", "engine1"} and all(after[n] > before[n] for n in ("engine0", "engine1"))


def test_sigterm_is_a_drain(cluster):
    def restart():
        for name in ("engine0", "engine1"):
            before = cluster.epochs()[name]
            pid = next(p for p in cluster.up.children() if f"--name={name}\0" in pathlib.Path(f"/proc/{p}/cmdline").read_text())
            os.kill(pid, signal.SIGTERM)
            assert wait(lambda: cluster.epochs().get(name, before) > before)

    restarted_under_load(cluster, restart)


def test_the_coord_goes_and_comes_back(cluster):
    assert wait(lambda: len(cluster.epochs()) == 5 and cluster.engines_of_entries() == [2, 2])  # those that were replaced before are back
    before = cluster.epochs()
    known = set(cluster.up.children())
    whole = "".join(stream(cluster.up.url, STORY))
    chunks = stream(cluster.up.url, STORY)
    head = [next(chunks) for _ in range(10)]
    cluster.kill_coord()
    assert "".join(head) + "".join(chunks) == whole and "".join(stream(cluster.up.url, STORY)) == whole
    assert cluster.engines_of_entries() == [2, 2]
    done = subprocess.run([cluster.program, "ctl", "status", "--coord", "unix:/nowhere/at/all"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1 and done.stderr.startswith("deepserve ctl: coord unix:/nowhere/at/all: ") and done.stderr.count("\n") == 1, done
    cluster.coord_is_back()
    assert wait(lambda: cluster.epochs() == before), cluster.epochs()  # nobody was gone, nobody is another one
    assert cluster.engines_of_entries() == [2, 2] and "".join(stream(cluster.up.url, STORY)) == whole
    assert len(known - set(cluster.up.children())) == (cluster.kind == "coord")  # and nothing else was started again


def test_refusals(cluster):
    other = os.path.join(cluster.place, "other")
    os.makedirs(other, exist_ok=True)
    for name in os.listdir(MODEL):
        if not os.path.exists(f"{other}/{name}"):
            shutil.copy(f"{MODEL}/{name}", other)
    with open(f"{other}/config.json", "a") as f:
        f.write("\n")
    process = subprocess.Popen([cluster.program, "engine", "--model", other, "--listen", f"unix:{cluster.place}/odd", "--memory", "300MiB", "--threads", "1",
                                "--coord", cluster.coord, "--name", "odd"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    line = next((x for x in process.stderr if "refuses" in x), "")
    watchdog.cancel()
    assert "odd has another model" in line and " than e" in line
    assert "odd" not in cluster.members()
    process.kill()
    process.communicate()
    for args, status, text in [
        (["drain", "engin0"], 1, "there is no process 'engin0'; did you mean engine0?"),
        (["restart", "engine0", "nobody"], 1, "there is no process 'nobody'"),
        (["drain"], 2, "drain needs the name of one process"),
        (["status", "x"], 2, "status takes no further word"),
        (["status", "--store", "unix:x"], 2, "--store and --dir are for kv"),
    ]:
        done = cluster.ctl(*args)
        assert done.returncode == status and text in done.stderr and not done.stdout, done
    for args in (["ctl", "status"], ["engine", "--model", str(MODEL), "--listen", "unix:x", "--coord", "unix:y"], ["kvd", "--dir", "x", "--name", "y"],
                 ["coord", "--listen", "10.1.2.3:4", "--dir", "x"], ["entry", "--model", str(MODEL)]):
        assert subprocess.run([cluster.program, *args], capture_output=True, timeout=PATIENCE).returncode == 2, args


def test_the_end(cluster):
    status, children = cluster.up.end(signal.SIGTERM)
    assert status == 0 and not any(map(there, children))
    if cluster.etcd:
        assert cluster.members() == {}
