"""Turn the records of an application into batches, and append them.

    values, pairs   ──►  `MadeBatch`: the bytes, and known facts about them   ──►  the log
    records         ──►  bytes, validated like a client's                     ──►  (`append.py`)
    ready batches   ──►

A batch that was encoded here from plain bytes is not parsed again: its record count, its timestamp and
missing keys are known. `may_enter` compares them with the topic's settings. A batch that may be refused or
changed is validated like a client's batch, and the error lists the invalid records.

`append_value` is the short path for one small value: until the segment is full or old no decision changes, so
`stretch.py` makes all of them once for a run of values.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import accumulate, chain, islice
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from logstore.config import MAX_LONG, LogConfig
from logstore.disk.files import Buffer
from logstore.format.batch import (
    HEADER_BYTES,
    Batch,
    encode_batch,
    finish_plain,
    set_offsets_and_epoch,
    with_room,
)
from logstore.format.compression import Codec
from logstore.format.record import (
    MAX_PLAIN_BYTES,
    MAX_PLAIN_VALUES,
    NO_TIMESTAMP,
    Record,
    data_of,
    encode_equal_values,
    encode_pairs,
    encode_rows,
    encode_values,
    headers_of,
)
from logstore.log.append import (
    AppendInfo,
    Prepared,
    append_one,
    new_info,
    nothing_appended,
    place_and_write,
    write_failed,
)
from logstore.log.append_many import append_many_as_leader
from logstore.log.interrupts import APPENDING, begin_change, change_failed, end_change
from logstore.log.partition_log import PartitionLog
from logstore.log.stretch import begin_stretch

STAND_ALONE_EPOCH: Final = 0
"""The leader epoch of a log that no leader has written to."""
Pair: TypeAlias = tuple[bytes | None, bytes | None]
Appendable: TypeAlias = Buffer | Record | Batch | Pair | None
"""A value, a record (its offset is ignored), a ready batch, or a (key, value) pair."""

RECORD_OVERHEAD = 32
"""The estimated size of a record in addition to its key, value and headers."""
_HEADER_OVERHEAD = 10
"""The most that a header takes in addition to its name and value."""
READY_BYTES = 1 << 20
"""Batches for validation are joined up to this size."""
ROWS_AT_A_TIME = 4096
"""The number of items that are taken at a time from an iterator; batches end there too."""
WORTH_A_TABLE = 128
WORTH_A_CALL = 16
"""From so many rows on, compiled code is faster than the loop."""
_NOT_ENCODABLE = (TypeError, AttributeError, OverflowError, struct.error)


class MadeBatch(NamedTuple):
    """A batch that was encoded here, at offset 0. Its records have one timestamp and no headers."""

    data: bytearray
    record_count: int
    timestamp_ms: int
    is_keyed: bool
    """Whether every record has a key."""


class Compression(NamedTuple):
    """The codec and level of a batch; a level of None is the codec's default."""

    codec: Codec
    level: int | None = None


PLAIN: Final = Compression(Codec.NONE)


def full_batch_bytes(config: LogConfig) -> int:
    """Return the size at which a batch of records is full.

    With the record that fills it, which is smaller, it is below `max.message.bytes` and `segment.bytes`.
    """
    return max((min(config.max_message_bytes, config.segment_bytes) - HEADER_BYTES) // 2, 1)


def size_of(record: Record) -> int:
    """Return the estimated size of a record in a batch. Raises `TypeError` for invalid parts."""
    try:
        size = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD
        for name, value in record.headers:
            size += len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD
        return size
    except _NOT_ENCODABLE as error:
        raise _wrong_part(error) from error


def compression_of(config: LogConfig) -> Compression:
    """Return how the log compresses batches that it makes itself."""
    kind = config.compression_type
    if kind in ("producer", "uncompressed"):
        return PLAIN
    return Compression(Codec[kind.upper()], config.compression_level)


def batch_of_one(
    key: bytes | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, bytes | None]],
    timestamp_ms: int,
    compression: Compression,
) -> MadeBatch | bytes:
    """Encode one record. Raises `TypeError` for invalid parts, `ValueError` for an invalid timestamp."""
    if type(value) is not bytes:
        value = data_of(value)
    if key is not None:
        key = data_of(key)
    if not headers:
        return _made(*encode_pairs(((key, value),)), timestamp_ms, compression, is_keyed=key is not None)
    record = Record(0, timestamp_ms, key, value, headers_of(headers))
    try:
        return encode_batch([record], codec=compression.codec, level=compression.level)
    except _NOT_ENCODABLE as error:
        raise _wrong_part(error) from error


