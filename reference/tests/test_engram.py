import types

import numpy as np
import pytest

pytest.importorskip("torch")
import refdata        # noqa: E402,F401
from dsref import engram, synth       # noqa: E402

REAL = types.SimpleNamespace(engram_layer_ids=[1, 14], engram_max_ngram_size=4, engram_vocab_size=16000000, engram_n_heads=8,
                             engram_compressed_vocab_size=99092)


def test_primes_and_multipliers_of_the_released_model():
    p = engram.primes(REAL)
    assert p.sum(1).tolist() == [384006168, 384016682]
    assert p[0, :3].tolist() == [16000057, 16000079, 16000081] and p[1, -1] == 16000889
    assert engram.multipliers(REAL).tolist() == [[76632096046245, 4839876093313, 35959672319349, 73987337458391],
                                                 [67716810739261, 51510806800915, 30921347202721, 82619226485591]]


def test_hash_vectors():
    t = engram.Tables.__new__(engram.Tables)
    t.cfg, t.primes, t.multipliers, t.pad = REAL, engram.primes(REAL), engram.multipliers(REAL), 2
    t.offsets = engram.offsets(t.primes)
    want = [[(9400104, 24924096, 42335591, 382122658), (1326936, 22120929, 40011923, 378628807), (12517458, 31476119, 47746026, 382374170)],
            [(11315085, 19412660, 45130897, 379075217), (5403109, 26519290, 42262171, 378588994), (15304368, 29517117, 40176349, 378309230)]]
    for layer in (0, 1):
        ids = t.ids(layer, [10, 20, 30, 40, 0, 60], [False] * 4 + [True, False])
        for p, w in zip((0, 3, 5), want[layer]):
            assert tuple(ids[p, [0, 1, 2, 23]]) == w
        assert (t.ids(layer, [10, 20, 30, 40, 0, 60], [False] * 4 + [True, False], first=3) == ids[3:]).all()


def test_normalisation():
    same = [("The", "the"), ("É", "e"), ("e\u0301", "e"), ("ﬁ", "fi"), (" the\n", "the"), ("  \t\n", " "), ("Ａ", "a"), ("½", "1⁄2"), ("\u3000x", "x")]
    for text, key in same:
        assert engram.normalise(text) == key
    assert engram.normalise("\u0301") == "\u0301"       # empty: the original text
    assert engram.normalise("\x0b") == "\x0b"
    assert engram.normalise("\u00a0") == " "            # NFKC makes it a space
    assert engram.normalise("\x1c") == "\x1c"           # not White_Space


def test_tiny_tokenizer_classes():
    m = engram.token_map(synth.tokenizer(300), 300)
    assert m.max() + 1 == 300 - 29 and m[3 + ord("A")] == m[3 + ord("a")] and m[3 + 9] == m[3 + 32]
    assert (np.diff(m[np.sort(np.unique(m, return_index=True)[1])]) == 1).all()     # numbered by first appearance
