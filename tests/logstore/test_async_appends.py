"""What an append of `AsyncLog` waits for: never for the disk on the event loop, and for a sync after many."""

from __future__ import annotations

import asyncio
import threading

import pytest

from logstore import async_log as module
from logstore.async_log import AsyncLog
from logstore.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.partition_log import PartitionLog
from logstore.testing.disks import FaultyDisk
from tests.logstore.logs import DIRECTORY
from tests.logstore.plain_logs import new_disk
from tests.logstore.test_async_log import opened


def test_much_that_is_unsynced_waits_for_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSYNCED_BYTES", 1000)

    async def main() -> None:
        async with opened() as log:
            for number in range(100):
                await log.append(bytes(100))
                assert log.log_end_offset - log.log.partition.recovery_point <= 11 + 1, number

    asyncio.run(main())


@pytest.mark.parametrize("how", ["in a list", "as a pair", "large", "ready", "by the log itself"])
def test_every_append_counts_for_the_back_pressure(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Single values alone were counted, so a list of 1 GiB after another waited for nothing."""
    monkeypatch.setattr(module, "MAX_UNSYNCED_BYTES", 1000)
    monkeypatch.setattr(module, "LARGE_BYTES", 50)

    async def append(log: AsyncLog) -> object:
        value = bytes(100)
        match how:
            case "in a list":
                return await log.append([value])
            case "as a pair":
                return await log.append((b"", value))
            case "large":
                return await log.append(value)
            case "ready":
                return await log.append_batches(encode_batch([Record(0, 1, None, value)]))
            case _:
                return log.log.append(value)

    async def main() -> None:
        async with opened() as log:
            for number in range(100):
                await append(log)
                await log.append(b"")
                assert log.log_end_offset - log.log.partition.recovery_point <= 2 * 11, number

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "syncs"),
    [({}, 1), ({"flush.messages": 10}, 10), ({"segment.bytes": 2048}, 40), ({"segment.ms": 100}, 20)],
    ids=str,
)
def test_the_loop_does_not_wait_for_the_disk(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], syncs: int
) -> None:
    """A value that started a segment, or was the last before `flush.messages`, was synced on the loop."""
    times = iter(range(10_000, 1_000_000, 10))
    seen: list[bool] = []

    def noted(self: PartitionLog, end_offset: int) -> None:
        seen.append(threading.current_thread() is threading.main_thread())
        sync_segments(self, end_offset)

    sync_segments = PartitionLog.sync_segments
    monkeypatch.setattr(PartitionLog, "sync_segments", noted)

    async def main() -> None:
        config = LogConfig.from_kafka(settings)
        disk = FaultyDisk(new_disk())
        async with AsyncLog.open(DIRECTORY, config, disk=disk, clock=lambda: next(times)) as log:
            for number in range(100):
                await log.append(bytes(800 if number % 3 else 500), key=b"k" if number % 2 else None)

    asyncio.run(main())
    assert len(seen) >= syncs
    assert not any(seen)
