"""`AsyncLog`: the names of `Log` for tasks, and what a cancellation leaves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from inspect import isfunction
from pathlib import Path
from random import Random

import pytest

from logstore import async_log as module
from logstore.async_log import AsyncLog
from logstore.errors import InvalidRecord, LogClosed, LogDirOffline, OffsetOutOfRange
from logstore.log.log import Log
from logstore.testing.disks import Fault, FaultyDisk
from tests.logstore.logs import DIRECTORY
from tests.logstore.plain_logs import new_disk

LIMIT_S = 60


def opened(disk: FaultyDisk | None = None) -> module.Opening:
    return AsyncLog.open(DIRECTORY, disk=disk or FaultyDisk(new_disk()), clock=lambda: 10_000)


def offsets_of(error: BaseException) -> Sequence[int]:
    appended = AsyncLog.appended(error)
    assert appended is not None
    return appended.offsets


class Held:
    """A call on a thread that begins, and goes on when the test says so."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments: object, **settings: object) -> object:
        self.begun.set()
        assert self.go_on.wait(LIMIT_S)
        return self._call(*arguments, **settings)

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, LIMIT_S)


def test_it_has_the_names_of_the_log() -> None:
    """What a log gains, the log for tasks gains too, or says why not."""
    left_out = {"__iter__", "__reversed__", "__enter__", "__exit__"}
    names = {
        name
        for each in Log.__mro__[:-1]
        for name, member in vars(each).items()
        if (isfunction(member) or isinstance(member, property | classmethod))
        and (not name.startswith("_") or name.startswith("__"))
    }
    assert names - left_out - {"__init__", "__subclasshook__"} <= {*dir(AsyncLog)}


async def _everything() -> None:
    async with opened() as log:
        assert (await log.append(b"a")).offsets == range(1)
        assert (await log.append(b"b", key=b"k", sync=True)).is_synced
        assert (await log.append([b"c", b"d"])).offsets == range(2, 4)
        assert (await log.append(value for value in (b"e",))).offsets == range(4, 5)
        assert (await log[1]).key == b"k"
        found = await log.get(0)
        assert found is not None
        assert found.value == b"a"
        assert [record.value async for record in log.read(1, 4)] == [b"b", b"c", b"d"]
        assert [value async for value in log.read_values()] == [b"a", b"b", b"c", b"d", b"e"]
        assert [record.offset async for record in log.read_reverse(max_records=2)] == [4, 3]
        assert [record.offset async for record in log] == [0, 1, 2, 3, 4]
        assert (len(log), log.log_start_offset, log.log_end_offset, bool(log)) == (5, 0, 5, True)
        assert not log.is_synced(4)
        await log.flush()
        assert log.is_synced(4)
        assert await log.truncate_to(3)
        assert await log.delete_records(1) == 1
        last = await log.last()
        assert last is not None
        assert last.value == b"b"  # the batch of c and d went as a whole
        with log.writer(linger_ms=0) as writer:
            pending = writer.append(b"packed")
            assert (await asyncio.to_thread(pending.synced)).is_synced
        assert repr(log).startswith("AsyncLog('/data/orders-0'")
        with pytest.raises(OffsetOutOfRange):
            await log.get(99)
        with pytest.raises(TypeError, match="serializer"):
            await log.append("text")
    with pytest.raises(LogClosed):
        await log.append(b"f")


def test_the_methods() -> None:
    asyncio.run(_everything())


def test_a_log_may_be_awaited_instead(tmp_path: Path) -> None:
    async def main() -> None:
        log = await AsyncLog.open(tmp_path / "orders-0", serializer="json")
        await log.append({"order": 17})
        await log.close()
        await log.close()

    asyncio.run(main())
    with Log.open(tmp_path / "orders-0") as log:
        assert log[0].value == b'{"order":17}'


def test_reading_takes_pieces_and_many_records_arrive_in_order() -> None:
    async def main() -> None:
        async with opened() as log:
            await log.append([b"%d" % number for number in range(5000)])
            assert [value async for value in log.read_values()] == [b"%d" % each for each in range(5000)]
            large = bytes(300_000)
            await log.append([large] * 10)
            assert len([record async for record in log.read(5000)]) == 10

    asyncio.run(main())


