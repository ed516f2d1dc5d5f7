"""One segment: what it appends, finds, cuts and refuses (rows 76 to 95 of docs/reference/behaviours.md)."""

from __future__ import annotations

import errno

import pytest

from logstore.config import MAX_INT, LogConfig
from logstore.errors import CorruptBatch
from logstore.format.batch import walk
from logstore.segment.segment import Segment, file_name
from logstore.segment.segments import (
    end_offset_of,
    find_timestamp,
    read_batches,
    walk_from,
)
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY, batch, content_of, names
from tests.logstore.segments_kit import (
    BASE,
    CONFIG,
    END,
    append,
    bases,
    first_at,
    locate,
    new_segment,
    records,
    reopened,
    truncated,
)


class TestReading:
    def test_row_77_an_empty_segment(self) -> None:
        assert bases(new_segment(), BASE) is None

    def test_row_78_below_the_first_batch(self) -> None:
        segment = new_segment()
        append(segment, batch(50, (1, 2, 3, 4)))
        assert bases(segment, 41) == [50]

    def test_row_79_past_the_last_batch(self) -> None:
        segment = new_segment()
        append(segment, batch(50, (1, 2)))
        assert bases(segment, 52) is None

    def test_row_80_inside_a_gap(self) -> None:
        segment = new_segment()
        append(segment, batch(50, (1, 2)))
        append(segment, batch(60, (1, 2)))
        assert bases(segment, 55) == [60]
        assert bases(segment, 61) == [60], "a batch is given whole, from its base on"

    @pytest.mark.parametrize(("shift", "count"), [(0, 4), (7, 4), (-7, 3)])
    def test_a_long_read_ends_where_a_batch_does(self, shift: int, count: int) -> None:
        """Cutting off part of a batch would copy the others. With a wrong index it is cut off."""
        disk = RecordingDisk(MemoryDisk(directories=[DIRECTORY]), reads=True)
        segment = new_segment(disk)
        append(segment, *(batch(BASE + number, (1,), value=b"v" * 50_000) for number in range(9)))
        if shift:
            index = segment.indexes.offsets
            index.replace([(offset, at + shift) for offset, at in index.entries() if at])
        disk.operations.clear()
        found = read_batches(segment, BASE, 220_000, END, at_least_one=True)
        assert found is not None
        assert [each.base_offset for each in walk(found.records)] == [
            BASE + number for number in range(count)
        ]
        assert found.next_offset == BASE + count
        (read,) = (each for each in disk.operations if each.length > 100_000)
        assert (read.length == len(found.records)) == (not shift)

    def test_a_wrong_index_hides_no_batch(self) -> None:
        """It names a place inside of the first batch, which is longer than half of the read."""
        segment = new_segment()
        append(segment, *(batch(BASE + number, (1,), value=b"v" * 150_000) for number in range(3)))
        segment.indexes.offsets.replace([(BASE + 1, 140_000)])
        assert bases(segment, BASE, max_bytes=200_000) == [BASE]

    def test_row_49_reading_does_not_move_where_appends_go(self) -> None:
        """Every read and write says where: there is no position to move."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        data = records(*range(40, 48))
        for offset, each in zip(range(40, 48), data, strict=True):
            append(segment, each)
            assert bases(segment, BASE) == list(range(40, offset + 1))
            assert bases(segment, offset, max_bytes=1) == [offset]
            assert locate(segment, 41 if offset > 40 else 40) is not None
            assert list(walk_from(segment, 0))
        assert content_of(disk, file_name(BASE, ".log")) == b"".join(data)

    def test_row_50_the_first_batch_that_ends_at_or_past_an_offset(self) -> None:
        segment = new_segment()
        spans = [batch(40, (1, 2, 3)), batch(50, (1, 2)), batch(60, (1,))]
        append(segment, *spans)
        positions = [0, len(spans[0]), len(spans[0]) + len(spans[1])]
        for target, which in ((40, 0), (42, 0), (43, 1), (50, 1), (51, 1), (52, 2), (60, 2)):
            located = locate(segment, target)
            assert located is not None
            assert (located.position, located.size) == (positions[which], len(spans[which])), target
        assert locate(segment, 61) is None
        assert locate(new_segment(), 40) is None

    def test_row_53_a_time_from_an_offset_on(self) -> None:
        """The first record that is as late and not below the offset; its batch tells the leader epoch."""
        segment = new_segment()
        append(segment, batch(40, (100, 300, 200), epoch=3), batch(43, (250, 400), epoch=5))
        for time, start, offset, epoch in (
            (100, 40, 40, 3), (101, 40, 41, 3), (201, 42, 43, 5), (200, 42, 42, 3), (100, 41, 41, 3),
            (301, 40, 44, 5), (100, 44, 44, 5),
        ):  # fmt: skip
            found = find_timestamp(segment, time, start, END)
            assert found is not None
            first = next(r for r in found.records() if r.timestamp_ms >= time and r.offset >= start)
            assert (first.offset, found.leader_epoch) == (offset, epoch)
        assert find_timestamp(segment, 401, 40, END) is None
        assert find_timestamp(segment, 100, 45, END) is None

    def test_row_81_nothing_below_the_bound(self) -> None:
        segment = new_segment()
        append(segment, *records(50, 51))
        assert bases(segment, 50, end=50) is None
        assert bases(segment, 50, end=51) == [50]

    def test_row_166_and_167_a_limit_below_the_first_batch(self) -> None:
        """Whole batches only: nothing, or the first one if at least one is wanted."""
        segment = new_segment()
        append(segment, *records(50, 51))
        first = len(records(50)[0])
        for limit in (0, 1, first - 1):
            found = read_batches(segment, 50, limit, END, at_least_one=False)
            assert found is not None
            assert found.records == b""
            assert bases(segment, 50, max_bytes=limit) == [50]
        assert bases(segment, 50, max_bytes=first) == [50]
        assert bases(segment, 50, max_bytes=2 * first - 1) == [50]
        assert bases(segment, 50, max_bytes=2 * first) == [50, 51]

    @pytest.mark.parametrize("interval", [0, 1, 100, 300, 10_000])
    def test_every_offset_of_every_batch(self, interval: int) -> None:
        """However dense the index is, and also through the hints of reads before."""
        config = LogConfig(index_interval_bytes=interval)
        segment = new_segment(config=config)
        spans = [(41, 3), (44, 1), (50, 10), (60, 2), (75, 1)]
        for offset, count in spans:
            append(segment, batch(offset, range(offset, offset + count), value=bytes(offset)))
        for _ in range(2):
            for target in range(BASE, 77):
                expected = [base for base, count in spans if base + count > target]
                assert bases(segment, target) == (expected or None)
                found = read_batches(segment, target, 1, END, at_least_one=True)
                if expected:
                    assert found is not None
                    assert [each.base_offset for each in walk(found.records)] == expected[:1]
                else:
                    assert found is None

    def test_a_read_from_the_base_looks_for_no_batch(self) -> None:
        """The first batch is there, in one read; unless it begins later, or its length has rotted."""
        disk = RecordingDisk(MemoryDisk(directories=[DIRECTORY]), reads=True)
        whole, later, rotten = (new_segment(disk, base=base) for base in (0, 100, 200))
        append(whole, *records(0, 1))
        append(later, *records(101, 102))
        append(rotten, *records(200, 201))
        rotten.log_file.pwrite((1 << 30).to_bytes(4, "big"), 8)
        for segment, expected, reads in ((whole, [0, 1], 1), (later, [101, 102], 3), (rotten, None, 2)):
            disk.operations.clear()
            assert bases(segment, segment.base_offset) == expected
            assert [operation.name for operation in disk.operations] == ["pread"] * reads
            assert all(operation.length <= 1 << 20 for operation in disk.operations)
            # As where the first batch is looked for.
            assert (locate(segment, segment.base_offset) is None) == (expected is None)
            assert bases(segment, segment.base_offset) == bases(segment, segment.base_offset - 1)

    def test_a_rotten_length_is_not_read_where_the_last_read_ended(self) -> None:
        """Memory for so many bytes would be asked for, and they are not there."""
        disk = RecordingDisk(MemoryDisk(directories=[DIRECTORY]), reads=True)
        segment = new_segment(disk)
        append(segment, *records(50, 51))
        size = len(records(50)[0])
        assert bases(segment, 50, max_bytes=size) == [50]
        segment.log_file.pwrite((1 << 30).to_bytes(4, "big"), size + 8)
        disk.operations.clear()
        assert bases(segment, 51) is None
        assert max(operation.length for operation in disk.operations) <= 1 << 20

    @pytest.mark.parametrize(
        ("position", "rotten"),
        [
            (0, bytes(17)),
            (8, (-12).to_bytes(4, "big", signed=True)),
            (8, bytes(3) + b"\x30"),
            (23, b"\xff" * 4),
        ],
    )
    def test_a_damaged_header_is_said(self, position: int, rotten: bytes) -> None:
        """A format, a size (without bytes, a walk would not end), or an offset delta that no batch has."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk, config=LogConfig())
        append(segment, *records(50, 51))
        at = len(records(50)[0])
        segment.log_file.pwrite(rotten, at + position)
        with pytest.raises(CorruptBatch, match=rf"no batch at byte {at}; verify the log and recover it"):
            locate(segment, 51)


