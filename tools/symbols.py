#!/usr/bin/env python3
"""Writes the list of symbols that a shared library gives away (a linker version script): the functions that the headers
given declare, and names given with +. Everything else stays inside.

    tools/symbols.py OUT.map [+name …] HEADER.h …
"""
import pathlib
import re
import sys


def functions(text):
    """Names of functions declared in a header: neither types of functions nor pointers to them, nor what is inline."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    text = re.sub(r"\bstatic inline\b[^;{]*\{.*?^\}", "", text, flags=re.S | re.M)
    text = re.sub(r"\btypedef\b[^;{}]*\([^;{}]*;", "", text)
    return set(re.findall(r"\w[ *]+(ds_\w+)\(", text))


def main(out, *given):
    names = {x[1:] for x in given if x.startswith("+")}
    for path in given:
        if not path.startswith("+"):
            names |= functions(pathlib.Path(path).read_text(encoding="utf-8"))
    pathlib.Path(out).write_text("{\n  global:\n" + "".join(f"    {n};\n" for n in sorted(names)) + "  local: *;\n};\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
