"""deepserve grammar: the command's forms, and languages against judges of other make."""
import json
import random
import re

import pytest

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema isn't installed")


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
    (tmp_path / "g.lark").write_text('start: /a+/ "b"i')
    assert grammar("match", "--lark", tmp_path / "g.lark", stdin=b"aaB")["match"]
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


# schema, texts that are in the language, texts that aren't
SCHEMAS = [
    ({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"]},['{"a": "x"}','{"a":"x","b":3}','{"a": "x", "b": -12}','{\n  "a": "x\\u00e9",\n  "b": 0\n}'],['{"b":3}','{"a":1}','{"a":"x","a":"y"}','{"a":"\\ud800"}']),
    ({"enum":["a",1,None,{"x":[1,2]}]},['"a"','1','null','{"x":[1,2]}'],['2','"b"']),
    ({"const":"x\n\""},[json.dumps("x\n\"")],['"x"']),
    ({"type":"array","items":{"type":"integer","minimum":5,"maximum":12},"minItems":2,"maxItems":3},['[5,12]','[5, 6, 7]'],['[5]','[4,5]','[13,5]','[5,5,5,5]']),
    ({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":False},['[null,true]','[]','[null]'],['[true]','[null,true,1]']),
    ({"minimum":5},['5','"a"','null','{"q":[1]}','100','5.5'],['4','-5']),
    ({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1},['0.5','0.001'],['0','1','0.0','1.0']),
    ({"type":"number","minimum":-1.5,"maximum":2.5},['0','-1','2','-0.5','1.25'],['-2','3','2.75','-1.75']),
    ({"type":"integer","multipleOf":7},['0','7','-14','700'],['1','8']),
    ({"type":"integer","multipleOf":5,"minimum":3,"maximum":22},['5','20'],['0','25','4']),
    ({"type":"string","minLength":2,"maxLength":4},['"ab"','"\\n\\n"','"éééé"'],['"a"','"abcde"']),
    ({"type":"string","pattern":"^a+b?$"},['"aab"','"a"'],['"b"','"ba"']),
    ({"type":"string","pattern":"[0-9]"},['"x1y"'],['"x"']),
    ({"type":"string","pattern":"^[^a]\"\\\\$"},['"b\\"\\\\"'],['"a\\"\\\\"']),
    ({"anyOf":[{"type":"string"},{"type":"null"}]},['"a"','null'],['1']),
    ({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":3},"b":{"type":"string"}}}]},['{"a":3}','{"a":5,"b":"x"}'],['{"a":2}','{"b":"x"}']),
    ({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":False}},"$ref":"#/$defs/n"},['{"v":1,"next":null}','{"v":1,"next":{"v":2,"next":{"v":3,"next":null}}}'],['{"v":1}']),
    ({"type":"object","properties":{"ab":{"type":"integer"},"abc":{"type":"integer"}},"additionalProperties":{"type":"string"}},['{"ab":1}','{"ab":1,"x":"y"}','{"abd":"x","a":"","":"q"}'],['{"ab":"x"}','{"x":1}','{"abc":"a"}']),
    ({"type":"object","patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":False},['{"x-a":1}','{}'],['{"y":1}','{"x-a":"b"}']),
    ({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"]},{"type":"object","properties":{"k":{"const":"b"},"w":{"type":"string"}},"required":["k"]}]},['{"k":"a","v":1}','{"k":"b","w":"x"}'],['{"k":"a"}','{"k":"c"}']),
    ({"type":["integer","null"]},['1','null'],['"a"']),
    ({"type":"object","required":["z"]},['{"z":1}'],['{}']),
    ({},['{"a":[1,2.5e3,{"b":null}]}','true'],['tru','{"a":}']),
]


@pytest.mark.parametrize("schema, members, others", SCHEMAS, ids=range(len(SCHEMAS)))
def test_json_schemas_against_a_validator(grammar, tmp_path, schema, members, others):
    judge = jsonschema.Draft202012Validator(schema)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(schema))
    for text in members:
        assert judge.is_valid(json.loads(text)), text
        assert grammar("match", "--json-schema", path, stdin=text.encode())["match"], text
    for text in others:
        assert not grammar("match", "--json-schema", path, stdin=text.encode())["match"], text
    for text in grammar("sample", "--json-schema", path, "--n", 200):
        assert judge.is_valid(json.loads(text)), text


@pytest.mark.parametrize("form", ["date", "email", "uuid", "ipv4", "ipv6"])
def test_formats_against_a_validator(grammar, tmp_path, form):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"type": "string", "format": form}))
    checker = jsonschema.FormatChecker()
    for text in grammar("sample", "--json-schema", path, "--n", 200):
        assert checker.conforms(json.loads(text), form), text
