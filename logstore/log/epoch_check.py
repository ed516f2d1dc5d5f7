"""Compare the epoch file of a log that is opened with the batches, and rebuild one that is wrong.

    leader-epoch-checkpoint    epoch 4 from 0 on        epoch 5 from 100 on
    batches                    4   4   4   4   4   4   │5   5   5   5   5   5
                               ↑                   ↑    ↑                   ↑    headers that are read

Epochs never fall along a log. So the file is right if the batches on both sides of each entry's start have
its epoch and that of the entry before, and the last batch has the last one. That costs some headers for each
entry, by the offset indexes, and no more for a longer log.

What may differ: a batch of unknown epoch (-1), and an entry whose batches were compacted away. An entry at
the log end belongs to a leader that wrote nothing. The first entry begins at a former log start, which may
lie inside a batch. After a power cut the file may be older than batches past the durable end, and no entry
from there on is believed; but a batch there that is older than the last entry before contradicts it.

If a header contradicts an entry, every batch is read. A batch's epoch lies outside of its checksum, so it
may be the batch that rotted. The file is wrong if two batches contradict it, or one in a segment that is as
it was sealed, or if an epoch begins in the middle of a batch; then the batches give the new file, if all of
them are sound. Otherwise the file stands, and the batch counts as damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    checkpointed_offset,
    read_leader_epoch_checkpoint,
)
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk, File
from logstore.disk.marks import mark
from logstore.errors import CorruptBatch, CorruptSeal, Damage, DamageKind
from logstore.lazily import np
from logstore.log.loading import Loading, offset_in, was_compacted
from logstore.segment.epochs import EpochEntry, LeaderEpochCache, is_of_its_epoch
from logstore.segment.indexes import OffsetIndex
from logstore.segment.many_batches import are_headers, base_offsets_at, find_batches
from logstore.segment.scan import Scanned, scan
from logstore.segment.seal import broken_blocks, read_seal
from logstore.segment.segment import LOG_SUFFIX, Segment
from logstore.segment.segments import Located, walk_at

_ENTRY: Final = Struct(">ii")
_SKIPPED_BYTES: Final = 1 << 20
"""How much is read at once of batches without index entries."""
_WORTH_SKIPPING_BYTES: Final = 1 << 16
"""Fewer bytes between two entries of an index are walked batch by batch."""


def read_epochs(loading: Loading) -> bool:
    """Read the epoch file; False if it is wrong, so that the batches must be read."""
    try:
        if LEADER_EPOCH_CHECKPOINT in loading.opening.changed:
            raise CorruptCheckpoint("it is not as a clean stop left it")
        entries = read_leader_epoch_checkpoint(loading.disk, loading.directory)
    except CorruptCheckpoint as error:
        _tell(loading, str(error))
        loading.epochs = LeaderEpochCache()
        return False
    loading.epochs = LeaderEpochCache(entries)
    loading.epochs_on_disk = tuple(EpochEntry(*each) for each in entries)
    return True


def check_epochs(loading: Loading, log_start_offset: int, durable_end: int, *, is_clean: bool) -> None:
    """Compare the epochs of a file that parses with the batches; replace them if they are wrong.

    Everything below `durable_end` was synced. `is_clean`: the last owner stopped in order. Raises `OSError`.
    """
    if not loading.epochs.entries or not loading.segments:
        return
    lowest = max(log_start_offset, next(iter(loading.segments)))
    first = loading.epochs.entries[0].start_offset
    history_end = MAX_LONG
    if loading.tail_may_be_torn and not is_clean:
        history_end = durable_end
        if _is_doubtful(loading.segments, loading.epochs.entries, lowest, MAX_LONG):
            # Batches past it may be newer than the file. All of them will be read, and tell their epochs.
            loading.epochs.truncate_from_end(history_end)
    entries = loading.epochs.entries
    if entries and not _is_doubtful(loading.segments, entries, lowest, history_end):
        return
    mark("recovery: the epoch file contradicts a batch")
    torn_from = MAX_LONG if is_clean else durable_end
    found = _read_batches(loading.segments, entries, history_end, torn_from, is_cleaned=loading.was_compacted)
    if found is None:
        return
    found.epochs.truncate_from_start(log_start_offset)
    rebuilt = found.epochs.entries
    if found.is_proven:
        mark("recovery: a wrong epoch file is rebuilt")
        _tell(loading, _difference(entries, rebuilt))
    elif not found.contradictions and rebuilt and rebuilt[0].start_offset < first:
        mark("recovery: an epoch file without the first batches is completed")
        text = f"begins at offset {first}, the batches at {rebuilt[0].start_offset}"
        loading.report.notes.append(f"{LEADER_EPOCH_CHECKPOINT} {text}; it was completed from them")
    else:
        return
    loading.epochs, loading.epochs_on_disk = found.epochs, None


def judged_history(disk: Disk, directory: str) -> tuple[Sequence[EpochEntry], str]:
    """Return the epochs of a log as a start would take them, and what is wrong with their file.

    Changes nothing. The history is empty if it is unknown. A file that lacks only the newest epochs is not
    wrong: a power cut leaves it. An owner may write meanwhile: an epoch is on the disk before its batches, so
    the batches are listed first. Raises `OSError`.
    """
    segments = _segments_of(disk, directory)
    try:
        entries = [EpochEntry(*each) for each in read_leader_epoch_checkpoint(disk, directory)]
    except CorruptCheckpoint as error:
        return [], str(error)
    if not entries or not segments or not _is_doubtful(segments, entries, entries[0].start_offset, MAX_LONG):
        return entries, ""
    first_dirty_offset = checkpointed_offset(disk, directory, CLEANER_OFFSET_CHECKPOINT)
    is_cleaned = was_compacted(LogConfig(), first_dirty_offset, next(iter(segments)))
    found = _read_batches(segments, entries, MAX_LONG, MAX_LONG, is_cleaned=is_cleaned)
    if found is None or not found.is_proven:
        return entries, ""
    rebuilt = found.epochs.entries
    is_older = list(rebuilt[: len(entries)]) == entries
    return rebuilt, "" if is_older else _difference(entries, rebuilt)


def _segments_of(disk: Disk, directory: str) -> SortedDict[int, Segment]:
    segments: SortedDict[int, Segment] = SortedDict()
    for entry in disk.scan(directory):
        base_offset = offset_in(entry.name) if entry.name.endswith(LOG_SUFFIX) else None
        if base_offset is not None and not entry.is_directory:
            segment = Segment(disk, directory, base_offset, LogConfig(), size=entry.size, now_ms=0)
            with suppress(CorruptSeal):
                segment.seal = read_seal(disk, directory, base_offset)
            segments[base_offset] = segment
    return segments


def assign_epochs(epochs: LeaderEpochCache, scanned: Scanned) -> None:
    """Add the epochs that begin in these batches."""
    column = scanned.headers["leader_epoch"]
    if not len(column):
        return
    latest = epochs.latest_epoch
    if int(column.max()) <= latest:
        return
    previous = latest
    values, bases = column.tolist(), scanned.headers["base_offset"]
    for slot, epoch in enumerate(values):
        if epoch > previous:
            epochs.assign(epoch, int(bases[slot]))
            previous = epoch


def _tell(loading: Loading, text: str) -> None:
    loading.report.rebuilt.append(LEADER_EPOCH_CHECKPOINT)
    damage = Damage(DamageKind.DERIVED, LEADER_EPOCH_CHECKPOINT, 0, loading.opening.log_start_offset, text, 0)
    loading.report.wrong.append(damage)


def _difference(entries: Sequence[EpochEntry], rebuilt: Sequence[EpochEntry]) -> str:
    """Describe the first entry that differs."""
    in_file, in_batches = (
        next(
            (
                f"epoch {each.epoch} from offset {each.start_offset} on"
                for each in these
                if each not in others
            ),
            "",
        )
        for these, others in ((entries, rebuilt), (rebuilt, entries))
    )
    return f"it has {in_file or 'no such entry'}, the batches have {in_batches or 'none of it'}"


# --- the headers around each entry ------------------------------------------------------------------


def _is_doubtful(
    segments: SortedDict[int, Segment], entries: Sequence[EpochEntry], lowest: int, history_end: int
) -> bool:
    """Return whether a batch beside the start of an entry, or the last batch, has another epoch.

    `lowest` is the first offset of the log. Past `history_end` only a batch that is older counts.
    """

    def differs(batch: Located | None) -> bool:
        if batch is None or batch.leader_epoch < 0:
            return False
        if batch.base_offset < entries[0].start_offset:
            return entries[0].start_offset > lowest <= batch.last_offset
        return not is_of_its_epoch(batch.base_offset, batch.leader_epoch, entries)

    reached: dict[int, Located] = {}
    for number, (_, start) in enumerate(entries):
        if start >= history_end:
            break
        before, at = _around(segments, start, reached)
        if differs(before) or (number and before is not None and before.last_offset >= start):
            return True
        if at is not None and at.base_offset < history_end and differs(at):
            return True
    before, behind = _around(segments, history_end, reached)
    return differs(before) or (behind is not None and 0 <= behind.leader_epoch < entries[-1].epoch)


def _around(
    segments: SortedDict[int, Segment], offset: int, reached: dict[int, Located]
) -> tuple[Located | None, Located | None]:
    """Return the last batch that begins below `offset`, and the first one at or past it.

    `reached` keeps where that one was found, by segment: an index may be missing, and offsets ascend.
    """
    each = segments.values()
    slot = max(segments.bisect_left(offset) - 1, 0)
    before, at = _around_in(each[slot], offset, reached)
    for number in range(slot - 1, -1, -1):
        if before is not None:
            break
        before, _ = _around_in(each[number], offset, reached)
    for number in range(slot + 1, len(each)):
        if at is not None:
            break
        _, at = _around_in(each[number], offset, reached)
    return before, at


def _around_in(
    segment: Segment, offset: int, reached: dict[int, Located]
) -> tuple[Located | None, Located | None]:
    if not segment.size:
        return None, None
    position, next_position = _entries_around(segment, offset)
    known = reached.get(segment.base_offset)
    if known is not None and known.base_offset < offset:
        position = max(position, known.position)
    with segment.log_for_reading() as file:
        # An entry of the index may be wrong: then from the first batch on.
        for start in (position, 0) if position else (0,):
            before = None
            try:
                first = start
                if next_position - start >= _WORTH_SKIPPING_BYTES:
                    first = _skip_small(segment, start, offset, file)
                for located in walk_at(segment, first, file):
                    if located.base_offset < segment.base_offset:
                        break
                    if located.base_offset >= offset:
                        if before is None and start:
                            break
                        reached[segment.base_offset] = located
                        return before, located
                    before = located
            except CorruptBatch:
                pass  # a torn tail, or damage: whoever reads it finds it
            if before is not None:
                return before, None
    return None, None


def _skip_small(segment: Segment, position: int, offset: int, file: File) -> int:
    """Return the position of the last of the small batches from `position` on that begin below `offset`.

    `position` itself if there are few. After a crash an index may lack millions of batches.
    """
    at = position
    while True:
        chunk = file.pread(min(_SKIPPED_BYTES, segment.size - at), at)
        starts, end = find_batches(chunk, len(chunk), largest=_SKIPPED_BYTES)
        if not end:
            return position
        bases = base_offsets_at(chunk, starts)
        below = are_headers(chunk, starts) & (segment.base_offset <= bases) & (bases < offset)
        if not below.all():
            count = int(below.argmin())
            return at + int(starts[count - 1]) if count else position
        position, at = at + int(starts[-1]), at + end


def _entries_around(segment: Segment, offset: int) -> tuple[int, int]:
    """Return the position of a batch that ends below `offset`, by the index file, and that of its next entry.

    0 and the segment's size if it names none. Without loading the index, which is not settled yet: zeros at
    its end count as no entry.
    """
    found, beyond = 0, segment.size
    try:
        file = segment.disk.open(segment.path(OffsetIndex.suffix))
    except FileNotFoundError:
        return found, beyond
    low = 0
    try:
        high = file.size() // _ENTRY.size
        while low < high:
            middle = (low + high) // 2
            entry = file.pread(_ENTRY.size, middle * _ENTRY.size)
            relative, position = _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else (0, 0)
            is_entry = 0 < position < segment.size
            if is_entry and segment.base_offset + relative < offset:
                low, found = middle + 1, position
            else:
                high, beyond = middle, position if is_entry else segment.size
    finally:
        file.close()
    return found, beyond


# --- all batches ------------------------------------------------------------------------------------


class _Batches(NamedTuple):
    """The epochs of all sound batches, and how many of these contradict the file.

    `is_proven`: more than one batch does, or one that is as it was sealed.
    """

    epochs: LeaderEpochCache
    contradictions: int
    is_proven: bool


def _read_batches(
    segments: SortedDict[int, Segment],
    entries: Sequence[EpochEntry],
    history_end: int,
    torn_from: int,
    *,
    is_cleaned: bool,
) -> _Batches | None:
    """Read every batch up to a tail that is torn at or past offset `torn_from`; None if one is damaged."""
    mark("recovery: all batches are read, to judge the epoch file")
    starts = np.array([-1, *(entry.start_offset for entry in entries)], np.int64)
    known = np.array([-1, *(entry.epoch for entry in entries)], np.int64)
    inner = starts[2:][starts[2:] < history_end]
    epochs = LeaderEpochCache()
    unsealed, is_proven, next_offset = 0, False, 0
    last = next(reversed(segments))
    for base_offset, segment in segments.items():
        if base_offset < next_offset:
            return None
        next_offset, wrong = base_offset, 0
        with segment.log_for_reading() as file:
            for scanned in scan(
                file, 0, segment.size, base_offset=base_offset, leader_epoch=epochs.latest_epoch
            ):
                if len(scanned.headers):
                    bases, lasts = scanned.headers["base_offset"].astype(np.int64), scanned.last_offsets
                    told = known[np.searchsorted(starts, bases, "right") - 1]
                    written = scanned.headers["leader_epoch"]
                    # Past `history_end` the file may be older than a batch, and not newer: epochs never fall.
                    differ = (told >= 0) & (written >= 0)
                    differ &= np.where(bases < history_end, told != written, told > written)
                    wrong += int(np.count_nonzero(differ))
                    holders = np.searchsorted(bases, inner) - 1
                    is_proven |= bool(((holders >= 0) & (lasts[holders] >= inner)).any())
                    assign_epochs(epochs, scanned)
                    next_offset = int(lasts[-1]) + 1
                if scanned.fault is not None and (base_offset != last or next_offset < torn_from):
                    return None
            if wrong and segment.seal is not None and segment.size == segment.seal.size:
                if not any(broken_blocks(file, segment.seal)):
                    is_proven, wrong = True, 0
                elif not is_cleaned:
                    return None
        unsealed += wrong
    is_proven |= unsealed > 1
    return _Batches(epochs, unsealed, is_proven)
