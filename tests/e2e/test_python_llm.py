"""deepserve.LLM against `deepserve generate`: the same ids and text for the same prompts and seeds; samples, logprobs, stops, refusals."""
import base64
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "golden" / "tiny-a" / "model"


@pytest.fixture(scope="module")
def ds(program):
    build = pathlib.Path(program).parent / "src"
    if b"libasan" in subprocess.run(["ldd", program], capture_output=True).stdout and "libasan" not in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("a library with sanitizers needs a program with them")
    os.environ["DEEPSERVE_LIBRARY"] = str(build / "libdeepserve-recipe.so")
    os.environ["DEEPSERVE_ENGINE_LIBRARY"] = str(build / "libdeepserve.so")
    sys.path.insert(0, str(ROOT / "python"))
    import deepserve
    return deepserve


@pytest.fixture(scope="module")
def llm(ds):
    with ds.LLM(MODEL) as opened:
        yield opened


def generated(deepserve, requests, tmp_path, *args):
    f = tmp_path / "in.jsonl"
    f.write_text("".join(json.dumps(r) + "\n" for r in requests))
    r = deepserve("generate", "--model", MODEL, "--input", f, *args)
    assert r.returncode == 0, r.stderr
    return [json.loads(x) for x in r.stdout.decode().splitlines()]


def test_as_the_program(ds, llm, deepserve, tmp_path):
    texts = ["Hi", "abc", "", "wörld 🦀", "x" * 300] * 20
    how = [dict(max_tokens=4 + i % 9, temperature=i % 3 / 2, seed=i, top_k=i % 2 * 40, top_p=0.9, repetition_penalty=1.1) for i in range(len(texts))]
    want = generated(deepserve, [dict(h, prompt=t) for t, h in zip(texts, how)], tmp_path)
    got = llm.generate(texts, [ds.SamplingParams(**h) for h in how])
    assert [o.prompt for o in got] == texts and all(o.finished for o in got)
    assert [o.outputs[0].token_ids for o in got] == [w["ids"] for w in want]
    assert [o.outputs[0].text for o in got] == [w["text"] for w in want]
    assert [o.outputs[0].finish_reason for o in got] == [w["finish_reason"] for w in want]
    assert [len(o.prompt_token_ids) for o in got] == [w["usage"]["prompt_tokens"] for w in want]
    assert len({o.request_id for o in got}) == len(texts)


@pytest.mark.parametrize("mode, dtype, act", [("exact", "float32", "f32"), ("ced", "bfloat16", "bf16")])
def test_modes(ds, deepserve, tmp_path, mode, dtype, act):
    ids = [0] + [(7 * i) % 250 + 3 for i in range(140)]
    want = generated(deepserve, [{"tokens": ids, "max_tokens": 8, "seed": 3}], tmp_path, "--mode", mode, "--act", act)[0]
    with ds.LLM(MODEL, mode=mode, dtype=dtype, threads=1, speculate=2, max_num_seqs=1) as llm:
        for given in (dict(prompts=ids), dict(prompt_token_ids=[ids]), dict(prompts=[{"prompt_token_ids": ids}])):
            o = llm.generate(sampling_params=ds.SamplingParams(max_tokens=8, seed=3), **given)[0]
            assert o.outputs[0].token_ids == want["ids"] and o.prompt_token_ids == ids and o.prompt is None


def test_samples_and_logprobs(ds, llm, deepserve, tmp_path):
    want = generated(deepserve, [{"prompt": "ab", "max_tokens": 5, "seed": 7, "n": 3, "logprobs": 2}], tmp_path)
    o = llm.generate("ab", ds.SamplingParams(n=3, max_tokens=5, seed=7, logprobs=2))[0]
    assert [x.token_ids for x in o.outputs] == [w["ids"] for w in want] and [x.index for x in o.outputs] == [0, 1, 2]
    for x, w in zip(o.outputs, want):
        assert len(x.logprobs) == len(x.token_ids)
        for id, got, line in zip(x.token_ids, x.logprobs, w["logprobs"]):
            assert abs(got[id].logprob - line["logprob"]) < 1e-5 and 2 <= len(got) <= 3
            assert sorted(r for i, r in ((i, v.rank) for i, v in got.items()) if r) == [1, 2]
            assert got[id].decoded_token == llm.tokenizer.bytes(id).decode("utf-8", "replace")
        assert abs(x.cumulative_logprob - sum(p[i].logprob for i, p in zip(x.token_ids, x.logprobs))) < 1e-4
    plain = llm.generate("ab", ds.SamplingParams(max_tokens=5))[0].outputs[0]
    assert plain.logprobs is None and plain.cumulative_logprob is None


