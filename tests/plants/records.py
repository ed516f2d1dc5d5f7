"""Mistakes with records: how logs are cut, what counts as committed, what is deleted, what is on disk."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

import logstore.log.log_dir
import logstore.log.read
import logstore.replication.partition
import logstore.segment.scan
from logstore.disk.errors import ErrorCode
from logstore.errors import UnexpectedAppendOffset
from logstore.log import truncate, upkeep
from logstore.log.log import FetchIsolation
from logstore.log.log_dir_checkpoints import LogDirCheckpoints
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import ProducerState
from logstore.replication import following, membership, reading, receipts, serving
from logstore.replication.controller import election
from logstore.replication.durability import Durability
from logstore.replication.fetch_sessions import FetchSessions
from logstore.replication.flushes import Flushes
from logstore.replication.follower import Followers
from logstore.replication.isr import PendingExpand, PendingShrink
from logstore.replication.messages import DeleteRecordsResult, ProduceResult
from logstore.replication.partition import Partition
from logstore.replication.replica_manager import ReplicaManager
from logstore.segment.scan import header_dtype
from logstore.testing.stories.rules import (
    answer_without_epoch,
    divergence_not_noticed,
    swap,
    truncate_by_high_watermark,
)
from tests.plants.registry import plant

# --- truncation --------------------------------------------------------------------------------


plant("a follower truncates to its high watermark (KIP-101)")(truncate_by_high_watermark)
plant("a leader does not compare epochs of fetches")(divergence_not_noticed)
plant("a follower ignores the epoch of the leader's end offset (KIP-279)")(answer_without_epoch)


@plant("the high watermark of a diverging response is applied before the truncation (KAFKA-14704)")
def diverging_answer_believed(stack: ExitStack) -> None:
    def on_fetched(self: Any, partition: Partition, state: Any, result: Any) -> Any:
        if result.diverging_epoch is not None:
            before = partition.log.high_watermark
            if partition.log.set_high_watermark(result.high_watermark) != before:
                return None
        return real(self, partition, state, result)

    real = swap(stack, Followers, "_on_fetched", on_fetched)


@plant("batches below the log end are appended")
def append_below_the_end(stack: ExitStack) -> None:
    def add(self: Followers, partition: Partition) -> None:
        real(self, partition)
        topic_partition = partition.topic_partition
        _, fetcher = self._partitions[topic_partition]
        state = fetcher.states[topic_partition]
        # Where a follower begins that trusts its high watermark, but does not cut.
        fetcher.put(topic_partition, replace(state, fetch_offset=partition.log.high_watermark))

    def on_fetched(self: Any, partition: Partition, state: Any, result: Any) -> Any:
        if result.records:
            truncate.truncate_to(partition.log, int.from_bytes(bytes(result.records[:8]), "big"))
        if state.fetch_offset != partition.log.log_end_offset:
            state = state.at(partition.log.log_end_offset, state.last_fetched_epoch)
        return real_on_fetched(self, partition, state, result)

    real = swap(stack, Followers, "add", add)
    real_on_fetched = swap(stack, Followers, "_on_fetched", on_fetched)


@plant("an election is not recorded in the epoch cache (KAFKA-7415)")
def epoch_not_noted_at_election(stack: ExitStack) -> None:
    swap(stack, PartitionLog, "assign_epoch", lambda self, epoch, start_offset: None)


@plant(
    "a follower whose log ends inside its leader's first batch refuses that batch",
    is_rare=True,
)
def batch_across_the_log_start_refused(stack: ExitStack) -> None:
    def append_fetched(partition: Partition, records: Any, **bounds: int) -> None:
        log, first = partition.log, int.from_bytes(bytes(records[:8]), "big")
        if records and log.log_start_offset < log.log_end_offset and first < log.log_end_offset:
            raise UnexpectedAppendOffset(first, log.log_end_offset, log.log_end_offset)
        real(partition, records, **bounds)

    real = swap(stack, following, "append_fetched", append_fetched)


# --- the high watermark ------------------------------------------------------------------------


@plant("the high watermark is the largest LEO of the replicas")
def high_watermark_from_the_fastest(stack: ExitStack) -> None:
    def next_high_watermark(state: Any, **facts: Any) -> int | None:
        if real(state, **facts) is None:
            return None
        ends: list[int] = [replica.log_end_offset for replica in facts["replicas"]]
        safe: int = facts["leader_safe_offset"]
        return min(max([*ends, 0]), safe)

    real = swap(stack, logstore.replication.partition, "next_high_watermark", next_high_watermark)


@plant("a proposed smaller ISR counts before it is confirmed")
def shrink_before_it_is_confirmed(stack: ExitStack) -> None:
    swap(stack, PendingShrink, "maximal", property(lambda self: self.last.isr - self.removed))


@plant("a proposed ISR member does not count while the proposal is pending")
def expansion_not_counted(stack: ExitStack) -> None:
    def next_high_watermark(state: Any, **facts: Any) -> int | None:
        return real(state, **{**facts, "eligible": frozenset()})  # type: ignore[no-any-return]

    swap(stack, PendingExpand, "maximal", property(lambda self: self.last.isr))
    real = swap(stack, logstore.replication.partition, "next_high_watermark", next_high_watermark)


@plant("a follower joins the ISR below the start of the epoch (KAFKA-7128)")
def no_epoch_start_gate(stack: ExitStack) -> None:
    def may_join(replica: Any, state: Any, **facts: Any) -> bool:
        return bool(real(replica, state, **{**facts, "epoch_start_offset": 0}))

    real = swap(stack, membership, "may_join", may_join)


@plant("a follower joins the ISR at any LEO")
def anybody_joins(stack: ExitStack) -> None:
    def may_join(replica: Any, state: Any, **facts: Any) -> bool:
        return bool(real(replica, state, **{**facts, "epoch_start_offset": 0, "high_watermark": 0}))

    real = swap(stack, membership, "may_join", may_join)


@plant("acks=all is answered after the leader's append")
def acknowledged_too_early(stack: ExitStack) -> None:
    def append_result(manager: Any, topic_partition: Any, status: Any) -> ProduceResult | None:
        found: ProduceResult | None = real(manager, topic_partition, status)
        return status.result if found is None else found

    real = swap(stack, serving, "append_result", append_result)


@plant(
    "a follower serves consumers before its log was compared with the leader's",
    is_rare=True,
)
def served_before_the_comparison(stack: ExitStack) -> None:
    swap(stack, reading, "check_agreed", lambda partition: None)


@plant("consumers read above the high watermark")
def served_above_the_high_watermark(stack: ExitStack) -> None:
    def end_offset_for(log: PartitionLog, isolation: FetchIsolation) -> int:
        return real(log, FetchIsolation.LOG_END)  # type: ignore[no-any-return]

    real = swap(stack, logstore.log.read, "end_offset_for", end_offset_for)
    swap(stack, reading, "end_offset_for", end_offset_for)


@plant("a waiting produce is answered by a later leadership", is_rare=True)
def answered_in_another_tenure(stack: ExitStack) -> None:
    """Two rules hold this, each for the other: who waits is woken when the leader goes, and tenures are told
    apart. Only without both does it happen."""

    def append_result(manager: ReplicaManager, topic_partition: Any, status: Any) -> ProduceResult | None:
        partition = manager.partitions.get(topic_partition)
        if partition is not None:
            if not partition.is_leader:
                return None
            status.tenure = partition.tenure
        return real(manager, topic_partition, status)  # type: ignore[no-any-return]

    real = swap(stack, serving, "append_result", append_result)


@plant("a replaced leader acknowledges what its log holds, committed or not")
def acknowledged_from_the_old_log(stack: ExitStack) -> None:
    def result(manager: ReplicaManager, partition: Partition, status: Any) -> ProduceResult | None:
        found: ProduceResult | None = real(manager, partition, status)
        return status.result if found is None else found

    real = swap(stack, serving, "_result_after_leading", result)


@plant("a replaced leader trusts its high watermark before its log was compared with the new leader's")
def acknowledged_before_the_comparison(stack: ExitStack) -> None:
    """Two rules hold this: the comparison, and the epoch at the batch's offset."""
    swap(stack, Partition, "knows_what_is_committed", property(lambda self: True))
    swap(stack, Partition, "holds", lambda self, end_offset, epoch: True)


