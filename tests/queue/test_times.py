"""Durations that no platform and no file can hold, and failures to open that leave nothing open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from logstore import Log, Record
from logstore.errors import InvalidConfig
from logstore.format.record import Header
from logstore.queue import Message, Queue, QueueConfig, lane
from logstore.queue import queue as queue_module
from logstore.testing.disks import MemoryDisk
from tests.queue.parts import PATH, Hands, falling_clock

LIMIT_S = 30


def got_by_a_waiter(queue: Queue, timeout: float | None) -> Message | None:
    """Put a message when another thread waits for one, and return what that thread gets."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.get, timeout=timeout)
        while not len(queue._waiters) and not waiting.done():
            pass
        queue.put(b"now")
        return waiting.result(LIMIT_S)


@pytest.mark.parametrize("timeout", [None, 1e10, pytest.param(10**400, id="int"), float("inf")])
def test_a_wait_may_be_longer_than_the_platform_allows(tmp_path: Path, timeout: float | None) -> None:
    with Queue(tmp_path / "jobs") as queue:
        queue.put(b"later", delay=1e10)
        message = got_by_a_waiter(queue, timeout)
        assert message is not None
        assert message.value == b"now"


def test_behind_the_longest_wait_it_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_LONGEST_WAIT_S", 0.001)
    hands, looks = Hands(), count()
    hands.queue.put(b"later", delay=1e10)
    hands.queue._clock = lambda: hands.now_ms + (10**13 if next(looks) > 5 else 0)
    message = hands.queue.get()
    assert message.value == b"later"


def test_a_waiter_notices_that_the_clock_was_set_forward() -> None:
    """On a machine that was suspended, the wall clock jumps and the monotonic one does not."""
    hands = Hands()
    hands.queue.put(b"tomorrow", delay=86_400)
    with hands.queue.waiting(lambda: None, lambda: False, None, None, None) as wait:
        message, wait_s = wait.look()
        assert message is None
        assert wait_s is not None
        assert wait_s <= 60
        hands.wait(86_400)
        message, _ = wait.look()
    assert message is not None


def test_a_clock_that_was_ahead_leaves_no_key_for_longer_than_the_window() -> None:
    hands = Hands(QueueConfig(deduplication_window=60))
    hands.wait(86_400)
    hands.queue.put(b"1", key=b"k")
    hands.queue.put(b"1", key=b"other")
    hands.wait(-86_400)  # as set right by NTP
    assert hands.queue.put(b"2", key=b"k") == 2
    assert hands.queue.put(b"2 again", key=b"k") == 2
    hands.reopen()
    assert hands.queue.put(b"2 again", key=b"k") == 2
    assert hands.queue.put(b"other", key=b"other") == 3


def test_a_clock_that_goes_back_a_little_leaves_the_keys() -> None:
    hands = Hands(QueueConfig(deduplication_window=60))
    hands.queue.put(b"1", key=b"k")
    hands.wait(-59)
    assert hands.queue.put(b"1", key=b"k") == 0


def test_a_clock_that_goes_back_does_not_prolong_a_call() -> None:
    hands = Hands()
    hands.queue._clock = falling_clock()
    assert hands.queue.get(timeout=0.01) is None
    assert hands.queue.get_many(3, timeout=0.01) == []


@pytest.mark.parametrize(
    "seconds", [1.001e15, 1e16, 1e300, pytest.param(10**400, id="int"), float("inf"), float("nan")]
)
def test_a_duration_that_no_file_can_hold_is_refused(seconds: float) -> None:
    hands = Hands()
    hands.queue.put(b"job")
    message = hands.get()
    with pytest.raises(ValueError, match=r"delay is .* at most 1e\+15"):
        hands.queue.put(b"job", delay=seconds)
    with pytest.raises(ValueError, match="delay is"):
        hands.queue.nack(message, delay=seconds)
    with pytest.raises(ValueError, match="lease is"):
        hands.queue.extend(message, lease=seconds)
    with pytest.raises(ValueError, match="lease is"):
        hands.queue.get(timeout=0, lease=seconds)
    with pytest.raises(InvalidConfig, match="lease is"):
        QueueConfig(lease=seconds)
    with pytest.raises(InvalidConfig, match="deduplication_window is"):
        QueueConfig(deduplication_window=seconds)
    hands.queue.ack(message)
    hands.reopen()
    assert hands.queue.stats().topics["default"][:4] == (0, 0, 0, 1)


@pytest.mark.parametrize("killed", [False, True])
def test_the_longest_durations_are_kept(killed: bool) -> None:
    longest = 1e15
    hands = Hands(QueueConfig(lease=longest, deduplication_window=longest))
    assert hands.queue.put(b"0", key=b"k", delay=longest) == hands.queue.put(b"0", key=b"k") == 0
    hands.queue.put(b"1")
    message = hands.get()
    hands.queue.extend(message)
    assert hands.queue.nack(message, delay=longest)
    hands.reopen(killed=killed)
    assert hands.queue.get(timeout=0) is None
    assert hands.queue.put(b"0", key=b"k") == 0
    hands.wait(longest)
    assert [hands.get().value for _ in range(2)] == [b"0", b"1"]


def test_a_delay_that_an_earlier_version_stored_does_not_stop_the_queue() -> None:
    """It exceeded the eight bytes of a time in a checkpoint, which could not be written any more."""
    disk = MemoryDisk()
    hands = Hands(disk=disk)
    hands.queue.put(b"job")
    hands.queue.close()
    with Log.open(f"{PATH}/default-0", disk=disk) as log:
        header = Header("logstore.not-before", b"%d" % 10**19)
        log.append(Record(0, hands.now_ms, None, b"never", (header,)))
    hands.queue = hands.open()
    assert hands.values() == [b"job"]
    hands.reopen()
    assert hands.values() == [b"job"]
    assert hands.queue.stats().topics["default"].delayed == 1


def test_the_largest_messages_are_a_setting_of_the_log() -> None:
    hands = Hands(QueueConfig(max_message_bytes=2**31 - 1))
    hands.queue.put(b"job")
    with pytest.raises(InvalidConfig, match="max_message_bytes is 2147483648"):
        QueueConfig(max_message_bytes=2**31)


def test_an_opening_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands()
    hands.queue.put(b"job")
    hands.queue.put(b"mail", topic="mail")
    hands.queue.close()
    with monkeypatch.context() as patches:
        patches.setattr(lane, "RecentKeys", lambda window_ms: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            hands.open()
    hands.queue = hands.open()
    assert hands.values() == [b"job", b"mail"]


@pytest.mark.timeout(30)
def test_the_lease_that_an_interrupted_acknowledgement_left_ends() -> None:
    hands = Hands()
    hands.queue.put(b"done")
    acknowledged = hands.queue.get()
    hands.queue._lanes["default"].state.unfinished.pop(acknowledged.offset)  # its first step
    hands.queue.put(b"next")
    hands.wait(86_400)
    assert hands.get().value == b"next"
    assert hands.queue.stats().topics["default"].leased == 1
