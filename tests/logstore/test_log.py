"""One partition's log: what it gives back, where it rolls, what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from logstore.config import MAX_INT, LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch, DamagedLog, InvalidRecord, LogClosed, OffsetOutOfRange
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, walk
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Header, Record
from logstore.log.append import append_as_follower, append_as_leader
from logstore.log.log import AppendInfo, FetchIsolation, Log
from logstore.log.manager import LogManager
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset, flush_sealed
from logstore.log.validation import AppendOrigin
from logstore.segment.epochs import EpochEndOffset
from logstore.segment.segment import SNAPSHOT_SUFFIX, file_name
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.disks import MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY, batch, names

NOW_MS = 10_000


def new_disk() -> MemoryDisk:
    return MemoryDisk(directories=["/data"])


def opened(disk: MemoryDisk | RecordingDisk | None = None, **settings: Any) -> Log:
    config = LogConfig(**settings)
    return Log.open(DIRECTORY, config, disk=disk or new_disk(), clock=lambda: NOW_MS)


def one(value: bytes = b"value", *, time: int = 1000) -> bytes:
    """A client's batch of one record."""
    return encode_batch([Record(0, time, None, value)])


SIZE = len(one())


def filled(count: int, disk: MemoryDisk | RecordingDisk | None = None, **settings: Any) -> Log:
    """A log of `count` batches of one record each, `SIZE` bytes, time 1000 + offset."""
    log = opened(disk, **settings)
    for offset in range(count):
        log.append_batches(one(time=1000 + offset))
    return log


def offsets(log: Log, start: int | None = None) -> list[int]:
    return [record.offset for record in log.read(start)]


def segment_bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.partition.segments]


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
            {"key": "text"}, {"key": 5}, {"headers": [(None, b"")]}, {"headers": [("h", "text")]},
            {"timestamp_ms": 1.5}, {"timestamp_ms": 1 << 63},
        ]  # fmt: skip
        for part in parts:
            with pytest.raises(TypeError, match="keys, values and header values are bytes or None"):
                log.append(b"value", **part)
        with pytest.raises(TypeError, match="keys, values and header values are bytes or None"):
            log.append([(b"key", "text")])  # type: ignore[list-item]
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
        for start, end, bases in ((1, 5, [0]), (13, 21, [10, 20]), (10, 10, [])):
            assert [segment.base_offset for segment in log.partition.segments.between(start, end)] == bases

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


