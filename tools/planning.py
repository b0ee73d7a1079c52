#!/usr/bin/env python3
"""Writes what docs/planning.md shows of its examples: output below `<!-- out: COMMAND [LINES] -->`, pictures in docs/img. --check: says what differs.

    tools/planning.py [--check]          the program is $DEEPSERVE, else build/deepserve
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("DEEPSERVE", ROOT / "build/deepserve")
PICTURES = ("first-token", "store")


def output(*args):
    return subprocess.run([PROGRAM, *args], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.decode()


def block(match):
    words = match[1].split()
    lines = int(words.pop()) if words[-1].isdigit() else None
    text = "".join(output(*words).splitlines(keepends=True)[:lines])
    return f"<!-- out: {match[1]} -->\n```\n{text}```\n"


def main():
    page = ROOT / "docs/planning.md"
    with tempfile.TemporaryDirectory() as folder:
        output("sim", "examples/sim-server.yaml", "--svg", folder)
        wanted = {ROOT / f"docs/img/sim-{p}.svg": (pathlib.Path(folder) / f"{p}.svg").read_text() for p in PICTURES}
    wanted[page] = re.sub(r"<!-- out: (.*?) -->\n```\n.*?```\n", block, page.read_text(), flags=re.S)
    different = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    for p in different:
        print(f"{p.relative_to(ROOT)}: {'not what the examples give: run tools/planning.py' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            p.write_text(wanted[p])
    return 1 if different and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
