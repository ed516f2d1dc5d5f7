"""The content of a log directory's file as plain facts: one mapping per batch, record, entry or line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from logstore.checkpoint.clean_shutdown import parse_clean_shutdown
from logstore.checkpoint.entry_files import parse_leader_epoch_checkpoint, parse_offset_checkpoint
from logstore.checkpoint.identity import META_PROPERTIES, parse_partition_metadata, parse_properties
from logstore.cli.decoders import Decoders, Undecoded
from logstore.cli.inspection import FileRole, Kind, LogFile, index_entries
from logstore.cli.terminal import Encoding, as_text
from logstore.cli.verification import Problem, judge_tail
from logstore.config import MAX_LONG
from logstore.disk.errors import CorruptCheckpoint, EngineError
from logstore.errors import CorruptBatch
from logstore.format.batch import Batch, TimestampType, walk
from logstore.format.record import Record
from logstore.format.state_records import decode_control
from logstore.log.cursor_file import parse_cursors
from logstore.log.producer_state import ProducerEntry, decode_snapshot
from logstore.segment.seal import Seal, decode_seal
from logstore.segment.transaction_index import TransactionIndex

Fact: TypeAlias = dict[str, object]

_TIMESTAMP_TYPES = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class Selection(NamedTuple):
    """Selects the batches and records to show: bounds are inclusive, times are epoch milliseconds.

    `key` is compared with the key as it is shown; of an internal topic's key, with each of its fields.
    `max_bytes` limits how much of each `.log` is read.
    """

    from_offset: int = 0
    to_offset: int = MAX_LONG
    from_time_ms: int = -1
    to_time_ms: int = MAX_LONG
    key: str | None = None
    max_bytes: int = MAX_LONG

    def is_before_end(self, position: int, batch: Batch) -> bool:
        """Whether this batch and later ones may be shown."""
        return batch.base_offset <= self.to_offset and position + batch.size <= self.max_bytes

    def has_batch(self, batch: Batch) -> bool:
        """Whether the batch may hold a record that is shown."""
        return batch.last_offset >= self.from_offset and batch.max_timestamp_ms >= self.from_time_ms

    def has_place(self, record: Record) -> bool:
        """Whether the record lies between the bounds."""
        is_there = self.from_offset <= record.offset <= self.to_offset
        return is_there and self.from_time_ms <= record.timestamp_ms <= self.to_time_ms

    def has_key(self, key: object) -> bool:
        """Whether a record with this shown part of its key is shown."""
        return self.key is None or self.key in _texts(key)


def _texts(key: object) -> list[str]:
    data = key.get("data") if isinstance(key, dict) else None
    return [str(each) for each in data.values()] if isinstance(data, dict) else [str(key)]


class Shown(NamedTuple):
    """The records of a log to show, and how to show them."""

    records: bool
    decoders: Decoders
    selection: Selection


def record_facts(
    batch: Batch, name: str, shown: Shown, *, segment: int, position: int
) -> Iterator[Fact | Problem]:
    """Yield the selected records of a batch at byte `position`; `segment` is the segment's base offset.

    Control records are included. What a decoder refuses is a problem, and shown as text. Raises
    `InvalidRecord` and `UnsupportedCompression` for unreadable records.
    """
    timestamp_type = _TIMESTAMP_TYPES[batch.timestamp_type]
    codec = batch.codec.name.lower()
    decoders = shown.decoders
    for record in batch.records():
        if not shown.selection.has_place(record):  # a decoder may be slow, or count its calls
            continue
        key, value = decoders.shown(record, is_control=batch.is_control)
        if not shown.selection.has_key(key):
            continue
        for part, found in (("key", key), ("value", value)):
            if isinstance(found, Undecoded):
                text = f"the {part} of offset {record.offset} cannot be decoded: {found.problem}"
                yield Problem(name, position, text, is_damage=False)
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestamp_type": timestamp_type,
            "leader_epoch": batch.leader_epoch,
            "codec": codec,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "sequence": record.sequence,
            **content_of(record, decoders.encoding),
            "key": key.text if isinstance(key, Undecoded) else key,
            "value": value.text if isinstance(value, Undecoded) else value,
            "segment": segment,
            "position": position,
        }


def content_of(record: Record, encoding: Encoding) -> Fact:
    """Return the record's key, value and headers as text."""
    return {
        "key": as_text(record.key, encoding),
        "value": as_text(record.value, encoding),
        "headers": [
            [as_text(name.encode("utf-8", "surrogateescape"), Encoding.UTF8), as_text(value, encoding)]
            for name, value in record.headers
        ],
    }


def batch_facts(batch: Batch, *, segment: int, position: int) -> Fact:
    """Return the header of one batch."""
    return {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "records": batch.record_count,
        "leader_epoch": batch.leader_epoch,
        "timestamp_type": _TIMESTAMP_TYPES[batch.timestamp_type],
        "base_timestamp": batch.base_timestamp_ms,
        "max_timestamp": batch.max_timestamp_ms,
        "codec": batch.codec.name.lower(),
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "delete_horizon": batch.delete_horizon_ms,
        "crc": f"{batch.crc:08x}",
        "segment": segment,
        "position": position,
        "size": batch.size,
    }


