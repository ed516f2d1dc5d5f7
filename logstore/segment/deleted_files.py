"""Files that were deleted and stay a while for their readers: which they are, and when they are unlinked.

    00000000000000368769.log          a segment's file
    00000000000000368769.log.deleted  the same, on its way out: `file.delete.delay.ms` from now it goes

Whoever has the file open does not notice either step. Nothing here needs to be durable: opening a log
removes every `.deleted` file that a crash or a stop has left.
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
    """What one log has set aside. Times are epoch milliseconds. Not for two threads at a time."""

    __slots__ = ("_disk", "_doomed")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._doomed: list[_Doomed] = []

    def add(self, paths: Iterable[str], now_ms: int, delay_ms: int) -> None:
        """Unlink these `delay_ms` from now."""
        self._doomed += [_Doomed(path, now_ms, now_ms + delay_ms) for path in paths]

    @property
    def deadline_ms(self) -> int:
        """When `remove_due` next has something to do; `MAX_LONG` for never."""
        return min((doomed.due_ms for doomed in self._doomed), default=MAX_LONG)

    def remove_due(self, now_ms: int) -> int:
        """Unlink what is due; returns how many files that were. Raises `OSError`; the rest stays due."""
        # A clock that was set back must not keep them for the years that it went back by.
        due = [doomed for doomed in self._doomed if not doomed.since_ms <= now_ms < doomed.due_ms]
        for doomed in due:
            remove_if_exists(self._disk, doomed.path)
            self._doomed.remove(doomed)
        return len(due)

    def forget(self) -> None:
        """Leave the files to whoever opens the directory next."""
        self._doomed.clear()
