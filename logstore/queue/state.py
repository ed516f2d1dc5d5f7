"""Decide which message of a topic is delivered next, and which are finished, without files or clocks.

    offsets   0 ──────────── low mark ─────────────────── next offset ──────────── log end
              all finished     │  finished, or one of:       │  never delivered
                               │    leased    to a worker, until a time
                               │    delayed   until a time
                               │    ready     to be delivered again

The state is the next offset and the unfinished messages below it, each with the number of its deliveries.
Leases are for the living: when the process that owned the queue is gone, its leases are, too, and what it had
leased is ready.

What happens to a message is an event, and `apply` is the only rule for both the running queue and the
recovery of one:

    FINISHED   acknowledged, or moved to the dead letters, after the n-th delivery (0: whichever)
    RETURNED   by a worker: ready at a time
    TAKEN      leased until a time, for the n-th time
    EXTENDED   the lease of the n-th time ends later
    LOST       a power cut took the messages from an offset on; the n-th such cut, which is told once
    SOME       as TAKEN, but only so many of them as the first number says, before the offsets: the first free
               ones
    ENDED      its lease of the n-th time was over at a time, unless it was extended meanwhile: ready
    GIVEN_UP   as ENDED, of the time before: leased to the process that makes it a dead letter

    an event as a record's value
    ┌──────┬─────────┬────────────┬──────────────────────┐
    │ kind │ time_ms │ deliveries │ offsets              │
    │ int8 │ int64   │ int32      │ int64 each, at least │   big-endian
    └──────┴─────────┴────────────┴──────────────────────┘   one

The number of deliveries fences: an event about an earlier delivery than the last one changes nothing. So
several processes may append to one log of events and agree: the first TAKEN of a delivery has the message.
With SOME the second one has the next message, rather than none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from logstore.errors import InvalidRecord

_HEAD: Final = struct.Struct(">bqi")
_ONE: Final = struct.Struct(">bqiq").pack


class EventKind(IntEnum):
    """The kind of an event of a message."""

    FINISHED = 1
    RETURNED = 2
    TAKEN = 3
    EXTENDED = 4
    LOST = 5
    SOME = 6
    ENDED = 7
    GIVEN_UP = 8


_KINDS: Final = frozenset(EventKind)
GIVING_UP_MS: Final = 30_000
"""How long a process has to make a dead letter. Then another one does."""


class Event(NamedTuple):
    """Something that happened to the messages at `offsets`; see the module for what each kind uses."""

    kind: EventKind
    offsets: Sequence[int]
    time_ms: int = 0
    deliveries: int = 0

    def encode(self) -> bytes:
        """Return the value of the event's record."""
        return _HEAD.pack(self.kind, self.time_ms, self.deliveries) + np.array(self.offsets, ">i8").tobytes()


def finished(offset: int) -> bytes:
    """Return the encoded event that one message is finished."""
    return _ONE(1, 0, 0, offset)


def decode_event(value: bytes | None) -> Event:
    """Return the event in a record's value. Raises `InvalidRecord`."""
    rest = len(value or b"") - _HEAD.size
    if value is None or rest <= 0 or rest % 8 or value[0] not in _KINDS:
        raise InvalidRecord(f"not an event of a queue: {value!r:.80}")
    kind, time_ms, deliveries = _HEAD.unpack_from(value)
    if rest == 8:
        return Event(EventKind(kind), (int.from_bytes(value[-8:]),), time_ms, deliveries)
    return Event(
        EventKind(kind), np.frombuffer(value, ">i8", offset=_HEAD.size).tolist(), time_ms, deliveries
    )


class LaneStats(NamedTuple):
    """The figures of one topic, in messages; `stored_bytes` are those of its logs.

    `waiting` may be delivered now, and includes delayed messages that nobody has reached yet. `finished`
    counts acknowledged messages and dead letters since the topic exists.
    """

    waiting: int
    leased: int
    delayed: int
    finished: int
    stored_bytes: int


