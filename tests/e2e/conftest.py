"""Shared by the end-to-end tests: they run the built program as a user would. DEEPSERVE names it (tests/run.py sets it)."""
import atexit
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from limit import pytest_configure, pytest_runtest_protocol  # noqa: E402,F401

os.environ.update(no_proxy="*", NO_PROXY="*")  # every server here is on this machine
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="ds-cache-")  # nothing of the user's is touched
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def program():
    path = pathlib.Path(os.environ.get("DEEPSERVE", ROOT / "build" / "deepserve"))
    if not path.exists():
        pytest.fail(f"{path} isn't built")
    return str(path)


@pytest.fixture(scope="session")
def deepserve(program):
    """deepserve("tokenize", "--help", stdin=b"…") -> CompletedProcess with bytes in stdout and stderr."""

    def run(*args, stdin=b"", timeout=240, **more):
        return subprocess.run([program, *map(str, args)], input=stdin, capture_output=True, timeout=timeout, **more)

    return run