class TestAppending:
    def test_row_76_the_span_of_a_segment(self) -> None:
        """Past it the segment rolls before (policy); an index asserts that it did."""
        segment = new_segment(base=0, config=LogConfig(index_interval_bytes=0))
        append(segment, batch(0, (1,)))
        append(segment, batch(MAX_INT, (1,)))
        with pytest.raises(AssertionError, match="does not fit"):
            append(segment, batch(MAX_INT + 1, (1,)))

    def test_row_87_the_next_offset(self) -> None:
        segment = new_segment()
        assert end_offset_of(segment) == BASE
        append(segment, *records(50, 51, 52))
        assert end_offset_of(segment) == 53

    def test_an_entry_a_batch_also_in_one_append(self) -> None:
        """As later brokers do it: what recovery rebuilds is what appends made."""
        together, singly = new_segment(), new_segment()
        batches = records(*range(50, 70))
        append(together, *batches)
        for each in batches:
            append(singly, each)
        assert together.indexes.offsets.entries() == singly.indexes.offsets.entries()
        assert together.indexes.times.entries() == singly.indexes.times.entries()

    def test_row_95_the_first_timestamp(self) -> None:
        """Of the first append, its largest; none while there is nothing; read again after a reopen."""
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        assert segment.first_timestamp_ms == -1
        append(segment, batch(50, (9, 3)))
        append(segment, batch(52, (99,)))
        assert segment.first_timestamp_ms == 9
        segment.close()
        assert reopened(disk).first_timestamp_ms == 9

    @pytest.mark.parametrize("short", [0, 1, 40])
    def test_a_failed_write_leaves_no_bytes(self, short: int) -> None:
        disk = MemoryDisk(directories=[DIRECTORY])
        faulty = FaultyDisk(disk)
        segment = new_segment(faulty)
        append(segment, *records(50))
        size = segment.size
        faulty.inject(Fault(operation="pwrite", errno=errno.ENOSPC, short=short))
        with pytest.raises(OSError, match="No space"):
            append(segment, *records(51))
        assert segment.size == size == len(content_of(disk, file_name(BASE, ".log")))
        append(segment, *records(51))
        assert bases(segment, BASE) == [50, 51]

    def test_an_index_that_finds_no_room_refuses_before_the_write(self) -> None:
        disk = MemoryDisk(directories=[DIRECTORY])
        faulty = FaultyDisk(disk)
        segment = new_segment(faulty, config=LogConfig(index_interval_bytes=0))
        appended = 0
        faulty.inject(
            Fault(operation="pwrite", errno=errno.ENOSPC, path=lambda path: path.endswith("index"), at=1)
        )
        for offset in range(50, 700):
            try:
                append(segment, *records(offset))
            except OSError:
                assert faulty.fired
                append(segment, *records(offset))
            appended += 1
        assert len(bases(segment, BASE) or ()) == appended == 650
        assert segment.indexes.offsets.entry_count == 649


