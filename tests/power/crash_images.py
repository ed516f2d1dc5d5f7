"""The images that a power cut may leave of a disk, from the writes and flushes that reached it. Pure.

A write is durable once a flush that came after it has ended. Of the later ones, each sector may have reached
the platter or not: a disk with a write cache keeps no order. A sector of today's disks has 4 KiB and is
written whole or not at all; ext4 does not survive a superblock torn inside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple, TypeAlias

SECTOR: Final = 4096


class Write(NamedTuple):
    """Bytes at an offset of the device."""

    offset: int
    data: bytes


class Flush(NamedTuple):
    """The end of a flush: what was written before is durable."""


FLUSH: Final = Flush()
Change: TypeAlias = Write | Flush


def durable_and_pending(changes: Sequence[Change]) -> tuple[list[Write], list[Write]]:
    """Return the writes that a flush made durable, and those after the last flush."""
    last = max((number for number, each in enumerate(changes) if isinstance(each, Flush)), default=-1)
    writes = [(number, each) for number, each in enumerate(changes) if isinstance(each, Write)]
    durable = [each for number, each in writes if number < last]
    return durable, [each for number, each in writes if number > last]


def after_a_power_cut(changes: Iterable[Change], random: Random) -> list[Change]:
    """Return the writes of one image that a power cut may leave now."""
    durable, pending = durable_and_pending(list(changes))
    return [*durable, *random.choice(_FATES)(pending, random), FLUSH]


def _none(_pending: Sequence[Write], _random: Random) -> list[Write]:
    return []


def _first(pending: Sequence[Write], random: Random) -> list[Write]:
    """In order: what a disk without a cache leaves, the last one torn."""
    kept = list(pending[: random.randint(0, len(pending))])
    return kept[:-1] + _torn(kept[-1:], random)


def _some(pending: Sequence[Write], random: Random) -> list[Write]:
    """Whole writes, in no order."""
    return [each for each in pending if random.random() < 0.5]


def _all_but_one(pending: Sequence[Write], random: Random) -> list[Write]:
    missing = random.randrange(len(pending) or 1)
    return [each for number, each in enumerate(pending) if number != missing]


def _torn(pending: Sequence[Write], random: Random) -> list[Write]:
    """Each sector by itself."""
    return [part for each in pending for part in _sectors(each) if random.random() < 0.5]


def _sectors(write: Write) -> Iterator[Write]:
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        yield Write(start, write.data[start - write.offset : stop - write.offset])
        start = stop


_FATES: Final[tuple[Callable[[Sequence[Write], Random], list[Write]], ...]] = (
    _none,
    _first,
    _some,
    _all_but_one,
    _torn,
)
