"""Guards: one a producer, spent once. What a log does with them is in test_transactions.py."""

from __future__ import annotations

from logstore.log.producer_state import VerificationGuards


def test_one_guard_a_producer_until_it_is_spent() -> None:
    guards = VerificationGuards()
    first = guards.start(1, 5, 0, 0)
    assert guards.start(1, 7, 0, 0) == first
    assert first != guards.start(2, 5, 0, 0)
    assert guards.verifies(1, first)
    assert not guards.verifies(2, first)
    assert not guards.verifies(1, None)
    assert not guards.verifies(3, None), "no guard is not the guard of nobody"
    guards.spend(1)
    guards.spend(1)
    assert not guards.verifies(1, first)
    assert guards.start(1, 5, 0, 0) != first


def test_row_151_the_lowest_sequence_of_the_newest_epoch() -> None:
    guards = VerificationGuards()
    assert guards.lowest_sequence(1) is None
    for sequence, epoch, lowest in ((5, 1, 5), (7, 1, 5), (3, 1, 3), (9, 0, 3), (8, 2, 8), (1, 1, 8)):
        guards.start(1, sequence, epoch, 0)
        assert guards.lowest_sequence(1) == lowest


def test_expiry() -> None:
    guards = VerificationGuards()
    guards.start(1, 0, 0, 100)
    guards.start(2, 0, 0, 150)
    guards.remove_expired(199, 100)
    assert len(guards) == 2
    guards.remove_expired(200, 100)
    assert (guards.lowest_sequence(1), guards.lowest_sequence(2)) == (None, 0)
