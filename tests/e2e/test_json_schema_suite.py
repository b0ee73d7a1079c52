"""The JSON Schema Test Suite, as the source distribution of the Python package jsonschema carries it. JSON_SCHEMA_SUITE is its folder
`tests` (with draft2020-12 and draft7); without it nothing is tested.

A schema is refused, or each instance must get the verdict of the suite. An instance that is valid and not in the language is *narrower*:
what docs/grammar.md says of constants and numbers. One that isn't valid and is in the language is wrong, and there may be none."""
import collections
import json
import os
import pathlib

import pytest

SUITE = os.environ.get("JSON_SCHEMA_SUITE")
pytestmark = pytest.mark.skipif(not SUITE, reason="JSON_SCHEMA_SUITE isn't set")


@pytest.mark.parametrize("draft", ["draft2020-12", "draft7"])
def test_suite(deepserve, tmp_path, draft):
    files, table, wrong = sorted((pathlib.Path(SUITE) / draft).glob("*.json")), {}, []
    assert files
    path = tmp_path / "s.json"
    for file in files:
        count = table.setdefault(file.stem, collections.Counter())
        for case in json.loads(file.read_text()):
            path.write_text(json.dumps(case["schema"]))
            for test in case["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False).encode(errors="surrogatepass")
                done = deepserve("grammar", "match", "--any-order", "--json-schema", path, stdin=text)
                if done.returncode:
                    assert done.stderr.count(b"\n") <= 2
                    # nothing is in the language: right, if nothing is valid
                    count["right" if b"no text is in the language" in done.stderr and not test["valid"] else "refused"] += 1
                    continue
                got = json.loads(done.stdout)["match"]
                kind = "right" if got == test["valid"] else "narrower" if test["valid"] else "wrong"
                count[kind] += 1
                if kind != "right":
                    wrong.append(f"{kind}: {file.stem}: {case['description']}: {test['description']}: {text.decode()[:80]}")
    total = sum(table.values(), collections.Counter())
    print(f"\n{draft}: {dict(total)}")
    for name, count in table.items():
        print(f"  {name:28} " + "  ".join(f"{k} {count[k]:3}" for k in ("right", "refused", "narrower", "wrong")))
    print("\n".join(wrong))
    assert total["wrong"] == 0
    assert total["right"] > 500
