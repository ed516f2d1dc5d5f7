"""Clients of a cluster under test: they act on request, and record every send.

    send ─▶ Delivery ─▶ leader ─▶ acknowledged at an offset
                 │         └────▶ refused, or no answer: retried while that cannot write twice
                 └──────────────▶ failed: delivery timeout, or a permanent error

They send to the leader according to the metadata store, unless they are tied to a node. An idempotent
producer (producer id, epoch, sequence) sends the same batch until it is answered. Any other producer retries
only after an answer that nothing was appended, each time with a new batch. So a batch that is committed
twice was duplicated by the cluster. Checkers get every send first, and judge every answer before its
client gets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from logstore.arguments import as_int
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    NO_EPOCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
    ResponseBody,
)
from logstore.testing.checkers import PartitionChecker
from logstore.testing.kit_engine import host_of
from logstore.testing.stored import IDENTITY_AT, ConsumerView, parse
from logstore.testing.world import World

Acks: TypeAlias = Literal["all", -1, 0, 1]
"""Replicas that must have a record before the send is answered: all in sync, none (0), or the leader (1)."""
Value: TypeAlias = bytes | tuple[bytes | None, bytes | None]
"""A record to send: its value, or its key and value."""

ALL = -1
_MOST_BYTES = 1 << 20
_WITHOUT_TRACE = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
})  # fmt: skip
"""Nothing was appended. NOT_LEADER_OR_FOLLOWER (6) means that too, except for acks=all."""
_PASSING = _WITHOUT_TRACE | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # answered by a superseded leader
}
"""Retriable errors."""


def number_of_acks(acks: Acks) -> int:
    """Return 0, 1 or -1. Raises `ValueError` for anything else than 0, 1, -1 and "all"."""
    if acks not in ("all", ALL, 0, 1):
        raise ValueError(f"acks={acks!r} must be 0, 1 or 'all'")
    return ALL if acks == "all" else acks


def is_passing(error: ErrorCode) -> bool:
    """Whether the same request may succeed later."""
    return error in _PASSING


def _pairs_of(records: object) -> list[tuple[bytes | None, bytes | None]]:
    """Return the key and the value of each record to send.

    Raises `TypeError` for what is no record, `ValueError` if there is none.
    """
    values = [records] if isinstance(records, bytes | tuple) else records
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise _no_record(records)
    if not values:
        raise ValueError("a batch needs at least one record")
    return [_pair_of(each) for each in values]


def _pair_of(value: object) -> tuple[bytes | None, bytes | None]:
    match (None, value) if isinstance(value, bytes) else value:
        case (bytes() | None as key, bytes() | None as data):
            return key, data
    raise _no_record(value)


def _no_record(value: object) -> TypeError:
    return TypeError(f"{value!r:.100} is not a value (bytes) or a (key, value) pair of bytes or None")


class RequestFailed(Exception):
    """A client's request failed; `error` is Kafka's error code.

    After REQUEST_TIMED_OUT (7), the records of a send may or may not be in the log.
    """

    def __init__(self, error: ErrorCode, what: str, message: str = "") -> None:
        super().__init__(error, what, message)
        self.error = error

    def __str__(self) -> str:
        error, what, message = self.args
        return f"{what}: {error.name}" + (f", {message}" if message else "")


@dataclass(slots=True, eq=False)
class Delivery:
    """One send and its result.

    `acks` is 0, 1 or -1 (all). Once `is_done`, `error` is NONE (0) for an acknowledged send: at `offset` (of
    the first record; -1 with acks=0), by `node`, with the `durability` that acks=all reached.
    """

    topic_partition: TopicPartition
    records: tuple[Record, ...]
    acks: int
    checker: PartitionChecker = field(repr=False)
    """The checker of the partition."""
    is_done: bool = False
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    offset: int = -1
    node: int = -1
    durability: Durability | None = None
    identity: bytes = field(default=b"", repr=False)
    """The part of the batch by which checkers recognise the send."""

    @property
    def is_acknowledged(self) -> bool:
        """Return whether the broker acknowledged the records."""
        return self.is_done and self.error is ErrorCode.NONE

    @property
    def is_lost(self) -> bool:
        """Whether it was acknowledged and is missing from the current leader's log."""
        checker = self.checker
        leader = checker.acting_leader
        if not self.is_acknowledged or self.offset < 0 or leader is None or checker.is_retired:
            return False
        view = checker.views[leader]
        if self.offset < view.log_start:
            return False
        batch = view.holding(self.offset)
        return batch is None or batch.identity != self.identity

    @property
    def values(self) -> list[bytes | None]:
        """Return the values of the records."""
        return [record.value for record in self.records]

    def __str__(self) -> str:
        acks = "all" if self.acks == ALL else self.acks
        where = f" at {self.offset} by node {self.node}" if self.is_acknowledged else ""
        return f"{self.topic_partition}: {self.values!r:.200} sent with acks={acks}{where}"


