"""docs/formats/segment.md is enough to read a store: a reader of its own in Python finds every block that the C code wrote."""
import hashlib
import itertools
import pathlib
import subprocess

import pytest
import segment_reader as reader

BLOCK, BLOCKS = 5000, 40


def block(b):
    return b"".join(hashlib.sha256(f"{b} {i}".encode()).digest() for i in range(-(-BLOCK // 32)))[:BLOCK]


def key(b):
    return hashlib.sha256(f"key {b}".encode()).digest()


@pytest.mark.parametrize("k, m", [(1, 0), (1, 1), (2, 1), (4, 2)])
def test_an_independent_reader(program, tmp_path, k, m):
    writer = pathlib.Path(program).parent / "tests" / "unit" / "kvstore" / "write_store"
    if not writer.exists():
        pytest.skip("the tests' programs aren't built")
    directories = [tmp_path / str(i) for i in range(k + m)]
    for d in directories:
        d.mkdir()
    subprocess.run([writer, str(k), str(m), *directories], check=True, timeout=60)
    blocks, sealed = reader.read_store(directories)
    assert len(sealed) > 1 and sorted(sealed.values()) == [False] + [True] * (len(sealed) - 1)
    assert set(blocks) == {key(b) for b in range(BLOCKS)}
    for b in range(BLOCKS):
        parent, depth, crc, shards, header, bits, tenant = blocks[key(b)]
        assert (bits, tenant) == (b % 3 == 0, 0x11223344)
        assert depth == b and parent == (key(b - 1) if b else bytes(32)) and set(shards) == set(range(k + m))
        assert (header.klass, header.layout, header.block_bytes, header.expires) == (2, bytes([7]) * 32, BLOCK, 1 << 31)
        choices = list(itertools.combinations(shards, k))
        got = reader.decode({d: shards[d] for d in choices[b % len(choices)]}, k, BLOCK)  # any k of them will do
        assert got == block(b) and reader.crc32c(got) == crc
