"""What README.md and docs/server.md tell a newcomer to type works on the demonstration model."""
import importlib
import importlib.util
import re
import subprocess
import sys

import pytest

from server_lib import PATIENCE, Server


@pytest.fixture(scope="module")
def server(program, root):
    with Server(program, root / "models/demo") as s:
        yield s


def blocks(root, kind):
    for name in ("README.md", "docs/server.md"):
        for text in re.findall(rf"^```{kind}\n(.*?)^```$", (root / name).read_text(encoding="utf-8"), re.M | re.S):
            if "127.0.0.1:8000" in text:
                yield text


def test_curl(server, root):
    found = [line for text in blocks(root, "sh") for line in text.splitlines() if line.startswith("curl ")]
    assert len(found) == 2
    for line in found:
        done = subprocess.run(line.replace("http://127.0.0.1:8000", server.url), shell=True, capture_output=True, text=True, timeout=2 * PATIENCE)
        assert done.returncode == 0 and done.stdout.endswith("data: [DONE]\n\n"), done


def test_python(server, root):
    found = list(blocks(root, "python"))
    assert len(found) == 4
    for text in found:
        if not importlib.util.find_spec(text.split()[1].strip(",")):
            pytest.skip(f"{text.split()[1]} isn't installed")
        done = subprocess.run([sys.executable, "-c", text.replace("http://127.0.0.1:8000", server.url)], capture_output=True, text=True, timeout=2 * PATIENCE)
        assert done.returncode == 0 and done.stdout.strip(), done


def test_members(program, root):
    """The table of request members is the one that the program has; every member that the official SDKs can send is in it."""
    table = subprocess.run([program, "render", "--members"], capture_output=True, text=True, check=True).stdout
    assert table in (root / "docs/server.md").read_text(encoding="utf-8"), "docs/server.md: put the output of `deepserve render --members` there"
    known = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    openai, anthropic = (pytest.importorskip(name, reason=f"{name} isn't installed (tests/requirements.txt)") for name in ("openai", "anthropic"))
    for module, params in (("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming"), ("openai.types.completion_create_params", "CompletionCreateParamsStreaming"),
                           ("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming"), ("anthropic.types.message_create_params", "MessageCreateParamsStreaming"),
                           ("anthropic.types.beta.message_create_params", "MessageCreateParamsStreaming")):
        fields = set(getattr(importlib.import_module(module), params).__annotations__)
        assert fields <= known, (module, fields - known)
