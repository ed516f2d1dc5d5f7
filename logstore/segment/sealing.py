"""The seal of one segment: prepared while it grows, made when the log moves on, removed before a change.

A seal needs every byte of the `.log`. Most are read in advance, after a flush: otherwise a roll would read
the whole segment while its log takes no appends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logstore.disk.copying import make_own
from logstore.disk.files import remove_if_exists
from logstore.disk.marks import mark
from logstore.format.crc import crc32c
from logstore.segment.scan import Fault, scan
from logstore.segment.seal import BLOCK_BYTES, SEAL_SUFFIX, Seal, digest, make_seal, write_seal

if TYPE_CHECKING:
    from logstore.segment.segment import Segment


class Sealing:
    """Makes and removes a segment's seal, which `segment.seal` holds. Its methods raise `OSError`."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._cuts = 0
        self._blocks: list[int] = []
        """The digests known so far, of whole blocks."""
        self._checked = 0, segment.base_offset, -1
        """Where the check of old batches goes on: byte, next offset, leader epoch."""
        self._lock = threading.Lock()
        self.is_proven = False
        """Whether this process made the seal, or has compared the whole segment with it."""
        self.has_bad_bytes = False
        """Whether a cut has left bad bytes at its end: then it gets no seal."""

    # --- in advance -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Digest the synced blocks, and check the batches in them that an earlier process wrote.

        Any thread may do it, also while the segment is appended to or cut.
        """
        segment = self._segment
        with segment.lock:
            size, cuts = segment.synced_bytes, self._cuts
        first = len(self._blocks)
        whole = size - size % BLOCK_BYTES
        for number, crc in enumerate(digest(segment.log_file, whole, first=first), first):
            with self._lock:
                if self._cuts != cuts or len(self._blocks) != number:
                    return  # the bytes changed meanwhile, or another thread has done it
                self._blocks.append(crc)
        # After their digest: what changes behind this check does not match the seal.
        self._check_old(min(segment.appended_from, len(self._blocks) * BLOCK_BYTES))

    def _check_old(self, end: int) -> Fault | None:
        fault = None
        segment, (position, next_offset, epoch) = self._segment, self._checked
        for found in scan(
            segment.log_file,
            position,
            end,
            base_offset=segment.base_offset,
            next_offset=next_offset,
            leader_epoch=epoch,
        ):
            fault = found.fault
            if len(found.headers):
                epoch = max(epoch, int(found.headers["leader_epoch"].max()))
                self._checked = found.end, int(found.last_offsets[-1]) + 1, epoch
        return fault

    def cut(self, position: int) -> None:
        """Forget the bytes from `position` on: they are about to be cut."""
        with self._lock:
            self._cuts += 1
            del self._blocks[position // BLOCK_BYTES :]

    # --- when the segment has its end -------------------------------------------------------------

    def is_sound_where_found(self) -> bool:
        """Return whether the batches are sound that were there before this process appended any, or cut it.

        A seal of bad bytes would vouch for them.
        """
        is_sound = not self.has_bad_bytes and self._check_old(self._segment.appended_from) is None
        if not is_sound:
            mark("segment: one with bad bytes gets no seal")
        return is_sound

    def make(self, end_offset: int, successor: int) -> None:
        """Write the seal: the segment, which is synced, ends at `end_offset`; `successor` is the next base.

        Synced but for its name, which is durable with the directory. Also raises `CorruptIndex`.
        """
        segment = self._segment
        with self._lock:
            known = self._blocks[: segment.size // BLOCK_BYTES]
        seal = make_seal(
            segment.log_file,
            segment.size,
            base_offset=segment.base_offset,
            end_offset=end_offset,
            successor=successor,
            known=known,
            # As they were written, not as the disk has them now: they may have rotted since.
            aborts_crc=crc32c(segment.aborts.index.encode()),
            offsets_crc=segment.indexes.offsets.crc,
            times_crc=segment.indexes.times.crc,
        )
        self._write(seal)
        self.is_proven = True

    def follow_with(self, successor: int) -> None:
        """Name another successor in the seal, if there is a seal."""
        segment = self._segment
        if segment.seal is not None and segment.seal.successor != successor:
            self.renew(segment.seal._replace(successor=successor))

    def renew(self, seal: Seal) -> None:
        """Write `seal` in the place of the one that the segment has."""
        make_own(self._segment.disk, self._segment.path(SEAL_SUFFIX))
        self._write(seal)

    def _write(self, seal: Seal) -> None:
        # Noted first: a half-written seal must also be removed before a truncation.
        self._segment.seal = seal
        write_seal(self._segment.disk, self._segment.path(SEAL_SUFFIX), seal)

    def renew_lock(self) -> None:
        """Make a lock that no thread holds, in a forked child."""
        self._lock = threading.Lock()

    def remove(self) -> None:
        """Remove the seal, durably: the segment is going to change."""
        segment = self._segment
        if segment.seal is not None:
            remove_if_exists(segment.disk, segment.path(SEAL_SUFFIX))
            segment.disk.sync_dir(segment.directory)
            segment.seal = None
