"""A job's way through a queue (put, get, acknowledge) beside the queues that Python programs embed.

Each rival is set up so that what has returned survives `kill -9`, and not a power cut, as ours does at
`durability="written"`: SQLite's write-ahead log without syncs. persist-queue and litequeue keep a message
until it is acknowledged. diskcache's deque has no leases: its only reader looks at a message, and removes it
when it is done. huey's storage removes a message as it hands it out, so a killed worker loses it: a weaker
promise.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.bars import NO_BAR, Bar, ratio_bar
from logstore.queue import Queue

VALUE = os.urandom(100)
COUNT = 1000

Way = Callable[[], None]


def litequeue(home: Path) -> tuple[Way, Way]:
    module = pytest.importorskip("litequeue")
    queue = module.LiteQueue(str(home / "litequeue.db"))
    queue.conn.execute("PRAGMA synchronous = OFF")

    def finish_next() -> None:
        queue.done(queue.pop().message_id)

    return lambda: queue.put(VALUE), finish_next


def persist_queue(home: Path) -> tuple[Way, Way]:
    module = pytest.importorskip("persistqueue")
    queue = module.SQLiteAckQueue(str(home / "persist"), auto_commit=True)

    def finish_next() -> None:
        queue.ack(id=queue.get(raw=True)["pqid"])

    return lambda: queue.put(VALUE), finish_next


def diskcache(home: Path) -> tuple[Way, Way]:
    module = pytest.importorskip("diskcache")
    queue = module.Deque(directory=str(home / "diskcache"))
    queue._cache.reset("sqlite_synchronous", 0)

    def finish_next() -> None:
        queue.peekleft()
        queue.popleft()

    return lambda: queue.append(VALUE), finish_next


def huey(home: Path) -> tuple[Way, Way]:
    module = pytest.importorskip("huey.storage")
    queue = module.SqliteStorage("bench", filename=str(home / "huey.db"), fsync=False)
    return lambda: queue.enqueue(VALUE), queue.dequeue


def ways(queue: Queue) -> tuple[Way, Way]:
    """Ours."""

    def finish_next() -> None:
        message = queue.get(timeout=0)
        assert message is not None
        queue.ack(message)

    return lambda: queue.put(VALUE), finish_next  # type: ignore[return-value]


RIVALS: dict[str, tuple[Callable[[Path], tuple[Way, Way]], Bar]] = {
    "persist-queue": (persist_queue, ratio_bar(5)),
    "litequeue": (litequeue, ratio_bar(5)),
    "diskcache": (diskcache, ratio_bar(5)),
    "huey, no ack": (huey, NO_BAR),
}


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("order", ["all put, then all taken", "one at a time"])
def test_put_get_ack(beside: Callable[..., object], scratch: Path, rival: str, order: str) -> None:
    make, bar = RIVALS[rival]
    numbers = itertools.count()
    sides: dict[str, Any] = {}

    def before() -> None:
        home = scratch / str(next(numbers))
        home.mkdir()
        sides.update(home=home, rival=make(home), queue=Queue(home / "jobs"))
        # A rival's constructor creates its tables; a topic's files are created by its first job.
        for put, finish_next in (sides["rival"], ways(sides["queue"])):
            put()
            finish_next()

    def after() -> None:
        if sides:
            sides["queue"].close()
            shutil.rmtree(sides["home"])
            sides.clear()

    def carry_out(put: Way, finish_next: Way) -> None:
        if order == "one at a time":
            for _ in range(COUNT):
                put()
                finish_next()
        else:
            for _ in range(COUNT):
                put()
            for _ in range(COUNT):
                finish_next()

    beside(
        raw=lambda: carry_out(*sides["rival"]),
        ours=lambda: carry_out(*ways(sides["queue"])),
        before=before,
        after=after,
        name=f"queue: put, get, ack of 100 bytes, {order}",
        rival=rival,
        units=COUNT,
        unit="jobs/s",
        bar=bar,
        rounds=5,
    )
