"""`logstore groups …`: the consumer groups of a cluster, their members, offsets and lag.

The verbs ask brokers, also those of Apache Kafka. A group's offsets can be set or deleted only while it has
no members: a member would go on from its own position.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import Brokers
    from logstore.disk.topic_partition import TopicPartition

app = typer.Typer(help="The consumer groups of a cluster.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP")]
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
    bootstrap: RequiredBootstrap, command_config: CommandConfig = None, as_json: Json = False
) -> int:
    """List the groups with their state."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    found: dict[str, Any] = {}
    with asked_at(bootstrap, command_config) as brokers:
        for each in brokers.metadata(()).brokers:
            answer = brokers.broker(each.node_id, t.ListGroupsRequest())
            check(answer.error_code, f"groups of broker {each.node_id}")
            found |= {group.group_id: group for group in answer.groups}
    for name, group in sorted(found.items()):
        if as_json:
            print_json({"group": name, "state": group.group_state, "protocol_type": group.protocol_type})
        else:
            print(f"{name}  {group.group_state or '-'}")
    return 0


@app.command()
def describe(
    group: Name, bootstrap: RequiredBootstrap, command_config: CommandConfig = None, as_json: Json = False
) -> int:
    """Show the committed offset and the lag of each partition, and who reads it."""
    with asked_at(bootstrap, command_config) as brokers:
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
            print(f"  {each}  committed {_text(offset)}  end {_text(end)}  lag {_text(lag)}{reader}")
    return 0


@app.command()
def reset(
    group: Name,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC[-PARTITION]...", help="Topics, or single partitions like orders-0."),
    ],
    bootstrap: RequiredBootstrap,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, +N or -N from the committed one, or @ and epoch ms.",
        ),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="Print the new offsets; change nothing.")] = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Set the committed offsets of a group without members. Offsets stay within what the log has."""
    from logstore.broker.client_offsets import commit_request
    from logstore.cli.brokers import check

    with asked_at(bootstrap, command_config) as brokers:
        found, members = membership(brokers, group)
        if members:
            print_error(f"group {group} has {len(members)} members ({found.group_state}); stop them first")
            return 1
        partitions = brokers.partitions_named(topics)
        before = committed_offsets(brokers, group)
        offsets = _targets(brokers, to, partitions, before)
        if not plan:
            answer = brokers.coordinator(group, commit_request(group, offsets))
            for topic in answer.topics:
                for each in topic.partitions:
                    check(each.error_code, f"offset of {topic.name}-{each.partition_index}")
    for where, offset in sorted(offsets.items()):
        if as_json:
            facts = {"group": group, "topic": where.topic, "partition": where.partition}
            print_json({**facts, "from": before.get(where), "to": offset, "is_done": not plan})
        else:
            print(f"{where}  {_text(before.get(where))} -> {offset}")
    return 0


@app.command()
def delete(group: Name, bootstrap: RequiredBootstrap, command_config: CommandConfig = None) -> int:
    """Delete a group without members, and its offsets."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    with asked_at(bootstrap, command_config) as brokers:
        answer = brokers.coordinator(group, t.DeleteGroupsRequest(groups_names=[group]))
        check(answer.results[0].error_code, f"group {group}")
    return 0


# --- asking -----------------------------------------------------------------------------------------


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


def _targets(
    brokers: Brokers, to: str, partitions: list[TopicPartition], committed: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the new offset of each partition, between the start and the end of its log."""
    from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    starts = brokers.offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    ends = brokers.offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
    sign, number = (to[0], to[1:]) if to[:1] in "+-@" else ("", to)
    wanted: dict[TopicPartition, int | None]
    if to == "earliest":
        wanted = dict(starts)
    elif to == "latest":
        wanted = dict(ends)
    elif not (number.isascii() and number.isdecimal()):
        raise typer.BadParameter(f"--to {to!r}: write earliest, latest, 1200, +10, -10 or @1700000000000")
    elif sign == "@":
        wanted = dict(brokers.offsets(dict.fromkeys(partitions, int(number))))
    elif sign:
        if unknown := [each for each in partitions if each not in committed]:
            raise typer.BadParameter(f"--to {to}: no offset is committed for {', '.join(map(str, unknown))}")
        wanted = {each: committed[each] + int(sign + number) for each in partitions}
    else:
        wanted = dict.fromkeys(partitions, int(number))
    found = {}
    for each, offset in wanted.items():
        start, end = starts[each] or 0, ends[each] or 0
        found[each] = end if offset is None else min(max(offset, start), end)
    return found


def _text(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
