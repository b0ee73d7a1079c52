"""deepserve grammar: the command's forms, and languages against judges of other make."""
import json
import random
import re

import pytest


@pytest.fixture
def grammar(deepserve):
    def run(verb, *args, stdin=b"", rc=0):
        done = deepserve("grammar", verb, *args, stdin=stdin)
        assert done.returncode == rc, done.stderr
        if rc:
            assert done.stdout == b"" and done.stderr.count(b"\n") <= 2
            return done.stderr.decode()
        lines = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
        return lines if verb == "sample" else lines[0]

    return run


def test_forms(grammar, root, tmp_path):
    tokenizer = root / "models/demo/tokenizer.json"
    assert grammar("match", "--regex", "ab+", stdin=b"abb") == {"match": True, "prefix": True, "at": 3}
    assert grammar("match", "--regex", "ab+", stdin=b"a") == {"match": False, "prefix": True, "at": 1}
    assert grammar("match", "--regex", "ab+", stdin=b"ac") == {"match": False, "prefix": False, "at": 1}
    mask = grammar("mask", "--regex", "[0-9]{0,3}", "--tokenizer", tokenizer, "--prefix", "12")
    assert mask["eos"] and mask["ids"] == sorted(mask["ids"]) and len(mask["ids"]) >= 10
    compiled = grammar("compile", "--regex", "a|b", "--tokenizer", tokenizer, "--json")
    assert set(compiled) == {"compile_ns", "states", "bytes"} and compiled["states"] >= 2
    (tmp_path / "c.json").write_text('["yes", "no"]')
    assert {*grammar("sample", "--choices", tmp_path / "c.json", "--n", 50)} == {"yes", "no"}
    assert grammar("sample", "--regex", ".{20}", "--seed", 5, "--n", 3) == grammar("sample", "--regex", ".{20}", "--seed", 5, "--n", 3)
    assert "back references" in grammar("match", "--regex", r"(a)\1", rc=1)
    assert "leaves the language after 1 of 2 bytes" in grammar("mask", "--regex", "ab", "--tokenizer", tokenizer, "--prefix", "ax", rc=1)
    for wrong in [[], ["--regex", "a", "--choices", "x"], ["--regex", "a", "--n", "0"]]:
        grammar("match", *wrong, rc=2)
    grammar("mask", "--regex", "a", rc=2)
    grammar("bless", "--regex", "a", rc=2)


def random_regex(rng, depth=0):
    kind = rng.randrange(10 if depth < 4 else 4)
    if kind < 3:
        return rng.choice(["a", "b", "c", "é", "\\.", "."])
    if kind == 3:
        return rng.choice(["[ab]", "[^a]", "[a-c\\d]", "\\d", "[^b-cé]", "\\s"])
    if kind < 6:
        return random_regex(rng, depth + 1) + random_regex(rng, depth + 1)
    if kind < 8:
        return "(?:" + random_regex(rng, depth + 1) + "|" + random_regex(rng, depth + 1) + ")"
    return "(" + random_regex(rng, depth + 1) + ")" + rng.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])


def mutated(rng, text):
    chars = list(text)
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(len(chars) + 1)
        chars[at:at + rng.randrange(2)] = rng.choice(["a", "b", "é", ".", "1", " ", ""])
    return "".join(chars)


def test_regexes_as_python_reads_them(grammar):
    rng = random.Random(3)
    for _ in range(25):
        pattern = random_regex(rng)
        compiled = re.compile(pattern, re.ASCII)
        for text in grammar("sample", "--regex", pattern, "--n", 5, "--seed", rng.randrange(1000)):
            assert compiled.fullmatch(text), (pattern, text)
            for other in [mutated(rng, text), text[:-1]]:
                got = grammar("match", "--regex", pattern, stdin=other.encode())
                assert got["match"] == bool(compiled.fullmatch(other)), (pattern, other)
                assert not got["match"] or got["prefix"]
            assert grammar("match", "--regex", pattern, stdin=text[:-1].encode())["prefix"]
