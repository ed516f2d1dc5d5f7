"""What clients saw, held against what the logs hold in the end. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.kill9.workload import Seen, message

Log = Mapping[int, Mapping[int, bytes]]
"""Partition → offset → value, as it is read after everything has settled."""


def violations(seen: Seen, log: Log) -> list[str]:
    """All that must not be: loss, another order, a repeat, a skip, something read that was not committed."""
    return [
        *(f"a client failed: {error!r}" for error in seen.failures),
        *(f"given up: {each}" for each in seen.refused),
        *_lost(seen, log),
        *_out_of_order(log),
        *_misread(seen, log),
        *_skipped(seen, log),
    ]


def _lost(seen: Seen, log: Log) -> list[str]:
    found = []
    for partition, acknowledged in seen.acknowledged.items():
        records = log.get(partition, {})
        values = set(records.values())
        for each in acknowledged:
            wanted = message(each.producer, each.number)
            value = records.get(each.offset) if each.offset is not None else wanted
            if value != wanted or wanted not in values:
                found.append(
                    f"partition {partition}, offset {each.offset}: {each.producer} {each.number} was "
                    f"acknowledged, {value!r} is there"
                )
    return found


def _out_of_order(log: Log) -> list[str]:
    """Of one producer, numbers rise: one that was there before is a duplicate, else it is out of order."""
    found = []
    for partition, records in log.items():
        last: dict[str, int] = defaultdict(lambda: -1)
        places: dict[bytes, int] = {}
        for offset in sorted(records):
            value = records[offset]
            producer, _, digits = value.decode().rpartition(" ")
            number = int(digits)
            if number <= last[producer]:
                what = f"twice, first at {places[value]}" if value in places else f"after {last[producer]}"
                found.append(f"partition {partition}, offset {offset}: {producer} {number} comes {what}")
            last[producer] = max(number, last[producer])
            places.setdefault(value, offset)
    return found


def _misread(seen: Seen, log: Log) -> list[str]:
    """What was consumed is what the log holds there for ever: nothing that was taken back later."""
    return [
        f"{consumer} read {value!r} at partition {partition}, offset {offset}; the log has "
        f"{log.get(partition, {}).get(offset)!r}"
        for consumer, records in seen.consumed.items()
        for partition, offset, value in records
        if log.get(partition, {}).get(offset) != value
    ]


def _skipped(seen: Seen, log: Log) -> list[str]:
    """The group has had every record: again after a rebalance perhaps, but none not at all."""
    had: dict[int, set[int]] = defaultdict(set)
    for records in seen.consumed.values():
        for partition, offset, _ in records:
            had[partition].add(offset)
    found = []
    for partition, values in log.items():
        missing: Sequence[int] = sorted(values.keys() - had[partition])
        if missing:
            found.append(
                f"partition {partition}: the group never had {len(missing)} records, the first at offset "
                f"{missing[0]}"
            )
    return found
