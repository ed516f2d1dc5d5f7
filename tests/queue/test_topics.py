"""Which names topics may have, and which are found when the queue is opened again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import pytest

from logstore.disk.errors import DirectoryLocked, InvalidTopic
from logstore.queue import Queue
from logstore.queue.looking import look_at
from logstore.testing.disks import MemoryDisk, Operation, RecordingDisk
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


def test_the_longest_name_and_one_that_is_too_long() -> None:
    """A refused name leaves nothing behind: the queue opens again."""
    disk = MemoryDisk()
    hands = Hands(disk=disk)
    hands.queue.put(b"job", topic="a" * 240)
    before = sorted(entry.name for entry in disk.scan(PATH))
    for length in (241, 249):
        with pytest.raises(InvalidTopic, match=f"'{'b' * length}' has {length} characters.* 240 at most"):
            hands.queue.put(b"job", topic="b" * length)
    with pytest.raises(InvalidTopic, match=f"'{'b' * 250}' is not 1 to 249"):
        hands.queue.put(b"job", topic="b" * 250)
    assert sorted(entry.name for entry in disk.scan(PATH)) == before
    hands.reopen()
    assert hands.get().topic == "a" * 240


def test_a_directory_that_a_refused_name_left_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    hands = Hands(disk=disk)
    hands.queue.put(b"job")
    disk.make_dir(f"{PATH}/{'b' * 241}-0")
    with caplog.at_level(logging.WARNING):
        hands.reopen()
    assert f"{PATH}/{'b' * 241}-0 is ignored" in caplog.text
    assert list(hands.queue.stats().topics) == list(look_at(disk, PATH).topics) == ["default"]


def test_another_process_opens_the_queue_at_any_moment_of_an_opening() -> None:
    """It owns the queue for a moment, or is refused; the topics that it made are there."""
    moments = owned = 0

    def other(_: Operation) -> None:
        nonlocal moments, owned
        moments -= 1
        if not moments:
            with suppress(DirectoryLocked), Queue(PATH, disk=disk) as queue:
                queue.put(b"job", topic="made-meanwhile")
                owned += 1

    for moment in range(1, 100):
        disk = MemoryDisk(directories=["/data"])
        moments, before = moment, owned
        with Queue(PATH, disk=RecordingDisk(disk, before=other)) as queue:
            assert list(queue.stats().topics) == ["made-meanwhile"] * (owned - before)
        if moments > 0:
            break
    assert 3 < owned < moment - 3


def no_string(queue: Queue) -> object:
    return queue.put(b"job", topic=b"mail")  # type: ignore[arg-type]


def no_string_for_many(queue: Queue) -> object:
    return queue.put_many([b"job"], topic=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("mistake", [no_string, no_string_for_many])
def test_a_topic_that_is_no_text(mistake: Callable[[Queue], object]) -> None:
    with pytest.raises(TypeError, match="a topic is a str, not"):
        mistake(Hands().queue)


def test_an_iterator_of_topics_is_read_once() -> None:
    hands = Hands()
    for topic in ("a", "b", "c"):
        hands.queue.put_many([b"0", b"1"], topic=topic)
    found = hands.queue.get_many(10, iter(["a", "b"]))  # type: ignore[arg-type]
    assert sorted(each.topic for each in found) == ["a", "a", "b", "b"]
    message = hands.queue.get(iter(["x", "c"]), timeout=0)  # type: ignore[call-overload]
    assert message is not None
    assert message.topic == "c"
