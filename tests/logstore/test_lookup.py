"""One record by its offset: one batch is read, whatever the size of the log; what is kept is never stale."""

from __future__ import annotations

from collections import Counter

import pytest

from logstore.config import LogConfig
from logstore.errors import LogClosed, OffsetOutOfRange
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import FetchIsolation, Log
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
