"""What the first users ran into, each case for its kind, against the demonstration model. Where ../shared/cases has the same case, its body is sent too."""
import json

import pytest

from server_lib import Server

STORY = "Story 4. " + "The fox saw a lantern near the river. " * 60 + "Tell me a short story about this."
OFF = {"type": "disabled"}


@pytest.fixture(scope="module")
def server(program, root):
    with Server(program, root / "models/demo") as s:
        yield s


def shared(root, name):
    path = root.parent / "shared/cases" / name
    if not path.exists():
        pytest.skip(f"{path} isn't there")
    return json.loads(path.read_text(encoding="utf-8"))["body"]


def chat(server, **body):
    status, _, answer = server.request("POST", "/v1/chat/completions", {"model": "demo", **body})
    assert status == 200, answer
    return answer


# ---- 09: a seed means reproducible ----


def again(server, **body):
    """The texts of one request made twice, and how many tokens the second found."""
    first, second = chat(server, **body), chat(server, **body)
    return [(c["message"], c["logprobs"]) for c in first["choices"]], [(c["message"], c["logprobs"]) for c in second["choices"]], \
        second["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("how", [{"seed": 7, "temperature": 1}, {"temperature": 0}, {"temperature": 1, "seed": 3, "n": 2}, {"seed": -5, "logprobs": True, "top_logprobs": 2}],
                         ids=["seed", "greedy", "samples", "logprobs"])
def test_reproducible_after_a_hit(server, how):
    text = STORY.replace("Story 4", "Story " + json.dumps(how))  # nobody else's prefix
    cold, hit, cached = again(server, messages=[{"role": "user", "content": text}], thinking=OFF, max_tokens=60, **how)
    assert cold == hit
    assert cached >= 128  # from saved state


def test_reproducible_beside_replays(server):
    """Requests without a seed leave what they like; one with a seed gives what a server gives that has seen nothing."""
    other = {"messages": [{"role": "user", "content": STORY.replace("Story 4", "Story 5")}], "thinking": OFF, "max_tokens": 40}
    for _ in range(3):
        chat(server, **other)
    seeded = chat(server, **other, seed=11, temperature=1)
    salted = chat(server, **other, seed=11, temperature=1, n=1)
    assert seeded["choices"] == salted["choices"]


def test_case_09(server, root):
    cold, hit, cached = again(server, **shared(root, "09-seed-after-prefix-hit.json"))
    assert cold == hit and cached >= 128