@plant("a replaced leader answers that it does not lead, whatever becomes of the batch")
def disowned_at_once(stack: ExitStack) -> None:
    def result(manager: ReplicaManager, partition: Partition, status: Any) -> ProduceResult:
        return ProduceResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    swap(stack, serving, "_result_after_leading", result)


@plant("duplicates are appended again")
def repeats_not_recognised(stack: ExitStack) -> None:
    swap(stack, ProducerState, "check", lambda self, batch, *facts, **more: None)


# --- deletion from the start -------------------------------------------------------------------


@plant("a follower joins the ISR before it knows the leader's log start")
def joins_below_the_log_start(stack: ExitStack) -> None:
    def may_join(*args: Any, **kwargs: Any) -> bool:
        return bool(real(*args, **{**kwargs, "log_start_offset": 0}))

    real = swap(stack, membership, "may_join", may_join)


@plant("a follower never truncates below its log start", is_rare=True)
def cut_stops_at_the_log_start(stack: ExitStack) -> None:
    def truncate_to(partition: Partition, offset: int, **why: Any) -> None:
        real(partition, max(offset, partition.log.log_start_offset), **why)

    real = swap(stack, following, "truncate_to", truncate_to)


@plant("DeleteRecords is answered when only the leader has deleted")
def deleted_on_the_leader_alone(stack: ExitStack) -> None:
    def deletion_result(manager: ReplicaManager, *what: Any) -> DeleteRecordsResult:
        found: DeleteRecordsResult | None = real(manager, *what)
        return found or DeleteRecordsResult(ErrorCode.NONE, what[1].offset)

    real = swap(stack, serving, "deletion_result", deletion_result)


