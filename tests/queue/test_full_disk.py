"""A queue on a full disk: its consumers drain it, and what they finish frees space for new messages."""

from __future__ import annotations

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.errors import DiskFull
from logstore.queue import QueueConfig, reserve
from tests.queue.parts import PATH, Hands

BLOCK = 1 << 17


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """A queue of small messages that fill the disk. Their acknowledgements need more than the reserve has."""
    monkeypatch.setattr(reserve, "RESERVE_BYTES", BLOCK)
    hands = Hands(QueueConfig(max_deliveries=1), MemoryDisk(capacity=4 * BLOCK))
    fill(hands)
    return hands


def fill(hands: Hands) -> int:
    count = 0
    try:
        while True:
            hands.queue.put_many([bytes(10)] * 10)
            count += 10
    except DiskFull:
        return count


def drain(hands: Hands) -> int:
    count = 0
    while (message := hands.queue.get(timeout=0)) is not None:
        hands.queue.ack(message)
        count += 1
    return count


@pytest.mark.parametrize("before", ["nothing", "close", "kill"])
def test_consumers_drain_it(hands: Hands, before: str) -> None:
    waiting = hands.queue.stats().topics["default"].waiting
    if before != "nothing":
        hands.reopen(killed=before == "kill")
    assert drain(hands) == waiting
    hands.reopen(killed=True)
    assert hands.queue.stats().topics["default"].waiting == 0
    assert fill(hands) > waiting // 2


def test_it_is_killed_again_and_again_meanwhile(hands: Hands) -> None:
    """The space that the reserve left is still there, and each opening deletes what is finished."""
    finished = 0
    while messages := hands.queue.get_many(200, timeout=0):
        for message in messages:
            hands.queue.ack(message)
        finished += len(messages)
        hands.reopen(killed=True)
    assert hands.queue.stats().topics["default"][:4] == (0, 0, 0, finished)


def test_no_message_is_put_while_the_reserve_is_missing(hands: Hands) -> None:
    for _ in range(5):
        hands.queue.ack(hands.get())
    with pytest.raises(DiskFull, match="none can be put"):
        hands.queue.put(b"1")
    drain(hands)
    hands.queue.put(b"1")
    assert hands.values() == [b"1"]


def test_a_message_becomes_a_dead_letter(hands: Hands) -> None:
    assert not hands.queue.nack(hands.get())
    assert hands.queue.stats().dead_letters == 1


def test_it_is_refused_while_others_have_taken_the_space(hands: Hands) -> None:
    message = hands.get()
    disk = hands.disk
    assert isinstance(disk, MemoryDisk)
    disk.remove(f"{PATH}/{reserve.RESERVE_FILE}")
    disk.capacity = 0
    with pytest.raises(DiskFull):
        hands.queue.ack(message)
    disk.capacity = None
    hands.queue.ack(message)
    hands.queue.put(b"1")
