"""A checkpoint in memory, to be changed and written again: {name: [dtype, shape, bytes]}."""
import json
import os
import struct

WIDTH = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def load(directory):
    tensors = {}
    for f in sorted(os.listdir(directory)):
        if f.endswith(".safetensors"):
            raw = (directory / f).read_bytes()
            n, = struct.unpack("<Q", raw[:8])
            for name, t in json.loads(raw[8:8 + n]).items():
                if name != "__metadata__":
                    a, b = t["data_offsets"]
                    tensors[name] = [t["dtype"], t["shape"], raw[8 + n + a:8 + n + b]]
    return tensors


def entries(tensors, at=0):
    header = {}
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return header


def write(path, tensors, header=None, pad=0, extra=b""):
    """One file. header: a dict or bytes instead of the fitting one; pad: spaces behind it; extra: bytes behind the data."""
    h = entries(tensors) if header is None else header
    h = h if isinstance(h, bytes) else json.dumps(h, separators=(",", ":")).encode()
    h += b" " * pad
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for _, _, data in tensors.values():
            f.write(data)
        f.write(extra)


def index(directory, weight_map, more=None):
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map, **(more or {})}))


def zeros(dtype, *shape):
    n = WIDTH[dtype]
    for s in shape:
        n *= s
    return [dtype, list(shape), bytes(n)]
