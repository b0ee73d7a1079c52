"""logits and draft as a user runs them: results against golden data, exit statuses, messages, no half files."""
import json

import pytest

np = pytest.importorskip("numpy")


def golden(root, name):
    base = root / "tests" / "golden" / name
    return base, json.loads((base / "golden.json").read_text())


def ids(case):
    return ",".join(map(str, case["tokens"]))


def case_of(g, name):
    return next(c for c in g["cases"] if c["name"] == name)


@pytest.mark.parametrize("config", ["tiny-a", "tiny-b", "tiny-c"])
@pytest.mark.parametrize("name", ["n17-exact", "n40-ced", "n40-replay33", "n17-replay5"])
def test_logits_are_those_of_the_reference(deepserve, root, tmp_path, config, name):
    base, g = golden(root, config)
    c = case_of(g, name)
    out = tmp_path / "l.npy"
    args = ["logits", "--model", base / "model", "--out", out]
    if c["mode"] != "exact":
        args += ["--mode", "ced", "--last", 16]
    if c["mode"] == "replay":
        args += ["--replay", c["prefix"]]
    r = deepserve(*args, "--tokens", ids(c))
    assert r.returncode == 0 and r.stdout == b"", r.stderr
    y = np.load(out)
    assert y.dtype == np.float32
    want = np.load(base / c["logits"])
    first = len(c["tokens"]) - len(y)
    for i, p in enumerate(c["positions"]):
        if c["stable"][i]:
            assert np.abs(y[p - first] - want[i]).max() <= 2e-5 * np.abs(want[i]).max()
    tokens = tmp_path / "t.json"
    tokens.write_text(json.dumps(c["tokens"]))
    for more in (["--chunk", 1], ["--chunk", 5, "--threads", 3]):
        r = deepserve(*args, "--tokens", f"@{tokens}", *more)
        assert r.returncode == 0, r.stderr
        assert np.array_equal(np.load(out), y)


def test_default_rows(deepserve, root, tmp_path):
    base, g = golden(root, "tiny-c")
    c = case_of(g, "n17-exact")
    for args, rows in (([], 17), (["--last", 3], 3), (["--mode", "ced"], 1), (["--mode", "ced", "--last", 16], 16)):
        r = deepserve("logits", "--model", base / "model", "--tokens", ids(c), "--out", tmp_path / "l.npy", *args)
        assert r.returncode == 0, r.stderr
        assert np.load(tmp_path / "l.npy").shape == (rows, 300)


@pytest.mark.parametrize("config", ["tiny-a", "tiny-b"])
def test_drafts(deepserve, root, config):
    base, g = golden(root, config)
    for name in ("n64-exact", "n40-ced"):
        c = case_of(g, name)
        r = deepserve("draft", "--model", base / "model", "--tokens", ids(c), "--json", "--mode", c["mode"])
        assert r.returncode == 0, r.stderr
        d = json.loads(r.stdout)
        assert d["token"] == c["draft"]["token"] and d["drafts"] == c["draft"]["drafts"]
        assert np.abs(np.array(d["confidence"]) - c["draft"]["confidence"]).max() < 1e-4


def refused(deepserve, tmp_path, status, part, *args):
    r = deepserve(*args)
    assert r.returncode == status, (args, r)
    assert r.stdout == b"" and part in r.stderr, (args, r.stderr)
    assert len(r.stderr.splitlines()) <= 4
    assert not list(tmp_path.glob("*.npy*"))


def test_refusals(deepserve, root, tmp_path):
    model = root / "tests" / "golden" / "tiny-c" / "model"
    base = ["logits", "--model", model, "--out", tmp_path / "l.npy"]

    def no(status, part, *args):
        refused(deepserve, tmp_path, status, part, *args)

    no(2, b"--tokens", *base)
    for bad in ("", "1,,2", "1,2,", "a", "1 2", "0x1", "1.0"):
        no(2, b"--tokens", *base, "--tokens", bad)
    no(2, b"chunk", *base, "--tokens", "1", "--chunk", "0")
    no(2, b"mode", *base, "--tokens", "1", "--mode", "fast")
    no(2, b"threads", *base, "--tokens", "1", "--threads", "1025")
    no(2, b"--last 3", *base, "--tokens", "1,2", "--last", "3")
    no(2, b"--replay", *base, "--tokens", "1,2,3", "--replay", "1")
    no(2, b"--replay 3", *base, "--tokens", "1,2,3", "--replay", "3", "--mode", "ced")
    no(1, b"outside the vocabulary", *base, "--tokens", "1,300")
    no(1, b"outside the vocabulary", *base, "--tokens=-1")
    no(1, b"No such file", *base, "--tokens", "@/nonexistent")
    no(1, b"only the last 16 tokens", *base, "--tokens", ",".join(["1"] * 20), "--mode", "ced", "--last", "17")
    no(1, b"context is 4096", *base, "--tokens", ",".join(["1"] * 4097))
    no(1, b"/nonexistent", "logits", "--model", "/nonexistent", "--out", tmp_path / "l.npy", "--tokens", "1")
    no(1, b"", "logits", "--model", model, "--out", tmp_path / "no" / "l.npy", "--tokens", "1")
    for text, part in (("[1,", b"line"), ("{}", b"array"), ("[1.5]", b"no token id"), ("[]", b"no token ids"), ('["1"]', b"no token id")):
        f = tmp_path / "t.json"
        f.write_text(text)
        no(1, part, *base, "--tokens", f"@{f}")
    f.write_text("[1,2]")
    no(1, b"--last 3", *base, "--tokens", f"@{f}", "--last", "3")
    no(1, b"no draft blocks", "draft", "--model", model, "--tokens", "1")
