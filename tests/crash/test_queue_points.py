"""The power fails before every call of a queue, and its process dies there.

What was put and not acknowledged is found, what was acknowledged is not, and a queue that recovered keeps
what is put into it next. The last tests switch one precaution off each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from logstore import Log, Queue, QueueConfig
from logstore.disk.files import Disk
from logstore.log.partition_log import PartitionLog
from logstore.queue import lane
from logstore.queue.lane import Lane
from logstore.queue.messages import Message
from logstore.queue.state import QueueState
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from tests.crash.script import ForgetfulDisk

PATH = "/data/jobs"
SYNCED = QueueConfig(durability="synced", max_message_bytes=200, max_deliveries=2)
WRITTEN = QueueConfig(max_message_bytes=200)

Values = frozenset[bytes]
NONE: Values = frozenset()


class Found(NamedTuple):
    """What a queue holds: unfinished messages, and dead letters."""

    queue: tuple[bytes, ...]
    dead: Values


class Promise(NamedTuple):
    """What must be in the queue or among the dead letters, and what may be in each."""

    must: Values = NONE
    may: Values = NONE
    dead_must: Values = NONE
    dead_may: Values = NONE


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few messages fill a segment, and a few events cause a checkpoint."""
    use_small_parts(monkeypatch.setattr)


def use_small_parts(setattr_: Callable[[Any, str, int], None]) -> None:
    setattr_(lane, "EVENTS_BETWEEN_CHECKPOINTS", 3)
    setattr_(lane, "_SEGMENT_BYTES", 300)
    setattr_(lane, "_EVENTS_SEGMENT_BYTES", 200)
    setattr_(lane, "_EVENT_BYTES", 100)


def opened(disk: Disk, config: QueueConfig) -> Queue:
    return Queue(PATH, config, disk=disk, clock=lambda: 1)


class Worker:
    """Uses a queue and promises as it goes: before a call what it may do, after it what it did."""

    def __init__(self, run: CrashRun[Promise], config: QueueConfig = SYNCED) -> None:
        self._run, self._config = run, config
        self.queue = opened(run.disk, config)
        self._promise = run.promised

    def _promised(self, **changes: Values) -> None:
        self._promise = self._promise._replace(**changes)
        self._run.promise(self._promise)

    def put(self, *values: bytes) -> None:
        self._promised(may=self._promise.may | {*values})
        self.queue.put_many(values) if len(values) > 1 else self.queue.put(values[0])
        self._promised(must=self._promise.must | {*values})

    def ack(self, *messages: Message) -> None:
        values = {message.value for message in messages}
        self._promised(must=self._promise.must - values)
        self.queue.ack_many(messages) if len(messages) > 1 else self.queue.ack(messages[0])
        self._promised(may=self._promise.may - values)

    def bury(self, message: Message) -> None:
        value = {message.value}
        self._promised(dead_may=self._promise.dead_may | value)
        assert not self.queue.nack(message)
        self._promised(may=self._promise.may - value, dead_must=self._promise.dead_must | value)

    def get(self) -> Message:
        message = self.queue.get(timeout=0)
        assert message is not None
        return message

    def reopen(self) -> None:
        self.queue.close()
        self.queue = opened(self._run.disk, self._config)


def first_steps(run: CrashRun[Promise]) -> None:
    worker = Worker(run)
    worker.put(b"0")
    worker.ack(worker.get())
    worker.put(b"1")


def work(run: CrashRun[Promise]) -> None:
    run.is_watched = False
    worker = Worker(run)
    worker.put(b"0" * 60)
    run.is_watched = True
    worker.put(b"1", b"2", b"3")
    worker.ack(worker.get())
    first, second, third = (worker.get() for _ in range(3))
    worker.ack(second)
    worker.queue.nack(first)
    worker.ack(third)
    worker.put(b"4" * 60)
    worker.bury(worker.get())
    worker.put(b"5" * 60)
    worker.ack(worker.get())
    worker.put(b"6" * 60)
    worker.ack(worker.get())
    worker.reopen()
    worker.put(b"7")
    worker.ack(worker.get())


def a_second_owner(run: CrashRun[Promise]) -> None:
    """The first one died; deliveries of what it left are written down."""
    run.is_watched = False
    worker = Worker(run)
    worker.put(b"0", b"1", b"2")
    worker.ack(worker.get())
    worker.queue._abandon()
    run.is_watched = True
    worker = Worker(run)
    first, second = worker.get(), worker.get()
    worker.ack(second)
    worker.queue.nack(first)
    worker.bury(worker.get())
    worker.put(b"3")


SCRIPTS: tuple[Callable[[CrashRun[Promise]], None], ...] = (first_steps, work, a_second_owner)


def recover(disk: Disk, config: QueueConfig = SYNCED) -> Found:
    queue = opened(disk, config)
    values = tuple(message.value for message in queue.peek(100))
    dead = frozenset(letter.message.value for letter in queue.dead_letters())
    queue._abandon()
    return Found(values, dead)


def judge(found: Found, promise: Promise) -> None:
    queue = frozenset(found.queue)
    assert len(queue) == len(found.queue), f"twice in the queue: {found.queue}"
    assert promise.must <= queue | found.dead, f"lost: {promise.must - queue - found.dead}"
    assert queue <= promise.may, f"acknowledged, or never put: {queue - promise.may}"
    assert promise.dead_must <= found.dead <= promise.dead_may, f"dead letters: {found.dead}"


