"""Vision tower, aligner and preprocessing (3.15).

The tower is computed without rounding in both modes; its rows are rounded where they enter the language model as embeddings."""

import math

import torch
import torch.nn.functional as F


def fit(cfg, width, height):
    """-> dict: size (w, h) of the prepared picture, grid (gh, gw), tokens, stretch (plain resize instead of padding)."""
    v = cfg.vision
    W, H, cell = width, height, v.patch * v.down
    stretch = bool(v.max_wh_ratio) and width > height * v.max_wh_ratio
    if stretch:
        W = int(H * v.max_wh_ratio)
    if W * H < v.min_pixels:
        k = math.sqrt(v.min_pixels / (W * H))
        W, H = int(W * k), int(H * k)

    def up(x):
        return -(-x // v.patch) * v.patch

    def grid(w, h):
        return -(-(h // v.patch) // v.down), -(-(w // v.patch) // v.down)

    bw, bh = up(W), up(H)
    gh, gw = grid(bw, bh)
    if gh * (gw + 1) + 2 > v.max_tokens:
        room = v.max_tokens - 2
        r = H / W
        mw = math.sqrt(room / r + 0.25) - 0.5
        mh = mw * r
        if mw < 1:
            bw, bh = cell, (room // 2) * cell
        elif mh < 1:
            bw, bh = (room - 1) * cell, cell
        else:
            k = min(math.floor(mw) * cell / W, math.floor(mh) * cell / H)
            bh, bw = int(H * k / v.patch) * v.patch, int(W * k / v.patch) * v.patch
        gh, gw = grid(bw, bh)
    return {"size": (bw, bh), "grid": (gh, gw), "tokens": gh * (gw + 1) + 2, "stretch": stretch}


def prepare(cfg, image):
    """PIL image -> uint8 tensor [h, w, 3] of the prepared size."""
    import numpy as np
    from PIL import Image, ImageOps
    image = image.convert("RGB")
    f = fit(cfg, *image.size)
    if f["stretch"]:
        image = image.resize(f["size"], Image.BICUBIC)
    else:
        image = ImageOps.pad(image, f["size"], method=Image.BICUBIC, color=(127, 127, 127), centering=(0.5, 0.5))
    return torch.from_numpy(np.array(image))


def patches(cfg, pixels):
    """uint8 [h, w, 3] -> (bf16-rounded float64 [nh * nw, 3 * patch * patch], nh, nw)."""
    s = cfg.vision.patch
    x = ((pixels.float() / 255 - 0.5) / 0.5).to(torch.bfloat16).double()
    nh, nw = x.shape[0] // s, x.shape[1] // s
    x = x.reshape(nh, s, nw, s, 3).permute(0, 2, 4, 1, 3)
    return x.reshape(nh * nw, 3 * s * s), nh, nw


def tower(model, x, nh, nw):
    """Patches -> features [nh * nw, dim]."""
    v, w = model.cfg.vision, model.w
    hd = v.dim // v.heads
    f = torch.tensor([float(v.theta) ** (-2.0 * i / (hd // 2)) for i in range(hd // 4)], dtype=torch.float32, device=model.device)
    row = torch.arange(nh, device=model.device).repeat_interleave(nw).float()
    col = torch.arange(nw, device=model.device).repeat(nh).float()
    angle = torch.cat((row[:, None] * f, col[:, None] * f), 1).double()
    c, s = torch.cos(angle).float().to(model.dtype)[:, None], torch.sin(angle).float().to(model.dtype)[:, None]

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w[name]

    def linear(x, name):
        y = model.raw_linear(x, name + ".weight")
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def rotate(t):
        a, b = t[..., :hd // 2], t[..., hd // 2:]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    x = linear(x.to(model.dtype), "vision.patch_embed.proj")
    for i in range(v.layers):
        p = "vision.blocks.%d." % i
        q, k, u = linear(norm(x, p + "norm1.weight"), p + "attn.wqkv").reshape(len(x), 3, v.heads, hd).unbind(1)
        att = torch.softmax(torch.einsum("qhd,khd->hqk", rotate(q), rotate(k)) * hd ** -0.5, -1)
        x = x + linear(torch.einsum("hqk,khd->qhd", att, u).flatten(1), p + "attn.wo")
        gate, up = linear(norm(x, p + "norm2.weight"), p + "mlp.w1").chunk(2, -1)
        x = x + linear(F.silu(gate) * up, p + "mlp.w2")
    return norm(x, "vision.norm.weight")


def align(model, x, nh, nw):
    """Features -> rows [gh * gw, d] in reading order."""
    r = model.cfg.vision.down
    x = x.reshape(nh, nw, -1)
    x = F.pad(x, (0, 0, 0, -nw % r, 0, -nh % r))
    gh, gw = x.shape[0] // r, x.shape[1] // r
    cell = x.reshape(gh, r, gw, r, -1).permute(0, 2, 4, 1, 3).reshape(gh * gw, -1)
    h = F.gelu(model.raw_linear(cell, "aligner.w1.weight") + model.w["aligner.w1.bias"])
    return model.raw_linear(h, "aligner.w2.weight") + model.w["aligner.w2.bias"], gh, gw


def span(model, pixels):
    """Prepared pixels -> embedding rows of the whole span: START, (IMAGE x gw, NEWLINE) x gh, END."""
    rows, gh, gw = align(model, *_tower(model, pixels))
    line = model.w["image_newline"][None]
    out = [model.w["image_start"][None]]
    for y in range(gh):
        out += [rows[y * gw:(y + 1) * gw], line]
    return torch.cat(out + [model.w["image_end"][None]])


def _tower(model, pixels):
    x, nh, nw = patches(model.cfg, pixels)
    return tower(model, x.to(model.device), nh, nw), nh, nw
