"""Stories of consumer groups: members, rounds, offsets, descriptions, deletion."""

from __future__ import annotations

from typing import Any, Final

from logstore.broker.wire import types as t
from tests.wire_judge.records import creation, topics
from tests.wire_judge.stories import Draw, Known, Step

_CLIENTS: Final = ("a", "b")
_WRONG: Final = ("", "nobody")


def _client(draw: Draw) -> str:
    return draw.usual("a", "b", of=0.7)


def _group(draw: Draw) -> str:
    return draw.usual(draw.name("group"), draw.name("other"), "", of=0.93)


def _member(draw: Draw, client: str, *wrong: str) -> Any:
    """Return how to know the id of the client's member."""
    chosen = draw.usual(None, *(wrong or _WRONG), of=0.85)
    return lambda known: known.get(f"member {client}", "") if chosen is None else chosen


def _generation(draw: Draw) -> Any:
    chosen = draw.usual(None, 0, -1, 99, of=0.85)
    return lambda known: known.get("generation", 1) if chosen is None else chosen


def _instance(draw: Draw, client: str) -> str | None:
    return f"static {client}" if draw.chance(0.2) else None


def join(draw: Draw) -> Step:
    """Join, mostly with what an earlier answer told; a member of version 4 and up joins twice."""
    client, group = _client(draw), _group(draw)
    member, instance = _member(draw, client), _instance(draw, client)
    names = draw.usual(("range",), ("range", "sticky"), ("sticky",), (), of=0.7)
    kind = draw.usual("consumer", "connect", "", of=0.92)
    session = draw.usual(6_000, 10, 99_999_999, 0, of=0.93)
    subscribed = b"of %s" % client.encode()
    reason = draw.usual(None, "why")

    def build(known: Known) -> t.JoinGroupRequest:
        return t.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session,
            rebalance_timeout_ms=1_000,
            member_id=member(known),
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[t.JoinGroupRequestProtocol(name=name, metadata=subscribed) for name in names],
            reason=reason,
        )

    def learn(response: Any, known: Known) -> None:
        if response.member_id and response.error_code in (0, 79):
            known[f"member {client}"] = response.member_id
        if response.error_code == 0:
            known["generation"] = response.generation_id

    least = 5 if instance else 0
    return draw.step(t.JoinGroupRequest, build, learn, least=least, client=client, may_park=True)


def sync(draw: Draw) -> Step:
    client, group, instance = _client(draw), _group(draw), None
    member, generation = _member(draw, client), _generation(draw)
    kind, name = draw.usual("consumer", "connect", None, of=0.9), draw.usual("range", "sticky", None, of=0.9)
    listed = draw.usual(True, False, of=0.8)

    def build(known: Known) -> t.SyncGroupRequest:
        members = [known[f"member {each}"] for each in _CLIENTS if f"member {each}" in known]
        return t.SyncGroupRequest(
            group_id=group,
            generation_id=generation(known),
            member_id=member(known),
            group_instance_id=instance,
            protocol_type=kind,
            protocol_name=name,
            assignments=[
                t.SyncGroupRequestAssignment(member_id=each, assignment=b"part %d" % number)
                for number, each in enumerate(members)
                if listed
            ],
        )

    return draw.step(t.SyncGroupRequest, build, client=client, may_park=True)


def heartbeat(draw: Draw) -> Step:
    client, group = _client(draw), _group(draw)
    member, generation, instance = _member(draw, client), _generation(draw), _instance(draw, client)

    def build(known: Known) -> t.HeartbeatRequest:
        return t.HeartbeatRequest(
            group_id=group,
            generation_id=generation(known),
            member_id=member(known),
            group_instance_id=instance,
        )

    return draw.step(t.HeartbeatRequest, build, least=3 if instance else 0)


def leave(draw: Draw) -> Step:
    """Leave; from version 3 on for several members."""
    client, group = _client(draw), _group(draw)
    member, instance, both = _member(draw, client), _instance(draw, client), draw.chance(0.2)

    def build(known: Known) -> t.LeaveGroupRequest:
        names = [member(known), *([known.get("member b", "other")] if both else [])]
        return t.LeaveGroupRequest(
            group_id=group,
            member_id=member(known),
            members=[
                t.LeaveGroupRequestMemberIdentity(member_id=name, group_instance_id=instance)
                for name in names
            ],
        )

    return draw.step(t.LeaveGroupRequest, build)


