"""ListOffsets: the end, the start, or the first record at or past a time, of some partitions."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

from broker.call import Call
from broker.services import Services
from broker.wire import types as t
from checkpoint.errors import ErrorCode
from checkpoint.topic_partition import TopicPartition
from replication.messages import (
    EARLIEST_TIMESTAMP,
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


def handle(call: Call, body: t.ListOffsetsRequest, services: Services) -> None:
    """A replica's question is answered up to its log's end; a partition that is listed twice has error 42."""
    listed = Counter(
        TopicPartition(topic.name, partition.partition_index)
        for topic in body.topics
        for partition in topic.partitions
    )
    wanted = {}
    for topic in body.topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if listed[topic_partition] == 1:
                timestamp = partition.timestamp
                if timestamp == _EARLIEST_LOCAL_TIMESTAMP:
                    timestamp = EARLIEST_TIMESTAMP
                wanted[topic_partition] = ListOffsetsPartition(timestamp, partition.current_leader_epoch)
    request = ListOffsetsRequest(body.replica_id, wanted, committed_only=body.isolation_level == 1)
    services.ask(call, request, partial(_response, call, body), source=body.replica_id)


def _response(call: Call, body: t.ListOffsetsRequest, answer: ResponseBody) -> t.ListOffsetsResponse:
    assert isinstance(answer, ListOffsetsResponse)
    twice = ListOffsetsResult(ErrorCode.INVALID_REQUEST)
    return t.ListOffsetsResponse(
        throttle_time_ms=call.throttle_ms,
        topics=[
            t.ListOffsetsResponseListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _partition(call, index, answer.partitions.get(TopicPartition(topic.name, index), twice))
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
