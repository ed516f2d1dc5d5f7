"""What the tests of disk share."""

from __future__ import annotations

from collections.abc import Callable

from logstore.disk.files import (
    Disk,
    OsDisk,
)
from logstore.testing.disks import FaultyDisk, MemoryDisk, RecordingDisk, VolatileDisk

DISKS: dict[str, Callable[[], Disk]] = {
    "os": OsDisk,
    "memory": MemoryDisk,
    "recording-memory": lambda: RecordingDisk(MemoryDisk()),
    "recording-reads-os": lambda: RecordingDisk(OsDisk(), reads=True),
    "faulty-os": lambda: FaultyDisk(OsDisk()),
    "faulty-memory": lambda: FaultyDisk(MemoryDisk()),
    "volatile-os": lambda: VolatileDisk(OsDisk()),
    "volatile-memory": lambda: VolatileDisk(MemoryDisk()),
}


def put(disk: Disk, path: str, content: bytes = b"content") -> None:
    file = disk.open(path, create=True, write=True)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()
