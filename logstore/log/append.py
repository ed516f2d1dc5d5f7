"""Append to a log as its leader: client batches, transaction markers.

    prepare   check the batch, and stamp its offset and leader epoch
    place     record a new leader epoch; roll if the active segment has no room
    write     write the bytes, update the producer state, move the log end offset

Every append takes these three steps; they differ in how the batches are prepared. Many ready batches are
prepared by the megabyte (`append_many.py`), an application's records when they are encoded (`outgoing.py`),
and a follower keeps its leader's batches (`append_fetched.py`).

Everything that can be refused is refused before a byte is written. The log's lock covers all three steps; an
fsync runs outside of it.

A leader checks everything in a client's batch, then sets the base offset and the leader epoch, which the
checksum does not cover. It sets the largest timestamp and the timestamp type, with a new checksum, only if
they change. Records are re-encoded only if the topic requires another codec.

Kafka accepts some batches that no producer sends and that damage the log: gaps in the offset deltas of an
uncompressed batch, a delete horizon from a client, a transaction without a producer id, timestamps below -1,
bytes after the batch. These checks refuse them; docs/formats/record-batch.md has the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import chain
from typing import Concatenate, Final, NamedTuple, NoReturn, ParamSpec, Protocol, TypeVar

from logstore.config import MAX_INT, MAX_LONG, LogConfig
from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.errors import (
    InvalidRecord,
    InvalidTimestamp,
    RecordBatchTooLarge,
    RecordError,
    RecordTooLarge,
    is_refusal,
    refusal,
)
from logstore.format.batch import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    MAX_DECOMPRESSED_BYTES,
    TRANSACTIONAL,
    Batch,
    TimestampType,
    encode_batch,
    encode_marker_batch,
    set_max_timestamp,
    set_offsets_and_epoch,
    walk,
)
from logstore.format.compression import Codec
from logstore.format.record import NO_TIMESTAMP, ControlType, EndTransactionMarker
from logstore.format.record_parser import RecordsSummary
from logstore.log.interrupts import APPENDING, begin_change, change_failed, end_change
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import AppendOrigin, VerificationGuard
from logstore.segment.segment import Extents

P = ParamSpec("P")
T = TypeVar("T")

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


class AppendInfo(NamedTuple):
    """The result of an append; offsets inclusive, times epoch milliseconds, -1 for none.

    `is_duplicate`: the batch had been appended before, and these are its offsets. `is_synced`: the records
    survive power loss; otherwise they are in the page cache, as far as this append knows. `parts`: the runs
    of offsets, if another thread's records lie between the batches of this append; empty for a single run.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False
    is_synced: bool = False
    parts: tuple[range, ...] = ()

    def __repr__(self) -> str:
        where = ", ".join(
            f"{each[0]}" if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in self._runs() if each
        )
        if not where:
            return f"AppendInfo(no records; the log ends at {self.first_offset})"
        state = "a duplicate" if self.is_duplicate else "synced" if self.is_synced else "written, not synced"
        return f"AppendInfo({'offset' if len(self.offsets) == 1 else 'offsets'} {where}, {state})"

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each record; empty if none were appended."""
        return list(chain(*self.parts)) if self.parts else range(self.first_offset, self.last_offset + 1)

    def _runs(self) -> tuple[range, ...]:
        return self.parts or (range(self.first_offset, self.last_offset + 1),)

    def joined(self, after: AppendInfo) -> AppendInfo:
        """Return one result for this append and the one after it; either may be empty."""
        mine, theirs = self._runs(), after._runs()
        if not mine[0]:
            return after
        if not theirs[0]:
            return self
        if theirs[0].start == mine[-1].stop:
            runs = (*mine[:-1], range(mine[-1].start, theirs[0].stop), *theirs[1:])
        else:
            runs = mine + theirs
        return after._replace(
            first_offset=self.first_offset,
            max_timestamp_ms=max(self.max_timestamp_ms, after.max_timestamp_ms),
            parts=runs if len(runs) > 1 else (),
        )


new_info: Final = tuple.__new__
"""`AppendInfo` of all eight fields, without the call of its constructor: a third of its cost."""


def nothing_appended(log: PartitionLog) -> AppendInfo:
    """Return the result of an append without records."""
    end_offset = log.log_end_offset
    return AppendInfo(end_offset, end_offset - 1, NO_TIMESTAMP, NO_TIMESTAMP, log.log_start_offset)


# --- a leader ---------------------------------------------------------------------------------------


def append_as_leader(
    log: PartitionLog,
    data: Buffer,
    *,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    verification_guard: VerificationGuard | None = None,
) -> AppendInfo:
    """Append the one batch in `data` at the next offset, in this leader epoch.

    A batch that its producer has sent before is not written again: the result holds its offsets. The first
    batch of a transaction needs the guard that `maybe_start_verification` returned for it. Raises
    `CorruptBatch`, `InvalidRecord`, `InvalidTimestamp`, `RecordTooLarge`, `RecordBatchTooLarge`,
    `UnsupportedCompression`, `OutOfOrderSequence`, `InvalidProducerEpoch`, `InvalidTransactionState`,
    `DiskFull` or `LogDirOffline`; the log is then unchanged.
    """
    return as_change(append_one, log, data, leader_epoch, now_ms, origin, verification_guard)


def as_change(
    append: Callable[Concatenate[PartitionLog, P], T], log: PartitionLog, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Append under the log's lock, with a note of the change (`interrupts.py`), and wake those who wait."""
    with log.lock:
        if log.changing or not log.is_writable:
            begin_change(log)
        try:
            log.changing = APPENDING  # before the end is read: a signal handler may not append behind it
            result = append(log, *args, **kwargs)
            if not log.changing:
                end_change(log)  # raises
            log.changing = ""
        except BaseException as error:
            log.is_interrupted = True
            change_failed(log, error)
            raise
        if log.waiters.waiting:
            log.waiters.wake()
        return result


