"""Keys, digests and cached bytes, derived and read from the pages in docs/formats alone."""
import hashlib
import json
import struct
from collections import namedtuple

BLOCK = 128
MAIN, INDEX, WINDOW, OPEN, HISTORY = 1, 2, 3, 4, 5


def sha(data):
    return hashlib.sha256(data).digest()


def H(*fields):
    return sha(b"".join(struct.pack("<Q", len(f)) + f for f in fields))


# ---- block-key.md ----

def optional(text):
    return b"" if text is None else sha(text.encode())


def namespace(identity, domain=None, salt=None):
    return H(b"deepserve block key 1", *(identity[k] for k in ("model", "tokenizer", "dialect", "layout")), optional(domain), optional(salt))


def block_keys(ns, tokens, images=()):
    """images: (position, length, digest), in order."""
    keys, before = [], ns
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        inside = []
        for at, n, digest in images:
            covered = [p for p in range(at, at + n) if start <= p < start + BLOCK]
            if covered:
                inside.append(digest + struct.pack("<II", covered[0] - start, covered[0] - at))
        before = H(before, H(struct.pack(f"<{BLOCK}i", *tokens[start:start + BLOCK]), *inside))
        keys.append(before)
    return keys


def pages(n):
    return [i * (n - 4096) // 15 for i in range(16)]


def file_digest(path, form, pieces):
    return H(form, struct.pack("<Q", path.stat().st_size), *map(sha, pieces))


def whole(path):
    data = path.read_bytes()
    return file_digest(path, b"whole", [data[i:i + 2**20] for i in range(0, len(data), 2**20)])


def sampled(path, whole_tensor, wanted):
    data = path.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    head, body = data[:8 + n], data[8 + n:]
    spans = sorted(tuple(t["data_offsets"]) for name, t in json.loads(head[8:]).items() if name != "__metadata__" and wanted(name))
    pieces = [head[i:i + 2**20] for i in range(0, len(head), 2**20)]
    for a, b in spans:
        t = body[a:b]
        pieces.append(t if len(t) < whole_tensor else b"".join(t[p:p + 4096] for p in pages(len(t))))
    return file_digest(path, b"sampled", pieces)


def model_digest(directory, whole_file=2**30, whole_tensor=2**20):
    index = directory / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"] if index.exists() else None
    shards = sorted({directory / f for f in where.values()} if where else directory.glob("*.safetensors"), key=lambda p: str(p).encode())
    fields = [whole(directory / name) if (directory / name).exists() else b"" for name in ("config.json", "tokenizer.json", index.name)]
    for shard in shards:
        if shard.stat().st_size < whole_file:
            fields.append(whole(shard))
        else:
            fields.append(sampled(shard, whole_tensor, lambda name: not where or where.get(name) == shard.name))
    return H(b"deepserve model 1", *fields)


# ---- kv-block.md ----

Part = namedtuple("Part", "record of ratio bytes count offset")


class Layout:
    def __init__(self, data):
        assert data[:8] == b"DSKVLAYO"
        self.id = sha(data)
        self.version, self.block_tokens, self.window, self.ring, self.rollback, self.mode, self.bf16, n = struct.unpack("<8I", data[8:40])
        self.block_bytes, self.slot_bytes = struct.unpack("<QQ", data[40:56])
        self.numerics = data[56:72].rstrip(b"\0").decode()
        self.parts = []
        assert self.version == 1 and len(data) == 72 + 32 * n
        for i in range(n):
            *head, zero, offset = struct.unpack("<6IQ", data[72 + 32 * i:104 + 32 * i])
            assert zero == 0
            self.parts.append(Part(*head, offset))

    def of(self, *records):
        return [p for p in self.parts if p.record in records]


def block_records(layout, blocks, n_tokens):
    """{(record, source, entry): bytes} of a sequence with these blocks."""
    out = {}
    for p in layout.of(MAIN, INDEX):
        for j in range(n_tokens // p.ratio):
            block, at = blocks[j // p.count], p.offset + j % p.count * p.bytes
            out[p.record, p.of, j] = block[at:at + p.bytes]
    return out


# ---- window-state.md ----

def ring_record(part, slot, position):
    at = part.offset + position % part.count * part.bytes
    return slot[at:at + part.bytes]


def slot_windows(layout, slot, border, start=0):
    """{(layer, position): record} that are valid at this border."""
    first = max(0, border - layout.window + 1, start)
    return {(p.of, at): ring_record(p, slot, at) for p in layout.of(WINDOW) for at in range(first, border)}


def open_group(part, slot, position):
    """k and z of an unfinished entry, as floats."""
    rec = ring_record(part, slot, position)
    assert struct.unpack("<i", rec[:4])[0] == position and rec[4:64] == bytes(60)
    d = (len(rec) - 64) // 8
    values = struct.unpack(f"<{2 * d}f", rec[64:])
    return values[:d], values[d:]


def state_header(data):
    magic, version, bits, position, token, start, zero, size = struct.unpack("<8sIIIiIIQ", data[:40])
    assert (magic, version, zero, bits & ~7, data[40:64]) == (b"DSKVSTAT", 1, 0, 0, bytes(24))
    return bits, position, None if token == -1 else token, None if start == 2**32 - 1 else start, size


def padded(n):
    return -(-n // 64) * 64


def handoff(data):
    """Facts and parts of a record of handoff.md."""
    magic, version, bits, ns, P, O, pos, K, began, at, S, B = struct.unpack("<8sII32s6I2Q", data[:88])
    assert (magic, version, data[88:128]) == (b"DSKVHAND", 1, bytes(40)) and sha(data[:-32]) == data[-32:]
    assert pos in (0, P + O - 1) and K == pos // BLOCK and (S > 0) == (pos > 0) and (B > 0) == (pos % BLOCK > 0)
    parts, where = [], 128
    for n in (4 * (P + O), 32 * K, S, B):
        parts.append(data[where:where + n])
        assert data[where + n:where + padded(n)] == bytes(padded(n) - n)
        where += padded(n)
    assert where == len(data) - 32
    tokens = list(struct.unpack(f"<{P + O}i", parts[0]))
    keys = [parts[1][i:i + 32] for i in range(0, 32 * K, 32)]
    return {"approx": bool(bits & 1), "ns": ns, "prompt": tokens[:P], "output": tokens[P:], "position": pos, "began": (began, at), "keys": keys,
            "state": parts[2], "block": parts[3]}


def history_class(part, slot, position):
    at, token_class = struct.unpack("<ii", ring_record(part, slot, position))
    assert at == position
    return token_class
