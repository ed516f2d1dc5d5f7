"""What the tests of log share."""

from __future__ import annotations

from typing import Any

from logstore.config import LogConfig
from logstore.format.batch import encode_batch, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append import append_as_leader
from logstore.log.log import AppendInfo, Log
from logstore.log.producer_state import AppendOrigin
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY

NOW_MS = 10_000


def new_disk() -> MemoryDisk:
    return MemoryDisk(directories=["/data"])


def opened(disk: MemoryDisk | RecordingDisk | None = None, **settings: Any) -> Log:
    config = LogConfig(**settings)
    return Log.open(DIRECTORY, config, disk=disk or new_disk(), clock=lambda: NOW_MS)


def one(value: bytes = b"value", *, time: int = 1000) -> bytes:
    """A client's batch of one record."""
    return encode_batch([Record(0, time, None, value)])


SIZE = len(one())


def filled(count: int, disk: MemoryDisk | RecordingDisk | None = None, **settings: Any) -> Log:
    """A log of `count` batches of one record each, `SIZE` bytes, time 1000 + offset."""
    log = opened(disk, **settings)
    for offset in range(count):
        log.append_batches(one(time=1000 + offset))
    return log


def offsets(log: Log, start: int | None = None) -> list[int]:
    return [record.offset for record in log.read(start)]


def segment_bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.partition.segments]


def produce(
    log: Log, producer_id: int, sequence: int, *, count: int = 1, transaction: bool = False
) -> AppendInfo:
    data = encode_batch(
        [Record(delta, 1000, None, b"p") for delta in range(count)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=transaction,
    )
    return append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS)


def mark(log: Log, producer_id: int, kind: ControlType) -> None:
    data = encode_marker_batch(
        EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=1000
    )
    append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)


def transactions(log: Log) -> list[AbortedTransaction]:
    """Two producers, one aborts twice, one commits; returns what the indexes must hold."""
    produce(log, 1, 0, transaction=True)  # 0
    produce(log, 2, 0, transaction=True)  # 1
    for _ in range(3):
        log.append(b"plain" * 10)  # 2, 3, 4
    mark(log, 1, ControlType.ABORT)  # 5
    log.append(b"plain")  # 6
    mark(log, 2, ControlType.COMMIT)  # 7
    produce(log, 1, 1, transaction=True)  # 8
    log.append(b"plain" * 30)  # 9
    mark(log, 1, ControlType.ABORT)  # 10
    return [AbortedTransaction(1, 0, 5, 1), AbortedTransaction(1, 8, 10, 11)]
