"""Threads of one program at one queue: who waits for a message is woken by it, and has it alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from logstore import Queue, QueueConfig
from logstore.queue import AlreadyFinished, LeaseEnded, Message
from logstore.testing.disks import MemoryDisk
from tests.thread_schedules.locks import interruptible, locks_of
from tests.turns import Turns

DIRECTORY: Final = "/data/jobs"
PRODUCERS: Final = 2
CONSUMERS: Final = 3
PUTS: Final = 8
STOP: Final = b"stop"
LEASE_S: Final = 30.0


@dataclass
class Judge:
    """The results of all calls so far. No lock: one thread runs at a time."""

    queue: Queue | None = None
    put: set[bytes] = field(default_factory=set)
    held: dict[bytes, int] = field(default_factory=dict)
    finished: set[bytes] = field(default_factory=set)

    def got(self, message: Message, number: int) -> None:
        value = message.value
        assert value in self.put, f"invented: {value!r}"
        assert value not in self.finished, f"after its acknowledgement: {value!r}"
        assert value not in self.held, f"{value!r}: {number} has it, and {self.held[value]}"
        self.held[value] = number

    @property
    def open(self) -> Queue:
        assert self.queue is not None
        return self.queue

    def take_the_rest(self) -> None:
        """Nothing was lost."""
        while (message := self.open.get(timeout=0)) is not None:
            if message.value != STOP:
                self.got(message, -1)
        self.open.close()
        lost = self.put - self.finished - self.held.keys()
        assert not lost, f"lost: {lost}"


class Hand:
    """One thread."""

    def __init__(self, number: int, seed: int, judge: Judge, share: float) -> None:
        self._number, self._judge, self._share = number, judge, share
        self._rng, self._lines = random.Random(f"{seed} {number}"), random.Random(f"{seed} lines {number}")
        self.turns: Turns | None = None

    @property
    def _queue(self) -> Queue:
        return self._judge.open

    def live(self) -> None:
        assert self.turns is not None
        with interruptible(self.turns, self._lines, self._share):
            if self._number < PRODUCERS:
                self._produce()
            else:
                self._consume()

    def _produce(self) -> None:
        left = [b"%d-%d" % (self._number, each) for each in range(PUTS)]
        while left:
            count = self._rng.choice([1, 1, 3])
            some, left = left[:count], left[count:]
            self._judge.put |= set(some)
            if len(some) == 1:
                self._queue.put(some[0])
            else:
                self._queue.put_many(some)
        for _ in range(self._number + 1):  # three in all
            self._queue.put(STOP)

    def _consume(self) -> None:
        assert self.turns is not None
        while True:
            self.turns.has_ended()
            most = self._rng.choice([1, 1, 4])
            timeout = self._rng.choice([None, None, 1e-6])
            found = self._queue.get_many(most, timeout=timeout)
            assert not found or not self.turns.has_ended(), "nobody was woken for a message that was there"
            if self.has_ended(found):
                return

    def has_ended(self, found: list[Message]) -> bool:
        """Work on messages; True if one of them tells to stop."""
        stops = [each for each in found if each.value == STOP]
        jobs = [each for each in found if each.value != STOP]
        for message in jobs:
            self._judge.got(message, self._number)
        for message in jobs:
            self._end(message)
        self._queue.ack_many(stops[:1])
        for message in stops[1:]:  # they are for others
            self._queue.nack(message)
        return bool(stops)

    def _end(self, message: Message) -> None:
        judge = self._judge
        try:
            if self._rng.random() < 0.3:
                del judge.held[message.value]
                self._queue.nack(message)
            else:
                self._queue.ack(message)
                del judge.held[message.value]
                judge.finished.add(message.value)
        except (LeaseEnded, AlreadyFinished) as error:
            raise AssertionError(f"{message.value!r}: {error}") from error


def run(seed: int) -> int:
    """Run the schedule of a seed; return the number of messages. Raises what is wrong."""
    rng, judge = random.Random(seed), Judge()
    share = rng.choice([0.02, 0.1, 0.3])
    hands = [Hand(each, seed, judge, share) for each in range(PRODUCERS + CONSUMERS)]
    turns = Turns(rng, [hand.live for hand in hands])
    disk = MemoryDisk()
    config = QueueConfig(lease=LEASE_S, max_deliveries=1_000_000)
    with locks_of(turns):
        judge.queue = Queue(DIRECTORY, config, disk=disk)
        for hand in hands:
            hand.turns = turns
        turns.run()
        judge.take_the_rest()
    return len(judge.finished)
