import pytest

torch = pytest.importorskip("torch")
import refdata        # noqa: E402,F401
from dsref import formats as f      # noqa: E402


def test_e2m1_every_code_and_every_border():
    codes = torch.arange(16, dtype=torch.uint8)
    assert (f.e2m1_encode(f.e2m1_decode(codes)) == codes).all()
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 1e9, -0.1, -0.0])
    assert f.e2m1_decode(f.e2m1_encode(x)).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6, 0, 0]
    assert f.e2m1_encode(torch.tensor([-0.1])).item() == 8


def test_e4m3_every_code():
    codes = torch.tensor([c for c in range(256) if c & 0x7f != 0x7f], dtype=torch.uint8)
    assert (f.e4m3_encode(f.e4m3_decode(codes)) == codes).all()
    assert f.e4m3_decode(torch.tensor([0x7e, 0x01, 0x08, 0x38], dtype=torch.uint8)).tolist() == [448, 2.0 ** -9, 2.0 ** -6, 1]


def test_e4m3_rounds_to_nearest_even():
    values = [f.E4M3[c] for c in range(0x7f)]
    for c in range(0x7e):
        mid = (values[c] + values[c + 1]) / 2
        x = torch.tensor([mid, mid * (1 - 1e-6), mid * (1 + 1e-6)])
        assert f.e4m3_encode(x).tolist() == [c + c % 2, c, c + 1]
        assert (f.e4m3_encode(-x) == f.e4m3_encode(x) + 128).all()
    assert f.e4m3_encode(torch.tensor([449.0, 1e30])).tolist() == [0x7e, 0x7e]


def test_e4m3_agrees_with_pytorch():
    if not hasattr(torch, "float8_e4m3fn"):
        pytest.skip("this PyTorch has no float8")
    x = torch.randn(100000) * torch.pow(2.0, torch.randint(-12, 9, (100000,)).float())
    assert (f.e4m3_encode(x) == x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)).all()


def test_e8m0_ceil():
    x = torch.tensor([1.0, 1.0000001, 0.5, 0.75, 3.0, 4.0])
    assert (f.e8m0_ceil(x).int() - 127).tolist() == [0, 1, -1, 0, 2, 2]
    assert torch.isnan(f.e8m0_decode(torch.tensor([255], dtype=torch.uint8))).all()


def test_scales():
    x = torch.zeros(1, 32)
    assert f.fp8_quant(x)[1].item() == f.e8m0_ceil(torch.tensor(1e-4) / 448).item()
    assert f.mxfp4_quant(x)[1].item() == 1                      # 2^-126
    assert f.kv4_quant(x[:, :16])[1].item() == 1                # 2^-9
    x[0, 5] = 6.0
    assert f.mxfp4_quant(x)[1].item() == 127
    x[0, 5] = 6.001
    assert f.mxfp4_quant(x)[1].item() == 128
    x[0, 5] = 448.0
    assert f.fp8_quant(x)[1].item() == 127


def test_main_kv_clamps_after_a_scale_rounded_down():
    x = torch.zeros(1, 16)
    x[0, 0] = 6 * 1.05              # scale 1.05 rounds to 1.0
    c, s = f.kv4_quant(x)
    assert f.e4m3_decode(s).item() == 1 and f.kv4_value(c, s)[0, 0] == 6


def test_records_have_the_released_sizes():
    x = torch.randn(3, 512)
    assert f.main_record(x).shape[1] == 288 and f.window_record(x).shape[1] == 528 and f.index_record(x[:, :128]).shape[1] == 68


@pytest.mark.parametrize("quant,value,shape", [(f.fp8_weight_quant, f.fp8_weight_value, (70, 96)), (f.mxfp4_weight_quant, f.mxfp4_weight_value, (5, 64)),
                                               (f.rows_quant, f.fp8_value, (9, 64))])
def test_weight_quantisation_is_idempotent(quant, value, shape):
    w = torch.randn(*shape) * torch.pow(2.0, torch.randint(-6, 6, shape).float())
    q = value(*quant(w))
    assert (value(*quant(q)) == q).all() and (q - w).abs().max() < w.abs().max() / 4.9  # between the codes 4 and 6 an error of 1, where the largest is 5 at least


def test_packing():
    c = torch.randint(0, 16, (3, 8), dtype=torch.uint8)
    assert (f.unpack4(f.pack4(c)) == c).all() and f.pack4(torch.tensor([[3, 10]], dtype=torch.uint8)).item() == 0xa3
