"""Keeping a log small: its start moves up, old segments go, compacted ones take the place of several.

The log start is published before a segment below it is renamed, oldest first, and files are unlinked
later (docs/durability.md, S6); a swap follows `swap.py` (S7). Which segments, is decided elsewhere:
`retention.py`, `cleanable.py`, `compaction.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logstore.compact.cleanable import Cleanable, cleanable, first_dirty
from logstore.compact.compaction import LastBatch
from logstore.disk.marks import mark
from logstore.errors import OffsetOutOfRange, PolicyViolation
from logstore.log.cuts import LogCuts
from logstore.log.retention import Expired, believed_ms, expired
from logstore.segment.segment import Segment
from logstore.segment.swap import swap


class LogUpkeep(LogCuts):
    """What takes from the start, and from the middle."""

    def advance_log_start_offset(self, offset: int) -> bool:
        """Serve nothing below `offset` any more; False if that is so already.

        Raises `OffsetOutOfRange` past the high watermark.
        """
        with self._lock:
            self._check_writable()
            if offset > self.high_watermark:
                raise OffsetOutOfRange(offset, self._log_start_offset, self.high_watermark)
            if offset <= self._log_start_offset:
                return False
            # Published before anything below it is forgotten: a crash in between must not find records
            # served whose epochs are gone. The recovery point stays: nothing was synced here.
            self._publish_log_start(offset)
            self._high_watermark = max(self._high_watermark, offset)
            self._change_epochs(lambda epochs: epochs.truncate_from_start(offset))
            return True

    # --- deleting from the start ------------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """Serve nothing below `offset` any more (-1: the high watermark); returns the log start offset.

        Durable when it returns. The segments that hold nothing else go with the next
        `delete_old_segments`. Raises `PolicyViolation` if `cleanup.policy` lacks delete,
        `OffsetOutOfRange` for another negative offset and past the high watermark, `DiskFull` or
        `LogDirOffline`.
        """
        if not self.config.is_deleted:
            raise PolicyViolation(
                f"{self.topic_partition} has cleanup.policy={self.config.cleanup_policy}: its records go by "
                "their keys; send tombstones, or add delete to the policy"
            )
        with self._lock:
            wanted = self.high_watermark if offset == -1 else offset
            if wanted < 0:
                raise OffsetOutOfRange(offset, self._log_start_offset, self.high_watermark)
            self.advance_log_start_offset(wanted)
            return self._log_start_offset

    def delete_old_segments(self, now_ms: int) -> tuple[Expired, ...]:
        """Delete the segments that the settings let go (`retention.py`); returns which, and why.

        The log start offset is durably above them before the first one is renamed. Their files stay as
        `.deleted` for `file.delete.delay.ms`, until `remove_deleted_files`. `now_ms` is the wall clock,
        believed at most a day past its last reading here. Raises `DiskFull` (what is left to do is done
        by the next call) or `LogDirOffline`.
        """
        self._check_writable()
        trusted_ms = believed_ms(now_ms, self._last_retention_ms)
        self._last_retention_ms = now_ms
        with self._lock:
            if not self._expired(trusted_ms):
                return ()
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            going = self._expired(trusted_ms)
            if len(going) == len(self._segments):
                mark("retention: the active segment goes too")
                self._roll(self._log_end_offset, now_ms)
                # By name too, before the others go: a directory without a segment has no epochs either.
                self._or_offline(lambda: self._disk.sync_dir(self.directory))
                self._segments.active.name_is_durable = True
            first_left = self._segments.higher(going[-1].base_offset) if going else None
            if first_left is not None:
                # Published first: if the power fails now, some of the old segments may come back, and
                # with a hole between them; nothing below the log start offset is ever served.
                self.advance_log_start_offset(first_left.base_offset)
                self._or_offline(lambda: self._set_aside([each.base_offset for each in going], now_ms))
            return tuple(going)

    def _expired(self, now_ms: int) -> list[Expired]:
        return self._guarded(
            lambda: expired(
                tuple(self._segments),
                self.config,
                log_start_offset=self._log_start_offset,
                high_watermark=self.high_watermark,
                log_end_offset=self._log_end_offset,
                now_ms=now_ms,
            )
        )

    def _set_aside(self, bases: Sequence[int], now_ms: int) -> None:
        going = [segment for segment in self._segments if segment.base_offset in bases]
        for segment in going:
            self._deleted_files.add(segment.set_aside(), now_ms, self.config.file_delete_delay_ms)
            self._snapshots.remove(segment.base_offset)
        # Durably gone before the log begins above them: from then on its owner may forget where the log
        # starts, because the first segment says so.
        self._disk.sync_dir(self.directory)
        self._segments = self._segments.replacing(going)

    def remove_deleted_files(self, now_ms: int) -> int:
        """Unlink what was deleted long enough ago; returns how many files. Raises `LogDirOffline`."""
        with self._lock:
            return self._guarded(lambda: self._deleted_files.remove_due(now_ms))

    @property
    def deletion_deadline_ms(self) -> int:
        """When `remove_deleted_files` next has something to do; `MAX_LONG` for never."""
        return self._deleted_files.deadline_ms

    # --- compacting -------------------------------------------------------------------------------

    def cleanable(self, now_ms: int) -> Cleanable:
        """What a compaction would work on now. A first dirty offset outside the log is put right, durably.

        Raises `DiskFull`, `LogDirOffline`.
        """
        self._check_writable()
        first_dirty_offset = first_dirty(
            self._first_dirty_offset, self._log_start_offset, self._log_end_offset
        )
        if first_dirty_offset != self._first_dirty_offset:
            self.compacted_up_to(first_dirty_offset, generation=self._generation)
        return self._guarded(
            lambda: cleanable(
                tuple(self._segments),
                self.config,
                first_dirty_offset=first_dirty_offset,
                last_stable_offset=self.last_stable_offset,
                now_ms=now_ms,
            )
        )

    def last_batches(self) -> dict[int, LastBatch]:
        """Where each active producer's last data batch ends: what compaction must not lose."""
        with self._lock:
            return {
                entry.producer_id: LastBatch(
                    entry.batches[-1].last_offset if entry.batches else -1, entry.epoch
                )
                for entry in self._producers
            }

    @property
    def generation(self) -> int:
        """Another number once sealed segments were truncated: what was read of them may not be true."""
        return self._generation

    def holds(self, segments: Iterable[Segment], generation: int) -> bool:
        """Whether these very segments are the log's, none replaced, gone, or cut since `generation`."""
        current = self._segments
        is_same = not self._is_closed and self._generation == generation
        return is_same and all(current.get(each.base_offset) is each for each in segments)

    def replace_segments(
        self, old: Sequence[Segment], new: Sequence[Segment], *, generation: int, now_ms: int
    ) -> bool:
        """Let `new`, written as `.cleaned` and synced, take the place of `old` (`swap.py`).

        False, and nothing happened, unless the log `holds` all of `old`. Raises `LogDirOffline`.
        """
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            if not self.holds(old, generation):
                return False
            successor = self._segments.higher(old[-1].base_offset)
            assert successor is not None, "the active segment cannot be replaced"
            for segment in new:
                segment.let_go()
            aside = self._or_offline(lambda: swap(self._disk, self.directory, new, old))
            self._deleted_files.add(aside, now_ms, self.config.file_delete_delay_ms)
            placed = [self._placed(segment) for segment in new]
            self._segments = self._segments.replacing(old, placed)
            bases = {segment.base_offset for segment in placed}
            for segment in old:
                if segment.base_offset not in bases:
                    self._or_offline(lambda base=segment.base_offset: self._snapshots.remove(base))  # type: ignore[misc]
            # An empty active segment may have been made anew behind the pass's back.
            self._or_offline(lambda: placed[-1].follow_with(successor.base_offset))
            return True

    def _placed(self, cleaned: Segment) -> Segment:
        """The segment over the files of `cleaned`, which have their final names now."""
        segment = Segment(
            self._disk,
            self.directory,
            cleaned.base_offset,
            self.config,
            size=cleaned.size,
            now_ms=cleaned.created_ms,
            modified_ms=cleaned.modified_ms,
        )
        segment.seal = cleaned.seal
        return segment

    def compacted_up_to(self, offset: int, *, generation: int) -> bool:
        """Note, durably, that the next compaction begins at `offset`; False if the log was cut meanwhile.

        Raises `DiskFull`, `LogDirOffline`.
        """
        with self._lock:
            self._check_writable()
            if generation != self._generation:
                return False
            self._first_dirty_offset = offset
            self._guarded(lambda: self._owner.compacted(self))
            return True
