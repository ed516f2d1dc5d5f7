"""DescribeCluster: the brokers, the controller and the cluster's id, as this broker last heard."""

from __future__ import annotations

from typing import Final

from logstore.broker.call import Call
from logstore.broker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode

_BROKERS: Final = 1


def handle(call: Call, body: t.DescribeClusterRequest, services: Services) -> t.DescribeClusterResponse:
    """Asked for controllers' endpoints (2), which there are none of, it answers 42."""
    if body.endpoint_type != _BROKERS:
        return t.DescribeClusterResponse(
            throttle_time_ms=call.throttle_ms,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="controllers are brokers here: ask for endpoint type 1",
            endpoint_type=body.endpoint_type,
        )
    metadata = services.metadata
    asked = body.include_cluster_authorized_operations
    return t.DescribeClusterResponse(
        throttle_time_ms=call.throttle_ms,
        cluster_id=services.cluster_id,
        controller_id=metadata.controller_id if metadata.is_alive(metadata.controller_id) else -1,
        brokers=[
            t.DescribeClusterResponseDescribeClusterBroker(
                broker_id=each.broker_id, host=each.host, port=each.port, rack=each.rack or None
            )
            for each in metadata.brokers.values()
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )
