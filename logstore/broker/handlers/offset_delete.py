"""OffsetDelete: forget what a group has committed for some partitions, of topics that it does not read (86).

Partitions that are not known here have error 3: the offsets of a topic that went are gone with it.
"""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.groups.requests import GroupResponse, OffsetDeleteRequest, OffsetDeleteResponse
from logstore.broker.handlers.items import listed
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition


def handle(call: Call, body: t.OffsetDeleteRequest, services: Services) -> None:
    wanted = listed(
        body.topics, lambda each: [one.partition_index for one in each.partitions], lambda each: each.name
    )
    known = tuple(each for each in wanted if each in services.metadata.partitions)
    services.ask_group(call, OffsetDeleteRequest(body.group_id, known), partial(_response, call, body))


def _response(call: Call, body: t.OffsetDeleteRequest, answer: GroupResponse) -> t.OffsetDeleteResponse:
    assert isinstance(answer, OffsetDeleteResponse)
    return t.OffsetDeleteResponse(
        error_code=answer.error_code,
        throttle_time_ms=call.throttle_ms,
        topics=[
            t.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    t.OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=answer.partitions.get(
                            TopicPartition(topic.name, each.partition_index),
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in body.topics
            if answer.error_code is ErrorCode.NONE
        ],
    )
