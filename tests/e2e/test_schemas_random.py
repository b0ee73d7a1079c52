"""Random schemas of the keywords that are supported, with random instances: what is in the language is valid for a validator of other make, and masks are what trying every token
says. SCHEMAS is their number: some here, 2,000 in `make nightly`. Instances that are valid and not in the language are counted: docs/grammar.md says what is narrower."""
import collections
import json
import os
import random
import subprocess

import pytest

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema isn't installed (tests/requirements.txt)")
SCHEMAS = int(os.environ.get("SCHEMAS", "200"))
NAMES, TEXTS = ["a", "b", "xa", "yb", "k"], ["", "a", "ab", "abc", "x1", "éé", "a\nb", "\"\\", "0"]
PATTERNS = ["^x", "^y", "[0-9]", "^[ab]+$", "^k$|^y", "b"]


class Maker:
    def __init__(self, rng):
        self.r = rng

    def some(self, choices, most=3):
        return self.r.sample(choices, self.r.randint(0, min(most, len(choices))))

    def constant(self, depth=1):
        r = self.r
        kind = r.randrange(8 if depth else 6)
        if kind < 6:
            return [None, r.random() < .5, r.randint(-3, 9), r.choice(TEXTS), r.choice(TEXTS), r.randint(0, 40) / 4][kind]
        return [self.constant(0) for _ in range(r.randrange(3))] if kind == 6 else {n: self.constant(0) for n in self.some(NAMES)}

    def schema(self, depth):
        r = self.r
        depth, roll = max(depth, 0), r.random()
        if roll < .06:
            return r.choice([True, {}, {"type": r.choice(["string", "integer", "boolean", "null"])}])
        if roll < .16:
            return {"enum": [self.constant() for _ in range(r.randint(1, 4))]}
        if roll < .2:
            return {"const": self.constant()}
        if depth and roll < .34:
            word = r.choice(["anyOf", "anyOf", "oneOf", "allOf"])
            beside = self.schema(depth - 1) if r.random() < .3 else {}
            return {**(beside if isinstance(beside, dict) else {}), word: [self.schema(depth - 1) for _ in range(r.randint(1, 3))]}
        if depth and roll < .37:
            return {"not": self.schema(depth - 1), "type": r.choice(["string", "integer", "array", "object", ["string", "number", "null"]])}
        if depth and roll < .4:
            return {"if": self.schema(depth - 1), "then": self.schema(depth - 1), "else": self.schema(0), **({"type": "object"} if r.random() < .4 else {})}
        kinds = ["string", "number", "integer", "array", "object"] if depth else ["string", "integer", "number", "boolean"]
        kind = r.choice(kinds + ["object"] * 3 if depth else kinds)
        s = getattr(self, "of_" + kind)(depth) if hasattr(self, "of_" + kind) else {}
        if r.random() < .85:
            s["type"] = kind if r.random() < .8 else [kind, "null"]
        return s

    def of_string(self, depth):
        r, s = self.r, {}
        if r.random() < .4:
            s["pattern"] = r.choice(PATTERNS)
        elif r.random() < .6:
            s.update(minLength=r.randint(0, 2), maxLength=r.randint(1, 4))
        return s

    def of_integer(self, depth):
        r, s = self.r, {}
        for word, value in (("minimum", r.randint(-5, 5)), ("maximum", r.randint(0, 30)), ("exclusiveMinimum", r.randint(-5, 5)), ("multipleOf", r.randint(1, 4))):
            if r.random() < .35:
                s[word] = value
        return s

    def of_number(self, depth):
        return {k: v for k, v in self.of_integer(depth).items() if k != "multipleOf"}

    def of_array(self, depth):
        r, s = self.r, {}
        if r.random() < .7:
            s["items"] = self.schema(depth - 1)
        if r.random() < .25:
            s["prefixItems"] = [self.schema(depth - 1) for _ in range(r.randint(1, 2))]
        if r.random() < .35:
            s["contains"] = self.schema(depth - 1)
            if r.random() < .3:
                s["minContains"] = r.randint(0, 3)
            if r.random() < .3:
                s["maxContains"] = r.randint(0, 2)
        for word, value in (("minItems", r.randint(0, 2)), ("maxItems", r.randint(1, 4)), ("uniqueItems", True)):
            if r.random() < .25:
                s[word] = value
        return s

    def of_object(self, depth):
        r, s, depth = self.r, {}, max(depth, 0)
        if r.random() < .85:
            s["properties"] = {n: self.schema(depth - 1) for n in self.some(NAMES, 4)}
        if r.random() < .4:
            s["required"] = self.some(NAMES, 2)
        if r.random() < .4:
            s["additionalProperties"] = r.choice([False, True, self.schema(depth - 1)])
        if r.random() < .2:
            s["patternProperties"] = {p: self.schema(depth - 1) for p in self.some(PATTERNS, 2)}
        if r.random() < .15:
            s["propertyNames"] = r.choice([{"enum": NAMES[:3]}, {"pattern": "^[a-x]"}, {"maxLength": 1}])
        if r.random() < .2:
            s["dependentRequired"] = {n: self.some(NAMES, 2) for n in self.some(NAMES, 2)}
        if r.random() < .15:
            s["dependentSchemas"] = {n: self.of_object(depth - 1) if depth else {} for n in self.some(NAMES, 1)}
        if r.random() < .25:
            test = {"properties": {n: {r.choice(["const", "enum"]): None} for n in self.some(NAMES, 2)}, "required": self.some(NAMES, 1)}
            for n, p in test["properties"].items():
                values = [self.constant(0) for _ in range(2)]
                p.update({w: values if w == "enum" else values[0] for w in p})
                if r.random() < .8:
                    s.setdefault("properties", {})[n] = {"enum": values + [self.constant(0)]}
            s.update({"if": test, "then": self.of_object(depth - 1) if depth else {"required": ["a"]}, "else": self.schema(0)})
        for word, value in (("minProperties", r.randint(0, 2)), ("maxProperties", r.randint(1, 3))):
            if r.random() < .15:
                s[word] = value
        return s

    def instance(self, s, depth=4):
        """One that often fits."""
        r = self.r
        if not isinstance(s, dict) or not depth or r.random() < .08:
            return self.constant()
        if "const" in s:
            return s["const"]
        if "enum" in s:
            return r.choice(s["enum"])
        for word in ("anyOf", "oneOf", "allOf"):
            if word in s and r.random() < .8:
                return self.instance(r.choice(s[word]), depth - 1)
        kind = s.get("type", "object" if "properties" in s else "array" if "items" in s else r.choice(["string", "integer"]))
        kind = r.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            names = set(s.get("required", [])) | set(self.some(list(s.get("properties", {})))) | set(self.some(NAMES, 1) if r.random() < .3 else [])
            return {n: self.instance(s.get("properties", {}).get(n, {}), depth - 1) for n in r.sample(sorted(names), len(names))}
        if kind == "array":
            first = [self.instance(x, depth - 1) for x in s.get("prefixItems", [])]
            more = [self.instance(s.get("contains" if r.random() < .4 else "items", {}), depth - 1) for _ in range(r.randrange(4))]
            return (first + more)[:r.randint(0, 4)]
        return {"string": r.choice(TEXTS), "integer": r.randint(-5, 20), "number": r.choice([r.randint(-5, 20), .5, 2.25]), "boolean": r.random() < .5, "null": None}[kind]


