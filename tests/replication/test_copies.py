"""The network that repeats messages finds planted bugs that pass without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.replication import orders
from logstore.replication.fetcher import Fetcher, InFlight
from logstore.replication.follower import Followers
from logstore.testing.stage import Stage
from tests.replication.copies import Copies, Network


def answers_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower takes every answer as one to its current request."""
    honest = Followers._find
    asked: dict[int, tuple[Fetcher, InFlight]] = {}

    def trusting(self: Followers, correlation_id: int) -> tuple[Fetcher, InFlight] | None:
        found = honest(self, correlation_id)
        if found is not None:
            asked[correlation_id] = found
        return asked.get(correlation_id)

    monkeypatch.setattr(Followers, "_find", trusting)
    monkeypatch.setattr(Fetcher, "state_of", lambda self, in_flight, known: self._states.get(known))


def repeats_are_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker takes a role in a known epoch as a new one."""
    monkeypatch.setattr(orders, "judge", lambda *_: None)


def replicate_three(stage: Stage) -> None:
    stage.elect("A", isr="AB")
    stage.append("A", 3)
    stage.replicate("B")
    assert stage.picture("B") == "B = 0 0 0 | hw 3"


def leadership_moves(stage: Stage) -> None:
    stage.elect("A", isr="AB")
    stage.append("A", 3)
    stage.replicate("B")
    stage.elect("B", isr="AB")
    stage.append("B")
    stage.fetch("A")
    stage.fetch("A")
    assert stage.picture("A") == "A = 0 0 0 1 | hw 3"


def play(schedule: Callable[[Stage], None], network: Network, plants: pytest.MonkeyPatch) -> None:
    stage = Stage("AB")
    if network is Network.ONCE:
        return schedule(stage)
    with pytest.MonkeyPatch.context() as patches:
        copies = Copies(network, patches)
        schedule(stage)
        copies.finish()
        assert copies.count
    return None


@pytest.mark.parametrize(
    ("plant", "schedule", "network"),
    [
        (answers_count_twice, replicate_three, Network.TWICE),
        (repeats_are_news, leadership_moves, Network.LATE),
    ],
)
def test_a_planted_bug_shows_only_where_messages_are_repeated(
    plant: Callable[[pytest.MonkeyPatch], None],
    schedule: Callable[[Stage], None],
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(schedule, network, monkeypatch)
    plant(monkeypatch)
    play(schedule, Network.ONCE, monkeypatch)
    with pytest.raises(AssertionError):
        play(schedule, network, monkeypatch)
