"""Requests of the controller: roles, deletions, live brokers; and the end of a session or of the process.

    LeaderAndIsr    a role for each partition; unassigned logs are set aside
    StopReplica     stop serving a partition; delete its log if asked
    UpdateMetadata  live brokers, and the leader of each partition

Requests of a replaced controller, and requests for an earlier registration of this broker, are refused. So is
the deletion of a log by a request that does not name this registration, or not the topic's id.
Late requests change nothing: leader and partition epochs order states, topic id and epoch identify deleted
replicas, and correlation ids order the rest.

A damaged log takes no role by itself. Once the controller reports that other replicas hold the partition, and
this one is outside the ISR, the log is cut where the damage begins (a copy is kept), and this node follows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull, InvalidConfig, LogDirOffline, OutOfResources
from logstore.replication import healing
from logstore.replication.config import topic_config
from logstore.replication.effects import Address, Effect, Peer, Sync, answer
from logstore.replication.errors import AnotherShouldLead
from logstore.replication.messages import (
    BEING_DELETED,
    NO_EPOCH,
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
from logstore.replication.order_gate import Order
from logstore.replication.partition import Partition
from logstore.replication.replica_manager import ReplicaManager, wants_relief
from logstore.replication.roles_under_way import RolesUnderWay
from logstore.replication.strays import is_of_another_incarnation, strays

_FOR_EVER = sys.maxsize
MOST_DELETIONS_KNOWN = 20_000
"""Deleted replicas whose late orders are known for what they are."""

# --- sessions ----------------------------------------------------------------------------------


def registered(manager: ReplicaManager, broker_epoch: int, now_ms: int) -> list[Effect]:
    """Take over the epoch of this node's new registration."""
    manager.broker_epoch = manager.latest_broker_epoch = broker_epoch
    manager.waiting.sessions.new_life(broker_epoch)
    return manager.end_turn(now_ms)


def session_lost(manager: ReplicaManager, now_ms: int) -> list[Effect]:
    """Stop leading at once, because the session expired.

    Clients that wait for a commit go on waiting: the next role tells what became of their batches.
    """
    manager.broker_epoch = -1
    if manager.roles_under_way is not None:
        mark("roles: those that wait for flushes end with the session")
        _end_roles_under_way(manager, manager.roles_under_way)
    for topic_partition, partition in manager.partitions.items():
        if partition.is_leader:
            partition.suspend()
            manager.record(partition, "stops leading", "its session is over", now_ms)
            manager.waiting.wake(topic_partition)
    return manager.end_turn(now_ms)


def _end_roles_under_way(manager: ReplicaManager, roles: RolesUnderWay) -> None:
    """Answer without taking the roles that still wait; the next registration gets all roles again."""
    manager.roles_under_way = None
    refusal = ErrorCode.STALE_BROKER_EPOCH
    codes = {each: roles.codes.get(each, refusal) for each in roles.body.partitions}
    manager.effects.append(answer(roles.address, LeaderAndIsrResponse(refusal, codes)))


def stop(manager: ReplicaManager, now_ms: int) -> list[Effect]:
    """Stop leading and following, and answer every waiting client. The logs stay open.

    Whether a batch that was not committed until now ever will be is unknown: `REQUEST_TIMED_OUT (7)`.
    """
    manager.is_departing = True
    for topic_partition in manager.partitions:
        manager.followers.remove(topic_partition)
    effects = session_lost(manager, now_ms)
    manager.waiting.expire(_FOR_EVER)
    return effects + manager.end_turn(now_ms)


# --- which requests count ----------------------------------------------------------------------


def refusal_of(manager: ReplicaManager, controller_epoch: int, broker_epoch: int) -> ErrorCode | None:
    """Return the error for a request that must be refused; None otherwise."""
    # A broker epoch above ours is our own: the reply to the registration has not arrived yet.
    if NO_EPOCH < broker_epoch < manager.broker_epoch:
        mark("roles: for an earlier life of this broker")
        return ErrorCode.STALE_BROKER_EPOCH
    if controller_epoch < manager.controller_epoch:
        mark("roles: of a controller that was replaced")
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return None