def test_a_hundred_tasks_share_syncs() -> None:
    async def main() -> None:
        disk = FaultyDisk(new_disk())
        async with opened(disk) as log:
            await log.append(b"first", sync=True)
            syncs = 0
            plain = log.log.flush

            def counted() -> None:
                nonlocal syncs
                syncs += 1
                plain()

            log.log = _with_flush(log.log, counted)
            infos = await asyncio.gather(*(log.append(b"%d" % each, sync=True) for each in range(100)))
            assert sorted(info.first_offset for info in infos) == list(range(1, 101))
            assert all(info.is_synced for info in infos)
            assert syncs <= 2

    asyncio.run(main())


def _with_flush(log: Log, flush: Callable[[], None]) -> Log:
    class Other(Log):
        pass

    other = Other(log.partition)
    other.flush = flush  # type: ignore[method-assign]
    return other


def test_the_loop_gets_its_turn() -> None:
    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with opened() as log:
            task = asyncio.create_task(other())
            for _ in range(10 * module.APPENDS_A_TURN):
                await log.append(b"a")
            assert turns >= 9
            task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["append", "flush"])
def test_a_sync_ends_if_its_records_are_truncated(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    cut = iter([0])

    def flush(log: Log) -> None:
        for offset in cut:
            log.truncate_to(offset)
        log.partition.flush()

    async def main() -> None:
        async with opened() as log:
            monkeypatch.setattr(Log, "flush", flush)
            await log.append(b"a")
            async with asyncio.timeout(LIMIT_S):
                await (log.flush() if call == "flush" else log.append(b"b", sync=True))
            assert log.log_end_offset == 0

    asyncio.run(main())


class TestErrors:
    def test_a_failed_sync_reaches_every_task(self) -> None:
        async def main() -> None:
            disk = FaultyDisk(new_disk())
            async with opened(disk) as log:
                await log.append(b"a", sync=True)
                disk.inject(Fault(operation="sync"))
                tasks = [log.append(b"b", sync=True) for _ in range(10)]
                found = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(each) for each in found} == {LogDirOffline}
                disk.heal()
                with pytest.raises(LogDirOffline):
                    await log.append(b"c")

        asyncio.run(main())

    def test_a_refused_record(self) -> None:
        async def main() -> None:
            from logstore.config import LogConfig

            config = LogConfig(cleanup_policy="compact")
            async with AsyncLog.open(DIRECTORY, config, disk=new_disk()) as log:
                with pytest.raises(InvalidRecord):
                    await log.append(b"without a key")
                assert log.log_end_offset == 0

        asyncio.run(main())

    def test_what_cannot_be_opened_is_not(self) -> None:
        async def main() -> None:
            disk = FaultyDisk(new_disk(), [Fault(operation="lock")])
            with pytest.raises(LogDirOffline):
                await opened(disk)
            async with opened(disk):
                pass

        asyncio.run(main())


