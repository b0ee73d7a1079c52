"""What every command has in common: help, wrong use, exit statuses, where text goes."""
import re


def commands(deepserve):
    page = deepserve("--help").stdout.decode()
    return re.findall(r"^  ([a-z]+)  ", page[page.index("commands:"):], re.M)


def test_help_goes_to_stdout(deepserve):
    for args in (["--help"], ["-h"], ["help"]):
        r = deepserve(*args)
        assert r.returncode == 0 and r.stderr == b""
        assert r.stdout.startswith(b"deepserve serves") and b"commands:" in r.stdout


def test_no_command_is_wrong_use(deepserve):
    r = deepserve()
    assert r.returncode == 2 and r.stdout == b"" and b"usage:" in r.stderr


def test_version(deepserve):
    r = deepserve("--version")
    assert r.returncode == 0 and re.fullmatch(rb"deepserve \d+\.\d+\.\d+\n", r.stdout)


def test_unknown_command(deepserve):
    r = deepserve("frobnicate")
    assert r.returncode == 2 and r.stdout == b"" and b"unknown command 'frobnicate'" in r.stderr
    r = deepserve("hepl")
    assert r.returncode == 2 and b"did you mean help?" in r.stderr
    r = deepserve("\x1b[31m" + "x" * 1000)
    assert r.returncode == 2 and b"\x1b" not in r.stderr and len(r.stderr) < 500
    r = deepserve("help", "frobnicate")
    assert r.returncode == 2 and r.stdout == b""
    r = deepserve("--frobnicate")
    assert r.returncode == 2 and r.stdout == b""


def test_every_command_has_a_page(deepserve):
    for c in commands(deepserve):
        page = deepserve(c, "--help")
        assert page.returncode == 0 and page.stderr == b"", c
        assert page.stdout.startswith(f"deepserve {c}: ".encode()), c
        assert b"usage: deepserve " + c.encode() in page.stdout and b"options:" in page.stdout, c
        assert deepserve("help", c).stdout == page.stdout, c
        assert deepserve(c, "-h").stdout == page.stdout, c


def test_every_command_refuses_an_unknown_option(deepserve):
    for c in commands(deepserve):
        r = deepserve(c, "--frobnicate")
        assert r.returncode == 2 and r.stdout == b"", c
        assert r.stderr.startswith(f"deepserve {c}: unknown option --frobnicate".encode()), c
        assert len(r.stderr.splitlines()) <= 4, c


def test_help_to_a_full_disk_fails(deepserve, program):
    import subprocess

    with open("/dev/full", "wb") as full:
        r = subprocess.run([program, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=240)
    assert r.returncode == 1 and b"standard output" in r.stderr
