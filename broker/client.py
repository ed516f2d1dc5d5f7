"""A client of the nodes: finds leaders, sends again where that is safe to do.

    async with Client([Address("127.0.0.1", 9092)]) as client:
        producer = Producer(client, TopicPartition("orders", 0), producer_id=7)
        offset = await producer.send([b"a", b"b"])
        result = await client.fetch(TopicPartition("orders", 0), offset)

What is retried is retried until `timeout_s` is over: refusals that pass by themselves (no leader, a leader
that moved, too few replicas in sync) and requests that were not answered. A produce that was not answered
may have been served: sent again, it is written twice, unless its batches have a producer id and sequence
numbers, by which the log knows them. `Producer` gives them those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

from broker.client_messages import request_of, response_of
from broker.errors import MalformedMessage, RequestUnanswered
from broker.frames import shared_scratch
from broker.limits import Address, Limits
from broker.links import Link
from broker.wire.apis import API_OF
from broker.wire.declarations import Struct
from checkpoint.clock import wall_clock_ms
from checkpoint.errors import EngineError, ErrorCode
from checkpoint.topic_partition import TopicPartition
from logstore.batch import encode_batch
from logstore.record import Record
from replication.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
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
_MAX_BYTES = 1 << 20
_BACKOFF_S = 0.05
_MOST_ADDRESSES = 32
_METADATA_TIMEOUT_S = 1.0

PASSING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Refusals that may be over when the leader is looked up again."""


