"""Makes small.json, a byte-level tokenizer with the released split pattern and 512 ids, and vectors.txt: texts with the ids that Hugging Face
`tokenizers` gives them. Run it in an environment that has tests/requirements.txt; the files are committed, so the tests need neither."""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "    for (size_t i = 0; i < n; i++)\n        total += values[i];\n    return total;\n",
    "It's the third of the month; they've paid 12345 for the other 678 things.",
    "日本語のテストです。漢字とかなを書きます。テスト・テスト",
    "中文的测试，中文的文字。我们在这里写中文。",
    "Привет мир, это проверка. Как дела?",
    "한국어 시험입니다. 한국어로 씁니다.",
    "\n\n\n\n        \t\t\t    \r\n\r\n",
    "😀😀 naïve café — “quoted” … ½ ² №",
]
ADDED = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜",
         "<｜place▁holder▁no▁0｜>", "<|place_holder_mm_span_0021|>", "<｜deepseek_image｜>"]


def tokenizer():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in SPLITS] + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=512 - len(ADDED), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(CORPUS * 4, trainer)
    return tok


def texts():
    rng = random.Random(7)
    chars = sorted(set("".join(CORPUS) + "0123456789\u00a0\u3000\u200b\u0301\x00\x01\x7f\u0378\u30fb\u3097\u3099'<>|_"))
    yield from CORPUS
    yield from ADDED
    yield from ["a  b", "  \n  \n", "x \n y", "\r\n\r\n  x", "don't", "'abc9", "\x01\x02a", "\u3097\u3097漢", "・テ\u3097", "12345678", "½²９９９９", ")\n\n", " (\r\n\r\nx",
                "\u00a0x", "a\u0301", "\u2028\u2028z", "\x85 q", "e" * 300, " " * 300, "漢字" * 100, "\x00\x01" * 9]
    for _ in range(300):
        yield "".join(rng.choice(chars) * rng.choice([1, 1, 1, 2, 5]) for _ in range(rng.randrange(1, 25)))


def main():
    tok = tokenizer()
    plain = json.loads(tok.to_str())
    with open(HERE / "vectors.txt", "w") as out:
        out.write("# UTF-8 in hexadecimal, then the ids\n")
        for text in texts():
            ids = Tokenizer.from_str(json.dumps(plain)).encode(text, add_special_tokens=False).ids
            out.write(text.encode().hex() + " " + " ".join(map(str, ids)) + "\n")
    tok.add_tokens([AddedToken(a, special=True, normalized=False) for a in ADDED])
    full = json.loads(tok.to_str())
    full["normalizer"] = {"type": "Sequence", "normalizers": []}
    (HERE / "small.json").write_text(json.dumps(full, ensure_ascii=False, indent=0))


main()
