"""Followers and cursors for tasks: nothing is lost by a cancellation, and nothing is held while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sized
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.async_following import AsyncFollower
from logstore.async_log import AsyncLog
from logstore.errors import LogClosed, LogTruncated, OffsetOutOfRange
from logstore.format.record import Record
from logstore.log.log import Log
from tests.logstore.test_async_log import LIMIT_S, Held

Body = Callable[[AsyncLog], Awaitable[None]]


def on_a_log(path: Path, body: Body) -> None:
    async def program() -> None:
        async with asyncio.timeout(LIMIT_S), AsyncLog.open(path / "orders-0") as log:
            await body(log)

    asyncio.run(program())


async def taken(records: AsyncIterator[Record]) -> list[bytes | None]:
    return [record.value async for record in records]


async def seen(records: AsyncIterator[Record], found: list[Record]) -> AsyncIterator[Record]:
    """Yield the records, each added to `found` before."""
    async for record in records:
        found.append(record)
        yield record


async def waiting(log: AsyncLog, count: int = 1) -> None:
    """Return when so many followers wait. One that looks for what is there already does, for a moment."""
    while len(log.log.partition.waiters.waiting) < count:
        await asyncio.sleep(0)


async def waiting_behind(log: AsyncLog, found: Sized, count: int) -> None:
    """Return when a follower has yielded `count` records and waits for the next."""
    while len(found) < count:
        await asyncio.sleep(0)
    await waiting(log)


def test_appends_wake_a_hundred_followers_that_hold_no_thread(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        followers = [log.follow() for _ in range(100)]
        tasks = [asyncio.ensure_future(anext(each)) for each in followers]
        await waiting(log, 100)
        await log.append(b"a", sync=True)  # on one of the four threads
        assert [(await task).value for task in tasks] == [b"a"] * 100
        assert log.log.partition.waiters.waiting == []

    on_a_log(tmp_path, body)


@pytest.mark.parametrize("seed", range(4))
def test_a_follower_that_is_cancelled_all_the_time_gets_every_record_once(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = Random(seed)

    async def body(log: AsyncLog) -> None:
        follower, found, count = log.follow(), list[bytes | None](), 0

        async def writer() -> None:
            nonlocal count
            for _ in range(120):
                values = [b"%d" % number for number in range(count, count + rng.choice((1, 1, 3, 20)))]
                await log.append(values if len(values) > 1 else values[0])
                count += len(values)
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            await log.append(b"end")

        writing = asyncio.ensure_future(writer())
        while not found or found[-1] != b"end":
            task = asyncio.ensure_future(anext(follower))
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            if rng.random() < 0.7:
                task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                found.append(task.result().value)
        await writing
        assert found == [*(b"%d" % number for number in range(count)), b"end"]
        assert follower.offset == count + 1
        assert log.log.partition.waiters.waiting == []

    on_a_log(tmp_path, body)


def test_an_append_just_as_the_loop_of_a_follower_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised that the loop is closed, with its record in the log: who repeated it had it twice."""
    loop = asyncio.new_event_loop()
    with Log.open(tmp_path / "orders-0") as log:

        async def waiting_follower() -> AsyncFollower:
            follower = AsyncLog(log).follow()
            follower._look()
            return follower

        def close_first(*_: object) -> None:
            monkeypatch.undo()
            loop.close()
            loop.call_soon_threadsafe(print)

        follower = loop.run_until_complete(waiting_follower())
        monkeypatch.setattr(loop, "call_soon_threadsafe", close_first)
        assert log.append(b"a").first_offset == 0
        assert loop.is_closed()
        follower.stop()


