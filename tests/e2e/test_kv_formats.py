"""The formats of docs/formats, read and derived independently (kv_lib.py), against the program's own bytes (tests/unit/kv/kv_dump.c) and golden data."""
import ast
import json
import math
import pathlib
import random
import shutil
import subprocess

import pytest

import kv_lib as kv
from server_lib import Server

@pytest.fixture(scope="module")
def dump(program):
    tool = pathlib.Path(program).parent / "tests" / "unit" / "kv" / "kv_dump"

    def run(*args):
        done = subprocess.run([tool, *map(str, args)], capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.decode().splitlines()]

    return run


def hexed(lines, word):
    return [bytes.fromhex(line[-1]) for line in lines if line[0] == word]


def test_keys(dump, tmp_path):
    rng = random.Random(5)
    images = [(3, 5), (8, 200), (300, 1), (383, 1), (384, 128), (600, 300)]
    for case in range(40):
        identity = {k: rng.randbytes(32) for k in ("model", "tokenizer", "dialect", "layout")}
        domain, salt = (rng.choice([None, "", "team-a", "ä" * 300]) for _ in range(2))
        tokens = [rng.randrange(129280) for _ in range(rng.choice([0, 127, 128, 129, 700, 1024]))]
        spans = [(at, n, rng.randbytes(32)) for at, n in images if case % 2 and at + n <= len(tokens)]
        query = tmp_path / "q.json"
        query.write_text(json.dumps({"identity": {k: v.hex() for k, v in identity.items()}, "domain": domain, "salt": salt, "tokens": tokens,
                                     "spans": [{"pos": at, "n": n, "digest": d.hex()} for at, n, d in spans]}))
        lines = dump("keys", query)
        ns = kv.namespace(identity, domain, salt)
        assert hexed(lines, "ns") == [ns]
        assert hexed(lines, "key") == kv.block_keys(ns, tokens, spans)


def test_the_known_value():
    """The one that stands in tests/unit/kv/test_chain.c."""
    identity = {name: bytes([i + 1]) * 32 for i, name in enumerate(("model", "tokenizer", "dialect", "layout"))}
    keys = kv.block_keys(kv.namespace(identity, "tenant"), [i * 7 - 3 for i in range(256)], [(100, 60, bytes([5]) * 32)])
    assert keys[1].hex() == "3bf665f15cc035d837f2198953ce7da730fb62c6301b7de7fedc9b3c629ea1e9"


@pytest.mark.parametrize("bits,position,token,start,size", [(0, 0, None, None, 64), (5, 70000, 129279, 69872, 1415104), (3, 128, 0, 0, 2**33)])
def test_state_header(dump, bits, position, token, start, size):
    (header,) = hexed(dump("state", bits, position, -1 if token is None else token, 2**32 - 1 if start is None else start, size), "state")
    assert kv.state_header(header) == (bits, position, token, start, size) and len(header) == 64


