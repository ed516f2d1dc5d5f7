"""The replicas of one node, and the turn in which everything about them happens.

    replicas         Replicas         partitions · turns · failing dirs · answers of others · ISRs · flushes
    orders           Orders           the controller's word: roles, deletions, who is alive
    replica_manager  ReplicaManager   what clients and followers ask

Each layer is the one above it and more; none knows of those below (decision 022). They share one state,
because a role, an append and a fetch change the same partitions.

Every public method is one turn: it changes partitions, notes whose waiting requests may be ready,
and answers those at the end of the turn, never in the middle of a partition's change. What it wants
sent is returned as effects.

A log that fails takes its dir with it, and every replica in that dir resigns: it leads and follows nobody
and answers `KAFKA_STORAGE_ERROR` until the node is started anew. `Node` tells the controller; all
others go on. A role that was refused for want of room is asked for again, later each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogDirOffline
from logstore.log.manager import LogManager
from logstore.replication.config import LagCriterion, NodeConfig
from logstore.replication.delayed import Purgatory
from logstore.replication.effects import Effect, Send, Sync, SyncDone
from logstore.replication.errors import (
    InvalidRequest,
    NotLeaderOrFollower,
    ReplicaStorageFailed,
    UnknownTopicOrPartition,
    code_of,
)
from logstore.replication.follower import Followers
from logstore.replication.isr import CommittedIsr, PendingIsr
from logstore.replication.isr_channel import IsrChannel
from logstore.replication.messages import (
    NO_LEADER,
    AlterPartitionResponse,
    DeleteRecordsResult,
    FetchResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
    ProduceResult,
)
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.partition import Counters, IsrOutcome, Partition
from logstore.replication.state_change import Side, Sink, StateChange, unheard
from logstore.replication.waiting import DelayedByPartition, DelayedFetch

NO_EPOCH_GIVEN = -1
_LONGEST_BACKOFF = 60
"""In first back-offs: how long at most until a role is asked for again that was refused for want of room."""


class Replicas:
    """The replicas of this node, who waits for what, and what they want of others."""

    def __init__(
        self,
        config: NodeConfig,
        logs: LogManager,
        *,
        next_id: Callable[[], int],
        default_config: LogConfig,
        state_changes: Sink = unheard,
    ) -> None:
        """`default_config` is what topics without settings of their own have."""
        self._state_changes = state_changes
        self.config = config
        self.logs = logs
        self.metadata = MetadataCache()
        self.counters = Counters()
        self.controller_epoch = 0
        self.controller_id = -1
        self.broker_epoch = -1
        self.is_departing = False
        """Whether this node is about to stop: it takes no new leader to follow."""
        self._latest_broker_epoch = -1
        self.is_on_record = False
        """Whether the controller gave this process a role: what its start may have lost is written down."""
        self._newest_metadata = (-1, -1)
        self._newest_roles = (-1, -1)
        self._newest_stops = (-1, -1)
        self._failed_dirs = 0
        self.failures = 0
        """Counts what the controller is to ask for its roles again for; see `Node`."""
        self._lacking_room: dict[TopicPartition, None] = {}
        self._ask_again_ms: int | None = None
        self._ask_again_after_ms = config.replica_fetch_backoff_ms
        self._default_config = default_config
        self._next_id = next_id
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, str] = {}
        self._newly_offline: list[TopicPartition] = []
        self._deleted: dict[TopicPartition, tuple[str, int]] = {}
        """Replicas that the controller let this process delete: topic id, and in which leader epoch."""
        self.strays: dict[TopicPartition, str] = {}
        """Logs that were set aside since this node started, and why."""
        self._produces: Purgatory[TopicPartition, DelayedByPartition[ProduceResult]] = Purgatory(
            purge_interval_requests=config.producer_purgatory_purge_interval_requests
        )
        self._fetches: Purgatory[TopicPartition, DelayedFetch] = Purgatory(
            purge_interval_requests=config.fetch_purgatory_purge_interval_requests
        )
        self._deletions: Purgatory[TopicPartition, DelayedByPartition[DeleteRecordsResult]] = Purgatory(
            purge_interval_requests=config.producer_purgatory_purge_interval_requests
        )
        self._channel = IsrChannel(config)
        self._followers = Followers(
            config,
            next_id=next_id,
            may_fetch=self._is_flushed_to,
            on_storage_failure=self._take_offline,
            on_progress=self._wake,
        )
        self._effects: list[Effect] = []
        self._woken: dict[TopicPartition, None] = {}
        self._syncing: dict[TopicPartition, int] = {}
        self._configs: dict[str, tuple[Mapping[str, str], LogConfig]] = {}
        self._next_shrink_check_ms: int | None = None
        self._next_checkpoint_ms: int | None = None

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The replicas that this node knows its role for."""
        return self._partitions

    @property
    def waiting(self) -> int:
        """How many requests wait here for something that has not happened yet."""
        return self._produces.delayed + self._fetches.delayed + self._deletions.delayed

    @property
    def followers(self) -> Followers:
        return self._followers

    @property
    def offline(self) -> Mapping[TopicPartition, str]:
        """Replicas whose log failed, and why; until the node is started anew."""
        return self._offline

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The replica here. Raises the errors that a client understands where there is none."""
        if topic_partition in self._offline:
            raise ReplicaStorageFailed(f"{topic_partition} is offline: {self._offline[topic_partition]}")
        found = self._partitions.get(topic_partition)
        if found is not None:
            return found
        if (damage := self.logs.damaged.get(topic_partition)) is not None:
            raise ReplicaStorageFailed(f"{topic_partition} is damaged: {damage}")
        if topic_partition in self.metadata.partitions:
            raise NotLeaderOrFollower(
                f"broker {self.config.node_id} has no replica of {topic_partition}; refresh metadata"
            )
        raise UnknownTopicOrPartition(f"{topic_partition} is not known here")

    # --- gauges --------------------------------------------------------------------------------

    @property
    def under_replicated_partitions(self) -> int:
        """Led here, with fewer replicas in sync than they have."""
        return sum(partition.is_under_replicated for partition in self._partitions.values())

    @property
    def under_min_isr_partitions(self) -> int:
        """Led here, with too few in sync for acks=all."""
        return sum(partition.is_under_min_isr for partition in self._partitions.values())

    @property
    def at_min_isr_partitions(self) -> int:
        """Led here, with just enough in sync for acks=all."""
        return sum(partition.is_at_min_isr for partition in self._partitions.values())

    @property
    def partitions_catching_up(self) -> int:
        """Led here, where consumers are not told of an end yet: it may lie below one they have seen."""
        return sum(partition.is_catching_up for partition in self._partitions.values())

    @property
    def offline_replicas(self) -> int:
        """Replicas here that serve nothing: their log failed, or was found damaged."""
        return len(self._offline) + len(self.logs.damaged)

    @property
    def failed_partitions(self) -> int:
        """Followed no more until the controller speaks; `followers.failed` says which, and why."""
        return len(self._followers.failed)

    def resize_fetchers(self, count: int, now_ms: int) -> list[Effect]:
        """Set `num.replica.fetchers`: every followed partition goes to the fetcher it now belongs to."""
        self._followers.resize(count)
        return self._end_turn(now_ms)

    # --- turns ---------------------------------------------------------------------------------

    def _end_turn(self, now_ms: int) -> list[Effect]:
        """Answer what has become ready, send what is due, hand everything over."""
        self._resign_with_failed_dirs()
        for topic_partition in self._newly_offline:
            self._note(topic_partition, "goes offline", now_ms, reason=self._offline.get(topic_partition, ""))
        self._newly_offline.clear()
        while self._woken:
            topic_partition = next(iter(self._woken))
            del self._woken[topic_partition]
            self._produces.check(topic_partition, now_ms)
            self._fetches.check(topic_partition, now_ms)
            self._deletions.check(topic_partition, now_ms)
        # A follower between two registrations goes on as what it was last: a fetch without an epoch could
        # not be told from one of a former life, if it came late.
        self._effects += self._followers.pump(self._latest_broker_epoch, now_ms)
        if self.controller_id >= 0:
            request = self._channel.next_request(self._next_id, self.broker_epoch, now_ms)
            if request is not None:
                self._effects.append(Send(self.controller_id, *request))
        effects, self._effects = self._effects, []
        return effects

    def _wake(self, topic_partition: TopicPartition) -> None:
        self._woken[topic_partition] = None

    def _take_offline(self, topic_partition: TopicPartition, error: Exception) -> None:
        """The log of one replica failed: nothing is acknowledged or served from it any more."""
        self.failures += topic_partition not in self._offline
        self._offline[topic_partition] = str(error)
        self._newly_offline.append(topic_partition)
        self._lacking_room.pop(topic_partition, None)
        if self._partitions.pop(topic_partition, None) is not None:
            self.counters.role_changes += 1
        self._syncing.pop(topic_partition, None)
        self._followers.remove(topic_partition)
        self._channel.withdraw(topic_partition)
        self._wake(topic_partition)

    def _resign_with_failed_dirs(self) -> None:
        """The log that failed took its whole dir offline: the replicas beside it have not noticed yet."""
        failed_dirs = self.logs.offline_dirs
        if len(failed_dirs) == self._failed_dirs:
            return
        self._failed_dirs = len(failed_dirs)
        reason = LogDirOffline("; ".join(f"{path}: {reason}" for path, reason in failed_dirs.items()))
        for topic_partition, partition in list(self._partitions.items()):
            if partition.log.is_offline:
                self._take_offline(topic_partition, reason)

    def _refuse_for_want_of_room(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Nothing failed, so it may work another time: have the controller order it again after a while."""
        mark("replica manager: a role is refused for want of room")
        self._lacking_room[topic_partition] = None
        if self._ask_again_ms is None:
            self._ask_again_ms = now_ms + self._ask_again_after_ms
            longest_ms = _LONGEST_BACKOFF * self.config.replica_fetch_backoff_ms
            self._ask_again_after_ms = min(2 * self._ask_again_after_ms, longest_ms)

    def _has_room_for(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self._lacking_room:
            del self._lacking_room[topic_partition]
            self._ask_again_after_ms = self.config.replica_fetch_backoff_ms

    def _ask_again(self, now_ms: int) -> None:
        if self._ask_again_ms is None or self._ask_again_ms > now_ms:
            return
        self._ask_again_ms = None
        self.failures += bool(self._lacking_room)

    def _guard(self, topic_partition: TopicPartition, error: EngineError | OSError) -> ErrorCode:
        """The code for a refusal; a storage failure also takes the replica offline."""
        if isinstance(error, LogDirOffline | OSError):
            self._take_offline(topic_partition, error)
        return code_of(error)

    def tick(self, now_ms: int) -> list[Effect]:
        """What time asks for: expired requests, lagging ISR members, checkpoints."""
        self._produces.expire(now_ms)
        self._fetches.expire(now_ms)
        self._deletions.expire(now_ms)
        self._ask_again(now_ms)
        if self._next_shrink_check_ms is not None and self._next_shrink_check_ms <= now_ms:
            self._next_shrink_check_ms = now_ms + self._shrink_check_interval_ms
            self._check_isrs(now_ms)
        if self._next_checkpoint_ms is not None and self._next_checkpoint_ms <= now_ms:
            self._next_checkpoint_ms = now_ms + self.config.replica_high_watermark_checkpoint_interval_ms
            self.logs.checkpoint_high_watermarks()
        return self._end_turn(now_ms)

    @property
    def _shrink_check_interval_ms(self) -> int:
        if self.config.replica_lag_criterion is LagCriterion.SILENCE:
            return self.config.replica_lag_time_max_ms
        return max(self.config.replica_lag_time_max_ms // 2, 1)

    @property
    def deadline_ms(self) -> int | None:
        deadlines = (
            self._produces.deadline_ms,
            self._fetches.deadline_ms,
            self._deletions.deadline_ms,
            self._followers.deadline_ms,
            self._channel.deadline_ms if self.broker_epoch >= 0 and self.controller_id >= 0 else None,
            self._next_shrink_check_ms,
            self._next_checkpoint_ms,
            self._ask_again_ms,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # --- the state-change log ------------------------------------------------------------------

    def _record(self, partition: Partition, change: str, reason: str, now_ms: int) -> None:
        """Enter what happened to a replica into the state-change log, with the state it is in now."""
        self._note(
            partition.topic_partition,
            change,
            now_ms,
            leader=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple(sorted(partition.isr.committed)),
            replicas=partition.replicas,
            reason=reason,
        )

    def _note(
        self,
        topic_partition: TopicPartition,
        change: str,
        now_ms: int,
        *,
        leader: int = NO_LEADER,
        leader_epoch: int = NO_EPOCH_GIVEN,
        partition_epoch: int = -1,
        isr: tuple[int, ...] = (),
        replicas: tuple[int, ...] = (),
        reason: str = "",
    ) -> None:
        self._state_changes(
            StateChange(
                now_ms,
                self.config.node_id,
                Side.BROKER,
                self.controller_epoch,
                topic_partition,
                change,
                leader,
                leader_epoch,
                partition_epoch,
                isr,
                replicas,
                reason,
            )
        )

    # --- answers from others -------------------------------------------------------------------

    def on_response(
        self,
        correlation_id: int,
        body: FetchResponse | ListOffsetsResponse | OffsetForLeaderEpochResponse | AlterPartitionResponse,
        now_ms: int,
    ) -> list[Effect]:
        """An answer of a leader or of the controller. Late ones are dropped."""
        if isinstance(body, AlterPartitionResponse):
            if self._channel.owns(correlation_id):
                self._on_isr_answers(body, now_ms)
        else:
            try:
                self._followers.on_response(correlation_id, body, now_ms)
            except InvalidRequest:
                # The peer broke the protocol. All that was asked of it pauses; nothing was changed.
                self.counters.protocol_violations += 1
        return self._end_turn(now_ms)

    def on_disconnected(self, correlation_id: int, now_ms: int) -> bool:
        """No answer will come. False if the request was not one of ours."""
        if self._channel.owns(correlation_id):
            self._channel.on_disconnected(now_ms)
            return True
        return self._followers.on_disconnected(correlation_id, now_ms)

    # --- ISR proposals -------------------------------------------------------------------------

    def _submit(self, partition: Partition, pending: PendingIsr, now_ms: int) -> None:
        self._channel.submit(partition.topic_partition, pending)
        self._record(partition, "proposes an ISR", f"of {list(pending.proposal.new_isr)}", now_ms)

    def _on_isr_answers(self, body: AlterPartitionResponse, now_ms: int) -> None:
        for topic_partition, pending, result in self._channel.on_response(body, now_ms):
            partition = self._partitions.get(topic_partition)
            if partition is None:
                continue
            match partition.on_isr_answer(pending, result):
                case IsrOutcome.ADOPTED:
                    self._record(partition, "adopts an ISR", "", now_ms)
                    self._advance(partition, now_ms)
                    self._wake(topic_partition)
                case IsrOutcome.RESEND:
                    self._channel.resend(topic_partition, pending, now_ms)
                case IsrOutcome.STALE | IsrOutcome.REVERTED | IsrOutcome.UNKNOWN:
                    # UNKNOWN waits for the controller's next word, with the larger ISR, and asks for it
                    # again at the next check of all ISRs.
                    pass

    def _check_isrs(self, now_ms: int) -> None:
        for topic_partition, partition in self._partitions.items():
            partition.propose_shrink(now_ms, own_broker_epoch=self.broker_epoch)
            partition.propose_synced(own_broker_epoch=self.broker_epoch)
            # A proposal that was refused for good stays pending until the controller speaks: its word may
            # have been lost, and whoever asks again is told.
            if partition.is_leader and not self._channel.holds(topic_partition):
                pending = partition.isr
                if not isinstance(pending, CommittedIsr):
                    self._submit(partition, pending, now_ms)
            self._advance(partition, now_ms)

    def _advance(self, partition: Partition, now_ms: int) -> None:
        if partition.advance_high_watermark(now_ms):
            self._wake(partition.topic_partition)

    # --- flushes (SYNCED durability) -----------------------------------------------------------

    def _is_flushed_to(self, partition: Partition, offset: int) -> bool:
        """Whether a fetch may claim `offset`; asks for the flush it lacks."""
        if not partition.is_synced or partition.log.recovery_point >= offset:
            return True
        self._want_flush(partition)
        return False

    def _report_synced(self, partition: Partition) -> None:
        pending = partition.propose_synced(own_broker_epoch=self.broker_epoch)
        if pending is not None:
            self._channel.submit(partition.topic_partition, pending)

    def _want_flush(self, partition: Partition) -> None:
        """One flush at a time: those who come meanwhile share the next one."""
        topic_partition, log = partition.topic_partition, partition.log
        if (
            partition.is_synced
            and log.recovery_point < log.log_end_offset
            and topic_partition not in self._syncing
        ):
            self._syncing[topic_partition] = log.log_end_offset
            self._effects.append(Sync(topic_partition, log.log_end_offset))

    def on_sync_done(self, event: SyncDone, now_ms: int) -> list[Effect]:
        """A flush ended. How far the log is safe is read from the log, which may have been cut since."""
        self._syncing.pop(event.topic_partition, None)
        partition = self._partitions.get(event.topic_partition)
        if event.error:
            self._take_offline(event.topic_partition, LogDirOffline(event.error))
        elif partition is not None:
            self._advance(partition, now_ms)
            self._report_synced(partition)
            self._want_flush(partition)
        return self._end_turn(now_ms)
