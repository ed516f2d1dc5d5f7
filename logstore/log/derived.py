"""Compare a log's derived files with its batches, and rebuild those that differ.

    .index, .timeindex         with digests, in their seal or in memory, and entry by entry; sealed ones once
    .txnindex                  with the digest in their seal; the active one with what was appended
    .seal                      with what was read when the log was opened
    leader-epoch-checkpoint    with the epochs of the open log, which judge every batch of a scrub
    .snapshot                  with its own checksum; rebuilt from an older one and the batches behind it

The `.log` is the truth, so nothing is asked of other replicas and nothing can be lost. A segment's files are
compared after its `.log` was found sound. What was rebuilt is described by a `Damage`. Every function may run
beside appends, reads, truncations and compactions. They raise `LogDirOffline` and `DiskFull`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from logstore.checkpoint.entry_files import (
    LEADER_EPOCH_CHECKPOINT,
    format_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from logstore.config import MAX_LONG
from logstore.disk.files import read_small_file
from logstore.disk.marks import mark
from logstore.errors import CorruptIndex, CorruptSnapshot, Damage, DamageKind
from logstore.format.crc import crc32c
from logstore.lazily import np
from logstore.log.producer_snapshots import replay_into
from logstore.log.producer_state import CompletedTransaction, ProducerState
from logstore.segment.index_faults import Columns, OffsetFaults, TimeFaults, first_fault
from logstore.segment.indexes import IndexFile, OffsetIndex, TimeIndex, entries_of
from logstore.segment.scan import Scanned, scan
from logstore.segment.seal import SEAL_SUFFIX
from logstore.segment.segment import SNAPSHOT_SUFFIX, Segment, file_name
from logstore.segment.segment_indexes import IndexEntries
from logstore.segment.transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.log.partition_log import PartitionLog

Rebuilt: TypeAlias = list[Damage]
_NOT_SEALED: Final = "it is not as it was sealed"


def _damage(name: str, offset: int, text: str) -> Damage:
    return Damage(DamageKind.DERIVED, name, 0, offset, text, 0)


# --- the files of a segment -------------------------------------------------------------------------


def check_segment_files(log: PartitionLog, segment: Segment) -> Generator[None, None, Rebuilt]:
    """Compare the files of a segment with its intact `.log`; return the rebuilt ones.

    Yields after each step of some megabytes, which come from the page cache. Raises also `FileNotFoundError`
    if the segment goes.
    """
    cuts = log.cuts
    rebuilt = _check_seal(log, segment, cuts)
    rebuilt += yield from _check_indexes(log, segment, cuts)
    rebuilt += check_aborts(log, segment, cuts)
    return rebuilt


def _holds(log: PartitionLog, segment: Segment, cuts: int) -> bool:
    is_there = not log.is_closed and log.segments.get(segment.base_offset) is segment
    return is_there and log.cuts == cuts


def _check_seal(log: PartitionLog, segment: Segment, cuts: int) -> Rebuilt:
    with log.lock:
        seal, path = segment.seal, segment.path(SEAL_SUFFIX)
        # The file of that name may be another segment's by now, which has replaced this one.
        if seal is None or not _holds(log, segment, cuts) or read_small_file(log.disk, path) == seal.encode():
            return []
        log.guarded(partial(segment.sealing.renew, seal))
        name = file_name(segment.base_offset, SEAL_SUFFIX)
        return [_damage(name, segment.base_offset, "it is not as it was written")]


def _check_indexes(log: PartitionLog, segment: Segment, cuts: int) -> Generator[None, None, Rebuilt]:
    seal = segment.seal
    if seal is None:
        bad, digests = (yield from _unlike_memory(log, segment)), (0, 0)
    else:
        data = [_content(log, segment, suffix) for suffix in (OffsetIndex.suffix, TimeIndex.suffix)]
        digests = crc32c(data[0]), crc32c(data[1])
        is_as_sealed = digests == (seal.offsets_crc, seal.times_crc)
        bad = yield from _unlike_seal(log, segment, *data, is_as_sealed=is_as_sealed)
    if bad is None:
        return []
    with log.lock, segment.lock:
        if not _holds(log, segment, cuts) or segment.seal is not seal:
            return []
        if bad:
            mark("derived: an index is rebuilt")
            known = len(log.rebuilt)
            log.guarded(partial(segment.indexes.rebuild, *bad[0]))
            del log.rebuilt[known:]  # the result has it
            digests = segment.indexes.offsets.crc, segment.indexes.times.crc
        if seal is not None:
            # Also if the entries are right: a read has rebuilt the index, or another program.
            renewed = seal._replace(offsets_crc=digests[0], times_crc=digests[1])
            if renewed != seal:
                log.guarded(partial(segment.sealing.renew, renewed))
    base_offset = segment.base_offset
    return [_damage(file_name(base_offset, suffix), base_offset, text) for suffix, text in bad]


def _content(log: PartitionLog, segment: Segment, suffix: str) -> bytes:
    return read_small_file(log.disk, segment.path(suffix)) or b""


Bad: TypeAlias = list[tuple[str, str]]
"""The suffix of each bad file, and what is wrong with it."""


def _unlike_memory(log: PartitionLog, segment: Segment) -> Generator[None, None, Bad | None]:
    """Compare an unsealed segment's indexes with what was loaded or written, then with its batches.

    None if a batch has rotted meanwhile.
    """
    with segment.lock:
        indexes = segment.indexes.offsets, segment.indexes.times
        entries = [np.array(each.entries(), np.int64).reshape(-1, 2) for each in indexes]
        written = [each.written for each in indexes]
    bad: Bad = [
        (each.suffix, "it is not as it was written")
        for each, (size, crc) in zip(indexes, written, strict=True)
        if crc32c(_content(log, segment, each.suffix)[:size]) != crc
    ]
    return bad or (yield from _contradicting(log, segment, *entries))


def _unlike_seal(
    log: PartitionLog, segment: Segment, offsets: bytes, times: bytes, *, is_as_sealed: bool
) -> Generator[None, None, Bad | None]:
    """Compare the content of a sealed segment's indexes with what its batches give, if that is necessary.

    The first scrub does so in any case. What an earlier process had written may have rotted before the
    segment was sealed. None if a batch has rotted meanwhile.
    """
    if not is_as_sealed:
        return (yield from _differing(log, segment, offsets, times))
    if segment.was_walked:
        return []
    rows = _rows(offsets, OffsetIndex), _rows(times, TimeIndex)
    return (yield from _contradicting(log, segment, *rows))


def _differing(
    log: PartitionLog, segment: Segment, offsets: bytes, times: bytes
) -> Generator[None, None, Bad | None]:
    """Compare the content of a sealed segment's indexes with what its batches give.

    None if a batch has rotted meanwhile.
    """
    found = IndexEntries(segment.base_offset, log.config.index_interval_bytes)
    for scanned in _scanned(segment):
        if scanned.fault is not None:
            return None  # they were sound a moment ago: the next scrub finds what has changed
        found.add(scanned)
        yield None
    found.finish()
    is_right = {
        OffsetIndex.suffix: bytes(found.offset_entries) == bytes(entries_of(offsets, OffsetIndex)),
        TimeIndex.suffix: bytes(found.time_entries) == bytes(entries_of(times, TimeIndex)),
    }
    return [(suffix, _NOT_SEALED) for suffix, right in is_right.items() if not right]


def _rows(data: bytes, index: type[IndexFile]) -> npt.NDArray[np.int64]:
    """Return the entries of an index file as rows of two columns."""
    entries = entries_of(data, index)
    return np.stack([entries[name].astype(np.int64) for name, _ in index.fields], axis=1)


def _contradicting(
    log: PartitionLog, segment: Segment, offsets: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
) -> Generator[None, None, Bad | None]:
    """Judge each entry of a segment's indexes, which another program may have made, by its batches.

    None if a batch has rotted meanwhile.
    """
    offsets[:, 0] += segment.base_offset
    times[:, 1] += segment.base_offset
    by_offset, by_time = OffsetFaults(offsets), TimeFaults(times)
    for scanned in _scanned(segment):
        if scanned.fault is not None:
            return None
        bases, largest = (scanned.headers[name].astype(np.int64) for name in ("base_offset", "max_timestamp"))
        columns = Columns(scanned.positions, bases, scanned.last_offsets, largest)
        by_offset.add(columns)
        by_time.add(columns)
        yield None
    bad: Bad = []
    if (text := first_fault(offsets, by_offset.result())) is not None:
        bad.append((OffsetIndex.suffix, text))
    if (text := first_fault(times, by_time.result())) is not None:
        bad.append((TimeIndex.suffix, text))
    elif segment is not log.segments.active and times[-1:, 0].max(initial=0) != max(by_time.latest_ms, 0):
        # Retention depends on the last entry of a segment that is complete. One of time 0 may be all zeros.
        bad.append((TimeIndex.suffix, f"no entry has the largest time, {by_time.latest_ms}"))
    return bad


def _scanned(segment: Segment) -> Iterator[Scanned]:
    size = segment.size
    with segment.log_for_reading() as file:
        yield from scan(file, 0, size, base_offset=segment.base_offset)


# --- aborted transactions -----------------------------------------------------------------------


def check_aborts(log: PartitionLog, segment: Segment, cuts: int) -> Rebuilt:
    """Compare the index of aborted transactions with its digest, or with what was appended; rebuild it."""
    seal = segment.seal
    if seal is not None:
        if crc32c(_content(log, segment, TRANSACTION_INDEX_SUFFIX)) == seal.aborts_crc:
            return []
        rebuild_aborts(log, segment)
        return [_aborts_damage(segment, _NOT_SEALED)]
    with log.lock:
        if not _holds(log, segment, cuts) or segment.seal is not None:
            return []
        data = _content(log, segment, TRANSACTION_INDEX_SUFFIX)
        try:
            index = segment.aborts.index
        except CorruptIndex as error:
            text = str(error)
        else:
            if data == index.encode():
                return []
            log.guarded(lambda: segment.aborts.replace(index.entries))
            return [_aborts_damage(segment, "it is not as it was written")]
    rebuild_aborts(log, segment)
    return [_aborts_damage(segment, text)]


def _aborts_damage(segment: Segment, text: str) -> Damage:
    return _damage(file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX), segment.base_offset, text)


def rebuild_aborts(log: PartitionLog, segment: Segment) -> None:
    """Rebuild an intact segment's index of aborted transactions from its batches and earlier ones."""
    mark("derived: an index of aborted transactions is rebuilt")
    cuts = log.cuts
    entries = replayed_aborts(log, segment)
    with log.lock, segment.lock:
        if _holds(log, segment, cuts):
            log.guarded(lambda: segment.aborts.replace(entries))
            if (seal := segment.seal) is not None:
                aborts_crc = crc32c(segment.aborts.index.encode())
                log.guarded(lambda: segment.sealing.renew(seal._replace(aborts_crc=aborts_crc)))


