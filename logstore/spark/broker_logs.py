"""Logs that brokers serve, ours or any Kafka: offsets by ListOffsets, rows by Fetch (`range_fetch.py`).

What fails because brokers die or leaders move is tried again: by the client for its own time
(`kafka.default.api.timeout.ms`), and that as often as `fetchOffset.numRetries` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from logstore.broker.client import Client
from logstore.broker.clock import stopwatch_s
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, FetchResult
from logstore.spark.client_settings import ClientSettings
from logstore.spark.client_thread import ClientThread
from logstore.spark.errors import UnknownTopic
from logstore.spark.logs import Bounds, Headers, Missing, OffsetRange
from logstore.spark.losses import LOGGER
from logstore.spark.read_options import BOOTSTRAP_SERVERS, Isolation, ReadOptions

T = TypeVar("T")

_PUBLISH_TIMEOUT_S: Final = 10.0


class BrokerLogs:
    """`Logs` of the cluster at `kafka.bootstrap.servers`."""

    def __init__(self, options: ReadOptions, on_batches: Callable[[Headers], None] | None = None) -> None:
        """Asks nobody yet. Raises `InvalidOption`."""
        self._on_batches = on_batches
        self._settings = ClientSettings.parse(options.bootstrap_servers, options.kafka)
        self._servers = options.bootstrap_servers
        self._committed_only = options.isolation is Isolation.READ_COMMITTED
        self._retries, self._pause_s = options.fetch_retries, options.fetch_retry_interval_ms / 1000
        self._poll_timeout_s = options.poll_timeout_ms / 1000
        self._unused = self._settings.unused
        self._thread: ClientThread | None = None
        self._publishing: Future[None] | None = None

    @property
    def _client(self) -> ClientThread:
        if self._thread is None:
            self._thread = ClientThread(self._settings.client)
        return self._thread

    def close(self) -> None:
        """Hang up, once what is being published has had its time."""
        if self._thread is not None:
            self._await_publication()
            self._thread.close()
            self._thread = None

    # --- offsets --------------------------------------------------------------------------------------------

    def partitions(self) -> Sequence[TopicPartition]:
        if self._unused:
            LOGGER.warning("options that do nothing here: %s", ", ".join(self._unused))
            self._unused = ()
        topics = self._asked(lambda client: client.topics())
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(topics[topic])]

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Raises `UnknownTopic` for one that is not there."""

        async def both(client: Client) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            return await asyncio.gather(
                client.offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP)),
                client.offsets(
                    dict.fromkeys(partitions, LATEST_TIMESTAMP), committed_only=self._committed_only
                ),
            )

        starts, ends = self._asked(both)
        return {each: Bounds(starts[each], max(starts[each], ends[each])) for each in partitions}

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Raises as `bounds`."""
        found = self._asked(lambda client: client.offsets(times_ms, committed_only=self._committed_only))
        return {each: offset if offset >= 0 else None for each, offset in found.items()}

    def cut_points(self, wanted: OffsetRange, pieces: int) -> Sequence[int]:
        """None: brokers do not tell where their batches begin."""
        return ()

    def _asked(self, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        async def tries(client: Client) -> T:
            left = self._retries
            while True:
                try:
                    return await ask(client)
                except (RequestRefused, RequestUnanswered) as error:
                    if isinstance(error, RequestRefused):
                        if error.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                            raise UnknownTopic(f"{self._servers}: {error}") from error
                        if not error.is_passing:
                            raise
                    if not left:
                        raise RequestUnanswered(
                            f"{self._servers}: {error}. See that brokers run there, that {BOOTSTRAP_SERVERS} "
                            "names some of them, and that this host reaches the addresses they advertise"
                        ) from error
                    LOGGER.warning("%s: %s; it is asked again, %d times at most", self._servers, error, left)
                left -= 1
                await asyncio.sleep(self._pause_s)

        return self._client.wait(tries)

    # --- rows -----------------------------------------------------------------------------------------------

    def read(self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]) -> Iterator[Any]:
        from logstore.spark.range_fetch import RangeFetch

        topic_partition = wanted.topic_partition

        async def fetch(client: Client, offset: int, max_bytes: int) -> FetchResult:
            return await client.fetch(
                topic_partition,
                offset,
                max_bytes=max_bytes,
                max_wait_ms=self._settings.fetch_wait_ms,
                committed_only=self._committed_only,
                timeout=self._poll_timeout_s,
            )

        return RangeFetch(
            self._client,
            fetch,
            lambda: self.bounds([topic_partition])[topic_partition],
            wanted,
            missing,
            fetch_bytes=self._settings.fetch_bytes,
            poll_timeout_s=self._poll_timeout_s,
            clock_s=stopwatch_s,
            on_batches=self._on_batches,
        ).rows(columns)

    # --- progress -------------------------------------------------------------------------------------------

    def publish(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Note a group's progress, without waiting; a failure is a warning, for nothing relies on it.

        If the last one is still under way, this one is left to the next call.
        """
        if self._publishing is not None and not self._publishing.done():
            return
        self._await_publication()
        timeout_s = self._settings.timeout_s

        async def commit(client: Client) -> None:
            try:
                await client.commit(group, offsets, timeout=min(_PUBLISH_TIMEOUT_S, timeout_s))
            except (RequestUnanswered, RequestRefused) as error:
                LOGGER.warning("the progress of group %s could not be published: %s", group, error)

        self._publishing = self._client.start(commit)

    def _await_publication(self) -> None:
        if self._publishing is not None:
            self._publishing.result()
            self._publishing = None
