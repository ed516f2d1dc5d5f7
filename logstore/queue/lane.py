"""One topic of a queue: its messages, their events, and the checkpoint of both.

    jobs/mail-0/              a log: one record a message
    jobs/__events.mail-0/     a log: what happened to them (`state.py`)
    jobs/mail.checkpoint      the state, and from which event on it is older than the log (`checkpoint.py`)

    put  ──► append to the messages
    get  ──► the state chooses; nothing is written (but see below)
    ack  ──► append to the events, then change the state

A checkpoint is due after so many events that reading them again would delay an opening. It is written like
this, and may be interrupted anywhere:

    sync messages and events → publish the checkpoint → delete segments that nobody needs

A delivery is written down only for messages that an owner of the queue may have died with: those that were
there when it was last opened without having been closed, until all of those are finished. So a message that
kills its worker, and the process with it, is counted from its second delivery on, and other messages cost
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Final

from logstore.config import MAX_INT, LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk
from logstore.errors import DiskFull, LogDirOffline, bare, is_refusal, refusal
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.log.partition_log import Clock
from logstore.queue.checkpoint import CHECKPOINT_SUFFIX, Checkpoint, read_checkpoint, write_checkpoint
from logstore.queue.config import QueueConfig
from logstore.queue.directory import EVENTS_PREFIX
from logstore.queue.errors import AlreadyFinished, LeaseEnded
from logstore.queue.messages import Message, message_of, not_before_ms, record_of
from logstore.queue.recent_keys import RecentKeys
from logstore.queue.reserve import Reserve
from logstore.queue.state import Event, EventKind, LaneStats, QueueState, decode_event, finished

EVENTS_BETWEEN_CHECKPOINTS: Final = 1 << 15
_EVENTS_ON_A_FULL_DISK: Final = 1024
"""The same while the queue has no reserve (`reserve.py`), which all these events must not use up."""
_UNFINISHED_AN_EVENT: Final = 16
"""A checkpoint costs by the number of unfinished messages, so many of them make it rarer."""
_BYTES_BETWEEN_CHECKPOINTS: Final = 64 << 20
"""Bytes of messages whose keys an opening would have to read."""
_SEGMENT_BYTES: Final = 64 << 20
"""What recovery reads at most of the messages, and what stays on disk although all of it is finished."""
_EVENTS_SEGMENT_BYTES: Final = 8 << 20
OFFSETS_AN_EVENT: Final = 1 << 15
_EVENT_BYTES: Final = 1 << 20
_AHEAD_RECORDS: Final = 1024
_AHEAD_BYTES: Final = 4096
"""Records that are kept in memory between put and get, or read at once; larger ones end a read."""

Bury = Callable[[Message, str], None]
"""Writes a dead letter durably: a message, and the reason."""


class Lane:
    """One topic. Its owner calls it under one lock, and passes the time."""

    def __init__(
        self,
        directory: str,
        topic: str,
        config: QueueConfig,
        bury: Bury,
        reserve: Reserve,
        *,
        disk: Disk,
        clock: Clock,
    ) -> None:
        """Open the topic's logs and recover its state. Raises as `Log.open`, and `CorruptCheckpoint`."""
        self.topic = topic
        self._directory, self._config, self._disk, self._bury = directory, config, disk, bury
        self._reserve = reserve
        with ExitStack() as opened:  # and closed again, if a later step fails
            self.messages = Log.open(
                f"{directory}/{topic}-0",
                _log_config(_SEGMENT_BYTES, config.max_message_bytes),
                disk=disk,
                clock=clock,
            )
            opened.callback(self.messages.partition.abandon)
            self.events = Log.open(
                f"{directory}/{EVENTS_PREFIX}{topic}-0",
                _log_config(_EVENTS_SEGMENT_BYTES, _EVENT_BYTES),
                disk=disk,
                clock=clock,
            )
            opened.callback(self.events.partition.abandon)
            self._ahead: deque[Record] = deque()
            """Records from the state's next offset on, without gaps."""
            self._keys = RecentKeys(round(config.deduplication_window * 1000))
            self._changes = self._keyed_bytes = 0
            self._buried: set[int] = set()
            """Messages that are dead letters, and could not be finished: the next attempt adds no other."""
            self._recover(clock())
            opened.pop_all()

    # --- recovery and checkpoints -------------------------------------------------------------------

    def _recover(self, now_ms: int) -> None:
        messages, events = self.messages, self.events
        found = read_checkpoint(self._disk, f"{self._directory}/{self.topic}{CHECKPOINT_SUFFIX}")
        if found is None:
            found = Checkpoint(QueueState(messages.log_start_offset), 0, 0, is_clean=False)
        self.state = found.state
        # After a power cut the events may end below the checkpoint, which knows them all.
        first_event = min(max(found.events_offset, events.log_start_offset), events.log_end_offset)
        for record in events.read(first_event):
            self.state.apply(decode_event(record.value))
        self.state.release_all()
        self.state.clamp(messages.log_start_offset, messages.log_end_offset)
        self._careful_below = 0 if found.is_clean else messages.log_end_offset
        """Deliveries of messages below this offset are written down: the last owner may have died of one."""
        if self._keys.window_ms:
            self._keys.add_encoded(found.keys)
            self._keys.forget_from(messages.log_end_offset)
            for record in messages.read(max(found.keys_offset, messages.log_start_offset)):
                if record.key is not None:
                    self._keys.remember(record.key, record.offset, record.timestamp_ms)
        # Before anything new happens: offsets that a power cut took from the logs will be used again.
        self.checkpoint(now_ms)
        most = self._config.max_deliveries
        if max(self.state.unfinished.values(), default=0) >= most:
            for offset, deliveries in list(self.state.unfinished.items()):
                if deliveries >= most:
                    self._give_up(offset, deliveries, "its worker died", now_ms)

    def checkpoint(self, now_ms: int, *, is_clean: bool = False) -> None:
        """Write the checkpoint, and delete the data below it. Raises `LogDirOffline`, `DiskFull`.

        On a full disk the active segments go too, if nothing in them is needed.
        """
        messages, events = self.messages, self.events
        messages.flush()
        events.flush()
        keys = self._keys.encode(now_ms) if self._keys.window_ms else b""
        checkpoint = Checkpoint(self.state, events.log_end_offset, messages.log_end_offset, is_clean, keys)
        try:
            write_checkpoint(self._disk, self._directory, self.topic, checkpoint)
        except OSError as error:
            if is_refusal(error):
                outcome = f"the checkpoint of topic {self.topic} is as it was"
                raise refusal(error, self._directory, outcome) from error
            messages.partition.take_offline(error)
            events.partition.take_offline(error)
            raise LogDirOffline(
                f"{self._directory}: the checkpoint of topic {self.topic} cannot be written ({bare(error)}); "
                "check the disk, then open the queue again"
            ) from error
        self._changes = self._keyed_bytes = 0
        is_short = not self._reserve.is_kept
        _release(events, events.log_end_offset, now_ms, also_active=is_short)
        _release(messages, self.state.low_mark, now_ms, also_active=is_short)
        if is_short:
            with suppress(EngineError):
                self._reserve.keep()

    def free_space(self, now_ms: int) -> None:
        """Delete what is finished. Raises as `checkpoint`."""
        if self.events.size or (self.messages.size and self.state.low_mark == self.messages.log_end_offset):
            self.checkpoint(now_ms)

    def close(self, now_ms: int) -> None:
        """Write the checkpoint and close the logs."""
        try:
            # Not clean while messages are left that the owner before this one may have died with.
            self.checkpoint(now_ms, is_clean=self.state.low_mark >= self._careful_below)
        finally:
            try:
                self.events.close()
            finally:
                self.messages.close()

    def abandon(self) -> None:
        """Close the files without writing."""
        self.events.partition.abandon()
        self.messages.partition.abandon()

    # --- putting --------------------------------------------------------------------------------------

    def put(
        self,
        value: bytes,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        now_ms: int,
        delay_ms: int,
    ) -> tuple[int, bool]:
        """Append a message; returns its offset, and whether it is new. Raises as `Log.append`."""
        if key is None and not headers and not delay_ms:
            offset = self.messages.append(value).last_offset
            self._keep(Record(offset, now_ms, None, value))
            return offset, True
        remembered = key if self._keys.window_ms else None
        if remembered is not None:
            known = self._keys.find(remembered, now_ms)
            if known is not None:
                return known, False
            self._make_room(now_ms)
        record = record_of(value, key, headers, now_ms, now_ms + delay_ms if delay_ms else 0)
        offset = self.messages.append(record).last_offset
        self._keep(record._replace(offset=offset))
        if remembered is not None:
            self._keys.remember(remembered, offset, now_ms)
            self._keyed_bytes += len(remembered) + len(value)
            self._changes += 1
        return offset, True

    def put_many(self, pairs: Sequence[tuple[bytes | None, bytes]], now_ms: int, delay_ms: int) -> list[int]:
        """Append (key, value) messages; returns the offset of each."""
        if delay_ms or self._keys.window_ms:
            return [self.put(value, key, (), now_ms, delay_ms)[0] for key, value in pairs]
        if any(key is not None for key, _ in pairs):
            end = self.messages.append(pairs).last_offset + 1
        else:
            end = self.messages.append([value for _, value in pairs]).last_offset + 1
        offsets = range(end - len(pairs), end)
        for offset, (key, value) in zip(offsets, pairs[:_AHEAD_RECORDS], strict=False):
            self._keep(Record(offset, now_ms, key, value))
        return list(offsets)

    def put_again(self, message: Message, now_ms: int) -> None:
        """Append a dead letter as a new message, whether its key is known or not."""
        record = record_of(message.value, message.key, message.headers, now_ms)
        offset = self.messages.append(record).last_offset
        if message.key is not None and self._keys.window_ms:
            self._keys.remember(message.key, offset, now_ms)  # as the next opening would

    def _keep(self, record: Record) -> None:
        """Keep a record in memory for the next `take`, if it is the next one to read."""
        ahead = self._ahead
        if (
            record.offset == (ahead[-1].offset + 1 if ahead else self.state.next_offset)
            and len(ahead) < _AHEAD_RECORDS
            and len(record.value or b"") <= _AHEAD_BYTES
        ):
            ahead.append(record)

    # --- taking -------------------------------------------------------------------------------------

    @property
    def is_unusable(self) -> bool:
        """Whether a log of the topic refuses writes because its disk failed."""
        return not (self.messages.partition.is_writable and self.events.partition.is_writable)

    def take(self, now_ms: int, lease_ms: int) -> Message | None:
        """Lease the next message; None if none is ready. Raises as `Log.read`, and `LogDirOffline`."""
        state = self.state
        if self.is_unusable:
            # No message can arrive, and a leased one could not be acknowledged.
            self.messages.partition.check_writable()
            self.events.partition.check_writable()
        while (offset := state.candidate(self.messages.log_end_offset, now_ms)) is not None:
            record = self._record(offset)
            deliveries = state.unfinished.get(offset, 0) + 1
            if record.headers and (due_ms := not_before_ms(record.headers)) > now_ms:
                state.give_back(offset, deliveries - 1, due_ms)
                continue
            if offset < self._careful_below:
                self._write(Event(EventKind.TAKEN, (offset,), now_ms + lease_ms, deliveries), now_ms)
            state.take(offset, deliveries, now_ms + lease_ms)
            return message_of(record, self.topic, deliveries)
        return None

    def _record(self, offset: int) -> Record:
        ahead = self._ahead
        if ahead and ahead[0].offset == offset:
            return ahead.popleft()
        if offset != self.state.next_offset:
            return self._readable()[offset]
        ahead.clear()
        for record in self._readable().read(offset, max_records=_AHEAD_RECORDS):
            ahead.append(record)
            if len(record.value or b"") > _AHEAD_BYTES:
                break
        assert ahead[0].offset == offset, f"{self.messages} has no record at {offset}"
        return ahead.popleft()

    def _readable(self) -> Log:
        """Return the messages. Raises `LogDirOffline` after a disk failure, which leaves the durable ones."""
        self.messages.partition.check_writable()
        return self.messages

    def peek(self, count: int) -> list[Message]:
        """Return the first unfinished messages, whether they are leased, delayed or waiting."""
        unfinished = self.state.unfinished
        known = list(islice(unfinished.items(), count))
        messages = self._readable()
        found = [message_of(messages[offset], self.topic, times) for offset, times in known]
        rest = messages.read(self.state.next_offset, max_records=count - len(found))
        return found + [message_of(record, self.topic, 0) for record in rest]

    # --- the end of a lease -------------------------------------------------------------------------

    def check(self, message: Message) -> None:
        """Raise `AlreadyFinished`, `LeaseEnded` or `ValueError` unless it is leased for this delivery."""
        check_lease(self.state, message, self.messages.log_end_offset)

    def finish(self, message: Message, now_ms: int) -> None:
        """Record that a leased message is finished. Raises as `check`, with nothing changed."""
        offset, state = message.offset, self.state
        if state.unfinished.get(offset) != message.deliveries or offset not in state.leases:
            self.check(message)
        self._make_room(now_ms)
        self._in_spite_of_a_full_disk(now_ms, self.events.append, finished(offset))
        self._changes += 1
        state.finish(offset)

    def finish_many(self, messages: Sequence[Message], now_ms: int) -> None:
        """Do as `finish` for different messages, in one write."""
        for message in messages:
            self.check(message)
        offsets = different_offsets(messages)
        for start in range(0, len(offsets), OFFSETS_AN_EVENT):
            some = offsets[start : start + OFFSETS_AN_EVENT]
            self._write(Event(EventKind.FINISHED, some), now_ms)
            for offset in some:
                self.state.finish(offset)

    def give_back(self, message: Message, now_ms: int, delay_ms: int, reason: str) -> bool:
        """Return a leased message to the queue; False if it became a dead letter. Raises as `check`."""
        self.check(message)
        if message.deliveries >= self._config.max_deliveries:
            self._give_up(message.offset, message.deliveries, reason, now_ms)
            return False
        self._return(message.offset, message.deliveries, now_ms + delay_ms if delay_ms else 0, now_ms)
        return True

    def extend(self, message: Message, until_ms: int) -> None:
        """Move the end of a lease. Raises as `check`."""
        self.check(message)
        self.state.leases.set(message.offset, until_ms)

    def expire(self, now_ms: int) -> int:
        """Return messages whose lease has ended; returns how many are ready again."""
        leases, count = self.state.leases, 0
        while (first := leases.first()) is not None and first[0] <= now_ms:
            offset = first[1]
            deliveries = self.state.unfinished.get(offset)
            if deliveries is None:
                leases.discard(offset)  # an interrupt ended its acknowledgement
            elif deliveries >= self._config.max_deliveries:
                self._give_up(offset, deliveries, "its lease ended", now_ms)
            else:
                self._return(offset, deliveries, 0, now_ms)
                count += 1
        return count

    def _return(self, offset: int, deliveries: int, due_ms: int, now_ms: int) -> None:
        self._write(Event(EventKind.RETURNED, (offset,), due_ms, deliveries), now_ms)
        self.state.give_back(offset, deliveries, due_ms)

    def _give_up(self, offset: int, deliveries: int, reason: str, now_ms: int) -> None:
        # The dead letter is durable first: a crash in between leaves it twice, never nowhere.
        if offset not in self._buried:
            message = message_of(self._readable()[offset], self.topic, deliveries)
            self._in_spite_of_a_full_disk(now_ms, self._bury, message, reason)
            self._buried.add(offset)
        self._write(Event(EventKind.FINISHED, (offset,)), now_ms)
        self.state.finish(offset)
        self._buried.remove(offset)

    def _write(self, event: Event, now_ms: int) -> None:
        self._make_room(now_ms)
        self._in_spite_of_a_full_disk(now_ms, self.events.append, event.encode())
        self._changes += len(event.offsets)

    def _in_spite_of_a_full_disk(self, now_ms: int, write: Callable[..., object], *what: object) -> None:
        try:
            write(*what)
        except DiskFull:
            if not self._reserve.give_up():
                raise
            self.checkpoint(now_ms)
            write(*what)

    def _make_room(self, now_ms: int) -> None:
        """Write a checkpoint if one is due. Before a change: if it fails, the change was not made."""
        least = EVENTS_BETWEEN_CHECKPOINTS if self._reserve.is_kept else _EVENTS_ON_A_FULL_DISK
        if (
            self._changes >= least and self._changes >= len(self.state.unfinished) // _UNFINISHED_AN_EVENT
        ) or self._keyed_bytes >= _BYTES_BETWEEN_CHECKPOINTS:
            self._in_spite_of_a_full_disk(now_ms, self.checkpoint, now_ms)

    def stats(self) -> LaneStats:
        """Return the topic's figures."""
        return self.state.stats(self.messages.log_end_offset, self.messages.size + self.events.size)


