"""Number formats of the checkpoint: rounding to E2M1, E4M3 and power-of-two scales, fake quantisation with straight-through
gradients, and packing of weights. Everything is exact: the packed form of a fake-quantised weight decodes to the same value."""

import torch

E4M3_MAX = 448.0
FLT_MIN_EXP = 2.0 ** -126
FP8 = getattr(torch, "float8_e4m3fn", None)     # an old PyTorch has none: it can compute, not export


def pow2_ceil(x):
    """Smallest power of two >= x, for positive normal f32 x."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x7FFFFF) & -0x800000).view(torch.float32)


def round_e2m1(x):
    """Nearest E2M1 value, ties to the even code, saturating at 6. Keeps the sign of zero out of the question: -0 == 0."""
    a = x.abs().clamp(max=6.0)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    v = torch.round(a / step) * step
    return torch.where(x < 0, -v, v)


def round_e4m3(x):
    x = x.clamp(-E4M3_MAX, E4M3_MAX)
    if FP8:
        return x.to(FP8).to(torch.float32)
    step = (x.abs().contiguous().view(torch.int32) & 0x7F800000).view(torch.float32).clamp(min=2.0 ** -6) / 8
    return torch.round(x / step) * step


def _groups(x, g):
    return x.float().unflatten(-1, (x.shape[-1] // g, g))


def fp8_act(x):
    """Window KV: E4M3 in groups of 32 along the last dimension."""
    v = _groups(x, 32)
    s = pow2_ceil(v.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1.0 / 448.0))
    return (round_e4m3(v / s) * s).flatten(-2).to(x.dtype)


def fp4_kv(x):
    """Main KV: E2M1 in groups of 16 with an E4M3 scale."""
    v = _groups(x, 16)
    s = round_e4m3(v.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0 ** -9) / 6.0)
    return (round_e2m1((v / s).clamp(-6, 6)) * s).flatten(-2).to(x.dtype)


def mxfp4_scale(v):
    return pow2_ceil(v.abs().amax(-1, keepdim=True).clamp(min=6 * FLT_MIN_EXP) / 6.0)


def mxfp4(x):
    """Index queries, index keys and expert weights: E2M1 in groups of 32 with a power-of-two scale."""
    v = _groups(x, 32)
    s = mxfp4_scale(v)
    return (round_e2m1((v / s).clamp(-6, 6)) * s).flatten(-2).to(x.dtype)


def _blocks(w):
    o, i = w.shape[-2:]
    return w.float().unflatten(-1, (i // 32, 32)).unflatten(-3, (o // 32, 32))     # [.., O, 32, I, 32]


def fp8_block_scale(b):
    return pow2_ceil(b.abs().amax((-3, -1), keepdim=True).clamp(min=1e-4) * (1.0 / 448.0))


def fp8_block(w):
    """Dense linears: E4M3 in 32x32 blocks with a power-of-two scale. Both sides must be multiples of 32."""
    b = _blocks(w)
    s = fp8_block_scale(b)
    return (round_e4m3(b / s) * s).flatten(-2).flatten(-3, -2).to(w.dtype)


def ste(x, q):
    """Value of q, gradient of x."""
    return x + (q - x).detach()


def pack_fp8_block(w):
    """(E4M3 weight [o, i], E8M0 scale [o/32, i/32] as bytes)"""
    b = _blocks(w)
    s = fp8_block_scale(b)
    q = (b / s).clamp(-E4M3_MAX, E4M3_MAX).flatten(-2).flatten(-3, -2).to(FP8)
    return q, e8m0(s[..., 0, :, 0])


def pack_fp8_rows(w):
    """Engram rows: (E4M3 [rows, width], E8M0 [rows, width/32])"""
    v = _groups(w, 32)
    s = pow2_ceil(v.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1.0 / 448.0))
    return (v / s).clamp(-E4M3_MAX, E4M3_MAX).flatten(-2).to(FP8), e8m0(s[..., 0])


def pack_mxfp4(w):
    """(int8 [o, i/2] with element 2i in the low nibble, E8M0 scale [o, i/32])"""
    v = _groups(w, 32)
    s = mxfp4_scale(v)
    x = (v / s).clamp(-6, 6)
    q = round_e2m1(x).flatten(-2)
    code = (q.abs() * 2).round().long()
    code = torch.tensor([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], device=w.device)[code]
    code = torch.where(torch.signbit(x.flatten(-2)), code + 8, code)
    return (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8).view(torch.int8), e8m0(s[..., 0])


def e8m0(s):
    return ((s.contiguous().view(torch.int32) >> 23) & 0xFF).to(torch.uint8)


def unpack_mxfp4(q, scale):
    lut = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6], device=q.device)
    b = q.view(torch.uint8).long()
    v = torch.stack([lut[b & 15], lut[b >> 4]], -1).flatten(-2)
    return (_groups(v, 32) * from_e8m0(scale)[..., None]).flatten(-2)


def from_e8m0(b):
    return (b.to(torch.int32) << 23).view(torch.float32)
