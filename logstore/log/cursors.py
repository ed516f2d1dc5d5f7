"""Cursors: named positions of readers, stored with the log.

    cursor = log.cursor("billing")
    for record in cursor.read():
        ...
        cursor.commit()

The positions lie in one file of the log's directory (`cursor_file.py`). A commit survives the death of the
process at once, and power loss with `sync=True`, which all threads share that commit at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from logstore.arguments import as_offset, as_timeout
from logstore.disk.closing import OfThisProcess
from logstore.errors import LogClosed, OffsetOutOfRange
from logstore.format.record import Record
from logstore.log.cursor_file import check_cursor_name
from logstore.log.partition_log import PartitionLog
from logstore.log.read import FetchIsolation, end_offset_for
from logstore.log.reading import first_of

if TYPE_CHECKING:
    from logstore.log.log import Log


class Cursor(OfThisProcess):
    """A named position in an open log, for one thread at a time.

    It begins at the committed offset of its name, and without one at the log start. Two cursors with one name
    read the same records, and the last commit counts.
    """

    def __init__(self, log: Log, name: str, isolation: FetchIsolation) -> None:
        """Continue the cursor `name`; applications call `Log.cursor`."""
        self.name = check_cursor_name(name)
        self._log = log.partition
        self._isolation = isolation
        self.follower = log.follow(self.committed, 0.0, isolation=isolation)
        """What reads; its offset is the position."""

    def __repr__(self) -> str:
        return f"Cursor({self.name!r}, position={self.position}, committed={self.committed})"

    @property
    def position(self) -> int:
        """The offset of the next record that `read` returns."""
        return self.follower.offset

    @property
    def committed(self) -> int | None:
        """The committed offset of this name; None before the first commit."""
        return self._log.cursors.offsets.get(self.name)

    @property
    def lag(self) -> int:
        """The number of offsets between `position` and the end of the log."""
        first = max(self.position, self._log.log_start_offset)
        return max(end_offset_for(self._log, self._isolation) - first, 0)

    def read(self, max_records: int | None = None, *, timeout: float | None = 0.0) -> Iterator[Record]:
        """Yield the records from `position` on, and advance it past each yielded record.

        Ends after `max_records`, and after `timeout` seconds without a record: 0 ends at the current end of
        the log, None never ends. Raises `OffsetOutOfRange` if retention or a truncation passed `position`:
        `seek` to one of its bounds. Raises otherwise as `Log.follow`.
        """
        self.follower.timeout = as_timeout(timeout)
        return first_of(self.follower, max_records)

    def seek(self, offset: int) -> None:
        """Continue at `offset`; the committed offset stays. Raises `OffsetOutOfRange` outside of the log."""
        self.follower.seek(_within(self._log, as_offset(offset)))

    def commit(self, offset: int | None = None, *, sync: bool = False) -> int:
        """Store `offset` (default: `position`) as the position where this name continues; returns it.

        The commit survives the death of the process. It survives power loss once a commit with `sync`, or the
        close of the log, has returned; otherwise the cursor may go back to an earlier commit. Raises
        `OffsetOutOfRange` outside of the log and as `read`, `LogClosed`, `DiskFull` or `LogDirOffline`.
        """
        log = self._log
        with log.lock:
            log.check_writable()
            self.follower.check()
            wanted = _within(log, self.position if offset is None else as_offset(offset))
            _put(log, self.name, wanted)
        if sync:
            _sync(log)
        return wanted

    def remove(self) -> None:
        """Forget the committed offset of this name, durably. Raises as `commit`."""
        with self._log.lock:
            _put(self._log, self.name, None)
        _sync(self._log)


def _within(log: PartitionLog, offset: int) -> int:
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
    return offset


def _sync(log: PartitionLog) -> None:
    try:
        while not log.cursor_commit.join():  # another thread led, and its sync failed or was interrupted
            log.check_writable()
    except LogClosed:
        if not log.cursors.is_synced:  # the close has not synced it
            raise


def _put(log: PartitionLog, name: str, offset: int | None) -> None:
    log.check_writable()
    log.guarded(lambda: log.cursors.put(name, offset))