def facts_of(data: bytes, role: FileRole) -> Iterator[Fact]:
    """Yield the entries or lines of any file but a `.log`. Raises `EngineError` for a malformed file."""
    match role.kind:
        case Kind.OFFSET_INDEX:
            for offset, position in index_entries(data, role.kind, role.base_offset):
                yield {"offset": offset, "position": position}
        case Kind.TIME_INDEX:
            for timestamp, offset in index_entries(data, role.kind, role.base_offset):
                yield {"timestamp": timestamp, "offset": offset}
        case Kind.TRANSACTION_INDEX:
            for aborted in TransactionIndex.decode(data, base_offset=role.base_offset).entries:
                yield aborted._asdict()
        case Kind.PRODUCER_SNAPSHOT:
            yield from map(_producer_facts, decode_snapshot(data))
        case Kind.SEAL:
            yield _seal_facts(decode_seal(data, base_offset=role.base_offset))
        case Kind.OFFSET_CHECKPOINT:
            for (topic, partition), offset in parse_offset_checkpoint(data).items():
                yield {"topic": topic, "partition": partition, "offset": offset}
        case Kind.EPOCH_CHECKPOINT:
            for epoch, start_offset in parse_leader_epoch_checkpoint(data):
                yield {"epoch": epoch, "start_offset": start_offset}
        case Kind.PARTITION_METADATA:
            yield {"topic_id": parse_partition_metadata(data)}
        case Kind.CURSORS:
            found = parse_cursors(data)
            for name, offset in found.offsets.items():
                yield {"cursor": name, "offset": offset}
            for number in found.unreadable:
                yield {"unreadable_line": number}
        case Kind.META_PROPERTIES:
            yield dict(parse_properties(data, path=META_PROPERTIES))
        case Kind.CLEAN_SHUTDOWN:
            yield {"broker_epoch": parse_clean_shutdown(data).broker_epoch}
        case Kind.METADATA_SNAPSHOT:
            yield from _snapshot_facts(data)
        case Kind.QUORUM_STATE:
            yield _quorum_state(data)
        case Kind.LOG:
            raise AssertionError("use log_facts for a .log file")


def _producer_facts(entry: ProducerEntry) -> Fact:
    last = entry.batches[-1] if entry.batches else None
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_offset": last.last_offset if last else -1,
        "offset_delta": last.offset_delta if last else 0,
        "last_timestamp": entry.last_timestamp_ms,
        "coordinator_epoch": entry.coordinator_epoch,
        "transaction_first_offset": entry.transaction_first_offset,
    }


def _seal_facts(seal: Seal) -> Fact:
    return {
        "end_offset": seal.end_offset,
        "successor": seal.successor,
        "log_bytes": seal.size,
        "block_bytes": seal.block_bytes,
        "blocks": [seal.blocks[at : at + 4].hex() for at in range(0, len(seal.blocks), 4)],
        "aborts_crc": f"{seal.aborts_crc:08x}",
    }


def log_facts(log: LogFile, name: str, shown: Shown, *, is_last: bool = True) -> Iterator[Fact | Problem]:
    """Yield the selected batches of a segment or their records, and the problems between them."""
    for position, data, fault in log.batches():
        try:
            batch = Batch(data)
            if not shown.selection.is_before_end(position, batch):
                return
        except EngineError as error:
            yield Problem(name, position, fault.value if fault else str(error), is_damage=True)
            continue
        if not shown.selection.has_batch(batch):
            continue
        if fault is not None:
            yield Problem(name, position, fault.value, is_damage=True)
        try:
            if shown.records:
                yield from record_facts(batch, name, shown, segment=log.base_offset, position=position)
            else:
                yield batch_facts(batch, segment=log.base_offset, position=position)
        except EngineError as error:
            if fault is None:
                yield Problem(name, position, str(error), is_damage=True)
    if tail := judge_tail(log, name, is_last=is_last):
        yield tail


def _snapshot_facts(data: bytes) -> Iterator[Fact]:
    """Yield the batches of a snapshot of KRaft's metadata. Raises `CorruptBatch` if it is not whole."""
    position = 0
    has_footer = False
    for batch in walk(data):
        batch.check_crc()
        has_footer = batch.is_control and any(
            decode_control(record.key, record.value).name == "SnapshotFooter" for record in batch.records()
        )
        yield batch_facts(batch, segment=0, position=position)
        position += batch.size
    if position < len(data) or not has_footer:
        raise CorruptBatch(f"incomplete snapshot: {len(data) - position} bytes behind its last batch")


def _quorum_state(data: bytes) -> Fact:
    try:
        state = json.loads(data)
    except ValueError as error:
        raise CorruptCheckpoint(f"quorum-state: {error}") from error
    if not isinstance(state, dict):
        raise CorruptCheckpoint("quorum-state is not a JSON object")
    return state
