"""Batches of idempotent producers with a retriable refusal, and the batches that follow them.

A producer sends several batches before the first is answered. If one is refused because the disk is full or
the ISR is too small, those behind it cannot be appended either: their sequences leave a gap. A producer takes
`OUT_OF_ORDER_SEQUENCE_NUMBER (45)` for records lost by the broker. It then raises its epoch and writes again
what it does not know to be written. So everything behind a refused batch gets the same retriable error, until
the refused batch arrives again.
"""

from __future__ import annotations

from dataclasses import dataclass

from logstore.disk.errors import EngineError
from logstore.disk.files import Buffer
from logstore.errors import CorruptBatch
from logstore.format.batch import Batch
from logstore.format.record import MAX_INT, subtract_sequence
from logstore.log.producer_state import ProducerEntry, ProducerState

REMEMBERED_MS = 60_000
"""A producer that has not repeated its batch by then has given it up; those behind it are out of order."""
MOST_PRODUCERS = 10_000


@dataclass(frozen=True, slots=True)
class _Refused:
    producer_epoch: int
    sequence: int
    error: EngineError
    at_ms: int


class Refusals:
    """The refused batches of one leader, at most one for each producer: the first of those in flight."""

    def __init__(self) -> None:
        self.by_producer: dict[int, _Refused] = {}

    def clear(self) -> None:
        """Forget all refused batches, at the start or end of a leadership."""
        self.by_producer.clear()

    def note(self, data: Buffer, error: EngineError, now_ms: int, producers: ProducerState) -> None:
        """Remember that the batch in `data` was refused with `error`, a retriable one.

        A batch that the log holds, by its `producers`, is a repetition: what follows it leaves no gap.
        """
        batch = _sequenced(data)
        if batch is None or _is_repeated(batch, producers.get(batch.producer_id)):
            return
        known = self.by_producer.pop(batch.producer_id, None)
        sequence = batch.base_sequence
        if known is not None and known.producer_epoch == batch.producer_epoch:
            sequence = known.sequence if _follows(sequence, known.sequence) else sequence
        if len(self.by_producer) >= MOST_PRODUCERS:
            del self.by_producer[next(iter(self.by_producer))]
        self.by_producer[batch.producer_id] = _Refused(batch.producer_epoch, sequence, error, now_ms)

    def check(self, data: Buffer, now_ms: int) -> None:
        """Raise the error of the refused batch if the one in `data` follows it.

        The refused batch itself is forgotten here: if it is refused again, it is noted again.
        """
        batch = _sequenced(data)
        known = self.by_producer.get(batch.producer_id) if batch is not None else None
        if batch is None or known is None or batch.producer_epoch < known.producer_epoch:
            return
        is_over = batch.producer_epoch > known.producer_epoch or now_ms - known.at_ms > REMEMBERED_MS
        if is_over or batch.base_sequence == known.sequence:
            del self.by_producer[batch.producer_id]
        elif _follows(batch.base_sequence, known.sequence):
            raise type(known.error)(
                f"producer {batch.producer_id}: sequence {batch.base_sequence} follows {known.sequence}, "
                f"which was refused ({known.error}); send both again, in this order"
            )


def _sequenced(data: Buffer) -> Batch | None:
    """Return the header of a producer's batch; None without a producer, or if it cannot be read."""
    try:
        batch = Batch(data)
    except CorruptBatch:
        return None  # the append says what is wrong with it
    return batch if batch.has_producer_id and batch.base_sequence >= 0 else None


def _is_repeated(batch: Batch, producer: ProducerEntry | None) -> bool:
    return (
        producer is not None
        and producer.epoch == batch.producer_epoch
        and producer.last_sequence >= 0
        and not _follows(batch.base_sequence, producer.last_sequence)
    )


def _follows(sequence: int, before: int) -> bool:
    """Whether `sequence` comes after `before`; sequences wrap."""
    return 0 < subtract_sequence(sequence, before) <= MAX_INT // 2
