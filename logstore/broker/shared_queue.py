"""A queue that several processes share through a broker: the calls of `Queue`, over the broker's topics.

    jobs.mail                  the messages
    jobs.mail.__events         what happened to them, and checkpoints (`shared_lane.py`)
    jobs.__dead-letters        the messages that were given up

The queue has no owner. Each process builds its own state from the events. All processes read the events in
the same order, so their states agree. A delivery begins with an event: the process whose event comes first
has the message, and the others look for another one.

    get   choose → append TAKEN, with others to fall back on → read up to it: which message is ours?
    ack   append FINISHED → read up to it: was the lease still ours?

That is two requests each, for one message or for many that are new and taken together, and one more for a
`get` that has not read the events for a while. It is one each while no other process takes messages: an event
that is stored right behind those that were read is known.

Differences from `Queue`: leases outlive the process that took them; `written` is `acks=all` at the level
`replicated`; the clocks of the processes must agree, as they do on one host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial, wraps
from itertools import chain, islice
from typing import Concatenate, Final, ParamSpec, Self, TypeVar, overload

from logstore.arguments import as_config, as_int, as_str, as_timeout
from logstore.broker.blocking import BlockingCalls, BlockingClient
from logstore.broker.errors import RequestFailed
from logstore.broker.limits import parse_address
from logstore.broker.shared_lane import EVENTS, KEPT, SharedLane, create
from logstore.broker.shared_puts import put_again, put_new
from logstore.broker.threads import alone
from logstore.config import MAX_INT
from logstore.disk.closing import Closing
from logstore.disk.errors import EngineError, InvalidTopic
from logstore.disk.files import wall_clock_ms
from logstore.disk.topic_partition import LONGEST_TOPIC_NAME, check_topic_name
from logstore.format.record import Record
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
from logstore.queue.directory import DEAD_LETTERS
from logstore.queue.errors import QueueClosed
from logstore.queue.messages import (
    DeadLetter,
    Message,
    dead_letter_of,
    dead_record,
    message_of,
    record_of,
)
from logstore.queue.queue import DEFAULT_TOPIC, QueueStats
from logstore.queue.state import Event, EventKind
from logstore.queue.waiting import Deadline
from logstore.replication.durability import DURABILITY_LEVEL, Durability

P = ParamSpec("P")
T = TypeVar("T")

_KEPT_IN_ANY_SIZE: Final = {**KEPT, "max.message.bytes": str(MAX_INT)}
"""Of the dead letters, which are larger than their messages: by the topic, the reason and two numbers."""
_SYNCED: Final = {DURABILITY_LEVEL: Durability.SYNCED.value}
_LONGEST_WAIT_S: Final = 0.5
"""The longest time that a waiting `get` watches one topic, and the time between two looks for new ones."""


def _one_call(
    method: Callable[Concatenate[SharedQueue, P], T],
) -> Callable[Concatenate[SharedQueue, P], T]:
    """Refuse the call during another one: both would lease the same message."""

    @wraps(method)
    def call(self: SharedQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def refuse() -> T:
            raise RequestFailed(
                f"the queue {self._name} is in another call: a SharedQueue is for one thread, make one "
                "in each"
            )

        return alone(self._in_call, partial(method, self, *args, **kwargs), refuse)

    return call


def _lease_ms(lease: float | None, config: QueueConfig) -> int:
    return as_milliseconds(config.lease if lease is None else lease, "lease", least=1)


class SharedQueue(Closing):
    """A queue on a broker, for one thread of a process; connect one in each thread.

    A call during another one raises `RequestFailed`. Durations are seconds. Calls raise also what
    `Client.append` and `Client.read` raise.
    """

    def __init__(
        self,
        calls: BlockingCalls,
        name: str,
        config: QueueConfig | None = None,
        *,
        clock: Clock = wall_clock_ms,
    ) -> None:
        """Use the queue `name` through `calls`: a `Broker` of this process or a `BlockingClient`.

        Topics are created by the first message, with `durability.level=synced` if the queue is `synced`.
        Raises `InvalidConfig` for `synced` if a topic is there that is not: `put` and `get` do so, too.
        Raises `TypeError` for an address, which `connect` takes.
        """
        if not isinstance(calls, BlockingCalls):
            kind = type(calls).__name__
            raise TypeError(f"calls is a Broker or a BlockingClient, not {kind}; connect takes an address")
        self.config = as_config(config, QueueConfig)
        self._window_ms = round(self.config.deduplication_window * 1000)
        check_topic_name(name)
        self._calls, self._name, self._clock = calls, name, clock
        self._lanes: dict[str, SharedLane] = {}
        self._turn = 0
        self._in_call: dict[None, object] = {}
        self._learned = Deadline(0)
        """Until when the known topics will do while they have messages."""
        self._is_closed = False
        self._owned: BlockingClient | None = None
        self._dead = f"{name}.{DEAD_LETTERS}"
        self._level = _SYNCED if self.config.durability == "synced" else {}
        create(calls, self._dead, {**_KEPT_IN_ANY_SIZE, **self._level})

    @classmethod
    def connect(cls, address: str, name: str, config: QueueConfig | None = None) -> Self:
        """Use the queue `name` on the broker at `address`, host:port. Raises `ValueError`, and as above."""
        client = BlockingClient([parse_address(address)])
        try:
            queue = cls(client, name, config)
        except BaseException:
            client.close()
            raise
        queue._owned = client
        return queue

    def __repr__(self) -> str:
        return f"SharedQueue({self._name!r}, {'closed' if self._is_closed else repr(self._calls)})"

    def close(self) -> None:
        """Close the connection that `connect` made. What is leased stays so until the leases end."""
        self._is_closed = True
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    # --- putting --------------------------------------------------------------------------------------

    @_one_call
    def put(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        topic: str = DEFAULT_TOPIC,
        delay: float = 0,
    ) -> int:
        """Store a message and return its offset in `topic`; see `Queue.put`.

        With `deduplication_window` it waits for another process that stores a message with the same key:
        for 30 seconds at most, if that one has died.
        """
        now_ms = self._clock()
        due_ms = now_ms + as_milliseconds(delay, "delay") if delay != 0 else 0
        key = None if key is None else as_bytes(key, "a key")
        record = record_of(as_bytes(value, "a value"), key, headers, now_ms, due_ms)
        return self._put(topic, [record])[0]

    @_one_call
    def put_many(
        self,
        values: Iterable[bytes | tuple[bytes | None, bytes]],
        *,
        topic: str = DEFAULT_TOPIC,
        delay: float = 0,
    ) -> list[int]:
        """Store values, or (key, value) pairs; returns the offset of each. See `Queue.put_many`."""
        self._check_open()
        now_ms = self._clock()
        due_ms = now_ms + as_milliseconds(delay, "delay") if delay != 0 else 0
        records = [record_of(value, key, (), now_ms, due_ms) for key, value in as_pairs(values)]
        return self._put(topic, records) if records else []

    def _put(self, topic: str, records: Sequence[Record]) -> list[int]:
        lane = self._lane(topic)
        if not self._window_ms or all(record.key is None for record in records):
            return lane.put(records)
        return put_new(lane, records, self._clock, self._window_ms)

    def _lane(self, topic: str) -> SharedLane:
        self._check_open()
        lane = self._lanes.get(topic)
        if lane is None:
            check_topic(topic, most=LONGEST_TOPIC_NAME - len(f"{self._name}.{EVENTS}"))
            if "." in topic:
                raise InvalidTopic(
                    f"topic name {topic!r}: topics of a shared queue have no '.' in their names"
                )
            lane = self._shared_lane(topic)
            lane.create()
            self._lanes[topic] = lane
        return lane

    def _shared_lane(self, topic: str) -> SharedLane:
        name = f"{self._name}.{topic}"
        return SharedLane(self._calls, name, topic, self.config.max_message_bytes, self._level, self._clock)

    def _existing(self, topic: str) -> SharedLane | None:
        """Return the lane of a topic that may be another process's; None if no process has made it."""
        self._check_open()
        if topic not in self._lanes:
            self._learn()
        return self._lanes.get(topic)

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
        """Lease the next message, of `topics` or of any; see `Queue.get`."""
        found = self._get(as_topics(topics), 1, as_timeout(timeout), _lease_ms(lease, self.config))
        return found[0] if found else None

    @_one_call
    def _get(
        self, wanted: Collection[str] | None, most: int, timeout: float | None, lease_ms: int
    ) -> list[Message]:
        """Lease some messages of one topic; empty if the time is over."""
        self._check_open()
        deadline = Deadline(timeout)
        while True:
            is_due = not self._learned.left_s()
            if is_due:
                self._learn()
            found = self._take_first(wanted, lease_ms, most)
            left_s = deadline.left_s()
            if not found and not left_s and not is_due and self._learn():
                found = self._take_first(wanted, lease_ms, most)
            if found or not left_s:
                return found
            lanes = self._ordered(wanted)
            self._turn += 1
            now_ms = self._clock()
            wakes = [each for lane in lanes if (each := lane.state.wake_ms()) is not None]
            wait_s = min([_LONGEST_WAIT_S, left_s, *((each - now_ms) / 1000 for each in wakes)])
            if lanes:
                lanes[self._turn % len(lanes)].wait(max(wait_s, 0.001))
            else:  # no topic yet
                end = self._calls.topic(self._dead).partition(0).log_end_offset
                self._calls.read(self._dead, 0, end, wait=max(wait_s, 0.001))

    def get_many(
        self,
        most: int,
        topics: str | Collection[str] | None = None,
        *,
        timeout: float | None = None,
        lease: float | None = None,
    ) -> list[Message]:
        """Lease up to `most` messages, those delivered as often with one event; see `Queue.get_many`."""
        most, wanted = as_int(most, "most", least=1), as_topics(topics)
        lease_ms, timeout = _lease_ms(lease, self.config), as_timeout(timeout)
        found: list[Message] = []
        while len(found) < most:
            try:
                some = self._get(wanted, most - len(found), 0 if found else timeout, lease_ms)
            except EngineError:
                if not found:
                    raise
                break  # the next call meets it as well; raised here, it would hide what is leased
            if not some:
                break
            found += some
        return found

    def _take_first(self, wanted: Collection[str] | None, lease_ms: int, most: int) -> list[Message]:
        return next(filter(None, (self._take(lane, lease_ms, most) for lane in self._ordered(wanted))), [])

    def _ordered(self, wanted: Collection[str] | None) -> list[SharedLane]:
        """Return the known lanes to look at, by falling priority."""
        lanes = [lane for lane in self._lanes.values() if wanted is None or lane.topic in wanted]
        return sorted(lanes, key=lambda lane: -self.config.priorities.get(lane.topic, 0))

    def _learn(self) -> bool:
        """Look for topics that other processes have made; return whether there are any.

        It reads the metadata of all topics of the cluster, so not for each message that is there.
        """
        before, prefix = len(self._lanes), f"{self._name}."
        for name in self._calls.topics():
            topic = name.removeprefix(prefix).removesuffix(EVENTS)
            is_ours = name.startswith(prefix) and name.endswith(EVENTS) and "." not in topic
            if is_ours and topic not in self._lanes:
                lane = self._shared_lane(topic)
                lane.check_level()
                self._lanes[topic] = lane
        self._learned = Deadline(_LONGEST_WAIT_S)
        return len(self._lanes) > before

    def _take(self, lane: SharedLane, lease_ms: int, most: int) -> list[Message]:
        now_ms = self._clock()
        if not lane.is_current(now_ms):
            lane.catch_up()
            now_ms = self._clock()
        for deliveries, offsets in lane.state.ended(now_ms).items():
            # Another process may extend the lease right now, so the event says when it was over.
            self._return(lane, Event(EventKind.ENDED, offsets, now_ms, deliveries), "its lease ended")
        return lane.take(now_ms, lease_ms, most)

    # --- the end of a lease -------------------------------------------------------------------------

    @_one_call
    def ack(self, message: Message) -> None:
        """Finish a leased message. Raises `LeaseEnded`, `AlreadyFinished`, `TypeError`; see `Queue.ack`."""
        self._lane_of(message).finish([message])

    @_one_call
    def ack_many(self, messages: Iterable[Message]) -> None:
        """Finish several messages, those of one topic and count of deliveries with one event.

        Raises as `ack`, before any message of that topic is finished. Those whose leases end meanwhile are
        not finished, and raise it afterwards.
        """
        self._check_open()
        by_topic: dict[SharedLane, list[Message]] = {}
        for message in as_messages(messages):
            by_topic.setdefault(self._lane_of(message), []).append(message)
        for lane, some in by_topic.items():
            lane.finish(some)

    @_one_call
    def nack(self, message: Message, *, delay: float = 0, reason: str = "returned by its worker") -> bool:
        """Return a leased message, or give it up; see `Queue.nack`."""
        check_reason(reason)
        lane = self._lane_of(message)
        lane.catch_up()
        lane.check(message)
        due_ms = self._clock() + as_milliseconds(delay, "delay") if delay != 0 else 0
        returned = Event(EventKind.RETURNED, (message.offset,), due_ms, message.deliveries)
        return self._return(lane, returned, reason)

    @_one_call
    def extend(self, message: Message, lease: float | None = None) -> None:
        """Let the lease end `lease` from now; see `Queue.extend`."""
        lane = self._lane_of(message)
        lane.check_leased([message])
        until_ms = self._clock() + _lease_ms(lease, self.config)
        if not lane.happen(Event(EventKind.EXTENDED, (message.offset,), until_ms, message.deliveries)):
            lane.refuse(message)

    def _lane_of(self, message: Message) -> SharedLane:
        if type(message) is not Message:
            raise TypeError(f"{type(message).__name__} is not a message; pass what get() returned")
        lane = self._existing(message.topic)
        if lane is None:
            raise ValueError(
                f"the queue {self._name} has no topic {message.topic}: the message is another queue's"
            )
        return lane

    def _return(self, lane: SharedLane, returned: Event, reason: str) -> bool:
        """Let messages of one count of deliveries be returned, or give them up; False if they were."""
        deliveries = returned.deliveries
        if deliveries < self.config.max_deliveries:
            lane.happen(returned)
            return True
        offsets, last = returned.offsets, deliveries
        if returned.kind is EventKind.ENDED:  # or is it extended right now?
            last += 1
            offsets = lane.happen(returned._replace(kind=EventKind.GIVEN_UP, deliveries=last))
        for offset in offsets:
            if (record := lane.record(offset)) is None:
                continue
            # The dead letter first: a process that dies between the two leaves two of them.
            given_up = message_of(record, lane.topic, deliveries)
            self._calls.append(self._dead, [dead_record(given_up, reason, self._clock())], partition=0)
            lane.happen(Event(EventKind.FINISHED, (offset,), 0, last))
        return False

    # --- figures --------------------------------------------------------------------------------------

    @_one_call
    def peek(self, count: int = 10, topic: str = DEFAULT_TOPIC) -> list[Message]:
        """Return the first unfinished messages of `topic`; leases none. See `Queue.peek`."""
        count, topic = as_int(count, "count"), as_str(topic, "a topic")
        lane = self._existing(topic)
        if lane is None:
            return []
        lane.catch_up()
        state = lane.state
        offsets = chain(state.unfinished, range(state.next_offset, lane.messages.log_end_offset))
        records = filter(None, map(lane.record, list(islice(offsets, count))))
        return [message_of(each, topic, state.unfinished.get(each.offset, 0)) for each in records]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the messages that were given up, oldest first."""
        self._check_open()
        return map(dead_letter_of, self._calls.scan(self._dead))

    @_one_call
    def redrive(self) -> int:
        """Put every dead letter into its topic again, as a new message; returns how many.

        Two processes that do so at once may both put a letter. See `Queue.redrive`.
        """
        self._check_open()
        count, end_offset = 0, -1
        try:
            for record in self._calls.scan(self._dead):
                message = dead_letter_of(record).message
                made = record_of(message.value, message.key, message.headers, self._clock())
                put_again(self._lane(message.topic), made, self._window_ms)
                count, end_offset = count + 1, record.offset + 1
        finally:
            if count:
                self._calls.delete_records(self._dead, 0, end_offset)
        return count

    @_one_call
    def stats(self) -> QueueStats:
        """Return the figures of every topic; `stored_bytes` is 0, for only the broker knows."""
        self._check_open()
        self._learn()
        lanes = self._ordered(None)
        for lane in lanes:
            lane.catch_up()
        dead = self._calls.topic(self._dead).partition(0)
        count = dead.log_end_offset - dead.log_start_offset
        return QueueStats({lane.topic: lane.stats() for lane in lanes}, count)

    def _check_open(self) -> None:
        if self._is_closed:
            raise QueueClosed(f"the queue {self._name} was closed; connect again")
