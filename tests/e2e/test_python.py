"""The Python package against the program: the same prompts, ids, events; pictures; errors; the pieces that only the package has."""
import base64
import gc
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "golden" / "image"
TOKENIZER = ROOT / "tests" / "golden" / "tiny-a" / "model" / "tokenizer.json"
D = "｜DSML｜"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
OUTPUT = f"plan\n</think>\n\nOk 🦀\n\n<{D} calls>\n<{D} invoke name=\"f\">\n<{D} parameter name=\"a\" string=\"true\">x\"y</{D} parameter>\n</{D} invoke>\n</{D} calls>"


@pytest.fixture(scope="module")
def ds(program):
    os.environ["DEEPSERVE_LIBRARY"] = str(pathlib.Path(program).parent / "src" / "libdeepserve-recipe.so")
    sys.path.insert(0, str(ROOT / "python"))
    import deepserve
    return deepserve


@pytest.fixture(scope="module")
def tokenizer(ds):
    return ds.Tokenizer(TOKENIZER)


def chat(content="Hi", **more):
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


def data_url(name):
    return "data:image/png;base64," + base64.b64encode((SAMPLES / name).read_bytes()).decode()


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def test_tokenizer(ds, tokenizer, deepserve):
    text = "Hello wörld 🦀 <｜User｜>\n\n"
    ids = json.loads(deepserve("tokenize", "--tokenizer", TOKENIZER, stdin=text.encode()).stdout)
    assert tokenizer.encode(text) == tokenizer.encode(text.encode()) == ids
    assert tokenizer.encode_batch([text, "", "a"]) == [ids, [], tokenizer.encode("a")]
    assert tokenizer.decode(ids) == text.encode()
    assert ds.Tokenizer.parse(TOKENIZER.read_bytes()).encode(text) == ids
    d, out = tokenizer.decoder(), []
    for i in ids:
        out.append(d.push(i))
    assert "".join(out) + d.finish() == text and all(len(x.encode()) != 2 or x == "ö" for x in out)
    crab = tokenizer.encode("🦀")
    assert [d.push(i) for i in crab[:-1]] == [""] * (len(crab) - 1) and d.push(crab[-1]) == "🦀" and d.n_tokens == len(crab)
    d.push(crab[0])
    assert d.finish(replace=True) == "\ufffd"
    user = tokenizer.control("<｜User｜>")
    assert tokenizer.kind(user) == "control" and tokenizer.bytes(user).decode() == "<｜User｜>" and tokenizer.control("<none>") is None
    assert tokenizer.kind(0) == "dropped" and tokenizer.kind(10 ** 6) == "unknown" and tokenizer.bytes(10 ** 6) == b""
    classes, n = tokenizer.engram_map()
    assert len(classes) == tokenizer.size and max(classes) == n - 1
    with pytest.raises(ds.Error) as e:
        ds.Tokenizer("/nonexistent")
    assert e.value.code == "io" and "No such file" in str(e.value)
    with pytest.raises(ds.Error) as e:
        ds.Tokenizer.parse("{}")
    assert e.value.code == "format"


def test_threads_share_a_tokenizer(tokenizer):
    texts = [f"text number {i} " * 50 for i in range(40)]
    want, got = [tokenizer.encode(t) for t in texts], {}

    def work(k):
        got[k] = [tokenizer.encode(t) for t in texts]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(got[k] == want for k in range(4))