def replayed_aborts(log: PartitionLog, segment: Segment) -> list[AbortedTransaction]:
    """Return the aborted transactions whose markers lie in `segment`, which need not be in the log yet."""
    entries: list[AbortedTransaction] = []

    def note(completed: CompletedTransaction) -> None:
        if (entry := completed.index_entry()) is not None:
            entries.append(entry)

    replay_into(_state_at(log, segment.base_offset), segment, note)
    return entries


def _state_at(log: PartitionLog, offset: int) -> ProducerState:
    """Return the producers' state at `offset`, from the newest snapshot below it, or at it, that is sound."""
    with log.lock:
        state = log.snapshots.newest(
            at_most=offset,
            above=log.segments.first.base_offset,
            now_ms=log.clock(),
            expiration_ms=MAX_LONG,
        )
    for segment in log.segments.since(state.end_offset):
        if segment.base_offset >= offset:
            break
        replay_into(state, segment, end_offset=offset)
    return state


def rebuild_producers(log: PartitionLog, end_offset: int, *, since: int | None = None) -> None:
    """Set the producer state to that of the log below `end_offset`, which is or becomes the log end.

    With `since`, batches from that offset on have changed: newer snapshots are not believed. The caller holds
    the log's lock. Raises `LogDirOffline`.
    """

    def rebuild() -> None:
        at_most = end_offset if since is None else since
        # Durably: a snapshot that comes back after a crash describes batches that are gone, and other
        # batches have their offsets by then.
        if log.snapshots.retain(above=log.log_start_offset, at_most=at_most):
            log.disk.sync_dir(log.directory)
        producers = log.snapshots.newest(
            at_most=at_most,
            above=log.segments.first.base_offset,
            now_ms=log.clock(),
            expiration_ms=log.producer_config.producer_id_expiration_ms,
        )
        for segment in log.segments.since(producers.end_offset):
            following = log.segments.higher(segment.base_offset)
            ends_by = log.log_end_offset if following is None else following.base_offset
            if ends_by > producers.end_offset:
                replay_into(producers, segment)
        producers.end_offset = end_offset
        # A snapshot holds one batch of each producer. The others may still be sent again.
        producers.remember(log.producer_state)
        producers.advance_high_watermark(log.high_watermark)
        log.producer_state = producers

    log.or_offline(rebuild)


