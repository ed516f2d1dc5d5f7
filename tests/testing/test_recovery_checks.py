"""Checks of one replica's files and memory, each broken by hand once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.log.producer_state import AppendedBatch, ProducerEntry
from logstore.segment.epochs import EpochEntry
from logstore.testing.recovery_checks import Remains, check_bounds, check_producers, check_recovery
from logstore.testing.stored import Stored, Violation
from tests.testing.test_checkers import A, B, C, numbered, stored

LEFT = Remains("t-0 on node 0", (A, B, C), 0, durable_end=2, cache_survived=False)
EPOCHS = (EpochEntry(0, 0),)


def test_any_run_from_the_start_may_survive_a_power_cut() -> None:
    for kept in (2, 3):
        check_recovery(LEFT, LEFT.batches[:kept], log_start=0, log_end=kept, epochs=EPOCHS)


@pytest.mark.parametrize(
    ("invariant", "after", "log_start", "log_end", "epochs"),
    [
        ("I1", None, 0, 0, EPOCHS),
        ("I2", (A, stored(1, "other"), C), 0, 3, EPOCHS),
        ("I3", (A, B, stored(2, "other")), 0, 3, EPOCHS),
        ("I3", (A, B, C, stored(3, "d")), 0, 4, EPOCHS),
        ("I5", (A, B, C), 0, 3, (EpochEntry(1, 0),)),
        ("I5", (A, B, C), 0, 3, (EpochEntry(0, 0), EpochEntry(1, 1))),
        ("I5", (A, B, C), 0, 3, ()),
        ("I6", (A, B, C), 1, 3, EPOCHS),
        ("I7", (A,), 0, 1, EPOCHS),
        ("I7", (A, B, C), 0, 4, EPOCHS),
    ],
)
def test_what_a_restart_must_not_find(
    invariant: str,
    after: tuple[Stored, ...] | None,
    log_start: int,
    log_end: int,
    epochs: tuple[EpochEntry, ...],
) -> None:
    with pytest.raises(Violation) as found:
        check_recovery(LEFT, after, log_start=log_start, log_end=log_end, epochs=epochs)
    assert found.value.invariant == invariant


def test_a_log_that_was_cut_inside_of_a_batch_ends_behind_a_gap_still() -> None:
    """Its leader's log begins there. The segment of that offset is empty (seed 8005059)."""
    left = replace(LEFT, durable_end=4, log_end_then=4)
    check_recovery(left, LEFT.batches, log_start=0, log_end=4, epochs=EPOCHS)
    with pytest.raises(Violation, match="I7"):
        check_recovery(left, LEFT.batches[:2], log_start=0, log_end=4, epochs=EPOCHS)


def test_a_hole_is_a_violation_even_if_it_was_there_before() -> None:
    left = replace(LEFT, batches=(A, C))
    with pytest.raises(Violation, match="I4"):
        check_recovery(left, (A, C), log_start=0, log_end=3, epochs=EPOCHS)


def test_epochs_that_fall_in_a_recovered_log() -> None:
    log = (stored(0, "a", epoch=3), stored(1, "b", epoch=2))
    left = replace(LEFT, batches=log)
    with pytest.raises(Violation, match="I5"):
        check_recovery(left, log, log_start=0, log_end=2, epochs=(EpochEntry(3, 0), EpochEntry(2, 1)))


def test_a_killed_process_loses_nothing() -> None:
    """Its page cache is still there: a shorter log is a violation, however little was synced."""
    with pytest.raises(Violation, match="I7"):
        check_recovery(
            replace(LEFT, durable_end=0, cache_survived=True), (A, B), log_start=0, log_end=2, epochs=EPOCHS
        )


def test_c16_memory_of_producers_is_what_the_log_says() -> None:
    batches = [numbered(0, 0, count=2), numbered(2, 2)]
    entry = ProducerEntry(7)
    entry.raise_epoch(0)
    entry.batches.append(AppendedBatch(last_sequence=2, last_offset=2, offset_delta=0, timestamp_ms=0))
    check_producers("t-0", batches, [entry], 0)
    check_producers("t-0", [A], [], 0)
    with pytest.raises(Violation, match=r"C16.*the producer state None"):
        check_producers("t-0", batches, [], 0)
    with pytest.raises(Violation, match="C16"):
        check_producers("t-0", batches[:1], [entry], 0)
    a_day_later = batches[-1].max_timestamp + 86_400_000
    check_producers("t-0", batches, [], a_day_later)
    with pytest.raises(Violation, match=r"C16.*the producer state None"):
        check_producers("t-0", batches, [], a_day_later - 1)


def test_c17_what_grows_is_reported() -> None:
    check_bounds("node 1", {"waiting requests": 4}, {"waiting requests": 4})
    with pytest.raises(Violation, match="C17: node 1: 5 waiting requests, at most 4 expected"):
        check_bounds("node 1", {"waiting requests": 5}, {"waiting requests": 4})
