"""What the tests of log manager share."""

from __future__ import annotations

import random

from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.checkpoint.entry_files import (
    read_offset_checkpoint,
)
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.testing.disks import MemoryDisk

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)


TOPIC_ID, OTHER_ID = "AAECAwQFBgcICQoLDA0ODw", "AQECAwQFBgcICQoLDA0ODw"


CONFIG = LogConfig(segment_bytes=300, file_delete_delay_ms=5000)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def manager_on(
    disk: Disk,
    *dirs: str,
    clock: Clock | None = None,
    config: LogConfig = CONFIG,
    boot_id: str = "",
    **topics: LogConfig,
) -> LogManager:
    return LogManager(
        dirs or ("/a",),
        disk=disk,
        clock=clock or Clock(),
        random=random.Random(7),
        config=config,
        configs=topics,
        boot_id=boot_id,
    )


def append(log: Log, count: int = 1) -> None:
    for _ in range(count):
        data = encode_batch([Record(0, 5000, b"k", b"value" * 5)])
        append_as_leader(log.partition, data, leader_epoch=1, now_ms=5000)


def offsets(log: Log | None) -> list[int]:
    assert log is not None
    return [record.offset for record in log.read()]


def checkpoint(disk: MemoryDisk, name: str, directory: str = "/a") -> dict[TopicPartition, int]:
    return dict(read_offset_checkpoint(disk, directory, name))


def is_marked_clean(disk: MemoryDisk, directory: str = "/a") -> bool:
    return f"{directory}/{CLEAN_SHUTDOWN_FILE}" in disk.files()


def rot(disk: MemoryDisk, path: str, position: int) -> None:
    """Change a bit of a file."""
    file = disk.open(path, write=True)
    file.pwrite(bytes((file.pread(1, position)[0] ^ 1,)), position)
    file.close()
