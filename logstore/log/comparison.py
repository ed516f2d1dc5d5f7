"""Compare two copies of a partition: batch by batch, and record by record where batches differ.

    A    ┼ 0 … 9 ┼ 10 … 19 ┼ 20 … 24 ┼ 25 … 29 ┼          equal bytes: equal
    B    ┼ 0 … 9 ┼ 10 … 19 ┼      20 … 29      ┼          otherwise the records of all batches up to the
                                                          next common end are compared by their offsets

Replicas hold the same bytes. Copies that were compacted, compressed or cut by different programs need not, so
a difference says whether records, leader epochs, or only batches differ.

Each replica compacts alone. Where one was compacted it may lack a record whose key has a later one in either
copy, a record without a key, a tombstone, a marker, and a record of an aborted transaction. Its batches may
be others, too. Anything else that differs at an offset is a difference, as everywhere. How a transaction
ended is known if either copy has its marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import merge
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from logstore.config import MAX_LONG
from logstore.disk.errors import EngineError
from logstore.format.batch import Batch
from logstore.format.record import ControlRecord, ControlType, Record


class DifferenceKind(StrEnum):
    """The kind of a difference."""

    ONLY_IN_A = "only in A"
    ONLY_IN_B = "only in B"
    RECORD = "record"
    EPOCH = "epoch"
    BATCH = "batch"
    """The records are the same, the batches that hold them are not."""


class Difference(NamedTuple):
    """A difference of two copies at these offsets; leader epochs and records where that copy has them.

    `text` says what B has, and what A has instead.
    """

    kind: DifferenceKind
    first_offset: int
    last_offset: int
    epoch_a: int | None
    epoch_b: int | None
    text: str
    a: Record | None = None
    b: Record | None = None


class Cleaned(NamedTuple):
    """The ends of the parts of A and of B that were compacted; 0: not compacted."""

    a: int = 0
    b: int = 0


def differences(
    a: Iterable[Batch], b: Iterable[Batch], cleaned: Cleaned | None = None, *, until: int = MAX_LONG
) -> Iterator[Difference]:
    """Yield the differences in order of offsets; neighbouring ones of a kind together, except records.

    Batches from offset `until` on are not compared. If a copy was compacted, both are iterated twice, and
    each of their keys is in memory once, or twice if they were compacted to different ends.
    """
    compaction = _Compaction(cleaned or Cleaned())
    if any(compaction.cleaned):
        compaction.learn(a, b)
    one, other = (takewhile(lambda batch: batch.base_offset < until, each) for each in (a, b))
    pending: Difference | None = None
    for found in _differences(one, other, compaction):
        if pending is not None and _continues(pending, found):
            pending = pending._replace(last_offset=found.last_offset)
            continue
        if pending is not None:
            yield pending
        pending = found
    if pending is not None:
        yield pending


def _continues(one: Difference, other: Difference) -> bool:
    is_same = (one.kind, one.epoch_a, one.epoch_b, one.text) == (
        other.kind, other.epoch_a, other.epoch_b, other.text,
    )  # fmt: skip
    return is_same and one.kind is not DifferenceKind.RECORD and one.last_offset + 1 == other.first_offset


class _Compaction:
    """Knows which records compaction may have removed from a copy: by their keys, in both of them."""

    def __init__(self, cleaned: Cleaned) -> None:
        self.cleaned = cleaned
        self._last_of_keys: dict[int, dict[bytes, int]] = {end: {} for end in cleaned}
        """The end of a compacted part → the last offset of each key below it."""
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        """Producer id → the first offset and the marker of its aborted transactions."""

    def learn(self, a: Iterable[Batch], b: Iterable[Batch]) -> None:
        """Note the last offset of each key; only committed records supersede others.

        A marker ends what either copy has of its transaction, also if it lies behind what was compacted.
        """
        end = max(self.cleaned)
        pending: dict[int, list[tuple[bytes, int]]] = {}
        """Producer id → the keys and offsets of its open transaction."""
        for batch in merge(a, b, key=attrgetter("base_offset")):
            is_behind = batch.base_offset >= end
            if is_behind and not pending:
                return
            if batch.is_control:
                self._end(batch, pending.pop(batch.producer_id, []))
            elif not is_behind:
                keys = [(record.key or b"", record.offset) for record in _decoded(batch)]
                if batch.is_transactional:
                    pending.setdefault(batch.producer_id, []).extend(keys)
                else:
                    self._supersede(keys)

    def _end(self, marker: Batch, keys: Sequence[tuple[bytes, int]]) -> None:
        """End the transaction of the marker's producer, which has written these keys."""
        kinds = {ControlRecord.parse(record.key).type for record in _decoded(marker)}
        if ControlType.COMMIT in kinds:
            self._supersede(keys)
        elif ControlType.ABORT in kinds and keys:
            first = min(offset for _, offset in keys)
            self._aborted.setdefault(marker.producer_id, []).append((first, marker.base_offset))

    def _supersede(self, keys: Sequence[tuple[bytes, int]]) -> None:
        for end, last_of_keys in self._last_of_keys.items():
            for key, offset in keys:
                if offset < end:
                    last_of_keys[key] = max(offset, last_of_keys.get(key, -1))

    def explains(self, record: Record, batch: Batch, end: int) -> bool:
        """Return whether a copy that was compacted up to `end` may lack this record of the other one."""
        if record.offset >= end:
            return False
        if batch.is_control or record.key is None or record.value is None:
            return True
        if self._last_of_keys[end].get(record.key, -1) > record.offset:
            return True
        spans = self._aborted.get(batch.producer_id, ()) if batch.is_transactional else ()
        return any(first <= record.offset < marker for first, marker in spans)


