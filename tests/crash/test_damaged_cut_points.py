"""Crashes while a log is cut in the middle of damaged bytes.

After every crash each record in front of the damage is there, and the damage is found again, or an opening
refuses the log: no crash makes it look as if nothing had been written there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.errors import DamagedLog
from logstore.log.log import Log
from logstore.log.partition_log import PartitionLog
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.plants.registry import planted

DIRECTORY = "/data/orders-0"
RECORDS = 8
BAD = range(3, 7)
CUT = 5
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=60, segment_index_bytes=240)
"""A segment holds seven of the eight records."""


class State(NamedTuple):
    """The end, the readable records, the offsets in damage, and whether what was cut is in the ledger."""

    end_offset: int
    numbers: frozenset[int]
    bad: frozenset[int]
    is_kept: bool


REFUSED = State(-BAD.start, frozenset(), frozenset(), False)


def opened(disk: Disk) -> Log:
    return Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: 1000)


def damaged_cut(run: CrashRun[bool]) -> None:
    """The promise: whether the cut is done."""
    run.is_watched = False
    log = opened(run.disk)
    for number in range(RECORDS):
        log.append(b"%d" % number * 60)
    log.flush()
    assert len(log.partition.segments) == 2
    size = log.partition.segments.first.size // 7
    file = run.disk.open(f"{DIRECTORY}/{0:020d}.log", write=True)
    file.pwrite(bytes(3 * size), BAD.start * size + 8)
    file.sync()
    file.close()
    run.is_watched = True
    run.promise(False)
    log.truncate_to(CUT)
    run.promise(True)
    run.disk.make_dir("/a-moment")


def recover(disk: Disk) -> State:
    try:
        log = opened(disk)
    except DamagedLog as error:
        return REFUSED._replace(end_offset=-error.damages[0].offset)
    with log:
        bad = frozenset(
            offset for each in log.scrub().damages for offset in range(each.offset, each.end_offset)
        )
        numbers = set[int]()
        for number in set(range(log.log_end_offset)) - bad:
            if (record := log.get(number)) is not None and record.value == b"%d" % number * 60:
                numbers.add(number)
        # An entry of a cut that did not happen may go again.
        is_kept = log.log_end_offset == CUT and any(loss.who == "truncation" for loss in log.losses())
        return State(log.log_end_offset, frozenset(numbers), bad, is_kept)


def judge(found: State, is_done: bool) -> None:
    if found == REFUSED:
        return
    assert set(range(BAD.start)) <= found.numbers, f"records in front of the damage are gone: {found}"
    assert found.end_offset >= CUT, f"the log ends in the middle of what it had: {found}"
    assert found.end_offset == CUT or not is_done, f"what was cut is back: {found}"
    assert found.numbers | found.bad == set(range(found.end_offset)), f"nobody would miss it: {found}"
    assert found.end_offset > CUT or found.is_kept, f"sound records left without a trace: {found}"


def explored(**options: Any) -> CrashReport:
    return CrashLab(recover, judge, **options).explore(
        damaged_cut, False, disk=lambda: MemoryDisk(directories=["/data"])
    )


def test_every_point() -> None:
    report = explored(images=4, second_images=1, kills=False)
    assert report.is_good, str(report)


def test_the_damage_must_not_go_with_what_follows_the_cut() -> None:
    with planted("cut-where-damage-begins"):
        assert not explored(images=4, second_images=1, kills=False, stop_after=1).is_good, "nobody noticed"


def test_the_recovery_point_must_stay_above_the_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowered to what is sound, a power cut would make the damage a torn tail."""
    lower: Callable[[PartitionLog, int], None] = PartitionLog.lower_bounds
    monkeypatch.setattr(PartitionLog, "lower_bounds", lambda log, offset: lower(log, min(offset, BAD.start)))
    assert not explored(images=4, second_images=1, kills=False, stop_after=1).is_good, "nobody noticed"
