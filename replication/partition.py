"""One partition on this node: its role, its leadership's memory of the followers, and the rules on its log.

    become_leader / become_follower ◀── LeaderAndIsr (leader epoch, partition epoch)
    leader    append ─▶ log ─▶ high watermark ◀─ fetches of followers ─▶ ISR proposals
    follower  append_fetched, reconcile, follow_high_watermark

No message is sent and nobody is woken here: each method is one atomic section over this partition's
state, and tells its caller what moved. The caller (`replica_manager.py`) answers requests and carries
ISR proposals once the section is over.

A crash leaves the log, its epoch checkpoint (an epoch is durable before this node writes under it)
and a high watermark checkpoint that is a lower bound. All else here is memory and is learned anew:
a restarted node is nobody until the controller says otherwise, and a leader that stopped without
closing its log never resumes in the epoch it led, because its log may have lost its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from logstore.disk.errors import ErrorCode
from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull, InconsistentTopicId, OffsetOutOfRange, UnexpectedAppendOffset
from logstore.log.log import AppendInfo, FetchIsolation, Log
from logstore.replication.config import LagCriterion, NodeConfig, ReplicaSelector
from logstore.replication.durability import Durability
from logstore.replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    UnknownLeaderEpoch,
)
from logstore.replication.isr import (
    CommittedIsr,
    IsrState,
    LagBounds,
    PendingExpand,
    PendingIsr,
    PendingShrink,
    PendingSync,
    may_join,
    members_to_drop,
    next_high_watermark,
)
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    NO_LEADER,
    Aborted,
    AlterPartitionResult,
    FetchPartition,
    FetchResult,
    IsrProposal,
    ListOffsetsResult,
    PartitionState,
)
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.reconcile import Truncation, divergence_of, truncation_for
from logstore.replication.replica import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, RemoteReplica
from logstore.replication.strays import is_of_another_incarnation
from logstore.segment.epochs import EpochEndOffset

ACKS_ALL = -1


class IsrOutcome(Enum):
    """What an answer to an ISR proposal meant."""

    STALE = "belongs to a state that was replaced"
    ADOPTED = "persisted"
    REVERTED = "never written"
    UNKNOWN = "refused, or perhaps not: the maximal ISR stands until newer metadata comes"
    RESEND = "no answer worth the name"


_NEVER_WRITTEN = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_OVERTAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


@dataclass(slots=True)
class Counters:
    """What happened to this node's replicas since it started; only ever counted up."""

    elections_won: int = 0
    truncations: int = 0
    records_truncated: int = 0
    truncations_below_high_watermark: int = 0
    protocol_violations: int = 0
    watermarks_lowered: int = 0
    """By a new leader that knew less: followers' only, and it comes back."""
    isr_expands: int = 0
    isr_shrinks: int = 0
    replicated_bytes: int = 0
    """Batches that followers here took over from their leaders."""
    role_changes: int = 0
    """Roles taken, given up or lost: whoever acts for leaders looks again when it has moved."""


