"""ListPartitionReassignments: what is under way; of the partitions asked about, or (null) of all."""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.handlers.items import listed
from logstore.broker.interbroker.parts import by_topic
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.replication.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ResponseBody,
)


def handle(call: Call, body: t.ListPartitionReassignmentsRequest, services: Services) -> None:
    partitions = None
    if body.topics is not None:
        partitions = tuple(listed(body.topics, lambda each: each.partition_indexes, lambda each: each.name))
    services.ask(call, ListPartitionReassignmentsRequest(partitions), partial(_response, call))


def _response(call: Call, answer: ResponseBody) -> t.ListPartitionReassignmentsResponse:
    assert isinstance(answer, ListPartitionReassignmentsResponse)
    return t.ListPartitionReassignmentsResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=answer.error,
        error_message=None if answer.error is ErrorCode.NONE else answer.error.name,
        topics=[
            t.ListPartitionReassignmentsResponseOngoingTopicReassignment(
                name=name,
                partitions=[
                    t.ListPartitionReassignmentsResponseOngoingPartitionReassignment(
                        partition_index=number,
                        replicas=list(found.replicas),
                        adding_replicas=list(found.adding_replicas),
                        removing_replicas=list(found.removing_replicas),
                    )
                    for number, found in partitions
                ],
            )
            for name, partitions in by_topic(answer.partitions.items()).items()
        ],
    )
