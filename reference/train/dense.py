"""The yardstick: a plain transformer with as many active parameters, on the same data in the same order, with the same optimizer and rates.

    python dense.py OUT         after train.py's phases or before; OUT holds tokenizer.json; figures go to OUT/dense/log.jsonl

Pre-norm blocks of full causal attention (rotary, theta 10,000) inside each document and SwiGLU, bf16, nothing quantised. Active parameters
are those that a token multiplies with: not the embedding, not the Engram table, of the routed experts only the chosen ones."""

import argparse
import math
import os

import loop
from loop import Step, to_device

import torch
import torch.nn.functional as F

import config
import mix
import params
import plan
from model import compiled, cross_entropy, norm, rope_table, rotate
from optim import Optimizer


def active(cfg):
    """Active parameters of the backbone."""
    n = 0
    for name, (shape, kind, _) in params.spec(cfg).items():
        if name.startswith("mtp.") or name == "embed.weight" or kind == "table":
            continue
        share = cfg["num_experts_per_tok"] / cfg["n_routed_experts"] if kind == "fp4" else 1
        n += int(math.prod(shape) * share)
    return n


def dense_spec(cfg):
    """name -> (shape, initial standard deviation or None for ones); the inner size makes the counts equal, up to 32 columns."""
    d, layers, v = cfg["hidden_size"], cfg["num_hidden_layers"], cfg["vocab_size"]
    inner = round((active(cfg) - v * d - d - layers * (2 * d + 4 * d * d)) / (layers * 3 * d) / 32) * 32
    small = 0.02 * 2 / math.sqrt(2 * layers)
    out = {"embed.weight": ((v, d), 0.02), "head.weight": ((v, d), 0.02), "norm.weight": ((d,), None)}
    for l in range(layers):
        p = f"layers.{l}."
        out.update({p + "attn_norm.weight": ((d,), None), p + "ffn_norm.weight": ((d,), None), p + "wqkv": ((3 * d, d), 0.02), p + "wo": ((d, d), small),
                    p + "w13": ((2 * inner, d), 0.02), p + "w2": ((d, inner), small)})
    return out


def _qkv(x, nw, wqkv, cos, sin, heads, eps):
    b, s, _ = x.shape
    q, k, v = (norm(x, nw, eps) @ wqkv.T).view(b, s, 3, heads, -1).unbind(2)
    q, k = rotate(q, cos[:, None], sin[:, None]), rotate(k, cos[:, None], sin[:, None])
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _rest(x, o, wo, nw, w13, w2, eps):
    x = x + o.transpose(1, 2).flatten(2) @ wo.T
    g, u = (norm(x, nw, eps) @ w13.T).float().chunk(2, -1)
    return x + (F.silu(g) * u).to(x.dtype) @ w2.T


qkv, rest = compiled(_qkv), compiled(_rest)


class Dense:
    def __init__(self, cfg, seq, device):
        self.cfg, self.eps = cfg, cfg["rms_norm_eps"]
        self.cos, self.sin = rope_table(dict(cfg, qk_rope_head_dim=cfg["hidden_size"] // cfg["num_attention_heads"]), seq, False, device)

    def forward(self, w, tokens, start):
        """Normed hidden [B*S, d] before the head."""
        pos = torch.arange(tokens.shape[1], device=tokens.device)
        sees = ((pos[None] <= pos[:, None]) & (pos >= start[:, :, None]))[:, None]
        x = F.embedding(tokens, w["embed.weight"])
        for l in range(self.cfg["num_hidden_layers"]):
            p = f"layers.{l}."
            q, k, v = qkv(x, w[p + "attn_norm.weight"], w[p + "wqkv"], self.cos, self.sin, self.cfg["num_attention_heads"], self.eps)
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=sees)
            x = rest(x, o, w[p + "wo"], w[p + "ffn_norm.weight"], w[p + "w13"], w[p + "w2"], self.eps)
        return norm(x, w["norm.weight"], self.eps).flatten(0, 1)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    loop.options(a)
    o = a.parse_args()
    workers = plan.tiny() if o.tiny else plan.WORKERS
    if o.tiny:
        torch.set_num_threads(1)        # small products are slower on more
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    os.makedirs(os.path.join(o.out, "dense"), exist_ok=True)
    log = loop.Log(os.path.join(o.out, "dense", "log.jsonl"))
    tokenizer = os.path.join(o.out, "tokenizer.json")
    cfg = config.build(tokenizer, config.SHAPES["tiny" if o.tiny else "demo"])[1]
    spec = dense_spec(cfg)
    g = torch.Generator().manual_seed(o.seed)
    masters = {n: (torch.ones(s) if std is None else torch.randn(s, generator=g) * std).to(device) for n, (s, std) in spec.items()}
    opt = Optimizer(masters, {n for n in masters if n.startswith("layers.") and masters[n].dim() == 2})
    log(event="start", parameters=sum(t.numel() for t in masters.values()), active=sum(t.numel() for n, t in masters.items() if n != "embed.weight"), active_of_model=active(cfg))

    def cast():
        return {n: t.detach().to(dtype, copy=True).requires_grad_() for n, t in masters.items()}

    def loss_of(model, w, tok, target, start):
        return cross_entropy(model.forward(w, tok, start), w["head.weight"], target.flatten()) / (target >= 0).sum().clamp(min=1)

    def step(model, tok, target, start, lr):
        w = cast()
        loss = loss_of(model, w, tok, target, start)
        loss.backward()
        with torch.no_grad():
            return loss.detach(), opt.step({n: x.grad for n, x in w.items()}, lr)

    for name, phase in plan.PHASES.items():
        model, (done, passes) = Dense(cfg, phase["seq"], device), plan.before(name, o.natural)
        with loop.Feed(tokenizer, phase, workers, f"{o.seed}/{name}", passes, o.natural, device) as loader:
            took = loop.run(Step(lambda *x, m=model: step(m, *x), log, loader), loader, log, phase["steps"], lambda i, p=phase, d=done: plan.learning_rate(d + i * p["rows"] * p["seq"]), tokens=done, device=device)
        log(event="phase done", phase=name, **took)
    shape, w = plan.DRAFT, cast()       # the held-out rows of train.py's last phase
    model = Dense(cfg, shape["seq"], device)
    held = {k: loss_of(model, w, *to_device(c, device)).item() for k, c in mix.held_out(tokenizer, shape["rows"], shape["seq"]).items()}
    log(event="backbone done", heldout=held)


if __name__ == "__main__":
    main()
