"""Proof that a coordinator knows of a transaction, before the first batch of it is let in.

    start(producer)      a guard for the producer, given out while its coordinator is asked
    append with it       let in; the guard is spent
    append without it    refused: the batch may be late, and its transaction over already

A batch that was delayed in the network until after its transaction's marker would otherwise open a
transaction that nobody ever ends, and hold committed readers back for good. Only a leader's memory: after
a restart the coordinator is asked again. The setting is `transaction.partition.verification.enable`.
Sources: log-format 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class VerificationGuard(NamedTuple):
    """Given out by `maybe_start_verification`, and handed in with the append that it is for."""

    producer_id: int
    number: int


@dataclass(slots=True)
class _Verification:
    guard: VerificationGuard
    epoch: int
    lowest_sequence: int
    since_ms: int


class VerificationGuards:
    """The guards of one log that are not spent yet, at most one a producer."""

    def __init__(self) -> None:
        self._known: dict[int, _Verification] = {}
        self._given = 0

    def __len__(self) -> int:
        return len(self._known)

    def start(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> VerificationGuard:
        """The producer's guard, the same one until it is spent.

        Of its batches that ask, the one with the lowest sequence has to come first; a higher epoch
        begins anew.
        """
        known = self._known.get(producer_id)
        if known is None:
            self._given += 1
            guard = VerificationGuard(producer_id, self._given)
            known = self._known[producer_id] = _Verification(guard, epoch, sequence, now_ms)
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known.guard

    def verifies(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Whether `guard` is the one that was given out for this producer and is not spent."""
        known = self._known.get(producer_id)
        return known is not None and known.guard == guard

    def lowest_sequence(self, producer_id: int) -> int | None:
        """The sequence that may come first; None if nobody asked for this producer."""
        known = self._known.get(producer_id)
        return None if known is None else known.lowest_sequence

    def spend(self, producer_id: int) -> None:
        """Forget the producer's guard: its transaction is in the log, or over."""
        self._known.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget guards that were never used."""
        self._known = {
            producer_id: known
            for producer_id, known in self._known.items()
            if now_ms - known.since_ms < expiration_ms
        }