def batches_of(
    items: Iterable[Appendable], *, now_ms: int, compression: Compression, target_bytes: int
) -> Iterator[MadeBatch | bytes]:
    """Yield `items` as batches of about `target_bytes`: `MadeBatch`es, or joined batches for validation.

    Consecutive records share batches; records without a timestamp get `now_ms`. Raises `TypeError` for other
    items and for invalid parts of a record, `ValueError` for a timestamp below -1.
    """
    for rows in _in_pieces(items):
        if list(map(type, rows)).count(bytes) == len(rows):
            values: Sequence[bytes] = rows  # type: ignore[assignment]
            yield from _of_values(values, now_ms, compression, target_bytes)
        elif _are_plain_pairs(rows):
            yield from _of_pairs(rows, now_ms, compression, target_bytes)
        else:
            yield from _together(_of_any(rows, now_ms, compression, target_bytes))


def _in_pieces(items: Iterable[Appendable]) -> Iterator[Sequence[Appendable]]:
    if isinstance(items, list | tuple):
        if items:
            yield items
        return
    rest = iter(items)
    while rows := list(islice(rest, ROWS_AT_A_TIME)):
        yield rows


def _are_plain_pairs(rows: Sequence[Appendable]) -> TypeGuard[Sequence[Pair]]:
    # To count takes half the time of a set.
    if list(map(type, rows)).count(tuple) < len(rows) or list(map(len, rows)).count(2) < len(rows):  # type: ignore[arg-type]
        return False
    # Exactly bytes: the `len` of another buffer may not be its size in bytes.
    kinds = list(map(type, chain.from_iterable(rows)))  # type: ignore[arg-type]
    return kinds.count(bytes) + kinds.count(NoneType) == len(kinds)


def _of_values(
    values: Sequence[bytes], timestamp_ms: int, compression: Compression, target_bytes: int
) -> Iterator[MadeBatch]:
    if made := _compiled(values, timestamp_ms, compression, target_bytes):
        yield made
        return
    sizes = list(map(len, values))
    size, count = sizes[0], len(sizes)
    # The last size first: it nearly always tells at once that they differ.
    are_equal = size == sizes[-1] and sizes.count(size) == count
    for start, stop in _runs(sizes, target_bytes):
        some = values[start:stop]
        if made := _compiled(some, timestamp_ms, compression, 2 * target_bytes):
            yield made
            continue
        if are_equal and 0 < size < MAX_PLAIN_BYTES and count >= WORTH_A_TABLE:
            parts: Sequence[Buffer] = encode_equal_values(some, size)
        else:
            parts = _encoded_values(some, sizes[start:stop])
        yield _made(parts, len(some), timestamp_ms, compression, is_keyed=False)


def _size_of_plain(row: bytes | Pair) -> int:
    return len(row) if isinstance(row, bytes) else len(row[0] or b"") + len(row[1] or b"")