class Partition:
    """The replica of one partition on this node."""

    def __init__(
        self, log: Log, config: NodeConfig, metadata: MetadataCache, counters: Counters, *, was_clean: bool
    ) -> None:
        """`was_clean` says that `log` was closed in order before this process opened it."""
        self.log = log
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.isr: IsrState = CommittedIsr(frozenset())
        self.epoch_start_offset: int | None = None
        self.durability = Durability.REPLICATED
        """The level that the controller's last word about this partition names."""
        self.agreed_min_insync = 0
        """How many must be in the ISR for the high watermark to move, by the state that this node goes by."""
        self.all_synced = False
        self.tenure = 0
        """Counts the times this node began or stopped to lead: what was promised in one ends with it."""
        self._is_suspended = False
        self._agreed_epoch = NO_EPOCH
        """The latest leader epoch whose leader took a fetch from the end of this log for one of its own."""
        self._remote: dict[int, RemoteReplica] = {}
        self._node_id = config.node_id
        self._config = config
        self._metadata = metadata
        self._counters = counters
        self._was_clean = was_clean

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def leads(self) -> bool:
        """Whether the controller made this node the leader, suspended or not."""
        return self.leader_id == self._node_id

    @property
    def is_leader(self) -> bool:
        """Whether this node may act as the leader now."""
        return self.leader_id == self._node_id and not self._is_suspended

    @property
    def is_synced(self) -> bool:
        """Whether records count here only once they are flushed."""
        return self.durability is Durability.SYNCED

    @property
    def remote_replicas(self) -> Mapping[int, RemoteReplica]:
        """The followers as their leader knows them; empty on a follower."""
        return self._remote

    @property
    def min_insync(self) -> int:
        """`min.insync.replicas`, read at use, and never more than there are replicas."""
        return min(self.log.config.min_insync_replicas, max(self.replication_factor, 1))

    @property
    def replication_factor(self) -> int:
        """How many replicas the partition has, those not counted that a reassignment is bringing in."""
        return len(self.replicas) - len(self.adding_replicas)

    @property
    def is_under_replicated(self) -> bool:
        """Whether its leader here has fewer replicas in sync than there are to be."""
        return self.is_leader and len(self.isr.committed) < self.replication_factor

    @property
    def is_under_min_isr(self) -> bool:
        """Whether its leader here has fewer replicas in sync than acks=all asks for."""
        return self.is_leader and len(self.isr.committed) < self.min_insync

    @property
    def is_at_min_isr(self) -> bool:
        """Whether its leader here cannot lose one more without refusing acks=all."""
        return self.is_leader and len(self.isr.committed) == self.min_insync

    @property
    def is_catching_up(self) -> bool:
        """Whether its leader here does not know yet if all that it began with is committed (KIP-207)."""
        start = self.epoch_start_offset
        return self.is_leader and start is not None and self.log.high_watermark < start

    # --- roles --------------------------------------------------------------------------------

    def check_new_state(self, state: PartitionState) -> None:
        """Raise `FencedLeaderEpoch` for a role this log has outgrown.

        Epochs in the log come from the store, whose epochs only grow: one above the controller's
        word makes that word old. An unclean stop may have cost this log its end, so records that
        others still have from it would be written a second time under the same epoch: a leader
        that stopped so needs a new one.
        """
        latest = self.log.latest_epoch
        resumes = state.leader == self._config.node_id and self.leader_epoch == NO_EPOCH
        if latest > state.leader_epoch or (resumes and latest == state.leader_epoch and not self._was_clean):
            raise FencedLeaderEpoch(
                f"{self.topic_partition} holds leader epoch {latest} already; "
                f"epoch {state.leader_epoch} cannot begin here, elect again"
            )

    def become_leader(self, state: PartitionState, now_ms: int) -> bool:
        """Lead from now on, or take over a new state of the same leadership; True for a new epoch.

        Raises `FencedLeaderEpoch` (`check_new_state`) and the log's `LogDirOffline`; nothing has
        changed then.
        """
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if is_new_epoch:
            self.check_new_state(state)
            # Durable before the first record, also if there never is one: followers ask where the
            # epoch before it ended (KAFKA-7415).
            self.log.assign_epoch(state.leader_epoch, self.log.log_end_offset)
        was_leader = self.leads
        # Whoever led in an epoch that passed us by may have made our followers cut their logs: what we
        # knew of their ends holds only if no other epoch lies between (reliability R5).
        knows_ends = was_leader and state.leader_epoch == self.leader_epoch + 1
        isr = frozenset(state.isr)
        if is_new_epoch or state.partition_epoch > self.partition_epoch:
            if was_leader and not isinstance(self.isr, CommittedIsr):
                mark("isr: a leader's proposal is overtaken by the controller's word")
            # No news of the ISR ends no proposal: one that is under way may still be persisted.
            self.isr = CommittedIsr(isr)
        becomes_synced = state.durability is Durability.SYNCED is not self.durability
        remote = {}
        for replica_id in state.replicas:
            if replica_id == self._config.node_id:
                continue
            known = self._remote.get(replica_id)
            if known is None or is_new_epoch:
                known = (known or RemoteReplica(replica_id)).under_new_epoch(
                    in_isr=replica_id in isr,
                    was_leader=knows_ends and known is not None,
                    leader_end_offset=self.log.log_end_offset,
                    now_ms=now_ms,
                )
            if becomes_synced:
                # What it claimed so far it may not have flushed.
                mark("partition: a level rises, claims of followers are void")
                known = replace(known, log_end_offset=UNKNOWN_OFFSET)
            remote[replica_id] = known
        self._remote = remote
        if is_new_epoch:
            self.epoch_start_offset = self.log.log_end_offset
            self._counters.elections_won += 1
        if not was_leader:
            self.tenure += 1
        self._adopt(state)
        return is_new_epoch

    def become_follower(self, state: PartitionState) -> bool:
        """Follow `state.leader` (or nobody); True for a new epoch. Raises `FencedLeaderEpoch`."""
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if is_new_epoch:
            self.check_new_state(state)
        if self.leads:
            mark("partition: a leader becomes a follower")
            self.tenure += 1
        self.isr = CommittedIsr(frozenset())
        self._remote = {}
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
        self._is_suspended = False
        self._counters.role_changes += 1

    def suspend(self) -> None:
        """Stop acting in any role until the controller speaks again.

        For a leader whose store session is gone: with it went the right to decide, and others may
        be leading by now. The role comes back with the controller's next word to this node's new
        registration: under the same epoch if the store still says so (nothing was lost, this
        process never stopped), under a newer one otherwise.
        """
        if self.leads and not self._is_suspended:
            self.tenure += 1
        mark("partition: a leader or follower is suspended with its session")
        self._is_suspended = True
        self._counters.role_changes += 1

    @property
    def is_suspended(self) -> bool:
        return self._is_suspended

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise unless the asker lives in our leader epoch, or names none."""
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
            "is not known yet; try again"
        )

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise unless this node leads in the asker's epoch: the epoch is judged before the role."""
        self.check_epoch(current_leader_epoch)
        if not self.is_leader:
            mark("partition: asked of one that does not lead")
            raise NotLeaderOrFollower(
                f"broker {self._config.node_id} does not lead {self.topic_partition}; refresh metadata"
            )

    # --- the leader's data path ---------------------------------------------------------------

    def append(self, data: Buffer, acks: int, now_ms: int) -> tuple[AppendInfo, bool]:
        """Append a client's batch; also whether the high watermark moved.

        Raises `NotLeaderOrFollower`, `NotEnoughReplicas` and whatever the log refuses; nothing was
        appended then.
        """
        self.check_leader()
        if acks == ACKS_ALL and len(self.isr.committed) < self.min_insync:
            mark("partition: acks=all refused for want of replicas in sync")
            raise NotEnoughReplicas(
                f"{self.topic_partition} has {len(self.isr.committed)} replicas in sync, "
                f"min.insync.replicas asks for {self.min_insync}; retry"
            )
        info = self.log.append_as_leader(data, leader_epoch=self.leader_epoch, now_ms=now_ms)
        return info, self.advance_high_watermark(now_ms)

    def advance_high_watermark(self, now_ms: int) -> bool:
        """Move the high watermark as far as the followers allow; True if it moved."""
        log = self.log
        high_watermark, leader_end_offset = log.high_watermark, log.log_end_offset
        if not self.is_leader or high_watermark == leader_end_offset:
            return False
        candidate = next_high_watermark(
            self.isr,
            leader_id=self._node_id,
            leader_end_offset=leader_end_offset,
            leader_safe_offset=min(log.recovery_point, leader_end_offset)
            if self.is_synced
            else leader_end_offset,
            replicas=self._remote.values(),
            eligible=frozenset(filter(self._metadata.may_be_in_sync, self._remote.keys() - self.isr.maximal)),
            # Never below what the controller goes by: it remembers who holds all that is committed.
            min_insync=max(self.agreed_min_insync, self.min_insync if self._config.min_insync_wall else 0),
            now_ms=now_ms,
            lag_time_max_ms=self._config.replica_lag_time_max_ms,
        )
        if candidate is None or candidate <= high_watermark:
            return False
        return log.advance_high_watermark(candidate)

    def read(
        self,
        replica_id: int,
        wanted: FetchPartition,
        *,
        max_bytes: int,
        at_least_one: bool,
        broker_epoch: int = -1,
        rack: str | None = None,
        committed_only: bool = False,
    ) -> FetchResult:
        """What a fetch gets: bytes up to the end for a follower, below the high watermark for a consumer.

        A consumer that names its rack (the empty text if it has none) may be sent to a replica there, and
        is served by a follower too, where the settings select replicas (KIP-392): once its leader has shown
        in this epoch that their logs agree (`agree`).

        Changes nothing. The high watermark in the answer is the one from before this fetch is
        counted. Raises the epoch errors, `NotLeaderOrFollower` and `OffsetOutOfRange`.
        """
        if is_of_another_incarnation(self.log.topic_id, wanted.topic_id):
            raise InconsistentTopicId(
                f"{self.topic_partition} here is of topic id {self.log.topic_id}, not {wanted.topic_id}"
            )
        is_follower = replica_id >= 0
        if rack is not None and self._serves_as_follower:
            self.check_epoch(wanted.current_leader_epoch)
            self._check_agreed()
        else:
            self.check_leader(wanted.current_leader_epoch)
        if is_follower:
            self._check_member(replica_id, wanted.current_leader_epoch, broker_epoch)
        log = self.log
        high_watermark, log_start_offset = log.high_watermark, log.log_start_offset
        is_at_end = wanted.fetch_offset == log.log_end_offset and not log.is_offline
        if is_follower and is_at_end and wanted.last_fetched_epoch in (NO_EPOCH, log.latest_epoch):
            # Of thousands of partitions nearly all are idle: nothing to read, nothing to compare.
            return FetchResult(ErrorCode.NONE, high_watermark, log_start_offset)
        if wanted.last_fetched_epoch != NO_EPOCH:
            divergence = divergence_of(
                fetch_offset=wanted.fetch_offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                log_start_offset=log_start_offset,
                end_of=log.end_offset_for_epoch(wanted.last_fetched_epoch),
            )
            if divergence.is_out_of_range:
                mark("fetch: a diverging follower lies outside of the log")
                raise OffsetOutOfRange(wanted.fetch_offset, log_start_offset, log.log_end_offset)
            if divergence.diverging is not None:
                return FetchResult(
                    ErrorCode.NONE, high_watermark, log_start_offset, diverging_epoch=divergence.diverging
                )
        if rack and not is_follower:
            preferred = self._preferred_replica(rack, wanted.fetch_offset)
            if preferred is not None:
                mark("fetch: a consumer is sent to a replica in its rack")
                return FetchResult(
                    ErrorCode.NONE, high_watermark, log_start_offset, preferred_read_replica=preferred
                )
        isolation = FetchIsolation.LOG_END if is_follower else _isolation(committed_only)
        # Before the read: nothing below it is undecided then, and its aborted transactions are known.
        last_stable_offset = -1 if is_follower else log.last_stable_offset
        end_offset = last_stable_offset if committed_only else high_watermark
        if not is_follower and log_start_offset <= wanted.fetch_offset == end_offset and not log.is_offline:
            # Most consumers wait here most of the time, twice for each empty answer.
            return FetchResult(
                ErrorCode.NONE,
                high_watermark,
                log_start_offset,
                last_stable_offset=last_stable_offset,
                aborted=() if committed_only else None,
            )
        fetched = log.read_bytes(
            wanted.fetch_offset, max_bytes, isolation=isolation, at_least_one=at_least_one
        )
        aborted = None
        if isolation is FetchIsolation.TXN_COMMITTED:
            aborted = tuple(Aborted(each.producer_id, each.first_offset) for each in fetched.aborted)
        return FetchResult(
            ErrorCode.NONE,
            high_watermark,
            log_start_offset,
            fetched.records,
            last_stable_offset=last_stable_offset,
            aborted=aborted,
        )

    @property
    def _serves_as_follower(self) -> bool:
        selects = self._config.replica_selector_class is ReplicaSelector.RACK_AWARE
        return selects and not self.leads and not self._is_suspended and self.leader_id != NO_LEADER

    def _check_agreed(self) -> None:
        if self._agreed_epoch != self.leader_epoch:
            mark("fetch: a consumer asks a follower that has not compared logs with its new leader yet")
            raise NotLeaderOrFollower(
                f"broker {self._config.node_id} does not follow the leader of {self.topic_partition} yet; "
                "ask that one"
            )

    def _preferred_replica(self, rack: str, fetch_offset: int) -> int | None:
        """The follower a consumer of `rack` had better ask; None if that is the leader.

        The leader if it is there itself; else of the live ISR members in that rack that hold the offset the
        one that is furthest.
        """
        config = self._config
        if config.replica_selector_class is ReplicaSelector.NONE or not self.is_leader:
            return None
        if config.broker_rack == rack:
            return None
        candidates = [
            replica
            for replica_id, replica in sorted(self._remote.items())
            if replica_id in self.isr.committed
            and self._metadata.rack_of(replica_id) == rack
            and max(replica.log_start_offset, 0) <= fetch_offset <= replica.log_end_offset
        ]
        if not candidates:
            return None
        return max(candidates, key=lambda replica: (replica.log_end_offset, replica.caught_up_ms)).replica_id

    def is_behind_segment(self, fetch_offset: int, *, to_log_end: bool) -> bool:
        """Whether a read there is in an older segment than what may be read ends in: it need not wait."""
        end_offset = self.log.log_end_offset if to_log_end else self.log.high_watermark
        if fetch_offset >= end_offset:
            return False
        return self.log.segment_base(fetch_offset) < self.log.segment_base(end_offset)

    def _check_member(self, replica_id: int, current_leader_epoch: int, broker_epoch: int) -> None:
        replica = self._remote.get(replica_id)
        if replica is None:
            if current_leader_epoch != NO_EPOCH:
                # It may know of an assignment that has not reached us: let it try again.
                raise UnknownLeaderEpoch(
                    f"broker {replica_id} is no replica of {self.topic_partition} here yet"
                )
            raise NotLeaderOrFollower(f"broker {replica_id} is no replica of {self.topic_partition}")
        newest = max(replica.broker_epoch, self._metadata.broker_epoch(replica_id))
        if UNKNOWN_BROKER_EPOCH < broker_epoch < newest:
            mark("fetch: of an earlier life of a follower")
            raise NotLeaderOrFollower(
                f"fetch of an earlier life of broker {replica_id} ({broker_epoch}, now {newest})"
            )

    def record_fetch(
        self,
        replica_id: int,
        wanted: FetchPartition,
        now_ms: int,
        *,
        broker_epoch: int,
        own_broker_epoch: int,
    ) -> tuple[bool, PendingExpand | None]:
        """Count a follower's successful read: did the high watermark move, and is it to join the ISR?

        Only for the first read of a request: a fetch that was parked says nothing new later on, and
        one that failed or diverged says nothing about our log. Of a `synced` partition only what was
        flushed counts: a follower that does not say so has not heard of the level yet.
        """
        if self.is_synced and not wanted.is_synced:
            mark("durability: a follower claims what it has not flushed")
            return False, None
        replica = self._remote[replica_id].fetched(
            wanted.fetch_offset,
            log_start_offset=wanted.log_start_offset,
            leader_end_offset=self.log.log_end_offset,
            now_ms=now_ms,
            broker_epoch=broker_epoch,
        )
        self._remote[replica_id] = replica
        # The expansion first: once proposed, the new member counts for the high watermark.
        pending = self._propose_expand(replica, own_broker_epoch)
        return self.advance_high_watermark(now_ms), pending

    # --- the in-sync replicas -----------------------------------------------------------------

    def _propose_expand(self, replica: RemoteReplica, own_broker_epoch: int) -> PendingExpand | None:
        assert self.epoch_start_offset is not None, "only a leader counts fetches"
        isr = self.isr
        if not isinstance(isr, CommittedIsr) or not may_join(
            replica,
            isr,
            high_watermark=self.log.high_watermark,
            epoch_start_offset=self.epoch_start_offset,
            is_alive=self._metadata.may_be_in_sync(replica.replica_id),
            live_broker_epoch=self._metadata.broker_epoch(replica.replica_id),
            log_start_offset=self.log.log_start_offset,
        ):
            return None
        proposal = self._proposal(isr.isr | {replica.replica_id}, own_broker_epoch)
        pending = PendingExpand(isr, proposal, replica.replica_id)
        self.isr = pending
        return pending

    def propose_shrink(self, now_ms: int, *, own_broker_epoch: int) -> PendingShrink | None:
        """Propose to drop the members that lag; they count until the store has confirmed it."""
        isr = self.isr
        if not self.is_leader or not isinstance(isr, CommittedIsr):
            return None
        removed = members_to_drop(
            isr,
            self._config.node_id,
            self._remote,
            self.log.log_end_offset,
            now_ms,
            LagBounds(
                self._config.replica_lag_time_max_ms,
                self._config.replica_lag_max_messages,
                by_silence=self._config.replica_lag_criterion is LagCriterion.SILENCE,
            ),
        )
        if not removed:
            return None
        pending = PendingShrink(isr, self._proposal(isr.isr - removed, own_broker_epoch), removed)
        self.isr = pending
        return pending

    def propose_synced(self, *, own_broker_epoch: int) -> PendingSync | None:
        """Report that every ISR member has flushed all that was committed, once after a switch to `synced`.

        Committed under former leaders is at most what this leadership began with.
        """
        isr = self.isr
        if not self.is_leader or not self.is_synced or self.all_synced or not isinstance(isr, CommittedIsr):
            return None
        assert self.epoch_start_offset is not None, "a leader knows where it began"
        bound = max(self.log.high_watermark, self.epoch_start_offset)
        ends = [self._remote[member].log_end_offset for member in isr.isr if member in self._remote]
        if len(ends) < len(isr.isr) - 1 or min((self.log.recovery_point, *ends)) < bound:
            return None
        mark("durability: a switched partition is reported as synced")
        pending = PendingSync(isr, replace(self._proposal(isr.isr, own_broker_epoch), all_synced=True))
        self.isr = pending
        return pending

    def _proposal(self, isr: frozenset[int], own_broker_epoch: int) -> IsrProposal:
        members = tuple(sorted(isr))
        return IsrProposal(
            self.leader_epoch,
            self.partition_epoch,
            members,
            tuple(
                own_broker_epoch
                if member == self._config.node_id
                else self._remote[member].broker_epoch
                if member in self._remote
                else UNKNOWN_BROKER_EPOCH
                for member in members
            ),
        )

    def on_isr_answer(self, pending: PendingIsr, answer: AlterPartitionResult) -> IsrOutcome:
        """Take the controller's answer to `pending`."""
        if self.isr is not pending:
            mark("isr: an answer to a proposal that was replaced")
            return IsrOutcome.STALE
        if answer.error is ErrorCode.NONE:
            if answer.leader_epoch != self.leader_epoch or answer.partition_epoch < self.partition_epoch:
                return IsrOutcome.STALE
            # An equal partition epoch is a repeat of what was applied before.
            self.isr = CommittedIsr(frozenset(answer.isr))
            self.partition_epoch = answer.partition_epoch
            # It may be another by now, in a state that we hear of only here.
            self.agreed_min_insync = answer.min_insync
            if isinstance(pending, PendingExpand):
                mark("isr: a member has joined")
                self._counters.isr_expands += 1
            elif isinstance(pending, PendingShrink):
                mark("isr: members have left")
                self._counters.isr_shrinks += 1
            else:
                self.all_synced = True
            return IsrOutcome.ADOPTED
        if answer.error in _NEVER_WRITTEN:
            mark("isr: a proposal was refused for good")
            self.isr = pending.last
            return IsrOutcome.REVERTED
        if answer.error in _OVERTAKEN:
            mark("isr: the controller has overtaken a proposal")
            return IsrOutcome.UNKNOWN
        return IsrOutcome.RESEND

    # --- deleting from the start --------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """Serve nothing below `offset` any more (-1: the high watermark); returns where that is.

        Followers hear of it with their next fetch. Raises `NotLeaderOrFollower` and what the log refuses:
        `OffsetOutOfRange` past the high watermark, `PolicyViolation` for a log that is compacted only.
        """
        self.check_leader()
        target = self.log.high_watermark if offset == -1 else offset
        self.log.delete_records(target)
        return target

    @property
    def low_watermark(self) -> int:
        """The lowest log start among the live replicas, as they last told it; -1 if one has told nothing."""
        live = (replica for replica in self._remote.values() if self._metadata.is_alive(replica.replica_id))
        return min([self.log.log_start_offset, *(replica.log_start_offset for replica in live)])

    # --- questions ----------------------------------------------------------------------------

    def end_of_epoch(self, epoch: int, current_leader_epoch: int) -> EpochEndOffset:
        """Where `epoch` ends in the leader's log (KIP-101).

        Raises the epoch errors and `NotLeaderOrFollower`.
        """
        self.check_leader(current_leader_epoch)
        return self.log.end_offset_for_epoch(epoch)

    def list_offset(
        self, timestamp: int, *, replica_id: int, current_leader_epoch: int, committed_only: bool = False
    ) -> ListOffsetsResult:
        """The offset for a time or for the largest one, or one of the two ends.

        A replica sees all of the log, a client what is committed, with `committed_only` what is decided.

        Raises the epoch errors, `NotLeaderOrFollower`, and `OffsetNotAvailable` to clients while the
        high watermark has not reached the start of this leadership: the answer could lie below one
        that the leader before gave (KIP-207).
        """
        self.check_leader(current_leader_epoch)
        log = self.log
        if timestamp == EARLIEST_TIMESTAMP:
            epochs = log.epochs
            epoch = epochs[0].epoch if epochs and epochs[0].start_offset <= log.log_start_offset else NO_EPOCH
            return ListOffsetsResult(ErrorCode.NONE, -1, log.log_start_offset, epoch)
        is_replica = replica_id >= 0
        bound = log.end_offset_for(FetchIsolation.LOG_END if is_replica else _isolation(committed_only))
        if timestamp == LATEST_TIMESTAMP:
            if not is_replica:
                self._check_caught_up_with_epoch()
            return ListOffsetsResult(ErrorCode.NONE, -1, bound, self.leader_epoch)
        if timestamp == LARGEST_TIMESTAMP:
            found = log.offset_of_largest_timestamp()
        else:
            found = log.offset_for_timestamp(timestamp)
        if found is not None and found.offset < bound:
            return ListOffsetsResult(ErrorCode.NONE, found.timestamp_ms, found.offset, found.leader_epoch)
        if found is not None:
            self._check_caught_up_with_epoch()
        return ListOffsetsResult(ErrorCode.NONE)

    def _check_caught_up_with_epoch(self) -> None:
        if self.is_catching_up:
            raise OffsetNotAvailable(
                f"{self.topic_partition}: high watermark {self.log.high_watermark} has not reached "
                f"{self.epoch_start_offset}, where this leadership began; retry"
            )

    # --- the follower's data path -------------------------------------------------------------

    def agree(self) -> None:
        """This log is the beginning of its leader's: a fetch from its end did not diverge, and what came with
        the answer, the high watermark among it, was taken over.

        Until then the log, and what passes for committed in it, may be of a history that an unclean election
        gave up.
        """
        self._agreed_epoch = self.leader_epoch

    def append_fetched(self, records: Buffer, *, high_watermark: int, log_start_offset: int) -> None:
        """Append what the leader sent, then take over its high watermark and log start.

        The high watermark may go down here: a new leader may know less than the old one told us.
        Raises what the log refuses, a batch of an epoch above ours among it.
        """
        log = self.log
        end_offset = log.log_end_offset
        if log.log_start_offset < end_offset <= log_start_offset and log.latest_epoch < self.leader_epoch:
            # All of it lies below the leader's log start, where nothing can be compared: it may never have
            # been committed, and neither may what is remembered of its producers, who will send it again.
            mark("partition: nothing here can be compared with the leader's log, which begins behind it")
            self.restart_at(end_offset)
        if records:
            try:
                log.append_as_follower(records, leader_epoch=self.leader_epoch)
            except UnexpectedAppendOffset as error:
                # The leader's log starts inside a batch, and batches are not split: a log of which nothing
                # is left starts where the batch does. In any other log this is a broken fetch.
                is_empty = log.log_start_offset == log.log_end_offset
                is_inside = error.first_offset < log.log_end_offset <= error.last_offset
                if not (is_inside and is_empty):
                    raise
                why = "the leader's log starts inside a batch"
                log.truncate_fully_and_start_at(error.first_offset, why=why)
                log.append_as_follower(records, leader_epoch=self.leader_epoch)
            self._counters.replicated_bytes += len(records)
        before = log.high_watermark
        known_here = min(high_watermark, log.log_end_offset)
        if known_here < log.high_watermark:
            mark("partition: a new leader knows of fewer committed records than its follower")
            self._counters.watermarks_lowered += 1
        log.set_high_watermark(known_here)
        if log_start_offset > log.log_start_offset:
            try:
                log.advance_log_start_offset(min(log_start_offset, log.high_watermark))
            except DiskFull:
                # While what the leader has deleted is served here, no more of it passes for committed.
                log.set_high_watermark(min(before, log.high_watermark))
                raise

    def reconcile(self, answer: EpochEndOffset) -> Truncation:
        """Cut the log where it leaves the leader's; says whether the leader must be asked again."""
        log = self.log
        decision = truncation_for(
            answer,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            own_end_of=log.end_offset_for_epoch,
        )
        self.truncate_to(
            decision.offset,
            why=f"epoch {answer.epoch} ends at {answer.end_offset} for leader {self.leader_id} "
            f"of epoch {self.leader_epoch}",
        )
        return decision

    def truncate_to(self, offset: int, *, why: str = "it parts from the leader's log there") -> None:
        """Cut the log to end at `offset`, epochs without records behind it included."""
        log = self.log
        self._count_truncation(offset)
        # Also when nothing is cut: an epoch that starts at the end has no records and must go
        # (KAFKA-10706), or the leader would answer "diverging" for ever.
        log.truncate_to(offset, why=why)

    def restart_at(self, offset: int, *, why: str = "") -> None:
        """Drop the whole log: the leader's begins only at `offset`, if `why` says nothing else."""
        self._counters.truncations += 1
        self._counters.records_truncated += self.log.log_end_offset - self.log.log_start_offset
        why = why or f"the log of leader {self.leader_id} of epoch {self.leader_epoch} starts at {offset}"
        self.log.truncate_fully_and_start_at(offset, why=why)

    def _count_truncation(self, offset: int) -> None:
        log = self.log
        lost = log.log_end_offset - max(offset, log.log_start_offset)
        if lost > 0:
            self._counters.truncations += 1
            self._counters.records_truncated += lost
            # Legal after an unclean election or a lost disk only; anything else is a bug elsewhere.
            self._counters.truncations_below_high_watermark += offset < log.high_watermark

    def __str__(self) -> str:
        """The notation of the schedules: the epoch of each record, then the high watermark."""
        entries = self.log.epochs
        epochs = []
        slot = -1
        for offset in range(self.log.log_start_offset, self.log.log_end_offset):
            while slot + 1 < len(entries) and entries[slot + 1].start_offset <= offset:
                slot += 1
            epochs.append(str(entries[slot].epoch) if slot >= 0 else "?")
        return f"{self._config.node_id} = {' '.join(epochs) or '·'} | hw {self.log.high_watermark}"


def _isolation(committed_only: bool) -> FetchIsolation:
    return FetchIsolation.TXN_COMMITTED if committed_only else FetchIsolation.HIGH_WATERMARK
