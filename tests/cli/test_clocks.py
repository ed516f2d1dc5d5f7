"""Clocks of brokers that are wrong, and brokers that come and go: what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.cli.clocks import Clock, clock, wrong_clocks
from logstore.cli.trouble import Rank, Trouble
from logstore.cli.troubles import Observed, troubles
from tests.cli.test_health import observed

NOW_MS = 1_700_000_600_000
LEFT_MS = tuple(NOW_MS - seconds * 1_000 for seconds in (300, 200, 20))


def test_a_clock_is_known_to_half_of_the_time_of_the_question() -> None:
    assert clock(1_000, 5_000, 3_000) == Clock(3_000, 1_000)
    assert clock(1_000, 1_000, 1_001) == Clock(0, 1)


@pytest.mark.parametrize(
    ("clocks", "wrong"),
    [
        ({1: Clock(0, 5), 2: Clock(3, 5), 3: Clock(3_600_000, 5)}, [3]),
        ({1: Clock(0, 5), 2: Clock(3, 5), 3: Clock(-6_000, 5)}, [3]),
        ({1: Clock(0, 5), 2: Clock(3, 5), 3: Clock(6_000, 2_000)}, []),
        # It is this host's clock that is wrong.
        ({1: Clock(90_000, 5), 2: Clock(90_000, 5), 3: Clock(90_002, 5)}, []),
        ({1: Clock(90_000, 5), 2: Clock(0, 5)}, [1]),
        ({1: Clock(90_000, 5)}, [1]),
        ({}, []),
    ],
)
def test_clocks_that_are_wrong(clocks: dict[int, Clock], wrong: list[int]) -> None:
    assert [each.broker for each in wrong_clocks(clocks)] == wrong


def test_the_difference_is_told() -> None:
    clocks = {1: Clock(0, 5), 2: Clock(3, 5), 3: Clock(-3_600_400, 5)}
    (wrong,) = wrong_clocks(clocks)
    assert wrong.says == "its clock is 3600 s behind those of the other brokers"
    assert wrong.evidence == (
        "beside the clock of this host: broker 1 +0.0 s, broker 2 +0.0 s, broker 3 -3600.4 s"
    )


def of_broker_3(found: Observed) -> list[Trouble]:
    return [each for each in troubles(found) if each.subject == "broker 3"]


def test_a_broker_that_is_down_again() -> None:
    """To start it once more is no next step before the reason is known."""
    seen = observed(live=(1, 2), isr=(1, 2))
    (once,) = of_broker_3(replace(seen, departures={3: LEFT_MS[-1:]}, now_ms=NOW_MS))
    assert once.next_step.startswith("start broker 3")
    (again,) = of_broker_3(replace(seen, departures={3: LEFT_MS}, now_ms=NOW_MS))
    assert again.says.startswith("it is down again, and ends each time it is started")
    assert again.next_step.startswith("find and fix the reason")
    assert "it left the cluster 3 times since 2023-11-14 22:18:20,000 UTC" in again.evidence


def test_a_broker_that_is_up_for_now() -> None:
    """For a minute after its last departure it is not trusted."""
    found = replace(observed(), departures={3: LEFT_MS})
    (now,) = of_broker_3(replace(found, now_ms=NOW_MS))
    assert (now.says, now.rank) == ("it is up, and restarts again and again", Rank.AT_RISK)
    assert of_broker_3(replace(found, now_ms=NOW_MS + 60_000)) == []
    assert of_broker_3(replace(found, departures={3: LEFT_MS[1:]}, now_ms=NOW_MS)) == []


def test_a_broker_that_closes_connections() -> None:
    (closes,) = of_broker_3(observed(silent={3: "the connection to host:9092 broke"}))
    assert "closes new connections" in closes.says
    assert "it may have no descriptor left" in closes.next_step
    (hangs,) = of_broker_3(observed(silent={3: "host:9092: no answer in 5 s"}))
    assert "it may be paused" in hangs.next_step


def test_a_difference_is_rounded_as_people_write_it() -> None:
    (found,) = wrong_clocks({1: Clock(-4, 9), 2: Clock(-3_599_980, 9)})
    assert found.says == "its clock is 3600 s behind the one of this host"
    assert found.evidence == "beside the clock of this host: broker 1 +0.0 s, broker 2 -3600.0 s"
