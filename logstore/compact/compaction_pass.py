"""One compaction of one log, in bounded steps.

    map        the keys of the dirty part → offsets, as many as the map holds
    rewrite    group after group of segments → one `.cleaned` segment each, synced
    swap       under the log's lock: the only time that appends wait (`swap.py`)
    note       the log's first dirty offset rises, durably

A pass is a generator: each step reads or writes a buffer or two and yields the number of bytes, so that its
caller can throttle, postpone or drop it. Appends and reads continue meanwhile. Truncation, deletion or a
close of the log ends the pass; segments that were swapped in stay.

A crash leaves `.cleaned` files, which the next open removes, or in the middle of a swap the old segments or
the new one. After an interrupted pass the next one starts over; only time is lost.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from logstore.compact.cleanable import Cleanable, group_segments
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction import Compaction, CompactionStats, LastBatch, Transactions, map_records
from logstore.compact.offset_map import SLOT_BYTES, OffsetMap
from logstore.config import MAX_INT
from logstore.errors import CorruptBatch, Damage, DamageKind, RecordBatchTooLarge
from logstore.log.partition_log import PartitionLog
from logstore.log.read import aborted_transactions
from logstore.log.upkeep import compacted_up_to, holds, replace_segments
from logstore.segment.scan import Fault, Scanned, scan_chunks
from logstore.segment.segment import LOG_SUFFIX, Segment, file_name
from logstore.segment.split import find_runs, split
from logstore.segment.swap import begin_cleaned
from logstore.segment.transaction_index import AbortedTransaction

_SPARE_SLOTS = 512
"""More than the distance of two primes of a map's size."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """The result of a pass: it mapped [first dirty, end) and replaced `segments_before` segments by
    `segments_after`. `was_aborted`: segments were removed meanwhile, or one had to be split;
    `is_complete`: nothing cleanable is left."""

    first_dirty_offset: int
    end_offset: int
    segments_before: int
    segments_after: int
    is_complete: bool
    was_aborted: bool
    stats: CompactionStats


class _SegmentsWent(Exception):
    """The log's segments changed during the pass."""


Steps = Generator[int, None, PassReport]
"""Yields the bytes that a step read and wrote."""


def compaction_pass(log: PartitionLog, cleanable: Cleanable, config: CleanerConfig, *, now_ms: int) -> Steps:
    """Compact the `cleanable` part of `log`; delete horizons count from `now_ms`.

    Raises `CorruptBatch`, `InvalidRecord`, `CorruptIndex` or `UnsupportedCompression` for unreadable data,
    `DiskFull`, and `LogDirOffline`; the log is then unchanged since the last swap.
    """
    return _Pass(log, cleanable, config, now_ms).run()


