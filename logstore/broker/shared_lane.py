"""One topic of a shared queue: two topics of the broker, and the state that their events make.

    events   … 9,998  9,999  checkpoint(10,000) …                    checkpoint(20,007) …
             ╰─ deleted with the next checkpoint ─╯ the state before event 10,000, as one record

Every process reads the same events in the same order, so the state at an event is the same in all. After
10,000 events any of them appends its state as a checkpoint, and deletes the events below the checkpoint
before it, and the messages that were finished there. A process that opens the queue, or was away for so long
that its next event is gone, begins with the first checkpoint that is still there.

A power cut of all brokers may take messages and leave their events. Messages that are put at the same offsets
would then count as finished. So a process compares the end of the messages with the events before it puts or
takes its first one, and tells the others of a loss with an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby, islice, takewhile
from operator import attrgetter
from typing import Final, NamedTuple, NoReturn

from logstore.broker.blocking import BlockingCalls
from logstore.broker.errors import RequestRefused
from logstore.broker.shared_keys import ENDED, KINDS, STORED, SharedKeys, identity_of, released, stored
from logstore.broker.topics import Partition
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.errors import InvalidConfig, OffsetOutOfRange, RecordTooLarge
from logstore.format.batch import HEADER_BYTES, encode_batch
from logstore.format.record import Record
from logstore.log.outgoing import size_of
from logstore.log.partition_log import Clock
from logstore.loggers import logger_of
from logstore.queue.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from logstore.queue.errors import AlreadyFinished, LeaseEnded
from logstore.queue.lane import OFFSETS_AN_EVENT, check_lease, different_offsets
from logstore.queue.messages import Message, message_of, not_before_ms
from logstore.queue.state import Event, EventKind, LaneStats, QueueState, decode_event
from logstore.replication.durability import DURABILITY_LEVEL

EVENTS: Final = ".__events"
CHECKPOINT_EVENTS: Final = 10_000
KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
_CHECKPOINT_KEY: Final = b"checkpoint"
_deliveries: Final = attrgetter("deliveries")
_MOST_CHECKPOINT_BYTES: Final = 32 << 20
_ROOM: Final = {"max.message.bytes": str(_MOST_CHECKPOINT_BYTES + (1 << 20))}
_DELETION_S: Final = 2.0
"""How long a caller waits for replicas to delete; they do it later, too."""

_OF_NEW_ONES: Final = {EventKind.TAKEN, EventKind.SOME, EventKind.LOST}
"""The events that may be of messages that nobody has taken."""
_SPARE: Final = 32
"""How many messages a process names beside those it wants, in case others take some of these first."""
_ALONE_AFTER: Final = 4
"""A process counts as alone after this many events of its own in a row."""
_FRESH_MS: Final = 100
"""How old the known events may be when the next message is chosen. One returned since is delivered later."""

_log = logger_of(__name__)


class _Place(NamedTuple):
    """A checkpoint's bounds of deletion: of events, and of messages."""

    events_offset: int
    low_mark: int


