"""Indexes, and the life of a segment's files."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest

from logstore.config import LogConfig
from logstore.disk.files import read_small_file
from logstore.errors import CorruptIndex
from logstore.log.log import Log
from logstore.segment.indexes import NO_TIMESTAMP, OffsetIndex, OffsetPosition, TimestampedOffset
from logstore.segment.segment import Segment, file_name
from logstore.segment.segment_indexes import SegmentIndexes
from logstore.segment.segments import (
    end_offset_of,
)
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import FaultyDisk, MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY, batch, content_of, names, put
from tests.logstore.segments_kit import (
    BASE,
    CONFIG,
    append,
    bases,
    first_at,
    locate,
    new_segment,
    records,
    reopened,
    truncated,
)


class TestIndexesAreNeverEvidence:
    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    @pytest.mark.parametrize("noise", [None, b"", b"  ", bytes(48), b"\x01" * 48, b"\xff" * 24, b"\x7f" * 96])
    def test_row_89_noise(self, suffix: str, noise: bytes | None) -> None:
        """Deleted or overwritten: every record is found by offset and by time."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        for offset in range(40, 140):
            append(segment, batch(offset, (10 * offset,)))
        segment.close()
        name = file_name(BASE, suffix)
        if noise is None:
            disk.remove(f"{DIRECTORY}/{name}")
        else:
            put(disk, name, noise)
        again = reopened(disk)
        for offset in range(40, 140):
            located = locate(again, offset)
            assert located is not None
            assert located.base_offset == offset
            assert first_at(again, 10 * offset) == offset
        assert end_offset_of(again) == 140

    def test_entries_that_point_into_batches(self) -> None:
        """In order and within the file, but not where batches begin."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, *records(*range(40, 60)))
        segment.close()
        wrong = bytearray(content_of(disk, file_name(BASE, ".index")))
        for slot in range(0, len(wrong), 8):
            position = int.from_bytes(wrong[slot + 4 : slot + 8], "big") + 3
            wrong[slot + 4 : slot + 8] = position.to_bytes(4, "big")
        put(disk, file_name(BASE, ".index"), bytes(wrong)[:-8])
        again = reopened(disk)
        for offset in range(40, 60):
            assert bases(again, offset) == list(range(offset, 60))

    def test_entries_of_another_offset(self) -> None:
        """They point to batches, but to later ones than they say."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, *records(*range(40, 60)))
        segment.close()
        right = content_of(disk, file_name(BASE, ".index"))
        rows = [right[at : at + 8] for at in range(0, len(right), 8)]
        shifted = [row[:4] + later[4:] for row, later in zip(rows, rows[5:], strict=False)]
        put(disk, file_name(BASE, ".index"), b"".join(shifted))
        again = reopened(disk)
        for offset in range(40, 60):
            assert bases(again, offset) == list(range(offset, 60))


class TestLifecycle:
    def test_row_61_and_172_books_are_closed(self) -> None:
        """On a roll the last time entry is made, in the slot that was kept for it."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, *records(40, 41))
        append(segment, batch(42, (5000,)))
        segment.become_inactive()
        segment.become_inactive()
        assert segment.indexes.times.last == (5000, 42)
        assert len(content_of(disk, file_name(BASE, ".timeindex"))) == 12 * segment.indexes.times.entry_count

    def test_row_61_the_kept_slot(self) -> None:
        config = LogConfig(index_interval_bytes=0, segment_index_bytes=48)
        segment = new_segment(config=config)
        for offset in range(40, 43):
            append(segment, *records(offset))
        assert not segment.index_is_full
        append(segment, *records(43))
        append(segment, *records(44))
        assert segment.index_is_full
        segment.become_inactive()
        assert segment.indexes.times.entry_count == segment.indexes.times.capacity == 4

    def test_row_75_delete_with_and_without_files(self) -> None:
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, *records(40))
        segment.close()
        segment.delete()
        assert names(disk) == []
        segment.delete()

    def test_rows_75_and_88_set_aside_before_its_indexes_exist(self) -> None:
        """What is there gets the new name; what is not is neither missed nor made."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, *records(40))
        assert names(disk) == [file_name(BASE, ".log")]
        assert segment.set_aside() == [f"{DIRECTORY}/{file_name(BASE, '.log')}.deleted"]
        assert names(disk) == [f"{file_name(BASE, '.log')}.deleted"]

    def test_a_reader_keeps_the_file_it_has(self) -> None:
        """Deleted under its reader: what it reads is what was there."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, *records(40))
        file = segment.log_file
        segment.delete()
        assert file.pread(1 << 20, 0) == records(40)[0]

    def test_a_name_that_is_taken(self) -> None:
        """A new segment never takes over another one's bytes."""
        disk = MemoryDisk({f"{DIRECTORY}/{file_name(BASE, '.log')}": b"bytes"})
        with pytest.raises(FileExistsError):
            new_segment(disk)

    def test_row_74_the_transaction_index_again(self) -> None:
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        entries = [AbortedTransaction(1, 40, 42, 43), AbortedTransaction(2, 41, 44, 45)]
        segment.aborts.append(entries[0])
        segment.close()
        again = reopened(disk)
        again.aborts.append(entries[1])
        again.let_go()
        assert list(reopened(disk).aborts.index.entries) == entries
        below = AbortedTransaction(1, 5, BASE - 1, 7).encode()
        put(disk, file_name(BASE, ".txnindex"), below)
        with pytest.raises(CorruptIndex):
            _ = reopened(disk).aborts.index


