"""Which of the brokers given with --bootstrap a command asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.broker.errors import AuthenticationFailed, NotConnected, RequestRefused, RequestUnanswered
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.cli.brokers import TIMEOUT_S, Brokers
from logstore.cli.console import asking
from logstore.cli.group_facts import listed
from logstore.disk.errors import ErrorCode

ONE, TWO = Address("one", 1), Address("two", 2)


class Deaf(Brokers):
    """Brokers of which some do not answer."""

    silent: frozenset[Address] = frozenset()

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.asked: list[tuple[Address, Struct, float]] = []

    def _ask(self, address: Address, request: Struct, timeout_s: float | None = None) -> Any:
        timeout_s = timeout_s or TIMEOUT_S
        self.asked.append((address, request, timeout_s))
        if address in self.silent:
            raise RequestUnanswered(f"{address}: no answer in {timeout_s:.0f} s")
        return request


@pytest.fixture
def brokers() -> Iterator[Deaf]:
    with closing(Deaf("one:1,two:2")) as opened:
        yield opened


def test_one_that_is_silent_is_waited_for_once_and_not_long(brokers: Deaf) -> None:
    brokers.silent = frozenset((ONE,))
    request = t.DescribeClusterRequest()
    assert brokers.any(request) is request
    assert sum(wait for at, _, wait in brokers.asked if at == ONE) <= 5.0
    brokers.asked.clear()
    assert brokers.any(request) is request
    assert brokers.asked == [(TWO, request, TIMEOUT_S)]


def test_only_a_question_that_changes_nothing_has_the_short_wait(brokers: Deaf) -> None:
    brokers.silent = frozenset((ONE,))
    brokers.any(t.DeleteAclsRequest(filters=[]))
    assert [type(request) for at, request, _ in brokers.asked if at == ONE] == [t.MetadataRequest]


def test_a_time_for_all_in_all(brokers: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    """None answers: a second one is asked in the rest of the time, and no third."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def deaf(address: Address, request: Struct, timeout_s: float | None = None) -> Any:
        now[0] += timeout_s or TIMEOUT_S
        raise RequestUnanswered(f"{address}: no answer")

    monkeypatch.setattr(brokers, "_ask", deaf)
    brokers._bootstrap.append(Address("three", 3))
    brokers._first_answers = True
    with pytest.raises(RequestUnanswered, match="one:1: no answer; two:2: no answer"):
        brokers.any(t.DescribeConfigsRequest(resources=[]), timeout_s=4.0, total_s=6.0)
    assert now == [6.0]


def test_one_that_answered_and_falls_silent_is_left(brokers: Deaf) -> None:
    request = t.DescribeClusterRequest()
    brokers.any(request)
    brokers.silent = frozenset((ONE,))
    brokers.any(request)
    assert brokers.asked[-1][0] == TWO


def test_when_none_answers_all_are_named_and_the_last_has_its_full_time(brokers: Deaf) -> None:
    brokers.silent = frozenset((ONE, TWO))
    with pytest.raises(RequestUnanswered, match=r"one:1.*two:2"):
        brokers.any(t.DescribeClusterRequest())
    assert brokers.asked[-1][::2] == (TWO, TIMEOUT_S)


class Orphaned(Brokers):
    """Brokers whose controller answers nothing until another one is elected."""

    def __init__(self, elected_after: float, error: type[RequestUnanswered] = NotConnected) -> None:
        super().__init__("one:1,two:2")
        self.now_s, self.elected_after, self.error = 0.0, elected_after, error

    def metadata(self, topics: Any = None) -> t.MetadataResponse:
        live = [
            t.MetadataResponseBroker(node_id=number, host=host, port=number)
            for number, host in ((1, "one"), (2, "two"))
        ]
        controller = 2 if self.now_s >= self.elected_after else 1
        return t.MetadataResponse(brokers=live, controller_id=controller, topics=[])

    def _ask(self, address: Address, request: Struct, timeout_s: float | None = None) -> Any:
        if address == ONE:
            raise self.error(f"the connection to {address} broke")
        return request


@pytest.mark.parametrize(("elected_after", "patience_s"), [(18.0, 30.0), (18.0, 3.0), (18.0, 0.0)])
def test_a_dead_controller_is_waited_for_until_its_successor_answers(
    monkeypatch: pytest.MonkeyPatch, elected_after: float, patience_s: float
) -> None:
    """`topics describe` failed right after a controller was killed, though the others had answered."""
    with closing(Orphaned(elected_after)) as brokers:

        def sleep(seconds: float) -> None:
            brokers.now_s += seconds

        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: brokers.now_s)
        monkeypatch.setattr("logstore.cli.brokers.time", clock)
        request = t.ListPartitionReassignmentsRequest(topics=None)
        if patience_s > elected_after:
            assert brokers.controller(request, patience_s=patience_s) is request
        else:
            with pytest.raises(NotConnected, match="one:1"):
                brokers.controller(request, patience_s=patience_s)
            assert brokers.now_s == pytest.approx(patience_s, abs=0.11)


