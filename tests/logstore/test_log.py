"""One partition's log: what it gives back, where it rolls, what is left of it."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from logstore.config import MAX_INT, LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OffsetOutOfRange
from logstore.format.batch import encode_batch, walk
from logstore.format.compression import Codec
from logstore.format.record import ControlType, Header, Record
from logstore.log.append import append_as_leader
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import FetchIsolation, Log
from logstore.log.manager import LogManager
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.epochs import EpochEndOffset
from logstore.segment.segment import SNAPSHOT_SUFFIX, file_name
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import DIRECTORY, batch, names
from tests.logstore.plain_logs import (
    NOW_MS,
    SIZE,
    filled,
    mark,
    new_disk,
    offsets,
    one,
    opened,
    produce,
    segment_bases,
)


class TestAppendAndRead:
    def test_a_value_a_key_headers_and_a_time(self) -> None:
        log = opened()
        info = log.append(b"v", key=b"k", headers=[("h", b"1"), ("none", None)], timestamp_ms=77)
        assert (info.first_offset, info.last_offset, info.max_timestamp_ms) == (0, 0, 77)
        assert list(log.read()) == [Record(0, 77, b"k", b"v", (Header("h", b"1"), Header("none", None)))]

    def test_the_clock_stamps_what_has_no_time(self) -> None:
        log = opened()
        log.append(b"a")
        log.append([b"b", (b"k", b"c"), (b"k", None), None, Record(99, 5, None, b"d")])
        assert [(r.timestamp_ms, r.key, r.value) for r in log.read()] == [
            (NOW_MS, None, b"a"),
            (NOW_MS, None, b"b"),
            (NOW_MS, b"k", b"c"),
            (NOW_MS, b"k", None),
            (NOW_MS, None, None),
            (5, None, b"d"),
        ]

    def test_many_records_are_one_batch(self) -> None:
        log = opened()
        info = log.append([b"%d" % number for number in range(100)])
        assert (info.first_offset, info.last_offset) == (0, 99)
        assert [each.record_count for each in log.read_batches()] == [100]

    def test_an_iterable_larger_than_a_batch_is_several(self) -> None:
        log = opened(max_message_bytes=2000)
        info = log.append(b"x" * 300 for _ in range(20))
        assert (info.first_offset, info.last_offset) == (0, 19)
        assert len(list(log.read_batches())) > 1
        assert offsets(log) == list(range(20))

    def test_nothing_appends_nothing(self) -> None:
        log = filled(2)
        info = log.append([])
        assert (info.first_offset, info.last_offset, log.log_end_offset) == (2, 1, 2)

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_compression_is_the_topics(self, codec: str) -> None:
        log = opened(compression_type=codec)
        log.append([b"aaaa" * 100] * 10)
        assert [each.codec for each in log.read_batches()] == [Codec[codec.upper()]]
        assert [record.value for record in log.read()] == [b"aaaa" * 100] * 10

    def test_ready_batches_keep_their_bytes_but_for_their_place(self) -> None:
        log = opened()
        first, second = one(b"a"), encode_batch([Record(0, 5, None, b"b"), Record(1, 6, None, b"c")])
        info = log.append_batches(first + second)
        assert (info.first_offset, info.last_offset, info.max_timestamp_ms) == (0, 2, 1000)
        assert [bytes(each.buffer)[21:] for each in log.read_batches()] == [first[21:], second[21:]]
        assert [each.base_offset for each in log.read_batches()] == [0, 1]

    def test_values_of_other_kinds_are_refused(self) -> None:
        log = opened()
        kinds: list[Any] = ["text", 5, ["text"], [b"", 5], {b"key": b"value"}, (b"k",), [(b"k", b"v", [])]]
        for wrong in kinds:
            with pytest.raises(TypeError, match="is not a value"):
                log.append(wrong)
        parts: list[dict[str, Any]] = [
            {"key": "text"}, {"key": 5}, {"timestamp_ms": 1.5}, {"timestamp_ms": 1 << 63},
        ]  # fmt: skip
        for part in parts:
            with pytest.raises(TypeError, match="keys, values and header values must be bytes or None"):
                log.append(b"value", **part)
        for headers in ([(None, b"")], [("h", "text")]):
            with pytest.raises(TypeError, match="header"):
                log.append(b"value", headers=cast(Any, headers))
        with pytest.raises(TypeError, match="keys, values and header values must be bytes or None"):
            log.append([(b"key", "text")])
        with pytest.raises(TypeError, match="key and headers go with a single value"):
            log.append([b"a"], key=b"k")
        assert log.log_end_offset == 0

    def test_row_155_isolation_at_every_offset(self) -> None:
        """Below the bound data, never a batch that begins at it; from it to the end nothing, no error."""
        log = opened()
        for size in (1, 3, 2):
            append_as_leader(log.partition, batch(0, range(size)), leader_epoch=0, now_ms=NOW_MS)
        log.partition.follows_end = False
        log.partition.set_high_watermark(4)
        for offset in range(7):
            seen = [each.base_offset for each in walk(log.read_bytes(offset).records)]
            assert seen == [base for base, last in ((0, 0), (1, 3), (4, 5)) if last >= offset]
            committed = log.read_bytes(offset, isolation=FetchIsolation.HIGH_WATERMARK).records
            assert [each.base_offset for each in walk(committed)] == [each for each in seen if each < 4]

    def test_row_165_a_gap_at_a_segments_end(self) -> None:
        """Reading in it goes on in the next segment."""
        log = opened(segment_bytes=150)
        append_as_follower(log.partition, batch(0, (1, 2)), leader_epoch=0)
        append_as_follower(log.partition, batch(9, (3,)), leader_epoch=0)
        assert segment_bases(log) == [0, 9]
        for offset in range(2, 10):
            assert log.read_bytes(offset).start_offset == offset
            assert [each.base_offset for each in walk(log.read_bytes(offset).records)] == [9]

    def test_rows_166_and_167_limits(self) -> None:
        """Whole batches: nothing below the first one's size, unless at least one is asked for."""
        log = filled(3)
        for limit in (0, 1, SIZE - 1):
            assert log.read_bytes(0, limit, at_least_one=False).records == b""
            assert len(log.read_bytes(0, limit).records) == SIZE
        assert len(log.read_bytes(0, 2 * SIZE + 1).records) == 2 * SIZE

    def test_row_168_the_bounds(self) -> None:
        log = filled(6)
        advance_log_start_offset(log.partition, 3)
        assert log.read_bytes(6).records == b""
        for offset in (-1, 0, 2, 7):
            with pytest.raises(OffsetOutOfRange, match=rf"offset {offset} is outside \[3, 6\]") as caught:
                log.read_bytes(offset)
            assert (caught.value.log_start_offset, caught.value.log_end_offset) == (3, 6)
        assert offsets(log) == [3, 4, 5]

    def test_a_bound_inside_a_batch_is_past_it(self) -> None:
        """Reading from the bound on gives nothing, also where the batch around it began before."""
        log = LogManager(["/data"], disk=MemoryDisk(), clock=lambda: NOW_MS, random=Random(1)).get_or_create(
            TopicPartition("orders", 0)
        )
        log.append([b"a", b"b", b"c"])
        log.partition.set_high_watermark(2)
        assert log.read_bytes(2, isolation=FetchIsolation.HIGH_WATERMARK).records == b""
        assert log.read_bytes(2).records

    def test_what_a_fetch_says_of_itself(self) -> None:
        log = filled(5, segment_bytes=2 * SIZE)
        fetched = log.read_bytes(3)
        assert (fetched.start_offset, fetched.segment_base_offset, fetched.position) == (3, 2, SIZE)
        assert fetched.next_offset == 4
        assert log.read_bytes(5).next_offset == 5

    def test_reading_from_inside_a_batch(self) -> None:
        log = opened()
        log.append([b"a", b"b", b"c"])
        assert offsets(log, 1) == [1, 2]
        assert [each.base_offset for each in log.read_batches(1)] == [0]

    def test_control_batches_are_batches_but_not_records(self) -> None:
        log = opened()
        produce(log, 5, 0, transaction=True)
        mark(log, 5, ControlType.COMMIT)
        assert [each.is_control for each in log.read_batches()] == [False, True]
        assert offsets(log) == [0]

    def test_times_are_found_exactly(self) -> None:
        """First record at or past the time, whatever order the times are in."""
        log = opened(segment_bytes=400)
        times = [50, 20, 30, 90, 10, 80, 40, 95, 5, 60, 95]
        for time in times:
            log.append_batches(one(time=time))
        assert len(log.partition.segments) > 2
        for time in range(0, 100, 5):
            right = next((offset for offset, each in enumerate(times) if each >= time), None)
            answer = log.offset_for_timestamp(time)
            assert (None if answer is None else answer.offset) == right
            assert answer is None or (answer.timestamp_ms, answer.leader_epoch) == (times[answer.offset], 0)
        advance_log_start_offset(log.partition, 4)
        found = log.offset_for_timestamp(85)
        assert found is not None
        assert found.offset == 7, "a time below the log start is not an answer"

    def test_times_beyond_the_bound_are_not_answers(self) -> None:
        log = filled(6)
        log.partition.follows_end = False
        log.partition.set_high_watermark(3)
        assert log.offset_for_timestamp(1004, isolation=FetchIsolation.HIGH_WATERMARK) is None
        found = log.offset_for_timestamp(1002, isolation=FetchIsolation.HIGH_WATERMARK)
        assert found is not None
        assert found.offset == 2

    def test_a_log_append_time_topic(self) -> None:
        log = opened(message_timestamp_type="LogAppendTime")
        info = log.append([b"a", b"b"], timestamp_ms=5)
        assert (info.log_append_time_ms, info.max_timestamp_ms) == (NOW_MS, NOW_MS)
        assert [record.timestamp_ms for record in log.read()] == [NOW_MS, NOW_MS]


