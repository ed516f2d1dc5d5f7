"""What the tests of segment share."""

from __future__ import annotations

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.format.batch import Batch, walk
from logstore.segment.cutting import place_of_cut, truncate_segment
from logstore.segment.segment import Segment, file_name
from logstore.segment.segments import Located, find_timestamp, read_batches, walk_from
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import DIRECTORY, batch, content_of

BASE = 40


END = 1 << 40


CONFIG = LogConfig(index_interval_bytes=1, segment_index_bytes=1200)


def new_segment(disk: Disk | None = None, *, base: int = BASE, config: LogConfig = CONFIG) -> Segment:
    disk = disk or MemoryDisk(directories=[DIRECTORY])
    return Segment(disk, DIRECTORY, base, config, size=0, now_ms=7, is_new=True)


def reopened(disk: MemoryDisk, *, base: int = BASE, config: LogConfig = CONFIG) -> Segment:
    size = len(content_of(disk, file_name(base, ".log")))
    return Segment(disk, DIRECTORY, base, config, size=size, now_ms=9, modified_ms=5555)


def locate(segment: Segment, offset: int) -> Located | None:
    """The first batch whose last offset is at or past `offset`; None if there is none."""
    return next((each for each in walk_from(segment, offset) if each.last_offset >= offset), None)


def truncated(segment: Segment, offset: int, now_ms: int = 0) -> int:
    """Cut it at `offset`; return the bytes cut."""
    return truncate_segment(segment, place_of_cut(segment, offset), offset, now_ms)


def append(segment: Segment, *batches: bytes) -> None:
    """All of `batches` in one append."""
    extents = []
    for data in batches:
        each = Batch(data)
        extents.append((each.size, each.last_offset, each.max_timestamp_ms))
    segment.append(b"".join(batches), extents)


def records(*offsets: int, time: int = 1000) -> list[bytes]:
    return [batch(offset, (time + offset,)) for offset in offsets]


def bases(segment: Segment, start: int, *, end: int = END, max_bytes: int = 1 << 20) -> list[int] | None:
    """Base offsets of the batches that a read gives; None where it finds nothing."""
    found = read_batches(segment, start, max_bytes, end, at_least_one=True)
    return None if found is None else [each.base_offset for each in walk(found.records)]


def first_at(segment: Segment, time: int, start: int = BASE) -> int | None:
    found = find_timestamp(segment, time, start, END)
    if found is None:
        return None
    return next(each.offset for each in found.records() if each.timestamp_ms >= time and each.offset >= start)