def test_a_cancellation_during_a_read_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(log: AsyncLog) -> None:
        await log.append([b"a", b"b"])
        follower = log.follow()
        held = Held(AsyncFollower._look)
        monkeypatch.setattr(AsyncFollower, "_look", lambda self: held(self))
        task = asyncio.ensure_future(anext(follower))
        await held.until_begun()
        task.cancel()
        held.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert follower.offset == 0
        assert await taken(log.follow(0, 0)) == [b"a", b"b"]
        follower.timeout = 0
        assert await taken(follower) == [b"a", b"b"]

    on_a_log(tmp_path, body)


@pytest.mark.parametrize("ending", ["close", "stop", "timeout"])
def test_what_ends_a_follower_that_waits(tmp_path: Path, ending: str) -> None:
    async def body(log: AsyncLog) -> None:
        await log.append([b"a", b"b"])
        follower = log.follow(1, 0.001 if ending == "timeout" else None)
        found: list[Record] = []
        task = asyncio.ensure_future(taken(seen(follower, found)))
        if ending != "timeout":
            await waiting_behind(log, found, 1)
        if ending == "close":
            await log.close()
            with pytest.raises(LogClosed, match="open it again"):
                await task
            with pytest.raises(LogClosed):
                log.follow()
            return
        if ending == "stop":
            await asyncio.to_thread(follower.stop)
        assert await task == [b"b"]
        assert log.log.partition.waiters.waiting == []
        await log.append(b"c")
        if ending == "timeout":
            assert (await anext(follower)).value == b"c", "it goes on"

    on_a_log(tmp_path, body)


def test_a_cut_of_records_that_were_read_ahead(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        for value in (b"a", b"b", b"c", b"d"):
            await log.append(value)
        async with log.follow(timeout=0) as follower:
            assert [(await anext(follower)).value for _ in range(2)] == [b"a", b"b"]
            await log.truncate_to(2)
            await log.append(b"new")
            assert await taken(follower) == [b"new"], "what was read of the other history is dropped"
            await log.truncate_to(1)
            with pytest.raises(LogTruncated, match=r"seek\(1\)"):
                await anext(follower)
            follower.seek(1)
            await log.append(b"other")
            assert await taken(follower) == [b"other"]

    on_a_log(tmp_path, body)


def test_a_cursor_goes_on_where_it_was_committed(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.append([b"a", b"b", b"c"])
        cursor = log.cursor("billing")
        assert await taken(cursor.read(max_records=2)) == [b"a", b"b"]
        assert (cursor.position, cursor.committed, cursor.lag) == (2, None, 1)
        assert await cursor.commit(sync=True) == 2
        assert log.cursors() == {"billing": 2}
        again = log.cursor("billing")
        found: list[Record] = []
        task = asyncio.ensure_future(taken(seen(again.read(timeout=None), found)))
        await waiting_behind(log, found, 1)
        task.cancel()
        await asyncio.wait((task,))
        await log.append(b"d")
        assert await taken(again.read()) == [b"d"], "c was yielded before the cancellation"
        with pytest.raises(OffsetOutOfRange):
            again.seek(9)
        again.seek(0)
        assert await taken(again.read(max_records=1)) == [b"a"]
        assert await again.commit(3) == 3
        await again.remove()
        assert log.cursors() == {}
        assert repr(cursor) == "AsyncCursor('billing', position=2, committed=None)"

    on_a_log(tmp_path, body)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_a_wrong_timeout_is_refused(tmp_path: Path, timeout: Any) -> None:
    async def main() -> None:
        async with AsyncLog.open(tmp_path / "orders-0") as log:
            await log.append(b"a")
            cursor = log.cursor("billing")
            with pytest.raises((TypeError, ValueError), match=r"timeout .*or None to wait for ever"):
                await anext(cursor.read(timeout=timeout))
            assert cursor.position == 0

    asyncio.run(main())


def test_committed_reads_follow_the_last_stable_offset(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.append(b"a")
        assert await taken(log.follow(timeout=0, isolation="read_committed")) == [b"a"]
        assert await taken(log.cursor("c", isolation="read_committed").read()) == [b"a"]

    on_a_log(tmp_path, body)
