"""ElectLeaders: preferred replicas lead again, or anybody at all (unclean). Null partitions: all of them.

Who leads already has error 84, and goes unmentioned if all were asked for. Version 0 knows preferred
elections only, and no error for the whole.
"""

from __future__ import annotations

from functools import partial

from logstore.broker.call import Call
from logstore.broker.handlers.items import listed
from logstore.broker.interbroker.parts import by_topic
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.replication.messages import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ResponseBody,
)

_TYPES = {0: ElectionType.PREFERRED, 1: ElectionType.UNCLEAN}


def handle(call: Call, body: t.ElectLeadersRequest, services: Services) -> t.ElectLeadersResponse | None:
    election_type = _TYPES.get(body.election_type)
    if election_type is None:
        return t.ElectLeadersResponse(throttle_time_ms=call.throttle_ms, error_code=ErrorCode.INVALID_REQUEST)
    partitions = None
    if body.topic_partitions is not None:
        asked = listed(body.topic_partitions, lambda each: each.partitions, lambda each: each.topic)
        partitions = tuple(asked)
    services.ask(call, ElectLeadersRequest(election_type, partitions), partial(_response, call))
    return None


def _response(call: Call, answer: ResponseBody) -> t.ElectLeadersResponse:
    assert isinstance(answer, ElectLeadersResponse)
    return t.ElectLeadersResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=answer.error if call.version >= 1 else 0,
        replica_election_results=[
            t.ElectLeadersResponseReplicaElectionResult(
                topic=name,
                partition_result=[
                    t.ElectLeadersResponsePartitionResult(
                        partition_id=number, error_code=result.error, error_message=result.message or None
                    )
                    for number, result in partitions
                ],
            )
            for name, partitions in by_topic(answer.partitions.items()).items()
        ],
    )
