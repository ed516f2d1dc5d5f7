"""DescribeProducers: the active producers of partitions, as this broker's replicas know them (KIP-664).

A replica knows a producer by its batches: every replica has the same state up to its end, so a follower is
asked, too. Without a replica here a partition is NOT_LEADER_OR_FOLLOWER (6). A partition that is listed twice
is INVALID_REQUEST (42): a small request would ask for one long list again and again.
"""

from __future__ import annotations

from collections import Counter

from logstore.broker.dispatch import Call, Services
from logstore.broker.wire import types as t
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.log.producer_state import ProducerEntry


def describe(call: Call, body: t.DescribeProducersRequest, services: Services) -> t.DescribeProducersResponse:
    """List the producers of each partition in the order of their first batches."""
    listed = Counter(
        TopicPartition(topic.name, each) for topic in body.topics for each in topic.partition_indexes
    )
    return t.DescribeProducersResponse(
        topics=[
            t.DescribeProducersResponseTopicResponse(
                name=topic.name,
                partitions=[
                    _partition(services, TopicPartition(topic.name, each), listed)
                    for each in topic.partition_indexes
                ],
            )
            for topic in body.topics
        ]
    )


def _partition(
    services: Services, where: TopicPartition, listed: Counter[TopicPartition]
) -> t.DescribeProducersResponsePartitionResponse:
    found: tuple[ProducerEntry, ...] = ()
    error, message = ErrorCode.NONE, None
    try:
        check_topic_name(where.topic)
        if listed[where] > 1:
            error, message = ErrorCode.INVALID_REQUEST, f"{where} is listed twice"
        else:
            found = services.node.replicas.partition(where).log.producers()
    except EngineError as refused:
        error, message = refused.code, str(refused)
    return t.DescribeProducersResponsePartitionResponse(
        partition_index=where.partition,
        error_code=error,
        error_message=message,
        active_producers=[
            t.DescribeProducersResponseProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_first_offset,
            )
            for each in found
        ],
    )
