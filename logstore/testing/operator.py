"""The operator's commands to a cluster under faults.

Commands are decisions like faults: each at its seed's rate, recorded, and replayed in the same way. A command
is sent once, to a node that may be the controller. Whatever the response, the cluster must end in a state
that the store's record of the command explains. Only commands that the engine serves are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.controller import SERVICES
from logstore.replication.durability import DURABILITY_LEVEL, Durability
from logstore.replication.messages import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    NewPartitions,
    NewTopic,
    RequestBody,
)
from logstore.testing.faults import Decision
from logstore.testing.world import TOPIC, World

SIDE_TOPICS = ("side-0", "side-1", "side-2")
"""Topics that are created, deleted and created again: no replica may confuse topics with the same name."""


def place(world: World, decision: Decision, *, shift: int = 0) -> tuple[int, ...]:
    """Return some replicas, as the decision chooses them."""
    nodes, count = world.swarm.nodes, world.swarm.replication_factor
    first = int(decision.chance * 1009) + shift
    step = 1 + int(decision.chance * 7919) % (nodes - 1)
    found: list[int] = []
    for position in range(nodes * nodes):
        node = (first + position * step) % nodes
        if node not in found:
            found.append(node)
        if len(found) == count:
            break
    return tuple(found)


def target(world: World, decision: Decision) -> TopicPartition:
    known = sorted(world.checkers)
    return known[int(decision.chance * 10_007) % len(known)]


def _side_topic(decision: Decision) -> str:
    return SIDE_TOPICS[int(decision.chance * 1_013) % len(SIDE_TOPICS)]


def _create_topic(world: World, decision: Decision) -> RequestBody:
    assignment = tuple(place(world, decision, shift=shift) for shift in range(1 + int(decision.chance * 2)))
    return CreateTopicsRequest((NewTopic(_side_topic(decision), assignment=assignment),))


def _delete_topic(world: World, decision: Decision) -> RequestBody:
    return DeleteTopicsRequest((_side_topic(decision),))


def _add_partitions(world: World, decision: Decision) -> RequestBody:
    topic = _side_topic(decision)
    held = sum(each.topic == topic for each in world.checkers)
    return CreatePartitionsRequest({topic: NewPartitions(held + 1, (place(world, decision),))})


def _reassign(world: World, decision: Decision) -> RequestBody:
    return AlterPartitionReassignmentsRequest({target(world, decision): place(world, decision)})


def _cancel_reassignment(world: World, decision: Decision) -> RequestBody:
    return AlterPartitionReassignmentsRequest({target(world, decision): None})


def _elect_preferred(world: World, decision: Decision) -> RequestBody:
    partitions = None if decision.chance < 0.3 else (target(world, decision),)
    return ElectLeadersRequest(ElectionType.PREFERRED, partitions)


def _elect_unclean(world: World, decision: Decision) -> RequestBody:
    """Allow unclean elections of this partition from now on: the request may arrive late."""
    chosen = target(world, decision)
    world.observation.unclean_asked.add(chosen)
    return ElectLeadersRequest(ElectionType.UNCLEAN, (chosen,))


def _alter_config(world: World, decision: Decision) -> RequestBody:
    settings: dict[str, str | None] = {"segment.bytes": str(1500 + int(decision.chance * 9000))}
    if decision.chance < 0.3:
        settings = {"segment.bytes": None}
    return AlterConfigsRequest({TOPIC: settings})


def _alter_durability(world: World, decision: Decision) -> RequestBody:
    level = (None, Durability.SYNCED.value, Durability.REPLICATED.value)[int(decision.chance * 3)]
    return AlterConfigsRequest({target(world, decision).topic: {DURABILITY_LEVEL: level}})


def _delete_records(world: World, decision: Decision) -> RequestBody:
    chosen = target(world, decision)
    end = world.checkers[chosen].committed_end
    offset = -1 if decision.chance < 0.2 else int(end * decision.chance)
    if decision.chance > 0.85:
        offset = end + int(100 * decision.chance) % 7  # a deletion above the high watermark must be refused
    return DeleteRecordsRequest({chosen: offset}, 2 * world.swarm.request_timeout_ms)


def _delete_to_an_end(world: World, decision: Decision) -> RequestBody:
    """Delete up to the end of a log that is behind: for its leader, this may be inside a batch."""
    chosen = target(world, decision)
    checker = world.checkers[chosen]
    ends = [view.log_end for view in checker.views.values() if view.log_end <= checker.committed_end]
    return DeleteRecordsRequest({chosen: min(ends, default=-1)}, 2 * world.swarm.request_timeout_ms)


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `request` builds it; it goes to the partition's leader (`to_leader`) or the controller."""

    kind: type[RequestBody]
    request: Callable[[World, Decision], RequestBody]
    to_leader: bool = False


COMMANDS: Mapping[str, Command] = {
    "create_topic": Command(CreateTopicsRequest, _create_topic),
    "delete_topic": Command(DeleteTopicsRequest, _delete_topic),
    "add_partitions": Command(CreatePartitionsRequest, _add_partitions),
    "reassign": Command(AlterPartitionReassignmentsRequest, _reassign),
    "cancel_reassignment": Command(AlterPartitionReassignmentsRequest, _cancel_reassignment),
    "elect_preferred": Command(ElectLeadersRequest, _elect_preferred),
    "elect_unclean": Command(ElectLeadersRequest, _elect_unclean),
    "alter_config": Command(AlterConfigsRequest, _alter_config),
    "alter_durability": Command(AlterConfigsRequest, _alter_durability),
    "delete_records": Command(DeleteRecordsRequest, _delete_records, to_leader=True),
    "delete_to_an_end": Command(DeleteRecordsRequest, _delete_to_an_end, to_leader=True),
}


def is_served(command: Command) -> bool:
    """Whether the engine serves this command."""
    return command.kind in SERVICES or command.to_leader


def give(world: World, decision: Decision) -> None:
    """Carry out the decision of a command."""
    command = COMMANDS[decision.what]
    if not world.checkers:
        return
    body = command.request(world, decision)
    node_id = decision.victim
    if isinstance(body, DeleteRecordsRequest):
        (chosen,) = body.partitions
        state = world.checkers[chosen].state
        node_id = state.leader if state is not None and state.leader >= 0 else decision.victim
    elif decision.chance < 0.9:
        node_id = active_controller(world, node_id)
    ask(world, node_id, body)


def active_controller(world: World, otherwise: int) -> int:
    """Return the node that acts as the controller, if there is one."""
    active = [host.node_id for host in world.running if host.node and host.node.controller.is_active]
    return active[-1] if active else otherwise


def ask(world: World, node_id: int, body: RequestBody) -> None:
    """Send a command once, and ignore the response."""
    world.tally.commands += 1
    world.client_link.call(node_id, body, lambda answer: None, timeout_ms=4 * world.swarm.request_timeout_ms)
