"""`logstore groups reset`: set the committed offsets of groups without members.

    groups reset billing orders --to WHERE            one group, topics or single partitions
    groups reset --group a --group b orders --to …    several groups; also --all-groups, --all-topics
    groups reset billing --from-file FILE             offsets from a file of Kafka's tool, one a line

A line of a file is `topic,partition,offset`, or `group,topic,partition,offset` for several groups. `--export`
prints such lines and changes nothing. Everything is checked before anything is written; each group is one
request, and its offsets stay within what the logs have.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from logstore.arguments import epoch_ms, whole_number, whole_numbers
from logstore.cli.group_facts import committed_offsets, listed, membership, offset_text
from logstore.cli.operating import CommandConfig, Json, text_of, value_of
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.cli.brokers import Brokers
    from logstore.disk.topic_partition import TopicPartition

    Offsets: TypeAlias = dict[TopicPartition, int]

_DURATION: Final = re.compile(
    r"P(?=[\dT])(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)
_FORMS: Final = (
    "earliest, latest, current, 1200, +10, -10, @1700000000000, 2026-11-20T15:00:00 (UTC), "
    "or PT1H30M: that long ago"
)
_OF_ONE, _OF_MANY = 3, 4
"""Columns of Kafka's files: topic, partition and offset, behind the group if there are several."""


