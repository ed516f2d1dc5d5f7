"""The cleaner of a node: who is next, how much at a time, what a failure costs, what may be seen of it."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner import BYTES_A_TICK, LONGEST_WAIT_MS, CleaningState
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import compaction_pass
from logstore.config import MAX_INT, LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import LogDirOffline, OffsetOutOfRange
from logstore.format.batch import encode_batch
from logstore.format.record import ControlType, Record
from logstore.log import read as reads
from logstore.log.append import append_as_leader, append_end_transaction
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.log.read import FetchIsolation, aborted_transactions
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.segment import segments
from logstore.segment.segment import Segment
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, Operation, RecordingDisk

ORDERS, PAYMENTS, EVENTS = (TopicPartition(topic, 0) for topic in ("orders", "payments", "events"))
COMPACT = LogConfig(cleanup_policy="compact", segment_bytes=1000, index_interval_bytes=100)
START_MS = 1_000_000
LOOK_MS = START_MS + 15_000


def node(
    disk: MemoryDisk | FaultyDisk | RecordingDisk, *, config: LogConfig = COMPACT, **settings: object
) -> LogManager:
    names = {f"log.cleaner.{name.replace('_', '.')}": str(value) for name, value in settings.items()}
    return LogManager(
        ["/data"],
        disk=disk,
        clock=lambda: START_MS,
        random=random.Random(1),
        config=config,
        configs={"events": LogConfig()},
        settings=LogManagerConfig.from_kafka(names),
    )


def filled(manager: LogManager, partition: TopicPartition = ORDERS, *, count: int = 60, keys: int = 5) -> Log:
    log = manager.get_or_create(partition)
    for number in range(count):
        log.append(b"value %d" % number, key=b"%d" % (number % keys))
    log.partition.set_high_watermark(log.log_end_offset)
    return log


def is_compact(log: Log) -> bool:
    """Whether below the active segment every key is there once."""
    active = log.partition.segments[-1].base_offset
    keys = [record.key for record in log.read() if record.offset < active]
    return len(keys) == len(set(keys))


def checkpoints(disk: MemoryDisk) -> dict[TopicPartition, int]:
    return read_offset_checkpoint(disk, "/data", CLEANER_OFFSET_CHECKPOINT)


def test_a_dirty_log_is_compacted_in_its_time() -> None:
    """Not before the first look, and durably noted: a restart does not begin anew."""
    disk = MemoryDisk()
    manager = node(disk)
    log = filled(manager)
    manager.tick(START_MS + 1)
    assert not is_compact(log)
    assert manager.deadline_ms <= LOOK_MS
    manager.tick(LOOK_MS)
    assert is_compact(log)
    cleaning = manager.cleaner.partitions[ORDERS]
    assert (cleaning.state, cleaning.passes, cleaning.error) == (CleaningState.WAITING, 1, None)
    assert cleaning.bytes_cleaned > 0
    assert cleaning.last_pass is not None
    assert cleaning.last_pass.is_complete
    base = log.partition.segments[-1].base_offset
    assert checkpoints(disk) == {ORDERS: base}
    manager.close()
    again = node(disk)
    assert again.get_or_create(ORDERS).partition.first_dirty_offset == base
    again.tick(LOOK_MS)
    assert again.cleaner.partitions[ORDERS].passes == 0


def test_the_dirtiest_log_comes_first() -> None:
    manager = node(MemoryDisk(), io_max_bytes_per_second=1000)
    filled(manager, ORDERS, count=200, keys=100).compact(START_MS)
    filled(manager, ORDERS, count=200, keys=100)
    filled(manager, PAYMENTS)
    manager.cleaner.tick(LOOK_MS + 30_000)
    states = {tp: cleaning.state for tp, cleaning in manager.cleaner.partitions.items()}
    assert states == {ORDERS: CleaningState.WAITING, PAYMENTS: CleaningState.IN_PROGRESS}
    orders, payments = (manager.cleaner.partitions[each] for each in (ORDERS, PAYMENTS))
    assert COMPACT.min_cleanable_dirty_ratio < orders.dirty_ratio < payments.dirty_ratio == 1.0


def test_row_250_never_picked() -> None:
    """Policy delete, disabled, nothing above the ratio; and what was deleted is forgotten."""
    disk = MemoryDisk()
    manager = node(disk)
    filled(manager, EVENTS)
    clean = manager.get_or_create(PAYMENTS, config=replace(COMPACT, min_cleanable_dirty_ratio=1.0))
    filled(manager, PAYMENTS)
    gone = filled(manager, ORDERS)
    gone.compact(START_MS)
    assert ORDERS in checkpoints(disk)
    manager.delete(ORDERS)
    manager.tick(LOOK_MS)
    assert not is_compact(clean)
    assert list(manager.cleaner.partitions) == [PAYMENTS]
    assert ORDERS not in checkpoints(disk)
    idle = node(MemoryDisk(), enable="false")
    filled(idle)
    idle.tick(LOOK_MS)
    assert idle.cleaner.partitions == {}


def test_a_tick_does_a_bounded_piece_of_work() -> None:
    """By the rate that is set; appends go on between the steps, and are in no hurry to be compacted."""
    manager = node(MemoryDisk(), io_max_bytes_per_second=2000, io_buffer_size=1024)
    log = filled(manager, count=200)
    manager.tick(LOOK_MS)
    cleaning = manager.cleaner.partitions[ORDERS]
    now_ms, seen = LOOK_MS, cleaning.bytes_cleaned
    assert 0 < seen <= 2000 + 2048
    while cleaning.passes == 0:
        now_ms = max(manager.cleaner.deadline_ms, now_ms + 1)
        log.append(b"meanwhile", key=b"new")
        manager.tick(now_ms)
        assert cleaning.bytes_cleaned - seen <= 2000 + 2048
        seen = cleaning.bytes_cleaned
        assert now_ms < LOOK_MS + 60_000
    assert cleaning.bytes_cleaned <= 2000 * ((now_ms - START_MS) / 1000 + 1) + 4096
    assert [record.value for record in log.read()].count(b"meanwhile") > 3
    assert BYTES_A_TICK >= 1 << 20


def with_pass_under_way(disk: MemoryDisk | FaultyDisk) -> tuple[LogManager, Log, Callable[[], None]]:
    """A pass that has written some of a `.cleaned` segment; and how to let it go on."""
    manager = node(disk, io_max_bytes_per_second=3000, io_buffer_size=1024)
    log = filled(manager, count=300)
    now_ms = LOOK_MS
    while not any(entry.name.endswith(".log.cleaned") for entry in disk.scan(log.partition.directory)):
        manager.tick(now_ms)
        now_ms += 500

    def go_on() -> None:
        for step in range(200):
            manager.tick(now_ms + 1000 * step)

    return manager, log, go_on


def cleaned_files(disk: MemoryDisk | FaultyDisk, log: Log) -> list[str]:
    return [
        entry.name
        for entry in disk.scan(log.partition.directory)
        if entry.name.endswith((".cleaned", ".swap"))
    ]


def test_a_truncation_ends_the_pass() -> None:
    """What it had read is not put in the place of what is there now; the checkpoint goes down first."""
    disk = MemoryDisk()
    _manager, log, go_on = with_pass_under_way(disk)
    log.truncate_to(100)
    assert log.partition.first_dirty_offset <= 100
    expected = {record.offset for record in log.read()}
    go_on()
    assert {record.offset for record in log.read()} <= expected
    assert cleaned_files(disk, log) == []
    assert max(record.offset for record in log.read()) == 99


def test_a_truncation_at_any_step_of_a_pass_brings_nothing_back() -> None:
    """Also in the segment that is being rewritten, with other records behind the cut and in the next one."""
    for steps in count():
        log = filled(node(MemoryDisk()))
        pending = compaction_pass(
            log.partition, cleanable_of(log.partition, START_MS), CleanerConfig(), now_ms=START_MS
        )
        is_over = [next(pending, None) for _ in range(steps)][-1:] == [None]
        log.truncate_to(20)
        new = [log.append(b"new", key=b"new %d" % number).first_offset for number in range(20)]
        list(pending)
        found = {record.offset: record.value for record in log.read()}
        assert found.keys() & range(20, 60) == set(new)
        assert all(found[offset] == b"value %d" % offset for offset in found.keys() - set(new))
        assert {found[offset] for offset in new} == {b"new"}
        if is_over:
            break
    assert steps > 5


def test_a_truncation_of_the_active_segment_does_not() -> None:
    manager, log, go_on = with_pass_under_way(MemoryDisk())
    log.truncate_to(log.log_end_offset - 1)
    go_on()
    assert manager.cleaner.partitions[ORDERS].passes == 1
    assert is_compact(log)


def test_a_restart_at_another_offset_ends_the_pass() -> None:
    disk = MemoryDisk()
    _, log, go_on = with_pass_under_way(disk)
    truncate_fully_and_start_at(log.partition, 1000)
    go_on()
    assert (log.log_start_offset, log.log_end_offset, log.size) == (1000, 1000, 0)
    assert cleaned_files(disk, log) == []


def test_a_deletion_and_a_close_end_the_pass() -> None:
    disk = MemoryDisk()
    manager, _, go_on = with_pass_under_way(disk)
    manager.delete(ORDERS)
    go_on()
    assert manager.cleaner.partitions == {}
    disk = MemoryDisk()
    manager, log, _ = with_pass_under_way(disk)
    manager.close()
    assert cleaned_files(disk, log) == []
    assert node(disk).was_clean


class TestErrors:
    def test_a_full_disk_is_waited_for_twice_as_long_each_time(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk = FaultyDisk(MemoryDisk())
        manager = node(disk)
        log = filled(manager)
        before = list(log.read())
        disk.inject(
            Fault(operation="pwrite", path=lambda path: ".cleaned" in path, errno=errno.ENOSPC, forever=True)
        )
        manager.tick(LOOK_MS)
        cleaning = manager.cleaner.partitions[ORDERS]
        waits = []
        for _ in range(12):
            assert cleaning.state is CleaningState.FAILED
            assert "disk is full" in str(cleaning.error)
            assert cleaning.next_retry_ms is not None
            now_ms = cleaning.next_retry_ms
            manager.cleaner.tick(now_ms)
            waits.append(cleaning.next_retry_ms - now_ms)
        assert waits[:3] == [30_000, 60_000, 120_000]
        said = [each.getMessage() for each in caplog.records if "compaction failed" in each.getMessage()]
        assert said[1].startswith("orders-0: compaction failed and is retried in 30 s: ")
        assert len(said) == 1 + len(waits)
        assert "disk is full" in manager.cleaner.failed[ORDERS]
        assert waits[-1] == LONGEST_WAIT_MS
        assert list(log.read()) == before
        assert cleaned_files(disk, log) == []
        disk.heal()
        manager.cleaner.tick(LOOK_MS + 100 * LONGEST_WAIT_MS)
        assert (cleaning.state, cleaning.error, cleaning.failures) == (CleaningState.WAITING, None, 0)
        assert manager.cleaner.failed == {}
        assert is_compact(log)

    def test_a_batch_that_is_damaged_stops_its_partition_alone(self) -> None:
        disk = MemoryDisk()
        manager = node(disk)
        bad = filled(manager, ORDERS)
        good = filled(manager, PAYMENTS)
        file = disk.open(f"{bad.partition.directory}/{0:020d}.log", write=True)
        file.pwrite(b"\xff", 100)
        manager.tick(LOOK_MS)
        assert is_compact(good)
        cleaning = manager.cleaner.partitions[ORDERS]
        assert cleaning.state is CleaningState.FAILED
        assert "cannot be compacted" in str(cleaning.error)
        assert not bad.partition.is_offline

    def test_a_bad_disk_takes_the_dir_offline(self) -> None:
        disk = FaultyDisk(MemoryDisk())
        manager = node(disk)
        filled(manager)
        disk.inject(Fault(operation="sync", path=lambda path: ".cleaned" in path))
        manager.tick(LOOK_MS)
        assert list(manager.offline_dirs) == ["/data"]
        with pytest.raises(LogDirOffline):
            manager.get(ORDERS)


def test_two_compactions_of_a_log_do_not_meet() -> None:
    log = filled(node(MemoryDisk()))
    first = compaction_pass(
        log.partition, cleanable_of(log.partition, START_MS), CleanerConfig(), now_ms=START_MS
    )
    next(first)
    (second,) = log.compact(START_MS)
    assert second.was_aborted
    first.close()
    (third,) = log.compact(START_MS)
    assert third.is_complete


def test_an_active_segment_replaced_while_a_pass_ends_is_the_next_one_in_its_seal() -> None:
    """A follower's append past a gap replaces an empty one, whose name is in the seal before it. The new
    segment of a compaction names the same one, or the next opening would miss a segment.
    """
    disk = MemoryDisk()

    def before(call: Operation) -> None:
        if (call.name, call.path) == ("sync", seal_of_last) and log.log_end_offset == 60:
            data = encode_batch([Record(MAX_INT + 100, 0, b"k", b"past a gap")], base_offset=MAX_INT + 100)
            append_as_follower(log.partition, data, leader_epoch=0)

    seal_of_last = ""
    log = filled(node(RecordingDisk(disk, before=before)))
    log.partition.roll()
    seal_of_last = log.partition.segments[-2].path(".seal.cleaned")
    (report,) = log.compact(START_MS)
    assert (report.was_aborted, log.partition.segments[-1].base_offset) == (False, MAX_INT + 100)
    log.flush()
    log = Log.open("/data/orders-0", COMPACT, disk=disk.durable_image(), clock=lambda: START_MS)
    assert log.partition.report.damages == []
    assert next(log.read(MAX_INT)).value == b"past a gap"


def test_the_files_of_replaced_segments_go_after_their_delay() -> None:
    """Readers may have them until then. A disk would fill with them while its node goes on."""
    disk = MemoryDisk()
    manager = node(disk)
    log = filled(manager)
    log.compact(START_MS)
    assert [name for name in disk.files() if name.endswith(".deleted")]
    log.maintain(START_MS + COMPACT.file_delete_delay_ms)
    assert not [name for name in disk.files() if name.endswith(".deleted")]


def test_merged_segments_leave_no_producer_snapshots() -> None:
    """Each compaction merges what the one before has made small."""
    disk = MemoryDisk()
    log = filled(node(disk), count=200)
    before = len(log.partition.segments)
    for _ in range(2):
        log.compact(START_MS)
        log.append(b"1", key=b"1")
        log.partition.set_high_watermark(log.log_end_offset)
        log.partition.roll()
    bases = {segment.base_offset for segment in log.partition.segments}
    snapshots = {int(path[-29:-9]) for path in disk.files() if path.endswith(".snapshot")}
    assert len(bases) < before / 2
    assert snapshots <= bases


def test_row_240_what_is_at_or_past_the_uncleanable_offset_keeps_every_byte() -> None:
    disk = MemoryDisk()
    log = filled(node(disk))
    active = f"{log.partition.directory}/{log.partition.segments[-1].base_offset:020d}.log"
    before = disk.files()[active]
    log.compact(START_MS)
    assert disk.files()[active] == before


def test_row_238_small_maps_take_several_passes() -> None:
    log = filled(node(MemoryDisk()), keys=25)
    reports = log.compact(START_MS, settings=CleanerConfig(dedupe_buffer_size=24 * 5))
    ends = [report.end_offset for report in reports]
    assert ends == sorted(set(ends))
    assert len(reports) > 5
    assert reports[-1].is_complete
    assert is_compact(log)


def test_compact_and_delete_both() -> None:
    """The cleaner lets old segments go too; the manager's own retention leaves compacted logs to it."""
    config = replace(COMPACT, cleanup_policy="compact,delete", retention_bytes=2000)
    manager = node(MemoryDisk(), config=config)
    log = filled(manager, count=200, keys=1000)
    manager.tick(LOOK_MS)
    assert log.log_start_offset > 0
    assert log.size <= 3000
    with pytest.raises(OffsetOutOfRange):
        log.read_bytes(0)


