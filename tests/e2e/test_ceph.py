"""A KV store in a pool of Ceph: blocks survive restarts and kills, two of twelve OSDs may die while it is read, with three it misses and ends."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from test_kv_dir import TURN, chat, second_turn, serve


@pytest.fixture(scope="module")
def ceph(root):
    """A cluster of twelve OSDs, 10+2. The tests of this file use it in their order: the last one kills three of them."""
    p = subprocess.Popen(["/usr/bin/python3", root / "tests/ceph.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = p.stdout.readline()
    if not line.startswith("{"):
        p.stdin.close()
        if p.wait() == 77:
            pytest.skip(line.strip())
        pytest.fail(f"tests/ceph.py: exit status {p.returncode}")
    yield json.loads(line)
    p.stdin.close()
    p.wait(timeout=60)


class Kvd:
    def __init__(self, program, place, path):
        self.program, self.place, self.address = program, place, f"unix:{path}/s"
        self.user = pathlib.Path(program).parent / "tests/unit/kvstore/use_store"
        if not self.user.exists():
            pytest.skip("the tests' programs aren't built")
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.program, "kvd", "--dir", self.place, "--listen", self.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "built without" in line + (self.process.stderr.read() if not line else ""):
            pytest.skip("this program was built without librados")
        assert line == f"listening on {self.address}\n"

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        out, err = self.process.communicate(timeout=120)
        assert out == "" and self.process.returncode == (0 if sig == signal.SIGTERM else -sig), err

    def use(self, verb, chain, n, *tenant):
        done = subprocess.run([self.user, self.address, verb, str(chain), str(n), *tenant], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        assert done.returncode == 0, done.stderr  # also when a byte was wrong
        return [int(x) for x in re.search(r"^\d+( \d+)?$", done.stdout, re.M).group(0).split()]

    def ctl(self, *words, check=0):
        done = subprocess.run([self.program, "ctl", "kv", *words, "--store", self.address, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        assert done.returncode == check, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def kvd(program, ceph, tmp_path):
    made = []

    def make(name_space, conf=ceph["conf"]):
        made.append(Kvd(program, f"rados://{ceph['pool']}/{name_space}?conf={conf}", tmp_path))
        return made[0]
    yield make
    for k in made:
        k.process.kill()
        k.process.communicate()


def test_blocks_survive(kvd):
    k = kvd("survive")
    assert k.use("save", 1, 200) == [0] and k.use("save", 2, 10, "somebody") == [0]
    stat = k.ctl("stat")
    assert (stat["blocks"], stat["pins"], stat["devices"], stat["k"], stat["m"]) == (210, 0, 1, 1, 0)
    second = subprocess.Popen([k.program, "ctl", "kv", "stat", "--dir", k.place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert k.use("fetch", 1, 205) == [200, 200] and k.use("fetch", 2, 10) == [10, 10]
    assert k.ctl("verify") == {"checked": 210, "bad": 0, "repaired": 0}
    out, err = second.communicate(timeout=60)  # it waits for the lease of one that might be dead
    assert (second.returncode, out) == (1, "") and "another process" in err
    for sig in (signal.SIGTERM, signal.SIGKILL):
        k.stop(sig)
        k.start()
        assert k.use("fetch", 1, 205) == [200, 200]
    assert k.ctl("forget", "somebody") == {"forgotten": 10}
    k.stop()
    done = subprocess.run([k.program, "ctl", "kv", "stat", "--dir", k.place, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert json.loads(done.stdout)["blocks"] == 200


def test_refusals(program, ceph, tmp_path):
    def run(*words):
        return subprocess.run([program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    for place, said in ((f"rados://no-such-pool?conf={ceph['conf']}", "pool"), (f"rados://{ceph['pool']}?conf={tmp_path}/none", "none"),
                        (f"rados://{ceph['pool']}/empty?conf={ceph['conf']}", "no KV store")):
        done = run("ctl", "kv", "stat", "--dir", place)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1) and said in done.stderr, done.stderr


def test_serve_goes_on(program, root, ceph):
    kv = ("--kv-dir", f"rados://{ceph['pool']}/serve?conf={ceph['conf']}")
    with serve(program, root, *kv) as s:
        first, cached, _ = chat(s, TURN)
        assert cached == 0 and s.stop() == 0
    with serve(program, root, *kv) as s:
        _, cached, n = chat(s, second_turn(first))
        assert cached == (n - 134) // 128 * 128 >= 512


def test_dead_osds(kvd, ceph):
    """With two gone every block comes, if late while the rest learns of it; with three none does, and everything ends."""
    conf = pathlib.Path(ceph["conf"])
    quick = conf.with_name("quick.conf")  # what the cluster doesn't answer at all ends sooner
    quick.write_text(conf.read_text() + "\n[client]\nrados_osd_op_timeout = 6\n")
    k = kvd("dead", quick)
    for chain in range(8):
        assert k.use("save", chain, 100) == [0]
    reading = [subprocess.Popen([k.user, k.address, "fetch", str(chain), "100"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for chain in range(8)]
    for pid in ceph["osds"][2:4]:
        os.kill(pid, signal.SIGKILL)
    for p in reading:
        assert p.communicate(timeout=60) and p.returncode == 0  # some may be late, none is wrong
    until = time.monotonic() + 120
    for chain in range(8):
        while k.use("fetch", chain, 100) != [100, 100]:
            assert time.monotonic() < until
    while k.use("save", 8, 50) != [0]:
        assert time.monotonic() < until
    assert k.use("fetch", 8, 50) == [50, 50]
    os.kill(ceph["osds"][4], signal.SIGKILL)
    while k.use("fetch", 1, 100) == [100, 100]:  # until the cluster knows
        assert time.monotonic() < until
    before = k.ctl("stat")["misses"]
    assert k.use("fetch", 3, 100) == [100, 0]
    stat = k.ctl("stat")
    assert stat["misses"]["late"] + stat["misses"]["io"] > before["late"] + before["io"] and stat["misses"]["corrupt"] == stat["pins"] == 0
    assert k.use("save", 9, 5) != [0]
    k.stop()
