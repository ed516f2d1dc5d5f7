"""Calls of a queue that are refused in their middle: what was done before counts, and is done once."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.disk.errors import EngineError
from logstore.errors import LogDirOffline, OutOfResources, RecordTooLarge
from logstore.queue import AsyncQueue, Message, Queue, QueueConfig, lane
from logstore.queue.waiting import Waiter, Waiters
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.queue.parts import Hands

LIMIT_S = 30
FULL = Fault(
    operation="pwrite", errno=errno.ENOSPC, path=lambda path: "__events.slow-0" in path, forever=True
)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_disk_that_fails_is_named_by_each_call(has_ended: bool) -> None:
    """The messages log has only what is durable then, and not all of them are in memory."""
    many = 1500
    disk = FaultyDisk(MemoryDisk(directories=["/data"]))
    hands = Hands(QueueConfig(max_deliveries=1), disk=disk)
    hands.queue.put_many([b"%d" % number for number in range(many)])
    hands.get()
    disk.inject(Fault(operation="pwrite"))
    with pytest.raises(LogDirOffline):
        hands.queue.put(b"new")
    disk.heal()
    hands.wait(60 if has_ended else 0)
    for call in (hands.values, lambda: hands.queue.peek(2000)):
        with pytest.raises(LogDirOffline, match="reopen it"):
            call()
    with pytest.raises(LogDirOffline):
        hands.queue.close()
    assert len(hands.open().peek(2000)) == many


def failing_hands() -> tuple[Hands, FaultyDisk]:
    """An empty queue with one topic, whose messages are synced, and its disk."""
    disk = FaultyDisk(MemoryDisk(directories=["/data"]))
    hands = Hands(QueueConfig(durability="synced"), disk=disk)
    hands.queue.put(b"first")
    hands.queue.ack(hands.get())
    return hands, disk


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_who_waits_is_told_that_the_disk_failed(operation: str) -> None:
    """Nothing is delivered any more: without a timeout the call waited for ever, and others returned None."""
    hands, disk = failing_hands()
    rung = threading.Event()
    with hands.queue.waiting(rung.set, lambda: False, None, None, None) as wait:
        assert wait.look()[0] is None
        disk.inject(Fault(operation=operation))
        with pytest.raises(LogDirOffline):
            hands.queue.put(b"new")
        assert rung.is_set()
        with pytest.raises(LogDirOffline, match="reopen it"):
            wait.look()
    with pytest.raises(LogDirOffline, match="reopen it"):
        hands.queue.get(timeout=0)


def test_who_begins_to_wait_while_a_sync_fails_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync holds no lock of the queue: it fails between the look and the wait."""
    hands, disk = failing_hands()
    add = Waiters.add

    def fail_and_add(self: Waiters, waiter: Waiter, until_ms: float) -> None:
        disk.inject(Fault(operation="sync"))
        messages = hands.queue._lanes["default"].messages
        messages.append(b"from another thread")
        with pytest.raises(LogDirOffline):
            messages.flush()
        add(self, waiter, until_ms)

    monkeypatch.setattr(Waiters, "add", fail_and_add)
    with hands.queue.waiting(lambda: None, lambda: False, None, None, None) as wait:
        _, wait_s = wait.look()
        assert wait_s is not None
        assert wait_s < 1
        with pytest.raises(LogDirOffline, match="reopen it"):
            wait.look()


def test_a_task_that_waits_is_told_that_the_disk_failed() -> None:
    hands, disk = failing_hands()

    async def run() -> None:
        queue = AsyncQueue(hands.queue)
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        disk.inject(Fault(operation="pwrite"))
        with pytest.raises(LogDirOffline):
            hands.queue.put(b"new")
        with pytest.raises(LogDirOffline, match="reopen it"):
            await asyncio.wait_for(waiting, LIMIT_S)

    asyncio.run(run())


