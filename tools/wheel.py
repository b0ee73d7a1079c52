#!/usr/bin/env python3
"""Makes a wheel of what is built: the Python package with program and libraries in it, and with those that they are linked with, so that it runs where there is
nothing but a glibc that isn't older than this machine's.

    tools/wheel.py BUILD [OUTDIR]     OUTDIR/deepserve-VERSION-py3-none-manylinux_2_N_ARCH.whl; OUTDIR is BUILD if it isn't given

Needs no network. The order and times of its files are fixed: the same build gives the same bytes."""
import base64
import hashlib
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bundle  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
WHEN = (2020, 1, 1, 0, 0, 0)


def metadata():
    text = (ROOT / "python" / "pyproject.toml").read_text(encoding="utf-8")
    name, version, summary, python = (re.search(rf'^{key} = "(.*)"$', text, re.M).group(1) for key in ("name", "version", "description", "requires-python"))
    return name, version, (f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\nLicense: Apache-2.0\nRequires-Python: {python}\n"
                           "Provides-Extra: numpy\nRequires-Dist: numpy; extra == 'numpy'\nDescription-Content-Type: text/markdown\n\n"
                           + (ROOT / "python" / "README.md").read_text(encoding="utf-8"))


def fill(tree, build):
    """The package as it is installed."""
    package = tree / "deepserve"
    shutil.copytree(ROOT / "python" / "deepserve", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    made = {package / "bin" / "deepserve": build / "deepserve"}
    made.update({package / name: build / "src" / name for name in ("libdeepserve.so", "libdeepserve-recipe.so")})
    for target, source in made.items():
        if not source.exists():
            sys.exit(f"wheel: {source} isn't built")
        bundle.stripped(source.resolve(), target)
    libs = {name: path for name, path in bundle.needed(*made.values()).items() if not bundle.is_glibc(name) and not name.startswith("libdeepserve")}
    for name, path in libs.items():
        bundle.stripped(path.resolve(), package / "libs" / name)
        text = bundle.notice(path)
        if text:
            shutil.copy(text, package / "libs" / f"{name}.copyright")
    (package / "libs" / "order.txt").write_text("".join(f"{name}\n" for name in bundle.in_order(libs)))
    shutil.copy(ROOT / "LICENSE", package / "LICENSE")


def pack(out, tree, info, files):
    """The files of the tree and those of dist-info, with their record."""
    record = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        def put(name, data, mode):
            entry = zipfile.ZipInfo(name, WHEN)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            z.writestr(entry, data)

        for name, data, mode in files:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            put(name, data, mode)
        put(f"{info}/RECORD", "".join(record + [f"{info}/RECORD,,\n"]).encode(), 0o644)


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1]).resolve()
    out_dir = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else build)
    out_dir.mkdir(parents=True, exist_ok=True)
    name, version, about = metadata()
    tag = f"py3-none-manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"
    info = f"{name}-{version}.dist-info"
    with tempfile.TemporaryDirectory() as tmp:
        tree = pathlib.Path(tmp)
        fill(tree, build)
        files = [(str(f.relative_to(tree)), f.read_bytes(), 0o755 if f.parent.name == "bin" else 0o644) for f in sorted(tree.rglob("*")) if f.is_file()]
    files += [(f"{info}/METADATA", about.encode(), 0o644),
              (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: deepserve\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
              (f"{info}/entry_points.txt", b"[console_scripts]\ndeepserve = deepserve._program:main\n", 0o644)]
    out = out_dir / f"{name}-{version}-{tag}.whl"
    pack(out, tree, info, files)
    print(out)


if __name__ == "__main__":
    main()
