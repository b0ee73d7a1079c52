#!/usr/bin/env python3
"""Checks of the tree that no compiler makes. Each is one test case; `tests/run.py` counts them.

  tools/check.py [--tap]      exit status 1 if a check failed
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 1500

# What a folder of src/ may include besides itself; every folder may include <ds/….h>. Some rows are of rooms that are to come.
MAY_SEE = {
    "base": set(),
    "format": {"base"},
    "kern": {"base", "format"},
    "model": {"base", "format", "kern", "kv", "parallel"},
    "kv": {"base"},
    "policy": {"base"},
    "gen": {"base"},
    "token": {"base"},
    "schema": {"base"},
    "grammar": {"base", "token", "schema"},
    "recipe": {"base", "token", "schema"},
    "constrain": {"base", "token", "grammar", "recipe"},
    "reply": {"base", "schema", "recipe"},
    "image": {"base", "format", "recipe"},
    "net": {"base"},
    "yaml": {"base"},
    "engine": {"base", "format", "kern", "model", "kv", "parallel", "policy"},
    "kvstore": {"base", "kv", "net"},
    "kvlink": {"base", "kv", "engine"},
    "parallel": {"base", "net", "policy"},
    "coord": {"base", "net", "policy"},
    "cluster": {"base", "kv", "net", "policy"},
    "server": {"base", "constrain", "recipe", "reply", "image", "policy"},
    "sim": {"base", "kv", "loadgen", "policy", "yaml"},
    "loadgen": {"base"},
    "kernbench": {"base", "format", "kern", "kv"},
}
MAY_SEE["role"] = set(MAY_SEE)
MAY_SEE["cli"] = set(MAY_SEE)

# Only the program's own folder reads the environment, ends the process or prints results.
FORBIDDEN = re.compile(r"(?<![\w.>])(getenv|secure_getenv|setenv|putenv|exit|_exit|_Exit|quick_exit|abort|printf|vprintf|puts|putchar|perror)\s*\(|\bstdout\b|\bstderr\b")


def tree():
    """All files of the repository: tracked and new ones, without ignored ones; without git, whatever lies there except build products."""
    try:
        done = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
        if done.returncode == 0:
            return sorted({p for p in done.stdout.decode().split("\0") if p and (ROOT / p).is_file()})
    except OSError:
        pass
    found = [p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file()]
    return sorted(str(p) for p in found if not re.match(r"(build|\.git$|\.venv$)", p.parts[0]) and "__pycache__" not in p.parts)


ALL = tree()


def files(*patterns):
    """"*.c" is any such file, "src/*.c" any in or under src."""
    return [p for p in ALL if any(fnmatch.fnmatch(p, pattern) for pattern in patterns)]


def text(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def code_only(source):
    """Comments and literals become spaces; lines stay."""
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", blank, source, flags=re.S)


def line_of(source, at):
    return source.count("\n", 0, at) + 1


def include_direction():
    bad = []
    for path in files("src/*.c", "src/*.h", "src/*.cu"):
        folder = path.split("/")[1]
        if folder not in MAY_SEE:
            bad.append(f"{path}: folder {folder} has no place in tools/check.py")
            continue
        source = text(path)
        for m in re.finditer(r'^\s*#\s*include\s*["<]([^">]+)[">]', source, re.M):
            other = m.group(1).split("/")[0]
            where = f"{path}:{line_of(source, m.start())}"
            if m.group(1).startswith("../"):
                bad.append(f"{where}: includes are written relative to src")
            elif "/" in m.group(1) and other != folder and other in MAY_SEE and other not in MAY_SEE[folder]:
                bad.append(f"{where}: {folder} may not include {m.group(1)}")
            elif m.group(1).endswith("_internal.h") and "/" in m.group(1) and other != folder and other in MAY_SEE:
                bad.append(f"{where}: {m.group(1)} is for its own folder")
            elif m.group(1).endswith(".c"):
                bad.append(f"{where}: includes a source file")
    for path in files("tests/*.c", "tests/*.h", "include/*.h"):
        source = text(path)
        for m in re.finditer(r'^\s*#\s*include\s*["<]([^">]+)[">]', source, re.M):
            where = f"{path}:{line_of(source, m.start())}"
            if m.group(1).endswith(".c"):
                bad.append(f"{where}: includes a source file")
            if path.startswith("include/") and m.group(1).split("/")[0] in MAY_SEE:
                bad.append(f"{where}: an installed header includes {m.group(1)}")
    return bad


def formatting():
    """The program's version decides the layout: Debian 12 has 14. Another version is skipped, not argued with."""
    try:
        version = subprocess.run(["clang-format", "--version"], stdout=subprocess.PIPE, text=True).stdout
    except OSError:
        return "SKIP clang-format isn't installed"
    if not re.search(r"version 14\.", version):
        return f"SKIP needs clang-format 14, this is {version.strip()}"
    sources = files("*.c", "*.h")
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *sources], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return []
    wrong = sorted(set(re.findall(r"^([^:\s]+):\d+:\d+: error:", done.stdout, re.M)))
    return [f"{p}: run `make format`" for p in wrong] or [done.stdout]


