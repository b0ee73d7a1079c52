#!/usr/bin/env python3
"""The web page as a C array, with the content security policy that lets nothing else run: the build calls this.

  web/embed.py index.html page.c
"""
import base64
import hashlib
import pathlib
import re
import sys


def hashes(html, tag):
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
    if len(bodies) != html.count(f"<{tag}"):
        sys.exit(f"embed: <{tag}> takes no attributes here, its text is what the policy allows")
    return " ".join("'sha256-" + base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() + "'" for b in bodies)


def policy(html):
    markup = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.S)
    for wrong, what in [(r"\s(style|on\w+)=", "an attribute that the policy forbids"), (r"(?:src|href|action)=(?!\"#|\"data:,)", "something to load")]:
        found = re.search(wrong, markup)
        if found:
            sys.exit(f"embed: {what}: {markup[found.start():found.start() + 60].strip()}")
    return (f"default-src 'none'; script-src {hashes(html, 'script')}; style-src {hashes(html, 'style')}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


def literal(text):
    """C string literals, one a line; bytes outside ASCII in octal, which never runs on into the next character."""
    lines = []
    for line in text.encode().splitlines(keepends=True):
        out = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in line)
        lines.append(f'    "{out}"')
    return "\n".join(lines)


def main():
    html = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    pathlib.Path(sys.argv[2]).write_text(
        '/* Made from web/index.html by web/embed.py. */\n#include "server/page.h"\n\n'
        f"const char ds_page_html[] =\n{literal(html)};\nconst size_t ds_page_html_bytes = sizeof ds_page_html - 1;\n"
        f"const char ds_page_csp[] =\n{literal(policy(html))};\n")


if __name__ == "__main__":
    main()