def commit(draw: Draw) -> Step:
    client, group = _client(draw), _group(draw)
    is_simple = draw.chance(0.4)
    member, generation, instance = _member(draw, client), _generation(draw), _instance(draw, client)
    places = [
        (name, draw.usual(0, 1, 9, -1), draw.usual(5, 0, -1, 1 << 40), draw.usual(-1, 0, 3))
        for name in draw.some([*topics(draw), draw.name("nowhere")], 2)
    ]
    note = draw.usual("", None, "note", "x" * 4_097)
    retention = draw.usual(-1, 1_000)

    def build(known: Known) -> t.OffsetCommitRequest:
        return t.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1 if is_simple else generation(known),
            member_id="" if is_simple else member(known),
            retention_time_ms=retention,
            group_instance_id=None if is_simple else instance,
            topics=[
                t.OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        t.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=epoch,
                            committed_metadata=note,
                        )
                    ],
                )
                for name, partition, offset, epoch in places
            ],
        )

    return draw.step(t.OffsetCommitRequest, build, least=7 if instance and not is_simple else 0)


def fetch_offsets(draw: Draw) -> Step:
    """Read committed offsets: of named partitions or of all, from version 8 on of several groups."""
    groups = list(dict.fromkeys([_group(draw), *([draw.name("other")] if draw.chance(0.3) else [])]))
    names = draw.some([*topics(draw), draw.name("nowhere")], 2)
    indexes = [draw.usual(0, 1, 9), 1] if draw.chance(0.3) else [0]
    all_of = draw.chance(0.4)
    version = draw.version(t.OffsetFetchRequest, least=2 if all_of else 0)
    if version < 8:
        groups = groups[:1]

    def build(_known: Known) -> t.OffsetFetchRequest:
        return t.OffsetFetchRequest(
            group_id=groups[0],
            topics=None
            if all_of
            else [t.OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name in names],
            groups=[
                t.OffsetFetchRequestGroup(
                    group_id=group,
                    topics=None
                    if all_of
                    else [t.OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name in names],
                )
                for group in groups
            ],
            require_stable=version % 2 == 0,
        )

    return draw.at(version, build)


def delete_offsets(draw: Draw) -> Step:
    group, names = _group(draw), draw.some([*topics(draw), draw.name("nowhere")], 2)
    part = t.OffsetDeleteRequestPartition(partition_index=draw.usual(0, 1, 9))
    request = t.OffsetDeleteRequest(
        group_id=group, topics=[t.OffsetDeleteRequestTopic(name=name, partitions=[part]) for name in names]
    )
    return draw.step(t.OffsetDeleteRequest, lambda _: request)


def describe(draw: Draw) -> Step:
    request = t.DescribeGroupsRequest(
        groups=list(dict.fromkeys(_group(draw) for _ in range(draw.number(1, 2)))),
        include_authorized_operations=draw.chance(0.3),
    )
    return draw.step(t.DescribeGroupsRequest, lambda _: request)


def list_groups(draw: Draw) -> Step:
    request = t.ListGroupsRequest(
        states_filter=draw.usual([], ["Stable"], ["Empty", "Dead"], ["stable"], ["Wrong"], of=0.4),
        types_filter=draw.usual([], ["classic"], ["consumer"], ["Classic"], ["Wrong"], of=0.6),
    )
    mine = {draw.name("group"), draw.name("other")}

    def trim(response: Any) -> None:
        response.groups = [each for each in response.groups if each.group_id in mine]

    return draw.step(t.ListGroupsRequest, lambda _: request, trim=trim)


def delete_groups(draw: Draw) -> Step:
    request = t.DeleteGroupsRequest(groups_names=list(dict.fromkeys(_group(draw) for _ in range(2))))
    return draw.step(t.DeleteGroupsRequest, lambda _: request)


def find(draw: Draw) -> Step:
    keys = draw.usual([draw.name("group")], [""], [draw.name("group"), ""], [], of=0.6)
    request = t.FindCoordinatorRequest(
        key=keys[0] if keys else "x", key_type=draw.usual(0, 2, -1, of=0.8), coordinator_keys=keys
    )
    return draw.step(t.FindCoordinatorRequest, lambda _: request, least=1)


STEPS: Final = (
    *(join, join, join, join, sync, sync, sync, heartbeat, heartbeat, leave, commit, commit, fetch_offsets),
    *(fetch_offsets, delete_offsets, describe, describe, list_groups, delete_groups, find),
)


def story(draw: Draw) -> list[Step]:
    """Draw a story of groups."""
    return [creation(draw)] + [draw.pick(*STEPS)(draw) for _ in range(draw.number(3, 11))]