class TestTruncation:
    def test_row_171(self) -> None:
        """To the end or past it: nothing. Then across segments, to zero, and filled again."""
        log = filled(25, segment_bytes=10 * SIZE)
        before = log.read_bytes(0, 1 << 20).records
        for offset in (25, 26):
            assert not log.truncate_to(offset)
            assert log.log_end_offset == 25
        assert log.truncate_to(5)
        assert (log.log_end_offset, segment_bases(log), offsets(log)) == (5, [0], [0, 1, 2, 3, 4])
        assert log.truncate_to(0)
        assert (log.log_end_offset, log.size) == (0, 0)
        for offset in range(25):
            log.append_batches(one(time=1000 + offset))
        assert log.read_bytes(0, 1 << 20).records == before
        assert segment_bases(log) == [0, 10, 20]

    def test_row_153_the_high_watermark_is_held_within(self) -> None:
        log = filled(3)
        log.partition.follows_end = False
        assert [log.partition.set_high_watermark(offset) for offset in (1, 5, -1)] == [1, 3, 0]
        log.partition.set_high_watermark(3)
        log.append(b"x")
        log.partition.advance_high_watermark(4)
        log.truncate_to(3)
        assert log.partition.high_watermark == 3
        assert not log.partition.advance_high_watermark(2)
        with pytest.raises(AssertionError, match="past the log end"):
            log.partition.advance_high_watermark(4)

    def test_row_154_fully(self) -> None:
        log = filled(3)
        log.flush()
        truncate_fully_and_start_at(log.partition, 4)
        bounds = (
            log.log_start_offset,
            log.log_end_offset,
            log.partition.high_watermark,
            log.partition.recovery_point,
        )
        assert bounds == (4, 4, 4, 3)
        assert log.partition.epochs == ()
        log.append(b"x")
        assert offsets(log) == [4]

    def test_below_the_first_segment_is_fully(self) -> None:
        log = opened()
        truncate_fully_and_start_at(log.partition, 10)
        log.append(b"x")
        assert log.truncate_to(7)
        assert (log.log_start_offset, log.log_end_offset) == (7, 7)

    def test_rows_173_and_174_epochs(self) -> None:
        """Also those that wrote nothing; a truncation to the end forgets them, though no record goes."""
        log = opened()
        for epoch, count in ((0, 10), (1, 6), (2, 4)):
            for _ in range(count):
                append_as_leader(log.partition, one(), leader_epoch=epoch, now_ms=NOW_MS)
        log.partition.assign_epoch(3, 20)
        assert len(log.partition.epochs) == 4
        for offset, left in ((20, 3), (11, 2), (10, 1), (0, 0)):
            log.truncate_to(offset)
            assert len(log.partition.epochs) == left, f"truncated to {offset}"

    def test_inside_a_batch(self) -> None:
        """The batch goes whole, the log ends where it was told to, the gap stays (pitfall 10)."""
        disk = new_disk()
        log = opened(disk)
        log.append([b"a", b"b", b"c"])
        log.append([b"d", b"e", b"f"])
        log.truncate_to(4)
        assert (log.log_end_offset, offsets(log)) == (4, [0, 1, 2])
        log.partition.roll()
        log.append(b"g", sync=True)
        assert offsets(log) == [0, 1, 2, 4]
        assert offsets(opened(disk.durable_image())) == [0, 1, 2, 4]

    @pytest.mark.parametrize("offset", [1, 2])
    def test_inside_the_batch_of_the_log_start(self, offset: int) -> None:
        """What goes whole reaches below the log start: the bounds stay in order (simulation, seed 9404)."""
        disk = new_disk()
        log = opened(disk)
        log.partition.follows_end = False
        log.append([b"a", b"b", b"c"], sync=True)
        log.partition.set_high_watermark(3)
        advance_log_start_offset(log.partition, 1)
        log.truncate_to(offset)
        assert (log.log_start_offset, log.partition.high_watermark, log.log_end_offset) == (1, 1, offset)
        log.append(b"d", sync=True)
        assert offsets(log) == [offset]
        found = opened(disk.durable_image())
        assert (found.log_start_offset, offsets(found)) == (offset, [offset])

    def test_the_log_start_goes_down_with_it(self) -> None:
        log = filled(6)
        advance_log_start_offset(log.partition, 4)
        log.truncate_to(2)
        assert (log.log_start_offset, log.log_end_offset) == (2, 2)

    def test_negative_offsets(self) -> None:
        log = filled(1)
        for call in (log.truncate_to, partial(truncate_fully_and_start_at, log.partition)):
            with pytest.raises(ValueError, match="offset -1"):
                call(-1)
        assert log.log_end_offset == 1

    def test_a_reader_behind_it_is_told(self) -> None:
        log = filled(10)
        reader = log.read()
        assert next(reader).offset == 0
        log.truncate_to(0)
        log.append(b"new")
        fresh = log.read()
        assert next(fresh).value == b"new"


