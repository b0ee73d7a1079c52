import json
import math
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from refdata import ROOT                                       # noqa: E402
from dsref import dspark, formats, run                          # noqa: E402
from dsref.model import Model, State, rope_frequencies, sinkhorn, top_k     # noqa: E402


def prompt(model, n, seed=0):
    return np.random.default_rng(seed).integers(3, 259, n).tolist()


def records(st):
    return [st.window[l][2] for l in sorted(st.window)] + [d[s] for d in (st.main_records, st.key_records) for s in sorted(d)]


@torch.no_grad()
def exact(model, tokens, chunk=None, image=None):
    st = State(model)
    chunk = chunk or len(tokens)
    return torch.cat([model.forward(st, tokens[i:i + chunk]) for i in range(0, len(tokens), chunk)]), st


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunks_equal_the_whole(model, chunk):
    t = prompt(model, 90)
    a, sa = exact(model, t)
    b, sb = exact(model, t, chunk)
    assert (a - b).abs().max() < 1e-9
    assert all((x == y).all() for x, y in zip(records(sa), records(sb)))


@torch.no_grad()
def test_ced_is_exact_up_to_a_window_and_not_beyond(model):
    W = model.cfg.sliding_window
    for n in (1, 2, W - 1, W):
        t = prompt(model, n)
        a, _ = exact(model, t)
        assert (model.prefill_ced(State(model), t) - a).abs().max() < 1e-9
    t = prompt(model, 3 * W)
    a, _ = exact(model, t)
    b = model.prefill_ced(State(model), t)
    assert len(b) == W and (b - a[-W:]).abs().max() > 1e-4
    for chunk in (1, 5, 17):
        assert (model.prefill_ced(State(model), t, chunk=chunk) - b).abs().max() < 1e-9


@torch.no_grad()
def test_decoding_goes_on_after_ced(model):
    W = model.cfg.sliding_window
    t = prompt(model, W + 9)
    st = State(model)
    model.prefill_ced(st, t[:W])
    b = model.forward(st, t[W:])
    a, _ = exact(model, t)
    assert (b - a[W:]).abs().max() < 1e-9


@torch.no_grad()
@pytest.mark.parametrize("P", [1, 5, 15, 16])
def test_replay_of_a_prefix_inside_the_window_changes_nothing(model, P):
    t = prompt(model, 40)
    a = model.prefill_ced(State(model), t)
    st = State(model)
    model.prefill_ced(st, t[:P])
    st.forget_windows()
    assert (model.resume(st, t[P:]) - a).abs().max() < 1e-9


@torch.no_grad()
@pytest.mark.parametrize("P", [33, 34, 39])
def test_replay_never_rewrites_entries(model, P):
    t = prompt(model, 40)
    st = State(model)
    model.prefill_ced(st, t[:P])
    before = {s: r.clone() for s, r in st.main_records.items()}
    st.forget_windows()
    model.resume(st, t[P:])
    for s in before:
        assert (st.main_records[s][:len(before[s])] == before[s]).all()
        assert len(st.main_records[s]) == 40 // model.cfg.ratio(s)


@torch.no_grad()
def test_speculation_gives_plain_greedy_output(model):
    if not model.cfg.M:
        pytest.skip("no drafts")
    t = prompt(model, 30)
    st = State(model)
    token = int(model.forward(st, t)[-1].argmax())
    plain = []
    for _ in range(20):
        plain.append(token)
        token = int(model.forward(st, [token])[-1].argmax())
    st = State(model)
    token, out, lengths = int(model.forward(st, t)[-1].argmax()), [], set()
    while len(out) < 20:
        d = dspark.draft(model, st, token)["drafts"]
        step = len(out)
        if step % 3 == 0:           # some right drafts, whatever the drafter says
            d = plain[step + 1:step + 3] + d[2:]
        ok, following, _ = dspark.verify(model, st, token, d)
        out += [token] + ok
        lengths.add(len(ok))
        token = following
        assert st.length == 30 + len(out)
    assert out[:20] == plain and len(lengths) > 1


