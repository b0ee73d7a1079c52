"""Random tame weights and the tiny tokenizer (tests/configs/README.md) for golden data and tests."""

import torch

from .checkpoint import tensor_list

SPECIALS = ["<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜deepseek_image｜>"]


def tokenizer(vocab_size):
    """tokenizer.json object: three special tokens, 256 bytes, added tokens up to vocab_size; no merges."""
    from .engram import byte_alphabet
    char = {b: c for c, b in byte_alphabet().items()}
    first = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    rest = (SPECIALS + ["<｜place▁holder▁no▁%d｜>" % i for i in range(vocab_size)])[:vocab_size - 259]
    added = list(enumerate(first)) + [(259 + i, s) for i, s in enumerate(rest)]
    split = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": i == 259, "special": i != 259} for i, s in added],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers":
                          [{"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False} for r in split]
                          + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False,
                  "vocab": {**{s: i for i, s in enumerate(first)}, **{char[b]: 3 + b for b in range(256)}}, "merges": []},
    }


def weights(cfg, seed):
    """name -> float32 tensor. Variances near 1 inside, what is added to the streams small (section 8)."""
    g = torch.Generator().manual_seed(seed)
    quiet = 0.25 / (2 * cfg.L) ** 0.5
    n, out = cfg.n, {}

    def normal(shape, std):
        return torch.randn(shape, generator=g) * std

    for name, (shape, kind) in tensor_list(cfg).items():
        leaf = name.split(".")[-1]
        fan = shape[-1] ** -0.5
        if name.endswith("norm.weight") or ".norm1." in name or ".norm2." in name or name in ("norm.weight", "vision.norm.weight"):
            w = (0.5 if "compressor" in name else 1.0) * (1 + normal(shape, 0.1))
        elif leaf.endswith("_fn"):
            w = normal(shape, fan)
        elif leaf.endswith("_base"):
            w = normal(shape, 0.3)
            w[2 * n:] += 2.0 * torch.eye(n).flatten()
            w[0] += 1.0
        elif leaf.endswith("_scale"):
            w = 0.3 * (1 + normal(shape, 0.2))
        elif leaf == "attn_sink":
            w = normal(shape, 1.0)
        elif leaf in ("bias", "bias_vl") and "gate" in name:
            w = normal(shape, 0.1)
        elif leaf == "bias":
            w = normal(shape, 0.1)
        elif leaf in ("q_weight", "k_weight"):
            w = 1 + normal(shape, 0.2)
        elif name.endswith("engram.embed"):
            w = normal(shape, 1.0)
        elif name.endswith("engram.wkv"):
            w = normal(shape, fan)
            w[n * cfg.d:] *= quiet
        elif name in ("embed.weight", "image_start", "image_end", "image_newline"):
            w = normal(shape, 1.0)
        elif name.endswith("wo_b") or leaf == "w2" and "ffn" in name:
            w = normal(shape, fan * quiet)
        elif "markov_head" in name:
            w = normal(shape, 1.0 if "embed" in name else fan * 0.3)
        else:
            w = normal(shape, fan)
        out[name] = w
    return out
