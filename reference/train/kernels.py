"""Operations that PyTorch's compiler does badly, as Triton kernels with a plain PyTorch twin for the CPU.

sinkhorn   4x4 doubly stochastic projection; the backward pass solves the implicit linear system instead of unrolling.
mix_update X_k <- post_k y + sum_j B_jk X_j and its gradients, one pass over the streams.
topk_mask  marks the k largest of each row, ties to the lower index, never an entry that is -inf."""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

N_STREAMS = 4

if triton is not None:
    @triton.jit
    def _sinkhorn_fwd(x_ptr, out_ptr, rows, iters, eps, BLOCK: tl.constexpr):
        n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        j = tl.arange(0, 4)
        offs = n[:, None, None] * 16 + j[None, :, None] * 4 + j[None, None, :]
        ok = (n < rows)[:, None, None]
        x = tl.load(x_ptr + offs, mask=ok, other=0.0)
        x = tl.exp(x - tl.max(x, axis=2, keep_dims=True))
        b = x / tl.sum(x, axis=2, keep_dims=True) + eps
        b = b / (tl.sum(b, axis=1, keep_dims=True) + eps)
        for _ in range(iters - 1):
            b = b / (tl.sum(b, axis=2, keep_dims=True) + eps)
            b = b / (tl.sum(b, axis=1, keep_dims=True) + eps)
        tl.store(out_ptr + offs, b, mask=ok)

    @triton.jit
    def _sinkhorn_bwd(b_ptr, g_ptr, out_ptr, rows, iters, BLOCK: tl.constexpr):
        n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        j = tl.arange(0, 4)
        offs = n[:, None, None] * 16 + j[None, :, None] * 4 + j[None, None, :]
        ok = (n < rows)[:, None, None]
        b = tl.load(b_ptr + offs, mask=ok, other=0.0)
        g = tl.load(g_ptr + offs, mask=ok, other=0.0)
        u = tl.sum(b * g, axis=2, keep_dims=True) * 0.0
        v = tl.sum(b * g, axis=1, keep_dims=True)
        for _ in range(iters):
            u = tl.sum(b * (g - v), axis=2, keep_dims=True)
            v = tl.sum(b * (g - u), axis=1, keep_dims=True)
        tl.store(out_ptr + offs, b * (g - u - v), mask=ok)

    @triton.jit
    def _mix_fwd(x_ptr, y_ptr, post_ptr, b_ptr, out_ptr, D: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, BLOCK)
        ok = d < D
        x = x_ptr + t * 4 * D + d
        x0 = tl.load(x, mask=ok, other=0.0).to(tl.float32)
        x1 = tl.load(x + D, mask=ok, other=0.0).to(tl.float32)
        x2 = tl.load(x + 2 * D, mask=ok, other=0.0).to(tl.float32)
        x3 = tl.load(x + 3 * D, mask=ok, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + t * D + d, mask=ok, other=0.0).to(tl.float32)
        b = b_ptr + t * 16
        for k in tl.static_range(4):
            o = tl.load(post_ptr + t * 4 + k) * y
            o += tl.load(b + k) * x0 + tl.load(b + 4 + k) * x1 + tl.load(b + 8 + k) * x2 + tl.load(b + 12 + k) * x3
            tl.store(out_ptr + t * 4 * D + k * D + d, o.to(out_ptr.dtype.element_ty), mask=ok)

    @triton.jit
    def _mix_bwd(x_ptr, y_ptr, post_ptr, b_ptr, g_ptr, dx_ptr, dy_ptr, dpost_ptr, db_ptr, D: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, BLOCK)
        ok = d < D
        g = g_ptr + t * 4 * D + d
        g0 = tl.load(g, mask=ok, other=0.0).to(tl.float32)
        g1 = tl.load(g + D, mask=ok, other=0.0).to(tl.float32)
        g2 = tl.load(g + 2 * D, mask=ok, other=0.0).to(tl.float32)
        g3 = tl.load(g + 3 * D, mask=ok, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + t * D + d, mask=ok, other=0.0).to(tl.float32)
        p = post_ptr + t * 4
        dy = tl.load(p) * g0 + tl.load(p + 1) * g1 + tl.load(p + 2) * g2 + tl.load(p + 3) * g3
        tl.store(dy_ptr + t * D + d, dy.to(dy_ptr.dtype.element_ty), mask=ok)
        tl.store(dpost_ptr + t * 4, tl.sum(g0 * y))
        tl.store(dpost_ptr + t * 4 + 1, tl.sum(g1 * y))
        tl.store(dpost_ptr + t * 4 + 2, tl.sum(g2 * y))
        tl.store(dpost_ptr + t * 4 + 3, tl.sum(g3 * y))
        for j in tl.static_range(4):
            b = b_ptr + t * 16 + j * 4
            xj = tl.load(x_ptr + t * 4 * D + j * D + d, mask=ok, other=0.0).to(tl.float32)
            dx = tl.load(b) * g0 + tl.load(b + 1) * g1 + tl.load(b + 2) * g2 + tl.load(b + 3) * g3
            tl.store(dx_ptr + t * 4 * D + j * D + d, dx.to(dx_ptr.dtype.element_ty), mask=ok)
            o = db_ptr + t * 16 + j * 4
            tl.store(o, tl.sum(g0 * xj))
            tl.store(o + 1, tl.sum(g1 * xj))
            tl.store(o + 2, tl.sum(g2 * xj))
            tl.store(o + 3, tl.sum(g3 * xj))

    @triton.jit
    def _topk_mask(x_ptr, out_ptr, k, E: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        e = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * E + e, mask=e < E, other=float("-inf"))
        x = tl.where(x == 0.0, 0.0, x)
        bits = x.to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) + 2147483648
        best = tl.zeros((), tl.int64)
        for i in tl.static_range(32):
            cand = best + (1 << (31 - i))
            best = tl.where(tl.sum((key >= cand).to(tl.int32)) >= k, cand, best)
        above = key > best
        tie = key == best
        rank = tl.cumsum(tie.to(tl.int32), 0)
        sel = above | (tie & (rank <= k - tl.sum(above.to(tl.int32))))
        sel = sel & (x > float("-inf"))
        tl.store(out_ptr + row * E + e, sel.to(tl.int8), mask=e < E)


