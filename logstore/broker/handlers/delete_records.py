"""DeleteRecords: everything below an offset goes (-1: below the high watermark), on every live replica.

Beyond the high watermark: 1. Answered when all have deleted, or with 7 when the time is over.
"""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.interbroker.parts import by_topic
from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import DeleteRecordsRequest, DeleteRecordsResponse, ResponseBody


def handle(call: Call, body: t.DeleteRecordsRequest, services: Services) -> None:
    offsets = {
        TopicPartition(topic.name, each.partition_index): each.offset
        for topic in body.topics
        for each in topic.partitions
    }
    request = DeleteRecordsRequest(offsets, min(body.timeout_ms, LONGEST_WAIT_MS))
    services.ask(call, request, partial(_response, call))


def _response(call: Call, answer: ResponseBody) -> t.DeleteRecordsResponse:
    assert isinstance(answer, DeleteRecordsResponse)
    return t.DeleteRecordsResponse(
        throttle_time_ms=call.throttle_ms,
        topics=[
            t.DeleteRecordsResponseDeleteRecordsTopicResult(
                name=name,
                partitions=[
                    t.DeleteRecordsResponseDeleteRecordsPartitionResult(
                        partition_index=number,
                        low_watermark=result.low_watermark,
                        error_code=result.error,
                    )
                    for number, result in partitions
                ],
            )
            for name, partitions in by_topic(answer.partitions.items()).items()
        ],
    )
