"""When a member that has died is started again."""

from __future__ import annotations

from logstore.cli.supervising import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_AFTER_S, Pauses


def test_a_death_is_news_once() -> None:
    pauses = Pauses()
    assert pauses.has_died("a", 10.0)
    assert not pauses.has_died("a", 10.5)
    assert pauses.has_died("b", 10.5)


def test_it_is_started_after_a_pause() -> None:
    pauses = Pauses()
    pauses.has_died("a", 10.0)
    assert not pauses.is_due("a", 10.0)
    assert pauses.is_due("a", 10.0 + FIRST_PAUSE_S)


def test_one_that_dies_again_and_again_waits_longer_each_time() -> None:
    pauses, now_s, seen = Pauses(), 0.0, []
    for _ in range(9):
        assert pauses.has_died("a", now_s)
        seen.append(pauses.pause_s("a"))
        now_s += pauses.pause_s("a")
        pauses.was_started("a", now_s)
    assert seen == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_one_that_ran_for_a_while_begins_anew() -> None:
    pauses = Pauses()
    for at_s in (0.0, 1.0):
        pauses.has_died("a", at_s)
        pauses.was_started("a", at_s)
    pauses.has_died("a", 1.0 + STEADY_AFTER_S)
    assert pauses.pause_s("a") == FIRST_PAUSE_S