def reset(
    bootstrap: RequiredBootstrap,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP [TOPIC[-PARTITION]]...",
            help="A group, and topics or single partitions like orders-0; topics alone with --group.",
        ),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="WHERE", help=_FORMS + ".")] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="A group; repeatable.")
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="All groups.")] = False,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions that the group has committed offsets of.")
    ] = False,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            help="Offsets as --export prints them, instead of --to and topics.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Print the new offsets as Kafka's CSV; change nothing.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print the new offsets; change nothing.")] = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Set the committed offsets of groups without members. Offsets are limited to those in the log."""
    groups, topics = _split(names or [], group, all_groups=all_groups)
    _check_usage(groups, topics, to, from_file, all_groups=all_groups, all_topics=all_topics)
    written = None if from_file is None else read_file(from_file, groups)
    with asked_at(bootstrap, command_config) as brokers:
        wanted = _wanted(brokers, groups, written, all_groups=all_groups)
        before = {each: committed_offsets(brokers, each) for each in wanted}
        for each in wanted:
            found, members = membership(brokers, each)
            if members and not export:
                print_error(
                    f"group {each} has {counted(len(members), 'member')} ({found.group_state}); "
                    "stop them first. Nothing was changed"
                )
                return 1
            if found.group_state == "Dead" and not before[each] and not export:
                print_error(f"there is no group {each} yet; its first commit creates it")
        after = {}
        for each in wanted:
            if written is not None:
                after[each] = _within(brokers, written[each])
            else:
                partitions = sorted(before[each]) if all_topics else brokers.partitions_named(topics)
                after[each] = targets(brokers, str(to), partitions, before[each])
        is_done = not (plan or export)
        if is_done:
            for each in wanted:
                _commit(brokers, each, after[each])
    if export:
        print(csv_of(after, with_groups=len(after) > 1 or all_groups), end="")
        return 0
    for each in wanted:
        _print(each, before[each], after[each], is_done=is_done, names_group=len(wanted) > 1, as_json=as_json)
    return 0


def _split(names: list[str], groups: list[str] | None, *, all_groups: bool) -> tuple[list[str], list[str]]:
    """Return the groups and the topics: the first name is the group, unless groups are given otherwise."""
    if groups and all_groups:
        raise typer.BadParameter("give --group or --all-groups, not both")
    if groups or all_groups:
        return list(dict.fromkeys(groups or ())), names
    return names[:1], names[1:]


def _check_usage(
    groups: list[str],
    topics: list[str],
    to: str | None,
    from_file: Path | None,
    *,
    all_groups: bool,
    all_topics: bool,
) -> None:
    if (to is None) == (from_file is None):
        raise typer.BadParameter("give --to or --from-file")
    if from_file is not None:
        if topics or all_topics or all_groups:
            raise typer.BadParameter("--from-file names the topics: give groups alone, or none")
        return
    if not groups and not all_groups:
        raise typer.BadParameter("name a group, or give --all-groups")
    if bool(topics) == all_topics:
        raise typer.BadParameter("name topics or partitions, or give --all-topics")


def _wanted(
    brokers: Brokers, groups: list[str], written: Mapping[str, Offsets] | None, *, all_groups: bool
) -> list[str]:
    if all_groups:
        return sorted(listed(brokers))
    return groups or sorted(written or ())


def _commit(brokers: Brokers, group: str, offsets: Offsets) -> None:
    from logstore.broker.client_requests import commit_request
    from logstore.cli.brokers import check

    answer = brokers.coordinator(group, commit_request(group, offsets))
    for topic in answer.topics:
        for each in topic.partitions:
            check(each.error_code, f"offset of {topic.name}-{each.partition_index} of group {group}")


def _print(
    group: str, before: Offsets, after: Offsets, *, is_done: bool, names_group: bool, as_json: bool
) -> None:
    for where, offset in sorted(after.items()):
        if as_json:
            facts = {"group": group, "topic": where.topic, "partition": where.partition}
            print_json({**facts, "from": before.get(where), "to": offset, "is_done": is_done})
        else:
            told = f"{group}  " if names_group else ""
            print(f"{told}{where}  {offset_text(before.get(where))} -> {offset}")


# --- where to -----------------------------------------------------------------------------------------


def targets(brokers: Brokers, to: str, partitions: Sequence[TopicPartition], committed: Offsets) -> Offsets:
    """Return the new offset of each partition, between the start and the end of its log.

    A partition without a committed offset has the end of its log for the current one, as in Kafka's tool.
    """
    starts, ends = _bounds(brokers, partitions)
    is_shift = to[:1] in ("+", "-")
    number = whole_number(to[is_shift:], 0)
    wanted: Mapping[TopicPartition, int | None]
    if to == "earliest":
        wanted = starts
    elif to == "latest":
        wanted = ends
    elif to == "current":
        wanted = {each: committed.get(each, ends[each]) for each in partitions}
    elif is_shift and number is not None:
        if unknown := [each for each in partitions if each not in committed]:
            raise typer.BadParameter(f"--to {to}: no offset is committed for {', '.join(map(str, unknown))}")
        wanted = {each: committed[each] + (number if to[0] == "+" else -number) for each in partitions}
    elif number is not None:
        wanted = dict.fromkeys(partitions, number)
    elif (time_ms := time_in(to, time.time_ns() // 1_000_000)) is not None:
        wanted = brokers.offsets(dict.fromkeys(partitions, time_ms))
    else:
        raise typer.BadParameter(f"--to {to!r}: write {_FORMS}")
    return {each: clamped(offset, starts[each], ends[each]) for each, offset in wanted.items()}


def time_in(text: str, now_ms: int) -> int | None:
    """Return the time that `text` names, in epoch ms, never before 1970; None if it names none.

    It is `@` and epoch ms, a date-time of ISO 8601 (UTC without a zone), or a duration before now.
    """
    from logstore.config import MAX_LONG

    if text[:1] == "@" and (time_ms := whole_number(text[1:], 0, MAX_LONG)) is not None:
        return time_ms
    if match := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (float(each or 0) for each in match.groups())
        try:
            ago = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        except OverflowError:
            return 0
        return max(now_ms - ago // timedelta(milliseconds=1), 0)
    try:
        return max(epoch_ms(text), 0)
    except ValueError:
        return None


def clamped(offset: int | None, start: int | None, end: int | None) -> int:
    """Return an offset within a log; its end for None."""
    first, last = start or 0, end or 0
    return last if offset is None else min(max(offset, first), last)


def _within(brokers: Brokers, offsets: Offsets) -> Offsets:
    starts, ends = _bounds(brokers, list(offsets))
    return {each: clamped(offset, starts[each], ends[each]) for each, offset in offsets.items()}


def _bounds(
    brokers: Brokers, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int | None]]:
    from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    return (
        brokers.offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP)),
        brokers.offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP)),
    )


# --- Kafka's files --------------------------------------------------------------------------------------


def read_file(path: Path, groups: Sequence[str]) -> dict[str, Offsets]:
    """Return the offsets by group in a file; of `groups` alone if any are named.

    Raises `typer.BadParameter` for a line that is none, and for a group that the file does not have.
    """
    text = text_of(path, "--from-file")
    with value_of(f"--from-file {path}", ValueError, csv.Error):
        return parsed(text, groups)


def parsed(text: str, groups: Sequence[str]) -> dict[str, Offsets]:
    """As `read_file`, from a file's text. Raises `ValueError`, which names the line."""
    from logstore.disk.topic_partition import TopicPartition

    found: dict[str, Offsets] = {}
    rows = csv.reader(io.StringIO(text, newline=""))
    for row in rows:
        if not row:
            continue
        if len(row) not in (_OF_ONE, _OF_MANY):
            raise ValueError(
                f"line {rows.line_num}: write topic,partition,offset or group,topic,partition,offset"
            )
        if len(row) == _OF_ONE and len(groups) != 1:
            raise ValueError(f"line {rows.line_num} names no group: name one, as in `groups reset GROUP`")
        group = groups[0] if len(row) == _OF_ONE else row[0]
        topic, *texts = (each.strip() for each in row[-_OF_ONE:])
        if (numbers := whole_numbers(texts)) is None:
            raise ValueError(f"line {rows.line_num}: {','.join(texts)} is not a partition and an offset")
        where = TopicPartition(topic, numbers[0])
        of_group = found.setdefault(group, {})
        if where in of_group:
            raise ValueError(f"line {rows.line_num}: {where} is listed twice")
        of_group[where] = numbers[1]
    if missing := [each for each in groups if each not in found]:
        raise ValueError(f"no line is of group {', '.join(missing)}")
    if not found:
        raise ValueError("the file has no line")
    return {each: found[each] for each in groups or found}


def csv_of(offsets: Mapping[str, Offsets], *, with_groups: bool) -> str:
    """Return lines as Kafka's tool exports them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(_rows(offsets, with_groups=with_groups))
    return out.getvalue()


def _rows(offsets: Mapping[str, Offsets], *, with_groups: bool) -> Iterable[Sequence[str | int]]:
    for group, found in offsets.items():
        for where, offset in sorted(found.items()):
            row = (where.topic, where.partition, offset)
            yield (group, *row) if with_groups else row
