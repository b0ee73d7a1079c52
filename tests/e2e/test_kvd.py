"""deepserve kvd and ctl: blocks survive restarts and kills, devices may go, damage is found and repaired, a tenant is forgotten."""
import json
import pathlib
import re
import signal
import subprocess

import pytest

from server_lib import wait


class Store:
    def __init__(self, program, root, devices, *options):
        self.program, self.root = str(program), root
        self.user = pathlib.Path(program).parent / "tests" / "unit" / "kvstore" / "use_store"
        if not self.user.exists():
            pytest.skip("the tests' programs aren't built")
        self.dirs = [root / str(i) for i in range(devices)]
        for d in self.dirs:
            d.mkdir()
        self.options, self.address = options, f"unix:{root}/s"
        self.start()

    def start(self):
        dirs = [word for d in self.dirs for word in ("--dir", str(d))]
        self.process = subprocess.Popen([self.program, "kvd", *dirs, "--listen", self.address, *self.options], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == f"listening on {self.address}\n"

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        out, err = self.process.communicate(timeout=20)
        assert out == "" and self.process.returncode == (0 if sig == signal.SIGTERM else -sig), err

    def use(self, verb, chain, n, *tenant):
        done = subprocess.run([self.user, self.address, verb, str(chain), str(n), *tenant], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [int(x) for x in re.search(r"^\d+( \d+)?$", done.stdout, re.M).group(0).split()]

    def ctl(self, *words, check=0, directly=False):
        where = [w for d in self.dirs for w in ("--dir", str(d))] if directly else ["--store", self.address]
        done = subprocess.run([self.program, "ctl", "kv", *words, *where, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == check, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture
def store(program, tmp_path):
    made = []

    def make(devices, *options):
        made.append(Store(program, tmp_path, devices, *options))
        return made[0]
    yield make
    for s in made:
        s.process.kill()
        s.process.communicate()


def test_blocks_survive(store):
    s = store(3, "--code", "2+1", "--capacity", "64MiB", "--ttl", "agent=1h,chat=2d")
    assert s.use("save", 1, 100) == [0] and s.use("save", 2, 10, "somebody") == [0]
    (stat,), _ = s.ctl("stat")
    assert (stat["blocks"], stat["saved"], stat["pins"], stat["capacity"], stat["k"], stat["m"]) == (110, 110, 0, 64 << 20, 2, 1)
    assert stat["misses"]["absent"] == 0 and stat["hits"] == 0 and stat["repairs"] == 0 and 0 < stat["bytes"] <= stat["capacity"]
    for sig in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        s.stop(sig)
        s.start()
        assert s.use("fetch", 1, 105) == [100, 100] and s.use("fetch", 2, 10) == [10, 10]
    items, _ = s.ctl("ls")
    assert len(items) == 110 and all(len(i["key"]) == 64 and i["class"] == "agent" and i["exact"] for i in items)
    by_key = {i["key"]: i for i in items}
    assert all(i["depth"] == (by_key[i["parent"]]["depth"] + 1 if i["parent"] else 0) for i in items)
    assert {i["tenant"] != 0 for i in items if i["parent"] is None} == {True, False}
    assert "another process" in s.ctl("stat", check=1, directly=True)[1]
    (stat,), _ = s.ctl("stat")
    assert stat["restored"] == 110 and stat["hits"] == 110 == sum(stat["reuse_gap"].values()) and sum(stat["lifetime"].values()) == 0
    assert all(stat[phase] > 0 for phase in ("lookup_ns", "queue_ns", "device_ns", "verify_ns", "copy_ns")) and len(stat["lifetime"]) == 12
    assert s.ctl("forget", "somebody")[0] == [{"forgotten": 10}]
    assert s.use("fetch", 2, 10) == [0, 0]
    s.stop()
    assert s.ctl("stat", directly=True)[0][0]["blocks"] == 100
    assert s.ctl("verify", directly=True)[0] == [{"checked": 100, "bad": 0, "repaired": 0}]
    assert s.ctl("warm", directly=True)[0] == [{"checked": 100, "bad": 0, "repaired": 0}]


def flip(directory, every):
    for path in directory.glob("*.seg"):
        data = bytearray(path.read_bytes())
        for at in range(8192 + 3000, len(data), every):
            data[at] ^= 1
        path.write_bytes(data)


def test_damage(store, tmp_path):
    s = store(3)
    assert s.use("save", 1, 64) == [0]
    s.stop()
    flip(s.dirs[1], 20000)
    s.start()
    assert s.use("fetch", 1, 64) == [64, 64]
    (found,), _ = s.ctl("verify")
    assert found["checked"] == 64 and found["bad"] == 0
    assert s.ctl("scrub")[0] == [{"checked": 64, "bad": 0, "repaired": 0}]
    s.stop()
    s.dirs[2].rename(tmp_path / "lost")  # a device that is lost
    s.start()
    assert s.use("fetch", 1, 64) == [64, 64]
    stat = s.ctl("stat")[0][0]
    assert (stat["bad_devices"], stat["incomplete"]) == (1, 0)  # nobody could have what is missing
    s.stop()
    s.dirs[2].mkdir()  # a new disk: it gets its part of everything
    s.start()
    assert s.use("fetch", 1, 64) == [64, 64]
    assert s.ctl("stat")[0][0]["bad_devices"] == 0
    assert wait(lambda: s.ctl("stat")[0][0]["incomplete"] == 0)
    s.stop()
    s.dirs[1].rename(tmp_path / "lost as well")
    s.start()
    assert s.use("fetch", 1, 64) == [64, 64]
    s.stop()
    flip(s.dirs[0], 20000)
    s.start()
    (lost,), _ = s.ctl("verify", check=1)
    assert lost["bad"] > 0
    matched, came = s.use("fetch", 1, 64)
    assert matched == came < 64


def test_command_lines(program, tmp_path):
    def run(*words):
        return subprocess.run([program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)

    for words in (["kvd"], ["kvd", "--dir", "x", "--code", "2"], ["kvd", "--dir", "x", "--ttl", "agent=3"], ["kvd", "--dir", "x", "--listen", "here"],
                  ["kvd", "--dir", "x", "--capacity", "much"], ["ctl"], ["ctl", "kv"], ["ctl", "kv", "dance", "--dir", "x"], ["ctl", "kv", "stat"],
                  ["ctl", "kv", "forget", "--dir", "x"], ["ctl", "kv", "stat", "y", "--dir", "x"], ["ctl", "kv", "stat", "--dir", "x", "--store", "unix:y"]):
        done = run(*words)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr, words
    for words in (["kvd", "--dir", tmp_path / "none"], ["kvd", "--dir", tmp_path, "--code", "2+1"], ["kvd", "--dir", tmp_path, "--capacity", "4KiB"],
                  ["ctl", "kv", "stat", "--dir", tmp_path], ["ctl", "kv", "verify", "--dir", tmp_path], ["ctl", "kv", "stat", "--store", f"unix:{tmp_path}/s"]):
        done = run(*words)
        assert (done.returncode, done.stdout) == (1, "") and len(done.stderr.splitlines()) == 1, words
        assert list(tmp_path.iterdir()) == []