# --- the files of a log -----------------------------------------------------------------------------


def check_log_files(log: PartitionLog) -> Rebuilt:
    """Compare the epoch file and the producer snapshots of a log; return those that were rebuilt."""
    return [*_check_epochs(log), *_check_snapshots(log)]


def _check_epochs(log: PartitionLog) -> Rebuilt:
    with log.lock:
        if log.is_closed or log.sync_name is not None:  # a new log has no file yet
            return []
        entries = log.epochs
        data = read_small_file(log.disk, f"{log.directory}/{LEADER_EPOCH_CHECKPOINT}")
        if (data or b"") == (format_leader_epoch_checkpoint(entries) if entries or data else b""):
            return []
        mark("derived: the epoch file is written anew")
        log.guarded(lambda: write_leader_epoch_checkpoint(log.disk, log.directory, entries))
    return [_damage(LEADER_EPOCH_CHECKPOINT, log.log_start_offset, "it is not as it was written")]


def correct_epochs(log: PartitionLog, headers: npt.NDArray[np.void]) -> Damage:
    """Give consecutive batches of the log, n `headers`, the epochs that they have. Raises `LogDirOffline`.

    For an epoch file that had rotted when the log was opened, and contradicts batches that are right.
    """
    bases = headers["base_offset"].tolist()
    end_offset = bases[-1] + int(headers["last_offset_delta"][-1]) + 1
    epochs = [*zip(headers["leader_epoch"].tolist(), bases, strict=True)]
    with log.lock:
        log.check_writable()
        has_more = end_offset < log.log_end_offset
        log.change_epochs(lambda cache: cache.correct(epochs, end_offset if has_more else None))
    offsets = f"{bases[0]} to {end_offset - 1}"
    text = f"another replica has the same batches at offsets {offsets}, of epoch {epochs[0][0]}"
    return _damage(LEADER_EPOCH_CHECKPOINT, bases[0], text)


def _check_snapshots(log: PartitionLog) -> Rebuilt:
    bad: list[tuple[int, str]] = []
    for offset in tuple(log.snapshots.offsets):
        try:
            log.snapshots.load(offset)
        except CorruptSnapshot as error:
            bad.append((offset, str(error)))
    for offset, _ in bad:
        mark("derived: a producer snapshot is rebuilt")
        with log.lock:
            log.snapshots.remove(offset)
        state = _state_at(log, offset)
        with log.lock:
            if not log.is_closed and log.log_start_offset < offset <= log.log_end_offset:
                log.guarded(partial(log.snapshots.put, state, offset))
    return [_damage(file_name(offset, SNAPSHOT_SUFFIX), offset, text) for offset, text in bad]
