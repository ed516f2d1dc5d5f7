"""Record batch, format v2: the unit of appends, checksums, compression and replication.

     0          8        12            16    17    21           23                27
     ┌──────────┬────────┬─────────────┬─────┬─────┬────────────┬─────────────────┬──
     │baseOffset│ length │ leaderEpoch │magic│ crc │ attributes │ lastOffsetDelta │
     │ i64      │ i32    │ i32         │ 2   │ u32 │ i16        │ i32             │
     └──────────┴────────┴─────────────┴─────┴─────┴────────────┴─────────────────┴──
    27              35             43           51              53             57       61
     ┬──────────────┬──────────────┬────────────┬───────────────┬──────────────┬────────┬─────────┐
     │baseTimestamp │ maxTimestamp │ producerId │ producerEpoch │ baseSequence │ count  │ records │
     │ i64, ms      │ i64, ms      │ i64        │ i16           │ i32          │ i32    │ …       │
     ┴──────────────┴──────────────┴────────────┴───────────────┴──────────────┴────────┴─────────┘

     attributes   0-2 codec · 3 log append time · 4 transactional · 5 control · 6 delete horizon

Big-endian; `length` counts the bytes after it. The checksum (CRC-32C) starts at the attributes. Offset,
length, epoch and magic lie outside it: a leader can place a batch without touching its payload, and only
continuity checks protect these fields. A `.log` file is batches end to end and nothing else. A crash may
leave a last batch that is cut anywhere, zeros, or bytes with a wrong checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from logstore.errors import CorruptBatch, InvalidRecord
from logstore.format.compression import Codec, codec_of, compress, decompress, decompress_to_look
from logstore.format.crc import crc32c
from logstore.format.record import (
    MAX_INT,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    Record,
    add_sequence,
    encode_pairs,
    encode_records,
)
from logstore.format.record_parser import COMPILED_FROM, Compiled, RecordsSummary, check_loop, decode_records

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

MAGIC: Final = 2
HEADER_BYTES: Final = 61
LOG_OVERHEAD: Final = 12
"""Offset and length, the bytes that the length does not count."""
MAGIC_END: Final = 17
"""Bytes needed to learn the format version."""
MIN_LENGTH: Final = 14
"""The smallest length in the oldest format: anything below is corruption, never a torn tail."""
CRC_START: Final = 21
MAX_DECOMPRESSED_BYTES: Final = 100 << 20
"""The default limit for the decompressed size of a batch."""
NO_PRODUCER_ID: Final = -1
NO_LEADER_EPOCH: Final = -1

CODEC_MASK: Final = 0b111
LOG_APPEND_TIME: Final = 1 << 3
TRANSACTIONAL: Final = 1 << 4
CONTROL: Final = 1 << 5
DELETE_HORIZON: Final = 1 << 6

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_FRAME: Final = struct.Struct(">qiibI")  # the header up to the checksum
_BODY: Final = struct.Struct(">hiqqqhii")  # the header from the attributes on
_SIZE: Final = struct.Struct(">8xi")
_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_unpack_header = _HEADER.unpack_from
_unpack_size = _SIZE.unpack_from


class TimestampType(IntEnum):
    """The clock of a batch's timestamps, as in `message.timestamp.type`."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Batch:
    """One batch inside any buffer; nothing is copied, and only the header is read.

    `buffer` is a view of the whole batch. The integers are the header's fields; times are in milliseconds,
    -1 for none. A delete horizon is stored in `base_timestamp_ms`.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "batch_length",
        "buffer",
        "crc",
        "last_offset",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp_ms",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
    )
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        """Read the header at `position`. Raises `CorruptBatch` if no whole batch of format v2 is there."""
        try:
            (
                self.base_offset,
                length,
                self.leader_epoch,
                self.magic,
                self.crc,
                self.attributes,
                delta,
                self.base_timestamp_ms,
                self.max_timestamp_ms,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.record_count,
            ) = _unpack_header(buffer, position)
        except struct.error:
            _refuse_short(buffer, position)
            raise
        self.batch_length: int = length
        self.last_offset_delta: int = delta
        self.last_offset = self.base_offset + delta
        size = length + LOG_OVERHEAD
        self.size: int = size
        self.buffer = memoryview(buffer)[position : position + size]
        if self.magic != MAGIC or size < HEADER_BYTES or len(self.buffer) != size:
            _refuse(buffer, position, self.magic, length)

    def __reduce__(self) -> tuple[type[Batch], tuple[bytes]]:
        """Make a pickle or a copy, with bytes of its own."""
        return type(self), (bytes(self.buffer),)

    @property
    def next_offset(self) -> int:
        """The offset after the last one; from the delta, not the count: compaction leaves gaps."""
        return self.last_offset + 1

    @property
    def codec(self) -> Codec:
        """The codec. Raises `UnsupportedCompression` for an unknown number."""
        return codec_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        """Return whether timestamps were set by the producer or at the append."""
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether its records are control records, which applications never see."""
        return self.attributes & CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which compaction may drop its tombstones or marker; None before its first pass."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        """Return whether the batch carries a producer id."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The last sequence number, from the delta, so that it survives compaction; -1 for none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return add_sequence(self.base_sequence, self.last_offset_delta)

    def check_crc(self) -> None:
        """Raise `CorruptBatch` if the checksum does not match."""
        computed = crc32c(self.buffer[CRC_START:])
        if computed != self.crc:
            raise CorruptBatch(
                f"batch at offset {self.base_offset}: checksum {self.crc:08x} stored, {computed:08x} computed"
            )

    def payload(self, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
        """Return the records' bytes, decompressed. Raises `InvalidRecord` past `max_bytes`."""
        stored = self.buffer[HEADER_BYTES:]
        if not self.attributes & CODEC_MASK:
            # Already in memory, at a size that was checked before.
            return bytes(stored)
        return decompress(codec_of(self.attributes), stored, max_bytes=max_bytes)

    def records(self, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
        """Return the records in order. Raises `InvalidRecord` if one is malformed, or past `max_bytes`."""
        if self.record_count <= 0:
            if self.record_count < 0:
                raise InvalidRecord(f"batch at offset {self.base_offset}: {self.record_count} records")
            return iter(())
        return decode_records(
            self.payload(max_bytes=max_bytes),
            self.record_count,
            base_offset=self.base_offset,
            base_timestamp_ms=self.base_timestamp_ms,
            log_append_time_ms=self.max_timestamp_ms if self.attributes & LOG_APPEND_TIME else None,
            base_sequence=self.base_sequence,
        )

    def check_records(self, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> RecordsSummary:
        """Check every record; offset deltas must be 0, 1, 2… Raises `InvalidRecord`.

        The rules of `records`, at a fraction of its cost: this runs on every batch that a client sends.
        """
        data, position, count = self.buffer.obj, HEADER_BYTES, self.record_count
        if self.attributes & CODEC_MASK:
            stored = self.buffer[HEADER_BYTES:]
            data, position = decompress_to_look(codec_of(self.attributes), stored, max_bytes=max_bytes), 0
        elif not isinstance(data, bytes | bytearray) or len(data) != self.size:
            data, position = self.payload(), 0  # a copy, unless the batch is all of an object
        compiled = Compiled.check
        if compiled is not None and count >= COMPILED_FROM:
            summary = compiled.one(data, count, position, len(data))
            if summary is not None:
                return summary
        plain: RecordsSummary = check_loop()(data, count, position, len(data))  # it names the broken rule
        return plain

    def __repr__(self) -> str:
        return (
            f"Batch({self.base_offset}..{self.last_offset}, epoch {self.leader_epoch}, "
            f"{self.record_count} records, {self.size} bytes)"
        )


def _refuse_short(buffer: Buffer, position: int) -> None:
    left = len(memoryview(buffer)) - position
    assert position >= 0, f"position {position}"
    raise CorruptBatch(f"{left} bytes at byte {position} are fewer than a batch header has")


def _refuse(buffer: Buffer, position: int, magic: int, length: int) -> None:
    assert position >= 0, f"position {position}"
    if length < MIN_LENGTH:
        raise CorruptBatch(f"batch length {length} at byte {position} is invalid")
    if magic != MAGIC:
        raise CorruptBatch(
            f"format version {magic} at byte {position} is not supported, only version {MAGIC}"
        )
    size = length + LOG_OVERHEAD
    if size < HEADER_BYTES:
        raise CorruptBatch(f"batch size {size} at byte {position} is smaller than the header")
    left = len(memoryview(buffer)) - position
    raise CorruptBatch(f"batch size {size} at byte {position} exceeds the {left} bytes that are left")


def walk(buffer: Buffer, *, position: int = 0) -> Iterator[Batch]:
    """Yield the batches in `buffer` from `position` on, without checking checksums.

    A last batch that is cut short ends the walk silently. Raises `CorruptBatch` for a length below 14 or a
    format version other than 2.
    """
    view = memoryview(buffer)
    end = len(view)
    while end - position >= LOG_OVERHEAD:
        length = _unpack_size(view, position)[0]
        if length < MIN_LENGTH:
            raise CorruptBatch(f"batch length {length} at byte {position} is invalid")
        if end - position < MAGIC_END:
            return
        if not 0 <= (magic := view[position + 16]) <= MAGIC:
            raise CorruptBatch(
                f"format version {magic} at byte {position} is not supported, only version {MAGIC}"
            )
        if length > end - position - LOG_OVERHEAD:
            return
        batch = Batch(view, position)
        yield batch
        position += batch.size


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    log_append_time_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon_ms: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """Encode one batch of `records`, whose offsets rise from `base_offset` on; no bytes for no records.

    `last_offset` is the last record's unless it is given (compaction keeps that of the old batch). With
    `log_append_time_ms` every record has that time. Raises `TypeError` for what are no records or no codec,
    `ValueError` for arguments that contradict each other, and `UnsupportedCompression` if the codec's library
    is missing.
    """
    _check_producer(producer_id, producer_epoch, base_sequence, is_transactional, is_control)
    rows = records if isinstance(records, (list, tuple)) else list(records)
    if not rows:
        return b""
    if not isinstance(rows[0], Record):
        raise TypeError(f"records are Records, such as Record(0, -1, key, value), not {rows[0]!r:.100}")
    if not isinstance(codec, Codec):
        raise TypeError(f"codec is a Codec, such as Codec.GZIP, not {codec!r:.100}")
    if is_control:
        _check_control(rows, is_transactional)
    # Not the smallest time: Kafka's base is the first record's.
    base_timestamp_ms = rows[0].timestamp_ms if delete_horizon_ms is None else delete_horizon_ms
    parts, count, last, max_timestamp_ms = encode_records(
        rows, base_offset=base_offset, base_timestamp_ms=base_timestamp_ms
    )
    if last_offset is not None:
        if last_offset < last:
            raise ValueError(f"last offset {last_offset} is below a record's, {last}")
        last = last_offset
    if last - base_offset > MAX_INT:
        raise ValueError(f"offsets {base_offset} to {last} do not fit one batch")
    return assemble_batch(
        parts,
        codec=codec,
        level=level,
        flags=_flags(log_append_time_ms, is_transactional, is_control, delete_horizon_ms),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        last_offset_delta=last - base_offset,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms if log_append_time_ms is None else log_append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=count,
    )


def encode_batch_of_pairs(
    pairs: Iterable[tuple[bytes | None, bytes | None]],
    *,
    timestamp_ms: int = NO_TIMESTAMP,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Encode (key, value) records at `base_offset`, `base_offset` + 1…, all with one time, as one batch.

    The bytes are those of `encode_batch`, made in a fraction of the time.
    """
    if timestamp_ms < NO_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp_ms} ms: -1 means none, others are not negative")
    parts, count = encode_pairs(list(pairs))
    if not count:
        return b""
    batch = with_room(parts)
    finish_plain(batch, count, timestamp_ms, codec)
    set_offsets_and_epoch(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(batch)


def with_room(parts: Sequence[Buffer]) -> bytearray:
    """Join encoded records behind room for their header, which is known only after them."""
    return bytearray().join((bytes(HEADER_BYTES), *parts))


def finish_plain(batch: bytearray, count: int, at_ms: int, codec: Codec, level: int | None = None) -> None:
    """Compress the `count` records behind the room in `batch`, and write the header of a batch at offset 0.

    All have the time `at_ms`, and no producer. Raises `ValueError` for more than a batch can hold.
    """
    if codec is not Codec.NONE:
        batch[HEADER_BYTES:] = compress(codec, batch[HEADER_BYTES:], level)
    if (size := len(batch)) > MAX_INT:
        raise ValueError(f"{count} records of {size} bytes do not fit one batch")
    seal_batch(batch, 0, size, codec=codec, base_timestamp_ms=at_ms, max_timestamp_ms=at_ms, count=count)


def encode_marker_batch(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Encode the 78 bytes that end a transaction."""
    return encode_batch(
        [marker.record(base_offset, timestamp_ms)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


_LAST_EPOCH: Final = (1 << 15) - 1
_LAST_PRODUCER_ID: Final = (1 << 63) - 1


def _check_producer(
    producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool, is_control: bool
) -> None:
    if producer_id <= NO_PRODUCER_ID:
        if is_transactional:
            raise ValueError("a transactional batch needs a producer id")
        return
    if producer_id > _LAST_PRODUCER_ID:
        raise ValueError(f"producer_id is {producer_id}; the last one is {_LAST_PRODUCER_ID}")
    if not 0 <= producer_epoch <= _LAST_EPOCH:
        raise ValueError(f"producer {producer_id} needs an epoch of 0 to {_LAST_EPOCH}, not {producer_epoch}")
    if not 0 <= base_sequence <= MAX_INT and not is_control:
        raise ValueError(f"producer {producer_id} needs a base sequence from 0 on, not {base_sequence}")


def _check_control(records: Iterable[Record], is_transactional: bool) -> None:
    for record in records:
        try:
            kind = ControlRecord.parse(record.key).type
        except InvalidRecord as error:
            raise ValueError(f"a control batch may only hold control records: {error}") from error
        if kind in (ControlType.ABORT, ControlType.COMMIT) and not is_transactional:
            raise ValueError("a transaction marker needs a transactional batch")


def _flags(
    log_append_time_ms: int | None, is_transactional: bool, is_control: bool, delete_horizon_ms: int | None
) -> int:
    return (
        (0 if log_append_time_ms is None else LOG_APPEND_TIME)
        | (TRANSACTIONAL if is_transactional else 0)
        | (CONTROL if is_control else 0)
        | (0 if delete_horizon_ms is None else DELETE_HORIZON)
    )


def assemble_batch(
    parts: list[bytes],
    *,
    codec: Codec,
    level: int | None,
    flags: int,
    base_offset: int,
    leader_epoch: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytes:
    """Encode a batch of encoded records, given in pieces; `flags` are its attributes without the codec.

    Raises `ValueError` for more than a batch can hold, and `UnsupportedCompression`.
    """
    if codec is not Codec.NONE:
        parts = [compress(codec, b"".join(parts), level)]
    body = _BODY.pack(
        codec | flags,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    summed = b"".join((body, *parts))
    length = len(summed) + CRC_START - LOG_OVERHEAD
    if length > MAX_INT - LOG_OVERHEAD:
        raise ValueError(f"{count} records of {len(summed)} bytes do not fit one batch")
    return _FRAME.pack(base_offset, length, leader_epoch, MAGIC, crc32c(summed)) + summed


def seal_batch(
    buffer: bytearray | memoryview,
    position: int,
    size: int,
    *,
    codec: Codec,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    count: int,
) -> None:
    """Write the header of a batch at offset 0 into the 61 bytes before its `count` records.

    `size` is that of the whole batch at `position`; the records are compressed, at offset deltas 0, 1, 2…
    """
    _BODY.pack_into(
        buffer,
        position + CRC_START,
        codec,
        count - 1,
        base_timestamp_ms,
        max_timestamp_ms,
        NO_PRODUCER_ID,
        -1,
        NO_SEQUENCE,
        count,
    )
    with memoryview(buffer) as view, view[position + CRC_START : position + size] as summed:
        crc = crc32c(summed)
    _FRAME.pack_into(buffer, position, 0, size - LOG_OVERHEAD, NO_LEADER_EPOCH, MAGIC, crc)


def set_offsets_and_epoch(
    buffer: bytearray | memoryview, *, base_offset: int, leader_epoch: int, position: int = 0
) -> None:
    """Set both fields of the batch at `position`; they lie outside its checksum."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + 12, leader_epoch)


def set_max_timestamp(
    buffer: bytearray | memoryview, timestamp_type: TimestampType, max_timestamp_ms: int, *, position: int = 0
) -> None:
    """Set the largest timestamp of the batch at `position`, and its timestamp type.

    With LOG_APPEND_TIME it is every record's time. The base timestamp and the deltas stay as the producer
    wrote them. The checksum is renewed if anything changed.
    """
    length, attributes, old_ms = struct.unpack_from(">8xi9xh12xq", buffer, position)
    flagged = attributes & ~LOG_APPEND_TIME
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        flagged |= LOG_APPEND_TIME
    if flagged == attributes and old_ms == max_timestamp_ms:
        return
    struct.pack_into(">h", buffer, position + CRC_START, flagged)
    struct.pack_into(">q", buffer, position + 35, max_timestamp_ms)
    with memoryview(buffer) as view, view[position + CRC_START : position + length + LOG_OVERHEAD] as summed:
        crc = crc32c(summed)
    _CRC.pack_into(buffer, position + MAGIC_END, crc)


def set_producer(
    buffer: bytearray | memoryview,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    position: int = 0,
) -> None:
    """Set producer and sequence of the batch at `position`, and renew its checksum."""
    length = struct.unpack_from(">8xi", buffer, position)[0]
    struct.pack_into(">qhi", buffer, position + 43, producer_id, producer_epoch, base_sequence)
    with memoryview(buffer) as view, view[position + CRC_START : position + length + LOG_OVERHEAD] as summed:
        crc = crc32c(summed)
    _CRC.pack_into(buffer, position + MAGIC_END, crc)
