"""The group service"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from logstore.broker.groups.requests import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from logstore.broker.groups.served import Append, Effect
from logstore.disk.errors import ErrorCode
from logstore.format.batch import encode_batch_of_pairs
from tests.broker.groups.service_world import GROUP, HOME, T0, World, error_of, run, settle


def state_of(world: World) -> str:
    (answer,) = world.ask(DescribeGroupsRequest((GROUP,)))
    assert isinstance(answer, DescribeGroupsResponse)
    return answer.groups[0].group_state


class TestAppends:
    def test_a_commit_is_answered_when_it_is_in_the_log(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            ((body, _),) = world.engine.asked
            assert (body.acks, body.timeout_ms) == (-1, 5_000)
            assert (answers, world.committed()) == ([], -1)
            world.engine.end_append()
            assert error_of(answers) is ErrorCode.NONE
            assert world.committed() == 7

        run(test)

    @pytest.mark.parametrize("error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT])
    def test_an_append_that_fails_counts_for_nothing(self, error: ErrorCode) -> None:
        """One that timed out may be in the log later; until it is known to be, it is not committed."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            world.engine.end_append(error)
            assert error_of(answers) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert world.committed() == -1

        run(test)

    def test_an_append_that_waits_in_line_is_not_made_in_another_epoch(self) -> None:
        """The log would hold what the groups that were read from it do not know of."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            world.engine.resign()
            world.engine.lead(2, HOME)
            assert error_of(answers) is ErrorCode.NOT_COORDINATOR
            world.engine.end_append()
            assert world.engine.logs[HOME].log_end_offset == 0
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_an_append_that_is_refused_is_over(self) -> None:
        """The node stops: whoever waits looks for the next coordinator."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            world.engine.asked.pop()[1].refused("this broker stops")
            assert error_of(answers) is ErrorCode.NOT_COORDINATOR

        run(test)

    def test_effects_are_carried_out_in_the_order_in_which_they_were_decided(self) -> None:
        """What comes of the first, at once where nobody else is in sync, does not overtake the second."""

        def append(token: int) -> Append:
            return Append(HOME, 0, encode_batch_of_pairs([(b"%d" % token, None)], timestamp_ms=1), token)

        class Decided:
            deadline_ms = 2**62

            def handle(self, request: object, token: object, now_ms: int) -> list[Effect]:
                return [append(1), append(2)]

            def appended(self, token: int, error: ErrorCode, base_offset: int, now_ms: int) -> list[Effect]:
                return [append(3)] if token == 1 else []

        async def test(world: World) -> None:
            await world.serve()
            world.service.coordinator = cast(Any, Decided())
            world.commit(5)
            assert world.engine.logs[HOME].keys() == [b"1", b"2", b"3"]

        run(test)


class TestTime:
    def test_sessions_end_by_a_timer(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            joined = await world.stable(session_timeout_ms=5)
            world.engine.clock_ms += 60_000
            while state_of(world) != "Empty":
                await asyncio.sleep(0.001)
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
            )
            assert world.ask(request) == [HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID)]

        run(test, group_min_session_timeout_ms=1)


class TestDoubt:
    def test_a_node_in_doubt_serves_nobody_and_lets_no_session_end(self) -> None:
        """What is in its memory may be long out of date; the word of the session's end comes first."""

        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.engine.is_in_doubt = True
            answers = world.ask(OffsetFetchRequest((OffsetFetchGroup(GROUP, (T0,)),)))
            world.service._time_is_up()
            assert (answers, len(world.engine.line)) == ([], 2)
            world.engine.resign()
            world.engine.is_in_doubt = False
            for act in world.engine.line:
                act()
            (answer,) = answers
            assert isinstance(answer, OffsetFetchResponse)
            assert answer.groups[0].error_code is ErrorCode.NOT_COORDINATOR

        run(test)


class TestTheEnd:
    def test_a_bug_costs_its_client_the_connection_and_nobody_else_anything(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(world: World) -> None:
            await world.serve()
            assert world.ask(cast(Any, object())) == []
            assert world.refused == ["the group coordinator failed"]
            assert world.committed() == -1

        with caplog.at_level(logging.CRITICAL):
            run(test)

    def test_nothing_is_begun_once_it_is_closed(self) -> None:
        async def test(world: World) -> None:
            world.engine.make_topic()
            world.engine.lead(0)
            await settle()
            assert len(world.engine.reads) == 1
            world.service.close()
            await world.engine.read()
            assert not world.engine.reads
            assert world.service._timer is None or world.service._timer.cancelled()

        run(test)
