"""The promises that every run of the simulated group coordinator must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.broker.groups.answers import Answer
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.members import Members
from logstore.broker.groups.records import (
    GroupKey,
    GroupMetadata,
    decode_group,
    decode_key,
)
from logstore.broker.groups.requests import (
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.broker.groups.served import partition_for
from logstore.disk.errors import ErrorCode
from logstore.format.batch import Batch
from tests.broker.groups.swarm_parts import GROUPS, PARTITIONS, WHERE, Asked, Entry, Key, Node, Violation

if TYPE_CHECKING:
    from tests.broker.groups.swarm import World


def check(world: World, node: Node, asked: Asked, response: Any) -> None:
    request: Any = asked.request
    check_tallies(node)
    if isinstance(response, OffsetFetchResponse):
        check_fetch(world, node, asked, response)
    elif isinstance(response, OffsetCommitResponse):
        for where, error in response.partitions.items():
            if error is ErrorCode.NONE:
                key = (request.group_id, where)
                place = world.written.get(request.partitions[where].committed_offset)
                if place is None:
                    raise Violation(f"{key} is acknowledged and was never written")
                if place > world.tombstones.get(key, -1):
                    world.floor[key] = max(place, world.floor.get(key, -1))
        if ErrorCode.NONE in response.partitions.values():
            check_self(world, node, asked)
    elif isinstance(response, DeleteGroupsResponse):
        for group_id, error in response.results.items():
            if error is ErrorCode.NONE:
                removed(world, asked, [(group_id, where) for where in WHERE])
    elif response.error_code is ErrorCode.NONE:
        match response:
            case OffsetDeleteResponse():
                done = [each for each, error in response.partitions.items() if error is ErrorCode.NONE]
                removed(world, asked, [(request.group_id, where) for where in done])
            case JoinGroupResponse():
                check_join(world, node, asked, response)
            case SyncGroupResponse():
                check_self(world, node, asked)
                check_sync(world, request, response)
            case HeartbeatResponse():
                if world.leads(node, request.group_id):
                    check_self(world, node, asked)


def check_tallies(node: Node) -> None:
    """The tallies of a group agree with its members, and no deadline is missed."""
    for group_id, entry in node.coordinator._served.entries.items():
        members, deadline_ms = entry.group.members, entry.group.deadline_ms
        alone = Members()
        for each in members:
            alone.add(each)
        alone.pending_ids = members.pending_ids
        if members.size != alone.size or members.common_protocols() != alone.common_protocols():
            raise Violation(f"{group_id} is miscounted")
        if deadline_ms is not None and (entry.wake_ms is None or entry.wake_ms > deadline_ms):
            raise Violation(f"{group_id} sleeps until {entry.wake_ms}, and is due at {deadline_ms}")


def removed(world: World, asked: Asked, keys: list[Key]) -> None:
    """Of what was removed, all that was written before the request was made is gone for good."""
    for key in keys:
        if world.tombstones.get(key, -1) > asked.tombstones.get(key, -1):
            world.ceiling[key] = max(world.tombstones[key], world.ceiling.get(key, -1))


def check_fetch(world: World, node: Node, asked: Asked, response: OffsetFetchResponse) -> None:
    (group,) = response.groups
    if group.error_code is not ErrorCode.NONE or not world.leads(node, group.group_id):
        return
    for where in WHERE:
        key = (group.group_id, where)
        floor, ceiling = asked.floor.get(key, -1), asked.ceiling.get(key, -1)
        found = group.partitions.get(where)
        if found is not None and found.error_code is not ErrorCode.NONE:
            continue
        offset = found.committed_offset if found is not None else -1
        place = world.written[offset] if offset >= 0 else -1
        if place < floor and world.tombstones.get(key) == asked.tombstones.get(key):
            raise Violation(f"{key}: told {offset} at {place}, acknowledged {floor}")
        if 0 <= place < ceiling:
            raise Violation(f"{key}: told {offset} at {place}, removed up to {ceiling}")


def check_join(world: World, node: Node, asked: Asked, response: JoinGroupResponse) -> None:
    group_id = asked.client.group_id
    if (group_id, response.generation_id) in world.given and world.leads(node, group_id):
        partition = world.partitions[partition_for(group_id, PARTITIONS)]
        known = newest_generation(world, group_id, partition.entries[: partition.committed])
        if known is None or response.member_id not in {each.member_id for each in known.members}:
            raise Violation(f"{response.member_id} is let into a stable group, but not in its log")
    instance = asked.client.instance_id
    if instance is not None:
        selves = world.selves.setdefault(f"{asked.client.group_id}/{instance}", [])
        if response.member_id not in selves:
            selves.append(response.member_id)


def newest_generation(world: World, group_id: str, entries: list[Entry]) -> GroupMetadata | None:
    """What these batches say of the group in the end."""
    for entry in reversed(entries):
        for record in Batch(entry.batch).records():
            if decode_key(record.key) == GroupKey(group_id):
                return None if record.value is None else decode_group(record.value)
    return None


def check_generation(world: World, group_id: str, new: GroupMetadata, earlier: GroupMetadata | None) -> None:
    """Who is in it may change by a static member's return; what is assigned may not."""
    if earlier is not None and earlier.generation == new.generation:
        assigned = [sorted(member.assignment for member in each.members) for each in (earlier, new)]
        if assigned[0] != assigned[1]:
            raise Violation(f"{group_id}: generation {new.generation} is written as {assigned}")