class TestLogStart:
    def test_rows_181_and_182(self) -> None:
        log = filled(15, segment_bytes=5 * SIZE)
        for offset in (1, 6, 15):
            assert advance_log_start_offset(log.partition, offset)
            assert log.log_start_offset == offset
            assert not advance_log_start_offset(log.partition, offset - 1)
        with pytest.raises(OffsetOutOfRange):
            advance_log_start_offset(log.partition, 16)
        assert log.log_start_offset == 15

    def test_row_182_the_high_watermark_bounds_it(self) -> None:
        log = filled(5)
        log.partition.follows_end = False
        log.partition.set_high_watermark(2)
        with pytest.raises(OffsetOutOfRange):
            advance_log_start_offset(log.partition, 3)

    def test_row_183_epochs_begin_at_it(self) -> None:
        log = opened()
        for epoch, count in ((0, 5), (1, 5), (2, 5)):
            for _ in range(count):
                append_as_leader(log.partition, one(), leader_epoch=epoch, now_ms=NOW_MS)
        advance_log_start_offset(log.partition, 7)
        assert log.partition.epochs == ((1, 7), (2, 10))

    @pytest.mark.parametrize("how", ["truncate", "close", "crash"])
    def test_the_newest_epoch_outlives_its_records(self, how: str) -> None:
        """Everything is below the start, but in the files: an older epoch behind it would be cut."""
        disk = new_disk()
        log = opened(disk)
        for _ in range(4):
            append_as_leader(log.partition, one(), leader_epoch=2, now_ms=NOW_MS)
        log.flush()
        advance_log_start_offset(log.partition, 4)
        for _ in range(2):
            if how == "truncate":
                log.append(b"x")
                log.truncate_to(4)
            elif how == "close":
                log.close()
                log = opened(disk)
            else:
                disk = disk.copy()
                log = opened(disk)
            assert log.partition.latest_epoch == 2
        log.append(b"kept", sync=True)
        assert [record.value for record in opened(disk.durable_image()).read()] == [b"kept"]

    def test_an_epoch_that_wrote_nothing_is_not_taken_for_theirs(self) -> None:
        """Also where the records below the start are all there is: no other log would ever know of it."""
        log = opened(new_disk())
        append_as_leader(log.partition, one(), leader_epoch=1, now_ms=NOW_MS)
        advance_log_start_offset(log.partition, 1)
        log.partition.assign_epoch(2, 1)
        assert log.partition.epochs == ((2, 1),)
        assert not log.truncate_to(1)
        assert log.partition.epochs == ((1, 1),)
        assert not log.truncate_to(1)
        assert log.partition.epochs == ((1, 1),)

    def test_an_epoch_that_began_at_the_log_start_goes_with_its_records(self) -> None:
        log = opened(new_disk())
        for epoch in (1, 2, 2):
            append_as_leader(log.partition, one(), leader_epoch=epoch, now_ms=NOW_MS)
        advance_log_start_offset(log.partition, 1)
        assert log.truncate_to(1)
        assert log.partition.epochs == ((1, 1),)

    def test_it_is_there_after_a_crash(self) -> None:
        disk = new_disk()
        log = filled(6, disk)
        log.flush()
        advance_log_start_offset(log.partition, 4)
        again = opened(disk.durable_image())
        assert (again.log_start_offset, offsets(again)) == (4, [4, 5])

    def test_it_does_not_make_anything_durable(self) -> None:
        """Else what is torn below it would be called damage, and the partition given up."""
        disk = new_disk()
        log = filled(6, disk)
        advance_log_start_offset(log.partition, 4)
        assert log.partition.recovery_point == 0
        log.flush()
        assert log.partition.recovery_point == 6


def produce(
    log: Log, producer_id: int, sequence: int, *, count: int = 1, transaction: bool = False
) -> AppendInfo:
    data = encode_batch(
        [Record(delta, 1000, None, b"p") for delta in range(count)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=transaction,
    )
    return append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS)


def mark(log: Log, producer_id: int, kind: ControlType) -> None:
    data = encode_marker_batch(
        EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=1000
    )
    append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)


