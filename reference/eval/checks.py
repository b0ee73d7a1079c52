"""Is a reply right? One function, `passed(check, reply)`, for the kinds of checks in prompts.jsonl; standard library only.

A reply is {"content", "reasoning", "calls": [{"name", "arguments"}], "finish"}. A reply that met the token limit is never right."""

import json
import re

PYTHON_TYPES = dict(string=str, integer=int, number=(int, float), boolean=bool, array=list, object=dict)


def valid(value, schema):
    """The part of JSON Schema that the prompts use: type, properties, required, additionalProperties false, items."""
    kind = schema.get("type")
    if kind and (not isinstance(value, PYTHON_TYPES[kind]) or (kind in ("integer", "number") and isinstance(value, bool))):
        return False
    if kind == "object":
        props = schema.get("properties", {})
        if any(k not in value for k in schema.get("required", ())):
            return False
        if schema.get("additionalProperties") is False and any(k not in props for k in value):
            return False
        return all(valid(v, props.get(k, {})) for k, v in value.items())
    if kind == "array":
        return all(valid(v, schema.get("items", {})) for v in value)
    return True


def read_json(text):
    """The value of a text that is JSON and nothing else; a code fence around it is allowed. ValueError."""
    fence = re.fullmatch(r"\s*```(?:json)?\n(.*)\n```\s*", text, re.S)
    return json.loads(fence.group(1) if fence else text)


def number(text):
    """The last number of a text, None if there is none."""
    found = re.findall(r"-?\d+", text)
    return int(found[-1]) if found else None


def loops(text):
    """The end of the text is one piece of 1 to 60 characters six times or more (20 characters at least)."""
    return re.search(r"(.{1,60}?)\1{5,}$", text[-400:], re.S) is not None and len(text) >= 20


def passed(check, reply):
    kind, text = check["kind"], reply["content"].strip()
    if reply["finish"] != "stop":
        return False
    if "thinking" in check and bool(reply["reasoning"].strip()) != check["thinking"]:
        return False
    if kind == "all":
        return all(re.search(r"(?<!\w)" + re.escape(w) + r"(?!\w)", text, re.I) for w in check["words"])
    if kind == "match":
        return re.search(check["pattern"], text, re.I | re.S) is not None
    if kind == "number":
        return number(text) == check["value"]
    if kind == "larger":
        return re.search(rf"\b{check['value']} is larger|number is {check['value']}\b", text) is not None and f"{check['other']} is larger" not in text
    if kind == "upper":
        return any(c.isalpha() for c in text) and text == text.upper()
    if kind == "story":
        return len(text) > 200 and len(re.findall(r"\b" + re.escape(check["hero"]) + r"\b", text)) >= 2 and not loops(text)
    if kind == "json":
        try:
            return valid(read_json(text), check["schema"])
        except ValueError:
            return False
    if kind == "call":
        return len(reply["calls"]) == 1 and reply["calls"][0]["name"] == check["name"] and same(reply["calls"][0]["arguments"], check["arguments"])
    if kind == "sane":
        return bool(text) and len(text) < 3000 and not loops(text)
    raise ValueError("unknown kind of check: " + kind)


def same(a, b):
    """Equal JSON values; true is not 1."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
