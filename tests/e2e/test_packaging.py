"""What `meson install` puts where, the pages and completions made from the option tables, the systemd unit, the dashboard, and the Debian package."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory, program):
    build = pathlib.Path(program).resolve().parent
    if not (build / "build.ninja").exists() or not shutil.which("meson"):
        pytest.skip(f"{build} is no build folder of Meson")
    if not (build / "packaging" / "man1").exists():
        pytest.skip("this build has no man pages")
    to = tmp_path_factory.mktemp("root")
    subprocess.run(["meson", "install", "-C", str(build), "--no-rebuild", "--quiet"], env=dict(os.environ, DESTDIR=str(to)), check=True, capture_output=True)
    prefix = json.loads(subprocess.run(["meson", "introspect", str(build), "--buildoptions"], capture_output=True, check=True).stdout)
    return to / next(o["value"] for o in prefix if o["name"] == "prefix").lstrip("/")


def commands(deepserve):
    listing = deepserve("--help").stdout.decode().partition("commands:\n")[2].partition("\n\n")[0]
    names = [[n] for n in re.findall(r"^  ([a-z]+)", listing, re.M)]
    return names + [["bench", "http"], ["bench", "policy"], ["bench", "serve"]]


def options(deepserve, words):
    return re.findall(r"^  (?:-h, )?--(?:\[no-\])?([\w-]+)", deepserve(*words, "--help").stdout.decode(), re.M)


def test_installed_libraries(installed, tmp_path):
    """Each has a version in its name, gives away what its headers declare and nothing else, and a program builds against headers and libraries as
    they are installed, and runs."""
    if not shutil.which("readelf") or not shutil.which("cc"):
        pytest.skip("no readelf or no compiler")
    symbols = {}
    exec(compile((ROOT / "tools/symbols.py").read_text(), "symbols.py", "exec"), symbols)
    libraries = next(p for p in installed.glob("lib/**/libdeepserve.so")).parent
    declared = {h.name: symbols["functions"](h.read_text()) for h in (installed / "include/ds").glob("*.h")}
    assert "ds_llm_open" in declared["llm.h"] and "ds_gen_add" not in declared["gen.h"]  # inline
    for name, apart in (("deepserve", ()), ("deepserve-recipe", ("engine.h", "gen.h", "gen_request.h", "llm.h"))):
        path = libraries / f"lib{name}.so.0"
        listing = subprocess.run(["readelf", "--wide", "--dyn-syms", "-d", path], capture_output=True, text=True, check=True).stdout
        given = {x.split()[-1] for x in listing.splitlines() if re.search(r" (FUNC|OBJECT) +(GLOBAL|WEAK) +DEFAULT +\d+ ", x)}
        want = set().union(*(d for h, d in declared.items() if h not in apart)) | {"ds_seal_create", "ds_seal_destroy"}
        assert given == want, given ^ want
        assert f"[lib{name}.so.0]" in listing and (libraries / f"lib{name}.so").is_symlink()
    (tmp_path / "a.c").write_text("#include <ds/gen_request.h>\n#include <ds/llm.h>\n#include <ds/recipe.h>\n#include <stdio.h>\n"
                                  "int main(void) { ds_llm *l; ds_err e; int rc = ds_llm_open(&l, \"/nowhere\", 0, &e); puts(e.msg); return rc != DS_E_IO; }\n")
    subprocess.run(["cc", "-o", tmp_path / "a", tmp_path / "a.c", f"-I{installed / 'include'}", f"-L{libraries}", "-ldeepserve"], check=True)
    done = subprocess.run([tmp_path / "a"], env=dict(os.environ, LD_LIBRARY_PATH=str(libraries)), capture_output=True, text=True)
    assert done.returncode == 0 and "/nowhere" in done.stdout


def test_installed_program_runs(installed, deepserve):
    done = subprocess.run([installed / "bin" / "deepserve", "--version"], capture_output=True, check=True)
    assert done.stdout == deepserve("--version").stdout and done.stdout.startswith(b"deepserve ")
    assert (installed / "include" / "ds" / "request.h").exists()


def test_man_pages_have_every_option(installed, deepserve):
    pages = installed / "share" / "man" / "man1"
    for words in commands(deepserve):
        page = (pages / ("-".join(["deepserve", *words]) + ".1")).read_text()
        for o in options(deepserve, words):
            assert "\\fB\\-\\-" + o.replace("-", "\\-") in page
    assert len(list(pages.iterdir())) == len(commands(deepserve)) + 1
    overview = (pages / "deepserve.1").read_text()
    assert all("\\-".join(["deepserve", *words]) in overview for words in commands(deepserve))


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
def test_man_pages_are_clean(installed):
    for page in sorted((installed / "share" / "man" / "man1").iterdir()):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", str(page)], capture_output=True)
        assert done.returncode == 0 and done.stderr == b"", page


def completions(installed, *words):
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _deepserve; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", str(installed / "share" / "bash-completion" / "completions" / "deepserve"), "deepserve", *words], capture_output=True, cwd="/")
    assert done.stderr == b""
    return done.stdout.decode().split()


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completion(installed, deepserve):
    assert {"serve", "generate", "help"} <= set(completions(installed, ""))
    assert completions(installed, "toke") == ["tokenize"]
    assert set(completions(installed, "bench", "")) >= {"http", "serve", "--json"}
    assert completions(installed, "generate", "--mode", "") == ["exact", "ced"]
    assert completions(installed, "bench", "http", "--protocol", "com") == ["completions"]
    assert completions(installed, "bench", "http", "--no-k") == ["--no-keepalive"]
    assert "usr" in completions(installed, "serve", "--model", "us")
    for words in commands(deepserve):
        assert set(completions(installed, *words, "--")) >= {"--" + o for o in options(deepserve, words)}


@pytest.mark.parametrize("shell, name", [("zsh", "zsh/site-functions/_deepserve"), ("fish", "fish/vendor_completions.d/deepserve.fish")])
def test_other_completions(installed, deepserve, shell, name):
    path = installed / "share" / name
    text = path.read_text()
    for words in commands(deepserve):
        for o in options(deepserve, words):
            assert (f"'--{o}[" if shell == "zsh" else f" -l {o} ") in text
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    assert subprocess.run([shell, "-n", str(path)], capture_output=True).stderr == b""
    if shell == "fish":
        done = subprocess.run(["fish", "-c", f'source {path}; complete -C "deepserve serve --act "; complete -C "deepserve bench http --clo"'], capture_output=True, text=True)
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["bf16", "f32", "--closed"]


def test_unit(installed, deepserve, program, tmp_path):
    unit = (installed / "lib" / "systemd" / "system" / "deepserve.service").read_text()
    start = re.search(r"^ExecStart=(\S+) (serve) --model \$\{DEEPSERVE_MODEL\} \$DEEPSERVE_OPTIONS$", unit, re.M)
    assert start and start.group(1).endswith("/bin/deepserve") and "@" not in re.sub(r"@(system-service|privileged)", "", unit)
    drain = re.search(r"--drain-timeout.*?default (\d+)s", deepserve("serve", "--help").stdout.decode(), re.S)
    assert int(drain.group(1)) < int(re.search(r"TimeoutStopSec=(\d+)", unit).group(1))
    defaults = (installed / "share" / "doc" / "deepserve" / "deepserve.default").read_text()
    for place in re.findall(r"/run/(\w+)/", (ROOT / "docs" / "server.md").read_text(encoding="utf-8")):
        assert f"\nRuntimeDirectory={place}\n" in unit  # what the documentation puts there can be made by the service
    known = options(deepserve, ["serve"])
    assert all(o in known for o in re.findall(r"--([\w-]+)", defaults))
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    trial = tmp_path / "deepserve.service"
    trial.write_text(unit.replace(start.group(1), program))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(trial)], capture_output=True, text=True)
    assert "deepserve.service" not in done.stderr
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(trial)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:]  # exposure of 2.0 or less, of 10


def test_dashboard_asks_for_metrics_that_there_are():
    board = json.loads((ROOT / "packaging" / "grafana.json").read_text())
    source = (ROOT / "src" / "server" / "metrics.c").read_text()
    names = set(re.findall(r'\(p, "(\w+)"', source)) | set(re.findall(r'\(&p, "(\w+)"', source))
    names |= set(re.findall(r'\{ "(\w+)", "gauge"', source))
    asked = {n for p in board["panels"] for t in p["targets"] for n in re.findall(r"\$\{prefix\}(\w+)", t["expr"])}
    assert len(asked) > 30
    assert {re.sub(r"_(bucket|sum|count)$", "", n) for n in asked} - names == set()
    page = (ROOT / "web" / "index.html").read_text()
    shown = set(re.findall(r'"(\w+_(?:total|running|waiting|seconds|perc))"', page)) - {"gpu_cache_usage_perc", "spec_decode_num_drafts_total"}  # what others call it
    assert shown - names == set()
    places = [tuple(p["gridPos"].values()) for p in board["panels"]]
    assert len(set(places)) == len(places) and len({p["id"] for p in board["panels"]}) == len(places)


# ---- the Debian package ----


@pytest.fixture(scope="module")
def deb(installed, program, tmp_path_factory):
    for need in ("dpkg-deb", "dpkg-shlibdeps"):
        if not shutil.which(need):
            pytest.skip(f"no {need}")
    if b"libasan" in subprocess.run(["ldd", program], capture_output=True).stdout:
        pytest.skip("a build with sanitizers isn't packed")
    done = subprocess.run([ROOT / "tools" / "deb.sh", pathlib.Path(program).resolve().parent, tmp_path_factory.mktemp("deb")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.splitlines()[-1])


def test_deb_says_what_it_is(deb, deepserve):
    def field(name):
        return subprocess.run(["dpkg-deb", "-f", str(deb), name], capture_output=True, text=True, check=True).stdout.strip()

    assert field("Package") == "deepserve" and field("Version") == deepserve("--version").stdout.split()[-1].decode()
    for library in ("libc6", "libssl3", "libmicrohttpd12", "libsqlite3-0", "libpcre2-8-0", "libedit2"):
        assert library in field("Depends")
    assert int(field("Installed-Size")) < 100 * 1024
    listing = subprocess.run(["dpkg-deb", "-c", str(deb)], capture_output=True, text=True, check=True).stdout
    files = {line.split()[5][1:]: line.split()[:2] for line in listing.splitlines()}
    for name in ("/usr/bin/deepserve", "/usr/share/man/man1/deepserve-serve.1.gz", "/usr/lib/systemd/system/deepserve.service", "/etc/default/deepserve", "/usr/share/doc/deepserve/copyright",
                 "/usr/share/bash-completion/completions/deepserve"):
        assert name in files
    assert all(owner == "root/root" for _, owner in files.values()) and all(not mode.endswith("w-") or mode[0] == "l" for mode, _ in files.values())
    assert not [f for f in files if "/usr/local" in f]
    unpacked = deb.parent / "unpacked"
    subprocess.run(["dpkg-deb", "-x", str(deb), str(unpacked)], check=True)
    for name in ("lib/systemd/system/deepserve.service", *[str(p.relative_to(unpacked / "usr")) for p in (unpacked / "usr").rglob("*.pc")]):
        text = (unpacked / "usr" / name).read_text()
        assert "/usr/local" not in text and ("ExecStart=/usr/bin/deepserve" in text or "prefix=/usr\n" in text)


def test_deb_installs_and_runs(deb, tmp_path, deepserve):
    root = tmp_path / "root"
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "usr"):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    (root / "var/lib/dpkg/available").touch()
    if os.getuid() == 0:  # in a root of its own; its scripts see DPKG_ROOT and leave this system alone
        done = subprocess.run(["dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends", "--log=/dev/null", "-i", str(deb)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert re.search(r"Package: deepserve\nStatus: install ok installed", (root / "var/lib/dpkg/status").read_text())
    else:
        subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
    done = subprocess.run([root / "usr/bin/deepserve", "--version"], capture_output=True)
    assert done.returncode == 0 and done.stdout == deepserve("--version").stdout
    assert subprocess.run(["sh", "-n", str(ROOT / "packaging" / "postinst")]).returncode == 0
    if os.getuid() == 0:
        done = subprocess.run(["dpkg", f"--root={root}", "--force-script-chrootless", "--log=/dev/null", "-P", "deepserve"], capture_output=True, text=True)
        assert done.returncode == 0 and not (root / "usr/bin/deepserve").exists() and not (root / "etc/default/deepserve").exists()


@pytest.fixture(scope="module")
def build(program):
    folder = pathlib.Path(program).resolve().parent
    if b"libasan" in subprocess.run(["ldd", program], capture_output=True).stdout or not (folder / "src" / "libdeepserve.so").exists():
        pytest.skip("no build that is shipped")
    return folder


def test_wheel(build, tmp_path):
    """In a fresh virtual environment program and library run with what the wheel brought, and with nothing of the system's but glibc."""
    wheel = subprocess.run([ROOT / "tools" / "wheel.py", build, tmp_path], check=True, capture_output=True, text=True).stdout.strip()
    venv = tmp_path / "venv"
    if subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True).returncode:
        pytest.skip("python3-venv isn't installed")
    subprocess.run([venv / "bin" / "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check", wheel], check=True)
    env = {"PATH": f"{venv}/bin"}
    said = subprocess.run([venv / "bin" / "deepserve", "generate", "--model", ROOT / "models/demo", "--prompt", "Once upon a time", "--max-tokens", "6", "--temperature", "0"],
                          env=env, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    script = ("import deepserve, sys\nwith deepserve.LLM(sys.argv[1]) as m:\n"
              "    print(m.generate('Once upon a time', deepserve.SamplingParams(max_tokens=6, temperature=0))[0].outputs[0].text)\n"
              "print(*{x.split()[-1] for x in open('/proc/self/maps') if '.so' in x}, sep='\\n')")
    lines = subprocess.run([venv / "bin" / "python", "-c", script, ROOT / "models/demo"], env=env, check=True, capture_output=True, text=True, cwd=tmp_path).stdout.split("\n")
    assert lines[0] and said.rstrip("\n").endswith(lines[0])
    foreign = [x for x in lines if re.search(r"/lib(curl|microhttpd|sqlite3|pcre2|crypto|ssl|jpeg|edit)[.-]", x) and "libs/" not in x and "python" not in x]
    assert any("libs/libcurl" in x for x in lines) and foreign == []


def test_root_file_system(build, tmp_path):
    """What the Containerfile's image consists of is enough to run."""
    out = tmp_path / "root"
    subprocess.run([ROOT / "tools" / "rootfs.py", build, out], check=True, capture_output=True)
    shutil.copytree(ROOT / "models" / "demo", out / "var/lib/deepserve/model")
    enter = ["chroot"] if os.geteuid() == 0 else ["unshare", "-r", "chroot"]
    run = [*enter, out, "/usr/bin/deepserve"]
    done = subprocess.run([*run, "--version"], capture_output=True, text=True)
    if done.returncode and ("not permitted" in done.stderr or "Operation" in done.stderr or "denied" in done.stderr):
        pytest.skip(f"no other root here: {done.stderr.strip()}")
    assert done.returncode == 0 and done.stdout.startswith("deepserve "), done
    said = subprocess.run([*run, "generate", "--model", "/var/lib/deepserve/model", "--prompt", "Once", "--max-tokens", "4"], capture_output=True, text=True)
    assert said.returncode == 0 and said.stdout.strip(), said
    assert not list(out.rglob("sh")) and sum(f.stat().st_size for f in (out / "usr").rglob("*") if f.is_file()) < 60 << 20
    text = (ROOT / "Containerfile").read_text()
    assert "tools/rootfs.py" in text and "FROM scratch" in text