class TestProducers:
    def test_a_batch_sent_again_is_answered_with_its_offsets(self) -> None:
        """Also after a restart, from the snapshot."""
        disk = new_disk()
        log = opened(disk)
        log.append(b"before")
        first = produce(log, 7, 0, count=3)
        for each in (log, None):
            if each is None:
                log.close()
                log = opened(disk)
            again = produce(log, 7, 0, count=3)
            assert again == first._replace(is_duplicate=True)
            assert log.log_end_offset == 4

    def test_rows_210_and_211_aborted_transactions_are_found_again(self) -> None:
        """Transaction indexes and snapshots lost: replayed from the start, the same entries."""
        disk = new_disk()
        log = opened(disk, segment_bytes=600)
        expected = transactions(log)
        log.flush()
        image = disk.durable_image()
        for name in names(image):
            if name.endswith((".txnindex", SNAPSHOT_SUFFIX)) or "checkpoint" in name:
                image.remove(f"{DIRECTORY}/{name}")
        again = opened(image, segment_bytes=600)
        assert [entry for each in again.partition.segments for entry in each.aborts.index.entries] == expected

    def test_row_212_earlier_segments_are_read_for_the_producers(self) -> None:
        """Snapshots gone, the recovery point late: the state is whole all the same."""
        disk = new_disk()
        log = opened(disk, segment_bytes=300)
        for sequence in range(12):
            produce(log, 7, sequence)
        log.flush()
        image = disk.durable_image()
        for name in names(image):
            if name.endswith(SNAPSHOT_SUFFIX):
                image.remove(f"{DIRECTORY}/{name}")
        again = opened(image, segment_bytes=300)
        assert produce(again, 7, 12).first_offset == 12

    def test_truncated_away_is_forgotten(self) -> None:
        """A batch that was truncated is no duplicate when it is sent again."""
        log = opened()
        for sequence in range(3):
            produce(log, 7, sequence)
        log.truncate_to(1)
        info = produce(log, 7, 1)
        assert (info.first_offset, info.is_duplicate) == (1, False)
        log.truncate_to(0)
        assert produce(log, 7, 2).first_offset == 0

    def test_row_216_stray_snapshots_go(self) -> None:
        disk = new_disk()
        log = opened(disk, segment_bytes=300)
        for sequence in range(10):
            produce(log, 7, sequence)
        log.close()
        bases = segment_bases(log)
        stray = next(offset for offset in range(1, 10) if offset not in bases)
        content = disk.files()[f"{DIRECTORY}/{file_name(bases[-1], SNAPSHOT_SUFFIX)}"]
        file = disk.open(f"{DIRECTORY}/{file_name(stray, SNAPSHOT_SUFFIX)}", create=True, write=True)
        file.pwrite(content, 0)
        opened(disk, segment_bytes=300)
        assert file_name(stray, SNAPSHOT_SUFFIX) not in names(disk)


def transactions(log: Log) -> list[AbortedTransaction]:
    """Two producers, one aborts twice, one commits; returns what the indexes must hold."""
    produce(log, 1, 0, transaction=True)  # 0
    produce(log, 2, 0, transaction=True)  # 1
    for _ in range(3):
        log.append(b"plain" * 10)  # 2, 3, 4
    mark(log, 1, ControlType.ABORT)  # 5
    log.append(b"plain")  # 6
    mark(log, 2, ControlType.COMMIT)  # 7
    produce(log, 1, 1, transaction=True)  # 8
    log.append(b"plain" * 30)  # 9
    mark(log, 1, ControlType.ABORT)  # 10
    return [AbortedTransaction(1, 0, 5, 1), AbortedTransaction(1, 8, 10, 11)]


