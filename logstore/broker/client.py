"""A client of brokers: finds leaders, sends again where that is safe to do.

    async with Client([Address("127.0.0.1", 9092)]) as client:
        placed = await client.append("orders", b"a", key=b"k")
        records = await client.read("orders", placed.partition, placed.offset)

It speaks Kafka's wire over links, in the newest version that the broker there serves as well; a broker on the
same loop is asked without (`ways`, see `in_process.py`).

What is retried is retried until the time is over: refusals that pass by themselves (no leader, a leader
that moved, too few replicas in sync) and requests that were not answered. A produce that was not answered
may have been served: sent again, it is written twice, unless its batches have a producer id and sequence
numbers, by which the log knows them. `append` gives them those (`producing.py`); `produce` takes batches as
they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, overload

from logstore.broker.client_messages import newest, request_of, response_of
from logstore.broker.errors import PASSING, MalformedMessage, RequestRefused, RequestUnanswered
from logstore.broker.frames import shared_scratch
from logstore.broker.limits import Address, Limits
from logstore.broker.links import Link, Then
from logstore.broker.placement import partition_of_call, partition_of_key
from logstore.broker.producing import Appendable, Appended, Appender, records_of, split
from logstore.broker.translation import by_topic, error_of
from logstore.broker.wire import types as t
from logstore.broker.wire.apis import API_OF
from logstore.broker.wire.declarations import Struct
from logstore.disk.clock import wall_clock_ms
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.format.record import Record
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    NewTopic,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    RequestBody,
    ResponseBody,
)

T = TypeVar("T")

CONSUMER: Final = -1
ACKS_ALL: Final = -1
_CLIENT_ID = "logstore"
_TOPIC: Final = 2
"""DescribeConfigs' number for topics."""
_MAX_BYTES = 1 << 20
_BACKOFF_S = 0.05
_WORD_SPREADS_S = 0.005
_MOST_ADDRESSES = 32
_METADATA_TIMEOUT_S = 1.0
_METADATA_AGE_S = 300.0
_NEW_TOPIC_S = 3.0
"""How long a topic that nobody knows may be one that was made a moment ago."""

Acks: TypeAlias = Literal["all", -1, 0, 1]


class Way(Protocol):
    """How a broker is asked: a `Link`, or `InProcess`."""

    def ask(self, request: Struct, version: int, then: Then | None) -> None: ...

    def close(self) -> None: ...


class _Topic(NamedTuple):
    """What placing a record needs to know; `with_leader` are the partitions that have one."""

    partitions: int
    with_leader: tuple[int, ...]


class _Leader(NamedTuple):
    """Who is asked, and in which leadership: one that is over, and does not know it, answers nothing."""

    address: Address
    epoch: int


