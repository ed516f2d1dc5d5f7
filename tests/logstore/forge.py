"""Batches that lie: any header over any payload, with a checksum that is right."""

from __future__ import annotations

import struct

from logstore.format.crc import crc32c
from logstore.format.record import Record, encode_records

T0 = 1_700_000_000_000


def payload(*records: Record, base_timestamp_ms: int = T0) -> bytes:
    """The records as they lie in a batch at base offset 0."""
    parts, *_ = encode_records(records, base_offset=0, base_timestamp_ms=base_timestamp_ms)
    return b"".join(parts)


def values(count: int, *, key: bytes | None = b"k", timestamp_ms: int = T0) -> list[Record]:
    """`count` plain records at offsets 0, 1, 2…"""
    return [Record(offset, timestamp_ms, key, b"value %d" % offset) for offset in range(count)]


def forge(
    body: bytes,
    *,
    base_offset: int = 0,
    length: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    attributes: int = 0,
    last_offset_delta: int = 0,
    base_timestamp_ms: int = T0,
    max_timestamp_ms: int = T0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int = 1,
) -> bytes:
    """A batch of these very fields; length and checksum are true unless they are given."""
    summed = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last_offset_delta,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        + body
    )
    return (
        struct.pack(
            ">qiibI",
            base_offset,
            len(summed) + 9 if length is None else length,
            leader_epoch,
            magic,
            crc32c(summed) if crc is None else crc,
        )
        + summed
    )
