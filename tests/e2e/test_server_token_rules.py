"""Members of vLLM's API that say which tokens end an answer, are allowed or forbidden, and where prompts begin and end: the same with drafts and without, streamed
or not, for every sample."""
import json

import pytest

from server_lib import Server

PROMPT = "Once upon a time there was"


@pytest.fixture(scope="module", params=["off", "3"])
def server(program, root, request):
    with Server(program, root / "models/demo", "--threads", 1, "--speculate", request.param, "--thinking", "off", "--context", 512) as s:
        yield s


def post(server, path, body):
    status, _, answer = server.request("POST", path, {"model": "demo", **body})
    assert status == 200, answer
    return answer


def complete(server, **body):
    """The body of an answer; streamed it comes to the same."""
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, **body}
    whole = post(server, "/v1/completions", body)
    if "prompt_logprobs" in body:
        return whole
    text = post(server, "/v1/completions", {**body, "stream": True}).decode()
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]
        if body.get("logprobs") is not None:
            assert [t for c in mine if c["logprobs"] for t in c["logprobs"]["tokens"]] == choice["logprobs"]["tokens"]
    return whole


def tokens(server, text):
    return post(server, "/tokenize", {"prompt": text})["tokens"]


def refused(server, member, path="/v1/completions", **body):
    status, _, answer = server.request("POST", path, {"model": "demo", **({"prompt": "x"} if path.endswith("/completions") and "messages" not in body else {}), **body})
    assert status == 400 and answer["error"]["param"].split("[")[0] == member, answer
    return answer["error"]["message"]


@pytest.fixture(scope="module")
def plain(server):
    """An answer and its tokens."""
    answer = complete(server, logprobs=0)["choices"][0]
    names = answer["logprobs"]["tokens"]
    assert "".join(names) == answer["text"] and len(names) == 24
    return names


def id_of(server, name):
    ids = tokens(server, name)
    assert len(ids) == 1
    return ids[0]


