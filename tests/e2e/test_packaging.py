"""The Debian package, its manual pages and completion."""
import json
import pathlib
import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def tree(program, root, tmp_path_factory):
    for need in ("dpkg-deb", "strip", "ldd"):
        if not shutil.which(need):
            pytest.skip(f"{need} isn't installed")
    out = tmp_path_factory.mktemp("deb")
    subprocess.run([root / "tools/deb.sh", pathlib.Path(program).parent, out], check=True, capture_output=True)
    deb = next(out.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-R", deb, out / "tree"], check=True)
    return out / "tree"


def test_package(tree):
    control = (tree / "DEBIAN/control").read_text()
    assert "libmicrohttpd12" in control and "libsqlite3-0" in control and "libc6" in control
    assert subprocess.run([tree / "usr/bin/deepserve", "--version"], capture_output=True).returncode == 0
    for name in ("usr/lib/systemd/system/deepserve.service", "etc/default/deepserve", "usr/share/man/man1/deepserve-serve.1.gz", "usr/share/man/man1/deepserve.1.gz"):
        assert (tree / name).exists(), name
    if shutil.which("systemd-analyze"):
        unit = (tree / "usr/lib/systemd/system/deepserve.service").read_text()
        assert "ExecStart=/usr/bin/deepserve serve" in unit


def test_manual_pages(tree):
    if not shutil.which("man"):
        pytest.skip("man isn't installed")
    for page in sorted((tree / "usr/share/man/man1").glob("*.gz")):
        done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-P", "cat", page], capture_output=True, text=True, env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "MANWIDTH": "100"})
        assert done.returncode == 0 and done.stderr == "", (page, done.stderr)
    text = subprocess.run(["man", "-l", "-P", "cat", tree / "usr/share/man/man1/deepserve-serve.1.gz"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}).stdout
    assert "--served-model-name" in text and "--drain-timeout" in text


def test_completion(tree):
    script = f"""source {tree}/usr/share/bash-completion/completions/deepserve
    ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _deepserve; echo "${{COMPREPLY[*]}}"; }}
    ask deepserve ser; ask deepserve serve --api; ask deepserve bench http --clo"""
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.splitlines() == ["serve", "--api-keys", "--closed"]


def test_dashboard(deepserve, root):
    """Every metric of the dashboard is one that the server has."""
    import re
    source = (root / "src/server/metrics.c").read_text()
    for panel in json.loads((root / "packaging/grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"\$\{prefix\}(\w+)", target["expr"]):
                assert f'"{name.removesuffix("_bucket")}"' in source, name