class _Ahead:
    """The messages that were read and that nobody has taken, and the end of those that were read."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self.end = 0

    def add(self, records: Sequence[Record]) -> None:
        self._records.extend(records)
        if records:
            self.end = records[-1].offset + 1

    def drop(self, next_offset: int) -> bool:
        """Drop those below `next_offset`; return whether there are others."""
        while self._records and self._records[0].offset < next_offset:
            self._records.popleft()
        return bool(self._records)

    def forget(self, end: int = MAX_LONG) -> None:
        """Drop all of them; the messages end at `end`."""
        self._records.clear()
        self.end = min(self.end, end)

    def find(self, offset: int) -> Record | None:
        records = self._records
        is_there = records and records[0].offset <= offset <= records[-1].offset
        return records[offset - records[0].offset] if is_there else None

    def first(self, most: int, now_ms: int) -> list[Record]:
        """Return the first ones, up to one that is delayed."""
        due = takewhile(lambda each: not_before_ms(each.headers) <= now_ms, self._records)
        return list(islice(due, most))


class SharedLane:
    """One topic: the state that its events make, as far as they were read."""

    def __init__(
        self,
        calls: BlockingCalls,
        messages: str,
        topic: str,
        largest_bytes: int,
        level: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._calls, self._messages, self._events = calls, messages, f"{messages}{EVENTS}"
        self.messages = calls.topic(messages).partition(0)
        self._largest_bytes, self._level = largest_bytes, level
        self._due = CHECKPOINT_EVENTS
        """The position where the next checkpoint is due."""
        self.topic = topic
        self.state = QueueState()
        self.keys = SharedKeys()
        self._position = 0
        self._places: deque[_Place] = deque()
        """Those of the checkpoints that were read or written, ascending."""
        self._has_warned = False
        self._ahead = _Ahead()
        self._read_ms: int | None = None
        """When the events were last read to their end; None: never. Later, a put at a known offset shows."""
        self._undisturbed = 0
        """How many of this process's events, up to the last one, came right behind those that were read."""

    def create(self) -> None:
        """Create the two topics unless they are there; the one that others look for comes last."""
        # Never below the broker's limit: a batch of small messages may be larger than each.
        is_more = self._largest_bytes > LogConfig().max_message_bytes
        larger = {"max.message.bytes": str(self._largest_bytes)} if is_more else {}
        create(self._calls, self._messages, {**KEPT, **larger, **self._level})
        create(self._calls, self._events, {**KEPT, **_ROOM, **self._level})

    def check_level(self) -> None:
        """Raise `InvalidConfig` if one of the two topics has another level than the queue."""
        for topic in (self._messages, self._events):
            _check_level(self._calls, topic, self._level)

    def put(self, records: Sequence[Record]) -> list[int]:
        for record in records:
            if size_of(record) + HEADER_BYTES > self._largest_bytes:
                size = len(encode_batch([record]))  # that was an upper bound
                if size > self._largest_bytes:
                    raise RecordTooLarge(size, self._largest_bytes)
        if self._read_ms is None:
            self.catch_up()
        offsets = [placed.offset for placed in self._calls.append(self._messages, records, partition=0)]
        if offsets[0] < self.state.next_offset:
            self._tell_of_loss(offsets[0])
        return offsets

    # --- events ---------------------------------------------------------------------------------------

    def catch_up(self, through: int = -1) -> list[int] | None:
        """Read the events up to `through`, or all; return the messages that the event at `through` changed.

        None: it was read before, or deleted before it was read, and the state is a checkpoint's.
        """
        if 0 <= through < self._position:
            return None
        changed: list[int] | None = None
        while True:
            now_ms = self._clock()
            records = self._read_events(0.0 if self._position > through else 1.0)
            for record in records:
                found = self._apply(record)
                if record.offset == through:
                    changed = found
            if self._position > through and (through >= 0 or not records):
                if self._read_ms is None:  # before it puts or takes
                    self._tell_of_loss(self.messages.log_end_offset)
                else:
                    self._keep_short()
                self._read_ms = now_ms
                return changed

    def happen(self, event: Event) -> list[int]:
        """Append `event`, and read up to it if others come first; returns the messages that it changed.

        One of very many messages becomes several events.
        """
        changed: list[int] = []
        for at in range(0, len(event.offsets), OFFSETS_AN_EVENT):
            part = event._replace(offsets=event.offsets[at : at + OFFSETS_AN_EVENT])
            offset, found = self._append(None, part.encode())
            if found is None:
                found = self.catch_up(offset)
            if found is None:
                found = [each for each in part.offsets if _is_so(self.state, event, each)]
            changed += found
        return changed

    def tell(self, kind: bytes, value: bytes) -> int:
        """Append an event about keys; returns its offset (`shared_keys.py`)."""
        return self._append(kind, value)[0]

    def _append(self, kind: bytes | None, value: bytes) -> tuple[int, list[int] | None]:
        """Append an event; return its offset, and what it changed if it is the next one to read."""
        now_ms = self._clock()
        offset = self._calls.append(self._events, (kind, value), partition=0).offset
        is_next = offset == self._position
        self._undisturbed = self._undisturbed + 1 if is_next else 0
        if not is_next:
            return offset, None
        changed = self._apply(Record(offset, 0, kind, value, ()))
        self._read_ms = now_ms
        self._keep_short()
        return offset, changed

    @property
    def _is_alone(self) -> bool:
        return self._undisturbed >= _ALONE_AFTER

    def is_current(self, now_ms: int) -> bool:
        """Return whether a message that was read can be taken without a look at the events.

        It can for a moment after a read to the end of the events, and after an event of this process that
        came directly behind the known ones.
        """
        if self._read_ms is None or not 0 <= now_ms - self._read_ms <= _FRESH_MS:
            return False
        offset = self.state.candidate(self._ahead.end, now_ms)
        return offset is not None and self._ahead.find(offset) is not None

    def wait_for_events(self) -> None:
        """Wait for the next events, for half a second at most, and read them."""
        for record in self._read_events(0.5):
            self._apply(record)

    def check(self, message: Message) -> None:
        """Raise `AlreadyFinished`, `LeaseEnded` or `ValueError` unless `message` is leased as it says."""
        check_lease(self.state, message, max(self._ahead.end, self.state.next_offset))

    def check_leased(self, messages: Sequence[Message]) -> None:
        """Raise as `check` for the first of them; read events only if the known ones tell of no lease."""
        try:
            for message in messages:
                self.check(message)
        except (AlreadyFinished, LeaseEnded, ValueError):
            self.catch_up()
            for message in messages:
                self.check(message)

    def _apply(self, record: Record) -> list[int]:
        self._position = record.offset + 1
        if record.key == _CHECKPOINT_KEY:
            self._remember(self._checkpoint_in(record))
            return []
        if record.key in KINDS:
            self.keys.apply(record.key, record.value, record.offset)
            return []
        event = decode_event(record.value)
        if event.kind not in _OF_NEW_ONES:
            known = [each for each in event.offsets if each < self.state.next_offset]
            event = event._replace(offsets=known)
        if event.kind is EventKind.LOST:
            self._ahead.forget(event.offsets[0])
        changed = self.state.apply(event)
        if changed and event.kind is EventKind.LOST:
            self.keys.forget_from(changed[0])
            self._places.clear()  # what is put from now on may have offsets below their marks
        return changed

    def _read_events(self, wait_s: float) -> list[Record]:
        start = 0
        while True:
            try:
                if start > self._position:
                    self._restore(start)
                return self._calls.read(self._events, 0, self._position, wait=wait_s)
            except RequestRefused as refusal:  # also in `_restore`, if others delete meanwhile
                begins = self._calls.topic(self._events).partition(0).log_start_offset
                if refusal.error is not ErrorCode.OFFSET_OUT_OF_RANGE or begins <= max(start, self._position):
                    raise
                start = begins

    def _restore(self, start: int) -> None:
        """Continue with the first checkpoint past the events' first offset, `start`.

        A power cut of all brokers may take the checkpoint and leave the deletion. Then all messages that are
        stored are delivered again.
        """
        records = self._calls.read(self._events, 0, start, wait=0)
        while records:
            for record in records:
                if record.key == _CHECKPOINT_KEY:
                    found = self._checkpoint_in(record)
                    if found.events_offset >= start:
                        self.state, self._position = found.state, found.events_offset
                        self.keys = SharedKeys.decoded(found.keys)
                        self._ahead.forget()
                        self._remember(found)
                        return
            records = self._calls.read(self._events, 0, records[-1].offset + 1, wait=0)
        _log.warning(
            "topic %s: the events below offset %d are gone, and no checkpoint of them is left; all stored "
            "messages are delivered again",
            self._messages,
            start,
        )
        self.state = QueueState(self.messages.log_start_offset)
        self.keys = SharedKeys()
        self._position = start
        self._ahead.forget()

    def _checkpoint_in(self, record: Record) -> Checkpoint:
        return decode_checkpoint(record.value or b"", f"offset {record.offset} of topic {self._events}")

    def _remember(self, checkpoint: Checkpoint) -> None:
        place = _Place(checkpoint.events_offset, checkpoint.state.low_mark)
        is_later = not self._places or place.events_offset > self._places[-1].events_offset
        if is_later and checkpoint.state.cuts == self.state.cuts:
            self._places.append(place)
        self._due = max(self._due, place.events_offset + self._interval)

    @property
    def _interval(self) -> int:
        """The events from one checkpoint to the next: the larger it is, the rarer."""
        return max(CHECKPOINT_EVENTS, (len(self.state.unfinished) + len(self.keys)) // 4)

    def _keep_short(self) -> None:
        """Append a checkpoint if one is due, and delete what an earlier one lets go."""
        if self._position < self._due:
            return
        self._due = self._position + self._interval
        made = Checkpoint(self.state, self._position, 0, is_clean=False, keys=self.keys.encode())
        data = encode_checkpoint(made, is_shared=True)
        if len(data) > _MOST_CHECKPOINT_BYTES:
            return  # there will be fewer unfinished messages and keys
        try:
            offset = self._calls.append(self._events, (_CHECKPOINT_KEY, data), partition=0).offset
            self._remember(made)
            if offset == self._position:
                self._position += 1
            self._delete()
            self._end_claims()
        except EngineError as error:  # the call that comes here has done its work; a later one tries again
            if not self._has_warned:
                _log.warning("topic %s: finished messages and events stay stored: %s", self._messages, error)
            self._has_warned = True

    def _delete(self) -> None:
        old: _Place | None = None
        while self._places and self._places[0].events_offset <= self._position - CHECKPOINT_EVENTS:
            old = self._places.popleft()
        if old is None:
            return
        self._places.appendleft(old)
        low_mark = old.low_mark
        since_ms = self.keys.since()
        if since_ms is not None and (first := self.messages.offset_for_timestamp(since_ms)) is not None:
            low_mark = min(low_mark, first.offset)
        for topic, offset in ((self._messages, low_mark), (self._events, old.events_offset)):
            self._calls.delete_records(topic, 0, offset, timeout=_DELETION_S)

    def _end_claims(self) -> None:
        """Tell of the messages that puts which did not return have left, so that they can be deleted."""
        over = self.keys.over()
        found = messages_of(self.messages, {key: claim.first_ms for key, claim in over.items()})
        if found:
            self.tell(STORED, stored(found, self.keys.now_ms, self.keys.window_ms))
        for number in {claim.number for claim in over.values()}:
            self.tell(ENDED, released(number))

    # --- messages -------------------------------------------------------------------------------------

    def finish(self, messages: list[Message]) -> None:
        """Finish leased messages; raises as `SharedQueue.ack_many`."""
        self.check_leased(messages)
        different_offsets(messages)
        missed: list[Message] = []
        for deliveries, same in groupby(sorted(messages, key=_deliveries), _deliveries):
            some = list(same)
            event = Event(EventKind.FINISHED, [each.offset for each in some], 0, deliveries)
            ended = set(self.happen(event))
            missed += [each for each in some if each.offset not in ended]
        if missed:
            self.refuse(missed[0])

    def refuse(self, message: Message) -> NoReturn:
        """Raise why nothing happened to `message`."""
        self.check(message)
        raise LeaseEnded(f"message {message.offset} of topic {message.topic} was taken by another process")

    def take(self, now_ms: int, lease_ms: int, most: int) -> list[Message]:
        """Lease the next message; several if they were delivered as often and are read together.

        Empty: there is none.
        """
        while True:
            if not self._ahead.drop(self.state.next_offset):
                self._ahead.add(self._read_messages(self.state.next_offset, 0))
            offset = self.state.candidate(self._ahead.end, now_ms)
            if offset is None:
                return []
            if (first := self.record(offset)) is None:
                continue
            records, deliveries = [first], self.state.unfinished.get(offset, 0) + 1
            if (due_ms := not_before_ms(first.headers)) > now_ms:
                self.state.give_back(offset, deliveries - 1, due_ms)
                continue
            cuts = self.state.cuts
            most = min(most, OFFSETS_AN_EVENT - _SPARE - 1)  # one event, with its count
            named = most + (0 if self._is_alone else _SPARE)
            if offset == self.state.next_offset:
                records = self._ahead.first(named, now_ms) or records
            elif most > 1:
                wanted = set(self.state.ready_as(offset, named))
                near = [each for each in self._read_messages(offset, 0) if each.offset in wanted]
                records = [each for each in near if not_before_ms(each.headers) <= now_ms] or records
            ours = set(self.happen(_taking(records, most, now_ms + lease_ms, deliveries)))
            if not ours:
                continue
            if self.state.cuts == cuts:
                return [message_of(each, self.topic, deliveries) for each in records if each.offset in ours]
            self._tell_of_loss(end := self.messages.log_end_offset)
            if others := [each for each in ours if each < end]:  # they were put where the lost ones were
                self.happen(Event(EventKind.RETURNED, others, 0, deliveries))

    def wait(self, seconds: float) -> None:
        """Return when there is a message behind those that were read, at the latest after `seconds`."""
        self._ahead.drop(self.state.next_offset)
        self._ahead.add(self._read_messages(max(self._ahead.end, self.state.next_offset), seconds))

    def _read_messages(self, offset: int, wait_s: float) -> list[Record]:
        try:
            return self._calls.read(self._messages, 0, offset, wait=wait_s)
        except RequestRefused as refusal:
            if refusal.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            if (end := self.messages.log_end_offset) < offset:
                self._tell_of_loss(end)
                return []
            self.catch_up()
            if self.state.next_offset <= offset:
                if offset >= (start := self.messages.log_start_offset):
                    raise
                # As in `record`; an end can only be told of what was taken.
                gone = range(self.state.next_offset, start)
                self.happen(Event(EventKind.TAKEN, gone, self._clock(), 1))
                self.happen(Event(EventKind.FINISHED, gone))
        return self._read_messages(self.state.next_offset, wait_s)  # others have finished, and deleted some

    def _tell_of_loss(self, end: int) -> None:
        """Let every process forget what it knows of messages at or past `end`, where the log ended."""
        self._ahead.forget(end)
        if end < (known := max(self.state.next_offset, self.keys.end())):
            _log.warning(
                "topic %s: messages %d to %d were stored and are gone: a power cut took them",
                self._messages,
                end,
                known - 1,
            )
            self.happen(Event(EventKind.LOST, (end,), 0, self.state.cuts + 1))

    def record(self, offset: int) -> Record | None:
        """Return a message; None if another process has finished it meanwhile, and it is deleted."""
        if (found := self._ahead.find(offset)) is not None:
            return found
        try:
            return self.messages[offset]
        except OffsetOutOfRange:
            self.catch_up()
            if not self.state.is_finished(offset):
                if offset >= (start := self.messages.log_start_offset):
                    raise
                # Only finished ones are deleted: a power cut took the events that say so.
                gone = [each for each in self.state.unfinished if each < start]
                self.happen(Event(EventKind.FINISHED, gone))
            return None

    def stats(self) -> LaneStats:
        return self.state.stats(self.messages.log_end_offset, 0)


def _taking(records: Sequence[Record], most: int, until_ms: int, deliveries: int) -> Event:
    """Return the event that leases all of `records`, or the first `most` that are free."""
    offsets = [record.offset for record in records]
    if len(offsets) <= most:
        return Event(EventKind.TAKEN, offsets, until_ms, deliveries)
    return Event(EventKind.SOME, (most, *offsets), until_ms, deliveries)


def _is_so(state: QueueState, event: Event, offset: int) -> bool:
    """Return whether a state from a checkpoint is as an event would have it; a lease may be another's."""
    if event.kind is EventKind.EXTENDED and state.unfinished.get(offset) == event.deliveries:
        return offset in state.leases and not state.leases.is_due(offset, event.time_ms - 1)
    return event.kind is EventKind.FINISHED and state.is_finished(offset)


def messages_of(messages: Partition, since_ms: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return the first message with each key, by identity, of those that were put since a time."""
    found: dict[bytes, int] = {}
    start = messages.offset_for_timestamp(min(since_ms.values())) if since_ms else None
    for record in messages.read(start.offset) if start is not None else ():
        key = identity_of(record.key) if record.key is not None else b""
        if key in since_ms and record.timestamp_ms >= since_ms[key]:
            found.setdefault(key, record.offset)
    return found


def create(calls: BlockingCalls, topic: str, settings: Mapping[str, str]) -> None:
    """Create a topic unless it is there. Raises `InvalidConfig` if it is, with another durability level."""
    try:
        calls.create_topic(topic, 1, settings=settings)
    except RequestRefused as refusal:
        if refusal.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        _check_level(calls, topic, settings)


def _check_level(calls: BlockingCalls, topic: str, settings: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` if a topic has another level than `settings` have; they may have none."""
    wanted = settings.get(DURABILITY_LEVEL)
    if wanted and (level := calls.topic_settings(topic).get(DURABILITY_LEVEL)) != wanted:
        raise InvalidConfig(
            f"topic {topic} has {DURABILITY_LEVEL}={level}: connect without durability={wanted!r}, or change "
            f"it (logstore configs alter --topic {topic} --config {DURABILITY_LEVEL}={wanted})"
        )
