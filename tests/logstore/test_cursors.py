"""Named positions of readers: what a commit keeps, and what truncation, retention and damage do to it."""

from __future__ import annotations

import errno
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logstore import DiskFull, Log, LogClosed, LogConfig, LogDirOffline, LogTruncated, OffsetOutOfRange
from logstore.disk.files import OsDisk
from logstore.errors import OutOfResources
from logstore.log.cursor_file import (
    CURSORS_FILE,
    CursorFile,
    CursorText,
    format_cursors,
    load_cursors,
    parse_cursors,
    read_cursors,
)
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, Operation, RecordingDisk

DIRECTORY = "/data/orders-0"
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240, file_delete_delay_ms=0)


def opened(disk: Any, config: LogConfig = SMALL) -> Log:
    return Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000)


def is_cursors(path: str) -> bool:
    return path.endswith(CURSORS_FILE)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(directories=["/data"])


@pytest.fixture
def log(disk: MemoryDisk) -> Iterator[Log]:
    with opened(disk) as log:
        for number in range(10):
            log.append(b"%d" % number)
        yield log


# --- reading and committing ----------------------------------------------------------------------------


def test_it_reads_from_where_it_committed(disk: MemoryDisk) -> None:
    with opened(disk) as log:
        log.append([b"%d" % number for number in range(10)])
        cursor = log.cursor("billing")
        assert (cursor.position, cursor.committed, cursor.lag) == (0, None, 10)
        assert [record.offset for record in cursor.read(3)] == [0, 1, 2]
        assert cursor.commit() == 3
        assert [record.offset for record in cursor.read(2)] == [3, 4]
        assert (cursor.position, cursor.committed, cursor.lag) == (5, 3, 5)
        assert log.cursors() == {"billing": 3}
    with opened(disk) as log:
        assert [record.offset for record in log.cursor("billing").read()] == list(range(3, 10))
        assert repr(log.cursor("billing")) == "Cursor('billing', position=3, committed=3)"


def test_a_commit_in_the_loop_counts_the_record_at_hand(log: Log) -> None:
    cursor = log.cursor("billing")
    for record in cursor.read(4):
        assert cursor.commit() == record.offset + 1


def test_it_waits_for_records(log: Log) -> None:
    cursor = log.cursor("billing")
    cursor.seek(10)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: next(cursor.read(timeout=None)))
        while not log.partition.waiters.waiting:
            pass
        log.append(b"late")
        assert found.result().value == b"late"


def test_seek_and_commit_of_an_offset(log: Log) -> None:
    cursor = log.cursor("billing")
    cursor.seek(7)
    assert [record.offset for record in cursor.read()] == [7, 8, 9]
    assert cursor.commit(2) == 2
    assert (cursor.position, log.cursors()) == (10, {"billing": 2})


@pytest.mark.parametrize("offset", [-1, 11])
def test_offsets_outside_of_the_log_are_refused(log: Log, offset: int) -> None:
    cursor = log.cursor("billing")
    for action in (cursor.seek, cursor.commit):
        with pytest.raises(OffsetOutOfRange, match=r"is outside \[0, 10\]"):
            action(offset)
    assert log.cursors() == {}


def test_names(log: Log) -> None:
    for name in ("a", "Käse 🧀\n", "x" * 249):
        log.cursor(name).commit(1)
    assert set(log.cursors()) == {"a", "Käse 🧀\n", "x" * 249}
    for bad in ("", "x" * 250):
        with pytest.raises(ValueError, match="a cursor's name has 1 to 249 characters"):
            log.cursor(bad)
    with pytest.raises(TypeError, match="a cursor's name is text, not bytes"):
        log.cursor(b"a")  # type: ignore[arg-type]


def test_a_removed_cursor_begins_at_the_start(disk: MemoryDisk) -> None:
    with opened(disk) as log:
        log.append([b"0", b"1"])
        log.cursor("a").commit(2)
        log.cursor("b").commit(1)
        log.cursor("a").remove()
        log.cursor("nobody").remove()
        assert log.cursors() == {"b": 1}
    with opened(disk) as log:
        assert log.cursors() == {"b": 1}
        assert log.cursor("a").position == 0


def test_a_closed_log_takes_no_commit(disk: MemoryDisk) -> None:
    log = opened(disk)
    log.append(b"0")
    cursor = log.cursor("billing")
    log.close()
    with pytest.raises(LogClosed):
        cursor.commit()
    with pytest.raises(LogClosed):
        next(cursor.read())