def different_offsets(messages: Sequence[Message]) -> list[int]:
    """Return the offsets of messages of one topic. Raises `ValueError` if one is there twice."""
    offsets = [message.offset for message in messages]
    if len(set(offsets)) < len(offsets):
        raise ValueError(f"a message of topic {messages[0].topic} is acknowledged twice in one call")
    return offsets


def check_lease(state: QueueState, message: Message, end_offset: int) -> None:
    """Raise `AlreadyFinished`, `LeaseEnded` or `ValueError` unless `message` is leased for its delivery."""
    offset = message.offset
    if offset in state.leases and state.unfinished.get(offset) == message.deliveries:
        return
    what = f"message {offset} of topic {message.topic}"
    if offset >= end_offset:
        raise ValueError(f"{what} does not exist: it is another queue's, or a power cut took it")
    if state.is_finished(offset):
        raise AlreadyFinished(f"{what} is finished: it was acknowledged before, or is among the dead letters")
    raise LeaseEnded(
        f"{what} is no longer leased for delivery {message.deliveries}: the lease ended or the message "
        "was returned, and it is delivered again. Ask for a longer lease, or call extend() meanwhile"
    )


def _log_config(segment_bytes: int, max_message_bytes: int) -> LogConfig:
    """Return the settings of a topic's log: nothing goes by age or size, and what goes, goes at once."""
    return LogConfig(
        segment_bytes=max(segment_bytes, min(2 * max_message_bytes, MAX_INT)),
        max_message_bytes=max_message_bytes,
        retention_ms=-1,
        retention_bytes=-1,
        file_delete_delay_ms=0,
    )


def _release(log: Log, offset: int, now_ms: int, *, also_active: bool = False) -> None:
    """Delete the segments that end at or below `offset`; the active one only if `also_active`."""
    if also_active and offset >= log.log_end_offset:
        log.partition.roll()
    segments = log.partition.segments
    following = segments.higher(segments.first.base_offset)
    if following is not None and following.base_offset <= offset:
        log.delete_records(offset)
        log.maintain(now_ms)
