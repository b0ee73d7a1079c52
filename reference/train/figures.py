"""What the logs of a run say, for the model's card: python figures.py OUT > training.json (see reference/eval/card.py)."""

import json
import os
import sys

import plan

KINDS = {"natural text": "natural", "natural text, decoder windows cut": "cut", "stories": "story", "chat": "chat", "tasks": "task"}


def events(out, name):
    with open(os.path.join(out, name, "log.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(x) for x in f]
    return {r["event"]: r for r in rows if "event" in r}, rows[-1]["time"]


def main():
    out = sys.argv[1]
    columns, tokens, seconds, heldout = [], [], [], []
    for name in plan.PHASES:
        e, took = events(out, name)
        columns.append(name)
        tokens.append(e["backbone done"]["tokens"] / 1e6)
        seconds.append(round(took))
        heldout.append(e["backbone done"]["heldout"])
    e, took = events(out, "draft")
    columns += ["with drafts, as exported", "before quantisation"]
    tokens += [None, None]
    seconds += [round(took), None]
    heldout += [e["backbone"]["heldout"], e["backbone"]["heldout_unquantised"]]
    if os.path.exists(os.path.join(out, "dense", "log.jsonl")):
        e, took = events(out, "dense")
        columns.append(f"dense, {e['start']['active'] / 1e6:.1f} M active parameters (this model {e['start']['active_of_model'] / 1e6:.1f} M)")
        tokens.append(tokens[len(plan.PHASES) - 1])
        seconds.append(round(took))
        heldout.append(e["backbone done"]["heldout"])
    rows = {"tokens so far, millions": tokens, "seconds": seconds}
    rows.update({label: [h.get(k) for h in heldout] for label, k in KINDS.items()})
    note = "Losses in training, bf16 arithmetic, on documents never trained on; a phase's in rows of its own length, the last three columns in rows of 1,024 tokens."
    json.dump(dict(head="held-out loss, nats a token, after", columns=columns, rows=rows, note=note), sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
