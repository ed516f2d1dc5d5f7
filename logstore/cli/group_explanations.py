"""The state of a consumer group, its explanation and the next step. Pure.

A group reads while it is stable: each partition has one member, which fetches, and commits how far it is. Its
coordinator is the leader of one partition of `__consumer_offsets`. In a rebalance nobody reads: first all
members have to join again, then the one that leads has to send the assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logstore.cli.explanations import Explanation
from logstore.cli.group_facts import Member
from logstore.cli.trouble import ITSELF, Rank, Trouble
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.state_change import format_time
from logstore.wording import counted

PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
"""The states of DescribeGroups."""

_LOADING: Final = "COORDINATOR_LOAD_IN_PROGRESS"


class Progress(NamedTuple):
    """The committed offset and the end of a partition, at a first and at a last look; None if unknown.

    `start` is the log start of a partition whose end lies past the committed offset. Records below it were
    deleted: nobody waits for them.
    """

    first: int | None
    committed: int | None
    first_end: int | None
    end: int | None
    start: int | None = None

    @property
    def lag(self) -> int:
        """The records behind the committed offset; without one, those that came between the two looks."""
        committed = self.first_end if self.committed is None else self.committed
        return self._records(committed or 0, self.end)

    @property
    def first_lag(self) -> int:
        """The lag at the first look."""
        return self._records(self.first, self.first_end) if self.first is not None else 0

    @property
    def stands_still(self) -> bool:
        """Whether there are records to read, and no new offset was committed between the looks."""
        return self.committed == self.first and self._records(self.committed or 0, self.end) > 0

    def _records(self, offset: int, end: int | None) -> int:
        """Return how many records there are from `offset` to `end`."""
        return max((end or 0) - max(offset, self.start or 0), 0)


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """The facts read about a group.

    `refusal` is the error by which the coordinator could not be found, or did not describe the group; `home`
    the partition of `__consumer_offsets` that keeps it. `leaderless` are its partitions without a leader:
    their end is unknown. `watched_s` is the time between the two looks at the offsets. Times are epoch ms, -1
    if unknown.
    """

    name: str
    state: str = ""
    refusal: str = ""
    home: TopicPartition | None = None
    coordinator: int = -1
    members: tuple[Member, ...] = ()
    offsets: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    leaderless: frozenset[TopicPartition] = frozenset()
    watched_s: float = 0.0
    since_ms: int = -1
    round_ends_ms: int = -1

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those that it reads, and the one that keeps it."""
        return frozenset(self.offsets) if self.home is None else frozenset((self.home, *self.offsets))


def explain_group(group: ObservedGroup, of_partitions: Iterable[Trouble] = ()) -> Explanation | None:
    """Explain a group; None if there is none. `of_partitions` are problems of those that it may wait for."""
    subject = f"group {group.name}"
    if group.refusal:
        found = (_no_coordinator(group), *of_partitions)
        return Explanation(
            subject, "unknown: its coordinator does not serve it", group.refusal, troubles=found
        )
    if group.state == DEAD and not group.offsets:
        return None
    lag = sum(each.lag for each in group.offsets.values())
    state = f"{group.state}, {counted(len(group.members), 'member')}, lag {lag}"
    evidence = f"its coordinator, broker {group.coordinator}, says so"
    if group.home is not None:
        evidence += f"; {group.home} keeps the group"
    since = f"{format_time(group.since_ms)} UTC" if group.since_ms >= 0 else ""
    found = tuple(sorted((*of_partitions, *_troubles(group)), key=lambda each: each.rank))
    return Explanation(subject, state, evidence, since, found)


def troubles_of_groups(groups: Iterable[ObservedGroup]) -> list[Trouble]:
    """Return what is wrong with groups themselves, not with their partitions or coordinators."""
    found = [each for group in groups if not group.refusal for each in _troubles(group)]
    return [each for each in found if each.rank < Rank.UNDER_WAY and each.subject.startswith("group ")]


