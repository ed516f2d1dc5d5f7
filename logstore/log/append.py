"""Append to a log: client batches on a leader, the leader's batches on a follower, transaction markers.

    prepare   check the batches and stamp their offsets and leader epoch        (`validation.py`)
    place     record a new leader epoch; roll if the active segment has no room
    write     write the bytes, update the producer state, move the log end offset

Every append takes these three steps; they differ in how the batches are prepared. `append_value` is the short
path for one small value: until the segment is full or old no decision changes, so `stretch.py` makes all of
them once for a run of values.

Everything that can be refused is refused before a byte is written. The log's lock covers all three steps; an
fsync runs outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Concatenate, Final, NamedTuple, NoReturn, ParamSpec, Protocol, TypeVar

from logstore.config import MAX_INT, MAX_LONG, LogConfig
from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.errors import RecordBatchTooLarge, is_refusal, refusal
from logstore.format.batch import Batch, encode_marker_batch, set_offsets_and_epoch, walk
from logstore.format.record import NO_TIMESTAMP, ControlType, EndTransactionMarker, Record
from logstore.log.interrupts import APPENDING, begin_change, change_failed, end_change
from logstore.log.outgoing import (
    MadeBatch,
    batch_of_one,
    batches_of,
    compression_of,
    full_batch_bytes,
    not_appendable,
)
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import VerificationGuard, check_markers
from logstore.log.serializers import is_one_value
from logstore.log.stretch import begin_stretch
from logstore.log.validation import (
    AppendOrigin,
    Prepared,
    analyse_follower_batches,
    validate_and_assign,
    validate_plain_group,
)

P = ParamSpec("P")
T = TypeVar("T")

GROUP_BYTES = 1 << 20
WORTH_GROUPING = 4
STAND_ALONE_EPOCH: Final = 0
"""The leader epoch of a log that no leader has written to."""


class AppendInfo(NamedTuple):
    """The result of an append; offsets inclusive, times epoch milliseconds, -1 for none.

    `is_duplicate`: the batch had been appended before, and these are its offsets. `is_synced`: the records
    survive power loss; otherwise they are in the page cache, as far as this append knows.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False
    is_synced: bool = False

    def __repr__(self) -> str:
        first, last = self.first_offset, self.last_offset
        where = f"offset {first}" if first == last else f"offsets {first} to {last}"
        if last < first:
            return f"AppendInfo(no records; the log ends at {first})"
        state = "a duplicate" if self.is_duplicate else "synced" if self.is_synced else "written, not synced"
        return f"AppendInfo({where}, {state})"

    @property
    def offsets(self) -> range:
        """The offsets of the records; empty if none were appended."""
        return range(self.first_offset, self.last_offset + 1)

    def joined(self, after: AppendInfo) -> AppendInfo:
        """Return one result for this append and the one after it; either may be empty."""
        if self.last_offset < self.first_offset:
            return after
        if after.last_offset < after.first_offset:
            return self
        largest_ms = max(self.max_timestamp_ms, after.max_timestamp_ms)
        return after._replace(first_offset=self.first_offset, max_timestamp_ms=largest_ms)


_new_info: Final = tuple.__new__
"""`AppendInfo` of all seven fields, without the call of its constructor: a third of its cost."""


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
    return _as_change(_append_one, log, data, leader_epoch, now_ms, origin, verification_guard)


