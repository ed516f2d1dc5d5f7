"""Append to a log as a follower: the leader's batches, byte for byte.

A follower checks only whether the batches follow its own log. It keeps the offsets and epochs that the leader
gave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logstore.config import MAX_INT, MAX_LONG
from logstore.disk.files import Buffer
from logstore.errors import CorruptBatch, InvalidRecord, OffsetsOutOfOrder, UnexpectedAppendOffset
from logstore.format.batch import Batch, walk
from logstore.format.record import NO_TIMESTAMP
from logstore.log.append import AppendInfo, Prepared, as_change, nothing_appended, place_and_write
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import marker_of


def append_as_follower(log: PartitionLog, data: Buffer, *, leader_epoch: int) -> AppendInfo:
    """Append a leader's batches byte for byte; a torn last batch is left out.

    Raises `UnexpectedAppendOffset` below the log end, `OffsetsOutOfOrder`, `CorruptBatch`, `InvalidRecord`
    for an epoch above `leader_epoch` or a marker that cannot be read, `DiskFull` or `LogDirOffline`; nothing
    is written then.
    """
    return as_change(_append_leaders, log, data, leader_epoch)


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
        place_and_write(log, part, now_ms)
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


def check_markers(batches: Iterable[Batch]) -> None:
    """Raise `InvalidRecord` for a control batch that `replay` cannot apply."""
    for batch in batches:
        if batch.is_control and batch.has_producer_id:
            marker_of(batch)
