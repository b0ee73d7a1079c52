"""Turns the generators and the natural corpus into packed training rows, in parallel processes, deterministic by seed.

A chunk is one batch: `rows` rows of `seq` tokens, as uint16 [2, rows, seq]: plane 0 holds the token id in the low 15 bits and the
loss flag in the top bit, plane 1 the position at which the token's document starts in its row. Documents start at even positions.
Worker w of n writes chunks w, w + n, w + 2n, ...

    python mix.py TOKENIZER.json OUT_DIR CHUNKS [SEED]      writes chunks of each mixture and prints what they hold
"""

import itertools
import multiprocessing
import os
import random
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import chat
import prose
import render
import stories
import tasks
import tokenizer

# share of tokens by kind
STAGES = {
    "pre": dict(natural=0.10, story=0.16, prose=0.12, chat=0.28, task=0.34),
    "tune": dict(natural=0.10, story=0.06, prose=0.08, chat=0.38, task=0.38),
    "long": dict(natural=0.10, story=0.03, prose=0.04, chat=0.24, task=0.24, long=0.35),
}
NATURAL_TOKENS = 7.05e6     # of one pass over reference/data/natural (tests/test_data.py counts)
PASSES = 4                  # and no more: held-out loss rises after that
HELD_OUT = 40       # every 40th document of narrative and wordnet-common is never trained on


def plain(text):
    return [(True, render.BOS, False), (False, text, True), (True, render.EOS, True)]


def sample(r, kind, limit=8192):
    """limit: tokens that a long document may have"""
    if kind == "story":
        t, f = stories.story(r, short=r.random() < 0.25)
        return plain(stories.title(r, f) + "\n\n" + t if r.random() < 0.2 else t)
    if kind == "prose":
        return plain(prose.passage(r))
    if kind == "chat":
        return render.render(chat.conversation(r))
    if kind == "long":
        return render.render(tasks.long(r, limit))
    return render.render(tasks.conversation(r))


def natural_documents(worker, workers, passes=0.0, more=None, held_out=False):
    """The documents of one worker, PASSES times in all, of which so many passes were read before; or the reserved documents once.
    more: folder with further text."""
    batch = []
    for folder in filter(None, (os.path.join(HERE, "natural"), more)):
        for name in sorted(f[:-7] for f in os.listdir(folder) if f.endswith(".txt.xz")):
            for i, d in enumerate(tokenizer.natural(os.path.join(folder, name + ".txt.xz"))):
                reserved = i % HELD_OUT == 7 and name in ("narrative", "wordnet-common")
                if reserved == held_out and (held_out or i % workers == worker):
                    batch.append(d)
    if held_out:
        yield from batch
        return
    for done in range(int(passes), PASSES):
        order = batch[:]
        random.Random(f"{worker}/{done}").shuffle(order)
        yield from order[int(max(0.0, passes - done) * len(order)):]


def natural_tokens(more=None):
    """Tokens of one pass, about."""
    texts = [tokenizer.natural(os.path.join(more, f)) for f in os.listdir(more) if f.endswith(".txt.xz")] if more else []
    return NATURAL_TOKENS + sum(len(d) for t in texts for d in t) / 3.8


class Packer:
    """Fills rows with documents, longest that fits first."""

    def __init__(self, rows, seq):
        self.rows, self.seq = rows, seq

    def chunk(self, pool, refill):
        """pool: list of (ids, loss); refill() tops it up."""
        seq = self.seq
        out = np.zeros((2, self.rows, seq), np.uint16)
        out[0] = 2
        for row in range(self.rows):
            refill()
            at, first = 0, True
            while at < seq and pool:
                room = seq - at
                best = -1
                if first:
                    best = 0
                else:
                    for i, (ids, _) in enumerate(pool[:96]):
                        if len(ids) <= room and (best < 0 or len(ids) > len(pool[best][0])):
                            best = i
                if best < 0:
                    break
                ids, loss = pool.pop(best)
                n = len(ids)
                v = np.array(ids, np.uint16)
                v[1:] |= np.array(loss[1:], np.uint16) << 15
                out[0, row, at:at + n] = v
                out[1, row, at:at + n + n % 2] = at
                at += n + n % 2
                first = False
            out[1, row, at:] = at if at < seq else 0
        return out