def _compiled(
    rows: Sequence[bytes] | Sequence[Pair], timestamp_ms: int, compression: Compression, most_bytes: int
) -> MadeBatch | None:
    """Encode values, or pairs, as one batch without a step in Python for each.

    None if no compiled code is installed, or they are few, or have more than `most_bytes`.
    """
    if not WORTH_A_CALL <= len(rows) <= MAX_PLAIN_VALUES:
        return None
    # The sizes of the first and the last row come first: a later refusal costs a copy of all rows.
    if max(_size_of_plain(rows[0]), _size_of_plain(rows[-1])) * len(rows) > most_bytes:
        return None
    encoded = encode_rows(rows if type(rows) is list else list(rows), HEADER_BYTES)
    if encoded is None or len(encoded[0]) - HEADER_BYTES > most_bytes:
        return None
    records, keyless = encoded
    return _finished(records, len(rows), timestamp_ms, compression, is_keyed=not keyless)


def _encoded_values(values: Sequence[bytes], sizes: Sequence[int]) -> Sequence[Buffer]:
    try:
        return encode_values(values, sizes)
    except IndexError:  # one of them is large
        return encode_pairs([(None, value) for value in values])[0]


def _of_pairs(
    pairs: Sequence[Pair], timestamp_ms: int, compression: Compression, target_bytes: int
) -> Iterator[MadeBatch]:
    if made := _compiled(pairs, timestamp_ms, compression, target_bytes):
        yield made
        return
    sizes = list(map(_size_of_plain, pairs))
    for start, stop in _runs(sizes, target_bytes):
        some = pairs[start:stop]
        if made := _compiled(some, timestamp_ms, compression, 2 * target_bytes):
            yield made
        else:
            is_keyed = all(key is not None for key, _ in some)
            yield _made(*encode_pairs(some), timestamp_ms, compression, is_keyed=is_keyed)