class Client:
    """Talks to whichever brokers are needed. Belongs to one event loop.

    Times without a unit are seconds. Every call has `timeout`, by default the client's; what raises then is
    the last refusal (`RequestRefused`), or `RequestUnanswered` if there was none.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        limits: Limits | None = None,
        timeout_s: float = 60.0,
        client_id: str = _CLIENT_ID,
        ways: Mapping[Address, Way] | None = None,
    ) -> None:
        """`bootstrap` are brokers to begin with; the others are learned from them.

        `ways` are to brokers that are asked otherwise than by a connection; they are closed with the client.
        """
        self._addresses = dict.fromkeys(bootstrap)
        """where brokers are or were, those that were heard of last in front"""
        self._limits = limits or Limits()
        self._timeout_s, self._client_id = timeout_s, client_id
        self._ways = dict(ways or {})
        self._links: dict[tuple[Address, type[Any]], Link] = {}
        self._served: dict[Address, Mapping[int, range]] = {}
        """by key of API, the versions that a broker said it serves"""
        self._scratch: memoryview | None = None
        self._metadata: MetadataResponse | None = None
        self._metadata_until = 0.0
        self._topics: dict[str, _Topic] = {}
        self._appenders: dict[TopicPartition, Appender] = {}
        self._calls = 0
        self._closed: EngineError | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, why: EngineError | None = None) -> None:
        """Hang up everywhere. What waits raises `why`, later calls too; `RequestUnanswered` without one."""
        self._closed = self._closed or why or RequestUnanswered("this client was closed")
        for way in (*self._links.values(), *self._ways.values()):
            way.close()
        self._links.clear()
        await asyncio.sleep(0)
        for appender in self._appenders.values():
            await appender.finished()

    def check(self) -> None:
        """Raise what calls raise once it is closed."""
        if self._closed is not None:
            raise self._closed

    # --- records ------------------------------------------------------------------------------

    @overload
    async def append(
        self,
        topic: str,
        records: bytes | None,
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

    async def append(
        self,
        topic: str,
        records: bytes | Iterable[Appendable] | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> Appended | list[Appended]:
        """Append a value with its `key` and `headers`, or many records: values, (key, value) or `Record`s.

        Records go to `partition`, or where their keys belong; those of a call that have no key stay together.
        Within a partition the calls' order is kept. Nothing is written twice by retrying, across failovers
        too, unless acks=0, which is never retried.

        `RequestRefused` that is not `is_passing`: that record, or the call's records for that
        partition, are not in the log. Any other `EngineError`: they may be.
        """
        deadline = self._deadline(timeout)
        wanted = -1 if acks == "all" else acks
        if wanted not in (-1, 0, 1):
            raise ValueError(f'acks is {acks!r}; it takes "all", 1 or 0')
        rows = records_of(records, key, headers, wall_clock_ms())
        chosen = await self._placed(topic, rows, partition, deadline)
        pieces = [(where, piece) for where, numbers in chosen.items() for piece in split(numbers, rows)]
        works = [self._appender(where).append(piece, wanted, deadline) for where, piece in pieces]
        found: dict[int, Appended] = {}
        results = await asyncio.gather(*works, return_exceptions=True)
        for (_, piece), result in zip(pieces, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            found.update(zip(piece.numbers, result, strict=True))
        if records is None or isinstance(records, bytes | bytearray | memoryview):
            return found[0]
        return [found[number] for number in range(len(rows))]

    async def _placed(
        self, topic: str, rows: Sequence[Record], partition: int | None, deadline: float
    ) -> dict[TopicPartition, Sequence[int]]:
        """The numbers of the rows that go to each partition."""
        known = await self._topic(topic, deadline)
        if partition is not None and not 0 <= partition < known.partitions:
            raise RequestRefused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {known.partitions} partitions, from 0 on"
            )
        self._calls += 1
        keyless = partition
        if keyless is None:
            keyless = partition_of_call(self._calls, known.with_leader, known.partitions)
        if partition is not None:
            return {TopicPartition(topic, keyless): range(len(rows))}
        chosen: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            place = keyless if row.key is None else partition_of_key(row.key, known.partitions)
            chosen.setdefault(place, []).append(number)
        return {TopicPartition(topic, place): numbers for place, numbers in chosen.items()}

    def _appender(self, topic_partition: TopicPartition) -> Appender:
        found = self._appenders.get(topic_partition)
        if found is None:
            found = self._appenders[topic_partition] = Appender(self, topic_partition)
        return found

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
        """Committed records from `offset` on (None: the first there is), at least one if there is one.

        About `max_bytes` of them at most; none if none come within `wait`. An offset outside the log is
        refused: OFFSET_OUT_OF_RANGE. Raises `CorruptBatch` for bytes that are not what was written.
        """
        topic_partition = TopicPartition(topic, partition)
        position = offset
        if position is None:
            position = await self.offset(topic_partition, EARLIEST_TIMESTAMP, timeout=timeout)
        until = asyncio.get_running_loop().time() + wait
        while True:
            left_ms = max(int((until - asyncio.get_running_loop().time()) * 1000), 0)
            result = await self.fetch(
                topic_partition, position, max_bytes=max_bytes, max_wait_ms=left_ms, timeout=timeout
            )
            found, after = _decoded(result, position)
            if found or after == position:
                return found
            position = after  # batches that compaction has emptied, or markers

    async def scan(
        self, topic: str, partition: int = 0, offset: int | None = None, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Committed records from `offset` on (None: the first), up to what is the end by now.

        With `follow` it goes on for ever as more come. Raises as `read`.
        """
        async for page in self.pages(topic, partition, offset, follow=follow):
            for record in page:
                yield record

    async def pages(
        self, topic: str, partition: int = 0, offset: int | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        """What `scan` gives, a fetch at a time."""
        topic_partition = TopicPartition(topic, partition)
        position = offset
        if position is None:
            position = await self.offset(topic_partition, EARLIEST_TIMESTAMP)
        end = await self.offset(topic_partition, LATEST_TIMESTAMP)
        while follow or position < end:
            found, position = _decoded(await self.fetch(topic_partition, position), position)
            if not follow and position > end:
                found = [record for record in found if record.offset < end]
            if found:
                yield found

    # --- topics -------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Make a topic, and wait until every broker knows who leads it; -1 is the cluster's default.

        Raises `RequestRefused`: TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, ….
        """
        deadline = self._deadline(timeout)
        request = CreateTopicsRequest(
            (NewTopic(topic, partitions, replication_factor, configs=dict(settings or {})),)
        )
        was_lost = False
        while True:
            try:
                answer = await self.of_controller(request, timeout=self._left(deadline))
            except RequestUnanswered:
                if self._closed is not None or not self._left(deadline):
                    raise
                was_lost = True
                continue
            assert isinstance(answer, CreateTopicsResponse)
            result = answer.topics[topic]
            if result.error is ErrorCode.TOPIC_ALREADY_EXISTS and was_lost:
                break  # it was made when the answer was lost
            if result.error is not ErrorCode.NONE:
                raise RequestRefused(result.error, result.message)
            break

        async def known() -> None:
            answers = await self._ask_all((topic,))
            if not answers or not all(_is_led(answer, topic) for answer in answers):
                raise _TryAgain(RequestUnanswered(f"not every broker knows who leads {topic}"))

        await self._until_answered(known, "no broker answers", deadline, pause_s=_WORD_SPREADS_S)

    async def topics(self, *, timeout: float | None = None) -> dict[str, int]:
        """Every topic with its number of partitions, Kafka's internal ones among them."""
        await self._until_answered(self._refreshed, "no broker answers", self._deadline(timeout))
        return {name: topic.partitions for name, topic in sorted(self._topics.items())}

    async def topic_settings(self, topic: str, *, timeout: float | None = None) -> dict[str, str]:
        """What applies to a topic, by Kafka's names; settings without a value are left out.

        Raises as `produce`.
        """
        resource = t.DescribeConfigsRequestDescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=None
        )
        request = t.DescribeConfigsRequest(resources=[resource])

        async def once() -> dict[str, str]:
            answer = await self._of_anybody(request)
            assert isinstance(answer, t.DescribeConfigsResponse), "the link checks the kind"
            found: dict[str, str] = {}
            for result in answer.results:
                _check(result.error_code, f"settings of topic {topic}")
                found |= {each.name: each.value for each in result.configs if each.value is not None}
            return found

        return await self._until_answered(once, "no broker answers", self._deadline(timeout))

    async def leader(self, topic: str, partition: int = 0, *, timeout: float | None = None) -> int:
        """The id of the broker that leads a partition by now; -1 for nobody, or no such partition."""
        deadline = self._deadline(timeout)
        metadata = await self._until_answered(self._refreshed, "no broker answers", deadline)
        state = metadata.partitions.get(TopicPartition(topic, partition))
        return state.leader if state is not None else -1

    async def _refreshed(self) -> MetadataResponse:
        try:
            return await self.metadata()
        except RequestUnanswered as error:
            raise _TryAgain(error) from error

    async def _topic(self, name: str, deadline: float) -> _Topic:
        loop = asyncio.get_running_loop()
        self.check()
        if name in self._topics and loop.time() < self._metadata_until:
            return self._topics[name]

        async def once() -> _Topic:
            await self._refreshed()
            if name not in self._topics:
                unknown = RequestRefused(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}; create_topic makes one"
                )
                raise _TryAgain(unknown)
            return self._topics[name]

        deadline = min(deadline, loop.time() + _NEW_TOPIC_S)
        return await self._until_answered(once, "no broker answers", deadline)

    # --- one request --------------------------------------------------------------------------

    async def ask(self, address: Address, body: RequestBody) -> ResponseBody:
        """Send one request once; one with acks=0 is over when it is sent.

        Raises `RequestUnanswered`; `RequestRefused` if that broker knows no version of it that we know.
        """
        request = request_of(body)
        if isinstance(body, ProduceRequest) and body.acks == 0:
            version = await self._version(address, type(request))
            self._way(address, type(request)).ask(request, version, None)
            return ProduceResponse({each: ProduceResult(ErrorCode.NONE) for each in body.records})
        try:
            return response_of(await self._ask(address, request))
        except MalformedMessage as error:
            raise RequestUnanswered(f"{address} answers what cannot be: {error}") from error

    def _way(self, address: Address, kind: type[Struct]) -> Way:
        self.check()
        if address in self._ways:
            return self._ways[address]
        # A connection for each kind of request: a fetch may wait long, and holds up what is behind it.
        link = self._links.get((address, kind))
        if link is None:
            if not self._links:
                self._scratch = shared_scratch(asyncio.get_running_loop())
            link = Link(address, client_id=self._client_id, limits=self._limits, scratch=self._scratch)
            self._links[address, kind] = link
        return link

    async def _ask(self, address: Address, request: Struct) -> Struct:
        version = await self._version(address, type(request))
        return await self._exchange(address, self._way(address, type(request)), request, version)

    async def _version(self, address: Address, kind: type[Struct]) -> int:
        """The newest one of this request that the broker there serves."""
        if address in self._ways:
            return newest(kind)
        served = self._served.get(address)
        if served is None:
            # Version 0 of this question is understood by all; a newer one that is not ends the connection.
            way = self._way(address, kind)
            answer = await self._exchange(address, way, t.ApiVersionsRequest(), 0)
            assert isinstance(answer, t.ApiVersionsResponse), "the link checks the kind"
            served = {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}
            self._served[address] = served
        api = API_OF[kind]
        theirs = served.get(api.key, range(0))
        version = min(newest(kind), theirs.stop - 1)
        if version not in theirs or version not in api.served:
            raise RequestRefused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {address} serves versions {theirs.start} to {theirs.stop - 1} of {api.name}, "
                f"and we ask in {api.served[0]} to {newest(kind)}",
            )
        return version

    async def _exchange(self, address: Address, way: Way, request: Struct, version: int) -> Struct:
        waiting: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()

        def answered(answer: Struct | RequestUnanswered) -> None:
            if isinstance(answer, RequestUnanswered):
                self._served.pop(address, None)  # it may come back as another version
            if waiting.done():
                return
            if isinstance(answer, RequestUnanswered):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

        way.ask(request, version, answered)
        return await waiting

    # --- finding ------------------------------------------------------------------------------

    async def metadata(self, topics: tuple[str, ...] | None = None) -> MetadataResponse:
        """What the broker knows that has heard most. Raises `RequestUnanswered` if none answers."""
        newest = max(await self._ask_all(topics), key=_age, default=None)
        if newest is None:
            raise self._closed or RequestUnanswered("no node answers")
        live = dict.fromkeys(Address(each.host, each.port) for each in newest.brokers)
        self._addresses = dict.fromkeys([*live, *self._addresses][:_MOST_ADDRESSES])
        self._metadata = newest
        if topics is None:
            self._metadata_until = asyncio.get_running_loop().time() + _METADATA_AGE_S
            self._topics = _topics_of(newest)
        return newest

    async def _ask_all(self, topics: tuple[str, ...] | None) -> list[MetadataResponse]:
        answers = await asyncio.gather(*(self._metadata_of(address, topics) for address in self._addresses))
        return [answer for answer in answers if answer is not None]

    async def _metadata_of(self, address: Address, topics: tuple[str, ...] | None) -> MetadataResponse | None:
        try:
            async with asyncio.timeout(_METADATA_TIMEOUT_S):
                answer = await self.ask(address, MetadataRequest(topics))
        except (RequestUnanswered, TimeoutError):
            return None
        assert isinstance(answer, MetadataResponse), "the link checks the kind"
        # One that knows of nobody, itself among them, has just started and knows of no topics either.
        return answer if answer.brokers else None

    async def _leader(self, topic_partition: TopicPartition, asked_s: float) -> _Leader:
        """Who leads by now; one that does not exist may have been made just before `asked_s`.

        Raises `_TryAgain` if nobody does, and `RequestRefused` if it is too late for that.
        """
        try:
            metadata = self._metadata or await self.metadata()
        except RequestUnanswered as error:
            raise _TryAgain(error) from error
        state = metadata.partitions.get(topic_partition)
        if state is None:
            unknown = RequestRefused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic_partition}"
            )
            is_new = asyncio.get_running_loop().time() < asked_s + _NEW_TOPIC_S
            raise _TryAgain(unknown) if is_new else unknown
        address = self._address_of(metadata, state.leader)
        if address is None:
            raise _TryAgain(RequestUnanswered(f"nobody is known to lead {topic_partition}"))
        return _Leader(address, state.leader_epoch)

    @staticmethod
    def _address_of(metadata: MetadataResponse, broker_id: int) -> Address | None:
        return next(
            (Address(each.host, each.port) for each in metadata.brokers if each.broker_id == broker_id), None
        )

    # --- requests that are tried again --------------------------------------------------------

    async def produce(
        self,
        topic_partition: TopicPartition,
        batch: bytes,
        *,
        acks: int = ACKS_ALL,
        timeout: float | None = None,
    ) -> ProduceResult:
        """Have one batch appended. Raises `RequestRefused`, and `RequestUnanswered` if time runs out."""
        deadline = self._deadline(timeout)
        # The leader gives up first: its word says more than a connection that broke.
        timeout_ms = min(self._limits.request_timeout_ms // 2, max(int(self._left(deadline) * 900), 1))
        body = ProduceRequest({topic_partition: batch}, acks, timeout_ms)
        answer = await self._of_leader(topic_partition, lambda _: body, deadline)
        assert isinstance(answer, ProduceResult)
        return answer

    async def producer_id(self, *, timeout: float | None = None) -> int:
        """A number for an idempotent producer, given out once. Raises as `produce`."""
        request = t.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)

        async def once() -> int:
            answer = await self._of_anybody(request)
            assert isinstance(answer, t.InitProducerIdResponse), "the link checks the kind"
            _check(answer.error_code, "no producer id")
            return answer.producer_id

        return await self._until_answered(once, "no broker answers", self._deadline(timeout))

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> None:
        """Note how far a group without members has come: its next offsets, which tools for groups show.

        Raises as `produce`; UNKNOWN_MEMBER_ID if it has members.
        """
        find = t.FindCoordinatorRequest(key=group)
        commit = t.OffsetCommitRequest(
            group_id=group,
            topics=[
                t.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        t.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
                        for partition, offset in found
                    ],
                )
                for topic, found in by_topic(offsets.items()).items()
            ],
        )

        async def once() -> None:
            found = await self._of_anybody(find)
            assert isinstance(found, t.FindCoordinatorResponse), "the link checks the kind"
            _check(found.error_code, f"no coordinator of group {group}")
            try:
                answer = await self._ask(Address(found.host, found.port), commit)
            except RequestUnanswered as error:
                raise _TryAgain(error) from error
            assert isinstance(answer, t.OffsetCommitResponse), "the link checks the kind"
            for topic in answer.topics:
                for each in topic.partitions:
                    where = TopicPartition(topic.name, each.partition_index)
                    _check(each.error_code, f"offset of group {group} for {where}")

        await self._until_answered(once, "no broker answers", self._deadline(timeout))

    async def _of_anybody(self, request: Struct) -> Struct:
        """What one broker answers; another one is asked next time if this one does not."""
        if not self._addresses:
            raise _TryAgain
        address = next(iter(self._addresses))
        try:
            return await self._ask(address, request)
        except RequestUnanswered as error:
            self._addresses[address] = self._addresses.pop(address)
            raise _TryAgain(error) from error

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
        """Read committed batches from `offset` on, none if there are none in time. Raises as `produce`.

        `committed_only`: no further than the last stable offset, and the answer names aborted transactions.
        """

        def body(epoch: int) -> FetchRequest:
            wanted = FetchPartition(offset, max_bytes, epoch)
            return FetchRequest(
                CONSUMER, max_wait_ms, 1, max_bytes, {topic_partition: wanted}, committed_only=committed_only
            )

        answer = await self._of_leader(topic_partition, body, self._deadline(timeout))
        assert isinstance(answer, FetchResult)
        return answer

    async def offset(
        self, topic_partition: TopicPartition, timestamp: int, *, timeout: float | None = None
    ) -> int:
        """The offset by time; -1 for the end of what is committed, -2 for the start. Raises as `produce`."""
        return (await self.offsets({topic_partition: timestamp}, timeout=timeout))[topic_partition]

    async def offsets(
        self,
        times: Mapping[TopicPartition, int],
        *,
        committed_only: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """`offset` of many partitions, by one request to each leader; -1 where no record is so young.

        `committed_only`: the end is the last stable offset. Raises as `produce`, for all if one fails.
        """
        found: dict[TopicPartition, int] = {}

        asked_s = asyncio.get_running_loop().time()

        async def once() -> None:
            reason: EngineError | None = None
            asked: dict[Address, dict[TopicPartition, ListOffsetsPartition]] = {}
            for topic_partition in [each for each in times if each not in found]:
                try:
                    leader = await self._leader(topic_partition, asked_s)
                except _TryAgain as again:
                    reason = again.reason
                    continue
                question = ListOffsetsPartition(times[topic_partition], leader.epoch)
                asked.setdefault(leader.address, {})[topic_partition] = question
            answers = await asyncio.gather(
                *(
                    self.ask(address, ListOffsetsRequest(CONSUMER, wanted, committed_only))
                    for address, wanted in asked.items()
                ),
                return_exceptions=True,
            )
            for answer in answers:
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
                raise _TryAgain(reason)

        await self._until_answered(once, "no leader answers", self._deadline(timeout))
        return found

    async def _of_leader(
        self,
        topic_partition: TopicPartition,
        body: Callable[[int], ProduceRequest | FetchRequest],
        deadline: float,
    ) -> Any:
        """The result for the one partition that is asked about; `body` is given the leader epoch."""

        asked_s = asyncio.get_running_loop().time()

        async def once() -> Any:
            leader = await self._leader(topic_partition, asked_s)
            try:
                answer = await self.ask(leader.address, body(leader.epoch))
            except RequestUnanswered as error:
                raise _TryAgain(error) from error
            assert isinstance(answer, ProduceResponse | FetchResponse)
            result: Any = answer.partitions[topic_partition]
            if result.error is ErrorCode.NONE:
                return result
            refusal = RequestRefused(result.error, getattr(result, "message", ""))
            if result.error not in PASSING:
                raise refusal
            raise _TryAgain(refusal)

        return await self._until_answered(once, "no leader answers", deadline)

    async def of_controller(self, body: RequestBody, *, timeout: float | None = None) -> ResponseBody:
        """What the controller answers; looked for until one is found, and then asked once.

        Raises `RequestUnanswered`: the request may have been served, look before asking again.
        """

        async def once() -> ResponseBody:
            try:
                metadata = await self.metadata()
            except RequestUnanswered:
                raise _TryAgain from None
            address = self._address_of(metadata, metadata.controller_id)
            answer = await self.ask(address, body) if address is not None else None
            if answer is None or _is_not_controller(answer):
                raise _TryAgain
            return answer

        return await self._until_answered(once, "no controller was found", self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._timeout_s if timeout is None else timeout)

    def _left(self, deadline: float) -> float:
        return max(deadline - asyncio.get_running_loop().time(), 0.0)

    async def _until_answered(
        self,
        once: Callable[[], Coroutine[Any, Any, T]],
        nobody: str,
        deadline: float,
        *,
        pause_s: float = _BACKOFF_S,
    ) -> T:
        """What one try comes to, of as many as there is time for; the reason of the last that had one."""
        last: EngineError = RequestUnanswered(nobody)
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    self.check()
                    try:
                        return await once()
                    except _TryAgain as again:
                        last = again.reason or last
                    self._metadata = None  # what is known of the cluster may be why
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            pass
        raise self._closed or last


class _TryAgain(Exception):
    """One try came to nothing that will last; `reason` is what to say if none comes to more."""

    def __init__(self, reason: EngineError | None = None) -> None:
        super().__init__()
        self.reason = reason


def _check(error_code: int, what: str) -> None:
    """Raise `_TryAgain` or `RequestRefused` for an error."""
    if error_code:
        refusal = RequestRefused(error_of(error_code), what)
        raise _TryAgain(refusal) if refusal.is_passing else refusal


def _decoded(result: FetchResult, position: int) -> tuple[list[Record], int]:
    """The records from `position` on, and where to read on."""
    found: list[Record] = []
    for batch in walk(result.records):
        batch.check_crc()
        if not batch.is_control:
            found += [record for record in batch.records() if record.offset >= position]
        position = max(position, batch.next_offset)
    return found, position


def _topics_of(metadata: MetadataResponse) -> dict[str, _Topic]:
    numbers: dict[str, list[int]] = {}
    for name, partition in metadata.partitions:
        numbers.setdefault(name, []).append(partition)
    return {
        name: _Topic(
            len(found),
            tuple(
                each for each in sorted(found) if metadata.partitions[TopicPartition(name, each)].leader >= 0
            ),
        )
        for name, found in numbers.items()
    }


def _is_led(metadata: MetadataResponse, topic: str) -> bool:
    """Whether every partition of the topic is known to have a leader."""
    states = [state for (name, _), state in metadata.partitions.items() if name == topic]
    return bool(states) and all(state.leader >= 0 for state in states)


def _age(metadata: MetadataResponse) -> int:
    """Nodes hear of changes one after the other; the one with the latest epochs knows most."""
    return sum(state.leader_epoch for state in metadata.partitions.values())


def _is_not_controller(answer: Any) -> bool:
    if getattr(answer, "error", ErrorCode.NONE) is ErrorCode.NOT_CONTROLLER:
        return True
    topics = getattr(answer, "topics", {})
    return bool(topics) and all(each.error is ErrorCode.NOT_CONTROLLER for each in topics.values())
