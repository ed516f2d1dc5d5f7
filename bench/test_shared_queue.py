"""Four processes take and acknowledge the jobs of one queue, beside queues in SQLite files that they share.

Each rival is set up so that what has returned survives `kill -9`, and not a power cut, as ours does at
`durability="written"`. litequeue keeps a message until it is acknowledged, but has no leases: what a killed
worker held stays locked. huey's storage removes a message as it hands it out, so a killed worker loses it.
Ours runs a broker beside the workers, which other hosts may use as well.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.bars import NO_BAR
from logstore.broker import SharedQueue

VALUE = os.urandom(100)
JOBS = 1000
WORKERS = 4
_LOCK_S = 60
"""How long a rival waits for the database's lock."""

_processes = multiprocessing.get_context("spawn")


class Side(NamedTuple):
    """One process's hold of a queue."""

    put: Callable[[int], object]
    """Puts so many jobs."""
    take: Callable[[], int]
    """Finishes some jobs and returns how many; 0: there are none left."""
    close: Callable[[], object]


def litequeue(home: str) -> Side:
    module = pytest.importorskip("litequeue")
    queue = module.LiteQueue(f"{home}/litequeue.db", timeout=_LOCK_S)
    queue.conn.execute("PRAGMA synchronous = OFF")

    def take() -> int:
        message = queue.pop()
        if message is not None:
            queue.done(message.message_id)
        return int(message is not None)

    return Side(lambda count: [queue.put(VALUE) for _ in range(count)], take, queue.close)


def huey(home: str) -> Side:
    module = pytest.importorskip("huey.storage")
    queue = module.SqliteStorage("bench", filename=f"{home}/huey.db", fsync=False, timeout=_LOCK_S)

    def put(count: int) -> None:
        for _ in range(count):
            queue.enqueue(VALUE)

    return Side(put, lambda: int(queue.dequeue() is not None), queue.close)


def one_by_one(place: str) -> Side:
    queue = _connected(place)

    def take() -> int:
        message = queue.get(timeout=0)
        if message is not None:
            queue.ack(message)
        return int(message is not None)

    return Side(lambda count: queue.put_many([VALUE] * count), take, queue.close)


def twenty_at_once(place: str) -> Side:
    queue = _connected(place)

    def take() -> int:
        messages = queue.get_many(20, timeout=0)
        queue.ack_many(messages)
        return len(messages)

    return Side(lambda count: queue.put_many([VALUE] * count), take, queue.close)


def _connected(place: str) -> SharedQueue:
    address, _, name = place.partition("/")
    return SharedQueue.connect(address, name)


KINDS = {each.__name__: each for each in (litequeue, huey, one_by_one, twenty_at_once)}


def _work(kind: str, where: str, is_ready: Semaphore, may_go: Event, done: SimpleQueue[int]) -> None:
    side = KINDS[kind](where)
    is_ready.release()
    may_go.wait()
    done.put(sum(iter(side.take, 0)))


class Crew:
    """A queue with jobs, and processes that are ready to take them."""

    def __init__(self, kind: str, where: str) -> None:
        side = KINDS[kind](where)
        side.put(JOBS)
        side.close()
        is_ready, self._may_go = _processes.Semaphore(0), _processes.Event()
        self._done: SimpleQueue[int] = _processes.SimpleQueue()
        parts = (kind, where, is_ready, self._may_go, self._done)
        self._workers = [_processes.Process(target=_work, args=parts) for _ in range(WORKERS)]
        for worker in self._workers:
            worker.start()
        for _ in self._workers:
            is_ready.acquire()

    def take_all(self) -> None:
        self._may_go.set()
        assert sum(self._done.get() for _ in self._workers) == JOBS

    def leave(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.join()


@pytest.fixture
def broker(scratch: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "bench.serving", "broker", str(scratch / "broker")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


@pytest.mark.parametrize("rival", ["litequeue", "huey"])
@pytest.mark.parametrize("ours", ["one_by_one", "twenty_at_once"])
def test_four_processes(
    beside: Callable[..., object], scratch: Path, broker: str, rival: str, ours: str
) -> None:
    numbers = itertools.count()
    crews: dict[str, Crew] = {}
    home = scratch / "rival"

    def before() -> None:
        home.mkdir()
        crews.update(rival=Crew(rival, str(home)), ours=Crew(ours, f"{broker}/jobs-{next(numbers)}"))

    def after() -> None:
        for crew in crews.values():
            crew.leave()
        if crews:
            shutil.rmtree(home)
            crews.clear()

    def take_all(side: str) -> None:
        crews[side].take_all()

    beside(
        raw=partial(take_all, "rival"),
        ours=partial(take_all, "ours"),
        before=before,
        after=after,
        name=f"shared queue, {WORKERS} processes: get and ack of 100 bytes, {ours.replace('_', ' ')}",
        rival=rival + (", no ack" if rival == "huey" else ""),
        units=JOBS,
        unit="jobs/s",
        bar=NO_BAR,
        rounds=5,
    )