def check_self(world: World, node: Node, asked: Asked) -> None:
    """An earlier self is served no more from when a later one was given its assignment."""
    request: Any = asked.request
    if request.group_instance_id is None or not world.leads(node, request.group_id):
        return
    instance = f"{request.group_id}/{request.group_instance_id}"
    rank = world.selves[instance].index(request.member_id)
    if rank < asked.newest:
        raise Violation(f"{instance}: self {rank} is served, self {asked.newest} has an assignment")
    if isinstance(request, SyncGroupRequest):
        world.newest[instance] = max(rank, world.newest.get(instance, -1))


def check_sync(world: World, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
    generation = (request.group_id, request.generation_id)
    if not response.assignment:
        raise Violation(f"{request.member_id} is given nothing in {generation}")
    number, _, member_id = response.assignment.decode().partition(":")
    if world.given.setdefault(generation, int(number)) != int(number):
        raise Violation(f"{generation} has proposals {world.given[generation]} and {number}")
    instance = request.group_instance_id
    is_own = member_id == request.member_id or member_id.startswith(f"{instance}-")
    if not is_own or world.proposals[int(number)][member_id] != response.assignment:
        raise Violation(f"{request.member_id} is given what {member_id} was assigned")


def unwell(world: World) -> str:
    waiting = sorted(map(str, world.asked))
    return f"waiting {waiting}; {[(each.name, each.has_assignment) for each in world.clients]}"


def is_well(world: World) -> bool:
    alive = [each for each in world.clients if not each.is_gone]
    is_done = all(each.has_assignment and each.waits_for is None for each in alive) and not world.asked
    if not is_done or any(each.committed < len(each.entries) for each in world.partitions):
        return False
    generations = {(each.group_id, each.joined and each.joined.generation_id) for each in alive}
    return len(generations) == len({each.group_id for each in alive})


def check_log(world: World) -> None:
    for number, partition in enumerate(world.partitions):
        loader = Loader()
        loader.feed(b"".join(each.batch for each in partition.entries))
        groups = [group for group, _ in loader.groups(GroupConfig(), world.now_ms)]
        loaded = {group.group_id: group.describe() for group in groups}
        coordinator = world.nodes[partition.leader].coordinator
        for group_id in (each for each in GROUPS if partition_for(each, PARTITIONS) == number):
            (answer,) = coordinator.handle(DescribeGroupsRequest((group_id,)), "check", world.now_ms)
            assert isinstance(answer, Answer)
            assert isinstance(answer.response, DescribeGroupsResponse)
            (described,) = answer.response.groups
            if described.group_state == "Stable" and sorted(
                loaded[group_id].members, key=lambda each: each.member_id
            ) != sorted(described.members, key=lambda each: each.member_id):
                raise Violation(f"{group_id}: the log says {loaded[group_id]}, memory {described}")
            world.stable_rounds += described.group_state == "Stable"
