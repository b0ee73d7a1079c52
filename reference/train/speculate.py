"""DSpark: context features, Markov and confidence heads, and the loss of the draft blocks with the backbone frozen."""

import torch
import torch.nn.functional as F

from model import norm


def context_features(cfg, w, taps, shape, eps):
    """mx [B, S, d] from the tapped streams (in layer order)"""
    return norm(torch.cat(taps, -1) @ w["mtp.0.main_proj"].T, w["mtp.0.main_norm.weight"], eps).view(*shape, -1)


def _last(cfg):
    return f"mtp.{cfg['num_nextn_predict_layers'] - 1}."


def markov_logits(cfg, w, previous):
    p = _last(cfg) + "markov_head."
    return (F.embedding(previous, w[p + "embed.weight"]) @ w[p + "head.weight"].T).float()


def confidence(cfg, w, x, previous):
    p = _last(cfg)
    e = F.embedding(previous, w[p + "markov_head.embed.weight"])
    return (torch.cat([x, e], -1).float() @ w[p + "confidence_head.proj.weight"].float().T)[..., 0]


def losses(h, x, head, mk_e, mk_h, conf_w, target_h, prev, target, weight):
    """Sums of weighted loss parts over block rows: cross entropy, L1, confidence; and the accept rate per row."""
    logits = (h @ head.T).float() + (mk_e @ mk_h.T).float()
    lse = torch.logsumexp(logits, -1)
    ce = lse - logits.gather(-1, target[:, None])[:, 0]
    want = torch.softmax((target_h @ head.T).float(), -1)
    l1 = (torch.exp(logits - lse[:, None]) - want).abs().sum(-1)
    accept = (1 - 0.5 * l1).detach()
    z = (torch.cat([x, mk_e], -1).float() @ conf_w.float().T)[:, 0]
    bce = F.binary_cross_entropy_with_logits(z, accept, reduction="none")
    hit = (logits.argmax(-1) == want.argmax(-1)).float()
    return ((0.1 * ce + 0.9 * l1 + bce) * weight).sum(), ce, l1, bce, accept, hit


def block_loss(model, w, tokens, start, biases, h, taps, anchor, ok, loads=None):
    """h: the backbone's normed hidden states [B*S, d] (no gradient); start: where windows begin. anchor [B, A], ok [B, A, R]: rows that count."""
    cfg = model.cfg
    b, s = tokens.shape
    rows = cfg["dspark_block_size"]
    mx = context_features(cfg, w, taps, (b, s), model.eps)
    x, hd, _ = model.draft(w, mx, tokens, start, anchor, biases, loads)
    at = anchor[..., None] + 1 + torch.arange(rows, device=tokens.device)
    prev = tokens.gather(1, at.flatten(1)).flatten()
    target = tokens.gather(1, (at + 1).flatten(1)).flatten()
    idx = (at + torch.arange(b, device=tokens.device)[:, None, None] * s).flatten()
    decay = torch.exp(-torch.arange(rows, device=tokens.device) / 4)
    weight = (ok * decay).flatten().float()
    p = _last(cfg)
    mk_e = F.embedding(prev, w[p + "markov_head.embed.weight"])
    total, ce, l1, bce, accept, hit = losses(hd, x, w["head.weight"].detach(), mk_e, w[p + "markov_head.head.weight"],
                                             w[p + "confidence_head.proj.weight"], h[idx], prev, target, weight)
    n = weight.sum().clamp(min=1)
    okf = ok.float()
    cnt = okf.sum((0, 1)).clamp(min=1)
    return total / n, dict(accept=((accept.view(b, -1, rows) * okf).sum((0, 1)) / cnt), hit=((hit.view(b, -1, rows) * okf).sum((0, 1)) / cnt))