@torch.no_grad()
def test_draft_ring_sees_a_window(model):
    """Positions more than a window back don't change drafts; the last ones do."""
    if not model.cfg.M:
        pytest.skip("no drafts")
    st = State(model)
    model.forward(st, prompt(model, 40))
    first, rings, _ = dspark.context(model, st)
    x = dspark.blocks(model, first, rings, 39, [5, 259, 259])
    far = [r.clone() for r in rings]
    near = [r.clone() for r in rings]
    for r in far:
        r[:40 - model.cfg.sliding_window] += 1
    for r in near:
        r[40 - model.cfg.sliding_window] += 1
    assert (dspark.blocks(model, first, far, 39, [5, 259, 259]) - x).abs().max() < 1e-12
    assert (dspark.blocks(model, first, near, 39, [5, 259, 259]) - x).abs().max() > 1e-6


@torch.no_grad()
def test_attention_against_loops(model):
    """One layer with a compressed branch, computed once more from the state with plain loops over heads and entries."""
    c = model.cfg
    l = c.kv_source_layer_ids[0]
    p = "layers.%d.attn." % l
    t = prompt(model, 45)
    _, st = exact(model, t)
    g = torch.Generator().manual_seed(3)
    xn = torch.randn(1, c.d, generator=g, dtype=torch.float64)
    first = st.length
    step = {}
    model.trace = {}
    y = model.attention(l, xn, st, first, step)
    sel = model.trace["topk.%d" % l][-1][0].tolist()
    model.trace = None
    pos = torch.tensor([first])
    qr, q = model.query(xn, p, pos)
    # selection
    iq = formats.fake_mxfp4(model.rotate((model.w["layers.%d.attn.indexer.wq_b" % l] @ qr[0]).reshape(1, c.index_n_heads, -1), pos, True))[0]
    gw = model.w["layers.%d.attn.indexer.weights_proj.weight" % l] @ xn[0] / math.sqrt(c.index_head_dim * c.index_n_heads)
    V = (first + 1) // c.ratio(l)
    score = [sum(float(gw[h]) * max(0.0, float(iq[h] @ st.keys[l][j])) for h in range(c.index_n_heads)) for j in range(V)]
    order = sorted(range(V), key=lambda j: (-score[j], j))[:c.index_topk]
    assert sorted(order) == [s for s in sel if s >= 0]
    # attention
    w0, wv, _ = st.window[l]
    entries = [wv[k - w0] for k in range(max(0, first - c.sliding_window + 1), first + 1)] + [st.main[l][j] for j in order]
    heads = []
    for h in range(c.num_attention_heads):
        s = [float(q[0, h] @ e) / math.sqrt(c.D) for e in entries]
        sink = float(model.w[p + "attn_sink"][h])
        M = max(s)
        den = sum(math.exp(v - M) for v in s) + math.exp(sink - M)
        heads.append(sum(math.exp(v - M) * e for v, e in zip(s, entries)) / den)
    o = model.rotate(torch.stack(heads)[None], pos, True, inverse=True)[0]
    per = c.num_attention_heads // c.o_groups
    u = [model.w[p + "wo_a"][i * c.o_lora_rank:(i + 1) * c.o_lora_rank] @ o[i * per:(i + 1) * per].flatten() for i in range(c.o_groups)]
    assert (model.w[p + "wo_b"] @ torch.cat(u) - y[0]).abs().max() < 1e-9


