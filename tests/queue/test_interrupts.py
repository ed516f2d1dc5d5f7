"""Ctrl-C, or an exception of a signal's handler, at every moment of a call: the queue goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore import Message, Queue
from logstore.disk.memory import MemoryDisk
from tests.logstore.test_interrupts import done_by_another, interrupted

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def put(queue: Queue, held: Message) -> None:
    queue.put(b"new")


def put_in_a_new_topic(queue: Queue, held: Message) -> None:
    queue.put(b"new", topic="other")


def get(queue: Queue, held: Message) -> None:
    queue.get(timeout=0)


def ack(queue: Queue, held: Message) -> None:
    queue.ack(held)


def nack(queue: Queue, held: Message) -> None:
    queue.nack(held)


@pytest.mark.parametrize("action", [put, put_in_a_new_topic, get, ack, nack])
def test_nothing_is_lost_and_nothing_stands_still(action: Callable[[Queue, Message], None]) -> None:
    at = 0
    while True:
        at += 7 if action is put_in_a_new_topic else 1  # most of its moments are those of two openings
        disk, now_ms = MemoryDisk(directories=["/data"]), 1_000_000
        queue = Queue("/data/jobs", disk=disk, clock=lambda: now_ms)  # noqa: B023
        for number in range(4):
            queue.put(b"%d" % number)
        first, held = queue.get(timeout=0), queue.get(timeout=0)
        assert first is not None
        assert held is not None
        queue.ack(first)
        was_interrupted = interrupted(lambda: action(queue, held), at)  # noqa: B023
        queue.put(b"after")
        now_ms += 3_600_000  # leases end
        for _ in range(2):
            found = []
            while (message := queue.get(timeout=0)) is not None:
                found.append(message.value)
            wanted = {b"1", b"2", b"3", b"after"} - ({b"1"} if action is ack else set())
            assert wanted <= set(found), f"moment {at}: {found}"
            assert b"0" not in found, f"moment {at}"
            figures = queue.stats().topics.values()
            assert [sum(each) for each in zip(*figures, strict=True)][:2] == [0, len(found)], f"moment {at}"
            assert len(found) == len(set(found)), f"moment {at}: {found}"
            queue.close()
            now_ms += 3_600_000
            queue = Queue("/data/jobs", disk=disk, clock=lambda: now_ms)  # noqa: B023
        queue.close()
        if not was_interrupted:
            break
    assert at > 10


def test_a_message_is_put_behind_an_interrupted_wait_for_it() -> None:
    """The lock of an event stayed taken: whoever put waited for it for ever, with the queue's lock."""
    for at in range(1, 400):
        queue = Queue("/data/jobs", disk=MemoryDisk(directories=["/data"]))
        was_interrupted = interrupted(lambda: queue.get(timeout=1e-9), at)  # noqa: B023
        assert done_by_another(lambda: queue.put(b"0")), f"moment {at}"  # noqa: B023
        message = queue.get()
        assert message.value == b"0"
        queue.close()
        if not was_interrupted:
            return
    raise AssertionError("a wait has more moments")
