"""Old segments: which go, in what order it is done, and who may still read them."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DiskFull, LogDirOffline, OffsetOutOfRange, PolicyViolation
from logstore.format.batch import Batch, encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.retention import LONGEST_STEP_MS, DeletionReason, Expired, believed_ms, expired
from logstore.log.upkeep import advance_log_start_offset, delete_old_segments
from logstore.segment.seal import SEAL_SUFFIX
from logstore.segment.segment import SNAPSHOT_SUFFIX, DeletedFiles, file_name
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY, names, put

ORDERS = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
WEEK_MS = 7 * 86_400_000
ASIDE = (".log", ".index", ".timeindex")
LOG_START, SIZE, TIME = DeletionReason.LOG_START, DeletionReason.SIZE, DeletionReason.TIME


def one(time_ms: int = NOW_MS) -> bytes:
    """A client's batch of one record."""
    return encode_batch([Record(0, time_ms, b"k", b"value")])


BATCH = len(one())


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def opened(
    disk: MemoryDisk | RecordingDisk | FaultyDisk | None = None, clock: Clock | None = None, **given: Any
) -> Log:
    """A log that stands alone, with segments of five batches."""
    config = LogConfig(**{"segment_bytes": 5 * BATCH, "index_interval_bytes": 1, **given})
    return Log.open(DIRECTORY, config, disk=disk or MemoryDisk(directories=["/data"]), clock=clock or Clock())


def filled(
    count: int,
    disk: MemoryDisk | RecordingDisk | FaultyDisk | None = None,
    *,
    time_ms: int = NOW_MS,
    clock: Clock | None = None,
    **given: Any,
) -> Log:
    log = opened(disk, clock, **given)
    for _ in range(count):
        log.append_batches(one(time_ms))
    return log


def replicated(count: int, **given: Any) -> Log:
    """A log of a node: it has a high watermark of its own."""
    config = LogConfig(**{"segment_bytes": 5 * BATCH, **given})
    manager = LogManager(["/a"], disk=MemoryDisk(), clock=Clock(), random=random.Random(1), config=config)
    log = manager.get_or_create(ORDERS)
    for _ in range(count):
        append_as_leader(log.partition, one(), leader_epoch=0, now_ms=NOW_MS)
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.partition.segments]


def offsets(log: Log, start: int | None = None) -> list[int]:
    return [record.offset for record in log.read(start)]


# --- the decision ------------------------------------------------------------------------------------


class Stored(NamedTuple):
    base_offset: int
    size: int
    largest_timestamp_ms: int


