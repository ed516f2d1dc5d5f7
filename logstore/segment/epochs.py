"""The leader epochs of one log: the first offset of each.

Both columns strictly increase. Replicas ask each other one question before they truncate: what is your end
offset of epoch N? (KIP-101, KIP-279, KIP-320). The log mirrors the map in `leader-epoch-checkpoint`; a lost
or late file is repaired at both ends when the log is loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from logstore.disk.marks import mark

UNDEFINED = -1


class EpochEntry(NamedTuple):
    """The first record of leader epoch `epoch` is at `start_offset`."""

    epoch: int
    start_offset: int


def is_of_its_epoch(base_offset: int, leader_epoch: int, history: Sequence[EpochEntry]) -> bool:
    """Return whether a batch has the epoch of its offset in `history`, ascending; True if one is unknown."""
    slot = bisect_right(history, base_offset, key=lambda entry: entry.start_offset) - 1
    return slot < 0 or leader_epoch < 0 or history[slot].epoch == leader_epoch


class EpochEndOffset(NamedTuple):
    """`epoch` ends at `end_offset` (exclusive); both are -1 if unknown."""

    epoch: int
    end_offset: int


UNDEFINED_END = EpochEndOffset(UNDEFINED, UNDEFINED)


class LeaderEpochCache:
    """The map. Methods that change it return True if the entries changed and must be written."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochEntry | tuple[int, int]] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    def copy(self) -> LeaderEpochCache:
        """Return a map that changes apart from this one."""
        made = LeaderEpochCache()
        made._entries = self._entries.copy()
        return made

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self._entries[-1].epoch if self._entries else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Set the start of `epoch`; older entries that contradict it are removed."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}: both must not be negative")
        entries = self._entries
        if entries:
            last = entries[-1]
            if last.epoch == epoch and last.start_offset <= start_offset:
                return False
            while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
                mark("epochs: one that wrote nothing gives way")
                entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Return the end of the largest epoch at or below `epoch` in this log.

        The answer names that epoch. With gaps in the history it is older than `epoch`, and the follower
        has to search further back in its own (KIP-279).
        """
        entries = self._entries
        if epoch == UNDEFINED or not entries or epoch > entries[-1].epoch:
            return UNDEFINED_END
        if epoch == entries[-1].epoch:
            return EpochEndOffset(epoch, log_end_offset)
        slot = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if slot == 0:
            mark("epochs: asked for one from before the first")
            return EpochEndOffset(epoch, entries[0].start_offset)
        if entries[slot - 1].epoch != epoch:
            mark("epochs: asked for one in a gap, an older one is named")
        return EpochEndOffset(entries[slot - 1].epoch, entries[slot].start_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the epoch of `offset`; -1 if it lies before the first known one."""
        slot = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[slot - 1].epoch if slot else UNDEFINED

    def truncate_from_end(self, end_offset: int, *, spare_first: bool = False) -> bool:
        """Remove the epochs that start at or past `end_offset`; none if it is negative.

        With `spare_first` the first epoch stays if it starts at `end_offset`. If the log start has reached
        the end, records of that epoch are still in the files below, and no older epoch may be written
        behind them.
        """
        before = len(self._entries)
        if end_offset >= 0:
            while self._entries and self._entries[-1].start_offset >= end_offset:
                if spare_first and len(self._entries) == 1 and self._entries[0].start_offset == end_offset:
                    break
                self._entries.pop()
        return len(self._entries) != before

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove the epochs that end before `start_offset`; the one that holds it now starts there."""
        slot = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if (
            start_offset < 0
            or slot == 0
            or (self._entries[slot - 1].start_offset == start_offset and slot == 1)
        ):
            return False
        kept = EpochEntry(self._entries[slot - 1].epoch, start_offset)
        self._entries[:slot] = [kept]
        return True

    def correct(self, batches: Sequence[tuple[int, int]], end_offset: int | None) -> bool:
        """Record the epoch and base offset of consecutive batches; other batches keep their epochs.

        `end_offset` is that of the last one; None if no batch follows.
        """
        before = self.entries
        first = batches[0][1]
        behind = [] if end_offset is None else [EpochEntry(self.epoch_for_offset(end_offset), end_offset)]
        behind += [entry for entry in before if end_offset is not None and entry.start_offset > end_offset]
        self._entries = [entry for entry in before if entry.start_offset < first]
        for epoch, base_offset in batches:
            if epoch >= 0 and epoch != self.latest_epoch:
                self.assign(epoch, base_offset)
        for entry in behind:
            if entry.epoch > self.latest_epoch:
                self.assign(*entry)
        return self.entries != before

    def clear(self) -> bool:
        """Remove all entries."""
        had_entries = bool(self._entries)
        self._entries.clear()
        return had_entries