class TestRolling:
    def test_row_157_segments_by_size(self) -> None:
        log = filled(22, segment_bytes=10 * SIZE)
        assert segment_bases(log) == [0, 10, 20]
        assert offsets(log) == list(range(22))

    def test_row_158_one_byte_less(self) -> None:
        assert len(filled(11, segment_bytes=10 * (SIZE - 1)).partition.segments) == 2

    def test_rows_159_to_161_time(self) -> None:
        """An empty segment has no age; records' time rolls, the clock alone does not, nor does nothing."""
        now = [0]
        log = Log.open(DIRECTORY, LogConfig(segment_ms=1000), disk=new_disk(), clock=lambda: now[0])
        now[0] = 5000
        log.append_batches(one(time=5000))
        assert segment_bases(log) == [0]
        now[0] = 99_000
        log.append_batches(one(time=5500))
        log.append([])
        assert segment_bases(log) == [0]
        log.append_batches(one(time=6001))
        assert segment_bases(log) == [0, 2]

    @pytest.mark.parametrize("reopens", [False, True])
    def test_the_age_of_a_segment_is_that_of_its_first_batch(self, reopens: bool) -> None:
        """A follower's first append may have many batches; a restart changes nothing."""
        disk = new_disk()
        log = opened(disk, segment_ms=1000)
        data = batch(0, [1000]) + batch(1, [1900])
        append_as_follower(log.partition, data, leader_epoch=0)
        if reopens:
            log.close()
            log = opened(disk, segment_ms=1000)
        log.append_batches(one(time=2001))
        assert segment_bases(log) == [0, 2]

    def test_row_163_an_empty_active_segment_stays(self) -> None:
        log = filled(3)
        log.partition.roll()
        log.partition.roll()
        assert segment_bases(log) == [0, 3]
        log.append(b"x")
        assert offsets(log) == [0, 1, 2, 3]

    def test_row_163_an_index_that_holds_nothing(self) -> None:
        """With room for no entry every append rolls, and an empty segment replaces itself."""
        log = filled(4, segment_index_bytes=12)
        assert segment_bases(log) == [0, 1, 2, 3]
        assert offsets(log) == [0, 1, 2, 3]

    def test_row_83_an_index_that_is_full_rolls(self) -> None:
        log = filled(12, index_interval_bytes=0, segment_index_bytes=48)
        assert len(log.partition.segments) > 1
        assert offsets(log) == list(range(12))
        assert all(segment.indexes.times.entry_count <= 4 for segment in log.partition.segments)

    def test_row_172_indexes_are_trimmed_at_a_roll(self) -> None:
        disk = new_disk()
        log = filled(10, disk, index_interval_bytes=SIZE - 1)
        log.partition.roll()
        files = disk.files()
        assert len(files[f"{DIRECTORY}/{file_name(0, '.index')}"]) == 9 * 8
        assert len(files[f"{DIRECTORY}/{file_name(0, '.timeindex')}"]) == 9 * 12
        log.truncate_to(0)
        assert [segment.indexes.offsets.entry_count for segment in log.partition.segments] == [0]
        assert not log.partition.segments[0].index_is_full

    def test_row_203_offsets_too_far_apart_for_one_segment(self) -> None:
        """In several appends and in a single one; and all of it is there after a crash."""
        apart = [batch(0, (1,)), batch(MAX_INT + 2, (2,)), batch(MAX_INT + 3, (3,))]
        for appends in ([*apart], [b"".join(apart)]):
            disk = new_disk()
            log = opened(disk)
            for data in appends:
                append_as_follower(log.partition, data, leader_epoch=0)
            assert segment_bases(log) == [0, MAX_INT + 2]
            assert file_name(MAX_INT + 2, SNAPSHOT_SUFFIX) in names(disk)
            log.flush()
            assert offsets(opened(disk.durable_image())) == [0, MAX_INT + 2, MAX_INT + 3]

    def test_row_94_batches_parted_where_a_segment_ends(self) -> None:
        """As offsets 0, 500 and past 2^31 come in one append; one larger than a chunk comes whole."""
        log = opened()
        large = batch(500, (2,), value=bytes(1_500_000))
        append_as_follower(log.partition, batch(0, (1,)) + large + batch(MAX_INT + 5, (3,)), leader_epoch=0)
        assert segment_bases(log) == [0, MAX_INT + 5]
        assert offsets(log) == [0, 500, MAX_INT + 5]
        first, second = log.partition.segments
        assert (first.size, second.size) == (len(batch(0, (1,)) + large), len(batch(MAX_INT + 5, (3,))))

    def test_row_170_a_sealed_segment_is_durable(self) -> None:
        """Stricter: before its successor exists, not soon after."""
        disk = new_disk()
        log = filled(3, disk, segment_bytes=3 * SIZE)
        assert log.partition.recovery_point == 0
        log.append_batches(one())
        assert log.partition.recovery_point == 3
        assert offsets(opened(disk.durable_image())) == [0, 1, 2]