class Deadlines:
    """A time for each of some offsets, and which of them are due."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """Times and offsets; one that is not in `_at` with that time is a leftover."""

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, offset: int) -> bool:
        return offset in self._at

    def is_due(self, offset: int, now_ms: int) -> bool:
        """Return whether `offset` has a time, which is not after `now_ms`."""
        at_ms = self._at.get(offset)
        return at_ms is not None and at_ms <= now_ms

    def items(self) -> Iterable[tuple[int, int]]:
        """Return offsets and their times."""
        return self._at.items()

    def set(self, offset: int, at_ms: int) -> None:
        """Set or move the time of `offset`."""
        heappush(self._heap, (at_ms, offset))
        self._at[offset] = at_ms
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at_ms, offset) for offset, at_ms in self._at.items()]
            heapify(self._heap)

    def discard(self, offset: int) -> None:
        """Forget `offset`."""
        self._at.pop(offset, None)

    def first(self) -> tuple[int, int] | None:
        """Return the earliest time and its offset; None without any."""
        heap, at = self._heap, self._at
        while heap:
            at_ms, offset = heap[0]
            if at.get(offset) == at_ms:
                return heap[0]
            heappop(heap)
        return None


class QueueState:
    """The state of one topic. Offsets are those of its message log; times are epoch milliseconds.

    Ctrl-C, or an exception raised by a signal handler, may end a change between any two of its steps. The
    order of the steps is such that a message is then ready, leased or finished, maybe ready and leased, and
    never nothing of it.
    """

    __slots__ = ("_ready", "cuts", "delays", "leases", "next_offset", "unfinished")

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self.unfinished: dict[int, int] = {}
        """Unfinished messages below the next offset, and how often each was delivered. Offsets ascend."""
        self.leases = Deadlines()
        self.delays = Deadlines()
        self._ready: list[int] = []
        """A heap of the offsets that are ready; those that are finished, leased or delayed are leftovers."""
        self.cuts = 0
        """How often messages were lost."""

    @classmethod
    def restored(
        cls,
        next_offset: int,
        offsets: list[int],
        deliveries: Sequence[int],
        delays: Iterable[Sequence[int]],
    ) -> QueueState:
        """Return the state of a checkpoint; `offsets` ascend, and belong to the state from now on."""
        state = cls(next_offset)
        state.unfinished = dict(zip(offsets, deliveries, strict=True))
        state._ready = offsets
        for offset, at_ms in delays:
            state.delays.set(offset, at_ms)
        return state

    @property
    def low_mark(self) -> int:
        """The offset below which every message is finished."""
        return next(iter(self.unfinished), self.next_offset)

    def is_finished(self, offset: int) -> bool:
        return offset < self.next_offset and offset not in self.unfinished

    # --- what happened --------------------------------------------------------------------------

    def apply(self, event: Event) -> list[int]:
        """Change the state as `event` says; returns the offsets that it changed (see the module)."""
        kind, offsets, time_ms, deliveries = event
        most = len(offsets)
        if kind is EventKind.SOME:
            kind, most, offsets = EventKind.TAKEN, offsets[0], offsets[1:]
        if kind is EventKind.LOST:
            if deliveries != self.cuts + 1:
                return []
            self.cuts += 1
            self.clamp(0, offsets[0])
            return list(offsets)
        changed: list[int] = []
        for offset in offsets:
            if len(changed) == most:
                break
            known = self.unfinished.get(offset, 0 if offset >= self.next_offset else None)
            if known is None:
                continue
            match kind:
                case EventKind.FINISHED if deliveries >= known or not deliveries:
                    self.finish(offset)
                case EventKind.RETURNED if deliveries >= known:
                    self.give_back(offset, deliveries, time_ms)
                case EventKind.ENDED if deliveries == known and self.leases.is_due(offset, time_ms):
                    self.give_back(offset, deliveries, 0)
                case EventKind.GIVEN_UP if deliveries == known + 1 and self.leases.is_due(offset, time_ms):
                    self.take(offset, deliveries, time_ms + GIVING_UP_MS)
                case EventKind.TAKEN if deliveries > known:
                    self.take(offset, deliveries, time_ms)
                case EventKind.EXTENDED if deliveries == known and offset in self.leases:
                    self.leases.set(offset, time_ms)
                case _:
                    continue
            changed.append(offset)
        return changed

    def take(self, offset: int, deliveries: int, until_ms: int) -> None:
        """Lease the message until `until_ms`: its delivery number `deliveries` begins."""
        self._reach(offset)
        self.unfinished[offset] = deliveries
        self.leases.set(offset, until_ms)
        self.delays.discard(offset)
        if offset == self.next_offset:
            self.next_offset = offset + 1
        elif self._ready and self._ready[0] == offset:
            heappop(self._ready)

    def give_back(self, offset: int, deliveries: int, not_before_ms: int) -> None:
        """End its lease; the message is ready at `not_before_ms`."""
        self._reach(offset)
        self.unfinished[offset] = deliveries
        if not_before_ms > 0:
            self.delays.set(offset, not_before_ms)
        else:
            heappush(self._ready, offset)
        self.leases.discard(offset)
        self.next_offset = max(self.next_offset, offset + 1)

    def finish(self, offset: int) -> None:
        """Forget the message."""
        self._reach(offset)
        if offset == self.next_offset:
            self.next_offset = offset + 1
        else:
            self.unfinished.pop(offset, None)  # first: a lease that an interrupt leaves is no message
            self.leases.discard(offset)
            self.delays.discard(offset)

    def _reach(self, offset: int) -> None:
        """Move the next offset up to `offset`; messages in between were delivered and are ready again."""
        if offset > self.next_offset:
            between = range(self.next_offset, offset)
            self.unfinished.update(dict.fromkeys(between, 0))
            self._ready.extend(between)  # still a heap: they are above all others
            self.next_offset = offset

    # --- what is next -----------------------------------------------------------------------------

    def candidate(self, end_offset: int, now_ms: int) -> int | None:
        """Return the message to deliver next, of those below `end_offset`; None if there is none."""
        ready, delays = self._ready, self.delays
        while delays and (first := delays.first()) is not None and first[0] <= now_ms:
            heappush(ready, first[1])
            delays.discard(first[1])
        while ready:
            offset = ready[0]
            if offset in self.unfinished and offset not in self.leases and offset not in self.delays:
                return offset
            heappop(ready)
        return self.next_offset if self.next_offset < end_offset else None

    def ready_as(self, offset: int, most: int) -> list[int]:
        """Return up to `most` messages that are ready and were delivered as often as `offset`, ascending."""
        ready, deliveries = self._ready, self.unfinished[offset]
        found: list[int] = []
        nodes = [(ready[0], 0)] if ready else []  # of the heap, which stays as it is: an interrupt may come
        while nodes and len(found) < most:
            each, at = heappop(nodes)
            for child in range(2 * at + 1, min(2 * at + 3, len(ready))):
                heappush(nodes, (ready[child], child))
            is_ready = each not in self.leases and each not in self.delays
            if is_ready and self.unfinished.get(each) == deliveries and each not in found[-1:]:
                found.append(each)
        return found

    def ended(self, now_ms: int) -> dict[int, list[int]]:
        """Return the messages whose leases are over, by the number of their deliveries."""
        found: dict[int, list[int]] = {}
        if (first := self.leases.first()) is not None and first[0] <= now_ms:
            for offset, until_ms in self.leases.items():
                if until_ms <= now_ms:
                    found.setdefault(self.unfinished[offset], []).append(offset)
        return found

    def wake_ms(self) -> int | None:
        """Return when a lease or a delay ends next; None if none does."""
        return min((first[0] for each in (self.leases, self.delays) if (first := each.first())), default=None)

    def stats(self, end_offset: int, stored_bytes: int) -> LaneStats:
        """Return the figures of a topic whose messages end at `end_offset`."""
        leased, delayed, unfinished = len(self.leases), len(self.delays), len(self.unfinished)
        waiting = max(end_offset, self.next_offset) - self.next_offset + unfinished - leased - delayed
        return LaneStats(waiting, leased, delayed, self.next_offset - unfinished, stored_bytes)

    # --- recovery ---------------------------------------------------------------------------------

    def release_all(self) -> None:
        """End every lease: those that held them are gone."""
        for offset, _ in self.leases.items():
            heappush(self._ready, offset)
        self.leases = Deadlines()

    def clamp(self, start_offset: int, end_offset: int) -> None:
        """Forget messages that the log does not hold, at or past `end_offset` or below `start_offset`.

        A power cut may take messages that were written but not synced, and leave events about them. Their
        offsets will belong to other messages.
        """
        unfinished = self.unfinished
        if unfinished and (next(iter(unfinished)) < start_offset or next(reversed(unfinished)) >= end_offset):
            for offset in [each for each in unfinished if not start_offset <= each < end_offset]:
                self.finish(offset)
        self.next_offset = max(min(self.next_offset, end_offset), start_offset)
