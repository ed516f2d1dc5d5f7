"""Compare two copies of a partition: batch by batch, and record by record where batches differ.

    A    ┼ 0 … 9 ┼ 10 … 19 ┼ 20 … 24 ┼ 25 … 29 ┼          equal bytes: equal
    B    ┼ 0 … 9 ┼ 10 … 19 ┼      20 … 29      ┼          otherwise the records of all batches up to the
                                                          next common end are compared by their offsets

Replicas hold the same bytes. Copies that were compacted, compressed or cut by different programs need not, so
a difference says whether records, leader epochs, or only batches differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from logstore.disk.errors import EngineError
from logstore.format.batch import Batch
from logstore.format.record import Record


class DifferenceKind(StrEnum):
    """What differs."""

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


def differences(a: Iterator[Batch], b: Iterator[Batch]) -> Iterator[Difference]:
    """Yield the differences in order of offsets; neighbouring ones of a kind together, except records."""
    pending: Difference | None = None
    for found in _differences(a, b):
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


def _differences(a: Iterator[Batch], b: Iterator[Batch]) -> Iterator[Difference]:
    one, other = next(a, None), next(b, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.last_offset < other.base_offset):
            assert one is not None
            yield _only(one, DifferenceKind.ONLY_IN_A)
            one = next(a, None)
        elif one is None or other.last_offset < one.base_offset:
            yield _only(other, DifferenceKind.ONLY_IN_B)
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
            yield from _compare(group_a, group_b)


def _only(batch: Batch, kind: DifferenceKind) -> Difference:
    is_in_a = kind is DifferenceKind.ONLY_IN_A
    return Difference(
        kind,
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch if is_in_a else None,
        None if is_in_a else batch.leader_epoch,
        "the batch is missing" if is_in_a else "an extra batch",
    )


def _compare(group_a: Sequence[Batch], group_b: Sequence[Batch]) -> Iterator[Difference]:
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
    for offset in sorted(records_a.keys() | records_b.keys()):
        one, epoch_a = records_a.get(offset, (None, None))
        other, epoch_b = records_b.get(offset, (None, None))
        if one is None:
            kind, text = DifferenceKind.ONLY_IN_B, "an extra record"
        elif other is None:
            kind, text = DifferenceKind.ONLY_IN_A, "the record is missing"
        elif changed := _changed(one, other):
            kind, text = DifferenceKind.RECORD, f"different {' and '.join(changed)}"
        else:
            continue
        is_equal = False
        yield Difference(kind, offset, offset, epoch_a, epoch_b, text, one, other)
    if is_equal:
        yield from _compare_headers(group_a, group_b)


def _records(batches: Iterable[Batch]) -> dict[int, tuple[Record, int]]:
    return {record.offset: (record, batch.leader_epoch) for batch in batches for record in batch.records()}


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
