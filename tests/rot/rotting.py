"""Let a bit or a block of a file rot under a running broker, as a disk does: past the page cache.

Under one that was killed, a bit of an epoch file rots so that it still parses: only batches contradict it.

A block of 4 KiB is read and written with O_DIRECT, and the file leaves the page cache: the next read of those
bytes comes from the disk.
"""

from __future__ import annotations

import mmap
import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT, parse_leader_epoch_checkpoint
from logstore.disk.errors import CorruptCheckpoint
from logstore.errors import CorruptBatch
from logstore.format.batch import walk
from logstore.segment.epochs import EpochEntry, LeaderEpochCache, is_of_its_epoch

BLOCK = 4096
KINDS = ("sealed", "active", "index", "timeindex", "txnindex", "seal", "epochs", "snapshot")
KILLED = "killed"
"""An epoch file rots while its broker is down."""
_SUFFIXES = {each: f".{each}" for each in ("index", "timeindex", "txnindex", "seal", "snapshot")}


@dataclass(frozen=True, slots=True)
class Rot:
    """Bytes of `path` at `position` that changed from `sound` to `rotten`."""

    path: Path
    position: int
    sound: bytes
    rotten: bytes

    @property
    def is_in_place(self) -> bool:
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                return file.read(len(self.rotten)) == self.rotten
        except FileNotFoundError:
            return False


def candidates(directory: Path, kind: str) -> list[tuple[Path, int]]:
    """Return the files of a partition that may rot, with the number of bytes at their start that may."""
    if kind == "epochs":
        paths = [directory / "leader-epoch-checkpoint"]
    elif kind in _SUFFIXES:
        paths = sorted(directory.glob(f"*{_SUFFIXES[kind]}"))
    else:
        logs = sorted(directory.glob("*.log"))
        paths = logs[-1:] if kind == "active" else logs[:-1]
    found = []
    for path in paths:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue
        if kind == "active":
            # The broker may write to the last block at this moment.
            size = (size - 1) // BLOCK * BLOCK
        if size > 0:
            found.append((path, size))
    return found


def spoil(path: Path, size: int, random: Random) -> Rot | None:
    """Change a bit, or put another block in the place of one; None if nothing differs or the file went."""
    is_bit = random.random() < 0.5
    at = random.randrange(size)
    block = at // BLOCK * BLOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    except FileNotFoundError:
        return None
    buffer = mmap.mmap(-1, BLOCK)
    try:
        length = min(os.preadv(descriptor, [buffer], block), size - block)
        before = buffer[:length]
        if is_bit:
            data = bytearray(before)
            data[at - block] ^= 1 << random.randrange(8)
        else:
            data = bytearray(random.randbytes(length) if random.random() < 0.5 else length)
        if bytes(data) == before:
            return None
        if length == BLOCK:
            buffer[:] = bytes(data)
            os.pwritev(descriptor, [buffer], block)
        else:
            _write_short(path, bytes(data), block)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return Rot(path, block, before, bytes(data))


def _write_short(path: Path, data: bytes, position: int) -> None:
    """The last block of a file has no whole one to write past the page cache."""
    with closing(os.fdopen(os.open(path, os.O_RDWR), "r+b", buffering=0)) as file:
        os.pwrite(file.fileno(), data, position)
        os.fsync(file.fileno())


def lie(directory: Path, random: Random) -> Rot | None:
    """Flip a bit of a stopped partition's epoch file that still parses, and contradicts two batches or more.

    None if no bit does that, or a batch is not whole. The first entry stays where it starts: a file that
    begins later is legal.
    """
    path = directory / LEADER_EPOCH_CHECKPOINT
    try:
        sound = path.read_bytes()
        batches = [batch for log in sorted(directory.glob("*.log")) for batch in walk(log.read_bytes())]
    except (FileNotFoundError, CorruptBatch):
        return None

    def entries_of(content: bytes) -> list[EpochEntry]:
        return [*LeaderEpochCache(parse_leader_epoch_checkpoint(content)).entries]

    before, lies = entries_of(sound), []
    for position, byte in enumerate(sound):
        for bit in range(8):
            rotten = sound[:position] + bytes([byte ^ 1 << bit]) + sound[position + 1 :]
            with suppress(CorruptCheckpoint):
                after = entries_of(rotten)
                wrong = sum(
                    not is_of_its_epoch(each.base_offset, each.leader_epoch, after) for each in batches
                )
                if wrong > 1 and after[0].start_offset == before[0].start_offset:
                    lies.append(rotten)
    if not lies:
        return None
    rotten = random.choice(lies)
    path.write_bytes(rotten)
    return Rot(path, 0, sound, rotten)
