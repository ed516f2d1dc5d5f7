"""A client of brokers: finds leaders and retries requests where a retry is safe.

    async with Client([Address("127.0.0.1", 9092)]) as client:
        placed = await client.append("orders", b"a", key=b"k")
        records = await client.read("orders", placed.partition, placed.offset)

    client        the calls           producing      idempotent writes to one partition
    cluster_view  leaders, topics     connections    one request to one broker, version negotiation
    retrying      attempts until a deadline

It speaks Kafka's protocol in the newest version that both sides know. A broker on the same loop is asked
without a connection (`ways`, see `in_process.py`).

Passing errors (no leader, a moved leader, too few in-sync replicas) and unanswered requests are retried
until the deadline. An unanswered produce may have been served; retried, it is written twice unless its
batches carry a producer id and sequence numbers. `append` adds them (`producing.py`); `produce` sends
batches unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypedDict, overload

from logstore.arguments import as_seconds, as_str
from logstore.broker.checked_calls import awaited, check_partitions, checked
from logstore.broker.client_messages import records_in
from logstore.broker.client_requests import (
    NO_LEADER,
    ask_controller,
    ask_coordinator,
    ask_leader,
    ask_receipt,
    commit_request,
    committed_request,
    delete_before,
    make_topic,
    offsets_in,
    remove_topic,
)
from logstore.broker.cluster_view import ClusterView
from logstore.broker.connections import Connections, Way
from logstore.broker.errors import PASSING, RequestRefused, RequestUnanswered
from logstore.broker.limits import Address, Limits, addresses_of
from logstore.broker.producing import Appendable, Appended, Appenders, is_one_record, records_of
from logstore.broker.retrying import NO_BROKER, TryAgain, check_code, left_s
from logstore.broker.security.client import ClientSecurity
from logstore.broker.wire import types as t
from logstore.config import MAX_INT, SettingValue, formatted
from logstore.disk.closing import AsyncClosing
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import wall_clock_ms
from logstore.disk.topic_partition import TopicPartition
from logstore.format.record import Record
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataResponse,
    NewTopic,
    ProduceRequest,
    ProduceResult,
    RequestBody,
    ResponseBody,
)
from logstore.replication.receipts import Receipt

CONSUMER: Final = -1
ACKS_ALL: Final = -1
_TOPIC: Final = 2
"""The resource type of topics in DescribeConfigs."""
_MAX_BYTES = 1 << 20

Acks: TypeAlias = Literal["all", -1, 0, 1]


class AppendMany(TypedDict, total=False):
    """How `append` sends many records to a partition; see `Client.append`."""

    acks: Acks
    timeout: float | None


class AppendOne(AppendMany, total=False):
    """How `append` sends one value, and what goes with it."""

    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Client(AsyncClosing):
    """Talks to the brokers of one cluster. Belongs to one event loop, and to the process that first uses it.

    Times without a unit are seconds. Every call takes `timeout`, by default the client's. A call that runs
    out of time raises the last refusal (`RequestRefused`), or `RequestUnanswered` if there was none.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[Address | str],
        *,
        limits: Limits | None = None,
        timeout_s: float = 60.0,
        client_id: str = "logstore",
        ways: Mapping[Address, Way] | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """`bootstrap`: brokers to ask first (or `"host:port,…"`); `security`: see `client_security`."""
        self._limits, self._timeout_s = limits or Limits(), as_seconds(timeout_s, "timeout_s")
        self._connections = Connections(
            limits=self._limits, client_id=client_id, ways=ways or {}, check=self.check, security=security
        )
        self._cluster = ClusterView(addresses_of(bootstrap), self._connections)
        self._appenders = Appenders(self, self._cluster)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cluster}{', closed' if self._connections.closed else ''})"

    async def close(self, why: EngineError | None = None) -> None:
        """Close all connections. Calls that wait raise `why`, later ones too; default `RequestUnanswered`."""
        self._connections.close(why)
        await asyncio.sleep(0)
        await self._appenders.finished()

    def check(self) -> None:
        """Raise the error that calls raise after `close`, or in a forked child; do nothing before that."""
        self._connections.check_process()
        if self._connections.closed is not None:
            raise self._connections.closed

    # --- records ----------------------------------------------------------------------------------

    @overload
    async def append(  # type: ignore[overload-overlap]  # a pair is an iterable, too
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
    async def append(
        self,
        topic: str,
        records: Iterable[Appendable],
        *,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> list[Appended]: ...

    @awaited
    @checked
    def append(
        self,
        topic: str,
        records: Appendable | Iterable[Appendable] | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Appended | list[Appended]]:
        """Append a value with its `key` and `headers`, a (key, value) pair or a `Record`; or many of them.

        Records go to `partition`, or to the partition of their key; a call's records without a key stay
        together. The order of calls is kept within a partition. Retries never write twice, also across
        failovers, except with acks=0, which is never retried.

        Raises `RequestRefused` that is not `is_passing` if the record, or the call's records for that
        partition, are not in the log. After any other `EngineError` they may be.
        """
        wanted = -1 if acks == "all" else acks
        if wanted not in (-1, 0, 1):
            raise ValueError(f'acks is {acks!r}; it takes "all", 1 or 0')
        rows = records_of(records, key, headers, wall_clock_ms())
        until = partial(self._deadline, timeout)
        return self._appenders.append(topic, rows, partition, wanted, until, is_one=is_one_record(records))

    @checked
    async def read(
        self,
        topic: str,
        partition: int = 0,
        offset: int | None = None,
        *,
        max_bytes: int = _MAX_BYTES,
        wait: float = 0.5,
        timeout: float | None = None,
    ) -> list[Record]:
        """Return committed records from `offset` on (None: the log start), at least one if there is one.

        Returns about `max_bytes` at most, and an empty list if no record arrives within `wait`. Raises
        `RequestRefused` with OFFSET_OUT_OF_RANGE (1) for an offset outside the log, and `CorruptBatch` for a
        batch whose checksum does not match.
        """
        topic_partition = TopicPartition(topic, partition)
        position = offset
        if position is None:
            position = await self.offset(topic_partition, EARLIEST_TIMESTAMP, timeout=timeout)
        until = asyncio.get_running_loop().time() + as_seconds(wait, "wait")
        while True:
            result = await self.fetch(
                topic_partition,
                position,
                max_bytes=max_bytes,
                max_wait_ms=int(left_s(until) * 1000),
                timeout=timeout,
            )
            found, after = records_in(result, position)
            if found or (after == position and not left_s(until)):
                return found
            position = after  # only control batches, or batches that compaction has emptied

    @checked
    async def scan(
        self, topic: str, partition: int = 0, offset: int | None = None, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Yield committed records from `offset` on (None: the log start) up to the current end.

        With `follow` it waits for more records and never ends. Raises as `read`.
        """
        async for page in self.pages(topic, partition, offset, follow=follow):
            for record in page:
                yield record

    @checked
    async def pages(
        self, topic: str, partition: int = 0, offset: int | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        """Yield what `scan` yields, one fetch at a time."""
        topic_partition = TopicPartition(topic, partition)
        position = offset
        if position is None:
            position = await self.offset(topic_partition, EARLIEST_TIMESTAMP)
        end = await self.offset(topic_partition, LATEST_TIMESTAMP)
        if position > end and not follow:  # refused, unless records up to there are only not committed yet
            await self.fetch(topic_partition, position, max_wait_ms=0)
        while follow or position < end:
            found, position = records_in(await self.fetch(topic_partition, position), position)
            if not follow and position > end:
                found = [record for record in found if record.offset < end]
            if found:
                yield found

    # --- topics -----------------------------------------------------------------------------------

    @checked
    async def create_topic(
        self,
        topic: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, SettingValue] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Create a topic and wait until every broker knows its leaders; -1 is the cluster's default.

        Raises `RequestRefused`: TOPIC_ALREADY_EXISTS (36), INVALID_REPLICATION_FACTOR (38), ….
        """
        configs = {name: formatted(value) for name, value in (settings or {}).items()}
        new = NewTopic(topic, partitions, replication_factor, configs=configs)
        await make_topic(self._cluster, new, self._deadline(timeout))

    @checked
    async def delete_topic(self, topic: str, *, timeout: float | None = None) -> None:
        """Delete a topic and wait until no broker lists it; brokers remove its files soon afterwards.

        Raises `RequestRefused`: UNKNOWN_TOPIC_OR_PARTITION (3), TOPIC_DELETION_DISABLED (73), ….
        """
        await remove_topic(self._cluster, topic, self._deadline(timeout))

    @checked
    async def cluster_id(self, *, timeout: float | None = None) -> str | None:
        """Return the id of the cluster; None if its brokers tell none. Raises as `produce`."""

        async def once() -> str | None:
            return (await self._cluster.ask_any(t.MetadataRequest(topics=[]), t.MetadataResponse)).cluster_id

        return await self._cluster.retried(once, NO_BROKER, self._deadline(timeout))

    @checked
    async def topics(self, *, timeout: float | None = None) -> dict[str, int]:
        """Return the partition count of every topic, Kafka's internal topics included."""
        found = await self._cluster.topics(self._deadline(timeout))
        return {name: topic.partitions for name, topic in sorted(found.items())}

    @checked
    async def topic_settings(self, topic: str, *, timeout: float | None = None) -> dict[str, str]:
        """Return a topic's effective settings by Kafka's names, without those that have no value.

        Raises as `produce`.
        """
        resource = t.DescribeConfigsRequestDescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=None
        )
        request = t.DescribeConfigsRequest(resources=[resource])

        async def once() -> dict[str, str]:
            answer = await self._cluster.ask_any(request, t.DescribeConfigsResponse)
            found: dict[str, str] = {}
            for result in answer.results:
                check_code(result.error_code, f"settings of topic {topic}")
                found |= {each.name: each.value for each in result.configs if each.value is not None}
            return found

        return await self._cluster.retried(once, NO_BROKER, self._deadline(timeout))

    @checked
    async def leader(self, topic: str, partition: int = 0, *, timeout: float | None = None) -> int:
        """Return the id of a partition's leader; -1 without a leader or without such a partition."""
        deadline = self._deadline(timeout)
        metadata = await self._cluster.retried(self._cluster.refreshed, NO_BROKER, deadline)
        state = metadata.partitions.get(TopicPartition(topic, partition))
        return state.leader if state is not None else -1

    @checked
    async def metadata(self, topics: tuple[str, ...] | None = None) -> MetadataResponse:
        """Return the metadata of the best informed broker. Raises `RequestUnanswered` if none answers."""
        return await self._cluster.metadata(topics)

    # --- single requests --------------------------------------------------------------------------

    async def ask(self, address: Address, body: RequestBody) -> ResponseBody:
        """Send one request to one broker, once; with acks=0 return as soon as it is sent.

        Raises `RequestUnanswered`; `RequestRefused` if that broker serves no version that we know.
        """
        return await self._connections.ask(address, body)

    @checked
    async def produce(
        self,
        topic_partition: TopicPartition,
        batch: bytes | memoryview,
        *,
        acks: int = ACKS_ALL,
        timeout: float | None = None,
    ) -> ProduceResult:
        """Append one batch. It is not copied: its bytes must not change until this returns.

        Raises `RequestRefused`, and `RequestUnanswered` if time runs out.
        """
        deadline = self._deadline(timeout)
        # The leader times out before the connection does: its error is more precise than a timeout here.
        timeout_ms = min(self._limits.request_timeout_ms // 2, max(int(left_s(deadline) * 900), 1))
        body = ProduceRequest({topic_partition: batch}, acks, timeout_ms)
        answer = await ask_leader(
            self._cluster, topic_partition, lambda _: body, deadline, str(topic_partition)
        )
        assert isinstance(answer, ProduceResult)
        return answer

    @checked
    async def producer_id(self, *, timeout: float | None = None) -> int:
        """Return a new id for an idempotent producer. Raises as `produce`."""
        request = t.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)

        async def once() -> int:
            answer = await self._cluster.ask_any(request, t.InitProducerIdResponse)
            check_code(answer.error_code, "no producer id")
            return answer.producer_id

        return await self._cluster.retried(once, NO_BROKER, self._deadline(timeout))

    @checked
    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> None:
        """Commit the next offsets of a group without members, where Kafka's group tools show them.

        Raises `ValueError` for an offset out of range, and as `produce`; UNKNOWN_MEMBER_ID (25) if the group
        has members.
        """
        once = partial(ask_coordinator, self._cluster, group, commit_request(group, offsets))
        await self._cluster.retried(once, NO_BROKER, self._deadline(timeout))

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group. Partitions without one are left out.

        Raises as `produce`.
        """
        check_partitions(partitions, "partitions")
        request = committed_request(as_str(group, "group"), partitions)
        once = partial(ask_coordinator, self._cluster, group, request)
        return offsets_in(await self._cluster.retried(once, NO_BROKER, self._deadline(timeout)))

    @checked
    async def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int = _MAX_BYTES,
        max_wait_ms: int = 500,
        committed_only: bool = False,
        timeout: float | None = None,
    ) -> FetchResult:
        """Return batches below the high watermark from `offset` on, none if none arrive in time.

        With `committed_only` the last stable offset is the bound, and the result names aborted transactions.
        Raises as `produce`.
        """
        most, deadline = min(max_bytes, MAX_INT), self._deadline(timeout)

        def body(epoch: int) -> FetchRequest:
            # The leader answers before the connection, or this call, gives up.
            wait_ms = min(max_wait_ms, self._limits.request_timeout_ms // 2, int(left_s(deadline) * 900))
            wanted = {topic_partition: FetchPartition(offset, most, epoch)}
            return FetchRequest(CONSUMER, wait_ms, 1, most, wanted, committed_only=committed_only)

        what = f"{topic_partition}, offset {offset}"
        answer = await ask_leader(self._cluster, topic_partition, body, deadline, what)
        assert isinstance(answer, FetchResult)
        return answer

    @checked
    async def offset(
        self, topic_partition: TopicPartition, timestamp: int, *, timeout: float | None = None
    ) -> int:
        """Return the offset by time; -1 is the high watermark, -2 the log start. Raises as `produce`."""
        return (await self.offsets({topic_partition: timestamp}, timeout=timeout))[topic_partition]

    @checked
    async def offsets(
        self,
        times: Mapping[TopicPartition, int],
        *,
        committed_only: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Return `offset` of many partitions, with one request to each leader; -1 if no record is that young.

        With `committed_only` the end is the last stable offset. Raises as `produce`, for all if one fails.
        """
        found: dict[TopicPartition, int] = {}
        asked_s = asyncio.get_running_loop().time()

        async def once() -> None:
            reason: EngineError | None = None
            asked: dict[Address, dict[TopicPartition, ListOffsetsPartition]] = {}
            for topic_partition in [each for each in times if each not in found]:
                try:
                    leader = await self._cluster.leader(topic_partition, asked_s)
                except TryAgain as again:
                    reason = again.reason
                    continue
                question = ListOffsetsPartition(times[topic_partition], leader.epoch)
                asked.setdefault(leader.address, {})[topic_partition] = question
            requests = (
                self.ask(address, ListOffsetsRequest(CONSUMER, wanted, committed_only))
                for address, wanted in asked.items()
            )
            for answer in await asyncio.gather(*requests, return_exceptions=True):
                if isinstance(answer, RequestUnanswered):
                    reason = answer
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                assert isinstance(answer, ListOffsetsResponse)
                for topic_partition, result in answer.partitions.items():
                    if result.error is ErrorCode.NONE:
                        found[topic_partition] = result.offset
                        continue
                    reason = RequestRefused(result.error, f"offsets of {topic_partition}")
                    if result.error not in PASSING:
                        raise reason
            if len(found) < len(times):
                raise TryAgain(reason)

        await self._cluster.retried(once, NO_LEADER, self._deadline(timeout))
        return found

    @checked
    async def delete_records(
        self, topic: str, partition: int, before_offset: int, *, timeout: float | None = None
    ) -> int:
        """Delete records below an offset (-1: all) on every live replica; return where the log starts now.

        Raises as `produce`; OFFSET_OUT_OF_RANGE (1) for an offset above the high watermark,
        POLICY_VIOLATION (44) for a topic that is only compacted. Without an answer the leader may have
        deleted them.
        """
        where = TopicPartition(topic, partition)
        deadline = self._deadline(timeout)
        ask = delete_before(self._cluster, where, before_offset, deadline)
        return await self._cluster.retried(ask, NO_LEADER, deadline)

    # --- receipts -----------------------------------------------------------------------------------

    @checked
    async def durability(
        self, topic: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> Receipt:
        """Return what the partition's leader can prove of the record at `offset` now.

        Raises as `produce`; OFFSET_OUT_OF_RANGE (1) for a record that is deleted or not written yet.
        """
        ask = ask_receipt(self._cluster, TopicPartition(topic, partition), offset)
        return await self._cluster.retried(ask, NO_LEADER, self._deadline(timeout))

    @checked
    async def wait_for(
        self,
        topic: str,
        partition: int,
        offset: int,
        level: Durability = Durability.REPLICATED,
        *,
        copies: int = 1,
        timeout: float | None = None,
    ) -> Receipt:
        """Return the receipt of a record once it is committed and on `copies` replicas, synced for SYNCED.

        Raises as `durability`; INVALID_REQUEST (42) for what the topic cannot prove; `TimeoutError`.
        """
        known = TopicPartition(topic, partition)
        ask = ask_receipt(self._cluster, known, offset, level=level, copies=copies)
        deadline = self._deadline(timeout)
        receipt: Receipt | None = None
        while True:
            look = partial(ask, max_wait_ms=int(left_s(deadline) * 1000))
            try:
                receipt = await self._cluster.retried(look, NO_LEADER, deadline)
            except RequestUnanswered as error:
                if left_s(deadline):
                    raise
                why = f": {error}" if receipt is None else f", but {receipt}"
                raise TimeoutError(f"{topic}-{partition}: durability not confirmed in time{why}") from error
            if receipt.proves(level, copies):
                return receipt
            if not left_s(deadline):
                raise TimeoutError(f"{topic}-{partition}: durability not confirmed in time, but {receipt}")

    async def of_controller(self, body: RequestBody, *, timeout: float | None = None) -> ResponseBody:
        """Send a request to the controller, once, when one has been found.

        Raises `RequestUnanswered`: the request may have been served; look before you send it again.
        """
        return await ask_controller(self._cluster, body, self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> float:
        seconds = self._timeout_s if timeout is None else as_seconds(timeout, "timeout")
        return asyncio.get_running_loop().time() + seconds
