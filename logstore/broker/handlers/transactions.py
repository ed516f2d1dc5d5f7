"""DescribeProducers, and transactions that hang: WriteTxnMarkers ends them; the other requests know of none.

A replica knows a producer by its batches: every replica has the same state up to its end, so a follower is
asked for producers, too. Without a replica here a partition is NOT_LEADER_OR_FOLLOWER (6).

No transaction is coordinated here. A directory that was written by Apache Kafka may hold an open one all the
same: it holds the last stable offset back, and with it readers of committed data and compaction. Tools find
it by its producers, ask whether a coordinator will end it, and then have the partition's leader write the
marker (KIP-664).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final, TypeAlias

from logstore.broker.dispatch import Call, Services
from logstore.broker.groups.served import OFFSETS_TOPIC
from logstore.broker.translation import results_of_markers
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.format.record import ControlType, EndTransactionMarker
from logstore.log.producer_state import ProducerEntry
from logstore.replication.messages import ResponseBody
from logstore.replication.transaction_messages import (
    ProducerMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

MOST_MARKERS: Final = 1_000
"""The most markers that one request writes, counted by partition: they are appended in one turn."""
_STATES: Final = frozenset(
    (
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    )
)
"""The names of a transaction's states in Kafka."""
_MAY_BE_WRITTEN: Final = frozenset(
    (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
)
_Place: TypeAlias = tuple[int, str, int]
"""Of a marker: producer id, topic, partition."""


def describe_producers(
    call: Call, body: t.DescribeProducersRequest, services: Services
) -> t.DescribeProducersResponse:
    """List the producers of each partition in the order of their first batches (KIP-664).

    A partition that is listed twice is INVALID_REQUEST (42): a small request would ask for one long list
    again and again.
    """
    listed = Counter(
        TopicPartition(topic.name, each) for topic in body.topics for each in topic.partition_indexes
    )
    return t.DescribeProducersResponse(
        topics=[
            t.DescribeProducersResponseTopicResponse(
                name=topic.name,
                partitions=[
                    _producers(services, TopicPartition(topic.name, each), listed)
                    for each in topic.partition_indexes
                ],
            )
            for topic in body.topics
        ]
    )


def _producers(
    services: Services, where: TopicPartition, listed: Counter[TopicPartition]
) -> t.DescribeProducersResponsePartitionResponse:
    found: tuple[ProducerEntry, ...] = ()
    error, message = ErrorCode.NONE, None
    try:
        check_topic_name(where.topic)
        if listed[where] > 1:
            error, message = ErrorCode.INVALID_REQUEST, f"{where} is listed twice"
        else:
            found = services.node.replicas.partition(where).log.producers()
    except EngineError as refused:
        error, message = refused.code, str(refused)
    return t.DescribeProducersResponsePartitionResponse(
        partition_index=where.partition,
        error_code=error,
        error_message=message,
        active_producers=[
            t.DescribeProducersResponseProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_first_offset,
            )
            for each in found
        ],
    )


def write_txn_markers(
    call: Call, body: t.WriteTxnMarkersRequest, services: Services
) -> t.WriteTxnMarkersResponse | None:
    """Write transaction markers, as an operator's tool asks for; answered once they are committed.

    INVALID_REQUEST (42): a producer twice in a partition, a negative producer id or epoch, and all markers of
    a request for more than `MOST_MARKERS`. Committed offsets in transactions count once the group coordinator
    has loaded them again.
    """
    listed: Counter[_Place] = Counter(
        (marker.producer_id, topic.name, number)
        for marker in body.markers
        for topic in marker.topics
        for number in topic.partition_indexes
    )
    if listed.total() > MOST_MARKERS:
        return results_of_markers(body, lambda *_: ErrorCode.INVALID_REQUEST)
    wanted: dict[TopicPartition, list[ProducerMarker]] = {}
    for each in body.markers:
        kind = ControlType.COMMIT if each.transaction_result else ControlType.ABORT
        marker = EndTransactionMarker(kind, each.coordinator_epoch)
        for topic in each.topics:
            for number in topic.partition_indexes:
                is_once = listed[each.producer_id, topic.name, number] == 1
                if is_once and each.producer_id >= 0 and each.producer_epoch >= 0:
                    wanted.setdefault(TopicPartition(topic.name, number), []).append(
                        ProducerMarker(each.producer_id, each.producer_epoch, marker)
                    )
    request = WriteTxnMarkersRequest(
        {where: tuple(markers) for where, markers in wanted.items()},
        services.settings.limits.request_timeout_ms,
    )
    services.runtime.ask_for(call, request, partial(_written, body, request, services))
    call.when_lost(partial(_abandoned, body, request, services))
    return None


def _written(
    body: t.WriteTxnMarkersRequest,
    request: WriteTxnMarkersRequest,
    services: Services,
    answer: ResponseBody,
) -> t.WriteTxnMarkersResponse:
    assert isinstance(answer, WriteTxnMarkersResponse), answer
    codes: dict[_Place, ErrorCode] = {}
    for where, found in answer.partitions.items():
        for each, code in zip(request.partitions[where], found, strict=True):
            codes[each.producer_id, *where] = code
        if not _MAY_BE_WRITTEN.isdisjoint(found):
            _load_again(where, services)
    return results_of_markers(body, lambda *place: codes.get(place, ErrorCode.INVALID_REQUEST))


def _abandoned(
    body: t.WriteTxnMarkersRequest, request: WriteTxnMarkersRequest, services: Services
) -> t.WriteTxnMarkersResponse:
    """Return the answer to a request whose connection has closed. Its markers may be in the logs."""
    for where in request.partitions:
        _load_again(where, services)
    return results_of_markers(body, lambda *_: ErrorCode.REQUEST_TIMED_OUT)


def _load_again(where: TopicPartition, services: Services) -> None:
    """Have the group coordinator learn of a marker in a partition of its topic."""
    if where.topic == OFFSETS_TOPIC:
        services.groups.load_again(where.partition)


def list_transactions(
    call: Call, body: t.ListTransactionsRequest, services: Services
) -> t.ListTransactionsResponse:
    """List the transactions that are coordinated here: none."""
    unknown = [each for each in dict.fromkeys(body.state_filters) if each not in _STATES]
    return t.ListTransactionsResponse(unknown_state_filters=unknown)


def describe_transactions(
    call: Call, body: t.DescribeTransactionsRequest, services: Services
) -> t.DescribeTransactionsResponse:
    """Answer TRANSACTIONAL_ID_NOT_FOUND (105) for each id, and INVALID_REQUEST (42) for an empty one."""
    return t.DescribeTransactionsResponse(
        transaction_states=[
            t.DescribeTransactionsResponseTransactionState(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if each else ErrorCode.INVALID_REQUEST,
                transactional_id=each,
            )
            for each in body.transactional_ids
        ]
    )
