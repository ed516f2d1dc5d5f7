"""The log of the leader that the partition follows, and the batches that plans write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logstore.format.batch import Batch, encode_batch, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from tests.judge.sides import Operation


@dataclass
class OtherLog:
    """The log of the leader that the partition follows."""

    batches: list[Batch]
    start: int
    high_watermark: int
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Each with its first offset."""
    is_broken: bool = False
    """Whether what was said of it is not true."""

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.batches[-1].next_offset if self.batches else self.start

    def begin(self, epoch: int) -> None:
        """Write in this epoch from now on."""
        self.epochs = [each for each in self.epochs if each[1] < self.end]
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, self.end))

    def append(self, drawn: Operation, producer: int, now_ms: int) -> None:
        """Append a batch; `producer` is the id of its producer, if it is part of a transaction."""
        place = {"base_offset": self.end, "leader_epoch": self.epochs[-1][0]}
        ended = {each.producer_id for each in self.batches if each.is_control}
        still_open = [each.producer_id for each in self.batches if each.producer_id not in {-1, *ended}]
        if "marker" in drawn and still_open:
            chosen = still_open[int(drawn["marker"]["share"] * len(still_open))]
            data = marker_of(chosen, drawn["marker"]["is_commit"], now_ms, **place)
        else:
            data = batch_of(drawn["count"], producer if drawn["is_transactional"] else None, now_ms, **place)
        self.batches.append(Batch(data))

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch`, and its end."""
        if not self.epochs or epoch > self.epochs[-1][0]:
            return -1, -1
        if epoch == self.epochs[-1][0]:
            return epoch, self.end
        end = next(start for each, start in self.epochs if each > epoch)
        return max((each for each, _ in self.epochs if each <= epoch), default=epoch), end

    def boundary(self, share: float, low: int, high: int) -> int:
        """Return the boundary of a batch, at this share of the way."""
        return boundary(self.batches, share, low, high)


def batch_of(count: int, producer: int | None, now_ms: int, **place: Any) -> bytes:
    """Return a batch; with a producer, it is the only one of a transaction."""
    offset = place.get("base_offset", 0)
    records = [Record(offset + number, now_ms, b"k", b"x") for number in range(count)]
    if producer is None:
        return encode_batch(records, **place)
    fields: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    return encode_batch(records, **place, **fields, is_transactional=True)


def marker_of(producer: int, is_commit: bool, now_ms: int, **place: Any) -> bytes:
    kind = ControlType.COMMIT if is_commit else ControlType.ABORT
    return encode_marker_batch(
        EndTransactionMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=now_ms, **place
    )


def boundary(batches: list[Batch], share: float, low: int, high: int) -> int:
    places = [batch.next_offset for batch in batches if low <= batch.next_offset <= high]
    if not places or not any(batch.base_offset < low < batch.next_offset for batch in batches):
        places.append(low)
    wanted = low + share * (high - low)
    return min(places, key=lambda each: (abs(each - wanted), each))
