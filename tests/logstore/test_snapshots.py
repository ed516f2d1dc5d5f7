"""Snapshots of logs: what they hold, what they cost, and that nothing changes them later."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from logstore import DamagedLog, Log, LogClosed, LogConfig, LogGone, LogManager, OffsetOutOfRange
from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.disk.errors import EngineError, InvalidTopic
from logstore.disk.files import Disk, OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log import log_dir_snapshot
from logstore.log import snapshot as snapshots
from logstore.log.log_dir_snapshot import partitions_in, snapshot_log_dir, snapshot_logs, snapshot_store
from logstore.log.partition_log import PartitionLog
from logstore.log.snapshot import offset_at_time, take_snapshot
from logstore.testing import Fault, FaultyDisk, MemoryDisk, RecordingDisk, VolatileDisk

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)


def filled(disk: Disk, count: int = 20, path: str = "/data/orders-0") -> Log:
    log = Log.open(path, SMALL, disk=disk, clock=lambda: 1000)
    for number in range(count):
        log.append(b"%03d" % number + b"." * 80, key=b"%d" % (number % 3), timestamp_ms=1000 + number)
    return log


def numbers(path: str, disk: Disk) -> list[int]:
    with Log.open(path, SMALL, disk=disk, clock=lambda: 1000) as log:
        return [int((record.value or b"")[:3]) for record in log.read()]


def contents(disk: MemoryDisk, path: str) -> dict[str, bytes]:
    return {name: data for name, data in disk.files().items() if name.startswith(f"{path}/")}


# --- what it holds --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "os", "volatile"])
def test_a_snapshot_opens_as_the_log_was(kind: str, tmp_path: Path) -> None:
    disk: Disk = MemoryDisk() if kind == "memory" else OsDisk()
    disk = VolatileDisk(disk) if kind == "volatile" else disk
    log = filled(disk, path=f"{tmp_path}/data/orders-0")
    made = log.snapshot(f"{tmp_path}/backup/orders-0")
    log.append(b"999 later")
    assert (made.log_start_offset, made.log_end_offset) == (0, 20)
    assert numbers(made.path, disk) == list(range(20))
    with Log.open(made.path, SMALL, disk=disk) as copy:
        assert copy.partition.report.scanned_bytes == 0, "it was stopped in order"
        assert copy.append(b"999 in the snapshot").first_offset == 20
    assert [entry.name for entry in disk.scan(f"{tmp_path}/backup")] == ["orders-0"]
    assert log.log_end_offset == 21
    log.close()


def test_a_snapshot_costs_a_link_a_file_and_copies_only_the_active_segment() -> None:
    memory = MemoryDisk()
    log = filled(memory, 200)
    recording = RecordingDisk(memory)
    log.partition.disk = recording
    made = log.snapshot("/backup/orders-0")
    links = [each for each in recording.operations if each.name == "link"]
    written = sum(each.length for each in recording.operations if each.name == "pwrite")
    assert len(links) == made.files - 1
    assert made.copied_bytes == log.partition.segments.active.size
    assert written < log.size / 4
    log.close()


def test_a_long_active_segment_is_rolled_and_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_COPIED_BYTES", 100)
    disk = MemoryDisk()
    log = Log.open("/data/orders-0", disk=disk)
    log.append([b"%03d" % number for number in range(50)])
    made = log.snapshot("/backup/orders-0")
    assert made.copied_bytes == 0
    assert len(log.partition.segments) == 2
    assert numbers(made.path, disk) == list(range(50))
    assert numbers(made.path, disk) == list(range(50)), "a second time too"
    log.close()


def test_times_producers_epochs_and_bounds_are_kept() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.partition.set_topic_id("AAECAwQFBgcICQoLDA0ODw")
    log.delete_records(3)
    log.snapshot("/backup/orders-0")
    with Log.open("/backup/orders-0", SMALL, disk=disk) as copy:
        assert (copy.log_start_offset, copy.log_end_offset) == (3, 20)
        assert copy.partition.topic_id == "AAECAwQFBgcICQoLDA0ODw"
        assert copy.partition.epochs == log.partition.epochs
        found = copy.offset_for_timestamp(1010)
        assert found is not None
        assert found.offset == 10
    log.close()


@pytest.mark.parametrize("end", [0, 1, 3, 4, 5, 8, 11, 19, 20, 500])
def test_a_snapshot_ends_where_it_is_told(end: int) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    made = log.snapshot("/backup/orders-0", end_offset=end)
    assert made.log_end_offset == min(end, 20)
    assert numbers(made.path, disk) == list(range(min(end, 20)))
    log.close()


def test_a_batch_that_holds_the_end_is_left_out() -> None:
    disk = MemoryDisk()
    with Log.open("/data/orders-0", disk=disk) as log:
        log.append([b"000", b"001", b"002"])
        log.append([b"003", b"004", b"005"])
        assert log.snapshot("/backup/orders-0", end_offset=5).log_end_offset == 3
    assert numbers("/backup/orders-0", disk) == [0, 1, 2]


def test_a_replicas_snapshot_ends_at_its_high_watermark() -> None:
    disk = MemoryDisk()
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1))
    log = manager.get_or_create(TopicPartition("orders", 0))
    for number in range(5):
        log.append(b"%03d" % number)
    log.partition.set_high_watermark(3)
    assert log.snapshot("/backup/orders-0").log_end_offset == 3
    assert numbers("/backup/orders-0", disk) == [0, 1, 2]
    manager.close()


# --- nothing changes it later -----------------------------------------------------------------------


def truncates(log: Log) -> None:
    log.truncate_to(6)
    log.append(b"777" * 30)


def truncates_all(log: Log) -> None:
    log.truncate_to(0)
    log.append(b"777" * 30)


def compacts(log: Log) -> None:
    log.partition.config = LogConfig(
        segment_bytes=400, index_interval_bytes=0, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
    )
    assert log.compact()


def deletes(log: Log) -> None:
    log.partition.config = LogConfig(segment_bytes=400, retention_bytes=1, file_delete_delay_ms=0)
    assert log.maintain(now_ms=10_000)
    log.maintain(now_ms=20_000)


def restarts(log: Log) -> None:
    """The files behind a sealed segment are lost, and it becomes the active one."""
    disk, bases = log.partition.disk, [segment.base_offset for segment in log.partition.segments]
    log.partition.abandon()
    log.partition.owner._lock.release()  # type: ignore[attr-defined]
    for base in bases[2:]:
        for suffix in ("log", "index", "timeindex", "seal"):
            with_suffix = f"{log.partition.directory}/{base:020d}.{suffix}"
            if any(entry.name == f"{base:020d}.{suffix}" for entry in disk.scan(log.partition.directory)):
                disk.remove(with_suffix)
    with Log.open(log.partition.directory, SMALL, disk=disk, accept_loss=True) as again:
        for number in range(9):
            again.append(b"%03d" % number * 30)


@pytest.mark.parametrize("change", [truncates, truncates_all, compacts, deletes, restarts])
def test_nothing_that_the_source_does_changes_a_snapshot(change) -> None:  # type: ignore[no-untyped-def]
    disk = MemoryDisk()
    log = filled(disk)
    made = log.snapshot("/backup/orders-0")
    before = contents(disk, made.path)
    change(log)
    assert contents(disk, made.path) == before
    assert numbers(made.path, disk) == list(range(20))


@pytest.mark.parametrize("change", [truncates, truncates_all, compacts, deletes])
def test_nothing_done_to_a_snapshot_changes_its_source(change) -> None:  # type: ignore[no-untyped-def]
    disk = MemoryDisk()
    log = filled(disk)
    log.snapshot("/backup/orders-0")
    log.partition.abandon()
    before = contents(disk, "/data/orders-0")
    with Log.open("/backup/orders-0", SMALL, disk=disk) as copy:
        change(copy)
    assert contents(disk, "/data/orders-0") == before


def test_a_full_disk_refuses_the_truncation_that_needs_a_copy() -> None:
    memory = MemoryDisk()
    log = filled(memory)
    log.snapshot("/backup/orders-0")
    before = memory.files()
    memory.capacity = memory._used
    from logstore.errors import DiskFull

    with pytest.raises(DiskFull):
        log.truncate_to(6)
    assert {name: data for name, data in memory.files().items() if not name.endswith(".tmp")} == before
    memory.capacity = None
    assert log.truncate_to(6)
    assert numbers("/backup/orders-0", memory) == list(range(20))
    log.close()


# --- meanwhile ----------------------------------------------------------------------------------------


class Meanwhile(RecordingDisk):
    """Lets the owner act before the n-th call of the snapshot."""

    def __init__(self, inner: Disk, at: int, act) -> None:  # type: ignore[no-untyped-def]
        super().__init__(inner, before=self._count, reads=True)
        self.left, self._act = at, act

    def _count(self, _operation: object) -> None:
        self.left -= 1
        if self.left == 0:
            self._act()


@pytest.mark.parametrize("change", [truncates, compacts, deletes])
@pytest.mark.parametrize("at", range(1, 80, 3))
def test_whatever_the_owner_does_meanwhile_the_snapshot_is_one_state(at: int, change) -> None:  # type: ignore[no-untyped-def]
    disk = MemoryDisk()
    log = filled(disk)
    meanwhile = Meanwhile(disk, at, lambda: change(log))
    begun_at = log.partition.cuts

    def version() -> int:
        return log.partition.cuts - begun_at

    made = take_snapshot(
        meanwhile, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 0, version=version
    )
    found = numbers(made.path, disk)
    log.append(b"999" * 30, key=b"999")
    assert found == numbers(made.path, disk)
    assert found in states(change)
    log.partition.abandon()


@pytest.mark.parametrize("at", range(1, 40))
def test_a_roll_meanwhile(at: int) -> None:
    """Between two looks at the directory it raised `KeyError`."""
    disk = MemoryDisk()
    log = filled(disk)
    meanwhile = Meanwhile(disk, at, log.partition.roll)
    made = take_snapshot(meanwhile, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 0)
    assert numbers(made.path, disk) == list(range(20))
    log.close()


def states(change) -> list[list[int]]:  # type: ignore[no-untyped-def]
    """What the log holds before and after the change."""
    disk = MemoryDisk()
    log = filled(disk)
    before = [int((record.value or b"")[:3]) for record in log.read()]
    change(log)
    after = [int((record.value or b"")[:3]) for record in log.read()]
    log.partition.abandon()
    return [before, after]


def test_threads_append_while_snapshots_are_taken(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "data" / "orders-0", LogConfig(segment_bytes=4000))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            log.append(b"%d" % number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    ends = []
    try:
        for number in range(10):
            made = log.snapshot(tmp_path / str(number) / "orders-0")
            with Log.open(made.path) as copy:
                values = [record.value for record in copy.read()]
            expected = [b"%d" % each for each in range(made.log_end_offset)]
            assert values == expected
            ends.append(made.log_end_offset)
    finally:
        stop.set()
        writer.join()
    assert ends == sorted(ends)
    assert ends[-1] > ends[0]
    log.close()


# --- refusals -----------------------------------------------------------------------------------------


def test_what_is_refused_changes_nothing() -> None:
    disk = MemoryDisk(directories=["/empty-0"])
    log = filled(disk)
    log.snapshot("/backup/orders-0")
    before = disk.files()
    with pytest.raises(FileExistsError):
        log.snapshot("/backup/orders-0")
    with pytest.raises(InvalidTopic):
        log.snapshot("/backup/monday")
    log.delete_records(4)
    with pytest.raises(OffsetOutOfRange):
        log.snapshot("/backup/orders-1", end_offset=2)
    with pytest.raises(LogGone):
        take_snapshot(disk, "/empty-0", "/backup/orders-1", config=SMALL, clock=lambda: 0)
    with pytest.raises(LogGone):
        take_snapshot(disk, "/absent-0", "/backup/orders-1", config=SMALL, clock=lambda: 0)
    assert {name for name in disk.files() if name.startswith("/backup")} == {
        name for name in before if name.startswith("/backup")
    }
    log.close()


def test_damage_in_the_last_segment_is_refused_and_a_torn_tail_is_not() -> None:
    disk = MemoryDisk()
    with Log.open("/data/orders-0", disk=disk) as log:
        for number in range(4):
            log.append(b"%03d" % number)
    name = f"/data/orders-0/{0:020d}.log"
    with closing(disk.open(name, write=True)) as file:
        size = file.size()
        file.pwrite(b"torn", size)
        take_snapshot(disk, "/data/orders-0", "/a/orders-0", config=SMALL, clock=lambda: 0)
        assert numbers("/a/orders-0", disk) == [0, 1, 2, 3]
        file.pwrite(b"\xff", size // 2 - 3)
    with pytest.raises(DamagedLog, match="intact batches follow"):
        take_snapshot(disk, "/data/orders-0", "/b/orders-0", config=SMALL, clock=lambda: 0)
    take_snapshot(disk, "/data/orders-0", "/b/orders-0", end_offset=1, config=SMALL, clock=lambda: 0)
    assert numbers("/b/orders-0", disk) == [0]


@pytest.mark.parametrize("at", range(1, 60))
def test_a_failing_disk_leaves_no_snapshot_and_the_log_as_it_was(at: int) -> None:
    memory = MemoryDisk()
    filled(memory).close()
    before = contents(memory, "/data/orders-0")
    disk = FaultyDisk(memory, [Fault(at=at)])
    error: Exception | None = None
    try:
        take_snapshot(disk, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 0)
    except (OSError, EngineError) as raised:
        error = raised
    is_last = disk.fired and disk.fired[-1] == ("sync_dir", "/backup")
    assert bool(error) != bool(contents(memory, "/backup/orders-0")) or is_last
    assert contents(memory, "/data/orders-0") == before
    if not contents(memory, "/backup/orders-0"):
        take_snapshot(memory, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 0)
    assert numbers("/backup/orders-0", memory) == list(range(20))


def test_files_are_copied_where_they_cannot_be_linked() -> None:
    import errno

    memory = MemoryDisk()
    log = filled(memory)
    log.flush()
    disk = FaultyDisk(memory, [Fault(operation="link", errno=errno.EXDEV, forever=True)])
    made = take_snapshot(disk, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 0)
    assert made.copied_bytes > log.size
    assert numbers("/backup/orders-0", memory) == list(range(20))
    log.close()


def test_times_are_found() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    assert [offset_at_time(disk, "/data/orders-0", ms) for ms in (0, 1000, 1007, 1019, 1020)] == [
        0,
        0,
        7,
        19,
        None,
    ]
    log.close()


# --- whole log dirs -----------------------------------------------------------------------------------


def test_a_log_dir_is_taken_at_its_high_watermarks_and_opens_clean() -> None:
    disk = MemoryDisk()
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1), config=SMALL)
    for partition, high_watermark in enumerate((20, 7, 0)):
        log = manager.get_or_create(TopicPartition("orders", partition), topic_id="AAECAwQFBgcICQoLDA0ODw")
        for number in range(20):
            log.append(b"%03d" % number + b"." * 80)
        log.partition.set_high_watermark(high_watermark)
    manager.checkpoint_high_watermarks()
    made = snapshot_log_dir(disk, "/data", "/backup", clock=lambda: 0)
    assert [(each.path, each.log_end_offset) for each in made.partitions] == [
        ("/backup/orders-0", 20),
        ("/backup/orders-1", 7),
        ("/backup/orders-2", 0),
    ]
    assert made.metadata is None
    with pytest.raises(FileExistsError):
        snapshot_log_dir(disk, "/data", "/backup", clock=lambda: 0)
    manager.close()
    copy = LogManager(["/backup"], disk=disk, clock=lambda: 0, random=Random(1), config=SMALL)
    assert copy.was_clean
    assert {str(tp): log.partition.high_watermark for tp, log in copy.logs().items()} == {
        "orders-0": 20,
        "orders-1": 7,
        "orders-2": 0,
    }
    copy.close()
    assert f"/backup/{CLEAN_SHUTDOWN_FILE}" in disk.files()


def test_a_topic_that_is_deleted_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1), config=SMALL)
    kept, deleted = TopicPartition("kept", 0), TopicPartition("deleted", 0)
    for each in (kept, deleted):
        manager.get_or_create(each).append([b"x"])

    def end_the_segment(log: PartitionLog) -> None:
        if deleted in manager.logs():
            manager.delete(deleted)
        snapshots.end_the_segment(log)

    monkeypatch.setattr(log_dir_snapshot, "end_the_segment", end_the_segment)
    made = snapshot_logs(manager, disk, "/backup", clock=lambda: 0, metadata=None)
    assert [each.path for each in made.partitions] == ["/backup/kept-0"]
    manager.close()
    with pytest.raises(LogClosed):
        snapshot_logs(manager, disk, "/another", clock=lambda: 0, metadata=None)


def test_a_topic_that_is_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log was added while all of them were asked for their high watermarks: `RuntimeError`."""
    disk = MemoryDisk()
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1), config=SMALL)
    manager.get_or_create(TopicPartition("old", 0)).append([b"x"])

    def high_watermark(_: PartitionLog) -> int:
        monkeypatch.undo()
        manager.get_or_create(TopicPartition("new", 0))  # as the loop's thread does
        return 0

    monkeypatch.setattr(PartitionLog, "high_watermark", property(high_watermark))
    made = snapshot_logs(manager, disk, "/backup", clock=lambda: 0, metadata=None)
    assert sorted(each.path for each in made.partitions) == ["/backup/new-0", "/backup/old-0"]
    manager.close()


