"""deepserve bench: a JSON object for each case; what it refuses."""
import json

FIELDS = {"op", "variant", "shape", "act", "threads", "reps", "ns_med", "ns_p95", "ns_best"}


def lines(r):
    assert r.returncode == 0, r.stderr
    return [json.loads(line) for line in r.stdout.decode().splitlines()]


def test_json(deepserve):
    cases = lines(deepserve("bench", "mhc", "--json", "--time", "5ms", "--threads", 2))
    assert {c["threads"] for c in cases} == {1, 2}
    for c in cases:
        assert FIELDS <= set(c) and c["op"] == "mhc"
        assert 0 < c["ns_best"] <= c["ns_med"] <= c["ns_p95"]
        assert c["gflop_s"] > 0 and c["roof"] > 0 and c["roof_of"]
        assert abs(c["roof_pct"] - 100 * c["gflop_s"] / c["roof"]) < 0.5


def test_bytes_and_pool(deepserve):
    cases = lines(deepserve("bench", "pool", "--json", "--time", "5ms", "--threads", 2))
    assert [c["threads"] for c in cases] == [2] and "roof" not in cases[0]
    cases = lines(deepserve("bench", "mhc", "--json", "--time", "1ms", "--threads", 1, "--kernels", "ref"))
    assert {c["variant"] for c in cases} == {"ref"}


def test_table(deepserve):
    r = deepserve("bench", "mhc", "--time", "5ms", "--threads", 1)
    assert r.returncode == 0 and r.stdout.startswith(b"op ") and b" % of " in r.stdout


def test_refusals(deepserve):
    for args, status, part in [(["nothing"], 2, b"no op 'nothing'"), (["mhc", "gemv"], 2, b""), (["--kernels", "mmx"], 2, b""), (["--threads", "0"], 2, b"")]:
        r = deepserve("bench", *args)
        assert r.returncode == status and r.stdout == b"" and part in r.stderr, (args, r)
    r = deepserve("bench", "pool", "--kernels", "amx", "--time", "1ms")
    assert r.returncode in (0, 1)
    if r.returncode == 1:
        assert r.stdout == b"" and b"this CPU lacks" in r.stderr
