"""Workers of one shared queue whose requests come in any order, and a broker that dies meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest import mock

from logstore.broker import SharedQueue, shared_lane, shared_queue
from logstore.broker.shared_keys import CLAIM_MS
from logstore.disk.errors import EngineError
from logstore.queue import AlreadyFinished, LeaseEnded, QueueConfig
from logstore.testing import VolatileBroker
from tests.shared_schedules.calls import PLANNED, Clock, Died, Stepped, World
from tests.shared_schedules.judge import LEASE_MS, Held, Judge
from tests.turns import Turns

TOPICS: Final = ("default", "default", "mail")
WORKERS: Final = 4
CALLS: Final = 40
_DRAINED_MS: Final = 10 * CLAIM_MS


class Deadline:
    """As `waiting.Deadline`, by the clock of the schedule."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock, self._end_ms = clock, clock.now_ms + (1e18 if seconds is None else seconds * 1000)

    def left_s(self) -> float:
        return max(self._end_ms - self._clock.now_ms, 0.0) / 1000


class Worker:
    """One process after the other: each works until it dies, or leaves."""

    def __init__(self, name: int, seed: int, world: World, judge: Judge, config: QueueConfig) -> None:
        self._name, self._rng = name, random.Random(f"{seed} {name}")
        self._world, self._judge, self._clock, self._config = world, judge, judge.clock, config
        self._count = 0
        self._hands: list[Held] = []

    def live(self, how_it_ends: str) -> None:
        """Make some calls, with faults; in some schedules the broker is killed, or loses power."""
        world, rng = self._world, self._rng
        queue: SharedQueue | None = None
        cuts = 0
        for _ in range(CALLS):
            if cuts < world.cuts:
                queue, self._hands, cuts = None, [], world.cuts
            try:
                if queue is None:
                    queue = SharedQueue(Stepped(world, self._fate), "jobs", self._config, clock=self._clock)
                self._call(queue)
            except Died:
                queue, self._hands = None, []
            except EngineError as error:
                if PLANNED not in str(error):
                    raise
            if queue is not None and rng.random() < 0.03:  # another process goes on with what it holds
                queue.close()
                queue = None
            if rng.random() < 0.2:
                self._pause(rng.randrange(2_000))
            if how_it_ends and rng.random() < 0.02:
                world.restart(is_cut=how_it_ends == "cut")
                if how_it_ends == "cut" and self._config.durability != "synced":
                    self._judge.forget()

    def _pause(self, time_ms: int) -> None:
        if self._judge.is_calm:
            self._world.wait(self._clock.now_ms + time_ms)
        else:
            self._clock.now_ms += time_ms

    def _fate(self) -> str:
        fates = ["well", "unsent", "unanswered", "died-before", "died-after"]
        return "well" if self._judge.is_calm else self._rng.choices(fates, [200, 1, 1, 1, 1])[0]

    def _call(self, queue: SharedQueue) -> None:
        calls = [self._put, self._get, self._finish, self._return, self._extend, self._look, self._redrive]
        self._rng.choices(calls, [20, 20, 20, 10, 10, 2, 2 * self._judge.redrives])[0](queue)

    def _put(self, queue: SharedQueue) -> None:
        judge, rng = self._judge, self._rng
        topic, began_ms, delay = rng.choice(TOPICS), self._clock.now_ms, rng.choice([0, 0, 0, 1, 3])
        pairs: list[tuple[bytes | None, bytes]] = []
        for _ in range(rng.choice([1, 1, 1, 3])):
            self._count += 1
            key = b"%d" % rng.randrange(12) if self._config.deduplication_window else None
            pairs.append((key, b"%d-%d" % (self._name, self._count)))
        judge.begun |= {value: began_ms + delay * 1000 for _, value in pairs}
        try:
            offsets = queue.put_many(pairs, topic=topic, delay=delay)
        finally:
            if self._clock.now_ms - began_ms >= CLAIM_MS:
                judge.slow_keys |= {(topic, key) for key, _ in pairs if key is not None}
        for offset, (key, value) in zip(offsets, pairs, strict=True):
            judge.put(topic, offset, key, value)

    def _get(self, queue: SharedQueue) -> None:
        began_ms, rng = self._clock.now_ms, self._rng
        wanted = rng.choice([None, None, "mail"])
        timeout = rng.choice([0, 0, 0, 0.3, 2.0, 9.0])
        found = queue.get_many(rng.choice([1, 1, 4]), wanted, timeout=timeout, lease=LEASE_MS / 1000)
        self._judge.waited(found, wanted and [wanted], began_ms, round(timeout * 1000))
        self._hands += [self._judge.got(message, began_ms) for message in found]

    def _taken(self, most: int = 1) -> list[Held]:
        self._rng.shuffle(self._hands)
        taken, self._hands = self._hands[:most], self._hands[most:]
        return taken

    def _finish(self, queue: SharedQueue) -> None:
        taken, judge = self._taken(self._rng.choice([1, 3])), self._judge
        messages = [held.message for held in taken]
        values = {each.value for each in messages}
        try:
            queue.ack_many(messages)
        except (LeaseEnded, AlreadyFinished):
            if len(taken) == 1:
                judge.lost_lease(taken[0])
            else:  # some of them may be finished
                judge.done |= values
                for held in taken:
                    held.may_be_over = True
        except BaseException:
            judge.done |= values
            for held in taken:
                held.may_be_over = True
            raise
        else:
            judge.finish(messages)

    def _return(self, queue: SharedQueue) -> None:
        for held in self._taken():
            was, held.may_be_over = held.may_be_over, True
            began_ms, delay = self._clock.now_ms, self._rng.choice([0, 1, 3])
            try:
                is_kept = queue.nack(held.message, delay=delay)
            except (LeaseEnded, AlreadyFinished):
                held.may_be_over = was
                self._judge.lost_lease(held)
            else:
                if is_kept and not was and held.until_ms > self._clock.now_ms:
                    self._judge.returned(held, began_ms + delay * 1000)

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

    def _look(self, queue: SharedQueue) -> None:
        judge, topic = self._judge, self._rng.choice(TOPICS)
        finished = {offset for of, offset in judge.finished if of == topic}
        free = dict(judge.free)
        found = {each.offset: each.value for each in queue.peek(1000, topic)}
        assert not finished & found.keys(), f"finished, and waiting: {finished & found.keys()}"
        for (of, offset), since_ms in judge.free.items():
            if judge.is_calm and of == topic and free.get((of, offset)) == since_ms:
                assert offset in found, f"not seen: message {offset} of {topic}, free since {since_ms}"
        figures = queue.stats().topics
        assert not finished or figures[topic].finished >= len(finished), f"{figures}, finished: {finished}"
        for letter in queue.dead_letters():
            assert letter.message.value in judge.begun, f"invented: {letter}"
            assert letter.message.deliveries >= self._config.max_deliveries, f"too early: {letter}"

    def _redrive(self, queue: SharedQueue) -> None:
        queue.redrive()


