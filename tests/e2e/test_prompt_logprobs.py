"""Log-probabilities of prompts and answers: echo in legacy completions, prompt_logprobs as vLLM has it, the same numbers everywhere, and the requests by which lm-eval's
`local-completions` scores multiple-choice questions, whose scores equal those computed from `deepserve logits`."""
import json

import pytest

np = pytest.importorskip("numpy", reason="numpy isn't installed (make deps)")

from server_lib import Server  # noqa: E402

QUESTIONS = [
    ("The capital of France is", [" Paris", " London", " Rome", " Berlin"]), ("Two plus two is", [" four", " five", " nine"]), ("The sky on a clear day is", [" blue", " green", " red"]),
    ("A cat says", [" meow", " woof", " moo"]), ("A dog says", [" woof", " meow", " quack"]), ("Water freezes to", [" ice", " steam", " sand"]), ("The opposite of hot is", [" cold", " warm", " tall"]),
    ("Bees make", [" honey", " milk", " bread"]), ("The first month of the year is", [" January", " March", " June"]), ("Fish live in", [" water", " trees", " the desert"]),
    ("At night we can see the", [" moon", " sun at noon", " rainbow"]), ("A triangle has", [" three sides", " four sides", " no sides"]), ("Ten minus three is", [" seven", " six", " thirteen"]),
    ("Cows give", [" milk", " wool", " eggs"]), ("Hens lay", [" eggs", " stones", " milk"]), ("The day after Monday is", [" Tuesday", " Sunday", " Friday"]), ("Snow is", [" white", " black", " purple"]),
    ("To cut paper you use", [" scissors", " a spoon", " soup"]), ("Once upon a", [" time", " table", " the"]), ("Größe heißt auf Englisch", [" size", " 🦀", " 日本"]),
]


@pytest.fixture(scope="module", params=["ced", "exact"])
def server(program, root, request):
    with Server(program, root / "models/demo", "--mode", request.param) as s:
        yield s


@pytest.fixture(scope="module")
def rows(deepserve, root, tmp_path_factory):
    """rows(ids): log-softmax of what follows each of the tokens, from `deepserve logits`."""
    folder, known = tmp_path_factory.mktemp("logits"), {}

    def get(ids):
        key = tuple(ids)
        if key not in known:
            done = deepserve("logits", "--model", root / "models/demo", "--tokens", ",".join(map(str, ids)), "--out", folder / "x.npy")
            assert done.returncode == 0, done.stderr
            x = np.load(folder / "x.npy").astype(np.float64)
            known[key] = x - x.max(axis=1, keepdims=True) - np.log(np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        return known[key]

    return get


def complete(server, **body):
    status, _, answer = server.request("POST", "/v1/completions", {"model": "demo", **body})
    assert status == 200, answer
    return answer


def tokens_of(server, text):
    return server.request("POST", "/tokenize", {"prompt": text})[2]["tokens"]


def lm_eval_score(answer, context_length):
    """As lm-eval reads it: sum of the continuation's log-probabilities, and whether it is the greedy one. The last entry is the one new token, or with max_tokens 0 none is."""
    lp = answer["choices"][0]["logprobs"]
    end = -1 if answer["usage"]["completion_tokens"] else None
    pairs = list(zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]))[context_length:end]
    return sum(x for _, x, _ in pairs), all(token == max(top.items(), key=lambda item: item[1])[0] for token, _, top in pairs)


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_lm_eval(server, rows, as_ids, max_tokens):
    bos = [0]
    for question, answers in QUESTIONS:
        context = tokens_of(server, question)
        got, want = [], []
        for text in answers:
            ids = tokens_of(server, question + text)
            assert ids[:len(context)] == context
            answer = complete(server, prompt=(ids if as_ids else question + text), max_tokens=max_tokens, echo=True, logprobs=1, temperature=0)
            got.append(lm_eval_score(answer, len(context)))
            full = ids if as_ids else bos + ids
            lp = rows(full)
            at = range(len(full) - len(ids) + len(context), len(full))
            want.append((sum(lp[i - 1, full[i]] for i in at), all(lp[i - 1].argmax() == full[i] for i in at)))
        assert [g for _, g in got] == [g for _, g in want], question
        assert np.allclose([x for x, _ in got], [x for x, _ in want], rtol=0, atol=2e-4), (question, got, want)
        assert int(np.argmax([x for x, _ in got])) == int(np.argmax([x for x, _ in want]))


