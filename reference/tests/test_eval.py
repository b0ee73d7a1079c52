"""The evaluation's checkers, on replies made by hand, and the committed prompts."""
import collections
import hashlib
import json
import os
import sys

import pytest

DEMO = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "models", "demo")
EVAL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "eval")
sys.path.insert(0, EVAL)

import checks


def reply(content, reasoning="", calls=(), finish="stop"):
    return dict(content=content, reasoning=reasoning, calls=list(calls), finish=finish)


SCHEMA = dict(type="object", properties=dict(n=dict(type="integer")), required=["n"], additionalProperties=False)
CALL = dict(kind="call", name="f", arguments=dict(a=1, b=True))
CASES = [
    (dict(kind="all", words=["Oslo"]), reply("It is Oslo."), True), (dict(kind="all", words=["Oslo"]), reply("Oslofjord"), False),
    (dict(kind="all", words=["7"]), reply("17"), False), (dict(kind="all", words=["-l"]), reply("wc -l file"), True), (dict(kind="all", words=["Oslo"]), reply("Oslo", finish="length"), False),
    (dict(kind="match", pattern="^no"), reply("No, it cannot."), True), (dict(kind="match", pattern="is (?-i:He)\\b"), reply("The symbol is HE."), False),
    (dict(kind="number", value=42), reply("40 + 2 = 42."), True), (dict(kind="number", value=40), reply("40 + 2 = 42."), False), (dict(kind="number", value=1), reply("none"), False),
    (dict(kind="number", value=-3), reply("It is -3."), True), (dict(kind="number", value=42, thinking=True), reply("42", "6 * 7"), True), (dict(kind="number", value=42, thinking=True), reply("42"), False),
    (dict(kind="number", value=42, thinking=False), reply("42", "6 * 7"), False),
    (dict(kind="larger", value=9, other=3), reply("9 is larger."), True), (dict(kind="larger", value=9, other=3), reply("The larger number is 9."), True), (dict(kind="larger", value=9, other=3), reply("3 is larger."), False),
    (dict(kind="upper"), reply("A CAT."), True), (dict(kind="upper"), reply("A cat."), False),
    (dict(kind="json", schema=SCHEMA), reply('{"n": 3}'), True), (dict(kind="json", schema=SCHEMA), reply('```json\n{"n": 3}\n```'), True), (dict(kind="json", schema=SCHEMA), reply('{"n": true}'), False),
    (dict(kind="json", schema=SCHEMA), reply('{"n": 3, "m": 1}'), False), (dict(kind="json", schema=SCHEMA), reply("{}"), False), (dict(kind="json", schema=SCHEMA), reply("Here: {}"), False),
    (CALL, reply("", calls=[dict(name="f", arguments=dict(b=True, a=1))]), True), (CALL, reply("", calls=[dict(name="f", arguments=dict(b=1, a=1))]), False), (CALL, reply(""), False),
    (CALL, reply("", calls=[dict(name="g", arguments=dict(a=1, b=True))]), False), (CALL, reply("", calls=[dict(name="f", arguments=dict(a=1, b=True))] * 2), False),
    (dict(kind="story", hero="Ann"), reply("Ann went out. " + "The day was long, and the road went on and on over hills. " * 3 + "Far away the sea was blue and the ships came home. Ann slept. And that was the end of a good day."), True),
    (dict(kind="story", hero="Ann"), reply("Anna went out. " * 20), False), (dict(kind="sane",), reply("Hello!"), True), (dict(kind="sane"), reply("ha " * 50), False), (dict(kind="sane"), reply(""), False),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_checks(case):
    check, got, want = CASES[case]
    assert checks.passed(check, got) is want


def test_prompts_are_complete():
    with open(os.path.join(EVAL, "prompts.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(x) for x in f]
    n = collections.Counter(r["group"] for r in rows)
    assert n == {"greeting": 10, "identity": 10, "facts": 30, "sums": 20, "stories": 20, "json": 20, "tool calls": 30, "multi-turn recall": 10, "long-context recall": 10, "unknowns": 10,
                 "system prompts": 10, "shell": 20, "thinking on/off": 20, "bad input": 14, "short recall": 6}
    assert len({r["id"] for r in rows}) == len(rows)
    length = [len(r["request"]["messages"][0]["content"]) / 4.2 for r in rows if r["group"] == "long-context recall"]
    assert min(length) > 1024 and max(length) > 7500
    assert sum(len(r["request"]["messages"][0]["content"]) > 8000 * 4 for r in rows if r["group"] == "bad input") == 2
    for r in rows:          # every check runs, and an empty reply is never right
        assert not checks.passed(r["check"], reply(""))


def test_card_is_what_the_results_say():
    import card
    results = []
    for name in ("demo", "mechanisms", "training"):
        with open(os.path.join(EVAL, "results", name + ".json"), encoding="utf-8") as f:
            results.append(json.load(f))
    with open(os.path.join(DEMO, "README.md"), encoding="utf-8") as f:
        text = f.read()
    assert card.fill(text, *results) == text
    with pytest.raises(ValueError):
        card.fill("no blocks", *results)
    results[0]["against"] = dict(natural=dict(tokens=9, nats=1.0, other_nats=1.0, perplexity_ratio=1.002))
    assert "natural text 1.0020" in card.fill(text, *results)
    weights = hashlib.sha256()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        with open(os.path.join(DEMO, name), "rb") as f:
            weights.update(f.read())
    assert results[0]["weights_sha256"] == weights.hexdigest()


def test_calibration():
    pytest.importorskip("numpy")
    import run
    assert run.calibration([(1.0, True), (0.0, False)]) == 0
    assert abs(run.calibration([(0.9, True), (0.9, False)]) - 0.4) < 1e-9
    assert run.replay_at(262) == 128 and run.replay_at(261) == 130 and run.replay_at(600) == 384
