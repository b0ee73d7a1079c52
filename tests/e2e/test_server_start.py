"""What `deepserve serve` refuses at its start: one line that names the option or file, the value and the rule."""
import os
import pathlib
import re
import signal
import subprocess

import pytest

from server_lib import Server, make_model


@pytest.fixture(scope="module")
def model(program, root, tmp_path_factory):
    return make_model(program, root, tmp_path_factory.mktemp("start") / "model")


@pytest.fixture
def refused(deepserve, model):
    def check(status, *words, args):
        done = deepserve("serve", "--model", model, "--port", 0, *args)
        lines = [line for line in done.stderr.decode().splitlines() if not line.endswith("shows what is possible")]
        assert done.returncode == status and done.stdout == b"" and len(lines) == 1, (args, done)
        for word in words:
            assert str(word) in lines[0], (word, lines)

    return check


def test_options_from_a_file(deepserve, tmp_path):
    """The command line wins over the file; what is in effect can be dumped and read again; a mistake names file and line."""
    path = tmp_path / "serve.conf"
    path.write_text("# a server\nmodel = models/x\nport = 1\nimage-urls = false\nserved-model-name = a b\nserved-model-name = c\n")
    done = deepserve("serve", "--config", path, "--port=7", "--dump-config")
    assert done.returncode == 0 and done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert {"model = models/x", "port = 7", "image-urls = false", "served-model-name = a b", "served-model-name = c", "idle-timeout"} <= {
        line if "timeout" not in line else line.split(" ")[0] for line in lines}
    path.write_bytes(done.stdout)
    assert deepserve("serve", f"--config={path}", "--dump-config").stdout == done.stdout
    path.write_text("model = m\n\nporl = 5\n")
    done = deepserve("serve", "--config", path)
    assert done.returncode == 1 and done.stdout == b"" and b"serve.conf:3: unknown option --porl; did you mean --port?\n" in done.stderr
    assert deepserve("serve", "--config", tmp_path / "gone").returncode == 1
    assert deepserve("serve", "--config").returncode == 2


def test_values(refused, tmp_path):
    for args, words in [
        (("--speculate", "65"), ("--speculate '65'", "up to 64")),
        (("--speculate", "fast"), ("--speculate 'fast'", "auto")),
        (("--otlp", "ftp://x"), ("--otlp 'ftp://x'", "http://")),
        (("--otlp", "collector:4318"), ("--otlp 'collector:4318'", "http://")),
        (("--metrics-prefix", "a b{"), ("--metrics-prefix 'a b{'", "letters")),
        (("--metrics-prefix", "1a"), ("--metrics-prefix '1a'", "digit")),
        (("--cors-origin", "https://a\r\nSet-Cookie: b"), ("--cors-origin 'https://a\\r\\nSet-Cookie: b'", "origin")),
        (("--cors-origin", "https://a, https://b"), ("--cors-origin", "one origin")),
        (("--cors-origin", ""), ("--cors-origin ''", "origin")),
        (("--served-model-name", ""), ("--served-model-name ''", "name")),
        (("--unix-socket", ""), ("--unix-socket ''",)),
        (("--api-keys", ""), ("--api-keys ''",)),
        (("--host", ""), ("--host ''",)),
        (("--unix-socket", tmp_path / "s", "--admin-socket", tmp_path / "s"), ("--admin-socket", "different")),
        (("--set", "nope=1"), ("--set: ", "'nope'")),
        (("--max-head", "1000"), ("--max-head '1000'", "1KiB..1MiB")),
        (("--idle-timeout", "10ms"), ("--idle-timeout '10ms'", "1s..24h")),
    ]:
        refused(2, *words, args=args)
    assert not (tmp_path / "s").exists()


def test_tls_files(refused, tmp_path):
    """A certificate that can't be used is named, and nothing of the server is left."""
    def make(name):
        cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-out", cert, "-keyout", key], check=True, capture_output=True)
        return cert, key

    (cert, key), (_, other) = make("a"), make("b")
    locked, text = tmp_path / "locked.key", tmp_path / "text.pem"
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked], check=True, capture_output=True)
    text.write_text("no certificate\n")
    sockets = "--unix-socket", tmp_path / "s", "--admin-socket", tmp_path / "t"
    for c, k, *words in ((cert, other, other, "isn't the key", cert), (cert, locked, locked, "encrypted"), (cert, text, text, "no private key"), (cert, cert, cert, "no private key"),
                         (text, key, text, "no certificate"), (key, key, key, "no certificate"), (tmp_path / "none", key, "none", "No such file"), (tmp_path, key, tmp_path, "regular file")):
        refused(1, *words, args=("--tls-cert", c, "--tls-key", k, *sockets))
    assert not (tmp_path / "s").exists() and not (tmp_path / "t").exists()


def test_files_of_the_server(refused, tmp_path):
    text = tmp_path / "text"
    text.write_text("something\n" * 100)
    for args, *words in ((("--responses-db", text), text, "not a database"), (("--responses-db", tmp_path), tmp_path, "directory"), (("--responses-db", tmp_path / "no" / "r.db"), "no/r.db", "No such"),
                         (("--api-keys", text), text, "line 1"), (("--access-log", tmp_path / "no" / "log"), "no/log", "No such"), (("--unix-socket", text), text, "no socket"),
                         (("--unix-socket", tmp_path / ("s" * 120)), "107"), (("--host", "203.0.113.1", "--api-keys", "/dev/null"), "/dev/null", "regular")):
        refused(1, *words, args=args)


def test_signals_until_the_end(program, model, tmp_path):
    """Whenever a signal comes, also while the server is taken apart, it ends with status 0."""
    for _ in range(10):
        with Server(program, model, "--quiet", replay=[{"text": "x", "repeat": True}], folder=tmp_path) as s:
            while s.process.poll() is None:
                for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    s.process.send_signal(sig)
        assert s.process.returncode == 0, s.log


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is nothing to choose")
def test_pinned_threads(program, model):
    def alone(s):
        tasks = pathlib.Path(f"/proc/{s.process.pid}/task")
        return sum(re.search(r"^Cpus_allowed_list:\s*(\d+)$", (t / "status").read_text(), re.M) is not None for t in tasks.iterdir())

    for args, pinned in (((), 0), (("--pin",), 1)):
        with Server(program, model, "--threads", 2, *args) as s:
            assert alone(s) == pinned