def test_random_schemas(root):
    judge = root / "build/tests/unit/grammar/schema_judge"
    if "DEEPSERVE" in os.environ:
        judge = type(root)(os.environ["DEEPSERVE"]).parent / "tests/unit/grammar/schema_judge"
    if not judge.exists():
        pytest.skip("schema_judge isn't built")
    count = collections.Counter()
    with subprocess.Popen([judge, str(2 if SCHEMAS < 500 else 8)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as p:
        for number in range(SCHEMAS):
            made = Maker(random.Random(number))
            schema = made.schema(3)
            instances = [made.instance(schema) for _ in range(12)]
            texts = [json.dumps(x, ensure_ascii=False, separators=made.r.choice([(",", ":"), (", ", ": ")])) for x in instances]
            p.stdin.write(json.dumps({"schema": schema, "texts": texts, "any_order": number % 2 == 0}) + "\n")
            p.stdin.flush()
            line = p.stdout.readline()
            assert line, f"schema {number} ended the judge: {json.dumps(schema)}"
            said, other = json.loads(line), jsonschema.Draft202012Validator(schema)
            if "refused" in said:
                nothing = "no text is in the language" in said["refused"]
                count["nothing fits" if nothing else "refused"] += 1
                continue
            for x, text, match in zip(instances, texts, said["match"]):
                valid = other.is_valid(x)
                assert valid or not match, f"schema {number}: {json.dumps(schema)} takes {text}"
                count["in" if match else "narrower" if valid else "out"] += 1
            for text in said["samples"]:
                assert other.is_valid(json.loads(text)), f"schema {number}: {json.dumps(schema)} has the member {text}"
                count["samples"] += 1
        p.stdin.close()
        assert p.wait() == 0
    print(dict(count))
    assert count["in"] > SCHEMAS and count["out"] > SCHEMAS and count["refused"] < SCHEMAS / 2
