"""Shape of the demonstration model, and the Engram tables that follow from a shape and a tokenizer (specification 1 and 3.12)."""

import json
import os
import unicodedata

import numpy as np

SHAPE = dict(
    model_type="deepseek_v41_text", hidden_size=384, num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=1, head_dim=64,
    qk_rope_head_dim=32, q_lora_rank=192, o_groups=2, o_lora_rank=128, rms_norm_eps=1e-6, hidden_act="silu", attention_bias=False,
    attention_dropout=0.0, initializer_range=0.02, tie_word_embeddings=False, max_position_embeddings=16384, rope_theta=10000,
    compress_rope_theta=160000,
    rope_scaling=dict(rope_type="yarn", factor=16, original_max_position_embeddings=1024, beta_fast=32, beta_slow=1),
    sliding_window=128, compress_ratios=[0, 2, 2, 2, 1, 1, 1, 1, 0, 0], kv_source_layer_ids=[1, 4], index_source_layer_ids=[1, 4, 6],
    index_n_heads=4, index_head_dim=32, index_topk=128, candidate_source_layer_id=4, candidate_topk_blocks=512, candidate_block_size=8,
    hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=2,
    moe_intermediate_size=256, scoring_func="sqrtsoftplus", topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=1.5,
    swiglu_limit=10.0, engram_layer_ids=[1], engram_max_ngram_size=4, engram_vocab_size=8001, engram_n_heads=2, engram_head_dim=32,
    engram_pad_token_id=2, num_nextn_predict_layers=2, dspark_block_size=5, dspark_target_layer_ids=[5, 6, 7], dspark_markov_rank=32,
    dspark_n_routed_experts=4, dspark_num_experts_per_tok=2)

# runs in seconds on a CPU, to try the programs
TINY = dict(
    SHAPE, hidden_size=64, num_attention_heads=2, head_dim=32, qk_rope_head_dim=16, q_lora_rank=32, o_lora_rank=32, index_n_heads=2,
    index_topk=32, candidate_topk_blocks=16, n_routed_experts=4, moe_intermediate_size=32, engram_vocab_size=301)
SHAPES = dict(demo=SHAPE, tiny=TINY)

QUANT = dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 32], scale_fmt="ue8m0", expert_dtype="fp4")

WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


def byte_alphabet():
    """byte -> character of the byte-level alphabet"""
    keep = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    out, extra = {b: chr(b) for b in keep}, 0x100
    for b in range(256):
        if b not in out:
            out[b] = chr(extra)
            extra += 1
    return out


def fold(text):
    """Normal form under which Engram treats tokens as equal."""
    t = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    t = "".join(c for c in t if unicodedata.category(c)[0] != "M")
    t = "".join(c.lower() for c in t)
    out, run = [], False
    for c in t:
        if c in " \t\r\n":
            if not run:
                out.append(" ")
            run = True
        else:
            out.append(c)
            run = False
    t = "".join(out)
    return t if t == " " else t.strip(WHITE)


def token_map(tokenizer):
    """Class of each token id, numbered by first appearance. tokenizer: parsed tokenizer.json."""
    pieces = dict((i, p) for p, i in tokenizer["model"]["vocab"].items())
    added = {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    back = {c: b for b, c in byte_alphabet().items()}
    classes, out = {}, []
    for i in range(max(max(pieces), max(added)) + 1):
        if i in added:
            text = piece = added[i]
        else:
            piece = pieces[i]
            text = bytes(back[c] for c in piece).decode("utf-8", "replace")
        key = piece if "\ufffd" in text else (fold(text) or text)
        out.append(classes.setdefault(key, len(classes)))
    return np.array(out, np.int64), len(classes)


def primes_from(n):
    while True:
        n += 1
        if n > 2 and n % 2 and all(n % k for k in range(3, int(n ** 0.5) + 1, 2)):
            yield n


def engram_tables(cfg, tmap, classes):
    """token_map, primes, offsets, multipliers as int64 arrays"""
    cols = (cfg["engram_max_ngram_size"] - 1) * cfg["engram_n_heads"]
    gen = primes_from(cfg["engram_vocab_size"] - 1)
    primes = np.array([[next(gen) for _ in range(cols)] for _ in cfg["engram_layer_ids"]], np.int64)
    offsets = np.concatenate([np.zeros((len(primes), 1), np.int64), np.cumsum(primes, 1)[:, :-1]], 1)
    bound = ((2 ** 63 - 1) // classes) // 2
    mult = np.stack([2 * np.random.default_rng(10007 * l).integers(0, bound, cfg["engram_max_ngram_size"], dtype=np.int64) + 1
                     for l in cfg["engram_layer_ids"]])
    return dict(token_map=tmap, primes=primes, offsets=offsets, multipliers=mult)


def build(tokenizer_path, shape=SHAPE):
    """(root config, text config, Engram tables) for a tokenizer"""
    with open(tokenizer_path, encoding="utf-8") as f:
        tok = json.load(f)
    tmap, classes = token_map(tok)
    ids = {t["content"]: t["id"] for t in tok["added_tokens"]}
    text = dict(shape, vocab_size=len(tmap), engram_compressed_vocab_size=classes)
    tables = engram_tables(text, tmap, classes)
    text["engram_num_embeddings"] = [int(x) for x in tables["primes"].sum(1)]
    text["dspark_noise_token_id"] = ids["<｜place▁holder▁no▁0｜>"]
    root = dict(architectures=["DeepseekV41ForCausalLM"], model_type="deepseek_v41", dtype="bfloat16", bos_token_id=0, eos_token_id=1,
                pad_token_id=2, image_token_id=ids["<｜deepseek_image｜>"], transformers_version="5.6.0", text_config=text,
                quantization_config=QUANT)
    return root, text, tables


def load(folder):
    """(text config, Engram tables) of an exported model"""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        text = json.load(f)["text_config"]
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tmap, classes = token_map(json.load(f))
    return text, engram_tables(text, tmap, classes)
