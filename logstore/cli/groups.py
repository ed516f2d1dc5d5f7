"""`logstore groups …`: the consumer groups of a cluster, their members, offsets and lag.

The verbs ask brokers, also those of Apache Kafka. A group's offsets can be set or deleted only while it has
no members: a member would go on from its own position.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from logstore.cli.group_resets import reset
from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import Brokers
    from logstore.disk.topic_partition import TopicPartition

app = typer.Typer(help="The consumer groups of a cluster.", no_args_is_help=True)

States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only groups in this state, like Empty; repeatable."),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only groups of this type, like classic; repeatable."),
]
_CLASSIC: Final = "classic"
_STATES: Final = (
    "Assigning", "CompletingRebalance", "Dead", "Empty", "NotReady", "PreparingRebalance", "Reconciling",
    "Stable",
)  # fmt: skip
_TYPES: Final = (_CLASSIC, "consumer", "share", "streams")
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


@app.command("list")
def list_groups(
    bootstrap: RequiredBootstrap,
    state: States = None,
    kind: Types = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """List the groups with their state."""
    with asked_at(bootstrap, command_config) as brokers:
        found = listed(brokers, state, kind)
    for name, group in sorted(found.items()):
        if as_json:
            facts = {"group": name, "state": group.group_state, "protocol_type": group.protocol_type}
            print_json({**facts, "type": _type_of(group)})
        else:
            told = "" if _type_of(group) == _CLASSIC else f"  {_type_of(group)}"
            print(f"{name}  {group.group_state or '-'}{told}")
    return 0


@app.command()
def describe(
    bootstrap: RequiredBootstrap,
    groups: Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...")] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="All groups, instead of names.")] = False,
    state: States = None,
    kind: Types = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show the committed offset and the lag of each partition, and who reads it."""
    from logstore.broker.errors import RequestRefused

    if bool(groups) == all_groups:
        raise typer.BadParameter("give names of groups, or --all-groups")
    if (state or kind) and not all_groups:
        raise typer.BadParameter("--state and --type select among --all-groups")
    code = 0
    with asked_at(bootstrap, command_config) as brokers:
        for each in groups or sorted(listed(brokers, state, kind)):
            try:
                code |= _describe(brokers, each, as_json=as_json)
            except RequestRefused as error:  # the others are described all the same
                print_error(str(error))
                code = 1
    return code


def _describe(brokers: Brokers, group: str, *, as_json: bool) -> int:
    found, members = membership(brokers, group)
    committed = committed_offsets(brokers, group)
    assigned = {each: member for member in members for each in member.partitions}
    ends = brokers.offsets(dict.fromkeys({*committed, *assigned}, _latest()))
    state = found.group_state
    if state == "Dead" and not committed:
        print_error(f"no group {group}")
        return 1
    if not as_json:
        print(f"{group}  {state}, {len(members)} members")
    for each in sorted(ends):
        offset, end = committed.get(each), ends[each]
        lag = None if offset is None or end is None else max(end - offset, 0)
        member = assigned.get(each)
        if as_json:
            print_json(
                {
                    "group": group,
                    "state": state,
                    "topic": each.topic,
                    "partition": each.partition,
                    "committed": offset,
                    "end": end,
                    "lag": lag,
                    "member": member.member_id if member else None,
                    "client": member.client_id if member else None,
                    "host": member.host if member else None,
                }
            )
        else:
            reader = f"  {member.client_id} {member.host}" if member else ""
            at, to, by = map(offset_text, (offset, end, lag))
            print(f"  {each}  committed {at}  end {to}  lag {by}{reader}")
    return 0


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...")],
    bootstrap: RequiredBootstrap,
    command_config: CommandConfig = None,
) -> int:
    """Delete groups without members, and their offsets."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    with asked_at(bootstrap, command_config) as brokers:
        for group in groups:
            answer = brokers.coordinator(group, t.DeleteGroupsRequest(groups_names=[group]))
            check(answer.results[0].error_code, f"group {group}")
    return 0


@app.command("delete-offsets")
def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC[-PARTITION]...", help="Topics, or single partitions like orders-0."),
    ],
    bootstrap: RequiredBootstrap,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Delete the committed offsets of partitions that no member of the group reads."""
    from logstore.broker.translation import by_topic
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check
    from logstore.disk.errors import ErrorCode

    with asked_at(bootstrap, command_config) as brokers:
        committed = committed_offsets(brokers, group)
        chosen = sorted({each for name in topics for each in committed if name in (each.topic, str(each))})
        for name in topics:
            if not any(name in (each.topic, str(each)) for each in chosen):
                print_error(f"group {group} has no committed offset of {name}; nothing is deleted")
                return 1
        wanted = [
            t.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[t.OffsetDeleteRequestPartition(partition_index=number) for number, _ in found],
            )
            for topic, found in by_topic((each, None) for each in chosen).items()
        ]
        answer = brokers.coordinator(group, t.OffsetDeleteRequest(group_id=group, topics=wanted))
    check(answer.error_code, f"group {group}")
    refused = {
        f"{topic.name}-{each.partition_index}": each.error_code
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code
    }
    for where in chosen:
        if str(where) in refused:
            error = ErrorCode(refused[str(where)]).name
            print_error(f"{where}: {error}: members of {group} subscribe to the topic, or it is unknown")
        elif as_json:
            facts = {"group": group, "topic": where.topic, "partition": where.partition}
            print_json({**facts, "deleted": committed[where]})
        else:
            print(f"{where}  {committed[where]} deleted")
    return 1 if refused else 0


app.command()(reset)


# --- asking -----------------------------------------------------------------------------------------


def listed(
    brokers: Brokers, states: list[str] | None = None, types: list[str] | None = None
) -> dict[str, t.ListGroupsResponseListedGroup]:
    """Return all groups by name, or those in these states and of these types."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    for option, given, known in (("--state", states, _STATES), ("--type", types, _TYPES)):
        for each in given or ():
            if each.lower() not in map(str.lower, known):
                raise typer.BadParameter(f"{option} {each!r}: write one of {', '.join(known)}")
    found: dict[str, t.ListGroupsResponseListedGroup] = {}
    for broker in brokers.metadata(()).brokers:
        answer = brokers.broker(broker.node_id, t.ListGroupsRequest())
        check(answer.error_code, f"groups of broker {broker.node_id}")
        found |= {group.group_id: group for group in answer.groups}

    def matches(given: list[str] | None, value: str) -> bool:
        return not given or value.lower() in map(str.lower, given)

    return {
        name: group
        for name, group in found.items()
        if matches(states, group.group_state) and matches(types, _type_of(group))
    }


def _type_of(group: t.ListGroupsResponseListedGroup) -> str:
    """Return the type of a group; brokers that do not tell know one type."""
    return str(group.group_type) or _CLASSIC


def _latest() -> int:
    from logstore.replication.messages import LATEST_TIMESTAMP

    return LATEST_TIMESTAMP


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
    from logstore.broker.client_offsets import offsets_in
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    answer = brokers.coordinator(group, t.OffsetFetchRequest(group_id=group, topics=None))
    check(answer.error_code, f"offsets of group {group}")
    return offsets_in(answer)


def offset_text(offset: int | None) -> str:
    """Return an offset for people; `-` for none."""
    return "-" if offset is None else str(offset)
