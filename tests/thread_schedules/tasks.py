"""Tasks of one loop at one `AsyncLog`, which are cancelled at any moment, beside a thread at the same log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias
from unittest import mock

from logstore import AsyncLog, Log, LogConfig
from logstore import async_log as module
from logstore.errors import LogClosed
from logstore.testing.disks import MemoryDisk
from tests.thread_schedules import life
from tests.thread_schedules.life import DIRECTORY, LAST
from tests.thread_schedules.locks import interruptible, locks_of
from tests.thread_schedules.loops import TurnLoop, TurnPool
from tests.turns import Turns

Call: TypeAlias = Callable[[], Awaitable[object]]

TASKS: Final = 4
CALLS: Final = 10
CANCELLATIONS: Final = 8
FLAVOURS: Final = {
    "appends": "appends",
    "syncs": "syncs",
    "followers": "followers",
    "cursors": "upkeep",
    "closes": "closes",
}
"""The flavours of the tasks, each with that of the thread (`life.py`)."""


@dataclass
class Judge(life.Judge):
    """The results of all calls so far."""

    tasks: AsyncLog | None = None
    doers: list[asyncio.Task[None]] = field(default_factory=list)
    complaints: list[dict[str, object]] = field(default_factory=list)
    """Of the loop."""


class Doer:
    """One task."""

    def __init__(self, number: int, seed: int, judge: Judge, flavour: str, disk: MemoryDisk) -> None:
        self._number, self._judge, self._flavour, self.disk = number, judge, flavour, disk
        self._rng = random.Random(f"{seed} {number}")
        self._count = 0
        assert judge.tasks is not None
        self._log = judge.tasks
        self._cursor = self._log.cursor(f"cursor-{number}")
        self._next = 0
        self._follower = self._log.follow(0)

    async def live(self) -> None:
        usual: list[Call] = [self._append, self._append, self._read, self._get, self._flush, self._follow]
        others: dict[str, list[Call]] = {
            "syncs": [self._append, self._flush],
            "cursors": [self._append, self._take, self._take, self._commit],
            "closes": [self._append, self._append, self._read, self._flush, self._take, self._commit],
        }
        calls = others.get(self._flavour, usual)
        if self._flavour == "followers" and self._number:
            while not await self._done(partial(self._follow, None)):
                pass
            return
        with suppress(LogClosed) if self._flavour == "closes" else nullcontext():
            for number in range(CALLS):
                if self._flavour == "closes" and self._number < 2 and number == 6:
                    await self._close()
                await self._done(self._rng.choice(calls))
        if self._flavour == "followers":
            self._log.log.append(LAST)

    async def _done(self, call: Call) -> object:
        with suppress(asyncio.CancelledError):
            return await call()
        return False

    async def _append(self) -> None:
        rng, judge, values = self._rng, self._judge, []
        for _ in range(rng.choice([1, 1, 3])):
            self._count += 1
            values.append(b"%d-%d" % (self._number, self._count) + b"." * rng.choice([0, 0, 50]))
        judge.begun |= set(values)
        sync = rng.random() < (0.9 if self._flavour == "syncs" else 0.3)
        try:
            async with asyncio.timeout(rng.choice([None, None, None, 0, 1])):
                info = await self._log.append(values[0] if len(values) == 1 else values, sync=sync)
            assert not sync or self._log.is_synced(info.last_offset), "not synced"
        except (asyncio.CancelledError, TimeoutError) as error:
            left = AsyncLog.appended(error)
            if left is None:
                judge.was_refused(values)
            else:
                judge.appended(values, left.offsets)
            raise asyncio.CancelledError from error
        except LogClosed:
            judge.was_refused(values)
            raise
        judge.appended(values, info.offsets)
        if info.is_synced:
            judge.is_durable(self.disk, info.last_offset + 1)

    async def _read(self) -> None:
        start = self._rng.randrange(self._judge.end + 1)
        end, known = start + self._rng.choice([1, 5, 1000]), self._log.log_end_offset
        found = [record async for record in self._log.read(start, end)]
        for record in found:
            self._judge.saw(record.offset, record.value)
        assert [each.offset for each in found] == [*range(start, start + len(found))]
        assert start + len(found) >= min(end, known), f"ends early: {start} to {end}, {known}: {len(found)}"

    async def _get(self) -> None:
        if known := self._log.log_end_offset:
            record = await self._log[self._rng.randrange(known)]
            self._judge.saw(record.offset, record.value)

    async def _flush(self) -> None:
        end = self._log.log_end_offset
        await self._log.flush()
        assert not end or self._log.is_synced(end - 1), "not flushed"
        self._judge.is_durable(self.disk, end)

    async def _follow(self, timeout: float | None = 0) -> bool:
        """Take some records; True after the last one."""
        self._follower.timeout = timeout
        known = self._log.log_end_offset
        for _ in range(self._rng.choice([1, 5])):
            try:
                record = await anext(self._follower)
            except StopAsyncIteration:
                assert timeout is not None
                assert self._next >= known, f"ends at {self._next}, before {known}"
                return False
            assert record.offset == self._next, f"followed to {record.offset}, not {self._next}"
            self._next += 1
            if record.value == LAST:
                return True
            self._judge.saw(record.offset, record.value)
        return False

    async def _take(self) -> None:
        async for record in self._cursor.read(self._rng.choice([1, 3, None])):
            assert record.offset == self._next, f"the cursor is at {record.offset}, not {self._next}"
            self._next += 1
            self._judge.saw(record.offset, record.value)

    async def _commit(self) -> None:
        cursor, committed = self._cursor, self._judge.committed
        assert cursor.position == self._next
        before, name = cursor.committed, cursor.name
        try:
            sync = self._rng.random() < 0.3
            assert await cursor.commit(sync=sync) == self._next
            assert cursor.committed == self._next
            if sync:
                self._judge.synced[name] = self._next
                self._judge.is_durable(self.disk, 0)
        finally:
            assert cursor.committed in (before, self._next)
            if cursor.committed is not None:
                committed[name] = cursor.committed

    async def _close(self) -> None:
        judge = self._judge
        try:
            await self._log.close()
        finally:
            judge.synced = judge.committed.copy()
            judge.is_durable(self.disk, judge.end)
            Log.open(DIRECTORY, disk=self.disk).close()


def run(seed: int, flavour: str | None = None) -> int:
    """Run the schedule of a seed; return the number of appended records. Raises what is wrong."""
    rng, judge = random.Random(seed), Judge()
    flavour = flavour or rng.choice([*FLAVOURS])
    lines, share = random.Random(f"{seed} lines"), rng.choice([0.02, 0.1, 0.4])
    turns = Turns(rng, [])
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=rng.choice([300, 1000, 1 << 20]), index_interval_bytes=0)

    async def program() -> None:
        assert judge.tasks is not None
        doers = [Doer(each, seed, judge, flavour, disk) for each in range(TASKS)]
        judge.doers = [asyncio.create_task(each.live()) for each in doers]
        done, _ = await asyncio.wait(judge.doers, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            if not each.cancelled():
                each.result()
        await asyncio.wrap_future(thread)
        await judge.tasks.close()

    def on_the_loop() -> None:
        with interruptible(turns, lines, share):
            try:
                loop.run_until_complete(program())
            finally:
                loop.close()

    def beside_it() -> None:
        caller.live()
        thread.set_result(None)

    def cancel() -> None:
        own = random.Random(f"{seed} cancellations")
        for _ in range(own.choice([0, CANCELLATIONS, 3 * CANCELLATIONS])):
            for _ in range(own.randrange(40)):
                turns.pass_on()
            if judge.doers:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(own.choice(judge.doers).cancel)

    with locks_of(turns), mock.patch.object(module, "ThreadPoolExecutor", pool_of(turns, lines, share)):
        judge.log = Log.open(DIRECTORY, config, disk=disk)
        judge.tasks = AsyncLog(judge.log)
        loop = TurnLoop(turns, TurnPool(turns, lines, share, 4))
        loop.set_exception_handler(lambda _, context: judge.complaints.append(context))
        caller = life.Caller(TASKS, seed, judge, FLAVOURS[flavour], share)
        caller.turns, caller.disk = turns, disk
        thread: Future[None] = Future()
        for work in (on_the_loop, cancel, beside_it):
            turns.add(work)
        turns.run()
    assert not judge.complaints, judge.complaints
    judge.check_pictures(config)
    with Log.open(DIRECTORY, config, disk=disk) as log:
        found = {each.offset: each.value for each in log.read()}
        assert log.cursors() == judge.committed
    assert list(found) == [*range(len(found))]
    for offset, value in found.items():
        if value != LAST:
            judge.saw(offset, value)
    lost = {value for value, offset in judge.placed.items() if found.get(offset) != value}
    assert not lost, f"lost: {lost}"
    return len(judge.placed)


def pool_of(turns: Turns, lines: random.Random, share: float) -> Callable[..., TurnPool]:
    return lambda most, **_: TurnPool(turns, lines, share, most)
