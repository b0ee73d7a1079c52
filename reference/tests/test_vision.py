import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from refdata import raw_config                                 # noqa: E402
from dsref import engram, synth, vision                         # noqa: E402
from dsref.config import Config                                 # noqa: E402
from dsref.model import Model, State                            # noqa: E402


@pytest.fixture(scope="module")
def seeing():
    cfg = Config(raw_config("tiny-a"))
    w = {k: v.double() for k, v in synth.weights(cfg, 5).items()}
    return Model(loaded=(cfg, w, engram.Tables(cfg, tokenizer=synth.tokenizer(cfg.vocab_size))))


def test_sizes_of_the_released_model():
    v = types.SimpleNamespace(patch=14, down=3, max_tokens=1024, min_pixels=295936, max_wh_ratio=None)
    cfg = types.SimpleNamespace(vision=v)
    table = [(1, 1, 184, (546, 546), (13, 13)), (640, 480, 206, (644, 490), (12, 16)), (978, 479, 302, (980, 490), (12, 24)),
             (1920, 1080, 968, (1708, 966), (23, 41)), (3024, 4032, 1010, (1134, 1512), (36, 27)), (158, 10000, 762, (126, 7966), (190, 3)),
             (16809, 11841, 990, (1540, 1092), (26, 37))]
    for w, h, tokens, size, grid in table:
        f = vision.fit(cfg, w, h)
        assert (f["tokens"], f["size"], f["grid"]) == (tokens, size, grid)


def test_patches_are_channel_major():
    cfg = types.SimpleNamespace(vision=types.SimpleNamespace(patch=2))
    px = torch.arange(4 * 6 * 3, dtype=torch.uint8).reshape(4, 6, 3)
    x, nh, nw = vision.patches(cfg, px)
    assert (nh, nw) == (2, 3)
    v = [px[y, x_, c].item() for c in range(3) for y in (2, 3) for x_ in (4, 5)]
    want = ((torch.tensor(v).float() / 255 - 0.5) / 0.5).to(torch.bfloat16).double()
    assert (x[5] == want).all()


@torch.no_grad()
def test_aligner_cells(seeing):
    """The first cell's vector index is channel * 9 + dy * 3 + dx, and the border is zero-padded."""
    v = seeing.cfg.vision
    x = torch.randn(4 * 5, v.dim, dtype=torch.float64)
    rows, gh, gw = vision.align(seeing, x, 4, 5)
    assert (gh, gw) == (2, 2) and rows.shape == (4, seeing.cfg.d)
    grid = torch.zeros(6, 6, v.dim, dtype=torch.float64)
    grid[:4, :5] = x.reshape(4, 5, -1)
    for at, (y0, x0) in enumerate(((0, 0), (0, 3), (3, 0), (3, 3))):
        cell = torch.stack([grid[y0 + dy, x0 + dx, c] for c in range(v.dim) for dy in range(3) for dx in range(3)])
        h = torch.nn.functional.gelu(seeing.w["aligner.w1.weight"] @ cell + seeing.w["aligner.w1.bias"])
        assert (seeing.w["aligner.w2.weight"] @ h + seeing.w["aligner.w2.bias"] - rows[at]).abs().max() < 1e-9


@torch.no_grad()
def test_span_layout_and_chunks(seeing):
    px = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (70, 98, 3)).astype(np.uint8))
    rows = vision.span(seeing, px)
    assert len(rows) == 2 * 4 + 2
    assert (rows[0] == seeing.w["image_start"]).all() and (rows[-1] == seeing.w["image_end"]).all()
    assert (rows[4] == seeing.w["image_newline"]).all() and (rows[8] == seeing.w["image_newline"]).all()
    text = list(range(40, 60))
    ids = text[:10] + [266] * 10 + text[10:]
    st = State(seeing)
    whole = seeing.forward(st, ids, {10: rows})
    st2 = State(seeing)
    parts = [seeing.forward(st2, ids[:7]), seeing.forward(st2, ids[7:25], {3: rows}), seeing.forward(st2, ids[25:])]
    assert (torch.cat(parts) - whole).abs().max() < 1e-9
    ced = seeing.prefill_ced(State(seeing), ids, {10: rows})
    assert len(ced) == 16
    # replay over a span needs its rows again
    st3 = State(seeing)
    seeing.prefill_ced(st3, ids[:25], {10: rows})
    st3.forget_windows()
    again = {10 + i: r for i, r in enumerate(rows)}
    assert torch.isfinite(seeing.resume(st3, ids[25:], again)).all()


@torch.no_grad()
def test_span_tokens_use_their_own_router_bias_and_no_engram(seeing):
    px = torch.zeros(42, 42, 3, dtype=torch.uint8)
    rows = vision.span(seeing, px)
    ids = [40, 41] + [266] * len(rows) + [42, 43]
    st = State(seeing)
    a = seeing.forward(st, ids, {2: rows})
    keep = {k: v.clone() for k, v in seeing.w.items() if k.endswith("bias_vl")}
    for k in keep:
        seeing.w[k] = keep[k] + torch.randn(keep[k].shape, dtype=torch.float64)
    b = seeing.forward(State(seeing), ids, {2: rows})
    seeing.w.update(keep)
    assert (a[:2] - b[:2]).abs().max() < 1e-9 and (a[2:] - b[2:]).abs().max() > 1e-6
    t = seeing.tables
    first_after = t.ids(0, st.classes, st.dead)[2 + len(rows)]
    alone = t.ids(0, [st.classes[2 + len(rows)]], [False])[0]
    assert (first_after == alone).all()


def test_padding_follows_pillow(seeing):
    Image = pytest.importorskip("PIL.Image")
    im = Image.fromarray(np.full((10, 60, 3), 200, np.uint8))
    px = vision.prepare(seeing.cfg, im)
    f = vision.fit(seeing.cfg, 60, 10)
    assert tuple(px.shape) == (f["size"][1], f["size"][0], 3)
    assert set(np.unique(px.numpy())) <= {127, 200}