class HeldLock:
    """A log's lock. Who has to wait for it lets the cut go on."""

    def __init__(self, lock: threading.RLock, go_on: threading.Event) -> None:
        self._lock, self._go_on = lock, go_on

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._go_on.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("cut_at", range(1, 20))
@pytest.mark.parametrize("copy_at", [30, 60, 90])
def test_a_follower_in_the_middle_of_a_cut(cut_at: int, copy_at: int) -> None:
    """The copy was a mix of the log before and after the cut: `DamagedLog`, "shorter than sealed"."""
    memory, is_in_it, go_on = MemoryDisk(), threading.Event(), threading.Event()

    def hold() -> None:
        is_in_it.set()
        assert go_on.wait(20)

    disk = Meanwhile(memory, -1, hold)
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1), config=SMALL)
    log = manager.get_or_create(TopicPartition("orders", 0))
    for number in range(20):
        log.append(b"%03d" % number + b"." * 80)
    log.partition.set_high_watermark(20)
    log.partition.lock = HeldLock(log.partition.lock, go_on)  # type: ignore[assignment]

    def cut() -> None:
        disk.left = cut_at
        log.truncate_to(5)
        is_in_it.set()

    cutter = threading.Thread(target=cut)

    def begin_the_cut() -> None:
        cutter.start()
        assert is_in_it.wait(20)

    copying = Meanwhile(memory, copy_at, begin_the_cut)
    made = snapshot_logs(manager, copying, "/backup", clock=lambda: 0, metadata=None)
    go_on.set()
    cutter.join()
    assert numbers(made.partitions[0].path, memory) in ([*range(20)], [*range(5)])
    manager.close()