@pytest.mark.parametrize("protocol, body", [
    ("chat", chat(tools=[TOOL], stop=["x"])),
    ("chat", chat([image(data_url("rgb8.png")), {"type": "text", "text": "What?"}])),
    ("responses", {"model": "m", "input": "Hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}}),
    ("messages", {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}),
    ("completions", {"model": "m", "prompt": "once"}),
])
def test_render_is_the_commands(ds, tokenizer, deepserve, protocol, body):
    for args, how in (((), {}), (("--tokenizer", TOKENIZER), {"tokenizer": tokenizer})):
        done = deepserve("render", "--protocol", protocol, *args, stdin=json.dumps(body).encode())
        assert done.returncode == 0, done.stdout
        assert ds.render(body, protocol, **how) == json.loads(done.stdout)
    assert ds.render(json.dumps(body), protocol)["prompt"] == ds.render(json.dumps(body).encode(), protocol)["prompt"]


def test_refusals(ds, deepserve):
    for protocol, body in (("chat", {"model": "m"}), ("messages", {"model": "m", "messages": [{"role": "x", "content": "a"}]})):
        done = deepserve("render", "--protocol", protocol, stdin=json.dumps(body).encode())
        with pytest.raises(ds.ApiError) as e:
            ds.Request(body, protocol)
        assert e.value.json() == json.loads(done.stdout) and e.value.status == 400 and e.value.code == "format"
    with pytest.raises(ds.ApiError) as e:
        ds.Request("{")
    assert "line 1" in e.value.message
    with pytest.raises(ds.ApiError) as e:
        ds.render(chat([image(data_url("rgb8.png")[:-200])]))
    assert e.value.param == "messages[0].content[0].image_url.url"
    with pytest.raises(ds.Error) as e:
        ds.Options(nope=1)
    assert e.value.code == "arg" and "nope" in str(e.value)
    for wrong in (lambda: ds.Options("v5"), lambda: ds.Request({}, "soap"), lambda: ds.Seal(b"short")):
        with pytest.raises(ValueError):
            wrong()


def test_options(ds):
    assert any(line.startswith("keep_all=") for line in ds.Options.help())
    assert ds.render(chat(reasoning_effort="low"), encoding="v4")["prompt"] == "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>"
    body = {"model": "m", "messages": [{"role": "x"}]}
    with pytest.raises(ds.ApiError) as e:
        ds.Request(body, "messages", ds.Options(openai_errors=True))
    assert "type" not in e.value.json()


@pytest.mark.parametrize("protocol, body", [
    ("chat", chat(tools=[TOOL], stream=True)),
    ("responses", {"model": "m", "input": "Hi", "stream": True, "tools": [{"type": "function", **TOOL["function"]}]}),
    ("messages", {"model": "m", "stream": True, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}],
                  "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}]}),
])
def test_streams_are_the_commands(ds, tokenizer, deepserve, tmp_path, protocol, body):
    f = tmp_path / "request.json"
    f.write_text(json.dumps(body))
    args = ("parse", "--protocol", protocol, "--request", f, "--prompt-tokens", 20, "--cached-tokens", 12)
    assert ds.parse(OUTPUT, body, protocol, prompt_tokens=20, cached_tokens=12) == json.loads(deepserve(*args, stdin=OUTPUT.encode()).stdout)
    want = [json.loads(x) for x in deepserve(*args, "--stream", "--split", 7, stdin=OUTPUT.encode()).stdout.decode().split("\n")[:-1]]
    s, data = ds.Request(body, protocol).stream(), OUTPUT.encode()
    events = s.ready(20, 12)
    for i in range(0, len(data), 7):
        events += s.text(data[i:i + 7])
    events += s.finish()
    assert [e.json() if protocol == "chat" else {"event": e.name, "data": e.json()} for e in events] == want
    assert s.finish_reason() == "tool_calls" and s.choices == 1 and s.usage.prompt_tokens == 20 and s.usage.cached_tokens == 12
    wire = b"".join(e.sse() for e in events) + ds.sse_end(protocol)
    assert wire.endswith(b"data: [DONE]\n\n" if protocol == "chat" else b"\n\n") and wire.count(b"data: ") >= len(events)
    ids = tokenizer.encode("plan") + [tokenizer.control("</think>")] + tokenizer.encode("Ok 🦀")
    told = ds.parse(ids, body, protocol, tokenizer=tokenizer)
    assert "Ok 🦀" in json.dumps(told, ensure_ascii=False) and "plan" in json.dumps(told)


def test_log_probabilities_and_failure(ds, tokenizer):
    s = ds.Request(chat(stream=True, logprobs=True, top_logprobs=2, thinking={"type": "disabled"})).stream(tokenizer=tokenizer)
    a, b = tokenizer.encode("ab")
    events = s.ready(5) + s.token(a, logprob=-0.5, top=[(a, -0.5), (b, -1.25)])
    entry = events[-1].json()["choices"][0]["logprobs"]["content"][0]
    assert entry["token"] == "a" and entry["logprob"] == -0.5 and [t["token"] for t in entry["top_logprobs"]] == ["a", "b"]
    assert s.fail("no more")[-1].json()["error"]["message"] == "no more"
    with pytest.raises(ds.Error):
        s.text("x")


def test_what_was_asked_for(ds, deepserve, tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "disabled"},
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    for text, says in (('{"a": 1}', None), ('{"a": "1"}', "$.a: expected integer, got string"), ("{}", "'a' is missing")):
        s = ds.Request(body).stream()
        s.text(text)
        with pytest.raises(ds.Error):
            s.check()
        s.finish()
        assert s.check() is None if says is None else says in s.check()
        f = tmp_path / "request.json"
        f.write_text(json.dumps(body))
        r = deepserve("parse", "--request", f, stdin=text.encode())
        assert r.returncode == 0 and json.loads(r.stdout) and (r.stderr == b"" if says is None else says in r.stderr.decode())


def test_callbacks(ds):
    key = bytes(range(32))
    body = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "cat"}]}]}
    r = ds.Request(body, "responses", files={"cat": ("image/png", (SAMPLES / "rgb8.png").read_bytes())}.__getitem__, seal=ds.Seal(key))
    assert r.images()[0].format == "PNG"
    with pytest.raises(ds.ApiError) as e:
        ds.Request(body, "responses", files={}.__getitem__).images(1)
    assert e.value.status == 404

    def broken(id):
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        ds.Request(body, "responses", files=broken).images(1)
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [pdf]}]}
    seen = []
    assert "the text" in ds.Request(body, "messages", documents=lambda *a: seen.append(a) or "the text").render()["prompt"]
    assert seen == [("application/pdf", b"AAAA")]
    with pytest.raises(ds.ApiError, match="too long"):
        def refuse(*a):
            raise ValueError("too long")
        ds.Request(body, "messages", documents=refuse)
    first = ds.Request({"model": "m", "input": "Who?"}, "responses")
    s = first.stream(id="resp-1")
    s.text("me</think>I am.")
    s.finish()
    record = json.dumps({"items": first.items() + s.items()})
    stored = {"resp-1": record}.get
    follow = {"model": "m", "input": "And?", "previous_response_id": "resp-1"}
    assert "I am." in ds.Request(follow, "responses", stored=stored).render()["prompt"]
    with pytest.raises(ds.ApiError):
        ds.Request(dict(follow, previous_response_id="resp-2"), "responses", stored=stored)