def _troubles(group: ObservedGroup) -> Iterator[Trouble]:
    match group.state:
        case state if state in (PREPARING, COMPLETING):
            yield _rebalancing(group)
        case state if state == EMPTY:
            yield from _empty(group)
        case state if state == DEAD:
            yield Trouble(
                Rank.UNDER_WAY,
                f"group {group.name}",
                "it is being deleted",
                "the coordinator shows it as Dead, and has offsets of it",
                "wait",
                acts=ITSELF,
            )
        case _:
            yield from _of_readers(group)
    for each in sorted(group.leaderless):
        yield Trouble(
            Rank.UNAVAILABLE,
            str(each),
            "the group cannot read it: it has no leader",
            "the metadata of the cluster",
            f"logstore why {each}",
            frozenset((each,)),
            waits_for=f"a leader of {each}",
            no_help="restarting consumers, or resetting offsets",
        )


def _no_coordinator(group: ObservedGroup) -> Trouble:
    home = str(group.home) if group.home is not None else "a partition of __consumer_offsets"
    if _LOADING in group.refusal:
        says, acts = f"its coordinator still reads {home}, which keeps the group", ITSELF
        step = "wait. If it lasts, it is unreadable or has too few replicas in sync: see the broker's log"
    elif "AUTHORIZATION" in group.refusal:
        says, acts = "you may not see it", "the administrator of the ACLs"
        step = "allow DESCRIBE of the group: logstore acls add"
    else:
        says, acts = "no broker coordinates it: members can neither join nor commit", "you"
        step = (
            f"logstore why {home}"
            if group.home is not None
            else (
                "start as many brokers as offsets.topic.replication.factor says: the topic "
                "__consumer_offsets is made then"
            )
        )
    return Trouble(
        Rank.UNAVAILABLE,
        f"group {group.name}",
        says,
        group.refusal,
        step,
        waits_for=f"a leader of {home}",
        acts=acts,
        no_help="restarting consumers: they find the same coordinator",
    )


def _rebalancing(group: ObservedGroup) -> Trouble:
    awaited = [each for each in group.members if each.is_awaited]
    is_joining = group.state == PREPARING
    request = "JoinGroup" if is_joining else "SyncGroup"
    who = ", ".join(map(str, awaited))
    ends = (
        f" The round continues without them at {format_time(group.round_ends_ms)} UTC."
        if (awaited and group.round_ends_ms >= 0)
        else ""
    )
    if awaited:
        says = f"it rebalances, and waits for {len(awaited)} of {len(group.members)} members: nobody reads"
        evidence = f"no {request} since the round began from {who}"
        step = f"look at {who}: a poll that takes long, a process that hangs or is gone.{ends}"
        waits = f"{request} of {who}"
    elif is_joining and group.round_ends_ms >= 0:
        says = "it begins: its first round waits for more members"
        ends = f"{format_time(group.round_ends_ms)} UTC"
        evidence = f"every member has joined ({len(group.members)}); the round ends at {ends}"
        step, waits = "wait; group.initial.rebalance.delay.ms sets how long", "more members, for a while"
    elif group.round_ends_ms >= 0:
        says = "it rebalances: its assignment is being written"
        evidence = "all members have sent SyncGroup"
        step = f"wait. If it lasts, logstore why {group.home}"
        waits = f"the replicas in sync of {group.home}"
    else:
        says = "it rebalances: nobody reads"
        evidence = (
            f"the coordinator shows it as {group.state}, and does not report which members it waits for"
        )
        step = "wait for max.poll.interval.ms; then look for a member that polls too rarely"
        waits = f"{request} of members"
    return Trouble(
        Rank.AT_RISK if awaited else Rank.UNDER_WAY,
        f"group {group.name}",
        says,
        evidence,
        step,
        waits_for=waits,
        acts="the operator of these members; without them the coordinator continues at the end of the round"
        if awaited
        else ITSELF,
        no_help="restarting the members that wait, or adding some: the rebalance restarts; resetting "
        "offsets is refused",
    )


