"""Receipts from brokers elsewhere: ListOffsets carries them in tagged fields that Kafka skips.

    request     partition, tags 10000…   the record's offset, the level and copies to wait for, milliseconds
    response    partition, tags 10000…   replicas, written_on, synced_on, is_committed

The leader answers at once, or as soon as the receipt proves what was asked for, within `LONGEST_LOOK_MS`: the
connection serves others in between. A wait is a row of such looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.retrying import TryAgain
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.replication.durability import Durability
from logstore.replication.receipts import Receipt

if TYPE_CHECKING:
    from logstore.broker.cluster_view import ClusterView
    from logstore.broker.connections import Connections
    from logstore.broker.receipts import Receipts

LONGEST_LOOK_MS: Final = 500
_LEVELS: Final = tuple(Durability)


# --- the client ---------------------------------------------------------------------------------


def ask_receipt(
    cluster: ClusterView,
    connections: Connections,
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
            receipt_level=_LEVELS.index(level),
            receipt_copies=copies,
            receipt_wait_ms=min(max_wait_ms, LONGEST_LOOK_MS),
        )
        topic = t.ListOffsetsRequestListOffsetsTopic(name=topic_partition.topic, partitions=[question])
        leader = await cluster.leader(topic_partition, asked_s)
        request = t.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
        try:
            answer = await connections.ask_wire(leader.address, request)
        except RequestUnanswered as error:
            raise TryAgain(error) from error
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


# --- the broker -----------------------------------------------------------------------------------


async def answer_receipts(body: t.ListOffsetsRequest, receipts: Receipts) -> t.ListOffsetsResponse:
    """Answer a request that asks for receipts, each partition for itself."""

    by_topic: dict[str, list[t.ListOffsetsRequestListOffsetsPartition]] = {}
    for each in body.topics:
        by_topic.setdefault(each.name, []).extend(each.partitions)

    async def answered(
        topic: str, wanted: list[t.ListOffsetsRequestListOffsetsPartition]
    ) -> t.ListOffsetsResponseListOffsetsTopicResponse:
        looks = (_answer(TopicPartition(topic, each.partition_index), each, receipts) for each in wanted)
        partitions = list(await asyncio.gather(*looks))
        return t.ListOffsetsResponseListOffsetsTopicResponse(name=topic, partitions=partitions)

    return t.ListOffsetsResponse(topics=list(await asyncio.gather(*starmap(answered, by_topic.items()))))


async def _answer(
    topic_partition: TopicPartition, wanted: t.ListOffsetsRequestListOffsetsPartition, receipts: Receipts
) -> t.ListOffsetsResponseListOffsetsPartitionResponse:
    made = t.ListOffsetsResponseListOffsetsPartitionResponse(
        partition_index=topic_partition.partition, error_code=int(ErrorCode.NONE)
    )
    try:
        receipt = await _receipt(topic_partition, wanted, receipts)
    except ValueError as error:
        made.error_code, made.receipt_message = int(ErrorCode.INVALID_REQUEST), str(error)
    except EngineError as error:
        made.error_code, made.receipt_message = int(error.code), str(error)
    else:
        made.receipt_replicas, made.receipt_written_on = receipt.replicas, receipt.written_on
        made.receipt_synced_on, made.receipt_is_committed = receipt.synced_on, receipt.is_committed
    return made


async def _receipt(
    topic_partition: TopicPartition, wanted: t.ListOffsetsRequestListOffsetsPartition, receipts: Receipts
) -> Receipt:
    offset = wanted.receipt_offset
    if not wanted.receipt_copies:
        return receipts.of(topic_partition, offset)
    if not 0 <= wanted.receipt_level < len(_LEVELS):
        raise ValueError(f"no durability level has the number {wanted.receipt_level}")
    wait_s = min(max(wanted.receipt_wait_ms, 0), LONGEST_LOOK_MS) / 1000
    try:
        async with asyncio.timeout(wait_s):
            level = _LEVELS[wanted.receipt_level]
            return await receipts.wait_for(topic_partition, offset, level, wanted.receipt_copies)
    except TimeoutError:
        try:
            return receipts.of(topic_partition, offset)
        except OffsetOutOfRange as error:
            if offset < error.log_end_offset:
                raise
            # Not written yet: a receipt that proves nothing.
            return receipts.nothing(topic_partition, offset)
