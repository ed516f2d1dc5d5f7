"""Checks of one replica's files and memory: what a restart found, epochs, producers, sizes at rest.

I1–I7  what a restart finds on the disk it was left    C16  epochs and producers agree with the log
C17    nothing grows without bound
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from logstore.log.producer_state import ProducerEntry, ProducerStateConfig
from logstore.segment.epochs import EpochEntry
from logstore.testing.histories import NO_PRODUCER
from logstore.testing.stored import Stored, Violation

_FORGOTTEN_AFTER_MS = ProducerStateConfig().producer_id_expiration_ms


@dataclass(frozen=True, slots=True)
class Remains:
    """A log at the moment when its process or its machine died.

    `durable_end`: everything below it was synced. `cache_survived`: only the process died.
    `disk_died`: disk calls failed before that; a failed call may still have moved the log start.
    """

    name: str
    batches: tuple[Stored, ...]
    log_start: int
    durable_end: int
    cache_survived: bool
    disk_died: bool = False
    log_end_then: int = -1
    """Past the last batch after a truncation inside of one, below the log start of the leader."""

    @property
    def log_end(self) -> int:
        return self.batches[-1].end if self.batches else self.log_start


def check_recovery(
    before: Remains,
    after: Sequence[Stored] | None,
    *,
    log_start: int,
    log_end: int,
    epochs: Iterable[EpochEntry],
) -> None:
    """Compare what a restart found (`after`; None if the log did not open) with what was left (I1–I7)."""

    def fail(invariant: str, message: str) -> None:
        raise Violation(invariant, f"{before.name}: {message}")

    if after is None:
        if before.durable_end > before.log_start or before.cache_survived:
            fail("I1", "the log could not be opened")
        return
    end = after[-1].end if after else log_start
    if log_end == before.log_end_then and list(after) == list(before.batches):
        end = log_end
    if log_end != end:
        fail("I7", f"the log ends at {log_end}, its last batch at {end}")
    if log_start != before.log_start and not (before.disk_died and before.log_start < log_start <= end):
        fail("I6", f"the log started at {before.log_start}, now at {log_start}")
    held = [batch for batch in before.batches if batch.end > log_start]
    if end < before.durable_end:
        fail("I7", f"synced up to {before.durable_end}, recovered up to {end}")
    if before.cache_survived and end != before.log_end:
        fail("I7", f"only the process died, but the log ended at {before.log_end} and ends at {end} now")
    for slot, batch in enumerate(after):
        if slot >= len(held):
            fail("I3", f"offset {batch.base} was never written")
        if batch != held[slot]:
            invariant = "I2" if held[slot].base < before.durable_end else "I3"
            fail(invariant, f"offset {held[slot].base} differs from what was written")
    for one, following in pairwise(after):
        if one.end != following.base:
            fail("I4", f"offset {following.base} follows {one.end - 1}")
    check_epochs(before.name, after, epochs)


def check_producers(
    name: str, batches: Sequence[Stored], producers: Iterable[ProducerEntry], now_ms: int
) -> None:
    """Compare the producer state with the batches of each producer that has any left (C16, I9).

    A producer may be missing if its last batch is older than `producer.id.expiration.ms`.
    """
    remembered = {entry.producer_id: entry for entry in producers}
    last = {batch.numbers[0]: batch for batch in batches}
    for producer_id, batch in last.items():
        if producer_id == NO_PRODUCER:
            continue
        _, epoch, sequence = batch.numbers
        entry = remembered.get(producer_id)
        newest = entry.batches[-1] if entry is not None and entry.batches else None
        found = (entry.epoch, newest.last_sequence, newest.last_offset) if entry and newest else None
        wanted = epoch, sequence + batch.end - 1 - batch.base, batch.end - 1
        if found is None and now_ms - batch.max_timestamp >= _FORGOTTEN_AFTER_MS:
            continue
        if found != wanted:
            raise Violation(
                "C16",
                f"{name}: producer {producer_id}: the log gives (epoch, sequence, offset) {wanted}, "
                f"the producer state {found}",
            )


def check_bounds(name: str, sizes: Mapping[str, int], limits: Mapping[str, int]) -> None:
    """Check that an idle cluster keeps no state for requests without a waiting sender (C17)."""
    for what, size in sizes.items():
        if size > limits[what]:
            raise Violation("C17", f"{name}: {size} {what}, at most {limits[what]} expected")


def check_epochs(name: str, batches: Sequence[Stored], epochs: Iterable[EpochEntry]) -> None:
    """Epochs never decrease, and the epoch checkpoint agrees with every batch header (I5)."""
    end = batches[-1].end if batches else 0
    entries = [entry for entry in epochs if entry.start_offset < end]
    transitions = [
        EpochEntry(batch.epoch, batch.base)
        for slot, batch in enumerate(batches)
        if slot == 0 or batch.epoch != batches[slot - 1].epoch
    ]
    for one, following in pairwise(transitions):
        if following.epoch < one.epoch:
            raise Violation("I5", f"{name}: epoch {following.epoch} after {one.epoch}")
    if entries and batches and batches[0].base < entries[0].start_offset < batches[0].end:
        # Records were deleted up to the middle of a batch: the log starts there, and so does the epoch.
        transitions[0] = EpochEntry(transitions[0].epoch, entries[0].start_offset)
    if [tuple(entry) for entry in entries] != [tuple(entry) for entry in transitions]:
        raise Violation("I5", f"{name}: the epoch checkpoint has {entries}, the batches have {transitions}")
