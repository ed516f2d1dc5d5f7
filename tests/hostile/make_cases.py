"""Writes `cases/*.json`: `python -m tests.hostile.make_cases`. A case is added here, then the files are made.

Expectations come from Kafka's protocol and from what a broker may afford, not from what this one did.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF, APIS
from logstore.broker.wire.codec import varint
from logstore.broker.wire.declarations import Struct
from logstore.broker.wire.headers import request_frame
from logstore.format.batch import encode_batch
from logstore.format.compression import LZ4_END_MARK, LZ4_HEADER, Codec, compress
from logstore.format.record import MAX_INT, MAX_LONG, Record
from tests.corpus.test_bad_batches import BAD
from tests.hostile.casefiles import DIRECTORY, MEMORY_MIB, Case, Numbers, text_of
from tests.logstore.forge import T0, forge, payload, values

MIB: Final = 1 << 20
MIN_INT: Final = -(1 << 31)
MIN_LONG: Final = -(1 << 63)
CAP: Final = 100 * MIB
"""`socket.request.max.bytes` as it comes."""

CLOSED: Final = "closed"
NOTHING: Final = "nothing"
WAITING: Final = "waiting"

TOPIC: Final = "t"
ONE: Final = payload(*values(1))
GOOD: Final = encode_batch(values(1))


def int8(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}b", *numbers)


def int16(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}h", *numbers)


def int32(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


def framed(content: bytes) -> bytes:
    return int32(len(content)) + content


def raw(
    key: int, version: int, body: bytes, *, tags: bytes = b"\0", client_id: bytes | None = b"hostile"
) -> bytes:
    """A frame around any bytes of a body; the header is true."""
    name = int16(-1) if client_id is None else int16(len(client_id)) + client_id
    api = APIS.get(key)
    is_flexible = api is not None and version in api.flexible
    return framed(int16(key, version) + int32(7) + name + (tags if is_flexible else b"") + body)


def asked(request: Struct, version: int) -> bytes:
    return b"".join(request_frame(request, version, 7, "hostile"))


def answered(
    request: type[Struct] | int, version: int, errors: dict[str, int] | None = None
) -> dict[str, Any]:
    key = request if isinstance(request, int) else request.KEY
    return {"api": key, "version": version, "errors": {} if errors is None else errors}


VERSIONS = asked(t.ApiVersionsRequest(), 0)
VERSIONS_ANSWERED = answered(t.ApiVersionsRequest, 0, {"": 0})


def spliced(
    key: int, version: int, before: bytes, numbers: Numbers, after: bytes = b""
) -> list[bytes | Numbers]:
    """As `raw`, with many numbered things in the middle of the body."""
    frame = raw(key, version, before)
    size = len(frame) - 4 + len(bytes(numbers)) + len(after)
    return [int32(size) + frame[4:], numbers, after]


def case(
    name: str,
    send: bytes | list[bytes | Numbers],
    *expect: Any,
    why: str = "",
    piece: int = 0,
    memory_mib: int = MEMORY_MIB,
) -> Case:
    parts: list[bytes | Numbers] = [send] if isinstance(send, bytes) else send
    return Case(name=name, why=why, send=parts, expect=list(expect), piece=piece, memory_mib=memory_mib)


# --- frames -----------------------------------------------------------------------------------


def frames() -> Iterator[Case]:
    for name, size in (("0", 0), ("-1", -1), ("2**31 - 1", MAX_INT), ("the smallest integer", MIN_INT)):
        yield case(f"size {name}", int32(size) + bytes(20), CLOSED)
    yield case("size one above the cap", int32(CAP + 1) + bytes(20), CLOSED)
    yield case(
        "size of the cap, ten bytes",
        int32(CAP) + bytes(10),
        WAITING,
        why="room is made as bytes come, not as they are announced",
    )
    yield case("size of 2**24, 40,000 bytes", int32(1 << 24) + bytes(40_000), WAITING)
    yield case("short body", int32(100) + VERSIONS[4:], WAITING)
    yield case("two bytes of a size", b"\0\0", WAITING)
    yield case("nothing", b"", WAITING)
    yield case("byte by byte", VERSIONS, VERSIONS_ANSWERED, piece=1)
    yield case("three in one write", VERSIONS * 3, *[VERSIONS_ANSWERED] * 3)
    yield case("three, cut across their borders", VERSIONS * 3, *[VERSIONS_ANSWERED] * 3, piece=17)
    yield case("a good one, then half of one", VERSIONS + VERSIONS[:9], VERSIONS_ANSWERED, WAITING)
    yield case("a good one, then garbage", VERSIONS + b"\xff" * 30, VERSIONS_ANSWERED, CLOSED)
    yield case("garbage, then a good one", framed(b"\xff" * 30) + VERSIONS, CLOSED)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(32)) * 15
    yield case("TLS on a plain port", hello, CLOSED)
    yield case("HTTP on a plain port", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", CLOSED)
    yield case("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", CLOSED)
    yield case("SSH banner", b"SSH-2.0-OpenSSH_9.6\r\n", CLOSED)
    yield case("Redis", b"*1\r\n$4\r\nPING\r\n", CLOSED)
    yield case("zeros", bytes(4096), CLOSED)
    yield case("ones", b"\xff" * 4096, CLOSED)
    yield case(
        "an RPC of ZooKeeper", framed(bytes(44)), CLOSED, why="key 0, version 0: Produce is served from 3 on"
    )
    for size in (1, 2, 4, 8, 9):
        yield case(f"a frame of {size} bytes", framed(VERSIONS[4 : 4 + size]), CLOSED)
    for key in (-1, 999, 32767, 7_00):
        yield case(f"API {key}", raw(key, 0, b""), CLOSED)
    handshake = raw(17, 1, int16(5) + b"PLAIN")
    yield case("SASL, where there is none", handshake, answered(17, 1, {"": 34}))
    token = raw(36, 0, int32(MIB) + bytes(MIB))
    yield case("an oversize token before a handshake", token, answered(36, 0, {"": 34}))
    yield case("a token of 2**31 - 1 bytes", raw(36, 0, int32(MAX_INT) + bytes(50)), CLOSED)
    for key in (24, 25, 26, 28, 55, 57, 69, 71, 75):
        yield case(f"API {key}, which is not served", raw(key, 0, bytes(20)), CLOSED)
    for version in (-1, 13, 99, 32767):
        yield case(f"Metadata version {version}", raw(3, version, bytes(20)), CLOSED)
    for version in (0, 1, 2, 12):
        yield case(f"Produce version {version}", raw(0, version, bytes(40)), CLOSED)
    for version in (5, 99, -1):
        yield case(
            f"ApiVersions version {version}",
            raw(18, version, bytes(8)),
            answered(18, 0, {"": 35}),
            NOTHING,
            why="the one request that is answered in a version that is not known",
        )
    head = int16(18, 0) + int32(7)
    yield case("client id of length -2", framed(head + int16(-2)), CLOSED)
    yield case("client id past the frame", framed(head + int16(100) + b"name"), CLOSED)
    yield case("client id of 32767 in a frame of 30", framed(head + int16(32767) + bytes(20)), CLOSED)
    yield case("client id that is no UTF-8", framed(head + int16(3) + b"\xff\xfe\xfd"), CLOSED)
    yield case("client id of surrogates", framed(head + int16(3) + b"\xed\xa0\x80"), CLOSED)
    yield case("client id of NULs and newlines", framed(head + int16(4) + b"a\0\r\n"), VERSIONS_ANSWERED)
    yield case("client id of 32767 bytes", framed(head + int16(32767) + b"x" * 32767), VERSIONS_ANSWERED)
    yield case("client id null", framed(head + int16(-1)), VERSIONS_ANSWERED)
    body = (
        b"\0\0\0"  # Metadata 12: no topics, not to be made, no operations, no tags: one byte more than needed
    )
    good = b"\x01\0\0\0"
    yield case("header tags that nobody knows", raw(3, 12, good, tags=b"\x01\x05\x03abc"), answered(3, 12))
    yield case("header tags cut", raw(3, 12, b"", tags=b"\x05"), CLOSED)
    yield case("header tag that passes the frame", raw(3, 12, good, tags=b"\x01\x05\x7f"), CLOSED)
    yield case("2**31 header tags", raw(3, 12, body, tags=b"\xff\xff\xff\xff\x07"), CLOSED)
    yield case("10 MiB of ones", framed(b"\xff" * (10 * MIB)), CLOSED, memory_mib=64)
    yield case("a frame of 32,769 zeros", framed(bytes(32_769)), CLOSED)


# --- primitives -------------------------------------------------------------------------------


def primitives() -> Iterator[Case]:
    def metadata(version: int, body: bytes, name: str, *expect: Any, **more: Any) -> Case:
        return case(f"Metadata {version}: {name}", raw(3, version, body), *expect, **more)

    yield metadata(1, b"", "no body", CLOSED)
    yield metadata(1, b"\0\0", "half a count", CLOSED)
    for count in (-2, MIN_INT, MAX_INT, 1, 1000):
        yield metadata(1, int32(count), f"{count} topics, none there", CLOSED)
    yield metadata(
        1,
        int32(1_100_000) + int16(0) * 1_100_000,
        "1,100,000 empty names",
        CLOSED,
        memory_mib=64,
        why="two bytes can be an element that costs a hundred in memory: their number is bounded",
    )
    crowd = raw(
        1, 4, int32(-1, 0, 1, MIB) + b"\0" + int32(1) + int16(1) + b"t" + int32(300_000) + bytes(16) * 300_000
    )
    yield case(
        "Fetch 4: 300,000 partitions",
        crowd,
        CLOSED,
        memory_mib=96,
        why="a partition that is asked about costs a kilobyte and ten microseconds",
    )
    yield metadata(1, int32(1) + int16(-1), "null name", CLOSED)
    yield metadata(1, int32(1) + int16(-2), "name of length -2", CLOSED)
    yield metadata(1, int32(1) + int16(50) + b"t", "name past the end", CLOSED)
    yield metadata(1, int32(1) + int16(2) + b"\xc3\x28", "name that is no UTF-8", CLOSED)
    yield metadata(1, int32(1) + int16(32767) + b"x" * 100, "name of 32767, 100 there", CLOSED)
    yield metadata(4, int32(0) + b"\x07", "a boolean of 7", answered(3, 4))
    yield metadata(4, int32(0) + b"\0" + bytes(100), "bytes after the body", answered(3, 4))
    yield metadata(12, b"\x80\x00", "a count longer than it need be", CLOSED)
    yield metadata(12, b"\xff\xff\xff\xff\xff\x01", "a count of six bytes", CLOSED)
    yield metadata(12, b"\xff\xff\xff\xff\x0f", "a count of 2**32 - 2", CLOSED)
    yield metadata(12, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "a count of 64 bits", CLOSED)
    yield metadata(12, b"\xff\xff\xff\xff\x07" + bytes(40), "a count of 2**31 - 2", CLOSED)
    yield metadata(12, b"\x80\x80\x40" + bytes(200), "a count of a million", CLOSED)
    yield metadata(12, b"\xff", "a count that does not end", CLOSED)
    yield metadata(12, b"\x02" + bytes(7), "half a topic id", CLOSED)
    yield metadata(
        12, b"\x02" + bytes(16) + b"\xff\xff\x03" + b"x" * 70_000, "a name of 65,534 bytes", CLOSED
    )
    yield metadata(12, b"\x02" + bytes(16) + b"\x05ab", "name past the end, compact", CLOSED)
    topic_id = bytes(15) + b"\x01"
    unknown_id = answered(3, 12, {"": 100})
    yield metadata(12, b"\x02" + topic_id + b"\0\0" + b"\0\0\0", "a null name and an id", unknown_id)
    for name, tags in {
        "a tag that nobody knows": b"\x01\x63\x02xy",
        "an empty tag": b"\x01\x63\0",
        "a thousand tags": varint(1000) + b"".join(varint(number) + b"\0" for number in range(1000)),
    }.items():
        yield metadata(
            12, b"\x01\0\0" + tags, name, answered(3, 12), why="what a later Kafka adds must not break us"
        )
    for name, tags in {
        "a tag twice": b"\x02\x63\x01x\x63\x01x",
        "tags that go down": b"\x02\x63\x01x\x05\x01x",
        "a tag past the end": b"\x01\x63\x40xy",
        "a tag of 2**31 - 1 bytes": b"\x01\x63\xff\xff\xff\xff\x07xy",
        "2**31 - 1 tags": b"\xff\xff\xff\xff\x07",
        "a tag count that does not end": b"\xff\xff",
        "a tag number longer than it need be": b"\x01\x80\x00\x00",
        "no tags at all": b"",
    }.items():
        yield metadata(12, b"\x01\0\0" + tags, name, CLOSED)
    fetch = int32(-1, 500, 1, MIB) + b"\0" + int32(0, -1) + b"\x01" + b"\x01" + b"\x01"
    yield case("Fetch 12: nothing asked", raw(1, 12, fetch + b"\0"), answered(1, 12, {"": 0}))
    known = {
        "cluster id shorter than its tag": b"\x01\x00\x05\x02ab\x01c",
        "cluster id longer than its tag": b"\x01\x00\x02\x05ab",
        "cluster id in no bytes": b"\x01\x00\x00",
    }
    for name, tags in known.items():
        yield case(f"Fetch 12: {name}", raw(1, 12, fetch + tags), CLOSED)
    fetch = int32(500, 1, MIB) + b"\0" + int32(0, -1) + b"\x01" + b"\x01" + b"\x01"
    yield case("Fetch 15: half a replica state", raw(1, 15, fetch + b"\x01\x01\x03abc"), CLOSED)
    state = b"\x01\x01\x0e" + int32(-1) + struct.pack(">q", -1) + b"\0\0"
    yield case("Fetch 15: a replica state with a byte too many", raw(1, 15, fetch + state), CLOSED)
    head = int16(-1) + int16(1) + int32(1000)
    yield case("Produce 3: null topics", raw(0, 3, head + int32(-1)), CLOSED)
    one = head + int32(1) + int16(1) + b"t"
    yield case("Produce 3: partitions past the end", raw(0, 3, one + int32(MAX_INT)), CLOSED)
    yield case("Produce 3: -5 partitions", raw(0, 3, one + int32(-5)), CLOSED)
    for size in (-2, MIN_INT, MAX_INT, 100):
        yield case(
            f"Produce 3: records of {size} bytes, 10 there",
            raw(0, 3, one + int32(1, 0, size) + bytes(10)),
            CLOSED,
        )
    nested = (
        int32(-1, 500, 1, MIB)
        + b"\0"
        + int32(2)
        + int16(1)
        + b"t"
        + int32(0)
        + int16(1)
        + b"t"
        + int32(1 << 30)
    )
    yield case("Fetch 4: 2**30 partitions in the second topic", raw(1, 4, nested), CLOSED)
    for api in APIS.values():
        version = api.served[-1]
        yield case(f"{api.name} {version}: 40 ones for a body", raw(api.key, version, b"\xff" * 40), CLOSED)


# --- batches ----------------------------------------------------------------------------------


def producing(
    data: bytes | None,
    version: int = 9,
    *,
    topic: str = TOPIC,
    partition: int = 0,
    acks: int = 1,
    timeout_ms: int = 1000,
    twice: bool = False,
    transactional_id: str | None = None,
) -> bytes:
    part = t.ProduceRequestPartitionProduceData(index=partition, records=data)
    wanted = t.ProduceRequestTopicProduceData(name=topic, partition_data=[part] * (1 + twice))
    request = t.ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[wanted], transactional_id=transactional_id
    )
    return asked(request, version)


def produced(code: int, version: int = 9, label: str = "t-0") -> dict[str, Any]:
    return answered(t.ProduceRequest, version, {label: int(code)})


INVALID, UNSUPPORTED = 87, 76


def batches() -> Iterator[Case]:
    yield case("a good one", producing(GOOD), produced(0), why="what the others lie about")
    for name, (data, error) in BAD.items():
        # The bit of a transaction, which nobody here could end, is looked at before the checksum.
        code = 48 if len(data) > 22 and data[22] & 0x10 else error.code
        if name in ("magic 0", "magic 1"):  # older formats: a client should not send them again
            code = INVALID
        memory_mib = 160 if "bomb" in name else MEMORY_MIB
        yield case(name, producing(data), produced(code), memory_mib=memory_mib)
    yield case("null records", producing(None), produced(INVALID))
    yield case(
        "a good one of the broker's own epoch", producing(GOOD[:12] + int32(5) + GOOD[16:]), produced(0)
    )
    yield case("a partition twice", producing(GOOD, twice=True), CLOSED, why="it has no one answer")
    for acks in (2, -2, 127, -32768):
        yield case(f"acks {acks}", producing(GOOD, acks=acks), produced(21))
    yield case("acks 0", producing(GOOD, acks=0), NOTHING)
    yield case("acks 0, checksum of something else", producing(forge(ONE, crc=1), acks=0), CLOSED)
    yield case("acks 0, unknown topic", producing(GOOD, acks=0, topic="nowhere"), CLOSED)
    for timeout_ms in (-1, MIN_INT, MAX_INT):
        yield case(f"timeout {timeout_ms}", producing(GOOD, acks=-1, timeout_ms=timeout_ms), produced(0))
    for partition in (1, -1, MAX_INT, MIN_INT):
        yield case(
            f"partition {partition}",
            producing(GOOD, partition=partition),
            produced(3, label=f"t-{partition}"),
        )
    yield case("a transactional id", producing(GOOD, transactional_id="mine"), produced(48))
    yield case(
        "no key on a compacted topic",
        producing(encode_batch(values(1, key=None)), topic="compacted"),
        produced(INVALID, label="compacted-0"),
    )
    yield case(
        "time in a hundred years",
        producing(encode_batch(values(1, timestamp_ms=T0 + 100 * 365 * 86_400_000)), topic="spare"),
        produced(0, label="spare-0"),
        why="message.timestamp.after.max.ms sets no bound as it comes",
    )
    producer = {"producer_id": 4_000, "producer_epoch": 0}
    first = forge(ONE, **producer, base_sequence=MAX_INT)
    yield case(
        "a first sequence of 2**31 - 1",
        producing(first),
        produced(0),
        why="a producer that is not known may begin anywhere: its history may have been deleted",
    )
    three = payload(*values(3))
    wrapping = forge(
        three, producer_id=4_001, producer_epoch=0, base_sequence=MAX_INT - 1, count=3, last_offset_delta=2
    )
    yield case("sequences that wrap around", producing(wrapping) * 2, produced(0), produced(0))
    ahead = [forge(ONE, producer_id=4_002, producer_epoch=0, base_sequence=number) for number in (0, 5)]
    yield case("a gap in the sequences", producing(ahead[0]) + producing(ahead[1]), produced(0), produced(45))
    epochs = [forge(ONE, producer_id=4_003, producer_epoch=number, base_sequence=0) for number in (3, 2)]
    yield case("an epoch gone by", producing(epochs[0]) + producing(epochs[1]), produced(0), produced(47))
    high = forge(ONE, producer_id=MAX_LONG, producer_epoch=32767, base_sequence=0)
    yield case("the largest producer id and epoch", producing(high), produced(0))
    yield case(
        "producer id -2",
        producing(forge(ONE, producer_id=-2, producer_epoch=0, base_sequence=0)),
        produced(0),
        why="negative: no producer",
    )
    headers = payload(*values(1))[:-1] + b"\x02" + b"\x01"
    yield case(
        "a header with a null key",
        producing(forge(bytes((headers[0] + 2,)) + headers[1:])),
        produced(INVALID),
    )
    for topic in ("", ".", "..", "a/b", "../../etc/passwd", "a\0b", "x" * 250, "nowhere"):
        code = 3
        label = topic if len(topic) < 40 else f"{topic[:10]}…{len(topic)}"
        yield case(
            f"to a topic called {topic[:20]!r}",
            producing(GOOD, topic=topic),
            produced(code, label=f"{label}-0" if label else "0"),
        )


# --- compression ------------------------------------------------------------------------------


def gzip_of_zeros(size: int) -> bytes:
    return gzip.compress(bytes(size), 9, mtime=0)


def xerial(block: bytes, count: int) -> bytes:
    return b"\x82SNAPPY\0" + int32(1, 1) + (int32(len(block)) + block) * count


def lz4_of_zeros(mib: int) -> bytes:
    stream = compress(Codec.LZ4, bytes(64 * 1024))
    block = stream[len(LZ4_HEADER) : -len(LZ4_END_MARK)]
    return LZ4_HEADER + block * (16 * mib) + LZ4_END_MARK


def compression() -> Iterator[Case]:
    def packed(stream: bytes, codec: Codec, version: int = 9, **fields: int) -> bytes:
        return producing(forge(stream, attributes=codec, **fields), version)

    below, above = 99, 101
    zeros = compress(Codec.SNAPPY, bytes(32768))[20:]
    bombs: dict[str, tuple[Codec, Callable[[int], bytes]]] = {
        "gzip": (Codec.GZIP, lambda mib: gzip_of_zeros(mib * MIB)),
        "lz4": (Codec.LZ4, lz4_of_zeros),
        "zstd": (Codec.ZSTD, lambda mib: compress(Codec.ZSTD, bytes(mib * MIB))),
    }
    for name, (codec, unfolding) in bombs.items():
        why = "output is made in pieces and refused at 100 MiB; what passes is joined once"
        yield case(
            f"{name}: {above} MiB of zeros",
            packed(unfolding(above), codec),
            produced(INVALID),
            memory_mib=160,
            why=why,
        )
        yield case(
            f"{name}: {below} MiB of zeros",
            packed(unfolding(below), codec),
            produced(INVALID),
            memory_mib=260,
            why=why,
        )
    for blocks in (600, 1200):
        yield case(
            f"snappy: {blocks * 32} KiB of zeros",
            packed(xerial(zeros, blocks)[: MIB - 200], Codec.SNAPPY),
            produced(INVALID),
            memory_mib=96,
            why="a block of snappy is a twentieth at best: the batch's size bounds it",
        )
    for declared, name in ((1 << 32) - 1, "2**32 - 1"), (100 * MIB + 1, "100 MiB + 1"), (99 * MIB, "99 MiB"):
        yield case(
            f"raw snappy that declares {name}",
            packed(varint(declared) + bytes(50), Codec.SNAPPY),
            produced(INVALID),
        )
    yield case(
        "snappy: a chunk of -1",
        packed(xerial(b"", 0) + int32(-1) + bytes(9), Codec.SNAPPY),
        produced(INVALID),
    )
    yield case("snappy: a chunk of 0", packed(xerial(b"", 1), Codec.SNAPPY), produced(INVALID))
    yield case(
        "snappy: a chunk past the end",
        packed(xerial(b"", 0) + int32(99) + bytes(9), Codec.SNAPPY),
        produced(INVALID),
    )
    yield case("snappy: only a header", packed(xerial(b"", 0), Codec.SNAPPY), produced(INVALID))
    yield case("snappy: half a header", packed(xerial(b"", 0)[:12], Codec.SNAPPY), produced(INVALID))
    offset = varint(64) + bytes((0b1111_1110,)) + struct.pack("<H", 9)
    yield case("raw snappy: a copy from before the start", packed(offset, Codec.SNAPPY), produced(INVALID))
    good = compress(Codec.LZ4, ONE)
    for name, stream in {
        "no magic": b"\0" + good[1:],
        "only the magic": good[:4],
        "version 0": good[:4] + b"\x20" + good[5:],
        "reserved bits": good[:4] + b"\x63" + good[5:],
        "header checksum": good[:6] + bytes((good[6] ^ 1,)) + good[7:],
        "dependent blocks": good[:4] + b"\x40\x40\xc0" + good[7:],
        "block of 2**31 - 1": good[:7] + b"\xff\xff\xff\x7f" + good[11:],
        "stored block past the end": good[:7] + b"\x40\x00\x00\x80" + good[11:],
        "no end mark": good[:-4],
        "garbage in the block": good[:11] + b"\xff" * (len(good) - 15) + good[-4:],
    }.items():
        yield case(f"lz4: {name}", packed(stream, Codec.LZ4), produced(INVALID))
    whole = gzip.compress(ONE, mtime=0)
    for name, stream in {
        "empty": b"",
        "only the magic": whole[:2],
        "cut": whole[:-9],
        "wrong checksum": whole[:-8] + bytes(8),
        "reserved method": whole[:2] + b"\x07" + whole[3:],
        "twice the records in two members": whole + whole,
        "inside gzip": gzip.compress(whole, mtime=0),
    }.items():
        yield case(f"gzip: {name}", packed(stream, Codec.GZIP), produced(INVALID))
    yield case(
        "gzip: bytes after the stream",
        packed(whole + b"garbage", Codec.GZIP),
        produced(0),
        why="Kafka's reader leaves them alone",
    )
    magic = struct.pack("<I", 0xFD2FB528)
    frame = compress(Codec.ZSTD, ONE)
    for name, stream in {
        "empty": b"",
        "declares 2**60 bytes": magic + b"\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\0\0",
        "declares 101 MiB": magic + b"\xa0" + struct.pack("<I", 101 * MIB) + b"\x01\0\0",
        "window of 2 GiB": magic + b"\0" + bytes((21 << 3,)) + b"\x01\0\0",
        "window of 256 MiB": magic + b"\0" + bytes((18 << 3,)) + b"\x01\0\0",
        "reserved bit": magic + b"\x08\0\x01\0\0",
        "cut": frame[:-4],
        "garbage after the frame": frame + b"garbage",
        "a dictionary": magic + b"\x03" + bytes((0,)) + struct.pack("<I", 77) + b"\x01\0\0",
        "twice the records in two frames": frame + frame,
    }.items():
        yield case(f"zstd: {name}", packed(stream, Codec.ZSTD), produced(INVALID))
    skipped = struct.pack("<II", 0x184D2A53, 5) + b"hello"
    yield case("zstd: a frame to be skipped", packed(skipped + frame, Codec.ZSTD), produced(0))
    yield case("zstd below Produce 7", packed(frame, Codec.ZSTD, 6), produced(UNSUPPORTED, 6))
    fits = encode_batch([Record(0, T0, None, bytes(2 * MIB))], codec=Codec.ZSTD)
    yield case(
        "zstd: 2 MiB for a topic that stores it uncompressed",
        producing(fits, topic="plain"),
        produced(10, label="plain-0"),
        why="max.message.bytes counts what would be stored",
    )


# --- fetches and other questions --------------------------------------------------------------


def fetching(version: int = 12, *, topic: str = TOPIC, topics: int = 1, **fields: Any) -> bytes:
    of_partition = {
        name: fields.pop(name) for name in list(fields) if name in t.FetchRequestFetchPartition.FIELDS
    }
    part = t.FetchRequestFetchPartition(**{"partition": 0, "partition_max_bytes": MIB, **of_partition})
    wanted = [t.FetchRequestFetchTopic(topic=topic, partitions=[part])] * topics
    request = t.FetchRequest(
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": MIB, "topics": wanted, **fields}
    )
    return asked(request, version)


def fetched(code: int, version: int = 12) -> dict[str, Any]:
    return answered(t.FetchRequest, version, {"": 0, "t-0": code})


def questions() -> Iterator[Case]:
    for offset in (-1, -2, MIN_LONG, MAX_LONG, 1 << 40):
        yield case(f"fetch from offset {offset}", fetching(fetch_offset=offset), fetched(1))
    for size in (0, -1, MIN_INT, MAX_INT):
        yield case(
            f"fetch at most {size} bytes of a partition", fetching(partition_max_bytes=size), fetched(0)
        )
        yield case(f"fetch at most {size} bytes", fetching(max_bytes=size), fetched(0))
    for number in (-1, MIN_INT):
        yield case(f"fetch at least {number} bytes", fetching(min_bytes=number), fetched(0))
        yield case(f"fetch within {number} ms", fetching(max_wait_ms=number, min_bytes=MAX_INT), fetched(0))
    yield case("fetch at least 2**31 - 1 bytes, now", fetching(min_bytes=MAX_INT), fetched(0))
    yield case(
        "fetch at least 2**31 - 1 bytes within 24 days",
        fetching(topic="idle", min_bytes=MAX_INT, max_wait_ms=MAX_INT),
        WAITING,
        why="it waits, but not for ever: nobody tells the engine when it has left",
    )
    for session_id, epoch in ((5, 0), (-7, -1)):
        yield case(
            f"fetch in session {session_id}, epoch {epoch}",
            fetching(session_id=session_id, session_epoch=epoch),
            fetched(0),
            why="all that is wanted is in it, whatever the session",
        )
    for session_id, epoch in ((5, 1), (MAX_INT, MAX_INT), (0, 5)):
        yield case(
            f"fetch in session {session_id}, epoch {epoch}",
            fetching(session_id=session_id, session_epoch=epoch),
            answered(1, 12, {"": 70}),
            why="it goes on with a session, and there is none",
        )
    forgotten = [t.FetchRequestForgottenTopic(topic="x" * 300, partitions=[-1, MAX_INT])]
    yield case(
        "fetch that forgets what it never asked for", fetching(forgotten_topics_data=forgotten), fetched(0)
    )
    for replica_id in (7, MAX_INT):
        yield case(
            f"fetch as replica {replica_id}",
            fetching(replica_id=replica_id),
            fetched(6),
            why="who is no replica may not move a watermark",
        )
    for replica_id in (-2, MIN_INT):
        yield case(f"fetch as replica {replica_id}", fetching(replica_id=replica_id), fetched(0))
    yield case("fetch in an epoch to come", fetching(current_leader_epoch=99), fetched(75))
    yield case("fetch in the last epoch there can be", fetching(current_leader_epoch=MAX_INT), fetched(75))
    yield case("fetch in epoch -2", fetching(current_leader_epoch=-2), fetched(74))
    yield case(
        "fetch after epoch 2**31 - 1",
        fetching(last_fetched_epoch=MAX_INT, fetch_offset=0),
        fetched(1),
        why="no epoch of this log ends there",
    )
    yield case("fetch with isolation level 9", fetching(isolation_level=9), fetched(0))
    yield case("fetch from a rack of 30,000 letters", fetching(rack_id="r" * 30_000), fetched(0))
    yield case(
        "fetch of a topic twice",
        fetching(topics=2),
        answered(1, 12, {"": 0, "t-0": 0}),
        why="records are sent once",
    )
    yield case("fetch of partition -1", fetching(partition=-1), answered(1, 12, {"": 0, "t--1": 3}))
    by_id = t.FetchRequestFetchTopic(
        topic_id=b"\x01" * 16, partitions=[t.FetchRequestFetchPartition(partition=0)]
    )
    for version in (13, 16):
        yield case(
            f"fetch {version} of an unknown topic id",
            asked(t.FetchRequest(topics=[by_id]), version),
            answered(1, version, {"": 0, "0": 100}),
        )
    yield case(
        "fetch 16 of no topic id",
        asked(
            t.FetchRequest(
                topics=[t.FetchRequestFetchTopic(partitions=[t.FetchRequestFetchPartition(partition=0)])]
            ),
            16,
        ),
        answered(1, 16, {"": 0, "0": 100}),
    )
    head = int32(-1, 1000, 1, MIB) + b"\0" + int32(1) + int16(7) + b"nowhere" + int32(100_000)
    crowd = Numbers(0, 100_000, b"", bytes(8) + int32(MIB))
    yield case(
        "fetch of 100,000 partitions",
        spliced(1, 4, head, crowd),
        answered(1, 4, {"100000 times": 3}),
        memory_mib=160,
    )

    def listing(timestamp: int, version: int = 7, **more: Any) -> bytes:
        part = t.ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=timestamp, **more)
        topic = t.ListOffsetsRequestListOffsetsTopic(name=TOPIC, partitions=[part])
        return asked(t.ListOffsetsRequest(replica_id=-1, topics=[topic]), version)

    for timestamp in (MAX_LONG, 0, -1, -2, -3):
        yield case(f"offsets at time {timestamp}", listing(timestamp), answered(2, 7, {"t-0": 0}))
    for timestamp in (-6, -100, MIN_LONG):
        yield case(
            f"offsets at time {timestamp}",
            listing(timestamp),
            answered(2, 7, {"t-0": 35}),
            why="a place that no version has",
        )
    yield case(
        "offsets in an epoch to come", listing(-1, current_leader_epoch=MAX_INT), answered(2, 7, {"t-0": 75})
    )
    head = int32(-1) + b"\0" + int32(1) + int16(1) + b"t" + int32(100_000)
    crowd = Numbers(1, 100_001, b"", int32(-1) + struct.pack(">q", -1))
    yield case(
        "offsets of 100,000 partitions",
        spliced(2, 4, head, crowd),
        answered(2, 4, {"100000 times": 3}),
        memory_mib=160,
    )

    def ends(leader_epoch: int, current: int = -1) -> bytes:
        part = t.OffsetForLeaderEpochRequestOffsetForLeaderPartition(
            partition=0, leader_epoch=leader_epoch, current_leader_epoch=current
        )
        topic = t.OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=TOPIC, partitions=[part])
        return asked(t.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]), 4)

    for epoch in (-1, -2, MAX_INT, MIN_INT):
        yield case(f"the end of epoch {epoch}", ends(epoch), answered(23, 4, {"t-0": 0}))
    yield case("the end of an epoch, in one to come", ends(0, MAX_INT), answered(23, 4, {"t-0": 75}))

    def deleting(offset: int, timeout_ms: int = 1000) -> bytes:
        part = t.DeleteRecordsRequestDeleteRecordsPartition(partition_index=0, offset=offset)
        topic = t.DeleteRecordsRequestDeleteRecordsTopic(name="spare", partitions=[part])
        return asked(t.DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms), 2)

    for offset in (1 << 40, MAX_LONG, -2, MIN_LONG):
        yield case(f"delete records below {offset}", deleting(offset), answered(21, 2, {"spare-0": 1}))
    yield case("delete records below -1", deleting(-1, MIN_INT), answered(21, 2, {"spare-0": 0}))
    numbers = [t.MetadataRequestTopic(name=f"topic{number}") for number in range(2_000)]
    yield case(
        "metadata of 2,000 unknown topics",
        asked(t.MetadataRequest(topics=numbers, allow_auto_topic_creation=False), 9),
        answered(3, 9, {"2000 times": 3}),
    )
    for what, request in {
        "producer id without an epoch": t.InitProducerIdRequest(transactional_id=None, producer_id=5),
        "producer epoch without an id": t.InitProducerIdRequest(transactional_id=None, producer_epoch=5),
    }.items():
        yield case(what, asked(request, 4), answered(22, 4, {"": 42}))
    yield case(
        "a producer id for a transaction",
        asked(t.InitProducerIdRequest(transactional_id="x" * 32_000, transaction_timeout_ms=MAX_INT), 4),
        answered(22, 4, {"": 42}),
    )
    for name, release in (
        ("", ""),
        ("a b", "1"),
        ("x" * 32_000, "1"),
        ("a\n", "b"),
        ("%s%n", "${jndi:ldap://x}"),
    ):
        yield case(
            f"software called {name[:10]!r}",
            asked(t.ApiVersionsRequest(client_software_name=name, client_software_version=release), 3),
            answered(18, 3, {"": 42}),
        )


# --- groups -----------------------------------------------------------------------------------


def joining(version: int = 5, **fields: Any) -> bytes:
    protocol = t.JoinGroupRequestProtocol(name="range", metadata=b"m")
    named = {
        "group_id": "hostile", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [protocol], **fields,
    }  # fmt: skip
    return asked(t.JoinGroupRequest(**named), version)


def committing(topic: str = TOPIC, partition: int = 0, **fields: Any) -> bytes:
    named = {name: fields.pop(name) for name in list(fields) if name in t.OffsetCommitRequestPartition.FIELDS}
    one = t.OffsetCommitRequestPartition(**{"partition_index": partition, "committed_offset": 1, **named})
    topics = [t.OffsetCommitRequestTopic(name=topic, partitions=[one])]
    whole = {
        "group_id": "alone",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": topics,
        **fields,
    }
    return asked(t.OffsetCommitRequest(**whole), 7)


def groups() -> Iterator[Case]:
    joined = answered(t.JoinGroupRequest, 5)

    def refused(code: int) -> dict[str, Any]:
        return {**joined, "errors": {"": code}}

    yield case("join without an id", joining(), refused(79))
    yield case("join a group called ''", joining(group_id=""), refused(24))
    for timeout_ms in (0, -1, MIN_INT, MAX_INT):
        yield case(
            f"join with a session of {timeout_ms} ms", joining(session_timeout_ms=timeout_ms), refused(26)
        )
    yield case("join as a member that nobody knows", joining(member_id="nobody"), refused(25))
    yield case("join as a member of 32,000 letters", joining(member_id="x" * 32_000), refused(25))
    yield case("join without protocols", joining(protocols=[]), refused(23))
    yield case("join with protocols of no type", joining(protocol_type=""), refused(23))
    blob = t.JoinGroupRequestProtocol(name="range", metadata=bytes(8 * MIB))
    yield case(
        "join with 8 MiB to say", joining(group_id="blob", protocols=[blob]), refused(42), memory_mib=64
    )
    many = [t.JoinGroupRequestProtocol(name=f"p{number}", metadata=b"") for number in range(10_000)]
    yield case("join with 10,000 protocols", joining(protocols=many), refused(79))
    sync = t.SyncGroupRequest(group_id="nowhere", generation_id=MAX_INT, member_id="x")
    yield case("sync in a group that is not there", asked(sync, 3), answered(14, 3, {"": 25}))
    yield case(
        "sync in a group called ''",
        asked(t.SyncGroupRequest(group_id="", generation_id=1, member_id="x"), 3),
        answered(14, 3, {"": 24}),
    )
    for generation in (-1, 0, MIN_INT, MAX_INT):
        beat = t.HeartbeatRequest(group_id="nowhere", generation_id=generation, member_id="x")
        yield case(
            f"heartbeat of generation {generation}, no group", asked(beat, 3), answered(12, 3, {"": 25})
        )
    leaving = [t.LeaveGroupRequestMemberIdentity(member_id="x" * 300)]
    yield case(
        "leave a group that is not there",
        asked(t.LeaveGroupRequest(group_id="nowhere", members=leaving), 3),
        answered(13, 3, {"": 0, "'": 25}),
    )
    yield case("commit alone", committing(), answered(8, 7, {"t-0": 0}))
    for offset in (MIN_LONG, -1, MAX_LONG):
        yield case(
            f"commit offset {offset}",
            committing(committed_offset=offset),
            answered(8, 7, {"t-0": 0}),
            why="it is the group's own business",
        )
    yield case(
        "commit for a topic that is not there", committing("nowhere"), answered(8, 7, {"nowhere-0": 3})
    )
    yield case("commit for partition -1", committing(partition=-1), answered(8, 7, {"t--1": 3}))
    yield case("commit for '../..'", committing("../.."), answered(8, 7, {"../..-0": 3}))
    yield case(
        "commit with 5,000 letters beside",
        committing(committed_metadata="x" * 5_000),
        answered(8, 7, {"t-0": 12}),
    )
    yield case(
        "commit in generation 5 of no group",
        committing(group_id="nobody", generation_id_or_member_epoch=5, member_id="x"),
        answered(8, 7, {"t-0": 22}),
    )
    yield case(
        "commit in a group called ''",
        committing(group_id=""),
        answered(8, 7, {"t-0": 0}),
        why="legal for whoever does not join",
    )
    head = int16(7) + b"nowhere" + int32(1) + int16(1) + b"t" + int32(100_000)
    yield case(
        "offsets of 100,000 partitions of a group",
        spliced(9, 5, head, Numbers(0, 100_000, b"", b"")),
        answered(9, 5, {"100001 times": 0}),
        memory_mib=160,
    )
    for name, code in (("", 0), ("nowhere", 69)):
        yield case(
            f"describe group {name!r}",
            asked(t.DescribeGroupsRequest(groups=[name]), 4),
            answered(15, 4, {name: 0}),
        )
        yield case(
            f"delete group {name!r}",
            asked(t.DeleteGroupsRequest(groups_names=[name]), 1),
            answered(42, 1, {name: code}),
        )
    yield case(
        "groups in a state called 'x'",
        asked(t.ListGroupsRequest(states_filter=["x" * 1000, "\0"]), 4),
        answered(16, 4, {"": 0}),
    )
    yield case(
        "delete offsets of a group that is not there",
        asked(t.OffsetDeleteRequest(group_id="nowhere"), 0),
        answered(47, 0, {"": 69}),
    )
    for kind in (2, -1, 127, 1):
        yield case(
            f"a coordinator of type {kind}",
            asked(t.FindCoordinatorRequest(key="x", key_type=kind), 3),
            answered(10, 3, {"": 42}),
        )
    yield case(
        "coordinators of 50,000 groups",
        asked(t.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * 50_000), 4),
        answered(10, 4, {"50000 times": 0}),
        memory_mib=96,
    )
    yield case(
        "a batch for the offsets' topic",
        producing(GOOD, topic="__consumer_offsets"),
        produced(17, label="__consumer_offsets-0"),
        why="what groups are is written by their coordinator alone",
    )


# --- what brokers alone ask each other --------------------------------------------------------


def nodes() -> Iterator[Case]:
    """There is no authorizer: who reaches the port can pretend. What does not fit is refused all the same."""
    for kind in (w.LeaderAndIsrRequest, w.StopReplicaRequest, w.UpdateMetadataRequest):
        version = API_OF[kind].latest
        name = kind.__name__.removesuffix("Request")
        stale = answered(kind, version, {"": 11})
        yield case(f"{name} for another broker", asked(kind(controller_id=0, receiver_id=9), version), CLOSED)
        yield case(f"{name} from broker -1", asked(kind(controller_id=-1, receiver_id=0), version), CLOSED)
        yield case(
            f"{name} of an earlier controller",
            asked(kind(controller_id=0, controller_epoch=-5, broker_epoch=-1, receiver_id=0), version),
            stale,
        )
    yield case(
        "ControlledShutdown of a broker that is not there",
        asked(w.ControlledShutdownRequest(broker_id=99, broker_epoch=1), 3),
        answered(7, 3, {"": 8}),
    )
    yield case("ControlledShutdown of broker -1", asked(w.ControlledShutdownRequest(broker_id=-1), 3), CLOSED)
    yield case(
        "AlterPartition of broker -1",
        asked(t.AlterPartitionRequest(broker_id=-1, broker_epoch=-1), 3),
        CLOSED,
    )
    yield case(
        "AlterPartition of a broker that is not there",
        asked(t.AlterPartitionRequest(broker_id=99, broker_epoch=5), 3),
        answered(56, 3, {"": 77}),
    )


# --- names and administration -----------------------------------------------------------------


def creating(
    name: str, *, partitions: int = 1, factor: int = 1, version: int = 5, times: int = 1, **fields: Any
) -> bytes:
    configs = [
        t.CreateTopicsRequestCreatableTopicConfig(name=key, value=value)
        for key, value in fields.pop("configs", {}).items()
    ]
    lists = [
        t.CreateTopicsRequestCreatableReplicaAssignment(partition_index=number, broker_ids=list(brokers))
        for number, brokers in fields.pop("assigned", ())
    ]
    topic = t.CreateTopicsRequestCreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=lists, configs=configs
    )
    return asked(t.CreateTopicsRequest(topics=[topic] * times, **{"timeout_ms": 1000, **fields}), version)


def created(name: str, code: int, version: int = 5) -> dict[str, Any]:
    label = name if len(name) < 40 else f"{name[:10]}…{len(name)}"
    return answered(t.CreateTopicsRequest, version, {label: code})


def names() -> Iterator[Case]:
    bad = [
        "",
        ".",
        "..",
        "a/b",
        "/",
        "../x",
        "a\\b",
        "a\0b",
        "\0",
        "a\n",
        " ",
        "ä",
        "a:b",
        "a*",
        "x" * 250,
        "x" * 32_000,
        "\u202e",
    ]
    for name in bad:
        yield case(
            f"create {name[:12]!r}{len(name) if len(name) > 12 else ''}", creating(name), created(name, 17)
        )
        yield case(
            f"metadata of {name[:12]!r}{len(name) if len(name) > 12 else ''}",
            asked(
                t.MetadataRequest(topics=[t.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True),
                9,
            ),
            answered(3, 9, {name if len(name) < 40 else f"{name[:10]}…{len(name)}": 17}),
        )
    yield case("create what there is", creating(TOPIC), created(TOPIC, 36))
    yield case("create one topic twice", creating("twins", times=2), created("twins", 42))
    yield case("create a.b and a_b", creating("a.b") + creating("a_b"), created("a.b", 0), created("a_b", 17))
    set_aside = "orders-1." + "0123456789abcdef" * 2 + "-delete"
    for name in (set_aside, set_aside.replace("delete", "future"), "-", "-0", "...", "x" * 249):
        yield case(
            f"create and delete {name if len(name) < 60 else name[:12] + str(len(name))!r}",
            creating(name) + asked(t.DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000), 5),
            created(name, 0),
            answered(20, 5, {name if len(name) < 40 else f"{name[:10]}…{len(name)}": 0}),
            why="a legal name, and its directory must not be taken for another thing",
        )
    for count in (0, -2, MIN_INT):
        yield case(
            f"create with {count} partitions", creating("counted", partitions=count), created("counted", 37)
        )
    for count in (MAX_INT, 10_001):
        yield case(
            f"create with {count} partitions",
            creating("counted", partitions=count),
            created("counted", 37),
            why="ten bytes must not become a million directories",
        )
    for factor in (0, -2, 2, 32767):
        yield case(
            f"create with {factor} replicas", creating("counted", factor=factor), created("counted", 38)
        )
    lists: dict[str, tuple[list[tuple[int, tuple[int, ...]]], int]] = {
        "no brokers": ([(0, ())], 39),
        "a broker twice": ([(0, (0, 0))], 39),
        "broker -1": ([(0, (-1,))], 39),
        "lists of unequal length": ([(0, (0,)), (1, (0, 1))], 39),
        "partitions from 1 on": ([(1, (0,))], 39),
        "a partition twice": ([(0, (0,)), (0, (0,))], 39),
        "partition -1": ([(-1, (0,))], 39),
    }
    for what, (assigned, code) in lists.items():
        yield case(
            f"create with {what}",
            creating("listed", partitions=-1, factor=-1, assigned=assigned),
            created("listed", code),
        )
    yield case(
        "create with lists and counts", creating("listed", assigned=[(0, (0,))]), created("listed", 42)
    )
    head = varint(2) + b"\x07listed" + int32(-1) + int16(-1) + varint(10_002)
    lists_of_one = Numbers(0, 10_001, b"", b"\x02" + int32(0) + b"\0")
    yield case(
        "create with 10,001 lists",
        spliced(19, 5, head, lists_of_one, b"\x01\0" + int32(1000) + b"\0\0"),
        created("listed", 37),
    )
    for key, value in {
        "no.such.setting": "1",
        "segment.bytes": "-1",
        "retention.ms": "x",
        "cleanup.policy": "burn",
        "segment.ms": "9" * 4000,
        "max.message.bytes": "²",
        "": "",
    }.items():
        yield case(
            f"create with {key!r} = {value[:9]!r}",
            creating("configured", configs={key: value}),
            created("configured", 40),
        )

    def growing(count: int, name: str = TOPIC) -> bytes:
        topic = t.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=None)
        return asked(t.CreatePartitionsRequest(topics=[topic], timeout_ms=1000), 3)

    for count in (1, 0, -1, MIN_INT, MAX_INT, 10_002):
        yield case(f"grow to {count} partitions", growing(count), answered(37, 3, {TOPIC: 37}))
    for name in ("nowhere", "", ".", "..", "a/b", "../..", "t/partitions", "a\0b"):
        yield case(f"grow {name!r}", growing(2, name), answered(37, 3, {name: 3}))
    yield case(
        "delete what is not there",
        asked(t.DeleteTopicsRequest(topic_names=["nowhere"], timeout_ms=MAX_INT), 5),
        answered(20, 5, {"nowhere": 3}),
    )
    yield case(
        "delete '../..'",
        asked(t.DeleteTopicsRequest(topic_names=["../.."], timeout_ms=0), 5),
        answered(20, 5, {"../..": 3}),
    )
    by_both = t.DeleteTopicsRequestDeleteTopicState(name=TOPIC, topic_id=b"\x01" * 16)
    yield case(
        "delete by a name and another's id",
        asked(t.DeleteTopicsRequest(topics=[by_both]), 6),
        answered(20, 6, {TOPIC: 42}),
    )
    by_id = t.DeleteTopicsRequestDeleteTopicState(name=None, topic_id=b"\x01" * 16)
    yield case(
        "delete by an unknown id", asked(t.DeleteTopicsRequest(topics=[by_id]), 6), answered(20, 6, {"": 100})
    )
    for election in (2, -1, 127):
        yield case(
            f"an election of type {election}",
            asked(t.ElectLeadersRequest(election_type=election, topic_partitions=None), 2),
            answered(43, 2, {"": 42}),
        )
    for kind, name, code in ((2, "../..", 17), (2, "nowhere", 3), (4, "99", 42), (9, "x", 42), (-1, "", 42)):
        of = t.DescribeConfigsRequestDescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        yield case(
            f"settings of {name!r}, a resource of type {kind}",
            asked(t.DescribeConfigsRequest(resources=[of]), 4),
            answered(32, 4, {name: code}),
        )
    for kind, name, key, operation, code in (
        (2, TOPIC, "no.such.setting", 0, 40),
        (2, TOPIC, "retention.ms", 9, 42),
        (2, TOPIC, "retention.ms", 2, 40),
        (2, "../..", "retention.ms", 0, 17),
        (4, "0", "log.dirs", 0, 42),
        (4, "", "log.dirs", 0, 42),
        (2, TOPIC, "retention.ms", -1, 42),
    ):
        change = t.IncrementalAlterConfigsRequestAlterableConfig(
            name=key, config_operation=operation, value="-1"
        )
        of_one = t.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[change]
        )
        yield case(
            f"operation {operation} on {key!r} of {name!r}",
            asked(t.IncrementalAlterConfigsRequest(resources=[of_one]), 1),
            answered(44, 1, {name: code}),
        )
    moves = t.AlterPartitionReassignmentsRequestReassignablePartition(partition_index=0, replicas=[0, 0])
    for what, replicas in {
        "a broker twice": [0, 0],
        "nobody": [],
        "broker 99": [99],
        "broker -1": [-1],
    }.items():
        moves = t.AlterPartitionReassignmentsRequestReassignablePartition(
            partition_index=0, replicas=replicas
        )
        wanted = t.AlterPartitionReassignmentsRequestReassignableTopic(name=TOPIC, partitions=[moves])
        yield case(
            f"reassign to {what}",
            asked(t.AlterPartitionReassignmentsRequest(topics=[wanted], timeout_ms=1000), 0),
            answered(45, 0, {"": 0, "t-0": 39}),
        )


CLASSES: Final[dict[str, tuple[str, Callable[[], Iterator[Case]]]]] = {
    "frames": ("Sizes, headers, other protocols, APIs and versions that are not served.", frames),
    "primitives": ("Counts, lengths, varints and tags inside a body.", primitives),
    "batches": ("Record batches that lie, sent with Produce.", batches),
    "compression": ("Streams that unfold, and streams that do not.", compression),
    "questions": ("Fetches and other questions with absurd numbers in them.", questions),
    "groups": ("Consumer groups, from who is no member.", groups),
    "nodes": ("What brokers alone ask each other, from somebody else.", nodes),
    "names": ("Topics' names, counts, assignments and settings.", names),
}


def main() -> None:
    for name, (about, make) in CLASSES.items():
        cases = list(make())
        (DIRECTORY / f"{name}.json").write_text(text_of(about, cases))
        print(f"{name}: {len(cases)} cases")


if __name__ == "__main__":
    main()
