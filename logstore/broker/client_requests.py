"""A client's requests, by whom is asked: a partition's leader, the controller, a group's coordinator.

Each attempt looks at the `ClusterView`, which repeats attempts until a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from logstore.broker.client_messages import is_not_controller
from logstore.broker.cluster_view import ClusterView, address_of, is_led
from logstore.broker.errors import (
    MAY_BE_WRITTEN,
    PASSING,
    SEQUENCE_LOST,
    NotConnected,
    RequestRefused,
    RequestUnanswered,
)
from logstore.broker.groups import requests as g
from logstore.broker.limits import Address
from logstore.broker.receipts import LEVELS, LONGEST_LOOK_MS
from logstore.broker.retrying import NO_BROKER, TryAgain, check_code, left_s, or_again
from logstore.broker.translation import to_wire
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchRequest,
    FetchResponse,
    MetadataResponse,
    NewTopic,
    ProduceRequest,
    ProduceResponse,
    RequestBody,
    ResponseBody,
)
from logstore.replication.receipts import Receipt

NO_LEADER: Final = "no leader answers"
_DELETION_MS: Final = 5000
"""How long a leader waits for the replicas; then the client asks again."""
_METADATA_SPREADS_S: Final = 0.005
"""Pause between looks at every broker's metadata after a change of topics."""

# --- the leader -----------------------------------------------------------------------------------------


async def ask_leader(
    cluster: ClusterView,
    topic_partition: TopicPartition,
    body: Callable[[int], ProduceRequest | FetchRequest],
    deadline: float,
    what: str,
) -> Any:
    """Return the leader's result for one partition; `body` is called with the leader epoch.

    Raises `RequestRefused`, and `RequestUnanswered`: also for a batch that is refused after an attempt that
    may have appended it, because that refusal does not tell whether it is in the log.
    """
    asked_s = asyncio.get_running_loop().time()
    in_doubt: EngineError | None = None

    async def once() -> Any:
        nonlocal in_doubt
        leader = await cluster.leader(topic_partition, asked_s)
        try:
            answer = await cluster.connections.ask(leader.address, body(leader.epoch))
        except RequestUnanswered as error:
            in_doubt = in_doubt if isinstance(error, NotConnected) else error
            raise TryAgain(error) from error
        assert isinstance(answer, ProduceResponse | FetchResponse)
        result: Any = answer.partitions[topic_partition]
        if result.error is ErrorCode.NONE:
            return result
        refusal = RequestRefused(result.error, getattr(result, "message", "") or what)
        if result.error in PASSING:
            in_doubt = refusal if result.error in MAY_BE_WRITTEN else in_doubt
            raise TryAgain(refusal)
        if in_doubt is None or result.error in SEQUENCE_LOST or isinstance(answer, FetchResponse):
            raise refusal
        raise RequestUnanswered(f"{in_doubt}; sent again, the records were refused: {refusal}") from refusal

    return await cluster.retried(once, NO_LEADER, deadline)


def ask_receipt(
    cluster: ClusterView,
    topic_partition: TopicPartition,
    offset: int,
    *,
    level: Durability = Durability.REPLICATED,
    copies: int = 0,
) -> Callable[..., Coroutine[Any, Any, Receipt]]:
    """Return a question for the receipt of a record, which may be asked again and again.

    With `copies` it waits for them up to its `max_wait_ms`. The partition may be new when the question is
    made, not when it is repeated. An answer raises `TryAgain`, and `RequestRefused`: OFFSET_OUT_OF_RANGE (1)
    for a record that is deleted or not written yet, INVALID_REQUEST (42) for what this topic cannot prove,
    UNSUPPORTED_VERSION (35) if the leader is no broker of ours.
    """
    asked_s = asyncio.get_running_loop().time()

    async def once(*, max_wait_ms: int = 0) -> Receipt:
        question = t.ListOffsetsRequestListOffsetsPartition(
            partition_index=topic_partition.partition,
            timestamp=-1,
            receipt_offset=offset,
            receipt_level=LEVELS.index(level),
            receipt_copies=copies,
            receipt_wait_ms=min(max_wait_ms, LONGEST_LOOK_MS),
        )
        topic = t.ListOffsetsRequestListOffsetsTopic(name=topic_partition.topic, partitions=[question])
        leader = await cluster.leader(topic_partition, asked_s)
        request = t.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
        with or_again():
            answer = await cluster.connections.ask_wire(leader.address, request)
        assert isinstance(answer, t.ListOffsetsResponse), "the link checks the type"
        found = answer.topics[0].partitions[0]
        if found.error_code:
            refusal = RequestRefused(ErrorCode(found.error_code), found.receipt_message)
            raise TryAgain(refusal) if refusal.is_passing else refusal
        if not found.receipt_replicas:
            why = f"the leader of {topic_partition} gives no receipts; only brokers of logstore do"
            raise RequestRefused(ErrorCode.UNSUPPORTED_VERSION, why)
        return Receipt(
            offset,
            found.receipt_replicas,
            found.receipt_written_on,
            found.receipt_synced_on,
            found.receipt_is_committed,
        )

    return once


