"""Every rule of the sync order is needed: with one of them off, some legal image breaks a promise.

The rules are those of docs/durability.md, numbered as there. Each is switched off in one place of the engine,
and nothing else is changed; the script is one that passes as it stands (`test_every_point`). A checker that
never complains is no checker, and a rule that nothing misses is no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from logstore.checkpoint.clean_shutdown import CleanShutdown, write_clean_shutdown
from logstore.disk.files import Disk, remove_if_exists
from logstore.log import loading, log_dir, recovery, stand_alone, truncate
from logstore.log.loading import LoadedLog, Loading
from logstore.log.log_dir import LogDir
from logstore.log.partition_log import PartitionLog
from logstore.segment.segment import Segment
from logstore.testing.crash import CrashReport
from tests.crash import log_scripts, test_log_dir_points, test_log_points
from tests.crash.log_scripts import swap, swap_recovery
from tests.crash.script import Script
from tests.crash.test_log_dir_points import clean_stops, truncations
from tests.crash.test_log_points import roll_by_size, truncate_across

Patch = pytest.MonkeyPatch


def broken(script: Callable[[Script], None], **options: Any) -> CrashReport:
    report = test_log_points.explored(script, **{"images": 8, "kills": False, "stop_after": 1, **options})
    assert not report.is_good, "nobody noticed"
    return report


class _WithoutDirectorySyncs:
    """A disk that does not hear `sync_dir`; all else goes to the one behind it."""

    def __init__(self, inner: Disk) -> None:
        self._inner = inner

    def sync_dir(self, directory: str) -> None:
        """Says that it did."""

    if TYPE_CHECKING:
        open: Any
        rename: Any
        remove: Any
        scan: Any
        make_dir: Any
        remove_dir: Any
        lock: Any
        free: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_rule_s1_an_ack_follows_its_sync(monkeypatch: Patch) -> None:
    """`flush` that only moves the recovery point."""

    def only_say_so(log: PartitionLog, end_offset: int) -> None:
        log.recovery_point = max(log.recovery_point, end_offset)

    monkeypatch.setattr(PartitionLog, "sync_segments", only_say_so)
    broken(test_log_points.append_durable)


def test_rule_s2_a_new_files_name_is_synced_before_an_ack(monkeypatch: Patch) -> None:
    """A segment that takes its name for durable when it is made."""
    make = PartitionLog.new_segment

    def made_safe(log: PartitionLog, base_offset: int, now_ms: int) -> Segment:
        segment = make(log, base_offset, now_ms)
        segment.name_is_durable = True
        return segment

    # In a log that stands alone the recovery point's checkpoint comes after it, into the same directory.
    monkeypatch.setattr(PartitionLog, "new_segment", made_safe)
    report = test_log_dir_points.explored(truncations, images=8, kills=False, stop_after=1)
    assert not report.is_good


def test_rule_s3_a_segment_is_synced_before_the_recovery_point_passes_it(monkeypatch: Patch) -> None:
    """A roll that moves the recovery point and syncs nothing."""
    roll, sync = PartitionLog.roll_at, PartitionLog.sync_segments
    rolling: list[bool] = []

    def roll_unsynced(log: PartitionLog, base_offset: int, now_ms: int) -> None:
        rolling.append(True)
        try:
            roll(log, base_offset, now_ms)
        finally:
            rolling.pop()

    def sync_unless_rolling(log: PartitionLog, end_offset: int) -> None:
        if rolling:
            log.recovery_point = max(log.recovery_point, end_offset)
        else:
            sync(log, end_offset)

    monkeypatch.setattr(PartitionLog, "roll_at", roll_unsynced)
    monkeypatch.setattr(PartitionLog, "sync_segments", sync_unless_rolling)
    broken(roll_by_size)


def test_rule_s4_the_recovery_point_is_lowered_before_a_truncation(monkeypatch: Patch) -> None:
    """It is lowered in memory alone: what is written at those offsets then passes for synced."""

    def in_memory_only(log: PartitionLog, offset: int) -> None:
        log.recovery_point = min(log.recovery_point, offset)
        log.replicated_offset = min(log.replicated_offset, offset)

    monkeypatch.setattr(PartitionLog, "lower_bounds", in_memory_only)
    broken(truncated_and_written_anew, images=24)


def truncated_and_written_anew(run: Script) -> None:
    """The recovery point has passed a roll; then the log is cut below it, and several batches follow."""
    for _ in range(8):
        run.append()
    run.flush()
    run.truncate(1)
    run.append(2)
    run.append(2)


def test_rule_s5_a_truncation_takes_the_newest_segment_first(monkeypatch: Patch) -> None:
    """Oldest first, and the directory synced once at the end: a hole, with the tail still there."""
    drop = truncate._drop

    def drop_upwards(log: PartitionLog, segments: Sequence[Segment], loss_ids: Any) -> None:
        disk = log.disk
        log.disk = _WithoutDirectorySyncs(disk)
        try:
            drop(log, segments[::-1], loss_ids)
        finally:
            log.disk = disk

    monkeypatch.setattr(truncate, "_drop", drop_upwards)
    broken(truncate_across)


def test_rule_s6_the_log_start_is_published_before_segments_go(monkeypatch: Patch) -> None:
    """The checkpoint of log starts is never written: what was deleted comes back, or half of it."""
    monkeypatch.setattr(stand_alone._OwnDirectory, "log_start_moved", lambda self, log: None)
    broken(test_log_points.delete_records)


def test_rule_s7_a_swap_is_committed_before_the_old_segments_go() -> None:
    """The directory is not synced between `.swap` and `.deleted`: neither set may be whole."""
    broken(partial(swap, olds=3, news=2, commits=False))


def test_rule_s8_the_recovery_of_a_swap_removes_the_olds_durably_first(monkeypatch: Patch) -> None:
    """Olds that come back beside what replaced them."""
    finish = loading._finish_swap

    def finish_unsynced(found: Loading) -> None:
        disk = found.disk
        found.disk = _WithoutDirectorySyncs(disk)
        try:
            finish(found)
        finally:
            found.disk = disk

    monkeypatch.setattr(loading, "_finish_swap", finish_unsynced)
    broken(swap_recovery, images=8, seed=1)  # a seed that finds it early


def test_rule_s9_the_clean_mark_goes_durably_before_any_other_write(monkeypatch: Patch) -> None:
    """The mark comes back over a log that was written to since."""

    def remove(disk: Disk, directory: str) -> bool:
        return remove_if_exists(disk, f"{directory}/.kafka_cleanshutdown")

    monkeypatch.setattr(log_dir, "remove_clean_shutdown", remove)
    report = test_log_dir_points.explored(clean_stops, images=6, kills=False, stop_after=1)
    assert report.simplest is not None
    assert "called clean" in report.simplest.error


def test_rule_s10_what_recovery_accepts_is_synced_before_it_is_served(monkeypatch: Patch) -> None:
    """After the death of the process alone: a start shows what the next power cut takes away."""
    load, sync = recovery.load, Segment.sync_log

    def load_unsynced(*arguments: Any, **options: Any) -> LoadedLog:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Segment, "sync_log", lambda segment: None)
            return load(*arguments, **options)

    monkeypatch.setattr(stand_alone, "load", load_unsynced)
    report = broken(test_log_points.append_async, kills=True, second_images=8)
    assert report.simplest is not None
    assert "after the next crash" in report.simplest.error
    assert Segment.sync_log is sync


def test_rule_s11_the_mark_of_a_clean_stop_is_written_last(monkeypatch: Patch) -> None:
    """The mark before the flush: a start believes a log that is torn."""
    close = LogDir.close

    def mark_then_close(log_dir: LogDir, *, mark_clean: bool) -> None:
        write_clean_shutdown(log_dir._disk, log_dir.path, CleanShutdown())
        close(log_dir, mark_clean=mark_clean)

    monkeypatch.setattr(LogDir, "close", mark_then_close)
    report = test_log_dir_points.explored(clean_stops, images=8, kills=False, stop_after=1)
    assert report.simplest is not None
    assert "a clean stop is claimed" in report.simplest.error


@pytest.mark.parametrize("script", [truncated_and_written_anew, *log_scripts.SCRIPTS[-3:]])
def test_with_all_rules_on_they_pass(script: Callable[[Script], None]) -> None:
    assert test_log_points.explored(script, images=4, kills=False).is_good
