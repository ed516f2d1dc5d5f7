"""The power fails before every call that a move between two log dirs makes of its disks.

A start finds the log exactly once, whichever directory it is in, with everything that was promised; and it
takes appends there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition, partitions_among
from logstore.log.loading import MARKS
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.crash.script import CONFIG, NOW_MS, ForgetfulDisk, check_epochs, held_by
from tests.crash.test_log_dir_points import (
    ORDERS,
    PAYMENTS,
    DirScript,
    Expected,
    FoundDir,
    Shown,
    judge,
    manager_on,
)

A, B = ROOTS = "/a", "/b"


class MoveScript(DirScript):
    """Runs operations on the partitions of two log dirs, and moves between them."""

    def begin(self, partition: TopicPartition, path: str) -> None:
        self.manager.moves.begin(partition, path)

    def copy(self, partition: TopicPartition, most_bytes: int = 1 << 20, *, sync: bool = True) -> None:
        """One step of a move, up to some bytes."""
        mirror = self.manager.moves.under_way[partition].copying()
        mirror.step(most_bytes)
        if sync:
            mirror.sync()

    def move(self, partition: TopicPartition, path: str) -> None:
        self.begin(partition, path)
        self.manager.moves.carry_out(partition)
        assert self.home(partition) == path

    def home(self, partition: TopicPartition) -> str:
        home = self.manager.moves.home_of(partition)
        assert home is not None
        return home.path

    @property
    def other(self) -> str:
        """The log dir in which `orders-0` is not."""
        return B if self.home(ORDERS) == A else A


def recover(disk: Disk, *, config: LogConfig = CONFIG) -> FoundDir:
    manager = manager_on(disk, config, ROOTS)
    assert not manager.offline_dirs
    assert not manager.damaged, f"{manager.damaged} after nothing but a power cut"
    held = [
        (partition, f"{root}/{name}")
        for root in ROOTS
        for partition, name in partitions_among(each.name for each in disk.scan(root) if each.is_directory)
    ]
    assert sorted(partition for partition, _ in held) == list(manager.logs()), f"twice, or not opened: {held}"
    for partition, directory in held:
        assert manager.logs()[partition].partition.directory == directory
        assert not MARKS & {each.name for each in disk.scan(directory)}
    shown = []
    for partition, log in manager.logs().items():
        check_epochs(log, held_by(log))
        marks = (log.partition.high_watermark, manager.checkpointed_high_watermark(partition))
        found = Shown(log.log_start_offset, log.log_end_offset, held_by(log), marks, log.partition.topic_id)
        shown.append((partition, found))
    return FoundDir(tuple(shown), manager.was_clean)


def goes_on(disk: MemoryDisk) -> None:
    """Every log takes an append that lasts, every move can be carried out, and the log can move again."""
    manager = manager_on(disk, CONFIG, ROOTS)
    for partition, log in manager.logs().items():
        offset = log.append(b"on", timestamp_ms=NOW_MS, sync=True).first_offset
        if partition not in manager.moves.under_way:
            home = manager.moves.home_of(partition)
            assert home is not None
            manager.moves.begin(partition, A if home.path == B else B)
        manager.moves.carry_out(partition)
        again = manager_on(disk.durable_image(), CONFIG, ROOTS).logs()[partition]
        assert [record.value for record in again.read(offset)] == [b"on"], f"{partition}: an append is gone"
        assert held_by(again) == held_by(log)


def judge_moves(found: FoundDir, expected: Expected) -> None:
    """As for one log dir. A move leaves a high watermark that is too low, never one that is too high."""
    low = {tp: (0, *known.high_watermarks) for tp, known in expected.partitions}
    known = {tp: replace(known, high_watermarks=low[tp]) for tp, known in expected.partitions}
    judge(found, replace(expected, partitions=tuple(sorted(known.items()))))


def explored(script: Callable[[MoveScript], None], **options: Any) -> CrashReport:
    def workload(run: CrashRun[Expected]) -> None:
        script(MoveScript(run, roots=ROOTS))

    disk = options.pop("disk", MemoryDisk)
    lab: CrashLab[FoundDir, Expected] = CrashLab(
        recover, judge_moves, goes_on=goes_on, clock=lambda: NOW_MS, **options
    )
    return lab.explore(workload, Expected(), name=script.__name__, disk=disk)


# --- the scripts -------------------------------------------------------------------------------------


def move_of_a_log(run: MoveScript) -> None:
    """Segments, a log start inside one, a high watermark, an id; records while it is copied and after."""
    run.name(ORDERS)
    for _ in range(4):
        run.append(ORDERS, 2)
    run.flush(ORDERS)
    run.commit(ORDERS, 6)
    run.advance_start(ORDERS, 3)
    run.begin(ORDERS, run.other)
    run.copy(ORDERS, 300)
    run.append(ORDERS, 2)
    run.flush(ORDERS)
    run.manager.moves.carry_out(ORDERS)
    run.append(ORDERS)
    run.flush(ORDERS)
    run.manager.tick(NOW_MS + CONFIG.file_delete_delay_ms)


def move_and_truncation(run: MoveScript) -> None:
    """The log is cut, and grows again, when a part of it has been copied."""
    for _ in range(7):
        run.append(ORDERS)
    run.flush(ORDERS)
    run.begin(ORDERS, run.other)
    run.copy(ORDERS)
    run.truncate(ORDERS, 4)
    run.append(ORDERS, 3)
    run.copy(ORDERS, sync=False)
    run.truncate(ORDERS, 5)
    run.append(ORDERS)
    run.flush(ORDERS)
    run.manager.moves.carry_out(ORDERS)
    run.append(ORDERS)
    run.flush(ORDERS)


def move_and_crashes(run: MoveScript) -> None:
    """A move that goes on after a power cut, and after a clean stop; then back."""
    for _ in range(7):
        run.append(ORDERS)
    run.append(PAYMENTS)
    run.flush(ORDERS)
    run.begin(ORDERS, run.other)
    run.copy(ORDERS, 250)
    run.crash()
    run.append(ORDERS)
    if ORDERS in run.manager.moves.under_way:
        run.copy(ORDERS)
    run.restart()
    if ORDERS in run.manager.moves.under_way:
        run.manager.moves.carry_out(ORDERS)
    run.append(ORDERS)
    run.flush(ORDERS)
    run.move(ORDERS, run.other)
    run.append(ORDERS)


def move_that_is_ended(run: MoveScript) -> None:
    """Ended half way, begun again, and the partition is deleted meanwhile."""
    for _ in range(4):
        run.append(ORDERS)
    run.append(PAYMENTS)
    run.flush(ORDERS)
    run.begin(ORDERS, run.other)
    run.copy(ORDERS, 250)
    run.begin(ORDERS, run.home(ORDERS))
    run.append(ORDERS)
    run.begin(ORDERS, run.other)
    run.copy(ORDERS)
    run.delete(ORDERS)
    run.manager.tick(NOW_MS + CONFIG.file_delete_delay_ms)
    run.append(PAYMENTS)
    run.flush(PAYMENTS)


SCRIPTS: list[Callable[[MoveScript], None]] = [
    move_of_a_log,
    move_and_truncation,
    move_and_crashes,
    move_that_is_ended,
]


@pytest.mark.parametrize(
    "script",
    [
        script if script is move_of_a_log else pytest.param(script, marks=pytest.mark.slow)
        for script in SCRIPTS
    ],
    ids=lambda script: script.__name__,
)
def test_every_point(script: Callable[[MoveScript], None]) -> None:
    """One image of each kind of file system at each of them; `make crash` takes four, and kills processes."""
    report = explored(script, images=1, kills=False)
    assert report.distinct >= 3
    assert report.is_good, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("root", ROOTS)
def test_the_checker_notices_a_swap_whose_names_are_not_synced(root: str) -> None:
    """Without the sync between the two renames, a power cut may leave no log, or the older one."""
    disk = lambda: ForgetfulDisk(lambda call, path: (call, path) == ("sync_dir", root), [])  # noqa: E731
    assert not explored(move_of_a_log, images=6, kills=False, stop_after=1, disk=disk).is_good