class TestStoppingAndStarting:
    def test_row_195_clean(self) -> None:
        """Nothing is recovered, and the recovery point is the end."""
        disk = new_disk()
        log = filled(40, disk, segment_bytes=10 * SIZE, index_interval_bytes=SIZE)
        entries = [segment.indexes.offsets.entry_count for segment in log.partition.segments]
        log.close()
        again = opened(disk, segment_bytes=10 * SIZE, index_interval_bytes=SIZE)
        assert again.partition.recovery_point == again.log_end_offset == 40
        assert not again.partition.report.scanned_bytes
        assert [segment.indexes.offsets.entry_count for segment in again.partition.segments] == entries

    def test_row_196_unclean(self) -> None:
        """The same content; the recovery point stays until the next flush."""
        disk = new_disk()
        log = filled(25, disk, segment_bytes=10 * SIZE)
        assert log.partition.recovery_point == 20
        again = opened(disk.copy(), segment_bytes=10 * SIZE)
        assert (again.log_end_offset, again.partition.recovery_point) == (25, 20)
        again.flush()
        assert again.partition.recovery_point == 25

    def test_close_is_final_and_harmless_twice(self) -> None:
        log = filled(3)
        log.close()
        log.close()
        calls: list[Callable[[], object]] = [
            lambda: log.append(b"x"),
            lambda: log.read_bytes(0),
            lambda: list(log.read()),
            lambda: log.offset_for_timestamp(0),
            lambda: log.truncate_to(0),
            lambda: truncate_fully_and_start_at(log.partition, 0),
            lambda: log.partition.roll(),
            lambda: log.partition.assign_epoch(9, 3),
            lambda: advance_log_start_offset(log.partition, 1),
        ]
        for call in calls:
            with pytest.raises(LogClosed, match="open it again"):
                call()

    def test_as_a_context(self) -> None:
        disk = new_disk()
        with opened(disk) as log:
            log.append(b"x")
        with opened(disk) as log:
            assert [record.value for record in log.read()] == [b"x"]

    def test_row_201_noise_behind_the_active_segment(self) -> None:
        disk = new_disk()
        filled(10, disk).flush()
        image = disk.durable_image()
        for suffix in (".log", ".index", ".timeindex"):
            file = image.open(f"{DIRECTORY}/{file_name(0, suffix)}", create=True, write=True)
            file.pwrite(b"\xa5" * 100, file.size())
        again = opened(image)
        assert offsets(again) == list(range(10))
        assert [cut.to_byte - cut.from_byte for cut in again.partition.report.cuts] == [100]

    def test_row_202_noise_below_a_start_that_is_higher(self) -> None:
        """Nothing reaches the start any more: the log begins there anew, and goes on."""
        disk = new_disk()
        log = filled(10, disk)
        advance_log_start_offset(log.partition, 4)
        image = disk.copy()
        file = image.open(f"{DIRECTORY}/{file_name(0, '.log')}", write=True)
        file.pwrite(b"\xa5" * 9 * SIZE, SIZE)
        again = opened(image)
        assert (again.log_start_offset, again.log_end_offset) == (4, 4)
        assert [name for name in names(image) if name.endswith((".log", SNAPSHOT_SUFFIX))] == [
            file_name(4, ".log")
        ]
        assert again.append(b"x").first_offset == 4

    def test_row_209_epochs_lost_and_found(self) -> None:
        disk = new_disk()
        log = opened(disk)
        for epoch in (0, 0, 2, 5):
            append_as_leader(log.partition, one(), leader_epoch=epoch, now_ms=NOW_MS)
        image = disk.copy()
        image.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
        assert opened(image).partition.epochs == ((0, 0), (2, 2), (5, 3))

    def test_row_214_an_empty_active_segment(self) -> None:
        disk = new_disk()
        log = filled(3, disk)
        log.partition.roll()
        log.close()
        image = disk.copy()
        for suffix in (".index", ".timeindex"):
            image.remove(f"{DIRECTORY}/{file_name(3, suffix)}")
        again = opened(image)
        assert segment_bases(again) == [0, 3]
        assert again.append(b"x").first_offset == 3


