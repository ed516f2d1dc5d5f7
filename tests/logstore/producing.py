"""Producers and their transactions, written to a real log on a disk in memory."""

from __future__ import annotations

import random

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, set_offsets_and_epoch
from logstore.format.record import ControlType, Record
from logstore.log.append import AppendInfo, append_as_leader, append_end_transaction
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.log.producer_state import ProducerStateConfig, VerificationGuard
from logstore.log.read import FetchIsolation, open_transactions
from logstore.testing.disks import MemoryDisk

NOW_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
UNVERIFIED = ProducerStateConfig(transaction_partition_verification_enable=False)
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


class Clock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def manager_on(
    disk: Disk,
    config: LogConfig | None = None,
    *,
    producers: ProducerStateConfig = UNVERIFIED,
    clock: Clock | None = None,
) -> LogManager:
    """One log dir; logs whose high watermark their owner moves."""
    return LogManager(
        ["/data"],
        disk=disk,
        clock=clock or Clock(),
        random=random.Random(7),
        config=config,
        settings=LogManagerConfig(producers=producers),
    )


def replica(
    disk: Disk | None = None,
    config: LogConfig | None = None,
    *,
    producers: ProducerStateConfig = UNVERIFIED,
    clock: Clock | None = None,
) -> Log:
    """A log whose high watermark is moved by hand."""
    manager = manager_on(disk or MemoryDisk(), config, producers=producers, clock=clock)
    return manager.get_or_create(ORDERS)


def data(
    producer_id: int,
    sequence: int,
    *,
    count: int = 1,
    epoch: int = 0,
    transaction: bool = True,
    time_ms: int = NOW_MS,
) -> bytes:
    """A batch as its producer sends it."""
    return encode_batch(
        [Record(delta, time_ms, None, b"%d" % producer_id) for delta in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transaction,
    )


def at(batch: bytes, offset: int, *, epoch: int = 0) -> bytes:
    """The batch as a leader sends it to a follower: placed."""
    placed = bytearray(batch)
    set_offsets_and_epoch(placed, base_offset=offset, leader_epoch=epoch)
    return bytes(placed)


def produce(
    log: Log,
    producer_id: int,
    sequence: int,
    *,
    count: int = 1,
    epoch: int = 0,
    transaction: bool = True,
    guard: VerificationGuard | None = None,
) -> AppendInfo:
    batch = data(producer_id, sequence, count=count, epoch=epoch, transaction=transaction)
    return append_as_leader(log.partition, batch, leader_epoch=0, now_ms=NOW_MS, verification_guard=guard)


def plain(log: Log, count: int = 1) -> AppendInfo:
    batch = encode_batch([Record(delta, NOW_MS, None, b"plain") for delta in range(count)])
    return append_as_leader(log.partition, batch, leader_epoch=0, now_ms=NOW_MS)


def end(
    log: Log, producer_id: int, kind: ControlType, *, epoch: int = 0, coordinator_epoch: int = 0
) -> AppendInfo:
    return append_end_transaction(
        log.partition,
        producer_id,
        epoch,
        kind,
        coordinator_epoch=coordinator_epoch,
        leader_epoch=0,
        now_ms=NOW_MS,
    )


def committed(log: Log, start: int | None = None) -> list[int]:
    """The offsets that a reader of committed data sees."""
    return [record.offset for record in log.read(start, isolation=FetchIsolation.TXN_COMMITTED)]


def open_since(log: Log) -> list[tuple[int, int]]:
    """Producer and first offset of each open transaction."""
    return [(each.producer_id, each.first_offset) for each in open_transactions(log.partition)]
