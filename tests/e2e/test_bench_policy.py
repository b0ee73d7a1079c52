"""deepserve bench policy: a line for each balancer; wrong use is refused."""
import json


def test_lines(deepserve):
    r = deepserve("bench", "policy", "--engines", 80, "--decisions", 200, "--json")
    assert r.returncode == 0 and not r.stderr
    lines = [json.loads(line) for line in r.stdout.splitlines()]
    assert [x["decision"] for x in lines] == ["prefill", "prefill-deal", "decode", "vision"]
    for x in lines:
        assert x["engines"] == 80 and x["decisions"] == 200 and 0 < x["ns_p50"] <= x["ns_p99"]
    r = deepserve("bench", "policy", "--engines", 1, "--decisions", 100)
    assert r.returncode == 0 and r.stdout.count(b"goal") == 4


def test_wrong_use(deepserve):
    for args in (("--engines", 0), ("--decisions", 1), ("word",)):
        r = deepserve("bench", "policy", *args)
        assert r.returncode == 2 and r.stdout == b"" and r.stderr, args
