"""Writes the golden data under tests/golden/ (described in tests/golden/README.md).

Run: /usr/bin/python3 reference/golden.py [tiny-a tiny-b tiny-c common]     (about 2 minutes in all)
"""

import json
import os
import shutil
import sys

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)

from dsref import checkpoint, dspark, engram, formats, synth, vision       # noqa: E402
from dsref.config import Config                                            # noqa: E402
from dsref.model import Model, State                                       # noqa: E402

SEEDS = os.path.join(HERE, "golden_seeds.json")
OUT = os.path.join(ROOT, "tests", "golden")
QUANT = {"tiny-a": True, "tiny-b": False, "tiny-c": True}
SEED = {"tiny-a": 11, "tiny-b": 12, "tiny-c": 13}
NOISE, MOVED, DRAWS = 1e-6, 1e-5, 10


def distance(a, b):
    """Per row: max |difference| / max |reference b|."""
    return (a - b).abs().amax(-1) / b.abs().amax(-1)


def tokens_of(cfg, n, seed):
    ids = [t for t in range(cfg.vocab_size) if t != cfg.image_token_id]
    return [cfg.bos] + [ids[i] for i in np.random.default_rng(1000 * n + seed).integers(0, len(ids), n - 1)]


class Run:
    """One model run over one case with everything that is worth storing."""

    def __init__(self, model, case):
        self.model = model
        model.trace = {}
        st = self.st = State(model)
        tokens, image = case["tokens"], case.get("rows_of")
        self.X = {}
        with torch.no_grad():
            if case["mode"] == "exact":
                self.logits = model.forward(st, tokens, image)
                self.first = 0
            else:
                if case["mode"] == "replay":
                    P = case["prefix"]
                    model.prefill_ced(st, tokens[:P])
                    st.forget_windows()
                    model.trace = {}
                    self.logits = model.resume(st, tokens[P:])
                else:
                    self.logits = model.prefill_ced(st, tokens, image)
                self.first = len(tokens) - len(self.logits)
            self.trace, model.trace = model.trace, None
            self.draft = None
            if model.cfg.M and case.get("draft"):
                self.draft = dspark.draft(model, st, int(self.logits[-1].argmax()))
                self.rings = dspark.context(model, st)

    def windows(self):
        """(first position of each layer, records [L, n, bytes]) when all layers hold the same positions, else per half."""
        w = self.st.window
        return {l: (w[l][0], w[l][2]) for l in range(self.model.cfg.L)}


class Case:
    def __init__(self, base, name, spec, draws=DRAWS):
        self.spec = dict(spec)
        self.name = name
        m = base
        self.ref = Run(m, spec)
        self.noisy = []
        for s in range(draws):
            n = Model(loaded=(m.cfg, m.w, m.tables), noise=NOISE)
            n.generator.manual_seed(s)
            self.noisy.append(Run(n, spec))
        self.moved = torch.stack([distance(r.logits, self.ref.logits) for r in self.noisy]).amax(0)
        self.stable = self.moved < MOVED
        if name:
            self.bf16 = Run(Model(loaded=(m.cfg, m.w, m.tables), act="bf16"), spec)

    def same(self, get):
        """bool per leading index: equal in every noisy run. get(run) -> tensor [rows.., bytes]."""
        ref = get(self.ref)
        ok = torch.ones(ref.shape[:-1], dtype=torch.bool)
        for r in self.noisy:
            ok &= (get(r) == ref).all(-1)
        return ok


class Writer:
    def __init__(self, name):
        self.dir = os.path.join(OUT, name)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)
        self.cases = []

    def save(self, file, x):
        x = x.detach().cpu().numpy() if torch.is_tensor(x) else np.asarray(x)
        if x.dtype == np.float64:
            x = x.astype(np.float32)
        np.save(os.path.join(self.dir, file), x)
        return file

    def array(self, file, x, ok=None, **more):
        """Manifest entry of a stored array; `unstable`: flattened row numbers (all dimensions but the last) that noise changes."""
        e = {"file": self.save(file, x), **more}
        if ok is not None:
            e["unstable"] = (~ok).flatten().nonzero().flatten().tolist()
        return e


