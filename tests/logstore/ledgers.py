"""What the tests of losses share."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.losses import Loss
from logstore.log.manager import LogManager
from logstore.testing.disks import FaultyDisk, MemoryDisk
from logstore.testing.disks.faulty import Fault
from tests.logstore.logs import (
    DIRECTORY,
    batch,
)

NOW_MS = 1_700_000_000_000


SMALL = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)


def opened(disk: Disk, *, now_ms: int = NOW_MS, config: LogConfig = SMALL) -> Log:
    return Log.open(DIRECTORY, config, disk=disk, clock=lambda: now_ms)


def filled(disk: Disk, batches: int = 8) -> Log:
    """Batches of two records each, three a segment."""
    log = opened(disk)
    for number in range(batches):
        append_as_follower(
            log.partition, batch(2 * number, (number, number + 1), epoch=number // 3), leader_epoch=9
        )
    log.flush()
    return log


def bytes_of(log: Log) -> bytes:
    return b"".join(bytes(each.buffer) for each in log.read_batches())


def quarantined(disk: MemoryDisk, loss: Loss) -> dict[str, bytes]:
    prefix = f"{DIRECTORY}/lost/{loss.id}/"
    return {path.removeprefix(prefix): data for path, data in disk.files().items() if path.startswith(prefix)}


def full_for_losses(inner: Disk, suffix: str = "") -> FaultyDisk:
    """No room in quarantine for files that end with `suffix`."""
    fault = Fault(
        operation="pwrite",
        path=lambda path: "/lost/" in path and path.endswith(suffix),
        errno=errno.ENOSPC,
        forever=True,
    )
    return FaultyDisk(inner, [fault])


def managed(disk: Disk, *, now_ms: Callable[[], int] = lambda: NOW_MS) -> LogManager:
    return LogManager(["/data"], disk=disk, clock=now_ms, random=Random(1), config=SMALL)


# --- the standing, as files show it -------------------------------------------------------------------
