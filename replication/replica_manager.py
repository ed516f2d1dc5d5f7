"""The replicas of one node: the state that requests, orders and answers change, and the turns that change it.

    replica_manager  state, turns, answers of leaders and of the controller, ISR changes, failed log dirs
    serving          Produce, Fetch, DeleteRecords, ListOffsets, OffsetForLeaderEpoch, Metadata
    orders           LeaderAndIsr, StopReplica, UpdateMetadata; the session and the orderly stop

`ReplicaManager` is one object composed of smaller ones: partitions, `WaitingRequests`, `Flushes`,
`RoleRetries`, `IsrChannel`, `Followers`. `serving` and `orders` are functions on it (decision 044).

Each public function is one turn. It changes partitions and notes which of them moved. Waiting requests are
completed at the end of the turn, never while a partition changes. Requests to other nodes are returned as
effects.

A log failure takes the whole log dir offline. Every replica in that dir then resigns and answers
`KAFKA_STORAGE_ERROR (56)` until the node restarts; `Node` reports it to the controller. Replicas in other
dirs continue. A role refused because the disk was full is requested again, with growing pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch, DamagedLog, DiskFull, LogDirOffline, is_refusal
from logstore.log.manager import LogManager
from logstore.replication import healing, log_moves, membership
from logstore.replication.config import LagCriterion, NodeConfig
from logstore.replication.effects import Effect, Send, SyncDone
from logstore.replication.errors import (
    InvalidRequest,
    NotLeaderOrFollower,
    ReplicaStorageFailed,
    UnknownTopicOrPartition,
    code_of,
)
from logstore.replication.fetch_sessions import FetchSession, Place
from logstore.replication.flushes import Flushes
from logstore.replication.follower import FollowerResponse, Followers
from logstore.replication.full_dirs import FullDirs, Relief
from logstore.replication.healing import DamagedReplicas
from logstore.replication.isr import CommittedIsr, PendingIsr
from logstore.replication.isr_channel import IsrChannel
from logstore.replication.log_moves import LogMoves
from logstore.replication.messages import (
    NO_EPOCH,
    NO_LEADER,
    AlterPartitionResponse,
    FetchResponse,
    PartitionState,
    RequestBody,
)
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.partition import Counters, Partition
from logstore.replication.role_retries import RoleRetries
from logstore.replication.roles_under_way import RolesUnderWay
from logstore.replication.state_change import Side, Sink, StateChange, unheard
from logstore.replication.throttle import leader_throttle, replication_windows
from logstore.replication.waiting import WaitingRequests


class ReplicaManager:
    """The replicas of this node, their waiting requests, and their requests to other nodes."""

    def __init__(
        self,
        config: NodeConfig,
        logs: LogManager,
        *,
        next_id: Callable[[], int],
        default_config: LogConfig,
        state_changes: Sink = unheard,
    ) -> None:
        """`default_config` applies to topics without settings of their own."""
        self.config = config
        self.logs = logs
        self.default_config = default_config
        self.metadata = MetadataCache()
        self.counters = Counters()
        self.controller_epoch = 0
        self.controller_id = -1
        self.broker_epoch = -1
        """Epoch of the current registration; -1 without one."""
        self.latest_broker_epoch = -1
        """Epoch of the last registration, also after its session ended."""
        self.is_departing = False
        """Whether this node is about to stop: it follows no new leader."""
        self.is_on_record = False
        """Whether the controller has sent this process all its roles. From then on the metadata store
        records what an unclean start may have lost."""
        self.failures = 0
        """Changes when the controller must be asked for this node's roles again; see `Node`."""
        self.partitions: dict[TopicPartition, Partition] = {}
        """Replicas with a role."""
        self.offline: dict[TopicPartition, str] = {}
        """Replicas whose log failed, with the reason, until the node restarts."""
        self.strays: dict[TopicPartition, str] = {}
        """Logs set aside since this node started, with the reason."""
        self.deleted: dict[TopicPartition, tuple[str, int]] = {}
        """Replicas deleted by the controller: topic id, and the leader epoch of the order."""
        self.topic_configs: dict[str, tuple[Mapping[str, str], LogConfig]] = {}
        self.roles_under_way: RolesUnderWay | None = None
        """A LeaderAndIsr whose new logs are not durable yet; other requests of the controller wait."""
        self.newest_orders: dict[type[RequestBody], tuple[int, int]] = {}
        """The latest request of each kind from a controller: controller epoch and correlation id."""
        self.effects: list[Effect] = []
        """The effects of this turn so far. It stays the same list, and is cleared when a turn ends."""
        self.waiting = WaitingRequests(
            config, settle=partial(settle_fetch, self.partitions), place_of=partial(place_of, self.partitions)
        )
        self.retries = RoleRetries(config.replica_fetch_backoff_ms)
        self.isr_channel = IsrChannel(config)
        self.flushes = Flushes(self.effects.append)
        self.full_dirs = FullDirs(logs.room)
        self.relief = Relief()
        self.damaged = DamagedReplicas()
        self.moves = LogMoves(replication_windows(config))
        self.throttle = leader_throttle(replication_windows(config), config.node_id)
        """Of what this node sends to followers; `followers` has that of what it fetches."""
        self.now_ms = 0
        """When the latest turn began."""
        self.followers = Followers(
            config,
            next_id=next_id,
            may_fetch=self.flushes.covers,
            on_storage_failure=self.take_offline,
            on_disk_full=self.found_full,
            on_stuck=lambda *what: self._newly_stuck.append(what),
            on_progress=partial(healing.after_progress, self),
        )
        self.next_id = next_id
        self._state_changes = state_changes
        self._newly_offline: list[TopicPartition] = []
        self._newly_stuck: list[tuple[TopicPartition, str]] = []
        self._failed_dirs = 0
        self._next_isr_check_ms: int | None = None
        self._next_checkpoint_ms: int | None = None

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return the replica on this node.

        Raises `ReplicaStorageFailed`, `NotLeaderOrFollower` or `UnknownTopicOrPartition` if there is none.
        """
        if topic_partition in self.offline:
            raise ReplicaStorageFailed(f"{topic_partition} is offline: {self.offline[topic_partition]}")
        found = self.partitions.get(topic_partition)
        if found is not None:
            return found
        if (damage := self.logs.damaged.get(topic_partition)) is not None:
            raise ReplicaStorageFailed(f"{topic_partition} is damaged: {damage}")
        if topic_partition in self.metadata.partitions:
            raise NotLeaderOrFollower(
                f"broker {self.config.node_id} has no replica of {topic_partition}; refresh metadata"
            )
        raise UnknownTopicOrPartition(f"{topic_partition} is unknown to broker {self.config.node_id}")

    # --- gauges --------------------------------------------------------------------------------

    @property
    def offline_replicas(self) -> int:
        """Replicas that serve nothing because their log failed or is damaged."""
        return len(self.offline) + len(self.logs.damaged)

    # --- turns ---------------------------------------------------------------------------------

    def end_turn(self, now_ms: int) -> list[Effect]:
        """Complete requests that became ready, add requests that are due, and return all effects."""
        self.now_ms = now_ms
        if self.logs.moves.under_way or self.moves.turns:
            log_moves.pump(self, now_ms)
        if len(self.logs.failed_dirs) != self._failed_dirs:
            self._resign_with_failed_dirs()
        if self.full_dirs.found:
            for path in self.full_dirs.begin(now_ms):
                _note_full(self, path, "has no room", now_ms)
                self.relief.ask_at_once()
            _ask_for_relief(self, now_ms)
        if self.damaged.found or self.damaged.rebuilt:
            healing.begin(self, now_ms)
            _ask_for_relief(self, now_ms)
        if self.damaged.known:
            healing.pump(self, now_ms)
        if self._newly_offline:
            for topic_partition in self._newly_offline:
                reason = self.offline.get(topic_partition, "its log failed")
                self.note(topic_partition, "goes offline", now_ms, reason=reason)
            self._newly_offline.clear()
        if self._newly_stuck:
            for topic_partition, text in self._newly_stuck:
                self.note(topic_partition, "cannot follow", now_ms, reason=text)
            self._newly_stuck.clear()
        self.waiting.check_woken(now_ms)
        # Between two registrations a follower uses its last epoch: a fetch without one could not be told
        # from a delayed fetch of a former life.
        if self.followers.fetchers:
            self.effects += self.followers.pump(self.latest_broker_epoch, now_ms)
        channel = self.isr_channel
        if self.controller_id >= 0 and (channel.queue or channel.in_flight is not None):
            request = channel.next_request(self.next_id, self.broker_epoch, now_ms)
            if request is not None:
                self.effects.append(Send(self.controller_id, *request))
        effects = self.effects.copy()
        self.effects.clear()
        return effects

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: expired requests, ISR members that lag, checkpoints."""
        self.now_ms = now_ms
        self.waiting.expire(now_ms)
        self.failures += self.retries.is_due(now_ms)
        for path in self.full_dirs.probe(now_ms):
            _note_full(self, path, "has room again", now_ms)
        _ask_for_relief(self, now_ms)
        if self._next_isr_check_ms is not None and self._next_isr_check_ms <= now_ms:
            self._next_isr_check_ms = now_ms + self._isr_check_interval_ms
            self._check_isrs(now_ms)
        if self._next_checkpoint_ms is not None and self._next_checkpoint_ms <= now_ms:
            self._next_checkpoint_ms = now_ms + self.config.replica_high_watermark_checkpoint_interval_ms
            self.logs.checkpoint_high_watermarks()
        return self.end_turn(now_ms)

    def note_log_starts(self) -> None:
        """Wake the partitions from which retention has deleted something. Call it after the logs' upkeep."""
        for topic_partition, partition in self.partitions.items():
            log_start_offset = partition.log.log_start_offset
            if log_start_offset != partition.noted_log_start:
                partition.noted_log_start = log_start_offset
                self.waiting.wake(topic_partition)
                self.followers.touch(topic_partition)

    def start_checks(self, now_ms: int) -> None:
        """Start the periodic ISR checks and checkpoints, unless they run already."""
        if self._next_checkpoint_ms is None:
            self._next_checkpoint_ms = now_ms + self.config.replica_high_watermark_checkpoint_interval_ms
            self._next_isr_check_ms = now_ms + self._isr_check_interval_ms

    @property
    def _isr_check_interval_ms(self) -> int:
        if self.config.replica_lag_criterion is LagCriterion.SILENCE:
            return self.config.replica_lag_time_max_ms
        return max(self.config.replica_lag_time_max_ms // 2, 1)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `tick` is next needed; None without a timed action."""
        deadlines = (
            self.waiting.deadline_ms,
            self.followers.deadline_ms,
            self.isr_channel.deadline_ms if self.broker_epoch >= 0 and self.controller_id >= 0 else None,
            self._next_isr_check_ms,
            self._next_checkpoint_ms,
            self.retries.deadline_ms,
            self.full_dirs.deadline_ms,
            self.damaged.deadline_ms,
            self.moves.deadline_ms,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # --- failures ------------------------------------------------------------------------------

    def guard(self, topic_partition: TopicPartition, error: EngineError | OSError) -> ErrorCode:
        """Return the error code for a refusal; a storage failure also takes the replica offline."""
        if isinstance(error, LogDirOffline) or (isinstance(error, OSError) and not is_refusal(error)):
            self.take_offline(topic_partition, error)
        elif isinstance(error, DiskFull):
            self.found_full(topic_partition)
        damages = error.damages if isinstance(error, DamagedLog) else ()
        if isinstance(error, CorruptBatch) and error.damage is not None:
            damages = (error.damage,)
        if damages and topic_partition in self.partitions:
            healing.take_note(self, topic_partition, damages)
            is_failed = topic_partition in self.damaged.failed
            return ErrorCode.CORRUPT_MESSAGE if is_failed else ErrorCode.KAFKA_STORAGE_ERROR
        return code_of(error)

    def found_full(self, topic_partition: TopicPartition) -> None:
        """Record that an append found no space in a replica's log dir."""
        partition = self.partitions.get(topic_partition)
        if partition is not None:
            self.full_dirs.found.add(log_dir_of(partition))

    def take_offline(self, topic_partition: TopicPartition, error: Exception) -> None:
        """Stop acknowledging and serving records of a replica whose log failed."""
        self.failures += topic_partition not in self.offline
        self.counters.storage_changes += topic_partition not in self.offline
        self.offline[topic_partition] = str(error)
        self._newly_offline.append(topic_partition)
        self.retries.forget(topic_partition)
        if topic_partition in self.partitions:
            self.counters.role_changes += 1
        self.drop(topic_partition)
        self.stop_asking(topic_partition)
        self.waiting.wake(topic_partition)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forget a replica whose log is gone."""
        self.partitions.pop(topic_partition, None)
        self.damaged.forget(topic_partition)
        self.flushes.forget(topic_partition)

    def stop_asking(self, topic_partition: TopicPartition) -> None:
        """Stop following a partition's leader and withdraw its ISR proposal."""
        self.followers.remove(topic_partition)
        self.isr_channel.withdraw(topic_partition)

    def _resign_with_failed_dirs(self) -> None:
        """Take every replica in a failed log dir offline, not only the one whose log noticed."""
        self._failed_dirs = len(self.logs.failed_dirs)
        self.counters.storage_changes += 1
        reasons = self.logs.offline_dirs
        reason = LogDirOffline("; ".join(f"{path}: {reason}" for path, reason in reasons.items()))
        for topic_partition, partition in list(self.partitions.items()):
            if partition.log.is_offline:
                self.take_offline(topic_partition, reason)

    # --- the state-change log ------------------------------------------------------------------

    def record(self, partition: Partition, change: str, reason: str, now_ms: int) -> None:
        """Write a change of a replica to the state-change log, with the state it is in now."""
        state = PartitionState(
            self.controller_epoch,
            partition.leader_id,
            partition.leader_epoch,
            tuple(sorted(partition.isr.committed)),
            partition.partition_epoch,
            partition.replicas,
        )
        self.note(partition.topic_partition, change, now_ms, state=state, reason=reason)

    def note(
        self,
        topic_partition: TopicPartition,
        change: str,
        now_ms: int,
        *,
        state: PartitionState | None = None,
        leader_epoch: int = NO_EPOCH,
        reason: str,
    ) -> None:
        """Write a line to the state-change log, with the facts of `state` if there is one."""
        self._state_changes(
            StateChange(
                now_ms,
                self.config.node_id,
                Side.BROKER,
                self.controller_epoch,
                topic_partition,
                change,
                state.leader if state else NO_LEADER,
                state.leader_epoch if state else leader_epoch,
                state.partition_epoch if state else -1,
                state.isr if state else (),
                state.replicas if state else (),
                reason,
            )
        )

    # --- answers from other nodes --------------------------------------------------------------

    def on_response(
        self, correlation_id: int, body: FollowerResponse | AlterPartitionResponse, now_ms: int
    ) -> list[Effect]:
        """Take an answer of a leader or of the controller. Late answers are dropped."""
        if isinstance(body, AlterPartitionResponse):
            if self.isr_channel.owns(correlation_id):
                self._on_isr_answers(body, now_ms)
        elif isinstance(body, FetchResponse) and (owner := healing.owner_of(self, correlation_id)):
            healing.on_response(self, owner, body, now_ms)
        else:
            try:
                self.followers.on_response(correlation_id, body, now_ms)
            except InvalidRequest:
                # The peer broke the protocol. Everything asked of it pauses; nothing has changed.
                self.counters.protocol_violations += 1
        return self.end_turn(now_ms)

    def on_disconnected(self, correlation_id: int, now_ms: int) -> bool:
        """Give up on an answer; False if another component sent the request."""
        if self.isr_channel.owns(correlation_id):
            self.isr_channel.on_disconnected(now_ms)
            return True
        if owner := healing.owner_of(self, correlation_id):
            healing.on_disconnected(self, owner, now_ms)
            return True
        return self.followers.on_disconnected(correlation_id, now_ms)

    def on_sync_done(self, event: SyncDone, now_ms: int) -> list[Effect]:
        """Handle the end of a flush, by the log's recovery point: a truncation may have lowered it."""
        self.flushes.forget(event.topic_partition)
        partition = self.partitions.get(event.topic_partition)
        if event.error:
            self.take_offline(event.topic_partition, LogDirOffline(event.error))
        log_moves.on_flushed(self, event.topic_partition, now_ms)
        if partition is not None and not event.error:
            self.advance(partition, now_ms)
            self.report_synced(partition)
            healing.on_flushed(self, event.topic_partition, now_ms)
            if partition.is_synced:
                self.flushes.want(partition)
        return self.end_turn(now_ms)

    # --- high watermarks and ISRs --------------------------------------------------------------

    def advance(self, partition: Partition, now_ms: int) -> None:
        """Advance the high watermark if possible, and note that requests may be ready."""
        if partition.advance_high_watermark(now_ms):
            self.waiting.wake(partition.topic_partition)

    def submit(self, partition: Partition, pending: PendingIsr, now_ms: int) -> None:
        """Queue an ISR proposal for the controller."""
        self.isr_channel.submit(partition.topic_partition, pending)
        self.record(partition, "proposes an ISR", f"of {list(pending.proposal.new_isr)}", now_ms)

    def report_synced(self, partition: Partition) -> None:
        """Report to the controller once all members have flushed after a switch to `synced`."""
        pending = membership.propose_synced(partition, own_broker_epoch=self.broker_epoch)
        if pending is not None:
            self.isr_channel.submit(partition.topic_partition, pending)

    def _on_isr_answers(self, body: AlterPartitionResponse, now_ms: int) -> None:
        if body.error is ErrorCode.NOT_CONTROLLER:
            # An order may have named it by mistake, and orders that name another may be long in coming.
            self.controller_id = self.metadata.next_broker(self.controller_id)
        for topic_partition, pending, result in self.isr_channel.on_response(body, now_ms):
            partition = self.partitions.get(topic_partition)
            if partition is None:
                continue
            match membership.on_isr_answer(partition, pending, result):
                case membership.IsrOutcome.ADOPTED:
                    self.record(partition, "adopts an ISR", "the controller has written it", now_ms)
                    self.advance(partition, now_ms)
                    self.waiting.wake(topic_partition)
                case membership.IsrOutcome.RESEND:
                    self.isr_channel.resend(topic_partition, pending, now_ms)
                case (
                    membership.IsrOutcome.STALE
                    | membership.IsrOutcome.REVERTED
                    | membership.IsrOutcome.UNKNOWN
                ):
                    # UNKNOWN keeps the maximal ISR until the controller's next request, and is proposed
                    # again at the next check of all ISRs.
                    pass

    def _check_isrs(self, now_ms: int) -> None:
        for topic_partition, partition in self.partitions.items():
            membership.propose_shrink(partition, now_ms, own_broker_epoch=self.broker_epoch)
            membership.propose_synced(partition, own_broker_epoch=self.broker_epoch)
            # A refused proposal stays pending until the controller's next request. That request may have
            # been lost, so the proposal is repeated.
            if partition.is_leader and not self.isr_channel.holds(topic_partition):
                pending = partition.isr
                if not isinstance(pending, CommittedIsr):
                    self.submit(partition, pending, now_ms)
            self.advance(partition, now_ms)


def settle_fetch(
    partitions: Mapping[TopicPartition, Partition], topic_partition: TopicPartition, session: FetchSession
) -> None:
    """Stop counting a follower by the clock of its fetch session, because the partition changes."""
    partition = partitions.get(topic_partition)
    if partition is not None:
        replica = partition.remote_replicas.get(session.terms.replica_id)
        if replica is not None and replica.clock is session.clock:
            partition.remote_replicas[replica.replica_id] = replica.settled()


def place_of(partitions: Mapping[TopicPartition, Partition], topic_partition: TopicPartition) -> Place | None:
    """Return the end of a log's committed part; None if it is unknown without reading."""
    partition = partitions.get(topic_partition)
    end = partition.place_of_end(is_log_end=False) if partition is not None else None
    if partition is None or end is None:
        return None
    log = partition.log
    stamp = partition.tenure, partition.leader_epoch, log.log_start_offset, log.cuts, end[0]
    return Place(stamp, *end)


def log_dir_of(partition: Partition) -> str:
    """Return the log dir that holds the replica's log."""
    return partition.log.directory.rpartition("/")[0]


def owes_answers(manager: ReplicaManager) -> bool:
    """Whether a client waits for the fate of a batch that this node appended and another leads now."""
    watchers = manager.waiting.produces.watchers
    return any(
        not operation.is_completed
        for topic_partition in manager.followers.followed
        for operation in watchers.get(topic_partition, ())
    )


def wants_relief(manager: ReplicaManager, partition: Partition, isr: Collection[int]) -> bool:
    """Whether another replica should lead: the log is damaged here, or its dir is full, and enough others
    are in sync."""
    is_hindered = log_dir_of(partition) in manager.full_dirs.since_ms or not manager.damaged.may_lead(
        partition.topic_partition
    )
    return is_hindered and manager.config.node_id in isr and len(isr) > max(partition.min_insync, 1)


def _ask_for_relief(manager: ReplicaManager, now_ms: int) -> None:
    """Have the controller assign the roles here again, if others can take leaderships over."""

    def is_wanted() -> bool:
        return any(
            partition.is_leader and wants_relief(manager, partition, partition.isr.committed)
            for partition in manager.partitions.values()
        )

    if manager.full_dirs.since_ms or manager.damaged.known:
        manager.failures += manager.relief.is_due(now_ms, is_wanted)


def _note_full(manager: ReplicaManager, path: str, what: str, now_ms: int) -> None:
    manager.counters.storage_changes += 1
    for topic_partition, partition in manager.partitions.items():
        if log_dir_of(partition) == path and partition.is_leader:
            manager.note(topic_partition, what, now_ms, reason=f"log dir {path}")
