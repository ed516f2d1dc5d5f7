"""Repair a damaged segment with batches of another replica: intact batches stay, the rest is fetched.

    00…042.log    │ sound │░ bad ░│ sound │            offsets 57 to 63 are wanted
    00…042.log.cleaned    │ sound │ fetched │ sound │  then `swap.py` puts it in place

`damage.judge_segment` tells which batches are sound, and they stay. A fetched batch is taken if its checksum
is right and it has the leader epoch that this log has recorded for its offset: only the leader of an epoch
writes in it, and it writes each offset once, so it is the same batch. Where nothing was compacted, the
fetched batches must fill the gap without a hole.

If another replica sends exactly the bytes that are here, they were never bad: then the epochs that this log
has recorded are wrong, because its epoch file had rotted when the log was opened. The file is corrected by
those batches, and the segment is judged once more.

The new segment is synced by a flush of the log, in the thread of whoever flushes it (`Flush`).

Nothing of the log changes before the swap. The bad bytes are in quarantine, with an entry in the loss ledger,
before it. After a crash the old segment is there, or the new one. The log's end, its high watermark and its
epochs stay: a replica may be mended while it leads, follows, or counts in the ISR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.errors import CorruptIndex, Damage, is_refusal, refusal
from logstore.format.batch import LOG_OVERHEAD
from logstore.log.derived import check_segment_files, correct_epochs, rebuild_producers, replayed_aborts
from logstore.log.losses import Loss
from logstore.log.partition_log import PartitionLog, is_dense
from logstore.log.read import sound_batches_of
from logstore.log.scrub import Scrubbed
from logstore.log.tails import Tail
from logstore.log.upkeep import holds, replace_segments
from logstore.segment.damage import Expected, judge_segment, swept
from logstore.segment.scan import extents_of, scan_buffer
from logstore.segment.seal import Seal
from logstore.segment.segment import LOG_SUFFIX, Segment, file_name
from logstore.segment.swap import begin_cleaned
from logstore.segment.transaction_index import AbortedTransaction


class Wanted(NamedTuple):
    """Offsets [start_offset, end_offset) that another replica should send, as whole batches."""

    start_offset: int
    end_offset: int


class Found(NamedTuple):
    """The answer to a `Wanted`: batches from its start offset on, and the name of their source.

    Without bytes the source holds nothing from that offset on.
    """

    records: Buffer
    source: str


class Flush(NamedTuple):
    """The repair waits for the new segment's sync, which `PartitionLog.flush` does, in any thread."""


class Mended(NamedTuple):
    """The result of a repair: the number of fetched batches, and the quarantined data.

    `loss_id` is None if no bytes had to be kept. If `was_damaged` is False, the segment's `.log` was sound;
    `rebuilt` are its derived files that were not.
    """

    was_damaged: bool
    fetched: int = 0
    loss_id: int | None = None
    rebuilt: tuple[Damage, ...] = ()


def leave_out_deleted(log: PartitionLog, found: Scrubbed, *, now_ms: int) -> Scrubbed:
    """Repair damage that a scrub found below the log start, which needs no other replica.

    What was mended stands under `rebuilt` of the result. Raises `DiskFull`, `LogDirOffline`.
    """
    counts = {each.file for each in found.damages if each.end_offset > log.log_start_offset}
    mended = set[str]()
    for name in {each.file for each in found.damages} - counts:
        with suppress(CannotMend):
            for step in mend(log, int(name[:20]), now_ms=now_ms):
                assert not isinstance(step, Wanted), "nothing that counts was damaged"
                if isinstance(step, Flush):
                    log.flush()
            mended.add(name)
    left = tuple(each for each in found.damages if each.file not in mended)
    text = "; its records were deleted, so it was left out"
    done = (each._replace(text=each.text + text) for each in found.damages if each.file in mended)
    return found._replace(damages=left, rebuilt=(*found.rebuilt, *done))


class CannotMend(Exception):
    """The repair ends without a change: the segment was deleted, or the log was truncated."""


class NotTheSame(Exception):
    """The sent batches are not those that this log lost; ask another replica."""


class _SameBytes(Exception):
    """Another replica has the same batches (n headers): the epochs recorded here are wrong."""

    def __init__(self, headers: npt.NDArray[np.void]) -> None:
        self.headers = headers


