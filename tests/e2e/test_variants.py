"""Configurations at the edges, with random weights, against the reference program (where PyTorch is installed): sources, Engram, taps and windows in
unusual places. Rows that hold a choice on an edge may go the other way; most rows may not."""
import copy
import json
import sys

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

TOKENS = 50
PREFIX = 23

VARIANTS = {
    "as suggested": ("tiny-d", {}),
    "Engram in a decoder layer": ("tiny-b", {"engram_layer_ids": [0, 4]}),
    "Engram in the boundary layer": ("tiny-b", {"engram_layer_ids": [1, 3]}),
    "draft features of an encoder layer": ("tiny-b", {"dspark_target_layer_ids": [5, 1]}),
    "a draft block longer than the usual rollback": ("tiny-a", {"dspark_block_size": 7}),
    "one draft": ("tiny-a", {"dspark_block_size": 1}),
    "groups narrower than a scale block": ("tiny-a", {"o_lora_rank": 16}),
    "first layer a source": ("tiny-a", {"compress_ratios": [2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0], "kv_source_layer_ids": [0, 2, 4],
                                        "index_source_layer_ids": [0, 2, 4, 6]}),
    "one source": ("tiny-a", {"compress_ratios": [0, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0], "kv_source_layer_ids": [1],
                              "index_source_layer_ids": [1, 4], "candidate_source_layer_id": -1}),
    "a decoder of one layer": ("tiny-a", {"compress_ratios": [0, 2, 2, 2, 2, 2, 2, 1, 0, 0, 0], "kv_source_layer_ids": [1, 7],
                                          "index_source_layer_ids": [1, 3, 7], "candidate_source_layer_id": 7}),
    "a window of one": ("tiny-a", {"sliding_window": 1}),
    "a window of five": ("tiny-a", {"sliding_window": 5}),
}


def close(got, want):
    e = np.abs(got - want).max(1) / np.abs(want).max(1)
    assert np.median(e) <= 2e-6 and (e > 2e-5).mean() <= 0.25 and e.max() <= 0.3, e


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(deepserve, root, tmp_path, name):
    import torch

    if str(root / "reference") not in sys.path:
        sys.path.insert(0, str(root / "reference"))
    from dsref import dspark
    from dsref.model import Model, State

    base, changes = VARIANTS[name]
    raw = copy.deepcopy(json.loads((root / "tests" / "configs" / f"{base}.json").read_text()))
    raw["text_config"].update(changes)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    model = tmp_path / "model"
    r = deepserve("synth", "--config", tmp_path / "config.json", "--seed", 3, "--out", model)
    assert r.returncode == 0, r.stderr
    text = raw["text_config"]
    tokens = [0] + [int(t) for t in np.random.default_rng(5).integers(3, text["vocab_size"], TOKENS - 1)]

    reference = Model(str(model))
    with torch.no_grad():
        st = State(reference)
        exact = reference.forward(st, tokens).float().numpy()
        drafts = dspark.draft(reference, st, int(exact[-1].argmax())) if text["num_nextn_predict_layers"] else None
        ced = reference.prefill_ced(State(reference), tokens).float().numpy()
        st = State(reference)
        reference.prefill_ced(st, tokens[:PREFIX])
        st.forget_windows()
        replayed = reference.resume(st, tokens[PREFIX:]).float().numpy()

    ids, last = ",".join(map(str, tokens)), str(min(text["sliding_window"], TOKENS))

    def logits(*args):
        r = deepserve("logits", "--model", model, "--tokens", ids, "--out", tmp_path / "l.npy", *args)
        assert r.returncode == 0, r.stderr
        return np.load(tmp_path / "l.npy")

    for want, args in ((exact, []), (ced, ["--mode", "ced", "--last", last]), (replayed, ["--mode", "ced", "--last", last, "--replay", PREFIX])):
        got = logits(*args)
        close(got, want)
        assert np.array_equal(logits(*args, "--chunk", 9), got)
    if drafts:
        r = deepserve("draft", "--model", model, "--tokens", ids, "--json")
        assert r.returncode == 0, r.stderr
        d = json.loads(r.stdout)
        assert d["drafts"] == drafts["drafts"]
        assert np.abs(np.array(d["confidence"]) - drafts["confidence"]).max() < 1e-4