def refuse(address: Address, body: Order, code: ErrorCode) -> Effect:
    """Return the answer that refuses a request as a whole."""
    match body:
        case LeaderAndIsrRequest():
            return answer(address, LeaderAndIsrResponse(code, dict.fromkeys(body.partitions, code)))
        case StopReplicaRequest():
            return answer(address, StopReplicaResponse(code, dict.fromkeys(body.partitions, code)))
        case UpdateMetadataRequest():
            return answer(address, UpdateMetadataResponse(code))


def refuse_unconfirmed(
    manager: ReplicaManager, address: Address, body: Order, reason: str, now_ms: int
) -> list[Effect]:
    """Refuse a request of a controller that the store does not confirm.

    NOT_CONTROLLER (41) as a whole: a controller that was just elected sends it again.
    """
    mark("roles: of a controller that the store does not confirm")
    manager.counters.protocol_violations += 1
    for topic_partition in list(body.partitions)[:1]:
        kind, count = type(body).__name__, len(body.partitions)
        claim = f"{kind} for {count} partitions claims controller epoch {body.controller_epoch}: {reason}"
        manager.note(topic_partition, "refuses an order", now_ms, reason=claim)
    manager.effects.append(refuse(address, body, ErrorCode.NOT_CONTROLLER))
    return manager.end_turn(now_ms)


def _is_late(manager: ReplicaManager, address: Address, body: Order) -> bool:
    """Whether a later request of this kind was handled before: the controller treated this one as lost."""
    number = address.correlation_id if isinstance(address, Peer) else 0
    sent = body.controller_epoch, number
    newest = manager.newest_orders.get(type(body), (-1, -1))
    manager.newest_orders[type(body)] = max(sent, newest)
    return sent < newest


def _note_controller(manager: ReplicaManager, controller_id: int, controller_epoch: int) -> None:
    if (controller_id, controller_epoch) != (manager.controller_id, manager.controller_epoch):
        mark("roles: a new controller speaks")
        manager.isr_channel.on_new_controller()
    manager.controller_id = controller_id
    manager.controller_epoch = controller_epoch


# --- roles -------------------------------------------------------------------------------------


def leader_and_isr(
    manager: ReplicaManager, address: Address, body: LeaderAndIsrRequest, now_ms: int
) -> list[Effect]:
    """Take the roles that the controller assigns; each partition succeeds or fails alone."""
    if refusal := refusal_of(manager, body.controller_epoch, body.broker_epoch):
        manager.effects.append(refuse(address, body, refusal))
        return manager.end_turn(now_ms)
    _note_controller(manager, body.controller_id, body.controller_epoch)
    # Topic settings have no version: only the order of requests distinguishes new ones from old ones.
    is_late = _is_late(manager, address, body)
    if is_late:
        mark("roles: a request comes late")
    if body.broker_epoch == manager.broker_epoch >= 0 and body.assigned is not None:
        # A controller records our registration before it assigns the first role. Not for a topic that it
        # cannot read: then it knows of no full list either.
        if not manager.is_on_record:
            manager.is_on_record = True
            manager.logs.vouch()
        if not is_late:
            _set_strays_aside(manager, body.assigned, now_ms)
    assert manager.roles_under_way is None, "one request after the other"
    manager.roles_under_way = roles = RolesUnderWay(address, body, is_late)
    # Leaders first: they stop following before anything else in this turn.
    order = sorted(body.partitions, key=lambda known: body.partitions[known].leader != manager.config.node_id)
    for topic_partition in order:
        _take_role_of(manager, roles, topic_partition, now_ms)
    manager.start_checks(now_ms)
    return _answer_when_all_taken(manager, roles, now_ms)


def log_flushed(
    manager: ReplicaManager, roles: RolesUnderWay, topic_partition: TopicPartition, now_ms: int
) -> list[Effect]:
    """Take the roles that waited for flushes, once the last of them has ended."""
    roles.unflushed.discard(topic_partition)
    if not roles.unflushed:
        for each in list(roles.waiting):
            _take_role_of(manager, roles, each, now_ms)
    return _answer_when_all_taken(manager, roles, now_ms)


def _answer_when_all_taken(manager: ReplicaManager, roles: RolesUnderWay, now_ms: int) -> list[Effect]:
    if not roles.waiting:
        manager.roles_under_way = None
        manager.followers.drop_idle()
        codes = {each: roles.codes[each] for each in roles.body.partitions}
        manager.effects.append(answer(roles.address, LeaderAndIsrResponse(ErrorCode.NONE, codes)))
    return manager.end_turn(now_ms)


