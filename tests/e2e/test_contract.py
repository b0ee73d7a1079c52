"""Command-line contract where it hurts: exit statuses, standard output and output files of failed commands, messages, odd files and descriptors."""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
OPENING = ["logits", "draft", "inspect", "generate", "chat"]


@pytest.fixture(scope="module")
def golden(root):
    return root / "tests" / "golden" / "tiny-a" / "model"


@pytest.fixture
def model(golden, tmp_path):
    """A copy whose files may be spoilt."""
    (tmp_path / "m").mkdir()
    for f in golden.iterdir():
        os.symlink(f, tmp_path / "m" / f.name)
    return tmp_path / "m"


def args_of(command, model, out):
    return [command, "--model", model] + {
        "logits": ["--tokens", "1,2", "--out", out],
        "draft": ["--tokens", "1,2", "--json"],
        "inspect": ["--json"],
        "generate": ["--tokens", "1,2", "--max-tokens", "2", "--json"],
        "chat": ["--max-tokens", "2"],
    }[command]


def refused(r, status, *parts):
    text = r.stderr.decode()  # always UTF-8
    assert r.returncode == status, (r.args, r)
    assert r.stdout == b"", (r.args, r.stdout)
    assert 1 <= text.count("\n") <= 4 and text.endswith("\n"), (r.args, text)
    assert not any(c < " " and c != "\n" or "\x7f" <= c < "\xa0" or c in "\u202e\u2028\u2029\ufeff" for c in text), (r.args, text)
    for p in parts:
        assert p in text, (r.args, p, text)
    return text


def replace(path, data):
    path.unlink(missing_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


# ---- command lines ----


@pytest.mark.parametrize("command", ["logits", "draft", "generate", "synth"])
def test_threads(deepserve, golden, root, tmp_path, command):
    args = args_of(command, golden, tmp_path / "l.npy") if command != "synth" else ["synth", "--config", root / "tests/configs/tiny-b.json", "--out", tmp_path / "m"]
    for bad in ("0", "-1", "1025", "1.5", "", "two", "0x2", " 2", "2 ", "99999999999999999999"):
        refused(deepserve(*args, "--threads", bad), 2, "--threads")
    assert os.listdir(tmp_path) == []
    r = deepserve(*args, "--threads", "1024")
    assert r.returncode == 0, r.stderr


def test_wrong_use_before_any_file(deepserve, tmp_path):
    """What the command line alone shows is wrong use, also when the model isn't there."""
    lines = [
        ["logits", "--model", "/no", "--out", "x"], ["logits", "--model", "/no", "--tokens", "1"], ["logits", "--tokens", "1", "--out", "x"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--last", "3"], ["logits", "--model", "/no", "--out", "x", "--tokens", "1", "--last", "0"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--replay", "1"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--mode", "ced", "--replay", "2"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--mode", "ced", "--replay", "0"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--mode", "ced", "--replay", "-1"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--chunk", "0"], ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--act", "f16"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--kernels", "mmx"], ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "more"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "1,2", "--json"], ["logits", "--model", "--out", "x", "--tokens", "1,2"],
        ["logits", "--model", "/no", "--out", "x", "--tokens"], ["logits", "--model", "/no", "--out", "x", "--tokens", "1 ,2"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "\t1"], ["logits", "--model", "/no", "--out", "x", "--tokens", "1,\n2"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "+1"], ["logits", "--model", "/no", "--out", "x", "--tokens", "[1,2]"],
        ["logits", "--model", "/no", "--out", "x", "--tokens", "-"], ["logits", "--model", "/no", "--out", "x", "--tokens", ","],
        ["draft", "--model", "/no", "--json"], ["draft", "--model", "/no", "--tokens", "", "--json"], ["draft", "--tokens", "1"],
        ["inspect"], ["inspect", "--model", "/no", "--batch", "0"], ["inspect", "--model", "/no", "--context", "-1"], ["inspect", "--model", "/no", "--context", "9999999999"],
        ["generate", "--model", "/no"], ["generate", "--model", "/no", "--prompt", "a", "--input", "b"], ["generate", "--model", "/no", "--tokens", ""],
        ["generate", "--model", "/no", "--prompt", "a", "--temperature", "-0.1"], ["generate", "--model", "/no", "--prompt", "a", "--temperature", "inf"],
        ["generate", "--model", "/no", "--prompt", "a", "--top-p", "1.01"], ["generate", "--model", "/no", "--prompt", "a", "--top-k", "-1"],
        ["generate", "--model", "/no", "--prompt", "a", "--min-p", "1.5"], ["generate", "--model", "/no", "--prompt", "a", "--seed", "x"],
        ["generate", "--model", "/no", "--prompt", "a", "--speculate", "-1"], ["generate", "--model", "/no", "--prompt", "a", "--speculate", ""],
        ["generate", "--model", "/no", "--prompt", "a", "--chunk", "0"], ["generate", "--model", "/no", "--prompt", "a", "--mode", "fast"],
        ["synth", "--config", "/no"], ["synth", "--out", "x"], ["synth", "--config", "/no", "--out", "x", "--quant", "fp8"],
        ["synth", "--config", "/no", "--out", "x", "--seed", "1e3"], ["synth", "--config", "/no", "--out", "x", "--seed", "-1"],
        ["synth", "--config", "/no", "--out", "x", "--sparse=yes"], ["tokenize"], ["tokenize", "--tokenizer", "/no", "--pieces"], ["tokenize", "--tokenizer"],
    ]
    for args in lines:
        refused(deepserve(*args, cwd=tmp_path), 2, f"deepserve {args[0]}")
    assert os.listdir(tmp_path) == []


