"""What followers ask leaders: Fetch 16 (by name, in a tag, and by id where it is known), ListOffsets 8,
OffsetForLeaderEpoch 4.

A follower says who it is (`replica_state`, `replica_id`); everything else is as any consumer asks it.
"""

from __future__ import annotations

from logstore.broker.interbroker.parts import Partitions, by_topic, error_of, id_from_wire, id_to_wire
from logstore.broker.wire import types as t
from logstore.replication.messages import (
    Aborted,
    EpochAnswer,
    EpochQuery,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from logstore.segment.epochs import EpochEndOffset

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Kafka's isolation levels."""


def isolation_level(committed_only: bool) -> int:
    """As Kafka numbers it."""
    return READ_COMMITTED if committed_only else READ_UNCOMMITTED


# --- Fetch ------------------------------------------------------------------------------------


def fetch_request(request: FetchRequest) -> t.FetchRequest:
    topics: dict[tuple[str, str], t.FetchRequestFetchTopic] = {}
    for (topic, partition), wanted in request.partitions.items():
        listed = topics.get((topic, wanted.topic_id))
        if listed is None:
            listed = topics[topic, wanted.topic_id] = t.FetchRequestFetchTopic(
                topic_name=topic, topic_id=id_to_wire(wanted.topic_id)
            )
        listed.partitions.append(
            t.FetchRequestFetchPartition(
                partition=partition,
                current_leader_epoch=wanted.current_leader_epoch,
                fetch_offset=wanted.fetch_offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                log_start_offset=wanted.log_start_offset,
                partition_max_bytes=wanted.max_bytes,
                is_synced=wanted.is_synced,
            )
        )
    return t.FetchRequest(
        replica_state=t.FetchRequestReplicaState(
            replica_id=request.replica_id, replica_epoch=request.broker_epoch
        ),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=isolation_level(request.committed_only),
        topics=list(topics.values()),
        rack_id=request.rack or "",
        has_rack=request.rack is not None,
    )


def fetch_request_of(wire: t.FetchRequest) -> FetchRequest:
    partitions: Partitions[FetchPartition] = Partitions()
    for topic in wire.topics:
        topic_id = id_from_wire(topic.topic_id)
        for each in topic.partitions:
            wanted = FetchPartition(
                each.fetch_offset,
                each.partition_max_bytes,
                each.current_leader_epoch,
                each.last_fetched_epoch,
                each.log_start_offset,
                topic_id,
                each.is_synced,
            )
            partitions.put(topic.topic_name, each.partition, wanted)
    replica = wire.replica_state or t.FetchRequestReplicaState()
    return FetchRequest(
        replica_id=replica.replica_id,
        max_wait_ms=wire.max_wait_ms,
        min_bytes=wire.min_bytes,
        max_bytes=wire.max_bytes,
        partitions=partitions,
        broker_epoch=replica.replica_epoch,
        rack=wire.rack_id if wire.has_rack else None,
        committed_only=wire.isolation_level == READ_COMMITTED,
    )


def fetch_response(response: FetchResponse) -> t.FetchResponse:
    return t.FetchResponse(
        responses=[
            t.FetchResponseFetchableTopicResponse(
                topic_name=topic, partitions=[_fetched(partition, each) for partition, each in results]
            )
            for topic, results in by_topic(response.partitions.items()).items()
        ]
    )


def _fetched(partition: int, result: FetchResult) -> t.FetchResponsePartitionData:
    end = result.diverging_epoch
    return t.FetchResponsePartitionData(
        partition_index=partition,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        diverging_epoch=None
        if end is None
        else t.FetchResponseEpochEndOffset(epoch=end.epoch, end_offset=end.end_offset),
        aborted_transactions=None
        if result.aborted is None
        else [
            t.FetchResponseAbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in result.aborted
        ],
        preferred_read_replica=result.preferred_read_replica,
        records=result.records,
    )


def fetch_response_of(wire: t.FetchResponse) -> FetchResponse:
    partitions: Partitions[FetchResult] = Partitions()
    for topic in wire.responses:
        for each in topic.partitions:
            partitions.put(topic.topic_name, each.partition_index, fetch_result_of(each))
    return FetchResponse(partitions)


def fetch_result_of(wire: t.FetchResponsePartitionData) -> FetchResult:
    end = wire.diverging_epoch
    return FetchResult(
        error=error_of(wire.error_code),
        high_watermark=wire.high_watermark,
        log_start_offset=wire.log_start_offset,
        records=b"" if wire.records is None else wire.records,
        diverging_epoch=None if end is None else EpochEndOffset(end.epoch, end.end_offset),
        preferred_read_replica=wire.preferred_read_replica,
        last_stable_offset=wire.last_stable_offset,
        aborted=None
        if wire.aborted_transactions is None
        else tuple(Aborted(one.producer_id, one.first_offset) for one in wire.aborted_transactions),
    )


# --- ListOffsets ------------------------------------------------------------------------------


def list_offsets_request(request: ListOffsetsRequest) -> t.ListOffsetsRequest:
    return t.ListOffsetsRequest(
        replica_id=request.replica_id,
        isolation_level=isolation_level(request.committed_only),
        topics=[
            t.ListOffsetsRequestListOffsetsTopic(
                name=topic,
                partitions=[
                    t.ListOffsetsRequestListOffsetsPartition(
                        partition_index=partition,
                        current_leader_epoch=each.current_leader_epoch,
                        timestamp=each.timestamp,
                    )
                    for partition, each in wanted
                ],
            )
            for topic, wanted in by_topic(request.partitions.items()).items()
        ],
    )


def list_offsets_request_of(wire: t.ListOffsetsRequest) -> ListOffsetsRequest:
    partitions: Partitions[ListOffsetsPartition] = Partitions()
    for topic in wire.topics:
        for each in topic.partitions:
            wanted = ListOffsetsPartition(each.timestamp, each.current_leader_epoch)
            partitions.put(topic.name, each.partition_index, wanted)
    return ListOffsetsRequest(wire.replica_id, partitions, wire.isolation_level == READ_COMMITTED)


def list_offsets_response(response: ListOffsetsResponse) -> t.ListOffsetsResponse:
    return t.ListOffsetsResponse(
        topics=[
            t.ListOffsetsResponseListOffsetsTopicResponse(
                name=topic,
                partitions=[
                    t.ListOffsetsResponseListOffsetsPartitionResponse(
                        partition_index=partition,
                        error_code=each.error,
                        timestamp=each.timestamp,
                        offset=each.offset,
                        leader_epoch=each.leader_epoch,
                    )
                    for partition, each in results
                ],
            )
            for topic, results in by_topic(response.partitions.items()).items()
        ],
    )


def list_offsets_response_of(wire: t.ListOffsetsResponse) -> ListOffsetsResponse:
    partitions: Partitions[ListOffsetsResult] = Partitions()
    for topic in wire.topics:
        for each in topic.partitions:
            result = ListOffsetsResult(
                error_of(each.error_code), each.timestamp, each.offset, each.leader_epoch
            )
            partitions.put(topic.name, each.partition_index, result)
    return ListOffsetsResponse(partitions)


# --- OffsetForLeaderEpoch ---------------------------------------------------------------------


def offset_for_leader_epoch_request(request: OffsetForLeaderEpochRequest) -> t.OffsetForLeaderEpochRequest:
    return t.OffsetForLeaderEpochRequest(
        replica_id=request.replica_id,
        topics=[
            t.OffsetForLeaderEpochRequestOffsetForLeaderTopic(
                topic=topic,
                partitions=[
                    t.OffsetForLeaderEpochRequestOffsetForLeaderPartition(
                        partition=partition,
                        current_leader_epoch=each.current_leader_epoch,
                        leader_epoch=each.leader_epoch,
                    )
                    for partition, each in queries
                ],
            )
            for topic, queries in by_topic(request.partitions.items()).items()
        ],
    )


def offset_for_leader_epoch_request_of(wire: t.OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochRequest:
    partitions: Partitions[EpochQuery] = Partitions()
    for topic in wire.topics:
        for each in topic.partitions:
            query = EpochQuery(each.current_leader_epoch, each.leader_epoch)
            partitions.put(topic.topic, each.partition, query)
    return OffsetForLeaderEpochRequest(wire.replica_id, partitions)


def offset_for_leader_epoch_response(
    response: OffsetForLeaderEpochResponse,
) -> t.OffsetForLeaderEpochResponse:
    return t.OffsetForLeaderEpochResponse(
        topics=[
            t.OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(
                topic=topic,
                partitions=[
                    t.OffsetForLeaderEpochResponseEpochEndOffset(
                        partition=partition,
                        error_code=each.error,
                        leader_epoch=each.epoch,
                        end_offset=each.end_offset,
                    )
                    for partition, each in answers
                ],
            )
            for topic, answers in by_topic(response.partitions.items()).items()
        ],
    )


def offset_for_leader_epoch_response_of(
    wire: t.OffsetForLeaderEpochResponse,
) -> OffsetForLeaderEpochResponse:
    partitions: Partitions[EpochAnswer] = Partitions()
    for topic in wire.topics:
        for each in topic.partitions:
            answer = EpochAnswer(error_of(each.error_code), each.leader_epoch, each.end_offset)
            partitions.put(topic.topic, each.partition, answer)
    return OffsetForLeaderEpochResponse(partitions)
