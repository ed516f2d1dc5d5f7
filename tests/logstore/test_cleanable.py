"""What is dirty, what may be touched, what is worth it, and which segments become one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from logstore.compact.cleanable import Cleanable, cleanable, first_dirty, group_segments
from logstore.config import MAX_INT, LogConfig

NOW_MS = 1_000_000
CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=1000, segment_index_bytes=120)


@dataclass(frozen=True)
class Stored:
    base_offset: int
    size: int = 100
    largest_timestamp_ms: int = 0
    first_timestamp_ms: int = -1
    offset_index_bytes: int = 8
    time_index_bytes: int = 12

    @property
    def indexes(self) -> Stored:
        return self

    @property
    def sizes(self) -> tuple[int, int]:
        return self.offset_index_bytes, self.time_index_bytes


def judged(
    segments: list[Stored], *, dirty: int = 0, stable: int = MAX_INT, config: LogConfig = CONFIG
) -> Cleanable:
    return cleanable(segments, config, first_dirty_offset=dirty, last_stable_offset=stable, now_ms=NOW_MS)


SIX = [Stored(base) for base in range(0, 60, 10)]


def test_row_246_ratio_of_clean_cleanable_and_uncleanable() -> None:
    """Two segments clean, two cleanable, one too young, one active: half of what would be read is dirty."""
    young = [replace(each, largest_timestamp_ms=NOW_MS) if each.base_offset >= 40 else each for each in SIX]
    found = judged(young, dirty=20, config=replace(CONFIG, min_compaction_lag_ms=1000))
    assert found == Cleanable(20, 40, 200, 200, must_be_cleaned=False)
    assert found.dirty_ratio == 0.5
    assert not found.is_due(CONFIG), "the ratio has to be above the setting"
    assert found.is_due(replace(CONFIG, min_cleanable_dirty_ratio=0.49))


@pytest.mark.parametrize(("checkpoint", "start"), [(5, 20), (61, 20), (20, 20), (60, 60), (30, 30)])
def test_row_247_a_checkpoint_outside_the_log_says_nothing(checkpoint: int, start: int) -> None:
    assert first_dirty(checkpoint, 20, 60) == start


@pytest.mark.parametrize(("lag_ms", "end"), [(0, 50), (100, 50), (101, 30), (10_000, 10)])
def test_row_248_min_compaction_lag(lag_ms: int, end: int) -> None:
    """Up to the first segment with a record too young; the active one never, however old it is."""
    times = dict(zip(range(0, 60, 10), (0, NOW_MS - 5000, 0, NOW_MS - 100, 0, 0), strict=True))
    segments = [replace(each, largest_timestamp_ms=times[each.base_offset]) for each in SIX]
    found = judged(segments, config=replace(CONFIG, min_compaction_lag_ms=lag_ms))
    assert found.first_uncleanable_offset == end


@pytest.mark.parametrize(("stable", "end"), [(0, 0), (29, 20), (30, 30), (55, 50), (99, 50)])
def test_row_249_nothing_past_an_open_transaction(stable: int, end: int) -> None:
    """A segment that holds its first record stays as a whole."""
    assert judged(SIX, stable=stable).first_uncleanable_offset == end


def test_row_245_a_gap_at_the_end_of_the_last_segment() -> None:
    """The next pass begins at the active segment's base, wherever the one before it ends."""
    found = judged([Stored(0), Stored(5000, size=0)])
    assert found.first_uncleanable_offset == 5000
    assert judged([Stored(0), Stored(5000, size=0)], dirty=5000).cleanable_bytes == 0


def test_max_compaction_lag_overrules_the_ratio() -> None:
    """One old record in the dirty part is enough; in the clean part it does not count."""
    segments = [replace(SIX[0], first_timestamp_ms=5), *SIX[1:4], replace(SIX[4], first_timestamp_ms=NOW_MS)]
    config = replace(CONFIG, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
    assert judged([*segments, SIX[5]], config=config).is_due(config)
    assert not judged([*segments, SIX[5]], dirty=10, config=config).is_due(config)
    assert not judged([Stored(0, size=0), Stored(1)], config=config).is_due(config)


class TestGrouping:
    @staticmethod
    def groups(segments: list[Stored], end: int, config: LogConfig = CONFIG) -> list[list[int]]:
        grouped = group_segments(segments, config, end)
        assert [each for group in grouped for each in group] == segments, "order is kept, nothing is lost"
        return [[each.base_offset for each in group] for group in grouped]

    def test_row_243_by_log_size(self) -> None:
        segments = [Stored(0, 400), Stored(1, 600), Stored(2, 1), Stored(3, 1000), Stored(4, 1)]
        assert self.groups(segments, 5) == [[0, 1], [2], [3], [4]]

    def test_row_243_by_the_size_of_either_index(self) -> None:
        segments = [Stored(base, 1, offset_index_bytes=60) for base in range(4)]
        assert self.groups(segments, 4) == [[0, 1], [2, 3]]
        segments = [Stored(base, 1, time_index_bytes=50) for base in range(4)]
        assert self.groups(segments, 4) == [[0, 1], [2, 3]]

    def test_row_243_by_the_offsets_that_one_segment_holds(self) -> None:
        """The end of the last one is where the pass ends."""
        segments = [Stored(0), Stored(5), Stored(MAX_INT), Stored(MAX_INT + 5)]
        assert self.groups(segments, MAX_INT + 6) == [[0, 5], [MAX_INT, MAX_INT + 5]]
        assert self.groups([Stored(0), Stored(5)], MAX_INT + 1) == [[0, 5]]
        assert self.groups([Stored(0), Stored(5)], MAX_INT + 2) == [[0], [5]]

    def test_row_243_an_empty_segment_joins_any_group(self) -> None:
        segments = [Stored(0), Stored(MAX_INT + 7, 0), Stored(MAX_INT + 9, 0)]
        assert self.groups(segments, MAX_INT + 20) == [[0, MAX_INT + 7, MAX_INT + 9]]
