"""What a program of ours needs beside it: the libraries that it and they are linked with, without glibc's own."""
import pathlib
import re
import shutil
import subprocess

GLIBC = re.compile(r"(ld-linux[\w.-]*|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nsl|BrokenLocale)|linux-vdso)\.so[\d.]*$")


def needed(*files):
    """SONAME -> path of all libraries that these are linked with, glibc's own among them."""
    found = {}
    for f in files:
        out = subprocess.run(["ldd", str(f)], capture_output=True, text=True, check=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (\S+)", out, re.M):
            if path == "not":
                raise SystemExit(f"{f}: {name} isn't found")
            found[name] = pathlib.Path(path)
        for path in re.findall(r"^\s*(/\S+ld-linux\S+)", out, re.M):
            found[pathlib.Path(path).name] = pathlib.Path(path)
    return found


def in_order(libraries):
    """The names of {SONAME: path}, each behind those that it is linked with."""
    done = []

    def visit(name):
        if name in done or name not in libraries:
            return
        out = subprocess.run(["readelf", "-d", str(libraries[name])], capture_output=True, text=True, check=True).stdout
        for other in re.findall(r"\(NEEDED\).*\[(.*)\]", out):
            visit(other)
        done.append(name)

    for name in sorted(libraries):
        visit(name)
    return done


def is_glibc(name):
    return bool(GLIBC.match(name))


def stripped(source, target):
    """A copy without debug information; the same permissions."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(target.stat().st_mode | 0o200)
    subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)


def notice(path):
    """What Debian says of a library's authors and licence; None where nobody knows."""
    real = str(path.resolve())
    for name in (real, real.removeprefix("/usr"), str(path)):
        done = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if done.returncode == 0:
            doc = pathlib.Path("/usr/share/doc") / done.stdout.split(":")[0] / "copyright"
            return doc if doc.exists() else None
    return None
