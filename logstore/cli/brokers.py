"""The brokers of a cluster, for one command: Kafka's admin requests, each sent once to the right broker."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from logstore.arguments import whole_number
from logstore.broker.connections import Connections
from logstore.broker.errors import (
    AuthenticationFailed,
    NotConnected,
    RequestFailed,
    RequestRefused,
    RequestUnanswered,
)
from logstore.broker.limits import Address, Limits, parse_address
from logstore.broker.security.client import ClientSecurity
from logstore.broker.security.tls_stream import NOT_TRUSTED
from logstore.broker.security.tokens import NO_TOKEN
from logstore.broker.translation import from_wire, to_wire
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.cli.operating import similar, value_of
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m

TIMEOUT_S: Final = 30.0
_PATIENCE_S: Final = 5.0
"""The time for a first sign of a bootstrap broker while there are others to ask."""
_TRIES: Final = 50
_PAUSE_S: Final = 0.1
_MOVING: Final = frozenset((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR))
"""Nothing was done."""


_CHANGES: Final = (
    "Alter",
    "Create",
    "Delete",
    "Elect",
    "Expire",
    "IncrementalAlter",
    "OffsetCommit",
    "OffsetDelete",
    "Renew",
    "WriteTxn",
)
"""How the requests begin that change something."""


class NoController(RequestUnanswered):
    """No broker is the controller, though those that answer were asked for a while."""


class Brokers:
    """Blocking requests. Each raises `RequestUnanswered`, or `RequestRefused` for an error of the answer."""

    def __init__(
        self, bootstrap: str, security: ClientSecurity | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Raises `typer.BadParameter` for an address that is none. Connects to nobody yet."""
        with value_of("--bootstrap", ValueError):
            self._bootstrap = [parse_address(each) for each in bootstrap.split(",")]
        self._first_answers = False
        self._is_secured = security is not None
        self._timeout_s = timeout_s
        self._looks_left = _TRIES
        self._runner = asyncio.Runner()
        self._connections = Connections(
            limits=Limits(), client_id="logstore", ways={}, check=lambda: None, security=security
        )

    def close(self) -> None:
        """Close all connections."""

        async def close() -> None:
            self._connections.close(None)
            await asyncio.sleep(0)

        self._runner.run(close())
        self._runner.close()

    def any(self, request: Struct, *, timeout_s: float = TIMEOUT_S, total_s: float = math.inf) -> Any:
        """Ask the first bootstrap broker that answers, for `total_s` in all. A wrong address fails at once.

        One that is silent, such as a paused process, is waited for once: from then on it is asked last.
        """
        failures: list[str] = []
        end_s = time.monotonic() + total_s
        for left in reversed(range(len(self._bootstrap))):
            address = self._bootstrap[0]
            left_s = end_s - time.monotonic()
            if failures and left_s <= 0:
                break
            try:
                if left and not self._first_answers:
                    # A short wait for a request that changes something could have it done twice.
                    self._ask(address, _no_topics(), min(_PATIENCE_S, left_s))
                answer = self._ask(address, request, min(timeout_s, left_s))
            except (AuthenticationFailed, RequestFailed):
                raise
            except RequestUnanswered as error:
                failures.append(str(error))
                self._bootstrap.append(self._bootstrap.pop(0))
                self._first_answers = False
            else:
                self._first_answers = True
                return answer
        text = f"no broker answers: {'; '.join(failures)}"
        if all(NOT_TRUSTED in each or NO_TOKEN in each for each in failures):  # the reason says what to check
            raise RequestUnanswered(text)
        advice = (
            "security.protocol in --command-config: it is that of the listener"
            if self._is_secured
            else "--command-config if the listener uses TLS or logins"
        )
        raise RequestUnanswered(f"{text}. Check --bootstrap, and {advice}")

    def metadata(self, topics: Sequence[str] | None = None) -> t.MetadataResponse:
        """Return the metadata of all topics, or of these. No topic is created."""
        named = None if topics is None else [t.MetadataRequestTopic(name=each) for each in topics]
        found: t.MetadataResponse = self.any(t.MetadataRequest(topics=named, allow_auto_topic_creation=False))
        return found

    def controller(
        self, request: Struct, *, timeout_s: float = TIMEOUT_S, patience_s: float = TIMEOUT_S
    ) -> Any:
        """Ask the controller; look for it again while it moves, or does not answer for `patience_s`.

        The brokers name a controller that has died until its session expires. A request that changes
        something is repeated only if it was not sent.
        """
        end_s = time.monotonic() + patience_s
        tries = 0
        if "timeout_ms" in request.FIELDS:
            request.timeout_ms = int(TIMEOUT_S * 1000)  # type: ignore[attr-defined]
        while True:
            metadata = self.metadata(())
            address = _addresses(metadata).get(metadata.controller_id)
            try:
                answer = None if address is None else self._ask(address, request, timeout_s)
            except (AuthenticationFailed, RequestFailed):
                raise
            except RequestUnanswered as error:
                is_harmless = isinstance(error, NotConnected) or not _changes_something(request)
                if not is_harmless or time.monotonic() >= end_s:
                    raise
            else:
                if answer is not None and ErrorCode.NOT_CONTROLLER not in _codes(answer):
                    return answer
                tries += 1
            if tries == _TRIES:
                raise NoController(
                    "the cluster has no controller; are most of its brokers, or the store, down?"
                )
            time.sleep(_PAUSE_S)

    def broker(self, broker_id: int, request: Struct, *, timeout_s: float | None = None) -> Any:
        """Ask one broker."""
        address = _addresses(self.metadata(())).get(broker_id)
        if address is None:
            raise RequestUnanswered(f"broker {broker_id} is not alive")
        return self._ask(address, request, timeout_s)

    def log_dirs(self, broker_id: int, *, timeout_s: float | None = None) -> t.DescribeLogDirsResponse:
        """Return the log dirs of a broker with their replicas."""
        request = t.DescribeLogDirsRequest(topics=None)
        answer: t.DescribeLogDirsResponse = self.broker(broker_id, request, timeout_s=timeout_s)
        check(answer.error_code, f"log dirs of broker {broker_id}")
        return answer

    def coordinator(self, group: str, request: Struct) -> Any:
        """Ask the coordinator of a group; look again while the first one is made, or it moves or loads.

        All requests of a command wait for 5 seconds together.
        """
        while True:
            found = self.any(t.FindCoordinatorRequest(key=group))
            if found.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE or not self._looks_left:
                check(found.error_code, f"group {group}", found.error_message)
                answer = self._ask(Address(found.host, found.port), request)
                if not self._looks_left or _MOVING.isdisjoint(_codes(answer)):
                    return answer
            self._pause()

    def groups_of(self, broker_id: int) -> t.ListGroupsResponse:
        """Return the groups of a coordinator. Ask again while it loads some, as `coordinator` does."""
        while True:
            answer: t.ListGroupsResponse = self.broker(broker_id, t.ListGroupsRequest())
            if not self._looks_left or answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                check(answer.error_code, f"groups of broker {broker_id}")
                return answer
            self._pause()

    def _pause(self) -> None:
        self._looks_left -= 1
        time.sleep(_PAUSE_S)

    def topics(self) -> dict[str, list[int]]:
        """Return all topics with their partitions."""
        return {
            topic.name: [each.partition_index for each in topic.partitions]
            for topic in self.metadata().topics
            if topic.name and not topic.error_code
        }

    def check_topics(self, names: Sequence[str]) -> None:
        """Raise `RequestRefused` for a topic that does not exist."""
        topics = self.topics() if names else {}
        for name in names:
            if name not in topics:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise RequestRefused(error, f"no topic {name}; {similar([name], topics)}")

    def partitions_named(self, names: Sequence[str]) -> list[TopicPartition]:
        """Return the partitions of topics, and single ones like `orders-0`. Raises `RequestRefused`."""
        topics = self.topics()
        found: set[TopicPartition] = set()
        for name in names:
            topic, _, number = name.rpartition("-")
            if name in topics:
                found |= {TopicPartition(name, each) for each in topics[name]}
            elif (partition := whole_number(number, 0)) is not None and partition in topics.get(topic, ()):
                found.add(TopicPartition(topic, partition))
            else:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise RequestRefused(error, f"no topic or partition {name}; {similar([name], topics)}")
        return sorted(found)

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Return partitions by their leader. Raises `RequestRefused` for one without a leader."""
        wanted = set(partitions)
        metadata = self.metadata(sorted({each.topic for each in wanted}))
        leaders = {
            TopicPartition(topic.name or "", each.partition_index): each.leader_id
            for topic in metadata.topics
            for each in topic.partitions
        }
        led: dict[int, list[TopicPartition]] = {}
        for each in sorted(wanted):
            if (leader := leaders.get(each)) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise RequestRefused(error, f"no partition {each}; `logstore topics list` shows all topics")
            if leader < 0:
                raise RequestRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"{each} has no leader")
            led.setdefault(leader, []).append(each)
        return led

    def offsets(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each time (-1 the end, -2 the start); None if there is none."""
        found: dict[TopicPartition, int | None] = {}
        for leader, partitions in self.leaders(times_ms).items():
            wanted = {each: m.ListOffsetsPartition(times_ms[each]) for each in partitions}
            request = to_wire(m.ListOffsetsRequest(m.CONSUMER_REPLICA_ID, wanted), t.ListOffsetsRequest)
            answer = from_wire(self.broker(leader, request), m.ListOffsetsResponse)
            for where, result in answer.partitions.items():
                check(result.error, str(where))
                found[where] = result.offset if result.offset >= 0 else None
        return found

    def _ask(self, address: Address, request: Struct, timeout_s: float | None = None) -> Any:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s

        async def once() -> Any:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._connections.ask_wire(address, request)
            except TimeoutError:
                raise RequestUnanswered(f"{address}: no answer in {timeout_s:.0f} s") from None

        try:
            return self._runner.run(once())
        except (NotConnected, AuthenticationFailed, RequestFailed):
            raise
        except RequestUnanswered as error:
            if not _changes_something(request):
                raise
            raise RequestUnanswered(
                f"{error}. The change may have been made, or may still be: look before you repeat it"
            ) from error


