"""Read a log: whole batches from an offset or a time, up to the bound of an isolation level.

Readers take no lock. They keep the segments that they started with; a file that is removed meanwhile stays
open until they are done. The bounds that they may read to move last, after the bytes. A truncation may put
other bytes in the place of those that a reader looks at: it counts `cuts` up when it begins and when it is
done, and a reader that sees the count change reads again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from operator import attrgetter
from struct import Struct
from typing import Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.errors import EngineError, is_shortage
from logstore.errors import (
    CorruptBatch,
    CorruptIndex,
    Damage,
    DamagedLog,
    DamageKind,
    LogClosed,
    OffsetOutOfRange,
    refusal,
)
from logstore.format.batch import CRC_START, HEADER_BYTES, LOG_OVERHEAD, MAGIC, Batch
from logstore.format.crc import crc32c
from logstore.log.partition_log import PartitionLog, is_dense
from logstore.log.producer_state import LATE_MS, OpenTransaction
from logstore.log.read_committed import aborted_between
from logstore.segment.damage import Expected, judge_segment
from logstore.segment.epochs import EpochEntry
from logstore.segment.scan import (
    COMPILED_BELOW_BYTES,
    Fault,
    Scanned,
    check_history,
    order_faults,
    scan_buffer,
    use_compiled,
)
from logstore.segment.seal import broken_blocks
from logstore.segment.segment import LOG_SUFFIX, Segment, file_name
from logstore.segment.segments import find_timestamp, is_cached, locate_in_order, read_batches
from logstore.segment.transaction_index import (
    TRANSACTION_INDEX_SUFFIX,
    AbortedTransaction,
    TransactionIndex,
)

READ_BYTES = 1 << 20
FIRST_READ_BYTES = 1 << 14
PIECE_BYTES = 1 << 18
"""The size of the pieces of a long read. glibc returns the memory of larger ones to the kernel each time, and
faulting it in again costs as much as decoding small batches."""
_START_OFFSET = attrgetter("start_offset")
_HEADER = Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta."""
SMALL_BYTES = 1 << 10
COMPILED_FROM_BYTES = 1 << 30
"""With so much still to be read, batches of that size pay for loading numba."""
_MANY_BYTES = 1 << 16
"""So many bytes of small batches are worth a table of their headers, which compiled code makes."""

T = TypeVar("T")


class FetchIsolation(Enum):
    """The bound of a read; `FetchIsolation("read_committed")` reads Kafka's name of a level."""

    LOG_END = "log_end"
    """Everything written."""
    HIGH_WATERMARK = "read_uncommitted"
    """Records that every in-sync replica holds."""
    TXN_COMMITTED = "read_committed"
    """The same, up to the first undecided transaction and without aborted ones."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(
            f"isolation is {value!r}; it must be a FetchIsolation, or one of Kafka's names, "
            '"read_committed" and "read_uncommitted"'
        )


Isolation: TypeAlias = FetchIsolation | Literal["read_committed", "read_uncommitted"]


class FetchedBytes(NamedTuple):
    """Whole batches; the first may begin below `start_offset`. `next_offset` follows the last one.

    `aborted`, for readers of committed data: the transactions whose records they must leave out.
    """

    records: bytes
    start_offset: int
    segment_base_offset: int
    position: int
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()


class TimestampOffset(NamedTuple):
    """A record's time and offset, and the leader epoch that wrote it."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class _SegmentGone(Exception):
    """A segment was replaced or deleted under its reader, who must look again."""


def end_offset_for(log: PartitionLog, isolation: FetchIsolation) -> int:
    """Return the upper bound for this isolation level, exclusive."""
    if isolation is FetchIsolation.LOG_END:
        end_offset = log.log_end_offset
    elif isolation is FetchIsolation.HIGH_WATERMARK:
        end_offset = log.high_watermark
    else:
        end_offset = log.last_stable_offset
    # After a failed fsync the page cache may hold bytes that the disk never will.
    return end_offset if log.failure is None else min(end_offset, log.recovery_point)