class TestFollowing:
    def test_batches_are_kept_byte_for_byte(self) -> None:
        log = opened()
        data = batch(0, (1, 2), epoch=3) + batch(5, (9, 7), epoch=4)
        info = append_as_follower(log.partition, data, leader_epoch=4)
        assert (info.first_offset, info.last_offset, info.max_timestamp_ms) == (0, 6, 9)
        assert log.read_bytes(0).records == data
        assert log.partition.epochs == ((3, 0), (4, 5))

    def test_row_219_epochs_of_a_follower(self) -> None:
        log = opened()
        for offset, epoch in enumerate((0, 0, 1, 1, 2, 2, 3)):
            append_as_follower(log.partition, batch(offset, (1,), epoch=epoch), leader_epoch=3)
        assert [start for _, start in log.partition.epochs] == [0, 2, 4, 6]
        assert [log.partition.end_offset_for_epoch(epoch).end_offset for epoch in range(4)] == [2, 4, 6, 7]
        assert log.partition.end_offset_for_epoch(9) == EpochEndOffset(-1, -1)
        assert [log.partition.epoch_for_offset(offset) for offset in (0, 3, 6)] == [0, 1, 3]

    def test_a_torn_last_batch_is_left_out(self) -> None:
        log = opened()
        data = batch(0, (1, 2)) + batch(2, (3,))
        info = append_as_follower(log.partition, data[:-1], leader_epoch=0)
        assert info.last_offset == 1
        assert append_as_follower(log.partition, data[:20], leader_epoch=0).last_offset == 1
        append_as_follower(log.partition, batch(2, (3,)), leader_epoch=0)
        assert log.read_bytes(0).records == data

    def test_a_gap_moves_the_next_base(self) -> None:
        log = opened(segment_bytes=150)
        append_as_follower(log.partition, batch(0, (1, 2)), leader_epoch=0)
        append_as_follower(log.partition, batch(10, (3,)), leader_epoch=0)
        assert segment_bases(log) == [0, 10]
        append_as_leader(log.partition, one(), leader_epoch=1, now_ms=NOW_MS)
        assert offsets(log) == [0, 1, 10, 11]

    def test_an_append_larger_than_a_segment(self) -> None:
        """What a leader could write its follower must be able to hold."""
        log = opened(segment_bytes=200, max_message_bytes=100)
        data = b"".join(batch(offset, (1,), value=bytes(90)) for offset in range(5))
        append_as_follower(log.partition, data, leader_epoch=0)
        assert log.read_bytes(0).records == data
