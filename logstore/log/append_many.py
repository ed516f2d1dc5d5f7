"""Append many ready batches at once, as the leader of a log.

Plain batches are checked and stamped by the megabyte, with numpy or compiled code, and written together.
"""

from __future__ import annotations

from typing import Final

from logstore.config import MAX_LONG, LogConfig
from logstore.disk.files import Buffer
from logstore.errors import InvalidRecord
from logstore.format.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    Batch,
    set_offsets_and_epoch,
    walk,
)
from logstore.format.record import NO_TIMESTAMP
from logstore.format.record_parser import check_many
from logstore.lazily import np
from logstore.log.append import AppendInfo, Prepared, append_one, as_change, nothing_appended, place_and_write
from logstore.log.partition_log import PartitionLog
from logstore.segment.scan import Fault, scan_buffer

GROUP_BYTES: Final = 1 << 20
WORTH_GROUPING: Final = 4


def append_many_as_leader(log: PartitionLog, data: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
    """Append the batches that lie end to end in `data`, each as `append_as_leader` would.

    Raises what it raises, and `CorruptBatch` for a torn last batch; batches before a refused one stay
    appended.
    """
    info: AppendInfo | None = None
    view, position = memoryview(data), 0
    while position < len(view) or info is None:
        size, appended = as_change(_append_some, log, view[position:], leader_epoch, now_ms)
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
        return first.size, append_one(log, first.buffer, leader_epoch, now_ms)
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
        return len(group.data), place_and_write(log, group, now_ms)
    info, taken = nothing_appended(log), 0
    for batch in walk(data[:size]):
        info = info.joined(append_one(log, batch.buffer, leader_epoch, now_ms))
        taken += batch.size
    assert taken, "the walk must find the first batch"
    return taken, info


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