class TestTruncating:
    def test_row_82_again_and_again(self) -> None:
        """The same offsets, thirty times over."""
        segment = new_segment()
        for offset in range(BASE, BASE + 60, 2):
            append(segment, *records(offset))
            append(segment, *records(offset + 1))
            assert truncated(segment, offset + 1, 0) > 0
            assert bases(segment, offset) == [offset]
            assert bases(segment, offset + 1) is None
            append(segment, *records(offset + 1))

    def test_row_84_time_entries_and_the_largest_time(self) -> None:
        """After a cut the largest time is found again, by scan where no entry is left."""
        size = len(batch(BASE, (0,)))
        segment = new_segment(config=LogConfig(index_interval_bytes=2 * size - 1))
        for offset in range(BASE, BASE + 30):
            append(segment, batch(offset, (offset * 10,)))
        assert segment.indexes.times.entry_count == 14
        truncated(segment, 41, 0)
        assert segment.indexes.times.entry_count == 0
        assert segment.largest_timestamp_ms == 400
        assert end_offset_of(segment) == 41

    def test_row_85_whole(self) -> None:
        """Its age begins anew and the same offsets can be written."""
        segment = new_segment()
        append(segment, *records(*range(40, 60)))
        truncated(segment, BASE, 77)
        assert (segment.size, segment.created_ms, segment.first_timestamp_ms) == (0, 77, -1)
        assert segment.max_timestamp_ms == -1
        assert not segment.index_is_full
        append(segment, *records(*range(40, 60)))
        assert end_offset_of(segment) == 60

    def test_row_51_truncating_to_the_end_touches_nothing(self) -> None:
        """A cut is made at an offset: at the end or past it there is nothing to cut, and no file grows."""
        disk = MemoryDisk(directories=[DIRECTORY])
        new = new_segment(disk)
        append(new, *records(40, 41, 42))
        new.close()
        recording = RecordingDisk(disk)
        size = len(content_of(disk, file_name(BASE, ".log")))
        segment = Segment(recording, DIRECTORY, BASE, CONFIG, size=size, now_ms=9)
        for offset in (43, 44, 1 << 40):
            assert truncated(segment, offset, 0) == 0
        assert recording.operations == []
        assert truncated(segment, 41, 0) == len(b"".join(records(41, 42)))
        assert content_of(disk, file_name(BASE, ".log")) == records(40)[0]

    def test_row_93_inside_a_gap(self) -> None:
        """What follows the gap goes, what lies before it stays."""
        segment = new_segment()
        append(segment, *records(40))
        append(segment, *records(43))
        truncated(segment, 41, 0)
        assert bases(segment, BASE) == [40]

    def test_inside_a_batch_it_goes_whole(self) -> None:
        """Pitfall 10."""
        segment = new_segment()
        append(segment, batch(40, (1, 2, 3)), batch(43, (4, 5, 6)))
        truncated(segment, 44, 0)
        assert end_offset_of(segment) == 43

    def test_past_the_end_nothing_happens(self) -> None:
        segment = new_segment()
        append(segment, *records(40))
        assert truncated(segment, 41, 0) == 0
        assert segment.size

    def test_aborted_transactions_go_with_their_markers(self) -> None:
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, *records(*range(40, 50)))
        for last in (42, 46):
            segment.aborts.append(AbortedTransaction(1, last - 1, last, last + 1))
        truncated(segment, 46, 0)
        assert len(content_of(disk, file_name(BASE, ".txnindex"))) == 34
        segment.aborts.append(AbortedTransaction(1, 44, 45, 46))
        segment.let_go()
        segment = reopened(disk)
        entries = segment.aborts.index.entries
        assert [entry.last_offset for entry in entries] == [42, 45]
        truncated(segment, 40, 0)
        assert file_name(BASE, ".txnindex") not in names(disk)