def segment_base(log: PartitionLog, offset: int) -> int:
    """Return the base of the segment that holds `offset` or would; of the first one if all lie above."""
    with log.lock:
        return (log.segments.floor(offset) or log.segments.first).base_offset


# --- bytes ------------------------------------------------------------------------------------------


def read_bytes(
    log: PartitionLog,
    start_offset: int,
    max_bytes: int = READ_BYTES,
    *,
    until: int = MAX_LONG,
    isolation: FetchIsolation = FetchIsolation.LOG_END,
    at_least_one: bool = True,
) -> FetchedBytes:
    """Return whole batches from `start_offset`, at most `max_bytes` of them.

    The first may begin below `start_offset`. With `at_least_one` it is returned even if it alone is larger.
    At or past `until` and the end for `isolation` nothing is returned. With TXN_COMMITTED the aborted
    transactions among the batches are listed. Raises `OffsetOutOfRange` outside of [log start, log end],
    `CorruptBatch` or `CorruptIndex` if the log is damaged.
    """
    end_offset = log.log_end_offset
    if not log.log_start_offset <= start_offset <= end_offset:
        raise OffsetOutOfRange(start_offset, log.log_start_offset, end_offset)
    if log.is_closed:
        raise LogClosed(f"{log.directory} was closed; open it again")
    return _undisturbed(log, lambda: _read(log, start_offset, max_bytes, until, isolation, at_least_one))


def _undisturbed(log: PartitionLog, read: Callable[[], T]) -> T:
    """Return the result of a `read` during which no segment went away and no byte was cut.

    Across a cut, a result mixes the log before and after it, and an error may describe neither.
    """
    while True:
        cuts = log.cuts
        try:
            found = read()
        except _SegmentGone:
            continue  # another segment may hold its records now
        except Exception as error:
            if log.is_inherited and isinstance(error, CorruptBatch | CorruptIndex):
                raise _changed_by_parent(log) from error
            if cuts == log.cuts:
                raise
        else:
            if cuts == log.cuts:
                return found


def _read(
    log: PartitionLog,
    start_offset: int,
    max_bytes: int,
    until: int,
    isolation: FetchIsolation,
    at_least_one: bool,
) -> FetchedBytes:
    if start_offset < log.log_start_offset:  # it moved since: the segment may be gone for that reason
        raise OffsetOutOfRange(start_offset, log.log_start_offset, log.log_end_offset)
    end_offset = min(until, end_offset_for(log, isolation))
    segments, records = log.segments, b""
    fetched = FetchedBytes(b"", start_offset, segments.active.base_offset, segments.active.size, start_offset)
    for segment in segments.since(start_offset):
        # Also not past an end that lies inside a batch, as a log start may.
        if segment.base_offset >= end_offset or start_offset >= end_offset:
            break
        # No checksum covers the offset of a batch. It cannot be past its segment.
        following = None if segment is segments.active else segments.higher(segment.base_offset)
        end = end_offset if following is None else min(end_offset, following.base_offset)
        try:
            found = read_batches(segment, start_offset, max_bytes, end, at_least_one=at_least_one)
        except OSError as error:
            _read_failed(log, segment, error)
            raise _SegmentGone from error
        if found is not None:
            records, position, next_offset = found
            fetched = FetchedBytes(records, start_offset, segment.base_offset, position, next_offset)
            break
    first = int.from_bytes(records[:8], signed=True) if records else end_offset
    if first > start_offset and (records or at_least_one):
        _check_gap(log, start_offset, fetched)
    if records and isolation is FetchIsolation.TXN_COMMITTED:
        aborted = aborted_transactions(log, start_offset, fetched.next_offset)
        fetched = fetched._replace(aborted=aborted)
    return fetched