@pytest.mark.parametrize("window", [0, 60])
def test_who_waits_gets_what_was_stored_before_a_refused_message(window: float) -> None:
    hands = Hands(QueueConfig(deduplication_window=window))
    rung = threading.Event()
    with hands.queue.waiting(rung.set, lambda: False, None, None, None) as wait:
        assert wait.look()[0] is None
        with pytest.raises(RecordTooLarge):
            hands.queue.put_many([b"stored", bytes(600_000), bytes(2_000_000)])
        assert rung.is_set()
        message, _ = wait.look()
    assert message is not None
    assert message.value == b"stored"


def test_an_iterator_of_messages_may_call_the_queue(tmp_path: Path) -> None:
    """The lock was held meanwhile."""

    def done(queue: Queue) -> Iterator[Message]:
        while (message := queue.get(timeout=0)) is not None:
            yield message

    queue = Queue(tmp_path / "jobs")
    queue.put_many([b"1", b"2"])
    thread = threading.Thread(target=lambda: queue.ack_many(done(queue)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert queue.stats().topics["default"].finished == 2
    queue.close()


@pytest.fixture
def hands() -> Hands:
    """One message of the topic slow, whose lease has ended; events of that topic find no room."""
    disk = FaultyDisk(MemoryDisk())
    hands = Hands(QueueConfig(lease=10, max_deliveries=1), disk)
    hands.queue.put(b"slow", topic="slow")
    assert hands.get().value == b"slow"
    hands.wait(10)
    disk.inject(FULL)
    return hands


def test_a_message_is_one_dead_letter_however_often_its_end_is_refused(hands: Hands) -> None:
    for _ in range(3):
        with pytest.raises(OutOfResources):
            hands.queue.get(timeout=0)
    assert isinstance(hands.disk, FaultyDisk)
    hands.disk.heal()
    assert hands.queue.get(timeout=0) is None
    assert [letter.message.value for letter in hands.queue.dead_letters()] == [b"slow"]
    assert hands.queue.stats().topics["slow"][:4] == (0, 0, 0, 1)


def test_a_checkpoint_that_is_refused_comes_before_the_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor that a checkpoint needs is missing, and appends need none."""
    monkeypatch.setattr(lane, "EVENTS_BETWEEN_CHECKPOINTS", 1)
    disk = FaultyDisk(MemoryDisk())
    hands = Hands(QueueConfig(max_deliveries=1), disk)
    hands.queue.put_many([b"1", b"2"])
    hands.queue.nack(hands.get())  # the first dead letter needs files of its log
    message = hands.get()
    disk.inject(Fault(operation="open", errno=errno.EMFILE, forever=True))
    for _ in range(3):
        with pytest.raises(OutOfResources):
            hands.queue.nack(message)
    disk.heal()
    hands.queue.nack(message)
    assert [letter.message.value for letter in hands.queue.dead_letters()] == [b"1", b"2"]


@pytest.mark.parametrize("form", ["threads", "tasks"])
def test_what_was_leased_before_a_refused_message_is_returned(hands: Hands, form: str) -> None:
    """Its caller would not know of it; it was delivered again after the lease, and at last a dead letter."""
    hands.queue.put_many([b"1", b"2"], topic="quick")
    hands.queue._turns[0].rotate([each.topic for each in hands.queue._turns[0]].index("slow") - 1)

    def get_many() -> list[Message]:
        if form == "threads":
            return hands.queue.get_many(3, timeout=0)
        return asyncio.run(AsyncQueue(hands.queue).get_many(3, timeout=0))

    assert [message.value for message in get_many()] == [b"1"]
    with pytest.raises(EngineError):
        hands.queue.get("slow", timeout=0)


def test_a_topic_that_opens_in_part_is_let_go() -> None:
    """The log of its messages stays locked while somebody holds the error."""
    disk = FaultyDisk(MemoryDisk())
    hands = Hands(disk=disk)
    disk.inject(Fault(errno=errno.EMFILE, path=lambda path: "__events.new-0" in path, forever=True))
    with pytest.raises(EngineError) as raised:
        hands.queue.put(b"1", topic="new")
    disk.heal()
    assert hands.queue.put(b"1", topic="new") == 0
    assert raised.value.__traceback__ is not None, "held until here"