def by_the_book(
    segments: Sequence[Stored],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> list[Expired]:
    """The rule as Kafka's code has it: pass after pass over a list that gets shorter."""
    left, gone = list(segments), []
    excess = 0
    for reason in (LOG_START, SIZE, TIME):
        if reason is not LOG_START and "delete" not in config.cleanup_policy:
            continue
        if reason is SIZE:
            excess = sum(segment.size for segment in left) - config.retention_bytes
        while left:
            first = left[0]
            following = left[1].base_offset if len(left) > 1 else None
            if high_watermark < (log_end_offset if following is None else following):
                break
            if following is None and first.size == 0:
                break
            if reason is LOG_START:
                takes = following is not None and following <= log_start_offset
            elif reason is SIZE:
                takes = config.retention_bytes >= 0 and excess - first.size >= 0
                excess -= first.size if takes else 0
            else:
                takes = 0 <= config.retention_ms < now_ms - first.largest_timestamp_ms
            if not takes:
                break
            gone.append(Expired(first.base_offset, first.size, reason))
            del left[0]
    return gone


@settings(derandomize=True, max_examples=500)
@given(
    rows=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    bounds=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    retention=st.tuples(st.integers(-1, 30), st.integers(-1, 9)),
    policy=st.sampled_from(["delete", "compact", "compact,delete"]),
    now_ms=st.integers(0, 12),
)
def test_expired_is_the_rule_as_kafka_has_it(
    rows: list[tuple[int, int, int]],
    bounds: tuple[int, int],
    retention: tuple[int, int],
    policy: str,
    now_ms: int,
) -> None:
    """The decision at once against pass after pass, one segment at a time."""
    base_offset, segments = 0, []
    for span, size, time_ms in rows:
        segments.append(Stored(base_offset, size, time_ms))
        base_offset += span
    config = LogConfig(cleanup_policy=policy, retention_bytes=retention[0], retention_ms=retention[1])
    facts = {
        "log_start_offset": min(bounds[0], base_offset),
        "high_watermark": min(bounds[1], base_offset),
        "log_end_offset": base_offset,
        "now_ms": now_ms,
    }
    assert expired(segments, config, **facts) == by_the_book(segments, config, **facts)


def test_times_are_asked_for_only_as_far_as_needed() -> None:
    """An answer may cost an index that has to be opened: a thousand segments that stay cost one."""

    class Asked(Stored):
        asked: ClassVar[list[int]] = []

        @property
        def largest_timestamp_ms(self) -> int:
            self.asked.append(self.base_offset)
            return 0 if self.base_offset < 2 else 100

    segments = [Asked(offset, 10, 0) for offset in range(6)]
    going = expired(
        segments,
        LogConfig(retention_ms=50),
        log_start_offset=0,
        high_watermark=6,
        log_end_offset=6,
        now_ms=100,
    )
    assert [each.base_offset for each in going] == [0, 1]
    assert Asked.asked == [0, 1, 2]


# --- Kafka's rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "left"), [(9, [5, 10]), (10, [5, 10]), (11, [0, 5, 10]), (15, [0, 5, 10])])
def test_row_175_by_size(limit: int, left: list[int]) -> None:
    """Three segments of five: never below the limit."""
    log = filled(15, retention_bytes=limit * BATCH)
    went = delete_old_segments(log.partition, NOW_MS)
    assert bases(log) == left
    assert [each.reason for each in went] == [SIZE] * (3 - len(left))
    assert (log.log_start_offset, offsets(log)) == (left[0], list(range(left[0], 15)))


def test_row_176_by_time_never_past_the_high_watermark() -> None:
    log = replicated(15, retention_ms=1)
    assert delete_old_segments(log.partition, NOW_MS + 1000) == ()
    assert bases(log) == [0, 5, 10]
    log.partition.set_high_watermark(15)
    assert [each.reason for each in delete_old_segments(log.partition, NOW_MS + 1000)] == [TIME] * 3
    assert (bases(log), log.partition.segments[0].size) == ([15], 0)
    assert log.log_start_offset == log.partition.high_watermark == log.log_end_offset == 15
    assert delete_old_segments(log.partition, NOW_MS + 2000) == (), "the last one stays when it is empty"
    assert append_as_leader(log.partition, one(), leader_epoch=0, now_ms=NOW_MS).first_offset == 15


def test_row_177_a_high_watermark_that_moves() -> None:
    log = replicated(100, retention_bytes=0)
    for high_watermark in range(101):
        log.partition.set_high_watermark(high_watermark)
        delete_old_segments(log.partition, NOW_MS)
        assert bases(log)[0] <= log.partition.high_watermark == high_watermark
        assert log.log_start_offset <= log.partition.high_watermark
    assert bases(log) == [100]


def test_row_178_times_in_the_future_stay() -> None:
    clock = Clock()
    log = filled(15, clock=clock, time_ms=NOW_MS + 10 * WEEK_MS, retention_ms=1000)
    assert delete_old_segments(log.partition, NOW_MS + 2000) == ()
    assert bases(log) == [0, 5, 10]


def test_row_179_nothing_goes_before_what_lies_in_front_of_it() -> None:
    log = filled(5, retention_ms=1000)
    for _ in range(10):
        log.append_batches(one(NOW_MS - WEEK_MS))
    assert delete_old_segments(log.partition, NOW_MS) == ()
    assert len(delete_old_segments(log.partition, NOW_MS + 1001)) == len((0, 5, 10))


@pytest.mark.parametrize(
    ("policy", "by_time", "by_start"),
    [
        ("delete", [15], [15]),
        ("compact", [0, 5, 10], [10]),
        ("compact,delete", [15], [15]),
        ("", [0, 5, 10], [10]),
    ],
)
def test_row_180_a_compacted_log_loses_only_what_is_below_its_start(
    policy: str, by_time: list[int], by_start: list[int]
) -> None:
    log = filled(15, cleanup_policy=policy, retention_ms=1, time_ms=NOW_MS - WEEK_MS)
    delete_old_segments(log.partition, NOW_MS)
    assert bases(log) == by_time
    advance_log_start_offset(log.partition, 15)
    delete_old_segments(log.partition, NOW_MS)
    assert bases(log) == by_start


def test_row_181_below_the_log_start_offset() -> None:
    log = filled(15, retention_ms=-1)
    for start, left in ((1, [0, 5, 10]), (6, [5, 10]), (15, [10])):
        assert log.delete_records(start) == start
        assert all(each.reason is LOG_START for each in delete_old_segments(log.partition, NOW_MS))
        assert (bases(log), log.log_start_offset) == (left, start)


def test_row_182_records_past_the_high_watermark_are_not_deleted() -> None:
    log = replicated(15)
    log.partition.set_high_watermark(7)
    for offset in (8, 15, 16, -2):
        with pytest.raises(OffsetOutOfRange):
            log.delete_records(offset)
    assert log.log_start_offset == 0


@pytest.mark.parametrize(
    ("entries", "after"),
    [(((0, 0), (1, 5), (2, 10)), ((1, 5), (2, 10))), (((0, 0), (1, 7), (2, 10)), ((0, 5), (1, 7), (2, 10)))],
)
def test_row_183_epochs_begin_where_the_log_does(
    entries: tuple[tuple[int, int], ...], after: tuple[tuple[int, int], ...]
) -> None:
    log = opened(retention_bytes=10 * BATCH)
    starts = dict((start, epoch) for epoch, start in entries)
    epoch = 0
    for offset in range(15):
        epoch = starts.get(offset, epoch)
        append_as_leader(log.partition, one(), leader_epoch=epoch, now_ms=NOW_MS)
    assert [each.base_offset for each in delete_old_segments(log.partition, NOW_MS)] == [0]
    assert log.partition.epochs == after


def test_row_184_the_newest_epoch_outlives_all_records() -> None:
    log = opened(retention_ms=1)
    for epoch in (0, 3, 3, 7):
        append_as_leader(log.partition, one(NOW_MS - WEEK_MS), leader_epoch=epoch, now_ms=NOW_MS)
    delete_old_segments(log.partition, NOW_MS)
    assert (bases(log), log.partition.epochs) == ([4], ((7, 4),))


def test_row_185_snapshots_go_with_their_segments() -> None:
    """So do the seals of segments: every file that is named for a segment's offset."""
    disk = MemoryDisk(directories=["/data"])
    log = opened(disk, retention_ms=1)
    for sequence in range(15):
        time_ms = NOW_MS - WEEK_MS if sequence < 10 else NOW_MS
        data = encode_batch(
            [Record(0, time_ms, b"k", b"v")], producer_id=5, producer_epoch=0, base_sequence=sequence
        )
        append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS)
    for base_offset in bases(log):
        put(disk, file_name(base_offset, SEAL_SUFFIX), b"")
    assert [int(name[:20]) for name in names(disk) if name.endswith(SNAPSHOT_SUFFIX)] == bases(log)[1:]
    delete_old_segments(log.partition, NOW_MS)
    left = {int(name[:20]) for name in names(disk) if name[0].isdigit() and not name.endswith(".deleted")}
    assert left == set(bases(log))
    assert any(name.endswith(SEAL_SUFFIX) for name in names(disk))