def test_stops(ds, llm, deepserve, tmp_path):
    whole = llm.generate("abc", ds.SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))[0].outputs[0]
    id = whole.token_ids[5]
    o = llm.generate("abc", ds.SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, stop_token_ids=[id]))[0].outputs[0]
    assert o.token_ids == whole.token_ids[:whole.token_ids.index(id)] and o.finish_reason == "stop" and o.stop_reason == id
    texts = {k: llm.generate("abc", ds.SamplingParams(max_tokens=30, seed=k))[0].outputs[0].text for k in range(30)}
    seed, text, stop = next((k, t, t[i:i + 2]) for k, t in texts.items() for i in range(4, len(t) - 2) if "\ufffd" not in t[i:i + 2])
    want = generated(deepserve, [{"prompt": "abc", "max_tokens": 30, "seed": seed, "stop": [stop, "zzzz"]}], tmp_path)[0]
    o = llm.generate("abc", ds.SamplingParams(max_tokens=30, seed=seed, stop=["zzzz", stop]))[0].outputs[0]
    assert o.text == want["text"] == text[:text.index(stop)] and o.token_ids == want["ids"]
    assert o.finish_reason == "stop" and o.stop_reason == stop
    o = llm.generate("abc", ds.SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, stop_token_ids=[id], min_tokens=40))[0].outputs[0]
    assert len(o.token_ids) == 40 and id not in o.token_ids and o.finish_reason == "length"
    o = llm.generate("abc", ds.SamplingParams(max_tokens=None, seed=1, ignore_eos=True, logit_bias={9: 1000.0}))[0]
    assert o.outputs[0].finish_reason == "length" and set(o.outputs[0].token_ids) == {9}
    assert len(o.prompt_token_ids) + len(o.outputs[0].token_ids) == llm.max_model_len


def test_token_rules(ds, llm):
    def ids(**how):
        return llm.generate("Hi", ds.SamplingParams(temperature=0, max_tokens=12, **how))[0].outputs[0]

    free = ids()
    at = next(i for i in range(2, 12) if free.token_ids[i] not in free.token_ids[:i])
    stop = free.token_ids[at]
    assert ids(stop_token_ids=[stop]).token_ids == free.token_ids[:at]
    kept = ids(stop_token_ids=[stop], include_stop_str_in_output=True)
    assert kept.token_ids == free.token_ids[:at + 1] and kept.stop_reason == stop and free.text.startswith(kept.text)
    assert set(ids(allowed_token_ids=free.token_ids[:2]).token_ids) <= set(free.token_ids[:2])
    id, word = next((x, w.decode()) for x in free.token_ids for w in [llm.tokenizer.bytes(x)] if w.isalnum() and llm.tokenizer.encode(w) == [x])
    assert id not in ids(bad_words=[word]).token_ids
    text = free.text[3:5]
    assert ids(stop=text).text == free.text[:free.text.index(text)]
    assert ids(stop=text, include_stop_str_in_output=True).text == free.text[:free.text.index(text) + len(text)]
    assert ids(stop=text, min_tokens=12).token_ids == free.token_ids
    whole = llm.generate([[5, 6, 7]], ds.SamplingParams(temperature=0))[0]
    cut = llm.generate([[9, 9, 5, 6, 7]], ds.SamplingParams(temperature=0, truncate_prompt_tokens=3))[0]
    assert cut.prompt_token_ids == [5, 6, 7] and cut.outputs[0].token_ids == whole.outputs[0].token_ids
    for wrong in (dict(allowed_token_ids=[]), dict(allowed_token_ids=[1 << 20]), dict(bad_words="a"), dict(bad_words=[""]), dict(truncate_prompt_tokens=0)):
        with pytest.raises(ds.Error, match=next(iter(wrong))):
            ids(**wrong)