def test_the_last_of_two_wins(deepserve, golden, tmp_path):
    out = tmp_path / "l.npy"
    r = deepserve("logits", "--model", "/no", "--model", golden, "--tokens", "5", "--tokens=1,2", "--out", out, "--last", "1", "--last", "2")
    assert r.returncode == 0 and np.load(out).shape == (2, 288), r.stderr


# ---- token ids ----


def test_ids_at_the_border(deepserve, golden, tmp_path):
    out = tmp_path / "l.npy"
    assert deepserve("logits", "--model", golden, "--tokens", "0,287", "--out", out).returncode == 0
    out.unlink()
    for ids, value in (("1,288", "288"), ("-1", "-1"), ("1,2147483648", "2147483648"), ("4294967297", "4294967297"), ("1,-9223372036854775808", "-9223372036854775808"),
                       ("18446744073709551617,1", "18446744073709551617"), ("1," + "9" * 40, "99999999")):
        f = tmp_path / "t.json"
        f.write_text(f"[{ids}]")
        for form in (f"--tokens={ids}", f"--tokens=@{f}"):
            for command in ("logits", "draft", "generate"):
                more = {"logits": ["--out", out], "draft": ["--json"], "generate": ["--json"]}[command]
                refused(deepserve(command, "--model", golden, form, *more), 1, value)
        f.unlink()
    assert os.listdir(tmp_path) == []


def test_token_files(deepserve, golden, tmp_path):
    f, out = tmp_path / "t.json", tmp_path / "l.npy"
    base = ["logits", "--model", golden, "--out", out, "--tokens", f"@{f}"]
    for text in ("", " ", "[", "[1,2", "[1,2]]", "[1,,2]", "[1,]", "[1 2]", "1,2", "[[1]]", "[null]", "[true]", '["1"]', "[1.0]", "[1e0]", "[01]", "[+1]", "[NaN]", "{}",
                 '{"0":1}', "[]", "null", "\ufeff[1]", "[1]\0", "[" * 100000, b"[\xff]"):
        replace(f, text)
        for command in (base, ["draft", "--json", *base[1:3], *base[5:]], ["generate", "--json", *base[1:3], *base[5:]]):
            refused(deepserve(*command), 1, "t.json")
    for text in ("[1,2]", " [ 1 ,\n2 ]\n", "\t[1,\r\n2]"):
        replace(f, text)
        assert deepserve(*base).returncode == 0 and np.load(out).shape == (2, 288)
        out.unlink()
    for p in ("@", "@" + str(tmp_path), "@/dev/zero", "@/dev/null", "@/proc/self/mem", "@" + "x" * 300, "@" + "x" * 5000, "@/no/such\nfile\x1b[31m"):
        refused(deepserve(*base[:-1], p), 1)
    os.mkfifo(tmp_path / "fifo")
    refused(deepserve(*base[:-1], f"@{tmp_path}/fifo"), 1, "not a regular file")
    assert sorted(os.listdir(tmp_path)) == ["fifo", "t.json"]


