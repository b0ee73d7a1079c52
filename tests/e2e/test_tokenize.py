"""`deepserve tokenize` on the small tokenizer of tests/golden."""
import json
import subprocess

import pytest


@pytest.fixture(scope="module")
def small(root):
    return root / "tests" / "golden" / "tokenizer" / "small.json"


def vectors(root):
    for line in (root / "tests" / "golden" / "tokenizer" / "vectors.txt").read_text().splitlines():
        if not line.startswith("#"):
            text, *ids = line.split()
            yield bytes.fromhex(text), [int(i) for i in ids]


def test_ids_and_back(deepserve, root, small):
    for text, ids in list(vectors(root))[::9]:
        got = deepserve("tokenize", "--tokenizer", small, stdin=text)
        assert got.returncode == 0 and json.loads(got.stdout) == ids and got.stderr == b""
        back = deepserve("tokenize", "--tokenizer", small, "--decode", stdin=json.dumps(ids).encode())
        assert back.returncode == 0 and back.stdout == text


def test_bytes_that_are_no_text(deepserve, small):
    data = bytes(range(256)) * 3
    ids = deepserve("tokenize", "--tokenizer", small, stdin=data).stdout
    assert deepserve("tokenize", "--tokenizer", small, "--decode", stdin=ids).stdout == data


def test_special_tokens_are_text_but_decode(deepserve, small):
    file = json.loads(small.read_text())
    added = {a["content"]: a["id"] for a in file["added_tokens"]}
    ids = json.loads(deepserve("tokenize", "--tokenizer", small, stdin="<think><｜User｜>".encode()).stdout)
    assert not set(ids) & set(added.values())
    got = deepserve("tokenize", "--tokenizer", small, "--decode", stdin=json.dumps([added["<｜end▁of▁sentence｜>"], added["<think>"]]).encode())
    assert got.stdout.decode() == "<｜end▁of▁sentence｜><think>"


def test_pieces(deepserve, small):
    vocab = json.loads(small.read_text())["model"]["vocab"]
    crab = [vocab[c] for c in ("ð", "Ł", "¦", "Ģ")]  # F0 9F A6 80 in the byte alphabet
    got = deepserve("tokenize", "--tokenizer", small, "--decode", "--pieces", stdin=json.dumps([*crab, vocab["a"], crab[0], vocab["a"], 99999, crab[0]]).encode())
    assert json.loads(got.stdout) == ["", "", "", "\U0001f980", "a", "", "\ufffda", "", ""]
    assert b"1 of 9 ids" in got.stderr


@pytest.mark.parametrize("args, stdin, status, says", [
    (["--tokenizer", "{small}", "--pieces"], b"", 2, b"--pieces needs --decode"),
    ([], b"", 2, b"--tokenizer"),
    (["--tokenizer", "/nonexistent"], b"x", 1, b"No such file"),
    (["--tokenizer", "{dir}"], b"x", 1, b"not a regular file"),
    (["--tokenizer", "{small}", "--decode"], b"[1,", 1, b"standard input: line 1"),
    (["--tokenizer", "{small}", "--decode"], b"{}", 1, b"a JSON array of ids is needed, not object"),
    (["--tokenizer", "{small}", "--decode"], b"[1,-1]", 1, b"element 1"),
    (["--tokenizer", "{small}", "--decode"], b"[1.5]", 1, b"element 0"),
    (["--tokenizer", "{small}", "--decode"], b"[1,99999]", 1, b"element 1, 99999, is outside the vocabulary"),
    (["--tokenizer", "{small}", "--decode"], b"[18446744073709551615]", 1, b"element 0"),
    (["--tokenizer", "{small}", "--decode", "--pieces"], b'[1,"a"]', 1, b"element 1"),
])
def test_refusals(deepserve, small, args, stdin, status, says):
    got = deepserve("tokenize", *[a.format(small=small, dir=small.parent) for a in args], stdin=stdin)
    assert got.returncode == status and says in got.stderr and got.stdout == b""
    assert got.stderr.count(b"\n") <= 2


def test_full_output_device(program, small):
    with open("/dev/full", "wb") as full:
        got = subprocess.run([program, "tokenize", "--tokenizer", small], input=b"x", stdout=full, stderr=subprocess.PIPE)
    assert got.returncode == 1 and b"standard output" in got.stderr
