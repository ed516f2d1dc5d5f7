"""Many threads on one log: nothing is lost, torn or out of order, and one fsync serves all who wait.

No test here waits for time to pass: threads meet at events, and every wait has a limit. What ends a test is
what a thread raised, not that others then wait for it in vain.
"""

from __future__ import annotations

import queue as queues
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.compact.cleanable import group_segments
from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.errors import LogClosed, LogDirOffline, OffsetOutOfRange
from logstore.format.batch import walk
from logstore.log.log import Log
from logstore.queue import Queue, QueueClosed, QueueConfig
from logstore.segment.segment import Segment
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, Operation, RecordingDisk
from tests.logstore.logs import DIRECTORY

LIMIT_S = 60
WRITERS = 8


def run(*targets: Callable[[], None], done: threading.Event | None = None) -> None:
    """Run each in a thread of its own; what one raises is raised here, at once.

    `done` is set then: whoever goes on until it is, or waits for what will not come, ends too.
    """
    outcomes: queues.SimpleQueue[BaseException | None] = queues.SimpleQueue()

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            outcomes.put(error)
        else:
            outcomes.put(None)

    for target in targets:
        threading.Thread(target=guarded, args=(target,), daemon=True).start()
    try:
        for _ in targets:
            failure = outcomes.get(timeout=LIMIT_S)
            if failure is not None:
                raise failure
    except queues.Empty:
        pytest.fail("a thread hangs")
    finally:
        if done is not None:
            done.set()


def test_writers_readers_and_a_storm_of_rolls(tmp_path: Path) -> None:
    """Eight durable writers over tiny segments, while readers walk from the start again and again."""
    each = 15
    log = Log.open(tmp_path / "orders-0", LogConfig(segment_bytes=400, index_interval_bytes=100))
    done = threading.Event()
    remaining = [WRITERS]
    counting = threading.Lock()

    def writer(name: int) -> None:
        for number in range(each):
            info = log.append(b"%d %d" % (name, number), sync=True)
            assert log.partition.recovery_point > info.last_offset, "durable when it returns"
        with counting:
            remaining[0] -= 1
            if not remaining[0]:
                done.set()

    def reader() -> None:
        while True:
            last = done.is_set()
            end = log.log_end_offset
            offsets = [record.offset for record in log.read()]
            assert offsets == list(range(len(offsets))), "dense, in order, whole"
            assert len(offsets) >= end, "what had been appended is seen"
            if last:
                return

    def seeker() -> None:
        while not done.is_set():
            end = log.log_end_offset
            for offset in range(0, end, 7):
                assert next(log.read(offset)).offset == offset
            found = log.offset_for_timestamp(0)
            assert found is None or found.offset == 0

    run(*(lambda name=name: writer(name) for name in range(WRITERS)), reader, reader, seeker, done=done)
    check_order(log, each)
    assert len(log.partition.segments) > 20
    log.close()
    with Log.open(tmp_path / "orders-0") as again:
        check_order(again, each)


def check_order(log: Log, each: int) -> None:
    """Every value once, those of one writer in the order in which it wrote them."""
    seen: dict[bytes, list[int]] = defaultdict(list)
    for record in log.read():
        assert record.value is not None
        name, number = record.value.split()
        seen[name].append(int(number))
    assert len(seen) == WRITERS
    assert all(numbers == list(range(each)) for numbers in seen.values())