def test_a_reader_of_replaced_segments_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had chosen a segment; a swap came first. No record is passed over, and no disk is blamed."""
    log = filled(node(MemoryDisk()))
    expected = [record.offset for record in log.read()]
    original = segments.read_batches
    pending = [True]

    def interrupted(segment: Segment, *args: object, **names: object) -> object:
        if pending:
            pending.clear()
            log.compact(START_MS)
        return original(segment, *args, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(reads, "read_batches", interrupted)
    found = [record.offset for record in log.read(0)]
    assert not log.partition.is_offline
    left = [record.offset for record in log.read()]
    assert found == left
    assert set(left) < set(expected)


def test_row_241_a_batch_that_is_larger_than_is_allowed_by_now() -> None:
    """The setting was lowered since; what is in the log is compacted all the same."""
    manager = node(MemoryDisk(), config=replace(COMPACT, segment_bytes=10_000))
    log = manager.get_or_create(ORDERS)
    for _ in range(2):
        log.append(bytes(5000), key=b"large")
    log.partition.roll()
    log.partition.set_high_watermark(log.log_end_offset)
    log.partition.config = replace(log.partition.config, max_message_bytes=100)
    (report,) = log.compact(START_MS, settings=CleanerConfig(io_buffer_size=1024))
    assert (report.is_complete, report.stats.records_written) == (True, 1)


def test_row_234_a_transaction_over_several_segments() -> None:
    """Its marker lies in a later one: it outlives the data, which no reader of committed data ever sees."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/orders-0", COMPACT, disk=disk, clock=lambda: START_MS)
    for number in range(3):
        data = encode_batch(
            [Record(0, START_MS, b"k%d" % number, b"v")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            is_transactional=True,
        )
        append_as_leader(log.partition, data, leader_epoch=0, now_ms=START_MS)
        log.partition.roll()
    append_end_transaction(
        log.partition, 7, 0, ControlType.ABORT, coordinator_epoch=0, leader_epoch=0, now_ms=START_MS
    )
    log.append(b"v", key=b"other")
    log.partition.roll()
    day_ms = COMPACT.delete_retention_ms
    for number in range(4):
        log.compact(START_MS + number * day_ms)
        assert next(record.key for record in log.read(isolation=FetchIsolation.TXN_COMMITTED)) == b"other"
        log.append(b"v", key=b"more %d" % number)
        log.partition.roll()
    batches = list(log.read_batches())
    assert [each.last_offset for each in batches if each.producer_id == 7] == [2, 3]
    assert batches[0].record_count == 0, "the producer's last batch stays, empty, and with it the marker"
    assert [each.last_offset for each in aborted_transactions(log.partition, 0, 4)] == [3]


def test_row_228_duplicates_of_three_producers_row_229_also_of_a_batch_that_is_emptied() -> None:
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/orders-0", COMPACT, disk=disk, clock=lambda: START_MS)
    sent: list[tuple[bytes, int, int]] = []
    for producer_id, keys in ((1, (b"1", b"2", b"3")), (2, (b"3", b"1", b"4")), (3, (b"1", b"4"))):
        records = [Record(delta, START_MS, key, b"v") for delta, key in enumerate(keys)]
        data = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        info = append_as_leader(log.partition, data, leader_epoch=0, now_ms=START_MS)
        sent.append((data, info.first_offset, info.last_offset))
    log.partition.roll()
    log.compact()

    def check(log: Log, offsets: list[int]) -> None:
        assert [record.offset for record in log.read()] == offsets
        assert [each.last_offset for each in log.read_batches() if each.producer_id > 0] == [2, 5, 7]
        for data, first, last in sent:
            again = append_as_leader(log.partition, data, leader_epoch=0, now_ms=START_MS)
            assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, first, last)

    check(log, [1, 3, 6, 7])
    log.close()
    log = Log.open("/data/orders-0", COMPACT, disk=disk, clock=lambda: START_MS)
    check(log, [1, 3, 6, 7])
    log.append(b"v", key=b"2")
    log.partition.roll()
    log.compact()
    check(log, [3, 6, 7, 8])
    assert next(log.read_batches()).record_count == 0


@pytest.mark.parametrize("stale", [3, 10_000])
def test_row_247_a_checkpoint_outside_the_log_is_written_anew(stale: int) -> None:
    """Below the log start or above the end: all of the log counts as dirty, and the file says so."""
    disk = MemoryDisk()
    manager = node(disk, config=replace(COMPACT, cleanup_policy="compact,delete"))
    log = filled(manager)
    log.delete_records(7)
    manager.close()
    write_offset_checkpoint(disk, "/data", CLEANER_OFFSET_CHECKPOINT, {ORDERS: stale})
    manager = node(disk, config=replace(COMPACT, cleanup_policy="compact,delete"))
    log = manager.get_or_create(ORDERS)
    assert cleanable_of(log.partition, START_MS).first_dirty_offset == 7
    assert checkpoints(disk) == {ORDERS: 7}


def test_a_checkpoint_that_cannot_be_read_is_written_anew_at_the_start() -> None:
    """The other three are, when their time comes; this one only after a compaction."""
    disk = MemoryDisk()
    node(disk).close()
    with closing(disk.open(f"/data/{CLEANER_OFFSET_CHECKPOINT}", create=True)) as file:
        file.pwrite(b"rot", 0)
    node(disk).close()
    assert checkpoints(disk) == {}
