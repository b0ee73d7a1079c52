"""The generators: steps that add up, parseable samples, lengths of long recall, passes over the natural text, one seed one text."""
import functools
import json
import os
import random
import re
import sys

import pytest

np = pytest.importorskip("numpy")
DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")
sys.path.insert(0, DATA)

import mix                                          # noqa: E402
import render                                       # noqa: E402
import tasks                                        # noqa: E402
import tokenizer                                    # noqa: E402

tokenizer.natural = functools.lru_cache(None)(tokenizer.natural)       # unpacked once

STEP = re.compile(r"(\d[\d +*/-]*) = (\d+)")


def right(text):
    """Every "a + b - c = d" of a text is true, and there is one."""
    found = STEP.findall(text)
    return found and all(eval(left) == int(value) for left, value in found)


def written(text, value):
    """The digits that are written, last first, are the value's."""
    return int("".join(reversed(re.findall(r"write (\d+)", text)))) == value


@pytest.mark.parametrize("a,b", [(0, 0), (7, 5), (95, 5), (371, 57), (999, 1), (292, 475), (500, 500), (10, 9)])
def test_sums_place_by_place(a, b):
    assert right(tasks.add_steps(a, b)) and written(tasks.add_steps(a, b), a + b)
    big, small = max(a, b), min(a, b)
    assert right(tasks.subtract_steps(big, small)) and written(tasks.subtract_steps(big, small), big - small)
    assert right(tasks.multiply_steps(a, b)) and STEP.findall(tasks.multiply_steps(a, b))[-1][1] == str(a * b)


def test_every_pair_up_to_99():
    for a in range(100):
        for b in range(a + 1):
            assert written(tasks.add_steps(a, b), a + b) and written(tasks.subtract_steps(a, b), a - b)


def test_arithmetic_samples():
    r, sizes = random.Random(1), []
    for _ in range(3000):
        q, steps, answer = tasks.arithmetic(r)
        numbers = [int(x) for x in re.findall(r"\d+", q)]
        sizes.append(max(numbers))
        assert not STEP.search(steps) or right(steps), (q, steps)
        assert not STEP.search(answer) or right(answer), (q, answer)
        if max(numbers) > 10 and not re.search(r"divided|Divide|/", q) and ("+" in q or "plus" in q or "-" in q or "minus" in q):
            assert "So " in answer, (q, answer)     # larger sums are never answered without steps
    assert sum(10 < s <= 20 for s in sizes) > 300 and sum(s > 99 for s in sizes) > 600


def test_division_counts_up():
    for b in range(1, 13):
        for n in range(1, 13):
            steps = tasks.divide_steps(b * n, b)
            counted = [int(x) for x in re.findall(r"\d+", steps[steps.index(":"):steps.index(". ")])]
            assert counted == list(range(b, b * n + 1, b)) and steps.endswith(f"so {n} times {b} is {b * n}."), steps


def test_dates_show_their_steps():
    r, days = random.Random(4), "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
    for _ in range(300):
        q, steps, answer = tasks.dates(r)
        assert answer.startswith(steps + " So "), answer
        if "Today" in q:
            first, n = re.match(r"Today is (\w+)\. Which day is it in (\d+)", q).groups()
            passed = re.findall(r"\w+day", steps)[1:]
            assert passed == [days[(days.index(first) + i) % 7] for i in range(1, int(n) + 1)] and answer.endswith(f"it is {passed[-1]}.")
        else:
            h, m = map(int, re.findall(r"\d+", q))
            assert right(steps) and answer.endswith(f"it is {(h + m - 1) % 12 + 1} o'clock then."), answer


def test_sorting_steps():
    r = random.Random(2)
    for _ in range(200):
        xs = r.sample(range(1000), r.randint(3, 7))
        for down in (False, True):
            t = tasks.sort_steps(xs, down)
            order = [int(x) for x in re.findall(r"est is (\d+)", t)] + [int(re.search(r"; (\d+) is left", t).group(1))]
            assert order == sorted(xs, reverse=down)


