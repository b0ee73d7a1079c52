"""Own byte-level BPE in the released tokenizer.json form: trains it, and encodes runs of text and control tokens for training.

    python tokenizer.py OUT.json        train on the natural corpus and on generated conversations (needs `tokenizers`)
"""

import json
import lzma
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, BASE = 8192, 8128
FIRST = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
CONTROL = ("<｜System｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "<think>", "</think>", "｜DSML｜",
           "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜task｜>", "<｜political｜>", "<｜entity｜>", "<｜title｜>",
           "<｜safety｜>", "<｜answer｜>", "<｜search｜>", "<｜search▁begin｜>", "<｜search▁end｜>", "<｜extracted_url｜>", "<｜read_url｜>", "<｜end_of_query｜>",
           "<｜deepseek_image｜>", "<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>", "<｜/box｜>", "<｜box｜>", "<｜/ref｜>", "<｜ref｜>")
PLAIN = ("<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜")     # flagged special=false, as in the released file

SPLITS = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
PRE = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in SPLITS]
       + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}


def added_tokens():
    fill = [f"<｜place▁holder▁no▁{i}｜>" for i in range(VOCAB - BASE - len(CONTROL))]
    rows = [(i, c) for i, c in enumerate(FIRST)] + [(BASE + i, c) for i, c in enumerate(list(fill) + list(CONTROL))]
    return [dict(id=i, content=c, single_word=False, lstrip=False, rstrip=False, normalized=c in PLAIN, special=c not in PLAIN) for i, c in rows]


def document(vocab, merges, added):
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer={"type": "Sequence", "normalizers": []}, pre_tokenizer=PRE,
                post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, decoder=byte_level,
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                           ignore_merges=False, vocab=vocab, merges=merges))


def natural(path):
    """Documents of one corpus file."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as f:
        return f.read().split("\n\n<|doc|>\n\n")


def train(path, seed=1):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    import chat
    import prose
    import render
    import stories
    import tasks
    r = random.Random(seed)
    texts = []
    for name, share in (("narrative", 1.0), ("wordnet-common", 0.4), ("python-docs", 0.25), ("sqlite-docs", 0.2), ("jargon", 1.0), ("rust-book", 1.0)):
        docs = natural(os.path.join(HERE, "natural", name + ".txt.xz"))
        texts += r.sample(docs, int(len(docs) * share))
    for _ in range(3000):
        texts.append(stories.story(r)[0])
        texts.append(prose.passage(r))
    for _ in range(4000):
        for c in (chat.conversation(r), tasks.conversation(r)):
            texts += [t for control, t, _ in render.render(c) if not control]
    tok = Tokenizer(models.BPE())
    one_digit = (r"\p{N}", *SPLITS[1:])          # no merges of digits are learned, so that numbers are read digit by digit
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in one_digit]
                                                + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=BASE, special_tokens=list(FIRST), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(texts, trainer)
    model = json.loads(tok.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda x: x[1]))
    assert sorted(vocab.values()) == list(range(BASE)), len(vocab)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(document(vocab, merges, added_tokens()), f, ensure_ascii=False, indent=0, separators=(",", ":"))
        f.write("\n")


class Encoder:
    """Text without added-token matching, control tokens by name."""

    def __init__(self, path):
        from tokenizers import Tokenizer
        with open(path, encoding="utf-8") as f:
            doc = json.load(f)
        self.control = {t["content"]: t["id"] for t in doc["added_tokens"]}
        self.size = max(self.control.values()) + 1
        self._text = {t["id"]: t["content"] for t in doc["added_tokens"]}
        self.tok = Tokenizer.from_str(json.dumps(dict(doc, added_tokens=[])))

    def batch(self, conversations):
        """List of run lists -> list of (ids, loss flags)"""
        texts = [t for runs in conversations for c, t, _ in runs if not c]
        it = iter(self.tok.encode_batch_fast(texts, add_special_tokens=False))
        out = []
        for runs in conversations:
            ids, loss = [], []
            for c, t, flag in runs:
                x = [self.control[t]] if c else next(it).ids
                ids += x
                loss += [flag] * len(x)
            out.append((ids, loss))
        return out

    def decode(self, ids):
        out, run = [], []
        for i in ids:
            if i in self._text:
                out += [self.tok.decode(run, skip_special_tokens=False) if run else "", self._text[i]]
                run = []
            else:
                run.append(i)
        return "".join(out + [self.tok.decode(run, skip_special_tokens=False) if run else ""])


if __name__ == "__main__":
    train(sys.argv[1])
