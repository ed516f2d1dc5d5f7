"""Batches that a stranger may send, each with the error he gets; nothing of them reaches a log.

The classes are those a network fuzzer finds first: lengths, checksums, versions, counts and deltas that
lie, records that pass their bounds, streams that unfold. Framing of the codecs has its own table in
`tests/logstore/test_compression.py`, records theirs in `tests/logstore/test_record.py`.
"""

from __future__ import annotations

import struct

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedCompression,
)
from logstore.format.batch import Batch, encode_batch, encode_marker_batch
from logstore.format.compression import Codec, InflatesTooFar, compress
from logstore.format.record import MAX_INT, MAX_LONG, ControlType, EndTransactionMarker, Record
from logstore.log.append import validate_and_assign
from logstore.log.append_fetched import analyse_follower_batches
from tests.logstore.forge import T0, forge, payload, values

MIB = 1 << 20
ONE = payload(*values(1))
GOOD = encode_batch(values(1))
MARKER = EndTransactionMarker(ControlType.COMMIT, 0)


def packed(codec: Codec, body: bytes, **fields: int) -> bytes:
    """A batch whose records are compressed, whatever they are."""
    return forge(compress(codec, body), attributes=codec, **fields)


def with_length(length: int) -> bytes:
    return GOOD[:8] + struct.pack(">i", length) + GOOD[12:]


def oversized_snappy() -> bytes:
    """A valid xerial stream of 64 MiB of zeros."""
    stream = compress(Codec.SNAPPY, bytes(32768))
    return stream[:16] + stream[16:] * 2048


