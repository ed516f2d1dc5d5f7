"""What the tests of transactions share."""

from __future__ import annotations

from typing import Any

from logstore.config import LogConfig
from logstore.format.record import ControlType
from logstore.log.log import Log
from logstore.log.read import FetchIsolation
from logstore.segment.segment import SNAPSHOT_SUFFIX
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import names
from tests.logstore.producing import (
    NOW_MS,
    ORDERS,
    end,
    manager_on,
    replica,
)

TXN = FetchIsolation.TXN_COMMITTED


DIRECTORY = "/data/orders-0"


SMALL = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)


def stand_alone(disk: MemoryDisk | None = None, **settings: Any) -> Log:
    disk = disk or MemoryDisk(directories=["/data"])
    return Log.open(DIRECTORY, LogConfig(**settings), disk=disk, clock=lambda: NOW_MS)


def restarted(disk: MemoryDisk, config: LogConfig = SMALL, **more: Any) -> Log:
    """The log as the next owner finds it after a power cut that took nothing."""
    log = manager_on(disk.copy(), config, **more).get(ORDERS)
    assert log is not None
    return log


def marker_of(producer_id: int, kind: ControlType) -> bytes:
    """A marker as a leader writes it."""
    log = replica()
    end(log, producer_id, kind)
    return log.read_bytes(0).records


def snapshots(disk: MemoryDisk) -> list[int]:
    return sorted(int(name[:20]) for name in names(disk) if name.endswith(SNAPSHOT_SUFFIX))
