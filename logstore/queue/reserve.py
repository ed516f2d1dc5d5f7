"""Space for acknowledgements on a full disk: a file that is removed when an event finds no room.

    jobs/reserve      1 MiB of bytes that no file system compresses; nobody reads them

An acknowledgement is an event in a log, so it needs space, and without it nothing would ever free some. When
an event finds no room, the topic removes this file and writes a checkpoint, which makes all former events
superfluous: their segments are deleted, and finished messages with them. Then the file is written again.
While it is missing, no message is put, and a checkpoint is due after a few events. So consumers can drain the
queue. The death of the process in between leaves the space free for the next opening.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import shake_128
from typing import Final

from logstore.disk.errors import EngineError
from logstore.disk.files import Disk, remove_if_exists
from logstore.errors import LogDirOffline, is_refusal, refusal

RESERVE_BYTES: Final = 1 << 20
RESERVE_FILE: Final = "reserve"
_BLOCK_BYTES: Final = 1 << 17
"""File systems compress by blocks of this size at most."""


@cache
def _block() -> bytes:
    return shake_128().digest(_BLOCK_BYTES)


class Reserve:
    """The reserve of one queue. Its owner calls it under the queue's lock."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._directory, self._path = disk, directory, f"{directory}/{RESERVE_FILE}"
        self.is_kept = True
        """Whether the space is there, as far as known."""

    def keep(self) -> None:
        """Write the file if it is missing. Raises `DiskFull`, `OutOfResources` or `LogDirOffline`."""
        if not self.is_kept:
            self._fill()

    def _fill(self, room: int | None = None) -> None:
        room = room or 2 * RESERVE_BYTES  # or the next event would find none beside it
        try:
            file = self._disk.open(self._path, create=True, write=True)
            try:
                file.pwrite(_block() * (room // _BLOCK_BYTES), 0)
                file.truncate(RESERVE_BYTES)
            finally:
                file.close()
        except OSError as error:
            with suppress(OSError):
                remove_if_exists(self._disk, self._path)
            if is_refusal(error):
                what = "messages can be acknowledged, and none can be put"
                raise refusal(error, self._directory, what) from error
            raise LogDirOffline(f"{self._path} cannot be written: {error}; check the disk") from error
        self.is_kept = True

    def give_up(self) -> bool:
        """Free the space; False if it is gone already."""
        if not self.is_kept:
            return False
        self.is_kept = False
        with suppress(OSError):
            return remove_if_exists(self._disk, self._path)
        return False

    @contextmanager
    def lent(self, room: int | None = None) -> Iterator[None]:
        """Free the space meanwhile; keep it again if there is `room` (default: as for `keep`)."""
        with suppress(OSError):
            remove_if_exists(self._disk, self._path)
        try:
            yield
        finally:
            self.is_kept = False
            with suppress(EngineError):
                self._fill(room)
