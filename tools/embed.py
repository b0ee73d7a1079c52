#!/usr/bin/env python3
"""Files as C arrays, for what the program serves itself.

  tools/embed.py OUT.c NAME=FILE …      const char NAME[] and const size_t NAME_bytes for each
"""
import pathlib
import sys

out = ["/* Made by tools/embed.py. */", "#include <stddef.h>"]
for word in sys.argv[2:]:
    name, path = word.split("=", 1)
    data = pathlib.Path(path).read_bytes()
    lines = [",".join(map(str, data[i:i + 32])) + "," for i in range(0, len(data), 32)]
    out += [f"extern const char {name}[];", f"extern const size_t {name}_bytes;", f"const char {name}[] = {{", *lines, "0 };",
            f"const size_t {name}_bytes = {len(data)};"]
text = "\n".join(out) + "\n"
target = pathlib.Path(sys.argv[1])
target.write_text(text, encoding="ascii")
