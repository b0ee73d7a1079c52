"""Expert load and selected-entry recall, from the reference model: python3 reference/eval/mechanisms.py --model models/demo [--tokens 640] [--json OUT]

Needs PyTorch; slow, hence few tokens. Load: choices of the fullest expert over the mean, a layer. Recall: of the softmax mass that a query of an
index source gives to all visible compressed entries (scores of its heads against entries alone, mean of heads), the share on the selected ones."""

import argparse
import json
import math
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)

from dsref.model import Model, State
import run


class Watched(Model):
    """Keeps the queries of index sources, with the numbers that the masses need."""

    def attend(self, q, shared, mask, own, own_ok, p):
        l = int(p.split(".")[1]) if p.startswith("layers.") else -1
        if l in self.cfg.index_source_layer_ids:
            self.note("queries.%d" % l, q)
        return super().attend(q, shared, mask, own, own_ok, p)


def measure(model, ids):
    c = model.cfg
    model.trace, st = {}, State(model)
    model.forward(st, ids)
    load = {l: torch.cat(model.trace["experts.layers.%d" % l]) for l in range(c.L)}
    recall = {}
    for l in sorted(c.index_source_layer_ids):
        q, sel = torch.cat(model.trace["queries.%d" % l]), model.trace["topk.%d" % l][0]
        entries = st.main[c.kv_source(l)]
        visible = (torch.arange(len(ids)) + 1) // c.ratio(l)
        s = torch.einsum("thd,ed->the", q, entries) * c.D ** -0.5
        s = s.masked_fill((torch.arange(len(entries))[None] >= visible[:, None])[:, None], -math.inf)
        chosen = torch.zeros(len(ids), len(entries) + 1, dtype=torch.bool).scatter_(1, torch.where(sel < 0, torch.full_like(sel, len(entries)), sel), True)[:, :-1]
        more = visible > c.index_topk                       # with fewer, everything is selected
        mass = torch.softmax(s[more], -1).mean(1)
        recall[l] = ((mass * chosen[more]).sum(1), c.index_topk / visible[more].to(mass))
    return load, recall


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--program", default=os.path.join(HERE, "..", "..", "build", "deepserve"), help="for the token ids")
    a.add_argument("--tokens", type=int, default=640, help="of each of --texts texts")
    a.add_argument("--texts", type=int, default=3)
    a.add_argument("--json")
    a.add_argument("--cache", default="/tmp/deepserve-eval-%d" % os.getuid())
    o = a.parse_args()
    torch.set_num_threads(1)
    p, model = run.Program(o), Watched(o.model, "f32", torch.float32)
    with open(p.tokenizer(), encoding="utf-8") as f:
        control = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
    docs = run.lines(os.path.join(HERE, "heldout.jsonl"))
    loads, recalls, n_tokens = {}, {}, 0
    for i in range(o.texts):
        ids = []
        for d in docs[i::8]:                                # one document of each kind after the other
            ids += p.ids(d["runs"], control)[0][:o.tokens // 4]
        with torch.no_grad():
            load, recall = measure(model, ids[:o.tokens])
        n_tokens += min(len(ids), o.tokens)
        for l, x in load.items():
            loads.setdefault(l, []).append(x.flatten())
        for l, x in recall.items():
            recalls.setdefault(l, []).append(x)
    out = dict(tokens=n_tokens, top_k=model.cfg.index_topk, expert_load={}, recall={})
    for l, x in loads.items():
        n = torch.bincount(torch.cat(x), minlength=model.cfg.n_routed_experts).double()
        out["expert_load"][l] = dict(largest_over_mean=float(n.max() / n.mean()), smallest_over_mean=float(n.min() / n.mean()))
    for l, x in recalls.items():
        m, share = torch.cat([a for a, _ in x]), torch.cat([b for _, b in x])
        out["recall"][l] = dict(queries=len(m), mass_on_selected=float(m.mean()), share_of_entries=float(share.mean())) if len(m) else None
    print(json.dumps(out, indent=1))
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