def _runs(sizes: Sequence[int], target_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each batch among records of these sizes.

    The filling record is included, unless it fills a batch by itself.
    """
    if 0 < len(sizes) <= MAX_PLAIN_VALUES and sum(sizes) + RECORD_OVERHEAD * len(sizes) <= target_bytes:
        yield 0, len(sizes)
        return
    ends = list(accumulate(map(RECORD_OVERHEAD.__add__, sizes)))
    start, done = 0, 0
    while start < len(ends):
        stop = min(bisect_left(ends, done + target_bytes, start) + 1, start + MAX_PLAIN_VALUES, len(ends))
        if stop > start + 1 and sizes[stop - 1] + RECORD_OVERHEAD >= target_bytes:
            stop -= 1
        yield start, stop
        start, done = stop, ends[stop - 1]


def _made(
    parts: Sequence[Buffer], count: int, timestamp_ms: int, compression: Compression, *, is_keyed: bool
) -> MadeBatch:
    """Make a batch of encoded records, given in pieces."""
    try:
        batch = with_room(parts)
    except _NOT_ENCODABLE as error:
        raise _wrong_part(error) from error
    return _finished(batch, count, timestamp_ms, compression, is_keyed=is_keyed)


def _finished(
    batch: bytearray, count: int, timestamp_ms: int, compression: Compression, *, is_keyed: bool
) -> MadeBatch:
    try:
        if timestamp_ms < NO_TIMESTAMP:
            raise ValueError(f"timestamp is {timestamp_ms} ms; it must be -1 (none) or at least 0")
        finish_plain(batch, count, timestamp_ms, *compression)
        return MadeBatch(batch, count, timestamp_ms, is_keyed)
    except _NOT_ENCODABLE as error:
        raise _wrong_part(error) from error


def _of_any(
    rows: Iterable[Appendable], now_ms: int, compression: Compression, target_bytes: int
) -> Iterator[Buffer]:
    pending: list[Record] = []
    pending_bytes = 0
    for item in rows:
        if isinstance(item, Batch):
            if pending:
                yield _encoded(pending, compression)
                pending, pending_bytes = [], 0
            yield item.buffer
            continue
        record = _record_of(item, len(pending), now_ms)
        size = size_of(record)
        if pending and size >= target_bytes:
            yield _encoded(pending, compression)
            record = record._replace(offset=0)
            pending, pending_bytes = [], 0
        pending.append(record)
        pending_bytes += size
        if pending_bytes >= target_bytes:
            yield _encoded(pending, compression)
            pending, pending_bytes = [], 0
    if pending:
        yield _encoded(pending, compression)


def _together(batches: Iterable[Buffer]) -> Iterator[bytes]:
    group: list[Buffer] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += len(batch)
        if size >= READY_BYTES:
            yield b"".join(group)
            group, size = [], 0
    if group:
        yield b"".join(group)


def _encoded(records: list[Record], compression: Compression) -> bytes:
    try:
        return encode_batch(records, codec=compression.codec, level=compression.level)
    except _NOT_ENCODABLE as error:
        raise _wrong_part(error) from error


def _record_of(item: Appendable, offset: int, now_ms: int) -> Record:
    match item:
        case Record():
            return item._replace(
                offset=offset,
                key=data_of(item.key),
                value=data_of(item.value),
                headers=headers_of(item.headers),
            )
        case tuple() if len(item) == 2:
            return Record(offset, now_ms, data_of(item[0]), data_of(item[1]))
        case None:
            return Record(offset, now_ms, None, None)
        case bytes() | bytearray() | memoryview():
            return Record(offset, now_ms, None, bytes(item))
    raise not_appendable(item)


def is_one_value(given: object) -> bool:
    """Return whether an iterable is one value: text is not split, nor a mapping read for its keys alone."""
    return isinstance(given, str | Mapping) or is_dataclass(given) or hasattr(given, "model_dump")


def not_appendable(item: object) -> TypeError:
    """Return the error for an `item` that cannot be appended."""
    return TypeError(
        f"{type(item).__name__} is not a value (bytes or None), a record, a (key, value) pair or a batch; "
        'encode it, or open the log with a serializer (serializer="json"), and use a Record for headers'
    )


def _wrong_part(error: Exception) -> TypeError:
    return TypeError(
        "keys, values and header values must be bytes or None, header names str, timestamps int (ms): "
        f"{error}"
    )


# --- to the log -----------------------------------------------------------------------------------


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


def append_made(log: PartitionLog, batch: MadeBatch, *, leader_epoch: int, now_ms: int) -> AppendInfo:
    """Append a batch that this process encoded (`outgoing.py`): its records are not read again.

    Its bytes are stamped in place. Raises what `append_as_leader` raises.
    """
    with log.lock:
        if log.changing or not log.is_writable:
            begin_change(log)
        try:
            log.changing = APPENDING  # as `as_change`, without its cost
            data = batch.data
            if len(data) > log.config.segment_bytes or not may_enter(batch, now_ms, log.config):
                info = append_one(log, bytes(data), leader_epoch, now_ms)
            else:
                first_offset, time_ms = log.log_end_offset, batch.timestamp_ms
                last_offset = first_offset + batch.record_count - 1
                set_offsets_and_epoch(data, base_offset=first_offset, leader_epoch=leader_epoch)
                if leader_epoch != log.latest_epoch:
                    log.enter_epoch(leader_epoch, first_offset)
                extents = ((len(data), last_offset, time_ms),)
                prepared = Prepared(data, extents, first_offset, last_offset, time_ms)
                info = place_and_write(log, prepared, now_ms)
            if not log.changing:
                end_change(log)  # raises
            log.changing = ""
        except BaseException as error:
            log.is_interrupted = True
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
            write_failed(log, error)
        except BaseException as error:
            log.is_interrupted = True
            change_failed(log, error)
            raise
        if log.waiters.waiting:
            log.waiters.wake()
        return new_info(
            AppendInfo, (offset, offset, now_ms, NO_TIMESTAMP, log.log_start_offset, False, False, ())
        )


def begin_short_path(log: PartitionLog) -> None:
    """Let `append_value` append the next values, unless the settings require a decision for each of them."""
    with log.lock:
        if log.is_writable:
            log.stretch = begin_stretch(log.segments.active, log.config, log.epoch_cache)
