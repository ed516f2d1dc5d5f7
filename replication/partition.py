"""One partition on this node: its role, its log, and the leader's knowledge of its followers.

    partition    the state; roles, epochs, and the leader's path: append, high watermark
    reading      Fetch, ListOffsets, OffsetForLeaderEpoch
    membership   fetches of followers, ISR proposals
    following    the follower's path: append, reconcile, truncate

    become_leader / become_follower ◀── LeaderAndIsr (leader epoch, partition epoch)
    leader    append ─▶ log ─▶ high watermark ◀─ fetches of followers ─▶ ISR proposals
    follower  append_fetched, reconcile, follow_high_watermark

Nothing here sends a message or completes a request. Each function is one atomic section over the state of one
partition, and returns what changed. The caller (`replica_manager.py`) answers requests and carries ISR
proposals afterwards.

After a crash there remain the log, its epoch checkpoint (an epoch is durable before this node writes under
it) and a high watermark checkpoint, which is a lower bound. Everything else is memory. A restarted node has
no role until the controller assigns one. A leader that stopped without closing its log never resumes in the
epoch it led, because its log may have lost its end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OutOfOrderSequence, OutOfResources
from logstore.log.append import AppendInfo, append_as_leader
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import AppendOrigin
from logstore.log.upkeep import delete_records
from logstore.replication.config import NodeConfig
from logstore.replication.durability import Durability
from logstore.replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from logstore.replication.isr import CommittedIsr, IsrState, is_of_live_incarnation, next_high_watermark
from logstore.replication.messages import NO_EPOCH, NO_LEADER, PartitionState
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.refusals import Refusals
from logstore.replication.replica import UNKNOWN_OFFSET, RemoteReplica

ACKS_ALL = -1
_MOST_ENDS = 4096


@dataclass(slots=True)
class Counters:
    """Events of this node's replicas since it started."""

    elections_won: int = 0
    truncations: int = 0
    records_truncated: int = 0
    truncations_below_high_watermark: int = 0
    protocol_violations: int = 0
    watermarks_lowered: int = 0
    """On followers only, by a new leader with an older high watermark; it rises again."""
    isr_expands: int = 0
    isr_shrinks: int = 0
    replicated_bytes: int = 0
    """Bytes of batches that followers here fetched from their leaders."""
    role_changes: int = 0
    """Roles taken, given up or lost."""
    storage_changes: int = 0
    """Log dirs that failed, filled up or have room again, and logs that went offline."""