def _decoded(batch: Batch) -> list[Record]:
    """Return the records of a batch; none if they cannot be read: comparing the batch reports that."""
    try:
        return list(batch.records())
    except EngineError:
        return []


def _differences(a: Iterator[Batch], b: Iterator[Batch], compaction: _Compaction) -> Iterator[Difference]:
    one, other = next(a, None), next(b, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.last_offset < other.base_offset):
            assert one is not None
            yield from _only(one, DifferenceKind.ONLY_IN_A, compaction)
            one = next(a, None)
        elif one is None or other.last_offset < one.base_offset:
            yield from _only(other, DifferenceKind.ONLY_IN_B, compaction)
            other = next(b, None)
        else:
            group_a, group_b = [one], [other]
            one, other = next(a, None), next(b, None)
            while (end := group_a[-1].last_offset) != (other_end := group_b[-1].last_offset):
                if end < other_end:
                    if one is None or one.base_offset > other_end:
                        break
                    group_a.append(one)
                    one = next(a, None)
                else:
                    if other is None or other.base_offset > end:
                        break
                    group_b.append(other)
                    other = next(b, None)
            yield from _compare(group_a, group_b, compaction)


def _only(batch: Batch, kind: DifferenceKind, compaction: _Compaction) -> Iterator[Difference]:
    """Compare a batch with the gap that the other copy has there."""
    is_in_a = kind is DifferenceKind.ONLY_IN_A
    end = compaction.cleaned.b if is_in_a else compaction.cleaned.a
    if batch.base_offset < end:
        records = {record.offset: (record, batch) for record in _decoded(batch)}
        sides = (records, {}) if is_in_a else ({}, records)
        yield from _compare_records(*sides, compaction)
        return
    yield Difference(
        kind,
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch if is_in_a else None,
        None if is_in_a else batch.leader_epoch,
        "the batch is missing" if is_in_a else "an extra batch",
    )


def _compare(
    group_a: Sequence[Batch], group_b: Sequence[Batch], compaction: _Compaction
) -> Iterator[Difference]:
    """Compare batches that hold the same offsets, but for those that one side lacks."""
    if len(group_a) == len(group_b) == 1 and group_a[0].buffer == group_b[0].buffer:
        return
    try:
        records_a, records_b = _records(group_a), _records(group_b)
    except EngineError as error:
        text = f"the batches differ, and their records cannot be read: {error}"
        yield _of_batches(DifferenceKind.BATCH, group_a, group_b, text)
        return
    is_equal = True
    for found in _compare_records(records_a, records_b, compaction):
        is_equal = False
        yield found
    is_cleaned = min(group_a[0].base_offset, group_b[0].base_offset) < max(compaction.cleaned)
    if is_equal and not is_cleaned:
        yield from _compare_headers(group_a, group_b)
    elif is_equal and records_a.keys() & records_b.keys():
        yield from _compare_epochs(records_a, records_b)


