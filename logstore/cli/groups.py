"""`logstore groups …`: the consumer groups of a cluster, their members, offsets and lag.

The verbs ask brokers, also those of Apache Kafka. A group's offsets can be set or deleted only while it has
no members: a member would go on from its own position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.group_facts import CLASSIC, committed_offsets, listed, membership, offset_text, type_of
from logstore.cli.group_resets import reset
from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, Topics, asked_at
from logstore.cli.terminal import print_error, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.cli.brokers import Brokers

app = typer.Typer(help="The consumer groups of a cluster.", no_args_is_help=True)

States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only groups in this state, like Empty; repeatable."),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only groups of this type, like classic; repeatable."),
]


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
            print_json({**facts, "type": type_of(group)})
        else:
            told = "" if type_of(group) == CLASSIC else f"  {type_of(group)}"
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
    """Show the committed offset, the lag and the reader of each partition."""
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
    from logstore.replication.messages import LATEST_TIMESTAMP

    found, members = membership(brokers, group)
    committed = committed_offsets(brokers, group)
    assigned = {each: member for member in members for each in member.partitions}
    ends = brokers.offsets(dict.fromkeys({*committed, *assigned}, LATEST_TIMESTAMP))
    state = found.group_state
    if state == "Dead" and not committed:
        print_error(f"no group {group}")
        return 1
    if not as_json:
        print(f"{group}  {state}, {counted(len(members), 'member')}")
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
    as_json: Json = False,
) -> int:
    """Delete groups without members, and their offsets; exit 1 if one is refused. The others are deleted."""
    from logstore.broker.errors import RequestRefused
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    refused = 0
    with asked_at(bootstrap, command_config) as brokers:
        for group in groups:
            try:
                answer = brokers.coordinator(group, t.DeleteGroupsRequest(groups_names=[group]))
                check(answer.results[0].error_code, f"group {group}")
            except RequestRefused as error:
                refused += 1
                print_error(str(error))
                if as_json:
                    print_json({"group": group, "is_deleted": False, "error": error.error.name})
                continue
            if as_json:
                print_json({"group": group, "is_deleted": True})
            elif len(groups) > 1:
                print(f"{group}  deleted")
    return 1 if refused else 0


@app.command("delete-offsets")
def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topics: Topics,
    bootstrap: RequiredBootstrap,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Delete the committed offsets of partitions that no member of the group reads."""
    from logstore.broker.groups import requests as g
    from logstore.broker.translation import from_wire, to_wire
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check

    with asked_at(bootstrap, command_config) as brokers:
        committed = committed_offsets(brokers, group)
        chosen = sorted({each for name in topics for each in committed if name in (each.topic, str(each))})
        for name in topics:
            if not any(name in (each.topic, str(each)) for each in chosen):
                print_error(f"group {group} has no committed offset of {name}; nothing is deleted")
                return 1
        request = to_wire(g.OffsetDeleteRequest(group, tuple(chosen)), t.OffsetDeleteRequest)
        answer = from_wire(brokers.coordinator(group, request), g.OffsetDeleteResponse)
    check(answer.error_code, f"group {group}")
    refused = {where: error for where, error in answer.partitions.items() if error}
    for where in chosen:
        if where in refused:
            error = refused[where].name
            print_error(f"{where}: {error}: members of {group} subscribe to the topic, or it is unknown")
        elif as_json:
            facts = {"group": group, "topic": where.topic, "partition": where.partition}
            print_json({**facts, "deleted": committed[where]})
        else:
            print(f"{where}  {committed[where]} deleted")
    return 1 if refused else 0


app.command()(reset)
