"""min_tokens of servers' extensions: the model's own end is held back until then; more than the output limit is refused."""
import pytest
from server_lib import Server


@pytest.fixture(scope="module")
def server(program, root):
    with Server(program, root / "tests" / "golden" / "tiny-a" / "model", "--threads", 1) as s:
        yield s


def tokens(server, **more):
    status, _, data = server.request("POST", "/v1/completions", {"model": "m", "prompt": "abc", "max_tokens": 60, **more})
    assert status == 200, data
    return data["usage"]["completion_tokens"]


def test_min_tokens(server):
    seed, n = next((s, n) for s in range(40) for n in [tokens(server, seed=s)] if n < 50)  # the model ends
    assert tokens(server, seed=seed, min_tokens=n + 5) >= n + 5
    assert tokens(server, seed=seed, min_tokens=60) == 60
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    status, _, data = server.request("POST", "/v1/chat/completions", {**chat, "min_tokens": 6})
    assert status == 400 and data["error"]["param"] == "min_tokens" and data["error"]["message"].startswith("min_tokens: 6 is more")
    assert server.request("POST", "/v1/chat/completions", {**chat, "min_tokens": 5})[2]["usage"]["completion_tokens"] == 5