class TestCancellation:
    def test_during_the_sync_the_record_is_in(self) -> None:
        async def main() -> None:
            async with opened() as log:
                held = Held(log.log.flush)
                log.log = _with_flush(log.log, held)  # type: ignore[arg-type]
                task = asyncio.create_task(log.append(b"a", sync=True))
                await held.until_begun()
                task.cancel()
                with pytest.raises(asyncio.CancelledError, match=r"offset 0, written, not synced") as caught:
                    await task
                assert task.cancelled()
                assert offsets_of(caught.value) == range(1)
                held.go_on.set()
                await log.flush()
                assert log.is_synced(0)

        asyncio.run(main())

    def test_a_call_under_way_ends_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> None:
            async with opened() as log:
                held = Held(log.log.append)
                monkeypatch.setattr(Log, "append", lambda _, *given, **more: held(*given, **more))
                task = asyncio.create_task(log.append([b"a", b"b"]))
                await held.until_begun()
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()  # twice: the call ends all the same
                await asyncio.sleep(0)
                assert not task.done()
                held.go_on.set()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await task
                assert offsets_of(caught.value) == range(2)
                assert log.log_end_offset == 2

        asyncio.run(main())

    def test_a_call_that_has_not_begun_never_runs(self) -> None:
        async def main() -> None:
            async with opened() as log:
                held = Held(lambda: None)
                for _ in range(module.THREADS):
                    log._threads.submit(held)
                task = asyncio.create_task(log.append([b"a", b"b"]))
                await held.until_begun()
                task.cancel()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await task
                assert AsyncLog.appended(caught.value) is None
                held.go_on.set()
                await log.flush()
                assert log.log_end_offset == 0

        asyncio.run(main())

    def test_a_close_runs_although_it_had_not_begun(self) -> None:
        """The threads ended without it: the directory stayed locked, and could not be closed again."""

        async def main() -> AsyncLog:
            log = await opened()
            held = Held(lambda: None)
            for _ in range(module.THREADS):
                log._threads.submit(held)
            task = asyncio.create_task(log.close())
            await held.until_begun()
            task.cancel()
            await asyncio.sleep(0)
            held.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            return log

        log = asyncio.run(main())
        assert log.log.partition.is_closed

    def test_a_time_out_says_so_too(self) -> None:
        async def main() -> None:
            async with opened() as log:
                held = Held(log.log.flush)
                log.log = _with_flush(log.log, held)  # type: ignore[arg-type]
                with pytest.raises(TimeoutError) as caught:
                    async with asyncio.timeout(0):
                        await log.append(b"a", sync=True)
                held.go_on.set()
                assert offsets_of(caught.value) == range(1)

        asyncio.run(main())

    def test_a_cancelled_append_in_the_wake_of_another_leaves_nothing(self) -> None:
        """It was told the offset of the first one."""

        async def main() -> None:
            async with opened() as log:
                held = Held(lambda: None)
                for _ in range(module.THREADS):
                    log._threads.submit(held)
                errors: list[BaseException] = []

                async def both() -> None:
                    try:
                        await log.append(b"a", sync=True)
                    except asyncio.CancelledError as error:
                        errors.append(error)
                        try:
                            await log.append([b"b", b"c"])
                        except asyncio.CancelledError as again:
                            errors.append(again)

                task = asyncio.create_task(both())
                await held.until_begun()
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                await task
                held.go_on.set()
                await log.flush()
                first, second = errors
                assert offsets_of(first) == range(1)
                assert AsyncLog.appended(second) is None
                assert log.log_end_offset == 1

        asyncio.run(main())

    def test_an_error_of_a_cancelled_call_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> None:
            async with opened() as log:

                def fail(*_: object) -> None:
                    raise LogDirOffline("the disk failed")

                held = Held(fail)
                monkeypatch.setattr(Log, "append", lambda _, *given, **more: held(*given))
                task = asyncio.create_task(log.append([b"a"]))
                await held.until_begun()
                task.cancel()
                await asyncio.sleep(0)
                held.go_on.set()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await task
                assert AsyncLog.appended(caught.value) is None
                assert isinstance(caught.value.__cause__, LogDirOffline)

        asyncio.run(main())

    def test_a_storm(self) -> None:
        """Whatever is cancelled when: the log holds what was told, once."""
        seed = int.from_bytes(os.urandom(4))
        print(f"seed {seed}")
        random = Random(seed)
        told: dict[bytes, Sequence[int]] = {}
        open_fate: list[bytes] = []

        async def work(log: AsyncLog, number: int) -> None:
            for count in range(20):
                name = b"%d-%d" % (number, count)
                many = random.random() < 0.4
                records = [name, name] if many else name
                open_fate.append(name)
                try:
                    info = await log.append(records, sync=random.random() < 0.5)
                except asyncio.CancelledError as cancelled:
                    open_fate.remove(name)
                    if (appended := AsyncLog.appended(cancelled)) is not None:
                        told[name] = appended.offsets
                    raise
                open_fate.remove(name)
                told[name] = info.offsets
                if random.random() < 0.3:
                    await asyncio.sleep(0)

        async def main() -> None:
            async with opened() as log:
                tasks = [asyncio.create_task(work(log, number)) for number in range(60)]
                for _ in range(200):
                    random.choice(tasks).cancel()
                    await asyncio.sleep(0)
                await asyncio.gather(*tasks, return_exceptions=True)
                for task in tasks:
                    assert task.cancelled() or task.exception() is None
                assert open_fate == []
                found: dict[bytes, list[int]] = {}
                async for record in log.read():
                    found.setdefault(record.value or b"", []).append(record.offset)
                assert found == {name: list(offsets) for name, offsets in told.items()}

        asyncio.run(main())

    def test_opening_for_nobody_releases_the_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = new_disk()
        held = Held(partial(Log.open, DIRECTORY, disk=disk))

        async def main() -> None:
            task = asyncio.ensure_future(_awaited(module.Opening(held)))  # type: ignore[arg-type]
            await held.until_begun()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            held.go_on.set()
            await asyncio.get_running_loop().shutdown_default_executor()

        asyncio.run(main())
        with Log.open(DIRECTORY, disk=disk):
            pass


