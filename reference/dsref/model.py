"""The backbone: exact mode, CED prefill, decode, encoder replay (sections 3.1-3.13 and 5).

A Model holds weights and is stateless; a State is one sequence. All work goes through Model.layer(), which runs one block on a run of
consecutive positions and appends to the state, so a whole forward and any chunking of it are the same code.

Arithmetic: `dtype` is the type of everything between rounding points; float64 (the default) makes the oracle more exact than what it is
compared with. act = "f32" rounds nothing but cache records; act = "bf16" rounds exactly at the points listed in 3.1.
"""

import math

import torch
import torch.nn.functional as F

from . import checkpoint, engram, formats

QUERY_BLOCK = 128       # queries whose selected entries are gathered at once


def rope_frequencies(cfg, compressed):
    """float32 [rd/2]; computed in Python's f64. `compressed`: the layer has a compressed branch (own theta, YaRN)."""
    rd = cfg.rd
    theta = cfg.compress_rope_theta if compressed else cfg.rope_theta
    f = [float(theta) ** (-2.0 * i / rd) for i in range(rd // 2)]
    y = cfg.rope_scaling
    if compressed and y and y["original_max_position_embeddings"]:
        def c(r):
            return rd * math.log(y["original_max_position_embeddings"] / (2 * math.pi * r)) / (2 * math.log(theta))
        low = max(math.floor(c(y["beta_fast"])), 0)
        high = min(math.ceil(c(y["beta_slow"])), rd - 1)
        for i in range(rd // 2):
            ramp = min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0)
            f[i] = f[i] * (1 - ramp) + f[i] / y["factor"] * ramp
    return torch.tensor(f, dtype=torch.float32)


def top_k(score, k):
    """Indices [.., k] of the highest scores, ties to the lower index (-0 equals +0)."""
    return torch.sort(score, dim=-1, descending=True, stable=True)[1][..., :k]


class State:
    """One sequence. Position-addressed; nothing here depends on how the tokens were cut into calls."""

    def __init__(self, model):
        c = model.cfg
        self.tokens = []            # ids of all positions given to the encoder
        self.dead = []              # True inside an image span
        self.classes = []           # compressed ids (only with Engram)
        self.window = {}            # layer (or "mtp.M") -> [first position, [n, D] dequantised, [n, record] bytes]
        z = torch.zeros(0, c.D, dtype=model.dtype, device=model.device)
        b = z[:, :0].to(torch.uint8)
        self.main = {s: z for s in c.kv_source_layer_ids}       # [entries, D] dequantised
        self.keys = {s: z.new_zeros(0, c.index_head_dim) for s in c.kv_source_layer_ids}
        self.main_records = {s: b.new_zeros(0, c.D // 2 + c.D // 16) for s in c.kv_source_layer_ids}
        self.key_records = {s: b.new_zeros(0, c.index_head_dim // 2 + c.index_head_dim // 32) for s in c.kv_source_layer_ids}
        self.open = {s: {} for s in c.kv_source_layer_ids}      # ratio 2: position -> (k, z) of the open group's tokens
        self.tail = None            # (first position, X, a): inputs of the first decoder layer, last `sliding_window` tokens
        self.tap = {}               # target layer -> [first position, [n, d]] mean streams

    @property
    def length(self):
        return len(self.tokens)

    def append_window(self, key, first, values, records):
        old = self.window.get(key)
        if old is None:
            self.window[key] = [first, values, records]
        else:
            assert old[0] + len(old[1]) == first, "window positions are not consecutive"
            self.window[key] = [old[0], torch.cat((old[1], values)), torch.cat((old[2], records))]

    def append_tap(self, layer, first, t):
        old = self.tap.get(layer)
        if old is None or old[0] + len(old[1]) != first:
            self.tap[layer] = [first, t]
        else:
            self.tap[layer] = [old[0], torch.cat((old[1], t))]

    def truncate(self, length, cfg):
        """Roll back to the first `length` tokens (a rejected draft)."""
        del self.tokens[length:], self.dead[length:], self.classes[length:]
        for k, (first, v, r) in list(self.window.items()):
            n = max(0, length - first)
            self.window[k] = [first, v[:n], r[:n]]
        for k, (first, t) in list(self.tap.items()):
            self.tap[k] = [first, t[:max(0, length - first)]]
        for s in self.main:
            n = length // cfg.ratio(s)
            for lists in (self.main, self.keys, self.main_records, self.key_records):
                lists[s] = lists[s][:n]
        if self.tail is not None:
            first, X, a = self.tail
            self.tail = (first, X[:max(0, length - first)], a[:max(0, length - first)])

    def forget_windows(self):
        """What a persistent prefix cache keeps: tokens, complete entries and their keys."""
        self.window, self.tail, self.tap = {}, None, {}
        for s in self.open:
            self.open[s] = {}


class Model:
    def __init__(self, path=None, act="f32", dtype=torch.float64, device="cpu", loaded=None, noise=0.0, quant_inputs=False):
        """loaded: (cfg, weights, engram.Tables or None) instead of reading `path`. noise: relative error (of a row's rms) added to
        every linear output, to find out which rows are stable. quant_inputs: FP8 inputs of the FP8 and FP4 linears, as the released
        program has them (wo_a excepted); off in golden data."""
        if loaded is None:
            cfg, weights, extra = checkpoint.load_checkpoint(path, dtype, device)
            tables = engram.Tables(cfg, extra, path) if cfg.engram_layer_ids else None
        else:
            cfg, weights, tables = loaded
        self.cfg, self.w, self.tables = cfg, weights, tables
        self.act, self.dtype, self.device, self.noise = act, dtype, device, noise
        self.quantised = {k for k, v in checkpoint.tensor_list(cfg).items() if v[1] in ("fp8", "fp4")} if quant_inputs else ()
        self.generator = torch.Generator(device="cpu")
        self.generator.manual_seed(1)
        self.freq = {c: rope_frequencies(cfg, c).to(device) for c in (False, True)}
        self.detach_indexer = False     # training: only indexer weights get the index loss's gradient
        self.trace = None           # dict: name -> list of tensors, filled when set

    # small pieces

    def note(self, name, value):
        if self.trace is not None:
            self.trace.setdefault(name, []).append(value)

    def r(self, x):
        """A rounding point of bf16 mode."""
        return formats.bf16(x) if self.act == "bf16" else x

    def raw_linear(self, x, name):
        """W x without a rounding point. `name` is a weight."""
        if name in self.quantised:
            x = formats.fake_fp8(x)
        y = x @ self.w[name].T
        if self.noise:
            e = torch.randn(y.shape, generator=self.generator, dtype=torch.float64).to(y)
            y = y + self.noise * e * y.pow(2).mean(-1, keepdim=True).sqrt()
        return y

    def linear(self, x, name):
        return self.r(self.raw_linear(x, name))

    def norm(self, x, name, eps=None):
        eps = self.cfg.rms_norm_eps if eps is None else eps
        return self.r(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.w[name])

    def rotate(self, x, pos, compressed, inverse=False):
        """Rotate the last rd dims of x [T, .., D] at positions pos [T]."""
        rd = self.cfg.rd
        angle = (pos.to(torch.float32)[:, None] * self.freq[compressed]).double()
        c, s = torch.cos(angle).float().to(self.dtype), torch.sin(angle).float().to(self.dtype)
        if inverse:
            s = -s
        shape = (len(pos),) + (1,) * (x.dim() - 2) + (rd // 2,)
        c, s = c.reshape(shape), s.reshape(shape)
        keep, rot = x[..., :-rd], x[..., -rd:]
        a, b = rot[..., 0::2], rot[..., 1::2]
        return torch.cat((keep, self.r(torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2))), -1)

    # mHC (3.4)

    def mix(self, X, p):
        """Coefficients from X [T, n, d]: pre [T, n], post [T, n], B [T, n, n]."""
        c, n = self.cfg, self.cfg.n
        v = X.flatten(1)
        m = self.raw_linear(v, p + "_fn") * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + c.rms_norm_eps)
        base, scale = self.w[p + "_base"], self.w[p + "_scale"]
        pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + c.hc_eps
        post = 2 * torch.sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
        B = (m[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)
        return pre, post, sinkhorn(B, c.hc_sinkhorn_iters, c.hc_eps)

    def collapse(self, X, a):
        return self.r((a[:, :, None] * X).sum(1))

    def mhc_step(self, X, a, p, norm, fn):
        pre, post, B = self.mix(X, p)
        y = fn(self.norm(self.collapse(X, a), norm))
        X = self.r(post[:, :, None] * y[:, None, :] + torch.einsum("tjk,tjd->tkd", B, X))
        return X, pre

    # Engram (3.12)

    def engram(self, l, X, st, first):
        c, p = self.cfg, "layers.%d.engram." % l
        T = len(X)
        at = c.engram_layer_ids.index(l)
        ids = self.tables.ids(at, st.classes[:first + T], st.dead[:first + T], first)
        self.note("engram_ids.%d" % l, torch.from_numpy(ids))
        rows = self.w[p + "embed"][torch.from_numpy(ids).to(X.device)].flatten(1)
        kv = self.linear(rows, p + "wkv").reshape(T, c.n + 1, c.d)
        key, val = kv[:, :c.n], kv[:, c.n]
        w = self.w[p + "q_weight"] * self.w[p + "k_weight"]
        dot = (X * w * key).sum(-1) * torch.rsqrt(X.pow(2).mean(-1) + c.rms_norm_eps) \
            * torch.rsqrt(key.pow(2).mean(-1) + c.rms_norm_eps) * c.d ** -0.5
        root = dot.abs().clamp(min=1e-6).sqrt()
        gate = torch.sigmoid(torch.where(dot < 0, -root, root))
        dead = torch.tensor(st.dead[first:first + T], device=X.device)
        gate = torch.where(dead[:, None], torch.zeros_like(gate), gate)
        return self.r(X + gate[:, :, None] * val[:, None, :])

    # MoE (3.13)

    def moe(self, x, p, k, bias_vl):
        """x [T, d]; bias_vl: bool [T], True for tokens of an image span."""
        c = self.cfg
        s = torch.sqrt(F.softplus(self.raw_linear(x, p + "gate.weight") / c.gate_temp, threshold=1e9))
        bias = torch.where(bias_vl[:, None], self.w[p + "gate.bias_vl"], self.w[p + "gate.bias"])
        chosen = top_k((s + bias).detach(), k)
        w = s.gather(1, chosen)
        if c.norm_topk_prob and k > 1:
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        w = w * c.routed_scaling_factor
        self.note("router_scores." + p[:-5], s)
        self.note("experts." + p[:-5], chosen)
        y = torch.zeros_like(x)
        for e in range(s.shape[1]):
            t, rank = (chosen == e).nonzero(as_tuple=True)
            if len(t):
                y = y.index_add(0, t, self.expert(x[t], "%sexperts.%d." % (p, e), w[t, rank]))
        return self.r(y + self.expert(x, p + "shared_experts.", None))

    def expert(self, x, p, weight):
        limit = self.cfg.swiglu_limit
        g, u = self.linear(x, p + "w1"), self.linear(x, p + "w3")
        if limit > 0:
            g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        h = F.silu(g) * u
        if weight is not None:
            h = weight[:, None] * h
        return self.linear(self.r(h), p + "w2")

    # attention (3.7-3.11)

    def compress(self, l, xn, st, first):
        """Append the entries and index keys of KV source l that xn, tokens first.., completes. Entries that exist are never rewritten."""
        c, p, r = self.cfg, "layers.%d.attn.compressor." % l, self.cfg.ratio(l)
        if r == 1:
            u, js = self.linear(xn, p + "wkv.weight"), list(range(first, first + len(xn)))
        else:
            k, z = self.raw_linear(xn, p + "wkv.weight"), self.raw_linear(xn, p + "wgate.weight")
            have = dict(st.open[l])
            have.update({first + i: (k[i], z[i]) for i in range(len(xn))})
            js = [j for j in range(first // 2, (first + len(xn)) // 2) if 2 * j in have and 2 * j + 1 in have]
            end = first + len(xn)
            st.open[l] = {q: have[q] for q in range(max(0, end - 16), end) if q in have}
            if not js:
                return
            kk = torch.stack([torch.stack((have[2 * j][0], have[2 * j + 1][0])) for j in js])
            zz = torch.stack([torch.stack((have[2 * j][1], have[2 * j + 1][1])) for j in js])
            u = self.r((torch.softmax(zz, 1) * kk).sum(1))
        latent = self.norm(u, p + "norm.weight")
        pos = torch.tensor(js, device=xn.device) * r
        main = self.rotate(latent, pos, True)
        q = "layers.%d.attn.indexer." % l
        src = latent.detach() if self.detach_indexer else latent
        key = self.rotate(self.norm(self.linear(src, q + "wk.weight"), q + "k_norm.weight"), pos, True)
        fm, fk = formats.fake_kv4(main), formats.fake_mxfp4(key)
        rm, rk = formats.main_record(main.detach()), formats.index_record(key.detach())
        old = max(0, len(st.main[l]) - js[0])
        assert js[0] <= len(st.main[l]), "an entry was skipped"
        for lists, new in ((st.main, fm), (st.keys, fk), (st.main_records, rm), (st.key_records, rk)):
            lists[l] = torch.cat((lists[l], new[old:]))

    def select(self, l, xn, qr, st, pos, step):
        """Top-k list of index source l: [T, k] entry numbers, ascending, -1 where there are fewer. Keeps the pool in step["pool"]."""
        c, p = self.cfg, "layers.%d.attn.indexer." % l
        T, r, src = len(xn), c.ratio(l), c.kv_source(l)
        if self.detach_indexer:
            xn, qr = xn.detach(), qr.detach()
        g = self.linear(xn, p + "weights_proj.weight") * (c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5)
        iq = self.linear(qr, p + "wq_b").reshape(T, c.index_n_heads, c.index_head_dim)
        iq = formats.fake_mxfp4(self.rotate(iq, pos, True))
        visible = torch.div(pos + 1, r, rounding_mode="floor")
        E = int(visible.max())
        if E == 0:
            return torch.full((T, 0), -1, dtype=torch.long, device=xn.device)
        keys = st.keys[src][:E]
        score = torch.zeros(T, E, dtype=xn.dtype, device=xn.device)
        for h in range(c.index_n_heads):
            score = score + g[:, h:h + 1] * (iq[:, h] @ keys.T).clamp(min=0)
        e = torch.arange(E, device=xn.device)
        allowed = e[None] < visible[:, None]
        if c.uses_candidates(l):
            allowed = allowed & step["pool"][:, :E]
        masked = score.detach().masked_fill(~allowed, -math.inf)
        if l == c.candidate_source_layer_id:
            step["pool"] = self.pool(masked, visible)
            self.note("pool", step["pool"])
        k = min(c.index_topk, E)
        got = top_k(masked, k)
        ok = masked.gather(1, got) > -math.inf
        got = torch.where(ok, got, torch.full_like(got, E)).sort(1)[0]
        got = torch.where(got == E, torch.full_like(got, -1), got)
        self.note("topk.%d" % l, got)
        self.note("index_scores.%d" % l, score)
        self.note("index_allowed.%d" % l, allowed)
        return got

    def pool(self, masked, visible):
        """Candidate pool as a mask over entries [T, E] from visible scores (-inf elsewhere)."""
        size = self.cfg.candidate_block_size
        T, E = masked.shape
        nb = -(-E // size)
        block = F.pad(masked, (0, nb * size - E), value=-math.inf).reshape(T, nb, size).amax(-1)
        last = torch.div(visible - 1, size, rounding_mode="floor")
        some = visible > 0
        block[some, last[some]] = math.inf
        kept = top_k(block, min(self.cfg.candidate_topk_blocks, nb))
        mask = torch.zeros(T, nb, dtype=torch.bool, device=masked.device)
        mask.scatter_(1, kept, block.gather(1, kept) > -math.inf)
        return mask.repeat_interleave(size, 1)[:, :E]

    def window_kv(self, x, p, pos):
        """The window vector before quantisation, from the normed input (or DSpark's context features)."""
        return self.rotate(self.norm(self.linear(x, p + "wkv"), p + "kv_norm.weight"), pos, self.compressed(p))

    def compressed(self, p):
        return p.startswith("layers.") and self.cfg.ratio(int(p.split(".")[1])) > 0

    def query(self, xn, p, pos):
        c = self.cfg
        qr = self.norm(self.linear(xn, p + "wq_a"), p + "q_norm.weight")
        q = self.linear(qr, p + "wq_b").reshape(len(xn), c.num_attention_heads, c.D)
        return qr, self.rotate(q, pos, self.compressed(p))

    def attend(self, q, shared, mask, own, own_ok, p):
        """q [T, H, D]; shared [S, D] with mask [T, S]; own [T, K, D] with own_ok [T, K]. -> o [T, H, D], probabilities on own [T, H, K]."""
        scale = self.cfg.D ** -0.5
        s = torch.einsum("thd,sd->ths", q, shared) * scale
        s = s.masked_fill(~mask[:, None], -math.inf)
        o = torch.einsum("thd,tkd->thk", q, own) * scale
        o = o.masked_fill(~own_ok[:, None], -math.inf)
        sink = self.w[p + "attn_sink"][None, :, None].expand(len(q), -1, 1)
        w = torch.softmax(torch.cat((s, o, sink), -1), -1)
        n = shared.shape[0]
        out = torch.einsum("ths,sd->thd", w[..., :n], shared) + torch.einsum("thk,tkd->thd", w[..., n:-1], own)
        return out, w[..., n:-1]

    def project(self, o, p, pos):
        c = self.cfg
        o = self.r(o)
        o = self.rotate(o, pos, self.compressed(p), inverse=True).reshape(len(o), c.o_groups, -1)
        wa = self.w[p + "wo_a"].reshape(c.o_groups, c.o_lora_rank, -1)
        u = torch.einsum("tgi,gri->tgr", o, wa)
        if self.noise:
            e = torch.randn(u.shape, generator=self.generator, dtype=torch.float64).to(u)
            u = u + self.noise * e * u.pow(2).mean(-1, keepdim=True).sqrt()
        return self.linear(self.r(u).flatten(1), p + "wo_b")

    def attention(self, l, xn, st, first, step, compress=True):
        c, p = self.cfg, "layers.%d.attn." % l
        T, W = len(xn), c.sliding_window
        pos = torch.arange(first, first + T, device=xn.device)
        kv = self.window_kv(xn, p, pos)
        st.append_window(l, first, formats.fake_fp8(kv), formats.window_record(kv.detach()))
        if l in c.kv_source_layer_ids and compress:
            self.compress(l, xn, st, first)
        qr, q = self.query(xn, p, pos)
        if l in c.index_source_layer_ids:
            step["topk"] = self.select(l, xn, qr, st, pos, step)
        w0, wv, _ = st.window[l]
        out, mass = [], []
        for i in range(0, T, QUERY_BLOCK):
            j = min(T, i + QUERY_BLOCK)
            a = max(w0, first + i - W + 1)
            keys = wv[a - w0:first + j - w0]
            kp = torch.arange(a, first + j, device=xn.device)
            mask = (kp[None] <= pos[i:j, None]) & (kp[None] > pos[i:j, None] - W)
            if c.ratio(l) and step["topk"].shape[1]:
                sel = step["topk"][i:j]
                own, ok = st.main[c.kv_source(l)][sel.clamp(min=0)], sel >= 0
            else:
                own, ok = xn.new_zeros(j - i, 0, c.D), torch.zeros(j - i, 0, dtype=torch.bool, device=xn.device)
            o, m = self.attend(q[i:j], keys, mask, own, ok, p)
            out.append(o)
            mass.append(m)
        if c.ratio(l) and l in c.index_source_layer_ids:
            self.note("attention_mass.%d" % l, torch.cat(mass).mean(1))
        return self.project(torch.cat(out), p, pos)

    # blocks

    def layer(self, l, X, a, st, first, step, compress=True):
        c, p = self.cfg, "layers.%d" % l
        if l in c.engram_layer_ids:
            X = self.engram(l, X, st, first)
        if c.M and l in c.dspark_target_layer_ids:
            st.append_tap(l, first, self.r(X.mean(1)))
        X, a = self.mhc_step(X, a, p + ".hc_attn", p + ".attn_norm.weight",
                             lambda xn: self.attention(l, xn, st, first, step, compress))
        vl = torch.tensor(st.dead[first:first + len(X)], device=X.device)
        X, a = self.mhc_step(X, a, p + ".hc_ffn", p + ".ffn_norm.weight",
                             lambda xn: self.moe(xn, p + ".ffn.", c.num_experts_per_tok, vl))
        self.note("X.%d" % l, X)
        self.note("a.%d" % l, a)
        return X, a

    def begin(self, st, tokens, image=None):
        """Append tokens to the state; -> streams X [T, n, d], mix a [T, n]. image: offset in `tokens` -> rows [m, d] of a span."""
        c, first = self.cfg, st.length
        e = self.w["embed.weight"][torch.as_tensor(tokens, device=self.device)]
        dead = [False] * len(tokens)
        for at, rows in (image or {}).items():
            e = torch.cat((e[:at], rows.to(e), e[at + len(rows):]))
            dead[at:at + len(rows)] = [True] * len(rows)
        st.tokens += [int(t) for t in tokens]
        st.dead += dead
        if self.tables:
            st.classes += [int(self.tables.map[t]) for t in tokens]
        return self.streams(e)

    def streams(self, e):
        n = self.cfg.n
        X = self.r(e)[:, None].repeat(1, n, 1)
        a = torch.zeros(len(e), n, dtype=self.dtype, device=self.device)
        a[:, 0] = 1
        return X, a

    def logits(self, X, a):
        h = self.collapse(X, a)
        self.note("hidden", h)
        return self.raw_linear(self.norm(h, "norm.weight"), "head.weight")

    # modes (section 5)

    def forward(self, st, tokens, image=None):
        """Exact: every layer on every token, after whatever `st` holds. -> logits [T, vocab]."""
        first = st.length
        X, a = self.begin(st, tokens, image)
        step = {}
        for l in range(self.cfg.L):
            if l == self.cfg.boundary:
                self.keep_tail(st, first, X, a)
            X, a = self.layer(l, X, a, st, first, step)
        return self.logits(X, a)

    def keep_tail(self, st, first, X, a):
        if st.tail is not None and st.tail[0] + len(st.tail[1]) == first:
            f, X0, a0 = st.tail
            X, a, first = torch.cat((X0, X)), torch.cat((a0, a)), f
        W = self.cfg.sliding_window
        drop = max(0, len(X) - W)
        st.tail = (first + drop, X[drop:], a[drop:])

    def encode(self, st, tokens, image=None, first=None):
        """Encoder layers on tokens, and the boundary layer's compressor (5.2 steps 1, 2). first: the tokens are known already and are
        run again from there (5.4)."""
        c = self.cfg
        if first is None:
            first = st.length
            X, a = self.begin(st, tokens, image)
        else:
            known = (st.tokens, st.dead, st.classes)
            st.tokens, st.dead, st.classes = ([*v[:first]] for v in known)
            X, a = self.begin(st, tokens, image)
            st.tokens, st.dead, st.classes = known
        step = {}
        for l in range(c.boundary):
            X, a = self.layer(l, X, a, st, first, step)
        self.keep_tail(st, first, X, a)
        if c.boundary in c.engram_layer_ids:
            X = self.engram(c.boundary, X, st, first)
        p = "layers.%d." % c.boundary
        self.compress(c.boundary, self.norm(self.collapse(X, a), p + "attn_norm.weight"), st, first)

    def decode_tail(self, st):
        """Decoder layers on the last `sliding_window` tokens with fresh windows (5.2 step 3). -> logits of those tokens."""
        c = self.cfg
        first, X, a = st.tail
        for l in range(c.boundary, c.L):
            st.window.pop(l, None)
            st.tap.pop(l, None)
        step = {}
        for l in range(c.boundary, c.L):
            X, a = self.layer(l, X, a, st, first, step, compress=l != c.boundary)
        return self.logits(X, a)

    def prefill_ced(self, st, tokens, image=None, chunk=None):
        """-> logits of the last min(N, sliding_window) tokens. Spans must not cross a chunk."""
        chunk = chunk or len(tokens)
        for i in range(0, len(tokens), chunk):
            part = tokens[i:i + chunk]
            self.encode(st, part, {k - i: v for k, v in (image or {}).items() if i <= k < i + chunk})
        return self.decode_tail(st)

    def resume(self, st, tokens, image_rows=None):
        """5.4: `st` is a prefix of P tokens after forget_windows(); replay its end, run the suffix `tokens`, then the decoder tail.
        image_rows: embeddings [P, d] rows of the prefix where image spans were (position -> row)."""
        P = st.length
        s = max(0, P - self.cfg.sliding_window)
        again = st.tokens[s:P]
        dead = st.dead[s:P]
        image = {i: image_rows[s + i][None] for i in range(P - s) if dead[i]} if image_rows else None
        self.encode(st, again, image, first=s)
        if len(tokens):
            self.encode(st, tokens)
        return self.decode_tail(st)


def sinkhorn(B, iters, eps):
    """[.., n, n] logits -> nearly doubly stochastic; the first step is a softmax over rows (3.4 step 4)."""
    B = torch.softmax(B, -1) + eps
    B = B / (B.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        B = B / (B.sum(-1, keepdim=True) + eps)
        B = B / (B.sum(-2, keepdim=True) + eps)
    return B
