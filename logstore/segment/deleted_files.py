"""Deleted files that stay for a while for their readers.

    00000000000000368769.log          a segment's file
    00000000000000368769.log.deleted  the same, unlinked after `file.delete.delay.ms`

A reader that has the file open notices neither step. Nothing here needs to be durable: opening a log
removes every `.deleted` file that a crash or a stop left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from logstore.config import MAX_LONG
from logstore.disk.files import Disk, remove_if_exists

DELETED_SUFFIX = ".deleted"


class _Doomed(NamedTuple):
    path: str
    since_ms: int
    due_ms: int


class DeletedFiles:
    """The deleted files of one log. Times are epoch milliseconds. Not thread-safe."""

    __slots__ = ("_disk", "_doomed")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._doomed: list[_Doomed] = []

    def add(self, paths: Iterable[str], now_ms: int, delay_ms: int) -> None:
        """Schedule these files to be unlinked `delay_ms` from now."""
        self._doomed += [_Doomed(path, now_ms, now_ms + delay_ms) for path in paths]

    @property
    def deadline_ms(self) -> int:
        """The time of the next `remove_due` that unlinks something; `MAX_LONG` for never."""
        return min((doomed.due_ms for doomed in self._doomed), default=MAX_LONG)

    def remove_due(self, now_ms: int) -> int:
        """Unlink the files that are due; return their number. Raises `OSError`; the rest stays due."""
        # If the clock was set back, they are due at once rather than years later.
        due = [doomed for doomed in self._doomed if not doomed.since_ms <= now_ms < doomed.due_ms]
        for doomed in due:
            remove_if_exists(self._disk, doomed.path)
            self._doomed.remove(doomed)
        return len(due)

    def forget(self) -> None:
        """Leave the files to the next owner of the directory."""
        self._doomed.clear()
