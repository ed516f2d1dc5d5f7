"""Crashes while a damaged segment is mended, and while its derived files are rebuilt.

After every crash the old segment is there or the mended one. What was sound stays readable, the bad bytes are
in quarantine once they left the log, and a segment that was mended before stays mended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.log import heal
from logstore.log.heal import Flush, Found, mend
from logstore.log.log import Log
from logstore.log.read import read_bytes
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk, Profile
from tests.crash.script import ForgetfulDisk

DIRECTORY = "/data/orders-0"
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)
ALL = tuple(range(8))
BAD = 3
"""The record whose batch rots; it lies in a sealed segment."""


class Promise(NamedTuple):
    """Whether the damaged batch may be sound, whether it ever was damaged, and the log start."""

    mended: tuple[bool, ...]
    was_damaged: bool = True
    start: int = 0


class State(NamedTuple):
    """The sound records that an owner finds, and the number of bad bytes in quarantine."""

    numbers: tuple[int, ...]
    kept: int


def opened(disk: Disk) -> Log:
    return Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: 1000)


def fill(disk: Disk) -> Log:
    log = opened(disk)
    for number in ALL:
        log.append(b"%d" % number * 60)
    log.flush()
    return log


def source() -> Log:
    return fill(MemoryDisk(directories=["/data"]))


def holder_of(log: Log) -> int:
    holder = log.partition.segments.floor(BAD)
    assert holder is not None
    assert holder is not log.partition.segments.active
    return holder.base_offset


def spoil(disk: Disk, name: str, position: int) -> None:
    file = disk.open(f"{DIRECTORY}/{name}", write=True)
    file.pwrite(bytes([file.pread(1, position)[0] ^ 0x10]), position)
    file.sync()
    file.close()


def mended(log: Log, base_offset: int, other: Log) -> None:
    steps, found = mend(log.partition, base_offset, now_ms=0), None
    while True:
        try:
            wanted = next(steps) if found is None else steps.send(found)
        except StopIteration:
            return
        found = None
        if isinstance(wanted, Flush):
            log.flush()
        elif wanted is not None:
            found = Found(read_bytes(other.partition, wanted.start_offset).records, "another log")


def recover(disk: Disk) -> State:
    with opened(disk) as log:
        seen = log.scrub()
        bad = {damage.offset for damage in seen.damages}
        numbers = tuple(
            number
            for number in ALL
            if number >= log.log_start_offset
            and number not in bad
            and (log.get(number) or _NO_RECORD).value == b"%d" % number * 60
        )
        # An entry of a mending that did not happen may go again.
        is_mended = BAD in numbers or log.log_start_offset > BAD
        kept = sum(loss.size for loss in log.losses() if loss.who == "heal" and is_mended)
        assert log.scrub().rebuilt == (), "it is rebuilt once"
        return State(numbers, kept)


class _NO_RECORD:
    value = None


def judge(found: State, promise: Promise) -> None:
    is_mended = BAD in found.numbers or promise.start > BAD
    sound = tuple(number for number in ALL if number >= promise.start and (is_mended or number != BAD))
    assert found.numbers == sound, f"records {found.numbers} are left of {sound}"
    assert is_mended in promise.mended, "it is not mended" if not is_mended else "it was not damaged"
    assert found.kept or not is_mended or not promise.was_damaged, "the bad bytes left without a trace"


BEFORE = Promise((False,))


def mending_of_a_sealed_segment(run: CrashRun[Promise]) -> None:
    run.is_watched = False
    log, other = fill(run.disk), source()
    base_offset = holder_of(log)
    spoil(run.disk, f"{base_offset:020d}.log", 90 + (BAD - base_offset) * 130)
    run.is_watched = True
    run.promise(Promise((False, True)))
    mended(log, base_offset, other)
    run.promise(Promise((True,)))
    run.disk.make_dir("/a-moment")


def rebuilding_of_derived_files(run: CrashRun[Promise]) -> None:
    run.is_watched = False
    log = fill(run.disk)
    base_offset = holder_of(log)
    names = [f"{base_offset:020d}{suffix}" for suffix in (".index", ".timeindex", ".seal")]
    for name in (*names, LEADER_EPOCH_CHECKPOINT):
        spoil(run.disk, name, 2)
    run.is_watched = True
    run.promise(Promise((True,), was_damaged=False))
    log.scrub()
    run.disk.make_dir("/a-moment")


def opening_past_deleted_damage(run: CrashRun[Promise]) -> None:
    """A bad segment below the log start goes, and bad bytes below it leave the one that holds it."""
    run.is_watched = False
    log = fill(run.disk)
    log.delete_records(BAD + 2)
    for base_offset in (holder_of(log), BAD + 1):
        spoil(run.disk, f"{base_offset:020d}.log", 90)
        run.disk.remove(f"{DIRECTORY}/{base_offset:020d}.index")
    run.disk.sync_dir(DIRECTORY)
    log.partition.abandon()
    run.is_watched = True
    run.promise(Promise((True,), start=BAD + 2))
    opened(run.disk).partition.abandon()
    run.disk.make_dir("/a-moment")


SCRIPTS: tuple[Callable[[CrashRun[Promise]], None], ...] = (
    mending_of_a_sealed_segment,
    rebuilding_of_derived_files,
    opening_past_deleted_damage,
)


def explored(
    script: Callable[[CrashRun[Promise]], None],
    *,
    forgets: Callable[[str, str], bool] = lambda _call, _path: False,
    **options: Any,
) -> CrashReport:
    return CrashLab(recover, judge, **options).explore(
        script, BEFORE, disk=lambda: ForgetfulDisk(forgets, directories=["/data"])
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_point(script: Callable[[CrashRun[Promise]], None]) -> None:
    report = explored(script, images=6, kills=False)
    assert report.is_good, str(report)


@pytest.mark.timeout(600)
def test_a_crash_in_the_recovery_too() -> None:
    """A few images of one profile; `make crash` opens them all."""
    report = explored(
        mending_of_a_sealed_segment, images=1, second_images=1, depth=2, profiles=[Profile.POSIX], kills=False
    )
    assert report.is_good, str(report)


# --- every sync is needed, but that of a seal: a torn one counts for nothing ---------------------------


def broken(forgets: Callable[[str, str], bool]) -> None:
    report = explored(mending_of_a_sealed_segment, forgets=forgets, images=16, kills=False, stop_after=1)
    assert not report.is_good, "nobody noticed"


def test_the_mended_segment_is_synced() -> None:
    broken(lambda call, path: call == "sync" and path.endswith(".log.cleaned"))


def test_the_names_of_a_mended_segment_are_synced() -> None:
    broken(lambda call, path: call == "sync_dir" and path == DIRECTORY)


def test_the_bad_bytes_are_kept_before_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heal._Mending, "_keep", lambda _self, _gaps: None)
    broken(lambda _call, _path: False)
