"""DSpark drafting and verification (3.14)."""

import torch

from . import formats


def context(model, st):
    """Draft-ring vectors of every position that has features: (first position, [per draft block: [n, D] dequantised], records)."""
    c = model.cfg
    targets = sorted(c.dspark_target_layer_ids)
    first = max(st.tap[l][0] for l in targets)
    t = torch.cat([st.tap[l][1][first - st.tap[l][0]:] for l in targets], -1)
    mx = model.norm(model.linear(t, "mtp.0.main_proj"), "mtp.0.main_norm.weight")
    pos = torch.arange(first, first + len(mx), device=mx.device)
    kv = [model.window_kv(mx, "mtp.%d.attn." % m, pos) for m in range(c.M)]
    return first, [formats.fake_fp8(v) for v in kv], [formats.window_record(v.detach()) for v in kv]


def blocks(model, ring_first, rings, p, inputs):
    """Run the draft blocks on token ids `inputs` at positions p+1.. with ring positions up to p. -> x [rows, d] before the final norm."""
    c = model.cfg
    T, W = len(inputs), c.sliding_window
    pos = torch.arange(p + 1, p + 1 + T, device=model.device)
    X, a = model.streams(model.w["embed.weight"][torch.as_tensor(inputs, device=model.device)])
    text = torch.zeros(T, dtype=torch.bool, device=model.device)
    lo = max(ring_first, p - W + 1, 0)
    for m in range(c.M):
        q = "mtp.%d" % m
        past = rings[m][lo - ring_first:p + 1 - ring_first]

        def attention(xn, q=q + ".attn.", past=past):
            own = formats.fake_fp8(model.window_kv(xn, q, pos))
            keys = torch.cat((past, own))
            _, query = model.query(xn, q, pos)
            mask = torch.ones(T, len(keys), dtype=torch.bool, device=xn.device)
            none = xn.new_zeros(T, 0, c.D)
            o, _ = model.attend(query, keys, mask, none, mask[:, :0], q)
            return model.project(o, q, pos)

        X, a = model.mhc_step(X, a, q + ".hc_attn", q + ".attn_norm.weight", attention)
        X, a = model.mhc_step(X, a, q + ".hc_ffn", q + ".ffn_norm.weight",
                              lambda xn, q=q: model.moe(xn, q + ".ffn.", c.dspark_num_experts_per_tok, text))
    return model.collapse(X, a)


def heads(model, x, previous):
    """Logits [rows, vocab] and confidence logits [rows] for block outputs x, given the token before each row's prediction (c_i)."""
    last = "mtp.%d." % (model.cfg.M - 1)
    e = model.w[last + "markov_head.embed.weight"][previous]
    base = model.raw_linear(model.norm(x, last + "norm.weight"), "head.weight")
    z = model.raw_linear(torch.cat((x, e), -1), last + "confidence_head.proj.weight")[:, 0]
    return base + model.raw_linear(e, last + "markov_head.head.weight"), z


def draft(model, st, token):
    """Greedy drafts after the backbone processed all of st and chose `token` for the next position.

    -> dict: drafts [block], confidence [block] (sigmoid, each for itself), logits [block, vocab]."""
    c = model.cfg
    p = st.length - 1
    first, rings, _ = context(model, st)
    x = blocks(model, first, rings, p, [token] + [c.dspark_noise_token_id] * (c.dspark_block_size - 1))
    cur, out = token, {"drafts": [], "confidence": [], "logits": []}
    for i in range(c.dspark_block_size):
        L, z = heads(model, x[i:i + 1], torch.tensor([cur], device=model.device))
        cur = int(L[0].argmax())
        out["drafts"].append(cur)
        out["confidence"].append(float(torch.sigmoid(z[0])))
        out["logits"].append(L[0])
    out["logits"] = torch.stack(out["logits"])
    return out


def verify(model, st, token, drafts):
    """Greedy verification. The state ends after `token` and the accepted drafts. -> (accepted drafts, next token, logits of all rows)."""
    start = st.length
    logits = model.forward(st, [token] + list(drafts))
    best = logits.argmax(-1).tolist()
    n = 0
    while n < len(drafts) and best[n] == drafts[n]:
        n += 1
    st.truncate(start + 1 + n, model.cfg)
    return list(drafts[:n]), best[n], logits
