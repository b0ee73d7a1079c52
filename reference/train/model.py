"""The model for training: pure functions on dictionaries of weights, whole sequences, several documents packed in a row.

A packed row holds documents back to back, each starting at an even position; `start[b, p]` is the first position of p's document.
Nothing looks across a document's start, and rotary angles are relative, so a document computes what it would compute alone.
Names and formulas follow the checkpoint: see the model specification's sections 3 and 6. Weights come in as bf16 (GPU) or f32
(tests on the CPU); `cast` in params.py makes them from the f32 masters, fake-quantised when that phase is on. Cache records are
fake-quantised always.

Serving prefills a prompt with windows cut short (CED, specification 5.2): the decoder layers run on the last window of tokens only, and
their window attention sees nothing older, while the compressed entries, made of encoder outputs, are whole. Older tokens reach a decoder
layer through its window alone, so the same happens here when a position's window in the decoder layers begins at a cut instead of
its document's start: what stands before the cut computes as ever and is not seen from behind it. `cuts` draws them."""

import math

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import quant
from kernels import Combine, Dispatch, MixUpdate, Sinkhorn, grouped_linear, route_slots, topk_mask

_compiled = {}
_plain = [False]


class plain_calls:
    """Inside, nothing is compiled: for shapes that are used too briefly to pay for it."""

    def __enter__(self):
        _plain[0] = True

    def __exit__(self, *_):
        _plain[0] = False


def compiled(fn):
    """torch.compile on the GPU, plain call on the CPU."""
    def call(x, *args):
        if _plain[0] or not x.is_cuda:
            return fn(x, *args)
        if fn not in _compiled:
            _compiled[fn] = torch.compile(fn, fullgraph=True, dynamic=False)
        return _compiled[fn](x, *args)
    return call


def cuts(start, period, every, generator=None):
    """Where the decoder layers' windows begin, [B, S]: at the last cut or document start; cuts fall on every position with probability
    1 / period, in the last of every `every` rows."""
    b, s = start.shape
    pos = torch.arange(s, device=start.device)
    hit = torch.rand(b, s, device=start.device, generator=generator) * period < 1
    hit &= (torch.arange(b, device=start.device)[:, None] + 1) % every == 0
    return torch.where(hit, pos, start).cummax(1)[0]