class Sinkhorn(torch.autograd.Function):
    """logits [T, 4, 4] f32 -> B [T, 4, 4] f32"""

    @staticmethod
    def forward(ctx, x, iters, eps):
        ctx.iters = iters
        if x.is_cuda:
            b = torch.empty_like(x)
            _sinkhorn_fwd[(triton.cdiv(x.shape[0], 128),)](x, b, x.shape[0], iters, eps, BLOCK=128)
        else:
            b = torch.softmax(x, 2) + eps
            b = b / (b.sum(1, keepdim=True) + eps)
            for _ in range(iters - 1):
                b = b / (b.sum(2, keepdim=True) + eps)
                b = b / (b.sum(1, keepdim=True) + eps)
        ctx.save_for_backward(b)
        return b

    @staticmethod
    def backward(ctx, g):
        b, = ctx.saved_tensors
        g = g.contiguous()
        if b.is_cuda:
            out = torch.empty_like(b)
            _sinkhorn_bwd[(triton.cdiv(b.shape[0], 128),)](b, g, out, b.shape[0], ctx.iters, BLOCK=128)
            return out, None, None
        v = (b * g).sum(1, keepdim=True)
        for _ in range(ctx.iters):
            u = (b * (g - v)).sum(2, keepdim=True)
            v = (b * (g - u)).sum(1, keepdim=True)
        return b * (g - u - v), None, None