class TestTimes:
    @pytest.mark.parametrize("interval", [0, 1, 200, 10_000])
    def test_row_86_exact_to_the_record(self, interval: int) -> None:
        segment = new_segment(config=LogConfig(index_interval_bytes=interval))
        for offset in range(40, 50, 2):
            append(segment, batch(offset, (10 * offset, 10 * offset + 10)))
        for time, expected in ((420, 42), (421, 43), (430, 43), (431, 44), (491, None), (401, 41), (399, 40)):
            assert first_at(segment, time) == expected

    @pytest.mark.parametrize("interval", [0, 200, 10_000])
    def test_times_in_no_order(self, interval: int) -> None:
        """Counting by hand is the definition; from every start, for every time."""
        times = [[50, 20], [30], [90, 10, 80], [40], [95], [5, 60]]
        segment = new_segment(config=LogConfig(index_interval_bytes=interval))
        rows: list[tuple[int, int]] = []
        offset = BASE
        for group in times:
            append(segment, batch(offset, group))
            rows += [(time, offset + delta) for delta, time in enumerate(group)]
            offset += len(group)
        for start in range(BASE, offset):
            for time in range(0, 100, 5):
                right = next((at for found, at in rows if found >= time and at >= start), None)
                assert first_at(segment, time, start) == right

    def test_the_largest_time_is_its_earliest_batch(self) -> None:
        segment = new_segment()
        append(segment, *(batch(offset, (time,)) for offset, time in ((40, 5), (41, 9), (42, 9), (43, 7))))
        assert segment.largest == (9, 41)

    def test_without_times_the_files_own_counts(self) -> None:
        disk = MemoryDisk(directories=[DIRECTORY])
        segment = new_segment(disk)
        append(segment, batch(40, (-1,)))
        segment.close()
        again = reopened(disk)
        assert again.max_timestamp_ms == -1
        assert again.largest_timestamp_ms == 5555