@dataclass(slots=True)
class Ledger:
    """Every send of a cluster's clients, in order, and the numbers that clients share."""

    deliveries: list[Delivery] = field(default_factory=list)
    producers: int = 0
    _newest_ms: int = -1

    def stamp_ms(self, now_ms: int) -> int:
        """Return a timestamp, now or a little later, that no other batch has: no two sends are equal."""
        self._newest_ms = max(now_ms, self._newest_ms + 1)
        return self._newest_ms


class _Client:
    """A client of one partition; not of a topic created later under the same name."""

    def __init__(self, world: World, topic_partition: TopicPartition, node: int | None) -> None:
        self.topic_partition = topic_partition
        self._world = world
        self._node = None if node is None else host_of(world, node).node_id
        self._checker = world.checkers[topic_partition]
        self._request_timeout_ms = world.swarm.request_timeout_ms

    def _target(self) -> int:
        if self._node is not None:
            return self._node
        state = self._checker.state
        return state.leader if state is not None and state.leader >= 0 else next(iter(self._world.hosts))


class SimulatedProducer(_Client):
    """Send to one partition, one batch at a time, in order; see `SimulatedCluster.producer`."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        topic_partition: TopicPartition,
        *,
        acks: int,
        is_idempotent: bool,
        delivery_timeout_ms: int,
        node: int | None,
    ) -> None:
        super().__init__(world, topic_partition, node)
        self.acks = acks
        self.is_idempotent = is_idempotent
        self.delivery_timeout_ms = delivery_timeout_ms
        self._ledger = ledger
        ledger.producers += 1
        self._producer_id = ledger.producers
        self._epoch = 0
        self._sequence = 0
        self._queue: deque[tuple[Delivery, Callable[[Delivery], object]]] = deque()
        self._batch = b""
        self._deadline_ms = 0

    def send(
        self,
        records: Value | Sequence[Value],
        on_end: Callable[[Delivery], object] = lambda delivery: None,
    ) -> Delivery:
        """Queue one batch of one or more records; `on_end` is called once, when it `is_done`.

        Returns at once: the batch is sent as virtual time passes.
        """
        pairs = _pairs_of(records)
        stamp_ms = self._ledger.stamp_ms(self._world.now_ms)
        rows = [Record(slot, stamp_ms, key, value) for slot, (key, value) in enumerate(pairs)]
        delivery = Delivery(self.topic_partition, tuple(rows), self.acks, self._checker)
        self._ledger.deliveries.append(delivery)
        self._queue.append((delivery, on_end))
        if len(self._queue) == 1:
            self._begin()
        return delivery

    def _begin(self) -> None:
        self._deadline_ms = self._world.now_ms + self.delivery_timeout_ms
        self._encode()
        self._attempt()

    def _encode(self) -> None:
        delivery, _ = self._queue[0]
        if not self.is_idempotent:
            stamp_ms = self._ledger.stamp_ms(self._world.now_ms)
            delivery.records = tuple(each._replace(timestamp_ms=stamp_ms) for each in delivery.records)
        self._batch = encode_batch(
            delivery.records,
            producer_id=self._producer_id if self.is_idempotent else -1,
            producer_epoch=self._epoch if self.is_idempotent else -1,
            base_sequence=self._sequence if self.is_idempotent else -1,
        )
        delivery.identity = self._batch[IDENTITY_AT:]

    def _attempt(self) -> None:
        self._checker.sent(self._batch[IDENTITY_AT:])
        self._world.tally.sent += 1
        node = self._target()
        self._world.client_link.call(
            node,
            ProduceRequest({self.topic_partition: self._batch}, self.acks, self._request_timeout_ms),
            lambda body: self._answered(node, body),
            timeout_ms=2 * self._request_timeout_ms,
            is_single=not self.is_idempotent,
        )

    def _answered(self, node: int, body: ResponseBody | None) -> None:
        delivery, _ = self._queue[0]
        if isinstance(body, ProduceResponse):
            result = body.partitions[self.topic_partition]
            delivery.error, delivery.message = result.error, result.message
            if result.error is ErrorCode.NONE:
                delivery.offset, delivery.durability = result.base_offset, result.durability
        else:
            delivery.error = ErrorCode.NONE if self.acks == 0 else ErrorCode.REQUEST_TIMED_OUT
            delivery.message = "no answer"
        if delivery.error is ErrorCode.NONE:
            delivery.node, delivery.message = node, ""
            self._sequence += len(delivery.records)
            self._end()
        elif self._world.now_ms < self._deadline_ms and self._may_try_again(delivery.error):
            self._world.time.at(self._world.swarm.backoff_ms, self._try_again)
        else:
            # Its sequence numbers may or may not be in the log: later batches use a new epoch.
            self._epoch, self._sequence = self._epoch + 1, 0
            self._end()

    def _may_try_again(self, error: ErrorCode) -> bool:
        if self.is_idempotent:
            return error in _PASSING
        return error in _WITHOUT_TRACE or (self.acks != ALL and error is ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _try_again(self) -> None:
        if not self.is_idempotent:
            self._encode()
        self._attempt()

    def _end(self) -> None:
        delivery, on_end = self._queue.popleft()
        delivery.is_done = True
        if self._queue:
            self._begin()
        on_end(delivery)


class Fetched(NamedTuple):
    """The result of one poll: records below `high_watermark` (-1: unknown), or an error."""

    records: list[Record]
    high_watermark: int
    error: ErrorCode


class SimulatedConsumer(_Client):
    """Read one partition from an offset on; see `SimulatedCluster.consumer`."""

    def __init__(
        self, world: World, topic_partition: TopicPartition, from_offset: int, *, node: int | None
    ) -> None:
        super().__init__(world, topic_partition, node)
        self.position = as_int(from_offset, "from_offset")
        """The next offset to read."""

    def poll(self, then: Callable[[Fetched], object], *, max_wait_ms: int = 0) -> None:
        """Fetch once from `position`, which moves past the records; `then` gets the result.

        The response may wait `max_wait_ms` for records. A lost response gives REQUEST_TIMED_OUT (7).
        """
        checker, wanted = self._checker, self.position
        # A consumer tied to a node does not know the epoch in which that node leads.
        epoch = checker.state.leader_epoch if checker.state is not None and self._node is None else NO_EPOCH
        self._world.client_link.call(
            self._target(),
            FetchRequest(
                -1,
                max_wait_ms,
                1,
                _MOST_BYTES,
                {self.topic_partition: FetchPartition(wanted, _MOST_BYTES, current_leader_epoch=epoch)},
            ),
            lambda body: then(self._received(wanted, epoch, body)),
            timeout_ms=max_wait_ms + 2 * self._request_timeout_ms,
        )

    def _received(self, wanted: int, epoch: int, body: ResponseBody | None) -> Fetched:
        if not isinstance(body, FetchResponse):
            return Fetched([], -1, ErrorCode.REQUEST_TIMED_OUT)
        result = body.partitions[self.topic_partition]
        data = bytes(result.records)
        if data and wanted == self.position and not self._checker.is_retired:
            self._checker.consumed(ConsumerView(wanted), wanted, parse(data), leader_epoch=epoch)
        records = [record for batch in walk(data) for record in batch.records() if record.offset >= wanted]
        if records:
            self._world.tally.consumed += 1
            self.position = max(self.position, records[-1].offset + 1)
        return Fetched(records, result.high_watermark, result.error)
