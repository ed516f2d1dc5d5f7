"""Tasks of one loop that wait for messages of a queue and are cancelled, beside threads that put them."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Final

from logstore import AsyncQueue, Queue, QueueConfig
from logstore.testing.disks import MemoryDisk
from tests.thread_schedules.jobs import CONSUMERS, DIRECTORY, LEASE_S, PRODUCERS, Hand, Judge
from tests.thread_schedules.locks import interruptible, locks_of
from tests.thread_schedules.loops import TurnLoop, TurnPool
from tests.turns import Turns

CANCELLATIONS: Final = 20


async def consume(
    queue: AsyncQueue, hand: Hand, rng: random.Random, loop: TurnLoop, *, may_leave: bool
) -> None:
    """Take messages until one tells to stop. A cancelled task has taken none, and may leave."""
    timeout = rng.choice([None, None, 1])
    while True:
        try:
            if rng.random() < 0.2:
                await queue.stats()
            stalls = loop.stalls
            found = await queue.get_many(rng.choice([1, 1, 4]), timeout=timeout)
            assert not found or loop.stalls == stalls, "nobody was woken for a message that was there"
            if hand.has_ended(found):
                return
        except asyncio.CancelledError:
            if may_leave and rng.random() < 0.5:
                return


def run(seed: int) -> int:
    """Run the schedule of a seed; return the number of messages. Raises what is wrong."""
    rng, judge = random.Random(seed), Judge()
    lines, share = random.Random(f"{seed} lines"), rng.choice([0.02, 0.1, 0.3])
    producers = [Hand(each, seed, judge, share) for each in range(PRODUCERS)]
    turns = Turns(rng, [hand.live for hand in producers])
    consumers: list[asyncio.Task[None]] = []

    async def program() -> None:
        queue = AsyncQueue(judge.open)
        for number in range(PRODUCERS, PRODUCERS + CONSUMERS):
            own, hand = random.Random(f"{seed} {number}"), Hand(number, seed, judge, share)
            work = consume(queue, hand, own, loop, may_leave=number > PRODUCERS)
            consumers.append(asyncio.create_task(work))
        for each in consumers:
            with suppress(asyncio.CancelledError):  # behind its last call
                await each

    def on_the_loop() -> None:
        with interruptible(turns, lines, share):
            try:
                loop.run_until_complete(program())
            finally:
                loop.close()

    def cancel() -> None:
        own = random.Random(f"{seed} cancellations")
        for _ in range(own.choice([0, CANCELLATIONS])):
            for _ in range(own.randrange(20)):
                turns.pass_on()
            if consumers:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(own.choice(consumers).cancel)

    with locks_of(turns):
        judge.queue = Queue(
            DIRECTORY, QueueConfig(lease=LEASE_S, max_deliveries=1_000_000), disk=MemoryDisk()
        )
        loop = TurnLoop(turns, TurnPool(turns, lines, share, 4))
        for hand in producers:
            hand.turns = turns
        turns.add(on_the_loop)
        turns.add(cancel)
        turns.run()
        judge.take_the_rest()
    return len(judge.finished)
