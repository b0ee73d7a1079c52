"""docs/structured-output.md: its table of keywords is what the program does, and has every keyword that the program knows; its example runs."""
import json
import re


def rows(root):
    text = (root / "docs/structured-output.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \| `(\{.*?\})` \| (held|refused) \|", text, re.M)


def test_keywords(deepserve, root, tmp_path):
    table = rows(root)
    known = set(re.findall(r'^    \{ "([^"]+)", [A-Z]+, (?:true|false) \}', (root / "src/schema/check.c").read_text(encoding="utf-8"), re.M))
    assert len(known) > 50 and known == {keyword for keyword, _, _ in table}
    for keyword, schema, verdict in table:
        assert f'"{keyword}"' in schema and json.loads(schema)
        (tmp_path / "s.json").write_text(schema)
        done = deepserve("grammar", "compile", "--json-schema", tmp_path / "s.json")
        assert done.returncode == (verdict == "refused"), (keyword, done)
        if verdict == "refused":
            assert keyword.encode() in done.stderr, done


def test_example(root):
    """It's the README's, which test_docs_server.py runs."""
    example = re.search(r"```python\n(.*?)```", (root / "docs/structured-output.md").read_text(encoding="utf-8"), re.S)[1]
    assert len(example.splitlines()) == 5 and example in (root / "README.md").read_text(encoding="utf-8")
