"""Check batches before they enter a log, and stamp them. Decisions only: nothing here writes.

A leader checks everything in a client's batch, then stamps it: base offset and leader epoch in front of the
checksum; largest timestamp and timestamp type behind it, with a new checksum only if they change. The records
are re-encoded only if the topic requires another codec. A follower keeps its leader's batches as they are and
checks only whether they fit.

Kafka accepts some batches that no producer sends and that harm the log: offset deltas with gaps in an
uncompressed batch, a delete horizon or a transaction without a producer from a client, times below -1, bytes
after the batch. This module refuses them; docs/formats/record-batch.md has the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from logstore.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    OffsetsOutOfOrder,
    RecordError,
    RecordTooLarge,
    UnexpectedAppendOffset,
)
from logstore.format.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_DECOMPRESSED_BYTES,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    Batch,
    TimestampType,
    encode_batch,
    set_max_timestamp,
    set_offsets_and_epoch,
    walk,
)
from logstore.format.compression import Codec
from logstore.format.record import MAX_LONG, NO_TIMESTAMP
from logstore.format.record_parser import RecordsSummary, check_many
from logstore.segment.scan import Fault, scan_buffer
from logstore.segment.segment import Extents

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

_TARGETS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


MAX_RECORDS: Final = 1 << 20
"""So many may a client's batch have. Each takes microseconds to check, and some 200 bytes where the topic
wants another codec; a MiB that was compressed can hold millions. No client comes near it by itself."""


class ValidationConfig(Protocol):
    """The topic settings that a leader's validation weighs; `LogConfig` has them."""

    @property
    def max_message_bytes(self) -> int: ...
    @property
    def message_timestamp_type(self) -> str: ...
    @property
    def oldest_allowed_ms(self) -> int: ...
    @property
    def newest_allowed_ms(self) -> int: ...
    @property
    def compression_type(self) -> str: ...
    @property
    def compression_level(self) -> int | None: ...
    @property
    def cleanup_policy(self) -> str: ...


