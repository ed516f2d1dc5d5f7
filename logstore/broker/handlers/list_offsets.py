"""ListOffsets: the end, the start, or the first record at or past a time, of some partitions.

A negative time stands for a place. One that this version does not have, the end of what is kept remotely say
(-5, KIP-1005), is refused (35): as a time it would be before the first record.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

from logstore.broker.call import Call
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    ResponseBody,
)

_WITH_EPOCH: Final = 4
_EARLIEST_LOCAL_TIMESTAMP: Final = -4
"""All that there is here is local (KIP-405)."""
_PLACES: Final = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    LARGEST_TIMESTAMP: 7,
    _EARLIEST_LOCAL_TIMESTAMP: 8,
}
"""The places there are, each with the first version that has it."""


def handle(call: Call, body: t.ListOffsetsRequest, services: Services) -> None:
    """A replica's question is answered up to its log's end; a partition that is listed twice has error 42."""
    refused: dict[TopicPartition, ListOffsetsResult] = {}
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
                refused[topic_partition] = ListOffsetsResult(ErrorCode.INVALID_REQUEST)
            elif timestamp < 0 and _PLACES.get(timestamp, call.version + 1) > call.version:
                refused[topic_partition] = ListOffsetsResult(ErrorCode.UNSUPPORTED_VERSION)
            else:
                if timestamp == _EARLIEST_LOCAL_TIMESTAMP:
                    timestamp = EARLIEST_TIMESTAMP
                wanted[topic_partition] = ListOffsetsPartition(timestamp, partition.current_leader_epoch)
    request = ListOffsetsRequest(body.replica_id, wanted, committed_only=body.isolation_level == 1)
    services.ask(call, request, partial(_response, call, body, refused), source=body.replica_id)


def _response(
    call: Call,
    body: t.ListOffsetsRequest,
    refused: dict[TopicPartition, ListOffsetsResult],
    answer: ResponseBody,
) -> t.ListOffsetsResponse:
    assert isinstance(answer, ListOffsetsResponse)
    results = {**answer.partitions, **refused}
    return t.ListOffsetsResponse(
        throttle_time_ms=call.throttle_ms,
        topics=[
            t.ListOffsetsResponseListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _partition(call, index, results[TopicPartition(topic.name, index)])
                    for index in (each.partition_index for each in topic.partitions)
                ],
            )
            for topic in body.topics
        ],
    )


def _partition(
    call: Call, index: int, result: ListOffsetsResult
) -> t.ListOffsetsResponseListOffsetsPartitionResponse:
    return t.ListOffsetsResponseListOffsetsPartitionResponse(
        partition_index=index,
        error_code=result.error,
        timestamp=result.timestamp,
        offset=result.offset,
        leader_epoch=result.leader_epoch if call.version >= _WITH_EPOCH else NO_EPOCH,
    )
