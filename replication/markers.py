"""Serve WriteTxnMarkers: transaction markers, appended by the leader and replicated as records with acks=all.

The request ends transactions that no coordinator will end: an operator's tool sends it (KIP-664). A marker
for a producer without an open transaction is appended too, as in Kafka: it fences older epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_marker_batch
from logstore.log.producer_state import AppendOrigin
from logstore.replication.effects import Client, Effect, Reply
from logstore.replication.messages import ProduceResult
from logstore.replication.partition import ACKS_ALL
from logstore.replication.replica_manager import ReplicaManager
from logstore.replication.serving import append_result, until_committed
from logstore.replication.transaction_messages import (
    ProducerMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from logstore.replication.waiting import DelayedByPartition, Status


def write_txn_markers(
    manager: ReplicaManager, address: Client, body: WriteTxnMarkersRequest, now_ms: int
) -> list[Effect]:
    """Append markers; they are answered once they are committed, a refused one with its own error."""
    appended = {
        topic_partition: _append(manager, topic_partition, markers, now_ms)
        for topic_partition, markers in body.partitions.items()
    }
    statuses = {topic_partition: status for topic_partition, (_, status) in appended.items()}

    def reply(results: dict[TopicPartition, ProduceResult]) -> None:
        codes = {
            topic_partition: tuple(code or result.error for code in appended[topic_partition][0])
            for topic_partition, result in results.items()
        }
        manager.effects.append(Reply(address.token, WriteTxnMarkersResponse(codes)))

    operation = DelayedByPartition(
        statuses,
        now_ms + body.timeout_ms,
        address=address,
        progress=partial(append_result, manager),
        timed_out=lambda status: ProduceResult(ErrorCode.REQUEST_TIMED_OUT),
        reply=reply,
    )
    manager.waiting.produces.try_complete_else_watch(operation, statuses, now_ms)
    return manager.end_turn(now_ms)


def _append(
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    markers: Sequence[ProducerMarker],
    now_ms: int,
) -> tuple[list[ErrorCode], Status[ProduceResult]]:
    """Return the code of each marker, NONE for those that wait, and what they wait for."""
    codes: list[ErrorCode] = []
    status = Status(ProduceResult(ErrorCode.NONE))
    for each in markers:
        data = encode_marker_batch(
            each.marker,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            timestamp_ms=now_ms,
        )
        try:
            partition = manager.partition(topic_partition)
            info, _ = partition.append(data, ACKS_ALL, now_ms, AppendOrigin.COORDINATOR)
        except (EngineError, OSError) as error:
            codes.append(manager.guard(topic_partition, error))
        else:
            codes.append(ErrorCode.NONE)
            status = until_committed(partition, info, status.result)
            manager.waiting.wake(topic_partition)
            manager.flushes.want(partition)
    return codes, status
