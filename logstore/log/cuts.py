"""Cutting a log: truncation, a start anew, and what becomes of what they take.

    entered in the ledger → copied or set aside → recovery point lowered → newest segments gone → cut
    → producers rebuilt → epochs forgotten

In this order, each step durable before the next: after a crash between any two of them the log opens to
what it held before, or to a beginning of it, and what is missing lies in quarantine. Sources:
docs/durability.md, S4 and S5.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from logstore.disk.marks import mark
from logstore.errors import (
    DiskFull,
)
from logstore.log.appends import LogAppends
from logstore.log.losses import KEPT_MS, Loss, Quarantine, Survey, Tail, Who, survey
from logstore.log.producer_snapshots import replay_into
from logstore.segment.segment import (
    LOG_SUFFIX,
    Segment,
    file_name,
)
from logstore.segment.segments import Segments, end_before, locate, truncate_segment


class LogCuts(LogAppends):
    """What takes from the end."""

    def truncate_to(self, offset: int, *, why: str = "its owner cut it") -> bool:
        """Drop everything at or past `offset`; the log end becomes `offset`. False if nothing was there.

        The batch that holds `offset` goes whole, so some records below it may go with it. What goes is
        first entered in the loss ledger, with `why`, and kept in quarantine. Durable when it returns. Also
        when no record goes, epochs that start at the log end are forgotten: a leader that wrote nothing has
        left no history. Raises `ValueError` for a negative offset, `DiskFull` with nothing changed if there
        is no room to keep what goes, and `LogDirOffline`.
        """
        if offset < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            self._stretch = None
            if offset >= self._log_end_offset:
                mark("truncation: at the end, epochs without a batch go")
                self._forget_epochs_from(self._log_end_offset)
                return False
            if offset < max(self._log_start_offset, self._segments.first.base_offset):
                # Nothing of it would be served. What lies below the start is no history to go on from.
                mark("truncation: below the log start, the log begins anew")
                self._restart_at(offset, why)
                return True
            if offset < self._segments.active.base_offset:
                mark("truncation: whole segments go")
                self._generation += 1
            loss_id = self._guarded(lambda: self._keep_from(offset, why))
            # Lowered durably before a byte goes: after a crash, what is written here anew must not
            # be taken for synced, or for committed, because the old bytes at these offsets once were;
            # and a log that ends below its recovery point has lost something.
            floor = self._segments.floor(offset)
            assert floor is not None, f"{self!r}: no segment at or below {offset}"
            end_offset = self._or_offline(lambda: end_before(floor, offset))
            self._lower_bounds(end_offset)
            # A batch that holds `offset` goes whole: readers must not come upon it while it goes.
            self._log_end_offset = min(offset, max(end_offset, self._log_start_offset))
            # Readers of committed data wait: an abort may go whose data stays, and is undecided then.
            self._producers.end_offset = self._log_start_offset
            self._or_offline(lambda: self._cut(offset, loss_id))
            self._log_end_offset = offset
            self._rebuild_producers(offset)
            if end_offset < offset:
                self._begin_past_a_gap(offset, end_offset)
            # Last, because a full disk may refuse it: the same call again then does the rest.
            self._forget_epochs_from(offset)
            if offset > self._log_start_offset:
                self._guarded(lambda: self._snapshots.take(self._producers, offset))
            return True

    def _begin_past_a_gap(self, offset: int, end_offset: int) -> None:
        """Begin a segment at the log end, which lies past the last batch: now the files say so too.

        Durably, because the recovery point may rise to the log end from now on.
        """
        try:
            self._roll(offset, self._clock(), end_offset=end_offset)
        except DiskFull as error:
            self._fail(OSError(errno.ENOSPC, str(error), self.directory))
        self._or_offline(lambda: self._disk.sync_dir(self.directory))
        self._segments.active.name_is_durable = True

    def _cut(self, offset: int, loss_id: int | None) -> None:
        self._cuts += 1
        floor = self._segments.floor(offset)
        assert floor is not None, f"{self!r}: no segment at or below {offset}"
        # Before its segment is cut, or the last one again: a seal that outlives that speaks of bytes
        # that are gone.
        floor.unseal()
        later = [segment for segment in self._segments if segment.base_offset > offset]
        self._drop(later, {segment.base_offset: loss_id for segment in later})
        self._segments = self._segments.replacing(later)
        truncate_segment(floor, offset, self._clock())
        floor.sync_log()
        self._disk.sync_dir(self.directory)
        self._cuts += 1

    def _drop(self, segments: Sequence[Segment], loss_ids: Mapping[int, int | None]) -> None:
        # Newest first, each one durably gone before the next: no crash may leave a later segment
        # behind a hole, because a hole is legal and what follows it would come back.
        for segment in reversed(segments):
            loss_id = loss_ids.get(segment.base_offset)
            if loss_id is not None and segment.size:
                self._quarantine.take(loss_id, segment)
            else:
                segment.delete()
            self._disk.sync_dir(self.directory)

    def truncate_fully_and_start_at(self, offset: int, *, why: str = "its owner started it anew") -> None:
        """Drop everything; the log starts anew, empty, at `offset`. Durable when it returns.

        What goes is first entered in the loss ledger, with `why`. Segments that hold anything at or past
        `offset` go into quarantine; those wholly below it are only noted: a follower restarts above its end
        because its leader has deleted what lies below. Raises `ValueError` for a negative offset, `DiskFull`
        with nothing changed if there is no room for the entry, and `LogDirOffline`.
        """
        if offset < 0:
            raise ValueError(f"cannot start at offset {offset}")
        with self._group_commit.exclusive(), self._lock:
            self._check_writable()
            self._restart_at(offset, why)

    def _restart_at(self, offset: int, why: str) -> None:
        self._generation += 1
        held = [segment for segment in self._segments if segment.size]
        kept = [segment for segment in held if self._end_of(segment) > offset]
        loss_id = self._guarded(lambda: self._enter_restart(offset, why, held, kept)) if held else None
        # To nothing: the segments go one by one, and each may be the last that a crash leaves.
        recovery_point = min(self._recovery_point, offset)
        bounds = self._recovery_point, self._high_watermark, self._first_dirty_offset
        goes_down = offset < self._log_start_offset
        try:
            self._lower_bounds(0)
            # Without a segment nothing else would say after a crash where the log starts. Where it will
            # start, if that is not below: what is left of the segments then lies below, and the next open
            # removes it.
            self._publish_log_start(max(self._log_start_offset, offset))
        except DiskFull:
            mark("restart of a log: no room for it, all stays as it was")
            self._recovery_point, self._high_watermark, self._first_dirty_offset = bounds
            raise
        self._log_end_offset = self._high_watermark = self._log_start_offset = offset

        def start_anew() -> None:
            self._drop(tuple(self._segments), {segment.base_offset: loss_id for segment in kept})
            self._segments = Segments([self._new_segment(offset, self._clock())])
            self._disk.sync_dir(self.directory)
            self._segments.active.name_is_durable = True

        self._or_offline(start_anew)
        self._recovery_point = recovery_point
        self._rebuild_producers(offset)
        if goes_down:
            # A start that stays above the log's end would condemn, after a crash, what is written here anew.
            mark("restart of a log: its start goes down")
            self._or_offline(lambda: self._owner.log_start_moved(self))
        self._change_epochs(lambda epochs: epochs.clear())

    def _rebuild_producers(self, end_offset: int) -> None:
        """Let the producers' state be that of the log below `end_offset`."""

        def rebuild() -> None:
            # Durably: one that comes back after a crash would tell of batches that are gone, and other
            # batches have their offsets by then.
            if self._snapshots.retain(above=self._log_start_offset, at_most=end_offset):
                self._disk.sync_dir(self.directory)
            producers = self._snapshots.newest(
                at_most=end_offset,
                above=self._segments.first.base_offset,
                now_ms=self._clock(),
                expiration_ms=self.producer_config.producer_id_expiration_ms,
            )
            for segment in self._segments.since(producers.end_offset):
                if self._end_of(segment) > producers.end_offset:
                    replay_into(producers, segment)
            producers.end_offset = end_offset
            producers.advance_high_watermark(self.high_watermark)
            self._producers = producers

        self._or_offline(rebuild)

    # --- what was lost ----------------------------------------------------------------------------

    def _keep_from(self, offset: int, why: str) -> int | None:
        """Enter what a cut at `offset` takes, copy what it takes in part; the loss's id, if there is any."""
        holder, *beyond = self._segments.since(offset)
        later = [segment for segment in beyond if segment.size]
        located = locate(holder, offset)
        counted, tail = Survey(), None
        if located is not None:
            name = file_name(holder.base_offset, LOG_SUFFIX)
            tail = Tail(name, holder.log_file, located.position, holder.size)
            counted = survey(tail.file, tail.from_byte, tail.to_byte)
        elif not later:
            return None
        first_offset = located.base_offset if located is not None else later[0].base_offset
        moved_records = self._log_end_offset - later[0].base_offset if later else 0
        return self._enter_loss(
            "truncation",
            why,
            end_offset=offset,
            first_offset=first_offset,
            records=counted.records + moved_records,
            batches=None if later else counted.batches,
            tail=tail,
            moved=later,
        )

    def _enter_loss(
        self,
        who: Who,
        why: str,
        *,
        end_offset: int,
        first_offset: int,
        records: int,
        batches: int | None,
        tail: Tail | None,
        moved: Sequence[Segment],
        size: int | None = None,
        not_kept: str = "",
    ) -> int:
        last_offset, recovery_point = self._log_end_offset - 1, self._recovery_point
        if moved:
            # A copy is synced; what is moved has to be too.
            self._sync_segments(self._log_end_offset)
        kept = sum(segment.size for segment in moved) + (tail.to_byte - tail.from_byte if tail else 0)
        loss = Loss(
            at_ms=self._clock(),
            who=who,
            why=why,
            first_offset=first_offset,
            last_offset=last_offset,
            end_offset=end_offset,
            records=records,
            batches=batches,
            size=kept if size is None else size,
            epochs=(self.epoch_for_offset(first_offset), self.epoch_for_offset(last_offset)),
            below_high_watermark=first_offset < self.high_watermark,
            below_recovery_point=first_offset < recovery_point,
            not_kept=not_kept,
        )
        whole = [(file_name(segment.base_offset, LOG_SUFFIX), segment.size) for segment in moved]
        return self._quarantine.enter(loss, tail=tail, moved=whole).id

    def _enter_restart(self, offset: int, why: str, held: list[Segment], kept: list[Segment]) -> int:
        first_offset = held[0].base_offset
        below = f"what lies below {offset}, where the log starts anew"
        return self._enter_loss(
            "restart",
            why,
            end_offset=offset,
            first_offset=first_offset,
            records=self._log_end_offset - first_offset,
            batches=None,
            tail=None,
            moved=kept,
            size=sum(segment.size for segment in held),
            not_kept="" if len(kept) == len(held) else below,
        )

    def _end_of(self, segment: Segment) -> int:
        """Where the next segment begins, or the log ends: no byte is read to tell."""
        following = self._segments.higher(segment.base_offset)
        return self._log_end_offset if following is None else following.base_offset

    def losses(self) -> list[Loss]:
        """What truncations, restarts and recoveries took from this log, oldest first. Raises `OSError`."""
        return self._quarantine.losses()

    @property
    def quarantine(self) -> Quarantine:
        """Where their bytes are; to read only."""
        return self._quarantine

    def note_restored(self, loss_id: int) -> None:
        """Note durably that a loss was put back (`undo.py`). Raises `DiskFull` or `LogDirOffline`."""
        with self._lock:
            self._check_writable()
            self._guarded(lambda: self._quarantine.mark(loss_id, "restored", self._clock()))

    @property
    def losses_deadline_ms(self) -> int:
        """When `expire_losses` next has something to do; `MAX_LONG` for never."""
        return self._quarantine.due_ms

    def expire_losses(self, now_ms: int, *, kept_ms: int = KEPT_MS) -> int:
        """Remove the bytes of losses older than `kept_ms`; entries stay. Returns how many bytes that freed.

        Raises `DiskFull` or `LogDirOffline`.
        """
        with self._lock:
            if now_ms < self._quarantine.due_ms and kept_ms >= KEPT_MS:
                return 0
            self._check_writable()
            return self._guarded(lambda: self._quarantine.expire(now_ms, kept_ms))
