"""The Triton kernels against their PyTorch twins, and the hand-written gradients against automatic ones. Runs on the CPU and, where there
is one, on a GPU:  python test_kernels.py"""

import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import quant
from kernels import Combine, Dispatch, MixUpdate, Sinkhorn, grouped_linear, route_slots, topk_mask


def close(name, a, b, tol):
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    e = ((a - b).norm() / (b.norm() + 1e-30)).item()
    print(f"{name}: {e:.2e}")
    assert e < tol, name


def main():
    torch.manual_seed(0)
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    x0 = torch.randn(300, 4, 4) + 2 * torch.eye(4)
    g0 = torch.randn(300, 4, 4)

    def unrolled(x):
        b = torch.softmax(x, 2) + 1e-6
        b = b / (b.sum(1, keepdim=True) + 1e-6)
        for _ in range(59):
            b = b / (b.sum(2, keepdim=True) + 1e-6)
            b = b / (b.sum(1, keepdim=True) + 1e-6)
        return b

    xr = x0.double().requires_grad_()
    br = unrolled(xr)
    br.backward(g0.double())
    xs, ys, ps, bs = torch.randn(70, 4, 384), torch.randn(70, 384), torch.rand(70, 4), torch.rand(70, 4, 4)
    gs = torch.randn(70, 4, 384)
    leaves = [t.clone().requires_grad_() for t in (xs, ys, ps, bs)]
    ref = leaves[2][:, :, None] * leaves[1][:, None] + torch.einsum("tjk,tjd->tkd", leaves[3], leaves[0])
    ref.backward(gs)
    sc = torch.randn(500, 512).round(decimals=1)
    sc[:, 400:] = float("-inf")
    sc[:50, 20:] = float("-inf")
    want = topk_mask(sc, 128)
    for dev in devices:
        x = x0.to(dev).clone().requires_grad_()
        b = Sinkhorn.apply(x, 60, 1e-6)
        b.backward(g0.to(dev))
        close(dev + " sinkhorn", b, br, 1e-5)
        close(dev + " sinkhorn gradient", x.grad, xr.grad, 1e-3)
        own = [t.to(dev).clone().requires_grad_() for t in (xs, ys, ps, bs)]
        out = MixUpdate.apply(*own)
        out.backward(gs.to(dev))
        close(dev + " mix", out, ref, 1e-6)
        for n, a, c in zip("x y post b".split(), own, leaves):
            close(f"{dev} mix gradient {n}", a.grad, c.grad, 1e-5)
        for k in (1, 64, 128):
            assert torch.equal(topk_mask(sc.to(dev), k).cpu(), topk_mask(sc, k)), (dev, k)
        for wide in (torch.randn(9, 2048), torch.randn(9, 8192).round(decimals=1)):       # entries of long rows
            assert torch.equal(topk_mask(wide.to(dev), 128).cpu(), topk_mask(wide, 128)), (dev, wide.shape)
        # experts: dispatch, grouped product, combine against a loop
        t, d, e, o = 640, 64, 16, 96
        xx, w, wt = torch.randn(t, d, device=dev), torch.randn(e, o, d, device=dev) * 0.1, torch.rand(t, 2, device=dev)
        w2 = torch.randn(e, d, o, device=dev) * 0.1
        ex = torch.stack([torch.randperm(e, device=dev)[:2] for _ in range(t)])
        typ = torch.bfloat16 if dev == "cuda" else torch.float32
        a = [v.to(typ).detach().clone().requires_grad_() for v in (xx, w, w2)] + [wt.clone().requires_grad_()]
        c = [v.detach().float().requires_grad_() for v in a]
        src, inv, valid, ends, _ = route_slots(ex, e)
        xs_, ws_ = Dispatch.apply(a[0], a[3].flatten(), src, inv, valid)
        h = (grouped_linear(xs_, a[1], ends).float() * ws_[:, None]).to(typ)
        y = Combine.apply(grouped_linear(h, a[2], ends), src, inv)
        plain = sum(torch.einsum("td,tod->to", c[0], c[1][ex[:, k]]) [:, None, :].mul(c[3][:, k, None, None]).matmul(c[2][ex[:, k]].transpose(1, 2))[:, 0] for k in (0, 1))
        g = torch.randn(t, d, device=dev)
        y.backward(g.to(typ))
        plain.backward(g)
        tol = 2e-2 if dev == "cuda" else 1e-5
        close(dev + " experts", y, plain, tol)
        for n, p, q in zip("x w13 w2 weight".split(), a, c):
            close(f"{dev} experts gradient {n}", p.grad, q.grad, tol)
        v = torch.randn(64, 128, device=dev) * torch.logspace(-3, 3, 64, device=dev)[:, None]
        for f in (quant.fp8_act, quant.fp4_kv, quant.mxfp4, quant.fp8_block):
            assert torch.equal(f(v).cpu(), f(v.cpu())), (dev, f.__name__)
            assert f is quant.fp4_kv or torch.equal(f(f(v)), f(v)), (dev, f.__name__, "not idempotent")
    assert want.sum(1).tolist() == [20] * 50 + [128] * 450
    print("ok")


if __name__ == "__main__":
    main()
