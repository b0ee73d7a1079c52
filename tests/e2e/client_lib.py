"""Clients that the documentation promises: a test of one says so with @client, and the table in docs/server.md is made of those that ran.

    tests/e2e/client_lib.py --write      runs them with this Python and writes the table; those whose package isn't there keep their row
"""
import importlib.metadata
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "server.md"
MODULES = ("test_server_agents", "test_server_clients", "test_server_libraries", "test_server_sdk")
HEAD = "| client | settings | tested with |\n| --- | --- | --- |\n"
CLIENTS = {}  # name -> (settings, package, test)


def client(name, package, settings):
    """Marks a test: the client's name, the distribution on PyPI that it needs, and what its user sets."""

    def mark(test):
        CLIENTS[name] = (settings, package, test.__name__)
        return test

    return mark


def split():
    """The document before the rows of the table, the rows, and what follows."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin = text.index(HEAD) + len(HEAD)
    rows = re.match(r"(\|.*\n)*", text[begin:]).group()
    return text[:begin], rows.splitlines(), text[begin + len(rows):]


def written():
    """The table as the document has it: name -> (settings, versions)."""
    rows = split()[1]
    return {name: (settings, tested) for name, settings, tested in (re.fullmatch(r"\| (.*?) \| (.*) \| (.*?) \|", row).groups() for row in rows)}


def write(passed):
    old = written()
    rows = []
    for name in sorted(CLIENTS, key=str.lower):
        settings, package, test = CLIENTS[name]
        tested = f"{package} {importlib.metadata.version(package)}" if test in passed else old.get(name, ("", "not yet"))[1]
        rows.append(f"| {name} | {settings} | {tested} |\n")
    before, _, behind = split()
    DOCUMENT.write_text(before + "".join(rows) + behind, encoding="utf-8")


def main():
    files = [str(ROOT / "tests" / "e2e" / f"{m}.py") for m in MODULES]
    out = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rA", *files], capture_output=True, text=True, cwd=ROOT).stdout
    lines = [line.split() for line in out.splitlines() if line.startswith(("PASSED ", "FAILED ", "ERROR "))]
    results = {}
    for kind, where, *_ in lines:
        results.setdefault(where.split("::")[-1].split("[")[0], set()).add(kind)
    import client_lib  # the one that the modules know
    for m in MODULES:
        __import__(m)
    CLIENTS.update(client_lib.CLIENTS)
    write({test for test, kinds in results.items() if kinds == {"PASSED"}})
    print(out[-2000:])


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests")]
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    main()
