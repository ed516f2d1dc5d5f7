"""Query brokers for consumer groups, their members and their committed offsets."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import Brokers
    from logstore.disk.topic_partition import TopicPartition

CLASSIC: Final = "classic"
_STATES: Final = (
    "Assigning", "CompletingRebalance", "Dead", "Empty", "NotReady", "PreparingRebalance", "Reconciling",
    "Stable",
)  # fmt: skip
_TYPES: Final = (CLASSIC, "consumer", "share", "streams")
_CONSUMER: Final = "consumer"
"""The protocol type of groups that share partitions of topics."""


class Member(NamedTuple):
    """A member, the partitions that it is to read, and whether the round waits for it."""

    member_id: str
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]
    is_awaited: bool = False

    def __str__(self) -> str:
        return f"{self.client_id or self.member_id} at {self.host.lstrip('/') or 'an unknown host'}"


def listed(
    brokers: Brokers, states: list[str] | None = None, types: list[str] | None = None
) -> dict[str, t.ListGroupsResponseListedGroup]:
    """Return all groups by name, or those in these states and of these types."""
    for option, given, known in (("--state", states, _STATES), ("--type", types, _TYPES)):
        for each in given or ():
            if each.lower() not in map(str.lower, known):
                raise typer.BadParameter(f"{option} {each!r}: write one of {', '.join(known)}")
    found: dict[str, t.ListGroupsResponseListedGroup] = {}
    for broker in brokers.metadata(()).brokers:
        found |= {group.group_id: group for group in brokers.groups_of(broker.node_id).groups}

    def matches(given: list[str] | None, value: str) -> bool:
        return not given or value.lower() in map(str.lower, given)

    return {
        name: group
        for name, group in found.items()
        if matches(states, group.group_state) and matches(types, type_of(group))
    }


def type_of(group: t.ListGroupsResponseListedGroup) -> str:
    """Return the type of a group; brokers that do not report it have one type."""
    return str(group.group_type) or CLASSIC


def membership(brokers: Brokers, group: str) -> tuple[t.DescribeGroupsResponseDescribedGroup, list[Member]]:
    """Return a group as its coordinator describes it, and its members. Raises `RequestRefused`."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    answer = brokers.coordinator(group, t.DescribeGroupsRequest(groups=[group]))
    found = answer.groups[0]
    check(found.error_code, f"group {group}")
    is_consumer = found.protocol_type == _CONSUMER
    return found, [
        Member(
            each.member_id,
            each.client_id,
            each.client_host,
            partitions_in(each.member_assignment) if is_consumer else frozenset(),
            each.is_awaited,
        )
        for each in found.members
    ]


def partitions_in(assignment: bytes) -> frozenset[TopicPartition]:
    """Return the partitions of a member's assignment: `ConsumerProtocolAssignment` of Kafka's clients.

    An int16 version, then an array of topics, each with an array of int32. Raises `MalformedMessage`.
    """
    from logstore.broker.errors import MalformedMessage
    from logstore.disk.topic_partition import TopicPartition

    if not assignment:
        return frozenset()
    found = set()
    at = 2
    try:
        (topics,) = struct.unpack_from(">i", assignment, at)
        at += 4
        for _ in range(topics):
            (size,) = struct.unpack_from(">h", assignment, at)
            name = assignment[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (count,) = struct.unpack_from(">i", assignment, at)
            if count < 0 or count > len(assignment):
                raise MalformedMessage(f"an assignment lists {count} partitions of {name}")
            numbers = struct.unpack_from(f">{count}i", assignment, at + 4)
            at += 4 + 4 * count
            found |= {TopicPartition(name, number) for number in numbers}
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"an assignment cannot be read: {error}") from error
    return frozenset(found)


def committed_offsets(brokers: Brokers, group: str) -> dict[TopicPartition, int]:
    """Return the committed offset of each partition that has one. Raises `RequestRefused`."""
    from logstore.broker.client_requests import offsets_in
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    answer = brokers.coordinator(group, t.OffsetFetchRequest(group_id=group, topics=None))
    check(answer.error_code, f"offsets of group {group}")
    return offsets_in(answer)


def offset_text(offset: int | None) -> str:
    """Return an offset for people; `-` for none."""
    return "-" if offset is None else str(offset)