def _check_gap(log: PartitionLog, start_offset: int, fetched: FetchedBytes) -> None:
    """Raise `CorruptBatch` if damage is the reason why no batch holds `start_offset`."""
    holder = log.segments.floor(start_offset)
    if holder is None:
        return
    try:
        is_hole = _is_hole(log, holder, start_offset, fetched)
    except OSError as error:
        _read_failed(log, holder, error)
        raise _SegmentGone from error
    if is_hole:
        name, text = file_name(holder.base_offset, LOG_SUFFIX), "no batch holds this offset"
        damage = Damage(DamageKind.HOLE, name, 0, start_offset, text, 0)
        raise CorruptBatch(
            f"{log.directory}: {damage}; verify the log, or fetch it from another replica", damage
        )


# --- checked bytes ----------------------------------------------------------------------------------


def read_checked(
    log: PartitionLog,
    start_offset: int,
    max_bytes: int = READ_BYTES,
    *,
    isolation: FetchIsolation = FetchIsolation.LOG_END,
    at_least_one: bool = True,
) -> FetchedBytes:
    """Do as `read_bytes`, and return only sound batches: checksum, order of offsets, epochs.

    Stops before the first batch that is not sound, and raises `DamagedLog`, which names it, if that is the
    first of all. Judges the bytes in hand each time: no earlier check, and nothing that the kernel tells of
    its page cache, holds for them (decision 073).
    """
    end_offset = log.log_end_offset
    try:
        fetched = read_bytes(log, start_offset, max_bytes, isolation=isolation, at_least_one=at_least_one)
    except (CorruptBatch, CorruptIndex) as error:
        known = error.damage if isinstance(error, CorruptBatch) else None
        raise _damaged(log, known or _damage_of(log, start_offset, error)) from error
    records, position = fetched.records, fetched.position
    segment = log.segments.get(fetched.segment_base_offset)
    if segment is None:
        return fetched
    following = log.segments.higher(segment.base_offset)
    # Either end: appends and truncations may have moved it meanwhile.
    bound = following.base_offset if following is not None else max(end_offset, log.log_end_offset)
    if not records or _are_sound(log, segment.base_offset, records, bound):
        return fetched
    sound = sound_batches_of(log, segment.base_offset, records, bound)
    if sound.fault is None:
        return fetched
    next_offset = int(sound.last_offsets[-1]) + 1 if len(sound.headers) else start_offset
    if sound.end and next_offset > start_offset:
        return fetched._replace(records=records[: sound.end], next_offset=next_offset)
    name = file_name(segment.base_offset, LOG_SUFFIX)
    text, at = sound.fault.value, position + sound.end
    raise _damaged(log, Damage(DamageKind.BAD_BATCH, name, at, start_offset, text, len(records)))


def _damaged(log: PartitionLog, damage: Damage) -> DamagedLog:
    return DamagedLog(f"{log.directory}: {damage}", [damage])


def _is_hole(log: PartitionLog, holder: Segment, offset: int, fetched: FetchedBytes) -> bool:
    """Return whether damage explains that `holder` has no batch with `offset`.

    It may also have been compacted away or cut. A truncation leaves a gap only behind the last batch of a
    segment, and a seal tells where that ended. Every segment may have been compacted once, the active one of
    a follower too: its leader had compacted the batches before it sent them.
    """
    successor = log.segments.higher(holder.base_offset)
    if successor is not None:
        located = locate_in_order(holder, offset)
        if located is not None and located.last_offset >= successor.base_offset:
            return True
    if not is_dense(log):
        return False
    is_within = bool(fetched.records) and fetched.segment_base_offset == holder.base_offset
    seal = holder.seal
    if holder is log.segments.active:
        if not is_within:
            return holder.size > 0
    elif seal is not None and offset >= seal.end_offset:
        return False
    # The batches have the last word: a seal may be of bytes that had rotted before the roll.
    with log.lock:
        successor = log.segments.higher(holder.base_offset)
        end_offset = log.log_end_offset if successor is None else successor.base_offset
        expected = Expected(holder.base_offset, holder.size, end_offset, None, log.epochs)
    with holder.log_for_reading() as file:
        if seal is not None and next(broken_blocks(file, seal), None) is not None:
            return True
        is_damaged = any(step.damages for step in judge_segment(file, expected))
    if is_within and not is_damaged:
        log.has_gaps = True
    return is_damaged


