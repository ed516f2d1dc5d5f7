"""Seals at the opening of a log: their checks, and the removed and the new ones.

A seal that contradicts its segment is damage, unless another program has rewritten the segment since, as
Kafka's cleaner does: then every batch is sound and in order, and the seal goes with a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from logstore.config import MAX_LONG
from logstore.disk.files import read_small_file
from logstore.errors import CorruptSeal, Damage, DamageKind
from logstore.format.crc import crc32c
from logstore.log.giving_up import cut_segments, meet_damage, remove_segments
from logstore.log.loading import Loading, delete_files
from logstore.segment.damage import Listed, judge_chain, was_rewritten
from logstore.segment.indexes import TimeIndex
from logstore.segment.seal import SEAL_SUFFIX, Seal, broken_blocks, read_seal
from logstore.segment.segment import LOG_SUFFIX, Segment, file_name
from logstore.segment.segments import end_offset_of


def judge_seals(loading: Loading, recovery_point: int | None, log_start_offset: int) -> tuple[int, int]:
    """Read every seal and compare it with its segment.

    Returns up to which offset everything was durable (0 if that is unknown), and the number of the first
    segment that has to be read whatever else is known of it.
    """
    for base_offset, segment in loading.segments.items():
        if file_name(base_offset, SEAL_SUFFIX) in loading.files:
            try:
                segment.seal = read_seal(loading.disk, loading.directory, base_offset)
            except CorruptSeal as error:
                loading.report.notes.append(f"{error}; it counts for nothing")
                delete_files(loading, [file_name(base_offset, SEAL_SUFFIX)])
    listed = [Listed(base_offset, segment.size) for base_offset, segment in loading.segments.items()]
    seals = {base: segment.seal for base, segment in loading.segments.items() if segment.seal is not None}
    rewritten = _rewritten(loading, seals)
    for base_offset in rewritten:
        del seals[base_offset]
    chain = judge_chain(listed, seals, log_start_offset, partial(_is_merged, loading))
    loading.knows_durable_end = recovery_point is not None or bool(seals)
    durable_end = max(recovery_point or 0, chain.durable_end)
    if not chain.damages:
        for base_offset in rewritten:
            _unseal_rewritten(loading, loading.segments[base_offset])
        if chain.replaced:
            remove_segments(loading, chain.replaced, "a later segment took its place", None)
        return durable_end, len(loading.segments)
    meet_damage(loading, *chain.damages)
    base_offset, segment = loading.segments.peekitem(chain.whole)
    segment.sealing.remove()
    first = chain.damages[0]
    later = [base for base in loading.segments if base > base_offset]
    cut_segments(loading, later, first.text, first.offset, durable_end)
    return durable_end, chain.whole


def settle_seals(loading: Loading) -> None:
    """Seal complete segments that were read and have no seal; unseal the last one.

    A seal names the base that really follows: of one whose successor was being replaced that is the
    segment that stayed. It has the digests of indexes that were rebuilt: after a change of
    `index.interval.bytes` their entries are others, and so are those of a compacted log's aborted
    transactions, whose data is gone.
    """
    bases = list(loading.segments)
    for base_offset, successor in pairwise(bases):
        segment = loading.segments[base_offset]
        sealing, indexes = segment.sealing, segment.indexes
        if base_offset not in loading.recovered:
            sealing.follow_with(successor)
            continue
        segment.sync_indexes()
        if (seal := segment.seal) is None:
            sealing.make(end_offset_of(segment), successor)
        else:
            settled = seal._replace(
                successor=successor,
                aborts_crc=crc32c(segment.aborts.index.encode()),
                offsets_crc=indexes.offsets.crc,
                times_crc=indexes.times.crc,
            )
            if settled != seal:
                sealing.renew(settled)
    if bases:
        loading.segments[bases[-1]].sealing.remove()


def _rewritten(loading: Loading, seals: Mapping[int, Seal]) -> list[int]:
    """Return the sealed segments that another program has rewritten since, sound and in order."""

    def times(base_offset: int) -> bytes | None:
        path = f"{loading.directory}/{file_name(base_offset, TimeIndex.suffix)}"
        return read_small_file(loading.disk, path)

    ends = dict(pairwise([*loading.segments, MAX_LONG]))
    return [
        base_offset
        for base_offset, seal in seals.items()
        if (size := (segment := loading.segments[base_offset]).size) != seal.size
        and (size < seal.size or ends[base_offset] != MAX_LONG)
        and was_rewritten(
            segment.log_file,
            size,
            seal,
            ends[base_offset],
            is_compacted=loading.was_compacted,
            times=times(base_offset),
        )
    ]


def _is_merged(loading: Loading, gone: int, following: int) -> bool:
    """Return whether another program's cleaner removed the segments from base `gone` up to base `following`.

    Either the seal of the first one is left, which Kafka does not delete, or all up to `following` was
    cleaned.
    """
    if not loading.was_compacted:
        return False
    cleaned_to = loading.opening.first_dirty_offset
    if file_name(gone, SEAL_SUFFIX) not in loading.report.deleted and cleaned_to < following:
        return False
    loading.report.notes.append(f"segments from {gone} to {following} were compacted away by another program")
    return True


def _unseal_rewritten(loading: Loading, segment: Segment) -> None:
    name = file_name(segment.base_offset, LOG_SUFFIX)
    loading.report.notes.append(
        f"{name} was rewritten since it was sealed, and every batch is sound: its seal was removed"
    )
    segment.sealing.remove()


def check_blocks(loading: Loading, segment: Segment) -> None:
    """Compare a segment whose batches are all sound with its seal, for fields that no checksum covers."""
    if segment.seal is None or not loading.opening.reads_all:
        return
    if not (broken := next(broken_blocks(segment.log_file, segment.seal), None)):
        return
    if not loading.was_compacted:
        text = f"bytes {broken[0]} to {broken[1]} differ from the sealed content, though every batch is sound"
        name = file_name(segment.base_offset, LOG_SUFFIX)
        meet_damage(loading, Damage(DamageKind.CHANGED, name, broken[0], segment.base_offset, text, 0))
    _unseal_rewritten(loading, segment)