BAD: dict[str, tuple[bytes, type[EngineError]]] = {
    "nothing": (b"", InvalidRecord),
    "one byte": (b"\0", CorruptBatch),
    "half a header": (GOOD[:30], CorruptBatch),
    "header only": (GOOD[:61], CorruptBatch),
    "zeros": (bytes(200), CorruptBatch),
    "ones": (b"\xff" * 200, CorruptBatch),
    "text": (b"GET / HTTP/1.1\r\nHost: kafka\r\n" + b"\r\n" * 30, CorruptBatch),
    "length -1": (with_length(-1), CorruptBatch),
    "length of the smallest integer": (with_length(-(1 << 31)), CorruptBatch),
    "length 0": (with_length(0), CorruptBatch),
    "length 13": (with_length(13), CorruptBatch),
    "length 14": (with_length(14), CorruptBatch),
    "length 48": (with_length(48), CorruptBatch),
    "length 2**31 - 1": (with_length(MAX_INT), CorruptBatch),
    "length one more": (with_length(len(GOOD) - 11), CorruptBatch),
    "length one less": (with_length(len(GOOD) - 13), InvalidRecord),
    "last byte missing": (GOOD[:-1], CorruptBatch),
    "a byte after": (GOOD + b"\0", InvalidRecord),
    "half a batch after": (GOOD + GOOD[:40], InvalidRecord),
    "two batches": (GOOD + GOOD, InvalidRecord),
    "zeros after": (GOOD + bytes(100), CorruptBatch),
    "magic 0": (forge(ONE, magic=0), CorruptBatch),
    "magic 1": (forge(ONE, magic=1), CorruptBatch),
    "magic 3": (forge(ONE, magic=3), CorruptBatch),
    "magic -1": (forge(ONE, magic=-1), CorruptBatch),
    "checksum 0": (forge(ONE, crc=0), CorruptBatch),
    "checksum of something else": (forge(ONE, crc=0xDEADBEEF), CorruptBatch),
    "payload flipped": (GOOD[:-1] + b"\x01", CorruptBatch),
    "base offset 1": (forge(ONE, base_offset=1), InvalidRecord),
    "base offset -1": (forge(ONE, base_offset=-1), InvalidRecord),
    "base offset 2**63 - 1": (forge(ONE, base_offset=MAX_LONG), InvalidRecord),
    "count 0": (forge(ONE, count=0), InvalidRecord),
    "count 0, delta -1": (forge(b"", count=0, last_offset_delta=-1), InvalidRecord),
    "count -1": (forge(ONE, count=-1), InvalidRecord),
    "count 2, delta 0": (forge(ONE, count=2), InvalidRecord),
    "count 1, delta 1": (forge(ONE, last_offset_delta=1), InvalidRecord),
    "count one more than there are": (forge(ONE, count=2, last_offset_delta=1), InvalidRecord),
    "count 2**31 - 1": (forge(ONE, count=MAX_INT, last_offset_delta=MAX_INT - 1), InvalidRecord),
    "delta 2**31 - 1, count wraps": (forge(ONE, count=-(1 << 31), last_offset_delta=MAX_INT), InvalidRecord),
    "count one less than there are": (forge(payload(*values(2))), InvalidRecord),
    "delta of the smallest integer": (forge(ONE, last_offset_delta=-(1 << 31)), InvalidRecord),
    "bytes after the records": (forge(ONE + b"\0"), InvalidRecord),
    "no records where one is counted": (forge(b""), InvalidRecord),
    "record passes the end": (forge(ONE[:-3]), InvalidRecord),
    "record length -1": (forge(b"\x01" + ONE[1:]), InvalidRecord),
    "record length 2**31 - 1": (forge(b"\xfe\xff\xff\xff\x0f" + ONE[1:]), InvalidRecord),
    "record length of six bytes": (forge(b"\xff\xff\xff\xff\xff\x01" + ONE[1:]), InvalidRecord),
    "header bomb": (forge(ONE[:-1] + b"\xfe\xff\xff\xff\x0f"), InvalidRecord),
    "header count -1": (forge(ONE[:-1] + b"\x01"), InvalidRecord),
    "offset delta 1 first": (forge(payload(Record(1, T0, None, b""))), InvalidRecord),
    "offset deltas 0, 2": (
        forge(payload(Record(0, T0, None, b""), Record(2, T0, None, b"")), count=2, last_offset_delta=1),
        InvalidRecord,
    ),
    "offset delta repeated": (forge(ONE + ONE, count=2, last_offset_delta=1), InvalidRecord),
    "base timestamp -2": (forge(ONE, base_timestamp_ms=-2), InvalidTimestamp),
    "base timestamp of the smallest integer": (forge(ONE, base_timestamp_ms=-MAX_LONG - 1), InvalidTimestamp),
    "record time before the epoch": (
        forge(payload(Record(0, 0, None, b""), base_timestamp_ms=9), base_timestamp_ms=3), InvalidTimestamp,
    ),
    "record time past 64 bits": (
        forge(payload(Record(0, 9, None, b""), base_timestamp_ms=0), base_timestamp_ms=MAX_LONG),
        InvalidTimestamp,
    ),
    "broker's time from a client": (forge(ONE, attributes=1 << 3), InvalidTimestamp),
    "transactional without a producer": (forge(ONE, attributes=1 << 4), InvalidRecord),
    "control batch": (forge(ONE, attributes=1 << 5), InvalidRecord),
    "marker": (encode_marker_batch(MARKER, producer_id=1, producer_epoch=0, timestamp_ms=T0), InvalidRecord),
    "delete horizon": (forge(ONE, attributes=1 << 6), InvalidRecord),
    "producer without an epoch": (forge(ONE, producer_id=1, base_sequence=0), InvalidRecord),
    "producer without a sequence": (forge(ONE, producer_id=1, producer_epoch=0), InvalidRecord),
    "sequence of the smallest integer": (
        forge(ONE, producer_id=1, producer_epoch=0, base_sequence=-(1 << 31)), InvalidRecord,
    ),
    "codec 5": (forge(ONE, attributes=5), UnsupportedCompression),
    "codec 6": (forge(ONE, attributes=6), UnsupportedCompression),
    "codec 7": (forge(ONE, attributes=7), UnsupportedCompression),
    "says gzip, is plain": (forge(ONE, attributes=Codec.GZIP), InvalidRecord),
    "says snappy, is plain": (forge(ONE, attributes=Codec.SNAPPY), InvalidRecord),
    "says lz4, is plain": (forge(ONE, attributes=Codec.LZ4), InvalidRecord),
    "says zstd, is plain": (forge(ONE, attributes=Codec.ZSTD), InvalidRecord),
    "says plain, is gzip": (forge(compress(Codec.GZIP, ONE)), InvalidRecord),
    "says lz4, is zstd": (forge(compress(Codec.ZSTD, ONE), attributes=Codec.LZ4), InvalidRecord),
    "gzip, a record too few": (packed(Codec.GZIP, ONE, count=2, last_offset_delta=1), InvalidRecord),
    "gzip, a record too many": (packed(Codec.GZIP, ONE + ONE), InvalidRecord),
    "snappy, bytes after the records": (packed(Codec.SNAPPY, ONE + b"\0"), InvalidRecord),
    "lz4, compressed twice": (packed(Codec.LZ4, compress(Codec.LZ4, ONE)), InvalidRecord),
    "zstd, cut": (forge(compress(Codec.ZSTD, ONE)[:-4], attributes=Codec.ZSTD), InvalidRecord),
    "gzip bomb": (packed(Codec.GZIP, bytes(2 * MIB)), InvalidRecord),
    "snappy bomb": (forge(oversized_snappy(), attributes=Codec.SNAPPY), RecordTooLarge),
    "snappy bomb that fits": (forge(oversized_snappy()[:900_000], attributes=Codec.SNAPPY), InvalidRecord),
    "raw snappy that declares 4 GiB": (
        forge(b"\xff\xff\xff\xff\x0f" + bytes(50), attributes=Codec.SNAPPY), InvalidRecord,
    ),
    "snappy chunk of -1": (
        forge(compress(Codec.SNAPPY, ONE)[:16] + b"\xff\xff\xff\xff" + bytes(50), attributes=Codec.SNAPPY),
        InvalidRecord,
    ),
    "lz4 bomb": (packed(Codec.LZ4, bytes(2 * MIB)), InvalidRecord),
    "zstd bomb": (packed(Codec.ZSTD, bytes(64 * MIB)), InvalidRecord),
    "above max.message.bytes": (encode_batch([Record(0, T0, None, bytes(MIB))]), RecordTooLarge),
}  # fmt: skip