def _are_sound(log: PartitionLog, base_offset: int, data: bytes, bound: int) -> bool:
    """Return whether `sound_batches_of` would find no fault; False also for many small batches.

    For others it is faster than a table of their headers.
    """
    start, total = 0, len(data)
    if _HEADER.unpack_from(data)[1] < COMPILED_BELOW_BYTES and total > _MANY_BYTES:
        return False
    view, history, expects_none = memoryview(data), log.epochs, is_dense(log)
    next_offset, limit = base_offset, min(bound - 1, base_offset + MAX_INT)
    newest, known_until = -1, -1
    unpack, checksum = _HEADER.unpack_from, crc32c
    while start < total:
        if total - start < HEADER_BYTES:
            return False
        first, length, epoch, magic, crc, _, delta = unpack(data, start)
        end = start + LOG_OVERHEAD + length
        if magic != MAGIC or delta < 0 or not start + HEADER_BYTES <= end <= total:
            return False
        if first < next_offset or first + delta > limit or (first > next_offset and start and expects_none):
            return False
        if epoch != newest or first >= known_until:
            slot = bisect_right(history, first, key=_START_OFFSET)
            if epoch != -1 and (epoch < newest or (slot and history[slot - 1].epoch != epoch)):
                return False
            known_until = history[slot].start_offset if slot < len(history) else MAX_LONG
            newest = max(epoch, newest)
        if checksum(view[start + CRC_START : end]) != crc:
            return False
        start, next_offset = end, first + delta + 1
    return True


def sound_batches_of(log: PartitionLog, base_offset: int, data: bytes, bound: int = MAX_LONG) -> Scanned:
    """Return the batches in `data` up to the first that is not sound or not of this log's history.

    `base_offset` is that of their segment, `bound` the offset at which it ends at the latest: no checksum
    covers the offset of a batch.
    """
    found = scan_buffer(data, len(data))
    wrong = order_faults(found, base_offset, base_offset, -1)
    is_wrong = wrong.offsets | wrong.epochs | wrong.overflows | (found.last_offsets >= bound)
    if is_dense(log):
        # The batch before a hole, or behind it, may have another's offset. A read from there on tells more.
        is_wrong[1:] |= found.headers["base_offset"][1:] > found.last_offsets[:-1] + 1
    if is_wrong.any():
        found = found.until(int(is_wrong.argmax()), Fault.OFFSETS)
    return check_history(found, log.epochs, next_offset=0, durable_end=MAX_LONG, is_dense=False)


def _damage_of(log: PartitionLog, offset: int, error: CorruptBatch | CorruptIndex) -> Damage:
    """Describe the damage that a read from `offset` met: in that segment, or in an index it needed."""
    kind, suffix, holder = DamageKind.BAD_BATCH, LOG_SUFFIX, log.segments.floor(offset) or log.segments.first
    for segment in log.segments.since(offset) if isinstance(error, CorruptIndex) else ():
        try:
            _ = segment.aborts.index
        except CorruptIndex:
            kind, suffix, holder = DamageKind.INDEX, TRANSACTION_INDEX_SUFFIX, segment
            break
    return Damage(kind, file_name(holder.base_offset, suffix), 0, offset, str(error), 0)


def _read_failed(log: PartitionLog, segment: Segment, error: OSError) -> None:
    """Take the log offline, unless the file was truncated, deleted or closed under its reader."""
    with log.lock:  # held by whoever removes files, until `segments` is up to date
        if log.is_closed:
            raise LogClosed(f"{log.directory} was closed; open it again") from error
        if log.segments.get(segment.base_offset) is segment:
            if is_shortage(error):
                raise refusal(error, log.directory, "nothing was read", "read again") from error
            if log.is_inherited:
                raise _changed_by_parent(log) from error
            log.fail(error)


