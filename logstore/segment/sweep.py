"""Every sound batch of a `.log`, wherever it lies, and what lies between them.

    ├ batch ┼ batch ┼ ░░░░░░ ┼ batch ┼ batch ┼ 0 0 0 ┤
                      bad                      bad: no batch that could be read; behind it one may follow

A scan ends at the first fault, because what recovery may keep ends there. Whoever wants to know all that is
wrong goes on: behind a batch whose length can be followed, else at the next place where an intact batch
begins. Checksums say whether a batch is sound. Whether it is where it belongs, they do not: offset and epoch
lie outside. `misplaced` holds each batch against its neighbours and finds the odd one among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.disk.files import File
from logstore.format.batch import HEADER_BYTES, LOG_OVERHEAD
from logstore.segment.scan import HEADER_DTYPE, Fault, find_batch, holds_batch, scan_buffer

SWEEP_BYTES: Final = 4 << 20
_LENGTH: Final = Struct(">8xi")


class Bad(NamedTuple):
    """Bytes [position, end) are no sound batch. `slot`: the number of the batch that follows them."""

    position: int
    end: int
    fault: Fault
    slot: int


class Sweep(NamedTuple):
    """The sound batches of a file, in its order: a row each in both columns, n int64 and n `HEADER_DTYPE`."""

    positions: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]
    bad: list[Bad]

    @property
    def bases(self) -> npt.NDArray[np.int64]:
        bases: npt.NDArray[np.int64] = self.headers["base_offset"].astype(np.int64)
        return bases

    @property
    def lasts(self) -> npt.NDArray[np.int64]:
        lasts = self.bases
        lasts += self.headers["last_offset_delta"]
        return lasts


def sweep(file: File, size: int, position: int = 0) -> Sweep:
    """Walk bytes [position, size) of `file`, past every fault. Memory: the headers. Raises `OSError`."""
    positions: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    headers: list[bytes] = []
    bad: list[Bad] = []
    slot = 0
    window = SWEEP_BYTES
    while position < size:
        data = file.pread(min(window, size - position), position)
        if not data:  # cut by its owner meanwhile
            break
        found = scan_buffer(data, len(data))
        positions.append(found.positions + position)
        headers.append(found.headers.tobytes())
        slot += len(found.headers)
        position += found.end
        fault, left = found.fault, len(data) - found.end
        if fault is Fault.TORN:
            if found.end and position + left < size:
                window = SWEEP_BYTES
                continue  # torn by the window
            whole = LOG_OVERHEAD + _LENGTH.unpack_from(data, found.end)[0] if left >= HEADER_BYTES else 0
            if left < whole <= size - position:
                window = whole
                continue
        window = SWEEP_BYTES
        if fault is not None:
            end = _next_sound(file, position, size)
            bad.append(Bad(position, end, fault, slot))
            position = end
    table = np.frombuffer(b"".join(headers), HEADER_DTYPE)
    return Sweep(np.concatenate(positions), table, bad)


def _next_sound(file: File, position: int, size: int) -> int:
    """Where the next intact batch begins behind what is none at `position`; `size` if there is none."""
    header = file.pread(HEADER_BYTES, position)
    if len(header) == HEADER_BYTES:
        end: int = position + LOG_OVERHEAD + _LENGTH.unpack_from(header)[0]
        # By its length first: a record's value may be a batch too.
        if end == size or (position < end < size and holds_batch(file, end, size)):
            return end
    found = find_batch(file, position, size)
    return size if found is None else found


class Misplaced(NamedTuple):
    """Batch number `slot` is not where it belongs; if not `is_certain`, it may be the one before it."""

    slot: int
    fault: Fault
    is_certain: bool


def misplaced(headers: npt.NDArray[np.void]) -> Iterator[Misplaced]:
    """Which of these batches are not where they belong: `OFFSETS` or `EPOCHS`.

    Offsets must rise, epochs must not fall (-1: unknown). Of two neighbours that contradict each other the
    odd one is who does not fit those around them either.
    """
    bases = headers["base_offset"].astype(np.int64)
    lasts = bases + headers["last_offset_delta"]
    epochs = headers["leader_epoch"].astype(np.int64)
    known = np.maximum.accumulate(epochs)
    rises = (bases[1:] > lasts[:-1]) & ((epochs[1:] == -1) | (epochs[1:] >= known[:-1]))
    if (lasts >= bases).all() and rises.all():
        return
    first, last, epoch = bases.tolist(), lasts.tolist(), epochs.tolist()

    def fault(before: int, after: int) -> Fault | None:
        if first[after] <= last[before]:
            return Fault.OFFSETS
        return Fault.EPOCHS if -1 < epoch[after] < epoch[before] else None

    kept: list[int] = []
    for slot in range(len(first)):
        if last[slot] < first[slot]:
            yield Misplaced(slot, Fault.OFFSETS, True)
            continue
        found = fault(kept[-1], slot) if kept else None
        if found is None:
            kept.append(slot)
            continue
        fits_without_last = len(kept) < 2 or fault(kept[-2], slot) is None
        next_follows_last = slot + 1 == len(first) or fault(kept[-1], slot + 1) is None
        if not fits_without_last:
            yield Misplaced(slot, found, True)
        elif next_follows_last:
            yield Misplaced(slot, found, False)
            kept.append(slot)
        else:
            yield Misplaced(kept.pop(), found, True)
            kept.append(slot)
