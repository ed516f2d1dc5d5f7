"""Which names topics may have, and which are found when the queue is opened again."""

from __future__ import annotations

import pytest

from logstore.queue.looking import look_at
from logstore.testing.disks import MemoryDisk
from tests.queue.parts import PATH, Hands


@pytest.mark.parametrize(
    "topic", ["queue.json", "queue.jsonl", "queue.json.tmp", "x.checkpoint", "default-0", ".lock", "..a", "-"]
)
def test_a_topic_of_any_name_is_there_again(topic: str) -> None:
    disk = MemoryDisk()
    hands = Hands(disk=disk)
    hands.queue.put(b"job", topic=topic)
    hands.reopen()
    assert list(hands.queue.stats().topics) == list(look_at(disk, PATH).topics) == [topic]
    message = hands.get()
    assert (message.topic, message.value) == (topic, b"job")