def test_pictures(ds, tokenizer):
    data = (SAMPLES / "rgb8.png").read_bytes()
    p = ds.image_decode(data)
    want = (SAMPLES / "rgb8.png.rgb").read_bytes()
    assert (p.width, p.height, p.rgb) == (11, 7, want[4:])
    whole, small = ds.image_prepare(data), ds.image_prepare(data, size_only=True)
    assert whole.layout == small.layout == ds.image_layout(11, 7) and small.pixels is None
    assert whole.digest == ds.image_prepare(p).digest and len(whole.digest) == 32
    n = 3 * whole.patch ** 2
    values = whole.patches()
    flat = values.tobytes()
    assert len(flat) == 4 * whole.n_h * whole.n_w * n
    tiny = ds.image_prepare(data, rule={"max_tokens": 64, "min_pixels": 1764})
    assert tiny.layout.fitted_w == 56 and tiny.n_w == 4
    assert ds.image_layout(10000, 158, max_wh_ratio=3.0)[2:4] == (952, 322)
    assert p.resize(11, 7).rgb == p.rgb and len(p.resize(5, 20).rgb) == 300
    for wrong, code in ((lambda: ds.image_decode(b"BM"), "format"), (lambda: ds.image_decode(data, max_side=10), "format"),
                        (lambda: p.resize(0, 1), "arg"), (lambda: ds.image_layout(0, 1), "arg")):
        with pytest.raises(ds.Error) as e:
            wrong()
        assert e.value.code == code
    with pytest.raises(TypeError):
        ds.image_decode(data, max_everything=1)
    r = ds.Request(chat([image(data_url("rgb8.png")), {"type": "text", "text": "q"}]))
    picture, = r.images()
    out = r.render(tokenizer)
    placeholder = tokenizer.control("<｜deepseek_image｜>")
    assert out["ids"].count(placeholder) == 1 and out["prompt_tokens"] == len(out["ids"]) + picture.layout.tokens - 1
    assert r.expand_images(out["ids"], placeholder).count(placeholder) == picture.layout.tokens
    with pytest.raises(ValueError):
        r.expand_images([1, 2], placeholder)


