"""Compare the replicas' answers to the same fetch. Pure.

    offset          limit             committed (the lowest high watermark)
       ├── batches ───┤                  │
    1  [0 … 9][10 … 19][20 … 24]         │        limit: as far as every replica's answer reaches
    2  [0 … 9][10 … 19]                  │

Replication copies bytes, so below the limit all batches are equal: first and last offset, leader epoch and
checksum, which covers the rest. Replicas of a compacted topic are compacted each by itself. Of these, only
records are compared that both have; one that only some still have is counted as not comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from logstore.disk.errors import EngineError
from logstore.format.batch import Batch, walk
from logstore.format.record import Record


class Fetched(NamedTuple):
    """A replica's answer: what kept it from answering (empty: nothing), its high watermark, and batches."""

    problem: str = ""
    high_watermark: int = -1
    records: bytes | memoryview = b""


class Difference(NamedTuple):
    """The first batch or record of `replica` that differs from the one of `reference`, and what each has."""

    offset: int
    reference: int
    replica: int
    reference_has: str
    replica_has: str

    def __str__(self) -> str:
        return (
            f"at offset {self.offset} broker {self.replica} has {self.replica_has}; "
            f"broker {self.reference} has {self.reference_has}"
        )


class Judged(NamedTuple):
    """The offset up to which the answers were compared, the first difference, and what is not comparable.

    The offset is the one that was asked for if nothing could be compared.
    """

    next_offset: int
    difference: Difference | None = None
    not_comparable: int = 0
    """records of a compacted topic that only some replicas still have"""


def judge(
    offset: int, answers: Mapping[int, Fetched], *, is_compacted: bool = False, is_alone: bool = False
) -> Judged:
    """Compare the answers of brokers to fetches from `offset`, with that of the first one.

    `is_alone`: nothing else was fetched with this partition, so an answer without a batch means that there is
    none below the high watermark. Otherwise the answer may have had no room.
    """
    usable = {broker: each for broker, each in answers.items() if not each.problem}
    if len(usable) < 2:
        return Judged(offset)
    committed = min(each.high_watermark for each in usable.values())
    found = {
        broker: [batch for batch in walk(each.records) if batch.last_offset < committed]
        for broker, each in usable.items()
    }
    no_more = max(committed, offset) if is_alone else offset
    limit = min(batches[-1].next_offset if batches else no_more for batches in found.values())
    (reference, ours), *others = found.items()
    not_comparable = 0
    for replica, theirs in others:
        if is_compacted:
            try:
                at, ours_has, theirs_has, missing = _compare_records(ours, theirs, range(offset, limit))
            except EngineError as error:
                at, ours_has, theirs_has, missing = offset, "", f"records that cannot be read: {error}", 0
            not_comparable += missing
        else:
            at, ours_has, theirs_has = _compare_batches(ours, theirs, limit)
        if at >= 0:
            return Judged(limit, Difference(at, reference, replica, ours_has, theirs_has), not_comparable)
    return Judged(limit, None, not_comparable)


def _compare_batches(ours: Sequence[Batch], theirs: Sequence[Batch], limit: int) -> tuple[int, str, str]:
    """Return the first offset at which the batches below `limit` differ, and both sides; -1 if none does."""
    below = ([each for each in batches if each.base_offset < limit] for batches in (ours, theirs))
    for one, other in zip_longest(*below):
        sides = _described(one), _described(other)
        if sides[0] != sides[1]:
            return min(each.base_offset for each in (one, other) if each is not None), *sides
        try:
            one.check_crc()
        except EngineError as error:
            return one.base_offset, str(error), f"the same: {error}"
    return -1, "", ""


def _described(batch: Batch | None) -> str:
    if batch is None:
        return "no batch there"
    where = f"{batch.base_offset} to {batch.last_offset}, epoch {batch.leader_epoch}"
    return f"offsets {where}, checksum {batch.crc:08x}"


def _compare_records(
    ours: Sequence[Batch], theirs: Sequence[Batch], span: range
) -> tuple[int, str, str, int]:
    """Likewise of the records at the same offsets; also the number of records that one side alone has."""
    one, other = _records(ours, span), _records(theirs, span)
    for offset in sorted(one.keys() & other.keys()):
        if one[offset] != other[offset]:
            return offset, _shown(one[offset]), _shown(other[offset]), 0
    return -1, "", "", len(one.keys() ^ other.keys())


def _records(batches: Sequence[Batch], span: range) -> dict[int, Record]:
    return {
        record.offset: record
        for batch in batches
        if not batch.is_control
        for record in batch.records()
        if record.offset in span
    }


def _shown(record: Record) -> str:
    value = "no value" if record.value is None else f"a value of {len(record.value)} bytes"
    return f"time {record.timestamp_ms}, key {record.key!r:.40}, {value}"
