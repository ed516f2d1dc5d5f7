"""The producer snapshots of one log: find, take and remove them.

    00000000000000368769.snapshot     the producers' state below offset 368769

Derived data with a checksum, written without a sync. A snapshot that a crash tore is deleted when it is
read; then the log is replayed from an older one, or from its start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from logstore.config import MAX_LONG
from logstore.disk.files import TEMPORARY_SUFFIX, Disk, read_small_file, remove_if_exists
from logstore.errors import CorruptSnapshot
from logstore.format.batch import CONTROL, LOG_OVERHEAD, TRANSACTIONAL, Batch
from logstore.format.record import MAX_INT
from logstore.lazily import np
from logstore.log.producer_state import (
    REMEMBERED_BATCHES,
    CompletedTransaction,
    ProducerState,
    decode_snapshot,
)
from logstore.segment.damage import Bad, misplaced, swept
from logstore.segment.segment import SNAPSHOT_SUFFIX, Segment, file_name

if TYPE_CHECKING:
    import numpy.typing as npt


class ProducerSnapshots:
    """The snapshot files in one log's directory; `offsets` ascend."""

    def __init__(self, disk: Disk, directory: str, offsets: Iterable[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = sorted(offsets)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def take(self, state: ProducerState, offset: int) -> None:
        """Write the state at `offset`, unless a snapshot of that offset or later exists. Raises `OSError`."""
        if not self.offsets or self.offsets[-1] < offset:
            self.put(state, offset)

    def put(self, state: ProducerState, offset: int) -> None:
        """Write the state at `offset`, over an older file if there is one. Raises `OSError`."""
        # A fresh file each time: bytes left over from a longer one would make it corrupt.
        temporary = self._path(offset) + TEMPORARY_SUFFIX
        file = self._disk.open(temporary, create=True, write=True)
        try:
            file.truncate(0)
            file.pwrite(state.encode_snapshot(), 0)
        finally:
            file.close()
        self._disk.rename(temporary, self._path(offset))
        slot = bisect_left(self.offsets, offset)
        if self.offsets[slot : slot + 1] != [offset]:
            self.offsets.insert(slot, offset)

    def load(
        self, offset: int, *, now_ms: int | None = None, expiration_ms: int = MAX_INT
    ) -> ProducerState | None:
        """Return the state in a snapshot; None if there is no such file. Raises `CorruptSnapshot`, `OSError`.

        With `now_ms`, producers that have been idle for `expiration_ms` are left out.
        """
        data = read_small_file(self._disk, self._path(offset))
        if data is None:
            return None
        return ProducerState.load(
            decode_snapshot(data), end_offset=offset, now_ms=now_ms, expiration_ms=expiration_ms
        )

    def newest(
        self, *, at_most: int, above: int, now_ms: int | None = None, expiration_ms: int = MAX_INT
    ) -> ProducerState:
        """Return the newest sound snapshot in (above, at_most]; an empty state at `above` if there is none.

        Corrupt snapshots are deleted. With `now_ms`, producers that have been idle for `expiration_ms` are
        left out.
        """
        for offset in reversed(list(self.offsets)):
            if not above < offset <= at_most:
                continue
            try:
                state = self.load(offset, now_ms=now_ms, expiration_ms=expiration_ms)
                if state is not None:
                    return state
            except CorruptSnapshot:
                self._remove(offset)
        return ProducerState(end_offset=above)

    def remove_strays(self, bases: list[int], log_start_offset: int, log_end_offset: int) -> list[int]:
        """Keep snapshots at segments' bases and the newest at or past the last; return the removed ones."""
        newest = max((offset for offset in self.offsets if offset <= log_end_offset), default=-1)
        kept = {base for base in bases if base > log_start_offset}
        if newest >= bases[-1]:
            kept.add(newest)
        strays = [offset for offset in self.offsets if offset not in kept or offset > log_end_offset]
        for offset in strays:
            self._remove(offset)
        return strays

    def remove_corrupt(self) -> list[int]:
        """Delete the snapshots that cannot be read, and return them."""
        corrupt = []
        for offset in list(self.offsets):
            try:
                self.load(offset)
            except CorruptSnapshot:
                self._remove(offset)
                corrupt.append(offset)
        return corrupt

    def remove_above(self, offset: int) -> bool:
        """Delete the snapshots past `offset`, the end after a truncation; return whether there were any."""
        return self.retain(above=-1, at_most=offset)

    def retain(self, *, above: int, at_most: int) -> bool:
        """Delete the snapshots outside (above, at_most], the log's bounds; return whether there were any."""
        stale = [known for known in self.offsets if not above < known <= at_most]
        for each in stale:
            self._remove(each)
        return bool(stale)

    def remove(self, offset: int) -> None:
        """Delete the snapshot at `offset`, if there is one: its segment was deleted."""
        if offset in self.offsets:
            self._remove(offset)

    def _remove(self, offset: int) -> None:
        remove_if_exists(self._disk, self._path(offset))
        self.offsets.remove(offset)


def replay_into(
    state: ProducerState,
    segment: Segment,
    on_completed: Callable[[CompletedTransaction], None] = lambda _: None,
    *,
    end_offset: int = MAX_LONG,
    on_bad: Callable[[Bad], None] = lambda _: None,
) -> None:
    """Replay the batches from `state.end_offset` to `end_offset`; only those that count are read.

    `on_bad` receives the stretches that hold no sound batch.
    """
    # Past damage, too: the batches behind it count.
    for scanned in swept(segment.log_file, segment.size):
        headers, lasts = scanned.headers, scanned.lasts
        for bad in scanned.bad:
            on_bad(bad)
        is_sound = (lasts >= scanned.bases) & (scanned.bases < end_offset)
        for wrong in misplaced(headers):
            is_sound[wrong.slot] = False
        wanted = is_sound & (headers["producer_id"] >= 0) & (scanned.bases >= state.end_offset)
        wanted[_replaced(headers, wanted)] = False
        sizes, positions = headers["batch_length"][wanted] + LOG_OVERHEAD, scanned.positions[wanted]
        for size, position in zip(sizes.tolist(), positions.tolist(), strict=True):
            completed = state.replay(Batch(segment.log_file.pread(size, position)))
            if completed is not None:
                on_completed(completed)
        if is_sound.any():
            state.end_offset = max(state.end_offset, int(lasts[is_sound][-1]) + 1)


def _replaced(headers: npt.NDArray[np.void], wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the batches that leave no trace in the state: as many of their producer follow as it remembers.

    The first one of a producer stays, which gives it its place, and those that begin or end a transaction.
    """
    of_producers = np.flatnonzero(wanted)
    order = of_producers[np.argsort(headers["producer_id"][of_producers], kind="stable")]
    ids, kinds = headers["producer_id"][order], headers["attributes"][order] & (TRANSACTIONAL | CONTROL)
    goes_on = kinds == 0
    goes_on[1:] |= (kinds[1:] == TRANSACTIONAL) & (kinds[:-1] == TRANSACTIONAL) & (ids[1:] == ids[:-1])
    data, last = np.flatnonzero(kinds & CONTROL == 0), REMEMBERED_BATCHES
    of = ids[data]
    inner = data[1:-last][(of[1:-last] == of[: -last - 1]) & (of[1:-last] == of[1 + last :])]
    found: npt.NDArray[np.int64] = order[inner[goes_on[inner]]]
    return found
