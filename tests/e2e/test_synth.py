"""deepserve synth: same seed, same bytes; the released layout; refusals leave nothing behind."""
import hashlib
import json
import os
import signal
import struct
import subprocess
import time

import pytest

TINY = ["tiny-a", "tiny-b", "tiny-c", "tiny-d"]


def header(path):
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        assert (8 + n) % 64 == 0
        return json.loads(f.read(n)), os.path.getsize(path) - 8 - n


def digest(directory):
    h = hashlib.sha256()
    for name in sorted(os.listdir(directory)):
        h.update(name.encode() + b"\0" + open(os.path.join(directory, name), "rb").read())
    return h.hexdigest()


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("quant", ["release", "none"])
def test_tiny(deepserve, root, tmp_path, name, quant):
    config = root / "tests" / "configs" / (name + ".json")
    out = tmp_path / "m"
    r = deepserve("synth", "--config", config, "--seed", 7, "--out", out, "--quant", quant)
    assert r.returncode == 0 and r.stdout == b"", r.stderr
    assert os.listdir(tmp_path) == ["m"]
    index = json.load(open(out / "model.safetensors.index.json"))
    tensors, size = {}, 0
    for file in sorted(set(index["weight_map"].values())):
        h, data = header(out / file)
        h.pop("__metadata__")
        tensors.update(h)
        size += data
        assert max(t["data_offsets"][1] for t in h.values()) == data
    assert set(tensors) == set(index["weight_map"]) and index["metadata"]["total_size"] == size
    kinds = {t["dtype"] for t in tensors.values()}
    assert kinds == ({"BF16", "F32", "F8_E4M3", "F8_E8M0", "I8"} if quant == "release" else {"BF16", "F32"})
    for t in tensors.values():
        width = {"BF16": 2, "F32": 4}.get(t["dtype"], 1)
        assert t["data_offsets"][0] % width == 0
    written, given = json.load(open(out / "config.json")), json.load(open(config))
    assert ("quantization_config" in written) == (quant == "release")
    written.pop("quantization_config", None)
    given.pop("quantization_config", None)
    assert written == given
    tok = json.load(open(out / "tokenizer.json"))
    ids = set(tok["model"]["vocab"].values()) | {t["id"] for t in tok["added_tokens"]}
    assert ids == set(range(given["text_config"]["vocab_size"]))
    assert json.load(open(out / "generation_config.json"))["eos_token_id"] == 1


def test_same_bytes_whatever_the_threads(deepserve, root, tmp_path):
    config = root / "tests" / "configs" / "tiny-a.json"
    seen = []
    for i, extra in enumerate([["--seed", 5], ["--seed", 5, "--threads", 1], ["--seed", 5, "--threads", 7], ["--seed", 6]]):
        assert deepserve("synth", "--config", config, "--out", tmp_path / str(i), *extra).returncode == 0
        seen.append(digest(tmp_path / str(i)))
    assert seen[0] == seen[1] == seen[2] != seen[3]


def test_values_do_not_depend_on_the_files(deepserve, root, tmp_path):
    config = root / "tests" / "configs" / "tiny-d.json"
    assert deepserve("synth", "--config", config, "--out", tmp_path / "one").returncode == 0
    assert deepserve("synth", "--config", config, "--out", tmp_path / "many", "--shard-bytes", "1MiB").returncode == 0
    files = [f for f in os.listdir(tmp_path / "many") if f.endswith(".safetensors")]
    assert len(files) > 4

    def tensors(directory):
        out = {}
        for f in os.listdir(directory):
            if f.endswith(".safetensors"):
                h, data = header(directory / f)
                raw = open(directory / f, "rb").read()[-data:]
                out.update({k: raw[t["data_offsets"][0]:t["data_offsets"][1]] for k, t in h.items() if k != "__metadata__"})
        return out

    assert tensors(tmp_path / "one") == tensors(tmp_path / "many")


def test_full_size_sparse(deepserve, root, tmp_path):
    r = deepserve("synth", "--config", root / "models/configs/deepseek-v4.1-flash.json", "--out", tmp_path / "full", "--sparse")
    assert r.returncode == 0, r.stderr
    index = json.load(open(tmp_path / "full" / "model.safetensors.index.json"))
    assert len(index["weight_map"]) == 96085
    assert abs(index["metadata"]["total_size"] / 2**30 - 475.24) < 0.005
    files = [f for f in os.listdir(tmp_path / "full") if f.endswith(".safetensors")]
    assert len(files) == 48
    assert sum(os.stat(tmp_path / "full" / f).st_blocks for f in files) * 512 < 100 << 20
    assert not os.path.exists(tmp_path / "full" / "tokenizer.json")


def test_engram_without_a_fitting_tokenizer_gets_a_map(deepserve, root, tmp_path):
    config = json.load(open(root / "tests/configs/tiny-a.json"))
    config["text_config"]["engram_compressed_vocab_size"] = 100
    (tmp_path / "c.json").write_text(json.dumps(config))
    assert deepserve("synth", "--config", tmp_path / "c.json", "--out", tmp_path / "m").returncode == 0
    assert "engram.token_map" in json.load(open(tmp_path / "m/model.safetensors.index.json"))["weight_map"]


def test_refusals_leave_nothing(deepserve, root, tmp_path):
    config = root / "tests" / "configs" / "tiny-b.json"
    full, note, bad = tmp_path / "full", tmp_path / "note", tmp_path / "bad.json"
    full.mkdir()
    (full / "x").write_text("x")
    note.write_text("x")
    text = json.load(open(config))
    text["text_config"]["hidden_size"] = 65
    bad.write_text(json.dumps(text))
    before = sorted(os.listdir(tmp_path))
    for c, out, part in [(config, full, b"is not empty"), (config, note, b"is not a directory"), (bad, tmp_path / "o", b"multiple of 32"),
                         (tmp_path / "absent.json", tmp_path / "o", b"No such file"), (config, tmp_path / "no" / "where", b"No such file"),
                         (root / "models/configs/deepseek-v4.1-flash.json", tmp_path / "o", b"are free")]:
        r = deepserve("synth", "--config", c, "--out", out)
        assert r.returncode == 1 and r.stdout == b"" and part in r.stderr and r.stderr.count(b"\n") == 1, r.stderr
        assert sorted(os.listdir(tmp_path)) == before
    for args in [["--out", "x"], ["--config", config], ["--config", config, "--out", "x", "--quant", "int4"], ["--config", config, "--out", "x", "--seed", "-1"]]:
        assert deepserve("synth", *args).returncode == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert deepserve("synth", "--config", config, "--out", str(empty) + "/").returncode == 0
    assert (empty / "config.json").exists()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cleans_up(program, root, tmp_path, sig):
    config = json.load(open(root / "tests/configs/tiny-d.json"))
    config["text_config"].update(hidden_size=2048, moe_intermediate_size=2048, n_routed_experts=64)
    (tmp_path / "c.json").write_text(json.dumps(config))
    p = subprocess.Popen([program, "synth", "--config", tmp_path / "c.json", "--out", tmp_path / "m"], stderr=subprocess.PIPE)
    for _ in range(6000):
        if any(".tmp." in f for f in os.listdir(tmp_path)):
            break
        time.sleep(0.01)
    time.sleep(0.1)
    p.send_signal(sig)
    _, err = p.communicate(timeout=240)
    assert p.returncode == 128 + sig and b"stopped" in err
    assert os.listdir(tmp_path) == ["c.json"]