def test_json_and_tool_samples_parse():
    r, calls = random.Random(3), 0
    for _ in range(600):
        c = tasks.conversation(r)
        for t in c.get("tools", []):
            json.dumps(t)
            assert t["parameters"]["type"] == "object"
        named = {t["name"]: t["parameters"] for t in c.get("tools", [])}
        for m in c["messages"]:
            for call in m.get("calls", []):
                calls += 1
                assert set(call["arguments"]) <= set(named[call["name"]]["properties"])
        assert any(loss for _, _, loss in render.render(c))
    for _ in range(300):
        c = tasks.extract(r)
        if c["messages"][0]["role"] == "system":
            json.loads(c["messages"][-1]["content"])
    assert calls > 60


@pytest.mark.parametrize("limit", [4096, 8192])
def test_long_recall(limit):
    r, sizes = random.Random(4), []
    for _ in range(60):
        m = tasks.long(r, limit)["messages"]
        text = " ".join(x["content"] for x in m)
        sizes.append(len(text) / 4.2)
        facts = dict(re.findall(r"The (secret number|password|name of the \w+|colour of the door) is (\w+)", m[0]["content"]))
        assert facts
        told = [x["content"] for x in m if x["role"] == "assistant"]
        for kind, value in facts.items():
            assert any(re.search(rf"\b{re.escape(value)}\b", x) for x in told), kind
    assert min(sizes) > 700 and max(sizes) < 1.15 * limit and sum(s > limit / 2 for s in sizes) > 10


def test_natural_text():
    assert abs(mix.natural_tokens() / mix.NATURAL_TOKENS - 1) < 1e-9
    one = [len(d) for w in range(3) for d in mix.natural_documents(w, 3, mix.PASSES - 1)]
    assert abs(sum(one) / 3.78 / mix.NATURAL_TOKENS - 1) < 0.03
    half = list(mix.natural_documents(0, 20, mix.PASSES - 0.5))
    whole = list(mix.natural_documents(0, 20, mix.PASSES - 1))
    assert abs(len(half) / len(whole) - 0.5) < 0.05 and half == whole[-len(half):]
    held = set(mix.natural_documents(0, 1, held_out=True))
    assert held and not held & set(mix.natural_documents(0, 1, mix.PASSES - 1))
    assert len(list(mix.natural_documents(0, 20))) == mix.PASSES * len(whole)


def test_more_natural_text(tmp_path):
    import lzma
    with lzma.open(tmp_path / "own.txt.xz", "wt", encoding="utf-8") as f:
        f.write("A text of its own.\n\n<|doc|>\n\nAnother one.")
    assert "Another one." in list(mix.natural_documents(0, 1, mix.PASSES - 1, str(tmp_path)))
    assert mix.natural_tokens(str(tmp_path)) > mix.natural_tokens()


class Bytes:
    """An encoder that needs no package."""

    def batch(self, conversations):
        out = []
        for runs in conversations:
            ids, loss = [], []
            for control, text, flag in runs:
                x = [1] if control else [3 + b for b in text.encode()]
                ids += x
                loss += [flag] * len(x)
            out.append((ids, loss))
        return out


def test_streams_repeat_and_end_natural_text():
    def chunk(seed):
        s = mix.Stream(Bytes(), 0, 50, seed, 2048)
        return mix.Packer(2, 2048).chunk(s.pool, lambda: s.refill(mix.STAGES["pre"]))
    assert (chunk(1) == chunk(1)).all() and (chunk(1) != chunk(2)).any()
    c = chunk(1)
    assert (c[1] % 2 == 0).all() and (np.diff(c[1].astype(int), axis=1) >= 0)[:, :-1].mean() > 0.99
    s = mix.Stream(Bytes(), 0, 50, 1, 2048, passes=mix.PASSES)     # nothing natural is left
    s.refill(mix.STAGES["pre"])
    assert s.pool and s.made["natural"] == float("inf")


def test_tokenizer_document_keeps_the_released_form():
    d = tokenizer.document({"a": 3}, [], tokenizer.added_tokens())
    assert d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] == r"\p{N}{1,3}" and len(tokenizer.added_tokens()) == 67