@plant("DeleteRecords deletes uncommitted records")
def deleted_above_the_high_watermark(stack: ExitStack) -> None:
    def delete_records(self: Partition, offset: int) -> int:
        self.check_leader()
        target = min(self.log.log_end_offset, offset) if offset >= 0 else self.log.log_end_offset
        self.log.advance_high_watermark(target)
        upkeep.delete_records(self.log, target)
        return target

    swap(stack, Partition, "delete_records", delete_records)


# --- the disk ----------------------------------------------------------------------------------


@plant("recovery does not compare checksums")
def recovery_without_checksums(stack: ExitStack) -> None:
    def checked(self: Any, fault: Any) -> Any:
        headers = np.frombuffer(b"".join(self._headers), header_dtype())
        self._checksums = [headers["crc"].astype(np.uint32)]
        return real(self, fault)

    real = swap(stack, logstore.segment.scan._Walk, "checked", checked)


@plant("a flush moves the recovery point and syncs nothing")
def flush_without_sync(stack: ExitStack) -> None:
    def sync_segments(self: PartitionLog, end_offset: int) -> None:
        self.recovery_point = max(self.recovery_point, end_offset)

    swap(stack, PartitionLog, "sync_segments", sync_segments)


@plant("durability `synced` counts unflushed data of followers")
def followers_count_unflushed(stack: ExitStack) -> None:
    swap(stack, Flushes, "covers", lambda self, partition, offset: True)


@plant("a receipt takes what followers have written for synced")
def receipt_trusts_the_page_cache(stack: ExitStack) -> None:
    swap(stack, receipts, "claims_are_flushed", lambda partition: True)


@plant("an unclean stop counts as a clean one")
def clean_marker_left_behind(stack: ExitStack) -> None:
    swap(stack, logstore.log.log_dir, "remove_clean_shutdown", lambda disk, directory: None)


@plant("the high watermark checkpoint outlives a truncation of its log")
def watermark_outlives_the_cut(stack: ExitStack) -> None:
    def lower_bounds(self: Any, log: Any, offset: int) -> None:
        offsets, self.high_watermarks.offsets = self.high_watermarks.offsets, {}
        real(self, log, offset)
        self.high_watermarks.offsets = offsets

    real = swap(stack, LogDirCheckpoints, "lower_bounds", lower_bounds)


@plant("durability `synced` counts unflushed data of the leader")
def leader_counts_unflushed(stack: ExitStack) -> None:
    def next_high_watermark(state: Any, **facts: Any) -> int | None:
        return real(state, **{**facts, "leader_safe_offset": facts["leader_end_offset"]})  # type: ignore[no-any-return]

    real = swap(stack, logstore.replication.partition, "next_high_watermark", next_high_watermark)


@plant("a topic switched to `synced` counts as synced at once")
def promised_at_the_switch(stack: ExitStack) -> None:
    def at_level(state: Any, durability: Any, controller_epoch: int) -> Any:
        found = real(state, durability, controller_epoch)
        return found if found is state else replace(found, all_synced=durability is Durability.SYNCED)

    real = swap(stack, election, "at_level", at_level)


@plant(
    "earlier claims of followers count after a switch to `synced`",
    is_rare=True,
)
def claims_outlive_the_switch(stack: ExitStack) -> None:
    def become_leader(self: Partition, state: Any, now_ms: int) -> bool:
        before = dict(self.remote_replicas)
        is_new_epoch: bool = real(self, state, now_ms)
        if not is_new_epoch:
            self.remote_replicas = {each: before.get(each, was) for each, was in self.remote_replicas.items()}
        return is_new_epoch

    real = swap(stack, Partition, "become_leader", become_leader)


# --- fetch sessions ----------------------------------------------------------------------------


@plant("a leader does not notice that a partition in a fetch session has moved (KIP-227)")
def movement_not_noticed(stack: ExitStack) -> None:
    def moved(self: FetchSessions, topic_partition: Any) -> Any:
        sessions = [each for each in self.watchers.get(topic_partition, ()) if each.id]
        yield from real(self, topic_partition)
        for session in sessions:
            session.restless.pop(topic_partition, None)
            self.watch(session, topic_partition)

    real = swap(stack, FetchSessions, "moved", moved)


@plant("a follower continues a fetch session that its leader has dropped (KIP-227)", is_rare=True)
def dropped_session_believed(stack: ExitStack) -> None:
    def on_session_error(self: Any, fetcher: Any, in_flight: Any, error: Any, now_ms: int) -> None:
        fetcher.joined(in_flight.body.session_id)
        fetcher.finish(in_flight)
        for topic_partition in fetcher.states:
            fetcher.delay(topic_partition, now_ms)

    swap(stack, Followers, "_on_session_error", on_session_error)


@plant("a leader repeats nothing to a follower that has dropped an answer in its fetch session")
def told_once(stack: ExitStack) -> None:
    def change(self: FetchSessions, session: Any, body: Any, terms: Any) -> None:
        told = dict(session.told)
        real(self, session, body, terms)
        session.told.update({known: told[known] for known in body.partitions if known in told})

    real = swap(stack, FetchSessions, "_change", change)
