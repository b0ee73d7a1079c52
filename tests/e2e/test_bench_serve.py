"""deepserve bench serve: every case gives its line; wrong use is refused."""
import json

import pytest


@pytest.fixture(scope="session")
def model(root):
    return root / "tests" / "golden" / "tiny-a" / "model"


def test_cases(deepserve, model, tmp_path):
    trace = tmp_path / "trace"
    trace.write_text("0 20 5\n0.01 300 3\n0.02 1 8\n")
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([(7 * i) % 250 + 3 for i in range(900)]))
    seen = {}
    for args in (("--case", "batch", "--requests", 6, "--concurrency", 3), ("--case", "open", "--trace", trace), ("--case", "open", "--requests", 5, "--rate", 200),
                 ("--case", "turn"), ("--case", "drafts", "--tokens", f"@{ids}"), ("--case", "budget", "--target-tbt", 20000)):
        r = deepserve("bench", "serve", "--model", model, "--json", "--max-tokens", 8, "--prompt-tokens", 30, *args)
        assert r.returncode == 0, r.stderr
        for line in r.stdout.decode().splitlines():
            x = json.loads(line)
            seen.setdefault(x["case"], []).append(x)
            assert x["tokens_s"] > 0 and x["ttft_ms_p50"] > 0
    assert {k: len(v) for k, v in seen.items()} == {"batch": 2, "open": 2, "turn": 1, "drafts": 3, "budget": 1}
    assert seen["turn"][0]["cached_tokens"] > 3000 and seen["turn"][0]["second_pct_of_cold"] < 60
    assert "times_alone" in seen["batch"][1] and "p99_over_budget" in seen["budget"][0]


def test_wrong_use(deepserve, model, tmp_path):
    for args in (("--case", "nonsense"), ("--case", "batch"), ("--requests", 0), ("--tokens", "1,x", "--model", model)):
        r = deepserve("bench", "serve", *args)
        assert r.returncode == 2 and r.stdout == b"" and r.stderr, args
    bad = tmp_path / "bad"
    bad.write_text("0 20\n")
    r = deepserve("bench", "serve", "--model", model, "--case", "open", "--trace", bad)
    assert r.returncode == 1 and b"line 1" in r.stderr
    for text, says in (("0 20 5\n1 99999999 5\n", "line 2: 99999999 + 5 tokens exceed the context"), ("0 20 5\n1e300 5 5\n", "line 2: expected"), ("0 20 0\n", "line 1"), ("", "line 1")):
        bad.write_text(text)
        r = deepserve("bench", "serve", "--model", model, "--case", "open", "--trace", bad)
        assert r.returncode == 1 and r.stdout == b"" and says in r.stderr.decode()
    r = deepserve("bench", "serve", "--model", model, "--case", "batch", "--prompt-tokens", 1 << 20)
    assert r.returncode == 1 and r.stdout == b"" and b"exceed the context" in r.stderr
    r = deepserve("bench", "serve", "--rate", "nan")
    assert r.returncode == 2 and r.stderr.count(b"deepserve bench serve") == 2  # also the way to its help page
