"""All replicas of one node: requests in, answers and requests to others out.

    clients     Produce, Fetch, ListOffsets, DeleteRecords     ─┐
    followers   Fetch, ListOffsets, OffsetForLeaderEpoch        ├─▶ Partition ─▶ Log
    controller  LeaderAndIsr, StopReplica, UpdateMetadata      ─┘
    leaders ◀── Followers (fetches)      controller ◀── IsrChannel (proposals)
    waiting     Purgatories of produces, fetches and deletions, by partition

Here is what clients and followers ask. Under it stand the controller's orders (`orders.py`), and under those
the replicas, their turns and who waits (`replicas.py`).
"""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidRecord
from logstore.replication.durability import Durability
from logstore.replication.effects import Address, Client, Effect, Reply, answer
from logstore.replication.errors import InvalidRequiredAcks, UnknownTopicId
from logstore.replication.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    EpochAnswer,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from logstore.replication.orders import Orders
from logstore.replication.partition import ACKS_ALL, Partition
from logstore.replication.waiting import DelayedByPartition, DelayedFetch, Status


class ReplicaManager(Orders):
    """The replicas of this node, their waiting requests, and what they ask of others."""

    # --- produce -------------------------------------------------------------------------------

    def produce(self, address: Client, body: ProduceRequest, now_ms: int) -> list[Effect]:
        """Append a client's batches; acks=all is answered once they are committed."""
        if body.acks not in (0, 1, ACKS_ALL):
            error = InvalidRequiredAcks(f"acks is {body.acks}; it takes 0, 1 or -1 (all)")
            results = {known: ProduceResult(error.code, message=str(error)) for known in body.records}
            self._effects.append(answer(address, ProduceResponse(results)))
            return self._end_turn(now_ms)
        statuses: dict[TopicPartition, Status[ProduceResult]] = {}
        for topic_partition, data in body.records.items():
            statuses[topic_partition] = self._append(topic_partition, data, body.acks, now_ms)
        if body.acks == 0:
            has_failed = any(status.result.error is not ErrorCode.NONE for status in statuses.values())
            self._effects.append(Reply(address.token, None, close=has_failed))
        elif body.acks == ACKS_ALL and any(status.is_pending for status in statuses.values()):
            operation = DelayedByPartition(
                statuses,
                now_ms + body.timeout_ms,
                progress=self._progress,
                timed_out=lambda status: ProduceResult(ErrorCode.REQUEST_TIMED_OUT),
                reply=lambda results: self._effects.append(answer(address, ProduceResponse(results))),
            )
            self._produces.try_complete_else_watch(operation, statuses, now_ms)
        else:
            results = {known: status.result for known, status in statuses.items()}
            self._effects.append(answer(address, ProduceResponse(results)))
        return self._end_turn(now_ms)

    def _append(
        self, topic_partition: TopicPartition, data: bytes | memoryview, acks: int, now_ms: int
    ) -> Status[ProduceResult]:
        try:
            partition = self.partition(topic_partition)
            info, _ = partition.append(data, acks, now_ms)
        except (EngineError, OSError) as error:
            blamed = error.record_errors if isinstance(error, InvalidRecord) else ()
            code = self._guard(topic_partition, error)
            return Status(ProduceResult(code, message=str(error), record_errors=blamed))
        self._wake(topic_partition)
        self._want_flush(partition)
        result = ProduceResult(
            ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset
        )
        if acks != ACKS_ALL:
            return Status(result)
        result = result._replace(durability=partition.durability)
        return Status(result, info.last_offset + 1, partition.tenure, is_pending=True)

    def _progress(
        self, topic_partition: TopicPartition, status: Status[ProduceResult]
    ) -> ProduceResult | None:
        """How a waiting append stands: None while undecided."""
        try:
            partition = self.partition(topic_partition)
        except EngineError as error:
            return ProduceResult(error.code)
        if not partition.is_leader or partition.tenure != status.tenure:
            # The offset may hold another record by now.
            return ProduceResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.log.high_watermark < status.offset:
            return None
        if len(partition.isr.maximal) < partition.min_insync:
            return ProduceResult(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if not partition.is_synced:
            # Whatever it was when this began to wait: the watermark went by the level of now.
            return status.result._replace(durability=Durability.REPLICATED)
        return status.result

    # --- fetch ---------------------------------------------------------------------------------

    def fetch(self, address: Address, body: FetchRequest, now_ms: int) -> list[Effect]:
        """Read for a consumer or a follower; with too little to say, wait for more."""
        results, size, is_final = self._read(body)
        if body.replica_id >= 0:
            for topic_partition, result in results.items():
                if result.error is ErrorCode.NONE and result.diverging_epoch is None:
                    self._count_fetch(topic_partition, body, now_ms)
        if is_final or body.max_wait_ms <= 0 or not body.partitions or size >= body.min_bytes:
            self._effects.append(answer(address, FetchResponse(results)))
        else:
            operation = DelayedFetch(
                body.min_bytes,
                now_ms + body.max_wait_ms,
                read=lambda: self._read(body),
                reply=lambda response: self._effects.append(answer(address, response)),
            )
            # Read a moment ago; what this fetch itself moved is woken and checked as the turn ends.
            self._fetches.watch(operation, body.partitions)
        return self._end_turn(now_ms)

    def _read(self, body: FetchRequest) -> tuple[dict[TopicPartition, FetchResult], int, bool]:
        """Results for all partitions, their bytes, and whether one (an error, a divergence) cannot wait."""
        results: dict[TopicPartition, FetchResult] = {}
        room = body.max_bytes
        is_final = False
        for topic_partition, wanted in body.partitions.items():
            result = self._read_one(topic_partition, wanted, body, room)
            is_final |= result.error is not ErrorCode.NONE or result.diverging_epoch is not None
            is_final |= result.preferred_read_replica >= 0
            # In an older segment than the end there is always something to send.
            is_final = is_final or self._partitions[topic_partition].is_behind_segment(
                wanted.fetch_offset, to_log_end=body.replica_id >= 0
            )
            # Somebody may wait until every follower has heard where the log starts now.
            is_final |= 0 <= wanted.log_start_offset < result.log_start_offset
            room -= len(result.records)
            results[topic_partition] = result
        return results, body.max_bytes - room, is_final

    def _read_one(
        self, topic_partition: TopicPartition, wanted: FetchPartition, body: FetchRequest, room: int
    ) -> FetchResult:
        try:
            return self._partition_to_read(topic_partition, wanted.topic_id).read(
                body.replica_id,
                wanted,
                max_bytes=max(min(wanted.max_bytes, room), 0),
                # The first batch of a response may be of any size, or it could never be read.
                at_least_one=room == body.max_bytes,
                broker_epoch=body.broker_epoch,
                rack=body.rack,
                committed_only=body.committed_only,
            )
        except (EngineError, OSError) as error:
            return FetchResult(self._guard(topic_partition, error))

    def _partition_to_read(self, topic_partition: TopicPartition, topic_id: str) -> Partition:
        """The replica here; raises `UnknownTopicId` where there is none and nobody told us of that id."""
        is_here = topic_partition in self._partitions or topic_partition in self._offline
        if topic_id and not is_here and self.metadata.topic_ids.get(topic_partition.topic) != topic_id:
            raise UnknownTopicId(f"no topic of id {topic_id} is known here; refresh metadata")
        return self.partition(topic_partition)

    def _count_fetch(self, topic_partition: TopicPartition, body: FetchRequest, now_ms: int) -> None:
        partition = self._partitions[topic_partition]
        is_awaited = self._deletions.deadline_ms is not None
        before = partition.low_watermark if is_awaited else -1
        has_moved, pending = partition.record_fetch(
            body.replica_id,
            body.partitions[topic_partition],
            now_ms,
            broker_epoch=body.broker_epoch,
            own_broker_epoch=self.broker_epoch,
        )
        if has_moved or (is_awaited and partition.low_watermark != before):
            self._wake(topic_partition)
        if pending is not None:
            self._submit(partition, pending, now_ms)
        self._report_synced(partition)

    # --- deleting records ----------------------------------------------------------------------

    def delete_records(self, address: Address, body: DeleteRecordsRequest, now_ms: int) -> list[Effect]:
        """Let partitions start higher up; answered when every live replica says that its log does."""
        statuses = {
            topic_partition: self._delete_records(topic_partition, offset)
            for topic_partition, offset in body.partitions.items()
        }
        operation = DelayedByPartition(
            statuses,
            now_ms + body.timeout_ms,
            progress=self._deletion_result,
            timed_out=lambda status: status.result,
            reply=lambda results: self._effects.append(answer(address, DeleteRecordsResponse(results))),
        )
        if not operation.try_complete(now_ms):
            if body.timeout_ms <= 0:
                operation.force_complete(now_ms)
            else:
                self._deletions.try_complete_else_watch(operation, statuses, now_ms)
        return self._end_turn(now_ms)

    def _delete_records(self, topic_partition: TopicPartition, offset: int) -> Status[DeleteRecordsResult]:
        try:
            partition = self.partition(topic_partition)
            target = partition.delete_records(offset)
        except (EngineError, OSError) as error:
            return Status(DeleteRecordsResult(self._guard(topic_partition, error)))
        self._wake(topic_partition)
        timed_out = DeleteRecordsResult(ErrorCode.REQUEST_TIMED_OUT, partition.low_watermark)
        return Status(timed_out, target, partition.tenure, is_pending=True)

    def _deletion_result(
        self, topic_partition: TopicPartition, status: Status[DeleteRecordsResult]
    ) -> DeleteRecordsResult | None:
        """How a deletion ended: None while a live replica has not confirmed it."""
        try:
            partition = self.partition(topic_partition)
        except EngineError as error:
            return DeleteRecordsResult(error.code)
        if not partition.is_leader or partition.tenure != status.tenure:
            mark("delete records: the leader changed while followers were deleting")
            return DeleteRecordsResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        low_watermark = partition.low_watermark
        return DeleteRecordsResult(ErrorCode.NONE, low_watermark) if low_watermark >= status.offset else None

    # --- questions -----------------------------------------------------------------------------

    def list_offsets(self, address: Address, body: ListOffsetsRequest, now_ms: int) -> list[Effect]:
        """Offsets by time."""
        results: dict[TopicPartition, ListOffsetsResult] = {}
        for topic_partition, wanted in body.partitions.items():
            try:
                results[topic_partition] = self.partition(topic_partition).list_offset(
                    wanted.timestamp,
                    replica_id=body.replica_id,
                    current_leader_epoch=wanted.current_leader_epoch,
                    committed_only=body.committed_only,
                )
            except (EngineError, OSError) as error:
                results[topic_partition] = ListOffsetsResult(self._guard(topic_partition, error))
        self._effects.append(answer(address, ListOffsetsResponse(results)))
        return self._end_turn(now_ms)

    def offset_for_leader_epoch(
        self, address: Address, body: OffsetForLeaderEpochRequest, now_ms: int
    ) -> list[Effect]:
        """Where epochs end in this leader's logs."""
        results: dict[TopicPartition, EpochAnswer] = {}
        for topic_partition, query in body.partitions.items():
            try:
                end = self.partition(topic_partition).end_of_epoch(
                    query.leader_epoch, query.current_leader_epoch
                )
                results[topic_partition] = EpochAnswer(ErrorCode.NONE, end.epoch, end.end_offset)
            except (EngineError, OSError) as error:
                results[topic_partition] = EpochAnswer(self._guard(topic_partition, error))
        self._effects.append(answer(address, OffsetForLeaderEpochResponse(results)))
        return self._end_turn(now_ms)
