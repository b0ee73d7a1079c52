"""Prompts of `deepserve render` against deepseek-recipe (PyPI), on generated conversations: the same text, the same control tokens.

Every intended difference is named below and explained in docs/recipe-differences.md; anything else fails."""
import collections
import json

import pytest

import peer_requests

recipe = pytest.importorskip("deepseek_recipe", reason="deepseek-recipe isn't installed")

EACH = 3500  # conversations for each protocol and encoding; 21,000 in all
CLASSES = {"chat": recipe.ChatCompletionRequest, "responses": recipe.ResponsesRequest, "messages": recipe.MessagesRequest}
ONLY_PEER_REFUSES = ("Thinking mode does not support this tool_choice", "Function call should not be used with prefix",
                     "response_format json_object should not be used with prefix")


def as_peer_sees_it(body, protocol, v4):
    """The same conversation, where the two sides give a role another meaning (differences 1, 2)."""
    body = json.loads(json.dumps(body))
    items = body.get("messages" if protocol != "responses" else "input")
    if not isinstance(items, list):
        return body
    if protocol == "messages":
        for m in items:
            if m["role"] == "system" and v4:
                m.update(role="user", content=f"<system-reminder>\n{m['content']}\n</system-reminder>")
        if body.get("tool_choice") == {"type": "any"}:
            del body["tool_choice"]
        return body
    head, out = True, []
    for m in items:
        if m.get("role") == "developer" and protocol == "responses":
            m["role"] = "system"
        head = head and m.get("role") == "system"
        if v4 and not head and m.get("role") == "system":
            if not m["content"]:
                continue
            m["role"] = "user"
        out.append(m)
    body["messages" if protocol == "chat" else "input"] = out
    return body


def without_old_reasoning(runs):
    """<｜Assistant｜><think>…</think> as <｜Assistant｜></think>: difference 4."""
    out, i = [], 0
    while i < len(runs):
        if runs[i].get("control") == "<think>" and i and runs[i - 1].get("control") == "<｜Assistant｜>":
            j = i + 1
            while j < len(runs) and "control" not in runs[j]:
                j += 1
            if j < len(runs) and runs[j].get("control") == "</think>":
                i = j
                continue
        out.append(runs[i])
        i += 1
    return out


def text_of(runs):
    return "".join(next(iter(r.values())) for r in runs)


def control_of(runs):
    return [r["control"] for r in runs if "control" in r]


def peer(body, protocol, encoding):
    try:
        conversation = CLASSES[protocol](json.dumps(body, ensure_ascii=False)).convert(recipe.ConversionOptions()).conversation
    except (recipe.ConversionError, ValueError) as e:
        return None, getattr(e, "body", str(e))
    rendered = encoding.render_conversation(conversation)
    return rendered.prompt, [rendered.prompt[a:b] for a, b in rendered.special_ranges]


def normal(text):
    """The peer leaves out the empty line of a call without parameters in V4 (difference 5)."""
    return text.replace('">\n\n</｜DSML｜invoke>', '">\n</｜DSML｜invoke>')


@pytest.mark.parametrize("v4", [False, True], ids=["v4.1", "v4"])
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_prompts_equal(deepserve, protocol, v4):
    bodies = list(peer_requests.bodies(protocol, v4, EACH))
    for b in bodies:
        if protocol == "messages" and b.get("tool_choice") == {"type": "any"}:
            del b["tool_choice"]
    lines = "\n".join(json.dumps(b, ensure_ascii=False) for b in bodies).encode()
    done = deepserve("render", "--jsonl", "--protocol", protocol, "--encoding", "v4" if v4 else "v4.1", "--set", "recipe_call_order=true", stdin=lines,
                     timeout=240)
    ours = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    assert len(ours) == EACH, done.stderr
    encoding = recipe.DeepseekV4Encoding() if v4 else recipe.DeepseekV41Encoding()
    count = collections.Counter()
    for body, mine in zip(bodies, ours):
        prompt, control = peer(as_peer_sees_it(body, protocol, v4), protocol, encoding)
        if "error" in mine:
            assert prompt is None, (mine["error"], body)
            count["both refuse"] += 1
            continue
        if prompt is None:
            assert any(why in control for why in ONLY_PEER_REFUSES), (control, body)
            count["only the peer refuses"] += 1
            continue
        runs = json.loads(json.dumps(mine["runs"]).replace("deepseek_image", "image"))
        if normal(text_of(runs)) == normal(prompt):
            assert control_of(runs) == control, body
            count["equal"] += 1
            continue
        assert not body.get("tools") or body.get("tool_choice") in ("none", {"type": "none"}), (body, text_of(runs), prompt)
        assert normal(text_of(without_old_reasoning(runs))) == normal(prompt), (body, text_of(runs), prompt)
        count["old reasoning"] += 1
    print(protocol, "v4" if v4 else "v4.1", dict(count))
    assert count["equal"] > EACH * 0.8
