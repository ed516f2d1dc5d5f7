"""Topics of a broker, read with the methods of a log.

    orders = broker.topic("orders").partition(0)        a `Reading`, as `Log` and `LogReader` are
    for record in orders.read(since=yesterday): ...
    for record in orders.follow(): ...
    cursor = orders.cursor("billing")

A partition ends at its high watermark: what is read is committed. A cursor is a consumer group without
members, which Kafka's group tools show; it must not have the name of a group that consumers use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Unpack, overload

from logstore.arguments import as_offset, as_str, as_timeout
from logstore.broker.errors import RequestRefused
from logstore.broker.producing import Appendable, Appended
from logstore.config import MAX_LONG
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.format.batch import Batch, walk
from logstore.format.record import Record
from logstore.log.cursor_file import check_cursor_name
from logstore.log.read import READ_BYTES, FetchedBytes, FetchIsolation, Isolation, Piece, TimestampOffset
from logstore.log.read_committed import up_to_markers
from logstore.log.reading import RECORDS, Reading, first_of, items_of
from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from logstore.replication.transaction_messages import Aborted
from logstore.segment.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from logstore.broker.blocking import BlockingCalls
    from logstore.broker.client import AppendMany, AppendOne

_WAIT_S: Final = 10.0
"""How long a broker holds a request of a follower before it says that there is nothing."""
_NO_EPOCH: Final = -1


class Topic:
    """A topic, by name; `broker.topic(name)` makes one without a request."""

    def __init__(self, calls: BlockingCalls, name: str) -> None:
        self._calls = calls
        self.name = as_str(name, "the name of a topic")

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def partition(self, number: int) -> Partition:
        """Return a partition; whether it exists is found out by its first use."""
        return Partition(self._calls, TopicPartition(self.name, as_offset(number, "a partition")))

    def partitions(self) -> list[Partition]:
        """Return all partitions. Raises `RequestRefused` for a topic that does not exist."""
        count = self._calls.topics().get(self.name)
        if count is None:
            raise RequestRefused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {self.name} does not exist; create it with create_topic",
            )
        return [self.partition(number) for number in range(count)]

    @overload
    def append(  # type: ignore[overload-overlap]  # a pair is an iterable, too
        self, records: Appendable | None, *, partition: int | None = None, **settings: Unpack[AppendOne]
    ) -> Appended: ...

    @overload
    def append(
        self, records: Iterable[Appendable], *, partition: int | None = None, **settings: Unpack[AppendMany]
    ) -> list[Appended]: ...

    def append(self, records: Any, **settings: Any) -> Any:
        """Append to the partitions of the keys, with the settings and errors of `Broker.append`."""
        return self._calls.append(self.name, records, **settings)


class Partition(Reading):
    """A partition of a topic. Its end is the high watermark, or the last stable offset for TXN_COMMITTED."""

    __slots__ = ("_calls", "topic_partition")

    def __init__(self, calls: BlockingCalls, topic_partition: TopicPartition) -> None:
        """Programs call `Topic.partition`."""
        self._calls = calls
        self.topic_partition = topic_partition

    def __repr__(self) -> str:
        return f"Partition({self.topic_partition})"

    @overload
    def append(  # type: ignore[overload-overlap]
        self, records: Appendable | None, **settings: Unpack[AppendOne]
    ) -> Appended: ...

    @overload
    def append(self, records: Iterable[Appendable], **settings: Unpack[AppendMany]) -> list[Appended]: ...

    def append(self, records: Any, **settings: Any) -> Any:
        """Append to this partition, with the settings and errors of `Broker.append`."""
        topic, number = self.topic_partition
        return self._calls.append(topic, records, partition=number, **settings)

    # --- reading ------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that is served."""
        return self._offset(EARLIEST_TIMESTAMP)

    @property
    def log_end_offset(self) -> int:
        """The high watermark: the offset of the next committed record."""
        return self._offset(LATEST_TIMESTAMP)

    def read_bytes(
        self,
        start_offset: int,
        max_bytes: int = READ_BYTES,
        *,
        end_offset: int | None = None,
        isolation: Isolation = FetchIsolation.LOG_END,
        at_least_one: bool = True,
    ) -> FetchedBytes:
        """Return whole batches from `start_offset` as bytes; see `Reading.read_bytes`.

        Raises `OffsetOutOfRange`, and as `Client.fetch`.
        """
        try:
            result = self._calls._wait(
                self._calls._client.fetch(
                    self.topic_partition,
                    start_offset,
                    max_bytes=max_bytes,
                    max_wait_ms=0,
                    committed_only=FetchIsolation(isolation) is FetchIsolation.TXN_COMMITTED,
                )
            )
        except RequestRefused as refusal:
            if refusal.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            raise OffsetOutOfRange(start_offset, self.log_start_offset, self.log_end_offset) from refusal
        batches = list(walk(result.records))  # Kafka's brokers may cut the last one short
        size = sum(batch.size for batch in batches)
        if not batches or (size > max_bytes and not at_least_one):
            return FetchedBytes(b"", start_offset, start_offset, 0, start_offset)
        return FetchedBytes(
            bytes(result.records[:size]),
            start_offset,
            batches[0].base_offset,
            0,
            batches[-1].next_offset,
            _with_ends(result.aborted or (), batches),
        )

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: Isolation = FetchIsolation.LOG_END
    ) -> TimestampOffset | None:
        """Return the first record whose time is at or past `timestamp_ms`; None if there is none."""
        # Negative times have other meanings in the protocol.
        offset = self._offset(max(as_offset(timestamp_ms, "timestamp_ms"), 0))
        # Not `get`: it may be the record of a marker, or of an aborted transaction.
        fetched = self.read_bytes(offset, 1, isolation=isolation).records if offset >= 0 else b""
        records = chain.from_iterable(batch.records() for batch in walk(fetched))
        record = next((each for each in records if each.offset == offset), None)
        return TimestampOffset(record.timestamp_ms, offset, _NO_EPOCH) if record is not None else None

    def _offset(self, timestamp_ms: int) -> int:
        return self._calls._wait(self._calls._client.offset(self.topic_partition, timestamp_ms))

    # --- following ----------------------------------------------------------------------------------

    def follow(
        self,
        offset: int | None = None,
        timeout: float | None = None,
        *,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> Iterator[Record]:
        """Yield the records from `offset` on (default: the log start), and wait for more at the end.

        Ends after `timeout` seconds without a record; None waits for ever. The broker answers as soon as
        there is a record: nothing is polled. Raises `ValueError` for a negative timeout, and as `read`.
        """
        first = None if offset is None else as_offset(offset)
        return self._follow(first, as_timeout(timeout), isolation)

    def _follow(self, offset: int | None, timeout: float | None, isolation: Isolation) -> Iterator[Record]:
        position = self.log_start_offset if offset is None else offset
        while True:
            for item in self._items(position, isolation):
                if isinstance(item, int):
                    position = item
                else:
                    position = item.offset + 1
                    yield item
            if not self._calls._wait(self._more_than(position, timeout, isolation)):
                return

    def _items(self, start_offset: int, isolation: Isolation) -> Iterator[Record | int]:
        """Yield the records of `read`, and behind those of each fetch the offset where the next one begins.

        The last batches may have no record for the reader: compacted, or of an aborted transaction.
        """
        for fetched in self._fetches(start_offset, MAX_LONG, isolation):
            yield from items_of([Piece(fetched)], RECORDS, start_offset, MAX_LONG)
            yield fetched.next_offset

    async def _more_than(self, position: int, timeout: float | None, isolation: Isolation) -> bool:
        """Wait until there is a batch at or past `position`; False after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while True:
            left = _WAIT_S if until is None else min(until - loop.time(), _WAIT_S)
            result = await self._calls._client.fetch(
                self.topic_partition,
                position,
                max_bytes=1,
                max_wait_ms=max(int(left * 1000), 0),
                committed_only=FetchIsolation(isolation) is FetchIsolation.TXN_COMMITTED,
            )
            for batch in walk(result.records):
                if not batch.is_control:
                    return True
                position = batch.next_offset
            if until is not None and loop.time() >= until:
                return False

    def cursor(self, name: str, *, isolation: Isolation = FetchIsolation.LOG_END) -> PartitionCursor:
        """Return the cursor `name`, which continues at its committed offset, else at the log start."""
        return PartitionCursor(self, name, FetchIsolation(isolation))


class PartitionCursor:
    """A named position in a partition, committed as the offset of the consumer group `name`.

    For one thread at a time. Two cursors with one name read the same records, and the last commit counts.
    """

    def __init__(self, partition: Partition, name: str, isolation: FetchIsolation) -> None:
        """Programs call `Partition.cursor`."""
        self.name = check_cursor_name(name)
        self._partition, self._isolation = partition, isolation
        committed = self.committed
        self.position = partition.log_start_offset if committed is None else committed
        """The offset of the next record that `read` returns."""

    def __repr__(self) -> str:
        return f"PartitionCursor({self.name!r}, {self._partition.topic_partition}, position={self.position})"

    @property
    def committed(self) -> int | None:
        """The committed offset of this name; None before the first commit."""
        calls, where = self._partition._calls, self._partition.topic_partition
        return calls._wait(calls._client.committed(self.name, (where,))).get(where)

    @property
    def lag(self) -> int:
        """The number of offsets between `position` and the end of the partition."""
        return max(self._partition.log_end_offset - self.position, 0)

    def read(self, max_records: int | None = None, *, timeout: float | None = 0.0) -> Iterator[Record]:
        """Yield the records from `position` on, and move it behind each record that is yielded.

        Ends after `max_records`, and after `timeout` seconds without a record: 0 ends at the current end,
        None never ends. Raises as `Partition.follow`.
        """
        records = self._partition.follow(self.position, timeout, isolation=self._isolation)
        for record in first_of(records, max_records):
            self.position = record.offset + 1
            yield record

    def seek(self, offset: int) -> None:
        """Continue at `offset`; the committed offset stays. Raises `OffsetOutOfRange` outside of the log."""
        self.position = self._within(offset)

    def _within(self, offset: int) -> int:
        start, end = self._partition.log_start_offset, self._partition.log_end_offset
        if not start <= as_offset(offset) <= end:
            raise OffsetOutOfRange(offset, start, end)
        return offset

    def commit(self, offset: int | None = None) -> int:
        """Keep `offset` (default: `position`) as the place where this name continues; returns it.

        The commit is on every in-sync replica of the group's offsets. Raises `OffsetOutOfRange` for an
        `offset` outside of the log, and as `Client.commit`.
        """
        wanted = self.position if offset is None else self._within(offset)
        calls, where = self._partition._calls, self._partition.topic_partition
        calls._wait(calls._client.commit(self.name, {where: wanted}))
        return wanted


def _with_ends(aborted: Sequence[Aborted], batches: Sequence[Batch]) -> tuple[AbortedTransaction, ...]:
    """Return aborted transactions with their ends, as far as these batches show them."""
    if not aborted:
        return ()
    markers = ((batch.producer_id, batch.base_offset) for batch in batches if batch.is_control)
    return tuple(up_to_markers(aborted, markers))