class TestDamageBelowTheRecoveryPoint:
    """What was durable and is not there any more is never cut in silence."""

    def sealed(self) -> MemoryDisk:
        disk = new_disk()
        log = filled(10, disk, segment_bytes=5 * SIZE)
        log.close()
        image = disk.copy()
        file = image.open(f"{DIRECTORY}/{file_name(0, '.log')}", write=True)
        file.pwrite(b"\xa5", 2 * SIZE - 1)
        return image

    def test_after_a_clean_stop_it_shows_when_it_is_read(self) -> None:
        log = opened(self.sealed(), segment_bytes=5 * SIZE)
        assert offsets(log, 2) == [2, 3, 4, 5, 6, 7, 8, 9]
        with pytest.raises(CorruptBatch):
            offsets(log)

    def test_a_lost_index_does_not_let_it_be_cut(self) -> None:
        """The segment is read because its index is missing; the batches behind the bad one stay."""
        image = self.sealed()
        image.remove(f"{DIRECTORY}/{file_name(0, '.index')}")
        before = image.files()[f"{DIRECTORY}/{file_name(0, '.log')}"]
        with pytest.raises(DamagedLog, match=rf"at byte {SIZE} \(offset 1\): bad batch"):
            opened(image, segment_bytes=5 * SIZE)
        assert image.files()[f"{DIRECTORY}/{file_name(0, '.log')}"] == before

    @pytest.mark.parametrize("clean", [True, False])
    def test_aborts_that_cannot_be_read_are_found_again(self, clean: bool) -> None:
        """Nothing else tells a committed reader what to leave out."""
        disk = new_disk()
        log = opened(disk, segment_bytes=300)
        expected = transactions(log)
        log.close()
        image = disk.copy()
        if not clean:
            image.remove(f"{DIRECTORY}/.kafka_cleanshutdown")
        for name in names(image):
            if name.endswith(".txnindex"):
                file = image.open(f"{DIRECTORY}/{name}", write=True)
                file.pwrite(b"\x00\x07", 0)
        again = opened(image, segment_bytes=300)
        assert [entry for each in again.partition.segments for entry in each.aborts.index.entries] == expected

    def test_more_bytes_in_a_segment_that_nobody_reads_again(self) -> None:
        """Its seal tells, at the price of listing the directory."""
        disk = new_disk()
        log = filled(10, disk, segment_bytes=5 * SIZE)
        flush_sealed(log.partition)
        image = disk.copy()
        file = image.open(f"{DIRECTORY}/{file_name(0, '.log')}", write=True)
        file.truncate(5 * SIZE + 7)
        with pytest.raises(DamagedLog, match=rf"longer than sealed: {5 * SIZE + 7} bytes"):
            opened(image, segment_bytes=5 * SIZE)


def test_an_epoch_is_on_disk_before_its_first_batch() -> None:
    """A batch of an epoch that the file does not know could not be told from one of the epoch before."""
    disk = RecordingDisk(new_disk())
    log = opened(disk)
    disk.operations.clear()
    append_as_leader(log.partition, one(), leader_epoch=3, now_ms=NOW_MS)
    calls = [(operation.name, operation.path.rsplit("/", 1)[1]) for operation in disk.operations]
    published = calls.index(("sync_dir", "orders-0"))
    assert ("rename", "leader-epoch-checkpoint.tmp") in calls[:published]
    assert calls.index(("pwrite", file_name(0, ".log"))) > published


def test_a_durable_append_is_one_sync() -> None:
    disk = RecordingDisk(new_disk())
    log = opened(disk)
    log.append(b"a", sync=True)
    disk.operations.clear()
    log.append(b"b", sync=True)
    assert [operation.name for operation in disk.operations] == ["pwrite", "sync"]
    assert log.partition.recovery_point == 2


def test_flush_messages_flushes_by_itself() -> None:
    log = opened(flush_messages=3)
    for expected in (0, 0, 3, 3, 3, 6):
        log.append(b"x")
        assert log.partition.recovery_point == expected


def test_batches_of_other_logs_need_their_place_first() -> None:
    """A batch that has a place in another log is refused: it would look as if it had been there."""
    source = filled(2)
    with pytest.raises(InvalidRecord, match="starts at 0"):
        opened().append(list(source.read_batches())[1])
    assert isinstance(next(source.read_batches()), Batch)


def test_an_epoch_below_the_newest_is_refused() -> None:
    """Behind a batch of a later epoch it would look like a leftover, and recovery would cut it."""
    log = opened()
    append_as_leader(log.partition, one(), leader_epoch=5, now_ms=NOW_MS)
    with pytest.raises(ValueError, match="leader epoch 3 is below 5"):
        append_as_leader(log.partition, one(), leader_epoch=3, now_ms=NOW_MS)
    assert log.log_end_offset == 1
