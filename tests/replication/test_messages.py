"""Fields and error codes are Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.disk.errors import ErrorCode
from logstore.replication import messages

CODES = {
    1: "OFFSET_OUT_OF_RANGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE",
    9: "REPLICA_NOT_AVAILABLE",
    11: "STALE_CONTROLLER_EPOCH",
    13: "NETWORK_EXCEPTION",  # 0.8's stale leader epoch; nobody answers that any more
    17: "INVALID_TOPIC_EXCEPTION",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    21: "INVALID_REQUIRED_ACKS",
    39: "INVALID_REPLICA_ASSIGNMENT",
    41: "NOT_CONTROLLER",
    55: "OPERATION_NOT_ATTEMPTED",
    56: "KAFKA_STORAGE_ERROR",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    77: "STALE_BROKER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    80: "PREFERRED_LEADER_NOT_AVAILABLE",
    83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    84: "ELECTION_NOT_NEEDED",
    85: "NO_REASSIGNMENT_IN_PROGRESS",
    95: "INVALID_UPDATE_VERSION",
    100: "UNKNOWN_TOPIC_ID",
    103: "INCONSISTENT_TOPIC_ID",
    107: "INELIGIBLE_REPLICA",
    108: "NEW_LEADER_ELECTED",
}


def test_1_5_error_codes() -> None:
    assert {number: ErrorCode(number).name for number in CODES} == CODES


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (messages.LeaderAndIsrRequest, "controller_id controller_epoch broker_epoch partitions live_leaders"),
        (messages.PartitionState, "controller_epoch leader leader_epoch isr partition_epoch replicas is_new"),
        (messages.BrokerEndpoint, "broker_id host port epoch"),
        (messages.LeaderAndIsrResponse, "error partitions"),
        (messages.StopReplicaRequest, "controller_id controller_epoch broker_epoch partitions topic_ids"),
        (messages.StopReplicaPartition, "leader_epoch delete"),
        (messages.StopReplicaResponse, "error partitions"),
        (messages.UpdateMetadataRequest, "controller_id controller_epoch partitions live_brokers"),
        (messages.UpdateMetadataResponse, "error"),
        (messages.ControlledShutdownRequest, "broker_id broker_epoch"),
        (messages.ControlledShutdownResponse, "error remaining"),
        (messages.FetchRequest, "replica_id max_wait_ms min_bytes max_bytes partitions broker_epoch"),
        (
            messages.FetchPartition,
            "fetch_offset max_bytes current_leader_epoch last_fetched_epoch log_start_offset topic_id",
        ),
        (messages.FetchResponse, "partitions"),
        (
            messages.FetchResult,
            "error high_watermark log_start_offset records diverging_epoch preferred_read_replica",
        ),
    ],
)
def test_1_5_fields_of_each_message(message: type[Any], needed: str) -> None:
    """Our messages have all fields of Kafka's."""
    assert set(needed.split()) <= set(message.__match_args__)
