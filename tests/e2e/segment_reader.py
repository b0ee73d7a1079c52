"""An independent reader of docs/formats/segment.md: a store's directories to the blocks in them. Nothing of it is shared with the C code."""
import json
import pathlib
import struct

ALIGN = 4096


def _table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


TABLE = _table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def crc_around(data):
    """Of data whose own CRC stands at 8."""
    return crc32c(data[:8] + bytes(4) + data[12:])


def mul(a, b):
    p = 0
    while b:
        p ^= a if b & 1 else 0
        a = a << 1 ^ (0x11D if a & 0x80 else 0)
        b >>= 1
    return p


INVERSE = [0] * 256
PRODUCT = [[mul(a, b) for b in range(256)] for a in range(256)]
for a in range(1, 256):
    INVERSE[a] = PRODUCT[a].index(1)


def u32(data, at):
    return struct.unpack_from("<I", data, at)[0]


def u64(data, at):
    return struct.unpack_from("<Q", data, at)[0]


class Header:
    def __init__(self, data):
        assert data[:8] == b"DSKVSEG1" and u32(data, 8) == crc_around(data[:128]) and u32(data, 12) == 1 and data[116:4096] == bytes(4096 - 116)
        self.store, self.segment, self.generation = data[16:32], u64(data, 32), u64(data, 40)
        self.device, (self.k, self.m) = u32(data, 48), struct.unpack_from("<HH", data, 52)
        self.klass, self.block_bytes, self.begun, self.expires = u32(data, 56), u32(data, 60), u64(data, 64), u64(data, 72)
        self.layout, self.shard_bytes = data[80:112], u32(data, 112)
        assert self.shard_bytes == 64 * -(-self.block_bytes // (64 * self.k))


def up(n, to):
    return -(-n // to) * to


def extents(data, header):
    """(offset, parent, depth, [(key, crc, bits, tenant)], [shard]) one after the other, up to the first that isn't right."""
    at = ALIGN
    while data[at:at + 8] == b"DSKVEXT1":
        n = u32(data, at + 12)
        size = 128 + 48 * n
        head = data[at:at + size]
        if not 1 <= n <= 64 or u32(head, 8) != crc_around(head) or (u64(head, 16), u64(head, 24), u64(head, 32)) != (header.segment, header.generation, at):
            return
        blocks = [(head[128 + 48 * i:160 + 48 * i], u32(head, 160 + 48 * i), u32(head, 164 + 48 * i), u32(head, 76)) for i in range(n)]
        shards = []
        for i, (key, crc, bits, _) in enumerate(blocks):
            assert bits in (0, 1)
            p = at + up(size, 64) + i * (64 + header.shard_bytes)
            record, shard = data[p:p + 64], data[p + 64:p + 64 + header.shard_bytes]
            assert u32(record, 60) == crc32c(record[:60]) and u32(record, 52) == crc32c(shard)
            assert record[:32] == key and (u64(record, 32), u64(record, 40), u32(record, 48), u32(record, 56)) == (
                header.segment, header.generation, crc, header.device)
            shards.append(shard)
        yield at, head[40:72], u32(head, 72), blocks, shards
        at = up(at + up(size, 64) + n * (64 + header.shard_bytes), ALIGN)


def footer(data, header):
    """[(key, parent, offset, block of the extent, blocks of it, depth, crc, bits, tenant)], or None when the file has none."""
    if len(data) % ALIGN or data[-16:-8] != b"DSKVTAIL":
        return None
    foot = data[u64(data, len(data) - 8):]
    n = u64(foot, 32)
    assert foot[:8] == b"DSKVEND1" and u32(foot, 8) == crc_around(foot) and (u64(foot, 16), u64(foot, 24)) == (header.segment, header.generation)
    assert u64(foot, 40) == len(foot) == up(128 + 96 * n + 16, ALIGN)
    entries = [foot[128 + 96 * e:224 + 96 * e] for e in range(n)]
    return [(e[:32], e[32:64], u64(e, 64), u32(e, 72), u32(e, 84), u32(e, 76), u32(e, 80), u32(e, 88), u32(e, 92)) for e in entries]


def decode(shards, k, block_bytes):
    """shards: {device: bytes}, k of them at least -> the block, by Gauss and Jordan over GF(2^8)."""
    rows = []
    for device, shard in sorted(shards.items())[:k]:
        coefficients = [int(j == device) for j in range(k)] if device < k else [INVERSE[device ^ j] for j in range(k)]
        rows.append((coefficients, bytearray(shard)))
    for column in range(k):
        pivot = next(r for r in range(column, k) if rows[r][0][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = PRODUCT[INVERSE[rows[column][0][column]]]
        rows[column] = [scale[x] for x in rows[column][0]], bytearray(scale[x] for x in rows[column][1])
        for r in range(k):
            factor = rows[r][0][column]
            if r != column and factor:
                times = PRODUCT[factor]
                rows[r] = [x ^ times[y] for x, y in zip(rows[r][0], rows[column][0])], bytearray(x ^ times[y] for x, y in zip(rows[r][1], rows[column][1]))
    return b"".join(bytes(row[1]) for row in rows)[:block_bytes]


def read_store(directories):
    """{key: (parent, depth, crc, {device: shard}, header, bits, tenant)} and, for each segment, whether its files have footers."""
    blocks, sealed = {}, {}
    for directory in map(pathlib.Path, directories):
        store = json.loads((directory / "store.json").read_text())
        assert store["format"] == 1 and store["devices"] == store["k"] + store["m"]
        for path in sorted(directory.glob("*.seg")):
            data = path.read_bytes()
            header = Header(data)
            assert header.store.hex() == store["store"] and header.device == store["device"] and (header.k, header.m) == (store["k"], store["m"])
            assert path.name == f"{header.segment:016x}.seg"
            entries = footer(data, header)
            sealed[header.segment] = entries is not None
            seen = []
            for at, parent, depth, keys, shards in extents(data, header):
                for i, (key, crc, bits, tenant) in enumerate(keys):
                    before = keys[i - 1][0] if i else parent
                    seen.append((key, before, at, i, len(keys), depth + i, crc, bits, tenant))
                    blocks.setdefault(key, (before, depth + i, crc, {}, header, bits, tenant))[3][header.device] = shards[i]
            assert entries is None or entries == seen
    return blocks, sealed
