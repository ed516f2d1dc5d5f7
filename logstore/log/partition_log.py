"""One partition's log on this node: segments end to end, and everything that is true of them.

        log start offset        high watermark      log end offset
               ▼                      ▼                   ▼
    ─────┬─────●───────┬──────────────●────┬──────────────●
     old │    segment  │    segment        │ active segment
    ─────┴─────────────┴───────────────────┴──────────────
                       ▲
                recovery point: everything before it is durable

One writer at a time, any number of readers; one fsync serves every append that waited for it. What a
crash leaves: batches past the recovery point may be gone, whole or torn; `recovery.py` judges them at
the next open. The layers it is made of are drawn in `log_state.py`.

`PartitionLog` speaks in batches, as leaders and followers do; `log.py` adds what applications want.
"""

from __future__ import annotations

from logstore.log.upkeep import LogUpkeep


class PartitionLog(LogUpkeep):
    """A partition's log. Offsets are absolute; every method may be called from any thread."""

    def close(self) -> None:
        """Flush, write what the next open needs, and let go of the directory. Closing twice is harmless.

        Raises `LogDirOffline` or `DiskFull` if what is left to write cannot be written: the next open
        recovers the log then. The directory is let go of all the same.
        """
        with self._group_commit.exclusive(), self._lock:
            if self._is_closed:
                return
            is_clean = False
            try:
                if self._failure is None:
                    self._sync_segments(self._log_end_offset)
                    self._guarded(self._close_books)
                    is_clean = True
            finally:
                self._is_closed = True
                self._deleted_files.forget()
                for segment in self._segments:
                    segment.let_go()
                self._guarded(lambda: self._owner.closed(self, is_clean=is_clean))

    def abandon(self) -> None:
        """Let go of the files without writing: the log was deleted, or its node is as good as dead."""
        with self._lock:
            self._is_closed = True
            self._deleted_files.forget()
            for segment in self._segments:
                segment.let_go()

    def _close_books(self) -> None:
        self._deleted_files.remove_due(self._clock())
        self._snapshots.take(self._producers, self._log_end_offset)
        active = self._segments.active
        active.become_inactive()
        if active.was_trimmed:
            active.sync_log()
        active.sync_indexes()
        for segment in self._segments:
            segment.close()
        self._disk.sync_dir(self.directory)