def test_stop_token_ids(server, plain):
    at = next(i for i in range(6, 24) if plain[i] not in plain[:i])
    id = id_of(server, plain[at])
    answer = complete(server, stop_token_ids=[id], logprobs=0)
    assert answer["choices"][0]["text"] == "".join(plain[:at]) and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["logprobs"]["tokens"] == plain[:at]
    assert answer["usage"]["completion_tokens"] == at + 1
    with_it = complete(server, stop_token_ids=[id], include_stop_str_in_output=True, logprobs=2)
    assert with_it["choices"][0]["logprobs"]["tokens"] == plain[:at + 1] and with_it["choices"][0]["text"] == "".join(plain[:at + 1])
    assert with_it["usage"]["completion_tokens"] == at + 1
    later = complete(server, stop_token_ids=[id], min_tokens=at + 3, logprobs=0)["choices"][0]["logprobs"]["tokens"]
    assert plain[at] not in later[:at + 3]
    several = complete(server, stop_token_ids=[id], n=3)
    assert [c["text"] for c in several["choices"]] == ["".join(plain[:at])] * 3
    chat = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "max_tokens": 20}
    text = post(server, "/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    stops = tokens(server, text)
    cut = post(server, "/v1/chat/completions", {**chat, "stop_token_ids": [stops[3]]})["choices"][0]["message"]["content"]
    assert text.startswith(cut) and len(cut) < len(text)
    assert "no token 999999" in refused(server, "stop_token_ids", stop_token_ids=[999999])
    refused(server, "stop_token_ids", stop_token_ids=["a"])
    refused(server, "stop_token_ids", stop_token_ids=list(range(49)))


def test_allowed_token_ids(server):
    allowed = [id_of(server, t) for t in (" a", " the", ".")]
    for seed in range(3):
        answer = complete(server, allowed_token_ids=allowed, temperature=1, seed=seed, max_tokens=12, logprobs=0, n=2)
        for choice in answer["choices"]:
            assert set(choice["logprobs"]["tokens"]) <= {" a", " the", "."} and len(choice["logprobs"]["tokens"]) == 12 and choice["finish_reason"] == "length"
    assert "must not be empty" in refused(server, "allowed_token_ids", allowed_token_ids=[])
    assert "no token" in refused(server, "allowed_token_ids", allowed_token_ids=[999999])
    status, _, answer = server.request("POST", "/v1/completions", {"model": "demo", "prompt": "x", "allowed_token_ids": [allowed[2]], "bad_words": ["."]})
    assert status == 400 and "forbids them all" in answer["error"]["message"]


def test_bad_words(server, plain):
    word = plain[5].strip()
    assert word
    free = complete(server, bad_words=[word], logprobs=0)["choices"][0]["logprobs"]["tokens"]
    assert free[:5] == plain[:5] and free[5] != plain[5] and plain[5] not in free
    # a phrase of several tokens, spelled as the model does: only where all of it stands is the last one forbidden
    at = next(i for i in range(2, 20) if plain[i][0] == " " and tokens(server, "".join(plain[i:i + 3])) == [t for name in plain[i:i + 3] for t in tokens(server, name)])
    phrase = "".join(plain[at:at + 3]).lstrip(" ")
    other = complete(server, bad_words=[phrase], logprobs=0)["choices"][0]["logprobs"]["tokens"]
    assert other[:at + 2] == plain[:at + 2] and other[at + 2] != plain[at + 2]
    for choice in complete(server, bad_words=[word, phrase], n=2, temperature=1, seed=4)["choices"]:
        assert phrase not in choice["text"]
    refused(server, "bad_words", bad_words=[""])
    refused(server, "bad_words", bad_words=[1])
    refused(server, "bad_words", bad_words="a")


def test_stop_strings(server, plain):
    text = "".join(plain)
    stop = text[20:26]
    first = text.index(stop)
    assert complete(server, stop=stop)["choices"][0]["text"] == text[:first]
    kept = complete(server, stop=stop, include_stop_str_in_output=True, logprobs=0)["choices"][0]
    assert kept["text"] == text[:first + len(stop)] and kept["finish_reason"] == "stop"
    assert "".join(kept["logprobs"]["tokens"]).startswith(kept["text"])
    ends, end = [], 0
    for name in plain:
        end += len(name)
        ends.append(end)
    n = next(i for i, e in enumerate(ends) if e >= first + len(stop)) + 1  # the token that completes it
    assert complete(server, stop=stop, min_tokens=n - 1)["choices"][0]["text"] == text[:first]
    assert complete(server, stop=stop, min_tokens=n)["choices"][0]["text"].startswith(text[:first + len(stop)])


def test_truncate_prompt_tokens(server):
    words = tokens(server, " one two three four five six seven eight")
    assert len(words) > 5
    whole = complete(server, prompt=words[-4:], logprobs=0, echo=True)
    cut = complete(server, prompt=words, truncate_prompt_tokens=4, logprobs=0, echo=True)
    assert cut["usage"]["prompt_tokens"] == 4 and cut["choices"] == whole["choices"]
    assert complete(server, prompt=" one two three four five six seven eight", truncate_prompt_tokens=4, logprobs=0, echo=True)["choices"] == whole["choices"]
    assert complete(server, prompt=words, truncate_prompt_tokens=400)["usage"]["prompt_tokens"] == len(words)
    assert complete(server, prompt=[words[0]] * 2000, truncate_prompt_tokens=-1, max_tokens=5)["usage"]["prompt_tokens"] == 511
    refused(server, "truncate_prompt_tokens", truncate_prompt_tokens=0)
    refused(server, "truncate_prompt_tokens", truncate_prompt_tokens=-2)


def test_where_the_prompt_ends(server):
    chat = {"messages": [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "The answer is"}], "temperature": 0, "max_tokens": 8}
    prefix = {**chat, "messages": [chat["messages"][0], {**chat["messages"][1], "prefix": True}]}
    answer = post(server, "/v1/chat/completions", {**chat, "continue_final_message": True, "add_generation_prompt": False})
    assert answer["choices"] == post(server, "/v1/chat/completions", prefix)["choices"]
    assert answer["usage"]["prompt_tokens"] == post(server, "/v1/chat/completions", prefix)["usage"]["prompt_tokens"]
    user = {"messages": chat["messages"][:1], "temperature": 0, "max_tokens": 2}
    bare = post(server, "/v1/chat/completions", {**user, "add_generation_prompt": False})
    assert bare["usage"]["prompt_tokens"] == post(server, "/v1/chat/completions", user)["usage"]["prompt_tokens"] - 2
    path = "/v1/chat/completions"
    refused(server, "add_generation_prompt", path, **chat, continue_final_message=True, add_generation_prompt=True)
    refused(server, "continue_final_message", path, **user, continue_final_message=True)
