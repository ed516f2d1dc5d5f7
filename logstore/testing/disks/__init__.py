"""Disks that stand in for the real one in tests, simulations and demonstrations.

    MemoryDisk     a file system in memory; draws what a power cut may leave of it
    VolatileDisk   real files; a power cut takes unsynced data away
    RecordingDisk  wraps another disk and records the operations, in order
    FaultyDisk     wraps another disk; chosen calls fail

All fulfil the contract of `logstore.disk.files.Disk` and pass one suite (`tests/contracts/test_disk.py`).
"""

from __future__ import annotations

from logstore.disk.memory import MemoryDisk, MemoryFile, MemoryLock, Profile
from logstore.testing.disks.faulty import Fault, FaultyDisk, FaultyFile
from logstore.testing.disks.recording import Operation, RecordingDisk, RecordingFile
from logstore.testing.disks.volatile import VolatileDisk, VolatileFile

__all__ = [
    "Fault",
    "FaultyDisk",
    "FaultyFile",
    "MemoryDisk",
    "MemoryFile",
    "MemoryLock",
    "Operation",
    "Profile",
    "RecordingDisk",
    "RecordingFile",
    "VolatileDisk",
    "VolatileFile",
]
