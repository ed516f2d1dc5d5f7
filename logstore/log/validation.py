"""Check batches before an append, and assign offsets and epochs. This module writes nothing to disk.

A leader checks everything in a client's batch, then sets the base offset and the leader epoch, which the
checksum does not cover. It sets the largest timestamp and the timestamp type, with a new checksum, only if
they change. Records are re-encoded only if the topic requires another codec. A follower keeps its leader's
batches unchanged and checks only whether they follow its own log.

Kafka accepts some batches that no producer sends and that damage the log: gaps in the offset deltas of an
uncompressed batch, a delete horizon from a client, a transaction without a producer id, timestamps below -1,
bytes after the batch. This module refuses them; docs/formats/record-batch.md has the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.config import LogConfig
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
from logstore.lazily import np
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
"""The most records in a client's batch. A check takes microseconds per record, and a new codec some 200 bytes
per record; a compressed MiB can hold millions of records. No real client comes near this limit."""


class AppendOrigin(Enum):
    """The origin of a batch that a leader appends."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """The broker's own transaction or group coordinator: may write control batches, sends no sequences."""


class Prepared(NamedTuple):
    """Checked batches with offsets and epochs, contiguous in `data` and ready to write.

    `extents` describes them for the segment. The time index assigns a batch's largest timestamp to its last
    offset. `log_append_time_ms` is -1 on a CreateTime topic. `batches` are the ones that the log processes
    after the write: those with a producer id on a leader, all of them on a follower.
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
    config: LogConfig,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Prepared:
    """Check the single batch in `data` and return it with offsets from `next_offset`; `data` is not changed.

    Raises `CorruptBatch`, `RecordTooLarge`, `UnsupportedCompression`, and `InvalidRecord` or
    `InvalidTimestamp` with the invalid records. Nothing may be written then.
    """
    if isinstance(data, CheckedBatch) and getattr(data, "config", None) is config:
        return _placed(data, next_offset, leader_epoch)
    if len(data) > config.max_message_bytes:
        raise RecordTooLarge(len(data), config.max_message_bytes)
    # One copy, and the log's own. A check of `bytes` is the fastest, so those are copied after it.
    checked = data if isinstance(data, bytes) else bytearray(data)
    batch = _only_batch(checked)
    if batch.base_offset != 0:
        raise InvalidRecord(f"base offset is {batch.base_offset}; it must be 0 in a producer's batch")
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
        placed = checked if isinstance(checked, bytearray) else bytearray(checked)
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


class CheckedBatch(bytes):
    """A client's batch with the result of its validation: `validate_and_assign` does not repeat it."""

    prepared: Prepared
    config: LogConfig


