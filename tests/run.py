#!/usr/bin/env python3
"""Runs all tests: unit programs and corpora (meson), checks of the tree (tools/check.py), end-to-end tests and those of the reference (pytest).

The last line is "N passed, N failed, N skipped" and counts test cases: those of cmocka, those of pytest, one for each check and for each program
that isn't cmocka's. The exit status is 0 only if something ran and nothing failed.

  tests/run.py [--build DIR] [--only unit|checks|e2e] [--suite NAME] [-k PYTEST_EXPRESSION]
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent
MESON_SECONDS, PYTEST_SECONDS = 3600, 1500  # far more than they need; each test has a limit of its own too: in its meson.build, in tests/limit.py


class Counts:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def say_failed(self, name, output):
        print(f"FAILED {name}")
        for line in output.rstrip().splitlines()[-60:]:
            print(f"    {line}")

    def skip(self, name, reason):
        self.skipped += 1
        print(f"SKIPPED {name}: {reason.strip() or 'no reason given'}")


def count_tap(counts, name, text, status):
    """One program's output. cmocka prints a plan ("1..N") for each group and a line for each case; returns False if there is no TAP in it."""
    plans = [int(n) for n in re.findall(r"^1\.\.(\d+)", text, re.M)]
    if not plans:
        return False
    passed = skipped = failed = 0
    for verdict, rest in re.findall(r"^(not ok|ok) (.*)$", text, re.M):
        if re.search(r"# *skip", rest, re.I):  # cmocka writes "not ok 4 # SKIP name"
            skipped += 1
            print(f"SKIPPED {name}: {rest}")
        elif verdict == "not ok":
            failed += 1
        else:
            passed += 1
    missing = sum(plans) - passed - skipped - failed
    if missing > 0 or (status != 0 and failed == 0):
        failed += max(missing, 1)  # the program ended in the middle, or complains after its last case
    counts.passed += passed
    counts.skipped += skipped
    counts.failed += failed
    if failed:
        counts.say_failed(name, text)
    return True


def run(command, env, seconds, last_word):
    """(status or None after the time-out, output). Whatever the command has started and left behind ends with it."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        p = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        status = None
        try:
            status = p.wait(seconds)
        except subprocess.TimeoutExpired:
            p.send_signal(last_word)
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                pass
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()
        output.seek(0)
        return status, output.read()


def run_meson(counts, build, suite):
    log = build / "meson-logs" / "testlog.json"
    if log.exists():
        log.unlink()
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP")
    for sanitizer in ("ASAN_OPTIONS", "TSAN_OPTIONS"):  # a refused allocation is an answer that we test, not the end
        env.setdefault(sanitizer, "allocator_may_return_null=1")
    command = ["meson", "test", "-C", str(build), "--no-rebuild", "--timeout-multiplier", "6", "--quiet"]
    if suite:
        command += ["--suite", suite]
    status, output = run(command, env, MESON_SECONDS, signal.SIGTERM)
    if status is None or not log.exists():
        counts.failed += 1
        counts.say_failed("meson test", output + (f"\nno end after {MESON_SECONDS} s" if status is None else ""))
    if not log.exists():
        return
    for line in log.read_text(errors="replace").splitlines():
        t = json.loads(line)
        status, text = t["returncode"], (t.get("stdout") or "") + (t.get("stderr") or "")
        name = t["name"]
        if t["result"] == "SKIP" or status == 77:
            counts.skip(name, text.strip().splitlines()[-1] if text.strip() else "")
        elif t["result"] == "TIMEOUT":
            counts.failed += 1
            counts.say_failed(name, text + "\ntimed out")
        elif count_tap(counts, name, text, status):
            pass
        elif status == 0 and t["result"] == "OK":
            counts.passed += 1
        else:
            counts.failed += 1
            counts.say_failed(name, text + f"\nexit status {status}")


def run_checks(counts):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "check.py"), "--tap"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not count_tap(counts, "checks", done.stdout, done.returncode):
        counts.failed += 1
        counts.say_failed("checks", done.stdout)


def find_python():
    """The first interpreter that has pytest and numpy: the test environment's, Debian's, whatever else is called python3."""
    for p in [str(ROOT / ".venv" / "bin" / "python"), "/usr/bin/python3", sys.executable, "python3"]:
        try:
            if subprocess.run([p, "-c", "import pytest, numpy"], stderr=subprocess.DEVNULL).returncode == 0:
                return p
        except OSError:
            pass
    return None


def run_pytest(counts, build, folder, expression):
    if not list(folder.glob("test_*.py")):
        return
    python = find_python()
    if not python:
        counts.failed += 1
        counts.say_failed("end-to-end tests", "no Python with pytest and numpy; `make deps` installs Debian's")
        return
    with tempfile.TemporaryDirectory() as tmp:
        report = pathlib.Path(tmp) / "report.xml"
        env = dict(os.environ, DEEPSERVE=str(build / "deepserve"), PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1")
        env.pop("PYTEST_ADDOPTS", None)
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}", str(folder)]
        if expression:
            command += ["-k", expression]
        status, output = run(command, env, PYTEST_SECONDS, signal.SIGABRT)  # with which pytest prints its stacks
        if not report.exists():
            counts.failed += 1
            counts.say_failed("pytest", output + (f"\nno end after {PYTEST_SECONDS} s" if status is None else f"\nexit status {status}"))
            return
        failed = 0
        for case in ET.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif skipped is not None:  # of a whole file the message says only that
                _, whole_file, reason = (skipped.text or "").partition("Skipped: ")
                counts.skip(name, reason[:-2] if whole_file else skipped.get("message") or "")  # it ends a tuple of strings
            else:
                counts.passed += 1
        if failed == 0 and status not in (0, 5):
            failed = 1
        counts.failed += failed
        if failed:
            print(output)


def main():
    parser = argparse.ArgumentParser(description="run all tests")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--only", choices=["unit", "checks", "e2e"], help="one part")
    parser.add_argument("--suite", help="one suite of unit tests: base, format, …")
    parser.add_argument("-k", dest="expression", help="which end-to-end tests (pytest's -k)")
    args = parser.parse_args()
    build = pathlib.Path(args.build).resolve()
    counts = Counts()

    if args.only in (None, "unit"):
        run_meson(counts, build, args.suite)
    if args.only in (None, "checks") and not args.suite:
        run_checks(counts)
    if args.only in (None, "e2e") and not args.suite:
        for folder in (ROOT / "tests" / "e2e", ROOT / "reference" / "tests"):
            run_pytest(counts, build, folder, args.expression)
    print(f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped", flush=True)
    return 0 if counts.failed == 0 and counts.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
