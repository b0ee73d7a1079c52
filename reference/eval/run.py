"""Evaluates a model through the program: python3 reference/eval/run.py --model models/demo --program build/deepserve [--json OUT]

What is measured and how: README.md next to this file. Standard library and NumPy only. Results of the program are kept in --cache
(by model, program and input), so that an interrupted run goes on where it was."""

import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading

import numpy as np

import checks

HERE = os.path.dirname(os.path.abspath(__file__))
EXTRA = ("bad input", "short recall")       # groups beside the total
WINDOW_ROWS = 128       # rows compared between modes: the demonstration model's window
MODES = (("exact", "f32"), ("ced", "f32"), ("replay", "f32"), ("exact", "bf16"), ("replay", "bf16"))


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(x) for x in f if x.strip()]


class Program:
    """Calls of deepserve, remembered on disk."""

    def __init__(self, o, model=None):
        self.o, self.model = o, model or o.model
        h = hashlib.sha256()
        for name in ("model.safetensors", "tokenizer.json", "config.json"):
            with open(os.path.join(self.model, name), "rb") as f:
                h.update(f.read())
        self.weights = h.hexdigest()
        with open(o.program, "rb") as f:
            h.update(f.read())
        self.version = h.hexdigest()
        os.makedirs(o.cache, exist_ok=True)

    def remembered(self, key, make):
        path = os.path.join(self.o.cache, hashlib.sha256((self.version + json.dumps(key)).encode()).hexdigest()[:32] + ".json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                return json.load(f)
        value = make()
        mine = f"{path}.{os.getpid()}.{threading.get_ident()}"      # two threads may ask for the same
        with open(mine, "w", encoding="utf-8") as f:
            json.dump(value, f)
        os.rename(mine, path)
        return value

    def call(self, *args, stdin=b"", good=(0,)):
        p = subprocess.run([self.o.program, *args], input=stdin, capture_output=True)
        if p.returncode not in good:
            sys.exit(f"deepserve {args[0]}: exit {p.returncode}: {p.stderr.decode(errors='replace')[:400]}")
        return p.stdout.decode()

    def tokenizer(self):
        return os.path.join(self.model, "tokenizer.json")

    def generate(self, requests, mode, parallel=16):
        """Greedy replies as lists of result lines."""
        def make():
            with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
                f.write("\n".join(json.dumps(r) for r in requests))
                f.flush()
                out = self.call("generate", "--model", self.model, "--input", f.name, "--temperature", "0", "--mode", mode, "--threads", str(self.o.threads),
                                "--parallel", str(parallel), "--json", good=(0, 1))
            got = [json.loads(x) for x in out.splitlines()]
            if len(got) != len(requests):
                sys.exit(f"generate: {len(got)} results for {len(requests)} requests")
            return got
        return self.remembered(["generate", requests, mode, parallel], make)

    def parse(self, requests, results):
        """Result lines -> replies as checks.py wants them."""
        rows = [dict(request=dict(r, model="demo"), ids=g.get("ids", []), finish=g.get("finish_reason", "stop")) for r, g in zip(requests, results)]
        out = self.call("parse", "--jsonl", "--tokenizer", self.tokenizer(), stdin="\n".join(map(json.dumps, rows)).encode(), good=(0, 1))
        replies = []
        for line, g in zip(out.splitlines(), results):
            body = json.loads(line)
            if "error" in g or "choices" not in body:
                replies.append(dict(content="", reasoning="", calls=[], finish="error"))
                continue
            m = body["choices"][0]["message"]
            calls = []
            for c in m.get("tool_calls") or []:
                try:
                    calls.append(dict(name=c["function"]["name"], arguments=json.loads(c["function"]["arguments"])))
                except ValueError:
                    calls.append(dict(name=c["function"]["name"], arguments=None))
            replies.append(dict(content=m.get("content") or "", reasoning=m.get("reasoning_content") or "", calls=calls, finish=g["finish_reason"]))
        return replies

    def ids(self, runs, control):
        """Runs of heldout.jsonl -> (token ids, loss flags)."""
        ids, loss = [], []
        for is_control, text, flag in runs:
            part = [control[text]] if is_control else self.remembered(["ids", text], lambda t=text: json.loads(self.call("tokenize", "--tokenizer", self.tokenizer(), stdin=t.encode())))
            ids += part
            loss += [flag] * len(part)
        return ids, loss

    def prompt_ids(self, request):
        body = json.dumps(dict(request, model="demo"))
        return self.remembered(["prompt", body], lambda: json.loads(self.call("render", "--protocol", "chat", "--encoding", "v4.1", "--tokenizer", self.tokenizer(), stdin=body.encode()))["ids"])

    def losses(self, ids, mode, act):
        """Loss (nats) of ids[k] given those before, for the last rows that the mode gives: list of [k, loss]."""
        def make():
            n = len(ids)
            last = n if mode == "exact" else min(n, WINDOW_ROWS)
            args = ["--mode", "exact" if mode == "exact" else "ced", "--act", act, "--last", str(last), "--threads", str(self.o.threads)]
            if mode == "replay":
                args += ["--replay", str(replay_at(n))]
            with tempfile.TemporaryDirectory() as d:
                with open(os.path.join(d, "ids"), "w", encoding="utf-8") as f:
                    json.dump(ids, f)
                self.call("logits", "--model", self.model, "--tokens", "@" + f.name, "--out", os.path.join(d, "x.npy"), *args)
                x = np.load(os.path.join(d, "x.npy"))[:-1].astype(np.float64)
            first = n - last
            top = x.max(1)
            lse = np.log(np.exp(x - top[:, None]).sum(1)) + top
            return [[first + i + 1, float(lse[i] - x[i, ids[first + i + 1]])] for i in range(len(x))]
        return self.remembered(["loss", ids, mode, act], make)

    def draft(self, ids):
        return self.remembered(["draft", ids], lambda: json.loads(self.call("draft", "--model", self.model, "--tokens", ",".join(map(str, ids)), "--threads", str(self.o.threads), "--json")))


def replay_at(n):
    """Where serving would resume: a multiple of 128 that leaves 134 tokens or more; half of a short text."""
    return (n - 134) // 128 * 128 if n >= 262 else n // 2


def score(prompts, replies):
    groups = {}
    for p, r in zip(prompts, replies):
        g = groups.setdefault(p["group"], dict(right=0, of=0, limit=0, failed=[]))
        ok = checks.passed(p["check"], r)
        g["of"] += 1
        g["right"] += ok
        g["limit"] += r["finish"] == "length"
        if not ok:
            g["failed"].append(dict(id=p["id"], reply=(r["content"] or json.dumps(r["calls"]))[:160], finish=r["finish"]))
    return groups


def total(groups):
    g = [v for k, v in groups.items() if k not in EXTRA]
    return dict(right=sum(x["right"] for x in g), of=sum(x["of"] for x in g), limit=sum(x["limit"] for x in g))


def tasks(p, prompts):
    requests = [x["request"] for x in prompts]
    out = {}
    ced = p.generate(requests, "ced")
    replies = p.parse(requests, ced)
    out["ced"] = score(prompts, replies)
    plain = [i for i, x in enumerate(prompts) if x["group"] != "bad input"]
    exact = p.generate([requests[i] for i in plain], "exact")
    out["exact"] = score([prompts[i] for i in plain], p.parse([requests[i] for i in plain], exact))
    long = [i for i in plain if ced[i].get("usage", {}).get("prompt_tokens", 0) >= 262]
    again = p.generate([requests[i] for i in long for _ in (0, 1)], "ced", parallel=1)[1::2]
    used = [j for j, g in enumerate(again) if g.get("usage", {}).get("cached_tokens", 0) > 0]
    with_prefix = score([prompts[long[j]] for j in used], p.parse([requests[long[j]] for j in used], [again[j] for j in used]))
    same = score([prompts[long[j]] for j in used], [replies[long[j]] for j in used])
    where = {i: j for j, i in enumerate(plain)}
    ex = score([prompts[long[j]] for j in used], p.parse([requests[long[j]] for j in used], [exact[where[long[j]]] for j in used]))
    out["long prompts"] = dict(exact=total(ex), ced=total(same), replay=total(with_prefix))
    values = [x for x in range(len(prompts)) if prompts[x]["group"] == "json"]
    good = 0
    for i in values:
        try:
            good += checks.same(checks.read_json(replies[i]["content"]), prompts[i]["check"]["values"])
        except ValueError:
            pass
    out["json values exact"] = dict(right=good, of=len(values))
    return out, [(prompts[i], exact[j]) for j, i in enumerate(plain)]


def documents(p, every):
    with open(p.tokenizer(), encoding="utf-8") as f:
        control = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
    return [(d["kind"], *p.ids(d["runs"], control)) for d in lines(os.path.join(HERE, "heldout.jsonl"))[::every]]


def compare(p, other, every, workers):
    """Exact loss of two models, nats a token over all documents of a kind, and the first one's perplexity over the second's."""
    docs = documents(p, every)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        done = [list(pool.map(lambda d, m=m: m.losses(d[1], "exact", "f32"), docs)) for m in (p, other)]
    sums = {}
    for (kind, _, loss), mine, theirs in zip(docs, *done):
        sums.setdefault(kind, []).extend((a, b) for (k, a), (_, b) in zip(mine, theirs) if loss[k])
    mean = {k: np.mean(v, 0) for k, v in sums.items()}
    return {k: dict(tokens=len(sums[k]), nats=float(a), other_nats=float(b), perplexity_ratio=math.exp(a - b)) for k, (a, b) in mean.items()}


def perplexity(p, every, workers):
    docs = documents(p, every)
    jobs = [(kind, ids, loss, mode, act) for kind, ids, loss in docs for mode, act in MODES]
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(lambda j: p.losses(j[1], j[3], j[4]), jobs))
    whole, tail, end = {}, {}, {}
    for (kind, ids, loss, mode, act), rows in zip(jobs, done):
        if (mode, act) == ("exact", "f32"):
            whole.setdefault(kind, []).extend(v for k, v in rows if loss[k])
        tail.setdefault(kind, {}).setdefault(mode + " " + act, []).extend(v for k, v in rows if loss[k] and k >= len(ids) - WINDOW_ROWS + 1)
        end.setdefault(kind, {}).setdefault(mode + " " + act, []).extend(v for k, v in rows if loss[k] and k >= len(ids) - 16)
    return dict(documents=len(docs), last_16={k: dict(tokens=len(v["exact f32"]), **{m: float(np.mean(x)) for m, x in v.items()}) for k, v in end.items()}, whole={k: dict(tokens=len(v), nats=float(np.mean(v)), perplexity=math.exp(np.mean(v))) for k, v in whole.items()},
                window={k: dict(tokens=len(v["exact f32"]), **{m: float(np.mean(x)) for m, x in v.items()}) for k, v in tail.items()})


