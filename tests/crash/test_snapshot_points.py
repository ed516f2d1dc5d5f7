"""The power fails before every call of a snapshot, a restore, and the truncation of a segment they share.

The source keeps what it had. A snapshot is there as a whole, and openable, or it is not there; once its call
has returned it is there. The last tests switch one sync off each.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from logstore import Log, LogConfig, LogManager
from logstore.disk import copying
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.log import log_dir_snapshot, snapshot
from logstore.log.log_dir_snapshot import snapshot_log_dir
from logstore.log.snapshot import take_snapshot
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from tests.crash.script import ForgetfulDisk

SOURCE, TARGET = "/data/orders-0", "/backup/orders-0"
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)
ALL = tuple(range(8))

Found = tuple[tuple[int, ...], tuple[int, ...] | None]
"""The numbers in the source, and in the snapshot; None if there is none."""


class Promise(NamedTuple):
    """What the source and the snapshot may hold; without `sources`, nothing is known of the source."""

    sources: tuple[tuple[int, ...], ...]
    snapshots: tuple[tuple[int, ...] | None, ...]


BEFORE = Promise((ALL,), (None,))


def fill(disk: Disk) -> None:
    disk.make_dir("/backup")
    disk.sync_dir("/")
    with Log.open(SOURCE, CONFIG, disk=disk, clock=lambda: 0) as log:
        for number in ALL:
            log.append(b"%d" % number * 60)


def numbers(disk: Disk, path: str) -> tuple[int, ...]:
    with Log.open(path, CONFIG, disk=disk, clock=lambda: 0) as log:
        return tuple(int((record.value or b"")[:1]) for record in log.read())


def recover(disk: Disk) -> Found:
    there = any(entry.name == "orders-0" for entry in disk.scan("/backup"))
    return numbers(disk, SOURCE), numbers(disk, TARGET) if there else None


def recover_the_snapshot(disk: Disk) -> Found:
    """The source alone may be beyond repair: nobody ever synced it."""
    there = any(entry.name == "orders-0" for entry in disk.scan("/backup"))
    return (), numbers(disk, TARGET) if there else None


def judge(found: Found, promise: Promise) -> None:
    assert not promise.sources or found[0] in promise.sources, f"the source holds {found[0]}"
    assert found[1] in promise.snapshots, (
        f"the snapshot holds {found[1]}, promised one of {promise.snapshots}"
    )


def snapshot_of_an_open_log(run: CrashRun[Promise]) -> None:
    run.is_watched = False
    fill(run.disk)
    log = Log.open(SOURCE, CONFIG, disk=run.disk, clock=lambda: 0)
    run.is_watched = True
    run.promise(Promise((ALL,), (None, ALL)))
    log.snapshot(TARGET)
    run.promise(Promise((ALL,), (ALL,)))
    run.promise(Promise((ALL, (*ALL, 8)), (ALL,)))
    log.append(b"8" * 60, sync=True)
    run.promise(Promise(((*ALL, 8),), (ALL,)))


def restore_to_an_offset(run: CrashRun[Promise]) -> None:
    """The end lies inside a sealed segment; an attempt before was not finished."""
    run.is_watched = False
    fill(run.disk)
    run.disk.make_dir("/backup/orders-0.00000000000000000000000000000000-delete/x")
    run.is_watched = True
    run.promise(Promise((ALL,), (None, ALL[:4])))
    take_snapshot(run.disk, SOURCE, TARGET, end_offset=4, config=CONFIG, clock=lambda: 0)
    run.promise(Promise((ALL,), (ALL[:4],)))


def truncation_of_a_shared_segment(run: CrashRun[Promise]) -> None:
    run.is_watched = False
    fill(run.disk)
    log = Log.open(SOURCE, CONFIG, disk=run.disk, clock=lambda: 0)
    log.snapshot(TARGET)
    run.is_watched = True
    run.promise(Promise(tuple(ALL[:end] for end in range(4, 9)), (ALL,)))
    log.truncate_to(4)
    run.promise(Promise((ALL[:4],), (ALL,)))
    run.promise(Promise((ALL[:4], (*ALL[:4], 9)), (ALL,)))
    log.append(b"9" * 60, sync=True)
    run.promise(Promise(((*ALL[:4], 9),), (ALL,)))


def snapshot_of_what_was_never_synced(run: CrashRun[Promise]) -> None:
    """The owner, in another process, syncs nothing, as Kafka's brokers do."""
    run.is_watched = False
    forgetful = run.memory
    assert isinstance(forgetful, ForgetfulDisk)
    forgetful.forgets = lambda call, path: (
        call == "sync" and path.startswith(SOURCE) and path.endswith(".log")
    )
    fill(run.disk)
    forgetful.forgets = lambda _call, _path: False
    for entry in run.disk.scan(SOURCE):
        if not entry.name.endswith((".log", ".index", ".timeindex")):
            run.disk.remove(f"{SOURCE}/{entry.name}")
    run.is_watched = True
    take_snapshot(run.disk, SOURCE, TARGET, config=CONFIG, clock=lambda: 0)
    run.promise(Promise((), (ALL,)))
    run.disk.make_dir("/a-moment")


SCRIPTS: tuple[Callable[[CrashRun[Promise]], None], ...] = (
    snapshot_of_an_open_log,
    restore_to_an_offset,
    truncation_of_a_shared_segment,
)


