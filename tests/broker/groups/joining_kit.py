"""What the tests of group share."""

from __future__ import annotations

from logstore.broker.groups.requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupResponse,
    Protocol,
)
from tests.broker.groups.desk import (
    GROUP,
    SESSION_MS,
    Desk,
    subscription,
)

ROUND_ROBIN = Protocol("roundrobin", subscription("t"))


def described(desk: Desk) -> DescribedGroup:
    (group,) = desk.answer(DescribeGroupsRequest((GROUP,)), DescribeGroupsResponse).groups
    return group


def state(desk: Desk) -> str:
    return described(desk).group_state


def keep_alive(desk: Desk, *members: JoinGroupResponse, rounds: int = 1) -> None:
    """Half a session, with a heartbeat of these at its end, so many times."""
    for _ in range(rounds):
        desk.pass_ms(SESSION_MS // 2)
        for each in members:
            desk.heartbeat(each.member_id, each.generation_id)