def test_one_sync_serves_all_who_wait() -> None:
    """While the first writer's sync is under way seven more append: one more sync is theirs."""
    memory = MemoryDisk(directories=["/data"])
    all_wait = threading.Event()
    first = threading.Event()
    done = threading.Event()
    syncs: list[str] = []

    def before(operation: Operation) -> None:
        if operation.name == "sync" and operation.path.endswith(".log"):
            syncs.append(operation.path)
            if not first.is_set():
                first.set()
                assert all_wait.wait(LIMIT_S)

    disk = RecordingDisk(memory, before=before)
    log = Log.open(DIRECTORY, disk=disk, clock=lambda: 1)
    syncs.clear()
    first.clear()

    def follower() -> None:
        assert first.wait(LIMIT_S)
        info = log.append(b"x", sync=True)
        assert log.partition.recovery_point > info.last_offset

    def conductor() -> None:
        assert first.wait(LIMIT_S)
        while len(log.partition.group_commit._waiting) < WRITERS - 1 and not done.is_set():
            pass
        all_wait.set()

    def leader() -> None:
        log.append(b"x", sync=True)

    run(leader, *[follower] * (WRITERS - 1), conductor, done=done)
    assert len(syncs) == 2, "one for the first, one for the seven"
    assert log.partition.recovery_point == log.log_end_offset == WRITERS


def test_group_commit_saves_syncs_on_a_real_disk(tmp_path: Path) -> None:
    """Fewer syncs than durable appends: counted, not timed."""
    disk = CountingDisk()
    log = Log.open(tmp_path / "orders-0", disk=disk)
    gate = threading.Barrier(WRITERS)
    before = disk.syncs

    def writer() -> None:
        gate.wait(LIMIT_S)
        for _ in range(25):
            log.append(b"x" * 100, sync=True)

    run(*[writer] * WRITERS)
    assert log.partition.recovery_point == log.log_end_offset == WRITERS * 25
    assert disk.syncs - before < WRITERS * 25
    log.close()


class CountingDisk(RecordingDisk):
    """Counts syncs; keeps no list, which threads would have to share."""

    def __init__(self) -> None:
        super().__init__(OsDisk())
        self.syncs = 0
        self._counting = threading.Lock()

    def note(self, operation: Operation) -> None:
        if operation.name == "sync":
            with self._counting:
                self.syncs += 1


def test_readers_while_the_log_is_cut() -> None:
    """A reader sees a prefix of what was written, or is told that its offset is gone; never half a batch."""
    log = Log.open(
        DIRECTORY,
        LogConfig(segment_bytes=400, index_interval_bytes=50),
        disk=MemoryDisk(directories=["/data"]),
        clock=lambda: 1,
    )
    done = threading.Event()

    def writer() -> None:
        for turn in range(25):
            for number in range(20):
                # Of other lengths at every turn: where a batch began, another one's middle lies later.
                log.append(b"%d" % number + b"0" * (turn * number % 31))
            log.truncate_to(7 * (turn % 3))
        done.set()

    def reader() -> None:
        while not done.is_set():
            try:
                for record in log.read():
                    assert record.value is not None
                    assert record.value.isdigit()
            except OffsetOutOfRange:
                pass

    def seeker() -> None:
        while not done.is_set():
            found = log.offset_for_timestamp(1)
            assert found is None or found.offset == 0
            for offset in range(0, log.log_end_offset, 5):
                try:
                    for batch in walk(log.read_bytes(offset).records):
                        batch.check_crc()
                except OffsetOutOfRange:
                    pass

    run(writer, reader, reader, seeker, done=done)
    assert not log.partition.is_offline
    offsets = [record.offset for record in log.read()]
    assert offsets == list(range(log.log_end_offset))


def test_closing_under_load(tmp_path: Path) -> None:
    """Writers are told that the log is closed; everything they were answered for is there."""
    log = Log.open(tmp_path / "orders-0", LogConfig(segment_bytes=2000))
    acknowledged: list[int] = []
    started = threading.Semaphore(0)
    done = threading.Event()

    def writer() -> None:
        started.release()
        try:
            while True:
                acknowledged.append(log.append(b"x", sync=True).last_offset)
        except LogClosed:
            return

    def closer() -> None:
        for _ in range(4):
            started.acquire(timeout=LIMIT_S)
        while len(acknowledged) < 50 and not done.is_set():
            pass
        log.close()

    run(writer, writer, writer, writer, closer, done=done)
    with Log.open(tmp_path / "orders-0") as again:
        assert {record.offset for record in again.read()} >= set(acknowledged)