def _take_role_of(
    manager: ReplicaManager, roles: RolesUnderWay, topic_partition: TopicPartition, now_ms: int
) -> None:
    """Take one role of a request and keep the result; one with a new log or a new epoch waits for a flush."""
    state, has_waited = roles.body.partitions[topic_partition], topic_partition in roles.waiting
    roles.waiting.pop(topic_partition, None)
    try:
        code = take_role(manager, topic_partition, state, roles.body, now_ms, is_late=roles.is_late)
        if code is None and has_waited:
            raise DiskFull(f"{topic_partition}: no space for a new log; free some space")
    except (EngineError, OSError) as error:
        code = _refused(manager, topic_partition, error, now_ms)
    if code is None:
        mark("roles: one waits until its new log or epoch is durable")
        roles.waiting[topic_partition] = None
        roles.unflushed.add(topic_partition)
        manager.effects.append(Sync(topic_partition, 0))
        return
    roles.codes[topic_partition] = code
    change = "becomes leader" if state.leader == manager.config.node_id else "becomes follower"
    if code is ErrorCode.NONE:
        manager.note(topic_partition, change, now_ms, state=state, reason=_order_of(roles.body))
    else:
        manager.note(topic_partition, "refuses a role", now_ms, state=state, reason=code.name)


def _order_of(body: LeaderAndIsrRequest | StopReplicaRequest) -> str:
    return f"ordered by the controller, broker {body.controller_id}"


def _refused(
    manager: ReplicaManager, topic_partition: TopicPartition, error: EngineError | OSError, now_ms: int
) -> ErrorCode:
    code = manager.guard(topic_partition, error)
    if isinstance(error, OutOfResources | AnotherShouldLead):
        manager.retries.refused(topic_partition, now_ms)
    return code


def take_role(
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    state: PartitionState,
    body: LeaderAndIsrRequest,
    now_ms: int,
    *,
    is_late: bool,
) -> ErrorCode | None:
    """Lead or follow a partition according to `state`; return the error code if that fails.

    Returns None if the role is not taken yet, because the log must be flushed first: it is new, or is to be
    led in a new epoch.
    """
    if topic_partition in manager.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if manager.config.node_id not in state.replicas:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    known = manager.partitions.get(topic_partition)
    topic_id = body.topic_ids.get(topic_partition.topic, "")
    if known is not None:
        if topic_id:
            # Raises for another id: a replica in use is not exchanged for one of a topic of the same name.
            known.log.set_topic_id(topic_id)
        if not is_late:
            configure(manager, known, body)
        verdict = judge(manager, known, state, body)
        leads = state.leader == manager.config.node_id
        if leads and verdict in (None, ErrorCode.NONE) and wants_relief(manager, known, state.isr):
            raise AnotherShouldLead(
                f"{topic_partition}: the log is damaged here or its log dir is full; "
                "another replica in sync can lead"
            )
        if verdict is not None:
            return verdict
    elif is_late or is_deleted(manager, topic_partition, topic_id, state.leader_epoch):
        # A later request contains all of this one. Its topic may be deleted, and even created again.
        return ErrorCode.STALE_CONTROLLER_EPOCH
    # Every replica has a log from here on, led or not: its entry would be missing in the next high
    # watermark checkpoint otherwise (KAFKA-1647).
    partition = known or _create(manager, topic_partition, state, topic_id, body, now_ms)
    if partition is None:
        return None
    if state.leader == manager.config.node_id:
        # Stop following first: no more records of the old leader may be appended.
        manager.stop_asking(topic_partition)
        if partition.begin_epoch(state):
            return None
        partition.become_leader(state, now_ms)
        partition.advance_high_watermark(now_ms)
        manager.flushes.want(partition)
    else:
        manager.isr_channel.withdraw(topic_partition)
        is_following = known is not None and not known.leads and not known.is_suspended
        if partition.become_follower(state) or not is_following:
            manager.followers.remove(topic_partition)
            if manager.is_departing and topic_partition not in manager.waiting.produces.watchers:
                mark("replica manager: a node that is about to stop follows nobody new")
            elif state.leader != NO_LEADER:
                manager.followers.add(partition)
        manager.followers.touch(topic_partition)
    manager.retries.succeeded(topic_partition)
    manager.waiting.wake(topic_partition)
    return ErrorCode.NONE


