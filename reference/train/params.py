"""The list of weights: shape, storage kind, optimizer and initial value of each, and the cast from f32 masters to compute weights.

Experts are stacked and w1 / w3 fused while training: `experts.w13` [E, 2I, d] holds w1 in its first half of rows. export.py takes
them apart. Kinds: fp8 (32x32 blocks), fp4 (MXFP4 experts), table (FP8 Engram rows), bf16, fn (f32 in the file, bf16 values), f32."""

import math

import torch

import quant

def spec(cfg):
    """name -> (shape, kind, init); init is a standard deviation, or a list of values, or 'one'"""
    d, n = cfg["hidden_size"], cfg["hc_mult"]
    h, hd, ql = cfg["num_attention_heads"], cfg["head_dim"], cfg["q_lora_rank"]
    og, ol, inter = cfg["o_groups"], cfg["o_lora_rank"], cfg["moe_intermediate_size"]
    ih, idim = cfg["index_n_heads"], cfg["index_head_dim"]
    layers, drafts = cfg["num_hidden_layers"], cfg["num_nextn_predict_layers"]
    out = {}
    small = 0.02 * 2 / math.sqrt(2 * layers)
    mixes = (2 + n) * n
    eye = [4.0 if i == j else 0.0 for i in range(n) for j in range(n)]
    base = [4.0] + [-4.0] * (n - 1) + [0.0] * n + eye

    def block(p, experts):
        for k in ("attn", "ffn"):
            out[p + f"{k}_norm.weight"] = ((d,), "bf16", "one")
            out[p + f"hc_{k}_fn"] = ((mixes, n * d), "fn", 0.0)
            out[p + f"hc_{k}_base"] = ((mixes,), "f32", base)
            out[p + f"hc_{k}_scale"] = ((3,), "f32", [0.01] * 3)
        q = p + "attn."
        out[q + "attn_sink"] = ((h,), "f32", 0.0)
        out[q + "wq_a"] = ((ql, d), "fp8", 0.02)
        out[q + "q_norm.weight"] = ((ql,), "bf16", "one")
        out[q + "wq_b"] = ((h * hd, ql), "fp8", 0.02)
        out[q + "wkv"] = ((hd, d), "fp8", 0.02)
        out[q + "kv_norm.weight"] = ((hd,), "bf16", "one")
        out[q + "wo_a"] = ((og * ol, h * hd // og), "fp8", 0.02)
        out[q + "wo_b"] = ((d, og * ol), "fp8", small)
        f = p + "ffn."
        out[f + "gate.weight"] = ((experts, d), "bf16", 0.02)
        out[f + "experts.w13"] = ((experts, 2 * inter, d), "fp4", 0.02)
        out[f + "experts.w2"] = ((experts, d, inter), "fp4", small)
        out[f + "shared_experts.w13"] = ((2 * inter, d), "fp8", 0.02)
        out[f + "shared_experts.w2"] = ((d, inter), "fp8", small)

    out["embed.weight"] = ((cfg["vocab_size"], d), "bf16", 0.02)
    out["head.weight"] = ((cfg["vocab_size"], d), "bf16", 0.02)
    out["norm.weight"] = ((d,), "bf16", "one")
    for l in range(layers):
        block(f"layers.{l}.", cfg["n_routed_experts"])
        q = f"layers.{l}.attn."
        if l in cfg["kv_source_layer_ids"]:
            out[q + "compressor.wkv.weight"] = ((hd, d), "bf16", 0.02)
            if cfg["compress_ratios"][l] > 1:
                out[q + "compressor.wgate.weight"] = ((hd, d), "bf16", 0.02)
            out[q + "compressor.norm.weight"] = ((hd,), "bf16", "one")
            out[q + "indexer.wk.weight"] = ((idim, hd), "bf16", 0.02)
            out[q + "indexer.k_norm.weight"] = ((idim,), "bf16", "one")
        if l in cfg["index_source_layer_ids"]:
            out[q + "indexer.wq_b"] = ((ih * idim, ql), "fp8", 0.02)
            out[q + "indexer.weights_proj.weight"] = ((ih, d), "bf16", 0.02)
    width = (cfg["engram_max_ngram_size"] - 1) * cfg["engram_n_heads"] * cfg["engram_head_dim"]
    for i, l in enumerate(cfg["engram_layer_ids"]):
        p = f"layers.{l}.engram."
        out[p + "embed.weight"] = ((cfg["engram_num_embeddings"][i], cfg["engram_head_dim"]), "table", 0.02)
        out[p + "wkv"] = (((n + 1) * d, width), "fp8", 0.02)
        out[p + "q_weight"] = ((n, d), "bf16", "one")
        out[p + "k_weight"] = ((n, d), "bf16", "one")
    for m in range(drafts):
        block(f"mtp.{m}.", cfg["dspark_n_routed_experts"])
    if drafts:
        out["mtp.0.main_proj"] = ((d, len(cfg["dspark_target_layer_ids"]) * d), "fp8", 0.02)
        out["mtp.0.main_norm.weight"] = ((d,), "bf16", "one")
        last = f"mtp.{drafts - 1}."
        out[last + "norm.weight"] = ((d,), "bf16", "one")
        out[last + "markov_head.embed.weight"] = ((cfg["vocab_size"], cfg["dspark_markov_rank"]), "bf16", 0.02)
        out[last + "markov_head.head.weight"] = ((cfg["vocab_size"], cfg["dspark_markov_rank"]), "bf16", 0.0)
        out[last + "confidence_head.proj.weight"] = ((1, d + cfg["dspark_markov_rank"]), "bf16", 0.0)
    return out


def uses_muon(name, kind):
    return kind in ("fp8", "fp4") or name.endswith(("compressor.wkv.weight", "compressor.wgate.weight", "indexer.wk.weight"))


def init(cfg, seed, device, prefix=""):
    """f32 masters and router biases. Only names that start with prefix."""
    g = torch.Generator(device="cpu").manual_seed(seed)
    out = {}
    for name, (shape, _, how) in spec(cfg).items():
        if not name.startswith(prefix):
            continue
        if how == "one":
            t = torch.ones(shape)
        elif isinstance(how, list):
            t = torch.tensor(how)
        else:
            t = torch.randn(shape, generator=g) * how if how else torch.zeros(shape)
        out[name] = t.to(device)
    return out


def init_biases(cfg, device):
    counts = [cfg["n_routed_experts"]] * cfg["num_hidden_layers"] + [cfg["dspark_n_routed_experts"]] * cfg["num_nextn_predict_layers"]
    return [torch.zeros(c, device=device) for c in counts]


def cast(masters, kinds, dtype, qat):
    """Compute weights as leaves that collect gradients."""
    with torch.no_grad():
        return _cast(masters, kinds, dtype, qat)


def _cast(masters, kinds, dtype, qat):
    out = {}
    for name, m in masters.items():
        kind = kinds[name]
        if kind == "f32":
            out[name] = m.detach().clone().requires_grad_()
            continue
        if qat and kind == "fp4":
            m = quant.mxfp4(m)
        elif qat and kind == "fp8":
            m = quant.fp8_block(m)
        elif qat and kind == "table":
            m = quant.fp8_act(m)
        elif kind in ("bf16", "fn"):
            m = m.to(torch.bfloat16)
        out[name] = m.detach().to(dtype, copy=True).requires_grad_()
    return out
