#!/usr/bin/python3
"""A Ceph cluster of its own on this machine, as plain processes: a monitor and OSDs that keep everything in memory, no authentication, one
erasure-coded pool.

  tests/ceph.py [--osds N] [--code K+M] [--pool NAME]

prints one JSON line {"conf": PATH, "pool": NAME, "osds": [PID, ...]} when the pool takes writes (12 OSDs: about 15 s), and ends with everything
it started when its standard input closes, on SIGTERM or SIGINT, or when it is killed: its processes die with it. Exit status 77 and a line that
says why: Ceph isn't installed. Needs Debian's ceph-mon, ceph-osd and python3-rados. Memory: OSD_BYTES of data and about 100 MiB for each OSD.

The pool reads fast (fast_read) and stays readable with M OSDs gone (min_size K). No OSD is ever marked out: there is none to take its place."""
import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

OSD_BYTES = 512 << 20
STEP_SECONDS = 60  # for each step of the start: far more than it needs

CONF = """[global]
fsid = {fsid}
mon_host = {mon}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
run_dir = {root}
admin_socket =
log_file = {root}/$name.log
mon_cluster_log_file = {root}/cluster.log
pid_file =
crash_dir = {root}
ms_async_op_threads = 1
ms_bind_ipv4 = true
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000

[mon]
mon_data = {root}/mon
mon_data_avail_crit = 0
mon_osd_min_down_reporters = 1
mon_osd_adjust_heartbeat_grace = false
mon_osd_down_out_interval = 0
paxos_propose_interval = 0.1
paxos_min_wait = 0.02
mon_tick_interval = 1

[osd]
osd_data = {root}/osd$id
osd_objectstore = memstore
memstore_device_bytes = {bytes}
osd_op_num_shards = 1
osd_op_num_threads_per_shard = 2
osd_memory_target = 512M
osd_crush_update_on_start = true
osd_crush_chooseleaf_type = 0
osd_class_load_list = *
osd_class_default_list = *
osd_heartbeat_grace = 60
osd_max_pg_log_entries = 200
osd_min_pg_log_entries = 100
"""


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Cluster:
    def __init__(self, root, osds):
        self.root, self.osds, self.children = root, osds, []
        self.conf = f"{root}/ceph.conf"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.fsid, self.mon = str(uuid.uuid4()), f"v2:127.0.0.1:{port}"
        with open(self.conf, "w") as f:
            f.write(CONF.format(fsid=self.fsid, mon=self.mon, root=root, bytes=OSD_BYTES))

    def start(self, *words):
        with open(f"{self.root}/{words[0]}{words[2]}.out", "w") as out:
            p = subprocess.Popen([words[0], "-c", self.conf, *words[1:]], stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent)
        self.children.append(p)
        return p

    def finish(self, p):
        if p.wait(STEP_SECONDS) != 0:
            raise RuntimeError(f"{' '.join(p.args)}: exit status {p.returncode}")
        self.children.remove(p)

    def command(self, prefix, **more):
        rc, out, message = self.client.mon_command(json.dumps({"prefix": prefix, "format": "json", **more}), b"", timeout=STEP_SECONDS)
        if rc != 0:
            raise RuntimeError(f"ceph {prefix}: {message}")
        return json.loads(out) if out else None

    def start_mon(self):
        import rados
        subprocess.run(["monmaptool", "--create", "--addv", "a", f"[{self.mon}]", "--fsid", self.fsid, f"{self.root}/monmap"], check=True,
                       stdout=subprocess.DEVNULL)
        self.finish(self.start("ceph-mon", "-i", "a", "--mkfs", "--monmap", f"{self.root}/monmap"))
        self.start("ceph-mon", "-i", "a", "-f")
        self.client = rados.Rados(conffile=self.conf, rados_id="admin")
        self.client.connect(timeout=STEP_SECONDS)

    def start_osds(self):
        self.command("osd set", key="noout")
        ids = [str(uuid.uuid4()) for _ in range(self.osds)]
        for i, name in enumerate(ids):
            assert self.command("osd new", uuid=name)["osdid"] == i
            os.mkdir(f"{self.root}/osd{i}")
        for i in range(0, self.osds, 4):
            for p in [self.start("ceph-osd", "-i", str(n), "--mkfs", "--osd-uuid", ids[n]) for n in range(i, min(i + 4, self.osds))]:
                self.finish(p)
        self.daemons = [self.start("ceph-osd", "-i", str(i), "-f") for i in range(self.osds)]
        until = time.monotonic() + STEP_SECONDS
        while self.command("osd stat")["num_up_osds"] < self.osds:
            if time.monotonic() > until:
                raise RuntimeError("not all OSDs came up")
            time.sleep(0.2)

    def make_pool(self, name, k, m):
        self.command("osd erasure-code-profile set", name="code", profile=[f"k={k}", f"m={m}", "plugin=isa", "crush-failure-domain=osd"])
        self.command("osd pool create", pool=name, pg_num=16, pgp_num=16, pool_type="erasure", erasure_code_profile="code")
        for var, val in (("fast_read", "1"), ("min_size", str(k))):
            self.command("osd pool set", pool=name, var=var, val=val)
        self.client.conf_set("rados_osd_op_timeout", str(STEP_SECONDS))
        with self.client.open_ioctx(name) as io:  # one object for each placement group, and more
            io.set_namespace("start")
            for i in range(64):
                io.write_full(str(i), b"here")
                io.remove_object(str(i))

    def end(self):
        for p in self.children:
            p.kill()
        for p in self.children:
            p.wait()
        shutil.rmtree(self.root, ignore_errors=True)


def end_of_input(stopped):
    while os.read(0, 4096):
        pass
    stopped.set()


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--osds", type=int, default=12)
    a.add_argument("--code", default="10+2")
    a.add_argument("--pool", default="kv")
    o = a.parse_args()
    k, m = map(int, o.code.split("+"))
    missing = [p for p in ("ceph-mon", "ceph-osd", "monmaptool") if not shutil.which(p)]
    try:
        import rados  # noqa: F401
    except ImportError:
        missing.append("python3-rados")
    if missing:
        print(f"Ceph isn't installed: {', '.join(missing)}")
        return 77
    stopped = threading.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: stopped.set())
    threading.Thread(target=end_of_input, args=(stopped,), daemon=True).start()
    c = Cluster(tempfile.mkdtemp(prefix="ceph-", dir="/tmp"), o.osds)
    try:
        for step in (c.start_mon, c.start_osds, lambda: c.make_pool(o.pool, k, m)):
            if not stopped.is_set():
                step()
        if not stopped.is_set():
            print(json.dumps({"conf": c.conf, "pool": o.pool, "osds": [p.pid for p in c.daemons]}), flush=True)
        stopped.wait()
        return 0
    finally:
        c.end()


if __name__ == "__main__":
    sys.exit(main())
