"""The calls of `Client` for programs without an event loop: the same names, but each call blocks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from logstore.broker.client import ACKS_ALL, Acks, Client
from logstore.broker.errors import RequestUnanswered
from logstore.broker.limits import Address, Limits
from logstore.broker.producing import Appendable, Appended
from logstore.broker.security.client import ClientSecurity
from logstore.broker.topics import Topic
from logstore.config import SettingValue
from logstore.disk.closing import Closing
from logstore.disk.topic_partition import TopicPartition
from logstore.format.record import Record
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    FetchResult,
    MetadataResponse,
    ProduceResult,
    RequestBody,
    ResponseBody,
)
from logstore.replication.receipts import Receipt

T = TypeVar("T")

_MAX_BYTES = 1 << 20


class BlockingCalls(ABC):
    """The calls of a `Client`, blocking. They raise what `Client` raises."""

    @property
    @abstractmethod
    def _client(self) -> Client: ...

    @abstractmethod
    def _wait(self, work: Coroutine[Any, Any, T]) -> T: ...

    def topic(self, name: str) -> Topic:
        """Return the topic of this name, whose partitions are read in the words of a log (`topics.py`)."""
        return Topic(self, name)

    @overload
    def append(  # type: ignore[overload-overlap]  # a pair is an iterable, too
        self,
        topic: str,
        records: Appendable | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> Appended: ...

    @overload
    def append(
        self,
        topic: str,
        records: Iterable[Appendable],
        *,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> list[Appended]: ...

    def append(self, topic: str, records: Any, **settings: Any) -> Appended | list[Appended]:
        """Append a value with its `key` and `headers`, or many records: see `Client.append`."""
        placed: Appended | list[Appended] = self._wait(self._client.append(topic, records, **settings))
        return placed

    def read(
        self,
        topic: str,
        partition: int = 0,
        offset: int | None = None,
        *,
        max_bytes: int = _MAX_BYTES,
        wait: float = 0.5,
        timeout: float | None = None,
    ) -> list[Record]:
        """Return committed records from `offset` on: see `Client.read`."""
        return self._wait(
            self._client.read(topic, partition, offset, max_bytes=max_bytes, wait=wait, timeout=timeout)
        )

    def scan(
        self, topic: str, partition: int = 0, offset: int | None = None, *, follow: bool = False
    ) -> Iterator[Record]:
        """Yield committed records: see `Client.scan`."""
        return self._each(self._client.pages(topic, partition, offset, follow=follow))

    def _each(self, pages: AsyncIterator[list[Record]]) -> Iterator[Record]:
        async def next_page() -> list[Record]:
            return await anext(pages, [])

        while page := self._wait(next_page()):
            yield from page

    def create_topic(
        self,
        topic: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, SettingValue] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Create a topic and wait until every broker knows its leaders: see `Client.create_topic`."""
        self._wait(
            self._client.create_topic(
                topic,
                partitions,
                replication_factor=replication_factor,
                settings=settings,
                timeout=timeout,
            )
        )

    def topics(self, *, timeout: float | None = None) -> dict[str, int]:
        """Return the partition count of every topic."""
        return self._wait(self._client.topics(timeout=timeout))

    def leader(self, topic: str, partition: int = 0, *, timeout: float | None = None) -> int:
        """Return the id of a partition's leader; -1 without one."""
        return self._wait(self._client.leader(topic, partition, timeout=timeout))

    def durability(self, topic: str, partition: int, offset: int, *, timeout: float | None = None) -> Receipt:
        """Return the receipt of a record: see `Client.durability`."""
        return self._wait(self._client.durability(topic, partition, offset, timeout=timeout))

    def wait_for(
        self,
        topic: str,
        partition: int,
        offset: int,
        level: Durability = Durability.REPLICATED,
        *,
        copies: int = 1,
        timeout: float | None = None,
    ) -> Receipt:
        """Wait until a record is on so many replicas: see `Client.wait_for`."""
        return self._wait(
            self._client.wait_for(topic, partition, offset, level, copies=copies, timeout=timeout)
        )


class BlockingClient(BlockingCalls, Closing):
    """A `Client` with its own event loop, which runs during calls only. Belongs to one thread."""

    def __init__(
        self,
        bootstrap: str | Sequence[Address | str],
        *,
        limits: Limits | None = None,
        timeout_s: float = 60.0,
        security: ClientSecurity | None = None,
    ) -> None:
        self._inner = Client(bootstrap, limits=limits, timeout_s=timeout_s, security=security)
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """Close all connections. In a forked child do nothing: they are the parent's."""
        try:
            self._inner.check()
        except RequestUnanswered:
            return  # closed before, or a forked copy
        self._runner.run(self._inner.close())
        self._runner.close()

    @property
    def _client(self) -> Client:
        return self._inner

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._inner.check()
        except BaseException:
            work.close()
            raise
        return self._runner.run(work)

    def metadata(self, topics: tuple[str, ...] | None = None) -> MetadataResponse:
        """Return the metadata of the best informed broker: see `Client.metadata`."""
        return self._wait(self._client.metadata(topics))

    def produce(
        self, topic_partition: TopicPartition, batch: bytes, *, acks: int = ACKS_ALL
    ) -> ProduceResult:
        """Append one batch: see `Client.produce`."""
        return self._wait(self._client.produce(topic_partition, batch, acks=acks))

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int = _MAX_BYTES,
        max_wait_ms: int = 500,
    ) -> FetchResult:
        """Return batches below the high watermark: see `Client.fetch`."""
        return self._wait(
            self._client.fetch(topic_partition, offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        )

    def of_controller(self, body: RequestBody) -> ResponseBody:
        """Send a request to the controller: see `Client.of_controller`."""
        return self._wait(self._client.of_controller(body))
