"""Model files that break one rule each: exit 1 and one line that names file or tensor, value and rule; and odd ones that are accepted."""
import copy
import json
import os
import shutil
import struct

import numpy as np
import pytest

import checkpoint_lib as ck

SHARD = "model.safetensors"


@pytest.fixture(scope="module")
def base(deepserve, root, tmp_path_factory):
    """(configuration, tensors, directory) of a random tiny-a and tiny-b, quantised and not."""
    made = {}

    def get(name, quant="release"):
        if (name, quant) not in made:
            d = tmp_path_factory.mktemp("base") / "m"
            config = root / "tests" / "configs" / f"{name}.json"
            r = deepserve("synth", "--config", config, "--seed", 3, "--out", d, "--quant", quant)
            assert r.returncode == 0, r.stderr
            made[name, quant] = json.loads((d / "config.json").read_text()), ck.load(d), d
        config, tensors, d = made[name, quant]
        return copy.deepcopy(config), dict(tensors), d

    return get


@pytest.fixture
def place(tmp_path):
    """place(config, tensors, tokenizer from) -> a fresh directory without index."""
    def make(config, tensors, d, **how):
        m = tmp_path / "m"
        shutil.rmtree(m, ignore_errors=True)
        m.mkdir()
        (m / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        shutil.copy(d / "tokenizer.json", m)
        if tensors is not None:
            ck.write(m / SHARD, tensors, **how)
        return m

    return make


def one_line(r, *parts):
    text = r.stderr.decode()
    assert r.returncode == 1 and r.stdout == b"" and text.count("\n") == 1, (parts, r)
    for p in parts:
        assert p in text, (p, text)
    return text


@pytest.fixture
def bad(deepserve, tmp_path):
    """bad(directory, parts…): inspect and logits refuse it with the same line."""
    def check(m, *parts, inspect=True):
        texts = []
        for args in (["inspect", "--model", m, "--json"], ["logits", "--model", m, "--tokens", "3,4,5", "--out", tmp_path / "l.npy"]):
            if args[0] == "inspect" and not inspect:
                assert deepserve(*args).returncode == 0
                continue
            texts.append(one_line(deepserve(*args), *parts).split(": ", 1)[1])
        assert len(set(texts)) == 1 and not (tmp_path / "l.npy").exists()

    return check


@pytest.fixture
def good(deepserve, tmp_path):
    def check(m):
        r = deepserve("inspect", "--model", m, "--json")
        assert r.returncode == 0, r.stderr
        r = deepserve("logits", "--model", m, "--tokens", "3,4,5", "--out", tmp_path / "l.npy")
        assert r.returncode == 0, r.stderr
        got = np.load(tmp_path / "l.npy")
        (tmp_path / "l.npy").unlink()
        return got

    return check


# ---- files ----


def test_headers(base, place, bad):
    config, t, d = base("tiny-b")
    h = ck.entries(t)
    last = list(h)[-1]
    end = h[last]["data_offsets"][1]

    def change(name, key, value):
        g = copy.deepcopy(h)
        g[name][key] = value
        return g

    name = "layers.1.attn.wq_a.weight"
    a, b = h[name]["data_offsets"]
    text = json.dumps(h).encode()
    cases = [
        (change(name, "data_offsets", [a, b + 1]), [name, "span of 2049", "2048"]),
        (change(name, "data_offsets", [a + 1, b]), [name, "span of 2047"]),
        (change(name, "data_offsets", [b, a]), [name, "outside"]),
        (change(name, "data_offsets", [a, end + 2048]), [name, "outside"]),
        (change(name, "data_offsets", [a - 64, b - 64]), [name, "inside the one before"]),
        (change(name, "data_offsets", [2 ** 64, 2 ** 64 + 2048]), ["too large"]),
        (change(name, "data_offsets", [2 ** 63, 2 ** 63 + 2048]), [name, "outside"]),
        (change(name, "data_offsets", [-1, 2047]), [name, "whole number"]),
        (change(name, "data_offsets", [a]), [name, "data_offsets"]),
        (change(name, "data_offsets", [float(a), float(b)]), [name, "whole number"]),
        (change(name, "data_offsets", [a, b, b]), [name, "data_offsets"]),
        (change(name, "data_offsets", str(a)), [name, "list"]),
        (change(name, "shape", [2 ** 40, 2 ** 40]), [name, "too large"]),
        (change(name, "shape", [-32, -64]), [name, "whole number"]),
        (change(name, "shape", [32.0, 64]), [name, "whole number"]),
        (change(name, "shape", [1] * 40), [name, "32 dimensions"]),
        (change(name, "shape", 2048), [name, "list"]),
        (change(name, "dtype", 5), [name, "string"]),
        (dict(h, more={"shape": [1], "data_offsets": [end, end]}), ["dtype"]),
        (dict(h, more=[]), ["object"]),
        (dict(h, more=None), ["object"]),
        ({k: v for k, v in h.items() if k != last}, ["bytes after the last tensor"]),
        ({k: v for k, v in h.items() if k != name}, ["hole"]),
        (text[:-1] + b',"' + name.encode() + b'":' + json.dumps(h[name]).encode() + b"}", [name, "twice"]),
        (text[:-1], ["ends too early"]),
        (text + b"x", ["after the value"]),
        (b"\xef\xbb\xbf" + text, ["object"]),
        (b"[" + text + b"]", ["object"]),
        (b"", ["ends too early"]),
        (text.replace(b"wq_a", b"\xff\xff__", 1), ["UTF-8"]),
        (text[:-1] + b',"__metadata__":' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}", ["64"]),
    ]
    for header, parts in cases:
        bad(place(config, t, d, header=header), SHARD, *parts)
    bad(place(config, t, d, extra=b"x"), SHARD, "1 bytes after the last tensor")
    long = "\n" * 5000
    for entry, part in (({"dtype": "F32", "shape": [3], "data_offsets": [2 ** 40, 2 ** 40 + 12]}, "lies outside"), ({"dtype": "F32", "shape": [3], "data_offsets": [0, 13]}, "a span of 13"),
                        ({"dtype": "F32", "shape": [3.5], "data_offsets": [0, 13]}, "expected a whole number")):
        bad(place(config, t, d, header=dict(h, **{long: entry})), SHARD, "\\n\\n...: ", part)
    m = place(config, t, d)
    raw = (m / SHARD).read_bytes()
    for n in (0, 1, 7, 8, 9, 100, len(raw) // 2, len(raw) - 1):
        (m / SHARD).write_bytes(raw[:n])
        bad(m, SHARD)
    for n in (len(raw), 2 ** 27, 2 ** 63, 2 ** 64 - 1, 2 ** 64 - 8):
        (m / SHARD).write_bytes(struct.pack("<Q", n) + raw[8:])
        bad(m, SHARD, "header")


def test_shards(base, place, bad, good):
    config, t, d = base("tiny-b")
    names = list(t)
    parts = [{n: t[n] for n in names[i::3]} for i in range(3)]
    files = [f"model-{i}.safetensors" for i in range(3)]
    where = {n: files[i] for i in range(3) for n in parts[i]}

    def write():
        m = place(config, None, d)
        for f, p in zip(files, parts):
            ck.write(m / f, p)
        return m

    want = good(place(config, t, d))
    m = write()
    assert np.array_equal(good(m), want)  # without index all are read
    ck.write(m / "more.safetensors", {names[0]: t[names[0]]})
    bad(m, names[0], "model-0.safetensors", "more.safetensors")
    ck.index(m, where)
    assert np.array_equal(good(m), want)  # with it others aren't
    (m / "more.safetensors").write_bytes(b"nonsense")
    assert np.array_equal(good(m), want)
    for changed, parts_ in (
        (dict(where, absent="model-0.safetensors"), ["absent", "model-0.safetensors"]),
        (dict(where, absent="none.safetensors"), ["none.safetensors", "No such file"]),
        (dict(where, **{names[0]: files[1]}), [names[0], files[1]]),
        ({k: v for k, v in where.items() if k != "norm.weight"}, ["norm.weight is missing"]),
        (dict(where, absent="../m/model-0.safetensors"), ["same directory"]),
        (dict(where, absent="/etc/passwd"), ["same directory"]),
        (dict(where, absent=""), ["same directory"]),
        (dict(where, absent=".."), ["same directory"]),
        (dict(where, absent=5), ["string"]),
        (dict(where, absent=None), ["string"]),
        ({}, ["missing"]),
        ([], ["object"]),
    ):
        ck.index(m, changed)
        bad(m, *parts_)
    text = json.dumps({"weight_map": where})
    for changed, part in ((text[:-2] + f',"{names[0]}":"{files[0]}"}}}}', "twice"), ("{}", "weight_map is missing"), ("[]", "object"), (text + "}", "after the value"),
                          ('{"weight_map":{},' + text[1:], "twice"), ('{"x":1,"y":{},"x":2,' + text[1:], "twice"), ('{"metadata":{},' + text[1:-1] + ',"metadata":{}}', "twice"), (text[:-1], "early"), ("\ufeff" + text, "object")):
        (m / "model.safetensors.index.json").write_text(changed)
        bad(m, "model.safetensors.index.json", part)
    ck.index(m, where)
    (m / files[1]).unlink()
    bad(m, files[1], "No such file")
    (m / files[1]).mkdir()
    bad(m, files[1], "regular file")
    (m / files[1]).rmdir()
    os.mkfifo(m / files[1])
    bad(m, files[1], "regular file")
    (m / files[1]).unlink()
    m = place(config, None, d)
    bad(m, "no .safetensors")


def test_what_is_accepted(base, place, good, tmp_path):
    """Any order of entries and data, any alignment, tensors nobody uses, whatever their dtype."""
    config, t, d = base("tiny-b")
    want = good(place(config, t, d))
    rng = np.random.default_rng(1)
    names = list(t)
    for pad in (0, 1, 3):
        rng.shuffle(names)
        mixed = {n: t[n] for n in names}
        header = list(ck.entries(mixed).items())
        rng.shuffle(header)
        assert np.array_equal(good(place(config, mixed, d, header=dict(header), pad=pad)), want)
    odd = {"a": ["F8_E5M2", [3], b"\x7f\xff\x7c"], "b\n\u202e": ["F4", [3], b"\xff"], "c": ck.zeros("BOOL", 1), "d": ["F64", [1], b"\xff" * 8], "e": ck.zeros("I64", 0, 7), "": ck.zeros("U8"),
           "f": ["BF16", [1, 1, 1, 1], b"\xff\xff"], "layers.99.attn.wq_a.weight": ck.zeros("F16", 5), "mtp.7.norm.weight": ck.zeros("F32", 2)}
    header = dict(ck.entries({**odd, **t}), __metadata__={"format": 5, "x": [{}]})
    assert np.array_equal(good(place(config, {**odd, **t}, d, header=header)), want)
    for name in ("norm.weight", "layers.0.ffn.gate.weight", "layers.1.attn.compressor.wkv.weight", "embed.weight", "mtp.1.markov_head.head.weight"):
        dtype, shape, data = t[name]  # BF16 or F32 for what isn't quantised
        assert dtype == "BF16"
        t[name] = ["F32", shape, (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).tobytes()]
    got = good(place(config, t, d))
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


# ---- tensors ----


def kinds(t):
    """One tensor of every kind: numbers in names count once."""
    seen = {}
    for n in t:
        seen.setdefault("".join("#" if c.isdigit() else c for c in n.replace("w1", "wone").replace("w2", "wtwo").replace("w3", "wthree")), n)
    return list(seen.values())


@pytest.mark.parametrize("name, quant", [("tiny-a", "release"), ("tiny-b", "none")])
def test_every_kind_of_tensor(base, place, deepserve, tmp_path, name, quant):
    """Missing, of another dtype, of another shape, with NaN or infinity: the cases take turns. Only what runs the model reads values."""
    config, t, d = base(name, quant)
    out = tmp_path / "l.npy"

    def refused(tensors, command, *parts):
        m = place(config, tensors, d)
        one_line(deepserve(*{"logits": ["logits", "--tokens", "3", "--out", out], "inspect": ["inspect"], "draft": ["draft", "--tokens", "3"]}[command], "--model", m), *parts)
        assert not out.exists()

    for i, n in enumerate(kinds(t)):
        dtype, shape, data = t[n]
        width, command = ck.WIDTH[dtype], ("logits", "inspect")[i % 2]
        count = len(data) // width
        other = ("F16", "U8", "F8_E5M2", "F64")[i % 4]
        wrong = (ck.zeros(dtype, shape[0] + 1, *shape[1:]), [dtype, [*shape, 1], data], ck.zeros(dtype, *shape[:-1], 0))[i // 3 % 3]
        if i % 3 == 0:
            refused({k: v for k, v in t.items() if k != n}, command, n, "missing")
        elif i % 3 == 1:
            refused({**t, n: [other, shape, bytes(count * {"F16": 2, "F64": 8}.get(other, 1))]}, command, n, other, "must be", f"(in {SHARD})")
        else:
            refused({**t, n: wrong}, command, n, str(wrong[1]), str(shape), f"(in {SHARD})")
        values = {"BF16": (b"\x80\x7f", b"\xc0\xff"), "F32": (b"\0\0\x80\x7f", b"\1\0\x80\xff"), "F8_E4M3": (b"\x7f", b"\xff"), "F8_E8M0": (b"\xff",)}.get(dtype)
        if values:
            at = (0, count // 2, count - 1)[i // 3 % 3]
            refused({**t, n: [dtype, shape, data[:at * width] + values[i % len(values)] + data[(at + 1) * width:]]}, ("logits", "draft")[i % 2], n, f"element {at} ", "NaN")


def test_scales(base, place, bad):
    config, t, d = base("tiny-a")
    n = "layers.1.attn.wq_a"
    w, s = t[n + ".weight"], t[n + ".scale"]
    plain = ck.zeros("BF16", *w[1])
    bad(place(config, {**t, n + ".weight": plain}, d), n + ".scale", "BF16", "only quantised tensors have one")
    bad(place(config, {**t, n + ".scale": ["F32", s[1], bytes(4 * len(s[2]))]}, d), n + ".scale", "F32", "F8_E8M0")
    bad(place(config, {**t, n + ".scale": ck.zeros("F8_E8M0", *s[1][::-1], 1)}, d), n + ".scale")
    e = "layers.0.ffn.experts.1.w1"
    bad(place(config, {**t, e + ".weight": ["F8_E4M3", *t[e + ".weight"][1:]]}, d), e + ".weight", "F8_E4M3", "I8")
    bad(place(config, {**t, n + ".weight": ["I8", *w[1:]]}, d), n + ".weight", "I8", "F8_E4M3")


def test_engram_constants(base, place, bad, good):
    config, t, d = base("tiny-a")
    vocab, classes = config["text_config"]["vocab_size"], config["text_config"]["engram_compressed_vocab_size"]

    def i64(values, *shape):
        return ["I64", list(shape), np.array(values, np.int64).tobytes()]

    ids = [i % classes for i in range(vocab)]
    good(place(config, {**t, "engram.token_map": i64(ids, vocab)}, d))
    for at, v in ((0, -1), (5, classes), (vocab - 1, 2 ** 62)):
        bad(place(config, {**t, "engram.token_map": i64([*ids[:at], v, *ids[at + 1:]], vocab)}, d), "engram.token_map", f"element {at} ", str(v), str(classes - 1), inspect=False)
    bad(place(config, {**t, "engram.token_map": i64(ids[1:], vocab - 1)}, d), "engram.token_map", str(vocab))
    bad(place(config, {**t, "engram.token_map": ["F64", [vocab], bytes(8 * vocab)]}, d), "engram.token_map", "F64", "I64")
    primes = [101, 103, 107, 109, 113, 127]
    offsets = [0, 101, 204, 311, 420, 533]
    good(place(config, {**t, "engram.primes": i64(primes, 1, 6), "engram.offsets": i64(offsets, 1, 6)}, d))
    bad(place(config, {**t, "engram.primes": i64([101, 103, 107, 109, 127, 113], 1, 6)}, d), "engram.primes", "[0, 4]", "127", "113", inspect=False)
    bad(place(config, {**t, "engram.offsets": i64([0, 101, 204, 311, 420, 532], 1, 6)}, d), "engram.offsets", "[0, 5]", "532", "533", inspect=False)
    bad(place(config, {**t, "engram.primes": i64(primes, 6)}, d), "engram.primes", "[6]", "[1, 6]")
    good(place(config, {**t, "engram.multipliers": i64([1, 3, 5, 7], 1, 4)}, d))
    for v in (0, -1, 2 ** 62):
        bad(place(config, {**t, "engram.multipliers": i64([1, 3, v, 7], 1, 4)}, d), "engram.multipliers", "[0, 2]", str(v), inspect=False)


# ---- config.json ----

REFERENCE = """vocab_size hidden_size num_hidden_layers num_attention_heads head_dim qk_rope_head_dim q_lora_rank o_groups o_lora_rank rms_norm_eps rope_theta
compress_rope_theta sliding_window compress_ratios kv_source_layer_ids index_source_layer_ids index_n_heads index_head_dim index_topk candidate_topk_blocks
candidate_block_size hc_mult hc_sinkhorn_iters hc_eps n_routed_experts n_shared_experts num_experts_per_tok moe_intermediate_size scoring_func norm_topk_prob
routed_scaling_factor swiglu_limit engram_num_embeddings engram_max_ngram_size engram_vocab_size engram_n_heads engram_head_dim engram_pad_token_id
engram_compressed_vocab_size dspark_block_size dspark_noise_token_id dspark_target_layer_ids dspark_markov_rank dspark_n_routed_experts dspark_num_experts_per_tok""".split()
FREE = """model_type num_key_value_heads hidden_act attention_bias attention_dropout initializer_range tie_word_embeddings max_position_embeddings topk_method""".split()
VISION = "num_hidden_layers hidden_size num_attention_heads intermediate_size patch_size rope_theta downsample_ratio max_image_tokens min_pixels".split()
ROPE = "factor original_max_position_embeddings beta_fast beta_slow".split()


@pytest.fixture
def configured(base, tmp_path, deepserve):
    """configured(edit): the checkpoint of tiny-a with an edited configuration. The tensors stay."""
    config, t, d = base("tiny-a")
    m = tmp_path / "m"
    shutil.copytree(d, m)

    def make(edit):
        raw = copy.deepcopy(config)
        edit(raw)
        (m / "config.json").write_text(json.dumps(raw))
        return m

    def bad(edit, *parts, synth=True):
        text = one_line(deepserve("inspect", "--model", make(edit)), "config.json", *parts)
        if not synth:
            return
        r = deepserve("synth", "--config", m / "config.json", "--out", tmp_path / "out")
        assert r.returncode == 1 and r.stdout == b"" and not (tmp_path / "out").exists()
        assert r.stderr.decode().split(": ", 1)[1].split("config.json")[1] == text.split(": ", 1)[1].split("config.json")[1]

    def good(edit):
        r = deepserve("inspect", "--model", make(edit))
        assert r.returncode == 0, r.stderr

    bad.good = good
    return bad


def put(part, key, value):
    def edit(raw):
        (raw[part] if part else raw)[key] = value
    return edit


def drop(part, key):
    def edit(raw):
        (raw[part] if part else raw).pop(key, None)
    return edit


def test_required_fields(configured):
    bad = configured
    for k in REFERENCE:
        bad(drop("text_config", k), k)
        bad(put("text_config", k, None), k)
    for k in VISION:
        bad(drop("vision_config", k), k)
    for k in ROPE:
        bad(lambda raw: raw["text_config"]["rope_scaling"].pop(k), k)
    bad(drop("", "text_config"), "text_config")
    for k in FREE:
        bad.good(drop("text_config", k))
    for k in ("architectures", "model_type", "dtype", "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "quantization_config"):
        bad.good(drop("", k))
    bad(drop("", "image_token_id"), "image_token_id")
    bad.good(lambda raw: (raw.pop("image_token_id"), raw.pop("vision_config")))
    bad.good(drop("", "vision_config"))
    bad.good(put("", "vision_config", None))
    bad.good(put("text_config", "rope_scaling", None))
    bad.good(drop("text_config", "rope_scaling"))
    bad.good(drop("text_config", "candidate_source_layer_id"))
    bad.good(put("text_config", "candidate_source_layer_id", -5))
    bad.good(lambda raw: [raw["text_config"].pop(k) for k in ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size")])
    bad.good(lambda raw: [raw["text_config"].pop(k) for k in list(raw["text_config"]) if k.startswith("engram_")])

    def no_drafts(raw):
        t = raw["text_config"]
        for k in list(t):
            if k.startswith("dspark_") or k == "num_nextn_predict_layers":
                del t[k]
        t["compress_ratios"] = t["compress_ratios"][:8]
    bad.good(no_drafts)
    bad.good(put("text_config", "unknown", {"a": [None]}))
    bad.good(put("", "unknown", [1e999 if False else 1]))


def test_wrong_types_and_ranges(configured):
    bad = configured
    whole = [k for k in REFERENCE if k not in ("rms_norm_eps rope_theta compress_rope_theta hc_eps routed_scaling_factor swiglu_limit norm_topk_prob scoring_func compress_ratios kv_source_layer_ids "
                                               "index_source_layer_ids engram_num_embeddings dspark_target_layer_ids").split()]
    for k in whole:
        for v in (16.0, "16", -1, 2 ** 31, 2 ** 64):
            bad(put("text_config", k, v), k, synth=False)
        if k not in ("engram_pad_token_id", "dspark_noise_token_id"):
            bad(put("text_config", k, 0), k)
    for k in ("rms_norm_eps", "rope_theta", "compress_rope_theta", "hc_eps", "routed_scaling_factor", "swiglu_limit"):
        for v in ("1", True, [1.0], 1e300):
            bad(put("text_config", k, v), k)
    for k in ("rms_norm_eps", "rope_theta", "compress_rope_theta", "gate_temp"):
        for v in (0, -1.0):
            bad(put("text_config", k, v), k)
    for v in (1, "true", 0):
        bad(put("text_config", "norm_topk_prob", v), "norm_topk_prob")
    for k in ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids", "dspark_target_layer_ids"):
        for v in (5, "1", {"a": 1}, [1.0], ["1"], [-1], [[1]], [2 ** 64]):
            bad(put("text_config", k, v), k)
    for part, k, v in (("text_config", "model_type", "deepseek_v4"), ("", "model_type", "llama"), ("text_config", "num_key_value_heads", 2), ("text_config", "hidden_act", "gelu"),
                       ("text_config", "attention_bias", True), ("text_config", "tie_word_embeddings", True), ("text_config", "topk_method", "greedy"), ("text_config", "scoring_func", "sigmoid"),
                       ("text_config", "n_shared_experts", 2), ("text_config", "max_position_embeddings", 0), ("text_config", "max_position_embeddings", 1.5),
                       ("text_config", "num_nextn_predict_layers", -1), ("text_config", "num_nextn_predict_layers", 1000), ("text_config", "rope_scaling", 5), ("text_config", "rope_scaling", []),
                       ("text_config", "candidate_source_layer_id", 4.0), ("text_config", "candidate_source_layer_id", "4"), ("vision_config", "model_type", "clip"), ("", "vision_config", []),
                       ("", "text_config", []), ("", "image_token_id", 288), ("", "image_token_id", -1), ("", "image_token_id", 1.0), ("", "bos_token_id", 288), ("", "eos_token_id", -1),
                       ("", "eos_token_id", "1"), ("vision_config", "hidden_size", 50), ("vision_config", "patch_size", 0), ("vision_config", "max_wh_ratio", 0), ("vision_config", "max_wh_ratio", "2"),
                       ("vision_config", "num_attention_heads", 5), ("vision_config", "max_image_tokens", 0), ("vision_config", "downsample_ratio", 0)):
        bad(put(part, k, v), k)
    bad(lambda raw: raw["text_config"]["rope_scaling"].update(rope_type="linear"), "rope_type")
    bad(lambda raw: raw["text_config"]["rope_scaling"].update(factor=0), "factor")
    bad(lambda raw: raw["quantization_config"].update(weight_block_size=[128, 128]), "weight_block_size")


def test_topology_and_divisibility(configured):
    bad = configured
    # ratios [0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0], KV sources [1, 2, 4], index sources [1, 2, 4, 6], candidates 4
    for k, v, *parts in (
        ("compress_ratios", [0, 2, 2, 2, 1, 1, 1, 1, 0, 0], "10", "11"), ("compress_ratios", [0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0], "12", "11"),
        ("compress_ratios", [0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 1], "[10]", "draft"), ("compress_ratios", [0, 2, 2, 3, 1, 1, 1, 1, 0, 0, 0], "[3]"),
        ("compress_ratios", [0, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0], "[3]", "ratio 2"), ("compress_ratios", [2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0], "[0]", "no KV source"),
        ("compress_ratios", [0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0], "layer 1", "ratio"), ("compress_ratios", [0, 2, 2, 2, 1, 1, 0, 1, 0, 0, 0], "layer 6", "ratio"),
        ("kv_source_layer_ids", [], "empty"), ("kv_source_layer_ids", [1, 2, 4, 5], "layer 5", "index_source"), ("kv_source_layer_ids", [2, 1, 4], "increasing"),
        ("kv_source_layer_ids", [1, 1, 2, 4], "increasing"), ("kv_source_layer_ids", [1, 2, 4, 8], "7"),
        ("index_source_layer_ids", [1, 2, 6], "layer 4"), ("index_source_layer_ids", [1, 2, 4, 4], "increasing"), ("index_source_layer_ids", [0, 1, 2, 4, 6], "layer 0"),
        ("index_source_layer_ids", [1, 2, 4, 6, 9], "7"), ("candidate_source_layer_id", 5, "index_source"), ("candidate_source_layer_id", 2, "KV source"),
        ("candidate_source_layer_id", 8, "8"), ("candidate_topk_blocks", 2, "index_topk"), ("candidate_block_size", 2, "index_topk"), ("index_topk", 14, "index_topk"),
        ("engram_layer_ids", [8], "7"), ("engram_layer_ids", [2, 2], "increasing"), ("engram_layer_ids", [1, 2], "engram_num_embeddings"), ("engram_num_embeddings", [661], "661", "660"),
        ("engram_num_embeddings", [660, 5], "2"), ("engram_max_ngram_size", 1, "1"),
        ("engram_pad_token_id", 288, "288"), ("engram_compressed_vocab_size", 289, "289"), ("dspark_target_layer_ids", [], "empty"), ("dspark_target_layer_ids", [5, 5], "once"),
        ("dspark_target_layer_ids", [8], "7"), ("dspark_noise_token_id", 288, "288"), ("dspark_num_experts_per_tok", 5, "5", "4"), ("num_experts_per_tok", 9, "9", "8"),
        ("hidden_size", 48, "48", "32"), ("q_lora_rank", 48, "48", "32"), ("moe_intermediate_size", 16, "16", "32"), ("o_lora_rank", 8, "16", "32"), ("head_dim", 48, "48", "32"),
        ("index_head_dim", 48, "48", "32"), ("engram_head_dim", 16, "16", "32"), ("o_groups", 4, "4", "6"), ("qk_rope_head_dim", 15, "15", "even"), ("qk_rope_head_dim", 34, "34", "head_dim"),
        ("num_hidden_layers", 7, "11", "10"), ("num_nextn_predict_layers", 2, "11", "10"), ("vocab_size", 2, "vocab_size"),
    ):
        bad(put("text_config", k, v), k, *parts)
    for k, v in (("engram_vocab_size", 104), ("engram_n_heads", 3), ("engram_max_ngram_size", 3)):
        bad(put("text_config", k, v), "engram_num_embeddings[0] = 660", "sum")
    bad(put("text_config", "kv_source_layer_ids", [1, 2]), "compress_ratios[4]", "layer 2", "ratio 2")
    bad.good(put("text_config", "dspark_target_layer_ids", [7, 5, 6]))
    bad.good(put("text_config", "candidate_source_layer_id", 6))


def test_config_files(base, place, bad, good):
    config, t, d = base("tiny-b")
    text = json.dumps(config)
    for changed, part in (("", "early"), ("[]", "object"), ("null", "object"), (text[:-1], "line 1"), (text + "x", "line 1"), ("\ufeff" + text, "line 1"), (text.replace(":", "=", 1), "line 1"),
                          (text[:-1] + ',"model_type":"deepseek_v41"}', "model_type"), (text.replace('"vocab_size": 275', '"vocab_size": 275, "vocab_size": 275'), "vocab_size"),
                          (text.replace('"vocab_size": 275', '"vocab_size": NaN'), "line 1"), (text[:-1] + ',"x":' + "[" * 70 + "]" * 70 + "}", "nested too deep"),
                          (text[:-1] + ',"x":"\\ud800"}', "line 1"), (text + " " * (1 << 20), "1048576"), (text.replace("275", "0275"), "line 1")):
        bad(place(changed, t, d), "config.json", *([part] if part != "early" else []))
    for changed in (text[:-1] + ',"x":' + "[" * 62 + "]" * 62 + "}", "\n\t " + text + " \r\n", text[:-1] + ',"\\u0061":"\\ud83d\\ude00"}', text + " " * ((1 << 20) - len(text))):
        good(place(changed, t, d))


def test_values_that_overflow(base, place, deepserve, tmp_path):
    """Weights that are finite but lead to logits that aren't: never written."""
    config, t, d = base("tiny-b", "none")
    dtype, shape, data = t["head.weight"]
    m = place(config, {**t, "head.weight": [dtype, shape, b"\x7f\x7f" * (len(data) // 2)], "norm.weight": ["BF16", t["norm.weight"][1], b"\x7f\x7f" * 64]}, d)
    out = tmp_path / "l.npy"
    for args in (["logits", "--tokens", "3,4", "--out", out], ["logits", "--tokens", "3,4", "--mode", "ced", "--out", out], ["draft", "--tokens", "3,4", "--json"],
                 ["generate", "--tokens", "3,4"], ["generate", "--tokens", "3,4", "--temperature", "0"]):
        one_line(deepserve(*args, "--model", m), "finite")
    assert not out.exists()
