"""Durable appends of 100-byte records: threads that share fsyncs, beside one that writes and syncs.

The rival writes the same bytes into a file that grows as the log does.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.bars import ratio_bar
from bench.material import fresh_log, in_threads
from logstore.async_log import AsyncLog
from logstore.config import LogConfig
from logstore.disk.files import OsFile
from logstore.log.log import Log

Rival = Callable[..., Callable[[], None]]


@pytest.fixture
def synced_writes(scratch: Path) -> Iterator[Rival]:
    """Make the rival's round: as many writes as ours all together, so that both take a similar time."""
    descriptor = os.open(scratch / "raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def synced_writes(written: bytes, times: int, slower_by_s: float = 0.0) -> Callable[[], None]:
        def raw() -> None:
            for _ in range(times):
                os.write(descriptor, written)
                os.fdatasync(descriptor)
                if slower_by_s:
                    time.sleep(slower_by_s)

        return raw

    yield synced_writes
    os.close(descriptor)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("preallocate", [False, True])
def test_group_commit(
    beside: Callable[..., object], scratch: Path, synced_writes: Rival, threads: int, preallocate: bool
) -> None:
    value = os.urandom(100)
    each = 32 if threads > 1 else 64
    logs: list[Log] = [fresh_log(scratch, LogConfig(preallocate=preallocate))]
    logs[0].append(value, sync=True)
    written = bytes(logs[0].size)

    def writer() -> None:
        for _ in range(each):
            logs[0].append(value, sync=True)

    least = 4.0 if threads == 8 else 1.0
    setting = ", preallocate" if preallocate else ""
    beside(
        raw=synced_writes(written, each * threads),
        ours=lambda: in_threads(threads, writer),
        name=f"durable append by {threads} thread{'s' if threads > 1 else ''}{setting}",
        rival="write + fdatasync, 1 thread",
        units=each * threads,
        unit="appends/s",
        bar=ratio_bar(least),
        rounds=15,
    )
    logs[0].close()


def test_group_commit_on_a_slow_disk(
    beside: Callable[..., object], scratch: Path, synced_writes: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync of both takes a millisecond more, as on a disk without a protected cache."""
    value, threads, each = os.urandom(100), 8, 16
    log = fresh_log(scratch)
    log.append(value, sync=True)
    written = bytes(log.size)
    sync = OsFile.sync

    def slow(file: OsFile, *, data_only: bool = False) -> None:
        sync(file, data_only=data_only)
        time.sleep(0.001)

    monkeypatch.setattr(OsFile, "sync", slow)

    def writer() -> None:
        for _ in range(each):
            log.append(value, sync=True)

    beside(
        raw=synced_writes(written, each * threads, slower_by_s=0.001),
        ours=lambda: in_threads(threads, writer),
        name="durable append by 8 threads, syncs slower by 1 ms",
        rival="write + fdatasync, 1 thread",
        units=each * threads,
        unit="appends/s",
        bar=ratio_bar(4.0),
        rounds=15,
    )
    log.close()


def test_tasks_share_syncs(beside: Callable[..., object], scratch: Path, synced_writes: Rival) -> None:
    """A hundred tasks on one event loop, each of which appends durably, one record after the other."""
    value, tasks, each = os.urandom(100), 100, 5
    log = AsyncLog(fresh_log(scratch))
    log.log.append(value, sync=True)
    written = bytes(log.size)

    async def task() -> None:
        for _ in range(each):
            await log.append(value, sync=True)

    async def together() -> None:
        await asyncio.gather(*(task() for _ in range(tasks)))

    with asyncio.Runner() as runner:
        beside(
            raw=synced_writes(written, tasks * each),
            ours=lambda: runner.run(together()),
            name="durable append by 100 tasks",
            rival="write + fdatasync, 1 thread",
            units=tasks * each,
            unit="appends/s",
            bar=ratio_bar(4),
            rounds=15,
        )
        runner.run(log.close())