class AppendOrigin(Enum):
    """Who made a batch that a leader is asked to append."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """Our own transaction or group coordinator: may write control batches, has no sequences to check."""


class Prepared(NamedTuple):
    """Batches that passed every check, end to end in `data`, with their offsets and epoch: ready to write.

    `extents` is their table for the segment. In the time index a batch's largest timestamp belongs to its
    last offset. `log_append_time_ms` is -1 on a CreateTime topic. `batches` are those that the log looks at
    again once they are written: the ones with a producer id on a leader, all of them on a follower.
    """

    data: Buffer
    extents: Extents
    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int = NO_TIMESTAMP
    batches: Sequence[Batch] = ()


def validate_and_assign(
    data: Buffer,
    *,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    config: ValidationConfig,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Prepared:
    """Check the one batch in `data` and place it at `next_offset`; `data` itself stays as it is.

    Raises `CorruptBatch`, `RecordTooLarge`, `InvalidRecord`, `InvalidTimestamp` (the last two with the
    records at fault) or `UnsupportedCompression`; then nothing may be written.
    """
    if len(data) > config.max_message_bytes:
        raise RecordTooLarge(len(data), config.max_message_bytes)
    batch = _only_batch(data if isinstance(data, bytes) else bytes(data))
    if batch.base_offset != 0:
        raise InvalidRecord(f"base offset {batch.base_offset}: a producer's batch starts at 0")
    batch.check_crc()
    _check_header(batch, origin)
    log_append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else None
    summary = batch.check_records(max_bytes=max_decompressed_bytes)
    max_timestamp_ms = _check_each_record(batch, summary, now_ms, config, max_decompressed_bytes)
    if log_append_time_ms is not None:
        max_timestamp_ms = log_append_time_ms

    kind = config.compression_type
    if kind != "producer" and (target := _TARGETS[kind]) is not batch.codec and not batch.is_control:
        placed = _recompressed(batch, target, log_append_time_ms, config, max_decompressed_bytes)
        if len(placed) > config.max_message_bytes:
            raise RecordTooLarge(len(placed), config.max_message_bytes)
    else:
        placed = bytearray(data)
        if log_append_time_ms is not None or batch.max_timestamp_ms != max_timestamp_ms:
            set_max_timestamp(placed, TimestampType(log_append_time_ms is not None), max_timestamp_ms)
    set_offsets_and_epoch(placed, base_offset=next_offset, leader_epoch=leader_epoch)
    last_offset = next_offset + batch.last_offset_delta
    return Prepared(
        placed,
        ((len(placed), last_offset, max_timestamp_ms),),
        next_offset,
        last_offset,
        max_timestamp_ms,
        NO_TIMESTAMP if log_append_time_ms is None else log_append_time_ms,
        (Batch(placed),) if batch.has_producer_id else (),
    )


def validate_plain_group(
    data: bytearray,
    size: int,
    *,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    config: ValidationConfig,
) -> Prepared | None:
    """`validate_and_assign` for the batches in the first `size` bytes of `data`, in place, if all are plain.

    A last batch that is cut short is left out. None as soon as anything is out of the ordinary: a codec,
    a producer id, a topic that stamps times or wants keys, and whatever would be refused; `data` is then
    as it was. The caller takes one batch by itself and learns why.
    """
    if config.compression_type not in ("producer", "uncompressed") or "compact" in config.cleanup_policy:
        return None
    if config.message_timestamp_type != "CreateTime":
        return None
    found = scan_buffer(data, size)
    headers = found.headers
    counts = headers["record_count"].astype(np.int64)
    base_ms = headers["base_timestamp"].astype(np.int64)
    sizes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD
    plain = (
        (headers["base_offset"] == 0)
        & (headers["attributes"] == 0)
        & (headers["producer_id"] == NO_PRODUCER_ID)
        & (counts > 0)
        & (counts == headers["last_offset_delta"].astype(np.int64) + 1)
        & (base_ms >= NO_TIMESTAMP)
        & (sizes <= config.max_message_bytes)
    )
    if found.fault not in (None, Fault.TORN) or not len(headers) or not plain.all():
        return None
    positions = found.positions
    try:
        deltas = check_many(data, positions + HEADER_BYTES, positions + sizes, counts)
    except InvalidRecord:
        return None
    times = headers["max_timestamp"].astype(np.int64)
    earliest, latest = int((base_ms + deltas[:, 0]).min()), int(times.max())
    oldest_ms = max(now_ms - config.oldest_allowed_ms, 0)
    newest_ms = min(now_ms + config.newest_allowed_ms, MAX_LONG)
    if not oldest_ms <= earliest or latest > newest_ms or (base_ms + deltas[:, 1] != times).any():
        return None
    offset = next_offset
    extents: list[tuple[int, int, int]] = []
    rows = (column.tolist() for column in (positions, sizes, counts, times))
    for start, size, count, max_timestamp_ms in zip(*rows, strict=True):
        set_offsets_and_epoch(data, base_offset=offset, leader_epoch=leader_epoch, position=start)
        offset += count
        extents.append((size, offset - 1, max_timestamp_ms))
    return Prepared(memoryview(data)[: found.end], extents, next_offset, offset - 1, latest)


def _only_batch(data: Buffer) -> Batch:
    if not data:
        raise InvalidRecord("no batch: an append has exactly one")
    batch = Batch(data)
    if batch.size != len(data):
        if next(walk(data, position=batch.size), None) is not None:
            raise InvalidRecord("more than one batch: an append has exactly one")
        raise InvalidRecord(f"{len(data) - batch.size} bytes after the batch")
    return batch


def _check_header(batch: Batch, origin: AppendOrigin) -> None:
    count, delta = batch.record_count, batch.last_offset_delta
    if count > MAX_RECORDS and origin is AppendOrigin.CLIENT:
        raise InvalidRecord(f"{count} records in one batch; {MAX_RECORDS} are the most: send smaller batches")
    if count <= 0 or count != delta + 1:
        raise InvalidRecord(f"{count} records with last offset delta {delta}: it is one less, from 0 up")
    if batch.base_timestamp_ms < NO_TIMESTAMP:
        raise InvalidTimestamp(f"base timestamp {batch.base_timestamp_ms} ms: below -1, which means none")
    flags = batch.attributes
    if flags & CONTROL and origin is AppendOrigin.CLIENT:
        raise InvalidRecord("a control batch from a client")
    if flags & DELETE_HORIZON:
        raise InvalidRecord("a delete horizon is given by compaction, not by who sends the batch")
    if batch.has_producer_id:
        if batch.base_sequence < 0 and origin is AppendOrigin.CLIENT:
            raise InvalidRecord(f"producer {batch.producer_id} sends base sequence {batch.base_sequence}")
        if batch.producer_epoch < 0:
            raise InvalidRecord(f"producer {batch.producer_id} sends epoch {batch.producer_epoch}")
    elif flags & TRANSACTIONAL:
        raise InvalidRecord("a transactional batch without a producer id")


def _check_each_record(
    batch: Batch, summary: RecordsSummary, now_ms: int, config: ValidationConfig, max_bytes: int
) -> int:
    """The rules that name the records at fault. Returns the batch's largest timestamp, true for CreateTime.

    The bounds of all records are judged first; only a batch that fails them is read record by record.
    """
    needs_keys = "compact" in config.cleanup_policy and not batch.is_control
    create_time = config.message_timestamp_type == "CreateTime"
    if create_time and batch.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a batch with the broker's time on a topic that keeps the producer's")
    oldest_ms = max(now_ms - config.oldest_allowed_ms, 0)
    newest_ms = min(now_ms + config.newest_allowed_ms, MAX_LONG)
    min_delta, max_delta, keyless_count = summary
    min_ms = batch.base_timestamp_ms + min_delta
    max_ms = batch.base_timestamp_ms + max_delta
    timely = not create_time or (oldest_ms <= min_ms and max_ms <= newest_ms)
    if timely and not (needs_keys and keyless_count):
        return max_ms
    max_ms = NO_TIMESTAMP
    untimely: list[RecordError] = []
    keyless: list[RecordError] = []
    for index, record in enumerate(batch.records(max_bytes=max_bytes)):
        timestamp_ms = record.timestamp_ms
        max_ms = max(max_ms, timestamp_ms)
        if create_time and timestamp_ms != NO_TIMESTAMP and not oldest_ms <= timestamp_ms <= newest_ms:
            untimely.append(
                RecordError(index, f"timestamp {timestamp_ms} is outside [{oldest_ms}, {newest_ms}]")
            )
        if needs_keys and record.key is None:
            keyless.append(RecordError(index, "a compacted topic needs a key"))
    errors = sorted(untimely + keyless)
    if untimely:
        raise InvalidTimestamp(f"{len(errors)} records refused; the first: {errors[0].message}", errors)
    if keyless:
        raise InvalidRecord(f"{len(errors)} records refused; the first: {errors[0].message}", errors)
    return max_ms


def _recompressed(
    batch: Batch, codec: Codec, log_append_time_ms: int | None, config: ValidationConfig, max_bytes: int
) -> bytearray:
    rebuilt = encode_batch(
        list(batch.records(max_bytes=max_bytes)),
        codec=codec,
        level=config.compression_level,
        log_append_time_ms=log_append_time_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )
    return bytearray(rebuilt)


def analyse_follower_batches(
    data: Buffer, *, next_offset: int, leader_epoch: int, latest_epoch: int = -1
) -> Prepared | None:
    """Check a leader's batches for the end of a log at `next_offset`; None if not one whole batch is there.

    A torn last batch is cut off; a gap above `next_offset` is legal, compaction leaves them. `latest_epoch`
    is the newest epoch already in the log.

    Raises `CorruptBatch` (also for epochs that go back: no checksum covers them), `InvalidRecord` (an epoch
    above the leader's, or bounds that no batch can have), `OffsetsOutOfOrder`, `UnexpectedAppendOffset`.
    """
    batches: list[Batch] = []
    last_offset = -1
    epoch = latest_epoch
    ordered = True
    size = 0
    for batch in walk(data):
        batch.check_crc()
        if batch.base_offset < 0 or batch.last_offset_delta < 0 or batch.last_offset >= MAX_LONG:
            raise InvalidRecord(f"offsets {batch.base_offset} to {batch.last_offset}")
        if batch.record_count < 0:
            raise InvalidRecord(f"batch at offset {batch.base_offset}: {batch.record_count} records")
        if batch.leader_epoch > leader_epoch:
            raise InvalidRecord(
                f"batch at offset {batch.base_offset}: epoch {batch.leader_epoch} above {leader_epoch}"
            )
        if batch.leader_epoch < epoch and batch.leader_epoch >= 0:
            raise CorruptBatch(
                f"batch at offset {batch.base_offset}: epoch {batch.leader_epoch} follows {epoch}"
            )
        epoch = max(epoch, batch.leader_epoch)
        ordered = ordered and batch.base_offset > last_offset
        last_offset = batch.last_offset
        size += batch.size
        batches.append(batch)
    if not batches:
        return None
    first_offset = batches[0].base_offset
    if not ordered:
        bounds = ", ".join(f"{batch.base_offset}-{batch.last_offset}" for batch in batches[:10])
        raise OffsetsOutOfOrder(f"offsets do not rise: {bounds}")
    if first_offset < next_offset:
        raise UnexpectedAppendOffset(first_offset, last_offset, next_offset)
    extents = [(batch.size, batch.last_offset, batch.max_timestamp_ms) for batch in batches]
    return Prepared(
        data if size == len(data) else memoryview(data)[:size],
        extents,
        first_offset,
        last_offset,
        max(max_timestamp_ms for _, _, max_timestamp_ms in extents),
        batches=batches,
    )
