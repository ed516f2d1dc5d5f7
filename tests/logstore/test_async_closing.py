"""A close of an `AsyncLog` beside syncs, beside another close, and at a limit of threads."""

from __future__ import annotations

import asyncio

import pytest

from logstore.async_log import AsyncLog
from logstore.errors import LogClosed, LogDirOffline
from logstore.log.log import Log
from logstore.testing.disks import Fault, FaultyDisk
from tests.logstore.logs import DIRECTORY
from tests.logstore.plain_logs import new_disk
from tests.logstore.test_async_log import Held, opened


@pytest.mark.parametrize("call", ["append", "flush"])
def test_a_close_between_a_write_and_its_sync(call: str) -> None:
    """The close syncs the write, which is no error then: who repeated it had it twice."""

    async def main() -> None:
        log = await opened()
        if call == "append":
            task: asyncio.Task[object] = asyncio.create_task(log.append(b"a", sync=True))
        else:
            await log.append(b"a")
            task = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        log.log.close()  # as another thread does
        await task
        assert log.log.partition.recovery_point == 1
        with pytest.raises(LogClosed):
            await (log.append(b"b", sync=True) if call == "append" else log.flush())

    asyncio.run(main())


def test_a_close_waits_for_the_one_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It returned at once, with the directory still locked."""

    async def main() -> None:
        disk = FaultyDisk(new_disk())
        log = await opened(disk)
        held = Held(log.log.partition.owner.closed)
        monkeypatch.setattr(log.log.partition.owner, "closed", held)
        first = asyncio.create_task(log.close())
        await held.until_begun()
        second = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        assert not second.done()
        held.go_on.set()
        await second
        async with opened(disk):
            pass
        await first

    asyncio.run(main())


def test_an_offline_log_is_closed_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` raised that it was offline, and left its directory locked."""

    async def main() -> None:
        disk = FaultyDisk(new_disk())
        log = AsyncLog(Log.open(DIRECTORY, disk=disk))
        disk.inject(Fault(operation="sync"))
        with pytest.raises(LogDirOffline):
            log.log.append(b"a", sync=True)
        disk.heal()
        with monkeypatch.context() as limited:
            limited.setattr(log._threads, "submit", _refuse)
            await log.close()
            await log.close()
        async with opened(disk):
            pass

    asyncio.run(main())


def _refuse(_: object) -> None:
    raise RuntimeError("can't start new thread")
