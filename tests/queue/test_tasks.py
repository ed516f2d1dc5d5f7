"""The queue in an event loop: tasks wait for messages, and a cancelled one takes none with it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logstore.queue import AsyncQueue, Message, Queue, QueueClosed, QueueConfig

LIMIT_S = 30


@pytest.mark.parametrize("durability", ["written", "synced"])
def test_tasks_share_the_work(tmp_path: Path, durability: str) -> None:
    async def main() -> list[int]:
        done: list[int] = []

        async def work(queue: AsyncQueue) -> None:
            while (message := await queue.get()).value != b"stop":
                if message.deliveries == 1 and int(message.value) % 7 == 0:
                    await queue.nack(message)
                else:
                    done.append(int(message.value))
                    await queue.ack_many([message]) if len(done) % 2 else await queue.ack(message)

        async with AsyncQueue(tmp_path / "jobs", QueueConfig(durability=durability)) as queue:
            async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
                for _ in range(4):
                    tasks.create_task(work(queue))
                for number in range(100):
                    await queue.put(b"%d" % number)
                while len(done) < 100:
                    await asyncio.sleep(0)
                await queue.put_many([b"stop"] * 4)
            return done

    assert sorted(asyncio.run(main())) == list(range(100))


def test_a_cancelled_task_leaves_the_message_to_others(tmp_path: Path) -> None:
    async def main() -> Message | None:
        async with AsyncQueue(tmp_path / "jobs") as queue:
            waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
            await asyncio.sleep(0)
            await queue.put(b"job")  # rings the first
            waiting[0].cancel()
            async with asyncio.timeout(LIMIT_S):
                return await waiting[1]

    message = asyncio.run(main())
    assert message is not None
    assert (message.value, message.deliveries) == (b"job", 1)


def test_timeout_and_close(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), AsyncQueue(Queue(tmp_path / "jobs")) as queue:
            assert await queue.get(timeout=0.001) is None
            waiting = asyncio.create_task(queue.get(topics="mail"))
            await asyncio.sleep(0)
            await queue.close()
            with pytest.raises(QueueClosed):
                await waiting

    asyncio.run(main())


def test_it_says_where_it_is(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs") as queue:
        assert repr(AsyncQueue(queue)) == f"Async{queue!r}"


def test_a_close_runs_although_it_was_cancelled_before_a_thread_was_free(tmp_path: Path) -> None:
    """The queue stayed open, and its directory locked."""

    async def main() -> None:
        begun, go_on = threading.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        queue = AsyncQueue(tmp_path / "jobs")

        def wait() -> None:
            begun.set()
            assert go_on.wait(LIMIT_S)

        busy = loop.run_in_executor(None, wait)
        assert begun.wait(LIMIT_S)
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await busy
        with Queue(tmp_path / "jobs"):
            pass

    asyncio.run(main())


def test_the_calls_are_those_of_the_queue() -> None:
    """With the same arguments; `waiting` is what both forms of `get` are made of."""
    calls = {name: call for name, call in vars(Queue).items() if callable(call) and not name.startswith("_")}
    assert calls.pop("waiting")
    for name, call in calls.items():
        ours = inspect.signature(getattr(AsyncQueue, name))
        assert ours.parameters == inspect.signature(call).parameters, name


def test_every_call(tmp_path: Path) -> None:
    async def main() -> None:
        config = QueueConfig(max_deliveries=1, lease=60)
        async with asyncio.timeout(LIMIT_S), AsyncQueue(tmp_path / "jobs", config) as queue:
            await queue.put_many([b"0", b"1", b"2"])
            assert [each.value for each in await queue.peek()] == [b"0", b"1", b"2"]
            messages = await queue.get_many(2)
            assert [each.value for each in messages] == [b"0", b"1"]
            assert [each.value for each in await queue.get_many(1)] == [b"2"]
            assert await queue.get_many(3, timeout=0) == []
            await queue.extend(messages[0], lease=90)
            assert (await queue.stats()).topics["default"].leased == 3
            for message in messages:
                assert not await queue.nack(message, reason="bad")
            found = [(letter.message.value, letter.reason) async for letter in queue.dead_letters()]
            assert found == [(b"0", "bad"), (b"1", "bad")]
            assert await queue.redrive() == 2
            assert [letter async for letter in queue.dead_letters()] == []
            with pytest.raises(ValueError, match="most is 0"):
                await queue.get_many(0)

    asyncio.run(main())


def test_settings_for_an_open_queue_are_refused(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs") as queue, pytest.raises(TypeError, match="has its settings"):
        AsyncQueue(queue, QueueConfig(lease=1))


def a_waiter_of_a_closed_loop(queue: Queue) -> object:
    """Return a task that waits for a message, and will never run again."""
    loop, tasks = asyncio.new_event_loop(), []

    async def begin() -> None:
        tasks.append(asyncio.create_task(AsyncQueue(queue).get()))
        while not len(queue._waiters):
            await asyncio.sleep(0)

    loop.run_until_complete(begin())
    loop.close()
    return tasks


def test_a_closed_loop_takes_no_message(tmp_path: Path) -> None:
    """It goes to a thread that waits behind the loop's task."""
    queue = Queue(tmp_path / "jobs")
    kept = a_waiter_of_a_closed_loop(queue)
    found: list[Message | None] = []
    worker = threading.Thread(target=lambda: found.append(queue.get(timeout=LIMIT_S)))
    worker.start()
    while len(queue._waiters) < 2:
        assert worker.is_alive()
    assert queue.put(b"job") == 0
    worker.join(LIMIT_S)
    assert [message.value for message in found if message] == [b"job"]
    assert queue.put(b"job") == 1
    queue.close()
    del kept


def test_closing_with_a_task_of_a_closed_loop(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "jobs")
    kept = a_waiter_of_a_closed_loop(queue)
    queue.close()
    del kept