def is_deleted(
    manager: ReplicaManager, topic_partition: TopicPartition, topic_id: str, leader_epoch: int
) -> bool:
    """Whether this role is older than the order that deleted the replica."""
    deleted = manager.deleted.get(topic_partition)
    return deleted is not None and deleted[0] == topic_id and leader_epoch < deleted[1]


def judge(
    manager: ReplicaManager, known: Partition, state: PartitionState, body: LeaderAndIsrRequest
) -> ErrorCode | None:
    """Return None for a new state, else the answer to an old, a repeated or an impossible one.

    Within one leader epoch the partition epoch orders states: a changed ISR or assignment needs no new
    leader epoch, and followers need not start over.
    """
    if state.leader_epoch > known.leader_epoch:
        return None
    if state.leader_epoch < known.leader_epoch or state.partition_epoch < known.partition_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    if state.leader != known.leader_id:
        return ErrorCode.INVALID_REQUEST  # an epoch has one leader
    if known.is_suspended:
        # For our current registration: the store still names us, and no other node has led meanwhile.
        return None if body.broker_epoch >= manager.broker_epoch >= 0 else ErrorCode.STALE_BROKER_EPOCH
    return None if state.partition_epoch > known.partition_epoch else ErrorCode.NONE


# --- the logs of roles -------------------------------------------------------------------------


def _set_strays_aside(manager: ReplicaManager, assigned: Mapping[TopicPartition, str], now_ms: int) -> None:
    """Rename the logs that a full list of assignments proves to be strays; remove copies (`strays.py`)."""
    try:
        found = strays(manager.logs.topic_ids(), assigned)
    except LogDirOffline:
        return  # the dir failed just now, with all logs in it; the next registration looks again
    for topic_partition, reason in found.items():
        mark("replica manager: a stray log is set aside")
        try:
            _set_aside(manager, topic_partition, reason, now_ms)
        except (EngineError, OSError) as error:
            _refused(manager, topic_partition, error, now_ms)
        else:
            manager.retries.succeeded(topic_partition)
    manager.logs.moves.forget_all_but(assigned)


def _set_aside(manager: ReplicaManager, topic_partition: TopicPartition, reason: str, now_ms: int) -> None:
    _stop_serving(manager, topic_partition)
    manager.drop(topic_partition)
    manager.logs.set_aside(topic_partition)
    manager.strays[topic_partition] = reason
    manager.note(topic_partition, "sets a stray log aside", now_ms, reason=reason)


def _create(
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    state: PartitionState,
    topic_id: str,
    body: LeaderAndIsrRequest,
    now_ms: int,
) -> Partition | None:
    """Return the replica over its log; None if the log is new and not durable yet."""
    config, logs = _log_config(manager, topic_partition.topic, body), manager.logs
    left_id = logs.topic_id(topic_partition)
    # A log without a role is older than a request to this registration. It belongs to a deleted topic: its
    # epochs and offsets must not count against the topic that now has the name.
    if is_of_another_incarnation(left_id, topic_id) and body.broker_epoch == manager.broker_epoch >= 0:
        reason = f"belongs to topic id {left_id}, the topic's is {topic_id}"
        _set_aside(manager, topic_partition, reason, now_ms)
    if topic_partition in logs.damaged:
        # Outside the ISR nothing depends on this log, and its leader has all records.
        counts = manager.config.node_id in (*state.isr, *state.eligible)
        is_replaceable = not counts and state.leader != NO_LEADER
        if is_replaceable:
            mark("replica manager: a damaged log is cut, to follow")
        logs.reopen(topic_partition, config=config, accept_loss=is_replaceable)
    if not state.is_new:  # an empty log in another dir would pass for it
        _check_not_in_failed_dir(manager, topic_partition)
    log = logs.get_or_begin(topic_partition, config=config, topic_id=topic_id).partition
    if log.sync_name is not None:
        if state.leader == manager.config.node_id:
            # With the log's other files: by itself it would take two more fsyncs when the role is taken.
            log.assign_epoch(state.leader_epoch, log.log_end_offset)
        return None
    log.set_high_watermark(max(logs.checkpointed_high_watermark(topic_partition), log.log_start_offset))
    was_clean = logs.was_clean or log.was_created
    partition = Partition(log, manager.config, manager.metadata, manager.counters, was_clean=was_clean)
    manager.partitions[topic_partition] = partition
    healing.take_note(manager, topic_partition, log.report.met)
    log.report.met.clear()
    healing.after_read(manager, partition)
    manager.deleted.pop(topic_partition, None)
    return partition


