"""Changes that bypass the brokers: tools that write to the store, people who operate the machines.

Before there were requests for it, Kafka's tools wrote their orders to the store, and brokers wrote the
state of the partitions they led; people write anything. No such change may cost a record. An order that
makes no sense must not be carried out, and must not stop the rest. These are decisions like all others, at
their own pace; most seeds have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.durability import DURABILITY_LEVEL, Durability
from logstore.replication.effects import Request
from logstore.replication.messages import (
    BEING_DELETED,
    NO_EPOCH,
    AlterConfigsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    LeaderAndIsrRequest,
    NewTopic,
    PartitionState,
    RequestBody,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Create, Delete, Outcome, Set
from logstore.testing import disk_faults
from logstore.testing.faults import Decision, may_lose_power, others_hold_everything
from logstore.testing.hosts import Host
from logstore.testing.operator import SIDE_TOPICS, active_controller, ask, place, target
from logstore.testing.stored import IDENTITY_AT
from logstore.testing.world import LOG_DIR, World

_NONSENSE = b"?"
_SUSPENDED_MS = 16 * 60_000
"""Longer than a notice of changed settings is kept."""


def _pick(decision: Decision, count: int) -> int:
    """Choose one of `count` variants, independent of the decision's other choices."""
    return int(decision.chance * 100_003) % count


def _write(world: World, operation: Create | Set | Delete) -> Outcome:
    """Write by hand: this is not judged as a controller's write, but new topics must be known."""
    outcome = world.store_link.write_as_operator(operation)
    if outcome.error is None:
        world.observation.topic_written(operation, by_hand=True)
    return outcome


def _put_right(world: World, decision: Decision, path: str, data: bytes | None) -> None:
    """Replace an unreadable node after a while, or remove it (None)."""

    spoilt = world.store_link.read_as_operator(path)

    def act() -> None:
        found = world.store_link.read_as_operator(path)
        if found.stat is None or found.stat != spoilt.stat or found.data != _NONSENSE:
            return
        version = found.stat.version
        _write(world, Delete(path, version) if data is None else Set(path, data, version))
        if data is not None:
            # Whoever repairs a topic's node makes the controllers start again, so that all of it is read.
            world.store_link.write_as_operator(Delete(layout.CONTROLLER_PATH))

    world.until_healed(1 + decision.for_ms, act)


def _start(world: World, host: Host) -> None:
    if host.node is None and not world.is_healed:
        world.start(host)


def _side_topic(world: World, decision: Decision) -> str:
    """Return a side topic, preferably one that exists."""
    known = sorted({each.topic for each in world.checkers if each.topic in SIDE_TOPICS})
    names = known if known and decision.chance < 0.8 else list(SIDE_TOPICS)
    return names[_pick(decision, len(names))]


def _reassign(world: World, decision: Decision) -> None:
    """Write the list of the reassignment tool."""
    wanted = {target(world, decision): place(world, decision)}
    match _pick(decision, 6):
        case 0:
            _write(world, Create(layout.REASSIGNMENT_PATH, _NONSENSE, make_parents=True))
            _put_right(world, decision, layout.REASSIGNMENT_PATH, None)
            return
        case 1:
            wanted[TopicPartition("nowhere", 0)] = (0,)
        case 2:
            wanted = {target(world, decision): (0, 0)}
    data = layout.encode_reassignment(wanted)
    _write(world, Create(layout.REASSIGNMENT_PATH, data, make_parents=True))


def _delete_topic(world: World, decision: Decision) -> None:
    """Request or withdraw a deletion, in both forms; also of a topic that moves or does not exist."""
    moving = sorted(
        {
            each.topic
            for each, checker in world.checkers.items()
            if each.topic in SIDE_TOPICS and checker.is_changing_replicas
        }
    )
    topic = moving[0] if moving else _side_topic(world, decision)
    path = layout.delete_topic_path(topic)
    match _pick(decision, 4):
        case 0:
            holder = world.store_link.read_as_operator(layout.DELETE_TOPICS_PATH)
            if holder.stat is not None:
                listed = json.dumps({"version": 1, "topics": [topic]}).encode()
                _write(world, Set(layout.DELETE_TOPICS_PATH, listed, holder.stat.version))
        case 1:
            _call_deletion_off(world, topic)
        case _:
            _write(world, Create(path, make_parents=True))
            if moving and decision.chance < 0.5:
                world.until_healed(1 + decision.for_ms, lambda: _call_deletion_off(world, topic))


def _call_deletion_off(world: World, topic: str) -> None:
    """Withdraw a deletion, but only while it waits for a reassignment. Later some replicas are deleted,
    and their records are lost if the topic stays (seed 851)."""
    if any(checker.is_changing_replicas for each, checker in world.checkers.items() if each.topic == topic):
        _write(world, Delete(layout.delete_topic_path(topic)))


