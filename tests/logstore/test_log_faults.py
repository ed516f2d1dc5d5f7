"""A disk that fails under a log: what it says, what it still shows, and what is there after the next start.

The rules are those of fsync: one that failed is never repeated, because the kernel may have dropped the
pages it could not write and would call them clean the next time.
"""

from __future__ import annotations

import errno
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import OsDisk
from logstore.errors import DiskFull, LogDirOffline
from logstore.format.batch import encode_batch, encode_marker_batch, walk
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log import read as reads
from logstore.log.append import append_as_leader
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.producer_state import AppendOrigin
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset, flush_sealed
from logstore.segment import segments
from logstore.segment.segment import Segment
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, Operation, RecordingDisk
from tests.descriptors import open_below
from tests.logstore.logs import DIRECTORY, batch

LIMIT_S = 30
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=60)


def faulty_disk() -> FaultyDisk:
    return FaultyDisk(MemoryDisk(directories=["/data"]))


def opened(disk: FaultyDisk | MemoryDisk | RecordingDisk, config: LogConfig = CONFIG) -> Log:
    return Log.open(DIRECTORY, config, disk=disk, clock=lambda: 5000)


def memory(disk: FaultyDisk) -> MemoryDisk:
    assert isinstance(disk.inner, MemoryDisk)
    return disk.inner


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


class TestAFailedSync:
    def test_nothing_that_is_not_durable_is_shown(self) -> None:
        disk = faulty_disk()
        log = opened(disk)
        log.append([b"a", b"b"], sync=True)
        log.append(b"c")
        disk.inject(Fault(operation="sync"))
        with pytest.raises(
            LogDirOffline, match=r"went offline.*Everything acknowledged as synced is safe"
        ) as caught:
            log.append(b"d", sync=True)
        assert isinstance(caught.value.__cause__, OSError)
        assert log.partition.is_offline
        assert values(log) == [b"a", b"b"]
        assert log.read_bytes(2).records == b""
        assert log.offset_for_timestamp(5000) is not None
        assert log.partition.recovery_point == 2

    def test_it_is_never_repeated(self) -> None:
        """The second one would succeed over what the first one lost."""
        disk = faulty_disk()
        log = opened(disk)
        log.append(b"a")
        disk.inject(Fault(operation="sync"))
        syncs = disk.counts["sync"]
        calls: list[Callable[[], object]] = [
            log.flush,
            log.flush,
            lambda: log.append(b"b"),
            lambda: log.append(b"b", sync=True),
            lambda: append_as_follower(log.partition, batch(1, (1,)), leader_epoch=0),
            log.partition.roll,
            lambda: log.truncate_to(0),
            lambda: truncate_fully_and_start_at(log.partition, 0),
            lambda: log.partition.assign_epoch(7, 1),
            lambda: advance_log_start_offset(log.partition, 1),
            partial(flush_sealed, log.partition),
        ]
        for call in calls[:-1]:
            with pytest.raises(LogDirOffline):
                call()
        flush_sealed(log.partition)
        assert disk.counts["sync"] == syncs + 1
        log.close()
        assert disk.counts["sync"] == syncs + 1, "closing does not sync it either"
        assert disk.fired == [("sync", f"{DIRECTORY}/00000000000000000000.log")]

    def test_the_next_start_recovers(self) -> None:
        """Unclean, with what was acknowledged; what the kernel lost is not there and never was promised."""
        disk = faulty_disk()
        log = opened(disk)
        log.append([b"a", b"b"], sync=True)
        log.append(b"c")
        disk.inject(Fault(operation="sync"))
        with pytest.raises(LogDirOffline):
            log.flush()
        log.close()
        disk.heal()
        assert values(opened(memory(disk).durable_image())) == [b"a", b"b"]
        again = opened(disk)
        assert again.partition.report.scanned_bytes, "the mark of a clean stop is not there"
        assert values(again)[:2] == [b"a", b"b"]
        again.append(b"on", sync=True)

    def test_those_who_waited_behind_it_are_told(self) -> None:
        """Their sync is not tried, and the recovery point does not move past what was lost."""
        disk = faulty_disk()
        first_is_in, many_wait = threading.Event(), threading.Event()
        recording = RecordingDisk(disk)
        log = opened(recording, LogConfig())
        log.append(b"before", sync=True)
        disk.inject(Fault(operation="sync"))
        outcomes: list[type[BaseException] | None] = []

        def hold(operation: object) -> None:
            if operation.name == "sync" and not first_is_in.is_set():  # type: ignore[attr-defined]
                first_is_in.set()
                assert many_wait.wait(LIMIT_S)

        recording._before = hold

        def durable_append() -> None:
            try:
                log.append(b"x", sync=True)
                outcomes.append(None)
            except LogDirOffline as error:
                outcomes.append(type(error))

        leader = threading.Thread(target=durable_append, daemon=True)
        leader.start()
        assert first_is_in.wait(LIMIT_S)
        others = [threading.Thread(target=durable_append, daemon=True) for _ in range(4)]
        for thread in others:
            thread.start()
        while len(log.partition.group_commit._waiting) < 4:
            pass
        many_wait.set()
        for thread in (leader, *others):
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert outcomes == [LogDirOffline] * 5
        assert log.partition.recovery_point == 1
        assert values(log) == [b"before"]
        assert len(disk.fired) == 1

    @pytest.mark.parametrize("operation", ["sync", "sync_dir", "rename"])
    def test_an_epoch_that_cannot_be_noted(self, operation: str) -> None:
        """Its first batch is not written: the file would not know whose it is."""
        disk = faulty_disk()
        log = opened(disk)
        log.append(b"a", sync=True)
        disk.inject(Fault(operation=operation))
        with pytest.raises(LogDirOffline):
            append_as_leader(
                log.partition, encode_batch([Record(0, 1, None, b"b")]), leader_epoch=9, now_ms=1
            )
        assert (log.log_end_offset, log.partition.latest_epoch) == (1, 0)