class Stream:
    """Documents of one worker, in the shares of a stage."""

    def __init__(self, enc, worker, workers, seed, seq, passes=0.0, more=None):
        self.enc, self.seq = enc, seq
        self.r = random.Random(f"{seed}/{worker}")
        self.natural = natural_documents(worker, workers, passes, more)
        self.pool = []
        self.made = {}

    def take(self, kind, n):
        if kind != "natural":
            return [sample(self.r, kind, self.seq) for _ in range(n if kind != "long" else 2)]
        return [plain(d) for d in itertools.islice(self.natural, 4)]

    def refill(self, shares):
        while sum(len(x[0]) for x in self.pool) < 24 * self.seq:
            kind = min(shares, key=lambda k: self.made.get(k, 0) / shares[k])
            docs = self.take(kind, 24)
            if not docs:        # the natural text was read often enough
                self.made[kind] = float("inf")
            for ids, loss in self.enc.batch(docs):
                self.made[kind] = self.made.get(kind, 0) + len(ids)
                if kind != "natural" and len(ids) > self.seq:
                    continue
                for i in range(0, len(ids), self.seq):
                    if len(ids) - i > 8:
                        self.pool.append((ids[i:i + self.seq], loss[i:i + self.seq]))
            self.r.shuffle(self.pool)


def work(tok, folder, worker, workers, seed, rows, seq, stage, passes, more, ahead):
    """One process: writes its chunks until killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    enc = tokenizer.Encoder(tok)
    stream, pack = Stream(enc, worker, workers, seed, seq, passes, more), Packer(rows, seq)
    g = worker
    while True:
        c = pack.chunk(stream.pool, lambda: stream.refill(STAGES[stage]))
        path = os.path.join(folder, f"c{g:07d}.npy")
        with open(path + ".tmp", "wb") as f:
            np.save(f, c)
        os.rename(path + ".tmp", path)
        while len(os.listdir(folder)) > ahead:
            time.sleep(0.05)
            if multiprocessing.parent_process() and not multiprocessing.parent_process().is_alive():
                return
        g += workers


def held_out(tok, rows, seq):
    """{name: chunk} of natural text and conversations never trained on (the conversations have a seed of their own)."""
    enc = tokenizer.Encoder(tok)
    out = {}
    docs = list(natural_documents(0, 1, held_out=True))
    pool = []
    for ids, loss in enc.batch([plain(d) for d in docs]):
        pool += [(ids[i:i + seq], loss[i:i + seq]) for i in range(0, len(ids), seq) if len(ids) - i > 64]
    random.Random(5).shuffle(pool)
    out["natural"] = Packer(rows, seq).chunk(pool, lambda: None)
    for kind in ("story", "chat", "task"):
        r = random.Random(f"held out {kind}")
        pool = [x for x in enc.batch([sample(r, kind) for _ in range(rows * 20)]) if len(x[0]) <= seq]
        out[kind] = Packer(rows, seq).chunk(pool, lambda: None)
    return out


if __name__ == "__main__":
    tok, folder, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.makedirs(folder, exist_ok=True)
    e = tokenizer.Encoder(tok)
    for stage in STAGES:
        s, p = Stream(e, 0, 1, int(sys.argv[4]) if len(sys.argv) > 4 else 0, 1024), Packer(64, 1024)
        t = time.time()
        for i in range(n):
            c = p.chunk(s.pool, lambda: s.refill(STAGES[stage]))
            np.save(os.path.join(folder, f"{stage}{i}.npy"), c)
        used = (c[0] & 0x7FFF) != 2
        print(stage, s.made, f"{n * 65536 / (time.time() - t):.0f} tokens/s, filled {used.mean():.3f}, with loss {(c[0] >> 15).mean():.3f}")