class _Gap(NamedTuple):
    """Bytes [from_byte, to_byte) of the segment that are not sound, and the offsets that lay there."""

    from_byte: int
    to_byte: int
    wanted: Wanted

    @property
    def has_bytes(self) -> bool:
        return self.to_byte > self.from_byte


Steps = Generator[Wanted | Flush | None, Found | None, Mended]
"""Yields None after a piece of local work, or what it waits for."""


def mend(
    log: PartitionLog, base_offset: int, *, now_ms: int, on_judged: Callable[[Damage], None] = lambda _: None
) -> Steps:
    """Repair the segment at `base_offset`, in steps. The active segment is rolled first.

    `on_judged` learns where the segment's damage begins, before anything is wanted.

    Yields `Wanted` until the sent batches cover it: send a `Found` for each. After batches that are not the
    right ones the same offsets are wanted again, from another source. Then yields `Flush`: flush the log.
    Returns a `Mended`. Raises `CannotMend`, and the log's `DiskFull` and `LogDirOffline`, with the segment as
    it was.
    """
    if not log.compaction_lock.acquire(blocking=False):
        raise CannotMend("a compaction is under way")
    try:
        mending = _Mending(log, base_offset, now_ms, on_judged)
        try:
            return (yield from mending.run())
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not mending.holds:
                raise CannotMend("the segment was deleted meanwhile") from error
            if is_refusal(error):
                raise refusal(error, log.directory, "the segment is as it was", "wait") from error
            log.fail(error)
    finally:
        log.compaction_lock.release()