def _reassign_and_delete(world: World, decision: Decision) -> None:
    """Use two tools at once; the second has to wait."""
    known = sorted(each for each in world.checkers if each.topic in SIDE_TOPICS)
    if known:
        each = known[_pick(decision, len(known))]
        data = layout.encode_reassignment({each: place(world, decision)})
        _write(world, Create(layout.REASSIGNMENT_PATH, data, make_parents=True))
        delete = Create(layout.delete_topic_path(each.topic), make_parents=True)
        delay_ms = 1 + _pick(decision, 20 * world.swarm.delay_ms)
        world.until_healed(delay_ms, lambda: _write(world, delete))
        if decision.chance < 0.5:
            off_ms = delay_ms + 1 + int(decision.for_ms * decision.chance)
            world.until_healed(off_ms, lambda: _call_deletion_off(world, each.topic))


def _add_partition(world: World, decision: Decision) -> None:
    """Add a partition in the topic's node only, preferably while the topic is being deleted."""
    leaving = sorted({each.topic for each, checker in world.checkers.items() if checker.is_being_deleted})
    topic = leaving[0] if leaving else _side_topic(world, decision)
    path = layout.topic_path(topic)
    found = world.store_link.read_as_operator(path)
    if found.stat is None or found.data == _NONSENSE:
        return
    node = layout.parse_topic(found.data)
    if node.adding_replicas or node.removing_replicas or len(node.partitions) > 3:
        return
    partitions = {**node.partitions, len(node.partitions): place(world, decision)}
    _write(world, Set(path, layout.encode_topic(replace(node, partitions=partitions)), found.stat.version))


def _create_on_the_dead(world: World, decision: Decision) -> None:
    """Create a topic without a live replica; later it is reassigned."""
    topic = SIDE_TOPICS[_pick(decision, len(SIDE_TOPICS))]
    dead = tuple(host.node_id for host in world.hosts.values() if host.node is None)
    each = TopicPartition(topic, 0)
    if not dead or each in world.checkers:
        return
    _create(world, decision, topic, dead[: world.swarm.replication_factor])
    data = layout.encode_reassignment({each: place(world, decision)})
    move = Create(layout.REASSIGNMENT_PATH, data, make_parents=True)
    world.until_healed(1 + decision.for_ms, lambda: _write(world, move))


def _create(world: World, decision: Decision, topic: str, replicas: tuple[int, ...]) -> None:
    node = layout.TopicAssignment(new_id(Random(f"{topic} {decision}")), {0: replicas})
    _write(world, Create(layout.topic_path(topic), layout.encode_topic(node), make_parents=True))


def _wipe_topic(world: World, decision: Decision) -> None:
    """Remove a topic as was done before there were requests: stop all nodes, remove its entries.

    Often the name is used again before they are started; sometimes a deletion was under way.
    """
    topic = _side_topic(world, decision)
    hosts = list(world.hosts.values())
    if any(host.is_paused or host.disk_is_dead for host in hosts):
        return
    for host in hosts:
        if host.node is not None:
            world.stop(host)
    if decision.chance < 0.4:
        _write(world, Create(layout.delete_topic_path(topic), make_parents=True))

    def wipe() -> None:
        path = layout.topic_path(topic)
        nodes = [each for each, _ in world.store_link.store.tree.nodes() if f"{each}/".startswith(f"{path}/")]
        for each in sorted(nodes, reverse=True):
            _write(world, Delete(each))
        world.store_link.write_as_operator(Delete(layout.topic_config_path(topic)))
        if decision.chance < 0.7:
            _create(world, decision, topic, place(world, decision))

    def wipe_and_start() -> None:
        # A node that had been down before may run by now: the entries are in use then.
        if all(host.node is None for host in hosts):
            wipe()
        for host in hosts:
            _start(world, host)

    world.until_healed(1 + decision.for_ms, wipe_and_start)


def _replace_topic(world: World, decision: Decision) -> None:
    """Delete a topic and create it again on the same replicas as soon as it is gone."""
    topic = _side_topic(world, decision)
    held = sorted(each for each in world.checkers if each.topic == topic)
    assignment = tuple(world.checkers[each].replicas for each in held) or (place(world, decision),)
    old = {world.checkers[each].topic_id for each in held}
    until_ms = world.now_ms + 4 * world.swarm.request_timeout_ms
    if held:
        ask(world, active_controller(world, decision.victim), DeleteTopicsRequest((topic,)))

    def create() -> None:
        known = [checker for each, checker in world.checkers.items() if each.topic == topic]
        if world.is_healed or world.now_ms > until_ms or any(each.topic_id not in old for each in known):
            return
        if not known:
            new = NewTopic(topic, assignment=assignment)
            ask(world, active_controller(world, decision.victim), CreateTopicsRequest((new,)))
        world.time.at(1 + 4 * world.swarm.delay_ms, create)

    create()


