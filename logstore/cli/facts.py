"""The content of a log directory's file as plain facts: one mapping per batch, record, entry or line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from logstore.checkpoint.clean_shutdown import parse_clean_shutdown
from logstore.checkpoint.entry_files import parse_leader_epoch_checkpoint, parse_offset_checkpoint
from logstore.checkpoint.identity import META_PROPERTIES, parse_partition_metadata, parse_properties
from logstore.cli.inspection import FileRole, Kind, LogFile, index_entries
from logstore.cli.terminal import Encoding, as_text
from logstore.cli.verification import Problem, judge_tail
from logstore.disk.errors import EngineError
from logstore.format.batch import Batch, TimestampType
from logstore.format.record import Record
from logstore.log.producer_state import ProducerEntry, decode_snapshot
from logstore.segment.seal import Seal, decode_seal
from logstore.segment.transaction_index import TransactionIndex

Fact: TypeAlias = dict[str, object]

_TIMESTAMP_TYPES = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def record_facts(batch: Batch, encoding: Encoding, *, segment: int, position: int) -> Iterator[Fact]:
    """Yield the records of one batch; `segment` is its base offset, `position` the batch's first byte.

    Control records are included. Raises `InvalidRecord` and `UnsupportedCompression` for unreadable
    records.
    """
    timestamp_type = _TIMESTAMP_TYPES[batch.timestamp_type]
    codec = batch.codec.name.lower()
    for record in batch.records():
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestamp_type": timestamp_type,
            "leader_epoch": batch.leader_epoch,
            "codec": codec,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "sequence": record.sequence,
            **content_of(record, encoding),
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
        case Kind.META_PROPERTIES:
            yield dict(parse_properties(data, path=META_PROPERTIES))
        case Kind.CLEAN_SHUTDOWN:
            yield {"broker_epoch": parse_clean_shutdown(data).broker_epoch}
        case Kind.LOG:
            raise AssertionError("a .log has facts of its own: log_facts")


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


def log_facts(
    log: LogFile, name: str, *, records: bool, encoding: Encoding, is_last: bool = True
) -> Iterator[Fact | Problem]:
    """Yield the batches of a segment or their records, and the problems between them."""
    for position, data, fault in log.batches():
        if fault is not None:
            yield Problem(name, position, fault.value, is_damage=True)
        try:
            batch = Batch(data)
            if records:
                yield from record_facts(batch, encoding, segment=log.base_offset, position=position)
            else:
                yield batch_facts(batch, segment=log.base_offset, position=position)
        except EngineError as error:
            if fault is None:
                yield Problem(name, position, str(error), is_damage=True)
    if tail := judge_tail(log, name, is_last=is_last):
        yield tail