def test_context(deepserve, golden, tmp_path):
    out = tmp_path / "l.npy"
    many = ",".join(["7"] * 4097)
    refused(deepserve("logits", "--model", golden, "--tokens", many, "--out", out), 1, "4097", "4096")
    refused(deepserve("draft", "--model", golden, "--tokens", many, "--json"), 1, "4097", "4096")
    refused(deepserve("generate", "--model", golden, "--tokens", many), 1, "4097", "4096")
    refused(deepserve("generate", "--model", golden, "--tokens", many[:-2]), 1, "4096", "no room")
    r = deepserve("generate", "--model", golden, "--tokens", many[:-4], "--json", "--max-tokens", "50", "--temperature", "0")
    d = json.loads(r.stdout)
    assert len(d["ids"]) == 1 and d["finish_reason"] == "length" and d["usage"]["prompt_tokens"] == 4095
    refused(deepserve("generate", "--model", golden, "--prompt", "a", "--context", "4097"), 1, "4097", "4096")
    refused(deepserve("inspect", "--model", golden, "--context", "4097"), 1, "4097", "4096")
    for args in (["--mode", "ced", "--last", "17"], ["--mode", "ced", "--last", "17", "--replay", "1"]):
        refused(deepserve("logits", "--model", golden, "--tokens", ",".join(["5"] * 20), "--out", out, *args), 1, "17", "16")
    assert os.listdir(tmp_path) == []


def test_replay_borders(deepserve, golden, tmp_path):
    """Every prefix works, whatever its parity; chunks and threads don't change a bit."""
    out = tmp_path / "l.npy"
    n = 23
    base = ["logits", "--model", golden, "--tokens", ",".join(str(3 + 11 * i % 250) for i in range(n)), "--out", out, "--mode", "ced"]
    for p in (1, 2, 15, 16, 17, 21, 22):
        got = []
        for more in ((), ("--chunk", "1", "--threads", "3"), ("--chunk", "5")):
            r = deepserve(*base, "--replay", p, "--last", 16, *more)
            assert r.returncode == 0 and r.stdout == b"", r.stderr
            got.append(np.load(out))
            assert got[0].shape == (16, 288) and np.array_equal(got[0], got[-1])


# ---- standard streams ----


def test_write_errors(program, golden, root, tmp_path):
    for args in (["inspect", "--model", golden], ["inspect", "--model", golden, "--json"], ["draft", "--model", golden, "--tokens", "1", "--json"],
                 ["generate", "--model", golden, "--tokens", "1", "--max-tokens", "2", "--json"], ["generate", "--model", golden, "--prompt", "a", "--max-tokens", "2"],
                 ["chat", "--model", golden, "--max-tokens", "2"], ["logits", "--help"], ["--version"], ["help", "all"],
                 ["tokenize", "--tokenizer", golden / "tokenizer.json"]):
        with open("/dev/full", "wb") as full:
            r = subprocess.run([program, *map(str, args)], input=b"Hi\n", stdout=full, stderr=subprocess.PIPE, timeout=240)
        assert r.returncode == 1 and b"standard output" in r.stderr and b"No space" in r.stderr, (args, r)
        assert args[0] == "chat" or r.stderr.count(b"\n") <= 4, r.stderr
        r = subprocess.run(["sh", "-c", '"$0" "$@" >&-', program, *map(str, args)], input=b"Hi\n", stderr=subprocess.PIPE, timeout=240)
        assert r.returncode == 1 and b"standard output" in r.stderr, (args, r)


