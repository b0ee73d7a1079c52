"""The test runner counts what it should, and the checks of the tree find what they are for."""
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").replace(".", "_"), ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text, status, counts",
    [
        ("1..2\nok 1 - a\nok 2 - b\n# ok - tests\n", 0, (2, 0, 0)),
        ("1..2\nok 1 - a\nnot ok 2 - b\n# b.c:1: error: Failure!\n# not ok - tests\n", 1, (1, 1, 0)),
        ("1..3\nok 1 - a\n", -11, (1, 2, 0)),  # crashed in the second case
        ("1..1\nok 1 - a\n", -6, (1, 1, 0)),  # crashed after the last one
        ("1..2\nok 1 - a\nok 2 # SKIP no GPU\n", 0, (1, 0, 1)),
        ("1..2\nok 1 - a\nnot ok 2 # SKIP case\n# ok - tests\n", 0, (1, 0, 1)),  # cmocka 1.1.5
        ("1..1\nok 1 - a\n1..1\nok 1 - b\n", 0, (2, 0, 0)),  # two groups in one program
    ],
)
def test_tap_is_counted(text, status, counts, capsys):
    run = load("tests/run.py")
    c = run.Counts()
    assert run.count_tap(c, "x", text, status)
    assert (c.passed, c.failed, c.skipped) == counts


def test_other_output_is_not_tap():
    run = load("tests/run.py")
    assert not run.count_tap(run.Counts(), "x", "7 inputs\n", 0)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """tree({path: text}) makes a small repository; its checks can then be called."""

    def make(contents):
        for path, text in contents.items():
            p = tmp_path / path
            p.parent.mkdir(parents=True, exist_ok=True)
            p.write_text(text)
        check = load("tools/check.py")
        monkeypatch.setattr(check, "ROOT", tmp_path)
        monkeypatch.setattr(check, "ALL", check.tree())
        return check

    return make


def test_include_direction(tree):
    bad = tree({
        "src/base/a.c": '#include "base/b.h"\n#include "format/c.h"\n',
        "src/recipe/a.c": '#include "base/c.h"\n#include "kern/k.h"\n#include <ds/err.h>\n#include <stdio.h>\n',
        "src/model/a.c": '#include "kern/k_internal.h"\n#include "kern/k.h"\n',
        "src/cli/a.c": '#include "model/m.h"\n',
        "src/new/a.c": "",
        "include/ds/x.h": '#include "base/err.h"\n',
        "tests/unit/t.c": '#include "../../src/base/a.c"\n',
    }).include_direction()
    assert [line.split(" ")[0] for line in bad] == [
        "src/base/a.c:2:", "src/model/a.c:1:", "src/new/a.c:", "src/recipe/a.c:2:", "include/ds/x.h:1:", "tests/unit/t.c:1:",
    ]


def test_quiet_libraries(tree):
    bad = tree({
        "src/base/a.c": '/* printf(1) */ int x = 0; // exit(1)\nconst char *s = "abort()";\nint f(void) { return o->exit(1) + my_exit(2); }\n'
                        "void g(void) { exit(1); }\nvoid h(void) { fprintf(stderr, \"\"); }\nvoid i(void) { puts(getenv(\"A\")); }\n",
        "src/cli/a.c": "int main(void) { exit(1); }\n",
    }).quiet_libraries()
    assert [re.match(r"src/base/a.c:(\d): (\w+)", line).groups() for line in bad] == [("4", "exit"), ("5", "stderr"), ("6", "puts"), ("6", "getenv")]


def test_documents_name_existing_files(tree):
    bad = tree({
        "README.md": "`src/base/a.c` `src/base/gone.c` `base/a.c` [x](docs/y.md) [z](docs/gone.md) `tests/*.c` `x=src/y`\n```\n`src/in/code.c`\n```\n`tools/gone.sh`\n",
        "docs/y.md": "[back](../README.md) https://example.org `src/base/a.c:12`\n",
        "src/base/a.c": "",
    }).docs_name_files()
    assert bad == ["README.md:1: src/base/gone.c doesn't exist", "README.md:1: docs/gone.md doesn't exist", "README.md:5: tools/gone.sh doesn't exist"]


def test_nothing_unfinished(tree):
    bad = tree({"src/a.c": "/* TO" + "DO */\n", "src/b.c": "/* todos */\n"}).unfinished()
    assert bad == ["src/a.c:1: TO" + "DO"]


def test_check_prints_tap():
    done = subprocess.run([sys.executable, ROOT / "tools" / "check.py", "--tap"], stdout=subprocess.PIPE, text=True, timeout=240)
    assert re.match(r"1\.\.\d+\n(not )?ok 1 - ", done.stdout)
