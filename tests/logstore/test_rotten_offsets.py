"""No checksum covers the offset of a batch: where one has rotted, every way to read says so, or is right."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.errors import CorruptBatch, OffsetOutOfRange
from logstore.format.batch import walk
from logstore.log import read
from logstore.log.log import Log
from logstore.segment.segment import Segment
from logstore.testing.disks import MemoryDisk

DIRECTORY = "/data/t-0"
COUNT = 60
ROTTEN = 24
Read: TypeAlias = Callable[[Log], Iterable[int | None]]


def value(offset: int) -> bytes:
    return b"%d" % offset * 10


def a_log(policy: str, rotten: int) -> Log:
    """A log of three segments, in the second of which the batch at ROTTEN has another offset."""
    disk = MemoryDisk(directories=["/data"])
    config = LogConfig(segment_bytes=2000, cleanup_policy=policy)
    with Log.open(DIRECTORY, config, disk=disk) as log:
        for offset in range(COUNT):
            log.append(value(offset), key=b"%d" % offset)
        bases = [segment.base_offset for segment in log.partition.segments]
    assert len(bases) == 3
    assert bases[1] < ROTTEN < bases[2]
    file = disk.open(f"{DIRECTORY}/{bases[1]:020d}.log", write=True)
    position = 0
    for batch in walk(file.pread(file.size(), 0)):
        if batch.base_offset == ROTTEN:
            break
        position += batch.size
    file.pwrite(struct.pack(">q", rotten), position)
    return Log.open(DIRECTORY, config, disk=disk)


def offsets_of(values: Iterable[bytes | None]) -> Iterator[int | None]:
    """The offsets that these values were written at."""
    return (int((each or b"")[: len(each or b"") // 10]) for each in values)


def from_arrow(log: Log) -> Iterator[int]:
    for rows in log.read_arrow(columns=["offset"]):
        yield from rows.column("offset").to_pylist()


WAYS: dict[str, tuple[Read, range]] = {
    "read": (lambda log: (each.offset for each in log.read()), range(COUNT)),
    "part": (lambda log: (each.offset for each in log.read(20, 30)), range(20, 30)),
    "behind": (lambda log: (each.offset for each in log.read(30, 33)), range(30, 33)),
    "values": (lambda log: offsets_of(log.read_values()), range(COUNT)),
    "batches": (lambda log: (each.base_offset for each in log.read_batches()), range(COUNT)),
    "reverse": (lambda log: (each.offset for each in log.read_reverse()), range(COUNT - 1, -1, -1)),
    "follow": (lambda log: (each.offset for each in log.follow(0, timeout=0)), range(COUNT)),
    "arrow": (from_arrow, range(COUNT)),
    "get": (lambda log: (record and record.offset for record in map(log.get, range(COUNT))), range(COUNT)),
}


@pytest.mark.parametrize("rotten", [8, 56, 280, ROTTEN + 2**20, ROTTEN + 2**40, ROTTEN + 2**62])
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("way", WAYS)
def test_no_record_is_passed_over(way: str, policy: str, rotten: int) -> None:
    """17 records were, in silence, behind an offset past its segment."""
    way_of, written = WAYS[way]
    log = a_log(policy, rotten)
    found: list[int | None] = []
    try:
        found.extend(way_of(log))
    except CorruptBatch:
        assert found == list(written)[: len(found)], "the records before the damage"
    else:
        assert found == list(written), f"{ROTTEN} became {rotten}"


@pytest.mark.parametrize("bit", range(64))
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_each_record_is_found_alone_or_refused(policy: str, bit: int) -> None:
    """But for an offset of the same segment: only the next batch shows that it is another's."""
    (flipped,) = struct.unpack(">q", struct.pack(">Q", ROTTEN ^ 1 << bit))
    log = a_log(policy, flipped)
    for offset in range(COUNT):
        try:
            record: Any = log.get(offset)
        except EngineError:
            continue
        # In a log that may have been compacted, a gap within a segment tells nothing.
        assert record is not None or policy == "compact", offset
        is_like_another = offset == flipped and ROTTEN < flipped < 41
        assert record is None or is_like_another or record.value == value(offset), f"{offset}: {record}"


def test_a_segment_that_goes_away_while_a_gap_is_judged_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log went offline: the error was counted against the next segment, which is still there."""
    log = a_log("delete", 280)

    def gone(segment: Segment, offset: int) -> None:
        monkeypatch.undo()
        log.delete_records(50)
        log.maintain()
        raise OSError(errno.EBADF, "closed by a deletion")

    monkeypatch.setattr(read, "locate_in_order", gone)
    with pytest.raises(OffsetOutOfRange):
        log.read_bytes(ROTTEN)
    assert not log.partition.is_offline
    assert [record.offset for record in log.read(50)] == list(range(50, COUNT))
