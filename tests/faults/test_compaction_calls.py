"""The k-th call of a compaction to the disk fails, for every k: the log is as before a swap or after it.

Then it goes on, or is offline and says so; and whatever a restart finds is the same, and can be compacted.
"""

from __future__ import annotations

import errno

import pytest

from logstore.errors import DiskFull, LogClosed, LogDirOffline
from logstore.log.log import Log
from logstore.testing.disks import Fault, FaultyDisk
from tests.crash.script import DIRECTORY, NOW_MS, Held, held_by, log_parent
from tests.crash.test_compaction_points import CONFIG, LATER_MS, put, several_to_one, states_of
from tests.crash.test_compaction_points import with_producers as producers_and_transactions

LOGS = [several_to_one, producers_and_transactions]


def filled(number: int) -> tuple[Log, FaultyDisk]:
    disk = FaultyDisk(log_parent())
    log = Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: NOW_MS)
    LOGS[number](log)
    put(log, (b"a", b"in the active segment"))
    log.close()
    return Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: NOW_MS), disk


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("number", range(len(LOGS)), ids=[each.__name__ for each in LOGS])
def test_every_call_of_a_compaction(number: int, code: int) -> None:
    states = states_of(LOGS[number], 0)
    k = 0
    while True:
        k += 1
        log, disk = filled(number)
        disk.inject(Fault(at=k, errno=code))
        try:
            log.compact(LATER_MS)
        except (DiskFull, LogDirOffline):
            pass
        failed = bool(disk.fired)
        disk.heal()
        where = f"call {k}, {disk.fired}"
        if not log.partition.is_offline:
            check(log, states, where)
            log.compact(LATER_MS)
            assert held_by(log) == states[-1], where
            put(log, (b"z", b"it goes on"))
        try:
            log.close()
        except (LogDirOffline, LogClosed):
            pass
        again = Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: NOW_MS)
        if log.partition.is_offline:
            check(again, states, where)
        again.compact(LATER_MS)
        assert held_by(again)[: len(states[-1])] == states[-1], where
        again.close()
        if not failed:
            break
    assert k > 40


def check(log: Log, states: list[tuple[Held, ...]], where: str) -> None:
    assert held_by(log) in states, f"{where}: neither before a swap nor after it"


def test_what_took_the_log_offline_is_what_readers_are_told() -> None:
    """A swap stopped half way: a segment that has lost its name cannot be read, but that is not the cause."""
    log, disk = filled(0)
    disk.inject(Fault(operation="rename", path=lambda path: path.endswith(".log")))
    with pytest.raises(LogDirOffline, match="Input/output error"):
        log.compact(LATER_MS)
    with pytest.raises(LogDirOffline, match="Input/output error"):
        list(log.read())
