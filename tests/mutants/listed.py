"""The mutants, by area. Each is a mistake that a person could make, and that would cost somebody data."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Area, of
from tests.mutants.queues import QUEUES

_R, _B = "tests/replication", "tests/broker"


_REPLICATION: Final = [
    *of(
        Area.REPLICATION,
        "replication/isr.py",
        (f"{_R}/test_isr.py",),
        ("joins-below-the-epoch-start", ">= max(high_watermark, epoch_start_offset)", ">= high_watermark"),
        (
            "removed-members-do-not-count",
            "    maximal = state.maximal\n    candidate",
            "    maximal = state.committed\n    candidate",
        ),
        (
            "small-isr-commits",
            "if len(state.committed) < min_insync:",
            "if len(state.committed) < min_insync - 1:",
        ),
        ("unknown-member-ignored", "return None if maximal - seen else candidate", "return candidate"),
        (
            "other-life-may-join",
            "return live_broker_epoch in (UNKNOWN_BROKER_EPOCH, replica.broker_epoch)",
            "return UNKNOWN_BROKER_EPOCH in (live_broker_epoch, replica.broker_epoch) or live_broker_epoch > 0",
        ),
    ),
    *of(
        Area.REPLICATION,
        "replication/reconcile.py",
        (f"{_R}/test_reconcile.py",),
        (
            "truncates-to-the-leaders-end-only",
            "return Truncation(min(own.end_offset, answer.end_offset, log_end_offset), True)",
            "return Truncation(min(answer.end_offset, log_end_offset), True)",
        ),
        (
            "reconciled-in-one-step",
            "return Truncation(min(own.end_offset, log_end_offset), False)",
            "return Truncation(min(own.end_offset, log_end_offset), True)",
        ),
        (
            "divergence-at-the-end-only",
            "if end_of.end_offset < fetch_offset:",
            "if end_of.end_offset <= fetch_offset:",
        ),
    ),
    *of(
        Area.REPLICATION,
        "replication/partition.py",
        (f"{_R}/test_partition.py", f"{_R}/test_replica_manager.py", f"{_R}/test_answers_after_leading.py"),
        (
            "unflushed-leader-counts",
            "leader_safe_offset=min(log.recovery_point, leader_end_offset)\n            if self.is_synced\n            else leader_end_offset,",
            "leader_safe_offset=leader_end_offset,",
        ),
        (
            "epoch-not-written-at-election",
            "            self.log.assign_epoch(state.leader_epoch, self.log.log_end_offset)\n",
            "",
        ),
        (
            "min-insync-off-by-one",
            "if acks == ACKS_ALL and len(self.isr.committed) < self.min_insync:",
            "if acks == ACKS_ALL and len(self.isr.committed) + 1 < self.min_insync:",
        ),
        (
            "batch-found-in-another-epoch",
            "log.epoch_for_offset(end_offset - 1) == epoch",
            "log.epoch_for_offset(end_offset - 1) >= epoch",
        ),
        (
            "ends-survive-a-gap-of-epochs",
            "knows_ends = was_leader and state.leader_epoch == self.leader_epoch + 1",
            "knows_ends = was_leader",
        ),
    ),
    *of(
        Area.REPLICATION,
        "replication/membership.py",
        (f"{_R}/test_membership.py", f"{_R}/test_durability.py", f"{_R}/test_replica_manager.py"),
        (
            "older-answer-adopted",
            "is_older = answer.partition_epoch < partition.partition_epoch",
            "is_older = False",
        ),
        (
            "unflushed-follower-counts",
            "if partition.is_synced and not wanted.is_synced:",
            "if partition.is_synced and wanted.is_synced is None:",
        ),
    ),
    *of(
        Area.REPLICATION,
        "replication/orders.py",
        (f"{_R}/test_orders.py", f"{_R}/test_order_gate.py", f"{_R}/test_topics.py", f"{_R}/test_node.py"),
        (
            "old-controller-obeyed",
            "if controller_epoch < manager.controller_epoch:",
            "if controller_epoch < manager.controller_epoch - 1:",
        ),
        (
            "suspended-leader-resumes",
            "return None if body.broker_epoch >= manager.broker_epoch >= 0 else ErrorCode.STALE_BROKER_EPOCH",
            "return None",
        ),
        ("deletion-without-an-id", " or (order.delete and own_id and not topic_id)", ""),
    ),
    *of(
        Area.REPLICATION,
        "replication/order_gate.py",
        (f"{_R}/test_order_gate.py",),
        (
            "any-reply-confirms",
            "self.confirmed_epoch = max(self.confirmed_epoch, epoch)",
            "self.confirmed_epoch = max(self.confirmed_epoch, epoch + 1)",
        ),
        (
            "late-reply-refuses",
            "self._held[: self._covered] if each not in confirmed]",
            "self._held if each not in confirmed]",
        ),
    ),
    *of(
        Area.REPLICATION,
        "replication/controller/alter_partition.py",
        (f"{_R}/controller/test_proposals.py", f"{_R}/controller/test_alter_partition.py"),
        (
            "proposal-over-another-version",
            "    if not is_current:\n",
            "    if partition_epoch < proposal.partition_epoch:\n",
        ),
        (
            "leader-leaves-its-isr",
            "        leader in isr\n        and len(set(isr))",
            "        len(set(isr))",
        ),
        (
            "restarted-member-accepted",
            "epoch in (UNKNOWN_BROKER_EPOCH, live[member].epoch)",
            "epoch <= live[member].epoch",
        ),
    ),
    *of(
        Area.REPLICATION,
        "replication/controller/election.py",
        (f"{_R}/controller/test_election.py",),
        (
            "loss-counts-as-complete",
            "return Standing.RESTARTED if has_all else Standing.LOST",
            "return Standing.RESTARTED",
        ),
        (
            "dead-preferred-elected",
            "return preferred if preferred in live and preferred in isr else None",
            "return preferred if preferred in isr else None",
        ),
    ),
]
_GROUPS: Final = [
    *of(
        Area.GROUPS,
        "logstore/broker/groups/offset_requests.py",
        (f"{_B}/groups/test_group_offsets.py", f"{_B}/groups/test_service_appends.py"),
        (
            "timed-out-commit-counts",
            '    if error:\n        mark("groups: a commit could not be written")',
            '    if error and error is not ErrorCode.REQUEST_TIMED_OUT:\n        mark("groups: a commit could not be written")',
        ),
        (
            "group-deleted-though-the-write-failed",
            '    if error:\n        mark("groups: tombstones could not be written")',
            '    if error and not removal.is_deletion:\n        mark("groups: tombstones could not be written")',
        ),
    ),
    *of(
        Area.GROUPS,
        "logstore/broker/groups/service.py",
        (f"{_B}/groups/test_service_appends.py", f"{_B}/groups/test_service.py"),
        (
            "timed-out-append-counts",
            "            ended(result.error, result.base_offset)",
            "            is_late = result.error is ErrorCode.REQUEST_TIMED_OUT\n            ended(ErrorCode.NONE if is_late else result.error, result.base_offset)",
        ),
        (
            "appended-in-another-epoch",
            "replica.is_leader and replica.leader_epoch == append.leader_epoch",
            "replica.is_leader",
        ),
    ),
    *of(
        Area.GROUPS,
        "logstore/broker/groups/offsets.py",
        (f"{_B}/groups/test_offsets.py", f"{_B}/groups/test_group_offsets.py"),
        (
            "earlier-record-wins",
            "if known is None or known.record_offset <= record_offset:\n            self._committed[",
            "if True:\n            self._committed[",
        ),
        (
            "tombstone-removes-a-later-commit",
            "if known is not None and known.record_offset <= record_offset:\n            del",
            "if known is not None:\n            del",
        ),
        ("aborted-transaction-commits", "        if is_commit:\n", "        if staged:\n"),
        (
            "pending-offset-expires",
            "            if each not in self._pending\n            and",
            "            if",
        ),
    ),
    *of(
        Area.GROUPS,
        "logstore/broker/groups/group.py",
        (
            f"{_B}/groups/test_group.py",
            f"{_B}/groups/test_group_members.py",
            f"{_B}/groups/test_group_offsets.py",
        ),
        (
            "commit-of-another-generation",
            "if error is ErrorCode.NONE and generation != self.generation:",
            "if error is ErrorCode.NONE and generation > self.generation:",
        ),
        (
            "commit-while-assigning",
            "        if self.state is State.COMPLETING_REBALANCE:\n            return ErrorCode.REBALANCE_IN_PROGRESS\n",
            "",
        ),
        (
            "anonymous-commit-into-a-live-group",
            "if self.state is State.EMPTY and request.generation_id < 0:",
            "if request.generation_id < 0:",
        ),
    ),
    *of(
        Area.GROUPS,
        "logstore/broker/groups/sessions.py",
        (f"{_B}/groups/test_group.py", f"{_B}/groups/test_group_members.py"),
        (
            "session-ends-a-step-late",
            "if member.can_expire and member.deadline_ms <= now_ms:",
            "if member.can_expire and member.deadline_ms < now_ms:",
        ),
        ("heartbeat-renews-nothing", "        group.members[request.member_id].renew(now_ms)\n", ""),
    ),
    *of(
        Area.GROUPS,
        "logstore/broker/groups/loading.py",
        (f"{_B}/groups/test_loading.py",),
        ("damaged-group-log-read", "            batch.check_crc()\n", ""),
        (
            "tombstone-of-a-group-ignored",
            "                if record.value is None:\n                    self._metadata.pop(group_id, None)",
            "                if record.value is None:\n                    pass",
        ),
    ),
]
_RECOVERY: Final = [
    *of(
        Area.RECOVERY,
        "logstore/log/recovery.py",
        (
            "tests/logstore/test_recovery.py",
            "tests/logstore/test_log_reopened.py",
            "tests/logstore/test_losses.py",
            "tests/logstore/test_stand_alone.py",
        ),
        (
            "clean-marker-believed-blindly",
            "is_clean = is_clean and _tail_is_whole(loading) and closed_at in (None, log_end_of(loading))",
            "is_clean = is_clean and closed_at in (None, log_end_of(loading))",
        ),
        ("closed-at-ignored", " and closed_at in (None, log_end_of(loading))", ""),
        (
            "reads-one-segment-too-few",
            "max(bisect_right(bases, durable_end) - 1, 0)",
            "bisect_right(bases, durable_end)",
        ),
        (
            "recovery-point-past-the-check",
            "recovery_point=log_end_offset if is_clean and had_segments else min(durable_end, log_end_offset)",
            "recovery_point=log_end_offset",
        ),
        ("lost-end-not-reported", "max(end_offset, log_start_offset) >= durable_end:", "end_offset >= 0:"),
        (
            "overlap-kept",
            "        if base_offset < next_offset:\n            # It begins",
            "        if base_offset < next_offset - 1_000_000:\n            # It begins",
        ),
    ),
    *of(
        Area.RECOVERY,
        "logstore/log/giving_up.py",
        (
            "tests/logstore/test_recovery.py",
            "tests/logstore/test_log_reopened.py",
            "tests/logstore/test_losses.py",
            "tests/logstore/test_stand_alone.py",
        ),
        (
            "tail-cut-below-the-durable-end",
            "below_durable = next_offset < durable_end if loading.knows_durable_end else None",
            "below_durable = next_offset < 0 if loading.knows_durable_end else None",
        ),
        (
            "hole-left-by-a-cut",
            '    remove_segments(loading, later, "it follows a cut", loss_id)\n    segment.log_file.truncate(tail.from_byte)\n',
            '    segment.log_file.truncate(tail.from_byte)\n    remove_segments(loading, later, "it follows a cut", loss_id)\n',
        ),
    ),
    *of(
        Area.RECOVERY,
        "logstore/log/recovery.py",
        ("tests/logstore/test_open_reads.py", "tests/logstore/test_derived.py"),
        (
            "indexes-not-settled",
            "    if rebuilt := segment.indexes.settle(walked.indexed):\n",
            "    if rebuilt := list[str]():\n",
        ),
    ),
    *of(
        Area.RECOVERY,
        "logstore/log/recovery.py",
        ("tests/crash/test_log_points.py", "tests/crash/test_seal_rules.py", "tests/crash/test_rules.py"),
        ("accepted-bytes-not-synced", "    segment.sync_log()\n", ""),
    ),
    *of(
        Area.RECOVERY,
        "logstore/segment/damage.py",
        ("tests/logstore/test_damage.py", "tests/logstore/test_sweep.py", "tests/logstore/test_scan.py"),
        ("damage-before-sound-batches-is-a-tail", "if not is_end or below_durable:", "if below_durable:"),
        ("torn-tail-is-damage", "is_usual or below_durable is False", "is_usual and below_durable is False"),
        (
            "checksum-not-checked",
            "        batch.check_crc()\n    except CorruptBatch:\n        return False\n",
            "        pass\n    except CorruptBatch:\n        return False\n",
        ),
    ),
]
_STORE: Final = [
    *of(
        Area.STORE,
        "replication/metastore/tree.py",
        (f"{_R}/metastore/test_tree.py",),
        (
            "version-not-checked",
            "return None if version in (ANY_VERSION, node.version) else StoreError.BAD_VERSION",
            "return None if version <= node.version else StoreError.BAD_VERSION",
        ),
        (
            "multi-not-undone",
            "                for change in reversed(changes):\n                    change.undo()\n",
            "",
        ),
        ("multi-undone-in-order", "for change in reversed(changes):", "for change in changes:"),
        (
            "ephemeral-outlives-its-session",
            "in sorted(self._ephemeral.pop(session_id, ())):",
            "in sorted(self._ephemeral.pop(session_id - 1, ())):",
        ),
        (
            "watch-fires-for-ever",
            "owners = self._data_watches.pop(path, {})",
            "owners = self._data_watches.get(path, {})",
        ),
        (
            "expired-session-writes",
            "        if session_id not in self._sessions:\n            return Outcome(StoreError.SESSION_EXPIRED), []\n",
            "",
        ),
        (
            "ephemeral-node-has-children",
            "        if existing.ephemeral_owner:\n            return Outcome(StoreError.EPHEMERAL_PARENT)\n",
            "",
        ),
    ),
    *of(
        Area.STORE,
        "replication/metastore/embedded.py",
        (f"{_R}/metastore/test_embedded.py", "tests/crash/test_store_points.py"),
        ("answered-before-the-sync", "            self._journal.sync(data_only=True)\n", ""),
        (
            "used-after-a-failed-sync",
            "shows their content.\n            self._failure = error\n",
            "shows their content.\n",
        ),
        (
            "gap-in-the-journal",
            "        if txid != tree.last_txid + 1:\n",
            "        if txid > tree.last_txid + 1_000:\n",
        ),
        (
            "old-journals-removed-too-early",
            "        file.sync()\n        self._disk.sync_dir(self._directory)\n        for old",
            "        for old",
        ),
    ),
    *of(
        Area.STORE,
        "replication/metastore/journal.py",
        (f"{_R}/metastore/test_embedded.py",),
        (
            "frame-checksum-ignored",
            "    if crc32c(memoryview(data)[position + _CRC_START : end]) != crc:\n        return None\n",
            "",
        ),
        (
            "damaged-journal-is-a-torn-tail",
            "        if frame_at(data, later) is not None:\n",
            "        if frame_at(data, later) is None and later < 0:\n",
        ),
    ),
    *of(
        Area.STORE,
        "logstore/broker/metadata/server.py",
        (f"{_B}/metadata/test_server.py",),
        (
            "replaced-connection-heard",
            "return self._by_session.get(each.session_id) is each.connection",
            "return each.session_id in self._by_session",
        ),
        (
            "session-without-its-password",
            "if not is_owner or not self._store.heartbeat(session_id, now_ms):",
            "if not self._store.heartbeat(session_id, now_ms):",
        ),
    ),
]
_PRODUCERS: Final = [
    *of(
        Area.PRODUCERS,
        "logstore/log/producer_state.py",
        ("tests/logstore/test_producer_state.py", "tests/logstore/test_log_cuts.py"),
        (
            "gap-accepted",
            "        if batch.base_sequence != expected:",
            "        if batch.base_sequence < expected:",
        ),
        ("sequence-does-not-wrap", "entry.last_sequence != MAX_INT", "entry.last_sequence != MAX_INT + 1"),
        (
            "part-of-a-batch-is-a-repeat",
            "if known.last_sequence == last and known.first_sequence == first:",
            "if known.last_sequence == last:",
        ),
        (
            "old-epoch-accepted",
            "        if batch.producer_epoch < entry.epoch:\n",
            "        if batch.producer_epoch < entry.epoch - 1:\n",
        ),
        ("four-batches-known", "REMEMBERED_BATCHES: Final = 5", "REMEMBERED_BATCHES: Final = 4"),
        (
            "sequences-outlive-their-epoch",
            "            self.batches.clear()\n            self.epoch = epoch",
            "            self.epoch = epoch",
        ),
        (
            "transaction-starts-at-the-end",
            "entry.transaction_first_offset = batch.base_offset\n",
            "entry.transaction_first_offset = batch.last_offset\n",
        ),
        (
            "remembers-what-was-truncated",
            "for offset in sorted(batches) if offset < self.end_offset]",
            "for offset in sorted(batches) if offset <= self.end_offset]",
        ),
    ),
    *of(
        Area.PRODUCERS,
        "logstore/broker/producing.py",
        (f"{_B}/test_producing.py",),
        (
            "library-sequence-does-not-wrap",
            "_LAST_SEQUENCE: Final = 2**31\n",
            "_LAST_SEQUENCE: Final = 2**32\n",
        ),
        (
            "unknown-fate-keeps-the-id",
            "                if refusal.is_passing:\n                    self._give_up()\n",
            "",
        ),
        (
            "renewed-on-the-first-batch",
            "if self._may_renew and not is_first and refusal.error in SEQUENCE_LOST:",
            "if self._may_renew and refusal.error in SEQUENCE_LOST:",
        ),
    ),
    *of(
        Area.PRODUCERS,
        "logstore/broker/producer_ids.py",
        (f"{_B}/test_identity.py",),
        (
            "block-written-unconditionally",
            "put(path, attempted, found.version)",
            "put(path, attempted, found.stat and -1)",
        ),
        (
            "id-given-out-twice",
            "layout.parse_producer_ids(found.data).last + 1 if",
            "layout.parse_producer_ids(found.data).last if",
        ),
    ),
]

MUTANTS: Final = [*_REPLICATION, *_GROUPS, *_RECOVERY, *_STORE, *_PRODUCERS, *QUEUES]

EXPLAINED: Final[dict[str, str]] = {}
"""Mutants that may survive, and why."""
