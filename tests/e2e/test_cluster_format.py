"""The messages of docs/formats/cluster.md and frame.md, by a client that knows nothing else."""
import hashlib
import json
import signal
import socket
import struct
import subprocess

import pytest

from conftest import ROOT
from segment_reader import crc32c

MODEL = ROOT / "models" / "demo"
HELLO, WELCOME, REFUSED, ADD, CANCEL, FINISH, EVENTS, STATS, DRAINING, TAKE, PART, NOTHING, FORGET, PING = 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 18, 19, 65535
LEAVES, COMES = 64, 128
START, TOKEN, END, PROMPT = range(4)


def frame(kind, payload=b"", request=0, epoch=0, flags=0):
    head = b"DSFR" + struct.pack("<HHIIQQQQQI", 1, kind, flags, len(payload), request, 0, epoch, 0, 0, crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def read(s, n):
    out = b""
    while len(out) < n:
        piece = s.recv(n - len(out))
        if not piece:
            raise EOFError(out)
        out += piece
    return out


def message(s):
    """(type, request, epoch, payload) of the next one that says something."""
    whole = b""
    while True:
        head = read(s, 64)
        version, kind, flags, n, request, _, epoch, _, _, crc = struct.unpack("<HHIIQQQQQI", head[4:60])
        assert head[:4] == b"DSFR" and version == 1 and struct.unpack("<I", head[60:])[0] == crc32c(head[:60])
        payload = read(s, n)
        assert crc32c(payload) == crc
        if kind == PING:
            continue
        whole += payload
        if not flags >> 31:
            return kind, request, epoch, whole


def model(config=None):
    return struct.pack("<I", 3) + hashlib.sha256((MODEL / "tokenizer.json").read_bytes()).digest() + (config or hashlib.sha256((MODEL / "config.json").read_bytes()).digest())


def ids(list_):
    return struct.pack(f"<I{len(list_)}i", len(list_), *list_)


def request(prompt, max_tokens, output=(), bits=0, where=b""):
    nothing = struct.pack("<I", 0)
    return (struct.pack("<9I2Q6d", bits, max_tokens, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0) + 2 * struct.pack("<2I", 0, 0) + ids(prompt) + ids(output)
            + 6 * nothing + nothing + where)


def events(payload):
    at = 0

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, payload, at)
        at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    while at < len(payload):
        kind, sample, request = take("IIQ")
        if kind == START:
            yield kind, sample, request, take("IIIQ")
        elif kind == END:
            yield kind, sample, request, take("IiiIIIIIIQQQI")
        else:
            token = take("iIIfIQI")
            yield kind, sample, request, token, [take("if") for _ in range(token[-1])]


