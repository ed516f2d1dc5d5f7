"""Where the replicas of new partitions go. Pure: brokers and starting points in, lists out.

Three formulas. *Round robin* puts replica j of partition i on broker (i + j) mod n: simple, but all
followers of one broker's leaders sit on its neighbours. *Spread* (Kafka's) shifts the followers by
one more each time the leaders have gone round, so the load of a dead broker falls on all others.
*Racks* walks the same way over brokers interleaved by rack, and uses a rack twice only when every
rack has a replica. The first replica of a list is the preferred leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from logstore.replication.controller.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
)

Replicas: TypeAlias = tuple[int, ...]
Racks: TypeAlias = Mapping[int, str | None]
"""The brokers that may be given replicas, and the rack of each; None or nothing for no rack."""


MOST_NEW_PARTITIONS: Final = 10_000
"""So many may one request ask for, as with Kafka's own controller: a number of four bytes must not become a
million directories, and what is planned is in memory before it is written."""


def round_robin(
    brokers: Sequence[int], partitions: int, replication_factor: int, *, first_partition: int = 0
) -> list[Replicas]:
    """Replica j of partition i on the sorted brokers' (i + j) mod n."""
    _check_counts(len(brokers), partitions, replication_factor)
    ordered = sorted(brokers)
    return [
        tuple(ordered[(i + j) % len(ordered)] for j in range(replication_factor))
        for i in range(first_partition, first_partition + partitions)
    ]


def spread(
    brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[Replicas]:
    """Kafka's placement without racks, over `brokers` in the order given.

    `start` and `shift` are drawn from [0, n) by the caller; `first_partition` is the number of
    partitions that exist already.
    """
    count = len(brokers)
    _check_counts(count, partitions, replication_factor)
    assignment = []
    for i in range(first_partition, first_partition + partitions):
        shift += i > 0 and i % count == 0
        first = (i + start) % count
        followers = (_follower(first, shift, j, count) for j in range(replication_factor - 1))
        assignment.append((brokers[first], *(brokers[slot] for slot in followers)))
    return assignment


def placed(
    racks: Racks,
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[Replicas]:
    """Kafka's placement: by racks if any broker has one, and then it is refused unless all have."""
    known = {broker: rack or None for broker, rack in racks.items()}
    if any(known.values()):
        return spread_over_racks(
            known, partitions, replication_factor,
            start=start, shift=shift, first_partition=first_partition,
        )  # fmt: skip
    return spread(
        sorted(known), partitions, replication_factor,
        start=start, shift=shift, first_partition=first_partition,
    )  # fmt: skip


def spread_over_racks(
    racks: Racks,
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[Replicas]:
    """Kafka's placement with racks: every partition covers min(replicas, racks) of them."""
    _check_counts(len(racks), partitions, replication_factor)
    brokers = interleave_racks(racks)
    count, rack_count = len(brokers), len(set(racks.values()))
    assignment = []
    for i in range(first_partition, first_partition + partitions):
        shift += i > 0 and i % count == 0
        first = (i + start) % count
        replicas = [brokers[first]]
        used_racks = {racks[brokers[first]]}
        step = 0
        while len(replicas) < replication_factor:
            candidate = brokers[_follower(first, shift * rack_count, step, count)]
            step += 1
            rack_wasted = racks[candidate] in used_racks and len(used_racks) < rack_count
            if rack_wasted or candidate in replicas:
                continue
            replicas.append(candidate)
            used_racks.add(racks[candidate])
        assignment.append(tuple(replicas))
    return assignment


def interleave_racks(racks: Racks) -> list[int]:
    """One broker of each rack in turn: racks sorted by name, brokers sorted inside their rack."""
    if unknown := sorted(broker for broker, rack in racks.items() if rack is None):
        raise InvalidReplicationFactor(
            f"brokers {unknown} have no rack and others do; give all a rack or place without racks"
        )
    by_rack: dict[str, list[int]] = {}
    for broker, rack in sorted(racks.items()):
        assert rack is not None
        by_rack.setdefault(rack, []).append(broker)
    longest = max(map(len, by_rack.values()), default=0)
    return [
        by_rack[rack][turn]
        for turn in range(longest)
        for rack in sorted(by_rack)
        if turn < len(by_rack[rack])
    ]


def added_partitions(
    existing: Mapping[int, Replicas], racks: Racks, total_partitions: int
) -> dict[int, Replicas]:
    """The lists of the partitions that bring a topic to `total_partitions`; the old ones stay.

    Keys go to other partitions afterwards: who relies on a key's partition must be warned.
    """
    if 0 not in existing:
        raise InvalidReplicaAssignment("the topic has no partition 0 to take the replication factor from")
    if total_partitions <= len(existing):
        raise InvalidPartitions(
            f"the topic has {len(existing)} partitions and cannot go to {total_partitions}: they only grow"
        )
    ordered = sorted(racks)
    head = existing[0][0]
    start = next((slot for slot, broker in enumerate(ordered) if broker >= head), 0)
    count, factor, first = total_partitions - len(existing), len(existing[0]), len(existing)
    new = placed(racks, count, factor, start=start, shift=start, first_partition=first)
    return dict(enumerate(new, len(existing)))


def check_manual(assignment: Sequence[Replicas]) -> None:
    """Raise unless the lists, one a partition, are what an operator may ask for."""
    if not assignment or not assignment[0]:
        raise InvalidReplicaAssignment("an assignment needs at least one partition and one replica")
    for partition, replicas in enumerate(assignment):
        if len(replicas) != len(assignment[0]):
            raise InvalidReplicaAssignment(
                f"partition {partition} has {len(replicas)} replicas, partition 0 has {len(assignment[0])}; "
                "give all the same number"
            )
        if len(set(replicas)) != len(replicas) or min(replicas) < 0:
            raise InvalidReplicaAssignment(
                f"partition {partition} lists {list(replicas)}: each broker once, none negative"
            )


def _follower(first: int, shift: int, step: int, count: int) -> int:
    # count - 1 is only 0 with one broker, which has no followers to place.
    return (first + 1 + (shift + step) % (count - 1)) % count


def check_new_partitions(count: int) -> None:
    """Raise `InvalidPartitions` for more than one request may ask for."""
    if count > MOST_NEW_PARTITIONS:
        raise InvalidPartitions(
            f"{count} new partitions were asked for at once; {MOST_NEW_PARTITIONS} are the most: ask again"
        )


def _check_counts(brokers: int, partitions: int, replication_factor: int) -> None:
    if partitions <= 0:
        raise InvalidPartitions(f"{partitions} partitions were asked for; at least one is needed")
    if replication_factor <= 0:
        raise InvalidReplicationFactor(f"{replication_factor} replicas were asked for; one is the least")
    if replication_factor > brokers:
        raise InvalidReplicationFactor(
            f"{replication_factor} replicas were asked for and {brokers} brokers are alive; "
            "start more brokers or ask for fewer replicas"
        )
