"""Muon for matrices, AdamW for the rest. Weights and states are f32, gradients come in any type. The learning rate is a tensor and
nothing depends on values on the host, so that a step can be replayed as a CUDA graph."""

import torch


def orthogonalise(g, steps=5):
    """Newton-Schulz iteration on a batch of matrices [.., a, b]."""
    x = g.to(torch.bfloat16) if g.is_cuda else g
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.transpose(-2, -1)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(steps):
        a = x @ x.transpose(-2, -1)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.transpose(-2, -1) if flip else x).float()


class Optimizer:
    def __init__(self, masters, muon_names, betas=(0.9, 0.95), momentum=0.95, decay=0.1):
        self.masters, self.momentum, self.betas, self.decay = masters, momentum, betas, decay
        self.adam_names = [n for n in masters if n not in muon_names]
        self.groups = {}
        for n in masters:
            if n in muon_names:
                self.groups.setdefault(tuple(masters[n].shape[-2:]), []).append(n)
        self.m = {n: torch.zeros_like(masters[n]) for n in masters}
        self.v = {n: torch.zeros_like(masters[n]) for n in self.adam_names}
        self.t = torch.zeros((), device=next(iter(masters.values())).device)

    def state(self):
        return dict(m=self.m, v=self.v, t=self.t)

    def load(self, state):
        self.m, self.v, self.t = state["m"], state["v"], state["t"]

    def step(self, grads, lr, clip=1.0):
        """grads: name -> tensor; lr: 0-dim tensor. Returns the gradient norm before clipping (tensor)."""
        names = list(self.masters)
        g = {n: x for n, x in zip(names, [grads[n].float() for n in names])}
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(g.values()))))
        torch._foreach_mul_(list(g.values()), torch.clamp(clip / (total + 1e-6), max=1.0))
        self.t += 1
        b1, b2 = self.betas
        if self.adam_names:
            gs, ms, vs = ([x[n] for n in self.adam_names] for x in (g, self.m, self.v))
            ps = [self.masters[n] for n in self.adam_names]
            torch._foreach_lerp_(ms, gs, 1 - b1)
            torch._foreach_mul_(vs, b2)
            torch._foreach_addcmul_(vs, gs, gs, 1 - b2)
            den = torch._foreach_div(vs, 1 - b2 ** self.t)
            torch._foreach_sqrt_(den)
            torch._foreach_add_(den, 1e-8)
            upd = torch._foreach_div(ms, den)
            torch._foreach_mul_(upd, -lr / (1 - b1 ** self.t))
            torch._foreach_add_(ps, upd)
        for shape, group in self.groups.items():
            ms, gs = [self.m[n] for n in group], [g[n] for n in group]
            torch._foreach_mul_(ms, self.momentum)
            torch._foreach_add_(ms, gs)
            nest = torch._foreach_add(gs, ms, alpha=self.momentum)
            flat = torch.cat([x.reshape(-1, *shape) for x in nest])
            flat = orthogonalise(flat)
            sizes = [x.numel() // (shape[0] * shape[1]) for x in nest]
            ps = [self.masters[n] for n in group]
            torch._foreach_mul_(ps, 1 - lr * self.decay)
            flat = flat * (-lr * 0.2 * max(shape) ** 0.5)
            torch._foreach_add_(ps, [u.reshape(p.shape) for u, p in zip(flat.split(sizes), ps)])
        return total