@pytest.mark.parametrize("config", ["tiny-a", "tiny-b", "tiny-c"])
@pytest.mark.parametrize("mode,n,tokens", [("exact", 140, 3), ("ced", 300, 5), ("ced", 127, 1)])
def test_handoff(dump, root, tmp_path, config, mode, n, tokens):
    """A sequence that leaves an engine: every part of its record, against what is known without the engine."""
    model = root / "tests" / "golden" / config / "model"
    rng = random.Random(n)
    c = json.loads((model / "config.json").read_text())["text_config"]
    prompt = [rng.randrange(c["vocab_size"]) for _ in range(n)]
    query = tmp_path / "ids.json"
    query.write_text(json.dumps(prompt))
    (record,) = hexed(dump("handoff", model, mode, query, tokens), "handoff")
    h = kv.handoff(record)
    assert h["prompt"] == prompt and len(h["output"]) >= tokens and not h["approx"] and h["began"] == (0, 0)
    assert h["position"] == n + len(h["output"]) - 1
    assert h["keys"] == kv.block_keys(h["ns"], prompt + h["output"])[:h["position"] // 128]
    bits, position, token, start, size = kv.state_header(h["state"][:64])
    assert (bits, position, token, size) == (1, h["position"], h["output"][-1], len(h["state"]) - 64)
    # state and block are those that a run over the same tokens leaves
    again = tmp_path / "again.json"
    again.write_text(json.dumps((prompt + h["output"])[:-1]))
    lines = dump("bytes", model, "exact", again)
    layout = kv.Layout(hexed(lines, "layout")[0])
    assert size == layout.slot_bytes
    if mode == "exact":
        mine, theirs = (kv.slot_windows(layout, slot, position) for slot in (h["state"][64:], hexed(lines, "slot")[0]))
        assert all(mine[at] == theirs[at] for at in theirs if at[0] < c["num_hidden_layers"])  # this engine doesn't draft
        last = position % 128
        assert kv.block_records(layout, [h["block"]], last) == kv.block_records(layout, hexed(lines, "block")[-1:], last)
    else:
        assert len(h["block"]) in (0, layout.block_bytes) and start == max(0, n - layout.window)


def rows(path):
    """The rows of an array of bytes: its last dimension."""
    data = path.read_bytes()
    n = int.from_bytes(data[8:10], "little")
    head, body = ast.literal_eval(data[10:10 + n].decode()), data[10 + n:]
    assert data[:8] == b"\x93NUMPY\x01\0" and head["descr"] == "|u1" and not head["fortran_order"]
    size = head["shape"][-1]
    return [body[i:i + size] for i in range(0, len(body), size)]


def golden(root, config, name):
    base = root / "tests" / "golden" / config
    return base, next(c for c in json.loads((base / "golden.json").read_text())["cases"] if c["name"] == name)


@pytest.mark.parametrize("config", ["tiny-a", "tiny-b", "tiny-c"])
@pytest.mark.parametrize("mode,name", [("exact", "n200-exact"), ("ced", "n200-ced"), ("exact", "n17-exact")])
def test_bytes(dump, root, tmp_path, config, mode, name):
    base, case = golden(root, config, name)
    query = tmp_path / "ids.json"
    query.write_text(json.dumps(case["tokens"]))
    lines = dump("bytes", base / "model", mode, query)
    n = len(case["tokens"])
    c = json.loads((base / "model" / "config.json").read_text())["text_config"]
    layout = kv.Layout(hexed(lines, "layout")[0])
    assert hexed(lines, "id") == [layout.id]
    assert (layout.block_tokens, layout.window, layout.mode) == (128, c["sliding_window"], 2 if mode == "exact" else 1)
    assert layout.ring == layout.window + layout.rollback

    # what must be where, from the configuration alone
    D, I, at = c["head_dim"], c["index_head_dim"], 0
    ratios = [c["compress_ratios"][layer] for layer in c["kv_source_layer_ids"]]
    parts = layout.of(kv.MAIN, kv.INDEX)
    for s, ratio in enumerate(ratios):
        for part, record, size in ((parts[2 * s], kv.MAIN, D // 2 + D // 16), (parts[2 * s + 1], kv.INDEX, I // 2 + I // 32)):
            assert part == (record, s, ratio, size, 128 // ratio, at)
            at += 128 // ratio * size
    assert at == layout.block_bytes
    windows = layout.of(kv.WINDOW)
    assert [p.of for p in windows] == list(range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]))
    assert all(p.bytes == D + D // 32 and p.count == layout.ring and p.offset % 64 == 0 for p in windows)
    assert [p.of for p in layout.of(kv.OPEN)] == [s for s, ratio in enumerate(ratios) if ratio == 2]
    slot_parts = layout.of(kv.WINDOW, kv.OPEN, kv.HISTORY)
    assert layout.parts == parts + slot_parts
    for p, following in zip(slot_parts, slot_parts[1:]):
        assert p.offset + p.count * p.bytes <= following.offset
    assert slot_parts[-1].offset + slot_parts[-1].count * slot_parts[-1].bytes <= layout.slot_bytes and layout.slot_bytes % 64 == 0

    # a block taken apart is what the program reads from it, record by record
    blocks, slot = hexed(lines, "block"), hexed(lines, "slot")[0]
    assert len(blocks) == -(-n // 128) and {len(b) for b in blocks} == {layout.block_bytes} and len(slot) == layout.slot_bytes
    mine = kv.block_records(layout, blocks, n)
    theirs = {(int(k), int(s), int(j)): bytes.fromhex(h) for _, k, s, j, h in (line for line in lines if line[0] == "record")}
    assert mine == theirs and len(mine) == sum(2 * (n // r) for r in ratios)

    # and what the reference computed, where another correct program must agree
    compared = 0
    for record, word in ((kv.MAIN, "main"), (kv.INDEX, "index")):
        for item in case.get(word, []):
            want = rows(base / item["file"])
            s = c["kv_source_layer_ids"].index(item["source"])
            for j in set(range(len(want))) - set(item["unstable"]):
                assert mine[record, s, j] == want[j], (word, s, j)
                compared += 1

    # a slot taken apart is what the layers computed
    seen = {(int(layer), int(p)): bytes.fromhex(h) for _, layer, p, h in (line for line in lines if line[0] == "window")}
    valid = kv.slot_windows(layout, slot, n)
    assert len(valid) == len(windows) * min(n, layout.window - 1)
    assert all(record == seen[at] for at, record in valid.items())
    for item in case.get("window", []):
        want = rows(base / item["file"])
        each = len(want) // len(item["layers"])
        for i in set(range(len(want))) - set(item["unstable"]):
            at = item["layers"][i // each], item["first"] + i % each
            if at in valid:
                assert valid[at] == want[i], at
                compared += 1
    for p in layout.of(kv.OPEN):
        k, z = kv.open_group(p, slot, n - 1)
        assert len(k) == D and all(map(math.isfinite, k + z))
    for p in layout.of(kv.HISTORY):
        assert all(kv.history_class(p, slot, n - back) >= 0 for back in range(1, c["engram_max_ngram_size"]))


def test_model_digest(dump, root, tmp_path):
    """Whole and by samples, of copies, and what makes another one."""
    model = tmp_path / "m"
    shutil.copytree(root / "tests" / "golden" / "tiny-a" / "model", model)
    want = kv.model_digest(model)
    whole = lambda directory: hexed(dump("digest", directory, 0, 0), "digest")[0]
    assert whole(model) == whole(root / "tests" / "golden" / "tiny-a" / "model") == want
    demo = root / "models" / "demo"
    assert whole(demo) == kv.model_digest(demo)
    assert hexed(dump("digest", demo, 1 << 20, 1 << 16), "digest") == [kv.model_digest(demo, 1 << 20, 1 << 16)]
    assert hexed(dump("digest", demo, 1 << 20, 1 << 20), "digest") == [kv.model_digest(demo, 1 << 20, 1 << 20)]
    assert hexed(dump("digest", model, 600 << 10, 1 << 16), "digest") == [kv.model_digest(model, 600 << 10, 1 << 16)]


def test_serve_knows_the_model_by_its_content(program, root, tmp_path):
    """The second start remembers the first; so does another path to the same directory, and an unwritable place is no obstacle."""
    demo = root / "models" / "demo"
    (tmp_path / "link").symlink_to(demo)
    want = kv.model_digest(demo).hex()[:16]
    for model, cache, words in ((demo, tmp_path / "new" / "cache", "MiB read)"), (demo, tmp_path / "new" / "cache", "(remembered)"), (tmp_path / "link", tmp_path / "new" / "cache", "(remembered)"),
                                (demo, "/dev/null/cache", "MiB read; not remembered: /dev/null/cache/model-")):
        with Server(program, model, "--cache-dir", cache) as s:
            assert s.stop() == 0
        line = next(line for line in s.log if line.startswith("model: "))
        assert line.startswith(f"model: {want} (") and words in line, line
    (record,) = (tmp_path / "new" / "cache").iterdir()
    assert record.read_text().split()[1] == kv.model_digest(demo).hex()