def append_one(
    log: PartitionLog,
    data: Buffer,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    guard: VerificationGuard | None = None,
) -> AppendInfo:
    """Do `append_as_leader` for a caller that holds the lock and has noted the change."""
    prepared = validate_and_assign(
        data,
        next_offset=log.log_end_offset,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        config=log.config,
        origin=origin,
    )
    if len(prepared.data) > log.config.segment_bytes:
        raise RecordBatchTooLarge(len(prepared.data), log.config.segment_bytes)
    for batch in prepared.batches:
        needs_guard = log.producer_config.transaction_partition_verification_enable
        guards = log.guards if needs_guard else None
        if duplicate := log.producer_state.check(batch, origin, guards=guards, guard=guard):
            mark("append: a batch that is known already")
            stamped = log.config.message_timestamp_type == "LogAppendTime"
            appended_ms = duplicate.timestamp_ms if stamped else NO_TIMESTAMP
            return AppendInfo(*duplicate, appended_ms, log.log_start_offset, is_duplicate=True)
    if leader_epoch != log.latest_epoch:
        log.enter_epoch(leader_epoch, prepared.first_offset)
    return place_and_write(log, prepared, now_ms)


# --- prepare --------------------------------------------------------------------------------------


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


# --- place and write --------------------------------------------------------------------------------


class RollReason(Enum):
    """The reason why the next append starts a new segment."""

    SEGMENT_BYTES = "segment.bytes"
    SEGMENT_MS = "segment.ms"
    INDEX_FULL = "segment.index.bytes"
    OFFSET_OVERFLOW = "offset does not fit the segment"


class ActiveSegment(Protocol):
    """The facts about the active segment that decide a roll.

    `first_timestamp_ms` is the largest record time of its first batch, -1 if that had none; `created_ms` is
    when this process created or opened it; `jitter_ms` is its share of `segment.jitter.ms`.
    """

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_timestamp_ms(self) -> int: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def jitter_ms(self) -> int: ...
    @property
    def index_is_full(self) -> bool: ...


class Incoming(NamedTuple):
    """The facts about the incoming batches that decide a roll."""

    size: int
    max_timestamp_ms: int
    last_offset: int


def roll_reason(
    active: ActiveSegment, incoming: Incoming, config: LogConfig, now_ms: int
) -> RollReason | None:
    """Return why the incoming batches start a new segment; None if they fit the active one."""
    if active.size > 0:
        if active.size > config.segment_bytes - incoming.size:
            mark("roll: the segment has its size")
            return RollReason.SEGMENT_BYTES
        # Compare record times where both are known: last year's data, replayed today, must not roll at
        # every batch, and a stalled clock must not stop rolling.
        first_ms = active.first_timestamp_ms
        waited_ms = incoming.max_timestamp_ms - first_ms if first_ms >= 0 else now_ms - active.created_ms
        if waited_ms > config.longest_segment_ms - active.jitter_ms:
            return RollReason.SEGMENT_MS
    if active.index_is_full:
        mark("roll: an index is full")
        return RollReason.INDEX_FULL
    if not 0 <= incoming.last_offset - active.base_offset <= MAX_INT:
        return RollReason.OFFSET_OVERFLOW
    return None


