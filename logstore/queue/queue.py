"""A queue of jobs on disk, for the threads of one process: at least once; its state survives a crash.

    with Queue("data/jobs") as queue:
        queue.put(b"send the invoice")
        message = queue.get()          # leased: nobody else gets it for 30 s
        ...
        queue.ack(message)             # finished: nobody gets it again

    jobs/                         a directory that one process owns
      queue.json                  says that it is a queue, and its version
      __dead-letters-0/           a log: the messages that were given up
      reserve                     space for acknowledgements on a full disk (`reserve.py`)
      mail-0/ …                   three names for each topic (`lane.py`)

A topic is a lane of its own, and the queue chooses among them by priority. One lock guards it all; syncs are
outside of it, so that threads share them. Nothing runs in the background: ended leases and delays are
noticed by whoever asks for a message.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import Final, NamedTuple, Self, overload

from logstore.arguments import Path, as_config, as_directory, as_int, as_str, as_timeout
from logstore.config import MAX_INT, LogConfig
from logstore.disk.closing import Closing
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk, as_disk, wall_clock_ms
from logstore.disk.reentry import Flag, not_owned
from logstore.errors import DiskFull, LogClosed
from logstore.log.log import Log
from logstore.log.partition_log import Clock
from logstore.queue.arguments import (
    as_bytes,
    as_messages,
    as_milliseconds,
    as_pairs,
    as_topics,
    check_reason,
    check_topic,
)
from logstore.queue.config import QueueConfig
from logstore.queue.directory import DEAD_LETTERS, begin, prepare
from logstore.queue.errors import QueueClosed
from logstore.queue.lane import Lane
from logstore.queue.messages import DeadLetter, Message, dead_letter_of, dead_record
from logstore.queue.reserve import RESERVE_BYTES, Reserve
from logstore.queue.state import LaneStats
from logstore.queue.waiting import Deadline, Waiter, Waiters

DEFAULT_TOPIC: Final = "default"
_LONGEST_WAIT_S: Final = 60
"""How late a waiter notices that the wall clock, which leases and delays follow, was set forward."""


class QueueStats(NamedTuple):
    """The figures of a queue: of each topic, and how many dead letters it keeps."""

    topics: dict[str, LaneStats]
    dead_letters: int


class Wait:
    """One call that waits for a message; leave it as a context manager."""

    def __init__(self, queue: Queue, waiter: Waiter, lease_ms: int, deadline: Deadline) -> None:
        self._queue, self._waiter = queue, waiter
        self._lease_ms, self._deadline = lease_ms, deadline

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue._leave(self._waiter)

    def look(self) -> tuple[Message | None, float | None]:
        """Lease a message, or return for how many seconds to wait for the ring.

        None is for ever; with 0 and no message, the time is over. Look again even if nothing rang: the wall
        clock may have been set. Raises `QueueClosed`.
        """
        return self._queue._look(self._waiter, self._lease_ms, self._deadline)


class Queue(Closing):
    """Messages that are delivered until they are acknowledged. Every method may be called from any thread.

    Durations are seconds. Each method raises `QueueClosed` after `close`, `LogClosed` in a forked child, and
    `DiskFull`, `OutOfResources` or `LogDirOffline` as `Log.append` does. A refused call changes nothing, but
    `put_many`, `ack_many` and `redrive` may have done a part.
    """

    def __init__(
        self,
        path: Path,
        config: QueueConfig | None = None,
        *,
        create: bool = True,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open the queue in directory `path`, or create it; one process owns it at a time.

        Messages that a former owner had leased are ready again. Raises `NotAQueue` for a directory of other
        files, and with `create=False` also for one without a queue; `DirectoryLocked` if the queue is open
        elsewhere, `DamagedLog` or `CorruptCheckpoint` if its files are damaged, `LogDirOffline` or `DiskFull`
        if they cannot be used.
        """
        self.config = as_config(config, QueueConfig)
        self._directory = as_directory(path)
        self._disk = as_disk(disk)
        self._clock = clock or wall_clock_ms
        self._lease_ms = as_milliseconds(self.config.lease, "lease")
        self._is_synced = self.config.durability == "synced"
        self._lock = threading.RLock()
        self._waiters = Waiters()
        self._lanes: dict[str, Lane] = {}
        self._turns: list[deque[Lane]] = []
        """The lanes by falling priority; equal ones take turns."""
        self._is_closed = False
        self._reserve = Reserve(self._disk, self._directory)
        prepare(self._disk, self._directory, create=create)
        try:
            self._dead = _open_dead_letters(self._directory, self._disk, self._clock)
        except DiskFull:  # its lock was held: the reserve is no other owner's
            if not self._reserve.give_up():
                raise
            self._dead = _open_dead_letters(self._directory, self._disk, self._clock)
        self._dead.partition.at_failure = self._waiters.look_again
        try:
            topics = begin(self._disk, self._directory)
            with self._reserve.lent():
                for topic in topics:
                    self._open_lane(topic)
            if not self._reserve.is_kept:
                with suppress(EngineError):  # acknowledgements need not wait for space
                    _make_room(self._reserve, self._lanes.values(), self._clock())
        except BaseException:
            self._abandon()
            raise
        _opened.add(self)

    def _open_lane(self, topic: str) -> Lane:
        lane = Lane(
            self._directory,
            topic,
            self.config,
            self._bury,
            self._reserve,
            disk=self._disk,
            clock=self._clock,
        )
        lane.messages.partition.at_failure = lane.events.partition.at_failure = self._waiters.look_again
        self._lanes[topic] = lane

        def priority(each: Lane) -> int:
            return -self.config.priorities.get(each.topic, 0)

        ordered = sorted(self._lanes.values(), key=priority)
        self._turns = [deque(lanes) for _, lanes in groupby(ordered, key=priority)]
        return lane

    def __repr__(self) -> str:
        return f"Queue({self._directory!r}, {'closed' if self._is_closed else ', '.join(self._lanes)})"

    def close(self) -> None:
        """Write the checkpoints and release the directory; waiting calls raise `QueueClosed`.

        What is leased is ready at the next opening. Closing twice is harmless. A forked child only lets go
        of its copy.
        """
        if self._dead.partition.is_inherited:
            self._abandon()
            return
        with not_owned(self._lock):
            if self._is_closed:
                self._abandon()  # an interrupt may have ended the close before
                return
            self._is_closed = True
            self._waiters.ring_all()
            with self._reserve.lent(RESERVE_BYTES), ExitStack() as closing:  # each, although another fails
                closing.callback(self._dead.close)
                for lane in self._lanes.values():
                    closing.callback(lane.close, self._clock())

    def _abandon(self) -> None:
        """Release the files without writing, as the death of the process would."""
        self._is_closed = True
        for lane in self._lanes.values():
            lane.abandon()
        self._dead.partition.abandon()

    # --- putting --------------------------------------------------------------------------------------

    def put(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        topic: str = DEFAULT_TOPIC,
        delay: float = 0,
    ) -> int:
        """Store a message and return its offset in `topic`; it is delivered after `delay` at the earliest.

        If a message of the topic had the same key within `deduplication_window`, nothing is stored and the
        offset of that message is returned. Raises `TypeError` and `ValueError` for wrong arguments,
        `InvalidTopic`, `RecordTooLarge`.
        """
        if type(value) is not bytes:
            value = as_bytes(value, "a value")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "a key")
        delay_ms = as_milliseconds(delay, "delay") if delay != 0 else 0
        with not_owned(self._lock):
            lane = self._lane(topic)
            offset, is_new = lane.put(value, key, headers, self._clock(), delay_ms)
            if is_new and self._waiters:
                self._waiters.ring(topic, 1)
        if self._is_synced:
            lane.messages.partition.sync_up_to(offset + 1)
        return offset

    def put_many(
        self,
        values: Iterable[bytes | tuple[bytes | None, bytes]],
        *,
        topic: str = DEFAULT_TOPIC,
        delay: float = 0,
    ) -> list[int]:
        """Store values, or (key, value) pairs, in one write; returns the offset of each. Raises as `put`.

        If one is refused, messages before it may be stored.
        """
        pairs = as_pairs(values)
        if not pairs:
            self._check_open()
            return []
        delay_ms = as_milliseconds(delay, "delay") if delay != 0 else 0
        with not_owned(self._lock):
            lane = self._lane(topic)
            before = lane.messages.log_end_offset
            try:
                offsets = lane.put_many(pairs, self._clock(), delay_ms)
            finally:  # also if one is refused: those before it are stored
                self._waiters.ring(topic, lane.messages.log_end_offset - before)
        if self._is_synced:
            lane.messages.partition.sync_up_to(max(offsets) + 1)
        return offsets

    def _lane(self, topic: str) -> Lane:
        if self._is_closed:
            raise self._refusal()
        if not self._reserve.is_kept:
            _make_room(self._reserve, self._lanes.values(), self._clock())
        try:
            lane = self._lanes.get(topic)
        except TypeError:  # a list, for instance
            lane = None
        if lane is None:
            check_topic(topic)
            lane = self._open_lane(topic)
        return lane

    # --- getting --------------------------------------------------------------------------------------

    @overload
    def get(
        self, topics: str | Collection[str] | None = ..., *, timeout: None = ..., lease: float | None = ...
    ) -> Message: ...

    @overload
    def get(
        self, topics: str | Collection[str] | None = ..., *, timeout: float | None, lease: float | None = ...
    ) -> Message | None: ...

    def get(
        self,
        topics: str | Collection[str] | None = None,
        *,
        timeout: float | None = None,
        lease: float | None = None,
    ) -> Message | None:
        """Lease the next message, of `topics` or of any; None if there is none within `timeout`.

        Without a `timeout` it waits for ever; with 0 it does not wait. Unless the message is acknowledged
        within `lease` (default: the setting), it is delivered again. Raises `TypeError`, `ValueError`.
        """
        if timeout == 0:
            wanted, lease_ms = as_topics(topics), self._lease(lease)
            with not_owned(self._lock):
                return self._take(wanted, lease_ms)
        bell = Flag()
        with self.waiting(bell.set, lambda: False, topics, timeout, lease) as wait:
            while True:
                bell.clear()
                message, wait_s = wait.look()
                if message is not None or wait_s == 0:
                    return message
                bell.wait(wait_s)

    def waiting(
        self,
        ring: Callable[[], None],
        is_gone: Callable[[], bool],
        topics: str | Collection[str] | None,
        timeout: float | None,
        lease: float | None,
    ) -> Wait:
        """Return a wait for a message, used by `get` and its asynchronous form. Raises as `get`."""
        deadline = Deadline(as_timeout(timeout))
        return Wait(self, Waiter(ring, is_gone, as_topics(topics)), self._lease(lease), deadline)

    def _lease(self, lease: float | None) -> int:
        return self._lease_ms if lease is None else as_milliseconds(lease, "lease", least=1)

    def get_many(
        self,
        most: int,
        topics: str | Collection[str] | None = None,
        *,
        timeout: float | None = None,
        lease: float | None = None,
    ) -> list[Message]:
        """Lease up to `most` messages: waits for the first as `get` does, and not for others.

        Returns what is leased if another one cannot be; the next call raises the error.
        """
        most, topics = as_int(most, "most", least=1), as_topics(topics)
        first = self.get(topics, timeout=timeout, lease=lease)
        return [] if first is None else with_more(self, first, most, topics, lease)

    def _take(self, topics: Collection[str] | None, lease_ms: int) -> Message | None:
        """Lease the next message without waiting; the caller holds the lock."""
        if self._is_closed:
            raise self._refusal()
        self._dead.partition.check_writable()  # or a message that must be given up would have no place
        now_ms = self._clock()
        for lanes in self._turns:
            for _ in range(len(lanes)):
                lane = lanes[0]
                lanes.rotate(-1)
                if topics is not None and lane.topic not in topics:
                    continue
                returned = lane.expire(now_ms)
                if returned:
                    self._waiters.ring(lane.topic, returned)
                message = lane.take(now_ms, lease_ms)
                if message is not None:
                    if self._waiters:
                        self._waiters.wake_by(lane.topic, lane.state.wake_ms())
                    return message
        return None

    def _look(self, waiter: Waiter, lease_ms: int, deadline: Deadline) -> tuple[Message | None, float | None]:
        with not_owned(self._lock):
            message = self._take(waiter.topics, lease_ms)
            if message is not None:
                waiter.was_rung = False
                return message, 0
            left_s = deadline.left_s()
            if not left_s:
                return None, 0
            now_ms = self._clock()
            lanes = [lane for lane in self._lanes.values() if waiter.wants(lane.topic)]
            wakes = [lane.state.wake_ms() for lane in lanes]
            until_ms = min([now_ms + left_s * 1000, *(each for each in wakes if each is not None)])
            self._waiters.add(waiter, until_ms)
            if any(lane.is_unusable for lane in lanes):  # a sync has failed since: it held no lock of ours
                until_ms = now_ms
            wait_s = max((until_ms - now_ms) / 1000, 0.001)
            return None, None if wait_s == math.inf else min(wait_s, _LONGEST_WAIT_S)

    def _leave(self, waiter: Waiter) -> None:
        with not_owned(self._lock):
            self._waiters.remove(waiter)
            if self._waiters:
                for lane in self._lanes.values():
                    if waiter.wants(lane.topic):
                        self._waiters.wake_by(lane.topic, lane.state.wake_ms())

    def peek(self, count: int = 10, topic: str = DEFAULT_TOPIC) -> list[Message]:
        """Return the first unfinished messages of `topic`, whether leased, delayed or waiting; lease none.

        There are none if there is no such topic. Raises `TypeError`, and `ValueError` for a count below 0.
        """
        count, topic = as_int(count, "count"), as_str(topic, "a topic")
        with not_owned(self._lock):
            self._check_open()
            return self._lanes[topic].peek(count) if topic in self._lanes else []

    # --- the end of a lease -------------------------------------------------------------------------

    def ack(self, message: Message) -> None:
        """Finish a leased message: it is never delivered again.

        A lease that ended is noticed by the next `get`; until then the message can be acknowledged. Raises
        `LeaseEnded` after that, `AlreadyFinished` for the second time, `TypeError`, `ValueError`.
        """
        with not_owned(self._lock):
            lane = self._lane_of(message)
            lane.finish(message, self._clock())
            end_offset = lane.events.log_end_offset
        if self._is_synced:
            lane.events.partition.sync_up_to(end_offset)

    def ack_many(self, messages: Iterable[Message]) -> None:
        """Finish several messages in one write for each topic.

        Raises as `ack`: the messages of that topic are as they were, those of other topics may be finished.
        """
        messages = as_messages(messages)  # an iterator may call the queue
        by_topic: dict[Lane, list[Message]] = {}
        with not_owned(self._lock):
            self._check_open()
            for message in messages:
                by_topic.setdefault(self._lane_of(message), []).append(message)
            for lane, some in by_topic.items():
                lane.finish_many(some, self._clock())
            ends = [(lane, lane.events.log_end_offset) for lane in by_topic]
        if self._is_synced:
            for lane, end_offset in ends:
                lane.events.partition.sync_up_to(end_offset)

    def nack(self, message: Message, *, delay: float = 0, reason: str = "returned by its worker") -> bool:
        """Return a leased message, to be delivered again after `delay`.

        After `max_deliveries` it becomes a dead letter with this `reason`, and the result is False. Raises
        as `ack`.
        """
        check_reason(reason)
        delay_ms = as_milliseconds(delay, "delay") if delay != 0 else 0
        with not_owned(self._lock):
            lane = self._lane_of(message)
            is_kept = lane.give_back(message, self._clock(), delay_ms, reason)
            if is_kept:
                self._waiters.ring(lane.topic, 1)
            end_offset = lane.events.log_end_offset
        if self._is_synced:
            lane.events.partition.sync_up_to(end_offset)
        return is_kept

    def extend(self, message: Message, lease: float | None = None) -> None:
        """Let the lease end `lease` from now (default: the setting). Raises as `ack`."""
        lease_ms = self._lease(lease)
        with not_owned(self._lock):
            lane = self._lane_of(message)
            lane.extend(message, self._clock() + lease_ms)
            self._waiters.wake_by(lane.topic, lane.state.wake_ms())  # it may end earlier now

    def _lane_of(self, message: Message) -> Lane:
        self._check_open()
        if type(message) is not Message:
            raise TypeError(f"{type(message).__name__} is not a message; pass what get() returned")
        lane = self._lanes.get(message.topic)
        if lane is None:
            raise ValueError(
                f"{self._directory} has no topic {message.topic}: the message is another queue's"
            )
        return lane

    # --- dead letters and figures ---------------------------------------------------------------------

    def _bury(self, message: Message, reason: str) -> None:
        self._dead.append(dead_record(message, reason, self._clock()), sync=True)

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the messages that were given up, oldest first. Raises as `Log.read`."""
        self._check_open()
        return map(dead_letter_of, self._dead.read())

    def redrive(self) -> int:
        """Put every dead letter into its topic again, as a new message; returns how many.

        Raises as `put`: the letters before the refused one are redriven, it and those behind it stay. A crash
        meanwhile may leave some of them in both places. Their keys are not compared with others, and are new.
        """
        with not_owned(self._lock):
            self._check_open()
            start_offset = end_offset = self._dead.log_start_offset
            count = 0
            try:
                for record in self._dead.read():
                    message, _, _ = dead_letter_of(record)
                    self._lane(message.topic).put_again(message, self._clock())
                    end_offset = record.offset + 1
                    self._waiters.ring(message.topic, 1)
                    count += 1
            finally:
                # Also if one is refused: the next call would put those before it once more.
                if end_offset > start_offset:
                    for lane in self._lanes.values():
                        lane.messages.flush()
                    self._dead.delete_records(end_offset)
                    self._dead.maintain(self._clock())
            return count

    def stats(self) -> QueueStats:
        """Return the figures of every topic, and the number of dead letters."""
        with not_owned(self._lock):
            self._check_open()
            dead = self._dead.log_end_offset - self._dead.log_start_offset
            return QueueStats({topic: lane.stats() for topic, lane in sorted(self._lanes.items())}, dead)

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._refusal()

    def _refusal(self) -> QueueClosed | LogClosed:
        if self._dead.partition.is_inherited:
            return LogClosed(
                f"{self._directory} belongs to the parent process, and a forked child would lease the same "
                "messages. Open the queue after the fork, or share one on a broker"
            )
        return QueueClosed(f"{self._directory} was closed; open it again")

    def _forked(self) -> None:
        """In a forked child: refuse every call, and do not wait for locks whose threads are the parent's."""
        self._is_closed = True
        self._lock = threading.RLock()


def with_more(
    queue: Queue, first: Message, most: int, topics: Collection[str] | None, lease: float | None
) -> list[Message]:
    """Return a leased message and others, up to `most`, without waiting."""
    found, lease_ms = [first], queue._lease(lease)
    with not_owned(queue._lock):
        try:
            while len(found) < most and (message := queue._take(topics, lease_ms)) is not None:
                found.append(message)
        except EngineError:
            pass  # the next call meets it as well; raised here, it would hide what is leased
    return found


def _open_dead_letters(directory: str, disk: Disk, clock: Clock) -> Log:
    return Log.open(
        f"{directory}/{DEAD_LETTERS}-0",
        # Also for messages that were put under a larger limit.
        LogConfig(retention_ms=-1, max_message_bytes=MAX_INT, file_delete_delay_ms=0),
        disk=disk,
        clock=clock,
    )


def _make_room(reserve: Reserve, lanes: Iterable[Lane], now_ms: int) -> None:
    """Free what a full disk holds in vain, and keep the reserve again. Raises as `Reserve.keep`."""
    for lane in lanes:
        lane.free_space(now_ms)
    reserve.keep()


_opened: Final[weakref.WeakSet[Queue]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for queue in _opened:
        queue._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