def delete_before(
    cluster: ClusterView, topic_partition: TopicPartition, offset: int, deadline: float
) -> Callable[[], Coroutine[Any, Any, int]]:
    """Return a request to delete the records below `offset`; its answer is the new log start.

    It raises `TryAgain`, and `RequestRefused`.
    """
    asked_s = asyncio.get_running_loop().time()
    index = topic_partition.partition
    partition = t.DeleteRecordsRequestDeleteRecordsPartition(partition_index=index, offset=offset)
    topic = t.DeleteRecordsRequestDeleteRecordsTopic(name=topic_partition.topic, partitions=[partition])

    async def once() -> int:
        # The leader answers before this call gives up: until then it serves nothing else on the connection.
        request = t.DeleteRecordsRequest(
            topics=[topic], timeout_ms=min(_DELETION_MS, int(left_s(deadline) * 900))
        )
        leader = await cluster.leader(topic_partition, asked_s)
        with or_again():
            answer: Any = await cluster.connections.ask_wire(leader.address, request)
        found = answer.topics[0].partitions[0]
        check_code(found.error_code, f"deletion of records of {topic_partition} below {offset}")
        start: int = found.low_watermark
        return start

    return once


# --- the controller -------------------------------------------------------------------------------------


async def ask_controller(cluster: ClusterView, body: RequestBody, deadline: float) -> ResponseBody:
    """Send a request to the controller, once, when one has been found. Raises `RequestUnanswered`."""

    async def once() -> ResponseBody:
        with or_again():
            metadata = await cluster.of_controller()
        address = address_of(metadata, metadata.controller_id)
        answer = await cluster.connections.ask(address, body) if address is not None else None
        if answer is None or is_not_controller(answer):
            raise TryAgain
        return answer

    return await cluster.retried(once, "no controller was found", deadline)


async def make_topic(cluster: ClusterView, new: NewTopic, deadline: float) -> None:
    """Create a topic and wait until every broker knows its leaders. Raises as `Client.create_topic`."""
    request = CreateTopicsRequest((new,))
    await _carried_out(cluster, request, new.name, ErrorCode.TOPIC_ALREADY_EXISTS, deadline)
    await _known(
        cluster,
        new.name,
        lambda found: is_led(found, new.name),
        f"not every broker knows the leaders of {new.name} yet",
        deadline,
    )


async def remove_topic(cluster: ClusterView, topic: str, deadline: float) -> None:
    """Delete a topic and wait until no broker lists it. Raises as `Client.delete_topic`."""
    request, gone = DeleteTopicsRequest((topic,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await _carried_out(cluster, request, topic, gone, deadline)
    await _known(
        cluster,
        topic,
        lambda found: not any(name == topic for name, _ in found.partitions),
        f"not every broker knows yet that {topic} is deleted",
        deadline,
    )


async def _carried_out(
    cluster: ClusterView,
    request: CreateTopicsRequest | DeleteTopicsRequest,
    topic: str,
    done_before: ErrorCode,
    deadline: float,
) -> None:
    """Ask until there is an answer; after a lost one, `done_before` means that the lost request did it."""
    was_lost = False
    while True:
        try:
            answer = await ask_controller(cluster, request, deadline)
        except RequestUnanswered as error:
            is_final = not error.retriable or cluster.connections.closed is not None
            if is_final or not left_s(deadline):
                raise
            was_lost = True
            continue
        assert isinstance(answer, CreateTopicsResponse | DeleteTopicsResponse)
        result = answer.topics[topic]
        is_deletion = isinstance(answer, DeleteTopicsResponse)
        if (
            result.error is ErrorCode.NONE
            or (was_lost and result.error is done_before)
            or (is_deletion and result.error is ErrorCode.REQUEST_TIMED_OUT)  # recorded, and continues
        ):
            return
        raise RequestRefused(result.error, result.message or f"topic {topic}")


async def _known(
    cluster: ClusterView,
    topic: str,
    is_known: Callable[[MetadataResponse], bool],
    waiting: str,
    deadline: float,
) -> None:
    """Wait until `is_known` holds for the topic's metadata of every broker."""

    async def once() -> None:
        answers = await cluster.ask_all((topic,))
        if not answers or not all(is_known(answer) for answer in answers):
            raise TryAgain(RequestUnanswered(waiting))

    await cluster.retried(once, NO_BROKER, deadline, pause_s=_METADATA_SPREADS_S)


# --- the coordinator of a group -------------------------------------------------------------------------


def commit_request(group: str, offsets: Mapping[TopicPartition, int]) -> t.OffsetCommitRequest:
    partitions = {
        each: g.OffsetCommitPartition(committed_offset=offset, committed_metadata="")
        for each, offset in offsets.items()
    }
    return to_wire(g.OffsetCommitRequest(group_id=group, partitions=partitions), t.OffsetCommitRequest)


def committed_request(group: str, partitions: Sequence[TopicPartition]) -> t.OffsetFetchRequest:
    request = to_wire(g.OffsetFetchGroup(group, tuple(partitions)), t.OffsetFetchRequest)
    request.require_stable = True
    return request


def offsets_in(answer: t.OffsetFetchResponse) -> dict[TopicPartition, int]:
    """Return the committed offsets of an answer, without the partitions that have none."""
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


async def ask_coordinator(
    cluster: ClusterView, group: str, request: t.OffsetCommitRequest | t.OffsetFetchRequest
) -> Any:
    """Find the group's coordinator, and ask it. Raises `TryAgain`, and `RequestRefused` for any error."""
    found = await cluster.ask_any(t.FindCoordinatorRequest(key=group), t.FindCoordinatorResponse)
    check_code(found.error_code, f"no coordinator of group {group}")
    with or_again():
        answer: Any = await cluster.connections.ask_wire(Address(found.host, found.port), request)
    check_code(getattr(answer, "error_code", 0), f"offsets of group {group}")
    for topic in answer.topics:
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition_index)
            check_code(each.error_code, f"offset of group {group} for {where}")
    return answer