def _changed_by_parent(log: PartitionLog) -> LogClosed:
    return LogClosed(
        f"{log.directory} belongs to the parent process, which has changed it since the fork (or the files "
        "are damaged); a forked child can read it with LogReader"
    )


def is_cold(log: PartitionLog, start_offset: int, max_bytes: int) -> bool:
    """Return whether `read_bytes` may have to wait for the device: then read on another thread first.

    If the platform cannot tell, the active segment counts as cached and the others do not. Where a read
    would raise, nothing is cold.
    """
    segments = log.segments
    if log.is_closed or not log.log_start_offset <= start_offset < log.log_end_offset:
        return False
    segment = segments.floor(start_offset)
    if segment is None:
        return False
    try:
        found = is_cached(segment, start_offset, max_bytes)
    except OSError:
        return False  # the read reports the error
    return segment is not segments.active if found is None else not found


def read_ahead(log: PartitionLog, start_offset: int, max_bytes: int) -> None:
    """Bring bytes that are cold into the page cache. Errors are left to the next read."""
    try:
        read_bytes(log, start_offset, max_bytes)
    except EngineError:
        pass


# --- pieces -----------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Fetched batches, and the epoch history of their log, which they must match; None if it is not known."""

    fetched: FetchedBytes
    history: Sequence[EpochEntry] | None = None
    directory: str = ""


def iter_pieces(
    log: PartitionLog, start_offset: int, isolation: FetchIsolation, *, until: int = MAX_LONG
) -> Iterator[Piece]:
    """Yield the batches from `start_offset` to the end as it is when it is reached, or up to `until`.

    Reads little at first: whoever wants few records does not pay for a megabyte. Raises as `read_bytes`, and
    `CorruptBatch` if the log ends later than its batches.
    """
    offset, max_bytes = start_offset, FIRST_READ_BYTES
    while offset < until:
        history, end_offset = log.epochs, end_offset_for(log, FetchIsolation.LOG_END)
        fetched = read_bytes(log, offset, max_bytes, until=until, isolation=isolation)
        max_bytes = min(4 * max_bytes, PIECE_BYTES)
        if not fetched.records:
            if isolation is FetchIsolation.LOG_END and offset < end_offset:
                _check_ended(log, offset)
            return
        if _will_pay(fetched, min(until, log.log_end_offset)):
            use_compiled()
        # Other epochs: a cut may have come between, and the bytes are older than it.
        yield Piece(fetched, history if log.epochs is history else None, log.directory)
        offset = fetched.next_offset


def _check_ended(log: PartitionLog, offset: int) -> None:
    """Raise `CorruptBatch` if the log holds records from `offset` on but no batch was found there."""
    with log.lock:
        is_written = offset < end_offset_for(log, FetchIsolation.LOG_END) and log.segments.active.size
        if is_written and not read_bytes(log, offset).records:
            raise CorruptBatch(
                f"{log.directory}: no batch from offset {offset} on, but the log ends at "
                f"{log.log_end_offset}; verify the log, or fetch it from another replica"
            )


def _will_pay(fetched: FetchedBytes, end_offset: int) -> bool:
    """Whether so many bytes of small batches follow that loading numba takes less time than it saves."""
    size, first = len(fetched.records), fetched.start_offset
    if size < PIECE_BYTES // 2 or Batch(fetched.records).size > SMALL_BYTES:
        return False
    return (end_offset - fetched.next_offset) * size >= COMPILED_FROM_BYTES * (fetched.next_offset - first)


# --- times ------------------------------------------------------------------------------------------


def offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, *, isolation: FetchIsolation = FetchIsolation.LOG_END
) -> TimestampOffset | None:
    """Return the first record whose time is at or past `timestamp_ms`; None if there is none."""
    if log.is_closed:
        raise LogClosed(f"{log.directory} was closed; open it again")
    return _undisturbed(log, lambda: _find_timestamp(log, timestamp_ms, isolation))