async def _awaited(opening: module.Opening) -> AsyncLog:
    return await opening


def test_an_abandoned_iteration_is_harmless() -> None:
    async def main() -> None:
        async with opened() as log:
            await log.append([b"a"] * 100)
            records: AsyncIterator[object] = log.read()
            async for _ in records:
                break

    asyncio.run(main())


def test_a_cancellation_keeps_its_message() -> None:
    """anyio knows the cancellations of its own scopes by it, and did not end their blocks."""

    async def main() -> None:
        async with opened() as log:
            task = asyncio.create_task(log.append(b"one", sync=True))
            await asyncio.sleep(0)
            task.cancel("Cancelled via cancel scope 7f")
            with pytest.raises(asyncio.CancelledError, match="Cancelled via cancel scope 7f") as caught:
                await task
            assert caught.value.args[0] == "Cancelled via cancel scope 7f"
            assert offsets_of(caught.value) == range(1)

    asyncio.run(main())


def test_a_loop_that_ended_during_a_sync_keeps_none_from_others() -> None:
    """Each `append` with sync raised: its future was attached to a different loop."""
    first = asyncio.new_event_loop()
    log = first.run_until_complete(AsyncLog.open(DIRECTORY, disk=FaultyDisk(new_disk())).__aenter__())

    async def begin() -> None:
        log._syncing = asyncio.create_task(asyncio.sleep(60))
        log._syncing._log_destroy_pending = False  # type: ignore[attr-defined]

    first.run_until_complete(begin())
    first.close()
    assert asyncio.run(log.append(b"one", sync=True)).is_synced
    asyncio.run(log.close())


def test_without_threads_calls_are_done_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of the system, and at the exit of the program. They raised, and were done when a thread
    started later; `close` left the log open."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        log = AsyncLog(Log.open(DIRECTORY, disk=FaultyDisk(new_disk())))
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", start)
            assert (await log.append([b"one", b"two"], sync=True)).is_synced
            with pytest.raises(OffsetOutOfRange):
                await log.get(7)
        assert [record.value async for record in log.read(0)] == [b"one", b"two"]
        monkeypatch.setattr(threading.Thread, "start", start)
        await log.close()
        assert log.log.partition.is_closed

    asyncio.run(main())


def test_a_call_that_a_thread_took_although_none_could_be_started_is_done_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that is there may take it while another one fails to start."""
    done: list[None] = []

    async def main() -> None:
        async with opened() as log:
            submit = log._threads.submit

            def taken(call: Callable[[], object]) -> None:
                submit(call).result()
                raise RuntimeError("can't start new thread")

            with monkeypatch.context() as limited:
                limited.setattr(log._threads, "submit", taken)
                await log._run(lambda: done.append(None))
            assert done == [None]

    asyncio.run(main())
