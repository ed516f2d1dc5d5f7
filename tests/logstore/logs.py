"""Hand-made log directories on a disk in memory, and batches to fill them with."""

from __future__ import annotations

from collections.abc import Iterable

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.loading import LoadedLog
from logstore.log.recovery import load
from logstore.segment.segment import file_name
from logstore.segment.segments import read_batches
from logstore.testing.disks import MemoryDisk

DIRECTORY = "/data/orders-0"
EVERY_BATCH = LogConfig(index_interval_bytes=1, segment_index_bytes=4096)


def batch(base_offset: int, times: Iterable[int], *, epoch: int = 0, value: bytes = b"value") -> bytes:
    """A batch at `base_offset` with a record for each time."""
    records = [
        Record(base_offset + delta, time, b"key", value + b" %d" % (base_offset + delta))
        for delta, time in enumerate(times)
    ]
    return encode_batch(records, base_offset=base_offset, leader_epoch=epoch)


BATCH_0 = batch(0, (1000, 1001, 1002))
BATCH_3 = batch(3, (2000, 2001), epoch=1)
BATCH_5 = batch(5, (3000, 3001), epoch=1)
SINGLE_5 = batch(5, (3000,), epoch=1)


def disk_with(files: dict[str, bytes], directory: str = DIRECTORY) -> MemoryDisk:
    """A disk that holds these files in `directory`, all of it durable."""
    disk = MemoryDisk()
    disk.make_dir(directory)
    for name, content in files.items():
        put(disk, name, content, directory)
    return disk.copy()


def put(disk: Disk, name: str, content: bytes, directory: str = DIRECTORY) -> None:
    """Make or replace one file."""
    file = disk.open(f"{directory}/{name}", create=True, write=True)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()


def content_of(disk: MemoryDisk, name: str, directory: str = DIRECTORY) -> bytes:
    """What one file holds."""
    return disk.files()[f"{directory}/{name}"]


def names(disk: MemoryDisk, directory: str = DIRECTORY) -> list[str]:
    """The files of `directory`."""
    return [entry.name for entry in disk.scan(directory)]


def log_file(base_offset: int) -> str:
    return file_name(base_offset, ".log")


def opened(
    disk: Disk,
    *,
    clean: bool = False,
    start: int = 0,
    recovery_point: int = 0,
    config: LogConfig = EVERY_BATCH,
    accept_loss: bool = False,
    closed_at: int | None = None,
) -> LoadedLog:
    """Load `DIRECTORY` as its owner would after such a stop."""
    return load(
        disk,
        DIRECTORY,
        config,
        is_clean=clean,
        recovery_point=recovery_point,
        log_start_offset=start,
        now_ms=10_000,
        accept_loss=accept_loss,
        closed_at=closed_at,
    )


def offsets_in(loaded: LoadedLog) -> list[int]:
    """The offset of every record, oldest first, read from the segments."""
    found: list[int] = []
    for segment in loaded.segments.values():
        offset = segment.base_offset
        while read := read_batches(segment, offset, 1 << 20, loaded.log_end_offset, at_least_one=True):
            from logstore.format.batch import walk

            found.extend(record.offset for each in walk(read.records) for record in each.records())
            offset = read.next_offset
    return found
