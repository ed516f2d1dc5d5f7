"""All replicas of one node: requests in, answers and requests to others out.

    clients     Produce, Fetch, ListOffsets, DeleteRecords     ─┐
    followers   Fetch, ListOffsets, OffsetForLeaderEpoch        ├─▶ Partition ─▶ Log
    controller  LeaderAndIsr, StopReplica, UpdateMetadata      ─┘
    leaders ◀── Followers (fetches)      controller ◀── IsrChannel (proposals)
    waiting     Purgatories of produces, fetches and deletions, by partition

Every public method is one turn: it changes partitions, notes whose waiting requests may be ready,
and answers those at the end of the turn, never in the middle of a partition's change. What it wants
sent is returned as effects.

A log that fails takes its dir with it, and every replica in that dir resigns: it leads and follows nobody
and answers `KAFKA_STORAGE_ERROR` until the node is started anew. `Node` tells the controller; all
others go on. A role that was refused for want of room is asked for again, later each time. A log that was
found damaged takes no role on its own strength: once the controller says that others hold the partition, and
this replica is out of the ISR, it is cut where the damage begins (what goes is kept) and follows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from checkpoint.errors import EngineError, ErrorCode
from checkpoint.marks import mark
from checkpoint.topic_partition import TopicPartition
from logstore.config import LogConfig
from logstore.errors import DiskFull, LogDirOffline
from logstore.log_manager import LogManager
from replication.config import LagCriterion, NodeConfig
from replication.delayed import Purgatory
from replication.durability import Durability
from replication.effects import Address, Client, Effect, Peer, Reply, Send, Sync, SyncDone, answer
from replication.errors import (
    InvalidRequest,
    InvalidRequiredAcks,
    NotLeaderOrFollower,
    ReplicaStorageFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from replication.follower import Followers
from replication.isr import CommittedIsr, PendingIsr
from replication.isr_channel import IsrChannel
from replication.messages import (
    BEING_DELETED,
    NO_LEADER,
    AlterPartitionResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    EpochAnswer,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    PartitionState,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.metadata_cache import MetadataCache
from replication.partition import ACKS_ALL, Counters, IsrOutcome, Partition
from replication.state_change import Side, Sink, StateChange, unheard
from replication.strays import is_of_another_incarnation, strays
from replication.waiting import (
    DelayedByPartition,
    DelayedFetch,
    Status,
)

NO_EPOCH_GIVEN = -1
_FOR_EVER = sys.maxsize
_LONGEST_BACKOFF = 60
"""In first back-offs: how long at most until a role is asked for again that was refused for want of room."""


class ReplicaManager:
    """The replicas of this node, their waiting requests, and what they ask of others."""

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

    # --- gauges -------------------------------------------------------------------------------

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

    # --- turns --------------------------------------------------------------------------------

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
        self._partitions.pop(topic_partition, None)
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

    # --- the controller's word ----------------------------------------------------------------

    def on_registered(self, broker_epoch: int, now_ms: int) -> list[Effect]:
        """This node is registered in the metadata store, as this incarnation."""
        self.broker_epoch = self._latest_broker_epoch = broker_epoch
        return self._end_turn(now_ms)

    def on_session_lost(self, now_ms: int) -> list[Effect]:
        """The store gave this node up: stop leading at once; whoever waits is sent elsewhere."""
        self.broker_epoch = -1
        for topic_partition, partition in self._partitions.items():
            if partition.is_leader:
                partition.suspend()
                self._record(partition, "stops leading", "its session is over", now_ms)
                self._wake(topic_partition)
        return self._end_turn(now_ms)

    def stop(self, now_ms: int) -> list[Effect]:
        """Lead and follow nothing any more; whoever waits is sent elsewhere. The logs stay open."""
        self.is_departing = True
        for topic_partition in self._partitions:
            self._followers.remove(topic_partition)
        return self.on_session_lost(now_ms)

    def leader_and_isr(self, address: Address, body: LeaderAndIsrRequest, now_ms: int) -> list[Effect]:
        """Take the roles that the controller gives; each partition succeeds or fails alone."""
        if refusal := self._refuse_controller(body.controller_epoch, body.broker_epoch):
            results = dict.fromkeys(body.partitions, refusal)
            self._effects.append(answer(address, LeaderAndIsrResponse(refusal, results)))
            return self._end_turn(now_ms)
        self._know_controller(body.controller_id, body.controller_epoch)
        # Settings have no version: a request that was given up as lost and comes late brings old ones.
        sent = (body.controller_epoch, address.correlation_id if isinstance(address, Peer) else 0)
        is_late, self._newest_roles = sent < self._newest_roles, max(sent, self._newest_roles)
        if is_late:
            mark("roles: a request comes late")
        # A controller settles every state with our registration before it gives us the first role.
        self.is_on_record |= body.broker_epoch == self.broker_epoch >= 0
        if body.assigned is not None and body.broker_epoch == self.broker_epoch >= 0 and not is_late:
            self._set_strays_aside(body.assigned, now_ms)
        codes: dict[TopicPartition, ErrorCode] = {}
        # Leaders first: they stop following before anybody asks them anything.
        order = sorted(
            body.partitions, key=lambda known: body.partitions[known].leader != self.config.node_id
        )
        for topic_partition in order:
            try:
                state = body.partitions[topic_partition]
                code = self._take_role(topic_partition, state, body, now_ms, is_late=is_late)
            except (EngineError, OSError) as error:
                code = self._guard(topic_partition, error)
                if isinstance(error, DiskFull):
                    self._refuse_for_want_of_room(topic_partition, now_ms)
            codes[topic_partition] = code
            self._record_role(topic_partition, body, code, now_ms)
        if self._next_checkpoint_ms is None:
            self._next_checkpoint_ms = now_ms + self.config.replica_high_watermark_checkpoint_interval_ms
            self._next_shrink_check_ms = now_ms + self._shrink_check_interval_ms
        self._followers.drop_idle()
        self._effects.append(answer(address, LeaderAndIsrResponse(ErrorCode.NONE, codes)))
        return self._end_turn(now_ms)

    def _refuse_controller(self, controller_epoch: int, broker_epoch: int) -> ErrorCode | None:
        # A newer incarnation than we know of is ours: the reply to our registration is on its way.
        if NO_EPOCH_GIVEN < broker_epoch < self.broker_epoch:
            mark("roles: for an earlier life of this broker")
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch < self.controller_epoch:
            mark("roles: of a controller that was replaced")
            return ErrorCode.STALE_CONTROLLER_EPOCH
        return None

    def _know_controller(self, controller_id: int, controller_epoch: int) -> None:
        if (controller_id, controller_epoch) != (self.controller_id, self.controller_epoch):
            mark("roles: a new controller speaks")
            self._channel.on_new_controller()
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch

    def _take_role(
        self,
        topic_partition: TopicPartition,
        state: PartitionState,
        body: LeaderAndIsrRequest,
        now_ms: int,
        *,
        is_late: bool,
    ) -> ErrorCode:
        if topic_partition in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.config.node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        known = self._partitions.get(topic_partition)
        topic_id = body.topic_ids.get(topic_partition.topic, "")
        if known is not None:
            if topic_id:
                # Refuses another one: a replica in use is not exchanged for its namesake's.
                known.log.set_topic_id(topic_id)
            if not is_late:
                self._configure(known, body)
            verdict = self._judge(known, state, body)
            if verdict is not None:
                return verdict
        elif self._is_deleted(topic_partition, topic_id, state.leader_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        # The log exists from here on whoever leads: its entry in the next high watermark
        # checkpoint would be lost otherwise (KAFKA-1647).
        partition = known or self._create(topic_partition, state, topic_id, body, now_ms)
        if state.leader == self.config.node_id:
            # Not one more append of the old leader's records: stop following first.
            self._followers.remove(topic_partition)
            self._channel.withdraw(topic_partition)
            partition.become_leader(state, now_ms)
            partition.advance_high_watermark(now_ms)
            self._want_flush(partition)
        else:
            self._channel.withdraw(topic_partition)
            is_following = known is not None and not known.leads and not known.is_suspended
            if partition.become_follower(state) or not is_following:
                self._followers.remove(topic_partition)
                if self.is_departing:
                    mark("replica manager: a node that is about to stop follows nobody new")
                elif state.leader != NO_LEADER:
                    self._followers.add(partition)
        self._has_room_for(topic_partition)
        self._wake(topic_partition)
        return ErrorCode.NONE

    def _is_deleted(self, topic_partition: TopicPartition, topic_id: str, leader_epoch: int) -> bool:
        """Whether that role came too late: it was overtaken by the order to delete the replica."""
        deleted = self._deleted.get(topic_partition)
        return deleted is not None and deleted[0] == topic_id and leader_epoch < deleted[1]

    def _record_role(
        self, topic_partition: TopicPartition, body: LeaderAndIsrRequest, code: ErrorCode, now_ms: int
    ) -> None:
        state = body.partitions[topic_partition]
        change = "becomes leader" if state.leader == self.config.node_id else "becomes follower"
        if code is not ErrorCode.NONE:
            change = "refuses a role"
        self._note(
            topic_partition,
            change,
            now_ms,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=state.isr,
            replicas=state.replicas,
            reason="" if code is ErrorCode.NONE else code.name,
        )

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

    def _submit(self, partition: Partition, pending: PendingIsr, now_ms: int) -> None:
        self._channel.submit(partition.topic_partition, pending)
        self._record(partition, "proposes an ISR", f"of {list(pending.proposal.new_isr)}", now_ms)

    def _judge(self, known: Partition, state: PartitionState, body: LeaderAndIsrRequest) -> ErrorCode | None:
        """None for news; otherwise the answer to what is old, a repeat, or impossible.

        Within one leader epoch the partition epoch tells news apart: an ISR or assignment that
        changed reaches a leader without a new epoch, and followers need not start over.
        """
        if state.leader_epoch > known.leader_epoch:
            return None
        if state.leader_epoch < known.leader_epoch or state.partition_epoch < known.partition_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if state.leader != known.leader_id:
            return ErrorCode.INVALID_REQUEST  # one epoch has one leader
        if known.is_suspended:
            # Addressed to our present registration: the store still names us, nobody else led.
            return None if body.broker_epoch >= self.broker_epoch >= 0 else ErrorCode.STALE_BROKER_EPOCH
        if state.partition_epoch > known.partition_epoch:
            return None
        return ErrorCode.NONE

    def _set_strays_aside(self, assigned: Mapping[TopicPartition, str], now_ms: int) -> None:
        """Move away what a full list does not name that proves it (`strays.py`)."""
        try:
            found = strays(self.logs.topic_ids(), assigned)
        except LogDirOffline:
            return  # the dir went just now, and with it what is in it; the next registration looks again
        for topic_partition, reason in found.items():
            mark("replica manager: a stray log is set aside")
            try:
                self._set_aside(topic_partition, reason, now_ms)
            except (EngineError, OSError) as error:
                self._guard(topic_partition, error)

    def _set_aside(self, topic_partition: TopicPartition, reason: str, now_ms: int) -> None:
        self._stop_serving(topic_partition)
        self._partitions.pop(topic_partition, None)
        self._syncing.pop(topic_partition, None)
        self.logs.set_aside(topic_partition)
        self.strays[topic_partition] = reason
        self._note(topic_partition, "sets a stray log aside", now_ms, reason=reason)

    def _create(
        self,
        topic_partition: TopicPartition,
        state: PartitionState,
        topic_id: str,
        body: LeaderAndIsrRequest,
        now_ms: int,
    ) -> Partition:
        config = self._log_config(topic_partition.topic, body)
        left_id = self.logs.topic_id(topic_partition)
        # A log without a role is of a former life, and older than a word for this one. Whatever it holds is
        # a deleted topic's, and its epochs and offsets must not be held against the namesake's.
        if is_of_another_incarnation(left_id, topic_id) and body.broker_epoch == self.broker_epoch >= 0:
            reason = f"belongs to topic id {left_id}, the topic's is {topic_id}"
            self._set_aside(topic_partition, reason, now_ms)
        if topic_partition in self.logs.damaged:
            # Whatever is gone from it counts for nothing any more, and its leader has it.
            counts = self.config.node_id in (*state.isr, *state.eligible)
            is_replaceable = not counts and state.leader != NO_LEADER
            if is_replaceable:
                mark("replica manager: a damaged log is cut, to follow")
            self.logs.reopen(topic_partition, config=config, accept_loss=is_replaceable)
        if not state.is_new and self.logs.offline_dirs and self.logs.get(topic_partition) is None:
            # It may well live in the dir that failed. An empty log in another one would pass for it.
            mark("replica manager: a replica whose log may be in a failed dir")
            raise LogDirOffline(f"{topic_partition} may be in a log dir that failed; mend it and start anew")
        log = self.logs.get_or_create(topic_partition, config=config, topic_id=topic_id)
        log.set_high_watermark(
            max(self.logs.checkpointed_high_watermark(topic_partition), log.log_start_offset)
        )
        partition = Partition(log, self.config, self.metadata, self.counters, was_clean=self.logs.was_clean)
        self._partitions[topic_partition] = partition
        self._deleted.pop(topic_partition, None)
        return partition

    def _log_config(self, topic: str, body: LeaderAndIsrRequest) -> LogConfig:
        settings = body.configs.get(topic, {})
        known = self._configs.get(topic)
        if known is None or known[0] != settings:
            known = self._configs[topic] = settings, LogConfig.from_kafka(settings, base=self._default_config)
        return known[1]

    def _configure(self, partition: Partition, body: LeaderAndIsrRequest) -> None:
        """Take over topic settings that changed; they hold from the next use on."""
        config = self._log_config(partition.topic_partition.topic, body)
        if partition.log.config != config:
            partition.log.config = config

    def stop_replica(self, address: Address, body: StopReplicaRequest, now_ms: int) -> list[Effect]:
        """Stop serving partitions, and drop their logs where asked."""
        if refusal := self._refuse_controller(body.controller_epoch, body.broker_epoch):
            results = dict.fromkeys(body.partitions, refusal)
            self._effects.append(answer(address, StopReplicaResponse(refusal, results)))
            return self._end_turn(now_ms)
        self._know_controller(body.controller_id, body.controller_epoch)
        codes: dict[TopicPartition, ErrorCode] = {}
        for topic_partition, order in body.partitions.items():
            try:
                topic_id = body.topic_ids.get(topic_partition.topic, "")
                code = self._stop(topic_partition, order, topic_id)
            except (EngineError, OSError) as error:
                code = self._guard(topic_partition, error)
                if isinstance(error, DiskFull):
                    self._refuse_for_want_of_room(topic_partition, now_ms)
            codes[topic_partition] = code
            change = "deletes the replica" if order.delete else "stops the replica"
            reason = "" if code is ErrorCode.NONE else f"refused: {code.name}"
            self._note(topic_partition, change, now_ms, leader_epoch=order.leader_epoch, reason=reason)
        self._followers.drop_idle()
        self._effects.append(answer(address, StopReplicaResponse(ErrorCode.NONE, codes)))
        return self._end_turn(now_ms)

    def _stop(
        self, topic_partition: TopicPartition, order: StopReplicaPartition, topic_id: str
    ) -> ErrorCode:
        if topic_partition in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if is_of_another_incarnation(self.logs.topic_id(topic_partition), topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        known = self._partitions.get(topic_partition)
        is_sentinel = order.leader_epoch in (NO_EPOCH_GIVEN, BEING_DELETED)
        if known is not None and not is_sentinel and order.leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        self._stop_serving(topic_partition)
        if order.delete:
            self._partitions.pop(topic_partition, None)
            self._syncing.pop(topic_partition, None)
            self.logs.delete(topic_partition)
            self._has_room_for(topic_partition)
            if topic_id and order.leader_epoch != NO_EPOCH_GIVEN:
                # A deleted topic never comes back: its namesake has another id.
                is_topic_deleted = order.leader_epoch == BEING_DELETED
                until_epoch = _FOR_EVER if is_topic_deleted else order.leader_epoch
                self._deleted[topic_partition] = topic_id, until_epoch
        return ErrorCode.NONE

    def _stop_serving(self, topic_partition: TopicPartition) -> None:
        self._followers.remove(topic_partition)
        self._channel.withdraw(topic_partition)
        known = self._partitions.get(topic_partition)
        if known is not None:
            known.suspend()  # a stopped leader serves nobody, whether or not its log stays
        self._wake(topic_partition)

    def update_metadata(self, address: Address, body: UpdateMetadataRequest, now_ms: int) -> list[Effect]:
        """Learn who is alive and who leads what."""
        refusal = self._refuse_controller(body.controller_epoch, body.broker_epoch)
        # One controller's requests are numbered as they are sent. One that was given up as lost and comes
        # late would bring a dead broker back, or hide a live one for good: nobody says the same twice.
        order = (body.controller_epoch, address.correlation_id if isinstance(address, Peer) else 0)
        if refusal is None and order >= self._newest_metadata:
            self._newest_metadata = order
            self._know_controller(body.controller_id, body.controller_epoch)
            self.metadata.update(body)
            # The high watermark waits for followers that are about to join; one that died does not.
            for partition in self._partitions.values():
                self._advance(partition, now_ms)
            for topic_partition in self._deletions.keys:
                self._wake(topic_partition)  # one that died is not waited for either
        self._effects.append(answer(address, UpdateMetadataResponse(refusal or ErrorCode.NONE)))
        return self._end_turn(now_ms)

    # --- produce ------------------------------------------------------------------------------

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
            return Status(ProduceResult(self._guard(topic_partition, error), message=str(error)))
        self._wake(topic_partition)
        self._want_flush(partition)
        result = ProduceResult(
            ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset
        )
        if acks != ACKS_ALL:
            return Status(result)
        result = replace(result, durability=partition.durability)
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
            return replace(status.result, durability=Durability.REPLICATED)
        return status.result

    # --- fetch --------------------------------------------------------------------------------

    def fetch(self, address: Address, body: FetchRequest, now_ms: int) -> list[Effect]:
        """Read for a consumer or a follower; with too little to say, wait for more."""
        results, is_final = self._read(body)
        if body.replica_id >= 0:
            for topic_partition, result in results.items():
                if result.error is ErrorCode.NONE and result.diverging_epoch is None:
                    self._count_fetch(topic_partition, body, now_ms)
        size = sum(len(result.records) for result in results.values())
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

    def _read(self, body: FetchRequest) -> tuple[dict[TopicPartition, FetchResult], bool]:
        """Results for all partitions; also whether one of them (an error, a divergence) cannot wait."""
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
        return results, is_final

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

    # --- deleting records ---------------------------------------------------------------------

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

    def _delete_records(
        self, topic_partition: TopicPartition, offset: int
    ) -> Status[DeleteRecordsResult]:
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

    # --- questions ----------------------------------------------------------------------------

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

    # --- answers from others ------------------------------------------------------------------

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

    # --- flushes (SYNCED durability) ----------------------------------------------------------

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
