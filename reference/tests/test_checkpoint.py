import json
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from refdata import raw_config                                 # noqa: E402
from dsref import checkpoint, synth                             # noqa: E402
from dsref.config import Config, ConfigError                    # noqa: E402

REAL = dict(vocab_size=129280, hidden_size=5120, num_hidden_layers=40, num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1280,
            o_groups=8, o_lora_rank=1024, rms_norm_eps=1e-20, rope_theta=10000, compress_rope_theta=160000, sliding_window=128,
            compress_ratios=[0, 0] + [2] * 18 + [1] * 20 + [0] * 3, kv_source_layer_ids=[2, 8, 14, 20],
            index_source_layer_ids=[2, 8, 14, 20, 24, 28, 32, 36], index_n_heads=32, index_head_dim=128, index_topk=512,
            candidate_source_layer_id=20, candidate_topk_blocks=2048, candidate_block_size=8, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6,
            n_routed_experts=384, num_experts_per_tok=6, moe_intermediate_size=2304, norm_topk_prob=True, routed_scaling_factor=1.5,
            swiglu_limit=10.0, engram_layer_ids=[1, 14], engram_num_embeddings=[384006168, 384016682], engram_max_ngram_size=4,
            engram_vocab_size=16000000, engram_n_heads=8, engram_head_dim=256, engram_pad_token_id=2, engram_compressed_vocab_size=99092,
            num_nextn_predict_layers=3, dspark_block_size=5, dspark_noise_token_id=128799, dspark_target_layer_ids=[37, 38, 39],
            dspark_markov_rank=256, dspark_n_routed_experts=128, dspark_num_experts_per_tok=3)
VISION = dict(num_hidden_layers=32, hidden_size=1024, num_attention_heads=16, intermediate_size=2816, patch_size=14, rope_theta=10000,
              downsample_ratio=3, max_image_tokens=1024, min_pixels=295936, max_wh_ratio=None)


def test_tensor_list_of_the_released_model():
    """Section 6 adds up to 96,085 tensors and 475.24 GiB."""
    count = size = 0
    for name, (shape, kind) in checkpoint.tensor_list(Config({"text_config": REAL, "vision_config": VISION})).items():
        n = int(np.prod([int(s) for s in shape], dtype=object))
        if kind in ("f32", "bf16"):
            count, size = count + 1, size + n * (4 if kind == "f32" else 2)
        else:
            scale = {"fp8": -(-shape[0] // 32) * -(-shape[-1] // 32), "fp4": n // 32, "rows": n // 32}[kind]
            count, size = count + 2, size + (n // 2 if kind == "fp4" else n) + scale
    assert count == 96085 and round(size / 2 ** 30, 2) == 475.24


@pytest.mark.parametrize("quant", [True, False])
def test_round_trip(tmp_path, quant):
    raw = raw_config("tiny-c")
    cfg = Config(raw)
    w = synth.weights(cfg, 1)
    checkpoint.write_checkpoint(str(tmp_path / "a"), raw, w, quant, shard_bytes=300000, tokenizer=synth.tokenizer(cfg.vocab_size))
    assert len([f for f in os.listdir(tmp_path / "a") if f.endswith(".safetensors")]) > 2
    _, x, _ = checkpoint.load_checkpoint(str(tmp_path / "a"), torch.float32)
    for name, (_, kind) in checkpoint.tensor_list(cfg).items():
        scale = w[name].abs().max()
        tolerance = 0 if kind == "f32" else 0.25 if quant and kind == "fp4" else 0.07 if quant and kind in ("fp8", "rows") else 2.0 ** -8
        assert (x[name] - w[name]).abs().max() <= tolerance * scale, name
    # what was read back writes to the same bytes
    checkpoint.write_checkpoint(str(tmp_path / "b"), raw, x, quant, shard_bytes=300000)
    a, b = checkpoint.read_raw(str(tmp_path / "a")), checkpoint.read_raw(str(tmp_path / "b"))
    assert a.keys() == b.keys()
    _, y, _ = checkpoint.load_checkpoint(str(tmp_path / "b"), torch.float32)
    assert all((x[k] == y[k]).all() for k in x)
    with open(tmp_path / "a" / "config.json") as f:
        assert ("quantization_config" in json.load(f)) == quant


@pytest.mark.parametrize("field,value", [("compress_ratios", [0, 2]), ("kv_source_layer_ids", [0, 2, 4]), ("index_source_layer_ids", [1, 4]),
                                         ("candidate_source_layer_id", 5), ("candidate_topk_blocks", 2), ("o_groups", 4), ("head_dim", 48),
                                         ("engram_layer_ids", [2, 1]), ("qk_rope_head_dim", 34), ("compress_ratios", [0, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0])])
def test_topology_rules(field, value):
    raw = raw_config("tiny-a")
    raw["text_config"][field] = value
    with pytest.raises(ConfigError):
        Config(raw)
