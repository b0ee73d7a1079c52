"""deepserve sim: examples and documentation, determinism, wrong files, and the balancer against plainer rules on request logs."""
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

TRACES = {"conversation": ("mooncake_conversation_trace.jsonl", "mooncake"), "code": ("azure_llm_2023_code.csv", "azure"), "chat": ("azure_llm_2023_conv.csv", "azure")}


def test_documentation_shows_what_it_prints(root, program):
    r = subprocess.run([sys.executable, root / "tools/planning.py", "--check"], env={**os.environ, "DEEPSERVE": program}, capture_output=True)
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()


def test_every_example_runs_and_is_the_same_again(root, deepserve):
    files = sorted((root / "examples").glob("sim-*.yaml"))
    assert files
    for f in files:
        a, b = (deepserve("sim", f, "--json") for _ in range(2))
        assert a.returncode == 0 and a.stdout == b.stdout
        x = json.loads(a.stdout)
        assert x["requests"]["arrived"] == sum(x["requests"][k] for k in ("done", "failed", "live"))
        assert x["tokens"]["prompt"] == x["tokens"]["hit"] + x["tokens"]["computed"]
        assert sum(row[0] for row in x["timeline"]["bins"]) == x["requests"]["arrived"]
        assert deepserve("sim", f, "--json", "--seed", 99).stdout != a.stdout


