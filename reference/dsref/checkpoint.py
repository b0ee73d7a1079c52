"""Checkpoints in the released layout: tensor list, reader, writer. Own safetensors code on numpy; no other package."""

import glob
import json
import os
import struct

import numpy as np
import torch

from . import formats
from .config import Config

NUMPY = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8,
         "I8": np.uint8, "U8": np.uint8, "I64": np.int64, "I32": np.int32}


def tensor_list(cfg):
    """name -> (shape, kind) of every tensor that the config implies. Kinds: fp8, fp4 (quantised linears, named without `.weight`),
    rows (the Engram table), bf16, f32."""
    out = {}
    d, n, D = cfg.d, cfg.n, cfg.D
    mix = (2 + n) * n

    def block(p, experts):
        a, f = p + ".attn.", p + ".ffn."
        for s in ("attn_norm", "ffn_norm"):
            out["%s.%s.weight" % (p, s)] = ((d,), "bf16")
        for s in ("hc_attn", "hc_ffn"):
            out["%s.%s_fn" % (p, s)] = ((mix, n * d), "f32")
            out["%s.%s_base" % (p, s)] = ((mix,), "f32")
            out["%s.%s_scale" % (p, s)] = ((3,), "f32")
        out[a + "attn_sink"] = ((cfg.num_attention_heads,), "f32")
        out[a + "wq_a"] = ((cfg.q_lora_rank, d), "fp8")
        out[a + "q_norm.weight"] = ((cfg.q_lora_rank,), "bf16")
        out[a + "wq_b"] = ((cfg.num_attention_heads * D, cfg.q_lora_rank), "fp8")
        out[a + "wkv"] = ((D, d), "fp8")
        out[a + "kv_norm.weight"] = ((D,), "bf16")
        out[a + "wo_a"] = ((cfg.o_groups * cfg.o_lora_rank, cfg.num_attention_heads * D // cfg.o_groups), "fp8")
        out[a + "wo_b"] = ((d, cfg.o_groups * cfg.o_lora_rank), "fp8")
        out[f + "gate.weight"] = ((experts, d), "bf16")
        out[f + "gate.bias"] = ((experts,), "f32")
        out[f + "gate.bias_vl"] = ((experts,), "f32")
        w = cfg.moe_intermediate_size
        for e in range(experts):
            for s, shape in (("w1", (w, d)), ("w3", (w, d)), ("w2", (d, w))):
                out["%sexperts.%d.%s" % (f, e, s)] = (shape, "fp4")
        for s, shape in (("w1", (w, d)), ("w3", (w, d)), ("w2", (d, w))):
            out["%sshared_experts.%s" % (f, s)] = (shape, "fp8")

    out["embed.weight"] = out["head.weight"] = ((cfg.vocab_size, d), "bf16")
    out["norm.weight"] = ((d,), "bf16")
    for l in range(cfg.L):
        p = "layers.%d" % l
        block(p, cfg.n_routed_experts)
        if l in cfg.kv_source_layer_ids:
            out[p + ".attn.compressor.wkv.weight"] = ((D, d), "bf16")
            if cfg.ratio(l) > 1:
                out[p + ".attn.compressor.wgate.weight"] = ((D, d), "bf16")
            out[p + ".attn.compressor.norm.weight"] = ((D,), "bf16")
            out[p + ".attn.indexer.wk.weight"] = ((cfg.index_head_dim, D), "bf16")
            out[p + ".attn.indexer.k_norm.weight"] = ((cfg.index_head_dim,), "bf16")
        if l in cfg.index_source_layer_ids:
            out[p + ".attn.indexer.wq_b"] = ((cfg.index_n_heads * cfg.index_head_dim, cfg.q_lora_rank), "fp8")
            out[p + ".attn.indexer.weights_proj.weight"] = ((cfg.index_n_heads, d), "bf16")
        if l in cfg.engram_layer_ids:
            rows = cfg.engram_num_embeddings[cfg.engram_layer_ids.index(l)]
            out[p + ".engram.embed"] = ((rows, cfg.engram_head_dim), "rows")
            out[p + ".engram.wkv"] = (((n + 1) * d, cfg.engram_width), "fp8")
            out[p + ".engram.q_weight"] = out[p + ".engram.k_weight"] = ((n, d), "bf16")
    for m in range(cfg.M):
        block("mtp.%d" % m, cfg.dspark_n_routed_experts)
    if cfg.M:
        last = "mtp.%d." % (cfg.M - 1)
        out["mtp.0.main_proj"] = ((d, len(cfg.dspark_target_layer_ids) * d), "fp8")
        out["mtp.0.main_norm.weight"] = out[last + "norm.weight"] = ((d,), "bf16")
        out[last + "markov_head.embed.weight"] = out[last + "markov_head.head.weight"] = ((cfg.vocab_size, cfg.dspark_markov_rank), "bf16")
        out[last + "confidence_head.proj.weight"] = ((1, d + cfg.dspark_markov_rank), "bf16")
    v = cfg.vision
    if v:
        def bf(name, *shape):
            out[name] = (shape, "bf16")
        for s in ("image_start", "image_end", "image_newline"):
            bf(s, d)
        bf("vision.patch_embed.proj.weight", v.dim, 3 * v.patch * v.patch)
        bf("vision.patch_embed.proj.bias", v.dim)
        for b in range(v.layers):
            p = "vision.blocks.%d." % b
            bf(p + "norm1.weight", v.dim)
            bf(p + "norm2.weight", v.dim)
            bf(p + "attn.wqkv.weight", 3 * v.dim, v.dim)
            bf(p + "attn.wqkv.bias", 3 * v.dim)
            bf(p + "attn.wo.weight", v.dim, v.dim)
            bf(p + "attn.wo.bias", v.dim)
            bf(p + "mlp.w1.weight", 2 * v.inter, v.dim)
            bf(p + "mlp.w2.weight", v.dim, v.inter)
        bf("vision.norm.weight", v.dim)
        bf("aligner.w1.weight", d, v.dim * v.down * v.down)
        bf("aligner.w1.bias", d)
        bf("aligner.w2.weight", d, d)
        bf("aligner.w2.bias", d)
    return out


# safetensors

def read_safetensors(path):
    """name -> (dtype name, numpy array: bf16 as uint16, 8-bit formats as uint8). Memory-mapped."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    size = struct.unpack("<Q", data[:8].tobytes())[0]
    head = json.loads(data[8:8 + size].tobytes().decode("utf-8"))
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        out[name] = (t["dtype"], np.frombuffer(data[8 + size + a:8 + size + b].tobytes(), NUMPY[t["dtype"]]).reshape(t["shape"]))
    return out


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array). Wide types come first, so that every tensor is naturally aligned."""
    order = sorted(tensors, key=lambda k: -np.dtype(NUMPY[tensors[k][0]]).itemsize)
    head, at = {}, 0
    for k in order:
        dt, a = tensors[k]
        assert a.dtype.itemsize == np.dtype(NUMPY[dt]).itemsize, k
        head[k] = {"dtype": dt, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for k in order:
            f.write(np.ascontiguousarray(tensors[k][1]).tobytes())


def _to_bf16(x):
    return x.detach().to("cpu", torch.float32).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def _u8(x):
    return x.detach().cpu().numpy().astype(np.uint8, copy=False)


def encode_tensor(name, kind, x, quant):
    """One tensor of tensor_list() -> {stored name: (dtype, array)}."""
    x = torch.as_tensor(x).detach().to(torch.float32)
    if kind == "f32":
        return {name: ("F32", x.cpu().numpy())}
    if kind == "bf16":
        return {name: ("BF16", _to_bf16(x))}
    if not quant:
        return {name + ".weight": ("BF16", _to_bf16(x))}
    code, scale = {"fp8": formats.fp8_weight_quant, "fp4": formats.mxfp4_weight_quant, "rows": formats.rows_quant}[kind](x)
    return {name + ".weight": ("I8" if kind == "fp4" else "F8_E4M3", _u8(code)), name + ".scale": ("F8_E8M0", _u8(scale))}


def write_checkpoint(path, config, weights, quant=True, shard_bytes=1 << 30, tokenizer=None, extra=None):
    """Write a model directory.

    config: the config.json object (its quantization_config is set or removed as `quant` says). weights: name of tensor_list() -> array or
    tensor. quant: FP8 32x32 and MXFP4 as released, else BF16. tokenizer: object for tokenizer.json. extra: name -> int64 array (the
    optional Engram tensors)."""
    config = dict(config)
    config.pop("quantization_config", None)
    if quant:
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                                         "scale_fmt": "ue8m0", "expert_dtype": "fp4"}
    wanted = tensor_list(Config(config))
    stored = {}
    for name, (shape, kind) in wanted.items():
        w = weights[name]
        if tuple(w.shape) != tuple(shape):
            raise ValueError("%s: shape %s, expected %s" % (name, tuple(w.shape), tuple(shape)))
        stored.update(encode_tensor(name, kind, w, quant))
    for name, a in (extra or {}).items():
        stored[name] = ("I64", np.asarray(a, dtype=np.int64))
    shards, size = [{}], 0
    for name, (dt, a) in stored.items():
        if size and size + a.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = (dt, a)
        size += a.nbytes
    os.makedirs(path, exist_ok=True)
    where = {}
    for i, s in enumerate(shards):
        file = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
        write_safetensors(os.path.join(path, file), s)
        where.update({k: file for k in s})
    total = sum(a.nbytes for _, a in stored.values())
    _json(os.path.join(path, "model.safetensors.index.json"), {"metadata": {"total_size": total}, "weight_map": where}, 0)
    _json(os.path.join(path, "config.json"), config, 1)
    if tokenizer is not None:
        _json(os.path.join(path, "tokenizer.json"), tokenizer, 0)


def _json(path, obj, indent):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, indent=indent, ensure_ascii=False)
        f.write("\n")


def read_raw(path):
    """Every stored tensor of a model directory, as read_safetensors gives them."""
    index = os.path.join(path, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    else:
        files = sorted(os.path.basename(p) for p in glob.glob(os.path.join(path, "*.safetensors")))
    out = {}
    for file in files:
        out.update(read_safetensors(os.path.join(path, file)))
    return out


def decode_tensor(raw, name, kind):
    """-> float32 tensor with the exact values, by stored dtype and the presence of `.scale`."""
    stored = name + ".weight" if kind in ("fp8", "fp4", "rows") else name
    dt, a = raw[stored]
    scale = raw.get(stored[:-len(".weight")] + ".scale") if stored.endswith(".weight") else None
    if dt == "BF16":
        return torch.from_numpy((a.astype(np.uint32) << 16).view(np.float32))
    t = torch.from_numpy(a.copy())
    if dt in ("F32", "F16"):
        return t.to(torch.float32)
    if scale is None:
        raise ValueError("%s: type %s without a scale" % (stored, dt))
    s = torch.from_numpy(scale[1].copy())
    if dt == "I8":
        return formats.mxfp4_weight_value(t, s)
    if dt == "F8_E4M3":
        return formats.fp8_value(t, s) if kind == "rows" else formats.fp8_weight_value(t, s)
    raise ValueError("%s: type %s" % (stored, dt))


def load_checkpoint(path, dtype=torch.float64, device="cpu"):
    """-> (Config, name -> tensor, Engram int64 tensors or {})."""
    cfg = Config.load(path)
    raw = read_raw(path)
    weights = {}
    for name, (shape, kind) in tensor_list(cfg).items():
        if name.endswith(".bias_vl") and name not in raw and not cfg.vision:
            weights[name] = torch.zeros(shape, dtype=dtype, device=device)
            continue
        w = decode_tensor(raw, name, kind)
        if tuple(w.shape) != tuple(shape):
            raise ValueError("%s: shape %s, expected %s" % (name, tuple(w.shape), tuple(shape)))
        if not torch.isfinite(w).all():
            raise ValueError("%s holds a value that is not finite" % name)
        weights[name] = w.to(device=device, dtype=dtype)
    extra = {k: v[1] for k, v in raw.items() if k.startswith("engram.")}
    return cfg, weights, extra
