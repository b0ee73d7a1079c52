"""The phases of a training run: what `train.py PHASE OUT` and `dense.py OUT` do, in order, and what they cost.

    python plan.py              the table of tokens and GPU seconds

One learning-rate schedule runs through all backbone phases, and one stream of natural text: a phase goes on where the one before ended."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "data"))

import mix

PHASES = dict(
    first=dict(rows=64, seq=1024, steps=2200, mix="pre", qat=False),
    second=dict(rows=64, seq=1024, steps=1500, mix="tune", qat=True),
    long=dict(rows=16, seq=4096, steps=400, mix="long", qat=True),
    longer=dict(rows=8, seq=8192, steps=160, mix="long", qat=True),
)
DRAFT = dict(rows=64, seq=1024, steps=1300, mix="tune", anchors=40, lr=3e-3)
PEAK, WARM, DECAY_FROM, LAST = 6e-3, 100, 0.35, 0.03        # learning rate: warm-up steps, plateau, straight line from this share of the tokens on
INDEX_WEIGHT, BALANCE_WEIGHT = 0.1, 1e-4
CUT_EVERY, CUT_PERIOD = 2, 256      # of so many rows one has its decoder windows cut; mean distance of cuts
WORKERS = 13                        # data processes: their number is part of the order of the data

# tokens a second and seconds to start and compile on one H200, as measured (logs/)
SPEED = {1024: (0.62e6, 85), 4096: (0.295e6, 70), 8192: (0.188e6, 65)}
CACHED = 30                         # with the compile cache of an earlier process
DRAFT_STEP, DENSE_SPEED, OTHER = 0.066, 1.85e6, 60       # OTHER: kernels' tests, comparison with the reference


def tiny():
    """The same phases for the shape `tiny`, in seconds on a CPU."""
    for p, (rows, seq, steps) in zip(list(PHASES.values()) + [DRAFT], ((2, 256, 4), (2, 256, 3), (2, 512, 3), (1, 1024, 2), (2, 256, 3))):
        p.update(rows=rows, seq=seq, steps=steps)
    DRAFT["anchors"] = 4
    return 1            # workers


def tokens(p):
    return p["rows"] * p["seq"] * p["steps"]


def before(name, more=None):
    """(tokens, passes over the natural text) of the phases before `name`; None: of all. more: folder with further natural text."""
    n = natural = 0
    for k, p in PHASES.items():
        if k == name:
            break
        n += tokens(p)
        natural += tokens(p) * mix.STAGES[p["mix"]]["natural"]
    return n, natural / mix.natural_tokens(more)


def learning_rate(done):
    """done: tokens trained on."""
    total, first = sum(map(tokens, PHASES.values())), next(iter(PHASES.values()))
    warm = (done / (first["rows"] * first["seq"]) + 1) / WARM
    at = done / total
    fall = 1 if at < DECAY_FROM else 1 - (1 - LAST) * (at - DECAY_FROM) / (1 - DECAY_FROM)
    return PEAK * min(warm, fall)


def draft_rate(step):
    at = step / DRAFT["steps"]
    return DRAFT["lr"] * min((step + 1) / 50, 1 if at < 0.5 else 1 - 0.97 * (at - 0.5) / 0.5)


def budget():
    """[(name, tokens, GPU seconds)]"""
    out, seen = [], set()
    for k, p in PHASES.items():
        speed, begin = SPEED[p["seq"]]
        out.append((k, tokens(p), tokens(p) / speed + (CACHED if p["seq"] in seen else begin)))
        seen.add(p["seq"])
    out.append(("draft", tokens(DRAFT), DRAFT["steps"] * DRAFT_STEP + CACHED))
    out.append(("dense", before(None)[0], before(None)[0] / DENSE_SPEED + 90))
    return out + [("other", 0, OTHER)]


if __name__ == "__main__":
    for name, n, seconds in budget():
        print(f"{name:8}{n / 1e6:8.1f} M tokens{seconds:6.0f} s")
    print(f"together {sum(b[2] for b in budget()):.0f} s; {before(None)[1]:.2f} passes over the natural text")