def run(steps: Steps) -> PassReport:
    """Run all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            report: PassReport = stop.value
            return report


def last_batches(log: PartitionLog) -> dict[int, LastBatch]:
    """Return where each active producer's last data batch ends: compaction must not lose it."""
    with log.lock:
        return {
            entry.producer_id: LastBatch(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for entry in log.producer_state
        }


class _Pass:
    def __init__(self, log: PartitionLog, cleanable: Cleanable, config: CleanerConfig, now_ms: int) -> None:
        self._log = log
        self._disk = log.disk
        self._cleanable = cleanable
        self._config = config
        self._now_ms = now_ms
        self._generation = log.generation
        self._stats = CompactionStats()
        self._segments = [
            segment for segment in log.segments if segment.base_offset < cleanable.first_uncleanable_offset
        ]
        self._reading: Sequence[Segment] = self._segments
        """The segments that the pass reads now, and swaps next."""
        self._cleaned: list[Segment] = []
        self._before = self._after = 0

    def run(self) -> Steps:
        end_offset = self._cleanable.first_dirty_offset
        if not self._log.compaction_lock.acquire(blocking=False):
            return self._report(end_offset, was_aborted=True)
        was_aborted = False
        try:
            # The last batches of producers must be durable before their earlier ones are removed.
            producers = last_batches(self._log)
            self._log.flush()
            aborted = aborted_transactions(
                self._log, self._segments[0].base_offset, self._cleanable.first_uncleanable_offset
            )
            offsets = yield from self._map(aborted)
            rules = Compaction(
                offsets,
                Transactions(aborted),
                producers,
                self._now_ms,
                self._log.config.delete_retention_ms,
                self._stats,
            )
            within = [each for each in self._segments if each.base_offset < rules.upper_bound]
            for group in group_segments(within, self._log.config, rules.upper_bound):
                yield from self._rewrite(group, rules)
            if not compacted_up_to(self._log, rules.upper_bound, generation=self._generation):
                raise _SegmentsWent
            end_offset = rules.upper_bound
        except _SegmentsWent:
            was_aborted = True
        except OSError as error:
            # A file that was removed with its segment is not a disk failure.
            with self._log.lock:  # held by whoever removes files, until the list of segments is up to date
                is_held = holds(self._log, self._reading, self._generation)
            if is_held or not isinstance(error, FileNotFoundError):
                self._log.disk_failed(error)
            was_aborted = True
        finally:
            try:
                self._drop_cleaned()
            finally:
                self._log.compaction_lock.release()
        return self._report(end_offset, was_aborted=was_aborted)

    def _report(self, end_offset: int, *, was_aborted: bool) -> PassReport:
        return PassReport(
            first_dirty_offset=self._cleanable.first_dirty_offset,
            end_offset=end_offset,
            segments_before=self._before,
            segments_after=self._after,
            is_complete=end_offset >= self._cleanable.first_uncleanable_offset,
            was_aborted=was_aborted,
            stats=self._stats,
        )

    def _check_segments(self) -> None:
        if not holds(self._log, self._reading, self._generation):
            raise _SegmentsWent

    # --- the dirty part ---------------------------------------------------------------------------

    def _map(self, aborted: Sequence[AbortedTransaction]) -> Generator[int, None, OffsetMap]:
        start_offset, uncleanable, *_ = self._cleanable
        # No more keys than offsets: a short dirty part needs no large map.
        slots = int((uncleanable - start_offset) / self._config.io_buffer_load_factor) + _SPARE_SLOTS
        offsets = OffsetMap(
            min(self._config.dedupe_buffer_size, slots * SLOT_BYTES),
            load_factor=self._config.io_buffer_load_factor,
        )
        offsets.latest_offset = start_offset - 1
        # Those decided below are done: their markers are not read here, and their producers may have gone on.
        transactions = Transactions(each for each in aborted if each.last_offset >= start_offset)
        end_offsets = [*(segment.base_offset for segment in self._segments[1:]), uncleanable]
        for segment, end_offset in zip(self._segments, end_offsets, strict=True):
            if end_offset <= start_offset:
                continue
            for chunk, found in self._chunks(segment):
                if not map_records(
                    chunk, found, offsets, transactions, start_offset=start_offset, end_offset=end_offset
                ):
                    return self._mapped(offsets)
                self._stats.bytes_mapped += found.end
                yield found.end
            # Also past a gap at the segment's end.
            offsets.latest_offset = max(offsets.latest_offset, end_offset - 1)
        return self._mapped(offsets)

    def _mapped(self, offsets: OffsetMap) -> OffsetMap:
        self._stats.keys = len(offsets)
        self._stats.map_bytes = offsets.memory_bytes
        self._stats.map_utilization = offsets.utilization
        return offsets

    def _chunks(self, segment: Segment) -> Generator[tuple[bytes, Scanned], None, None]:
        file = segment.log_file
        for chunk, found in scan_chunks(
            file, 0, segment.size, base_offset=segment.base_offset, chunk_bytes=self._config.io_buffer_size
        ):
            self._check_segments()
            if found.fault is Fault.OVERFLOW:
                self._split(segment)
            if found.fault is not None:
                base_offset = segment.base_offset
                name, text = file_name(base_offset, LOG_SUFFIX), found.fault.value
                raise CorruptBatch(
                    f"{segment.path(LOG_SUFFIX)} cannot be compacted: {text}. "
                    "Verify the log and recover it, or fetch it from another replica",
                    Damage(DamageKind.BAD_BATCH, name, 0, base_offset, f"compaction met {text}", 0),
                )
            yield chunk, found

    # --- the rewriting ----------------------------------------------------------------------------

    def _rewrite(self, group: list[Segment], rules: Compaction) -> Generator[int, None, None]:
        """Make one segment of `group`, and swap it in if it differs."""
        self._reading = group
        self._check_segments()
        cleaned = self._new_segment(group)
        is_unchanged = len(group) == 1
        end_offset = cleaned.base_offset
        for segment in group:
            for chunk, found in self._chunks(segment):
                kept = rules.filter(chunk, found)
                is_unchanged = is_unchanged and kept.is_unchanged
                if kept.extents:
                    self._append(cleaned, kept.pieces, kept.extents)
                    end_offset = kept.extents[-1][1] + 1
                yield found.end + sum(size for size, _, _ in kept.extents)
        entries = [*rules.transactions.take_kept(), *self._undecided(group, rules.upper_bound)]
        if is_unchanged and entries == list(group[0].aborts.index.entries):
            self._drop_cleaned()
            return
        self._finish(cleaned, entries, end_offset, group[-1].base_offset)
        if not replace_segments(
            self._log, group, [cleaned], generation=self._generation, now_ms=self._now_ms
        ):
            raise _SegmentsWent
        self._cleaned = []
        self._before += len(group)
        self._after += 1
        yield 0

    def _new_segment(self, group: Sequence[Segment]) -> Segment:
        cleaned = begin_cleaned(
            self._disk,
            self._log.directory,
            self._log.config,
            group[0].base_offset,
            now_ms=self._now_ms,
            modified_ms=group[-1].modified_ms,
        )
        self._cleaned = [cleaned]
        return cleaned

    def _append(
        self, cleaned: Segment, pieces: Sequence[bytes | memoryview], extents: Sequence[tuple[int, int, int]]
    ) -> None:
        size = sum(size for size, _, _ in extents)
        if cleaned.size + size > MAX_INT:  # new delete horizons may take some bytes more than there were
            raise RecordBatchTooLarge(cleaned.size + size, MAX_INT)
        cleaned.append(pieces[0] if len(pieces) == 1 else b"".join(pieces), extents)

    def _undecided(self, group: Sequence[Segment], upper_bound: int) -> list[AbortedTransaction]:
        """The entries of the group's segments for markers that this pass does not judge."""
        return [
            entry
            for segment in group
            for entry in segment.aborts.index.entries
            if entry.last_offset >= upper_bound
        ]

    def _finish(
        self, cleaned: Segment, entries: Sequence[AbortedTransaction], end_offset: int, last_base: int
    ) -> None:
        successor = self._base_after(last_base)
        cleaned.become_inactive()
        cleaned.sync_log()
        cleaned.sync_indexes()
        cleaned.aborts.replace(entries)
        cleaned.sealing.make(end_offset, successor)
        self._disk.sync_dir(self._log.directory)

    def _base_after(self, base_offset: int) -> int:
        following = [each.base_offset for each in self._log.segments if each.base_offset > base_offset]
        if not following:  # truncated since
            raise _SegmentsWent
        return following[0]

    def _split(self, segment: Segment) -> None:
        """Replace a segment that is too long by segments whose offsets fit, and end the pass.

        Does nothing if offsets also decrease: that is damage.
        """
        runs = find_runs(segment.log_file, segment.size, segment.base_offset)
        if len(runs) < 2:
            return
        self._reading = [segment]
        successor = self._base_after(segment.base_offset)
        self._drop_cleaned()
        self._cleaned = split(
            self._disk, self._log.directory, self._log.config, segment, runs, now_ms=self._now_ms
        )
        successors = [*(run.base_offset for run in runs[1:]), successor]
        for each, run, following in zip(self._cleaned, runs, successors, strict=True):
            each.sealing.make(run.end_offset, following)
        self._disk.sync_dir(self._log.directory)
        if replace_segments(
            self._log, [segment], self._cleaned, generation=self._generation, now_ms=self._now_ms
        ):
            self._cleaned = []
        raise _SegmentsWent

    def _drop_cleaned(self) -> None:
        cleaned, self._cleaned = self._cleaned, []
        for each in cleaned:
            each.let_go()
            # A closed log's directory may have another owner, and an offline one's is left to recovery.
            if not (self._log.is_closed or self._log.is_offline):
                try:
                    each.delete()
                except OSError as error:
                    self._log.disk_failed(error)
