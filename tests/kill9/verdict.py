"""What clients saw, held against what the logs hold in the end. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tests.kill9.workload import Seen, message

Log = Mapping[int, Mapping[int, bytes]]
"""Partition → offset → value, as it is read after everything has settled."""

SKIPPED: Final = "skipped sequence numbers"
"""librdkafka's word for a race of its own: it sends a batch to the new leader before the old one has answered
the batch before, and then again, under a new epoch, what it does not know to be written (docs/clients.md)."""


def violations(seen: Seen, log: Log) -> list[str]:
    """All that must not be: loss, another order, a repeat, a skip, something read that was not committed."""
    return [
        *(f"a client failed: {error!r}" for error in seen.failures),
        *(f"given up: {each}" for each in seen.refused),
        *lost(seen, log),
        *(f"librdkafka raised its epoch: {why}" for why in seen.raised if why != SKIPPED),
        *out_of_order(log),
        *misread(seen, log),
        *_skipped(seen, log),
    ]


def lost(seen: Seen, log: Log) -> list[str]:
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


def _repeats(records: Mapping[int, bytes]) -> dict[int, int]:
    """Offset → the first offset with the same message, of those that were there before."""
    first: dict[bytes, int] = {}
    return {
        offset: first[value]
        for offset, value in sorted(records.items())
        if first.setdefault(value, offset) != offset
    }


def out_of_order(log: Log) -> list[str]:
    """Of one producer, numbers rise: one that was there before is a duplicate, else it is out of order."""
    found = []
    for partition, records in log.items():
        repeats = _repeats(records)
        last: dict[str, int] = defaultdict(lambda: -1)
        for offset, value in sorted(records.items()):
            producer, _, digits = value.decode().rpartition(" ")
            number = int(digits)
            place = f"partition {partition}, offset {offset}: {producer} {number} comes"
            if offset in repeats:
                found.append(f"{place} twice, first at {repeats[offset]}")
            elif number <= last[producer]:
                found.append(f"{place} after {last[producer]}")
            last[producer] = max(number, last[producer])
    return found


def misread(seen: Seen, log: Log) -> list[str]:
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
