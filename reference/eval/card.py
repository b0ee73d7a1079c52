"""Writes the tables of a model card from the results of run.py, mechanisms.py and training, between the card's markers.

    python3 card.py CARD.md [RESULTS_FOLDER]        results: demo.json, mechanisms.json, training.json (default: results/ next to this file)

A block stands between `<!-- NAME -->` and `<!-- end NAME -->`; whatever is there is replaced. Standard library only."""

import json
import math
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {"json": "JSON valid against its schema", "tool calls": "tool calls, name and arguments exact", "bad input": "bad input: other languages, empty, control-token spellings, over 8,000 tokens (beside the total)",
         "short recall": "recall within 1,024 tokens (beside the total)", "long-context recall": "recall after 1,100 to 8,100 tokens", "natural": "natural text", "story": "stories", "task": "tasks"}


def table(head, rows):
    return "\n".join("| " + " | ".join(str(c) for c in r) + " |" for r in [head, ["---"] * len(head), *rows])


def number(x):
    return "–" if x is None else str(x) if isinstance(x, (int, str)) else f"{x:.3f}" if abs(x) < 0.4 else f"{x:.2f}"


def percent(x):
    return f"{100 * x:.1f} %".replace("-0.0", "0.0")


def tasks(demo, _, __):
    t = demo["tasks"]
    rows = []
    for name, g in t["ced"].items():
        e = t["exact"].get(name)
        label = NAMES.get(name, name)
        if name == "json":
            label += f" (values right as well: {t['json values exact']['right']})"
        rows.append((label, f"{g['right']} of {g['of']}", e["right"] if e else "–", g["limit"]))
    total = t["total"]["ced"]
    rows.append(("together", f"{total['right']} of {total['of']} ({100 * total['right'] / total['of']:.0f} %)", t["total"]["exact"]["right"], f"{total['limit']} ({percent(total['limit'] / total['of'])})"))
    low = [f"{NAMES.get(k, k)} ({100 * g['right'] / g['of']:.0f} %)" for k, g in t["ced"].items() if g["right"] < 0.7 * g["of"]]
    return table(("group", "right (CED)", "right (exact)", "at the token limit"), rows) + "\n\n" + \
        ("Under 70 %: " + ", ".join(low) + "." if low else "No group is under 70 %.")


def perplexity(demo, _, __):
    p, long = demo["perplexity"], demo["tasks"]["long prompts"]

    def three(part, kind):
        return " / ".join(f"{p[part][kind][m + ' f32']:.3f}" for m in ("exact", "ced", "replay"))
    rows = [(NAMES.get(k, k), three("window", k), three("last_16", k)) for k in p["window"]]
    rows.append((f"right answers to the {long['ced']['of']} prompts of 262 tokens or more that found their prefix in the cache", " / ".join(str(long[m]["right"]) for m in ("exact", "ced", "replay")), ""))

    def costs(part, mode, base):
        return ", ".join(f"{NAMES.get(k, k)} {percent(math.expm1(v[mode] - v[base]))}" for k, v in p[part].items())
    return table(("loss, nats a token: exact / CED / replay", "last 127 tokens of a document", "last 16"), rows) + f"\n\n{p['documents']} documents. " + \
        f"CED's cost in perplexity over the whole span: {costs('window', 'ced f32', 'exact f32')}; on the last 16 rows: {costs('last_16', 'ced f32', 'exact f32')}. " + \
        f"Replay's on the last 16: {costs('last_16', 'replay f32', 'exact f32')}. bf16 activations, on the whole span: {costs('window', 'exact bf16', 'exact f32')}."


def drafts(demo, _, __):
    d = demo["drafts"]
    n = len(d["by_position"])
    return table(("DSpark: place", *range(1, n + 1)), [("accepted, given all before were", *(f"{x:.2f}" for x in d["by_position"]))]) + \
        f"\n\n{d['prefixes']} places in greedy replies of all groups: {d['accepted_of_5']:.1f} of 5 drafts accepted, mean confidence {d['mean_confidence']:.3f} where " \
        f"{d['mean_accepted']:.3f} were accepted, expected calibration error {d['ece']:.3f} ({d['decisions']} decisions, ten bins)."


def mechanisms(_, m, __):
    load, recall = m["expert_load"], m["recall"]

    def mass(l):
        r = recall.get(l)
        return f"{r['mass_on_selected']:.2f} ({r['share_of_entries']:.2f})" if r else ""
    return table(("layer", *load), [("fullest expert over the mean load", *(f"{x['largest_over_mean']:.1f}" for x in load.values())),
                                    ("emptiest", *(f"{x['smallest_over_mean']:.2f}" for x in load.values())),
                                    ("attention mass on selected entries (share of the entries selected)", *map(mass, load))]) + \
        f"\n\n{m['tokens']:,} tokens of held-out documents: few, so the load is more uneven than over training batches."


def training(demo, _, t):
    rows = [(name, *map(number, row)) for name, row in t["rows"].items()]
    rows.append(("perplexity of natural text", *("–" if x is None else f"{math.exp(x):.0f}" for x in t["rows"]["natural text"])))
    out = table((t["head"], *t["columns"]), rows) + "\n\n" + t["note"]
    if "against" in demo:
        out += "\n\nPerplexity of the quantised export over that of the BF16 weights, through deepserve: " + \
            ", ".join(f"{NAMES.get(k, k)} {x['perplexity_ratio']:.4f}" for k, x in demo["against"].items()) + "."
    return out


BLOCKS = dict(training=training, tasks=tasks, perplexity=perplexity, drafts=drafts, mechanisms=mechanisms)


def fill(card, demo, mechanisms_json, training_json):
    for name, make in BLOCKS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        if card.count(begin) != 1 or card.count(end) != 1 or card.index(begin) > card.index(end):
            raise ValueError(f"the card has no block {name}")
        card = card[:card.index(begin)] + begin + make(demo, mechanisms_json, training_json) + "\n" + card[card.index(end):]
    return card


def main():
    path, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "results")
    results = []
    for name in ("demo", "mechanisms", "training"):
        with open(os.path.join(folder, name + ".json"), encoding="utf-8") as f:
            results.append(json.load(f))
    with open(path, encoding="utf-8") as f:
        card = fill(f.read(), *results)
    with open(path, "w", encoding="utf-8") as f:
        f.write(card)


if __name__ == "__main__":
    main()
