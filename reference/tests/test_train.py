"""The training forward: against the reference, in exact and in CED form, and its long rows and losses."""
import math
import os
import sys

import pytest

torch = pytest.importorskip("torch")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "reference", "train"))

import check                                        # noqa: E402
import config                                       # noqa: E402
import export                                       # noqa: E402
import model                                        # noqa: E402
import plan                                         # noqa: E402
import quant                                        # noqa: E402
from dsref import formats, losses                   # noqa: E402
from dsref.model import State                       # noqa: E402

TOKENIZER = os.path.join(ROOT, "models", "demo", "tokenizer.json")
SHAPE = dict(config.TINY, sliding_window=16, index_topk=8, candidate_topk_blocks=2, candidate_block_size=8)
N = 96


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    if not os.path.exists(TOKENIZER):
        pytest.skip("no tokenizer")
    folder = str(tmp_path_factory.mktemp("model"))
    masters, biases = check.spread(config.build(TOKENIZER, SHAPE)[1])
    masters = {n: t.to(torch.bfloat16).float() for n, t in masters.items()}
    export.save(folder, TOKENIZER, SHAPE, masters, biases, plain=True)
    return check.Pair(folder, masters, biases, N)


def ids(seed, rows=1, n=N):
    return torch.randint(3, 8000, (rows, n), generator=torch.Generator().manual_seed(seed))


def test_exact_form_is_the_reference(pair):
    t = ids(1)
    e = check.error(pair.logits(t), pair.oracle.forward(State(pair.oracle), t[0].tolist()))
    assert e.median() < 1e-4


def test_cut_windows_are_ced_prefill(pair):
    for seed in (2, 3):
        cut, exact = pair.ced(ids(seed))
        assert cut.median() < 1e-4 and exact.median() > 100 * cut.median()


def test_a_cut_changes_nothing_before_it(pair):
    t = ids(4)
    assert (pair.logits(t, 40)[:40] - pair.logits(t)[:40]).abs().max() < 1e-5
    assert (pair.logits(t, 40)[40:] - pair.logits(t)[40:]).abs().max() > 1e-3


def test_cuts():
    start = torch.zeros(4, 4096, dtype=torch.long)
    start[:, 1000:] = 1000
    c = model.cuts(start, 256, 2, torch.Generator().manual_seed(1))
    assert (c[::2] == start[::2]).all() and (c >= start).all() and (c <= torch.arange(4096)).all()
    assert 8 < len(c[1].unique()) < 30
    assert (c.cummax(1)[0] == c).all()


def test_long_rows_computed_in_parts():
    g = torch.Generator().manual_seed(1)
    b, s, h, d = 2, 96, 2, 32
    parts = [torch.randn(b, s, h, d, generator=g), torch.randn(b, s, d, generator=g), torch.randn(h, generator=g), torch.randn(b, s, d, generator=g)]
    start, sel = torch.zeros(b, s, dtype=torch.long), torch.rand(b, s, s, generator=g) < 0.2

    def run(fn):
        q, kv, sink, ent = leaves = [x.clone().requires_grad_() for x in parts]
        out = fn(q, kv, sink, start, 16, ent, sel)
        out.square().sum().backward()
        return [out, *(x.grad for x in leaves)]

    for x, y in zip(run(model.attend), run(lambda *x: model.attend_rows(model.attend, *x, whole=8))):
        assert (x - y).abs().max() < 1e-4 * x.abs().max()


def test_balance_loss(pair):
    t = ids(5)
    pair.oracle.trace = {}
    pair.oracle.forward(State(pair.oracle), t[0].tolist())
    want = losses.backbone_balance_loss(pair.oracle, 1.0)
    pair.oracle.trace = None
    even = pair.model.forward(pair.w, t, pair.start, pair.biases)[2]
    assert abs(float(even) - float(want)) < 1e-2 * float(want)


def test_e4m3_without_the_type(monkeypatch):
    x = torch.cat([torch.linspace(-500, 500, 4001), torch.linspace(-0.05, 0.05, 4001), torch.tensor([2.0 ** -10, 3 * 2.0 ** -10, 2.0 ** -11, 0.0])])
    monkeypatch.setattr(quant, "FP8", None)
    mine = quant.round_e4m3(x)
    fp8 = getattr(torch, "float8_e4m3fn", None)
    want = x.clamp(-448, 448).to(fp8).float() if fp8 else formats.e4m3_decode(formats.e4m3_encode(x)).float()
    assert (mine == want).all()


def test_plan():
    n, passes = plan.before(None)
    assert 2.5e8 < n < 4e8 and 3.5 < passes <= plan.mix.PASSES
    assert sum(b[2] for b in plan.budget()) < 25 * 60
    rates = [plan.learning_rate(i * n / 1000) for i in range(1000)]
    assert max(rates) == plan.PEAK and rates[0] < 1e-3 and rates[-1] < 0.04 * plan.PEAK and rates[300] == plan.PEAK
    for p in plan.PHASES.values():
        assert p["rows"] * p["seq"] == 65536 and p["mix"] in plan.mix.STAGES


def test_plan_goes_on_where_the_phase_before_ended():
    at = 0
    for name, p in plan.PHASES.items():
        assert plan.before(name)[0] == at
        at += plan.tokens(p)


def test_dense_yardstick():
    import dense
    cfg = config.build(TOKENIZER)[1]
    ours, spec = dense.active(cfg), dense.dense_spec(cfg)
    theirs = sum(math.prod(shape) for n, (shape, _) in spec.items() if n != "embed.weight")
    assert ours <= theirs < 1.01 * ours and 13e6 < ours < 15e6
    if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        return
    cfg = config.build(TOKENIZER, config.TINY)[1]
    g = torch.Generator().manual_seed(1)
    w = {n: torch.ones(s) if std is None else torch.randn(s, generator=g) * std for n, (s, std) in dense.dense_spec(cfg).items()}
    m, t, start = dense.Dense(cfg, 64, "cpu"), ids(6, 1, 64), torch.zeros(1, 64, dtype=torch.long)
    start[:, 32:] = 32
    other = t.clone()
    other[:, :32] = 5
    a, b = m.forward(w, t, start), m.forward(w, other, start)
    assert (a[32:] - b[32:]).abs().max() < 1e-5 and (a[:32] - b[:32]).abs().max() > 1e-2         # documents do not see one another
    other = t.clone()
    other[:, 20:] = 5
    assert (m.forward(w, other, start)[:20] - a[:20]).abs().max() < 1e-5                        # nor the future
