"""The controller's orders: which replicas this node leads, follows, deletes; and who else is there.

    LeaderAndIsr    roles, one a partition; logs that nobody assigned are set aside
    StopReplica     serve no longer; delete the log if so ordered
    UpdateMetadata  who is alive and who leads what

Orders of a controller that was replaced, and for an earlier life of this broker, are refused. An order
that comes late changes nothing: states are told apart by their epochs, deleted replicas by topic id and
epoch, settings and metadata by the numbers of the requests that brought them.

A log that was found damaged takes no role on its own strength: once the controller says that others hold
the partition, and this replica is out of the ISR, it is cut where the damage begins (what goes is kept) and
follows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull, LogDirOffline
from logstore.replication.effects import Address, Effect, Peer, answer
from logstore.replication.messages import (
    BEING_DELETED,
    NO_LEADER,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from logstore.replication.partition import Partition
from logstore.replication.replicas import NO_EPOCH_GIVEN, Replicas
from logstore.replication.strays import is_of_another_incarnation, strays

_FOR_EVER = sys.maxsize


def _number(address: Address, controller_epoch: int) -> tuple[int, int]:
    """By which a controller's later request is told from an earlier one that was given up as lost."""
    return controller_epoch, address.correlation_id if isinstance(address, Peer) else 0


class Orders(Replicas):
    """What the controller may order, and what becomes of roles when this node is given up or leaves."""

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

    # --- roles ---------------------------------------------------------------------------------

    def leader_and_isr(self, address: Address, body: LeaderAndIsrRequest, now_ms: int) -> list[Effect]:
        """Take the roles that the controller gives; each partition succeeds or fails alone."""
        if refusal := self._refuse_controller(body.controller_epoch, body.broker_epoch):
            results = dict.fromkeys(body.partitions, refusal)
            self._effects.append(answer(address, LeaderAndIsrResponse(refusal, results)))
            return self._end_turn(now_ms)
        self._know_controller(body.controller_id, body.controller_epoch)
        # Settings have no version: a request that was given up as lost and comes late brings old ones.
        sent = _number(address, body.controller_epoch)
        is_late, self._newest_roles = sent < self._newest_roles, max(sent, self._newest_roles)
        if is_late:
            mark("roles: a request comes late")
        # A controller settles every state with our registration before it gives us the first role.
        if not self.is_on_record and body.broker_epoch == self.broker_epoch >= 0:
            self.is_on_record = True
            self.logs.vouch()
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
        elif is_late or self._is_deleted(topic_partition, topic_id, state.leader_epoch):
            # Whatever a late request says was said again since. The topic that it means may be gone, and even
            # a namesake of it.
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

    # --- the logs of roles ---------------------------------------------------------------------

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

    # --- replicas that go ----------------------------------------------------------------------

    def stop_replica(self, address: Address, body: StopReplicaRequest, now_ms: int) -> list[Effect]:
        """Stop serving partitions, and drop their logs where asked."""
        if refusal := self._refuse_controller(body.controller_epoch, body.broker_epoch):
            results = dict.fromkeys(body.partitions, refusal)
            self._effects.append(answer(address, StopReplicaResponse(refusal, results)))
            return self._end_turn(now_ms)
        self._know_controller(body.controller_id, body.controller_epoch)
        sent = _number(address, body.controller_epoch)
        is_late, self._newest_stops = sent < self._newest_stops, max(sent, self._newest_stops)
        codes: dict[TopicPartition, ErrorCode] = {}
        for topic_partition, order in body.partitions.items():
            try:
                topic_id = body.topic_ids.get(topic_partition.topic, "")
                code = self._stop(topic_partition, order, topic_id, is_late=is_late)
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
        self, topic_partition: TopicPartition, order: StopReplicaPartition, topic_id: str, *, is_late: bool
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
            if is_late:
                # What is known of this replica's end may be of a later one, and must not go back.
                mark("replica manager: an order to delete comes late")
            elif topic_id and order.leader_epoch != NO_EPOCH_GIVEN:
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

    # --- who else is there ---------------------------------------------------------------------

    def update_metadata(self, address: Address, body: UpdateMetadataRequest, now_ms: int) -> list[Effect]:
        """Learn who is alive and who leads what."""
        refusal = self._refuse_controller(body.controller_epoch, body.broker_epoch)
        # One controller's requests are numbered as they are sent. One that was given up as lost and comes
        # late would bring a dead broker back, or hide a live one for good: nobody says the same twice.
        order = _number(address, body.controller_epoch)
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
