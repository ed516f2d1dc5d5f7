"""Groups under fire, by seeds; and bugs that were put in to see them found."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import logstore.broker.groups
from logstore.broker.groups import joining, loading, offset_requests, rebalance, sessions, syncing
from logstore.broker.groups.answers import Answer, Decision
from logstore.broker.groups.group import Group
from logstore.broker.groups.offsets import Offsets
from logstore.broker.groups.records import GroupMetadata
from logstore.broker.groups.requests import HeartbeatResponse, SyncGroupRequest
from logstore.broker.groups.served import Commit, Served
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import observed
from tests.broker.groups.swarm import run
from tests.broker.groups.swarm_parts import Violation

SEEDS = 30


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_fails_what_must_hold_holds(seed: int) -> None:
    """`tests/broker/groups/swarm.py` says what that is."""
    run(seed)


@pytest.mark.parametrize(
    ("seed", "steps"),
    # A static member's return timed out, the log had it all the same, and its earlier self was served again.
    [(5056, 1000)],
)
def test_seeds_that_found_something(seed: int, steps: int) -> None:
    run(seed, steps)


ELSEWHERE = {
    "groups: a join is answered to a closed connection",
    "groups: a member finds no memory left for any group",
    "groups: a member finds no memory left in its group",
    "groups: a loaded group is larger than it may be",
    "groups: a record of a kind of group that is not served here",
    "groups: a subscription cannot be read",
    "groups: a transaction's marker",
    "groups: late word of a resignation",
    "groups: late word of an election",
    "groups: somebody leaves who never joined",
}
"""Rare branches that nothing in this world leads to: other tests take them."""


def test_the_seeds_take_every_rare_branch() -> None:
    """A campaign that never takes a branch says nothing of it."""
    sources = Path(logstore.broker.groups.__file__).parent.glob("*.py")
    marks = {name for path in sources for name in re.findall(r'mark\("([^"]+)"\)', path.read_text())}
    assert len(marks) > 30
    seen: set[str] = set()
    with observed(seen.add):
        for seed in range(100):
            run(seed)
            if seen | ELSEWHERE == marks:
                return
    assert seen | ELSEWHERE == marks


# --- bugs that were put in --------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def swapped(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Replace a function in every module that imports it."""
    for module in (joining, loading, rebalance, sessions, syncing):
        if hasattr(module, name):
            patch.setattr(module, name, value)


def assigns_before_the_log_has_it(patch: pytest.MonkeyPatch) -> None:
    honest = syncing._propose

    def _propose(group: Group, request: SyncGroupRequest) -> None:
        honest(group, request)
        if group.proposal is not None:
            syncing._assigned(group, group.proposal[1], ErrorCode.NONE, group.state_timestamp_ms)

    patch.setattr(syncing, "_propose", _propose)


def acknowledges_before_the_log_has_it(patch: pytest.MonkeyPatch) -> None:
    honest = Served.append

    def append(served: Served, records: Iterable[Any], write: Any, now_ms: int) -> None:
        honest(served, records, write, now_ms)
        if isinstance(write, Commit):
            del served.writes[max(served.writes)]
            offset_requests.finish_commit(served, write, ErrorCode.NONE, 1 << 40)

    patch.setattr(Served, "append", append)


def writes_two_assignments_of_a_generation(patch: pytest.MonkeyPatch) -> None:
    honest = syncing._propose

    def _propose(group: Group, request: SyncGroupRequest) -> None:
        if group.proposal is not None:
            group.persist(
                {each.member_id: request.assignments.get(each.member_id, b"") for each in group.members}
            )
        honest(group, request)

    patch.setattr(syncing, "_propose", _propose)


def answers_a_static_return_before_the_log_has_it(patch: pytest.MonkeyPatch) -> None:
    honest = joining.join

    def join(group: Group, request: Any, token: Hashable, now_ms: int, *, id_suffix: str) -> list[Decision]:
        decisions = honest(group, request, token, now_ms, id_suffix=id_suffix)
        for ticket in list(group.replacements):
            decisions += syncing.persisted(group, ticket, ErrorCode.NONE, now_ms)
        return decisions

    patch.setattr(joining, "join", join)


def serves_who_is_fenced(patch: pytest.MonkeyPatch) -> None:
    honest = sessions.heartbeat

    def heartbeat(group: Group, request: Any, token: Hashable, now_ms: int) -> list[Decision]:
        honest(group, request, token, now_ms)
        return [Answer(token, HeartbeatResponse())]

    patch.setattr(sessions, "heartbeat", heartbeat)


def forgets_who_was_overtaken(patch: pytest.MonkeyPatch) -> None:
    def _update(member: Any, request: Any, token: Hashable) -> None:
        member.protocols, member.join_token = request.protocols, token

    patch.setattr(joining, "_update", lambda group, *rest: _update(*rest))


def tells_nobody_that_the_coordinator_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "unload", lambda group: [])


def waits_for_all_members_whatever_the_time(patch: pytest.MonkeyPatch) -> None:
    honest = rebalance.finish_joining

    def finish_joining(group: Group, now_ms: int) -> None:
        if group.joining.initial_left_ms is None and group.members.joined_count < len(group.members):
            group.joining.deadline_ms = now_ms + 1_000
        honest(group, now_ms)

    swapped(patch, "finish_joining", finish_joining)
    patch.setattr("logstore.broker.groups.members.Member.can_expire", property(lambda self: False))


def begins_with_generation_1_after_each_failover(patch: pytest.MonkeyPatch) -> None:
    honest = rebalance.loaded

    def loaded(group_id: str, metadata: GroupMetadata, *rest: Any) -> Group:
        return honest(group_id, replace(metadata, generation=1), *rest)

    swapped(patch, "loaded", loaded)


def believes_the_first_record_of_a_key(patch: pytest.MonkeyPatch) -> None:
    honest = Offsets.put

    def put(self: Offsets, where: Any, value: Any, record_offset: int) -> None:
        if where not in self._committed:
            honest(self, where, value, record_offset)

    patch.setattr(Offsets, "put", put)


PLANTS: tuple[Patch, ...] = (
    assigns_before_the_log_has_it,
    acknowledges_before_the_log_has_it,
    writes_two_assignments_of_a_generation,
    answers_a_static_return_before_the_log_has_it,
    serves_who_is_fenced,
    forgets_who_was_overtaken,
    tells_nobody_that_the_coordinator_moved,
    waits_for_all_members_whatever_the_time,
    begins_with_generation_1_after_each_failover,
    believes_the_first_record_of_a_key,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_bug_that_was_put_in_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker that never fails is not a checker."""
    plant(monkeypatch)
    assert any(is_violated(seed) for seed in range(100))


def is_violated(seed: int) -> bool:
    try:
        run(seed)
    except Violation:
        return True
    return False
