"""Logits of a model directory: python3 -m dsref.run --model DIR --tokens 1,2,3 --mode exact|ced --act f32|bf16 [--replay P] --out x.npy"""

import argparse
import json
import sys
import time

import numpy as np
import torch

from . import dspark
from .model import Model, State


def parse(argv):
    a = argparse.ArgumentParser(prog="dsref.run", description="Logits (and drafts, timings) of the reference model.")
    a.add_argument("--model", required=True, help="model directory")
    a.add_argument("--tokens", required=True, help="comma-separated ids, or @FILE with a JSON array")
    a.add_argument("--mode", choices=("exact", "ced"), default="exact")
    a.add_argument("--act", choices=("f32", "bf16"), default="f32", help="rounding points")
    a.add_argument("--chunk", type=int, default=0, help="tokens per call (0: all)")
    a.add_argument("--last", type=int, default=0, help="rows to keep (0: all in exact mode, 1 in ced mode)")
    a.add_argument("--replay", type=int, default=0, help="ced: resume after a prefix of this length without window state")
    a.add_argument("--dtype", choices=("f64", "f32"), default="f64", help="arithmetic between rounding points")
    a.add_argument("--device", default="cpu")
    a.add_argument("--threads", type=int, default=0)
    a.add_argument("--out", help=".npy for the logits, f32")
    a.add_argument("--draft", action="store_true", help="print the greedy drafts after the prompt as JSON")
    a.add_argument("--generate", type=int, default=0, help="greedy tokens after the prompt, printed as JSON with tokens per second")
    a.add_argument("--time", action="store_true", help="print seconds and tokens per second of the prompt as JSON")
    return a.parse_args(argv)


def main(argv=None):
    o = parse(argv)
    if o.threads:
        torch.set_num_threads(o.threads)
    if o.tokens.startswith("@"):
        with open(o.tokens[1:], encoding="utf-8") as f:
            tokens = json.load(f)
    else:
        tokens = [int(t) for t in o.tokens.split(",")]
    model = Model(o.model, o.act, torch.float64 if o.dtype == "f64" else torch.float32, o.device)
    if not tokens or min(tokens) < 0 or max(tokens) >= model.cfg.vocab_size:
        sys.exit("dsref.run: token ids must lie in 0..%d" % (model.cfg.vocab_size - 1))
    if o.replay and (o.mode != "ced" or not 0 < o.replay < len(tokens)):
        sys.exit("dsref.run: --replay needs --mode ced and 0 < P < number of tokens")
    with torch.no_grad():
        st, t0 = State(model), time.time()
        chunk = o.chunk or len(tokens)
        if o.mode == "exact":
            logits = torch.cat([model.forward(st, tokens[i:i + chunk]) for i in range(0, len(tokens), chunk)])
        elif o.replay:
            model.prefill_ced(st, tokens[:o.replay], chunk=chunk)
            st.forget_windows()
            logits = model.resume(st, tokens[o.replay:])
        else:
            logits = model.prefill_ced(st, tokens, chunk=chunk)
        seconds = time.time() - t0
        keep = o.last or (len(tokens) if o.mode == "exact" else 1)
        if keep > len(logits):
            sys.exit("dsref.run: --last %d: there are %d rows" % (keep, len(logits)))
        if o.out:
            np.save(o.out, logits[-keep:].to(torch.float32).cpu().numpy())
        if o.time:
            print(json.dumps({"prompt_tokens": len(tokens), "seconds": seconds, "tokens_per_second": len(tokens) / seconds}))
        token = int(logits[-1].argmax())
        if o.draft:
            d = dspark.draft(model, st, token)
            print(json.dumps({"token": token, "drafts": d["drafts"], "confidence": d["confidence"]}))
        if o.generate:
            ids, t0 = [], time.time()
            while len(ids) < o.generate:
                ids.append(token)
                token = int(model.forward(st, [token])[-1].argmax())
            print(json.dumps({"ids": ids, "tokens_per_second": len(ids) / (time.time() - t0)}))


if __name__ == "__main__":
    main()