def docs_name_files():
    """A path in backticks in a document exists: relative to the document, to the root, or (for code) to src or include."""
    known = {"src", "include", "tests", "tools", "docs", "fuzz", "bench", "models", "reference", "python", "web", ".ci"}
    bad = []
    for path in files("*.md"):
        source = text(path)
        here = (ROOT / path).parent
        for m in re.finditer(r"`([^`\n]+)`|\]\(([^)\s#]+)(?:#[^)]*)?\)", re.sub(r"^```.*?^```", blank, source, flags=re.M | re.S)):
            name = (m.group(1) or m.group(2)).strip()
            if re.search(r"[\s*?<>{}$…|=,]|://|^/|^-|\.\.\.|NAME|TARGET", name):
                continue
            name = re.sub(r":\d+(-\d+)?$", "", name).rstrip("/")
            first = name.split("/")[0]
            if m.group(1) and (first not in known or "/" not in name):
                continue
            if name.split("/")[0].startswith("build"):
                continue
            if not any((base / name).exists() for base in (here, ROOT, ROOT / "src", ROOT / "include")):
                bad.append(f"{path}:{line_of(source, m.start())}: {name} doesn't exist")
    return bad


def docs_name_symbols():
    """A pair `symbol` (`file`) in a document: the file has that name in it."""
    bad = []
    for path in files("*.md"):
        source = re.sub(r"^```.*?^```", blank, text(path), flags=re.M | re.S)
        for m in re.finditer(r"`(\w+)(?:\(\))?` \(`([\w./-]+\.\w+)`\)", source):
            symbol, name = m.groups()
            found = [base / name for base in ((ROOT / path).parent, ROOT, ROOT / "src", ROOT / "include") if (base / name).is_file()]
            if found and not re.search(rf"\b{symbol}\b", text(found[0])):
                bad.append(f"{path}:{line_of(source, m.start())}: {name} has no {symbol}")
    return bad


PROSE = 120


def prose_width():
    """Lines of prose end at PROSE columns: documents outside of tables and code, and block comments."""
    bad = []
    for path in files("*.md"):
        if path == "models/demo/README.md":  # written by reference/eval/card.py
            continue
        source = re.sub(r"^```.*?^```", blank, text(path), flags=re.M | re.S)
        for i, line in enumerate(source.split("\n"), 1):
            if len(line) > PROSE and not line.lstrip().startswith(("|", "- `")) and not line.startswith("    ") and "](" not in line and " " in line.strip()[:PROSE]:
                bad.append(f"{path}:{i}: {len(line)} columns")
    for path in files("*.c", "*.h", "*.cu"):
        for i, line in enumerate(text(path).split("\n"), 1):
            if len(line) > PROSE and re.match(r"(/\*| \*) ", line):
                bad.append(f"{path}:{i}: {len(line)} columns")
    return bad


def file_length():
    return [f"{p}: {n} lines; split at {MAX_LINES}" for p in files("*.c", "*.h", "*.cu", "*.py", "*.sh") if (n := text(p).count("\n")) >= MAX_LINES]


def quiet_libraries():
    bad = []
    for path in files("src/*.c", "src/*.h", "src/*.cu"):
        if path.startswith("src/cli/"):
            continue
        source = code_only(text(path))
        for m in FORBIDDEN.finditer(source):
            bad.append(f"{path}:{line_of(source, m.start())}: {m.group(0).strip('( ')} outside src/cli")
    return bad


def kernels_wait():
    """Every CUDA kernel waits for those in front (launch in src/kern/cuda/common.cuh)."""
    bad = []
    for path in files("src/kern/cuda/*.cu"):
        source = code_only(text(path))
        at = [m.start() for m in re.finditer(r"\b__global__\b[^;{]*\{", source)] + [len(source)]
        bad += [f"{path}:{line_of(source, a)}: never calls after_others" for a, b in zip(at, at[1:]) if "after_others();" not in source[a:b]]
    return bad


def folder_readmes():
    folders = {"/".join(p.split("/")[:2]) for p in files("src/*.c", "src/*.h")}
    return [f"{d}: has no README.md" for d in sorted(folders) if not (ROOT / d / "README.md").is_file()]


def readme_commands():
    """What README and .ci/run tell people to type is in the Makefile."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", text("Makefile"), re.M))
    bad = []
    for path in [p for p in ["README.md", ".ci/run", *files("docs/*.md", "fuzz/*.md")] if (ROOT / p).is_file()]:
        source = text(path)
        quoted = [m.group(1) for m in re.finditer(r"`make ([a-z][a-z-]*)", source)] + re.findall(r"^\s*make ([a-z][a-z-]*)", source, re.M)
        bad += [f"{path}: make {t} is no target" for t in sorted(set(quoted) - targets)]
    return bad


def unfinished():
    """No notes to ourselves, no machine's own paths, in what is released."""
    words = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|/(?:wo" r"rk|ho" r"me|ro" r"ot)/")
    bad = []
    for path in files("*.c", "*.h", "*.cu", "*.py", "*.sh", "*.md", "*.build", "Makefile", ".ci/run"):
        source = text(path)
        bad += [f"{path}:{line_of(source, m.start())}: {m.group(0)}" for m in words.finditer(source)]
    return bad


CHECKS = [
    ("include direction", include_direction),
    ("format", formatting),
    ("documents name existing files", docs_name_files),
    ("documents name symbols where they are", docs_name_symbols),
    ("prose ends at 120 columns", prose_width),
    ("file length", file_length),
    ("libraries neither print nor exit nor read the environment", quiet_libraries),
    ("every CUDA kernel waits for those in front", kernels_wait),
    ("every source folder has a README", folder_readmes),
    ("documented make targets exist", readme_commands),
    ("nothing unfinished, no machine paths", unfinished),
]


def main():
    failed = False
    print(f"1..{len(CHECKS)}")
    for i, (name, check) in enumerate(CHECKS, 1):
        result = check()
        if isinstance(result, str):
            print(f"ok {i} - {name} # {result}")
            continue
        print(f"{'not ok' if result else 'ok'} {i} - {name}")
        for line in result:
            print(f"#   {line}")
        failed = failed or bool(result)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
