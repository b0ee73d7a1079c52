"""docs/recipe.md shows what the commands print. This runs all of its commands and Python lines again and compares.

  python3 tests/e2e/test_docs_recipe.py --update      writes what they print now into the document

In a ```console block, `$ ` starts a command, `> ` continues it, all else is what it prints. All blocks share one shell, in a folder with links to the
tree. ```pycon blocks share one interpreter."""
import contextlib
import doctest
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "recipe.md"
MARK = "--- end of a command ---"


def blocks(text, kind):
    return list(re.finditer(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S))


def commands(block):
    """[(lines of the command, what it prints)]"""
    out = []
    for line in block.splitlines():
        if line.startswith("$ "):
            out.append(([line[2:]], []))
        elif line.startswith("> "):
            out[-1][0].append(line[2:])
        else:
            out[-1][1].append(line)
    return out


def run(all_commands, program, folder):
    for name in ("tests", "python"):
        (folder / name).symlink_to(ROOT / name)
    script = "".join("\n".join(lines) + f"\necho '{MARK}'\n" for lines, _ in all_commands)
    env = dict(os.environ, PATH=f"{pathlib.Path(program).parent}:{os.environ['PATH']}", LC_ALL="C.UTF-8")
    done = subprocess.run(["bash", "-s"], input=script.encode(), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
    printed = done.stdout.decode().split(MARK + "\n")
    assert len(printed) == len(all_commands) + 1 and printed[-1] == "", printed[-1]
    return [p.splitlines() for p in printed[:-1]]


def session(text, library):
    """Runs the Python lines; [(match, block as it should read)]"""
    os.environ["DEEPSERVE_LIBRARY"] = str(library)
    sys.path.insert(0, str(ROOT / "python"))
    names, out, before = {"__name__": "__main__"}, [], os.getcwd()
    os.chdir(ROOT)
    try:
        for m in blocks(text, "pycon"):
            fresh = ""
            for e in doctest.DocTestParser().get_examples(m.group(1)):
                source = "".join((">>> " if i == 0 else "... ") + line + "\n" for i, line in enumerate(e.source.splitlines()))
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    try:
                        exec(compile(e.source, "docs/recipe.md", "single"), names)
                    except Exception as problem:
                        assert e.exc_msg or "Traceback" in e.want, problem
                        kind = type(problem)
                        print(f"Traceback (most recent call last):\n    …\n{kind.__module__}.{kind.__name__}: {problem}")
                fresh += source + printed.getvalue()
            out.append((m, fresh))
    finally:
        os.chdir(before)
    return out


def test_commands(program, tmp_path):
    want = [c for m in blocks(DOCUMENT.read_text(), "console") for c in commands(m.group(1))]
    assert len(want) > 10
    for (lines, printed), now in zip(want, run(want, program, tmp_path)):
        assert now == printed, "\n".join(lines)


def test_python(program):
    library = pathlib.Path(program).parent / "src" / "libdeepserve-recipe.so"
    found = session(DOCUMENT.read_text(), library)
    assert found
    for m, now in found:
        assert now == m.group(1)


def update(program):
    text = DOCUMENT.read_text()
    found = blocks(text, "console")
    split = [commands(m.group(1)) for m in found]
    with tempfile.TemporaryDirectory() as folder:
        printed = run([c for s in split for c in s], program, pathlib.Path(folder))
    fresh = []
    for m, s in zip(found, split):
        block = ""
        for lines, _ in s:
            block += "$ " + "\n> ".join(lines) + "\n" + "".join(p + "\n" for p in printed.pop(0))
        fresh.append((m, block))
    fresh += session(text, pathlib.Path(program).parent / "src" / "libdeepserve-recipe.so")
    for m, block in sorted(fresh, key=lambda x: -x[0].start()):
        text = text[:m.start(1)] + block + text[m.end(1):]
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    update(os.environ.get("DEEPSERVE", str(ROOT / "build" / "deepserve")))