def _check_not_in_failed_dir(manager: ReplicaManager, topic_partition: TopicPartition) -> None:
    """Raise `LogDirOffline` if a replica without a log here may have one in a log dir that failed."""
    logs = manager.logs
    if logs.offline_dirs and topic_partition not in logs.damaged and logs.get(topic_partition) is None:
        mark("replica manager: a replica whose log may be in a failed dir")
        raise LogDirOffline(f"{topic_partition} may be in a failed log dir; repair it and restart the broker")


def _log_config(manager: ReplicaManager, topic: str, body: LeaderAndIsrRequest) -> LogConfig:
    settings = body.configs.get(topic, {})
    known = manager.topic_configs.get(topic)
    if known is None or known[0] != settings:
        known = settings, topic_config(settings, manager.default_config)
        manager.topic_configs[topic] = known
    return known[1]


def configure(manager: ReplicaManager, partition: Partition, body: LeaderAndIsrRequest) -> None:
    """Take over changed topic settings; they apply from the next use on."""
    config = _log_config(manager, partition.topic_partition.topic, body)
    if partition.log.config != config:
        partition.log.config = config


def change_defaults(manager: ReplicaManager, defaults: LogConfig) -> list[str]:
    """Take over new defaults for settings that topics leave unset; they apply from the next use on.

    Return the topics for which one does not count, because a setting of their own contradicts it.
    """
    if defaults == manager.default_config:
        return []
    manager.default_config = defaults
    for topic, (settings, _) in manager.topic_configs.items():
        manager.topic_configs[topic] = settings, topic_config(settings, defaults)
    for topic_partition, partition in manager.partitions.items():
        partition.log.config = manager.topic_configs[topic_partition.topic][1]
    return sorted(
        topic for topic, (settings, _) in manager.topic_configs.items() if _contradicts(settings, defaults)
    )


def _contradicts(settings: Mapping[str, str], defaults: LogConfig) -> bool:
    try:
        LogConfig.from_kafka(settings, base=defaults)
    except InvalidConfig:
        return True
    return False


# --- replicas that stop ------------------------------------------------------------------------


def stop_replica(
    manager: ReplicaManager, address: Address, body: StopReplicaRequest, now_ms: int
) -> list[Effect]:
    """Stop serving partitions, and delete their logs if asked."""
    refusal = refusal_of(manager, body.controller_epoch, body.broker_epoch)
    if refusal is None and not may_delete(manager, body):
        mark("roles: a deletion for an unknown life of this broker")
        refusal = ErrorCode.STALE_BROKER_EPOCH
    if refusal is not None:
        manager.effects.append(refuse(address, body, refusal))
        return manager.end_turn(now_ms)
    _note_controller(manager, body.controller_id, body.controller_epoch)
    is_late = _is_late(manager, address, body)
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic_partition, order in body.partitions.items():
        topic_id = body.topic_ids.get(topic_partition.topic, "")
        try:
            codes[topic_partition] = stop_one(manager, topic_partition, order, topic_id)
        except (EngineError, OSError) as error:
            codes[topic_partition] = _refused(manager, topic_partition, error, now_ms)
    going = [each for each, order in body.partitions.items() if order.delete and not codes[each]]
    try:
        manager.logs.delete(*going)
    except (EngineError, OSError):
        codes.update({each: _delete_alone(manager, each, now_ms) for each in going})
        going = [each for each in going if not codes[each]]
    for topic_partition in going:
        _note_deletion(manager, topic_partition, body, is_late=is_late)
    for topic in {each.topic for each in going} - {each.topic for each in manager.partitions}:
        manager.topic_configs.pop(topic, None)
    for topic_partition, code in codes.items():
        order = body.partitions[topic_partition]
        change = "deletes the replica" if order.delete else "stops the replica"
        reason = f"refused: {code.name}" if code is not ErrorCode.NONE else _order_of(body)
        if code is ErrorCode.NONE and order.leader_epoch == BEING_DELETED:
            reason += ": the topic is being deleted"
        manager.note(topic_partition, change, now_ms, leader_epoch=order.leader_epoch, reason=reason)
    manager.followers.drop_idle()
    manager.effects.append(answer(address, StopReplicaResponse(ErrorCode.NONE, codes)))
    return manager.end_turn(now_ms)