def _switch_as_power_goes(world: World, decision: Decision) -> None:
    """Switch a topic to `synced`, or back, and cut the power of all machines at a bad moment.

    The cut comes once the store has the new level but before everything is flushed, or once the store
    records that everything acknowledged is flushed. The machines come back one by one.
    """
    chosen = target(world, decision)
    state = world.checkers[chosen].state
    if state is None:
        return
    is_synced = state.durability is Durability.SYNCED
    level = Durability.REPLICATED if is_synced else Durability.SYNCED
    ask(
        world,
        active_controller(world, decision.victim),
        AlterConfigsRequest({chosen.topic: {DURABILITY_LEVEL: level.value}}),
    )
    until_ms = world.now_ms + 4 * world.swarm.request_timeout_ms

    def wait() -> None:
        state = world.checkers[chosen].state if chosen in world.checkers else None
        if is_synced or world.is_healed or world.now_ms > until_ms or state is None:
            return
        if state.all_synced:
            cut()
        elif state.durability is Durability.SYNCED and _pick(decision, 2):
            world.time.at(1 + _pick(decision, 12 * world.swarm.delay_ms), cut)
        else:
            world.time.at(1, wait)

    def cut() -> None:
        hosts = [host for host in world.hosts.values() if host.node is not None]
        if world.is_healed or not hosts or not all(may_lose_power(world, host) for host in hosts):
            return
        for host in hosts:
            world.cut_power(host)
        first = _pick(decision, len(hosts))
        for turn, host in enumerate((*hosts[first:], *hosts[:first])):
            world.until_healed(1 + turn * decision.for_ms, partial(_start, world, host))

    wait()


def _spoil_topic(world: World, decision: Decision) -> None:
    """Make a topic's node unreadable for a while."""
    path = layout.topic_path(target(world, decision).topic)
    found = world.store_link.read_as_operator(path)
    if found.stat is not None and found.data != _NONSENSE:
        world.store_link.write_as_operator(Set(path, _NONSENSE, found.stat.version))
        _put_right(world, decision, path, found.data)


def _touch_state(world: World, decision: Decision) -> None:
    """Rewrite a state as brokers once did, and send the notice at once or later."""
    each = target(world, decision)
    path = layout.partition_state_path(each)
    found = world.store_link.read_as_operator(path)
    if found.stat is None:
        return
    outcome = world.store_link.write_as_operator(Set(path, found.data, found.stat.version))
    assert outcome.stat is not None
    world.observation.state_touched(each, outcome.stat.version)
    notice = Create(
        layout.ISR_NOTIFICATION_PREFIX, layout.encode_partitions([each]), sequential=True, make_parents=True
    )
    world.until_healed(1 + decision.for_ms, lambda: _write(world, notice))


def _raise_controller_epoch(world: World, decision: Decision) -> None:
    """Raise the controller epoch: the controller must find out that its epoch is not the newest."""
    path = layout.CONTROLLER_EPOCH_PATH
    found = world.store_link.read_as_operator(path)
    if found.stat is not None:
        data = layout.encode_controller_epoch(layout.parse_controller_epoch(found.data) + 1)
        _write(world, Set(path, data, found.stat.version))


def _renew_session(world: World, decision: Decision) -> None:
    """Open a new session for a node's client of the store; the old one may live on for a while."""
    host = world.hosts[decision.victim]
    if host.node is not None and host.session_id is not None and not host.is_paused:
        world.store_link.renew_session(host, keeps_old=decision.chance < 0.7)


def _suspend(world: World, decision: Decision) -> None:
    """Suspend all machines, including the store's; afterwards only clocks show it."""
    world.suspend(_SUSPENDED_MS)


def _rot(world: World, decision: Decision) -> None:
    """Cut a machine's power and change a bit of its synced data."""
    host = world.hosts[decision.victim]
    if host.node is None or host.disk_is_dead or host.disk_is_full:
        return
    if others_hold_everything(world, host, or_may_lead=True):
        # The recovery point must cover it, too: otherwise a change looks like a torn write. (A full disk
        # cannot record it.)
        disk_faults.flush(world.time, host, sealed_only=False)
        disk_faults.flush(world.time, host, sealed_only=True)
        world.cut_power(host)
        _spoil_log(world, host, decision.chance)
        world.until_healed(1 + decision.for_ms, lambda: world.start(host) if host.node is None else None)