def may_wait(log: PartitionLog, size: int, now_ms: int) -> bool:
    """Return whether an append of one batch of `size` bytes would first wait for the disk.

    It does so to write a leader epoch down, to start a segment, and to sync as `flush.messages` says.
    """
    with log.lock:
        offset, config = log.log_end_offset, log.config
        return (
            not log.is_writable  # the append fails, and need not do so at once
            or log.epoch_to_begin is not None
            or offset + 1 - log.recovery_point >= config.flush_messages
            or roll_reason(log.segments.active, Incoming(size, now_ms, offset), config, now_ms) is not None
        )


def place_and_write(log: PartitionLog, prepared: Prepared, now_ms: int) -> AppendInfo:
    """Roll if necessary, write, and move the log end. The leader epoch is in the epoch file already."""
    data, extents, first_offset, last_offset, max_timestamp_ms, append_time_ms, batches = prepared
    incoming = Incoming(len(data), max_timestamp_ms, last_offset)
    if roll_reason(log.segments.active, incoming, log.config, now_ms) is not None:
        log.roll_at(max(first_offset, log.log_end_offset), now_ms)
    active = log.segments.active
    try:
        active.append(data, extents)
    except OSError as error:
        write_failed(log, error)
    active.modified_ms = now_ms
    log.log_end_offset = end_offset = last_offset + 1
    if end_offset - log.recovery_point >= log.config.flush_messages:
        log.sync_segments(end_offset)
    if batches:
        _note_producers(log, batches)
    # Last: until then readers of committed data do not see the batches.
    log.producer_state.end_offset = end_offset
    return new_info(
        AppendInfo,
        (first_offset, last_offset, max_timestamp_ms, append_time_ms, log.log_start_offset, False, False, ()),
    )


def write_failed(log: PartitionLog, error: OSError) -> NoReturn:
    """Raise the refusal of a write for which there was no room; any other error takes the log offline."""
    if is_refusal(error):
        mark("append: no room")
        # Not "of this append": the batches before this one are in the log.
        outcome = f"nothing from offset {log.log_end_offset} on was kept"
        raise refusal(error, log.directory, outcome, "append that again") from error
    mark("append: the disk failed")
    log.fail(error)


def _note_producers(log: PartitionLog, batches: Iterable[Batch]) -> None:
    producers = log.producer_state
    for batch in batches:
        if batch.has_producer_id:
            completed = producers.replay(batch)
            entry = completed.index_entry() if completed else None
            if entry is not None:
                # The marker is in the log already: without its entry only recovery can go on.
                log.or_offline(lambda entry=entry: log.segments.active.aborts.append(entry))  # type: ignore[misc]
            if batch.is_transactional:
                log.guards.spend(batch.producer_id)
    producers.advance_high_watermark(log.high_watermark)


# --- transactions -----------------------------------------------------------------------------------


def append_end_transaction(
    log: PartitionLog,
    producer_id: int,
    producer_epoch: int,
    kind: ControlType,
    *,
    coordinator_epoch: int,
    leader_epoch: int,
    now_ms: int,
) -> AppendInfo:
    """Write the marker that commits or aborts the producer's transaction.

    Without an open transaction the marker only fences older epochs. Raises `InvalidProducerEpoch`,
    `TransactionCoordinatorFenced`, `DiskFull` or `LogDirOffline`.
    """
    marker = EndTransactionMarker(kind, coordinator_epoch)
    data = encode_marker_batch(
        marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
    )
    return append_as_leader(
        log, data, leader_epoch=leader_epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
    )


def maybe_start_verification(
    log: PartitionLog, producer_id: int, sequence: int, epoch: int
) -> VerificationGuard | None:
    """Return a guard for the batch at `sequence`, which opens a transaction; its coordinator is asked
    meanwhile.

    None if none is needed: the transaction is open already, or `transaction.partition.verification.enable` is
    off.
    """
    with log.lock:
        enabled = log.producer_config.transaction_partition_verification_enable
        if not enabled or log.producer_state.has_open_transaction(producer_id, epoch):
            return None
        return log.guards.start(producer_id, sequence, epoch, log.clock())