def _find_timestamp(
    log: PartitionLog, timestamp_ms: int, isolation: FetchIsolation
) -> TimestampOffset | None:
    start_offset, end_offset = log.log_start_offset, end_offset_for(log, isolation)
    for segment in log.segments:
        try:
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            batch = find_timestamp(segment, timestamp_ms, start_offset, end_offset)
        except OSError as error:
            _read_failed(log, segment, error)
            raise _SegmentGone from error
        except CorruptBatch as error:
            name, offset = file_name(segment.base_offset, LOG_SUFFIX), segment.base_offset
            damage = Damage(DamageKind.BAD_BATCH, name, 0, offset, str(error), 0)
            raise CorruptBatch(str(error), damage) from error
        if batch is None:
            continue
        for record in batch.records():
            if record.timestamp_ms >= timestamp_ms and start_offset <= record.offset < end_offset:
                return TimestampOffset(record.timestamp_ms, record.offset, batch.leader_epoch)
    return None


def offset_of_largest_timestamp(log: PartitionLog) -> TimestampOffset | None:
    """Return the first record with the largest time in the log; None if no record has a time."""
    largest_ms = max((segment.max_timestamp_ms for segment in log.segments), default=-1)
    found = offset_for_timestamp(log, largest_ms) if largest_ms >= 0 else None
    start_offset = log.log_start_offset
    if found is None and largest_ms >= 0 and start_offset > log.segments.first.base_offset:
        # Of a record below the log start: its segment does not tell the largest time of the others.
        _, *whole = log.segments.since(start_offset)
        until = whole[0].base_offset if whole else MAX_LONG
        times = [segment.max_timestamp_ms for segment in whole]
        largest_ms = max([_largest_time_between(log, start_offset, until), *times])
        found = offset_for_timestamp(log, largest_ms) if largest_ms >= 0 else None
    return found


def _largest_time_between(log: PartitionLog, start_offset: int, until: int) -> int:
    """Return the largest time of the records in [start_offset, until), -1 for none, mostly from headers."""
    largest_ms = -1
    for piece in iter_pieces(log, start_offset, FetchIsolation.LOG_END, until=until):
        data = piece.fetched.records
        headers = scan_buffer(data, len(data)).headers
        if headers["base_offset"][0] < start_offset:
            above = (each for each in Batch(data).records() if each.offset >= start_offset)
            largest_ms, headers = max((each.timestamp_ms for each in above), default=-1), headers[1:]
        largest_ms = max(largest_ms, int(headers["max_timestamp"].max(initial=-1)))
    return largest_ms


# --- transactions -----------------------------------------------------------------------------------


def aborted_transactions(
    log: PartitionLog, start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions that overlap [start_offset, end_offset), in order of their markers.

    For an `end_offset` up to the last stable offset; a later transaction may not be decided yet. Raises
    `LogDirOffline`, and `CorruptIndex` if a transaction index was damaged since the log was opened.
    """
    return _undisturbed(
        log, lambda: aborted_between(_transaction_indexes(log, start_offset), start_offset, end_offset)
    )


def _transaction_indexes(log: PartitionLog, offset: int) -> Iterator[TransactionIndex]:
    for segment in log.segments.since(offset):
        try:
            yield segment.aborts.index
        except OSError as error:
            _read_failed(log, segment, error)
            raise _SegmentGone from error


def open_transactions(log: PartitionLog) -> tuple[OpenTransaction, ...]:
    """Return the transactions without a marker, oldest first; the oldest bounds committed reads."""
    with log.lock:
        return log.producer_state.open_transactions()


def late_transactions(log: PartitionLog, now_ms: int, largest_timeout_ms: int) -> tuple[OpenTransaction, ...]:
    """Return the transactions that no coordinator will end: five minutes past the largest timeout.

    It costs nothing while all are decided.
    """
    if log.producer_state.first_unstable_offset is None:
        return ()
    limit_ms = largest_timeout_ms + LATE_MS
    return tuple(each for each in open_transactions(log) if now_ms - each.last_timestamp_ms > limit_ms)
