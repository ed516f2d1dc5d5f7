"""Following a log of this process: what wakes a follower, what it returns, and what it raises."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from logstore import (
    FetchIsolation,
    Follower,
    Log,
    LogClosed,
    LogConfig,
    LogDirOffline,
    LogTruncated,
    OffsetOutOfRange,
    Record,
)
from logstore.disk.reentry import Flag
from logstore.format.batch import encode_batch
from logstore.log.append import append_as_leader
from logstore.testing.disks import FaultyDisk, MemoryDisk, Operation, RecordingDisk

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240, file_delete_delay_ms=0)
DIRECTORY = "/data/orders-0"


@pytest.fixture
def log() -> Iterator[Log]:
    disk = MemoryDisk(directories=["/data"])
    with Log.open(DIRECTORY, SMALL, disk=disk, clock=lambda: 1000) as log:
        yield log


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(120) as pool:
        yield pool


def asleep(log: Log, count: int = 1) -> None:
    """Return once so many followers wait for this log."""
    while len(log.partition.waiters.waiting) < count:
        pass


def next_of(threads: ThreadPoolExecutor, log: Log, follower: Follower) -> Future[Record]:
    """Take the next record on another thread; returns when it waits for it."""
    found = threads.submit(next, follower)
    asleep(log)
    return found


def values(records: Iterator[Record]) -> list[bytes | None]:
    return [record.value for record in records]


# --- what it returns -----------------------------------------------------------------------------------


def test_it_returns_what_is_there_and_ends_with_timeout_0(log: Log) -> None:
    log.append([b"0", b"1", b"2"])
    assert values(log.follow(timeout=0)) == [b"0", b"1", b"2"]
    assert values(log.follow(1, timeout=0)) == [b"1", b"2"]
    assert values(log.follow(3, timeout=0)) == []


def test_it_goes_on_after_a_timeout(log: Log) -> None:
    follower = log.follow(timeout=0)
    assert values(follower) == []
    log.append(b"0")
    assert values(follower) == [b"0"]
    assert follower.offset == 1


def test_a_timeout_ends_it_when_nothing_comes(log: Log) -> None:
    log.append(b"0")
    assert values(log.follow(timeout=0.001)) == [b"0"]


@pytest.mark.parametrize("longest_s", [threading.TIMEOUT_MAX, 0.001])
@pytest.mark.parametrize("timeout", [1e10, float("inf"), pytest.param(10**400, id="int")])
def test_a_timeout_may_be_longer_than_a_wait_of_the_platform(
    log: Log,
    threads: ThreadPoolExecutor,
    timeout: float,
    longest_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "TIMEOUT_MAX", longest_s)
    record = next_of(threads, log, log.follow(timeout=timeout))
    log.append(b"0")
    assert record.result().value == b"0"


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan")])
def test_a_timeout_is_not_negative(log: Log, timeout: float) -> None:
    with pytest.raises(ValueError, match="give 0 or more, or None to wait for ever"):
        log.follow(timeout=timeout)


@pytest.mark.parametrize(
    "append",
    [
        lambda log: log.append(b"new", timestamp_ms=5),
        lambda log: log.append([b"new", b"newer"]),
        lambda log: log.append_batches(encode_batch([Record(0, 5, None, b"new")])),
        lambda log: [log.append(b"new") for _ in range(3)],
    ],
)
def test_an_append_wakes_it(log: Log, threads: ThreadPoolExecutor, append: Callable[[Log], object]) -> None:
    """By all ways of appending, the short path of single values among them."""
    log.append([b"a", b"b"])
    log.append(b"c")
    found = next_of(threads, log, log.follow(3))
    append(log)
    assert found.result().value == b"new"


def test_it_follows_across_rolls(log: Log, threads: ThreadPoolExecutor) -> None:
    follower = log.follow()
    found = threads.submit(lambda: [next(follower).offset for _ in range(50)])
    for _ in range(50):
        log.append(bytes(60))
    assert found.result() == list(range(50))
    assert len(log.partition.segments) > 5


def test_a_hundred_followers_are_woken_by_one_append(log: Log, threads: ThreadPoolExecutor) -> None:
    before = threading.active_count()
    found = [threads.submit(next, log.follow()) for _ in range(100)]
    asleep(log, 100)
    log.append(b"one")
    assert {each.result().value for each in found} == {b"one"}
    assert threading.active_count() <= before + 100, "followers make no threads of their own"
    assert not log.partition.waiters.waiting


def test_compaction_is_skipped_over(threads: ThreadPoolExecutor) -> None:
    disk = MemoryDisk(directories=["/data"])
    config = LogConfig(cleanup_policy="compact", segment_bytes=300, segment_index_bytes=240)
    with Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000) as log:
        follower = log.follow(timeout=0)
        for number in range(20):
            log.append(b"%d" % number * 20, key=b"k")
        assert next(follower).offset == 0
        log.compact()
        assert [record.offset for record in follower][-1] == 19
        assert follower.offset == 20


# --- what is committed ---------------------------------------------------------------------------------


def test_it_waits_for_the_end_of_its_isolation_level(log: Log, threads: ThreadPoolExecutor) -> None:
    def send(value: bytes, sequence: int) -> None:
        data = encode_batch(
            [Record(0, 5, None, value)], producer_id=7, producer_epoch=0, base_sequence=sequence,
            is_transactional=True,
        )  # fmt: skip
        with log.partition.lock:
            append_as_leader(log.partition, data, leader_epoch=0, now_ms=5)

    committed = log.follow(isolation=FetchIsolation.TXN_COMMITTED)
    found = next_of(threads, log, committed)
    send(b"aborted", 0)
    assert next(log.follow()).value == b"aborted"
    log.end_transaction(7, 0, commit=False)
    send(b"kept", 1)
    assert not found.done()
    log.end_transaction(7, 0, commit=True)
    assert found.result().value == b"kept"


def test_a_rising_high_watermark_wakes_it(log: Log, threads: ThreadPoolExecutor) -> None:
    log.partition.follows_end = False
    log.append([b"0", b"1"])
    found = next_of(threads, log, log.follow(isolation=FetchIsolation.HIGH_WATERMARK))
    assert log.partition.advance_high_watermark(2)
    assert found.result().value == b"0"


# --- what ends it --------------------------------------------------------------------------------------


def test_stop_ends_it_from_another_thread(log: Log, threads: ThreadPoolExecutor) -> None:
    with log.follow() as follower:
        found = threads.submit(list, follower)
        asleep(log)
    assert found.result() == []
    assert values(follower) == []


def test_close_ends_it(threads: ThreadPoolExecutor) -> None:
    log = Log.open(DIRECTORY, SMALL, disk=MemoryDisk(directories=["/data"]))
    found = next_of(threads, log, log.follow())
    log.close()
    with pytest.raises(LogClosed, match=r"orders-0 was closed; open it again"):
        found.result()


def test_a_failed_disk_ends_it_behind_what_is_durable(threads: ThreadPoolExecutor) -> None:
    disk = FaultyDisk(MemoryDisk(directories=["/data"]))
    log = Log.open(DIRECTORY, SMALL, disk=disk)
    log.append([b"0"], sync=True)
    late = log.follow()
    found = next_of(threads, log, log.follow(1))
    log.partition.take_offline(OSError("gone"))
    with pytest.raises(LogDirOffline, match="gone"):
        found.result()
    assert next(late).value == b"0"
    with pytest.raises(LogDirOffline):
        next(late)


def test_retention_that_passes_it_is_out_of_range(log: Log, threads: ThreadPoolExecutor) -> None:
    log.append([b"0", b"1"])
    log.append([b"2", b"3"])
    follower = log.follow(0, timeout=0)
    log.delete_records(3)
    with pytest.raises(OffsetOutOfRange, match=r"offset 0 is outside \[3, 4\]") as caught:
        next(follower)
    follower.seek(caught.value.log_start_offset)
    assert values(follower) == [b"3"]


def test_a_start_that_passes_it_wakes_it(log: Log, threads: ThreadPoolExecutor) -> None:
    found = next_of(threads, log, log.follow())
    log.append(b"0")
    assert found.result().value == b"0"


def test_an_interrupt_leaves_no_waiter(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = log.follow()

    def interrupted(_bell: Flag, _seconds: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Flag, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(follower)
    assert not log.partition.waiters.waiting


# --- truncations ---------------------------------------------------------------------------------------


def filled(log: Log) -> None:
    for number in range(8):
        log.append(b"%d" % number)


def test_records_that_were_returned_and_cut_are_an_error(log: Log) -> None:
    """Also when others have taken their offsets before the follower looks."""
    filled(log)
    follower = log.follow(timeout=0)
    assert len(list(follower)) == 8
    log.truncate_to(5)
    for number in range(20):
        log.append(b"new %d" % number)
    with pytest.raises(
        LogTruncated, match="truncated at offset 5 after the records before 8 were read"
    ) as caught:
        next(follower)
    with pytest.raises(LogTruncated):  # until it is moved
        next(follower)
    follower.seek(caught.value.log_end_offset)
    assert next(follower).value == b"new 0"


def test_a_sleeping_follower_hears_of_a_cut_at_once(log: Log, threads: ThreadPoolExecutor) -> None:
    filled(log)
    found = next_of(threads, log, log.follow(8))
    log.truncate_to(2)
    with pytest.raises(LogTruncated):
        found.result()


def test_a_follower_that_looks_during_a_cut_waits_until_it_is_told(threads: ThreadPoolExecutor) -> None:
    """The end of the log is lower by then: that was an OffsetOutOfRange, which says to begin anew."""
    looking = threading.Event()
    found: list[Future[Record]] = []

    def before(operation: Operation) -> None:
        if operation.name == "truncate" and not found and follower is not None:
            found.append(threads.submit(next, follower))
            looking.wait()

    follower: Follower | None = None
    disk = RecordingDisk(MemoryDisk(directories=["/data"]), before=before)
    with Log.open("/data/orders-0", disk=disk) as log:
        filled(log)
        follower = log.follow(timeout=0)
        assert len(list(follower)) == 8
        settle = follower._settle

        def settled() -> None:
            looking.set()
            settle()

        follower._settle = settled
        log.truncate_to(5)
        with pytest.raises(LogTruncated):
            found[0].result()


def test_records_that_were_only_read_ahead_are_replaced(log: Log) -> None:
    log.append([b"0", b"1"])
    for number in range(2, 8):
        log.append(b"%d" % number)
    follower = log.follow(timeout=0)
    assert next(follower).offset == 0
    log.truncate_to(4)
    log.append([b"new"] * 3)
    assert values(follower) == [b"1", b"2", b"3", b"new", b"new", b"new"]


def test_a_restart_is_a_cut(log: Log) -> None:
    from logstore.log.truncate import truncate_fully_and_start_at

    filled(log)
    read, behind = log.follow(timeout=0), log.follow(2, timeout=0)
    assert len(list(read)) == 8
    truncate_fully_and_start_at(log.partition, 4)
    log.append([b"new"] * 6)
    with pytest.raises(LogTruncated):
        next(read)
    with pytest.raises(OffsetOutOfRange, match=r"offset 2 is outside \[4, 10\]"):
        next(behind)


def test_a_cut_between_any_two_steps_skips_nothing(log: Log) -> None:
    """A truncation before each record that a follower takes: it sees one history, or an error."""
    for cut_after in range(9):
        log.truncate_to(0)
        for number in range(8):
            log.append(b"a%d" % number)
        follower, seen = log.follow(0, timeout=0), []
        try:
            for step in range(20):
                if step == cut_after:
                    log.truncate_to(4)
                    for number in range(4, 10):
                        log.append(b"b%d" % number)
                record = next(follower, None)
                if record is None:
                    break
                seen.append(record.value)
        except LogTruncated:
            assert cut_after > 4
            continue
        assert cut_after <= 4
        assert seen == [b"a0", b"a1", b"a2", b"a3", *(b"b%d" % number for number in range(4, 10))]


def test_a_cut_while_the_follower_looks_at_another_one(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes before each line of the look at the first."""
    moment = count_down = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal count_down
        if not frame.f_code.co_filename.endswith("log/following.py"):
            return None
        if event == "line":
            count_down -= 1
            if not count_down:
                log.truncate_to(2)
                log.append([b"new"] * 8)
        return trace

    while count_down <= 0:
        moment += 1
        log.truncate_to(0)
        filled(log)
        follower = log.follow(timeout=0)
        assert [next(follower).offset for _ in range(5)] == [*range(5)]
        log.truncate_to(7)
        count_down = moment
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with suppress(LogTruncated):
                follower.check()
        finally:
            sys.settrace(before)
        if count_down <= 0:
            with pytest.raises(LogTruncated, match="at offset 2"):
                next(follower)
    assert moment > 5


# --- other processes -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_fork_does_not_disturb_it(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        found = next_of(threads, log, log.follow())
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        log.append(b"parent")
        assert found.result().value == b"parent"
