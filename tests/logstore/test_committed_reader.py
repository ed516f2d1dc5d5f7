"""Committed data from files alone: the same as the log's owner shows once all markers are replicated."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from logstore.config import LogConfig
from logstore.disk.files import OsDisk
from logstore.errors import OffsetOutOfRange
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.committed_reader import CommittedReader
from logstore.log.log import Log
from logstore.testing.disks import MemoryDisk

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def write(log: Log, producer_id: int, sequence: int) -> None:
    batch = encode_batch(
        [Record(0, 1000, None, b"%d.%d" % (producer_id, sequence))],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    log.append_batches(batch)


def offsets(reader: CommittedReader) -> list[int]:
    return [record.offset for record in reader.records()]


@pytest.mark.parametrize("seed", range(5))
def test_it_follows_the_owner(seed: int, tmp_path: Path) -> None:
    """Polled at any moment it goes on where it was; in the end it has shown exactly what was committed."""
    random = Random(seed)
    directory = tmp_path / "orders-0"
    log = Log.open(directory, SMALL, disk=OsDisk())
    reader = CommittedReader(directory)
    sequences = {1: 0, 2: 0, 3: 0}
    undecided: dict[int, list[int]] = {}
    committed: list[int] = []
    shown: list[int] = []
    for _ in range(150):
        producer_id = random.choice([1, 2, 3])
        match random.choice(["write", "write", "plain", "commit", "abort", "look"]):
            case "write":
                undecided.setdefault(producer_id, []).append(log.log_end_offset)
                write(log, producer_id, sequences[producer_id])
                sequences[producer_id] += 1
            case "plain":
                committed.append(log.append(b"plain").first_offset)
            case "look":
                shown += offsets(reader)
                first = min((each[0] for each in undecided.values()), default=log.log_end_offset)
                assert shown == [offset for offset in sorted(committed) if offset < first]
            case end:
                committed += undecided.pop(producer_id, []) if end == "commit" else []
                undecided.pop(producer_id, None)
                log.end_transaction(producer_id, 0, commit=end == "commit")
    for producer_id, mine in sorted(undecided.items()):
        log.end_transaction(producer_id, 0, commit=True)
        committed += mine
    assert shown + offsets(reader) == sorted(committed)
    log.close()


def test_a_start_inside_a_transaction() -> None:
    """What began before the offset that was asked for is decided by the same marker."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/orders-0", disk=disk, clock=lambda: 1000)
    for sequence in range(4):
        write(log, 1, sequence)
    log.append(b"plain")
    log.end_transaction(1, 0, commit=False)
    assert offsets(CommittedReader("/data/orders-0", start_offset=2, disk=disk)) == [4]
    assert offsets(CommittedReader("/data/orders-0", start_offset=5, disk=disk)) == []


def test_after_a_cut_the_owner_is_followed_again() -> None:
    """What was decided past the cut is not any more."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/orders-0", disk=disk, clock=lambda: 1000)
    log.append(b"plain")
    write(log, 1, 0)
    log.end_transaction(1, 0, commit=True)
    reader = CommittedReader("/data/orders-0", disk=disk)
    assert offsets(reader) == [0, 1]
    assert reader.log_end_offset == 3
    log.truncate_to(1)
    with pytest.raises(OffsetOutOfRange):
        offsets(reader)
    reader.seek(1)
    write(log, 1, 0)
    assert offsets(reader) == []
    log.end_transaction(1, 0, commit=False)
    log.append(b"plain")
    assert offsets(reader) == [3]


def test_a_torn_tail_is_told() -> None:
    disk = MemoryDisk(directories=["/data"])
    log = Log.open("/data/orders-0", disk=disk, clock=lambda: 1000)
    write(log, 1, 0)
    log.append(b"plain")
    file = disk.open(f"/data/orders-0/{0:020d}.log", write=True)
    file.truncate(file.size() - 1)
    reader = CommittedReader("/data/orders-0", disk=disk)
    assert offsets(reader) == []
    assert reader.tail is not None
