"""Appending to a log: what a leader takes from clients, what a follower takes from its leader.

    client's batch → checked → given offsets and epoch → room in the segment? else roll → written → known

Everything that can be refused is refused before a byte is written. The append lock covers giving offsets
and writing; an fsync happens outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, NoReturn

from logstore.config import MAX_INT
from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.errors import (
    DiskFull,
    RecordBatchTooLarge,
    is_full,
)
from logstore.format.batch import Batch, encode_marker_batch, set_offsets_and_epoch, walk
from logstore.format.record import NO_TIMESTAMP, ControlType, EndTransactionMarker
from logstore.log.outgoing import MadeBatch, may_enter
from logstore.log.policy import Incoming, roll_reason
from logstore.log.producer_state import (
    check_markers,
)
from logstore.log.reads import LogReads
from logstore.log.stretch import begin_stretch
from logstore.log.validation import (
    AppendOrigin,
    analyse_follower_batches,
    validate_and_assign,
    validate_plain_group,
)
from logstore.log.verification_guard import VerificationGuard
from logstore.segment.segment import (
    Extents,
)

GROUP_BYTES = 1 << 20

WORTH_GROUPING = 4


class AppendInfo(NamedTuple):
    """Where an append went; offsets inclusive, times epoch milliseconds, -1 for none.

    `is_duplicate`: the batch had been appended before, and these are the offsets it has.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class LogAppends(LogReads):
    """What leaders and followers write."""

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification_guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        """Check the one batch in `data`, give it the next offsets and this epoch, and write it.

        A batch that its producer had sent before is not written again: the answer holds its offsets.
        The first batch of a transaction needs the guard that `maybe_start_verification` gave for it.
        Raises `CorruptBatch`, `InvalidRecord`, `InvalidTimestamp`, `RecordTooLarge`,
        `RecordBatchTooLarge`, `UnsupportedCompression`, `OutOfOrderSequence`, `InvalidProducerEpoch`,
        `InvalidTransactionState`, `DiskFull` or `LogDirOffline`; the log is then as it was.
        """
        with self._lock:
            self._check_writable()
            return self._append_one(data, leader_epoch, now_ms, origin, verification_guard)

    def append_value(self, value: bytes, now_ms: int) -> AppendInfo | None:
        """Append a record of `value` alone, of this time and the newest epoch, by the short way.

        None, and nothing was done, where that is not open (`stretch.py`): `append_made` then raises what
        there is to raise, and `begin_stretch` opens the short way anew. Raises `DiskFull` or `LogDirOffline`.
        """
        with self._lock:
            stretch, offset = self._stretch, self._log_end_offset
            if stretch is None or self._failure is not None or self._is_closed:
                return None
            active = self._segments.active
            if not stretch.holds(len(value), offset, now_ms, active, self.config, self._epochs):
                return None
            try:
                stretch.append(value, offset, now_ms)
            except OSError as error:
                self._append_failed(error)
            active.modified_ms = now_ms
            self._log_end_offset = self._producers.end_offset = offset + 1
            return AppendInfo(offset, offset, now_ms, NO_TIMESTAMP, self._log_start_offset)

    def begin_stretch(self) -> None:
        """Let `append_value` take the next values, if they can be taken without a look at the settings."""
        with self._lock:
            if self._failure is None and not self._is_closed:
                self._stretch = begin_stretch(self._segments.active, self.config, self._epochs)

    def append_made(self, batch: MadeBatch, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append a batch that this process made (`outgoing.py`): no record of it is read again.

        Its bytes are given their place where they are. Raises what `append_as_leader` raises.
        """
        with self._lock:
            self._check_writable()
            data = batch.data
            if len(data) > self.config.segment_bytes or not may_enter(batch, now_ms, self.config):
                return self._append_one(bytes(data), leader_epoch, now_ms, AppendOrigin.CLIENT)
            first_offset, time_ms = self._log_end_offset, batch.timestamp_ms
            last_offset = first_offset + batch.record_count - 1
            set_offsets_and_epoch(data, base_offset=first_offset, leader_epoch=leader_epoch)
            self._enter_epoch(leader_epoch, first_offset)
            self._write(data, ((len(data), last_offset, time_ms),), first_offset, time_ms, now_ms)
            self._producers.end_offset = self._log_end_offset
            return AppendInfo(first_offset, last_offset, time_ms, NO_TIMESTAMP, self._log_start_offset)

    def append_many_as_leader(self, data: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append the batches that lie end to end in `data`, each as `append_as_leader` would.

        Raises what it raises, and `CorruptBatch` for a torn last batch; batches before a refused one
        stay appended.
        """
        info: AppendInfo | None = None
        view, position = memoryview(data), 0
        while position < len(view) or info is None:
            size, appended = self._append_some(view[position:], leader_epoch, now_ms)
            info = joined(info, appended)
            position += size
        return info

    def _append_some(self, data: memoryview, leader_epoch: int, now_ms: int) -> tuple[int, AppendInfo]:
        """Append the first batches of `data`: at once if they are many and plain, else one by one.

        Returns how many bytes they have.
        """
        with self._lock:
            self._check_writable()
            first = Batch(data)
            size = min(len(data), GROUP_BYTES, max(self.config.segment_bytes - self._segments.active.size, 0))
            if size < first.size * WORTH_GROUPING:
                return first.size, self._append_one(first.buffer, leader_epoch, now_ms, AppendOrigin.CLIENT)
            # Into memory that is there already: a fresh megabyte costs more page faults than its copy.
            self._scratch[:size] = data[:size]
            group = validate_plain_group(
                self._scratch,
                size,
                next_offset=self._log_end_offset,
                leader_epoch=leader_epoch,
                now_ms=now_ms,
                config=self.config,
            )
            if group is None:
                info, taken = None, 0
                for batch in walk(data[:size]):
                    one = self._append_one(batch.buffer, leader_epoch, now_ms, AppendOrigin.CLIENT)
                    info, taken = joined(info, one), taken + batch.size
                assert info is not None, "a first batch that the walk does not see"
                return taken, info
            self._enter_epoch(leader_epoch, group.first_offset)
            placed = memoryview(self._scratch)[: group.size]
            self._write(placed, group.extents, group.first_offset, group.max_timestamp_ms, now_ms)
            self._producers.end_offset = self._log_end_offset
            return group.size, AppendInfo(
                group.first_offset,
                group.last_offset,
                group.max_timestamp_ms,
                NO_TIMESTAMP,
                self._log_start_offset,
            )

    @property
    def _scratch(self) -> bytearray:
        if self._group_buffer is None:
            self._group_buffer = bytearray(GROUP_BYTES)
        return self._group_buffer

    def _append_one(
        self,
        data: Buffer,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        placed = validate_and_assign(
            data,
            next_offset=self._log_end_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            config=self.config,
            origin=origin,
        )
        if len(placed.data) > self.config.segment_bytes:
            raise RecordBatchTooLarge(len(placed.data), self.config.segment_bytes)
        _, first_offset, last_offset, max_timestamp_ms, append_time_ms, has_producer_id = placed
        batch = Batch(placed.data) if has_producer_id else None
        if batch is not None:
            needs_guard = self.producer_config.transaction_partition_verification_enable
            guards = self._guards if needs_guard else None
            if duplicate := self._producers.check(batch, origin, guards=guards, guard=guard):
                mark("append: a batch that is known already")
                return AppendInfo(*duplicate, NO_TIMESTAMP, self._log_start_offset, is_duplicate=True)
        self._enter_epoch(leader_epoch, first_offset)
        extent = (len(placed.data), last_offset, max_timestamp_ms)
        self._write(placed.data, (extent,), first_offset, max_timestamp_ms, now_ms)
        if batch is not None:
            self._note_producers((batch,))
        self._producers.end_offset = self._log_end_offset
        return AppendInfo(first_offset, last_offset, max_timestamp_ms, append_time_ms, self._log_start_offset)

    def append_as_follower(self, data: Buffer, *, leader_epoch: int) -> AppendInfo:
        """Append a leader's batches byte for byte; a torn last one is left out.

        Raises `UnexpectedAppendOffset` below the log end, `OffsetsOutOfOrder`, `CorruptBatch`,
        `InvalidRecord` for an epoch above `leader_epoch` or a marker that cannot be read, `DiskFull` or
        `LogDirOffline`; nothing is written then.
        """
        with self._lock:
            self._check_writable()
            found = analyse_follower_batches(
                data,
                next_offset=self._log_end_offset,
                leader_epoch=leader_epoch,
                latest_epoch=self._epochs.latest_epoch,
            )
            if found is None:
                end = self._log_end_offset
                return AppendInfo(end, end - 1, -1, -1, self._log_start_offset)
            check_markers(found.batches)
            for batch in found.batches:
                self._enter_epoch(batch.leader_epoch, batch.base_offset)
            now_ms = self._clock()
            for run in _runs_that_fit_a_segment(found.batches):
                extents = [(batch.size, batch.last_offset, batch.max_timestamp_ms) for batch in run]
                whole = len(run) == len(found.batches)
                data = found.data if whole else b"".join(batch.buffer for batch in run)
                largest_ms = max(batch.max_timestamp_ms for batch in run)
                self._write(data, extents, run[0].base_offset, largest_ms, now_ms)
                self._note_producers(run)
                self._producers.end_offset = self._log_end_offset
            return AppendInfo(
                found.first_offset, found.last_offset, found.max_timestamp_ms, -1, self._log_start_offset
            )

    def _write(
        self, data: Buffer, extents: Extents, first_offset: int, max_timestamp_ms: int, now_ms: int
    ) -> None:
        last_offset = extents[-1][1]
        incoming = Incoming(len(data), max_timestamp_ms, last_offset)
        if roll_reason(self._segments.active, incoming, self.config, now_ms) is not None:
            self._roll(max(first_offset, self._log_end_offset), now_ms)
        try:
            self._segments.active.append(data, extents)
        except OSError as error:
            self._append_failed(error)
        self._segments.active.modified_ms = now_ms
        self._log_end_offset = last_offset + 1
        if last_offset + 1 - self._recovery_point >= self.config.flush_messages:
            self._sync_segments(self._log_end_offset)

    def _append_failed(self, error: OSError) -> NoReturn:
        if is_full(error):
            mark("append: no room")
            raise DiskFull(
                f"{self.directory}: no room for the append ({error.strerror}); nothing of it was kept. "
                "Make room, then append again"
            ) from error
        mark("append: the disk failed")
        self._fail(error)

    def _note_producers(self, batches: Iterable[Batch]) -> None:
        producers = self._producers
        for batch in batches:
            if batch.has_producer_id:
                completed = producers.replay(batch)
                entry = completed.index_entry() if completed else None
                if entry is not None:
                    # The marker is in the log already: without its entry only recovery can go on.
                    self._or_offline(lambda entry=entry: self._segments.active.aborts.append(entry))  # type: ignore[misc]
                if batch.is_transactional:
                    self._guards.spend(batch.producer_id)
        producers.advance_high_watermark(self.high_watermark)

    # --- transactions -----------------------------------------------------------------------------

    def append_end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        kind: ControlType,
        *,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Write the marker that commits or aborts the producer's transaction.

        Without a transaction open the marker only fences older epochs. Raises `InvalidProducerEpoch`,
        `TransactionCoordinatorFenced`, and what any append raises for want of a disk.
        """
        marker = EndTransactionMarker(kind, coordinator_epoch)
        data = encode_marker_batch(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
        )
        return self.append_as_leader(
            data, leader_epoch=leader_epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )

    def maybe_start_verification(
        self, producer_id: int, sequence: int, epoch: int
    ) -> VerificationGuard | None:
        """A guard for the batch at `sequence` that is to open a transaction, while its coordinator is asked.

        None if none is needed: the transaction is open already, or
        `transaction.partition.verification.enable` is off.
        """
        with self._lock:
            enabled = self.producer_config.transaction_partition_verification_enable
            if not enabled or self._producers.has_open_transaction(producer_id, epoch):
                return None
            return self._guards.start(producer_id, sequence, epoch, self._clock())

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers, and guards, of `producer.id.expiration.ms` ago."""
        with self._lock:
            expiration_ms = self.producer_config.producer_id_expiration_ms
            self._producers.remove_expired(now_ms, expiration_ms)
            self._guards.remove_expired(now_ms, expiration_ms)


def joined(before: AppendInfo | None, after: AppendInfo) -> AppendInfo:
    """One answer for two appends in a row."""
    if before is None or before.last_offset < before.first_offset:
        return after
    if after.last_offset < after.first_offset:
        return before
    largest_ms = max(before.max_timestamp_ms, after.max_timestamp_ms)
    return after._replace(first_offset=before.first_offset, max_timestamp_ms=largest_ms)


def _runs_that_fit_a_segment(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """The batches, parted where an offset is too far above the first of its run for one segment."""
    first = 0
    for number, batch in enumerate(batches):
        if batch.last_offset - batches[first].base_offset > MAX_INT:
            yield batches[first:number]
            first = number
    yield batches[first:]
