"""A limit for each test of pytest: one that hangs fails, with the stacks of all threads. A conftest.py takes part by importing the two hooks.

TEST_SECONDS sets the limit. A hang in which Python code can't run ends the whole process a minute later, again with stacks.
"""
import faulthandler
import os
import signal
import sys
import threading
import traceback

import pytest

SECONDS = float(os.environ.get("TEST_SECONDS", 300 + float(os.environ.get("CHAOS_SECONDS", 0))))
stderr = 2


def pytest_configure(config):
    global stderr
    stderr = os.dup(2)  # the real one: while a test runs, 2 is captured


def too_long(*_):
    signal.setitimer(signal.ITIMER_REAL, SECONDS)  # what cleans up has a limit too
    faulthandler.dump_traceback_later(2 * SECONDS + 60, exit=True, file=stderr)
    others = [f"thread {t.name}:\n{''.join(traceback.format_stack(sys._current_frames()[t.ident]))}" for t in threading.enumerate()
              if t is not threading.main_thread() and t.ident in sys._current_frames()]
    pytest.fail(f"no end after {SECONDS:g} s\n" + "\n".join(others))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    faulthandler.dump_traceback_later(SECONDS + 60, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