def _as_change(
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
            change_failed(log, error)
            raise
        if log.waiters.waiting:
            log.waiters.wake()
        return result


def _append_one(
    log: PartitionLog,
    data: Buffer,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    guard: VerificationGuard | None = None,
) -> AppendInfo:
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
    return _place_and_write(log, prepared, now_ms)


def append_made(log: PartitionLog, batch: MadeBatch, *, leader_epoch: int, now_ms: int) -> AppendInfo:
    """Append a batch that this process encoded (`outgoing.py`): its records are not read again.

    Its bytes are stamped in place. Raises what `append_as_leader` raises.
    """
    with log.lock:
        if log.changing or not log.is_writable:
            begin_change(log)
        try:
            log.changing = APPENDING  # as `_as_change`, without its cost
            data = batch.data
            if len(data) > log.config.segment_bytes or not may_enter(batch, now_ms, log.config):
                info = _append_one(log, bytes(data), leader_epoch, now_ms)
            else:
                first_offset, time_ms = log.log_end_offset, batch.timestamp_ms
                last_offset = first_offset + batch.record_count - 1
                set_offsets_and_epoch(data, base_offset=first_offset, leader_epoch=leader_epoch)
                if leader_epoch != log.latest_epoch:
                    log.enter_epoch(leader_epoch, first_offset)
                extents = ((len(data), last_offset, time_ms),)
                prepared = Prepared(data, extents, first_offset, last_offset, time_ms)
                info = _place_and_write(log, prepared, now_ms)
            if not log.changing:
                end_change(log)  # raises
            log.changing = ""
        except BaseException as error:
            change_failed(log, error)
            raise
        if log.waiters.waiting:
            log.waiters.wake()
        return info


def may_enter(batch: MadeBatch, now_ms: int, config: LogConfig) -> bool:
    """Return whether a leader's validation would neither refuse the batch nor change it.

    The batch must have been compressed with the topic's codec.
    """
    return (
        len(batch.data) <= config.max_message_bytes
        and config.message_timestamp_type == "CreateTime"
        and max(now_ms - config.oldest_allowed_ms, 0) <= batch.timestamp_ms
        and batch.timestamp_ms <= min(now_ms + config.newest_allowed_ms, MAX_LONG)
        and (batch.is_keyed or "compact" not in config.cleanup_policy)
    )


def append_value(log: PartitionLog, value: bytes, now_ms: int) -> AppendInfo | None:
    """Append one record of `value` on the short path, at time `now_ms` and in the newest epoch.

    None, with nothing changed, if the short path does not apply (`stretch.py`): then `append_made` appends
    the value or raises the error, and `begin_short_path` opens the path again. Raises `DiskFull` or
    `LogDirOffline`.
    """
    with log.lock:
        stretch, offset = log.stretch, log.log_end_offset
        if stretch is None or log.changing or not log.is_writable:
            return None
        try:
            log.changing = APPENDING
            active = log.segments.active
            if not stretch.append(value, offset, now_ms, active, log.config, log.epoch_cache):
                log.changing = ""
                return None
            if not log.changing:
                end_change(log)  # raises
            active.modified_ms = now_ms
            log.log_end_offset = log.producer_state.end_offset = offset + 1
            log.changing = ""
        except OSError as error:
            log.changing = ""
            _write_failed(log, error)
        except BaseException as error:
            change_failed(log, error)
            raise
        if log.waiters.waiting:
            log.waiters.wake()
        return _new_info(
            AppendInfo, (offset, offset, now_ms, NO_TIMESTAMP, log.log_start_offset, False, False)
        )


def begin_short_path(log: PartitionLog) -> None:
    """Let `append_value` append the next values, unless the settings require a decision for each of them."""
    with log.lock:
        if log.is_writable:
            log.stretch = begin_stretch(log.segments.active, log.config, log.epoch_cache)


def append_many_as_leader(log: PartitionLog, data: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
    """Append the batches that lie end to end in `data`, each as `append_as_leader` would.

    Raises what it raises, and `CorruptBatch` for a torn last batch; batches before a refused one stay
    appended.
    """
    info: AppendInfo | None = None
    view, position = memoryview(data), 0
    while position < len(view) or info is None:
        size, appended = _as_change(_append_some, log, view[position:], leader_epoch, now_ms)
        info = appended if info is None else info.joined(appended)
        position += size
    return info


def _append_some(
    log: PartitionLog, data: memoryview, leader_epoch: int, now_ms: int
) -> tuple[int, AppendInfo]:
    """Append the first batches of `data`: in one write if they are many and plain, else one by one.

    Returns their size in bytes.
    """
    first = Batch(data)
    size = min(len(data), GROUP_BYTES, max(log.config.segment_bytes - log.segments.active.size, 0))
    if size < first.size * WORTH_GROUPING:
        return first.size, _append_one(log, first.buffer, leader_epoch, now_ms)
    # Into memory that is mapped already: a fresh megabyte costs more page faults than its copy.
    scratch = log.scratch = log.scratch or bytearray(GROUP_BYTES)
    scratch[:size] = data[:size]
    group = validate_plain_group(
        scratch,
        size,
        next_offset=log.log_end_offset,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        config=log.config,
    )
    if group is not None:
        log.enter_epoch(leader_epoch, group.first_offset)
        return len(group.data), _place_and_write(log, group, now_ms)
    info, taken = nothing_appended(log), 0
    for batch in walk(data[:size]):
        info = info.joined(_append_one(log, batch.buffer, leader_epoch, now_ms))
        taken += batch.size
    assert taken, "the walk must find the first batch"
    return taken, info


# --- an application ----------------------------------------------------------------------------------


def append_records(
    log: PartitionLog,
    records: Any,
    *,
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    timestamp_ms: int | None = None,
    target_bytes: int | None = None,
) -> AppendInfo:
    """Append values, records, pairs or batches in the log's newest epoch; see `Log.append`.

    A batch of records is full at `target_bytes`, by default as the settings say now.
    """
    now_ms = log.clock() if timestamp_ms is None else timestamp_ms
    compression = compression_of(log.config)
    if records is None or isinstance(records, bytes | bytearray | memoryview):
        made = batch_of_one(key, records, headers, now_ms, compression)
        return _append_outgoing(log, made, now_ms if timestamp_ms is None else log.clock())
    if key is not None or headers:
        raise TypeError("key and headers go with a single value; give records their own")
    if isinstance(records, Record | Batch | tuple):
        records = (records,)
    elif not isinstance(records, Iterable) or is_one_value(records):
        raise not_appendable(records)
    result = nothing_appended(log)
    for batch in batches_of(
        records,
        now_ms=now_ms,
        compression=compression,
        target_bytes=full_batch_bytes(log.config) if target_bytes is None else target_bytes,
    ):
        result = result.joined(_append_outgoing(log, batch, log.clock()))
    return result


def append_ready(log: PartitionLog, data: Buffer) -> AppendInfo:
    """Append ready batches in the log's newest epoch; see `Log.append_batches`."""
    with log.lock:
        epoch = max(log.latest_epoch, STAND_ALONE_EPOCH)
        return append_many_as_leader(log, data, leader_epoch=epoch, now_ms=log.clock())


def _append_outgoing(log: PartitionLog, batch: MadeBatch | bytes, now_ms: int) -> AppendInfo:
    if not isinstance(batch, MadeBatch):
        return append_ready(log, batch)
    with log.lock:
        epoch = max(log.latest_epoch, STAND_ALONE_EPOCH)
        return append_made(log, batch, leader_epoch=epoch, now_ms=now_ms)


# --- a follower -------------------------------------------------------------------------------------


def append_as_follower(log: PartitionLog, data: Buffer, *, leader_epoch: int) -> AppendInfo:
    """Append a leader's batches byte for byte; a torn last batch is left out.

    Raises `UnexpectedAppendOffset` below the log end, `OffsetsOutOfOrder`, `CorruptBatch`, `InvalidRecord`
    for an epoch above `leader_epoch` or a marker that cannot be read, `DiskFull` or `LogDirOffline`; nothing
    is written then.
    """
    return _as_change(_append_leaders, log, data, leader_epoch)


def _append_leaders(log: PartitionLog, data: Buffer, leader_epoch: int) -> AppendInfo:
    found = analyse_follower_batches(
        data, next_offset=log.log_end_offset, leader_epoch=leader_epoch, latest_epoch=log.latest_epoch
    )
    if found is None:
        return nothing_appended(log)
    check_markers(found.batches)
    for batch in found.batches:
        log.enter_epoch(batch.leader_epoch, batch.base_offset)
    now_ms = log.clock()
    for part in _parts_that_fit_a_segment(found):
        _place_and_write(log, part, now_ms)
    return AppendInfo(
        found.first_offset, found.last_offset, found.max_timestamp_ms, NO_TIMESTAMP, log.log_start_offset
    )


def _parts_that_fit_a_segment(prepared: Prepared) -> Iterator[Prepared]:
    """Split batches where an offset is too far above the first one of its part for one segment."""
    batches = prepared.batches
    if prepared.last_offset - prepared.first_offset <= MAX_INT:
        yield prepared
        return
    first = 0
    for number, batch in enumerate(batches):
        if batch.last_offset - batches[first].base_offset > MAX_INT:
            yield _part(prepared, first, number)
            first = number
    yield _part(prepared, first, len(batches))


def _part(prepared: Prepared, first: int, stop: int) -> Prepared:
    batches = prepared.batches[first:stop]
    return Prepared(
        b"".join(batch.buffer for batch in batches),
        prepared.extents[first:stop],
        batches[0].base_offset,
        batches[-1].last_offset,
        max(batch.max_timestamp_ms for batch in batches),
        batches=batches,
    )


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


def _place_and_write(log: PartitionLog, prepared: Prepared, now_ms: int) -> AppendInfo:
    """Roll if necessary, write, and move the log end. The leader epoch is in the epoch file already."""
    data, extents, first_offset, last_offset, max_timestamp_ms, append_time_ms, batches = prepared
    incoming = Incoming(len(data), max_timestamp_ms, last_offset)
    if roll_reason(log.segments.active, incoming, log.config, now_ms) is not None:
        log.roll_at(max(first_offset, log.log_end_offset), now_ms)
    active = log.segments.active
    try:
        active.append(data, extents)
    except OSError as error:
        _write_failed(log, error)
    active.modified_ms = now_ms
    log.log_end_offset = end_offset = last_offset + 1
    if end_offset - log.recovery_point >= log.config.flush_messages:
        log.sync_segments(end_offset)
    if batches:
        _note_producers(log, batches)
    # Last: until then readers of committed data do not see the batches.
    log.producer_state.end_offset = end_offset
    return _new_info(
        AppendInfo,
        (first_offset, last_offset, max_timestamp_ms, append_time_ms, log.log_start_offset, False, False),
    )


def _write_failed(log: PartitionLog, error: OSError) -> NoReturn:
    if is_refusal(error):
        mark("append: no room")
        raise refusal(error, log.directory, "nothing of the append was kept", "append again") from error
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
