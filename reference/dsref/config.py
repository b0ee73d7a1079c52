"""config.json of the released form -> Config, with the topology rules of the specification's section 2 checked."""

import json
import os


class ConfigError(ValueError):
    pass


REQUIRED = """vocab_size hidden_size num_hidden_layers num_attention_heads head_dim qk_rope_head_dim q_lora_rank o_groups o_lora_rank
rms_norm_eps rope_theta compress_rope_theta sliding_window compress_ratios kv_source_layer_ids index_source_layer_ids index_n_heads
index_head_dim index_topk hc_mult hc_sinkhorn_iters hc_eps n_routed_experts num_experts_per_tok moe_intermediate_size
norm_topk_prob routed_scaling_factor swiglu_limit""".split()
ENGRAM = """engram_num_embeddings engram_max_ngram_size engram_vocab_size engram_n_heads engram_head_dim engram_pad_token_id
engram_compressed_vocab_size""".split()
DSPARK = """dspark_block_size dspark_noise_token_id dspark_target_layer_ids dspark_markov_rank dspark_n_routed_experts
dspark_num_experts_per_tok""".split()


class Vision:
    def __init__(self, v):
        self.layers = v["num_hidden_layers"]
        self.dim = v["hidden_size"]
        self.heads = v["num_attention_heads"]
        self.inter = v["intermediate_size"]
        self.patch = v["patch_size"]
        self.theta = v["rope_theta"]
        self.down = v["downsample_ratio"]
        self.max_tokens = v["max_image_tokens"]
        self.min_pixels = v["min_pixels"]
        self.max_wh_ratio = v.get("max_wh_ratio")


class Config:
    """Fields of text_config under their own names; `vision` is None or a Vision; `raw` is the JSON object."""

    def __init__(self, raw):
        self.raw = raw
        t = raw["text_config"]
        for k in REQUIRED:
            if k not in t:
                raise ConfigError("config.json: text_config.%s is missing" % k)
        t = dict(t)
        t.setdefault("gate_temp", 1.0)
        t.setdefault("candidate_source_layer_id", -1)
        t.setdefault("engram_layer_ids", [])
        t.setdefault("num_nextn_predict_layers", 0)
        t.setdefault("n_shared_experts", 1)
        for names, wanted in ((ENGRAM, t["engram_layer_ids"]), (DSPARK, t["num_nextn_predict_layers"]),
                              (["candidate_topk_blocks", "candidate_block_size"], t["candidate_source_layer_id"] >= 0)):
            for k in names:
                if wanted and k not in t:
                    raise ConfigError("config.json: text_config.%s is missing" % k)
        self.rope_scaling = None
        self.__dict__.update(t)
        self.bos, self.eos = raw.get("bos_token_id", 0), raw.get("eos_token_id", 1)
        self.image_token_id = raw.get("image_token_id", -1)
        v = raw.get("vision_config")
        self.vision = Vision(v) if v and v["num_hidden_layers"] > 0 else None
        self.L, self.M = self.num_hidden_layers, self.num_nextn_predict_layers
        self.d, self.n, self.D, self.rd = self.hidden_size, self.hc_mult, self.head_dim, self.qk_rope_head_dim
        self.check()

    @classmethod
    def load(cls, path):
        """`path` is a model directory or a config.json."""
        if os.path.isdir(path):
            path = os.path.join(path, "config.json")
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))

    # topology

    def ratio(self, l):
        return self.compress_ratios[l]

    def kv_source(self, l):
        return max(s for s in self.kv_source_layer_ids if s <= l)

    def index_source(self, l):
        return max(s for s in self.index_source_layer_ids if s <= l)

    def uses_candidates(self, l):
        return 0 <= self.candidate_source_layer_id < l

    @property
    def boundary(self):
        """First decoder layer: the last KV source (None when there is none)."""
        return self.kv_source_layer_ids[-1] if self.kv_source_layer_ids else None

    @property
    def engram_width(self):
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads * self.engram_head_dim

    def check(self):
        def need(ok, text):
            if not ok:
                raise ConfigError("config.json: " + text)
        L, M = self.L, self.M
        need(len(self.compress_ratios) == L + M, "compress_ratios needs %d entries" % (L + M))
        need(all(r in (0, 1, 2) for r in self.compress_ratios), "compress_ratios holds a value other than 0, 1, 2")
        need(not any(self.compress_ratios[L:]), "draft layers need compress ratio 0")
        for k in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids"):
            v = getattr(self, k)
            need(all(a < b for a, b in zip(v, v[1:])), k + " is not strictly increasing")
            need(all(0 <= x < L for x in v), k + " names a layer outside the backbone")
        need(set(self.kv_source_layer_ids) <= set(self.index_source_layer_ids), "every KV source must be an index source")
        need(all(self.ratio(s) for s in self.index_source_layer_ids), "a source layer has ratio 0")
        for l in range(L):
            if not self.ratio(l):
                continue
            need(self.kv_source_layer_ids and self.kv_source_layer_ids[0] <= l, "layer %d has no KV source" % l)
            s, i = self.kv_source(l), self.index_source(l)
            need(self.ratio(s) == self.ratio(l), "layer %d and its KV source %d differ in ratio" % (l, s))
            need(self.kv_source(i) == s, "index source %d of layer %d uses another KV source" % (i, l))
        c = self.candidate_source_layer_id
        if c >= 0:
            need(c in self.index_source_layer_ids, "candidate source %d is not an index source" % c)
            need(all(self.kv_source(i) == self.kv_source(c) for i in self.index_source_layer_ids if i > c),
                 "an index source after the candidate source uses another KV source")
            need((self.candidate_topk_blocks - 1) * self.candidate_block_size + 1 >= self.index_topk, "candidate pool < index_topk")
        g = self.num_attention_heads * self.head_dim // self.o_groups
        need(self.num_attention_heads % self.o_groups == 0, "o_groups does not divide the heads")
        for name, v in (("hidden_size", self.d), ("q_lora_rank", self.q_lora_rank), ("moe_intermediate_size", self.moe_intermediate_size),
                        ("o_groups * o_lora_rank", self.o_groups * self.o_lora_rank), ("heads * head_dim / o_groups", g),
                        ("head_dim", self.D), ("index_head_dim", self.index_head_dim)):
            need(v % 32 == 0, "%s = %d is not a multiple of 32" % (name, v))
        if self.engram_layer_ids:
            need(self.engram_width % 32 == 0 and self.engram_head_dim % 32 == 0, "Engram widths are not multiples of 32")
        need(self.rd % 2 == 0 and self.rd <= min(self.D, self.index_head_dim), "qk_rope_head_dim does not fit")