def check_ahead(
    data: Buffer,
    *,
    now_ms: int,
    config: LogConfig,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> CheckedBatch:
    """Validate a client's batch before its append, for instance in a thread.

    The result counts for this very `config`; with another one the append validates again. Raises what
    `validate_and_assign` raises.
    """
    checked = CheckedBatch(data)
    checked.prepared = validate_and_assign(
        checked,
        next_offset=0,
        leader_epoch=0,
        now_ms=now_ms,
        config=config,
        max_decompressed_bytes=max_decompressed_bytes,
    )
    checked.config = config
    return checked


def _placed(checked: CheckedBatch, next_offset: int, leader_epoch: int) -> Prepared:
    data, ((size, last_delta, max_timestamp_ms),) = checked.prepared[:2]
    assert isinstance(data, bytearray), "as `validate_and_assign` makes it"
    set_offsets_and_epoch(data, base_offset=next_offset, leader_epoch=leader_epoch)
    return checked.prepared._replace(
        extents=((size, next_offset + last_delta, max_timestamp_ms),),
        first_offset=next_offset,
        last_offset=next_offset + last_delta,
        batches=(Batch(data),) if checked.prepared.batches else (),
    )


def validate_plain_group(
    data: bytearray,
    size: int,
    *,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    config: LogConfig,
) -> Prepared | None:
    """Do `validate_and_assign` for many plain batches at once, in place, in the first `size` bytes of `data`.

    An incomplete last batch is left out. Returns None, with `data` unchanged, if a batch has a codec or a
    producer id, if the topic sets timestamps or needs keys, or if anything would be refused. The caller then
    validates the batches one by one.
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
        raise InvalidRecord("no batch; an append must have exactly one")
    batch = Batch(data)
    if batch.size != len(data):
        if next(walk(data, position=batch.size), None) is not None:
            raise InvalidRecord("more than one batch; an append must have exactly one")
        raise InvalidRecord(f"{len(data) - batch.size} bytes after the batch")
    return batch


def _check_header(batch: Batch, origin: AppendOrigin) -> None:
    count, delta = batch.record_count, batch.last_offset_delta
    if count > MAX_RECORDS and origin is AppendOrigin.CLIENT:
        raise InvalidRecord(f"{count} records in one batch; the limit is {MAX_RECORDS}, send smaller batches")
    if count <= 0 or count != delta + 1:
        raise InvalidRecord(
            f"{count} records with last offset delta {delta}; the delta must be the number of records - 1"
        )
    if batch.base_timestamp_ms < NO_TIMESTAMP:
        raise InvalidTimestamp(f"base timestamp {batch.base_timestamp_ms} ms is below -1 (no timestamp)")
    flags = batch.attributes
    if flags & CONTROL and origin is AppendOrigin.CLIENT:
        raise InvalidRecord("control batch from a client; only a coordinator may write one")
    if flags & DELETE_HORIZON:
        raise InvalidRecord("batch with a delete horizon; only compaction sets one")
    if batch.has_producer_id:
        if batch.base_sequence < 0 and origin is AppendOrigin.CLIENT:
            raise InvalidRecord(
                f"producer {batch.producer_id} sent the negative base sequence {batch.base_sequence}"
            )
        if batch.producer_epoch < 0:
            raise InvalidRecord(
                f"producer {batch.producer_id} sent the negative epoch {batch.producer_epoch}"
            )
    elif flags & TRANSACTIONAL:
        raise InvalidRecord("transactional batch without a producer id")


def _check_each_record(
    batch: Batch, summary: RecordsSummary, now_ms: int, config: LogConfig, max_bytes: int
) -> int:
    """Check timestamps and keys. Returns the largest timestamp of the records.

    The batch's bounds are checked first; only if they fail are the records read one by one, to list the
    invalid ones.
    """
    needs_keys = "compact" in config.cleanup_policy and not batch.is_control
    create_time = config.message_timestamp_type == "CreateTime"
    if create_time and batch.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("batch with timestamp type LogAppendTime on a CreateTime topic")
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
        if needs_keys and record.key is None:
            keyless.append(RecordError(index, "a compacted topic needs a key"))
        elif create_time and timestamp_ms != NO_TIMESTAMP and not oldest_ms <= timestamp_ms <= newest_ms:
            untimely.append(
                RecordError(index, f"timestamp {timestamp_ms} is outside [{oldest_ms}, {newest_ms}]")
            )
    errors = sorted(untimely + keyless)
    if untimely:
        raise InvalidTimestamp(f"{len(errors)} invalid records; the first: {errors[0].message}", errors)
    if keyless:
        raise InvalidRecord(f"{len(errors)} invalid records; the first: {errors[0].message}", errors)
    return max_ms


def _recompressed(
    batch: Batch, codec: Codec, log_append_time_ms: int | None, config: LogConfig, max_bytes: int
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
    """Check a leader's batches for an append at `next_offset`. Returns None without a complete batch.

    An incomplete last batch is cut off. A gap above `next_offset` is legal: compaction leaves gaps.
    `latest_epoch` is the newest epoch in the log.

    Raises `CorruptBatch` (also for epochs that fall: no checksum covers them), `InvalidRecord` (an epoch
    above the leader's, or impossible bounds), `OffsetsOutOfOrder`, `UnexpectedAppendOffset`.
    """
    batches: list[Batch] = []
    last_offset = -1
    epoch = latest_epoch
    ordered = True
    size = 0
    for batch in walk(data):
        batch.check_crc()
        if batch.base_offset < 0 or batch.last_offset_delta < 0 or batch.last_offset >= MAX_LONG:
            raise InvalidRecord(f"batch with impossible offsets {batch.base_offset} to {batch.last_offset}")
        if batch.record_count < 0:
            raise InvalidRecord(f"batch at offset {batch.base_offset} has {batch.record_count} records")
        if batch.leader_epoch > leader_epoch:
            raise InvalidRecord(
                f"batch at offset {batch.base_offset} has epoch {batch.leader_epoch}, "
                f"above the leader's epoch {leader_epoch}"
            )
        if batch.leader_epoch < epoch and batch.leader_epoch >= 0:
            raise CorruptBatch(
                f"batch at offset {batch.base_offset} has epoch {batch.leader_epoch} after epoch {epoch}"
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
        raise OffsetsOutOfOrder(f"the offsets of the batches do not rise: {bounds}")
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