@pytest.mark.parametrize(
    ("request_", "error", "is_repeated"),
    [
        (t.ListPartitionReassignmentsRequest(topics=None), RequestUnanswered, True),
        (t.ListPartitionReassignmentsRequest(topics=None), AuthenticationFailed, False),
        (t.CreateTopicsRequest(topics=[]), NotConnected, True),
        (t.CreateTopicsRequest(topics=[]), RequestUnanswered, False),
    ],
)
def test_a_controller_that_dies_while_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, request_: Struct, error: type[RequestUnanswered], is_repeated: bool
) -> None:
    """A request that only reads is repeated; one that changes something only if it was not sent."""
    with closing(Orphaned(1.0, error)) as brokers:

        def sleep(seconds: float) -> None:
            brokers.now_s += seconds

        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: brokers.now_s)
        monkeypatch.setattr("logstore.cli.brokers.time", clock)
        if is_repeated:
            assert brokers.controller(request_) is request_
        else:
            with pytest.raises(error, match="broke"):
                brokers.controller(request_)
            assert brokers.now_s == 0


class Coordinated(Brokers):
    """Brokers that make the topic of groups at the first question, and whose coordinator then loads."""

    def __init__(self, made_after: int, loaded_after: int) -> None:
        super().__init__("one:1")
        self.asked, self.made_after, self.loaded_after = 0, made_after, loaded_after

    def _ask(self, address: Address, request: Struct, timeout_s: float | None = None) -> Any:
        self.asked += 1
        if isinstance(request, t.FindCoordinatorRequest):
            made = self.asked > self.made_after
            error = ErrorCode.NONE if made else ErrorCode.COORDINATOR_NOT_AVAILABLE
            return t.FindCoordinatorResponse(
                error_code=error, error_message="no known leader", host="one", port=1
            )
        loaded = self.asked > self.loaded_after
        error = ErrorCode.NONE if loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return t.DescribeGroupsResponse(groups=[t.DescribeGroupsResponseDescribedGroup(error_code=error)])


def test_the_first_coordinator_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`groups reset` failed in a cluster that had never had a group, and right after a failover."""
    paused: list[float] = []
    monkeypatch.setattr(
        "logstore.cli.brokers.time", SimpleNamespace(sleep=paused.append, monotonic=lambda: 0.0)
    )
    request = t.DescribeGroupsRequest(groups=["g"])
    with closing(Coordinated(made_after=3, loaded_after=9)) as brokers:
        assert brokers.coordinator("g", request).groups[0].error_code == ErrorCode.NONE
    with closing(Coordinated(made_after=1000, loaded_after=1000)) as brokers:
        paused.clear()
        with pytest.raises(RequestRefused, match="no known leader"):
            brokers.coordinator("g", request)
        assert sum(paused) == pytest.approx(5)
        with pytest.raises(RequestRefused, match="no known leader"):
            brokers.coordinator("h", request)
        assert sum(paused) == pytest.approx(5), "the other groups are not waited for again"


class Loading(Brokers):
    """One broker that coordinates a group, and loads another partition of groups for some questions."""

    def __init__(self, loaded_after: int) -> None:
        super().__init__("one:1")
        self.asked, self.loaded_after = 0, loaded_after

    def _ask(self, address: Address, request: Struct, timeout_s: float | None = None) -> Any:
        if isinstance(request, t.MetadataRequest):
            return t.MetadataResponse(brokers=[t.MetadataResponseBroker(node_id=1, host="one", port=1)])
        if isinstance(request, t.ListGroupsRequest):
            self.asked += 1
            loaded = self.asked > self.loaded_after
            error = ErrorCode.NONE if loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            group = t.ListGroupsResponseListedGroup(group_id="billing", group_state="Empty")
            return t.ListGroupsResponse(error_code=error, groups=[group])
        raise RequestUnanswered("no answer")


def test_groups_of_a_broker_that_loads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`groups list` failed, and the console showed no group, while another partition of groups was loaded."""
    paused: list[float] = []
    monkeypatch.setattr("logstore.cli.brokers.time.sleep", paused.append)
    with closing(Loading(loaded_after=3)) as brokers:
        assert list(listed(brokers)) == ["billing"]
        assert len(paused) == 3
    with closing(Loading(loaded_after=1000)) as brokers:
        shown = asking.groups(brokers, "", 0, 10)
        assert [each["name"] for each in shown["groups"]] == ["billing"]
        (silent,) = shown["silent"]
        assert "COORDINATOR_LOAD_IN_PROGRESS" in silent["error"]
        with pytest.raises(RequestRefused, match="COORDINATOR_LOAD_IN_PROGRESS: groups of broker 1"):
            listed(brokers)
        assert sum(paused) == pytest.approx(5.3)


@pytest.mark.parametrize(
    ("request_", "told"),
    [(t.CreateTopicsRequest(topics=[], timeout_ms=1), True), (t.DescribeClusterRequest(), False)],
)
def test_a_change_without_an_answer_may_have_been_made(
    monkeypatch: pytest.MonkeyPatch, request_: Struct, told: bool
) -> None:
    """`topics create` gave up on a broker that waited for its store, and the topic was there later."""
    with closing(Brokers("one:1")) as brokers:

        async def broken(*_: object) -> None:
            raise RequestUnanswered("the connection to one:1 broke")

        monkeypatch.setattr(brokers._connections, "ask_wire", broken)
        with pytest.raises(RequestUnanswered) as raised:
            brokers.any(request_)
        assert ("may have been made, or may still be: look before you repeat it" in str(raised.value)) is told
