"""Stored responses when the disk is full, and after a crash."""
import json
import resource
import signal

import pytest

from server_lib import Server, make_model

LIMIT = 300 << 10  # bytes of a file, as on a full disk


@pytest.fixture(scope="module")
def model(program, root, tmp_path_factory):
    return make_model(program, root, tmp_path_factory.mktemp("store") / "model")


def ask(s, text, **more):
    status, _, r = s.request("POST", "/v1/responses", {"model": "m", "input": text, **more})
    assert status == 200, r
    return r["id"]


def said(s, text, streamed):
    """Id of the answer and whether it says that it is stored."""
    status, _, r = s.request("POST", "/v1/responses", {"model": "m", "input": text, "stream": streamed})
    assert status == 200, r
    if streamed:
        r = next(json.loads(line[6:]) for line in reversed(r.decode().split("\n")) if line.startswith("data: {"))["response"]
    return r["id"], r["store"]


def test_full_disk_and_crash(program, model, tmp_path):
    answer, db = [{"text": "x</think>Hello.", "repeat": True}], tmp_path / "r.db"
    with Server(program, model, "--context", 4096, "--responses-db", db, replay=answer, folder=tmp_path) as s:
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
        answers = [said(s, "a" * 3000, i % 2 == 1) for i in range(120)]  # all of them are answered
        ids = [id for id, _ in answers]
        failed = s.metrics()["stored_responses_failed_total"]
        assert 0 < failed < 120 and s.metrics()["stored_responses"] == 120 - failed
        there = [i for i in ids if s.request("GET", f"/v1/responses/{i}")[0] == 200]
        assert len(there) == 120 - failed and there == [id for id, stored in answers if stored]
        assert s.request("POST", "/v1/responses", {"model": "m", "input": "b", "previous_response_id": ids[-1]})[2]["error"]["code"] == "previous_response_not_found"
        assert ask(s, "b", store=False)
        s.process.send_signal(signal.SIGKILL)
        s.process.wait()
    assert sum("full" in line or "disk" in line or "I/O" in line for line in s.log) >= failed
    with Server(program, model, "--responses-db", db, replay=answer, folder=tmp_path) as s:
        assert [i for i in ids if s.request("GET", f"/v1/responses/{i}")[0] == 200] == there
        assert s.request("GET", f"/v1/responses/{ask(s, 'c')}")[0] == 200
