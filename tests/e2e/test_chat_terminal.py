"""chat in a terminal: keys are typed into a pseudo-terminal and its screen output is read."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import pytest

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
PROMPT = b"> "


class Terminal:
    """The program on a terminal of its own, `columns` wide."""

    def __init__(self, program, *args, columns=72):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
            os.execv(program, [program, "chat", *map(str, args)])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.raw = b""

    def wait(self, what, start=None, seconds=60):
        """Reads until `what` is shown behind `start`; what has been shown from there on."""
        start, end = len(self.shown()) if start is None else start, time.monotonic() + seconds
        while what not in self.shown()[start:]:
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                pytest.fail(f"{what!r} isn't shown, but {self.shown()[start:]!r}")
            self.read()
        return self.shown()[start:]

    def read(self):
        try:
            self.raw += os.read(self.fd, 65536)
        except OSError:
            pytest.fail(f"the program ended: {self.shown()!r}")

    def shown(self):
        return ESCAPE.sub(b"", self.raw)

    def type(self, keys, what=PROMPT):
        """Types and waits until `what` is shown; all that was shown since. The prompt counts when it stands behind the echoed line."""
        start = len(self.shown())
        self.press(keys)
        return self.wait(what if what != PROMPT else b"\n" + PROMPT, start)

    def press(self, keys):
        """Types once the line editor has the terminal: what comes before is lost when it takes it."""
        end = time.monotonic() + 60
        while termios.tcgetattr(self.fd)[3] & termios.ICANON and time.monotonic() < end:
            time.sleep(0.002)
        os.write(self.fd, keys)

    def end(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.raw += os.read(self.fd, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.left = termios.tcgetattr(self.fd)
                os.close(self.fd)
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        pytest.fail(f"the program doesn't end: {self.shown()!r}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture(scope="module")
def model(root):
    return root / "models/demo"


def start(program, model, *args, **more):
    t = Terminal(program, "--model", model, "--temperature", "0", *args, **more)
    t.wait(PROMPT, 0)
    return t


def test_a_line_is_edited_and_comes_back(program, model):
    with start(program, model) as t:
        assert b"capital of Japan is Tokyo" in t.type(b"What is the capital of Jappan?\x1b[D\x1b[D\x1b[D\x7f\x05\r")        # left, backspace, end of line
        assert b"Tokyo" in t.type(b"\x1b[A\r")                                                      # up: the line before
        assert b"Tokyo" in t.type("What is the capital of Ja\u00f6\x7fpan?\r".encode())             # a character of two bytes is one
        t.press(b"\x04")
        assert t.end() == 0


def test_messages_of_several_lines(program, model, deepserve, tmp_path):
    """What the model answers is what it answers to that text in one piece."""
    file, texts = tmp_path / "in.jsonl", ["Sort these numbers:\n9, 5, 3", "Repeat after me:\n\nred moon"]
    file.write_text("\n".join(json.dumps({"messages": [{"role": "user", "content": x}], "thinking": {"type": "disabled"}}) for x in texts))
    answers = [json.loads(x)["text"].encode() for x in deepserve("generate", "--model", model, "--input", file, "--temperature", "0", "--json").stdout.splitlines()]
    with start(program, model) as t:
        assert t.type(b"Sort these numbers:\\\r9, 5, 3\r").endswith(b"\n" + answers[0] + b"\n> ")
        t.type(b"/new\r")
        assert t.type(b'"""\rRepeat after me:\r\rred moon\r"""\r').endswith(b"\n" + answers[1] + b"\n> ")


def test_commands(program, model):
    with start(program, model) as t:
        assert b"there is no answer yet" in t.type(b"/rates\r")
        assert b"unknown command: /frob" in t.type(b"/frob\r") and b"unknown command: /new now" in t.type(b"/new now\r")
        shown = t.type(b"Hello!\r")
        assert b"tokens" not in shown, "figures without being asked for"
        assert re.search(rb"tokens, \d+ of them cached, first answer after \d+ ms; \d+ new, \d+/s", t.type(b"/rates\r"))
        assert b"nothing to take back" not in t.type(b"/undo\r") and b"nothing to take back" in t.type(b"/undo\r")
        assert b"a new conversation" in t.type(b"/new\r") and b"/undo" in t.type(b"/help\r")
        assert b"unknown" not in t.type(b"/etc/passwd is a file\r"), "a path is no command"
        t.press(b"/quit\r")
        assert t.end() == 0


@pytest.mark.parametrize("columns", [20, 45])
def test_words_wrap_at_the_edge(program, model, deepserve, columns):
    ask = b"Tell me a story about a fox."
    plain = deepserve("chat", "--model", model, "--temperature", "0", stdin=ask + b"\n").stdout.decode()
    with start(program, model, columns=columns) as t:
        lines = t.type(ask + b"\r").decode().split("\n")[1:-1]
    answer = [x for x in lines if x]
    while answer and answer[0] not in plain:        # the echoed line, which is wider than the screen
        answer.pop(0)
    assert " ".join(answer).split() == plain.split() and max(map(len, answer)) <= columns
    assert all(len(a) + 1 + len(b.split()[0]) > columns for a, b in zip(answer, answer[1:])), "a line ends early"


def test_interrupts(program, model):
    with start(program, model) as t:
        for _ in range(50):                                             # until a Ctrl-C meets an answer that hasn't ended
            begin = len(t.shown())
            t.press(b"Tell me a long story about a dragon.\r")
            t.wait(b"There", begin)
            os.write(t.fd, b"\x03")
            said = t.wait(b"\n" + PROMPT, begin)
            if b"(stopped)" in said:
                break
            t.type(b"Hello!\r")                                         # else it dropped an empty line: it doesn't count as the first of two
        assert said.endswith(b"(stopped)\n" + PROMPT)
        assert b"Ctrl-C again leaves" in t.type(b"half a line\x03")     # a line is dropped
        assert b"Hello" in t.type(b"Hello!\r")                          # and what was typed before doesn't count
        assert b"Ctrl-C again leaves" in t.type(b"\x03")
        t.press(b"\x03")
        assert t.end() == 130


def test_a_signal_leaves_the_terminal_as_it_was(program, model):
    with start(program, model) as t:
        assert not termios.tcgetattr(t.fd)[3] & termios.ICANON      # the line editor has it
        os.kill(t.pid, signal.SIGTERM)
        assert t.end() == 143 and t.left[3] & termios.ICANON and t.left[3] & termios.ECHO


def test_history_of_a_file(program, model, tmp_path):
    file = tmp_path / "history"
    with start(program, model, "--history", file) as t:
        t.type(b"What is the capital of Japan?\r")
        t.press(b"/quit\r")
        assert t.end() == 0
    assert file.stat().st_mode & 0o777 == 0o600
    with start(program, model, "--history", file) as t:
        assert b"Tokyo" in t.type(b"\x1b[A\x1b[A\r")                # /quit, and the line before it
    file.write_bytes(b"no history\n")
    t = Terminal(program, "--model", model, "--history", file)
    assert t.end() == 1 and b"can't be read as a history" in t.shown() and file.read_bytes() == b"no history\n"
