"""One record by its offset: one batch is read, whatever the size of the log; what is kept is never stale."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.errors import CorruptBatch, LogClosed, OffsetOutOfRange
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Header, Record
from logstore.log import lookup
from logstore.log.log import FetchIsolation, Log
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.testing.disks import MemoryDisk, Operation, RecordingDisk

DIRECTORY = "/data/orders-0"
CONFIG = LogConfig(segment_bytes=4_000, index_interval_bytes=500)
T0 = 1_700_000_000_000


def opened(config: LogConfig = CONFIG, disk: MemoryDisk | None = None) -> Log:
    return Log.open(DIRECTORY, config, disk=disk or MemoryDisk(directories=["/data"]), clock=lambda: T0)


def value(log: Log, offset: int) -> bytes | None:
    record = log[offset]
    assert record.offset == offset
    return record.value


@pytest.mark.parametrize("order", ["forwards", "backwards", "twice each"])
def test_every_offset_in_batches_of_many_sizes_and_segments(order: str) -> None:
    log = opened()
    values = [b"%d" % number * 20 for number in range(300)]
    at, size = 0, 1
    while at < len(values):
        log.append(values[at : at + size])
        at, size = at + size, size % 17 + 1
    assert len(log.partition.segments) > 2
    offsets = {
        "forwards": list(range(300)),
        "backwards": list(range(299, -1, -1)),
        "twice each": [offset for offset in range(300) for _ in range(2)],
    }[order]
    assert [value(log, offset) for offset in offsets] == [values[offset] for offset in offsets]


def test_bytes_read_do_not_grow_with_the_log() -> None:
    read: Counter[str] = Counter()

    def count(operation: Operation) -> None:
        if operation.name == "pread":
            read["bytes"] += operation.length

    counting = RecordingDisk(MemoryDisk(directories=["/data"]), before=count, reads=True)
    log = Log.open(DIRECTORY, disk=counting, clock=lambda: T0)
    for _ in range(200):
        log.append([b"x" * 1_000] * 10)
    read.clear()
    assert log[1_005].value == b"x" * 1_000
    assert read["bytes"] < 3 * 11_000
    read.clear()
    assert [record.offset for record in log.read(1_000, max_records=1)] == [1_000]
    assert read["bytes"] < 3 * 16_384


def test_outside_of_the_log() -> None:
    log = opened()
    log.append([b"a", b"b", b"c"])
    log.delete_records(1)
    for offset in (-1, 0, 3):
        with pytest.raises(OffsetOutOfRange):
            log.get(offset)
    with pytest.raises(TypeError, match="slices"):
        log[0:2]  # type: ignore[index]
    with pytest.raises(TypeError):
        log.get("1")  # type: ignore[arg-type]
    log.close()
    with pytest.raises(LogClosed):
        log.get(1)


def test_a_truncated_record_is_not_remembered() -> None:
    log = opened()
    log.append([b"old 0", b"old 1"])
    log.append([b"old 2"])
    for _ in range(3):
        assert value(log, 1) == b"old 1"
    log.truncate_to(0)
    log.append([b"new 0", b"new 1"])
    assert value(log, 1) == b"new 1"


def test_a_record_that_compaction_removed_is_not_remembered() -> None:
    log = opened(LogConfig(segment_bytes=4_000, cleanup_policy="compact"))
    log.append([(b"key", b"first"), (b"other", b"kept")])
    for number in range(100):
        log.append([(b"key", b"%d" % number * 50)])
    for _ in range(3):
        assert value(log, 0) == b"first"
    log.compact()
    assert log.get(0) is None
    with pytest.raises(LookupError, match="compacted"):
        log[0]
    assert value(log, 1) == b"kept"


def test_a_segment_that_retention_deletes_after_the_record_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(LogConfig(segment_bytes=4_000, file_delete_delay_ms=0))
    for number in range(100):
        log.append([b"%d" % number * 50])
    marks = lookup._stretch_of

    def deleted(*arguments: Any) -> Any:
        log.delete_records(log.partition.segments[1].base_offset)
        log.maintain()
        return marks(*arguments)

    monkeypatch.setattr(lookup, "_stretch_of", deleted)
    assert value(log, 3) == b"3" * 50
    with pytest.raises(OffsetOutOfRange):
        log.get(3)


def test_control_records_and_aborted_ones() -> None:
    """A control record is nobody's; an aborted one is there for whoever does not ask for committed data."""
    log = opened()
    for commit in (False, True):
        records = [Record(0, T0, None, b"in %d" % commit, sequence=0)]
        data = encode_batch(
            records, producer_id=7 + commit, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        log.append_batches(data)
        log.end_transaction(7 + commit, 0, commit=commit)
    committed = FetchIsolation.TXN_COMMITTED
    assert log.get(1) is None
    assert value(log, 0) == b"in 0"
    assert log.get(0, isolation=committed) is None
    found = log.get(2, isolation=committed)
    assert found is not None
    assert found.value == b"in 1"


def test_a_range_of_records() -> None:
    log = opened()
    for _ in range(10):
        log.append([b"x"] * 10)
    assert [record.offset for record in log.read(15, 35)] == list(range(15, 35))
    assert [record.offset for record in log.read(15, 35, max_records=3)] == [15, 16, 17]
    assert [record.offset for record in log.read(end_offset=2)] == [0, 1]
    assert list(log.read(50, 50)) == []


def filled(rng: random.Random, log: Log, records: int) -> None:
    """Append batches of 1 to 400 records: plain, compressed, with headers, of transactions."""
    end = log.log_end_offset + records
    while log.log_end_offset < end:
        count = rng.choice((1, 1, 1, 1, 2, 30, 400))
        rows = [
            Record(
                number,
                T0 + rng.randrange(1000),
                b"key %d" % rng.randrange(50),
                rng.choice((None, b"", rng.randbytes(rng.randrange(300)))),
                (Header("name", b"value"),) * rng.randrange(2),
            )
            for number in range(count)
        ]
        codec = rng.choice((Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP))
        if rng.random() < 0.1:
            producer, sequence = rng.randrange(3), log.log_end_offset
            log.append_batches(
                encode_batch(
                    rows,
                    producer_id=10 * sequence + producer,
                    producer_epoch=0,
                    base_sequence=0,
                    is_transactional=True,
                )
            )
            log.end_transaction(10 * sequence + producer, 0, commit=rng.random() < 0.5)
        else:
            log.append_batches(encode_batch(rows, codec=codec))


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("seed", range(3))
def test_random_gets_equal_a_plain_read(policy: str, seed: int) -> None:
    """Between gets the log grows, is cut, compacted, started anew and loses its oldest records."""
    rng = random.Random(seed)
    config = LogConfig(
        segment_bytes=rng.choice((150_000, 1 << 20)), cleanup_policy=policy, index_interval_bytes=4096
    )
    log = opened(config)
    for step in range(8):
        filled(rng, log, 1_500)
        match rng.randrange(6):
            case 0:
                log.truncate_to(rng.randrange(log.log_start_offset, log.log_end_offset))
            case 1 if policy == "compact":
                log.compact()
            case 2 if policy == "delete":
                log.delete_records(rng.randrange(log.log_start_offset, log.log_end_offset))
                log.maintain()
            case 3:
                truncate_fully_and_start_at(log.partition, rng.randrange(log.log_end_offset + 10))
                filled(rng, log, 300)
        first, end = log.log_start_offset, log.log_end_offset
        for isolation in (FetchIsolation.LOG_END, FetchIsolation.TXN_COMMITTED):
            expected = {record.offset: record for record in log.read(isolation=isolation)}
            near = rng.randrange(first, end)
            offsets = [rng.randrange(first, end) for _ in range(1_000)]
            offsets += [*range(near, min(near + 200, end)), *range(near, max(near - 200, first), -1)]
            for offset in offsets:
                assert log.get(offset, isolation=isolation) == expected.get(offset), (seed, step, offset)


def test_a_log_that_was_started_anew_has_none_of_its_old_records() -> None:
    log = opened()
    log.append([b"old 0", b"old 1"])
    for _ in range(3):
        assert value(log, 1) == b"old 1"
    truncate_fully_and_start_at(log.partition, 0)
    log.append([b"new 0", b"new 1"])
    assert value(log, 1) == b"new 1"


@pytest.mark.parametrize("batch", [1, 1_000])
def test_a_second_visit_reads_one_mark(batch: int) -> None:
    lengths: list[int] = []

    def count(operation: Operation) -> None:
        if operation.name == "pread":
            lengths.append(operation.length)

    counting = RecordingDisk(MemoryDisk(directories=["/data"]), before=count, reads=True)
    log = Log.open(DIRECTORY, disk=counting, clock=lambda: T0)
    for first in range(0, 4_000, batch):
        log.append([b"%d" % number * 20 for number in range(first, first + batch)])
    offsets = list(range(0, 4_000, 3))
    for offset in offsets:
        log.get(offset)
    lengths.clear()
    assert [value(log, offset) for offset in offsets] == [b"%d" % offset * 20 for offset in offsets]
    assert len(lengths) == len(offsets)
    assert max(lengths) < 2 * lookup.MARK_BYTES


def test_marks_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_MARK_BYTES", 20_000)
    log = opened(LogConfig())
    for _ in range(300):
        log.append([b"x" * 100] * 100)
    rng = random.Random(1)
    for _ in range(2_000):
        offset = rng.randrange(30_000)
        assert value(log, offset) == b"x" * 100
    remembered = log._lookup
    assert remembered is not None
    assert 10_000 < remembered._cost <= 20_000
    assert sorted(remembered._stretches) == remembered._bases
    assert remembered._cost == sum(each.cost for each in remembered._stretches.values())


@pytest.mark.parametrize("batch", [1, 100])
def test_damage_behind_a_mark_is_reported(batch: int) -> None:
    disk = MemoryDisk(directories=["/data"])
    log = opened(LogConfig(), disk)
    for _ in range(0, 200, batch):
        log.append([b"x" * 100] * batch)
    for offset in (10, 50, 10, 50):
        assert value(log, offset) == b"x" * 100
    file = disk.open(f"{DIRECTORY}/{0:020}.log", write=True)
    size = log.size * batch // 200
    for at in range(0, log.size, size):
        file.pwrite(b"\xff" * (size - 61), at + 61)
    for offset in (50, 10, 11):
        with pytest.raises(CorruptBatch, match="checksum"):
            log.get(offset)


def test_a_compressed_batch_that_is_asked_twice_is_decoded_once() -> None:
    read: Counter[str] = Counter()
    counting = RecordingDisk(
        MemoryDisk(directories=["/data"]), before=lambda each: read.update([each.name]), reads=True
    )
    log = Log.open(DIRECTORY, LogConfig(compression_type="gzip"), disk=counting, clock=lambda: T0)
    log.append([b"%d" % number * 20 for number in range(1_000)])
    for offset in (3, 500):
        value(log, offset)
    read.clear()
    for offset in range(0, 1_000, 7):
        assert value(log, offset) == b"%d" % offset * 20
    assert read["pread"] == 0