def explored(
    script: Callable[[CrashRun[Promise]], None],
    *,
    forgets: Callable[[str, str], bool] = lambda _call, _path: False,
    promise: Promise = BEFORE,
    recover: Callable[[Disk], Found] = recover,
    **options: Any,
) -> CrashReport:
    return CrashLab(recover, judge, **options).explore(
        script, promise, disk=lambda: ForgetfulDisk(forgets, directories=["/data", "/backup"])
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_point(script: Callable[[CrashRun[Promise]], None]) -> None:
    report = explored(script, images=6, kills=False)
    assert report.is_good, str(report)
    assert report.moments > 10


@pytest.mark.timeout(600)
def test_a_killed_process_leaves_all_or_nothing_too() -> None:
    report = explored(snapshot_of_an_open_log, images=1, second_images=1, depth=2)
    assert report.is_good, str(report)


# --- every sync is needed ------------------------------------------------------------------------------


def broken(
    script: Callable[[CrashRun[Promise]], None], forgets: Callable[[str, str], bool], **options: Any
) -> None:
    report = explored(script, forgets=forgets, images=16, kills=False, stop_after=1, **options)
    assert not report.is_good, "nobody noticed"


def test_the_name_of_a_snapshot_is_synced() -> None:
    broken(snapshot_of_an_open_log, lambda call, path: call == "sync_dir" and path == "/backup")


def test_the_files_of_a_snapshot_are_synced() -> None:
    broken(snapshot_of_an_open_log, lambda call, path: call == "sync" and "-delete/" in path)


def test_the_names_of_its_files_are_synced() -> None:
    broken(snapshot_of_an_open_log, lambda call, path: call == "sync_dir" and path.endswith("-delete"))


def test_a_copy_is_synced_before_it_takes_the_name_of_a_shared_file() -> None:
    broken(truncation_of_a_shared_segment, lambda call, path: call == "sync" and path.endswith(".log.tmp"))


def test_a_shared_segment_is_copied_before_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from logstore.segment.segment import Segment

    monkeypatch.setattr(Segment, "make_own", lambda _self: None)
    broken(truncation_of_a_shared_segment, lambda _call, _path: False)


def test_segments_that_their_owner_has_not_synced_are_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    loose = Promise((), (None, *(ALL[:end] for end in range(9))))
    options: dict[str, Any] = {"promise": loose, "images": 16, "kills": False, "stop_after": 1}
    options["recover"] = recover_the_snapshot
    report = explored(snapshot_of_what_was_never_synced, **options)
    assert report.is_good, str(report)
    monkeypatch.setattr(snapshot._Making, "_sync_shared", lambda _self, _bases: None)
    assert not explored(snapshot_of_what_was_never_synced, **options).is_good, "nobody noticed"


# --- whole log dirs -------------------------------------------------------------------------------------


def log_dir(run: CrashRun[tuple[bool, ...]]) -> None:
    run.is_watched = False
    disk = run.disk
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1), config=CONFIG)
    for partition in range(2):
        log = manager.get_or_create(TopicPartition("orders", partition))
        for number in ALL:
            log.append(b"%d" % number * 60)
        log.partition.set_high_watermark(6 - partition)
    manager.checkpoint_high_watermarks()
    disk.make_dir("/data.metadata")
    with_store = disk.open("/data.metadata/snapshot", create=True, write=True)
    with_store.pwrite(b"what the store knows", 0)
    with_store.sync()
    disk.sync_dir("/data.metadata")
    disk.sync_dir("/")
    run.is_watched = True
    run.promise((False, True))
    snapshot_log_dir(disk, "/data", "/backup", clock=lambda: 0)
    run.promise((True,))
    disk.make_dir("/a-moment")


def recover_log_dir(disk: Disk) -> bool:
    if not any(entry.name == "backup" for entry in disk.scan("/")):
        return False
    manager = LogManager(["/backup"], disk=disk, clock=lambda: 0, random=Random(1), config=CONFIG)
    found = {tp.partition: len(list(log.read())) for tp, log in manager.logs().items()}
    watermarks = {tp.partition: log.partition.high_watermark for tp, log in manager.logs().items()}
    manager.close()
    assert found == watermarks == {0: 6, 1: 5}
    assert [(entry.name, entry.size) for entry in disk.scan("/backup.metadata")] == [("snapshot", 20)]
    return True


def judge_log_dir(found: bool, promise: tuple[bool, ...]) -> None:
    assert found in promise, "the snapshot is gone" if not found else "it was not begun"


def explored_log_dir(
    forgets: Callable[[str, str], bool] = lambda _call, _path: False, **options: Any
) -> CrashReport:
    return CrashLab(recover_log_dir, judge_log_dir, **{"kills": False, **options}).explore(
        log_dir, (False,), disk=lambda: ForgetfulDisk(forgets, directories=["/data"])
    )


def test_a_log_dir_is_there_as_a_whole_or_not_at_all() -> None:
    report = explored_log_dir(images=4)
    assert report.is_good, str(report)


def test_the_store_is_there_before_the_log_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dir_snapshot, "copy_file", unsynced(copying.copy_file))
    assert not explored_log_dir(lambda _call, _path: False, images=16, stop_after=1).is_good
    monkeypatch.undo()
    report = explored_log_dir(
        lambda call, path: call == "sync_dir" and path.endswith(".metadata.unfinished"),
        images=16,
        stop_after=1,
    )
    assert not report.is_good


def unsynced(copy: Callable[..., int]) -> Callable[..., int]:
    def copied(disk: Disk, source: str, target: str) -> int:
        with disk_without_sync(disk):
            return copy(disk, source, target)

    return copied


class disk_without_sync:
    def __init__(self, disk: Any) -> None:
        while not isinstance(disk, ForgetfulDisk):
            disk = disk.inner
        self._disk = disk

    def __enter__(self) -> None:
        self._forgets, self._disk.forgets = self._disk.forgets, lambda call, _path: call == "sync"

    def __exit__(self, *_: object) -> None:
        self._disk.forgets = self._forgets