class _Mending:
    def __init__(
        self, log: PartitionLog, base_offset: int, now_ms: int, on_judged: Callable[[Damage], None]
    ) -> None:
        with log.lock:
            segment = log.segments.get(base_offset)
            if segment is None or not segment.size:
                raise CannotMend("the segment is gone")
            if segment is log.segments.active:
                mark("heal: the active segment is sealed first")
                log.roll()
            successor = log.segments.higher(base_offset)
            assert successor is not None, "a segment follows after a roll"
            seal = segment.seal
            self._end_offset = successor.base_offset if seal is None else seal.end_offset
            self._successor = successor.base_offset
        self._log, self._segment, self._now_ms, self._on_judged = log, segment, now_ms, on_judged
        self._generation = log.generation
        self._fetched = 0
        self._has_producers = False
        self._origin = "below the log start, left out"

    @property
    def holds(self) -> bool:
        """Whether the log still has the segment, not truncated."""
        return holds(self._log, [self._segment], self._generation)

    def run(self) -> Steps:
        corrected: tuple[Damage, ...] = ()
        while True:
            try:
                done = yield from self._run_once()
            except _SameBytes as same:
                corrected = (correct_epochs(self._log, same.headers),)
            else:
                return done._replace(rebuilt=(*corrected, *done.rebuilt))

    def _run_once(self) -> Steps:
        segment = self._segment
        gaps = yield from self._judge(segment.seal)
        if not gaps and segment.seal is not None:
            mark("heal: a seal was made of bytes that were bad already")
            gaps = yield from self._judge(None)
        if not gaps:
            rebuilt = yield from check_segment_files(self._log, segment)
            return Mended(False, rebuilt=tuple(rebuilt))
        if is_dense(self._log):
            self._log.has_gaps = yield from self._was_compacted(gaps)
        cleaned = begin_cleaned(
            self._log.disk,
            self._log.directory,
            self._log.config,
            segment.base_offset,
            now_ms=self._now_ms,
            modified_ms=segment.modified_ms,
        )
        try:
            yield from self._write(cleaned, gaps)
            yield from self._seal(cleaned)
            loss_id = self._keep([gap for gap in gaps if gap.has_bytes])
            if not replace_segments(
                self._log, [segment], [cleaned], generation=self._generation, now_ms=self._now_ms
            ):
                raise CannotMend("the log was cut meanwhile")
            if self._has_producers:
                # An opening of the damaged log went past the batches that are back now.
                mark("heal: producers are read again, with the batches that are back")
                with self._log.lock:
                    rebuild_producers(self._log, self._log.log_end_offset, since=segment.base_offset)
        except BaseException:
            cleaned.let_go()
            if not (self._log.is_closed or self._log.is_offline):
                cleaned.delete()
            raise
        return Mended(True, self._fetched, loss_id)

    def _judge(self, seal: Seal | None) -> Generator[None, None, list[_Gap]]:
        segment = self._segment
        expected = Expected(segment.base_offset, segment.size, self._successor, seal, self._log.epochs)
        gaps: list[_Gap] = []
        with segment.log_for_reading() as file:
            for step in judge_segment(file, expected):
                gaps = _gaps(step.damages)
                if step.damages:
                    self._on_judged(step.damages[0])
                yield None
        # Nothing of a segment below the log start is read. In the one that holds the log start, bad bytes
        # below it are left out: a read walks over them, and other replicas may have deleted their records.
        return gaps if self._end_offset > self._log.log_start_offset else []

    def _aborts(self) -> Sequence[AbortedTransaction] | None:
        """Return the entries of the index of aborted transactions; None if it is damaged."""
        try:
            return self._segment.aborts.index.entries
        except CorruptIndex:
            return None

    def _was_compacted(self, gaps: Sequence[_Gap]) -> Generator[None, None, bool]:
        """Return whether offsets are missing between sound batches: the topic's policy was another once."""
        end, next_offset, is_outside = 0, self._segment.base_offset, True
        with self._segment.log_for_reading() as file:
            for piece in swept(file, self._segment.size):
                ends = piece.positions + piece.headers["batch_length"] + LOG_OVERHEAD
                outside = _are_outside(piece.positions, ends, gaps)
                follows = piece.positions == np.append(end, ends[:-1])
                leaps = piece.bases > np.append(next_offset, piece.lasts[:-1] + 1)
                if (outside & np.append(is_outside, outside[:-1]) & follows & leaps).any():
                    return True
                if len(ends):
                    end, next_offset, is_outside = ends[-1], piece.lasts[-1] + 1, bool(outside[-1])
                yield None
        return False

    # --- the new segment ----------------------------------------------------------------------------

    def _check(self) -> None:
        if not self.holds:
            raise CannotMend("the log was cut or compacted meanwhile")

    def _write(self, cleaned: Segment, gaps: Sequence[_Gap]) -> Generator[Wanted | None, Found | None, None]:
        """Write the sound batches outside of the gaps, and into each gap what another replica sends."""
        ahead = deque(gaps)
        with self._segment.log_for_reading() as file:
            for piece in swept(file, self._segment.size):
                self._check()
                ends = piece.positions + piece.headers["batch_length"] + LOG_OVERHEAD
                kept = np.flatnonzero(_are_outside(piece.positions, ends, gaps))
                for run in np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1):
                    if not len(run):
                        continue
                    start = int(piece.positions[run[0]])
                    while ahead and ahead[0].from_byte <= start:
                        yield from self._fetch(cleaned, ahead.popleft())
                    data = file.pread(int(ends[run[-1]]) - start, start)
                    cleaned.append(data, extents_of(piece.headers[run]))
                yield None
        while ahead:
            yield from self._fetch(cleaned, ahead.popleft())

    def _fetch(self, cleaned: Segment, gap: _Gap) -> Generator[Wanted, Found | None, None]:
        wanted = gap.wanted
        at = max(wanted.start_offset, min(self._log.log_start_offset, wanted.end_offset))
        while at < wanted.end_offset:
            self._check()
            found = yield Wanted(at, wanted.end_offset)
            assert found is not None, "batches were wanted"
            self._check()
            at = max(at, min(self._log.log_start_offset, wanted.end_offset))
            try:
                at = self._take(cleaned, found, at, wanted, must_fill=gap.has_bytes and is_dense(self._log))
            except NotTheSame:
                if at == wanted.start_offset:
                    self._compare(bytes(found.records), gap)
                continue
            self._origin = f"fetched again from {found.source}"

    def _compare(self, sent: bytes, gap: _Gap) -> None:
        """Raise `_SameBytes` if the other replica sent what lies in the gap."""
        sent = sent[: gap.to_byte - gap.from_byte]
        batches = scan_buffer(sent, len(sent))
        with self._segment.log_for_reading() as file:
            if len(batches.headers) and file.pread(batches.end, gap.from_byte) == sent[: batches.end]:
                mark("heal: another replica has the same batches, the epoch file is wrong")
                raise _SameBytes(batches.headers)

    def _take(self, cleaned: Segment, found: Found, at: int, wanted: Wanted, *, must_fill: bool) -> int:
        """Append the batches below the wanted end; return the offset to continue at."""
        scanned = sound_batches_of(self._log, self._segment.base_offset, bytes(found.records))
        headers, lasts = scanned.headers, scanned.last_offsets
        bases = headers["base_offset"].astype(np.int64)
        first = int(np.searchsorted(lasts, at))
        end = int(np.searchsorted(bases, wanted.end_offset))
        reaches_end = end < len(headers)
        if first < end and bases[first] >= wanted.start_offset:
            at = min(at, int(bases[first]))  # the log may start inside a batch
        if first < end and (bases[first] < at or lasts[end - 1] >= max(self._successor, wanted.end_offset)):
            raise NotTheSame
        floors = np.concatenate(([at], lasts[first : end - 1] + 1)) if first < end else np.empty(0, np.int64)
        has_hole = bool((bases[first:end] != floors).any())
        reached = int(lasts[end - 1]) + 1 if first < end else at
        has_hole |= reaches_end and reached < wanted.end_offset
        if (must_fill and has_hole) or (first >= end and not reaches_end):
            raise NotTheSame
        if first < end:
            start = int(scanned.positions[first])
            stop = int(scanned.positions[end]) if reaches_end else scanned.end
            cleaned.append(memoryview(found.records)[start:stop], extents_of(headers[first:end]))
            self._fetched += end - first
            self._has_producers |= bool((headers[first:end]["producer_id"] >= 0).any())
        return wanted.end_offset if reaches_end else reached

    def _seal(self, cleaned: Segment) -> Generator[Flush, None, None]:
        if not cleaned.size:
            raise CannotMend("nothing is left of the segment")
        cleaned.become_inactive()
        yield from self._sync(cleaned)
        entries = self._aborts()
        if entries is None:
            mark("heal: an index of aborted transactions is built anew")
            entries = replayed_aborts(self._log, cleaned)
        cleaned.aborts.replace(entries)
        cleaned.sealing.make(self._end_offset, self._successor)
        self._log.disk.sync_dir(self._log.directory)

    def _sync(self, cleaned: Segment) -> Generator[Flush, None, None]:
        """Have the next flush of the log sync the segment, once, and digest it; raise its error here."""
        done: list[OSError | None] = []
        begun = Lock()

        def sync() -> None:
            if not begun.acquire(blocking=False):
                return  # another flush does it
            try:
                cleaned.sync_log()
                cleaned.sync_indexes()
                cleaned.sealing.prepare()
            except OSError as error:
                done.append(error)
            else:
                done.append(None)

        self._log.flushed_first = sync
        try:
            while not done:
                yield Flush()
        finally:
            self._log.flushed_first = None
        self._check()
        if done[0] is not None:
            raise done[0]

    def _keep(self, bad: Sequence[_Gap]) -> int | None:
        """Enter what was bad in the ledger, with a copy of its bytes."""
        log, segment = self._log, self._segment
        if not bad:
            return None
        first, last = bad[0].wanted, bad[-1].wanted
        start, end = bad[0].from_byte, bad[-1].to_byte
        name = file_name(segment.base_offset, LOG_SUFFIX)
        loss = Loss(
            at_ms=self._now_ms,
            who="heal",
            why=f"damaged in {name}; {self._origin}",
            first_offset=first.start_offset,
            last_offset=last.end_offset - 1,
            end_offset=log.log_end_offset,
            size=end - start,
            epochs=(log.epoch_for_offset(first.start_offset), log.epoch_for_offset(last.end_offset - 1)),
        )
        with log.lock:
            self._check()
            return log.guarded(
                lambda: log.quarantine.enter(loss, tail=Tail(name, segment.log_file, start, end)).id
            )


def _are_outside(
    positions: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], gaps: Sequence[_Gap]
) -> npt.NDArray[np.bool_]:
    """Return which of the batches, from byte to byte, lie in none of the gaps."""
    outside = np.ones(len(ends), np.bool_)
    for gap in gaps:
        outside &= (positions >= gap.to_byte) | (ends <= gap.from_byte)
    return outside


def _gaps(damages: Sequence[Damage]) -> list[_Gap]:
    """Return the damaged stretches, in order; those that overlap become one."""
    gaps: list[_Gap] = []
    for damage in damages:
        gap = _Gap(damage.position, damage.end_position, Wanted(damage.offset, damage.end_offset))
        if gaps and gap.from_byte < gaps[-1].to_byte:
            before = gaps.pop()
            offsets = (*before.wanted, *gap.wanted)
            wanted = Wanted(min(offsets), max(offsets))
            gap = _Gap(before.from_byte, max(before.to_byte, gap.to_byte), wanted)
        gaps.append(gap)
    return gaps