_Records: TypeAlias = Mapping[int, tuple[Record, Batch]]


def _records(batches: Iterable[Batch]) -> _Records:
    return {record.offset: (record, batch) for batch in batches for record in batch.records()}


def _compare_records(a: _Records, b: _Records, compaction: _Compaction) -> Iterator[Difference]:
    for offset in sorted(a.keys() | b.keys()):
        one, batch_a = a.get(offset, (None, None))
        other, batch_b = b.get(offset, (None, None))
        if one is None or other is None:
            kind, text = DifferenceKind.ONLY_IN_A, "the record is missing"
            end, record, batch = compaction.cleaned.b, one, batch_a
            if one is None:
                kind, text = DifferenceKind.ONLY_IN_B, "an extra record"
                end, record, batch = compaction.cleaned.a, other, batch_b
            assert record is not None
            assert batch is not None
            if compaction.explains(record, batch, end):
                continue
        elif changed := _changed(one, other):
            kind, text = DifferenceKind.RECORD, f"different {' and '.join(changed)}"
        else:
            continue
        epoch_a, epoch_b = (each.leader_epoch if each is not None else None for each in (batch_a, batch_b))
        yield Difference(kind, offset, offset, epoch_a, epoch_b, text, one, other)


def _compare_epochs(a: _Records, b: _Records) -> Iterator[Difference]:
    """Compare the leader epochs of records that both have; what else a header says, compaction may change."""
    for offset in sorted(a.keys() & b.keys()):
        one, other = a[offset][1].leader_epoch, b[offset][1].leader_epoch
        if one != other:
            text = f"leader epoch {other}, not {one}"
            yield Difference(DifferenceKind.EPOCH, offset, offset, one, other, text)


def _changed(one: Record, other: Record) -> list[str]:
    pairs = {
        "time": (one.timestamp_ms, other.timestamp_ms),
        "key": (one.key, other.key),
        "value": (one.value, other.value),
        "headers": (one.headers, other.headers),
    }
    return [name for name, (mine, theirs) in pairs.items() if mine != theirs]


def _compare_headers(group_a: Sequence[Batch], group_b: Sequence[Batch]) -> Iterator[Difference]:
    epochs_a, epochs_b = ({batch.leader_epoch for batch in group} for group in (group_a, group_b))
    if epochs_a != epochs_b:
        text = f"leader epoch {_listed(epochs_b)}, not {_listed(epochs_a)}"
        yield _of_batches(DifferenceKind.EPOCH, group_a, group_b, text)
    extents_a, extents_b = (
        [(batch.base_offset, batch.last_offset) for batch in group] for group in (group_a, group_b)
    )
    if extents_a != extents_b:
        listed = (
            " and ".join(f"{first} to {last}" for first, last in extents)
            for extents in (extents_b, extents_a)
        )
        yield _of_batches(
            DifferenceKind.BATCH, group_a, group_b, "batches of offsets {}, not {}".format(*listed)
        )
        return
    for one, other in zip(group_a, group_b, strict=True):
        fields = [
            f"{name} {getattr(other, attribute)}, not {getattr(one, attribute)}"
            for name, attribute in _FIELDS.items()
            if getattr(one, attribute) != getattr(other, attribute)
        ]
        if one.attributes != other.attributes:
            fields.append(f"attributes {other.attributes:#x}, not {one.attributes:#x}")
        if not fields and one.crc != other.crc:
            fields.append("other bytes that hold the same records")
        if fields:
            yield _of_batches(DifferenceKind.BATCH, [one], [other], "; ".join(fields))


_FIELDS = {
    "producer id": "producer_id",
    "producer epoch": "producer_epoch",
    "first sequence": "base_sequence",
    "base time": "base_timestamp_ms",
    "largest time": "max_timestamp_ms",
}


def _listed(numbers: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(numbers)))


def _of_batches(
    kind: DifferenceKind, group_a: Sequence[Batch], group_b: Sequence[Batch], text: str
) -> Difference:
    return Difference(
        kind,
        min(group_a[0].base_offset, group_b[0].base_offset),
        max(group_a[-1].last_offset, group_b[-1].last_offset),
        group_a[0].leader_epoch,
        group_b[0].leader_epoch,
        text,
    )
