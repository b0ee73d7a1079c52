"""Number formats of the specification's section 4, bit for bit, vectorised.

Codes are uint8 tensors, values float32 (all of them exact). Whatever comes in is first rounded to float32, since the rules are stated for
float32 arithmetic. Quantisers act on the last dimension and return (codes, scale bytes); `*_value` gives the numbers back.
"""

import torch

F32 = torch.float32


def _table(values, device):
    return torch.tensor(values, dtype=F32, device=device)


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 = E2M1 + [-v for v in E2M1]
# Border between code i and i + 1, and whether the border itself goes up (ties go to the even code).
E2M1_BORDERS = [(0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)]


def _e4m3_values():
    out = []
    for c in range(256):
        e, m = (c >> 3) & 15, c & 7
        v = float("nan") if c & 0x7f == 0x7f else m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
        out.append(-v if c & 0x80 else v)
    return out


E4M3 = _e4m3_values()


def e2m1_encode(x):
    x = x.to(F32)
    a = x.abs()
    code = torch.zeros(a.shape, dtype=torch.uint8, device=a.device)
    for border, up in E2M1_BORDERS:
        code += ((a >= border) if up else (a > border)).to(torch.uint8)
    return code + torch.signbit(x).to(torch.uint8) * 8


def e2m1_decode(code):
    return _table(E2M1, code.device)[code.long()]


def e4m3_encode(x):
    """Nearest even, clamped to +-448."""
    x = x.to(F32)
    a = x.abs().clamp(max=448.0).double()
    _, e = torch.frexp(a)
    e = torch.where(a == 0, torch.full_like(e, -6), e - 1).clamp(min=-6).double()
    q = torch.round(a / torch.pow(2.0, e - 3))
    code = ((e + 7) * 8 + q - 8).to(torch.uint8)
    return code + torch.signbit(x).to(torch.uint8) * 128


def e4m3_decode(code):
    return _table(E4M3, code.device)[code.long()]


def e8m0_decode(b):
    """2^(b - 127) as float32 (b = 0 is the subnormal 2^-127); 255 gives NaN."""
    v = torch.pow(torch.tensor(2.0, dtype=torch.float64, device=b.device), b.double() - 127)
    return torch.where(b == 255, torch.full_like(v, float("nan")), v).to(F32)


def e8m0_ceil(x):
    """Byte of the smallest power of two >= x (x > 0, float32)."""
    m, e = torch.frexp(x.to(F32))
    return (torch.where(m == 0.5, e - 1, e) + 127).clamp(0, 254).to(torch.uint8)