class RequestRefused(EngineError):
    """A node's refusal, which another try would not change; or the last one before time was up."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, error: ErrorCode, message: str = "") -> None:
        super().__init__(f"{error.name}: {message}" if message else error.name)
        self.error = error


class Client:
    """Talks to whichever nodes are needed. Belongs to one event loop."""

    def __init__(
        self, bootstrap: Sequence[Address], *, limits: Limits | None = None, timeout_s: float = 60.0
    ) -> None:
        """`bootstrap` are nodes to begin with; the others are learned from them."""
        self._addresses = dict.fromkeys(bootstrap)
        """where nodes are or were, those that were heard of last in front"""
        self._limits = limits or Limits()
        self._timeout_s = timeout_s
        self._links: dict[tuple[Address, type[Any]], Link] = {}
        self._scratch: memoryview | None = None
        self._metadata: MetadataResponse | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up everywhere. What was not answered raises `RequestUnanswered`."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        await asyncio.sleep(0)

    # --- one request --------------------------------------------------------------------------

    async def ask(self, address: Address, body: RequestBody) -> ResponseBody:
        """Send one request once; one with acks=0 is over when it is sent. Raises `RequestUnanswered`."""
        # A connection for each kind of request: a fetch may wait long, and holds up what is behind it.
        lane = address, type(body)
        link = self._links.get(lane)
        if link is None:
            if not self._links:
                self._scratch = shared_scratch(asyncio.get_running_loop())
            link = Link(address, client_id=_CLIENT_ID, limits=self._limits, scratch=self._scratch)
            self._links[lane] = link
        request = request_of(body)
        version = API_OF[type(request)].latest
        if isinstance(body, ProduceRequest) and body.acks == 0:
            link.ask(request, version, None)
            return ProduceResponse({each: ProduceResult(ErrorCode.NONE) for each in body.records})
        waiting: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()

        def answered(answer: Struct | RequestUnanswered) -> None:
            if waiting.done():
                return
            if isinstance(answer, RequestUnanswered):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

        link.ask(request, version, answered)
        try:
            return response_of(await waiting)
        except MalformedMessage as error:
            raise RequestUnanswered(f"{address} answers what cannot be: {error}") from error

    # --- finding ------------------------------------------------------------------------------

    async def metadata(self, topics: tuple[str, ...] | None = None) -> MetadataResponse:
        """What the node knows that has heard most. Raises `RequestUnanswered` if none answers."""
        answers = await asyncio.gather(*(self._metadata_of(address, topics) for address in self._addresses))
        newest = max((answer for answer in answers if answer is not None), key=_age, default=None)
        if newest is None:
            raise RequestUnanswered("no node answers")
        live = dict.fromkeys(Address(each.host, each.port) for each in newest.brokers)
        self._addresses = dict.fromkeys([*live, *self._addresses][:_MOST_ADDRESSES])
        self._metadata = newest
        return newest

    async def _metadata_of(
        self, address: Address, topics: tuple[str, ...] | None
    ) -> MetadataResponse | None:
        try:
            async with asyncio.timeout(_METADATA_TIMEOUT_S):
                answer = await self.ask(address, MetadataRequest(topics))
        except (RequestUnanswered, TimeoutError):
            return None
        assert isinstance(answer, MetadataResponse), "the link checks the kind"
        return answer

    async def _address_of_leader(self, topic_partition: TopicPartition) -> Address | None:
        metadata = self._metadata or await self.metadata()
        state = metadata.partitions.get(topic_partition)
        return self._address_of(metadata, state.leader) if state is not None else None

    @staticmethod
    def _address_of(metadata: MetadataResponse, broker_id: int) -> Address | None:
        return next(
            (Address(each.host, each.port) for each in metadata.brokers if each.broker_id == broker_id), None
        )

    # --- requests that are tried again --------------------------------------------------------

    async def produce(
        self, topic_partition: TopicPartition, batch: bytes, *, acks: int = ACKS_ALL
    ) -> ProduceResult:
        """Have one batch appended. Raises `RequestRefused`, and `RequestUnanswered` if time runs out."""
        # The leader gives up first: its word says more than a connection that broke.
        timeout_ms = self._limits.request_timeout_ms // 2
        body = ProduceRequest({topic_partition: batch}, acks, timeout_ms)
        answer = await self._of_leader(topic_partition, body)
        assert isinstance(answer, ProduceResult)
        return answer

    async def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int = _MAX_BYTES,
        max_wait_ms: int = 500,
    ) -> FetchResult:
        """Read committed batches from `offset` on, none if there are none in time. Raises as `produce`."""
        wanted = FetchPartition(offset, max_bytes)
        body = FetchRequest(CONSUMER, max_wait_ms, 1, max_bytes, {topic_partition: wanted})
        answer = await self._of_leader(topic_partition, body)
        assert isinstance(answer, FetchResult)
        return answer

    async def offset(self, topic_partition: TopicPartition, timestamp: int) -> int:
        """The offset by time; -1 for the end of what is committed, -2 for the start. Raises as `produce`."""
        body = ListOffsetsRequest(CONSUMER, {topic_partition: ListOffsetsPartition(timestamp)})
        answer: Any = await self._of_leader(topic_partition, body)
        found: int = answer.offset
        return found

    async def _of_leader(
        self, topic_partition: TopicPartition, body: ProduceRequest | FetchRequest | ListOffsetsRequest
    ) -> Any:
        """The result for the one partition that is asked about."""

        async def once() -> Any:
            try:
                address = await self._address_of_leader(topic_partition)
                answer = await self.ask(address, body) if address is not None else None
            except RequestUnanswered as error:
                raise _TryAgain(error) from error
            if answer is None:
                raise _TryAgain
            assert isinstance(answer, ProduceResponse | FetchResponse | ListOffsetsResponse)
            result: Any = answer.partitions[topic_partition]
            if result.error is ErrorCode.NONE:
                return result
            refusal = RequestRefused(result.error, getattr(result, "message", ""))
            if result.error not in PASSING:
                raise refusal
            raise _TryAgain(refusal)

        return await self._until_answered(once, f"nobody is known to lead {topic_partition}")

    async def of_controller(self, body: RequestBody) -> ResponseBody:
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

        return await self._until_answered(once, "no controller was found")

    async def _until_answered(self, once: Callable[[], Coroutine[Any, Any, T]], nobody: str) -> T:
        """What one try comes to, of as many as there is time for; the reason of the last that had one."""
        last: EngineError = RequestUnanswered(nobody)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while asyncio.get_running_loop().time() < deadline:
            try:
                return await once()
            except _TryAgain as again:
                last = again.reason or last
            self._metadata = None  # what is known of the cluster may be why
            await asyncio.sleep(_BACKOFF_S)
        raise last


class _TryAgain(Exception):
    """One try came to nothing that will last; `reason` is what to say if none comes to more."""

    def __init__(self, reason: EngineError | None = None) -> None:
        super().__init__()
        self.reason = reason


def _age(metadata: MetadataResponse) -> int:
    """Nodes hear of changes one after the other; the one with the latest epochs knows most."""
    return sum(state.leader_epoch for state in metadata.partitions.values())


def _is_not_controller(answer: Any) -> bool:
    if getattr(answer, "error", ErrorCode.NONE) is ErrorCode.NOT_CONTROLLER:
        return True
    topics = getattr(answer, "topics", {})
    return bool(topics) and all(each.error is ErrorCode.NOT_CONTROLLER for each in topics.values())


class Producer:
    """Writes to one partition exactly once: batches carry sequence numbers, one is under way at a time."""

    def __init__(
        self, client: Client, topic_partition: TopicPartition, *, producer_id: int, producer_epoch: int = 0
    ) -> None:
        """`producer_id` is this producer's alone for the partition; nobody gives them out yet."""
        self._client, self._topic_partition = client, topic_partition
        self._producer_id, self._producer_epoch = producer_id, producer_epoch
        self._next_sequence = 0

    async def send(
        self, values: Sequence[bytes], *, acks: int = ACKS_ALL, timestamp_ms: int | None = None
    ) -> int:
        """Have one record a value appended, in order; the first one's offset. Their time is now by default.

        Raises as `Client.produce`; send the same values again then, or stop: any others would leave a gap.
        """
        time_ms = wall_clock_ms() if timestamp_ms is None else timestamp_ms
        batch = encode_batch(
            [Record(number, time_ms, None, value) for number, value in enumerate(values)],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._next_sequence,
        )
        result = await self._client.produce(self._topic_partition, batch, acks=acks)
        self._next_sequence = (self._next_sequence + len(values)) % 2**31
        return result.base_offset


class BlockingClient:
    """A `Client` for programs without an event loop: the same calls, each of which waits."""

    def __init__(
        self, bootstrap: Sequence[Address], *, limits: Limits | None = None, timeout_s: float = 60.0
    ) -> None:
        self._runner = asyncio.Runner()
        self._client = Client(bootstrap, limits=limits, timeout_s=timeout_s)

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._wait(self._client.close())
        self._runner.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def metadata(self, topics: tuple[str, ...] | None = None) -> MetadataResponse:
        return self._wait(self._client.metadata(topics))

    def produce(
        self, topic_partition: TopicPartition, batch: bytes, *, acks: int = ACKS_ALL
    ) -> ProduceResult:
        return self._wait(self._client.produce(topic_partition, batch, acks=acks))

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int = _MAX_BYTES,
        max_wait_ms: int = 500,
    ) -> FetchResult:
        return self._wait(
            self._client.fetch(topic_partition, offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        )

    def of_controller(self, body: RequestBody) -> ResponseBody:
        return self._wait(self._client.of_controller(body))
