"""Aborted transactions at the start of every log, for their indexes to rot.

Our brokers coordinate no transactions. So the logs get them while the brokers are down, on every replica the
same bytes, as they would lie in a directory that was taken over from Kafka.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import ControlType, Record
from logstore.log.append import append_as_leader, append_end_transaction
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.log.producer_state import ProducerStateConfig

TRANSACTIONS = 60
_VALUE = bytes(10_000)


def write_aborted(directories: list[Path], topic: str, partitions: int, config: LogConfig) -> None:
    """Write the same aborted transactions to the empty logs of each log dir, whose broker is down."""
    now_ms = time.time_ns() // 1_000_000
    unverified = ProducerStateConfig(transaction_partition_verification_enable=False)
    managers = [
        LogManager(
            [str(directory)],
            disk=OsDisk(),
            clock=lambda: now_ms,
            random=random.Random(1),
            config=config,
            settings=LogManagerConfig(producers=unverified),
        )
        for directory in directories
    ]
    try:
        for number in range(partitions):
            logs = [manager.logs()[TopicPartition(topic, number)] for manager in managers]
            epoch = max(log.partition.latest_epoch for log in logs)
            for log in logs:
                _write(log, max(epoch, 0), now_ms)
    finally:
        for manager in managers:
            manager.close()


def _write(log: Log, epoch: int, now_ms: int) -> None:
    assert log.log_end_offset == 0, "somebody has written to it"
    for number in range(TRANSACTIONS):
        producer_id = (1 << 40) + number % 5
        batch = encode_batch(
            [Record(0, now_ms, None, _VALUE)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=number // 5,
            is_transactional=True,
        )
        append_as_leader(log.partition, batch, leader_epoch=epoch, now_ms=now_ms)
        append_end_transaction(
            log.partition,
            producer_id,
            0,
            ControlType.ABORT,
            coordinator_epoch=0,
            leader_epoch=epoch,
            now_ms=now_ms,
        )