def kind_of(error: EngineError) -> type[EngineError]:
    """Return what a client is told: for it, records that inflate too far are invalid ones."""
    return InvalidRecord if isinstance(error, InflatesTooFar) else type(error)


@pytest.mark.parametrize("name", BAD)
def test_a_leader_refuses(name: str) -> None:
    """The exact error, so that the client knows whether to send again."""
    data, error = BAD[name]
    before = bytes(data)
    with pytest.raises(EngineError) as caught:
        validate_and_assign(
            data, next_offset=9, leader_epoch=1, now_ms=T0, config=LogConfig(), max_decompressed_bytes=MIB
        )
    assert kind_of(caught.value) is error
    assert str(caught.value)
    assert data == before


@pytest.mark.parametrize("name", BAD)
def test_follower_accepts_or_refuses_it_whole(name: str) -> None:
    """A follower judges less, but nothing can make it raise something else or keep half a batch."""
    data, _ = BAD[name]
    try:
        found = analyse_follower_batches(data, next_offset=0, leader_epoch=5)
    except EngineError:
        return
    if found is not None:
        assert sum(batch.size for batch in found.batches) == len(found.data)


def test_valid_batch_is_accepted() -> None:
    """The table's lies are told about this batch; without them it passes."""
    validated = validate_and_assign(GOOD, next_offset=9, leader_epoch=1, now_ms=T0, config=LogConfig())
    assert validated.first_offset == validated.last_offset == 9


def test_every_flipped_bit_of_a_good_batch() -> None:
    """One bit anywhere: an error, or a batch whose records are the same (length and magic are guarded by
    the checksum's place, base offset by the rule that it is 0, the epoch is overwritten)."""
    expected = [record._replace(offset=9) for record in values(1)]
    for place in range(len(GOOD)):
        for bit in range(8):
            flipped = bytearray(GOOD)
            flipped[place] ^= 1 << bit
            try:
                validated = validate_and_assign(
                    flipped, next_offset=9, leader_epoch=1, now_ms=T0, config=LogConfig()
                )
            except EngineError:
                continue
            assert 12 <= place < 16, f"byte {place}, bit {bit}"
            assert list(Batch(validated.data).records()) == expected
