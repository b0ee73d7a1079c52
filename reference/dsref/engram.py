"""Engram ids (3.12): token map, primes, multipliers, hashes. Integers only; numpy."""

import json
import os
import unicodedata

import numpy as np

WHITE_SPACE = "\t\n\v\f\r \u0085\u00a0\u1680" + "".join(chr(c) for c in range(0x2000, 0x200b)) + "\u2028\u2029\u202f\u205f\u3000"


def byte_alphabet():
    """Character of the byte-level alphabet -> byte."""
    keep = list(range(0x21, 0x7f)) + list(range(0xa1, 0xad)) + list(range(0xae, 0x100))
    rest = [b for b in range(256) if b not in keep]
    out = {chr(b): b for b in keep}
    out.update({chr(256 + i): b for i, b in enumerate(rest)})
    return out


def normalise(text):
    s = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    s = "".join(c for c in s if unicodedata.category(c)[0] != "M")
    s = "".join(c.lower() for c in s)
    out = []
    for c in s:
        if c not in " \t\r\n":
            out.append(c)
        elif not out or out[-1] != " ":
            out.append(" ")
    s = "".join(out)
    if s == " ":
        return s
    return s.strip(WHITE_SPACE) or text


def token_map(tokenizer, vocab_size=None):
    """tokenizer.json object -> int64 [vocab]: class of every id, numbered by first appearance."""
    alphabet = byte_alphabet()
    piece = {i: p for p, i in tokenizer["model"]["vocab"].items()}
    text = {i: bytes(alphabet[c] for c in p).decode("utf-8", "replace") if all(c in alphabet for c in p) else p for i, p in piece.items()}
    for t in tokenizer.get("added_tokens", []):
        piece[t["id"]] = text[t["id"]] = t["content"]
    size = vocab_size if vocab_size is not None else max(piece) + 1
    classes, out = {}, np.zeros(size, dtype=np.int64)
    for i in range(size):
        key = piece[i] if "\ufffd" in text[i] else normalise(text[i])
        out[i] = classes.setdefault(key, len(classes))
    return out


def is_prime(x):
    if x < 4:
        return x > 1
    if x % 2 == 0:
        return False
    i = 3
    while i * i <= x:
        if x % i == 0:
            return False
        i += 2
    return True


def primes(cfg):
    """int64 [layers, columns]: primes from engram_vocab_size upward, dealt out in order."""
    cols = (cfg.engram_max_ngram_size - 1) * cfg.engram_n_heads
    out, x = [], cfg.engram_vocab_size - 1
    for _ in range(len(cfg.engram_layer_ids) * cols):
        x += 1
        while not is_prime(x):
            x += 1
        out.append(x)
    return np.array(out, dtype=np.int64).reshape(len(cfg.engram_layer_ids), cols)


def offsets(p):
    return np.concatenate((np.zeros((p.shape[0], 1), np.int64), np.cumsum(p, 1)[:, :-1]), 1)


def multipliers(cfg):
    """int64 [layers, max_ngram]: 2 v + 1 with v from NumPy's PCG64, seeded by the layer number."""
    half = (2 ** 63 - 1) // cfg.engram_compressed_vocab_size // 2
    out = []
    for layer in cfg.engram_layer_ids:
        g = np.random.default_rng(10007 * layer)
        out.append(g.integers(low=0, high=half, size=cfg.engram_max_ngram_size, dtype=np.int64) * 2 + 1)
    return np.stack(out)


class Tables:
    """Token map, primes, offsets, multipliers of a model; from the checkpoint's tensors, else derived."""

    def __init__(self, cfg, extra=None, path=None, tokenizer=None):
        extra = extra or {}
        self.cfg = cfg
        if "engram.token_map" in extra:
            self.map = extra["engram.token_map"]
        else:
            if tokenizer is None:
                with open(os.path.join(path, "tokenizer.json"), encoding="utf-8") as f:
                    tokenizer = json.load(f)
            self.map = token_map(tokenizer, cfg.vocab_size)
        count = int(self.map.max()) + 1
        if count != cfg.engram_compressed_vocab_size:
            raise ValueError("the tokenizer gives %d Engram classes, config.json says %d" % (count, cfg.engram_compressed_vocab_size))
        self.primes, self.multipliers = primes(cfg), extra.get("engram.multipliers")
        self.offsets = offsets(self.primes)
        if self.multipliers is None:
            self.multipliers = multipliers(cfg)
        for name, own in (("engram.primes", self.primes), ("engram.offsets", self.offsets)):
            if name in extra and not np.array_equal(extra[name], own):
                raise ValueError(name + " differs from the derived values")
        if (self.primes.sum(1) != np.array(cfg.engram_num_embeddings)).any():
            raise ValueError("engram_num_embeddings differs from the sum of the primes")
        self.pad = int(self.map[cfg.engram_pad_token_id])

    def ids(self, layer_at, classes, dead, first=0):
        """Row ids [T - first, columns] of Engram layer number `layer_at` in list order, for positions first.. of a sequence that starts at 0.

        classes: compressed ids of all positions. dead: bool, true inside an image span."""
        c, p = self.cfg, self.primes[layer_at].astype(np.uint64)
        m = self.multipliers[layer_at].astype(np.uint64)
        n = c.engram_max_ngram_size
        out = np.zeros((len(classes) - first, p.size), dtype=np.int64)
        for q in range(first, len(classes)):
            t, alive = [], True
            for s in range(n):
                alive = alive and q - s >= 0 and not dead[q - s]
                t.append(np.uint64(classes[q - s] if alive else self.pad))
            h = t[0] * m[0]
            for o in range(2, n + 1):
                h = h ^ (t[o - 1] * m[o - 1])
                for k in range(c.engram_n_heads):
                    col = (o - 2) * c.engram_n_heads + k
                    out[q - first, col] = int(h % p[col]) + self.offsets[layer_at, col]
        return out
