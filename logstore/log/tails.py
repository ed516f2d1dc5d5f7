"""The end of a segment that is about to be cut: its bytes, and the intact batches in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from logstore.disk.files import File, Readable
from logstore.format.crc import crc32c
from logstore.segment.damage import find_batch
from logstore.segment.scan import Scanned, scan

_CHUNK_BYTES: Final = 1 << 20
# Sound batches between bad ones are sought this often in one tail; its counts are then "at least".
_SEARCHES: Final = 1000


class Tail(NamedTuple):
    """The end of a segment that is about to be cut: bytes [from_byte, to_byte) of `name`, open as `file`."""

    name: str
    file: File
    from_byte: int
    to_byte: int

    @property
    def size(self) -> int:
        return self.to_byte - self.from_byte


class Survey(NamedTuple):
    """The intact batches in a range of bytes; offsets inclusive, -1 for none. Epochs: lowest, highest."""

    first_offset: int = -1
    last_offset: int = -1
    records: int = 0
    batches: int = 0
    epochs: tuple[int, int] = (-1, -1)

    def joined(self, other: Survey) -> Survey:
        """Both in one."""
        if not self.batches or not other.batches:
            return self if self.batches else other
        return Survey(
            min(self.first_offset, other.first_offset),
            max(self.last_offset, other.last_offset),
            self.records + other.records,
            self.batches + other.batches,
            (min(self.epochs[0], other.epochs[0]), max(self.epochs[1], other.epochs[1])),
        )


def sound_batches(file: File, from_byte: int, to_byte: int) -> Iterator[Scanned]:
    """Yield the individually intact batches in [from_byte, to_byte), past any damage between them.

    Their offsets need not follow those of the item before. After a thousand faults the rest is left
    unread. Raises `OSError`.
    """
    position: int | None = from_byte
    for _ in range(_SEARCHES):
        if position is None or position >= to_byte:
            return
        # Judged by itself: it may be here because its offsets do not follow what lies before it.
        base_offset = max(int.from_bytes(file.pread(8, position), signed=True), 0)
        start = position
        for scanned in scan(file, start, to_byte, base_offset=base_offset):
            if len(scanned.headers):
                yield scanned
            position = scanned.end
        if position == start:
            position = find_batch(file, start, to_byte)


def survey(file: File, from_byte: int, to_byte: int) -> Survey:
    """Count the batches that `sound_batches` finds. Raises `OSError`."""
    total = Survey()
    for scanned in sound_batches(file, from_byte, to_byte):
        epochs = scanned.headers["leader_epoch"]
        found = Survey(
            int(scanned.headers["base_offset"][0]),
            int(scanned.last_offsets[-1]),
            max(int(scanned.headers["record_count"].sum()), 0),
            len(scanned.headers),
            (int(epochs.min()), int(epochs.max())),
        )
        total = total.joined(found)
    return total


def only_zeros(file: Readable, from_byte: int, to_byte: int) -> bool:
    """Return whether the bytes are all zero: preallocated, or a length whose bytes were never written."""
    return all(not chunk.strip(b"\0") for chunk in chunks(file, from_byte, to_byte))


def chunks(file: Readable, from_byte: int, to_byte: int) -> Iterator[bytes]:
    while from_byte < to_byte:
        chunk = file.pread(min(_CHUNK_BYTES, to_byte - from_byte), from_byte)
        if not chunk:
            return
        yield chunk
        from_byte += len(chunk)


def crc_of(file: File, from_byte: int, to_byte: int) -> int:
    crc = 0
    for chunk in chunks(file, from_byte, to_byte):
        crc = crc32c(chunk, crc)
    return crc