class MixUpdate(torch.autograd.Function):
    """X [T, 4, d], y [T, d], post [T, 4] f32, B [T, 4, 4] f32 -> new X"""

    @staticmethod
    def forward(ctx, x, y, post, b):
        x, y, post, b = x.contiguous(), y.contiguous(), post.contiguous(), b.contiguous()
        ctx.save_for_backward(x, y, post, b)
        if x.is_cuda:
            out = torch.empty_like(x)
            _mix_fwd[(x.shape[0],)](x, y, post, b, out, D=x.shape[2], BLOCK=triton.next_power_of_2(x.shape[2]))
            return out
        return (post[:, :, None] * y.float()[:, None] + torch.einsum("tjk,tjd->tkd", b, x.float())).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, y, post, b = ctx.saved_tensors
        g = g.contiguous()
        if x.is_cuda:
            dx, dy, dpost, db = torch.empty_like(x), torch.empty_like(y), torch.empty_like(post), torch.empty_like(b)
            _mix_bwd[(x.shape[0],)](x, y, post, b, g, dx, dy, dpost, db, D=x.shape[2], BLOCK=triton.next_power_of_2(x.shape[2]))
            return dx, dy, dpost, db
        gf, xf = g.float(), x.float()
        dx = torch.einsum("tjk,tkd->tjd", b, gf).to(x.dtype)
        dy = torch.einsum("tk,tkd->td", post, gf).to(y.dtype)
        return dx, dy, torch.einsum("tkd,td->tk", gf, y.float()), torch.einsum("tkd,tjd->tjk", gf, xf)


def topk_mask(x, k):
    """x [.., E] f32 -> bool [.., E]"""
    if x.is_cuda:
        e = x.shape[-1]
        x = x.contiguous()
        out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        _topk_mask[(x.numel() // e,)](x, out, k, E=e, BLOCK=triton.next_power_of_2(e), num_warps=min(16, max(4, e // 512)))
        return out.view(torch.bool)
    order = torch.sort(x, dim=-1, descending=True, stable=True)[1][..., :k]
    return torch.zeros_like(x, dtype=torch.bool).scatter_(-1, order, True) & (x > float("-inf"))


class Dispatch(torch.autograd.Function):
    """Gather rows by expert slot. x [N, d], w [N*k]; src [M] slot -> pair, inv [N, k] pair -> slot, valid [M]."""

    @staticmethod
    def forward(ctx, x, w, src, inv, valid):
        ctx.save_for_backward(inv)
        k = inv.shape[1]
        return x[src // k], torch.where(valid, w[src], 0.0)

    @staticmethod
    def backward(ctx, gx, gw):
        inv, = ctx.saved_tensors
        return gx[inv].sum(1) if inv.shape[1] > 2 else gx[inv[:, 0]] + gx[inv[:, 1]], gw[inv].flatten(), None, None, None


class Combine(torch.autograd.Function):
    """Sum the slots of each token. ys [M, d] -> [N, d]"""

    @staticmethod
    def forward(ctx, ys, src, inv):
        ctx.save_for_backward(src)
        ctx.k = inv.shape[1]
        return (ys[inv[:, 0]].float() + ys[inv[:, 1]].float()).to(ys.dtype) if inv.shape[1] == 2 else ys[inv].sum(1)

    @staticmethod
    def backward(ctx, g):
        src, = ctx.saved_tensors
        return g[src // ctx.k], None, None


def route_slots(experts, n_experts, align=16):
    """experts [N, k] -> (src [M], inv [N, k], valid [M], ends [E] int32). Each expert's rows start at a multiple of `align`, M is fixed,
    rows past the last expert's belong to it and are not valid."""
    n, k = experts.shape
    flat = experts.flatten()
    m = n * k + n_experts * align
    order = torch.argsort(flat, stable=True)
    count = torch.nn.functional.one_hot(flat, n_experts).sum(0)
    start = torch.cumsum(count, 0) - count
    padded = (count + align - 1) // align * align
    ends = torch.cumsum(padded, 0)
    shift = (ends - padded) - start
    slot = torch.arange(n * k, device=flat.device) + shift[flat[order]]
    inv = torch.empty_like(flat)
    inv.scatter_(0, order, slot)
    src = torch.zeros(m, dtype=torch.long, device=flat.device)
    src.scatter_(0, slot, order)
    valid = torch.zeros(m, dtype=torch.bool, device=flat.device)
    valid.index_fill_(0, slot, True)
    ends = ends.to(torch.int32)
    ends[-1:].fill_(m)
    return src, inv.view(n, k), valid, ends, count


def grouped_linear(x, w, ends):
    """x [M, i], w [E, o, i] -> [M, o], rows ends[e-1] .. ends[e]-1 through expert e"""
    if x.is_cuda:
        return torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)
    out, a = [], 0
    for e, b in enumerate(ends.tolist()):
        out.append(x[a:b] @ w[e].T)
        a = b
    return torch.cat(out)
