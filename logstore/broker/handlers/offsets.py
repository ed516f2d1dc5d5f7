"""Offsets of partitions: ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

ListOffsets finds the end, the start, or the first record at or past a time. A negative time names a place.
One that the request's version does not have, such as the end of remote storage (-5, KIP-1005), is answered
UNSUPPORTED_VERSION (35): taken as a time, it would be before the first record.

OffsetForLeaderEpoch returns the end offset of an epoch in the leader's log (KIP-101, KIP-320).

DeleteRecords deletes everything below an offset (-1: below the high watermark) on every live replica. An
offset beyond the high watermark is OFFSET_OUT_OF_RANGE (1). Internal topics are INVALID_TOPIC_EXCEPTION (17),
as in Kafka: groups would lose their offsets. The answer comes when all replicas have deleted, or is
REQUEST_TIMED_OUT (7).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.handlers.metadata import INTERNAL_TOPICS
from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.receipts import answer_receipts
from logstore.broker.security.refused import refused_entry
from logstore.broker.translation import from_wire, to_wire
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m

_WITH_EPOCH: Final = 4
_WITH_NOT_AVAILABLE: Final = 5
"""The first version whose clients know OFFSET_NOT_AVAILABLE (78); before it LEADER_NOT_AVAILABLE (5)."""
_EARLIEST_LOCAL_TIMESTAMP: Final = -4
"""The start of local storage (KIP-405). All storage is local here."""
_PLACES: Final = {
    m.LATEST_TIMESTAMP: 1,
    m.EARLIEST_TIMESTAMP: 1,
    m.LARGEST_TIMESTAMP: 7,
    _EARLIEST_LOCAL_TIMESTAMP: 8,
}
"""The first version that has each place."""


def list_offsets(call: Call, body: t.ListOffsetsRequest, services: Services) -> None:
    """Answer a replica up to its log's end; a partition that is listed twice is INVALID_REQUEST (42).

    Our own clients ask for receipts of records with it.
    """
    if any(partition.receipt_offset >= 0 for topic in body.topics for partition in topic.partitions):
        services.begin(call, answer_receipts(body, services.receipts))
        return
    refused: dict[TopicPartition, m.ListOffsetsResult] = {}
    listed = Counter(
        TopicPartition(topic.name, partition.partition_index)
        for topic in body.topics
        for partition in topic.partitions
    )
    wanted = {}
    for topic in body.topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            timestamp = partition.timestamp
            if listed[topic_partition] > 1:
                refused[topic_partition] = m.ListOffsetsResult(ErrorCode.INVALID_REQUEST)
            elif timestamp < 0 and _PLACES.get(timestamp, call.version + 1) > call.version:
                refused[topic_partition] = m.ListOffsetsResult(ErrorCode.UNSUPPORTED_VERSION)
            else:
                if timestamp == _EARLIEST_LOCAL_TIMESTAMP:
                    timestamp = m.EARLIEST_TIMESTAMP
                wanted[topic_partition] = m.ListOffsetsPartition(timestamp, partition.current_leader_epoch)
    request = m.ListOffsetsRequest(body.replica_id, wanted, committed_only=body.isolation_level == 1)
    services.runtime.ask_for(call, request, partial(_offsets, call, body, refused), source=body.replica_id)


def _offsets(
    call: Call,
    body: t.ListOffsetsRequest,
    refused: dict[TopicPartition, m.ListOffsetsResult],
    answer: m.ResponseBody,
) -> t.ListOffsetsResponse:
    assert isinstance(answer, m.ListOffsetsResponse)
    results = {**answer.partitions, **refused}
    return t.ListOffsetsResponse(
        topics=[
            t.ListOffsetsResponseListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _offset(call, index, results[TopicPartition(topic.name, index)])
                    for index in (each.partition_index for each in topic.partitions)
                ],
            )
            for topic in body.topics
        ],
    )


def _offset(
    call: Call, index: int, result: m.ListOffsetsResult
) -> t.ListOffsetsResponseListOffsetsPartitionResponse:
    response = to_wire(result, t.ListOffsetsResponseListOffsetsPartitionResponse)
    response.partition_index = index
    if result.error is ErrorCode.OFFSET_NOT_AVAILABLE and call.version < _WITH_NOT_AVAILABLE:
        response.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    if call.version < _WITH_EPOCH:
        response.leader_epoch = m.NO_EPOCH
    return response


def offset_for_leader_epoch(call: Call, body: t.OffsetForLeaderEpochRequest, services: Services) -> None:
    body.replica_id = max(body.replica_id, m.CONSUMER_REPLICA_ID)  # version 2 has none: -2
    request = from_wire(body, m.OffsetForLeaderEpochRequest)
    respond = partial(to_wire, kind=t.OffsetForLeaderEpochResponse)
    services.runtime.ask_for(call, request, respond, source=body.replica_id)


def delete_records(call: Call, body: t.DeleteRecordsRequest, services: Services) -> None:
    body.timeout_ms = min(body.timeout_ms, LONGEST_WAIT_MS)
    kind, code = t.DeleteRecordsResponseDeleteRecordsTopicResult, ErrorCode.INVALID_TOPIC_EXCEPTION
    refused: list[Any] = [
        refused_entry(kind, each, code) for each in body.topics if each.name in INTERNAL_TOPICS
    ]
    body.topics = [each for each in body.topics if each.name not in INTERNAL_TOPICS]

    def deleted(answer: m.ResponseBody) -> t.DeleteRecordsResponse:
        response = to_wire(answer, t.DeleteRecordsResponse)
        response.topics += refused
        return response

    request = from_wire(body, m.DeleteRecordsRequest)
    services.runtime.ask_for(call, request, deleted)
    late = m.DeleteRecordsResult(ErrorCode.REQUEST_TIMED_OUT)
    unanswered = m.DeleteRecordsResponse(dict.fromkeys(request.partitions, late))
    call.when_lost(partial(to_wire, unanswered, t.DeleteRecordsResponse))
