"""The power fails before every call of commits, of a truncation behind a cursor, and of the opening after it.

A cursor never skips: every record below it is one that its reader has read, also when the log was cut and
others took the offsets. It keeps what a synced commit has promised. The last tests switch one rule off each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from logstore import Log, LogConfig
from logstore.disk.files import Disk
from logstore.log.cursor_file import CursorFile
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk, Profile
from tests.crash.script import ForgetfulDisk

DIRECTORY = "/data/orders-0"
NAME = "billing"
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)


class Found(NamedTuple):
    """The values in the log, and the place of the cursor."""

    values: tuple[bytes, ...]
    cursor: int


class Promise(NamedTuple):
    """The values that the reader has read, in order, and the least place that its cursor may have."""

    read: tuple[bytes, ...] = ()
    least: int = 0


def opened(disk: Disk) -> Log:
    return Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: 0)


def recover(disk: Disk) -> Found:
    log = opened(disk)
    return Found(tuple(record.value or b"" for record in log.read()), log.cursors().get(NAME, 0))


def judge(found: Found, promise: Promise) -> None:
    values, cursor = found
    assert cursor >= promise.least, f"the cursor is at {cursor}, {promise.least} was promised"
    assert cursor <= len(values), f"the cursor is at {cursor}, past the end {len(values)}"
    assert values[:cursor] == promise.read[:cursor], f"the cursor at {cursor} skips records"


def goes_on(disk: MemoryDisk) -> None:
    """Others take the offsets of what the power cut took, and the power fails once more."""
    log = opened(disk)
    before = log.cursors().get(NAME, 0)
    log.append([b"later"] * 8, sync=True)
    after = opened(disk.durable_image()).cursors().get(NAME, 0)
    assert after <= before, f"the cursor was at {before}, and skips to {after}"


def commits(run: CrashRun[Promise]) -> None:
    """Commits of each kind; the records of some are not durable."""
    log = opened(run.disk)
    cursor = log.cursor(NAME)
    read: tuple[bytes, ...] = ()
    least = 0
    for step, sync in enumerate((False, True, False, False, True)):
        for number in range(2):
            log.append(b"%d %d" % (step, number) * 10)
        if step in (1, 3):
            log.flush()
            least_records = log.log_end_offset
        else:
            least_records = log.partition.recovery_point
        read += tuple(record.value or b"" for record in cursor.read())
        run.promise(Promise(read, least))
        cursor.commit(sync=sync)
        if sync:
            # What the log itself may lose is no place to continue at.
            least = min(cursor.position, least_records)
        run.promise(Promise(read, least))
    log.close()
    run.promise(Promise(read, len(read)))
    run.disk.make_dir("/a-moment")


def truncation(run: CrashRun[Promise]) -> None:
    """The log is cut behind the cursor, and others take the offsets at once."""
    run.is_watched = False
    log = opened(run.disk)
    for number in range(8):
        log.append(b"%d" % number * 40)
    log.flush()
    cursor = log.cursor(NAME)
    read = tuple(record.value or b"" for record in cursor.read())
    cursor.commit(sync=True)
    run.is_watched = True
    run.promise(Promise(read, 3))
    log.truncate_to(3)
    for number in range(8):
        log.append(b"new %d" % number, sync=number % 2 == 0)
    run.disk.make_dir("/a-moment")


def removal(run: CrashRun[Promise]) -> None:
    """A removed cursor does not come back."""
    run.is_watched = False
    log = opened(run.disk)
    log.append(b"0", sync=True)
    cursor = log.cursor(NAME)
    read = tuple(record.value or b"" for record in cursor.read())
    cursor.commit(sync=True)
    run.is_watched = True
    run.promise(Promise(read))
    cursor.remove()
    run.promise(Promise(()))
    run.disk.make_dir("/a-moment")


def explored(
    script: Callable[[CrashRun[Promise]], None],
    *,
    forgets: Callable[[str, str], bool] = lambda _call, _path: False,
    **options: Any,
) -> CrashReport:
    return CrashLab(recover, judge, goes_on=goes_on, **options).explore(
        script, Promise(), disk=lambda: ForgetfulDisk(forgets, directories=["/data"])
    )


SCRIPTS = (commits, truncation, removal)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_point(script: Callable[[CrashRun[Promise]], None]) -> None:
    report = explored(script, images=6, kills=False)
    assert report.is_good, str(report)
    assert report.moments > 3


@pytest.mark.timeout(600)
def test_a_killed_process_skips_nothing_either() -> None:
    """A few images of one profile; `make crash` opens them all."""
    report = explored(commits, images=1, second_images=1, depth=2, profiles=[Profile.POSIX])
    assert report.is_good, str(report)


# --- every rule is needed ------------------------------------------------------------------------------


def broken(
    script: Callable[[CrashRun[Promise]], None],
    forgets: Callable[[str, str], bool] = lambda _call, _path: False,
) -> None:
    report = explored(script, forgets=forgets, images=16, kills=False, stop_after=1)
    assert not report.is_good, "nobody noticed"


def test_a_synced_commit_is_synced() -> None:
    broken(commits, lambda call, path: call == "sync" and path.endswith("/cursors.jsonl"))


def test_a_new_file_is_synced() -> None:
    broken(truncation, lambda call, path: call == "sync" and path.endswith("/cursors.jsonl.tmp"))


def test_a_removal_is_synced() -> None:
    broken(removal, lambda call, path: call == "sync" and "/cursors.jsonl" in path)


def test_an_opening_moves_cursors_back_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from logstore.log import cursor_file

    load = cursor_file.load_cursors

    def only_read(disk: Disk, directory: str, _end: int, *, is_clean: bool) -> Any:
        return load(disk, directory, 1 << 60, is_clean=is_clean)

    from logstore.log import recovery

    monkeypatch.setattr(recovery, "load_cursors", only_read)
    broken(commits)


def test_what_an_opening_shows_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the death of the process alone: a start shows a commit that the next power cut takes away."""
    from logstore.log import cursor_file, recovery

    load = cursor_file.load_cursors

    def unsynced(disk: Disk, directory: str, end: int, *, is_clean: bool) -> Any:
        return load(disk, directory, end, is_clean=True)

    monkeypatch.setattr(recovery, "load_cursors", unsynced)
    report = explored(commits, images=2, second_images=4, kills=True, stop_after=1)
    assert report.simplest is not None
    assert "after the next crash" in report.simplest.error


def test_a_truncation_moves_cursors_back_to_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CursorFile, "lower", lambda _self, _offset: None)
    broken(truncation)


def test_cursors_are_moved_back_durably(monkeypatch: pytest.MonkeyPatch) -> None:
    """By lines that are appended and not synced: new records are durable, the move is not."""

    def lower(cursors: CursorFile, offset: int) -> None:
        for name, each in list(cursors.offsets.items()):
            if each > offset:
                cursors.put(name, offset)

    monkeypatch.setattr(CursorFile, "lower", lower)
    broken(truncation)