def calibration(pairs, bins=10):
    """Expected calibration error of (confidence, accepted) in bins of equal width."""
    c, a = np.array([x for x, _ in pairs]), np.array([y for _, y in pairs], float)
    at = np.minimum((c * bins).astype(int), bins - 1)
    return float(sum((at == b).mean() * abs(c[at == b].mean() - a[at == b].mean()) for b in range(bins) if (at == b).any()))


def drafts(p, answered, points, workers):
    """Drafts after prefixes of greedy replies against what the reply says next; both exact, f32."""
    jobs = []
    for prompt, got in answered[::4]:
        ids = got.get("ids", [])
        if got.get("usage", {}).get("prompt_tokens", 9999) > 400 or len(ids) < 8:
            continue
        for k in np.linspace(0, len(ids) - 7, points).astype(int):
            jobs.append((prompt["request"], ids, int(k)))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(lambda j: p.draft(p.prompt_ids(j[0]) + j[1][:j[2]]), jobs))
    reached, kept, pairs, lengths, other = {}, {}, [], [], 0
    for (_, ids, k), d in zip(jobs, done):
        if d["token"] != ids[k]:
            other += 1
            continue
        n = 0
        for i, (t, c) in enumerate(zip(d["drafts"], d["confidence"])):
            if k + 1 + i >= len(ids):
                break
            ok = t == ids[k + 1 + i]
            reached[i] = reached.get(i, 0) + 1
            kept[i] = kept.get(i, 0) + ok
            pairs.append((c, ok))
            if not ok:
                break
            n += 1
        lengths.append(n)
    return dict(prefixes=len(lengths), other_token=other, accepted_of_5=float(np.mean(lengths)), by_position=[kept[i] / reached[i] for i in sorted(reached)], decisions=len(pairs),
                mean_confidence=float(np.mean([c for c, _ in pairs])), mean_accepted=float(np.mean([a for _, a in pairs])), ece=calibration(pairs))


