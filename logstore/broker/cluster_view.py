"""A client's view of a cluster: addresses of brokers, topics, and the leaders of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from logstore.broker.connections import Connections
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.limits import Address
from logstore.broker.retrying import BACKOFF_S, NO_BROKER, TryAgain, or_again, retried
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import MetadataRequest, MetadataResponse

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

_MOST_ADDRESSES: Final = 32
_METADATA_TIMEOUT_S: Final = 1.0
_METADATA_AGE_S: Final = 300.0
NEW_TOPIC_S: Final = 3.0
"""Time during which an unknown topic is looked for again: it may just have been created."""


class Topic(NamedTuple):
    """A topic's partition count; `with_leader` lists the partitions that have a leader."""

    partitions: int
    with_leader: tuple[int, ...]


class Leader(NamedTuple):
    """A leader's address and leader epoch; a deposed leader refuses a request with a newer epoch."""

    address: Address
    epoch: int


class ClusterView:
    """Metadata of a cluster, refreshed when a request fails."""

    def __init__(self, bootstrap: Sequence[Address], connections: Connections) -> None:
        self.connections = connections
        self._addresses = dict.fromkeys(bootstrap)
        """Known addresses of brokers, current or former; the most recent ones first."""
        self._metadata: MetadataResponse | None = None
        self._topics: dict[str, Topic] = {}
        self._topics_until_s = 0.0

    def __str__(self) -> str:
        """The address of the broker that is asked first."""
        return str(next(iter(self._addresses), ""))

    def begin_at(self, address: Address) -> None:
        """Ask this broker first, and the others that it names."""
        self._addresses = {address: None}

    async def metadata(self, topics: tuple[str, ...] | None = None) -> MetadataResponse:
        """Return the metadata of the best informed broker. Raises `RequestUnanswered` if none answers."""
        newest = self._best_of(await self.ask_all(topics))
        if topics is None:
            self._metadata = newest
            self._topics_until_s = asyncio.get_running_loop().time() + _METADATA_AGE_S
            self._topics = _topics_of(newest)
        return newest

    async def of_controller(self) -> MetadataResponse:
        """Return metadata that names the controller. Raises as `metadata`.

        It has no topics if all brokers name the same one. Otherwise only they tell which broker knows better.
        """
        answers = await self.ask_all(())
        if len({answer.controller_id for answer in answers}) == 1:
            return self._best_of(answers)
        return await self.metadata()

    def _best_of(self, answers: Sequence[MetadataResponse]) -> MetadataResponse:
        """Return the answer of the best informed broker, and note the addresses in it."""
        newest = max(answers, key=_knowledge, default=None)
        if newest is None:
            failures = self.connections.failures
            reasons = [failures.get(each, f"{each} gave no metadata in time") for each in self._addresses]
            raise self.connections.closed or RequestUnanswered(f"{NO_BROKER}: {'; '.join(reasons)}")
        live = dict.fromkeys(Address(each.host, each.port) for each in newest.brokers)
        self._addresses = dict.fromkeys([*live, *self._addresses][:_MOST_ADDRESSES])
        return newest

    async def refreshed(self) -> MetadataResponse:
        """Return fresh metadata as one attempt: raises `TryAgain` if no broker answers."""
        with or_again():
            return await self.metadata()

    async def ask_all(self, topics: tuple[str, ...] | None) -> list[MetadataResponse]:
        """Return the metadata of every broker that answers."""
        answers = await asyncio.gather(*(self._metadata_of(address, topics) for address in self._addresses))
        return [answer for answer in answers if answer is not None]

    async def _metadata_of(self, address: Address, topics: tuple[str, ...] | None) -> MetadataResponse | None:
        try:
            async with asyncio.timeout(_METADATA_TIMEOUT_S):
                answer = await self.connections.ask(address, MetadataRequest(topics))
        except TimeoutError:
            return None
        except RequestUnanswered as error:
            if not error.retriable:
                raise
            return None
        assert isinstance(answer, MetadataResponse), "the link checks the type"
        # A broker that knows no brokers, not even itself, has just started and knows no topics either.
        return answer if answer.brokers else None

    async def topics(self, deadline: float) -> dict[str, Topic]:
        """Return all topics from fresh metadata."""
        await self.retried(self.refreshed, NO_BROKER, deadline)
        return self._topics

    async def topic(self, name: str, deadline: float) -> Topic:
        """Return a topic; an unknown one is looked for during `NEW_TOPIC_S`."""
        loop = asyncio.get_running_loop()
        self.connections.check_loop()
        if name in self._topics and loop.time() < self._topics_until_s:
            return self._topics[name]

        async def attempt() -> Topic:
            await self.refreshed()
            if name not in self._topics:
                unknown = f"topic {name} does not exist; create it with create_topic"
                raise TryAgain(RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown))
            return self._topics[name]

        return await self.retried(attempt, NO_BROKER, min(deadline, loop.time() + NEW_TOPIC_S))

    async def leader(self, topic_partition: TopicPartition, asked_s: float) -> Leader:
        """Return the current leader; an unknown partition may have been created just before `asked_s`.

        Raises `TryAgain` without a leader, and `RequestRefused` if the partition still does not exist.
        """
        metadata = self._metadata or await self.refreshed()
        state = metadata.partitions.get(topic_partition)
        if state is None:
            unknown = RequestRefused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic_partition} does not exist"
            )
            is_new = asyncio.get_running_loop().time() < asked_s + NEW_TOPIC_S
            raise TryAgain(unknown) if is_new else unknown
        address = address_of(metadata, state.leader)
        if address is None:
            in_sync = ", ".join(map(str, state.isr)) or "none"
            raise TryAgain(
                RequestUnanswered(
                    f"{topic_partition} has no leader: none of the brokers in its ISR ({in_sync}) is up with "
                    "a working log dir; start them, and first repair a disk that has failed"
                )
            )
        return Leader(address, state.leader_epoch)

    async def ask_any(self, request: Struct, kind: type[S]) -> S:
        """Send a request to one broker, as one attempt; the next attempt asks another one.

        `kind` is the type of the answer.
        """
        if not self._addresses:
            raise TryAgain
        address = next(iter(self._addresses))
        try:
            answer = await self.connections.ask_wire(address, request)
        except RequestUnanswered as error:
            self._addresses[address] = self._addresses.pop(address)
            raise TryAgain(error) from error
        assert isinstance(answer, kind), "the link checks the type"
        return answer

    async def retried(
        self,
        attempt: Callable[[], Coroutine[Any, Any, T]],
        unanswered: str,
        deadline: float,
        *,
        pause_s: float = BACKOFF_S,
    ) -> T:
        """Repeat an attempt until `deadline`; each failure makes the next one refresh the metadata."""

        def forget() -> None:
            self._metadata = None

        check = self.connections.check
        return await retried(attempt, unanswered, deadline, check=check, failed=forget, pause_s=pause_s)


def address_of(metadata: MetadataResponse, broker_id: int) -> Address | None:
    """Return the address of a broker; None if the metadata does not have it."""
    return next(
        (Address(each.host, each.port) for each in metadata.brokers if each.broker_id == broker_id), None
    )


def is_led(metadata: MetadataResponse, topic: str) -> bool:
    """Return whether the topic exists and all its partitions have a leader."""
    states = [state for (name, _), state in metadata.partitions.items() if name == topic]
    return bool(states) and all(state.leader >= 0 for state in states)


def _topics_of(metadata: MetadataResponse) -> dict[str, Topic]:
    leaders: dict[str, dict[int, int]] = {}
    for (name, partition), state in metadata.partitions.items():
        leaders.setdefault(name, {})[partition] = state.leader
    return {
        name: Topic(len(found), tuple(each for each in sorted(found) if found[each] >= 0))
        for name, found in leaders.items()
    }


def _knowledge(metadata: MetadataResponse) -> int:
    """Return the sum of leader epochs; the largest sum belongs to the newest metadata."""
    return sum(state.leader_epoch for state in metadata.partitions.values())