def pick(case, limit, others):
    """Row numbers to store: up to `limit` stable ones, spread and including the last, and a few unstable."""
    good = case.stable.nonzero().flatten().tolist()
    bad = (~case.stable).nonzero().flatten().tolist()

    def spread(v, k):
        return v if len(v) <= k else [v[round(i * (len(v) - 1) / (k - 1))] for i in range(k)]
    return sorted(set(spread(good, limit) + spread(bad, others)))


def topk_array(cfg, run, n):
    """int32 [index layers, n, index_topk], ascending, -1 behind the last."""
    out = torch.full((len(cfg.index_source_layer_ids), n, cfg.index_topk), -1, dtype=torch.int32)
    for i, l in enumerate(cfg.index_source_layer_ids):
        t = run.trace.get("topk.%d" % l)
        if t:
            t = t[-1]
            got = torch.where(t < 0, torch.full_like(t, 1 << 30), t).sort(1)[0]
            got = torch.where(got == 1 << 30, torch.full_like(got, -1), got)
            out[i, n - len(got):, :got.shape[1]] = got.to(torch.int32)
    return out


def experts_array(cfg, run):
    return torch.stack([run.trace["experts.layers.%d" % l][-1].sort(1)[0].to(torch.int32) for l in range(cfg.L)])


def write_case(w, case, spec, rows=32, others=6, bf16_rows=8, store=()):
    cfg, ref, name = case.ref.model.cfg, case.ref, case.name
    n = len(spec["tokens"])
    chosen = pick(case, rows, others)
    e = {"name": name, "mode": spec["mode"], "tokens": spec["tokens"]}
    for k in ("prefix", "image"):
        if k in spec:
            e[k] = spec[k]
    d = distance(case.bf16.logits, ref.logits)
    agree = case.bf16.logits.argmax(1) == ref.logits.argmax(1)
    e["positions"] = [ref.first + r for r in chosen]
    e["stable"] = [int(case.stable[r]) for r in chosen]
    e["logits"] = w.save(name + ".logits.npy", ref.logits[chosen])
    e["all_stable"] = [ref.first + r for r in case.stable.nonzero().flatten().tolist()]
    e["bf16"] = {"distance": [float("%.4g" % v) for v in d[chosen]], "median": float(d[chosen].median()), "max": float(d[chosen].max()),
                 "top_agreement": float(agree[chosen].float().mean())}
    sub = chosen[-bf16_rows:]
    e["bf16"]["positions"] = [ref.first + r for r in sub]
    e["bf16"]["logits"] = w.save(name + ".bf16.npy", case.bf16.logits[sub])
    if ref.draft:
        best = all(r.draft["drafts"] == ref.draft["drafts"] for r in case.noisy)
        e["draft"] = {"token": int(ref.logits[-1].argmax()), "drafts": ref.draft["drafts"], "confidence": ref.draft["confidence"],
                      "stable": int(best), "logits": w.array(name + ".draft.npy", ref.draft["logits"], torch.stack(
                          [distance(r.draft["logits"], ref.draft["logits"]) for r in case.noisy]).amax(0) < MOVED)}
    if "records" in store:
        wins = ref.windows()
        groups = {}
        for l, (first, rec) in wins.items():
            groups.setdefault(first, []).append(l)
        e["window"] = []
        for first, layers in sorted(groups.items()):
            end = ref.st.window[layers[0]][0] + len(ref.st.window[layers[0]][2])
            first = max(first, end - 2 * cfg.sliding_window - 1)

            def get(r, layers=layers, keep=end - first):
                return torch.stack([r.windows()[l][1][-keep:] for l in layers])
            e["window"].append(w.array("%s.window-%d.npy" % (name, first), get(ref), case.same(get), layers=layers, first=first))
        for kind, field in (("main", "main_records"), ("index", "key_records")):
            e[kind] = [w.array("%s.%s-%d.npy" % (name, kind, s), getattr(ref.st, field)[s], case.same(lambda r, s=s: getattr(r.st, field)[s]), source=s)
                       for s in cfg.kv_source_layer_ids]
        if ref.draft and n < 100:
            def get_rings(r):
                return torch.stack(r.rings[2])
            e["rings"] = w.array(name + ".rings.npy", get_rings(ref), case.same(get_rings), first=ref.rings[0])
    if "topk" in store:
        e["topk"] = w.array(name + ".topk.npy", topk_array(cfg, ref, n), case.same(lambda r: topk_array(cfg, r, n)), layers=cfg.index_source_layer_ids)
        if cfg.candidate_source_layer_id >= 0:
            def get_pool(r):
                return r.trace["pool"][-1][:, ::cfg.candidate_block_size].to(torch.uint8)
            e["pool"] = w.array(name + ".pool.npy", get_pool(ref), case.same(get_pool), layer=cfg.candidate_source_layer_id)
    if "experts" in store:
        e["experts"] = w.array(name + ".experts.npy", experts_array(cfg, ref), case.same(lambda r: experts_array(cfg, r)))
    if "engram" in store and cfg.engram_layer_ids:
        e["engram"] = w.array(name + ".engram.npy", torch.stack([ref.trace["engram_ids.%d" % l][-1] for l in cfg.engram_layer_ids]),
                              layers=cfg.engram_layer_ids)
    if "streams" in store:
        e["streams"] = w.save(name + ".streams.npy", torch.stack([ref.trace["X.%d" % l][-1] for l in range(cfg.L)]))
        e["mix"] = w.save(name + ".mix.npy", torch.stack([ref.trace["a.%d" % l][-1] for l in range(cfg.L)]))
        e["hidden"] = w.save(name + ".hidden.npy", ref.trace["hidden"][-1])
    w.cases.append(e)
    if spec["mode"] != "exact":
        with torch.no_grad():
            full = ref.model.forward(State(ref.model), spec["tokens"], spec.get("rows_of"))[-len(ref.logits):]
        e["distance_from_exact"] = float(distance(ref.logits, full).max())
        if spec["mode"] == "replay":
            with torch.no_grad():
                e["distance_from_ced"] = float(distance(ref.logits, ref.model.prefill_ced(State(ref.model), spec["tokens"])).max())
    print("%-16s rows %3d stable %3d/%3d  bf16 median %.1e max %.1e agree %.2f" % (
        name, len(chosen), int(case.stable.sum()), len(case.stable), e["bf16"]["median"], e["bf16"]["max"], e["bf16"]["top_agreement"]),
          " ".join("%s %.1e" % (k[14:], e[k]) for k in ("distance_from_exact", "distance_from_ced") if k in e), flush=True)
    return e


