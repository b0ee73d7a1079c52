import pytest

torch = pytest.importorskip("torch")
from refdata import raw_config                                 # noqa: E402
from dsref import engram, losses, synth                         # noqa: E402
from dsref.config import Config                                 # noqa: E402
from dsref.model import Model, State                            # noqa: E402


@pytest.fixture(scope="module")
def trained():
    """A forward pass with gradients, QAT on."""
    cfg = Config(raw_config("tiny-a"))
    w = {k: v.double().requires_grad_() for k, v in synth.weights(cfg, 3).items()}
    tables = engram.Tables(cfg, tokenizer=synth.tokenizer(cfg.vocab_size))
    m = Model(loaded=(cfg, losses.fake_quantised(cfg, w), tables))
    m.trace, m.detach_indexer = {}, True
    tokens = torch.randint(3, 259, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    st = State(m)
    logits = m.forward(st, tokens)
    return m, w, st, tokens, logits


def grads(loss, w):
    g = torch.autograd.grad(loss, list(w.values()), retain_graph=True, allow_unused=True)
    return {k for k, v in zip(w, g) if v is not None and v.abs().max() > 0}, g


def test_cross_entropy_reaches_all_but_indexers_and_drafts(trained):
    m, w, st, tokens, logits = trained
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    got, g = grads(loss, w)
    assert all(torch.isfinite(v).all() for v in g if v is not None)
    missing = {k for k in w if k not in got}
    assert all("indexer" in k or "mtp" in k or "gate.bias" in k or k.startswith(("vision", "aligner", "image")) or "experts" in k
               or k.endswith("_ffn_base") or k.startswith("layers.7.hc_ffn") for k in missing), missing
    assert not any("indexer" in k for k in got)


def test_indexer_loss_reaches_indexers_only(trained):
    m, w, *_ = trained
    got, _ = grads(losses.backbone_indexer_loss(m), w)
    assert got and all(".indexer." in k for k in got)
    assert {"layers.%d.attn.indexer.wq_b" % l for l in m.cfg.index_source_layer_ids} <= got
    assert {"layers.%d.attn.indexer.wk.weight" % l for l in m.cfg.kv_source_layer_ids} <= got


def test_balance_loss(trained):
    m, w, *_ = trained
    loss = losses.backbone_balance_loss(m)
    got, _ = grads(loss, w)
    assert all("layers.%d.ffn.gate.weight" % l in got for l in range(m.cfg.L))
    even = losses.balance_loss(torch.ones(8, 4), torch.tensor([[0, 1], [2, 3]] * 4), 1.0)
    skew = losses.balance_loss(torch.tensor([[4.0, 1, 1, 1]] * 8), torch.tensor([[0, 1]] * 8), 1.0)
    assert even == pytest.approx(1.0) and skew > 1.1


def test_bias_step():
    b = losses.bias_step(torch.zeros(3), torch.tensor([[0], [0], [1]]))
    assert b.tolist() == pytest.approx([-0.001, 0.0, 0.001])
    b = losses.bias_step(torch.zeros(3), torch.tensor([[0], [0], [1]]), torch.tensor([False, False, True]))
    assert b.tolist() == pytest.approx([0.001, -0.001, 0.001])


def test_indexer_kl_is_zero_for_equal_distributions():
    s = torch.randn(4, 9, dtype=torch.float64)
    chosen = torch.tensor([[0, 3, 5], [1, 2, -1], [-1, -1, -1], [8, -1, -1]])
    p = torch.zeros(4, 3, dtype=torch.float64)
    for t in range(4):
        n = int((chosen[t] >= 0).sum())
        if n:
            p[t, :n] = torch.softmax(s[t, chosen[t, :n]], 0) * 0.3
    assert losses.indexer_kl(s, p, chosen).abs() < 1e-9
    assert losses.indexer_kl(s, torch.ones(4, 3), chosen) > 0


def test_draft_loss(trained):
    m, w, st, tokens, logits = trained
    B, anchor = m.cfg.dspark_block_size, 30
    draft, conf = losses.draft_block(m, st, tokens, anchor)
    loss, parts = losses.dspark_loss(draft, logits[anchor:anchor + B], conf, torch.tensor(tokens[anchor + 1:anchor + 1 + B]))
    got, g = grads(loss, w)
    assert {"mtp.0.main_proj", "mtp.2.markov_head.embed.weight", "mtp.2.markov_head.head.weight", "mtp.2.confidence_head.proj.weight",
            "mtp.1.attn.wkv"} <= got
    assert 0 < parts["l1"] < 2 and torch.isfinite(loss)
    # a perfect drafter: no L1, acceptance 1
    _, parts = losses.dspark_loss(logits[:5], logits[:5], torch.full((5,), 30.0, dtype=torch.float64), torch.tensor(tokens[1:6]))
    assert parts["l1"] == 0 and parts["bce"] < 1e-9


def test_draft_block_does_not_see_the_anchor_or_later(trained):
    m, w, st, tokens, logits = trained
    a, _ = losses.draft_block(m, st, tokens, 30)
    changed = State(m)
    m.forward(changed, tokens[:30] + [7] * 30)
    b, _ = losses.draft_block(m, changed, tokens, 30)
    assert (a - b).abs().max() < 1e-9