def _delete_alone(manager: ReplicaManager, topic_partition: TopicPartition, now_ms: int) -> ErrorCode:
    try:
        _check_not_in_failed_dir(manager, topic_partition)
        manager.logs.delete(topic_partition)
    except (EngineError, OSError) as error:
        return _refused(manager, topic_partition, error, now_ms)
    return ErrorCode.NONE


def may_delete(manager: ReplicaManager, body: StopReplicaRequest) -> bool:
    """Whether the request deletes nothing, or names exactly the current registration of this broker."""
    return body.broker_epoch == manager.broker_epoch or not any(
        order.delete for order in body.partitions.values()
    )


def stop_one(
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    order: StopReplicaPartition,
    topic_id: str,
) -> ErrorCode:
    """Stop serving one partition, and forget a replica that is to be deleted; return the error code."""
    if topic_partition in manager.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    own_id = manager.logs.topic_id(topic_partition)
    if is_of_another_incarnation(own_id, topic_id) or (order.delete and own_id and not topic_id):
        return ErrorCode.INCONSISTENT_TOPIC_ID
    known = manager.partitions.get(topic_partition)
    is_sentinel = order.leader_epoch in (NO_EPOCH, BEING_DELETED)
    if known is not None and not is_sentinel and order.leader_epoch < known.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if order.delete and manager.deleted.get(topic_partition, ("", 0))[0] != topic_id:
        # It would come back with its dir, beside the log of the next topic of this name.
        _check_not_in_failed_dir(manager, topic_partition)
    _stop_serving(manager, topic_partition)
    if order.delete:
        manager.drop(topic_partition)
    return ErrorCode.NONE


def _note_deletion(
    manager: ReplicaManager, topic_partition: TopicPartition, body: StopReplicaRequest, *, is_late: bool
) -> None:
    manager.retries.succeeded(topic_partition)
    topic_id = body.topic_ids.get(topic_partition.topic, "")
    leader_epoch = body.partitions[topic_partition].leader_epoch
    if is_late:
        # What is known about this replica's deletion may be newer, and must stay.
        mark("replica manager: an order to delete comes late")
    elif topic_id and leader_epoch != NO_EPOCH:
        # A deleted topic never returns: another topic of the same name has another id.
        is_topic_deleted = leader_epoch == BEING_DELETED
        manager.deleted.pop(topic_partition, None)
        manager.deleted[topic_partition] = topic_id, _FOR_EVER if is_topic_deleted else leader_epoch
        if len(manager.deleted) > MOST_DELETIONS_KNOWN:
            del manager.deleted[next(iter(manager.deleted))]


def _stop_serving(manager: ReplicaManager, topic_partition: TopicPartition) -> None:
    manager.stop_asking(topic_partition)
    known = manager.partitions.get(topic_partition)
    if known is not None:
        known.suspend()  # a stopped leader serves no requests, whether or not its log stays
    manager.waiting.wake(topic_partition)


# --- live brokers ------------------------------------------------------------------------------


def update_metadata(
    manager: ReplicaManager, address: Address, body: UpdateMetadataRequest, now_ms: int
) -> list[Effect]:
    """Take over the list of live brokers and the leaders of partitions."""
    refusal = refusal_of(manager, body.controller_epoch, body.broker_epoch)
    # A late request would list a dead broker as alive, or hide a live one permanently: the controller does
    # not repeat its updates.
    if refusal is None and not _is_late(manager, address, body):
        _note_controller(manager, body.controller_id, body.controller_epoch)
        before = manager.metadata.in_sync_candidates
        manager.metadata.update(body)
        if before != manager.metadata.in_sync_candidates:
            # The high watermark waits for live followers that are about to join, but not for dead ones.
            for partition in manager.partitions.values():
                manager.advance(partition, now_ms)
        for topic_partition in manager.waiting.deletions.keys:
            manager.waiting.wake(topic_partition)  # a dead replica need not confirm a deletion
    manager.effects.append(answer(address, UpdateMetadataResponse(refusal or ErrorCode.NONE)))
    return manager.end_turn(now_ms)