def stable_rows(base, family, draws):
    return int(torch.cat([Case(base, "", c, draws).stable for c in family]).sum())


def best_prompt(base, key, tries, build, start=0):
    """Of `tries` seeds the one whose prompt has the most stable rows; build(seed) -> specs, all with the same tokens. -> its specs.

    The choice is kept in golden_seeds.json under `key`; without an entry there the search runs again (slow)."""
    with open(SEEDS) as f:
        known = json.load(f)
    if key not in known:
        best, most = None, -1
        for s in range(start, start + tries):
            specs = build(s)
            if stable_rows(base, specs, 1) <= most:     # more draws only find fewer
                continue
            count = stable_rows(base, specs, DRAWS)
            if count > most:
                best, most = s, count
            if count == sum(len(c["tokens"]) if c["mode"] == "exact" else min(len(c["tokens"]), base.cfg.sliding_window) for c in specs):
                break
        with open(SEEDS) as f:
            known = json.load(f)
        known[key] = best
        with open(SEEDS, "w") as f:
            json.dump(known, f, indent=0, sort_keys=True)
            f.write("\n")
    return build(known[key])


def picture(width, height):
    """Formula picture, uint8 [h, w, 3]: v(x, y, c) = (7 x + 13 y + 50 c + ((x y) >> 3)) & 255."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return ((7 * x + 13 * y + 50 * c + ((x * y) >> 3)) & 255).astype(np.uint8)


def greedy(model, tokens, mode, n):
    """n greedy ids and for each the gap to the second best logit, relative to the row's largest."""
    with torch.no_grad():
        st = State(model)
        row = (model.forward(st, tokens) if mode == "exact" else model.prefill_ced(st, tokens))[-1]
        ids, gap = [], []
        for _ in range(n):
            v, i = row.topk(2)
            ids.append(int(i[0]))
            gap.append(float("%.3g" % ((v[0] - v[1]) / row.abs().max())))
            row = model.forward(st, [ids[-1]])[-1]
    return {"mode": mode, "tokens": tokens, "ids": ids, "gap": gap}


