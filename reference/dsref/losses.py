"""Training losses of 3.13, 3.14 and 3.16, differentiable. The forward pass gives what they need: set model.trace = {} and, for the
indexer loss, model.detach_indexer = True, so that only indexer weights get its gradient."""

import torch
import torch.nn.functional as F

from . import dspark, formats
from .checkpoint import tensor_list

EPS = 1e-20


def indexer_kl(score, mass, chosen):
    """KL(target || softmax(scores)) on the selected entries, mean over queries that have any.

    score [T, E]: index scores. chosen [T, K]: entry numbers, -1 for none. mass [T, K]: head-averaged attention probabilities on them."""
    ok = chosen >= 0
    s = score.gather(1, chosen.clamp(min=0)).masked_fill(~ok, -1e30)
    logq = torch.log_softmax(s, -1)
    p = mass.detach().masked_fill(~ok, 0)
    p = p / (p.sum(-1, keepdim=True) + EPS)
    kl = (p * (torch.log(p + EPS) - logq)).masked_fill(~ok, 0).sum(-1)
    rows = ok.any(-1)
    return kl[rows].mean() if rows.any() else score.sum() * 0


def backbone_indexer_loss(model):
    """Sum of indexer_kl over the index sources of the last forward pass."""
    t = model.trace
    total = 0
    for l in model.cfg.index_source_layer_ids:
        name = ".%d" % l
        if "topk" + name in t:
            total = total + indexer_kl(t["index_scores" + name][-1], t["attention_mass" + name][-1], t["topk" + name][-1])
    return total


def balance_loss(scores, chosen, weight=1e-4):
    """Sequence-level balance: weight * sum_e f_e P_e, f_e = load of expert e over its fair share, P_e = its mean normalised score.

    scores [T, E] router scores of one sequence, chosen [T, k]."""
    T, E = scores.shape
    f = F.one_hot(chosen, E).sum((0, 1)).to(scores) * E / (chosen.shape[1] * T)
    p = (scores / (scores.sum(-1, keepdim=True) + EPS)).mean(0)
    return weight * (f * p).sum()


def backbone_balance_loss(model, weight=1e-4):
    return sum(balance_loss(model.trace["router_scores.layers.%d" % l][-1], model.trace["experts.layers.%d" % l][-1], weight)
               for l in range(model.cfg.L))


def bias_step(bias, chosen, rows=None, rate=0.001):
    """New router bias after a step: += rate * sign(mean load - load). rows: bool [T], which tokens count (text or image)."""
    if rows is not None:
        chosen = chosen[rows]
    load = F.one_hot(chosen, bias.numel()).sum((0, 1)).to(bias)
    return bias + rate * torch.sign(load.mean() - load)


def draft_block(model, st, tokens, anchor):
    """Draft block with its first row on the true token at position `anchor`, teacher-forced. `st` has processed `tokens`.

    -> logits [block, vocab], confidence logits [block]; row i predicts position anchor + i + 1."""
    c = model.cfg
    first, rings, _ = dspark.context(model, st)
    B = c.dspark_block_size
    x = dspark.blocks(model, first, rings, anchor - 1, [tokens[anchor]] + [c.dspark_noise_token_id] * (B - 1))
    return dspark.heads(model, x, torch.tensor(tokens[anchor:anchor + B], device=model.device))


def dspark_loss(draft, target, confidence, labels, ce=0.1, l1=0.9, bce=1.0):
    """DeepSpec's loss of one or more blocks. draft, target [.., K, V] logits (target without gradient), confidence [.., K] logits,
    labels [.., K] true tokens. -> (loss, parts)."""
    K = draft.shape[-2]
    w = torch.exp(-torch.arange(K, dtype=draft.dtype, device=draft.device) / 4)
    q, p = torch.softmax(draft, -1), torch.softmax(target.detach(), -1)
    e_ce = F.cross_entropy(draft.reshape(-1, draft.shape[-1]), labels.reshape(-1), reduction="none").reshape(labels.shape)
    e_l1 = (q - p).abs().sum(-1)
    accept = (1 - 0.5 * e_l1).detach()
    e_bce = F.binary_cross_entropy_with_logits(confidence, accept, reduction="none")
    parts = {"ce": (w * e_ce).mean(), "l1": (w * e_l1).mean(), "bce": (w * e_bce).mean()}
    return ce * parts["ce"] + l1 * parts["l1"] + bce * parts["bce"], parts


def fake_quantised(cfg, weights):
    """Weights as an exported checkpoint would give them, with straight-through gradients (QAT)."""
    out = dict(weights)
    for name, (_, kind) in tensor_list(cfg).items():
        if kind == "fp8":
            out[name] = formats.fake_fp8_weight(weights[name])
        elif kind == "fp4":
            out[name] = formats.fake_mxfp4_weight(weights[name])
        elif kind == "rows":
            out[name] = formats.fake_rows(weights[name])
    return out
