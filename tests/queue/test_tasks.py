"""The queue in an event loop: tasks wait for messages, and a cancelled one takes none with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from logstore.queue import AsyncQueue, Message, Queue, QueueClosed, QueueConfig

LIMIT_S = 30


@pytest.mark.parametrize("durability", ["written", "synced"])
def test_tasks_share_the_work(tmp_path: Path, durability: str) -> None:
    async def main() -> list[int]:
        done: list[int] = []

        async def work(queue: AsyncQueue) -> None:
            while (message := await queue.get()) is not None and message.value != b"stop":
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
