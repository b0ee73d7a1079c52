#!/usr/bin/env python3
"""Request to prompt ids next to deepseek-recipe, on the same bodies in the same run. Needs tests/requirements.txt in this Python.

  bench/request_peer.py [--build DIR] [--out FILE]

A body is the JSON text of a conversation of 100 turns with tools: parsed, checked, rendered and encoded on both sides, in this process, one thread. Both
sides keep their tokenizer loaded; ours keeps its piece cache, as a server does, and is also given with a new encoder for every request."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TURNS = 100


def words(rng, n):
    import pydoc_data.topics

    text = words.text = getattr(words, "text", None) or "".join(pydoc_data.topics.topics.values())
    at = rng.randrange(len(text) - n)
    return text[at : at + n]


def tools():
    return [{"name": f"tool_{i}", "description": f"Does the thing number {i}. " * 8, "schema": {
        "type": "object", "properties": {f"arg_{k}": {"type": "string", "description": "what it works on"} for k in range(6)}, "required": ["arg_0"]}}
        for i in range(16)]


def chat(rng):
    messages = [{"role": "system", "content": words(rng, 2000)}]
    for i in range(TURNS):
        messages.append({"role": "user", "content": words(rng, 200)})
        messages.append({"role": "assistant", "content": words(rng, 60), "reasoning_content": words(rng, 300), "tool_calls": [
            {"id": f"call_{i}_{k}", "type": "function", "function": {"name": f"tool_{k}", "arguments": json.dumps({"arg_0": words(rng, 150), "arg_1": i})}}
            for k in range(2)]})
        messages += [{"role": "tool", "tool_call_id": f"call_{i}_{k}", "content": words(rng, 800)} for k in range(2)]
        messages.append({"role": "assistant", "content": words(rng, 300)})
    messages.append({"role": "user", "content": words(rng, 200)})
    return {"model": "DeepSeek-V4.1-Flash", "messages": messages, "tools": [{"type": "function", "function": {
        "name": t["name"], "description": t["description"], "parameters": t["schema"]}} for t in tools()]}


def messages(rng):
    out = []
    for i in range(TURNS):
        out.append({"role": "user", "content": words(rng, 200)})
        out.append({"role": "assistant", "content": [{"type": "thinking", "thinking": words(rng, 300), "signature": "s"}, {"type": "text", "text": words(rng, 60)}] + [
            {"type": "tool_use", "id": f"call_{i}_{k}", "name": f"tool_{k}", "input": {"arg_0": words(rng, 150), "arg_1": i}} for k in range(2)]})
        out.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"call_{i}_{k}", "content": words(rng, 800)} for k in range(2)]})
        out.append({"role": "assistant", "content": words(rng, 300)})
    out.append({"role": "user", "content": words(rng, 200)})
    return {"model": "DeepSeek-V4.1-Flash", "max_tokens": 100, "system": words(rng, 2000), "messages": out,
            "tools": [{"name": t["name"], "description": t["description"], "input_schema": t["schema"]} for t in tools()]}


def responses(rng):
    out = []
    for i in range(TURNS):
        out.append({"role": "user", "content": words(rng, 200)})
        out.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": words(rng, 300)}]})
        out += [{"type": "function_call", "call_id": f"call_{i}_{k}", "name": f"tool_{k}", "arguments": json.dumps({"arg_0": words(rng, 150), "arg_1": i})}
                for k in range(2)]
        out += [{"type": "function_call_output", "call_id": f"call_{i}_{k}", "output": words(rng, 800)} for k in range(2)]
        out.append({"role": "assistant", "content": words(rng, 300)})
    out.append({"role": "user", "content": words(rng, 200)})
    return {"model": "DeepSeek-V4.1-Flash", "instructions": words(rng, 2000), "input": out, "tools": [
        {"type": "function", "name": t["name"], "description": t["description"], "parameters": t["schema"]} for t in tools()]}


def median(f, reps):
    times = []
    for _ in range(reps):
        t = time.perf_counter()
        f()
        times.append(time.perf_counter() - t)
    return sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--out")
    args = parser.parse_args()
    os.environ["DEEPSERVE"] = str(pathlib.Path(args.build).resolve() / "deepserve")
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    import deepseek_recipe as recipe
    import released_vocabulary
    import request_lib
    import tokenizer_lib

    classes = {"chat": recipe.ChatCompletionRequest, "responses": recipe.ResponsesRequest, "messages": recipe.MessagesRequest}
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = released_vocabulary.write_v41(pathlib.Path(folder) / "tokenizer.json")
        # the peer spells the image token differently; its own file must have that spelling
        peer_file = pathlib.Path(folder) / "peer.json"
        peer_file.write_text(vocabulary.read_text(encoding="utf-8").replace("<｜deepseek_image｜>", "<｜image｜>"), encoding="utf-8")
        encoding = recipe.DeepseekV41Encoding().with_tokenizer(recipe.Tokenizer.from_file(str(peer_file)))
        tokenizer = tokenizer_lib.Tokenizer(vocabulary)
        ours = request_lib.Renderer(tokenizer)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        lines = [f"# {datetime.date.today()} {platform.machine()} {platform.processor() or ''} commit {commit}, deepseek-recipe {recipe.__version__}, one thread"]
        for name, make in (("chat", chat), ("responses", responses), ("messages", messages)):
            body = json.dumps(make(random.Random(name)), ensure_ascii=False).encode()

            def peer():
                return encoding.encode(classes[name](body).convert(recipe.ConversionOptions()).conversation)

            def warm():
                return ours.ids(name, body)

            def cold():
                lib, t = tokenizer.lib, tokenizer
                lib.ds_encoder_destroy(t.e)
                t.check(lib.ds_encoder_create(t.e, t.t, tokenizer_lib.EncoderOpts(1, 0), t.err))
                return ours.ids(name, body)

            a, b = peer(), warm()
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                lines.append(f"# {name}: ids differ from {at} on")
            p, w, c = median(peer, 5), median(warm, 15), median(cold, 15)
            lines.append(f"op=request_to_ids protocol={name} turns={TURNS} body_bytes={len(body)} ids={len(b)} peer_ms={p * 1e3:.2f} ms={w * 1e3:.2f} "
                         f"cold_ms={c * 1e3:.2f} ratio={p / w:.1f} cold_ratio={p / c:.1f} mb_s={len(body) / w / 1e6:.1f}")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if args.out:
        pathlib.Path(args.out).write_text(text)


if __name__ == "__main__":
    main()