def test_a_segment_that_was_let_go_leaves_its_names_alone() -> None:
    """A reader that still holds one must not open, let alone rebuild, the indexes of its successor."""
    disk = MemoryDisk(directories=[DIRECTORY])
    old = new_segment(disk)
    append(old, *records(*range(40, 60)))
    old.delete()
    new = new_segment(disk)
    append(new, *records(40, 41, 42))
    new.sync_indexes()
    before = content_of(disk, file_name(BASE, ".index"))
    rebuild = partial(old.indexes.rebuild, ".index", "a test")
    for use in (lambda: bases(old, 55), lambda: locate(old, 55), rebuild, old.sync_log):
        with pytest.raises(FileNotFoundError):
            use()
    assert content_of(disk, file_name(BASE, ".index")) == before


@pytest.mark.parametrize("end", [Segment.rest, Segment.let_go])
def test_an_index_that_a_reader_still_holds_keeps_no_map(end: Callable[[Segment], None]) -> None:
    """Its file may be cut by whoever opens it next; a look at the map would then kill the process."""
    disk = MemoryDisk(directories=[DIRECTORY])
    segment = new_segment(disk)
    append(segment, *records(*range(40, 60)))
    segment.become_inactive()
    offsets, times = segment.indexes.offsets, segment.indexes.times
    assert offsets.lookup(58).position > 0
    end(segment)
    assert truncated(reopened(disk), 45, 0)  # the disk in memory refuses to cut what is mapped
    assert offsets.lookup(58) == OffsetPosition(BASE, 0)
    assert times.lookup(1058) == TimestampedOffset(NO_TIMESTAMP, BASE)


@pytest.mark.parametrize("end", [Segment.rest, Segment.let_go])
def test_an_index_that_was_let_go_is_not_written_by_who_was_about_to_sync_it(
    end: Callable[[Segment], None],
) -> None:
    """A thread that flushes has it in hand as another one rolls. Its file would be opened as an empty index's
    and cut to nothing, under the maps of its successors: a reader would die of that."""
    disk = MemoryDisk(directories=[DIRECTORY])
    segment = new_segment(disk)
    append(segment, *records(*range(40, 60)))
    segment.become_inactive()
    segment.sync_indexes()
    offsets, times = segment.indexes.offsets, segment.indexes.times
    before = {path: read_small_file(disk, path) for path in (offsets.path, times.path)}
    again = reopened(disk)
    assert again.indexes.offsets.lookup(58).position > 0
    end(segment)
    offsets.sync()
    times.flush()
    assert {path: read_small_file(disk, path) for path in before} == before
    assert again.indexes.offsets.lookup(58).position > 0


def test_a_cut_under_a_reader_does_not_void_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that a reader looked up before a cut names a batch that is gone: no reason to rebuild."""
    segment = new_segment(config=LogConfig(index_interval_bytes=0))
    append(segment, *records(*range(40, 60)))
    lookup = OffsetIndex.lookup
    pending = [True]

    def interrupted(index: OffsetIndex, offset: int) -> OffsetPosition:
        entry = lookup(index, offset)
        if pending:
            pending.clear()
            truncated(segment, 45, 0)
            append(segment, *records(45, 46))
        return entry

    monkeypatch.setattr(OffsetIndex, "lookup", interrupted)
    monkeypatch.setattr(SegmentIndexes, "rebuild", lambda *_: pytest.fail("nothing is wrong with it"))
    assert locate(segment, 58) is None
    append(segment, *records(47))
    assert bases(segment, 45) == [45, 46, 47]


def test_opening_touches_nothing_until_it_is_asked() -> None:
    """A log of a thousand segments opens by listing a directory."""
    disk = MemoryDisk(directories=[DIRECTORY])
    segment = new_segment(disk)
    append(segment, *records(40))
    segment.close()
    faulty = FaultyDisk(disk)
    Segment(faulty, DIRECTORY, BASE, CONFIG, size=10, now_ms=0)
    assert faulty.calls == 0


def test_a_log_that_rolls_holds_the_files_of_its_active_segment() -> None:
    """Descriptors do not grow with the log: what was rolled is opened again by who reads it."""
    disk = RecordingDisk(MemoryDisk())
    log = Log.open("/data/orders-0", LogConfig(segment_bytes=300), disk=disk, clock=lambda: 1)
    gc.collect()
    for _ in range(30):
        log.append(b"x" * 200)
    assert len(log.partition.segments) == 30
    open_now = {file.path for file in disk._files}
    assert {path for path in open_now if path.endswith(".log")} == {log.partition.segments[-1].path(".log")}
    assert len([path for path in open_now if "index" in path]) <= 2
    assert [record.offset for record in log.read()] == list(range(30))
