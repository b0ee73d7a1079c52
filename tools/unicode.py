#!/usr/bin/env python3
"""Writes the Unicode tables of src/token, from the package unicodedata2 of the version that the table is for.

    pip install unicodedata2==16.0.0 && tools/unicode.py classes     src/token/unicode_classes.h
    pip install unicodedata2==15.0.0 && tools/unicode.py assigned    src/token/unicode_assigned.h

The files are in the tree, so that token ids do not depend on what the build machine has. A package of another version is refused."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLASSES = {"L": "LETTER", "M": "LETTER", "N": "NUMBER", "P": "PUNCT", "S": "PUNCT"}


def space(cp, category):
    """White_Space, which is not a matter of category alone: separators, and these controls."""
    return 9 <= cp <= 13 or cp == 0x85 or category in ("Zs", "Zl", "Zp")


def runs(of):
    """[(first, last, value)] of equal neighbours, without those of no value."""
    out = []
    for cp in range(0x110000):
        value = of(cp)
        if out and out[-1][2] == value and out[-1][1] == cp - 1:
            out[-1][1] = cp
        elif value:
            out.append([cp, cp, value])
    return out


def text(head, entries):
    lines, line = [head, "/* clang-format off */"], ""
    for e in entries:
        if len(line) + len(e) > 150:
            lines.append(line.rstrip())
            line = ""
        line += e + " "
    return "\n".join(lines + [line.rstrip(), "/* clang-format on */"]) + "\n"


def classes(category):
    got = runs(lambda cp: "SPACE" if space(cp, category(chr(cp))) else CLASSES.get(category(chr(cp))[0]))
    return text("/* Written by tools/unicode.py: runs of characters of one class, Unicode 16.0. A list of entries for unicode.c. */",
                [f"{{ 0x{a:x}, 0x{b:x}, {c} }}," for a, b, c in got])


def assigned(category):
    got = runs(lambda cp: category(chr(cp)) != "Cn")
    return text("/* Written by tools/unicode.py: runs of assigned characters, Unicode 15.0. A list of entries for unicode.c. */",
                [f"{{ 0x{a:x}, 0x{b:x} }}," for a, b, _ in got])


def main():
    what = {"classes": ("16.0.0", classes), "assigned": ("15.0.0", assigned)}
    if len(sys.argv) != 2 or sys.argv[1] not in what:
        sys.exit(__doc__)
    version, make = what[sys.argv[1]]
    import unicodedata2
    if unicodedata2.unidata_version != version:
        sys.exit(f"unicode.py: unicodedata2 has Unicode {unicodedata2.unidata_version}; this table is of {version}")
    (ROOT / "src/token" / f"unicode_{sys.argv[1]}.h").write_text(make(unicodedata2.category))


if __name__ == "__main__":
    main()
