"""Truncation, the log start, producers."""

from __future__ import annotations

from functools import partial

import pytest

from logstore.errors import OffsetOutOfRange
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.read import offset_of_largest_timestamp
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.segment import SNAPSHOT_SUFFIX, file_name
from tests.logstore.logs import DIRECTORY, names
from tests.logstore.plain_logs import (
    NOW_MS,
    SIZE,
    filled,
    new_disk,
    offsets,
    one,
    opened,
    produce,
    segment_bases,
    transactions,
)


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

    def test_a_segment_without_times_is_as_old_as_its_last_change(self) -> None:
        """As after a restart, when the time of the file counts: a cut changes it."""
        now = [NOW_MS]
        log = Log.open(DIRECTORY, disk=new_disk(), clock=lambda: now[0])
        for _ in range(2):
            log.append_batches(one(time=-1))
        now[0] += 1000
        log.truncate_to(1)
        assert log.partition.segments.active.largest_timestamp_ms == NOW_MS + 1000

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

    @pytest.mark.parametrize(
        "times", [[1003, 1000, 1001, 1000], [1003, 1000, 1001, 1002], [1003, 1003, -1, -1]]
    )
    def test_the_largest_time_is_that_of_a_record_that_is_served(self, times: list[int]) -> None:
        """Records 0 and 1 are one batch, 2 and 3 segments of their own; those from the log start on count."""
        log = opened()
        pairs = [Record(delta, time, None, b"value") for delta, time in enumerate(times)]
        log.append_batches(encode_batch(pairs[:2]))
        for record in pairs[2:]:
            log.partition.roll()
            log.append_batches(one(time=record.timestamp_ms))
        for start in range(5):
            advance_log_start_offset(log.partition, start)
            left = [time for time in times[start:] if time >= 0]
            found = offset_of_largest_timestamp(log.partition)
            assert (found and (found.timestamp_ms, found.offset)) == (
                (max(left), times.index(max(left), start)) if left else None
            )

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

    @pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
    def test_a_repeat_has_the_time_of_the_first_append(self, kind: str) -> None:
        """A producer reports that time as its record's."""
        log = opened(message_timestamp_type=kind)
        first = produce(log, 7, 0)
        assert produce(log, 7, 0) == first._replace(is_duplicate=True)
        assert (first.log_append_time_ms >= 0) == (kind == "LogAppendTime")

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

    def test_batches_below_two_truncations_to_one_place_are_known(self) -> None:
        """The first truncation leaves a snapshot with one batch of the producer, not five."""
        log = opened()
        sent = [produce(log, 7, sequence) for sequence in range(5)]
        for _ in range(2):
            log.append(b"removed")
            log.truncate_to(5)
        for sequence, info in enumerate(sent):
            assert produce(log, 7, sequence) == info._replace(is_duplicate=True)
        assert produce(log, 7, 5).first_offset == 5

    def test_a_truncation_between_remembered_batches_keeps_those_below(self) -> None:
        """The batches at and above the cut are new again."""
        log = opened()
        sent = [produce(log, 7, sequence) for sequence in range(5)]
        log.truncate_to(5)
        log.truncate_to(3)
        assert [produce(log, 7, sequence).is_duplicate for sequence in range(5)] == [True] * 3 + [False] * 2
        assert produce(log, 7, 0) == sent[0]._replace(is_duplicate=True)

    @pytest.mark.parametrize("ends", [1, 5])
    def test_a_batch_is_remembered_once(self, ends: int) -> None:
        """A snapshot gives its producer's last batch the time of its marker: that is no second batch."""
        log = opened()
        for sequence in range(ends):
            produce(log, 7, sequence, transaction=True)
        log.end_transaction(7, 0, commit=True)
        for _ in range(2):
            log.append(b"removed")
            log.truncate_to(ends + 1)
        (entry,) = log.partition.producers()
        assert [batch.last_sequence for batch in entry.batches] == [*range(ends)]

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