def _groups(x, size):
    return x.to(F32).reshape(*x.shape[:-1], x.shape[-1] // size, size)


def bf16(x):
    """Round to bfloat16, keep the dtype."""
    return x.to(torch.bfloat16).to(x.dtype)


# FP8 activations and window KV: groups of 32.

def fp8_quant(x):
    g = _groups(x, 32)
    amax = g.abs().amax(-1).clamp(min=1e-4)
    sb = e8m0_ceil(amax * torch.tensor(1.0 / 448.0, dtype=F32, device=x.device))
    code = e4m3_encode((g / e8m0_decode(sb)[..., None]).clamp(-448, 448))
    return code.reshape(x.shape), sb


def fp8_value(code, sb):
    g = code.reshape(*code.shape[:-1], -1, 32)
    return (e4m3_decode(g) * e8m0_decode(sb)[..., None]).reshape(code.shape)


# MXFP4 indexer query and key: groups of 32.

def mxfp4_quant(x):
    g = _groups(x, 32)
    amax = g.abs().amax(-1).clamp(min=6 * 2.0 ** -126)
    sb = e8m0_ceil(amax / 6)
    code = e2m1_encode((g / e8m0_decode(sb)[..., None]).clamp(-6, 6))
    return code.reshape(x.shape), sb


def mxfp4_value(code, sb):
    g = code.reshape(*code.shape[:-1], -1, 32)
    return (e2m1_decode(g) * e8m0_decode(sb)[..., None]).reshape(code.shape)


# Main KV: groups of 16 with an E4M3 scale.

def kv4_quant(x):
    g = _groups(x, 16)
    sb = e4m3_encode(g.abs().amax(-1).clamp(min=6 * 2.0 ** -9) / 6)
    code = e2m1_encode((g / e4m3_decode(sb)[..., None]).clamp(-6, 6))
    return code.reshape(x.shape), sb


def kv4_value(code, sb):
    g = code.reshape(*code.shape[:-1], -1, 16)
    return (e2m1_decode(g) * e4m3_decode(sb)[..., None]).reshape(code.shape)


def pack4(code):
    """Element 2i in the low nibble of byte i."""
    return code[..., 0::2] | (code[..., 1::2] << 4)


def unpack4(b):
    return torch.stack((b & 15, b >> 4), -1).reshape(*b.shape[:-1], -1)


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, quant, value):
        return value(*quant(x)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g, None, None


def fake_fp8(x):
    """Quantise and dequantise; the gradient passes straight through. The same holds for the next two."""
    return _Straight.apply(x, fp8_quant, fp8_value)


def fake_mxfp4(x):
    return _Straight.apply(x, mxfp4_quant, mxfp4_value)


def fake_kv4(x):
    return _Straight.apply(x, kv4_quant, kv4_value)


# Cache records (4.4): codes first, then scales. FP8 codes are single bytes, FP4 codes are packed.

def window_record(x):
    c, s = fp8_quant(x)
    return torch.cat((c, s), -1)


def index_record(x):
    c, s = mxfp4_quant(x)
    return torch.cat((pack4(c), s), -1)


def main_record(x):
    c, s = kv4_quant(x)
    return torch.cat((pack4(c), s), -1)


# Weights.

def _spread(sb, rows, cols):
    return sb.repeat_interleave(32, 0)[:rows].repeat_interleave(32, 1)[:, :cols]


def fp8_weight_quant(w):
    """[o, i] -> E4M3 codes [o, i] and E8M0 bytes [ceil(o/32), ceil(i/32)]. A block of zeros gets scale 1."""
    o, i = w.shape
    po, pi = -o % 32, -i % 32
    p = torch.nn.functional.pad(w.to(F32), (0, pi, 0, po))
    amax = p.reshape((o + po) // 32, 32, (i + pi) // 32, 32).abs().amax((1, 3))
    sb = torch.where(amax == 0, torch.full_like(amax, 127).to(torch.uint8), e8m0_ceil(amax / 448))
    return e4m3_encode(w.to(F32) / _spread(e8m0_decode(sb), o, i)), sb


def fp8_weight_value(code, sb):
    return e4m3_decode(code) * _spread(e8m0_decode(sb), *code.shape)


def mxfp4_weight_quant(w):
    """[o, i] -> packed bytes [o, i/2] and E8M0 bytes [o, i/32]. A group of zeros gets scale 1."""
    g = _groups(w, 32)
    amax = g.abs().amax(-1)
    sb = torch.where(amax == 0, torch.full_like(amax, 127).to(torch.uint8), e8m0_ceil(amax / 6))
    code = e2m1_encode((g / e8m0_decode(sb)[..., None]).clamp(-6, 6))
    return pack4(code.reshape(w.shape)), sb


def mxfp4_weight_value(packed, sb):
    return mxfp4_value(unpack4(packed), sb)


def rows_quant(w):
    """Engram table: FP8 in groups of 32 inside the row. A group of zeros gets scale 1."""
    g = _groups(w, 32)
    amax = g.abs().amax(-1)
    sb = torch.where(amax == 0, torch.full_like(amax, 127).to(torch.uint8), e8m0_ceil(amax / 448))
    return e4m3_encode(g / e8m0_decode(sb)[..., None]).reshape(w.shape), sb


def fake_fp8_weight(w):
    return _Straight.apply(w, fp8_weight_quant, fp8_weight_value)


def fake_mxfp4_weight(w):
    return _Straight.apply(w, mxfp4_weight_quant, mxfp4_weight_value)


def fake_rows(w):
    return _Straight.apply(w, rows_quant, fp8_value)
