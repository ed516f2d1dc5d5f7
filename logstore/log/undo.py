"""Restore a loss: into the log it came from if it still fits there, or into a new log.

    quarantine                      log
    lost/3/00…042.log   ──batches──►  appended as a follower does: checked again, the same bytes
    lost/3/00…091.log   ──roll──────►  a segment that was moved whole becomes a segment again
                                      one sync, and then the ledger says `restored`

A crash in the middle leaves a part of the loss in the log. The same call then continues behind that part:
batches that the log already holds, byte for byte, are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logstore.disk.files import File
from logstore.errors import CannotUndo
from logstore.log.append_fetched import append_as_follower
from logstore.log.losses import Loss, Piece, Quarantine, Standing
from logstore.log.partition_log import PartitionLog
from logstore.log.read import read_bytes
from logstore.log.tails import sound_batches
from logstore.log.truncate import truncate_fully_and_start_at, truncate_to
from logstore.segment.scan import Scanned, scan

_RUN_BYTES = 1 << 20


class _Run(NamedTuple):
    """Batches that lie end to end, in one piece; `opens_segment` if they are the first of a moved segment."""

    first_offset: int
    next_offset: int
    epochs: tuple[int, int]
    data: bytes
    opens_segment: bool


class CopiedOut(NamedTuple):
    """The records that `copy_out` wrote, and the bytes of the loss that it could not use."""

    records: int
    left_out_bytes: int


def put_back(log: PartitionLog, loss_id: int) -> int:
    """Append the bytes of loss `loss_id` to the log, durably; return their number.

    It fits if nothing was appended since the cut (but a part of the loss itself). Nobody else may append
    meanwhile. Raises `CannotUndo`, with nothing changed, if it does not fit, is not kept any more or is
    damaged; `OSError` if quarantine cannot be read; `DiskFull` or `LogDirOffline` as an append does (the
    same call then goes on once the cause is gone).
    """
    quarantine = log.quarantine
    loss, end_offset = check_fit(log, loss_id)
    if end_offset < log.log_end_offset:  # the cut was made inside a batch, which went whole
        truncate_to(log, end_offset, why=f"loss {loss_id} is put back")
    written = 0
    for run in _runs_of(quarantine, loss, split_at=end_offset):
        if run.first_offset >= end_offset:
            if run.opens_segment:
                log.roll()
            append_as_follower(log, run.data, leader_epoch=max(run.epochs[1], 0))
            written += len(run.data)
    log.flush()
    with log.lock:
        log.check_writable()
        log.guarded(lambda: quarantine.mark(loss_id, "restored", log.clock()))
    return written


def check_fit(log: PartitionLog, loss_id: int) -> tuple[Loss, int]:
    """Return the loss and the offset at which the log has to end before it. Raises as `put_back`."""
    loss = _kept(log.quarantine, loss_id)
    if loss.who == "heal":
        raise CannotUndo(f"loss {loss_id} has damaged bytes, which were replaced by intact batches")
    return loss, _end_of_fit(log, log.quarantine, loss)


def copy_out(quarantine: Quarantine, loss_id: int, log: PartitionLog) -> CopiedOut:
    """Write the consecutive intact batches of a loss to `log`, a separate empty log.

    For a loss that does not fit any more, or of which only a part is sound. Durable when it returns.
    Raises `CannotUndo` if the loss is not kept or `log` is not empty, and what an append raises.
    """
    loss = _kept(quarantine, loss_id)
    if log.segments.size or log.log_end_offset:
        raise CannotUndo(f"{log.directory} is not empty; name a directory that does not exist yet")
    records = used = 0
    for _, piece, file in _files_of(quarantine, loss):
        for scanned in sound_batches(file, 0, piece.size):
            for run in _runs(file, scanned, alone=True):
                if not used:
                    truncate_fully_and_start_at(log, run.first_offset)
                if run.first_offset >= log.log_end_offset and run.epochs[0] >= log.latest_epoch:
                    append_as_follower(log, run.data, leader_epoch=max(run.epochs[1], 0))
                    used += len(run.data)
                    records += run.next_offset - run.first_offset
    log.flush()
    return CopiedOut(records, sum(piece.size for piece in loss.pieces) - used)


def _kept(quarantine: Quarantine, loss_id: int) -> Loss:
    loss = quarantine.get(loss_id)
    if loss is None:
        raise CannotUndo(f"{quarantine.path} has no loss {loss_id}; `logstore lost` lists those there are")
    if loss.standing is Standing.NOTED:
        raise CannotUndo(f"the bytes of loss {loss_id} were not kept: {loss.not_kept}")
    # Some of it may be in its place: the cut was made in part, or it was put back in part.
    if loss.standing not in (Standing.QUARANTINED, Standing.INTENDED):
        raise CannotUndo(f"loss {loss_id} cannot be put back from quarantine: {loss.standing.value}")
    return loss


def _end_of_fit(log: PartitionLog, quarantine: Quarantine, loss: Loss) -> int:
    """Where the log has to end so that the rest of the loss follows; `CannotUndo` if it does not fit."""
    first_offset, log_end_offset = loss.first_offset, log.log_end_offset
    elsewhere = f"`logstore recover --undo {loss.id} --as NEW_DIR` writes it into a new log"
    is_gap = (
        log.log_start_offset <= first_offset < log_end_offset == loss.end_offset
        and not read_bytes(log, first_offset).records
    )
    end_offset = first_offset if is_gap else log_end_offset
    expected_offset, follows = -1, False
    for run in _runs_of(quarantine, loss, split_at=end_offset):
        if run.first_offset < end_offset:
            if not _holds(log, run):
                raise CannotUndo(
                    f"{log.directory} has other batches at offset {run.first_offset} now; {elsewhere}"
                )
        elif not follows:  # the first that is not there
            follows = end_offset in (run.first_offset, expected_offset) or log_end_offset == loss.end_offset
            if not follows:
                raise CannotUndo(
                    f"{log.directory} ends at {log_end_offset}, and loss {loss.id} begins at "
                    f"{run.first_offset}; {elsewhere}"
                )
            if 0 <= run.epochs[0] < log.latest_epoch:
                raise CannotUndo(
                    f"{log.directory} has reached leader epoch {log.latest_epoch}, and loss {loss.id} is "
                    f"of epoch {run.epochs[0]}; {elsewhere}"
                )
        expected_offset = run.next_offset
    return end_offset


def _holds(log: PartitionLog, run: _Run) -> bool:
    if run.first_offset < log.log_start_offset:
        return False
    offset, position = run.first_offset, 0
    while position < len(run.data):
        found = read_bytes(log, offset, len(run.data) - position)
        if not found.records or not run.data.startswith(found.records, position):
            return False
        offset, position = found.next_offset, position + len(found.records)
    return True


def _runs_of(quarantine: Quarantine, loss: Loss, *, split_at: int) -> Iterator[_Run]:
    """All batches of the loss, checked; none lies on both sides of offset `split_at`."""
    next_offset = leader_epoch = -1
    for base_offset, piece, file in _files_of(quarantine, loss):
        opens_segment = piece.crc is None
        floor = max(next_offset, base_offset)
        for scanned in scan(
            file, 0, piece.size, base_offset=base_offset, next_offset=floor, leader_epoch=leader_epoch
        ):
            if scanned.fault is not None:
                raise CannotUndo(
                    f"{quarantine.place_of(loss.id)} holds {scanned.fault.value} at byte {scanned.end}; "
                    f"`logstore recover --undo {loss.id} --as NEW_DIR` writes the intact batches to a new log"
                )
            for run in _runs(file, scanned, split_at=split_at):
                yield run._replace(opens_segment=opens_segment)
                opens_segment = False
                next_offset, leader_epoch = run.next_offset, max(run.epochs[1], leader_epoch)


def _files_of(quarantine: Quarantine, loss: Loss) -> Iterator[tuple[int, Piece, File]]:
    """Each piece that is in quarantine, in order, with its segment's base offset and the bytes."""
    for piece in sorted(loss.pieces):
        file = quarantine.open(loss, piece)
        if file is None:  # it is in its place
            continue
        try:
            yield int(piece.file.removesuffix(".log")), piece, file
        finally:
            file.close()


def _runs(file: File, scanned: Scanned, *, split_at: int = -1, alone: bool = False) -> Iterator[_Run]:
    """The batches of `scanned` in runs of about a megabyte; each by itself if `alone`."""
    bounds = [*scanned.positions.tolist(), scanned.end]
    bases = scanned.headers["base_offset"].tolist()
    epochs = scanned.headers["leader_epoch"].tolist()
    lasts = scanned.last_offsets.tolist()
    first = 0
    for slot in range(1, len(bases) + 1):
        is_full = slot == len(bases) or alone or bounds[slot + 1] - bounds[first] > _RUN_BYTES
        if is_full or bases[first] < split_at <= bases[slot]:
            data = file.pread(bounds[slot] - bounds[first], bounds[first])
            part = epochs[first:slot]
            yield _Run(bases[first], lasts[slot - 1] + 1, (min(part), max(part)), data, False)
            first = slot
