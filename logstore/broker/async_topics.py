"""Topics of a broker for tasks: `broker.topic("orders").partition(0)`, read like an `AsyncLog`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar, Unpack, overload

from logstore.arguments import as_count, as_offset, as_str, as_timeout
from logstore.async_reading import AsyncReading, in_pieces
from logstore.broker.blocking import BlockingCalls
from logstore.broker.client import AppendMany, AppendOne, Client
from logstore.broker.producing import Appendable, Appended
from logstore.broker.topics import Partition
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.format.record import Record
from logstore.log.cursor_file import check_cursor_name
from logstore.log.read import FetchIsolation, Isolation
from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

T = TypeVar("T")


class AsyncTopic:
    """A topic, by name; `AsyncBroker.topic(name)` makes one without a request."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = as_str(name, "the name of a topic")

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"

    def partition(self, number: int) -> AsyncPartition:
        """Return a partition; whether it exists is found out by its first use."""
        return AsyncPartition(self._client, TopicPartition(self.name, as_offset(number, "a partition")))

    @overload
    async def append(  # type: ignore[overload-overlap]  # a pair is an iterable, too
        self, records: Appendable | None, *, partition: int | None = None, **settings: Unpack[AppendOne]
    ) -> Appended: ...

    @overload
    async def append(
        self, records: Iterable[Appendable], *, partition: int | None = None, **settings: Unpack[AppendMany]
    ) -> list[Appended]: ...

    async def append(self, records: Any, **settings: Any) -> Any:
        """Append to the partitions of the keys, with the settings and errors of `AsyncBroker.append`."""
        return await self._client.append(self.name, records, **settings)


class AsyncPartition(AsyncReading):
    """A partition of a topic for tasks. Its end is the high watermark."""

    def __init__(self, client: Client, topic_partition: TopicPartition) -> None:
        """Programs call `AsyncTopic.partition`, on the loop of the client."""
        self._partition = Partition(_FromThreads(client), topic_partition)
        super().__init__(self._partition)
        self._client = client
        self.topic_partition = topic_partition

    _items = in_pieces(Partition._items)

    def __repr__(self) -> str:
        return f"Async{self._partition!r}"

    @overload
    async def append(  # type: ignore[overload-overlap]
        self, records: Appendable | None, **settings: Unpack[AppendOne]
    ) -> Appended: ...

    @overload
    async def append(
        self, records: Iterable[Appendable], **settings: Unpack[AppendMany]
    ) -> list[Appended]: ...

    async def append(self, records: Any, **settings: Any) -> Any:
        """Append to this partition, with the settings and errors of `AsyncBroker.append`."""
        topic, number = self.topic_partition
        return await self._client.append(topic, records, partition=number, **settings)

    async def log_start_offset(self) -> int:
        """Return the first offset that is served."""
        return await self._client.offset(self.topic_partition, EARLIEST_TIMESTAMP)

    async def log_end_offset(self) -> int:
        """Return the high watermark: the offset of the next committed record."""
        return await self._client.offset(self.topic_partition, LATEST_TIMESTAMP)

    async def follow(
        self,
        offset: int | None = None,
        timeout: float | None = None,
        *,
        isolation: Isolation = FetchIsolation.LOG_END,
    ) -> AsyncIterator[Record]:
        """Yield the records from `offset` on, and wait for more at the end, as `Partition.follow`.

        A task that waits holds no thread.
        """
        timeout = as_timeout(timeout)
        position = await self.log_start_offset() if offset is None else as_offset(offset)
        while True:
            async for item in self._items(position, isolation):
                if isinstance(item, int):
                    position = item
                else:
                    position = item.offset + 1
                    yield item
            if not await self._partition._more_than(position, timeout, isolation):
                return

    async def cursor(
        self, name: str, *, isolation: Isolation = FetchIsolation.LOG_END
    ) -> AsyncPartitionCursor:
        """Return the cursor `name`, which continues at its committed offset, else at the log start."""
        cursor = AsyncPartitionCursor(self, name, FetchIsolation(isolation))
        committed = await cursor.committed()
        cursor.position = await self.log_start_offset() if committed is None else committed
        return cursor


class AsyncPartitionCursor:
    """A named position in a partition, as `PartitionCursor`, for one task at a time."""

    def __init__(self, partition: AsyncPartition, name: str, isolation: FetchIsolation) -> None:
        """Programs await `AsyncPartition.cursor`."""
        self.name = check_cursor_name(name)
        self._partition, self._isolation = partition, isolation
        self.position = 0
        """The offset of the next record that `read` returns."""

    def __repr__(self) -> str:
        where = self._partition.topic_partition
        return f"AsyncPartitionCursor({self.name!r}, {where}, position={self.position})"

    async def committed(self) -> int | None:
        """Return the committed offset of this name; None before the first commit."""
        where = self._partition.topic_partition
        return (await self._partition._client.committed(self.name, (where,))).get(where)

    async def lag(self) -> int:
        """Return the number of offsets between `position` and the end of the partition."""
        return max(await self._partition.log_end_offset() - self.position, 0)

    async def read(
        self, max_records: int | None = None, *, timeout: float | None = 0.0
    ) -> AsyncIterator[Record]:
        """Yield the records from `position` on, and move it behind each record that is yielded.

        Ends and raises as `PartitionCursor.read`. A cancelled task has lost no record: the next `read` yields
        it.
        """
        left = -1 if max_records is None else as_count(max_records, "max_records")
        if not left:
            return
        async for record in self._partition.follow(self.position, timeout, isolation=self._isolation):
            self.position = record.offset + 1
            left -= 1
            yield record
            if not left:
                return

    async def seek(self, offset: int) -> None:
        """Continue at `offset`; the committed offset stays. Raises `OffsetOutOfRange` outside of the log."""
        self.position = await self._within(offset)

    async def _within(self, offset: int) -> int:
        start, end = await self._partition.log_start_offset(), await self._partition.log_end_offset()
        if not start <= as_offset(offset) <= end:
            raise OffsetOutOfRange(offset, start, end)
        return offset

    async def commit(self, offset: int | None = None) -> int:
        """Keep `offset` (default: `position`) as the place where this name continues; returns it.

        The commit is on every in-sync replica of the group's offsets. Raises `OffsetOutOfRange` for an
        `offset` outside of the log, and as `Client.commit`.
        """
        wanted = self.position if offset is None else await self._within(offset)
        await self._partition._client.commit(self.name, {self._partition.topic_partition: wanted})
        return wanted


class _FromThreads(BlockingCalls):
    """The calls of a client, for threads beside its event loop."""

    def __init__(self, client: Client) -> None:
        self._inner, self._loop = client, asyncio.get_running_loop()

    @property
    def _client(self) -> Client:
        return self._inner

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