def norm(x, w, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def rope_table(cfg, n, compressed, device):
    """cos, sin [n, rd/2] f32"""
    rd = cfg["qk_rope_head_dim"]
    theta = cfg["compress_rope_theta"] if compressed else cfg["rope_theta"]
    f = [theta ** (-2.0 * i / rd) for i in range(rd // 2)]
    rs = cfg.get("rope_scaling")
    if compressed and rs and rs["original_max_position_embeddings"]:
        def c(r):
            return rd * math.log(rs["original_max_position_embeddings"] / (2 * math.pi * r)) / (2 * math.log(theta))
        low = max(math.floor(c(rs["beta_fast"])), 0)
        high = min(math.ceil(c(rs["beta_slow"])), rd - 1)
        for i in range(rd // 2):
            ramp = min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0)
            f[i] = f[i] * (1 - ramp) + f[i] / rs["factor"] * ramp
    ang = torch.arange(n, dtype=torch.float32)[:, None] * torch.tensor(f, dtype=torch.float32)[None]
    return ang.cos().to(device), ang.sin().to(device)


def rotate(x, cos, sin):
    """Rotate the last 2*cos.shape[-1] dims of x, adjacent pairs; cos and sin broadcast against x's leading dims."""
    h = 2 * cos.shape[-1]
    a, r = x[..., :-h], x[..., -h:].float().unflatten(-1, (-1, 2))
    r0, r1 = r[..., 0], r[..., 1]
    r = torch.stack([r0 * cos - r1 * sin, r0 * sin + r1 * cos], -1).flatten(-2).to(x.dtype)
    return torch.cat([a, r], -1) if a.shape[-1] else r


def _mix(x, a, fn, scale, base, nw, eps, hc_eps):
    """Streams x [T, n, d] -> normed sublayer input, post, B logits, next pre."""
    n = x.shape[1]
    v = x.flatten(1)
    m = (v @ fn.T).float() * torch.rsqrt(v.float().square().mean(-1, keepdim=True) + eps)
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
    logits = (m[:, 2 * n:] * scale[2] + base[2 * n:]).unflatten(1, (n, n))
    s = (a[:, :, None] * x.float()).sum(1).to(x.dtype)
    return norm(s, nw, eps), post, logits, pre


def _collapse(x, a, nw, eps):
    s = (a[:, :, None] * x.float()).sum(1).to(x.dtype)
    return norm(s, nw, eps), s


def _qkv(xn, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, heads, eps):
    b, s, _ = xn.shape
    qr = norm(xn @ wq_a.T, q_norm, eps)
    q = rotate((qr @ wq_b.T).view(b, s, heads, -1), cos[..., None, :], sin[..., None, :])
    kv = rotate(norm(xn @ wkv.T, kv_norm, eps), cos, sin)
    return q, qr, quant.ste(kv, quant.fp8_act(kv))


def _context_kv(mx, wkv, kv_norm, cos, sin, eps):
    kv = rotate(norm(mx @ wkv.T, kv_norm, eps), cos, sin)
    return quant.ste(kv, quant.fp8_act(kv))


def _compress(xn, wkv, wgate, cnorm, cos, sin, eps):
    """latent [B, E, D] and main entries; wgate None means ratio 1."""
    if wgate is None:
        lat = norm(xn @ wkv.T, cnorm, eps)
    else:
        k = (xn @ wkv.T).float().unflatten(1, (-1, 2))
        w = torch.softmax((xn @ wgate.T).float().unflatten(1, (-1, 2)), 2)
        lat = norm((w * k).sum(2).to(xn.dtype), cnorm, eps)
    ent = rotate(lat, cos, sin)
    return lat, quant.ste(ent, quant.fp4_kv(ent))


def _index_key(lat, wk, k_norm, cos, sin, eps):
    k = rotate(norm(lat @ wk.T, k_norm, eps), cos, sin)
    return quant.ste(k, quant.mxfp4(k))


def _index_query(qr, xn, wq_b, wp, cos, sin, heads):
    b, s, _ = xn.shape
    q = rotate((qr @ wq_b.T).view(b, s, heads, -1), cos[..., None, :], sin[..., None, :])
    g = (xn @ wp.T).float() * (q.shape[-1] ** -0.5 * heads ** -0.5)
    return quant.ste(q, quant.mxfp4(q)), g


def _index_score(iq, g, ik):
    """[B, S, h, di], [B, S, h], [B, E, di] -> [B, S, E] f32"""
    b, s, h, di = iq.shape
    sc = (iq.reshape(b, s * h, di) @ ik.transpose(1, 2)).view(b, s, h, -1)
    return (torch.relu(sc.float()) * g[..., None]).sum(2)


def _index_loss(score, q, ent, vis, scale):
    """KL(head-averaged attention over the visible entries || softmax of index scores), averaged over queries that see an entry."""
    b, s, h, d = q.shape
    with torch.no_grad():
        a = (q.reshape(b, s * h, d) @ ent.transpose(1, 2)).view(b, s, h, -1).float() * scale
        t = torch.softmax(a.masked_fill(~vis[:, :, None], -1e30), -1).mean(2)
        any_vis = vis.any(-1)
    logp = torch.log_softmax(score.masked_fill(~vis, -1e30), -1)
    kl = (t * (torch.log(t + 1e-20) - logp)).masked_fill(~vis, 0.0).sum(-1)
    return (kl * any_vis).sum() / any_vis.sum().clamp(min=1)


def _window_parts(q, kv, start, window, scale):
    """Banded scores: queries in chunks of one window length against their own and the previous chunk."""
    b, s, h, d = q.shape
    c = s // window
    qc = q.reshape(b, c, window * h, d)
    k = kv.view(b, c, window, d)
    k2 = torch.cat([F.pad(k, (0, 0, 0, 0, 1, 0))[:, :-1], k], 2)
    sc = (qc @ k2.transpose(2, 3)).view(b, c, window, h, 2 * window)
    i = torch.arange(window, device=q.device)[:, None]
    j = torch.arange(2 * window, device=q.device)[None]
    near = (j > i) & (j <= i + window)
    pos = torch.arange(c, device=q.device)[:, None] * window - window + j
    ok = near[None, None] & (pos[None, :, None] >= start.view(b, c, window)[..., None])
    return torch.where(ok[:, :, :, None], sc.float() * scale, -1e30), k2


def _attend_window(q, kv, sink, start, window):
    b, s, h, d = q.shape
    sw, k2 = _window_parts(q, kv, start, window, d ** -0.5)
    sk = sink[None, None, None, :, None]
    m = torch.maximum(sw.amax(-1, keepdim=True), sk).detach()
    p = torch.exp(sw - m)
    z = p.sum(-1, keepdim=True) + torch.exp(sk - m)
    p = (p / z).to(q.dtype).view(b, s // window, window * h, 2 * window)
    return (p @ k2).view(b, s, h, d)


def _attend(q, kv, sink, start, window, ent, sel):
    b, s, h, d = q.shape
    c = s // window
    sw, k2 = _window_parts(q, kv, start, window, d ** -0.5)
    sc = (q.reshape(b, s * h, d) @ ent.transpose(1, 2)).view(b, c, window, h, -1)
    sc = torch.where(sel.view(b, c, window, 1, -1), sc.float() * d ** -0.5, -1e30)
    sk = sink[None, None, None, :, None]
    m = torch.maximum(torch.maximum(sw.amax(-1, keepdim=True), sc.amax(-1, keepdim=True)), sk).detach()
    pw, pc = torch.exp(sw - m), torch.exp(sc - m)
    z = pw.sum(-1, keepdim=True) + pc.sum(-1, keepdim=True) + torch.exp(sk - m)
    pw = (pw / z).to(q.dtype).view(b, c, window * h, 2 * window)
    pc = (pc / z).to(q.dtype).view(b, s * h, -1)
    return (pw @ k2).view(b, s, h, d) + (pc @ ent).view(b, s, h, d)


def attend_rows(fn, q, kv, sink, start, window, ent, sel, whole=1024):
    """fn; on rows longer than `whole` on as many at a time as keep the scores at the size of 64 rows of `whole` tokens, computed again in
    the backward pass instead of kept."""
    b, s = q.shape[:2]
    n = max(1, 64 * whole * whole // (s * s))
    if s <= whole:
        return fn(q, kv, sink, start, window, ent, sel)
    parts = [checkpoint(fn, q[i:i + n], kv[i:i + n], sink, start[i:i + n], window, ent[i:i + n], sel[i:i + n], use_reentrant=False, preserve_rng_state=False)
             for i in range(0, b, n)]
    return torch.cat(parts)


def _attend_draft(q, ctx, own, ok, sink):
    """Draft blocks: q, own [N, R, h, D] / [N, R, D], ctx [N, W, D], ok [N, W] -> [N, R, h, D]"""
    n, r, h, d = q.shape
    k = torch.cat([ctx, own], 1)
    ok = torch.cat([ok, torch.ones(n, r, dtype=torch.bool, device=ok.device)], 1)
    sc = (q.reshape(n, r * h, d) @ k.transpose(1, 2)).view(n, r, h, -1).float() * d ** -0.5
    sc = torch.where(ok[:, None, None], sc, -1e30)
    sk = sink[None, None, :, None]
    m = torch.maximum(sc.amax(-1, keepdim=True), sk).detach()
    p = torch.exp(sc - m)
    p = (p / (p.sum(-1, keepdim=True) + torch.exp(sk - m))).to(q.dtype).view(n, r * h, -1)
    return (p @ k).view(n, r, h, d)


def _project(o, wo_a, wo_b, cos, sin, groups):
    b, s, _, _ = o.shape
    o = rotate(o, cos[..., None, :], -sin[..., None, :]).reshape(b * s, groups, -1)
    u = torch.einsum("tgi,gri->tgr", o, wo_a.view(groups, -1, o.shape[-1])).flatten(1)
    return (u @ wo_b.T).view(b, s, -1)


def _route(x, gate, bias, scale, rows):
    """Top 2 experts by biased score: ids [T, 2], weights [T, 2]; and the balance loss, sum over experts of load over fair share times
    mean normalised score, mean of `rows` rows"""
    s = torch.sqrt(F.softplus(x.float() @ gate.float().T))
    b = s.detach() + bias
    e0 = b.argmax(-1, keepdim=True)
    ids = torch.arange(b.shape[-1], device=b.device)
    e1 = torch.where(ids == e0, -1e30, b).argmax(-1, keepdim=True)
    e = torch.cat([e0, e1], -1)
    hot0, hot1 = (ids == e0).float(), (ids == e1).float()
    w0, w1 = (s * hot0).sum(-1), (s * hot1).sum(-1)
    w = torch.stack([w0, w1], -1) / (w0 + w1 + 1e-20)[:, None] * scale
    load = (hot0 + hot1).view(rows, -1, s.shape[1]).mean(1) * (s.shape[1] / 2)
    share = (s / (s.sum(-1, keepdim=True) + 1e-20)).view(rows, -1, s.shape[1]).mean(1)
    return e, w, (load * share).sum(-1).mean()


def _expert_act(gu, w, limit):
    g, u = gu.float().chunk(2, -1)
    return (F.silu(g.clamp(max=limit)) * u.clamp(-limit, limit) * w[:, None]).to(gu.dtype)


def _shared(x, w13, w2, limit):
    g, u = (x @ w13.T).float().chunk(2, -1)
    return (F.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)).to(x.dtype) @ w2.T


def _engram(x, rows, wkv, qw, kw, eps):
    """x [T, n, d], rows [T, width]"""
    t, n, d = x.shape
    kv = (rows @ wkv.T).float().view(t, n + 1, d)
    key, val = kv[:, :n], kv[:, n:]
    xf = x.float()
    dot = (xf * (qw * kw).float() * key).sum(-1)
    dot = dot * torch.rsqrt(xf.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps) * d ** -0.5
    gate = torch.sigmoid(torch.where(dot >= 0, 1.0, -1.0) * torch.sqrt(dot.abs().clamp(min=1e-6)))
    return (xf + gate[..., None] * val).to(x.dtype)


def _cross_entropy(h, head, target):
    """Summed loss over positions with target >= 0."""
    logits = (h @ head.T).float()
    ok = target >= 0
    lse = torch.logsumexp(logits, -1)
    at = logits.gather(-1, target.clamp(min=0)[:, None])[:, 0]
    return ((lse - at) * ok).sum()


mix, collapse, qkv, context_kv = compiled(_mix), compiled(_collapse), compiled(_qkv), compiled(_context_kv)
compress, index_key, index_query = compiled(_compress), compiled(_index_key), compiled(_index_query)
index_score, index_loss = compiled(_index_score), compiled(_index_loss)
attend_window, attend, attend_draft, project = compiled(_attend_window), compiled(_attend), compiled(_attend_draft), compiled(_project)
route, expert_act, shared, engram, cross_entropy = compiled(_route), compiled(_expert_act), compiled(_shared), compiled(_engram), compiled(_cross_entropy)


class Engram:
    """Row ids of the n-gram table: token map, primes, offsets and multipliers of one layer (specification 3.12)."""

    def __init__(self, cfg, tables, index, device):
        t = {k: torch.as_tensor(v).to(device) for k, v in tables.items()}
        self.map = t["token_map"]
        self.primes, self.offsets = t["primes"][index], t["offsets"][index]
        self.mult = t["multipliers"][index]
        self.pad = self.map[cfg["engram_pad_token_id"]]
        self.orders, self.heads = cfg["engram_max_ngram_size"], cfg["engram_n_heads"]

    def rows(self, tokens, start):
        """tokens, start [B, S] -> [B, S, columns]"""
        b, s = tokens.shape
        t = self.map[tokens]
        pos = torch.arange(s, device=tokens.device)[None]
        h, out = t * self.mult[0], []
        for o in range(1, self.orders):
            back = torch.where(pos - o >= start, F.pad(t, (o, 0))[:, :s], self.pad)
            h = h ^ (back * self.mult[o])
            out += [h[..., None]] * self.heads
        return torch.cat(out, -1) % self.primes + self.offsets


class Model:
    """Forward passes over packed rows. `w` is the dictionary of compute weights (see params.py)."""

    def __init__(self, cfg, tables, seq, device):
        self.cfg, self.seq, self.device = cfg, seq, device
        self.layers = cfg["num_hidden_layers"]
        self.rope = {c: rope_table(cfg, seq + 16, c, device) for c in (False, True)}
        self.engrams = {l: Engram(cfg, tables, i, device) for i, l in enumerate(cfg.get("engram_layer_ids") or [])}
        self.eps, self.hc_eps = cfg["rms_norm_eps"], cfg["hc_eps"]

    def _moe(self, w, p, x, bias, loads, rows=1, balance=None):
        limit = self.cfg["swiglu_limit"]
        e, wt, even = route(x, w[p + "gate.weight"], bias, self.cfg["routed_scaling_factor"], rows)
        if balance is not None:
            balance.append(even)
        with torch.no_grad():
            src, inv, valid, ends, count = route_slots(e, w[p + "gate.weight"].shape[0])
        if loads is not None:
            loads.append(count)
        xs, ws = Dispatch.apply(x, wt.flatten(), src, inv, valid)
        h = expert_act(grouped_linear(xs, w[p + "experts.w13"], ends), ws, limit)
        y = Combine.apply(grouped_linear(h, w[p + "experts.w2"], ends), src, inv)
        return y + shared(x, w[p + "shared_experts.w13"], w[p + "shared_experts.w2"], limit)

    def _step(self, w, p, kind, x, a, fn):
        """One mHC step with sublayer fn."""
        xn, post, logits, pre = mix(x, a, w[p + f"hc_{kind}_fn"], w[p + f"hc_{kind}_scale"], w[p + f"hc_{kind}_base"],
                                    w[p + f"{kind}_norm.weight"], self.eps, self.hc_eps)
        bm = Sinkhorn.apply(logits.contiguous(), self.cfg["hc_sinkhorn_iters"], self.hc_eps)
        return MixUpdate.apply(x, fn(xn), post, bm), pre

    def forward(self, w, tokens, start, biases, cut=None, index_rows=0, taps=None, loads=None, probe=None):
        """tokens, start [B, S]; cut [B, S]: where the decoder layers' windows begin (see cuts), None: at `start`. Returns normed hidden
        [B*S, d] before the head, the index loss over the first index_rows rows and the balance loss, sum of layers, mean of rows.
        taps: list that receives the mean streams of the draft target layers. loads: list that receives expert counts per layer.
        probe: dict that receives intermediate values by name."""
        cfg = self.cfg
        b, s = tokens.shape
        n, win = cfg["hc_mult"], cfg["sliding_window"]
        x = F.embedding(tokens, w["embed.weight"]).view(b * s, 1, -1).expand(-1, n, -1).contiguous()
        a = torch.zeros(b * s, n, device=x.device)
        a[:, 0] = 1
        a.requires_grad_(torch.is_grad_enabled())      # one compiled form of mix for all layers
        pos = torch.arange(s, device=x.device)
        vis = {}
        for r in (1, 2):
            e = torch.arange(s // r, device=x.device)
            vis[r] = (e[None] < (pos[:, None] + 1) // r)[None] & (e * r >= start[:, :, None])
        ent = sel = ik = pool = None
        decoder, balance = cfg["kv_source_layer_ids"][-1], []
        iloss = x.new_zeros((), dtype=torch.float32)
        ratios = cfg["compress_ratios"]
        for l in range(self.layers):
            p, r = f"layers.{l}.", ratios[l]
            cos, sin = (t[:s] for t in self.rope[r > 0])
            begin = start if cut is None or l < decoder else cut
            if l in self.engrams:
                with torch.no_grad():
                    ids = self.engrams[l].rows(tokens, start)
                rows = F.embedding(ids, w[p + "engram.embed.weight"]).flatten(2).flatten(0, 1)
                x = engram(x, rows, w[p + "engram.wkv"], w[p + "engram.q_weight"], w[p + "engram.k_weight"], self.eps)
            if taps is not None and l in cfg["dspark_target_layer_ids"]:
                taps.append(x.float().mean(1).to(x.dtype))
            def attention(xn):
                nonlocal ent, sel, ik, pool, iloss
                q_ = p + "attn."
                xn = xn.view(b, s, -1)
                q, qr, kv = qkv(xn, w[q_ + "wq_a"], w[q_ + "q_norm.weight"], w[q_ + "wq_b"], w[q_ + "wkv"], w[q_ + "kv_norm.weight"],
                                cos, sin, cfg["num_attention_heads"], self.eps)
                sink = w[q_ + "attn_sink"]
                if r == 0:
                    o = attend_window(q, kv, sink, begin, win)
                else:
                    ce, se = cos[::r].contiguous(), sin[::r].contiguous()
                    if l in cfg["kv_source_layer_ids"]:
                        lat, ent = compress(xn, w[q_ + "compressor.wkv.weight"], w.get(q_ + "compressor.wgate.weight"),
                                            w[q_ + "compressor.norm.weight"], ce, se, self.eps)
                        ik = index_key(lat.detach(), w[q_ + "indexer.wk.weight"], w[q_ + "indexer.k_norm.weight"], ce, se, self.eps)
                    if l in cfg["index_source_layer_ids"]:
                        args = (w[q_ + "indexer.wq_b"], w[q_ + "indexer.weights_proj.weight"], cos, sin, cfg["index_n_heads"])
                        with torch.no_grad():
                            iq, g = index_query(qr, xn, *args)
                            score = index_score(iq, g, ik).masked_fill(~vis[r], float("-inf"))
                            if l == cfg["candidate_source_layer_id"]:
                                pool = self._pool(score, start, r)
                            elif pool is not None:
                                score = score.masked_fill(~pool, float("-inf"))
                            sel = topk_mask(score, cfg["index_topk"])
                        if index_rows:
                            iq, g = index_query(qr[:index_rows].detach(), xn[:index_rows].detach(), *args)
                            sub = index_score(iq, g, ik[:index_rows])
                            iloss = iloss + index_loss(sub, q[:index_rows].detach(), ent[:index_rows].detach(), vis[r][:index_rows],
                                                       q.shape[-1] ** -0.5)
                    o = attend_rows(attend, q, kv, sink, begin, win, ent, sel)
                if probe is not None:
                    probe[p + "sel"] = sel
                return project(o, w[q_ + "wo_a"], w[q_ + "wo_b"], cos, sin, cfg["o_groups"]).flatten(0, 1)

            x, a = self._step(w, p, "attn", x, a, attention)
            x, a = self._step(w, p, "ffn", x, a, lambda xn: self._moe(w, p + "ffn.", xn, biases[l], loads, b, balance))
            if probe is not None:
                probe[p + "x"] = x
        h, _ = collapse(x, a, w["norm.weight"], self.eps)
        return h, iloss, torch.stack(balance).sum()

    def _pool(self, score, start, r):
        """Entries in the kept candidate blocks."""
        cfg = self.cfg
        bs = cfg["candidate_block_size"]
        blk = score.unflatten(-1, (-1, bs)).amax(-1)
        last = (torch.arange(start.shape[1], device=start.device) + 1) // r - 1
        at = torch.arange(blk.shape[-1], device=start.device)
        blk = torch.where((last * r >= start)[..., None] & (at == last[:, None] // bs), float("inf"), blk)
        return topk_mask(blk, cfg["candidate_topk_blocks"]).repeat_interleave(bs, -1)

    def draft(self, w, mx, tokens, start, anchor, biases, loads=None):
        """Draft blocks at anchors. mx [B, S, d] context features; start: where the windows begin, as the decoder layers had it; anchor [B, A] = position p of the last processed token (p + 6 < S).
        Returns x before the norm, normed x [B*A*R, d] and the block's token inputs [B, A, R]."""
        cfg = self.cfg
        b, s = tokens.shape
        na, rows, n, win = anchor.shape[1], cfg["dspark_block_size"], cfg["hc_mult"], cfg["sliding_window"]
        cos, sin = self.rope[False]
        ids = torch.full((b, na, rows), cfg["dspark_noise_token_id"], device=tokens.device)
        ids[..., 0] = tokens.gather(1, anchor + 1)
        x = F.embedding(ids.view(-1), w["embed.weight"])[:, None].expand(-1, n, -1).contiguous()
        a = torch.zeros(x.shape[0], n, device=x.device)
        a[:, 0] = 1
        pos = (anchor[..., None] + 1 + torch.arange(rows, device=tokens.device)).view(b * na, rows)
        bc, bsn = cos[pos], sin[pos]
        back = anchor[..., None] - win + 1 + torch.arange(win, device=tokens.device)
        ok = (back >= start.gather(1, anchor)[..., None]).view(b * na, win)
        gather = back.clamp(min=0).view(b, na * win, 1)
        for m in range(cfg["num_nextn_predict_layers"]):
            p = f"mtp.{m}."

            def attention(xn):
                q_ = p + "attn."
                ctx = context_kv(mx, w[q_ + "wkv"], w[q_ + "kv_norm.weight"], cos[:s], sin[:s], self.eps)
                ctx = ctx.gather(1, gather.expand(-1, -1, ctx.shape[-1])).view(b * na, win, -1)
                q, _, own = qkv(xn.view(b * na, rows, -1), w[q_ + "wq_a"], w[q_ + "q_norm.weight"], w[q_ + "wq_b"], w[q_ + "wkv"],
                                w[q_ + "kv_norm.weight"], bc, bsn, cfg["num_attention_heads"], self.eps)
                o = attend_draft(q, ctx, own, ok, w[q_ + "attn_sink"])
                return project(o, w[q_ + "wo_a"], w[q_ + "wo_b"], bc, bsn, cfg["o_groups"]).flatten(0, 1)

            x, a = self._step(w, p, "attn", x, a, attention)
            x, a = self._step(w, p, "ffn", x, a,
                              lambda xn: self._moe(w, p + "ffn.", xn, biases[self.layers + m], loads))
        last = f"mtp.{cfg['num_nextn_predict_layers'] - 1}."
        h, xs = collapse(x, a, w[last + "norm.weight"], self.eps)
        return xs, h, ids