def _spoil_log(world: World, host: Host, chance: float) -> None:
    """Change a bit in the synced part of a stopped machine's last segment, or in its epoch checkpoint."""
    assert host.node is None
    known = [
        (topic_partition, remains)
        for topic_partition, remains in sorted(host.remains.items())
        if remains.durable_end > remains.log_start and topic_partition in world.checkers
    ]
    if not known:
        return
    topic_partition, remains = known[int(chance * 1009) % len(known)]
    directory = f"/{LOG_DIR}/{topic_partition}/"
    found = {path: data for path, data in host.disk.files().items() if path.startswith(directory)}
    path = max((path for path in found if path.endswith(".log")), default="")
    durable = [batch for batch in remains.batches if batch.end <= remains.durable_end]
    base = int(path.rpartition("/")[2].removesuffix(".log") or 0) if path else 0
    stored = [batch for batch in durable if batch.base >= base]
    if not stored or not found[path]:
        return
    # Somewhere under a checksum: a change elsewhere cannot be detected.
    number = int(chance * 10_007) % len(stored)
    position = sum(len(batch.data) for batch in stored[:number]) + IDENTITY_AT
    position += int(chance * 100_003) % (len(stored[number].data) - IDENTITY_AT)
    epochs = f"{directory}{LEADER_EPOCH_CHECKPOINT}"
    if int(chance * 10_007) % 3 == 0 and epochs in found:
        path, position = epochs, 0
    if position >= len(found[path]):
        return
    world.time.note(host.node_id, "has a bit changed in", path)
    world.time.stamp(f"rot{path}")
    world.tally.rotten_bits += 1
    file = host.disk.open(path, write=True)
    file.pwrite(bytes((found[path][position] ^ 1 << int(chance * 8),)), position)
    file.sync()
    file.close()
    host.rotten.add(topic_partition)


def _fill_while_down(world: World, decision: Decision) -> None:
    """Cut a machine's power; when it comes back, its disk is full."""
    host = world.hosts[decision.victim]
    if host.node is None or host.disk_is_dead or not world.swarm.disks_may_fail:
        return
    if not may_lose_power(world, host):
        return
    world.cut_power(host)

    def start() -> None:
        if host.node is None:
            world.start(host, is_full=True)

    world.until_healed(1 + decision.for_ms, start)

    def make_room() -> None:
        disk_faults.make_room(world.time, host)
        _start(world, host)

    world.until_healed(2 + 3 * decision.for_ms, make_room)


_HIGHEST_EPOCH = 2**31 - 1
_FORGED_ID = 0
"""No node's request has this correlation id: the answer finds nobody."""


def _forge_order(world: World, decision: Decision) -> None:
    """Send an order that no controller sent, as whoever reaches the brokers' port can, to every broker."""
    topic_partition = sorted(world.checkers)[_pick(decision, len(world.checkers))]
    replicas = world.checkers[topic_partition].replicas
    known = world.store_link.read_as_operator(layout.topic_path(topic_partition.topic))
    if known.stat is None or known.data == _NONSENSE:
        return
    ids = {topic_partition.topic: layout.parse_topic(known.data).topic_id}
    epoch, variant = world.store_link.controller_epoch, _pick(decision, 5)
    order = {topic_partition: StopReplicaPartition(BEING_DELETED, delete=True)}
    for host in world.hosts.values():
        role = PartitionState(
            _HIGHEST_EPOCH, host.node_id, _HIGHEST_EPOCH, (host.node_id,), _HIGHEST_EPOCH, replicas
        )
        body: RequestBody
        match variant:
            case 0:
                body = StopReplicaRequest(decision.victim, _HIGHEST_EPOCH, NO_EPOCH, order)
            case 1:  # as the real one, but for an unknown registration
                body = StopReplicaRequest(decision.victim, epoch, NO_EPOCH, order, ids)
            case 2:  # … but without the topic's id
                body = StopReplicaRequest(decision.victim, epoch, host.broker_epoch, order)
            case 3:
                states = {topic_partition: role}
                body = LeaderAndIsrRequest(decision.victim, _HIGHEST_EPOCH, host.broker_epoch, states, ids)
            case _:
                body = UpdateMetadataRequest(decision.victim, _HIGHEST_EPOCH, host.broker_epoch, {}, ())
        world.receive(host, Request(decision.victim, _FORGED_ID, body))


BY_HAND: Mapping[str, Callable[[World, Decision], None]] = {
    "reassign_by_hand": _reassign,
    "delete_by_hand": _delete_topic,
    "delete_what_moves": _reassign_and_delete,
    "add_partition_by_hand": _add_partition,
    "create_on_the_dead": _create_on_the_dead,
    "wipe_topic": _wipe_topic,
    "replace_topic": _replace_topic,
    "switch_as_power_goes": _switch_as_power_goes,
    "spoil_topic": _spoil_topic,
    "touch_state": _touch_state,
    "raise_controller_epoch": _raise_controller_epoch,
    "renew_session": _renew_session,
    "suspend": _suspend,
    "rot": _rot,
    "fill_while_down": _fill_while_down,
    "forge_order": _forge_order,
}
