"""Workers of one shared queue whose requests come in any order, and what must hold for their messages."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from unittest import mock

from logstore.broker import Broker, BrokerConfig, SharedQueue, shared_lane, shared_queue
from logstore.broker.shared_keys import CLAIM_MS
from logstore.disk.errors import EngineError
from logstore.queue import AlreadyFinished, LeaseEnded, Message, QueueConfig
from tests.shared_schedules.calls import PLANNED, Died, Stepped
from tests.turns import Turns

TOPICS: Final = ("default", "default", "mail")
LEASE_MS: Final = 4_000
WORKERS: Final = 4
CALLS: Final = 40
_DRAINED_MS: Final = 10 * CLAIM_MS

Place = tuple[str, int]


class Clock:
    """The time of all processes, which stands still except where the schedule moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Deadline:
    """As `waiting.Deadline`, by that clock."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock, self._end_ms = clock, clock.now_ms + (1e18 if seconds is None else seconds * 1000)

    def left_s(self) -> float:
        return max(self._end_ms - self._clock.now_ms, 0.0) / 1000


@dataclass(slots=True)
class Held:
    """A message in a worker's hands, which nobody else may get before `until_ms`."""

    message: Message
    until_ms: int
    may_be_over: bool = False
    """It was returned, or a request about it had no answer."""


@dataclass
class Judge:
    """The results of all calls so far, and the rules. No lock: one worker runs at a time."""

    clock: Clock
    begun: set[bytes] = field(default_factory=set)
    stored: dict[Place, bytes] = field(default_factory=dict)
    held: dict[Place, Held] = field(default_factory=dict)
    given: set[tuple[str, int, int]] = field(default_factory=set)
    finished: set[Place] = field(default_factory=set)
    perhaps_finished: set[Place] = field(default_factory=set)
    of_key: dict[tuple[str, bytes], set[int]] = field(default_factory=lambda: defaultdict(set))
    slow_keys: set[tuple[str, bytes]] = field(default_factory=set)
    """Keys whose claim may have ended while its process went on: a second message is allowed."""

    def got(self, message: Message, began_ms: int) -> Held:
        place, delivery = (message.topic, message.offset), message.deliveries
        what = f"{message.value.decode()}, message {message.offset} of {message.topic}, delivery {delivery}"
        assert message.value in self.begun, f"invented: {what}"
        assert self.stored.get(place, message.value) == message.value, f"another value: {what}"
        assert (*place, delivery) not in self.given, f"given twice: {what}"
        self.given.add((*place, delivery))
        if message.key is not None:
            self.of_key[message.topic, message.key].add(message.offset)
        before, now = self.held.get(place), Held(message, began_ms + LEASE_MS)
        if before and before.message.deliveries > delivery:  # a call that took longer than the lease
            assert now.until_ms <= self.clock.now_ms, f"out of order: {what}"
            return now
        assert place not in self.finished, f"after its acknowledgement: {what}"
        is_over = before is None or before.may_be_over or before.until_ms <= self.clock.now_ms
        assert is_over, f"within the lease of another: {what}"
        self.held[place] = now
        return now

    def lost_lease(self, held: Held) -> None:
        """A worker was told that its lease is over."""
        assert held.may_be_over or held.until_ms <= self.clock.now_ms, (
            f"the lease of {held.message.value.decode()} ended early"
        )

    def check_end(self, drained: set[bytes], dead: set[bytes]) -> None:
        """Check what is left when every message was taken."""
        for place, value in self.stored.items():
            if place not in self.finished | self.perhaps_finished:
                assert value in drained | dead, f"lost: {value.decode()}"
        for key, offsets in self.of_key.items():
            assert len(offsets) < 2 or key in self.slow_keys, f"stored twice: {key} at {sorted(offsets)}"


