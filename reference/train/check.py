"""Compares the training forward with the independent reference in f32: logits, selected entries, logits after CED prefill, drafts.

    python check.py MODEL_DIR [TOKENS]       a trained or exported model
    python check.py --random TOKENIZER.json  a random model of the demonstration shape, exported to a temporary folder first
"""

import os
import sys
import tempfile

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import config
import export
import params
from dsref import dspark
from dsref.model import Model as Oracle
from dsref.model import State
from model import Model
from speculate import confidence, context_features, markov_logits


def spread(cfg, seed=3):
    """Initial values are too tame to tell mistakes apart: spread every weight. -> masters, router biases"""
    m = params.init(cfg, seed, "cpu")
    g = torch.Generator().manual_seed(seed)
    for n, t in m.items():
        if n.endswith("_fn"):
            t.copy_(torch.randn(t.shape, generator=g) * 0.02)
        elif n.endswith(("_base", "_scale")):
            t.mul_(0.5).add_(torch.randn(t.shape, generator=g) * 0.3)
        elif n.endswith("attn_sink"):
            t.copy_(torch.randn(t.shape, generator=g))
        elif n.endswith("norm.weight") or n.endswith(("q_weight", "k_weight")):
            t.add_(torch.randn(t.shape, generator=g) * 0.2)
        elif n.endswith(("markov_head.head.weight", "confidence_head.proj.weight")):
            t.copy_(torch.randn(t.shape, generator=g) * 0.05)
        elif n.endswith(("wo_b", "w2", "engram.wkv")):
            t.mul_(0.5)
        elif t.dim() > 1 and n != "embed.weight":
            t.mul_(1.5)
    return m, [torch.randn(x.shape, generator=g) * 0.1 for x in params.init_biases(cfg, "cpu")]


def error(mine, theirs):
    """Of each position, over its largest logit."""
    return (mine.double() - theirs).abs().amax(1) / theirs.abs().amax(1)


class Pair:
    """One model twice: the training forward and the reference, on one document."""

    def __init__(self, folder, masters, biases, n):
        self.cfg, tables = config.load(folder)
        kinds = {k: v[1] for k, v in params.spec(self.cfg).items()}
        self.w = {k: v.detach() for k, v in params.cast(masters, kinds, torch.float32, False).items()}
        self.biases, self.model = biases, Model(self.cfg, tables, n, "cpu")
        self.start = torch.zeros(1, n, dtype=torch.long)
        self.oracle = Oracle(folder, act="f32", dtype=torch.float64)

    @torch.no_grad()
    def logits(self, ids, cut=None, **kw):
        """Exact, or as after a prefill of all tokens whose decoder tail begins at position `cut`."""
        pos = torch.arange(ids.shape[1])
        begin = None if cut is None else torch.where(pos >= cut, cut, self.start)
        return self.model.forward(self.w, ids, self.start, self.biases, cut=begin, **kw)[0] @ self.w["head.weight"].T

    def ced(self, ids):
        """Errors of the positions that CED prefill computes, against it and against exact computation."""
        tail = min(ids.shape[1], self.cfg["sliding_window"])
        theirs = self.oracle.prefill_ced(State(self.oracle), ids[0].tolist())
        return error(self.logits(ids, ids.shape[1] - tail)[-tail:], theirs), error(self.logits(ids)[-tail:], theirs)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as tmp, torch.no_grad():
        folder = sys.argv[1]
        if folder == "--random":
            export.save(tmp, sys.argv[2], config.SHAPE, *spread(config.build(sys.argv[2])[1]))
            folder = tmp
        n = 640
        masters, biases = export.load(folder, "cpu")
        ids = torch.randint(3, masters["embed.weight"].shape[0], (1, n))
        if len(sys.argv) > 2 and sys.argv[1] != "--random":
            ids = torch.tensor([[int(x) for x in sys.argv[2].split(",")]])
            ids = torch.cat([ids, torch.full((1, -ids.shape[1] % 128), 2)], 1)
            n = ids.shape[1]
        pair = Pair(folder, masters, biases, n)
        cfg, oracle, w = pair.cfg, pair.oracle, pair.w
        taps, probe = [], {}
        mine = pair.logits(ids, taps=taps, probe=probe)
        oracle.trace = {}
        theirs = oracle.forward(State(oracle), ids[0].tolist())
        e = error(mine, theirs)
        print(f"logits: error median {e.median():.2e}, 90% {e.quantile(0.9):.2e}, max {e.max():.2e}; same top token {(mine.argmax(1) == theirs.argmax(1)).double().mean():.4f}")
        for first in range(0, n, 128):
            print(f"  positions {first:4d}..: median {e[first:first + 128].median():.2e} max {e[first:first + 128].max():.2e}")
        for l in range(cfg["num_hidden_layers"]):
            x, y = probe[f"layers.{l}.x"].view(n, -1).double(), oracle.trace[f"X.{l}"][0].flatten(1)
            d = (x - y).norm(dim=1) / y.norm(dim=1)
            line = f"  layer {l}: streams median {d.median():.2e} 90% {d.quantile(0.9):.2e} max {d.max():.2e}"
            if f"topk.{l}" in oracle.trace:
                sel, top = probe[f"layers.{l}.sel"][0], oracle.trace[f"topk.{l}"][0]
                other = torch.zeros_like(sel, dtype=torch.long).scatter_add_(1, top.clamp(min=0), (top >= 0).long()) > 0
                line += f"; selected {sel.sum().item()}, by the reference {other.sum().item()}, by both {(sel & other).sum().item()}"
            print(line)
        oracle.trace = None
        cut, exact = pair.ced(ids)
        print(f"CED prefill: error of the cut windows median {cut.median():.2e} max {cut.max():.2e}; of whole windows median {exact.median():.2e}")
        # drafts at the end of an even prefix
        p = n - 8
        st = State(oracle)
        oracle.forward(st, ids[0, :p + 1].tolist())
        want = dspark.draft(oracle, st, int(ids[0, p + 1]))
        mx = context_features(cfg, w, taps, ids.shape, pair.model.eps)
        x, hd, _ = pair.model.draft(w, mx, ids, pair.start, torch.tensor([[p]]), biases)
        base = hd @ w["head.weight"].T
        prev, got, conf = int(ids[0, p + 1]), [], []
        for i in range(cfg["dspark_block_size"]):
            prev_t = torch.tensor([prev])
            conf.append(torch.sigmoid(confidence(cfg, w, x[i:i + 1], prev_t)).item())
            prev = int((base[i:i + 1].float() + markov_logits(cfg, w, prev_t)).argmax())
            got.append(prev)
        print("drafts:", got, conf, "oracle:", want["drafts"], want["confidence"])


if __name__ == "__main__":
    main()
