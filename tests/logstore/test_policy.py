"""When a segment rolls: each condition alone and at its edge."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from logstore.config import MAX_INT, LogConfig
from logstore.errors import InvalidConfig
from logstore.log.append import Incoming, RollReason, roll_reason

CONFIG = LogConfig(segment_bytes=1000, segment_ms=500)


@dataclass(frozen=True)
class Active:
    base_offset: int = 100
    size: int = 400
    first_timestamp_ms: int = 10_000
    created_ms: int = 50_000
    jitter_ms: int = 0
    index_is_full: bool = False


QUIET = Incoming(size=100, max_timestamp_ms=10_100, last_offset=150)
NOW_MS = 50_000


def reason(active: Active, incoming: Incoming, now_ms: int = NOW_MS, config: LogConfig = CONFIG) -> object:
    return roll_reason(active, incoming, config, now_ms)


def test_nothing_to_roll_for() -> None:
    assert reason(Active(), QUIET) is None


@pytest.mark.parametrize(("size", "expected"), [(600, None), (601, RollReason.SEGMENT_BYTES)])
def test_a_segment_may_be_filled_to_the_last_byte(size: int, expected: RollReason | None) -> None:
    assert reason(Active(), QUIET._replace(size=size)) is expected


def test_row_83_an_empty_segment_takes_an_append_of_any_size_and_age() -> None:
    """Else a batch larger than a segment would roll for ever."""
    empty = Active(size=0, first_timestamp_ms=-1, created_ms=0)
    assert reason(empty, Incoming(5000, 99_999_999, 150), now_ms=99_999_999) is None


@pytest.mark.parametrize(("time", "expected"), [(10_500, None), (10_501, RollReason.SEGMENT_MS)])
def test_age_is_judged_by_the_records_clock(time: int, expected: RollReason | None) -> None:
    assert reason(Active(), QUIET._replace(max_timestamp_ms=time)) is expected


def test_row_160_the_records_clock() -> None:
    """Row 160: the wall clock alone rolls nothing while records have times; old times never roll."""
    assert reason(Active(), QUIET, now_ms=10**12) is None
    assert reason(Active(), QUIET._replace(max_timestamp_ms=5), now_ms=10**12) is None
    assert reason(Active(), QUIET._replace(max_timestamp_ms=10**12)) is RollReason.SEGMENT_MS


@pytest.mark.parametrize(("now_ms", "expected"), [(50_500, None), (50_501, RollReason.SEGMENT_MS)])
def test_without_record_times_the_wall_clock_counts(now_ms: int, expected: RollReason | None) -> None:
    timeless = replace(Active(), first_timestamp_ms=-1)
    assert reason(timeless, QUIET._replace(max_timestamp_ms=-1), now_ms=now_ms) is expected


def test_row_162_jitter_shortens_the_wait() -> None:
    """Row 162: not before segment.ms less the segment's own jitter, and then at once."""
    active = replace(Active(), jitter_ms=200)
    assert reason(active, QUIET._replace(max_timestamp_ms=10_300)) is None
    assert reason(active, QUIET._replace(max_timestamp_ms=10_301)) is RollReason.SEGMENT_MS


@pytest.mark.parametrize("size", [0, 400])
def test_a_full_index_rolls_even_an_empty_segment(size: int) -> None:
    assert reason(replace(Active(), index_is_full=True, size=size), QUIET) is RollReason.INDEX_FULL


@pytest.mark.parametrize("size", [0, 400])
@pytest.mark.parametrize(
    ("last_offset", "expected"),
    [
        (100, None),
        (100 + MAX_INT, None),
        (101 + MAX_INT, RollReason.OFFSET_OVERFLOW),
        (99, RollReason.OFFSET_OVERFLOW),
    ],
)
def test_row_83_an_offset_that_the_index_cannot_hold(size: int, last_offset: int, expected: object) -> None:
    """Row 83, its last part: also an empty segment rolls for it."""
    assert reason(replace(Active(), size=size), QUIET._replace(last_offset=last_offset)) is expected


def test_a_compacted_log_rolls_for_its_compaction_lag() -> None:
    config = replace(CONFIG, cleanup_policy="compact", max_compaction_lag_ms=50)
    assert reason(Active(), QUIET, config=config) is RollReason.SEGMENT_MS
    assert reason(Active(), QUIET, config=replace(config, cleanup_policy="delete")) is None


def test_row_46_no_segment_grows_past_what_its_index_can_point_to() -> None:
    """2^31 - 1 bytes: no setting allows more, and the append that would pass it begins a new one."""
    with pytest.raises(InvalidConfig):
        LogConfig(segment_bytes=MAX_INT + 1)
    largest = LogConfig(segment_bytes=MAX_INT, segment_ms=500)
    active = replace(Active(), size=MAX_INT - 100)
    assert reason(active, QUIET, config=largest) is None
    assert reason(active, QUIET._replace(size=101), config=largest) is RollReason.SEGMENT_BYTES
