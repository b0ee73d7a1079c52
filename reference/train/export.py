"""Writes a trained model in the released checkpoint layout, or unquantised in BF16, and reads one back.

    python export.py STATE.pt TOKENIZER.json OUT      the weights before quantisation, to measure what it costs
"""

import json
import os
import shutil
import struct
import sys

import torch

import config
import params
import quant

DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", quant.FP8: "F8_E4M3", torch.int8: "I8", torch.int64: "I64"}


def tensors(cfg, masters, biases, plain=False):
    """name -> (type name, tensor) as in the checkpoint; plain: BF16 instead of FP8 and MXFP4"""
    out = {}
    kinds = {n: k for n, (_, k, _) in params.spec(cfg).items()}

    def put(name, t, kind=None):
        out[name] = (kind or DTYPES[t.dtype], t.cpu().contiguous())

    def packed(name, w, pack):
        if plain:
            return put(name + ".weight", w.to(torch.bfloat16))
        q, s = pack(w)
        put(name + ".weight", q)
        put(name + ".scale", s, "F8_E8M0")

    for name, m in masters.items():
        kind = kinds[name]
        m = m.detach().float()
        if kind == "fp4":
            p = name.rsplit(".", 1)[0]
            for e in range(m.shape[0]):
                if name.endswith("w13"):
                    half = m.shape[1] // 2
                    packed(f"{p}.{e}.w1", m[e, :half], quant.pack_mxfp4)
                    packed(f"{p}.{e}.w3", m[e, half:], quant.pack_mxfp4)
                else:
                    packed(f"{p}.{e}.w2", m[e], quant.pack_mxfp4)
        elif kind == "fp8" and name.endswith("w13"):
            p, half = name.rsplit(".", 1)[0], m.shape[0] // 2
            packed(p + ".w1", m[:half], quant.pack_fp8_block)
            packed(p + ".w3", m[half:], quant.pack_fp8_block)
        elif kind == "fp8":
            packed(name, m, quant.pack_fp8_block)
        elif kind == "table" and plain:
            put(name, m.to(torch.bfloat16))
        elif kind == "table":
            q, s = quant.pack_fp8_rows(m)
            put(name, q)
            put(name[:-6] + "scale", s, "F8_E8M0")
        elif kind == "bf16":
            put(name, m.to(torch.bfloat16))
        elif kind == "fn":
            put(name, m.to(torch.bfloat16).float())
        else:
            put(name, m)
    for i, b in enumerate(biases):
        l = cfg["num_hidden_layers"]
        put(f"layers.{i}.ffn.gate.bias" if i < l else f"mtp.{i - l}.ffn.gate.bias", b.float())
    return out


def write_safetensors(path, items):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (kind, t) in items.items():
        n = t.numel() * t.element_size()
        header[name] = dict(dtype=kind, shape=list(t.shape), data_offsets=[at, at + n])
        at += n
    h = json.dumps(header, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for _, t in items.values():
            f.write(t.view(torch.uint8).numpy().tobytes() if t.dim() else t.numpy().tobytes())


def read_safetensors(path):
    types = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": quant.FP8, "I8": torch.int8, "F8_E8M0": torch.uint8, "I64": torch.int64}
    with open(path, "rb") as f:
        data = f.read()
    n, = struct.unpack_from("<Q", data)
    out = {}
    for name, e in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            a, b = e["data_offsets"]
            out[name] = torch.frombuffer(bytearray(data[8 + n + a:8 + n + b]), dtype=torch.uint8).view(types[e["dtype"]]).view(e["shape"])
    return out


def save(folder, tokenizer, shape, masters, biases, plain=False):
    """A complete model folder but for the card. Returns the number of bytes of the weights."""
    os.makedirs(folder, exist_ok=True)
    root, text, _ = config.build(tokenizer, shape)
    if plain:
        del root["quantization_config"]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(root, f, indent=2, ensure_ascii=False)
        f.write("\n")
    with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as f:
        json.dump(dict(bos_token_id=0, eos_token_id=1, pad_token_id=2, do_sample=True, temperature=0.6, top_p=0.95), f, indent=2)
        f.write("\n")
    if os.path.abspath(tokenizer) != os.path.abspath(os.path.join(folder, "tokenizer.json")):
        shutil.copyfile(tokenizer, os.path.join(folder, "tokenizer.json"))
    path = os.path.join(folder, "model.safetensors")
    write_safetensors(path, tensors(text, masters, biases, plain))
    return os.path.getsize(path)


def load(folder, device):
    """(masters, biases) of an exported model; the masters are the dequantised weights."""
    cfg, _ = config.load(folder)
    t = {n: x.to(device) for n, x in read_safetensors(os.path.join(folder, "model.safetensors")).items()}

    def dense(name):
        s = quant.from_e8m0(t[name + ".scale"])
        return t[name + ".weight"].float() * s.repeat_interleave(32, 0).repeat_interleave(32, 1)

    def expert(name):
        return quant.unpack_mxfp4(t[name + ".weight"], t[name + ".scale"])

    masters = {}
    for name, (shape, kind, _) in params.spec(cfg).items():
        p = name.rsplit(".", 1)[0]
        if kind == "fp4":
            rows = [torch.cat([expert(f"{p}.{e}.w1"), expert(f"{p}.{e}.w3")]) if name.endswith("w13") else expert(f"{p}.{e}.w2") for e in range(shape[0])]
            m = torch.stack(rows)
        elif kind == "fp8":
            m = torch.cat([dense(p + ".w1"), dense(p + ".w3")]) if name.endswith("w13") else dense(name)
        elif kind == "table":
            m = t[name].float() * quant.from_e8m0(t[name[:-6] + "scale"]).repeat_interleave(32, 1)
        else:
            m = t[name].float()
        assert tuple(m.shape) == tuple(shape), name
        masters[name] = m
    l = cfg["num_hidden_layers"]
    biases = [t[f"layers.{i}.ffn.gate.bias"] for i in range(l)] + [t[f"mtp.{i}.ffn.gate.bias"] for i in range(cfg["num_nextn_predict_layers"])]
    return masters, biases


def main():
    state, tokenizer, out = sys.argv[1:]
    s = torch.load(state, map_location="cpu", weights_only=True)
    save(out, tokenizer, config.SHAPES[s["shape"]], s["masters"], s["biases"], plain=True)


if __name__ == "__main__":
    main()