@pytest.mark.parametrize("start", [5, 8])
def test_row_186_an_open_transaction_below_the_start(start: int) -> None:
    """What is unstable begins where the log does; the rest of the transaction is still open."""
    log = opened(retention_ms=-1)
    for sequence in range(10):
        data = encode_batch(
            [Record(0, NOW_MS, b"k", b"v")],
            producer_id=5,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS)
    log.delete_records(start)
    delete_old_segments(log.partition, NOW_MS)
    assert (
        log.partition.producer_state.last_stable_offset(log.partition.high_watermark, log.log_start_offset)
        == start
    )


# --- deleting records ---------------------------------------------------------------------------------


class TestDeleteRecords:
    def test_up_to_the_high_watermark(self) -> None:
        log = replicated(15)
        log.partition.set_high_watermark(7)
        assert log.delete_records(-1) == 7
        assert log.delete_records(3) == 7, "it never goes back"
        with pytest.raises(OffsetOutOfRange):
            list(log.read(6))

    def test_it_survives_a_power_cut(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(15, disk)
        log.flush()
        log.delete_records(7)
        again = opened(disk.durable_image())
        assert (again.log_start_offset, offsets(again)) == (7, list(range(7, 15)))

    def test_a_policy_without_delete(self) -> None:
        log = filled(3, cleanup_policy="compact")
        with pytest.raises(PolicyViolation, match=r"cleanup\.policy=compact.*send tombstones"):
            log.delete_records(2)
        assert filled(3, cleanup_policy="compact,delete").delete_records(2) == 2


# --- doing it -----------------------------------------------------------------------------------------


class TestFiles:
    def test_they_stay_for_their_delay(self) -> None:
        disk, clock = MemoryDisk(directories=["/data"]), Clock()
        log = filled(15, disk, clock=clock, retention_bytes=10 * BATCH, file_delete_delay_ms=500)
        log.maintain()
        aside = [name for name in names(disk) if name.endswith(".deleted")]
        assert aside == [
            file_name(0, suffix) + ".deleted" for suffix in (".index", ".log", ".seal", ".timeindex")
        ]
        assert log.partition.deleted_files.deadline_ms == NOW_MS + 500
        log.maintain(NOW_MS + 499)
        assert set(aside) <= set(names(disk))
        log.maintain(NOW_MS + 500)
        assert not set(aside) & set(names(disk))
        assert not [name for name in names(disk) if name.startswith(f"{0:020d}")]

    def test_no_delay(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(15, disk, retention_bytes=0, file_delete_delay_ms=0)
        log.maintain()
        assert [name for name in names(disk) if ".log" in name] == [file_name(15, ".log")]

    @pytest.mark.parametrize("how", ["close", "open"])
    def test_what_is_left_goes_with_the_close_or_the_next_open(self, how: str) -> None:
        disk, clock = MemoryDisk(directories=["/data"]), Clock()
        log = filled(15, disk, clock=clock, retention_bytes=0, file_delete_delay_ms=500)
        log.maintain()
        clock.now_ms += 500 if how == "close" else 499
        log.close()
        assert any(name.endswith(".deleted") for name in names(disk)) == (how == "open")
        log = opened(disk, clock)
        assert not any(name.endswith(".deleted") for name in names(disk))
        assert (log.log_start_offset, log.log_end_offset) == (15, 15)

    def test_the_order(self) -> None:
        """The log start is durable before the first rename, the oldest segment's, its log first."""
        disk = RecordingDisk(MemoryDisk(directories=["/data"]))
        log = filled(16, disk, retention_bytes=0, retention_ms=-1)
        del disk.operations[:]
        delete_old_segments(log.partition, NOW_MS)
        calls = [(each.name, each.path.removeprefix(DIRECTORY + "/")) for each in disk.operations]
        renames = [path for name, path in calls if name == "rename" and path.endswith(ASIDE)]
        logs = [path for path in renames if path.endswith(".log")]
        assert logs == [file_name(base, ".log") for base in (0, 5, 10, 15)]
        assert renames[0] == logs[0]
        published = calls.index(("rename", "log-start-offset-checkpoint.tmp"))
        first = calls.index(("rename", renames[0]))
        assert ("sync_dir", DIRECTORY) in calls[published:first]
        assert calls[-1] == ("sync_dir", DIRECTORY)

    def test_a_log_that_opens_as_after_a_retention(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(17, disk, retention_bytes=6 * BATCH)
        log.maintain()
        for image in (disk.durable_image(), disk):
            if image is disk:
                log.close()
            again = opened(image)
            assert again.log_start_offset == log.log_start_offset == 10
            assert offsets(again)[:5] == [10, 11, 12, 13, 14]
            assert not again.partition.report.cuts

    def test_segments_whose_records_have_no_time_go_by_the_files(self) -> None:
        """Written now is young, also when nothing in the file says so."""
        clock = Clock()
        log = filled(15, clock=clock, time_ms=-1, retention_ms=1000)
        assert delete_old_segments(log.partition, NOW_MS + 1000) == ()
        assert len(delete_old_segments(log.partition, NOW_MS + 1001)) == 3


class TestReaders:
    def test_one_that_was_in_the_middle_of_a_segment_ends_in_peace(self) -> None:
        log = filled(15, retention_bytes=0)
        segments = log.partition.segments
        reader = log.read_batches(0)
        assert next(reader).base_offset == 0
        file = segments[0].log_file
        log.maintain()
        assert Batch(file.pread(BATCH, BATCH)).base_offset == 1, "its bytes are there as long as it has it"
        with pytest.raises(OffsetOutOfRange, match=r"outside \[15, 15\]"):
            offsets(log, 3)

    def test_one_that_found_the_segment_just_before_it_went(self) -> None:
        """It hears that its offset is gone; it is not handed the next segment in its place."""
        log = filled(15, retention_bytes=5 * BATCH)
        before = log.partition.segments
        log.maintain()
        after, log.partition.segments = log.partition.segments, before
        start, log.partition.log_start_offset = log.partition.log_start_offset, 0

        class Late:
            """What such a reader sees: old segments first, the new bounds once it has failed."""

            def __enter__(self) -> None:
                log.partition.segments, log.partition.log_start_offset = after, start

            def __exit__(self, *_: object) -> None:
                return

        log.partition.lock = Late()  # type: ignore[assignment]
        with pytest.raises(OffsetOutOfRange):
            log.read_bytes(2)

    def test_one_in_another_process(self, tmp_path: Any) -> None:
        """An open file is read to its end; opened late it is not there, under that name or any other's."""
        directory, disk = f"{tmp_path}/orders-0", OsDisk()
        config = LogConfig(segment_bytes=5 * BATCH, retention_bytes=0, file_delete_delay_ms=0)
        with Log.open(directory, config, clock=Clock()) as log:
            for _ in range(15):
                log.append_batches(one())
            theirs = disk.open(f"{directory}/{file_name(0, '.log')}")
            log.maintain()
            assert [Batch(theirs.pread(BATCH, at * BATCH)).base_offset for at in range(5)] == [0, 1, 2, 3, 4]
            assert theirs.size() == 5 * BATCH
            theirs.close()
            with pytest.raises(FileNotFoundError):
                disk.open(f"{directory}/{file_name(0, '.log')}")


class TestFailures:
    @pytest.mark.parametrize("way", ["maintain", "delete_records"])
    def test_a_full_disk_is_freed_by_what_removes_records(self, way: str) -> None:
        """It has to write where the log begins: producer snapshots of old segments make room for that."""
        disk = MemoryDisk(directories=["/data"])
        with filled(60, disk, retention_bytes=10 * BATCH, file_delete_delay_ms=0) as log:
            disk.capacity = disk._used
            with pytest.raises(DiskFull):
                log.append(b"x" * BATCH)
            if way == "delete_records":
                log.delete_records(45)
            log.maintain()
            assert log.log_start_offset >= 45
            log.append(b"x" * BATCH)
            disk.capacity = None
        with opened(disk) as log:
            assert log.log_start_offset >= 45
            assert log.last().value == b"x" * BATCH  # type: ignore[union-attr]

    def test_no_room_to_publish_the_start(self) -> None:
        """Nothing goes, nothing is lost, and the next time it does."""
        disk = FaultyDisk(MemoryDisk(directories=["/data"]))
        log = filled(15, disk, retention_bytes=10 * BATCH)
        disk.inject(Fault(operation="pwrite", path=lambda path: "start-offset" in path, errno=errno.ENOSPC))
        with pytest.raises(DiskFull):
            log.maintain()
        assert (bases(log), log.log_start_offset, offsets(log, 0)[:2]) == ([0, 5, 10], 0, [0, 1])
        log.maintain()
        assert (bases(log), log.log_start_offset) == ([5, 10], 5)

    @pytest.mark.parametrize("operation", ["rename", "sync_dir"])
    def test_a_bad_disk_in_the_middle(self, operation: str) -> None:
        inner = MemoryDisk(directories=["/data"])
        disk = FaultyDisk(inner)
        log = filled(15, disk, retention_bytes=0)
        log.flush()
        if operation == "rename":
            disk.inject(Fault(operation="rename", path=lambda path: path.endswith(file_name(5, ".log"))))
        else:  # the directory's last sync: names, the published start and the epochs come before it
            disk.inject(Fault(operation="sync_dir", at=4))
        with pytest.raises(LogDirOffline):
            log.maintain()
        log.partition.abandon()
        again = opened(inner.durable_image())
        assert offsets(again) == list(range(again.log_start_offset, 15))
        assert again.log_end_offset == 15


# --- the clock ----------------------------------------------------------------------------------------


class TestTheClock:
    def test_a_step_is_believed_by_a_day(self) -> None:
        assert believed_ms(1000, 900) == 1000
        assert believed_ms(900, 1000) == 900
        assert believed_ms(LONGEST_STEP_MS + 901, 900) == LONGEST_STEP_MS + 900

    def test_years_ahead_wipe_nothing_at_once(self) -> None:
        """A clock that is put right before the next check has cost at most a day's worth of segments."""
        log = opened(retention_ms=WEEK_MS)
        for age_ms in (WEEK_MS - 3_600_000, WEEK_MS // 2, 0):
            for _ in range(5):
                log.append_batches(one(NOW_MS - age_ms))
        year_ms = 365 * 86_400_000
        assert [each.base_offset for each in delete_old_segments(log.partition, NOW_MS + 10 * year_ms)] == [0]
        assert delete_old_segments(log.partition, NOW_MS) == ()
        assert bases(log) == [5, 10]

    def test_what_two_checks_agree_on_is_believed(self) -> None:
        log = filled(15, retention_ms=WEEK_MS)
        year_ms = 365 * 86_400_000
        assert delete_old_segments(log.partition, NOW_MS + year_ms) == ()
        assert len(delete_old_segments(log.partition, NOW_MS + year_ms + 300_000)) == 3

    def test_a_log_that_is_looked_after_once_a_week_keeps_up(self) -> None:
        """The doubt costs one check, not one more at each."""
        log = filled(1, retention_ms=WEEK_MS)
        for week in range(1, 20):
            now_ms = NOW_MS + week * WEEK_MS
            delete_old_segments(log.partition, now_ms)
            for _ in range(5):
                log.append_batches(one(now_ms))
            oldest_ms = next(log.read()).timestamp_ms
            assert now_ms - oldest_ms <= 3 * WEEK_MS

    def test_files_do_not_wait_for_a_clock_that_was_set_back(self) -> None:
        disk = MemoryDisk()
        put(disk, "x.deleted", b"", "/")
        doomed = DeletedFiles(disk)
        doomed.add(["/x.deleted"], NOW_MS, 1000)
        assert doomed.remove_due(NOW_MS + 999) == 0
        assert doomed.remove_due(NOW_MS - WEEK_MS) == 1
        assert not disk.files()