@torch.no_grad()
def test_candidate_pool_against_loops(model):
    c = model.cfg
    if c.candidate_source_layer_id < 0:
        pytest.skip("no candidate pool")
    g = torch.Generator().manual_seed(4)
    E = 50
    visible = torch.tensor([0, 1, 3, 20, 49, 50])
    score = torch.randn(6, E, generator=g, dtype=torch.float64).clamp(min=0)        # many ties at zero
    score[torch.arange(E)[None] >= visible[:, None]] = -math.inf
    got = model.pool(score, visible)
    for t in range(6):
        v, size = int(visible[t]), c.candidate_block_size
        blocks = []
        for b in range(-(-v // size)):
            s = math.inf if b == (v - 1) // size else max(score[t, b * size:min(v, (b + 1) * size)].tolist())
            blocks.append((-s, b))
        kept = {b for _, b in sorted(blocks)[:c.candidate_topk_blocks]}
        assert {j for j in range(v) if got[t, j]} == {j for j in range(v) if j // size in kept}


def test_top_k_ties():
    x = torch.tensor([[0.0, -0.0, 1.0, 0.0, 1.0, -1.0]])
    assert top_k(x, 4).tolist() == [[2, 4, 0, 1]]


def test_sinkhorn_is_nearly_doubly_stochastic():
    B = sinkhorn(torch.randn(50, 4, 4, dtype=torch.float64), 20, 1e-6)
    assert (B.sum(-2) - 1).abs().max() < 1e-5 and (B.sum(-1) - 1).abs().max() < 1e-3 and (B > 0).all()


def test_yarn_of_the_released_model():
    class Real:
        rd, rope_theta, compress_rope_theta = 64, 10000, 160000
        rope_scaling = dict(factor=16, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1)
    plain = torch.tensor([160000.0 ** (-2 * i / 64) for i in range(32)])
    f = rope_frequencies(Real, True)
    ratio = (f / plain).tolist()
    assert all(abs(r - 1) < 1e-6 for r in ratio[:16]) and all(abs(r - 1 / 16) < 1e-6 for r in ratio[25:]) and 1 / 16 < ratio[20] < 1
    assert rope_frequencies(Real, False)[1].item() == pytest.approx(10000 ** (-2 / 64))


def test_rotation_round_trip(model):
    x = torch.randn(5, 2, model.cfg.D, dtype=torch.float64)
    pos = torch.tensor([0, 1, 7, 100, 4000])
    y = model.rotate(x, pos, True)
    assert (y[0] == x[0]).all() and (y[..., :-model.cfg.rd] == x[..., :-model.cfg.rd]).all()
    assert (model.rotate(y, pos, True, inverse=True) - x).abs().max() < 1e-6


@torch.no_grad()
def test_bf16_mode_is_close_and_other(model):
    t = prompt(model, 40)
    a, _ = exact(model, t)
    b, _ = exact(Model(act="bf16", loaded=(model.cfg, model.w, model.tables)), t)
    d = (a - b).abs().amax(1) / a.abs().amax(1)
    assert 1e-4 < d.median() < 2e-2
    c, _ = exact(Model(loaded=(model.cfg, model.w, model.tables), quant_inputs=True), t)
    assert 1e-4 < ((a - c).abs().amax(1) / a.abs().amax(1)).median() < 2e-1


@torch.no_grad()
def test_f32_arithmetic_is_close(model):
    t = prompt(model, 12)
    a, _ = exact(model, t)
    w = {k: v.float() for k, v in model.w.items()}
    b, _ = exact(Model(loaded=(model.cfg, w, model.tables), dtype=torch.float32), t)
    assert (a - b).abs().median() < 1e-5


@torch.no_grad()
def test_golden_rows_come_out_again(model):
    folder = os.path.join(ROOT, "tests", "golden", model.name)
    with open(os.path.join(folder, "golden.json")) as f:
        cases = {c["name"]: c for c in json.load(f)["cases"]}
    for name in ("n17-exact", "n40-ced", "n40-replay33"):
        c = cases[name]
        want = np.load(os.path.join(folder, c["logits"]))
        st = State(model)
        if c["mode"] == "exact":
            got = model.forward(st, c["tokens"])
        else:
            P = c.get("prefix", len(c["tokens"]))
            got = model.prefill_ced(st, c["tokens"][:P])
            if P < len(c["tokens"]):
                st.forget_windows()
                got = model.resume(st, c["tokens"][P:])
        got = got[[p - len(c["tokens"]) for p in c["positions"]]].numpy()
        ok = np.array(c["stable"], bool)
        assert np.abs(got - want)[ok].max() < 1e-5


def test_command(model, tmp_path):
    path = os.path.join(ROOT, "tests", "golden", model.name, "model")
    out = str(tmp_path / "x.npy")
    run.main(["--model", path, "--tokens", "5,6,7,8,9", "--mode", "ced", "--replay", "3", "--last", "2", "--out", out])
    x = np.load(out)
    assert x.dtype == np.float32 and x.shape == (2, model.cfg.vocab_size)