# --- what a commit costs and keeps ----------------------------------------------------------------------


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_close_between_a_commit_and_its_sync(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """The close syncs the commit, which is no error then."""
    log = opened(disk)
    log.append([b"a", b"b"])
    cursor = log.cursor("billing")
    cursor.commit(1)
    join = log.partition.cursor_commit.join

    def closed() -> bool:
        monkeypatch.undo()
        log.close()
        return join()

    monkeypatch.setattr(log.partition.cursor_commit, "join", closed)
    if is_removed:
        cursor.remove()
    else:
        assert cursor.commit(2, sync=True) == 2
    with opened(disk.durable_image()) as again:
        assert again.cursors() == ({} if is_removed else {"billing": 2})
    with pytest.raises(LogClosed):
        cursor.commit(2, sync=True)


def test_a_close_during_the_sync_of_a_commit(disk: MemoryDisk) -> None:
    """It took the commit for synced, and returned before it was."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(RecordingDisk):
        def _run(self, operation: str, path: str, call: Callable[[], Any], **facts: object) -> Any:
            if operation == "sync" and is_cursors(path) and not begun.is_set():
                begun.set()
                assert go_on.wait(60)
            return super()._run(operation, path, call, **facts)

    log = opened(Slow(disk))
    log.append([b"a", b"b"])
    log.cursor("billing").commit(0)
    log.flush()
    log.cursor("billing").commit(1)
    with ThreadPoolExecutor(2) as threads:
        commit = threads.submit(log.cursor("audit").commit, 1, sync=True)
        assert begun.wait(60)
        closing = threads.submit(log.close)
        with suppress(TimeoutError):
            closing.result(0.05)
        if closing.done():
            assert read_cursors(disk.durable_image(), DIRECTORY).offsets["billing"] == 1
        go_on.set()
        commit.result(60)
        closing.result(60)
    assert read_cursors(disk.durable_image(), DIRECTORY).offsets == {"billing": 1, "audit": 1}


def test_a_killed_process_loses_no_commit(disk: MemoryDisk) -> None:
    log = opened(disk)
    log.append([b"0", b"1", b"2"])
    log.cursor("billing").commit(1)
    log.cursor("billing").commit(2)
    log.partition.abandon()
    assert opened(disk).cursors() == {"billing": 2}
    after_a_power_cut = read_cursors(disk.durable_image(), DIRECTORY)
    assert after_a_power_cut.offsets == {"billing": 2}, "what an opening has found is kept"


def test_a_commit_costs_one_write(disk: MemoryDisk) -> None:
    recorded = RecordingDisk(disk)
    log = opened(recorded, LogConfig())
    log.append([b"0"] * 2000)
    log.cursor("a").commit(1)
    recorded.operations.clear()
    for offset in range(500):
        log.cursor("a").commit(offset)
    assert [each.name for each in recorded.operations] == ["pwrite"] * 500


def test_commits_at_the_same_time_share_a_sync(disk: MemoryDisk) -> None:
    """The first sync ends when all the others wait: they need one more."""
    syncs = 0
    log: Log

    def before(operation: Operation) -> None:
        nonlocal syncs
        if operation.name == "sync" and operation.path.endswith(CURSORS_FILE):
            syncs += 1
            while syncs == 1 and len(log.partition.cursor_commit._waiting) < 15:
                pass

    log = opened(RecordingDisk(disk, before=before))
    log.append(b"0")
    log.cursor("first").commit(1)
    with ThreadPoolExecutor(16) as pool:
        for each in [pool.submit(log.cursor(f"{n}").commit, 1, sync=True) for n in range(16)]:
            each.result()
    assert syncs == 2
    assert len(opened(disk.durable_image()).cursors()) == 17


def test_a_file_that_has_grown_is_written_anew(disk: MemoryDisk) -> None:
    with opened(disk, LogConfig()) as log:
        log.append([b"0"] * 100)
        for number in range(3000):
            log.cursor("a" if number % 2 else "b").commit(number % 100)
        assert disk.files()[f"{DIRECTORY}/{CURSORS_FILE}"].count(b"\n") < 2000
    with opened(disk) as log:
        assert log.cursors() == {"a": 99, "b": 98}


def test_a_full_disk_refuses_the_commit_and_keeps_the_old_one(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk)
    log = opened(faulty)
    log.append([b"0"] * 10)
    cursor = log.cursor("billing")
    cursor.commit(1)
    before = disk.files()[f"{DIRECTORY}/{CURSORS_FILE}"]
    faulty.inject(Fault(operation="pwrite", path=is_cursors, errno=errno.ENOSPC, short=7))
    with pytest.raises(DiskFull):
        cursor.commit(5)
    assert log.cursors() == {"billing": 1}
    assert disk.files()[f"{DIRECTORY}/{CURSORS_FILE}"] == before
    faulty.heal()
    cursor.commit(6)
    assert opened(disk.copy()).cursors() == {"billing": 6}


# --- truncation, retention ------------------------------------------------------------------------------


def test_a_truncation_moves_cursors_back_to_the_cut(disk: MemoryDisk) -> None:
    with opened(disk) as log:
        for number in range(10):
            log.append(b"%d" % number)
        ahead, behind = log.cursor("ahead"), log.cursor("behind")
        assert len(list(ahead.read())) == 10
        ahead.commit()
        behind.commit(3)
        log.truncate_to(6)
        assert log.cursors() == {"ahead": 6, "behind": 3}
        log.append([b"new"] * 10)
        for action in (ahead.commit, lambda: next(ahead.read())):
            with pytest.raises(LogTruncated, match=r"seek\(6\) continues with what has replaced them"):
                action()
        ahead.seek(6)
        assert [record.value for record in ahead.read()] == [b"new"] * 10
    with opened(disk) as log:
        assert log.cursors() == {"ahead": 6, "behind": 3}


def test_a_cut_of_the_batch_that_holds_the_log_start(disk: MemoryDisk) -> None:
    with opened(disk) as log:
        log.append([b"a"] * 3)
        log.delete_records(1)
        for name, offset in (("at the start", 1), ("within", 2), ("at the end", 3)):
            log.cursor(name).commit(offset)
        log.truncate_to(2)
        assert set(log.cursors().values()) == {1}
        log.append(b"new")
        assert [record.value for record in log.cursor("at the end").read()] == [b"new"]


def test_a_restart_moves_them_too(log: Log) -> None:
    log.cursor("a").commit(8)
    truncate_fully_and_start_at(log.partition, 4)
    assert log.cursors() == {"a": 4}
    log.cursor("a").commit()
    truncate_fully_and_start_at(log.partition, 20)
    log.append(b"20")
    cursor = log.cursor("a")
    with pytest.raises(OffsetOutOfRange) as caught:
        next(cursor.read())
    cursor.seek(caught.value.log_start_offset)
    assert next(cursor.read()).offset == 20


def test_a_cursor_past_the_recovered_end_is_moved_back() -> None:
    """A power cut took records and left the commit: what is written at their offsets must not be skipped."""
    disk = MemoryDisk(directories=["/data"])
    with opened(disk) as log:
        log.append([b"0", b"1"])
    put = disk.open(f"{DIRECTORY}/{CURSORS_FILE}", create=True, write=True)
    put.pwrite(format_cursors({"a": 7, "b": 1}), 0)
    with opened(disk) as log:
        assert log.cursors() == {"a": 2, "b": 1}
        assert log.partition.report.rebuilt == [CURSORS_FILE]
        log.append([b"new"] * 10)
    with opened(disk) as log:
        assert log.cursor("a").position == 2


def aged(disk: MemoryDisk, *, retain: bool) -> Log:
    config = LogConfig(
        segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240, file_delete_delay_ms=0,
        retention_ms=10, retain_for_cursors=retain,
    )  # fmt: skip
    log = opened(disk, config)
    for number in range(20):
        log.append(b"%d" % number * 40, timestamp_ms=1000)
    return log


def test_retention_passes_a_cursor(disk: MemoryDisk) -> None:
    with aged(disk, retain=False) as log:
        cursor = log.cursor("slow")
        cursor.commit(3)
        cursor.seek(3)
        log.maintain(5000)
        assert log.log_start_offset == 20
        assert cursor.lag == 0
        with pytest.raises(OffsetOutOfRange, match=r"offset 3 is outside \[20, 20\]"):
            next(cursor.read())


def test_retention_waits_for_the_slowest_cursor(disk: MemoryDisk) -> None:
    with aged(disk, retain=True) as log:
        slow, fast = log.cursor("slow"), log.cursor("fast")
        slow.commit(7)
        fast.commit(20)
        log.maintain(5000)
        assert 3 < log.log_start_offset <= 7
        slow.seek(7)
        assert [record.offset for record in slow.read()] == list(range(7, 20))
        slow.commit()
        log.maintain(5000)
        assert log.log_start_offset == 20


def test_records_that_are_deleted_on_purpose_go(disk: MemoryDisk) -> None:
    with aged(disk, retain=True) as log:
        log.cursor("slow").commit(2)
        log.delete_records(15)
        log.maintain(1000)
        assert log.log_start_offset == 15
        assert log.partition.segments.first.base_offset > 2


def test_without_a_cursor_retention_runs(disk: MemoryDisk) -> None:
    with aged(disk, retain=True) as log:
        log.maintain(5000)
        assert log.log_start_offset == 20


# --- the file -------------------------------------------------------------------------------------------


def test_the_file_is_read_by_its_lines() -> None:
    text = format_cursors({"a": 1, "b": 2}) + format_cursors({"a": None}) + format_cursors({"b": 5})
    assert parse_cursors(text) == CursorText({"b": 5}, (), False)
    assert parse_cursors(b"") == CursorText({}, (), False)


def test_a_file_cut_at_any_byte_gives_an_earlier_commit() -> None:
    whole = b"".join(format_cursors({"a": number}) for number in range(4))
    for size in range(len(whole) + 1):
        found = parse_cursors(whole[:size])
        lines = whole[:size].count(b"\n")
        assert found.offsets == ({"a": lines - 1} if lines else {})
        assert found.is_torn == (not whole[:size].endswith(b"\n") and size > 0)
        assert not found.unreadable


def test_a_changed_byte_is_noticed() -> None:
    whole = b"".join(format_cursors({"a": number}) for number in range(1, 4))
    line = len(whole) // 3
    for at in range(len(whole)):
        found = parse_cursors(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
        assert found.unreadable or found.is_torn
        # A changed line end takes the line behind it along.
        assert found.offsets == {"a": 1 if at == 2 * line - 1 else 3 if at < 2 * line else 2}


@pytest.mark.parametrize(
    "facts",
    [{}, {"cursor": 1, "offset": 2}, {"cursor": "a", "offset": "2"}, {"cursor": "a", "offset": -1}, [1]],
)
def test_what_is_no_commit_is_unreadable(facts: object) -> None:
    from logstore.format.crc import crc32c

    body = json.dumps(facts)[:-1].encode()
    line = b'%s, "crc": "%08x"}\n' % (body, crc32c(body))
    assert parse_cursors(line) == CursorText({}, (1,), False)


def test_random_bytes_are_never_believed() -> None:
    seed = random.Random().randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(300):
        assert parse_cursors(chance.randbytes(chance.randrange(300))).offsets == {}


def test_damaged_lines_are_left_out_and_reported(disk: MemoryDisk) -> None:
    with opened(disk) as log:
        log.append([b"0"] * 9)
        for offset in (1, 2, 3):
            log.cursor("a").commit(offset)
    path = f"{DIRECTORY}/{CURSORS_FILE}"
    file = disk.open(path, write=True)
    file.pwrite(b"XX", file.size() - 20)
    file.pwrite(b"torn", file.size())
    with opened(disk) as log:
        assert log.cursors() == {"a": 2}
        (note,) = log.partition.report.notes
        assert note == (
            "cursors.jsonl: 1 damaged lines were left out, the first is line 3; a cursor returns to its "
            "commit before, or to the log start"
        )
        log.cursor("a").commit(5)
    with opened(disk) as log:
        assert log.cursors() == {"a": 5}
        assert log.partition.report.notes == []


def test_a_file_that_cannot_be_read_fails_the_opening(disk: MemoryDisk) -> None:
    with opened(disk) as log:
        log.append(b"0")
        log.cursor("a").commit(1)
    faulty = FaultyDisk(disk)
    faulty.inject(Fault(path=is_cursors))
    with pytest.raises((LogDirOffline, OutOfResources)):
        opened(faulty)
    assert opened(disk).cursors() == {"a": 1}


def test_loading_twice_changes_nothing(tmp_path: Path) -> None:
    disk = OsDisk()
    cursors = CursorFile(disk, str(tmp_path))
    cursors.put("a", 5)
    cursors.put("b", 9)
    first, _ = load_cursors(disk, str(tmp_path), 7, is_clean=False)
    assert first.offsets == {"a": 5, "b": 7}
    before = (tmp_path / CURSORS_FILE).read_bytes()
    assert load_cursors(disk, str(tmp_path), 7, is_clean=False)[0].offsets == first.offsets
    assert (tmp_path / CURSORS_FILE).read_bytes() == before
    assert read_cursors(disk, str(tmp_path)).offsets == first.offsets


# --- copies of the log ----------------------------------------------------------------------------------


def test_a_snapshot_has_the_cursors_up_to_its_end(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", SMALL) as log:
        for number in range(20):
            log.append(b"%d" % number * 30)
        log.cursor("a").commit(18)
        log.cursor("b").commit(4)
        log.snapshot(tmp_path / "copy" / "orders-0", end_offset=10)
        log.cursor("b").commit(19)
    with Log.open(tmp_path / "copy" / "orders-0", SMALL) as copy:
        assert copy.cursors() == {"a": 10, "b": 4}