def _empty(group: ObservedGroup) -> Iterator[Trouble]:
    behind = {where: each for where, each in group.offsets.items() if each.lag}
    if behind:
        yield Trouble(
            Rank.AT_RISK,
            f"group {group.name}",
            f"nobody reads, with {_waiting(behind)}",
            f"the group has no members; {_lags(behind)}",
            "start its consumers, or find why they cannot join: their log, the address and group.id in it. "
            f"A group that is no longer used: logstore groups delete {group.name}",
            frozenset(behind),
            waits_for="a member",
            acts="the operator of its consumers",
            no_help="an election or a rebalance: there is no member to assign partitions to",
        )


def _of_readers(group: ObservedGroup) -> Iterator[Trouble]:
    read_by = {where: each for each in group.members for where in each.partitions}
    for member in group.members:
        behind = {
            where: group.offsets[where]
            for where in sorted(member.partitions)
            if where in group.offsets and group.offsets[where].lag
        }
        stuck = {where: each for where, each in behind.items() if each.committed == each.first}
        falling = {
            where: each for where, each in behind.items() if where not in stuck and each.lag > each.first_lag
        }
        catching_up = {
            where: each for where, each in behind.items() if where not in stuck and where not in falling
        }
        if stuck:
            yield Trouble(
                Rank.AT_RISK,
                f"group {group.name}",
                f"{member} commits nothing, with {_waiting(stuck)}",
                f"in {group.watched_s:.1f} s it committed no new offset of these: {_lags(stuck)}",
                "look at its log: a record that it cannot process, commits that fail or are never made "
                "(enable.auto.commit=false), a batch that takes long. logstore groups describe shows "
                "how far it is",
                frozenset(stuck),
                waits_for=f"a commit of {member}",
                acts=f"the operator of {member}",
                no_help="more members: a partition has one reader. Resetting offsets is refused "
                "while it has members",
            )
        if falling:
            spare = len(read_by) > len(group.members)
            yield Trouble(
                Rank.AT_RISK,
                f"group {group.name}",
                f"{member} reads, and falls behind: {sum(each.lag for each in falling.values())} "
                "records wait",
                f"in {group.watched_s:.1f} s the lag grew: {_lags(falling)}",
                "start more consumers: there are partitions for them"
                if spare
                else "make the consumer faster, or add partitions: each member has one partition already",
                frozenset(falling),
                acts="the operator of its consumers",
                no_help="a rebalance with the same members"
                if spare
                else "more consumers: there is no partition for them",
            )
        if catching_up:
            yield Trouble(
                Rank.UNDER_WAY,
                f"group {group.name}",
                f"{member} is behind, and catches up",
                f"in {group.watched_s:.1f} s it committed new offsets: {_lags(catching_up)}",
                "wait",
                frozenset(catching_up),
                acts=ITSELF,
            )
    if idle := [each for each in group.members if not each.partitions and group.offsets]:
        yield Trouble(
            Rank.UNDER_WAY,
            f"group {group.name}",
            f"{counted(len(idle), 'member')} without a partition to read",
            f"no partition is assigned to {', '.join(map(str, idle))}",
            "nothing, if they stand by; else fewer members or more partitions",
            acts=ITSELF,
        )
    left = {where: each for where, each in group.offsets.items() if each.lag and where not in read_by}
    if left:
        yield Trouble(
            Rank.UNDER_WAY,
            f"group {group.name}",
            "it has offsets of partitions that no member reads",
            _lags(left),
            "if the group should read them, look at the topics that its consumers subscribe to",
            frozenset(left),
            acts="the operator of its consumers",
        )


def _waiting(offsets: Mapping[TopicPartition, Progress]) -> str:
    return f"{counted(sum(each.lag for each in offsets.values()), 'record')} waiting"


def _lags(offsets: Mapping[TopicPartition, Progress]) -> str:
    return "; ".join(f"{where} {_lag(each)}" for where, each in sorted(offsets.items()))


def _lag(each: Progress) -> str:
    is_cut = each.start is not None and each.start > (each.committed or 0)
    committed = "-" if each.committed is None else each.committed
    start = f"log start {each.start}, " if is_cut else ""
    return f"committed {committed}, {start}end {each.end}, lag {each.lag}"
