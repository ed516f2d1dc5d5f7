"""Guards that prove a coordinator knows a transaction before its first batch is appended.

    start(producer)      returns a guard for the producer; then its coordinator is asked
    append with it       accepted; the guard is spent
    append without it    refused: the batch may be late, and its transaction already over

A batch that is delayed in the network until after its transaction's marker would otherwise open a
transaction that never ends, and block committed readers for ever. Guards are kept in the leader's memory:
after a restart the coordinator is asked again. The setting is `transaction.partition.verification.enable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class VerificationGuard(NamedTuple):
    """Returned by `maybe_start_verification`, and passed to the append."""

    producer_id: int
    number: int


@dataclass(slots=True)
class _Verification:
    guard: VerificationGuard
    epoch: int
    lowest_sequence: int
    since_ms: int


class VerificationGuards:
    """The unspent guards of one log, at most one per producer."""

    def __init__(self) -> None:
        self._known: dict[int, _Verification] = {}
        self._given = 0

    def __len__(self) -> int:
        return len(self._known)

    def start(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> VerificationGuard:
        """Return the producer's guard, the same one until it is spent.

        Of the batches that request it, the one with the lowest sequence has to come first; a higher epoch
        starts anew.
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
        """Return whether `guard` is this producer's and unspent."""
        known = self._known.get(producer_id)
        return known is not None and known.guard == guard

    def lowest_sequence(self, producer_id: int) -> int | None:
        """Return the sequence that has to come first; None if there is no guard."""
        known = self._known.get(producer_id)
        return None if known is None else known.lowest_sequence

    def spend(self, producer_id: int) -> None:
        """Remove the producer's guard: its transaction is in the log, or over."""
        self._known.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove guards that were never used."""
        self._known = {
            producer_id: known
            for producer_id, known in self._known.items()
            if now_ms - known.since_ms < expiration_ms
        }