@pytest.mark.parametrize("is_queue", [False, True])
def test_a_close_between_a_write_and_its_sync(is_queue: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close syncs the write, which is no error then."""
    disk = MemoryDisk(directories=["/data"])
    queue = Queue("/data/jobs", QueueConfig(durability="synced"), disk=disk)
    queue.put(b"before")
    log = queue._lanes["default"].messages if is_queue else Log.open(DIRECTORY, disk=disk)
    close, join = queue.close if is_queue else log.close, log.partition.group_commit.join

    def closed() -> bool:
        monkeypatch.undo()
        close()
        return join()

    monkeypatch.setattr(log.partition.group_commit, "join", closed)
    offset = queue.put(b"a") if is_queue else log.append(b"a", sync=True).first_offset
    with Log.open(log.partition.directory, disk=disk.durable_image()) as again:
        assert again[offset].value == b"a"
    with pytest.raises((LogClosed, QueueClosed)):
        queue.put(b"b") if is_queue else log.append(b"b", sync=True)


def test_a_sync_that_fails_is_told_to_all_who_waited_for_it() -> None:
    """Writers that share syncs when the disk fails: no promise that the sync did not keep, and no hanging."""
    memory = MemoryDisk(directories=["/data"])
    disk = FaultyDisk(memory)
    log = Log.open(DIRECTORY, disk=disk, clock=lambda: 1)
    promised: list[int] = []
    refused = []
    done = threading.Event()

    def writer() -> None:
        try:
            while True:
                promised.append(log.append(b"x", sync=True).last_offset)
        except LogDirOffline:
            refused.append(True)

    def breaker() -> None:
        while len(promised) < 50 and not done.is_set():
            pass
        disk.inject(Fault(operation="sync"))

    run(*[writer] * WRITERS, breaker, done=done)
    assert len(refused) == WRITERS
    assert log.partition.is_offline
    with Log.open(DIRECTORY, disk=memory.durable_image(), clock=lambda: 1) as again:
        assert {record.offset for record in again.read()} >= set(promised)


class _AnnouncedLock:
    """A lock that tells when `thread` asks for it."""

    def __init__(self, lock: Any, asked: threading.Event) -> None:
        self._lock, self._asked, self._thread = lock, asked, threading.current_thread()

    def __enter__(self) -> None:
        if threading.current_thread() is self._thread:
            self._asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("end", ["retention", "close"])
def test_a_compaction_whose_segments_go_is_no_disk_failure(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at a segment whose files have just gone, and that is still in the list of segments."""
    window, asked = threading.Event(), threading.Event()

    def before(operation: Operation) -> None:
        if first is not None and first._is_let_go and not window.is_set():
            window.set()
            assert asked.wait(LIMIT_S)

    first: Segment | None = None
    config = LogConfig(segment_bytes=300, cleanup_policy="compact,delete", retention_ms=1000)
    disk = RecordingDisk(MemoryDisk(directories=["/data"]), before=before)
    log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 10_000)
    first = log.partition.segments.first
    for number in range(20):
        log.append(b"%d" % number, key=b"%d" % (number % 3), timestamp_ms=number)
    ending = threading.Thread(target=log.close if end == "close" else log.maintain)

    def grouped(*arguments: Any) -> Any:
        log.partition.lock = _AnnouncedLock(log.partition.lock, asked)  # type: ignore[assignment]
        ending.start()
        assert window.wait(LIMIT_S)
        return group_segments(*arguments)

    monkeypatch.setattr("logstore.compact.compaction_pass.group_segments", grouped)
    try:
        (report,) = log.compact()
    finally:
        asked.set()
        ending.join(LIMIT_S)
    assert report.was_aborted
    assert log.partition.failure is None