@contextmanager
def _hurried(judge: Judge, checkpoint_events: int) -> Iterator[None]:
    restore = shared_lane.SharedLane._restore

    def restored(lane: shared_lane.SharedLane, start: int) -> None:
        judge.was_away()
        restore(lane, start)

    with (
        mock.patch.object(shared_lane.SharedLane, "_restore", restored),
        mock.patch.object(shared_lane, "CHECKPOINT_EVENTS", checkpoint_events),
        mock.patch.object(shared_queue, "Deadline", lambda seconds: Deadline(judge.clock, seconds)),
    ):
        yield


def run(seed: int) -> int:
    """Run the schedule of a seed; return the number of deliveries. Raises `AssertionError`."""
    rng, clock = random.Random(seed), Clock()
    config = QueueConfig(
        durability=rng.choice(["written", "synced"]),
        max_deliveries=rng.choice([3, 1_000_000]),
        deduplication_window=rng.choice([0, 0, 1e6]),
        priorities={"mail": rng.choice([0, 1])},
    )
    is_calm = rng.random() < 0.3
    how_it_ends = "" if is_calm else rng.choice(["", "", "kill", "cut", "cut"])
    judge = Judge(clock, config.max_deliveries, config.priorities, is_calm, rng.random() < 0.3)
    settings = {
        "durability": "replicated",
        "unclean.leader.election.enable": "true",
        "log.segment.bytes": rng.choice(["1000", "1000000"]),
    }
    with (
        _hurried(judge, rng.choice([6, 20, 10_000])),
        VolatileBroker(settings, seed=seed) as machine,
    ):
        world = World(clock, machine, rng.choice([100, 1 << 20]))
        workers = [Worker(name, seed, world, judge, config) for name in range(WORKERS)]
        works: list[Any] = [partial(each.live, how_it_ends) for each in workers]
        world.turns = Turns(rng, works)
        world.turns.run()
        clock.now_ms += _DRAINED_MS
        queue = SharedQueue(machine.broker, "jobs", config, clock=clock)
        drained = set[bytes]()
        while found := queue.get_many(1000, timeout=0, lease=1e6):
            drained |= {judge.got(message, clock.now_ms).message.value for message in found}
        judge.check_end(drained, {letter.message.value for letter in queue.dead_letters()})
    return len(judge.given)