def test_pictures(root, deepserve, tmp_path):
    """Each is XML that stands alone; the page has all of them."""
    page, folder = tmp_path / "page.html", tmp_path / "pictures"
    r = deepserve("sim", root / "examples/sim-server.yaml", "--html", page, "--svg", folder)
    assert r.returncode == 0 and r.stdout == deepserve("sim", root / "examples/sim-server.yaml").stdout
    names = {f.name for f in folder.iterdir()}
    assert names == {n + ".svg" for n in ("requests", "answers", "live", "instances", "times", "hits", "first-token", "front", "price", "store")}
    assert sorted(f.name for f in tmp_path.iterdir()) == ["page.html", "pictures"]
    html = page.read_text()
    assert html.count("<svg ") == len(names) and "<script" not in html and html.count("http") == html.count("http://www.w3.org/2000/svg")
    assert r.stdout.decode().splitlines()[3].replace("&", "&amp;") in html
    for f in folder.iterdir():
        svg = xml.etree.ElementTree.parse(f).getroot()
        texts = ["".join(t.itertext()) for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        assert len(texts) > 5 and f.read_text() in html and not re.search(r"\b(nan|inf)\b", f.read_text())
    for args in (("--html", tmp_path / "none/page.html"), ("--svg", page), ("--svg", tmp_path / "a/b")):
        r = deepserve("sim", root / "examples/sim-server.yaml", *args)
        assert r.returncode == 1 and r.stdout == b"" and r.stderr.count(b"\n") == 1


def test_names_are_escaped(deepserve, tmp_path):
    f = tmp_path / "a.yaml"
    f.write_text("duration: 5 s\nmachines: {m: {step: 2 ms}}\ninstances: [{role: mixed, machine: m, count: 1}]\nstore: {}\n"
                 "load: [{name: '<b>&\"', rate: 1 /s, input: 9 tokens, output: 2 tokens}]\n")
    r = deepserve("sim", f, "--svg", tmp_path / "p", "--json")
    assert r.returncode == 0 and json.loads(r.stdout)["loads"][0]["name"] == '<b>&"'
    assert '<b>&"' in "".join(xml.etree.ElementTree.parse(tmp_path / "p/hits.svg").getroot().itertext())


def test_measured_steps(deepserve, tmp_path):
    (tmp_path / "gpu.jsonl").write_text("".join(json.dumps({"sequences": n, "rows": n * k, "context": c, "us": 2000 + 30 * n * k}) + "\n" for n in (1, 8, 64) for k in (1, 6) for c in (0, 4000)))
    f = tmp_path / "a.yaml"
    f.write_text("duration: 60 s\nmachines: {m: {steps: gpu.jsonl}}\ninstances: [{role: mixed, machine: m, count: 1}]\nload: [{name: x, rate: 1 /s, input: 99 tokens, output: 20 tokens}]\n")
    x = json.loads(deepserve("sim", f, "--json").stdout)
    assert x["instances"][0]["measured_steps"] == 12 and not x["instances"][0]["predicted"] and abs(x["times_ms"]["gap"]["p50"] - 2.03) < 0.3
    assert b"machine m (fitted to 12 measured steps, at most " in deepserve("sim", f).stdout
    (tmp_path / "gpu.jsonl").write_text("{}\n")
    r = deepserve("sim", f)
    assert r.returncode == 1 and r.stdout == b"" and b"gpu.jsonl: row 1: sequences" in r.stderr


PLAN = """duration: 200 s
machines: {{m: {{row: 1 ms, price: 2 /h}}, d: {{step: 10 ms, price: 1 /h}}}}
instances:
  - {{role: prefill, machine: m, count: 1, prompts: 1}}
  - {{role: decode, machine: d, count: 1, requests: 10}}
load: [{{name: x, rate: {rate} /s, input: 100 tokens, output: 101 tokens}}]
objective: {{first_token: 1 s, gap: 30 ms}}
plan: {{good: 99 %, failures: {failures}, most: 20}}
"""


def test_plan_finds_the_fewest(deepserve, tmp_path):
    """A prompt takes 0.1 s and an answer a seat for a second: 25 requests a second need 3 ranks for prompts, and seats on 3. With one less either falls behind."""
    f, page = tmp_path / "a.yaml", tmp_path / "page.html"
    f.write_text(PLAN.format(rate=25, failures=0))
    r = deepserve("plan", f, "--json", "--html", page)
    assert r.returncode == 0 and not r.stderr
    x = json.loads(r.stdout)
    assert x["deployment"]["instances"] == {"prefill": 3, "decode": 3} and x["deployment"]["price_h"] == 9 and x["deployment"]["good"] >= 0.99
    less = {v["if"]: v["is"]["good"] for v in x["variants"]}
    assert less["1 less for prefill"] < 0.99 and less["1 less for decode"] < 0.99 and less["1 more for decode"] >= 0.99
    assert r.stdout == deepserve("plan", f, "--json").stdout and page.read_text().count("<svg ") == 5
    f.write_text(PLAN.format(rate=25, failures=2))
    x = json.loads(deepserve("plan", f, "--json").stdout)
    assert x["deployment"]["instances"] == {"prefill": 5, "decode": 5} and x["needed"]["instances"] == {"prefill": 3, "decode": 3}
    text = deepserve("plan", f).stdout.decode()
    assert "deployment  5 prefill on m, 5 decode on d; needed are 3 prefill" in text and "(as given): step 0 us, row 1000 us" in text


def test_plan_that_is_impossible(deepserve, tmp_path):
    f = tmp_path / "a.yaml"
    f.write_text(PLAN.format(rate=400, failures=0))
    r = deepserve("plan", f)
    assert r.returncode == 1 and r.stdout == b"" and r.stderr.count(b"\n") == 1
    assert re.search(rb"20 instances of each role aren't enough: \d+\.\d\d % of answers .* instead of 99\.00 %; first token p99 \S+ s of 1 s", r.stderr)
    text = PLAN.format(rate=5, failures=0)
    for old, new, says in (("plan: ", "plans: ", b"a.yaml:8:1: 'plans': no key of the file; did you mean plan?"), ("plan: {good: 99 %, failures: 0, most: 20}\n", "", b"a.yaml: plan is missing"),
                           ("objective: {first_token: 1 s, gap: 30 ms}\n", "", b"a.yaml:7:1: plan: there is no objective"), ("good: 99 %, ", "", b"a.yaml:8:1: plan: good is missing"),
                           ("most: 20", "most: 9000", b"a.yaml:8:1: plan: most, 9000, makes 18000 ranks")):
        f.write_text(text.replace(old, new))
        r = deepserve("plan", f)
        assert r.returncode == 1 and r.stdout == b"" and says in r.stderr, r.stderr
    for args in ((), (f, f), (f, "--seed", 3)):
        assert deepserve("plan", *args).returncode == 2


def test_wrong_files(deepserve, tmp_path):
    f = tmp_path / "a.yaml"
    f.write_text("machines: {m: {step: 2}}\ninstances: []\nload: []\n")
    r = deepserve("sim", f)
    assert r.returncode == 1 and r.stdout == b"" and b"a.yaml:1:16: step: '2', expected a number with a unit: " in r.stderr
    f.write_text("machines: {m: {step: 2 ms}}\ninstances: [{role: mixed, machine: m, count: 1}]\nload: [{name: x, trace: t.csv, form: azure}]\n")
    r = deepserve("sim", f)
    assert r.returncode == 1 and r.stdout == b"" and b"t.csv" in r.stderr
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1,1\n2023-11-16 18:17:03.96,1,1\n")
    r = deepserve("sim", f)
    assert r.returncode == 1 and r.stdout == b"" and b"t.csv: row 3: its time lies before" in r.stderr
    r = deepserve("sim", tmp_path / "none.yaml")
    assert r.returncode == 1 and r.stdout == b""
    for args in ((), (f, f), (f, "--seed", -2), (f, "--sed", 3)):
        r = deepserve("sim", *args)
        assert r.returncode == 2 and r.stdout == b"" and r.stderr, args


def traced(root, deepserve, tmp_path, trace, **more):
    name, form = TRACES[trace]
    path = root.parent / "shared/traces" / name
    if not path.exists():
        pytest.skip(f"no {path}")
    keys = {"row": "20 us", "count": 4, "rule": "balanced", "store": "{}", **more}
    f = tmp_path / "t.yaml"
    f.write_text(f"""machines:
  p: {{step: 300 us, row: {keys["row"]}, row_context: 100 ps, row_row: 100 ps}}
  d: {{step: 1 ms}}
instances:
  - {{role: prefill, machine: p, count: {keys["count"]}, prompts: 1}}
  - {{role: decode, machine: d, count: 8, requests: 1024}}
store: {keys["store"]}
balance: {{prefill: {keys["rule"]}}}
load: [{{name: x, trace: {path}, form: {form}}}]
""")
    r = deepserve("sim", f, "--json")
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def test_hits_on_the_conversation_trace(root, deepserve, tmp_path):
    """As its readme says: 37.36 % of the input with an unbounded cache, with an exact LRU of so many blocks less; requests that overlap cost a little."""
    block = 512 * 890
    x = traced(root, deepserve, tmp_path, "conversation", row="1 us")
    assert x["requests"]["done"] == 12031 and x["tokens"]["done_output"] // 12031 == 342
    assert x["tokens"]["prompt"] // 12031 == 12035 and 0.365 < x["hit_share"] < 0.374
    for blocks, share in ((5000, 0.114), (10000, 0.216), (30000, 0.332), (50000, 0.362)):
        x = traced(root, deepserve, tmp_path, "conversation", row="1 us", store=f"{{capacity: {blocks * block} B}}")
        assert abs(x["hit_share"] - share) < 0.01


@pytest.mark.parametrize("trace", TRACES)
def test_balance_on_traces(root, deepserve, tmp_path, trace):
    """The slowest rank has at most 1.10 of the mean work, and less than under round robin and least requests, at every load."""
    busy = []
    for row in {"conversation": (10, 60, 140, 270), "code": (50, 250, 600, 1300), "chat": (50, 250, 600, 1150)}[trace]:
        by = {rule: traced(root, deepserve, tmp_path, trace, row=f"{row} us", rule=rule, count=8)["instances"][0] for rule in ("balanced", "turns", "least")}
        slowest = {rule: x["slowest_over_mean"] for rule, x in by.items()}
        busy.append(by["balanced"]["busy"])
        assert slowest["balanced"] <= 1.10 and slowest["balanced"] < min(slowest["turns"], slowest["least"]), (row, busy, slowest)
    assert busy[0] < 0.1 and busy[-1] > 0.8, busy


def test_policies_exist_once(root):
    """What sim and production decide with is one function: each that src/policy and kv/hit.h declare has one definition, and sim calls it."""
    sources = {p: p.read_text() for p in sorted((root / "src").glob("**/*.c"))}
    simulation = "".join(text for p, text in sources.items() if p.parent.name == "sim")
    for header in [*sorted((root / "src/policy").glob("*.h")), root / "src/kv/hit.h"]:
        declared = set(re.findall(r"^[a-z][^\n;{}=]*?\b(ds_\w+)\(", header.read_text(), re.M))
        assert declared
        for name in declared:
            where = [p for p, text in sources.items() if re.search(rf"^[a-z][^\n;]*\b{name}\([^;{{]*\)\n\{{", text, re.M)]
            assert len(where) == 1 or (not where and "static inline" in header.read_text()), (name, where)
    for name in ("ds_prefill_choose", "ds_prefill_deal", "ds_prefill_work_us", "ds_decode_choose", "ds_chunk_rows", "ds_spec_choose", "ds_queue_before", "ds_hit_find",
                 "ds_instance_next", "ds_cost_of", "ds_live_add"):
        assert name + "(" in simulation