def test_arrays(ds):
    numpy = pytest.importorskip("numpy")
    p = ds.image_prepare((SAMPLES / "lossy.webp").read_bytes())
    patches, pixels, s = p.patches(), p.array, p.patch
    assert patches.shape == (p.n_h * p.n_w, 3 * s * s) and pixels.shape == (p.layout.fitted_h, p.layout.fitted_w, 3)
    x = ((pixels.astype(numpy.float32) / numpy.float32(255) - numpy.float32(0.5)) / numpy.float32(0.5))
    x = x.reshape(p.n_h, s, p.n_w, s, 3).transpose(0, 2, 4, 1, 3).reshape(p.n_h * p.n_w, -1)
    assert numpy.abs(patches - x).max() <= 1 / 256 and not (patches.view(numpy.uint32) & 0xFFFF).any()


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = SAMPLES / self.path.strip("/")
        self.send_response(200 if name.is_file() else 404)
        self.end_headers()
        if name.is_file():
            self.wfile.write(name.read_bytes())

    def log_message(self, *a):
        pass


def test_fetch(ds):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        at = f"http://127.0.0.1:{server.server_port}/"
        good, gone = ds.fetch([at + "rgb8.png", at + "nothing"], allow_private=True)
        assert good.data == (SAMPLES / "rgb8.png").read_bytes() and good.status == 0
        assert gone.data is None and gone.status == 400 and "404" in gone.reason
        assert ds.fetch([at + "rgb8.png"])[0].reason == "the address isn't public"
        r = ds.Request(chat([image(at + "rgb8.png"), image(data_url("gray1.png"))]))
        assert [p and p.format for p in r.images(skip_urls=True)] == [None, "PNG"]
        assert [p.format for p in r.images(fetch={"allow_private": True})] == ["PNG", "PNG"]
        with pytest.raises(ds.ApiError, match="isn't public"):
            r.images()
    finally:
        server.shutdown()
        server.server_close()


def test_objects_may_go_in_any_order(ds):
    s = ds.Request(chat()).stream(tokenizer=ds.Tokenizer(TOKENIZER))
    gc.collect()
    s.token(100)
    s.finish()
    picture = ds.Request(chat([image(data_url("rgb8.png"))])).images()[0]
    gc.collect()
    assert len(picture.pixels) == picture.layout.fitted_w * picture.layout.fitted_h * 3


def test_installed(ds, program, tmp_path):
    """pip install, with the library inside the package, used from elsewhere."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "--target", str(tmp_path / "site")]
    try:
        import setuptools
        if int(setuptools.__version__.split(".")[0]) < 61:
            pytest.skip("setuptools is older than 61")
        if int(setuptools.__version__.split(".")[0]) < 70:  # later ones make wheels by themselves
            import wheel  # noqa: F401
    except ImportError as missing:
        pytest.skip(f"no {missing.name}")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("no pip")
    source = tmp_path / "python"
    subprocess.run(["cp", "-r", str(ROOT / "python"), str(source)], check=True)
    for library in ("libdeepserve-recipe.so", "libdeepserve.so"):
        subprocess.run(["cp", str(pathlib.Path(program).parent / "src" / library), str(source / "deepserve")], check=True)
    done = subprocess.run([*pip, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    env = {k: v for k, v in os.environ.items() if k not in ("DEEPSERVE_LIBRARY", "DEEPSERVE_ENGINE_LIBRARY")}
    code = ("import deepserve; print(deepserve.__file__, deepserve.render({'model': 'm', 'messages': [{'role': 'user', 'content': 'Hi'}]}, encoding='v4')['prompt'])\n"
            f"with deepserve.LLM({str(TOKENIZER.parent)!r}) as llm: print(len(llm.generate('Hi', deepserve.SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids), 'tokens')")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=dict(env, PYTHONPATH=str(tmp_path / "site")), capture_output=True, text=True)
    assert str(tmp_path / "site") in done.stdout and "<｜User｜>Hi" in done.stdout and "3 tokens" in done.stdout, done.stderr


def test_wrong_library(program):
    code = "import deepserve"
    for path, says in (("/nonexistent.so", "isn't found"), ("libm.so.6", "another version")):
        done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, DEEPSERVE_LIBRARY=path, PYTHONPATH=str(ROOT / "python")), capture_output=True, text=True)
        assert done.returncode == 1 and "ImportError" in done.stderr and says in done.stderr