@pytest.fixture(scope="module")
def engine(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "e"
    process = subprocess.Popen([program, "engine", "--model", str(MODEL), "--listen", f"unix:{path}", "--memory", "300MiB"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline() == f"listening on unix:{path}\n"
    yield str(path)
    process.send_signal(signal.SIGTERM)
    process.stdout.close()
    assert process.wait(60) == 0


def connect(path):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect(path)
    return s


def answer(s, number, epoch, body):
    s.sendall(frame(ADD, body, number, epoch))
    out = []
    while True:
        kind, _, of, payload = message(s)
        assert of == epoch and kind in (EVENTS, STATS)
        for ev in events(payload) if kind == EVENTS else ():
            assert ev[1] == 0 and ev[2] == number
            if ev[0] == TOKEN:
                out.append(ev[3][:2])
            elif ev[0] == END:
                return out, ev[3]


def test_an_answer(program, engine):
    prompt = [0, 300, 301, 302, 303]
    wanted = json.loads(subprocess.run([program, "generate", "--model", str(MODEL), "--tokens", ",".join(map(str, prompt)), "--temperature", "0", "--max-tokens", "20", "--ignore-eos", "--json"],
                                       capture_output=True, text=True, check=True).stdout)["ids"]
    with connect(engine) as s:
        s.sendall(frame(HELLO, model()))
        kind, _, epoch, payload = message(s)
        how = struct.unpack_from("<I", payload, 100)[0]
        assert kind == WELCOME and epoch and payload[:68] == model() and any(payload[68:100])
        assert payload[104:104 + how].endswith(b" f32") and struct.unpack_from("<2I", payload, 104 + how) == (0, 1)
        got, end = answer(s, 7, epoch, request(prompt, 20))
        assert got == list(zip(wanted, range(20))) and end[0] == 2 and end[-1] == 1  # at its limit, and no other sample is left
        got, _ = answer(s, 8, epoch, request(prompt, 20, wanted[:6]))  # behind what another engine said
        assert got == list(zip(wanted, range(20)))[6:]
        got, end = answer(s, 9, epoch, request(prompt, 0))  # refused after all
        assert not got and end[:2] == (5, -2)


def part(s, ticket, epoch, at, n):
    s.sendall(frame(TAKE, struct.pack("<QQ", at, n), ticket, epoch))
    while True:
        kind, of, _, payload = message(s)
        if kind not in (EVENTS, STATS):
            assert of == ticket
            return kind, payload


def test_a_sequence_that_leaves(program, engine):
    prompt = [0] + [300 + i % 90 for i in range(299)]
    with connect(engine) as s, connect(engine) as other:
        for c in (s, other):
            c.sendall(frame(HELLO, model()))
            epoch = message(c)[2]
        wanted, _ = answer(s, 1, epoch, request(prompt, 20))
        begun, end = answer(s, 2, epoch, request(prompt, 20, bits=LEAVES))
        ticket = end[-2]
        assert 0 < len(begun) < 20 and begun == wanted[:len(begun)] and end[0] == 3 and ticket
        kind, payload = part(other, ticket, epoch, 0, 1 << 20)
        n_record, n_blocks, at = struct.unpack_from("<3Q", payload)
        whole = payload[24:]
        assert kind == PART and at == 0 and len(whole) == min(n_record + n_blocks, 1 << 20)
        while len(whole) < n_record + n_blocks:
            whole += part(other, ticket, epoch, len(whole), 1 << 20)[1][24:]
        record, tokens = whole[:n_record], [id_ for id_, _ in begun]
        assert record[:8] == b"DSKVHAND" and hashlib.sha256(record[:-32]).digest() == record[-32:]
        assert struct.unpack_from("<4I", record, 48) == (300, len(tokens), 300 + len(tokens) - 1, 2) and n_blocks % 2 == 0 and n_blocks
        assert list(struct.unpack_from(f"<{300 + len(tokens)}i", record, 128)) == prompt + tokens
        where = struct.pack("<2I", 1, len(f"unix:{engine}")) + f"unix:{engine}".encode() + struct.pack("<2Q", epoch, ticket)
        got, end = answer(s, 3, epoch, request(prompt, 20, tokens, COMES, where))  # the same engine takes it back
        assert begun + got == wanted and end[0] == 2
        assert part(other, ticket, epoch, 0, 1)[0] == NOTHING  # it has forgotten
        got, end = answer(s, 4, epoch, request(prompt, 20, tokens, COMES, where))
        assert not got and end[0] == 6
        ticket = answer(s, 5, epoch, request(prompt, 20, bits=LEAVES))[1][-2]
        assert part(other, ticket, epoch, 0, 1)[0] == PART
        s.sendall(frame(FORGET, b"", ticket, epoch))
        while part(other, ticket, epoch, 0, 1)[0] != NOTHING:
            pass
        ticket = answer(s, 6, epoch, request(prompt, 20, bits=LEAVES))[1][-2]
        assert part(other, ticket, epoch, 1 << 40, 1)[1][24:] == b""
        s.close()  # its tickets go with it
        while part(other, ticket, epoch, 0, 1)[0] != NOTHING:
            pass


@pytest.mark.parametrize("first", [frame(ADD, request([1], 1), 1), frame(HELLO), frame(HELLO, model()[:-1]), b"GET / HTTP/1.1\r\n\r\n" + bytes(64), frame(HELLO, model(bytes(32)))])
def test_strangers(engine, first):
    with connect(engine) as s:
        s.sendall(first)
        try:
            kind, _, _, why = message(s)
            assert kind == REFUSED and (b"config.json" in why or b"version" in why or b"HELLO" in why), why
            message(s)
        except (EOFError, ConnectionResetError):
            return
        pytest.fail("still there")


def test_what_ends_a_connection(engine):
    good = request([1, 2, 3], 4)
    for bad in [lambda e: frame(ADD, good[:-1], 1, e), lambda e: frame(ADD, good, 1, e + 1), lambda e: frame(77, b"", 1, e), lambda e: frame(FINISH, b"x", 1, e), lambda e: frame(TAKE, bytes(16), 1, e),
                lambda e: frame(FORGET, b"x", 1, e), lambda e: frame(ADD, request([1, 2], 4, [3], LEAVES | COMES, bytes(24)), 1, e),
                lambda e: frame(PING, b"x", 0, e), lambda e: frame(ADD, good, 1, e, 1 << 31) + frame(CANCEL, b"", 1, e), lambda e: 2 * frame(ADD, request([1, 2, 3], 4000), 1, e)]:
        with connect(engine) as s:
            s.sendall(frame(HELLO, model()))
            epoch = message(s)[2]
            s.sendall(bad(epoch))
            with pytest.raises((EOFError, ConnectionResetError)):
                while True:
                    message(s)
    with connect(engine) as s:  # and nobody else is disturbed
        s.sendall(frame(HELLO, model()))
        assert len(answer(s, 1, message(s)[2], good)[0]) > 0
