"""AlterPartitionReassignments: the replicas that partitions are to have; null calls off what is under way."""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.interbroker.parts import by_topic
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ResponseBody,
)


def handle(call: Call, body: t.AlterPartitionReassignmentsRequest, services: Services) -> None:
    """Answered when the reassignments are recorded; ListPartitionReassignments tells how they fare."""
    wanted = {
        TopicPartition(topic.name, each.partition_index): (
            tuple(each.replicas) if each.replicas is not None else None
        )
        for topic in body.topics
        for each in topic.partitions
    }
    services.ask(call, AlterPartitionReassignmentsRequest(wanted), partial(_response, call))


def _response(call: Call, answer: ResponseBody) -> t.AlterPartitionReassignmentsResponse:
    assert isinstance(answer, AlterPartitionReassignmentsResponse)
    return t.AlterPartitionReassignmentsResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=answer.error,
        error_message=None if answer.error is ErrorCode.NONE else answer.error.name,
        responses=[
            t.AlterPartitionReassignmentsResponseReassignableTopicResponse(
                name=name,
                partitions=[
                    t.AlterPartitionReassignmentsResponseReassignablePartitionResponse(
                        partition_index=number, error_code=result.error, error_message=result.message or None
                    )
                    for number, result in partitions
                ],
            )
            for name, partitions in by_topic(answer.partitions.items()).items()
        ],
    )