def show(result):
    t = result["tasks"]
    print(f"{'group':22}{'CED':>9}{'exact':>9}{'at limit':>10}")
    for name, g in t["ced"].items():
        e = t["exact"].get(name)
        print(f"{name:22}{g['right']:4} /{g['of']:3}{str(e['right']) if e else '-':>9}{g['limit']:10}")
    for k in ("total", "long prompts", "json values exact"):
        print(k, json.dumps(t[k]))
    for k in ("perplexity", "against", "drafts"):
        print(k, json.dumps(result.get(k), indent=1))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--program", required=True)
    a.add_argument("--json", help="file for all figures and every failed reply")
    a.add_argument("--threads", type=int, default=1, help="threads of one call of the program")
    a.add_argument("--workers", type=int, default=2, help="calls at a time")
    a.add_argument("--points", type=int, default=4, help="draft prefixes a reply")
    a.add_argument("--every", type=int, default=1, help="only every N-th prompt and document: a quick look")
    a.add_argument("--against", help="another model with the same tokenizer (say, the weights before quantisation), for the ratio of perplexities")
    a.add_argument("--only", choices=("tasks", "perplexity", "drafts"), action="append", help="a part; may be repeated")
    a.add_argument("--cache", default=os.path.join(tempfile.gettempdir(), "deepserve-eval-%d" % os.getuid()))
    o = a.parse_args()
    p, only = Program(o), o.only or ["tasks", "perplexity", "drafts"]
    result = dict(weights_sha256=p.weights)
    if "tasks" in only or "drafts" in only:
        t, answered = tasks(p, lines(os.path.join(HERE, "prompts.jsonl"))[::o.every])
        t["total"] = dict(ced=total(t["ced"]), exact=total(t["exact"]))
        result["tasks"] = t
    if "perplexity" in only:
        result["perplexity"] = perplexity(p, o.every, o.workers)
    if o.against:
        result["against"] = compare(p, Program(o, o.against), o.every, o.workers)
    if "drafts" in only:
        result["drafts"] = drafts(p, answered, o.points, o.workers)
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(result, f, ensure_ascii=False, indent=1)
            f.write("\n")
    if "tasks" in result:
        show(result)
    else:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
