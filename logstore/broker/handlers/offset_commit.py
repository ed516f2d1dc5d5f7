"""OffsetCommit: how far a group has come, answered when every in-sync replica has it.

Partitions that are not known here have error 3 and change nothing for the others. Versions 2 to 4 may give
offsets an end of their own.
"""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.groups.requests import (
    GroupResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition


def handle(call: Call, body: t.OffsetCommitRequest, services: Services) -> t.OffsetCommitResponse | None:
    wanted = {
        TopicPartition(topic.name, each.partition_index): OffsetCommitPartition(
            committed_offset=each.committed_offset,
            committed_leader_epoch=each.committed_leader_epoch,
            committed_metadata=each.committed_metadata,
        )
        for topic in body.topics
        for each in topic.partitions
    }
    known = {each: value for each, value in wanted.items() if each in services.metadata.partitions}
    if wanted and not known:
        return _response(call, body, OffsetCommitResponse({}))
    request = OffsetCommitRequest(
        group_id=body.group_id,
        generation_id=body.generation_id_or_member_epoch,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        retention_time_ms=body.retention_time_ms,
        partitions=known,
    )
    services.ask_group(call, request, partial(_response, call, body))
    return None


def _response(call: Call, body: t.OffsetCommitRequest, answer: GroupResponse) -> t.OffsetCommitResponse:
    assert isinstance(answer, OffsetCommitResponse)
    return t.OffsetCommitResponse(
        throttle_time_ms=call.throttle_ms,
        topics=[
            t.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    t.OffsetCommitResponsePartition(
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
        ],
    )
