"""Turns the generators and the natural corpus into packed training rows, in parallel processes, deterministic by seed.

A chunk is one batch: `rows` rows of `seq` tokens, as uint16 [2, rows, seq]: plane 0 holds the token id in the low 15 bits and the
loss flag in the top bit, plane 1 the position at which the token's document starts in its row. Documents start at even positions.
Worker w of n writes chunks w, w + n, w + 2n, ...; chunk g belongs to the stage whose range holds g.

    python mix.py TOKENIZER.json OUT_DIR CHUNKS [SEED]      writes chunks of the first stage and prints what they hold
"""

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
    "pre": dict(natural=0.20, story=0.20, prose=0.14, chat=0.25, task=0.21),
    "tune": dict(natural=0.05, story=0.04, prose=0.08, chat=0.47, task=0.36),
    "more": dict(natural=0.09, story=0.09, prose=0.10, chat=0.38, task=0.34),
}
# corpus file -> on which passes it is read
NATURAL = {"narrative": 1, "wordnet-common": 1, "python-docs": 1, "sqlite-docs": 1, "rust-book": 1, "jargon": 1, "postgresql-docs": 2, "wordnet-rare": 3}
HELD_OUT = 40       # every 40th document of narrative and wordnet-common is never trained on


def plain(text):
    return [(True, render.BOS, False), (False, text, True), (True, render.EOS, True)]


def sample(r, kind):
    if kind == "story":
        t, f = stories.story(r, short=r.random() < 0.25)
        return plain(stories.title(r, f) + "\n\n" + t if r.random() < 0.2 else t)
    if kind == "prose":
        return plain(prose.passage(r))
    if kind == "chat":
        return render.render(chat.conversation(r))
    return render.render(tasks.conversation(r))


def natural_documents(worker, workers, seed, held_out=False):
    """Endless for training; for held_out the reserved documents once."""
    done = 0
    docs = {}
    while True:
        names = [n for n, every in NATURAL.items() if done % every == 0 and os.path.exists(os.path.join(HERE, "natural", n + ".txt.xz"))]
        batch = []
        for n in names:
            if n not in docs:
                docs[n] = tokenizer.natural(n)
            for i, d in enumerate(docs[n]):
                reserved = i % HELD_OUT == 7 and n in ("narrative", "wordnet-common")
                if reserved == held_out and (held_out or i % workers == worker):
                    batch.append(d)
        random.Random(f"{seed}/{worker}/{done}").shuffle(batch)
        yield from batch
        if held_out:
            return
        done += 1


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

    def __init__(self, enc, worker, workers, seed, seq):
        self.enc, self.seq = enc, seq
        self.r = random.Random(f"{seed}/{worker}")
        self.natural = natural_documents(worker, workers, seed)
        self.pool = []
        self.made = {}

    def take(self, kind, n):
        if kind != "natural":
            return [sample(self.r, kind) for _ in range(n)]
        return [plain(next(self.natural)) for _ in range(4)]

    def refill(self, shares):
        while sum(len(x[0]) for x in self.pool) < 24 * self.seq:
            kind = min(shares, key=lambda k: self.made.get(k, 0) / shares[k])
            for ids, loss in self.enc.batch(self.take(kind, 24)):
                self.made[kind] = self.made.get(kind, 0) + len(ids)
                if kind != "natural" and len(ids) > self.seq:
                    continue
                for i in range(0, len(ids), self.seq):
                    if len(ids) - i > 8:
                        self.pool.append((ids[i:i + self.seq], loss[i:i + self.seq]))
            self.r.shuffle(self.pool)


def work(tok, folder, worker, workers, seed, rows, seq, stages, switch, ahead):
    """One process: writes its chunks until killed. stages: names of two stages; switch: chunk number from which the second holds."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    enc = tokenizer.Encoder(tok)
    stream, pack = Stream(enc, worker, workers, seed, seq), Packer(rows, seq)
    g, stage = worker, None
    while True:
        now = stages[g >= switch]
        if now != stage:
            stream.made, stage = {}, now
        c = pack.chunk(stream.pool, lambda: stream.refill(STAGES[stage]))
        path = os.path.join(folder, f"c{g:07d}.npy")
        with open(path + ".tmp", "wb") as f:
            np.save(f, c)
        os.rename(path + ".tmp", path)
        while len(os.listdir(folder)) > ahead:
            time.sleep(0.05)
            if os.getppid() == 1:
                return
        g += workers


def held_out(tok, rows, seq):
    """{name: chunk} of natural text and conversations never trained on (the conversations have a seed of their own)."""
    enc = tokenizer.Encoder(tok)
    out = {}
    docs = [d for d in natural_documents(0, 1, 0, held_out=True)]
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