def test_structured_outputs(ds, llm, deepserve, tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"], "additionalProperties": False}
    forms = [{"regex": "[a-c]{2,4}"}, {"choice": ["red", "green"]}, {"json": schema}, {"json": json.dumps(schema)}, {"grammar": 'root ::= "a" root | "b"'}, {"grammar": 'start: "a"~2..3'}]
    how = [dict(max_tokens=60, seed=i, structured_outputs=f) for i, f in enumerate(forms)]
    want = generated(deepserve, [dict(h, prompt="q") for h in how], tmp_path)
    got = llm.generate(["q"] * len(how), [ds.SamplingParams(**h) for h in how])
    assert [o.outputs[0].token_ids for o in got] == [w["ids"] for w in want] and [o.outputs[0].text for o in got] == [w["text"] for w in want]
    texts = [o.outputs[0].text for o in got]
    assert set(texts[0]) <= set("abc") and texts[1] in ("red", "green") and texts[5] in ("aa", "aaa")
    samples = llm.generate("q", ds.SamplingParams(n=3, seed=1, max_tokens=60, structured_outputs=ds.StructuredOutputsParams(regex="[0-9]{3}")))[0].outputs
    assert all(len(o.text) == 3 and o.text.isdigit() for o in samples)
    one = llm.chat([{"role": "user", "content": "q"}], ds.SamplingParams(max_tokens=60), structured_outputs={"choice": ["yes", "no"]})[0].outputs[0]
    assert one.text in ("yes", "no")
    both = [llm.chat([{"role": "user", "content": "q"}], ds.SamplingParams(max_tokens=60, seed=1, structured_outputs={"choice": ["yes", "no"]}), **body)[0] for body in ({}, {"thinking": {"type": "enabled"}})]
    assert both[0].outputs[0].text in ("yes", "no"), "nobody asked for a thought"
    assert both[1].prompt != both[0].prompt and both[1].outputs[0].text.partition("</think>")[2] in ("", "yes", "no")
    for wrong, says in (({"regex": "(?=a)"}, "look-ahead"), ({"regex": "a", "choice": ["b"]}, "already"), ({"frob": 1}, "needs one of"), ("a", "expected StructuredOutputsParams")):
        with pytest.raises(ds.Error, match=says):
            llm.generate("q", ds.SamplingParams(structured_outputs=wrong))


def test_closed_with_a_constraint_in_work(ds):
    with ds.LLM(MODEL, threads=1) as opened:
        with pytest.raises(ds.Error):  # the second one; the first is in the engine then
            opened.generate(["a", [10**6]], ds.SamplingParams(max_tokens=500, structured_outputs={"regex": "a*"}))


def test_chat(ds, llm, deepserve, tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    want = generated(deepserve, [{"messages": messages, "max_tokens": 6, "seed": 4}], tmp_path)[0]
    two = llm.chat([messages, messages], ds.SamplingParams(max_tokens=6, seed=4))
    one = llm.chat(messages, ds.SamplingParams(max_tokens=6, seed=4))
    assert [o.outputs[0].token_ids for o in one + two] == [want["ids"]] * 3 and "Hi" in one[0].prompt
    with pytest.raises(ds.ApiError):
        llm.chat([{"role": "nobody", "content": "Hi"}])


def test_pictures(ds, llm, deepserve, tmp_path):
    """As generate has them; also when the engine still reads what an interrupted call lent it."""
    def messages(*names):
        urls = ["data:image/png;base64," + base64.b64encode((ROOT / "tests" / "golden" / "image" / name).read_bytes()).decode() for name in names]
        return [{"role": "user", "content": [{"type": "text", "text": "What?"}, *({"type": "image_url", "image_url": {"url": u}} for u in urls)]}]

    talks = [messages("rgb8.png"), messages("gray8.png", "rgb8.png"), messages("rgb8.png")]
    want = generated(deepserve, [{"messages": m, "max_tokens": 12, "temperature": 0, "n": 2} for m in talks], tmp_path)
    for _ in range(2):
        got = llm.chat(talks, ds.SamplingParams(max_tokens=12, temperature=0, n=2))
        assert [o.token_ids for x in got for o in x.outputs] == [x["ids"] for x in want]
        assert [len(x.prompt_token_ids) for x in got] == [x["usage"]["prompt_tokens"] for x in want[::2]] and not llm._lent
    with pytest.raises(ds.Error, match="max_tokens"):
        llm.chat([talks[0], talks[1]], [ds.SamplingParams(max_tokens=200), ds.SamplingParams(max_tokens=0)])
    assert llm.generate("a", ds.SamplingParams(max_tokens=2))[0].finished
    with pytest.raises(ds.ApiError, match="not a JPEG"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}]}])