def test_write_error_ends_a_long_input(program, golden, tmp_path):
    f = tmp_path / "in.jsonl"
    f.write_text('{"prompt":"a","max_tokens":2}\n' * 5000)
    with open("/dev/full", "wb") as full:
        r = subprocess.run([program, "generate", "--model", golden, "--input", f], stdout=full, stderr=subprocess.PIPE, timeout=240)
    assert r.returncode == 1 and b"standard output" in r.stderr and r.stderr.count(b"\n") <= 4
    p = subprocess.Popen([program, "generate", "--model", golden, "--input", f], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.readline()
    p.stdout.close()
    assert p.wait(timeout=240) in (1, -signal.SIGPIPE)
    p.stderr.close()


def test_closed_descriptors(program, golden, root, tmp_path):
    """A file never takes the place of a closed standard stream."""
    want = tmp_path / "want.npy"
    args = [program, "logits", "--model", str(golden), "--tokens", "1,2"]
    assert subprocess.run([*args, "--out", want]).returncode == 0
    for how in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        out = tmp_path / "l.npy"
        r = subprocess.run(["sh", "-c", f'"$0" "$@" {how}', *args, "--out", out], capture_output=True)
        assert r.returncode == 0 and out.read_bytes() == want.read_bytes(), how
        out.unlink()
        r = subprocess.run(["sh", "-c", f'"$0" "$@" {how}', program, "synth", "--config", root / "tests/configs/tiny-b.json", "--out", tmp_path / "m"], capture_output=True)
        assert r.returncode == 0, how
        assert subprocess.run([program, "inspect", "--model", tmp_path / "m"], capture_output=True).returncode == 0, how
        shutil.rmtree(tmp_path / "m")
        r = subprocess.run(["sh", "-c", f'"$0" "$@" {how}', *args, "--out", "/no/l.npy"], capture_output=True)
        assert r.returncode == 1
    r = subprocess.run(["sh", "-c", '"$0" "$@" <&-', program, "tokenize", "--tokenizer", golden / "tokenizer.json"], capture_output=True)
    assert r.returncode == 1 and b"standard input" in r.stderr


# ---- output files ----


def test_outputs_of_logits(deepserve, program, golden, tmp_path):
    base = ["logits", "--model", golden, "--tokens", "1,2,3"]
    old = tmp_path / "old.npy"
    old.write_bytes(b"old")
    refused(deepserve(*base, "--tokens", "999", "--out", old), 1)
    assert old.read_bytes() == b"old"
    assert deepserve(*base, "--out", old).returncode == 0 and np.load(old).shape == (3, 288)
    os.mkdir(tmp_path / "d")
    os.mkfifo(tmp_path / "fifo")
    for out in (tmp_path, tmp_path / "d", str(tmp_path / "d") + "/", tmp_path / "fifo", tmp_path / "none" / "l.npy", tmp_path / "old.npy" / "l.npy", "/dev/full", "/proc/l.npy", "",
                tmp_path / ("x" * 300), tmp_path / "a\nb" / "l.npy"):
        refused(deepserve(*base, "--out", out), 1)
    for out in ("spaced name", "a\nb.npy", "-l.npy", "ü.npy"):
        assert deepserve(*base, f"--out={out}", cwd=tmp_path).returncode == 0 and np.load(tmp_path / out).shape == (3, 288)
        (tmp_path / out).unlink()

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    r = subprocess.run([program, *map(str, base), "--out", tmp_path / "big.npy"], capture_output=True, preexec_fn=small_files)
    assert r.returncode in (1, -signal.SIGXFSZ)
    assert sorted(os.listdir(tmp_path)) == ["d", "fifo", "old.npy"]


def test_outputs_of_synth(deepserve, program, root, tmp_path):
    config = root / "tests/configs/tiny-b.json"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    os.symlink("/nonexistent", tmp_path / "dangling")
    os.mkfifo(tmp_path / "fifo")
    before = sorted(os.listdir(tmp_path))
    for out in (tmp_path / "full", tmp_path / "file", tmp_path / "file" / "m", tmp_path / "none" / "m", tmp_path / "dangling", tmp_path / "fifo", "/proc/m", "/dev/null", "", "/",
                tmp_path / ("x" * 300), "x/" * 3000, tmp_path / "a\nb" / "m"):
        refused(deepserve("synth", "--config", config, "--out", out), 1)
    for c in ("/dev/zero", "/dev/null", tmp_path / "fifo", tmp_path, "", tmp_path / "a\nb", "/proc/self/mem"):
        refused(deepserve("synth", "--config", c, "--out", tmp_path / "m"), 1)

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    r = subprocess.run([program, "synth", "--config", config, "--out", tmp_path / "m"], capture_output=True, preexec_fn=small_files)
    refused(r, 1)
    assert sorted(os.listdir(tmp_path)) == before


# ---- model directories ----


def test_odd_model_paths(deepserve, golden, tmp_path):
    odd = tmp_path / "a b\nc\u202e\x1b[31m"
    shutil.copytree(golden, odd)
    out = tmp_path / "l.npy"
    for command in OPENING:
        r = deepserve(*args_of(command, odd, out), stdin=b"Hi\n")
        assert r.returncode == 0, r.stderr
    out.unlink()
    (odd / "model-00002-of-00003.safetensors").unlink()
    for command in OPENING:
        for m in (odd, "/no", "", "/dev/null", "/dev/zero", golden / "config.json", "x" * 300, "x/" * 3000, "/no/" + "y" * 250 + "/z", "/no\n\x1b[31m"):
            refused(deepserve(*args_of(command, m, out)), 1, f"deepserve {command}: ")
    deep = tmp_path
    for _ in range(12):
        deep = deep / ("d" * 200)
    shutil.copytree(golden, deep)
    for command in OPENING:
        r = deepserve(*args_of(command, deep, out), stdin=b"Hi\n")
        assert r.returncode == 0, r.stderr
    config = json.loads((deep / "config.json").read_text())
    config["text_config"]["engram_compressed_vocab_size"] = 200
    (deep / "config.json").write_text(json.dumps(config))
    for command in ("logits", "draft", "generate"):
        refused(deepserve(*args_of(command, deep, out)), 1, "engram_compressed_vocab_size")


SPOILT = {
    "config.json": ["config.json"],
    "model.safetensors.index.json": ["model.safetensors.index.json"],
    "model-00002-of-00003.safetensors": ["model-00002-of-00003.safetensors"],
}


@pytest.mark.parametrize("name", SPOILT)
def test_odd_model_files(deepserve, model, tmp_path, name):
    out = tmp_path / "l.npy"
    path = model / name
    text = path.read_bytes()
    for kind in ("absent", "directory", "fifo", "zero", "null", "empty", "dangling", "loop", "half", "bom", "nul", "latin"):
        path.unlink(missing_ok=True)
        if kind == "directory":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind in ("zero", "null"):
            os.symlink("/dev/" + kind, path)
        elif kind == "dangling":
            os.symlink("/nonexistent", path)
        elif kind == "loop":
            os.symlink(path, path)
        elif kind != "absent":
            path.write_bytes({"empty": b"", "half": text[:len(text) // 2], "bom": b"\xef\xbb\xbf" + text, "nul": text.replace(b"{", b"{\0", 1), "latin": b"\xff" + text}[kind])
        for command in ("inspect", "logits") if kind != "half" else OPENING:
            if kind == "absent" and "index" in name:
                assert deepserve(*args_of(command, model, out)).returncode == 0
                out.unlink(missing_ok=True)
            else:
                refused(deepserve(*args_of(command, model, out)), 1, name)
        if kind == "directory":
            path.rmdir()
    assert not out.exists()


def test_tokenizer_of_a_model(deepserve, model, root, tmp_path):
    """What needs the tokenizer says so; inspect needs none, nor do token ids where no Engram derives its map from it."""
    path = model / "tokenizer.json"
    good = path.read_bytes()
    other = (root / "tests/golden/tiny-c/model/tokenizer.json").read_bytes()
    hole = json.loads(good)
    del hole["model"]["vocab"]["x"]
    for kind, data in (("absent", None), ("of another size", other), ("empty", b""), ("half", good[:5000]), ("bom", b"\xef\xbb\xbf" + good), ("with a hole", json.dumps(hole)),
                       ("deep", b"[" * 100000), ("a list", b"[]"), ("fifo", "fifo")):
        path.unlink(missing_ok=True)
        if data == "fifo":
            os.mkfifo(path)
        elif data is not None:
            replace(path, data)
        for command in ("logits", "draft", "generate", "chat"):
            text = refused(deepserve(*args_of(command, model, tmp_path / "l.npy")), 1, "tokenizer.json")
            assert text.count(str(model)) <= 1, text
        r = deepserve(*args_of("inspect", model, None))
        assert r.returncode == 0, (kind, r.stderr)
    assert not (tmp_path / "l.npy").exists()


def test_generation_config(deepserve, model, tmp_path):
    path = model / "generation_config.json"
    for text in ("", "[]", "{", '{"eos_token_id":288}', '{"eos_token_id":"1"}', '{"eos_token_id":1.5}', '{"eos_token_id":[1,-1]}', '{"eos_token_id":{}}',
                 '{"eos_token_id":1,"eos_token_id":2}', "\ufeff{}", "[" * 70 + "]" * 70):
        replace(path, text)
        for command in ("generate", "chat"):
            refused(deepserve(*args_of(command, model, None)), 1, "generation_config.json")
    for text in ("{}", '{"eos_token_id":null}', '{"eos_token_id":[]}', '{"eos_token_id":5,"temperature":"x","top_k":-7}'):
        replace(path, text)
        r = deepserve(*args_of("generate", model, None))
        assert r.returncode == 0, r.stderr
    path.unlink()
    os.mkfifo(path)
    refused(deepserve(*args_of("generate", model, None)), 1, "generation_config.json")


# ---- JSON forms ----


def test_keys(deepserve, golden):
    d = json.loads(deepserve("inspect", "--model", golden, "--json").stdout)
    assert {"layers", "tensors", "bytes_total", "plan"} <= set(d)
    assert all({"index", "half", "ratio", "mode", "kv_source", "index_source", "engram"} <= set(x) for x in d["layers"])
    assert [x["index"] for x in d["layers"]] == list(range(11)) and {x["half"] for x in d["layers"]} == {"encoder", "decoder", "draft"}
    d = json.loads(deepserve("draft", "--model", golden, "--tokens", "1,2,3", "--json").stdout)
    assert list(d) == ["token", "drafts", "confidence"] and len(d["drafts"]) == len(d["confidence"]) == 5
    assert all(isinstance(x, int) for x in [d["token"], *d["drafts"]]) and all(0 < p < 1 for p in d["confidence"])
    r = deepserve("generate", "--model", golden, "--prompt", "Hi", "--json", "--max-tokens", "3")
    assert r.stdout.count(b"\n") == 1
    d = json.loads(r.stdout)
    assert set(d) == {"index", "ids", "text", "finish_reason", "usage"} and set(d["usage"]) == {"prompt_tokens", "completion_tokens", "cached_tokens"}


def test_input_files(deepserve, golden, program, tmp_path):
    f = tmp_path / "in.jsonl"
    base = ["generate", "--model", golden, "--max-tokens", "2", "--input"]
    for p in ("/no\n\x1b[31m", "/no/" + "x" * 3000, tmp_path, ""):
        refused(deepserve(*base, p), 1)
    f.write_bytes(b"")
    r = deepserve(*base, f)
    assert r.returncode == 0 and r.stdout == b""
    f.write_bytes(b'{"prompt":"a"}\n\xff\n{"prompt":"\xff"}\n\n  \n{"prompt":"a","unknown":[{}]}\r\n\0\n{"tokens":[4294967297]}\n{"tokens":[1,288]}\n[1]\nnull\n{"prompt":"x"')
    r = deepserve(*base, f)
    got = [json.loads(x) for x in r.stdout.splitlines()]
    assert r.returncode == 1 and [x["index"] for x in got] == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]
    assert ["error" in x for x in got] == [False, True, True, False, True, True, True, True, True, True]
    assert "4294967297" in got[5]["error"]["message"] and "288" in got[6]["error"]["message"]
    r = deepserve(*base, "-", stdin=b'{"prompt":"a"}\n')
    assert r.returncode == 0 and json.loads(r.stdout)["index"] == 0


def test_endless_input_is_bounded(program, golden):
    def little_memory():
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    with open("/dev/zero", "rb") as zero:
        r = subprocess.run([program, "generate", "--model", golden, "--input", "-", "--max-tokens", "1"], stdin=zero, capture_output=True, timeout=240, preexec_fn=little_memory)
    assert r.returncode == 1 and b"bytes" in r.stdout + r.stderr


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_waiting_for_input(program, golden, sig):
    p = subprocess.Popen([program, "generate", "--model", golden, "--input", "-", "--max-tokens", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b'{"prompt":"a"}\n')
    p.stdin.flush()
    assert json.loads(p.stdout.readline())["index"] == 0
    p.send_signal(sig)
    out, err = p.communicate(timeout=240)
    assert p.returncode == 128 + sig and out == b"" and b"1 results complete, 0 or more missing" in err


def test_full_size_model(program, root, tmp_path):
    """475 GiB of holes: inspect is quick and small, what would run a model whose dense part is too big for memory says so at once."""
    m = tmp_path / "full"
    config = root / "models/configs/deepseek-v4.1-flash.json"
    r = subprocess.run([program, "synth", "--config", config, "--seed", "1", "--sparse", "--out", m], capture_output=True)
    assert r.returncode == 0, r.stderr

    # A child's peak memory counts from before its exec, that of its parent then: so a small parent does the measuring.
    measure = ("import os, subprocess, sys\np = subprocess.Popen(sys.argv[2:])\n_, status, used = os.wait4(p.pid, 0)\n"
               "open(sys.argv[1], 'w').write(f'{used.ru_maxrss} {used.ru_utime + used.ru_stime}')\nos._exit(os.waitstatus_to_exitcode(status))")

    def run(*args):
        r = subprocess.run([sys.executable, "-S", "-c", measure, tmp_path / "used", program, *map(str, args)], capture_output=True)
        kib, seconds = open(tmp_path / "used").read().split()
        assert int(kib) < 200 << 10 and float(seconds) < 10, (kib, seconds)  # seconds of work; reading 475 GiB takes more
        return r

    d = json.loads(run("inspect", "--model", m, "--json").stdout)
    assert d["tensors"] == 96085 and len(d["layers"]) == 43 and abs(d["bytes_total"] / 2**30 - 475.24) < 0.005
    if MEMORY < 90 << 30:
        dense = json.loads(config.read_text())
        dense["text_config"]["vocab_size"] = 1 << 22  # 80 GiB of embeddings and head
        (tmp_path / "dense.json").write_text(json.dumps(dense))
        r = subprocess.run([program, "synth", "--config", tmp_path / "dense.json", "--sparse", "--out", tmp_path / "dense"], capture_output=True)
        assert r.returncode == 0, r.stderr
        for command in ("generate", "logits", "draft", "chat"):
            refused(run(*args_of(command, tmp_path / "dense", tmp_path / "l.npy")), 1, "too big", "GiB", "routed experts not counted")


def test_experts_that_memory_does_not_hold(deepserve, root, tmp_path):
    """102 GiB of holes, nearly all of them experts: it says what memory holds, and runs by reading those that tokens choose."""
    config = json.loads((root / "tests/configs/tiny-a.json").read_text())
    config["text_config"].update(hidden_size=256, n_routed_experts=1024, moe_intermediate_size=32768)
    (tmp_path / "c.json").write_text(json.dumps(config))
    r = deepserve("synth", "--config", tmp_path / "c.json", "--sparse", "--out", tmp_path / "m")
    assert r.returncode == 0, r.stderr
    r = deepserve("inspect", "--model", tmp_path / "m")
    assert r.returncode == 0 and b"of them experts, which may stay too" in r.stdout, r
    r = deepserve("generate", "--model", tmp_path / "m", "--tokens", "5,6", "--max-tokens", "2", "--json")
    assert r.returncode == 0 and len(json.loads(r.stdout)["ids"]) == 2, r
    if MEMORY < 100 << 30:
        assert b"experts: memory has room for " in r.stderr and b"read from the files when a token chooses them" in r.stderr, r.stderr


def test_chat_without_input(program, golden, tmp_path):
    args = [program, "chat", "--model", str(golden), "--max-tokens", "2"]
    for how, text in (("<&-", "standard input: Bad file descriptor"), (f"<{tmp_path}", "standard input: Is a directory"), ("</dev/zero", "no end within")):
        r = subprocess.run(["sh", "-c", f'"$0" "$@" {how}', *args], capture_output=True, timeout=240)
        refused(r, 1, text)
    r = subprocess.run(args, input=b"", capture_output=True)
    assert r.returncode == 0 and r.stdout == b""
    r = subprocess.run(args, input=b"\r\n\nHi\r\nnul \0 and \xff", capture_output=True)
    assert r.returncode == 0 and r.stdout.count(b"\n") >= 2, r


def test_samples_of_neighbouring_lines_differ(deepserve, golden, tmp_path):
    f = tmp_path / "in.jsonl"
    f.write_text('{"prompt":"a","n":3}\n' * 3)
    r = deepserve("generate", "--model", golden, "--input", f, "--max-tokens", "12")
    got = [json.loads(x)["ids"] for x in r.stdout.splitlines()]
    assert len(got) == 9 and len({tuple(x) for x in got}) == 9


def test_values_of_lines(deepserve, golden, tmp_path):
    """A line's value outside its range is that line's error, which names field and value."""
    f = tmp_path / "in.jsonl"
    wrong = [("temperature", "101"), ("temperature", '"1"'), ("top_p", "0"), ("top_p", "1.5"), ("min_p", "-1"), ("top_k", "-1"), ("top_k", "1.5"), ("seed", "1e3"),
             ("seed", "99999999999999999999"), ("stop", "5"), ("stop", "[5]"), ("presence_penalty", "1e300"), ("frequency_penalty", "-101"), ("repetition_penalty", "0"),
             ("n", "0"), ("n", "1025"), ("n", "true"), ("logprobs", "21"), ("max_tokens", "0"), ("max_tokens", "2147483648"), ("tokens", '"1"'), ("tokens", "[1.5]"), ("tokens", "[true]")]
    right = ['"seed":-5', '"seed":null', '"stop":[]', '"stop":""', '"stop":null', '"n":1', '"logprobs":0', '"logprobs":false', '"max_tokens":1', '"temperature":0', '"top_k":0', '"unknown":{}']
    prompt = [f'"{k}":{v}' if k == "tokens" else f'"prompt":"a","{k}":{v}' for k, v in wrong] + [f'"prompt":"a",{x}' for x in right]
    f.write_text("\n".join("{" + x + "}" for x in prompt))
    r = deepserve("generate", "--model", golden, "--input", f, "--max-tokens", "1")
    got = [json.loads(x) for x in r.stdout.splitlines()]
    assert r.returncode == 1 and len(got) == len(prompt)
    for (k, v), x in zip(wrong, got):
        value = "string" if '"' in v else "boolean" if "true" in v else v.strip("[]").replace("1e300", "1e+300")
        assert k in x["error"]["message"] and value in x["error"]["message"], (k, v, x)
    assert all("ids" in x for x in got[len(wrong):]), got


def test_chat_lines(deepserve, golden, tmp_path):
    """The model's name may be left out; a field is named once in an error; the options' values hold where a request has none."""
    f = tmp_path / "in.jsonl"
    ask = '"messages":[{"role":"user","content":"Hi"}]'
    f.write_text("\n".join([f' {{"model":"m",{ask},"temperature":0}}', f'{{{ask},"temperature":0}}', f'{{{ask},"temperature":9}}', f'{{{ask},"max_tokens":0}}',
                            f'{{{ask},"max_tokens":2,"n":2,"top_k":3,"min_p":0.1,"repetition_penalty":1.2,"seed":1,"stop":["x"],"presence_penalty":1,"frequency_penalty":1,"top_p":0.9}}']))
    r = deepserve("generate", "--model", golden, "--input", f, "--max-tokens", "5")
    got = [json.loads(x) for x in r.stdout.splitlines()]
    assert r.returncode == 1 and [x["index"] for x in got] == [0, 1, 2, 3, 4, 4]
    assert got[0]["ids"] == got[1]["ids"] and len(got[0]["ids"]) == 5 and [x.get("sample") for x in got[4:]] == [0, 1]
    assert got[2]["error"]["message"].count("temperature") == 1 and got[3]["error"]["message"].count("max_tokens") == 1


def test_end_of_sentence(deepserve, model):
    first = json.loads(deepserve("generate", "--model", model, "--prompt", "Hi", "--temperature", "0", "--max-tokens", "4", "--json").stdout)
    ids = first["ids"]
    at = next(i for i in range(4) if ids[i] not in ids[:i] and i > 0)
    replace(model / "generation_config.json", json.dumps({"eos_token_id": [ids[at], 5]}))
    d = json.loads(deepserve("generate", "--model", model, "--prompt", "Hi", "--temperature", "0", "--max-tokens", "4", "--json").stdout)
    assert d["finish_reason"] == "stop" and d["ids"] == ids[:at] and d["usage"]["completion_tokens"] == at + 1 and first["text"].startswith(d["text"])
    replace(model / "generation_config.json", json.dumps({"eos_token_id": ids[0]}))
    for speculate in ("off", "auto", "5"):
        r = deepserve("generate", "--model", model, "--prompt", "Hi", "--temperature", "0", "--max-tokens", "4", "--json", "--speculate", speculate)
        d = json.loads(r.stdout)
        assert d["ids"] == [] and d["text"] == "" and d["finish_reason"] == "stop" and d["usage"]["completion_tokens"] == 1
