"""`Logs` of brokers: offsets by ListOffsets, rows by Fetch from each partition's leader.

    task's thread     ask for A │ wait │ decode A, yield rows │ decode B, yield rows │ …
    client's thread              A ════╪═ B ══════════════════╪═ C ══════════════════╪═ …

The next fetch runs while the last one is decoded; one is under way at a time. Requests that fail because a
broker died or a leader moved are retried: by the client for `kafka.default.api.timeout.ms`, and that
`fetchOffset.numRetries` times. An empty response loses nothing: a new leader's high watermark lags for a
while after a failover, so the fetch is repeated for `kafkaConsumer.pollTimeoutMs`. Lost records are
recognized by:

    offset below the log start       EXPIRED, up to the log start
    range ends past the log          TRUNCATED, from the last record on
    partition does not exist         EXPIRED, all that is left
    the same bytes wrong twice       DAMAGED, their batch (all that is left if the header is unusable)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from logstore.broker.client import Client
from logstore.broker.cluster_view import address_of
from logstore.broker.errors import AuthenticationFailed, RequestRefused, RequestUnanswered
from logstore.broker.loop_calls import LoopCall
from logstore.disk.clocks import steady_s
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import CONTROL, HEADER_BYTES
from logstore.log.read_committed import up_to_markers
from logstore.log.stretches import Stretch
from logstore.replication.messages import (
    CONSUMER_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    EpochQuery,
    FetchResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from logstore.replication.transaction_messages import Aborted
from logstore.segment.scan import Fault, header_dtype, scan_buffer
from logstore.segment.transaction_index import AbortedTransaction
from logstore.spark.client import ClientSettings, ClientThread
from logstore.spark.counting import Count
from logstore.spark.errors import UnknownTopic
from logstore.spark.logs import LOGGER, Bounds, Cause, Headers, Missing, OffsetRange
from logstore.spark.read_options import BOOTSTRAP_SERVERS, Isolation, ReadOptions
from logstore.spark.stretch_rows import stretch_rows

T = TypeVar("T")

FIRST_FETCH_BYTES: Final = 1 << 20
"""Small, because the size of a range in bytes is not known yet."""
_SMALLEST_FETCH_BYTES: Final = 1 << 16
_PUBLISH_TIMEOUT_S: Final = 10.0

Fetch = Callable[[Client, int, int], Coroutine[Any, Any, FetchResult]]
"""Fetches about so many bytes of the partition from an offset on. Raises as `Client.fetch`."""


class BrokerLogs:
    """The `Logs` of the cluster at `kafka.bootstrap.servers`."""

    def __init__(self, options: ReadOptions, on_batches: Callable[[Headers], None] | None = None) -> None:
        """Connects to no broker yet. Raises `InvalidOption`."""
        self._on_batches = on_batches
        self._settings = ClientSettings.parse(options.bootstrap_servers, options.kafka)
        self._servers = options.bootstrap_servers
        self._committed_only = options.isolation is Isolation.READ_COMMITTED
        self._retries, self._pause_s = options.fetch_retries, options.fetch_retry_interval_ms / 1000
        self._poll_timeout_s = options.poll_timeout_ms / 1000
        self._unused = self._settings.unused
        self._is_new = True
        self._thread: ClientThread | None = None
        self._publishing: LoopCall[None] | None = None

    @property
    def _client(self) -> ClientThread:
        if self._thread is None:
            self._thread = ClientThread(self._settings.client)
        return self._thread

    def close(self) -> None:
        """Close the connections, after waiting for a commit of offsets under way."""
        if self._thread is not None:
            self._await_publication()
            self._thread.close()
            self._thread = None

    # --- offsets --------------------------------------------------------------------------------------------

    def partitions(self) -> Sequence[TopicPartition]:
        if self._unused:
            LOGGER.warning("options without effect here: %s", ", ".join(self._unused))
            self._unused = ()
        if self._is_new:
            self._client.wait(lambda _: self._settings.knock())
            self._is_new = False
        topics = self._asked(lambda client: client.topics())
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(topics[topic])]

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Return the readable bounds of each partition. Raises `UnknownTopic`."""

        async def both(client: Client) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            return await asyncio.gather(
                client.offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP)),
                client.offsets(
                    dict.fromkeys(partitions, LATEST_TIMESTAMP), committed_only=self._committed_only
                ),
            )

        starts, ends = self._asked(both)
        return {each: Bounds(starts[each], max(starts[each], ends[each])) for each in partitions}

    def topic_ids(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        topics = tuple({each.topic for each in partitions})
        found = self._asked(lambda client: client.metadata(topics)).topic_ids
        return {each: found[each.topic] for each in partitions if each.topic in found}

    def later_epochs(self, partition: TopicPartition, epoch: int) -> Sequence[tuple[int, int]]:
        """Return the current leader epoch, if it is later, with the end offset of `epoch` as its start."""

        async def end(client: Client) -> Sequence[tuple[int, int]]:
            metadata = await client.metadata((partition.topic,))
            state = metadata.partitions.get(partition)
            if state is None or state.leader_epoch <= epoch:
                return []
            address = address_of(metadata, state.leader)
            if address is None:
                raise RequestUnanswered(f"{partition} has no leader")
            query = {partition: EpochQuery(state.leader_epoch, epoch)}
            answer = await client.ask(address, OffsetForLeaderEpochRequest(CONSUMER_REPLICA_ID, query))
            assert isinstance(answer, OffsetForLeaderEpochResponse)
            found = answer.partitions[partition]
            if found.error is not ErrorCode.NONE:
                raise RequestRefused(found.error, f"end of leader epoch {epoch} of {partition}")
            return [(state.leader_epoch, found.end_offset)] if found.end_offset >= 0 else []

        return self._asked(end)

    def offsets_by_time(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the offset of the first record at or after each time. Raises `UnknownTopic`."""
        found = self._asked(lambda client: client.offsets(times_ms, committed_only=self._committed_only))
        return {each: offset if offset >= 0 else None for each, offset in found.items()}

    def cut_points(self, wanted: OffsetRange, pieces: int) -> Sequence[int]:
        """Return no cut points: brokers do not report the positions of batches."""
        return ()

    def _asked(self, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        async def tries(client: Client) -> T:
            left = self._retries
            while True:
                try:
                    return await ask(client)
                except AuthenticationFailed as error:
                    raise AuthenticationFailed(
                        f"{self._servers}: {error}. Check kafka.sasl.mechanism and kafka.sasl.jaas.config"
                    ) from error
                except (RequestRefused, RequestUnanswered) as error:
                    if isinstance(error, RequestRefused):
                        if error.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                            raise UnknownTopic(f"{self._servers}: {error}") from error
                        if not error.is_passing:
                            raise
                    if not left:
                        raise RequestUnanswered(
                            f"{self._servers}: {error}. Check that brokers run there, that "
                            f"{BOOTSTRAP_SERVERS} names some of them, and that this host reaches their "
                            "advertised addresses"
                        ) from error
                    LOGGER.warning("%s: %s; retrying, up to %d times", self._servers, error, left)
                left -= 1
                await asyncio.sleep(self._pause_s)

        return self._client.wait(tries)

    # --- rows -----------------------------------------------------------------------------------------------

    def read(self, wanted: OffsetRange, columns: Sequence[str], missing: list[Missing]) -> Iterator[Any]:
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
            clock_s=steady_s,
            on_batches=self._on_batches,
        ).rows(columns)

    # --- progress -------------------------------------------------------------------------------------------

    def publish(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets of a group without waiting; a failure only logs a warning.

        If the last commit is still under way, this one is skipped.
        """
        if self._publishing is not None and not self._publishing.done():
            return
        self._await_publication()
        timeout_s = self._settings.timeout_s

        async def commit(client: Client) -> None:
            try:
                await client.commit(group, offsets, timeout=min(_PUBLISH_TIMEOUT_S, timeout_s))
            except (RequestUnanswered, RequestRefused) as error:
                LOGGER.warning("failed to commit the offsets of group %s: %s", group, error)

        self._publishing = self._client.start(commit)

    def _await_publication(self) -> None:
        if self._publishing is not None:
            self._publishing.result()
            self._publishing = None


class RangeFetch:
    """Reads `wanted` once; offsets without rows are added to `missing`."""

    # Nine parameters: tests replace each callable, and the rest are settings of one read.
    def __init__(
        self,
        client: ClientThread,
        fetch: Fetch,
        bounds: Callable[[], Bounds],
        wanted: OffsetRange,
        missing: list[Missing],
        *,
        fetch_bytes: int,
        poll_timeout_s: float,
        clock_s: Callable[[], float],
        on_batches: Callable[[Headers], None] | None = None,
    ) -> None:
        """`bounds` returns the readable bounds of the partition now; `fetch_bytes` limits a fetch."""
        self._client, self._fetch, self._bounds = client, fetch, bounds
        self._wanted, self._missing = wanted, missing
        self._count, self._on_batches = Count(wanted), on_batches
        self._position = wanted.start_offset
        self._max_bytes = fetch_bytes
        self._bytes = min(FIRST_FETCH_BYTES, fetch_bytes)
        self._ahead: LoopCall[FetchResult] | None = None
        self._patience_s, self._clock_s = poll_timeout_s, clock_s
        self._moved_s = clock_s()
        self._suspect: bytes | None = None
        """the header of the batch at the position, if it was bad in the last fetch"""

    def rows(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield rows as `Logs.read` does. Raises the client's `EngineError` when the poll timeout ends."""
        try:
            while self._position < self._wanted.end_offset:
                before = self._position
                try:
                    response = self._response()
                except RequestRefused as error:
                    self._refused(error)
                else:
                    yield from self._decoded(response, columns)
                if self._position == before:
                    self._check_patience()
        finally:
            if self._ahead is not None:
                self._ahead.cancel()
        self._missing.extend(self._count.missing())

    def _response(self) -> FetchResult:
        ahead, self._ahead = self._ahead, None
        return (ahead or self._begun(self._position)).result()

    def _begun(self, offset: int) -> LoopCall[FetchResult]:
        return self._client.start(lambda client: self._fetch(client, offset, self._bytes))

    def _decoded(self, response: FetchResult, columns: Sequence[str]) -> Iterator[Any]:
        found = scan_buffer(response.records, len(response.records))
        if not found.end:
            self._no_whole_batch(response, found.fault)
            return
        after = max(int(found.last_offsets[-1]) + 1, self._position)
        if after < self._wanted.end_offset:
            self._bytes = self._next_bytes(after, found.end)
            self._ahead = self._begun(after)
        aborted = aborted_spans(response.aborted or (), found.headers)
        left = replace(self._wanted, start_offset=self._position)
        stretch = Stretch.of(response.records, found)
        yield from stretch_rows(stretch, left, columns, aborted, self._missing, self._count)
        if self._on_batches is not None:
            self._on_batches(found.headers)
        self._move(after)

    def _next_bytes(self, after: int, size: int) -> int:
        """Return about the size of the rest of the range, judged by the last fetch."""
        per_offset = size / max(after - self._position, 1)
        rest = int((self._wanted.end_offset - after) * per_offset * 1.1) + _SMALLEST_FETCH_BYTES
        return min(max(rest, _SMALLEST_FETCH_BYTES), self._max_bytes, 8 * self._bytes)

    def _move(self, position: int) -> None:
        self._position = position
        self._moved_s = self._clock_s()
        self._suspect = None

    # --- responses without rows -----------------------------------------------------------------------------

    def _no_whole_batch(self, response: FetchResult, fault: Fault | None) -> None:
        """Handle a response without a readable batch: fetch again, or record the loss."""
        records = response.records
        if len(records) and fault is not Fault.TORN:
            header = bytes(records[:HEADER_BYTES])
            if header == self._suspect:
                self._lose(_end_of(header, self._position, self._wanted.end_offset), Cause.DAMAGED)
            self._suspect = header
            return
        if len(records):
            self._bytes = min(8 * self._bytes, (1 << 31) - 1)  # this broker cuts even the first batch
        elif self._is_cut_off():
            self._lose(self._wanted.end_offset, Cause.TRUNCATED)

    def _check_patience(self) -> None:
        if self._clock_s() - self._moved_s > self._patience_s:
            raise RequestUnanswered(
                f"{self._wanted.topic_partition}: no records from offset {self._position} on for "
                f"{self._patience_s:g} s, but the end was {self._wanted.end_offset} when this was planned; "
                "check that its replicas are in sync, or raise kafkaConsumer.pollTimeoutMs"
            )

    def _is_cut_off(self) -> bool:
        """Return whether the log ends below the range, so that its records will never come."""
        end_offset = self._wanted.end_offset
        try:
            self._client.wait(lambda client: self._fetch(client, end_offset, 1))
        except RequestRefused as error:
            return error.error is ErrorCode.OFFSET_OUT_OF_RANGE
        return False

    def _refused(self, error: RequestRefused) -> None:
        """Record the loss that `error` reports. Raises `error` if it reports none."""
        match error.error:
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._lose(self._wanted.end_offset, Cause.EXPIRED, "the partition no longer exists")
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                bounds = self._bounds()
                if self._position < bounds.start_offset:
                    self._lose(min(bounds.start_offset, self._wanted.end_offset), Cause.EXPIRED)
                elif self._position > bounds.end_offset:
                    detail = f"the log ends at {bounds.end_offset}"
                    self._lose(self._wanted.end_offset, Cause.TRUNCATED, detail)
                # Otherwise another broker leads now and has the offset.
            case _:
                raise error

    def _lose(self, until: int, cause: Cause, detail: str = "") -> None:
        self._missing.append(self._wanted.lost(self._position, until, cause, detail))
        self._count.skip_to(until)
        self._move(until)


def _end_of(header: bytes, position: int, end: int) -> int:
    """Return where a damaged batch ends according to its header; `end` if that is impossible."""
    fields = np.frombuffer(header.ljust(HEADER_BYTES, b"\0"), header_dtype())[0]
    after = int(fields["base_offset"]) + int(fields["last_offset_delta"]) + 1
    return after if position < after < end else end


def aborted_spans(aborted: Sequence[Aborted], headers: npt.NDArray[np.void]) -> list[AbortedTransaction]:
    """Return the aborted transactions of a response, each up to its marker, or open-ended without one."""
    if not aborted:
        return []
    markers = headers[headers["attributes"] & CONTROL != 0]
    ends = zip(markers["producer_id"].tolist(), markers["base_offset"].tolist(), strict=True)
    return up_to_markers(aborted, ends)
