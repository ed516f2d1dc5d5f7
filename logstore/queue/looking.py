"""Inspect a queue that another process may own, without locks or changes.

The state is made as an opening would make it: the checkpoint, then the events behind it. Leases are known to
their owner alone, so messages that are leased count as waiting. The owner goes on meanwhile; if it replaces
the checkpoint and deletes events in between, everything is read again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Final

from logstore.disk.files import Disk
from logstore.errors import OffsetOutOfRange
from logstore.log.loading import offset_in
from logstore.log.reader import LogReader
from logstore.queue.checkpoint import CHECKPOINT_SUFFIX, read_checkpoint
from logstore.queue.directory import DEAD_LETTERS, EVENTS_PREFIX, QUEUE_FILE, check_queue, topics_in
from logstore.queue.errors import NotAQueue
from logstore.queue.messages import DeadLetter, Message, dead_letter_of, message_of
from logstore.queue.queue import QueueStats
from logstore.queue.state import QueueState, decode_event

_ATTEMPTS: Final = 100


def look_at(disk: Disk, directory: str) -> QueueStats:
    """Return the figures of the queue in `directory`. Raises `NotAQueue`, and as `LogReader` does."""
    found = {topic: _state(disk, directory, topic) for topic in topics(disk, directory)}
    dead = _reader(disk, f"{directory}/{DEAD_LETTERS}-0")
    for _ in dead.batches():
        pass
    return QueueStats(
        {topic: state.stats(end, _stored(disk, directory, topic)) for topic, (state, end) in found.items()},
        dead.log_end_offset - dead.log_start_offset,
    )


def peek(disk: Disk, directory: str, topic: str, count: int) -> list[Message]:
    """Return the first unfinished messages of `topic`; none if there is no such topic."""
    if topic not in topics(disk, directory):
        return []
    state, _ = _state(disk, directory, topic)
    messages = LogReader(f"{directory}/{topic}-0", start_offset=state.low_mark, disk=disk)
    unfinished = (
        message_of(record, topic, state.unfinished.get(record.offset, 0))
        for record in messages.records()
        if record.offset >= state.next_offset or record.offset in state.unfinished
    )
    return list(islice(unfinished, min(count, sys.maxsize)))


def dead_letters(disk: Disk, directory: str) -> Iterator[DeadLetter]:
    """Yield the dead letters, oldest first."""
    topics(disk, directory)
    return map(dead_letter_of, _reader(disk, f"{directory}/{DEAD_LETTERS}-0").records())


def _reader(disk: Disk, directory: str) -> LogReader:
    return LogReader(directory, disk=disk)


def topics(disk: Disk, directory: str) -> list[str]:
    """Return the topics that have messages. Raises `NotAQueue`."""
    names = {entry.name for entry in disk.scan(directory)}
    check_queue(disk, directory, names)
    if QUEUE_FILE not in names:
        raise NotAQueue(f"{directory} is not a queue: it holds no {QUEUE_FILE}")
    return topics_in(directory, names)


def _state(disk: Disk, directory: str, topic: str) -> tuple[QueueState, int]:
    """Return a topic's state, and the end of its messages."""
    state = _replayed(disk, directory, topic, _ATTEMPTS)
    path = f"{directory}/{topic}-0"
    bases = [offset_in(entry.name) for entry in disk.scan(path) if entry.name.endswith(".log")]
    messages = LogReader(path, start_offset=max(base for base in bases if base is not None), disk=disk)
    for _ in messages.batches():
        pass
    return state, max(messages.log_end_offset, state.next_offset)


def _replayed(disk: Disk, directory: str, topic: str, attempts: int) -> QueueState:
    found = read_checkpoint(disk, f"{directory}/{topic}{CHECKPOINT_SUFFIX}")
    state, start_offset = (found.state, found.events_offset) if found is not None else (QueueState(), None)
    events = LogReader(f"{directory}/{EVENTS_PREFIX}{topic}-0", start_offset=start_offset, disk=disk)
    try:
        for record in events.records():
            state.apply(decode_event(record.value))
    except OffsetOutOfRange:
        if attempts == 1:
            raise
        return _replayed(disk, directory, topic, attempts - 1)  # the owner has written a checkpoint since
    state.release_all()
    return state


def _stored(disk: Disk, directory: str, topic: str) -> int:
    places = (f"{directory}/{topic}-0", f"{directory}/{EVENTS_PREFIX}{topic}-0")
    return sum(entry.size for each in places for entry in disk.scan(each) if entry.name.endswith(".log"))