@pytest.mark.parametrize("change", ["retention", "truncation"])
def test_a_high_watermark_below_the_first_segment_does_not_fail_the_log_dir(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention of a running broker may pass the one that was read; a truncation may leave nothing."""
    disk = MemoryDisk()
    manager = LogManager(["/data"], disk=disk, clock=lambda: 0, random=Random(1), config=SMALL)
    log, other = (manager.get_or_create(TopicPartition(name, 0)) for name in ("orders", "other"))
    other.append([b"x"])
    log.append_batches(encode_batch([Record(number, 0, None, b"x") for number in range(20)]))
    log.flush()
    if change == "truncation":
        log.truncate_to(10)  # the batch goes as a whole
    else:
        log.partition.advance_high_watermark(5)
        log.delete_records(5)
    manager.checkpoint_high_watermarks()

    def passes(*arguments: object) -> object:
        if change == "retention":
            log.partition.roll()
            log.partition.advance_high_watermark(log.log_end_offset)
            log.delete_records(-1)
            log.maintain()
        return partitions_in(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(log_dir_snapshot, "partitions_in", passes)
    made = snapshot_log_dir(disk, "/data", "/backup", clock=lambda: 0)
    ends = {each.path: (each.log_start_offset, each.log_end_offset) for each in made.partitions}
    assert ends["/backup/orders-0"] == ((20, 20) if change == "retention" else (10, 10))
    assert "/backup/other-0" in ends
    manager.close()


def test_a_target_in_its_source_is_found_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    with pytest.raises(ValueError, match="lies in"):
        snapshot_log_dir(
            OsDisk(), str(tmp_path / "data"), str(tmp_path / "alias" / "backup"), clock=lambda: 0
        )
    assert list((tmp_path / "data").iterdir()) == []


def test_a_store_goes_to_the_directory_named_whatever_slashes_follow(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with pytest.raises(DamagedLog):
        snapshot_store(OsDisk(), str(store), str(tmp_path / "none"))
    assert [path.name for path in tmp_path.iterdir()] == ["store"], "nothing is left"
    (store / "journal").write_text("x")
    assert snapshot_store(OsDisk(), str(store), f"{tmp_path}/copy/") == str(tmp_path / "copy")
    assert (tmp_path / "copy" / "journal").read_text() == "x"


# --- leftovers in the source ------------------------------------------------------------------------


def test_a_compaction_that_did_not_end_is_named_with_the_next_step() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    disk.open("/data/orders-0/00000000000000000004.index.swap", create=True).close()
    with pytest.raises(DamagedLog, match=r'has 0{19}4.index.swap: .* "logstore recover /data/orders-0"'):
        take_snapshot(disk, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 1000)
    Log.open("/data/orders-0", SMALL, disk=disk, clock=lambda: 1000).close()
    made = take_snapshot(disk, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 1000)
    assert made.log_end_offset == 20


def test_a_foreign_file_with_the_name_of_the_quarantine_is_left_out() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    disk.open("/data/orders-0/lost", create=True).close()
    take_snapshot(disk, "/data/orders-0", "/backup/orders-0", config=SMALL, clock=lambda: 1000)
    assert numbers("/backup/orders-0", disk) == list(range(20))
