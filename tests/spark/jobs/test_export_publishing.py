"""Files come into the table once, whenever the power fails: before every call, on every disk it may leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from logstore.disk.files import Disk, make_durable_dir
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.jobs import export
from logstore.spark.jobs.dated_files import StagedFile
from logstore.spark.jobs.export import LEDGER_DIRECTORY, ExportMismatch, Staged, carry_out, plan_of
from logstore.spark.jobs.pieces import done_of
from logstore.spark.ledger import Entry, Intent, Json, Ledger, publish_once, staging_directory
from logstore.spark.logs import OffsetRange
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk

TABLE = "/tables/orders"
LEDGER = f"{TABLE}/{LEDGER_DIRECTORY}"
END = 4
"""Offsets of the topic; a publication takes two of them, the one after a crash all that is left."""


def read_all(disk: Disk, directory: str) -> dict[str, bytes]:
    """Every file that a reader of the table would see."""
    found: dict[str, bytes] = {}
    for entry in disk.scan(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory and not entry.name.startswith("."):
            found |= read_all(disk, path)
        elif not entry.is_directory:
            file = disk.open(path)
            found[path] = file.pread(file.size(), 0)
            file.close()
    return found


def stage(disk: Disk, staging: str, wanted: OffsetRange, who: str) -> Staged:
    """A task: the even offsets are of one day, the odd ones of another."""
    files = []
    offsets = range(wanted.start_offset, wanted.end_offset)
    for day in (0, 1):
        rows = [offset for offset in offsets if offset % 2 == day]
        name = f"{rows[0]}-{who}"
        file = disk.open(f"{staging}/{name}", create=True, write=True)
        file.pwrite("".join(f"row {offset}\n" for offset in rows).encode(), 0)
        file.sync()
        file.close()
        target = f"topic=orders/partition=0/date=day-{day}/{rows[0]}-{rows[-1] + 1}.parquet"
        files.append(StagedFile(name, target, len(rows), 5))
    disk.sync_dir(staging)
    return Staged(wanted, len(offsets), files, [])


def publish(disk: Disk, ledger: Ledger, end: int, who: str) -> None:
    number = ledger.done + 1
    before = done_of(ledger.state)
    wanted = OffsetRange("orders", 0, before.get(TopicPartition("orders", 0), 0), end)
    staging = staging_directory(ledger.directory, number)
    make_durable_dir(disk, staging)
    plan = plan_of([stage(disk, staging, wanted, who)], before, ["value"], {})
    publish_once(ledger, number, lambda: plan, lambda intent: carry_out(disk, TABLE, intent))


def workload(run: CrashRun[int]) -> None:
    make_durable_dir(run.disk, TABLE)
    with Ledger(run.disk, LEDGER) as ledger:
        for end in (2, END):
            publish(run.disk, ledger, end, "first")
            run.promise(end)


def recover(disk: Disk) -> dict[str, bytes]:
    """The next run: what was decided, then all the rest at once."""
    make_durable_dir(disk, TABLE)
    with Ledger(disk, LEDGER) as ledger:
        if ledger.intent is not None:
            ledger.finish(carry_out(disk, TABLE, ledger.intent))
        ledger.sweep()
        if next(iter(done_of(ledger.state).values()), 0) < END:
            publish(disk, ledger, END, "again")
    return read_all(disk, TABLE)


def judge(found: dict[str, bytes], done: int) -> None:
    rows = [row for content in found.values() for row in content.decode().splitlines()]
    assert sorted(rows) == [f"row {offset}" for offset in range(END)], found


def explored(disk: Any = MemoryDisk, **options: Any) -> CrashReport:
    return CrashLab(recover, judge, images=8, second_images=1, **options).explore(workload, 0, disk=disk)


def test_a_crash_before_any_call() -> None:
    report = explored(depth=2)
    assert report.moments > 80
    assert report.is_good, str(report)


def _without_intent(
    ledger: Ledger, number: int, plan: Callable[[], Json], doing: Callable[[Intent], Json]
) -> bool:
    ledger._entry = Entry(ledger.done, ledger.state, intent := Intent(number, plan()))
    ledger.finish(doing(intent))
    return True


def _without_sync(disk: Disk, output: str, intent: Intent) -> Json:
    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return (lambda _: None) if name == "sync_dir" else getattr(disk, name)

    return export.carry_out(cast(Disk, Forgetful()), output, intent)


@pytest.mark.parametrize(("name", "plant"), [("publish_once", _without_intent), ("carry_out", _without_sync)])
def test_the_checker_notices(monkeypatch: pytest.MonkeyPatch, name: str, plant: Any) -> None:
    monkeypatch.setitem(globals(), name, plant)
    assert not explored(depth=1, stop_after=1).is_good


def staged(start: int, end: int, partition: int = 0) -> Staged:
    return Staged(OffsetRange("orders", partition, start, end), 0, [], [])


def test_a_plan_says_how_far_all_partitions_are() -> None:
    """Those that had nothing new too, and those whose records were all compacted away."""
    before = done_of({"offsets": {"orders": {"0": 10, "7": 70}}})
    plan = plan_of([staged(15, 20), staged(0, 5, 1), staged(10, 15)], before, ["value"], {})
    assert plan["offsets"] == {"orders": {"0": 20, "1": 5, "7": 70}}
    assert plan["files"] == []


def test_a_hole_is_never_planned() -> None:
    with pytest.raises(AssertionError, match="without gaps"):
        plan_of([staged(10, 15), staged(16, 20)], {}, ["value"], {})


def test_files_come_in_the_order_of_offsets_whatever_their_dates() -> None:
    files = [
        StagedFile("a", "topic=o/partition=0/date=2/00-01.parquet", 1, 1),
        StagedFile("b", "topic=o/partition=0/date=1/01-02.parquet", 1, 1),
    ]
    plan = plan_of([staged(0, 2)._replace(files=files[::-1])], {}, ["value"], {})
    assert [name for name, _ in plan["files"]] == ["a", "b"]


def test_a_file_that_somebody_took_is_named() -> None:
    """Neither staged nor there: the rows are lost to this table, and that is said."""
    disk = MemoryDisk()
    make_durable_dir(disk, LEDGER)
    plan = {"columns": [], "offsets": {}, "files": [["x", "topic=o/partition=0/date=1/0-1.parquet"]]}
    with pytest.raises(ExportMismatch, match=r"0-1\.parquet was removed"):
        carry_out(disk, TABLE, Intent(0, plan))