def entries(lp):
    return list(zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"], lp["text_offset"]))


@pytest.mark.parametrize("prompt", ["Once upon a time", "", "x", "日本 🦀", [11, 12, 13], [0, 11]], ids=str)
@pytest.mark.parametrize("n", [1, 2])
def test_echo(server, prompt, n):
    body = {"prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 2, "seed": 1, "n": n}
    answer = complete(server, **body)
    ids = prompt if isinstance(prompt, list) else tokens_of(server, prompt)
    with server.connect() as s:
        text = json.dumps({"model": "demo", **body, "stream": True}).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        raw = b"".join(iter(lambda: s.recv(65536), b""))
    chunks = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    for k, choice in enumerate(answer["choices"]):
        lp = choice["logprobs"]
        assert len(lp["tokens"]) >= len(ids) and all(len(lp[x]) == len(lp["tokens"]) for x in ("token_logprobs", "top_logprobs", "text_offset"))
        assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None or not ids
        assert all(x is not None and x <= 0 for x in lp["token_logprobs"][1:])
        assert all(token in top and top[token] == x and 2 <= len(top) <= 3 for token, x, top, _ in entries(lp)[1:])
        if not any(token.startswith("bytes:") for token in lp["tokens"]):
            assert "".join(lp["tokens"]) == choice["text"]
            assert all(choice["text"][at:].startswith(token) for token, _, _, at in entries(lp))
        mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == k]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert sum((entries(c["logprobs"]) for c in mine if c["logprobs"]), []) == entries(lp)


def test_case_01(server, root):
    path = root.parent / "shared/cases/01-echo-logprobs.json"
    if not path.exists():
        pytest.skip(f"{path} isn't there")
    choice = complete(server, **json.loads(path.read_text(encoding="utf-8"))["body"])["choices"][0]
    lp = choice["logprobs"]
    assert len(lp["tokens"]) in (5, 6) and lp["token_logprobs"][0] is None and "".join(lp["tokens"]) == choice["text"]


def check_ranked(listed, ids, lp, top):
    assert len(listed) == len(ids) and listed[0] is None
    for at in range(1, len(ids)):
        entry, row = listed[at], lp[at - 1]
        mine = entry[str(ids[at])]
        assert abs(mine["logprob"] - row[ids[at]]) < 2e-5 and mine["rank"] == 1 + int((row > row[ids[at]]).sum())
        order = np.argsort(-row, kind="stable")[:top]
        assert set(map(int, entry)) == set(order.tolist()) | {ids[at]}


@pytest.mark.parametrize("top", [0, 3])
def test_prompt_logprobs(server, rows, top):
    ids = tokens_of(server, "The fox saw a lantern near the river.")
    answer = complete(server, prompt=[ids, ids[:2]], max_tokens=1, prompt_logprobs=top, n=2, temperature=0)
    assert len(answer["choices"]) == 4
    for k, choice in enumerate(answer["choices"]):
        check_ranked(choice["prompt_logprobs"], ids if k < 2 else ids[:2], rows(ids if k < 2 else ids[:2]), top)
        assert choice["logprobs"] is None
    chat = {"messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}}
    prompt = server.request("POST", "/tokenize", chat)[2]["tokens"]
    status, _, answer = server.request("POST", "/v1/chat/completions", {"model": "demo", "max_tokens": 1, "prompt_logprobs": top, **chat})
    assert status == 200, answer
    check_ranked(answer["prompt_logprobs"], prompt, rows(prompt), top)
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "x"})):
        status, _, answer = server.request("POST", path, {"model": "demo", "stream": True, "prompt_logprobs": 1, **body})
        assert status == 400 and "prompt_logprobs" in answer["error"]["message"]


def test_generate(deepserve, root, rows, tmp_path):
    ids = [11, 12, 13, 14, 300]
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"tokens": ids, "prompt_logprobs": 2, "max_tokens": 2, "n": 2}) + "\n" + json.dumps({"tokens": [7], "prompt_logprobs": 0, "max_tokens": 1}) + "\n")
    done = deepserve("generate", "--model", root / "models/demo", "--input", path, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    lp = rows(ids)
    for line in lines[:2]:
        assert line["prompt_logprobs"][0] is None and [x["id"] for x in line["prompt_logprobs"][1:]] == ids[1:]
        for at, x in enumerate(line["prompt_logprobs"][1:]):
            assert abs(x["logprob"] - lp[at, ids[at + 1]]) < 2e-5 and x["rank"] == 1 + int((lp[at] > lp[at, ids[at + 1]]).sum()) and len(x["top"]) == 2
    assert lines[2]["prompt_logprobs"] == [None]


def test_llm(root, rows):
    deepserve = pytest.importorskip("deepserve", reason="the Python package isn't on the path")
    with deepserve.LLM(str(root / "models/demo")) as llm:
        ids = [11, 12, 13, 14, 300]
        out = llm.generate([{"prompt_token_ids": ids}], deepserve.SamplingParams(max_tokens=1, prompt_logprobs=1))[0]
        lp = rows(ids)
        assert out.prompt_logprobs[0] is None and len(out.prompt_logprobs) == 5
        for at in range(1, 5):
            mine = out.prompt_logprobs[at][ids[at]]
            assert abs(mine.logprob - lp[at - 1, ids[at]]) < 2e-5 and mine.rank == 1 + int((lp[at - 1] > lp[at - 1, ids[at]]).sum())
        assert llm.generate([{"prompt_token_ids": ids}], deepserve.SamplingParams(max_tokens=1))[0].prompt_logprobs is None