def make(name):
    with open(os.path.join(ROOT, "tests", "configs", name + ".json"), encoding="utf-8") as f:
        raw = json.load(f)
    cfg = Config(raw)
    w = Writer(name)
    path = os.path.join(w.dir, "model")
    tok = synth.tokenizer(cfg.vocab_size)
    extra = None
    if name == "tiny-b":
        t = engram.Tables(cfg, tokenizer=tok)
        extra = {"engram.token_map": t.map, "engram.primes": t.primes, "engram.offsets": t.offsets, "engram.multipliers": t.multipliers}
    checkpoint.write_checkpoint(path, raw, synth.weights(cfg, SEED[name]), QUANT[name], tokenizer=tok, extra=extra,
                                shard_bytes=600000 if name == "tiny-a" else 1 << 30)
    base = Model(path)
    draft = {"draft": True} if cfg.M else {}
    W = cfg.sliding_window
    exact = dict(mode="exact", **draft)
    for n, tries in ((1, 1), (6, 60), (15, 40), (16, 40), (17, 40), (64, 30), (200, 20)):
        spec, = best_prompt(base, "%s n%d exact" % (name, n), tries, lambda s: [dict(exact, tokens=tokens_of(cfg, n, s))])
        store = {6: ("streams", "experts"), 17: ("records", "topk", "experts"), 64: ("records", "topk", "experts", "engram"), 200: ("records", "topk")}.get(n, ())
        write_case(w, Case(base, "n%d-exact" % n, spec), spec, rows=8 if n < 17 else 20, others=4, bf16_rows=6, store=store)
    for n, prefixes, tries in ((16, (), 10), (17, (5,), 20), (40, (17, 32, 33, 39), 40), (200, (100, 101, 191), 20)):
        family = [dict(exact, mode="ced")] + [dict(mode="replay", prefix=P) for P in prefixes]
        for c in best_prompt(base, "%s n%d ced" % (name, n), tries, lambda s: [dict(c, tokens=tokens_of(cfg, n, s)) for c in family], 100):
            P = c.get("prefix")
            case = "n%d-replay%d" % (n, P) if P else "n%d-ced" % n
            write_case(w, Case(base, case, c), c, rows=6 if P or n == 16 else 12, others=2, bf16_rows=2 if P else 4,
                       store=("records",) if n == 40 and P in (None, 32, 33) else ())
    if cfg.vision:
        pix = torch.from_numpy(picture(97, 61))
        info = {"width": 97, "height": 61, **vision.fit(cfg, 97, 61)}
        from PIL import Image
        ready = vision.prepare(cfg, Image.fromarray(pix.numpy()))
        with torch.no_grad():
            x, nh, nw = vision.patches(cfg, ready)
            feat = vision.tower(base, x, nh, nw)
            rows = vision.span(base, ready)
        info.update(patches=[nh, nw], start=20, prepared=w.save("image.prepared.npy", ready), features=w.save("image.features.npy", feat),
                    rows=w.save("image.rows.npy", rows))
        start, m = 20, len(rows)
        # An f32 program starts from the rows above, so the language model does too.
        rows = rows.float().double()

        def with_image(s):
            t = tokens_of(cfg, 50, s)
            return [dict(exact, tokens=t[:start] + [cfg.image_token_id] * m + t[start:], rows_of={start: rows}, image=info)]
        spec, = best_prompt(base, name + " image", 60, with_image, 500)
        write_case(w, Case(base, "image-exact", spec), spec, rows=20, others=2, store=("records", "topk", "experts", "engram"))
        c = dict(spec, mode="ced")
        write_case(w, Case(base, "image-ced", c), c, rows=8)
    with open(os.path.join(w.dir, "golden.json"), "w") as f:
        prompts = {c["name"]: c["tokens"] for c in w.cases}
        out = {"config": name, "noise": NOISE, "stable_below": MOVED, "draws": DRAWS, "cases": w.cases,
               "greedy": [greedy(base, prompts["n17-exact"], "exact", 24), greedy(base, prompts["n40-ced"], "ced", 24)]}
        f.write(json.dumps(out, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


def common():
    """Data that belong to no model: rotary tables of the released shape, picture sizes, resampling, token map, Engram ids."""
    w = Writer("common")
    from PIL import Image, ImageOps
    from dsref.model import rope_frequencies

    class Real:
        rd, rope_theta, compress_rope_theta = 64, 10000, 160000
        rope_scaling = dict(factor=16, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1)
    out = {"rope": {"file": w.save("rope.npy", torch.stack([rope_frequencies(Real, c) for c in (False, True)]))}}

    class RealVision:
        class vision:
            patch, down, max_tokens, min_pixels, max_wh_ratio = 14, 3, 1024, 295936, None

    class Limited:
        class vision(RealVision.vision):
            max_wh_ratio = 3.0
    sizes = [(1, 1), (640, 480), (978, 479), (1920, 1080), (3024, 4032), (158, 10000), (10000, 158), (14, 9000), (9000, 14), (16809, 11841),
             (544, 544), (543, 545), (100, 4000), (1344, 1344), (1330, 1330), (2000, 600), (37, 8000), (8191, 3)]
    out["fit"] = [{"width": a, "height": b, "max_wh_ratio": c.vision.max_wh_ratio, **vision.fit(c, a, b)} for c in (RealVision, Limited) for a, b in sizes]
    out["resize"] = []
    for a, b, W, H in ((97, 61, 98, 70), (30, 41, 42, 42), (150, 90, 42, 28), (13, 77, 28, 84), (60, 60, 60, 60)):
        im = ImageOps.pad(Image.fromarray(picture(a, b)), (W, H), method=Image.BICUBIC, color=(127, 127, 127), centering=(0.5, 0.5))
        out["resize"].append({"width": a, "height": b, "to": [W, H], "file": w.save("resize-%dx%d.npy" % (a, b), np.array(im))})
    char = {v: k for k, v in engram.byte_alphabet().items()}

    def piece(s):
        return "".join(char[b] for b in s.encode())
    words = [" the", "The", "THE", "the", "é", "e", "É", "e\u0301", "ﬁ", "fi", "  ", "\n\n", " \t", "\u00a0", "\u3000x", "x", "Ａ", "İ", "ẞ", "ß", "Σ", "ς", "½", "1⁄2",
             "\u0301", "가", "각", "ｶﾞ", "が", "か", "①", "1", "...", "…", "\u200b", "\x0b", "\x1c", "\x85", "A\n", "a ", "\ue000", "²", "2", "Å", "Å", "å", "ö̈"]
    base = synth.tokenizer(267)
    vocab = base["model"]["vocab"]
    at = 267
    for s in words:
        if piece(s) not in vocab:
            vocab[piece(s)] = at
            at += 1
    for p in (char[0xe4] + char[0xb8], char[0xe4], char[0xf0] + char[0x9f] + piece("a")):
        if p not in vocab:
            vocab[p] = at
            at += 1
    got = engram.token_map(base, at)
    with open(os.path.join(w.dir, "token_map.tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(base, f, ensure_ascii=False, indent=0)
        f.write("\n")
    out["token_map"] = {"tokenizer": "token_map.tokenizer.json", "map": w.save("token_map.npy", got), "classes": int(got.max()) + 1}
    x = torch.cat((torch.randn(4000, generator=torch.Generator().manual_seed(1)) * 3, torch.linspace(-8, 8, 4097),
                   torch.tensor([0.0, -0.0, 1e-30, -1e-30, 448, 464, 1e6, 2.0 ** -9, 2.0 ** -10, 3 * 2.0 ** -11, -1e-4, 6, 6 * 2.0 ** -9])))
    x = x[:len(x) // 32 * 32].reshape(-1, 32) * torch.pow(2.0, torch.arange(len(x) // 32).remainder(40) - 20.0)[:, None]
    out["formats"] = {"x": w.save("formats.x.npy", x), "window": w.save("formats.window.npy", formats.window_record(x)),
                      "index": w.save("formats.index.npy", formats.index_record(x)), "main": w.save("formats.main.npy", formats.main_record(x))}
    with open(os.path.join(w.dir, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=0)
        f.write("\n")


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["tiny-a", "tiny-b", "tiny-c", "common"]:
        common() if name == "common" else make(name)
    size = 0
    for d, _, files in sorted(os.walk(OUT)):
        for f in sorted(files):
            size += os.path.getsize(os.path.join(d, f))
    print("tests/golden: %.2f MB" % (size / 1e6))


if __name__ == "__main__":
    main()