class Partition:
    """The replica of one partition on this node."""

    def __init__(
        self,
        log: PartitionLog,
        config: NodeConfig,
        metadata: MetadataCache,
        counters: Counters,
        *,
        was_clean: bool,
    ) -> None:
        """`was_clean` means that `log` had been closed in order before this process opened it."""
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.config = config
        self.metadata = metadata
        self.counters = counters
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.isr: IsrState = CommittedIsr(frozenset())
        self.epoch_start_offset: int | None = None
        """The log end offset when this node became leader; None on a follower."""
        self.durability = Durability.REPLICATED
        """The level in the controller's latest state."""
        self.agreed_min_insync = 0
        """The ISR size that the controller's state requires for the high watermark to move."""
        self.all_synced = False
        self._begun_epoch = NO_EPOCH
        """The leader epoch that `begin_epoch` prepared last."""
        self.tenure = 0
        """Changes when this node begins or stops to lead: then the log decides about earlier appends."""
        self.is_suspended = False
        self.noted_log_start = log.log_start_offset
        """The log start offset that followers and leaders were last told of."""
        self.agreed_epoch = NO_EPOCH
        """The latest leader epoch in which the leader confirmed that this log is a prefix of its own."""
        self.doomed: tuple[int, int] | None = None
        """A leader epoch and an offset: that leader ordered a cut there, which waits for room on the disk."""
        self.refusals = Refusals()
        self.remote_replicas: dict[int, RemoteReplica] = {}
        """The followers as their leader knows them; empty on a follower."""
        self._ends: deque[tuple[int, int, int]] = deque(maxlen=_MOST_ENDS)
        """The ends of appends past the high watermark: offset, base offset of the segment, position in it."""
        self._node_id = config.node_id
        self._was_clean = was_clean

    @property
    def leads(self) -> bool:
        """Whether the controller made this node the leader, suspended or not."""
        return self.leader_id == self._node_id

    @property
    def is_leader(self) -> bool:
        """Whether this node may act as the leader now."""
        return self.leader_id == self._node_id and not self.is_suspended

    @property
    def is_synced(self) -> bool:
        """Whether records count here only once they are flushed."""
        return self.durability is Durability.SYNCED

    @property
    def min_insync(self) -> int:
        """`min.insync.replicas` as set now, at most the number of replicas."""
        return min(self.log.config.min_insync_replicas, max(self.replication_factor, 1))

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that a reassignment is adding."""
        return len(self.replicas) - len(self.adding_replicas)

    @property
    def is_under_replicated(self) -> bool:
        """Whether this leader has fewer replicas in sync than assigned."""
        return self.is_leader and len(self.isr.committed) < self.replication_factor

    @property
    def is_under_min_isr(self) -> bool:
        """Whether this leader has fewer replicas in sync than acks=all requires."""
        return self.is_leader and len(self.isr.committed) < self.min_insync

    @property
    def is_at_min_isr(self) -> bool:
        """Whether this leader refuses acks=all if one more replica falls out of sync."""
        return self.is_leader and len(self.isr.committed) == self.min_insync

    @property
    def is_catching_up(self) -> bool:
        """Whether this leader does not know yet that all it began with is committed (KIP-207)."""
        start = self.epoch_start_offset
        return self.is_leader and start is not None and self.log.high_watermark < start

    # --- roles --------------------------------------------------------------------------------

    def check_new_state(self, state: PartitionState) -> None:
        """Raise `FencedLeaderEpoch` for a role that is too old for this log.

        Epochs in the log come from the store, where they only grow: a higher one makes the controller's state
        old. After an unclean stop the log may lack its end. Other replicas may still have those records, so a
        leader must not write others under the same epoch: it needs a new one.
        """
        latest = self.log.latest_epoch
        is_ours = state.leader_epoch == self._begun_epoch  # in this process, and nothing was written in it
        resumes = state.leader == self._node_id and self.leader_epoch == NO_EPOCH and not is_ours
        if latest > state.leader_epoch or (resumes and latest == state.leader_epoch and not self._was_clean):
            raise FencedLeaderEpoch(
                f"{self.topic_partition} already has leader epoch {latest}; "
                f"epoch {state.leader_epoch} cannot begin here, elect again"
            )

    def begin_epoch(self, state: PartitionState) -> bool:
        """Have the next flush of the log assign the epoch of a new leadership; True if that must come first.

        The epoch is durable when `become_leader` is called after it, and nothing is written in that turn. A
        node that leads already goes on appending meanwhile: it assigns its next epoch by itself.
        Raises `FencedLeaderEpoch` (`check_new_state`).
        """
        epoch = state.leader_epoch
        if self.leads or epoch <= max(self.leader_epoch, self.log.latest_epoch) or epoch == self._begun_epoch:
            return False
        self.check_new_state(state)
        self._begun_epoch = self.log.epoch_to_begin = epoch
        return True

    def become_leader(self, state: PartitionState, now_ms: int) -> bool:
        """Lead, or take over a new state of the same leadership; True for a new epoch.

        Raises `FencedLeaderEpoch` (`check_new_state`) and the log's `LogDirOffline`, with nothing changed.
        """
        self.log.epoch_to_begin = None
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if is_new_epoch:
            self.check_new_state(state)
            # Durable before the first record, and even without one: followers ask for the end of the
            # epoch before (KAFKA-7415).
            self.log.assign_epoch(state.leader_epoch, self.log.log_end_offset)
        was_leader = self.leads
        # A leader of an epoch in between may have made our followers truncate their logs: known log end
        # offsets hold only if this epoch directly follows ours.
        knows_ends = was_leader and state.leader_epoch == self.leader_epoch + 1
        isr = frozenset(state.isr)
        if is_new_epoch or state.partition_epoch > self.partition_epoch:
            if was_leader and not isinstance(self.isr, CommittedIsr):
                mark("isr: a leader's proposal is overtaken by the controller's word")
            # A state without a newer ISR ends no proposal: the proposal may still be persisted.
            self.isr = CommittedIsr(isr)
        becomes_synced = state.durability is Durability.SYNCED is not self.durability
        remote = {}
        for replica_id in state.replicas:
            if replica_id == self._node_id:
                continue
            known = self.remote_replicas.get(replica_id)
            if known is None or is_new_epoch:
                known = (known or RemoteReplica(replica_id)).under_new_epoch(
                    in_isr=replica_id in isr,
                    was_leader=knows_ends and known is not None,
                    leader_end_offset=self.log.log_end_offset,
                    now_ms=now_ms,
                )
            if becomes_synced:
                # It may not have flushed what it claimed so far.
                mark("partition: a level rises, claims of followers are void")
                known = replace(known.settled(), log_end_offset=UNKNOWN_OFFSET)
            remote[replica_id] = known
        self.remote_replicas = remote
        if is_new_epoch:
            self.epoch_start_offset = self.log.log_end_offset
            self.counters.elections_won += 1
        if not was_leader:
            self.tenure += 1
            self.refusals.clear()
        self._adopt(state)
        return is_new_epoch

    def become_follower(self, state: PartitionState) -> bool:
        """Follow `state.leader`, if there is one; return True for a new epoch. Raises `FencedLeaderEpoch`."""
        self.log.epoch_to_begin = None
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if is_new_epoch:
            self.check_new_state(state)
        if self.leads:
            mark("partition: a leader becomes a follower")
            self.tenure += 1
            self.refusals.clear()
        self.isr = CommittedIsr(frozenset())
        self.remote_replicas = {}
        self.epoch_start_offset = None
        self._adopt(state)
        return is_new_epoch

    def _adopt(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        self.durability = state.durability
        self.agreed_min_insync = state.min_insync
        self.all_synced = state.all_synced
        self.is_suspended = False
        self._ends.clear()
        self.counters.role_changes += 1

    def suspend(self) -> None:
        """Stop acting in any role until the controller's next request.

        A leader without a store session must not decide: others may lead already. The role returns with the
        controller's next request for the new registration: under the same epoch if the store still names this
        node (this process never stopped, so nothing was lost), else under a newer one.
        """
        if self.leads and not self.is_suspended:
            self.tenure += 1
        mark("partition: a leader or follower is suspended with its session")
        self.is_suspended = True
        self.counters.role_changes += 1

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise unless the requester names our leader epoch, or none."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            mark("partition: somebody asks in an old epoch")
            raise FencedLeaderEpoch(
                f"{self.topic_partition} is at leader epoch {self.leader_epoch}, not {current_leader_epoch}; "
                "refresh metadata"
            )
        mark("partition: somebody asks in an epoch not known here yet")
        raise UnknownLeaderEpoch(
            f"{self.topic_partition} is at leader epoch {self.leader_epoch} here, {current_leader_epoch} "
            "is not known yet; retry"
        )

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise unless this node leads in the requester's epoch. The epoch is checked before the role."""
        self.check_epoch(current_leader_epoch)
        if not self.is_leader:
            mark("partition: asked of one that does not lead")
            raise NotLeaderOrFollower(
                f"broker {self._node_id} does not lead {self.topic_partition}; refresh metadata"
            )

    # --- the leader's path --------------------------------------------------------------------

    def append(
        self, data: Buffer, acks: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> tuple[AppendInfo, bool]:
        """Append a client's batch, or a marker; also returns whether the high watermark moved.

        Raises `NotLeaderOrFollower`, `NotEnoughReplicas` and the log's refusals, with nothing appended.
        """
        self.check_leader()
        if self.refusals.by_producer:
            self.refusals.check(data, now_ms)
        if acks == ACKS_ALL and len(self.isr.committed) < self.min_insync:
            mark("partition: acks=all refused for want of replicas in sync")
            refusal = NotEnoughReplicas(
                f"{self.topic_partition} has {len(self.isr.committed)} replicas in sync, "
                f"min.insync.replicas is {self.min_insync}; retry"
            )
            self.refusals.note(data, refusal, now_ms, self.log.producer_state)
            raise refusal
        log, ends = self.log, self._ends
        try:
            info = append_as_leader(log, data, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin)
        except OutOfResources as error:
            self.refusals.note(data, error, now_ms, log.producer_state)
            raise
        except OutOfOrderSequence as error:
            if self._is_followed:
                raise
            raise NotLeaderOrFollower(
                f"broker {self._node_id} leads {self.topic_partition} in epoch {self.leader_epoch}, and no "
                f"follower has fetched in it yet: it may have been replaced ({error}); refresh metadata"
            ) from error
        has_moved = self.advance_high_watermark(now_ms)
        high_watermark = log.high_watermark
        while ends and ends[0][0] < high_watermark:
            ends.popleft()
        if high_watermark < log.log_end_offset:
            active = log.segments.active
            ends.append((log.log_end_offset, active.base_offset, active.size))
        return info, has_moved

    @property
    def _is_followed(self) -> bool:
        """Whether the ISR has no other member, or one has fetched from this leader.

        If none has, another may lead by now, with records that are missing here: a gap in a producer's
        sequence tells nothing then, and would make the producer give up its batch.
        """
        others = self.isr.committed - {self._node_id}
        known = (self.remote_replicas.get(each) for each in others)
        return not others or any(each and each.log_end_offset != UNKNOWN_OFFSET for each in known)

    def place_of_end(self, *, is_log_end: bool) -> tuple[int, int] | None:
        """Return where the log, or what is committed of it, ends: base offset of the segment, position in it.

        None if that is not known without reading.
        """
        log, ends = self.log, self._ends
        high_watermark = log.high_watermark
        active = log.segments.active
        if is_log_end or high_watermark == log.log_end_offset:
            return active.base_offset, active.size
        if high_watermark == active.base_offset:
            return active.base_offset, 0
        while ends and ends[0][0] < high_watermark:
            ends.popleft()
        return ends[0][1:] if ends and ends[0][0] == high_watermark else None

    def holds(self, end_offset: int, epoch: int) -> bool:
        """Whether the log has the batch that was written in leader epoch `epoch` and ended at `end_offset`.

        Only the leader of an epoch writes in it, and it writes each offset once. So the epoch at an offset
        tells whether the same batch is there, whatever was truncated and fetched meanwhile. A batch that the
        leader does not have counts as gone, even while a full disk delays the truncation.
        """
        log = self.log
        if self.doomed is not None and self.doomed[0] == self.leader_epoch and end_offset > self.doomed[1]:
            return False
        return end_offset <= log.log_end_offset and log.epoch_for_offset(end_offset - 1) == epoch

    @property
    def knows_what_is_committed(self) -> bool:
        """Whether the log below the high watermark is the current leader's history."""
        return self.is_leader or self.agreed_epoch == self.leader_epoch

    def advance_high_watermark(self, now_ms: int) -> bool:
        """Move the high watermark as far as the followers allow; True if it moved."""
        log = self.log
        high_watermark, leader_end_offset = log.high_watermark, log.log_end_offset
        if not self.is_leader or high_watermark == leader_end_offset:
            return False
        metadata, known = self.metadata, self.remote_replicas
        eligible = frozenset(
            each
            for each in known.keys() - self.isr.maximal
            if metadata.may_be_in_sync(each)
            and is_of_live_incarnation(known[each], metadata.broker_epoch(each))
        )
        candidate = next_high_watermark(
            self.isr,
            leader_id=self._node_id,
            leader_end_offset=leader_end_offset,
            leader_safe_offset=min(log.recovery_point, leader_end_offset)
            if self.is_synced
            else leader_end_offset,
            replicas=self.remote_replicas.values(),
            eligible=eligible,
            # Never below the controller's number: it knows which replicas hold all that is committed.
            min_insync=max(self.agreed_min_insync, self.min_insync if self.config.min_insync_wall else 0),
            now_ms=now_ms,
            lag_time_max_ms=self.config.replica_lag_time_max_ms,
        )
        if candidate is None or candidate <= high_watermark:
            return False
        return log.advance_high_watermark(candidate)

    def delete_records(self, offset: int) -> int:
        """Raise the log start offset to `offset` (-1: the high watermark), and return it.

        Followers learn of it with their next fetch. Raises `NotLeaderOrFollower` and the log's refusals:
        `OffsetOutOfRange` above the high watermark, `PolicyViolation` if the log is only compacted.
        """
        self.check_leader()
        target = self.log.high_watermark if offset == -1 else offset
        delete_records(self.log, target)
        return target

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset that the ISR and the live replicas last reported; -1 if one has not.

        A dead member counts until it has left the ISR: it may lead when it returns.
        """
        known, members = self.remote_replicas.values(), self.isr.maximal
        counts = (
            each for each in known if each.replica_id in members or self.metadata.is_alive(each.replica_id)
        )
        return min([self.log.log_start_offset, *(replica.log_start_offset for replica in counts)])

    @property
    def may_be_led_from_outside(self) -> bool:
        """Whether a replica outside of the ISR may be elected, because the ISR is too small to commit."""
        return len(self.isr.committed) < self.agreed_min_insync

    def __str__(self) -> str:
        """The notation of the failure schedules: the epoch of each record, then the high watermark."""
        entries = self.log.epochs
        epochs = []
        slot = -1
        for offset in range(self.log.log_start_offset, self.log.log_end_offset):
            while slot + 1 < len(entries) and entries[slot + 1].start_offset <= offset:
                slot += 1
            epochs.append(str(entries[slot].epoch) if slot >= 0 else "?")
        return f"{self._node_id} = {' '.join(epochs) or '·'} | hw {self.log.high_watermark}"