class Worker:
    """One process after the other: each works until it dies."""

    def __init__(self, name: int, seed: int, judge: Judge, config: QueueConfig) -> None:
        self._name, self._rng = name, random.Random(f"{seed} {name}")
        self._judge, self._clock, self._config = judge, judge.clock, config
        self._count = 0
        self._hands: list[Held] = []

    def live(self, broker: Broker, turns: Turns) -> None:
        """Make some calls, with faults."""
        calls = Stepped(broker, turns, self._fate, self._idle)
        queue: SharedQueue | None = None
        for _ in range(CALLS):
            try:
                if queue is None:
                    queue = SharedQueue(calls, "jobs", self._config, clock=self._clock)
                self._call(queue)
            except Died:
                queue, self._hands = None, []
            except EngineError as error:
                if PLANNED not in str(error):
                    raise
            if self._rng.random() < 0.2:
                self._clock.now_ms += self._rng.randrange(2_000)

    def _fate(self) -> str:
        return self._rng.choices(
            ["well", "unsent", "unanswered", "died-before", "died-after"], [200, 1, 1, 1, 1]
        )[0]

    def _idle(self) -> None:
        self._clock.now_ms += 500

    def _call(self, queue: SharedQueue) -> None:
        calls = [self._put, self._get, self._finish, self._return, self._extend]
        self._rng.choices(calls, [2, 2, 2, 1, 1])[0](queue)

    def _put(self, queue: SharedQueue) -> None:
        judge, rng = self._judge, self._rng
        topic, began_ms = rng.choice(TOPICS), self._clock.now_ms
        pairs: list[tuple[bytes | None, bytes]] = []
        for _ in range(rng.choice([1, 1, 1, 3])):
            self._count += 1
            key = b"%d" % rng.randrange(12) if self._config.deduplication_window else None
            pairs.append((key, b"%d-%d" % (self._name, self._count)))
        judge.begun |= {value for _, value in pairs}
        try:
            offsets = queue.put_many(pairs, topic=topic, delay=rng.choice([0, 0, 0, 1]))
        finally:
            if self._clock.now_ms - began_ms >= CLAIM_MS:
                judge.slow_keys |= {(topic, key) for key, _ in pairs if key is not None}
        for offset, (key, value) in zip(offsets, pairs, strict=True):
            if key is None:
                judge.stored[topic, offset] = value
            else:
                judge.of_key[topic, key].add(offset)

    def _get(self, queue: SharedQueue) -> None:
        began_ms = self._clock.now_ms
        topics = self._rng.choice([None, None, "mail"])
        found = queue.get_many(self._rng.choice([1, 1, 4]), topics, timeout=0, lease=LEASE_MS / 1000)
        self._hands += [self._judge.got(message, began_ms) for message in found]

    def _taken(self, most: int = 1) -> list[Held]:
        self._rng.shuffle(self._hands)
        taken, self._hands = self._hands[:most], self._hands[most:]
        return taken

    def _finish(self, queue: SharedQueue) -> None:
        taken, judge = self._taken(self._rng.choice([1, 3])), self._judge
        places = {(held.message.topic, held.message.offset) for held in taken}
        try:
            queue.ack_many([held.message for held in taken])
        except (LeaseEnded, AlreadyFinished):
            if len(taken) == 1:
                judge.lost_lease(taken[0])
            else:  # some of them may be finished
                judge.perhaps_finished |= places
        except BaseException:
            judge.perhaps_finished |= places
            for held in taken:
                held.may_be_over = True
            raise
        else:
            judge.finished |= places

    def _return(self, queue: SharedQueue) -> None:
        for held in self._taken():
            was, held.may_be_over = held.may_be_over, True
            try:
                queue.nack(held.message, delay=self._rng.choice([0, 1]))
            except (LeaseEnded, AlreadyFinished):
                held.may_be_over = was
                self._judge.lost_lease(held)

    def _extend(self, queue: SharedQueue) -> None:
        for held in self._taken():
            began_ms, before_ms = self._clock.now_ms, held.until_ms
            lease_ms = self._rng.choice([1_000, 8_000])
            held.until_ms = min(before_ms, began_ms + lease_ms)  # if there is no answer
            try:
                queue.extend(held.message, lease_ms / 1000)
            except (LeaseEnded, AlreadyFinished):
                held.until_ms = before_ms
                self._judge.lost_lease(held)
            else:
                held.until_ms = began_ms + lease_ms
                self._hands.append(held)


@contextmanager
def _hurried(clock: Clock, checkpoint_events: int) -> Iterator[None]:
    with (
        mock.patch.object(shared_lane, "CHECKPOINT_EVENTS", checkpoint_events),
        mock.patch.object(shared_queue, "Deadline", lambda seconds: Deadline(clock, seconds)),
    ):
        yield


def run(seed: int) -> int:
    """Run the schedule of a seed; return the number of deliveries. Raises `AssertionError`."""
    rng, clock = random.Random(seed), Clock()
    judge = Judge(clock)
    config = QueueConfig(
        max_deliveries=rng.choice([3, 1_000_000]),
        deduplication_window=rng.choice([0, 0, 1e6]),
        priorities={"mail": rng.choice([0, 1])},
    )
    workers = [Worker(name, seed, judge, config) for name in range(WORKERS)]
    with _hurried(clock, rng.choice([6, 20, 10_000])), Broker(BrokerConfig()) as broker:

        def live(worker: Worker) -> None:
            worker.live(broker, turns)

        turns = Turns(rng, [partial(live, worker) for worker in workers])
        turns.run()
        clock.now_ms += _DRAINED_MS
        queue = SharedQueue(broker, "jobs", config, clock=clock)
        drained = set[bytes]()
        while found := queue.get_many(1000, timeout=0, lease=1e6):
            drained |= {judge.got(message, clock.now_ms).message.value for message in found}
        judge.check_end(drained, {letter.message.value for letter in queue.dead_letters()})
    return len(judge.given)