@pytest.mark.parametrize("params, says", [
    (dict(temperature=-1), "temperature"), (dict(top_p=0), "top_p"), (dict(n=0), "n:"), (dict(n=999), "n: 999"), (dict(max_tokens=0), "max_tokens"),
    (dict(max_tokens=-3), "max_tokens"), (dict(min_tokens=17), "min_tokens: 17"), (dict(min_tokens=-1), "min_tokens"), (dict(stop_token_ids=[99999]), "99999"),
    (dict(temperature="1"), "temperature: expected a number"), (dict(top_p=None), "top_p"), (dict(presence_penalty=float("nan")), "presence"), (dict(seed="x"), "seed"),
    (dict(stop=[5]), "stop: expected"), (dict(stop=5), "stop: expected"), (dict(logit_bias=[1]), "logit_bias: expected a dict"), (dict(logit_bias={5: "x"}), "logit_bias"),
    (dict(logprobs=21), "top"), (dict(stop=[""]), "stop"), (dict(stop_token_ids=list(range(100))), "stop"),
    (dict(repetition_penalty=0), "repetition"), (dict(logit_bias={1 << 31: 1.0}), "bias")])
def test_refusals(ds, llm, params, says):
    with pytest.raises(ds.Error) as e:
        llm.generate(["a", "b"], ds.SamplingParams(**params))
    assert says in str(e.value) and e.value.code == "arg" and "prompts[0]" in str(e.value)


def test_numbers_of_numpy(ds, llm):
    np = pytest.importorskip("numpy")
    ids, how = [0, 5, 9], dict(max_tokens=4, temperature=0.5, seed=3, logit_bias={7: 0.5})
    as_numpy = {k: {np.int64(7): np.float32(0.5)} if k == "logit_bias" else (np.int64 if isinstance(v, int) else np.float32)(v) for k, v in how.items()}
    plain = llm.generate(prompt_token_ids=ids, sampling_params=ds.SamplingParams(**how))[0].outputs[0].token_ids
    assert llm.generate(prompt_token_ids=list(np.array(ids)), sampling_params=ds.SamplingParams(**as_numpy))[0].outputs[0].token_ids == plain


def test_other_refusals(ds, llm, tmp_path):
    for ids in ([99999], [-1], [1.5, 2]):
        with pytest.raises(ds.Error, match=r"prompts\[1\].*vocabulary"):
            llm.generate([[0, 5], ids])
    with pytest.raises(ds.Error):
        llm.generate([0] * (llm.max_model_len + 1))
    for call in (dict(), dict(prompts="a", prompt_token_ids=[1]), dict(prompts=[5.5]), dict(prompts=5), dict(prompts="a", sampling_params=5)):
        with pytest.raises(TypeError):
            llm.generate(**call)
    with pytest.raises(ValueError):
        llm.generate(["a", "b"], [ds.SamplingParams()])
    for how in (dict(mode="fast"), dict(dtype="int8"), dict(kernels="mmx"), dict(max_model_len=1 << 30), dict(speculate=-2), dict(threads=-1), dict(max_num_seqs=9999)):
        with pytest.raises(ds.Error):
            ds.LLM(MODEL, **how)
    with pytest.raises(ds.Error):
        ds.LLM(tmp_path)
    closed = ds.LLM(MODEL)
    closed.close()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        closed.generate("a")
    assert llm.generate([]) == [] and len(llm.generate("still there")[0].outputs[0].token_ids) <= 16


def test_interrupted_and_threads(ds, llm, monkeypatch):
    """An exception between two polls leaves nothing that the next call could mistake for its own."""
    how = ds.SamplingParams(max_tokens=20, temperature=0)
    want = [o.outputs[0].token_ids for o in llm.generate(["a", "b", "c"], how)]
    taken = llm._take

    def interrupted(*args):
        taken(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x"] * 100, ds.SamplingParams(max_tokens=100))
    monkeypatch.undo()
    got = [None] * 4
    threads = [threading.Thread(target=lambda k=k: got.__setitem__(k, [o.outputs[0].token_ids for o in llm.generate(["a", "b", "c"], how)])) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 4
