"""FindCoordinator: which broker keeps a group. Version 4 asks about several at once.

It is the leader of the partition of `__consumer_offsets` that the group's name says; the topic is made when
somebody first asks, and until it has leaders the answer is 15: ask again. So it is while there are too few
brokers for `offsets.topic.replication.factor`.

Transactions have no coordinator here. 15 would make their producers ask for ever; 42 ends them with the
message.
"""

from __future__ import annotations

from typing import Final

from logstore.broker.call import Call
from logstore.broker.groups.coordinator import OFFSETS_TOPIC
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition

_GROUP: Final = 0
_TRANSACTION: Final = 1
_MANY_KEYS: Final = 4
_NOBODY: Final = -1
_FIRST: Final = TopicPartition(OFFSETS_TOPIC, 0)


def handle(call: Call, body: t.FindCoordinatorRequest, services: Services) -> t.FindCoordinatorResponse:
    if call.version >= _MANY_KEYS:
        return t.FindCoordinatorResponse(
            throttle_time_ms=call.throttle_ms,
            coordinators=[_find(services, body.key_type, key) for key in body.coordinator_keys],
        )
    found = _find(services, body.key_type, body.key)
    return t.FindCoordinatorResponse(
        throttle_time_ms=call.throttle_ms,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(services: Services, key_type: int, key: str) -> t.FindCoordinatorResponseCoordinator:
    if key_type == _TRANSACTION:
        return _nobody(
            key,
            ErrorCode.INVALID_REQUEST,
            "transactions are not served here; produce without a transactional id",
        )
    if key_type != _GROUP:
        return _nobody(key, ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type}")
    metadata = services.metadata
    home = services.groups.home_of(key)
    if home is None and _FIRST not in metadata.partitions:
        services.want_offsets_topic()
    leader = metadata.brokers.get(metadata.leader_of(home)) if home is not None else None
    if leader is None:
        why = f"{home or OFFSETS_TOPIC} has no leader that is known here; try again"
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
    return t.FindCoordinatorResponseCoordinator(
        key=key, node_id=leader.broker_id, host=leader.host, port=leader.port
    )


def _nobody(key: str, error: ErrorCode, message: str) -> t.FindCoordinatorResponseCoordinator:
    return t.FindCoordinatorResponseCoordinator(
        key=key, node_id=_NOBODY, port=_NOBODY, error_code=error, error_message=message
    )