def keeps_what_is_put(disk: Disk, config: QueueConfig = SYNCED) -> None:
    """Messages that are new now, at offsets that a power cut freed, are found by the next owner."""
    new = [b"new %d" % number for number in range(12)]
    queue = opened(disk, config)
    queue.put_many(new)
    queue._abandon()
    found = recover(disk, config)
    assert [value for value in found.queue if value in new] == new, f"of what is new: {found.queue}"


def explored(
    script: Callable[[CrashRun[Promise]], None],
    *,
    forgets: Callable[[str, str], bool] = lambda _call, _path: False,
    **options: Any,
) -> CrashReport:
    settings = {"goes_on": keeps_what_is_put, **options}
    return CrashLab(recover, judge, **settings).explore(
        script, Promise(), disk=lambda: ForgetfulDisk(forgets, directories=["/data"])
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_point(script: Callable[[CrashRun[Promise]], None]) -> None:
    report = explored(script, images=1, kills=False)
    assert report.is_good, str(report)
    assert report.moments > 10


def test_a_killed_process_leaves_a_queue_too() -> None:
    """The names that it made may not be durable when the next one finds them."""
    report = explored(first_steps, images=1, second_images=1)
    assert report.is_good, str(report)


# --- written, not synced ------------------------------------------------------------------------------


def written(run: CrashRun[Promise]) -> None:
    """Nothing is promised but that nothing is invented."""
    run.is_watched = False
    worker = Worker(run, WRITTEN)
    everything = frozenset(b"%d" % number * 30 for number in range(8))
    run.promise(Promise(may=everything))
    run.is_watched = True
    for number in range(8):
        worker.queue.put(b"%d" % number * 30)
        worker.queue.ack(worker.get())


def explored_written(**options: Any) -> CrashReport:
    return CrashLab(
        lambda disk: recover(disk, WRITTEN),
        judge,
        goes_on=lambda disk: keeps_what_is_put(disk, WRITTEN),
        **options,
    ).explore(written, Promise(), disk=lambda: ForgetfulDisk(lambda *_: False, directories=["/data"]))


def test_events_that_outlive_their_messages_do_not_touch_new_ones() -> None:
    report = explored_written(images=1, kills=False)
    assert report.is_good, str(report)


# --- each precaution is needed --------------------------------------------------------------------------


def is_noticed(script: Callable[[CrashRun[Promise]], None] = work, **options: Any) -> None:
    report = explored(script, **{"images": 8, "kills": False, "stop_after": 1, **options})
    assert not report.is_good, "nobody noticed"


def test_what_is_put_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "sync_up_to", lambda _self, _offset: None)
    is_noticed(first_steps)


def test_a_checkpoint_is_synced() -> None:
    is_noticed(forgets=lambda call, path: call == "sync" and path.endswith(".checkpoint.tmp"))


def test_an_opening_begins_with_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else events about messages that are gone would finish those that take their offsets."""
    checkpoint = Lane.checkpoint

    def later(self: Lane, now_ms: int, *, is_clean: bool = False) -> None:
        if self._changes or is_clean:
            checkpoint(self, now_ms, is_clean=is_clean)

    monkeypatch.setattr(Lane, "checkpoint", later)
    assert not explored_written(images=8, kills=False, stop_after=1).is_good, "nobody noticed"


def test_messages_are_synced_before_a_checkpoint_that_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next one: what a power cut took of the logs is forgotten."""
    monkeypatch.setattr(QueueState, "clamp", lambda *_: None)
    monkeypatch.setattr(Log, "flush", lambda _self: None)
    assert not explored_written(images=8, kills=False, stop_after=1).is_good, "nobody noticed"


def test_a_dead_letter_is_durable_before_its_message_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    give_up = Lane._give_up

    def hasty(self: Lane, offset: int, deliveries: int, reason: str, now_ms: int) -> None:
        letters: list[tuple[Message, str]] = []
        bury, self._bury = self._bury, lambda message, reason: letters.append((message, reason))
        give_up(self, offset, deliveries, reason, now_ms)
        self.events.flush()
        self._bury = bury
        for letter in letters:
            bury(*letter)

    monkeypatch.setattr(Lane, "_give_up", hasty)
    is_noticed()


def test_segments_go_after_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that a checkpoint replaces are still needed until it is there."""
    checkpoint = Lane.checkpoint

    def hasty(self: Lane, now_ms: int, *, is_clean: bool = False) -> None:
        lane._release(self.events, self.events.log_end_offset, now_ms)
        checkpoint(self, now_ms, is_clean=is_clean)

    monkeypatch.setattr(Lane, "checkpoint", hasty)
    is_noticed()


def test_acknowledgements_are_synced() -> None:
    is_noticed(forgets=lambda call, path: call == "sync" and "__events" in path and path.endswith(".log"))


def everything() -> Iterator[tuple[str, Callable[..., CrashReport]]]:
    """For `python -m tests.crash`: each script with the small parts."""
    for script in SCRIPTS:

        def run(script: Callable[[CrashRun[Promise]], None] = script, **options: Any) -> CrashReport:
            with pytest.MonkeyPatch.context() as patch:
                use_small_parts(patch.setattr)
                return explored(script, **options)

        yield f"queue_{script.__name__}", run