def _changes_something(request: Struct) -> bool:
    return type(request).__name__.startswith(_CHANGES)


def _no_topics() -> t.MetadataRequest:
    return t.MetadataRequest(topics=[], allow_auto_topic_creation=False)


_MEANINGS: Final = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is below the log start offset or above the high watermark; "
    "`logstore offsets` shows both",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "no such topic or partition; `logstore topics list` shows all",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic is internal, or its name is not valid",
    ErrorCode.BROKER_NOT_AVAILABLE: "no such broker is registered; `logstore brokers list` shows all",
    ErrorCode.GROUP_ID_NOT_FOUND: "no such group; `logstore groups list` shows all",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop its consumers first",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer has written with a newer epoch since; "
    "`logstore producers` shows it",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a newer coordinator has ended a transaction of this producer "
    "since; `logstore producers` shows it",
    **{
        error: f"the user lacks a permission on the {what}; `logstore acls add --{option}` gives it, by a "
        "user that may"
        for error, what, option in (
            (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "cluster", "cluster"),
            (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic", "topic"),
            (ErrorCode.GROUP_AUTHORIZATION_FAILED, "group", "group"),
            (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id", "transactional-id"),
        )
    },
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "the user may not create tokens for another user, or "
    "may not describe this token; `logstore acls add --user-principal` or `--delegation-token` permits it",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only its owner and its renewers may renew or expire it; a "
    "super user may not",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the brokers make no tokens without the setting "
    "delegation.token.secret.key",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "tokens are for users who log in otherwise: give a "
    "--command-config with a password or a certificate",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no broker coordinates the group now; try again. If no group ever "
    "committed an offset, there is none to show",
}
"""Explanations of error codes, for answers without a message, and for denials."""


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise `RequestRefused` for an error code, with the broker's own words if they tell more than it."""
    if code:
        error = ErrorCode(code)
        # A broker's message may begin with the name of the code, which is said already.
        message = (message or "").removeprefix(f"{error.name}: ")
        if not message or error.name.endswith("_AUTHORIZATION_FAILED"):
            message = _MEANINGS.get(error)
        raise RequestRefused(error, f"{what}: {message}" if message else what)


def _addresses(metadata: t.MetadataResponse) -> dict[int, Address]:
    return {each.node_id: Address(each.host, each.port) for each in metadata.brokers}


def _codes(answer: Any) -> list[int]:
    """Return the error codes of those who are not in charge: at the top, or for each item."""
    items = [
        item
        for name in ("topics", "responses", "results", "replica_election_results", "groups")
        for item in getattr(answer, name, None) or ()
    ]
    return [getattr(each, "error_code", 0) for each in (answer, *items)]
