"""The short way of a single value leaves the directory that the long way leaves, and refuses the same."""

from __future__ import annotations

import errno
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import DiskFull, InvalidRecord, LogClosed, LogDirOffline, RecordTooLarge
from logstore.log.log import Log
from logstore.log.outgoing import append_value
from logstore.log.partition_log import PartitionLog
from logstore.log.stretch import LARGEST_VALUE_BYTES
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk

T0 = 1_700_000_000_000
VALUE = b"v" * 30


class Clock:
    def __init__(self) -> None:
        self.now_ms = T0

    def __call__(self) -> int:
        return self.now_ms


def opened(config: LogConfig) -> tuple[MemoryDisk, Log, Clock]:
    disk, clock = MemoryDisk(), Clock()
    return disk, Log.open("/data/orders-0", config, disk=disk, clock=clock), clock


CONFIGS = (
    LogConfig(),
    LogConfig(index_interval_bytes=300, segment_bytes=4000),
    LogConfig(index_interval_bytes=0),
    LogConfig(index_interval_bytes=300, segment_index_bytes=24),
    LogConfig(index_interval_bytes=500, segment_ms=50),
    LogConfig(flush_messages=3),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(compression_type="gzip"),
)

_steps = st.one_of(
    st.tuples(st.just("value"), st.integers(0, 120)),
    st.tuples(st.just("value"), st.integers(0, 120)),
    st.tuples(st.just("large"), st.sampled_from([LARGEST_VALUE_BYTES, LARGEST_VALUE_BYTES + 1])),
    st.tuples(st.just("many"), st.integers(1, 5)),
    st.tuples(st.just("clock"), st.integers(-30, 40)),
    st.tuples(st.just("truncate"), st.integers(0, 60)),
    st.tuples(st.just("restart"), st.integers(0, 60)),
    st.tuples(st.just("epoch"), st.just(1)),
    st.tuples(st.just("roll"), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0)),
)


LATEST_IN_BETWEEN = [("value", 1), ("clock", 40), ("value", 1), ("clock", -20), ("value", 1), ("roll", 0)]


@settings(max_examples=300, derandomize=True, deadline=None)
@example(config=CONFIGS[0], steps=LATEST_IN_BETWEEN)
@given(config=st.sampled_from(CONFIGS), steps=st.lists(_steps, max_size=40))
def test_the_short_way_is_the_long_way(config: LogConfig, steps: list[tuple[str, int]]) -> None:
    """A list of one value goes the long way: the same history made both ways, compared to the byte."""
    logs = [opened(config), opened(config)]
    for step, number in steps:
        answers = []
        for slot, (disk, log, clock) in enumerate(logs):
            answer: object = None
            match step:
                case "value" | "large":
                    value = b"x" * number
                    answer = log.append(value) if slot == 0 else log.append([value])
                case "many":
                    answer = log.append([VALUE] * number)
                case "clock":
                    clock.now_ms += number
                case "truncate":
                    answer = log.truncate_to(min(number, log.log_end_offset))
                case "restart":
                    truncate_fully_and_start_at(log.partition, number)
                case "epoch":
                    log.partition.assign_epoch(max(log.partition.latest_epoch, 0) + 1, log.log_end_offset)
                case "roll":
                    log.partition.roll()
                case "reopen":
                    log.close()
                    logs[slot] = disk, Log.open("/data/orders-0", config, disk=disk, clock=clock), clock
            answers.append(answer)
        assert answers[0] == answers[1]
    for _, log, _ in logs:
        log.close()
    assert logs[0][0].files() == logs[1][0].files()


def test_most_values_take_the_short_way() -> None:
    """Else the test above would compare the long way with itself."""
    _, log, _ = opened(LogConfig())
    log.append(VALUE)
    for number in range(200):
        assert append_value(log.partition, VALUE, T0 + number // 7) is not None
    assert log.partition.segments.active.indexes.offsets.entry_count > 2, "index entries need no long way"
    assert [record.offset for record in log.read()] == list(range(201))


def test_the_short_way_goes_on_while_a_reader_rebuilds_an_index() -> None:
    """It does without the segment's lock; the entries are those of a log that nobody has read."""
    logs = [opened(LogConfig(index_interval_bytes=300)) for _ in range(2)]
    for (_, log, clock), is_read in zip(logs, (True, False), strict=True):
        log.append(VALUE)
        active = log.partition.segments.active
        for _ in range(40):
            clock.now_ms += 3
            while active.size > active.last_position_without_entry:
                log.append(VALUE)
            with active.lock:
                appends = threading.Thread(target=log.append, args=(VALUE,))
                appends.start()
                appends.join()
                if is_read:
                    active.indexes.rebuild(".index", "a test")
        log.close()
    read, unread = (disk.files() for disk, _, _ in logs)
    assert (
        read["/data/orders-0/00000000000000000000.log"] == unread["/data/orders-0/00000000000000000000.log"]
    )
    assert (
        read["/data/orders-0/00000000000000000000.index"]
        == unread["/data/orders-0/00000000000000000000.index"]
    )


def test_settings_that_judge_every_value_close_the_short_way() -> None:
    for config in CONFIGS[5:]:
        _, log, _ = opened(config)
        log.append(VALUE)
        assert append_value(log.partition, VALUE, T0) is None
    _, log, _ = opened(LogConfig(cleanup_policy="compact"))
    with pytest.raises(InvalidRecord):
        log.append(VALUE)
    _, log, _ = opened(LogConfig(max_message_bytes=200))
    log.append(VALUE)
    with pytest.raises(RecordTooLarge):
        log.append(VALUE * 7)


def test_a_disk_that_fails_in_the_middle_of_a_stretch() -> None:
    """Nothing of the value is kept; after a full disk the next one goes where it would have gone."""
    disk = FaultyDisk(MemoryDisk())
    log = Log.open("/data/orders-0", disk=disk, clock=lambda: T0)
    log.append(VALUE)
    log.append(VALUE)
    size = log.size
    disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC, short=40))
    with pytest.raises(DiskFull):
        log.append(VALUE)
    assert (log.size, log.log_end_offset) == (size, 2)
    assert [record.value for record in log.read()] == [VALUE] * 2
    assert log.append(VALUE).last_offset == 2
    disk.inject(Fault(operation="pwrite", short=40))
    with pytest.raises(LogDirOffline):
        log.append(VALUE)
    assert log.partition.is_offline
    with pytest.raises(LogDirOffline):
        log.append(VALUE)


def test_no_short_way_into_a_log_that_was_closed() -> None:
    for leave in (PartitionLog.close, PartitionLog.abandon):
        memory, log, _ = opened(LogConfig())
        log.append(VALUE)
        log.append(VALUE)
        before = memory.files()["/data/orders-0/00000000000000000000.log"]
        leave(log.partition)
        with pytest.raises(LogClosed):
            log.append(VALUE)
        assert memory.files()["/data/orders-0/00000000000000000000.log"] == before
