"""OffsetForLeaderEpoch: where an epoch ends in the leader's log (KIP-101, KIP-320)."""

from __future__ import annotations

from functools import partial
from typing import Final

from logstore.broker.call import Call
from logstore.broker.interbroker.parts import by_topic
from logstore.broker.services import Services
from logstore.broker.wire import types as t
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import (
    CONSUMER_REPLICA_ID,
    EpochQuery,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ResponseBody,
)

_NAMES_REPLICAS: Final = 3


def handle(call: Call, body: t.OffsetForLeaderEpochRequest, services: Services) -> None:
    queries = {
        TopicPartition(topic.topic, each.partition): EpochQuery(each.current_leader_epoch, each.leader_epoch)
        for topic in body.topics
        for each in topic.partitions
    }
    replica_id = body.replica_id if call.version >= _NAMES_REPLICAS else CONSUMER_REPLICA_ID
    request = OffsetForLeaderEpochRequest(max(replica_id, CONSUMER_REPLICA_ID), queries)
    services.ask(call, request, partial(_response, call), source=request.replica_id)


def _response(call: Call, answer: ResponseBody) -> t.OffsetForLeaderEpochResponse:
    assert isinstance(answer, OffsetForLeaderEpochResponse)
    return t.OffsetForLeaderEpochResponse(
        throttle_time_ms=call.throttle_ms,
        topics=[
            t.OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(
                topic=name,
                partitions=[
                    t.OffsetForLeaderEpochResponseEpochEndOffset(
                        error_code=result.error,
                        partition=number,
                        leader_epoch=result.epoch,
                        end_offset=result.end_offset,
                    )
                    for number, result in partitions
                ],
            )
            for name, partitions in by_topic(answer.partitions.items()).items()
        ],
    )
