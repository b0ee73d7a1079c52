#!/usr/bin/env python3
"""What constraints cost an engine: the same prompts without one, with a JSON Schema, a pattern and a grammar, in turns, through
`deepserve generate`. Processor time of the whole program (user and system), and of the wall clock, per token drawn.

  bench/constrained.py --model DIR [--build DIR] [--requests N] [--tokens N] [--temperature T] [--rounds N]

Each kind runs once a round, so that what else the machine does falls on all alike; medians and least of the rounds are shown. No
drafts: of other texts more or fewer would stand. Reading the model and preparing the vocabulary is part of every run; the time of
runs with one token each is taken off."""
import argparse
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
THING = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}, "n": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}},
         "required": ["name", "n", "tags"], "additionalProperties": False}
KINDS = {
    "none": None,
    "json": {"json": {"type": "array", "items": THING, "minItems": 500}},
    "regex": {"regex": "([a-z]{1,12}[ ,.])*"},
    "gbnf": {"grammar": 'root ::= (word " ")+\nword ::= [A-Za-z]{1,12} | "(" root ")"'},
}


def run(args, kind, tokens):
    """Processor and wall seconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for i in range(args.requests):
            line = {"prompt": f"Story {i}: a list of things", "seed": i, "max_tokens": tokens, "temperature": args.temperature}
            f.write(json.dumps({**line, **({"structured_outputs": KINDS[kind]} if KINDS[kind] else {})}) + "\n")
        f.flush()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([args.build / "deepserve", "generate", "--model", args.model, "--input", f.name, "--ignore-eos", "--parallel", "16", "--speculate", "off"],
                              capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = re.search(r"requests in ([\d.]+) s: \d+ prompt tokens, (\d+) new ones", done.stderr)
    if not said or int(said[2]) != args.requests * tokens:
        sys.exit(f"{kind}: {done.stderr[-500:]}{done.stdout[:200]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, float(said[1])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--requests", type=int, default=16)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args()
    long, short = {k: [] for k in KINDS}, {k: [] for k in KINDS}
    for _ in range(args.rounds):
        for kind in KINDS:
            long[kind].append(run(args, kind, args.tokens))
            short[kind].append(run(args, kind, 1))
    n = args.requests * (args.tokens - 1)
    print(f"{args.requests} requests of {args.tokens} tokens, temperature {args.temperature:g}, {args.rounds} rounds; us for a token")
    print("          processor: median     least       wall: median     least")
    first = None
    for kind in KINDS:
        row = []
        for which in (0, 1):
            for of in (statistics.median, min):
                row.append((of(x[which] for x in long[kind]) - of(x[which] for x in short[kind])) / n * 1e6)
        first = first or row
        print(f"{kind:6}" + "".join(f"{x:10.0f} {100 * x / y - 100:+6.1f}%" for x, y in zip(row, first)))


if __name__ == "__main__":
    main()