class TestAFailedWrite:
    @pytest.mark.parametrize("short", [0, 1, 50])
    def test_a_bad_block(self, short: int) -> None:
        disk = faulty_disk()
        log = opened(disk)
        log.append(b"a", sync=True)
        disk.inject(Fault(operation="pwrite", errno=errno.EIO, short=short))
        with pytest.raises(LogDirOffline):
            log.append(b"b")
        assert (log.log_end_offset, values(log)) == (1, [b"a"])
        disk.heal()
        assert values(opened(memory(disk).copy())) == [b"a"]

    def test_a_full_disk_whose_leftover_cannot_be_cut(self) -> None:
        """Bytes of half an append would stay: no append may follow them."""
        disk = faulty_disk()
        log = opened(disk)
        log.append(b"a", sync=True)
        disk.inject(
            Fault(operation="pwrite", errno=errno.ENOSPC, short=20),
            Fault(operation="truncate", errno=errno.EIO),
        )
        with pytest.raises(LogDirOffline):
            log.append(b"b")
        with pytest.raises(LogDirOffline):
            log.append(b"c")
        disk.heal()
        assert values(opened(memory(disk).copy())) == [b"a"]

    def test_a_file_that_must_not_grow_is_no_full_disk(self) -> None:
        disk = faulty_disk()
        log = opened(disk)
        disk.inject(Fault(operation="pwrite", errno=errno.EFBIG))
        with pytest.raises(DiskFull, match=r"a file cannot grow further .*Raise the limit .*ulimit -f"):
            log.append(b"a")
        log.append(b"b")
        assert values(log) == [b"b"]

    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_row_187_an_abort_that_cannot_be_noted(self, number: int) -> None:
        """The marker is in the log: calling it refused would append it twice. Recovery finds the abort."""
        disk = faulty_disk()
        log = opened(disk)
        data = encode_batch(
            [Record(0, 1, None, b"t")],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        append_as_leader(log.partition, data, leader_epoch=0, now_ms=1)
        marker = encode_marker_batch(
            EndTransactionMarker(ControlType.ABORT, 0), producer_id=1, producer_epoch=0, timestamp_ms=1
        )
        disk.inject(Fault(operation="pwrite", errno=number, path=lambda path: path.endswith(".txnindex")))
        with pytest.raises(LogDirOffline):
            append_as_leader(log.partition, marker, leader_epoch=0, now_ms=1, origin=AppendOrigin.COORDINATOR)
        assert (log.log_end_offset, log.partition.last_stable_offset) == (2, 0)
        again = opened(memory(disk).copy())
        assert again.partition.last_stable_offset == 2
        assert again.partition.segments[0].aborts.index.entries == (AbortedTransaction(1, 0, 1, 2),)


def read_across_a_cut(by: str, step: int) -> str:
    """Look for offset 9; the bytes go, and others come, ahead of read number `step`. Which ones were seen?"""
    steps_left = -1

    def before(operation: Operation) -> None:
        nonlocal steps_left
        if operation.name == "pread" and operation.path.endswith(".log"):
            steps_left -= 1
            if steps_left == -1:
                log.truncate_to(3)
                for number in range(3, 20):
                    log.append(b"new" * number, timestamp_ms=100)

    disk = RecordingDisk(MemoryDisk(directories=["/data"]), before=before, reads=True)
    log = opened(disk, LogConfig(index_interval_bytes=60))
    for number in range(12):
        log.append(b"%d" % number * 20, timestamp_ms=number)
    steps_left = step + 1
    if by == "time":
        found = log.offset_for_timestamp(9)
        assert found is not None
        outcome = {(9, 9): "before", (3, 100): "after"}[found.offset, found.timestamp_ms]
    else:
        first, *rest = walk(log.read_bytes(9).records)
        for each in (first, *rest):
            each.check_crc()
        assert first.base_offset == 9
        outcome = {9: "before", 100: "after"}[first.max_timestamp_ms]
    assert not log.partition.is_offline
    return outcome


class TestReading:
    def test_a_file_that_cannot_be_read(self) -> None:
        disk = faulty_disk()
        log = opened(disk)
        log.append(b"a", sync=True)
        disk.inject(Fault(operation="pread", path=lambda path: path.endswith(".log")))
        with pytest.raises(LogDirOffline):
            log.read_bytes(0)
        assert log.partition.is_offline

    @pytest.mark.parametrize("function", ["read_batches", "find_timestamp"])
    def test_files_that_went_under_a_reader(self, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A truncation between two of its steps is no failed disk."""
        log = opened(MemoryDisk(directories=["/data"]))
        for number in range(12):
            log.append(b"%d" % number, timestamp_ms=number)
        original = getattr(segments, function)
        pending = [True]

        def interrupted(segment: Segment, *args: object, **names: object) -> object:
            if pending:
                pending.clear()
                log.truncate_to(1)
            return original(segment, *args, **names)

        monkeypatch.setattr(reads, function, interrupted)
        if function == "read_batches":
            assert log.read_bytes(9).records == b""
        else:
            assert log.offset_for_timestamp(11) is None
        assert not pending
        assert not log.partition.is_offline
        assert log.append(b"on").first_offset == 1

    @pytest.mark.parametrize("by", ["offset", "time"])
    def test_bytes_that_are_others_at_the_next_step_of_a_reader(self, by: str) -> None:
        """A cut, and appends after it, before any of its reads: it finds what is there, and blames nobody."""
        step = 0
        while (seen := read_across_a_cut(by, step)) != "before":
            assert seen == "after"
            step += 1
        assert step > 1, "nothing came between"

    def test_a_batch_past_the_size_that_a_reader_knows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It came between a cut and a look for it, and is no reason to take the log dir offline."""
        log = opened(MemoryDisk(directories=["/data"]), LogConfig())
        for number in range(12):
            log.append(b"%d" % number, timestamp_ms=number)
        read, locate = segments.read_batches, segments.locate_in_order

        def cut_before(segment: Segment, *args: int, at_least_one: bool) -> object:
            monkeypatch.setattr(reads, "read_batches", read)
            log.truncate_to(3)
            monkeypatch.setattr(segments, "locate_in_order", appended_before)
            return read(segment, *args, at_least_one=at_least_one)

        def appended_before(segment: Segment, offset: int) -> object:
            monkeypatch.setattr(segments, "locate_in_order", locate)
            for _ in range(12):
                log.append(b"new")
            return locate(segment, offset)

        monkeypatch.setattr(reads, "read_batches", cut_before)
        first = next(walk(log.read_bytes(9).records))
        assert first.base_offset == 9
        assert not log.partition.is_offline

    def test_files_that_are_going_under_a_reader(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader that meets a removed segment waits for the truncation before it blames the disk."""
        disk = MemoryDisk(directories=["/data"])
        log = opened(disk)
        for number in range(12):
            log.append(b"%d" % number)
        read, remove = segments.read_batches, disk.remove
        under_way, gone = threading.Event(), threading.Event()
        found: list[bytes] = []

        def interrupted(segment: Segment, *args: int, at_least_one: bool) -> object:
            under_way.set()
            assert gone.wait(LIMIT_S)
            return read(segment, *args, at_least_one=at_least_one)

        def removed(path: str) -> None:
            remove(path)
            if not path.endswith(".seal") and not gone.is_set():
                gone.set()
                reader.join(0.1)  # time enough to answer wrongly; the right answer waits for this thread

        monkeypatch.setattr(reads, "read_batches", interrupted)
        reader = threading.Thread(target=lambda: found.append(log.read_bytes(11).records))
        reader.start()
        assert under_way.wait(LIMIT_S)
        monkeypatch.setattr(disk, "remove", removed)
        log.truncate_to(1)
        reader.join(LIMIT_S)
        assert found == [b""]
        assert not log.partition.is_offline

    def test_files_that_went_with_a_close(self) -> None:
        """Neither an answer nor an alarm: the log was closed."""
        log = opened(faulty_disk())
        log.append(b"a")
        reader = log.read_batches()
        next(reader)
        log.close()
        with pytest.raises(EngineError, match="was closed"):
            next(reader)
        assert not log.partition.is_offline

    def test_files_that_went_under_a_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A log that is deleted while somebody waits for the disk takes no log dir with it."""
        log = opened(faulty_disk())
        log.append(b"a")
        sync_log = Segment.sync_log

        def interrupted(segment: Segment) -> None:
            log.partition.abandon()
            sync_log(segment)

        monkeypatch.setattr(Segment, "sync_log", interrupted)
        with pytest.raises(EngineError, match="was closed"):
            log.flush()
        assert not log.partition.is_offline


def write_and_leave(log: Log) -> None:
    """The error is the one of the writer's thread."""
    log.writer(linger_ms=0).append(b"c")
    log.close()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The garbage collector is off, so a file that only it would close stays open."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "call",
    [
        Log.flush,
        Log.close,
        lambda log: log.append(b"c"),
        lambda log: log.append(b"c", sync=True),
        lambda log: log.truncate_to(1),
        lambda log: log.delete_records(1),
        lambda log: log.cursor("one").commit(1, sync=True),
        write_and_leave,
    ],
)
def test_a_closed_log_lets_go_of_its_disk(call: Callable[[Log], object], tmp_path: Path) -> None:
    """It can be unmounted then, for a check, although the program keeps the exception."""
    disk = FaultyDisk(OsDisk())
    log = Log.open(tmp_path / "orders-0", disk=disk)
    log.append(b"a", sync=True)
    log.append(b"b")
    disk.inject(Fault(operation=None, errno=errno.EROFS, forever=True))
    with pytest.raises(LogDirOffline) as caught:
        call(log)
    with suppress(LogDirOffline):
        log.close()
    assert open_below(tmp_path) == 0
    assert isinstance(caught.value.__cause__, OSError)


def scenario(log: Log) -> None:
    """Something of everything, all of it durable in the end."""
    log.append([b"a", b"b"])
    log.append(b"c", sync=True)
    append_as_leader(log.partition, encode_batch([Record(0, 1, None, b"d")]), leader_epoch=2, now_ms=1)
    for number in range(6):
        log.append(b"%d" % number * 20)
    log.truncate_to(7)
    log.append(b"e", sync=True)
    advance_log_start_offset(log.partition, 2)
    log.partition.roll()
    log.append(b"f")
    log.close()


def calls_of_the_scenario() -> int:
    disk = faulty_disk()
    log = opened(disk)
    before = disk.calls
    scenario(log)
    return disk.calls - before


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("done", [False, True])
def test_every_single_call_fails_once(number: int, done: bool) -> None:
    """Whatever call it is: an error of ours or none, nothing synced is lost, and the next start is sound.

    `done`: the call took effect and only its answer was lost.
    """
    calls = calls_of_the_scenario()
    assert calls > 100
    failed = 0
    for at in range(1, calls + 1):
        disk = faulty_disk()
        log = opened(disk)
        disk.inject(Fault(at=at, errno=number, done=done))
        try:
            scenario(log)
        except (LogDirOffline, DiskFull):
            failed += 1
        point = min(log.partition.recovery_point, log.log_end_offset)
        disk.heal()
        kept = [] if log.partition.is_closed else [each for each in log.read() if each.offset < point]
        again = opened(memory(disk).durable_image())
        found = {each.offset: each.value for each in again.read()}
        # A log start whose publication was not answered may stand or not: it had been asked for.
        for each in kept if again.log_start_offset <= log.log_start_offset else ():
            assert found.get(each.offset) == each.value, f"call {at}, offset {each.offset}"
        assert again.append(b"on", sync=True).first_offset == again.log_end_offset - 1
    assert failed > calls // 2
