"""Assign replicas to brokers: placement of new partitions, and moves. Pure.

Three formulas place new partitions. *Round robin* puts replica j of partition i on broker (i + j) mod n; all
followers of one broker's leaders then sit on its neighbours. *Spread* (Kafka's) shifts the followers by one
more each time the leaders have gone round, so that the load of a dead broker falls on all others. *Racks*
walks the same way over brokers interleaved by rack, and uses a rack twice only when every rack has a
replica. The first replica of a list is the preferred leader.

A reassignment moves the replicas of a partition:

    [1 2 3] ──begin──▶ [4 5 6 1 2 3]          ──4 5 6 in sync──▶ [4 5 6]       ──each confirms──▶ [4 5 6]
                       adding 4 5 6                              leaving 1 2 3
                       removing 1 2 3
                       original 1 2 3

The list of a partition under reassignment holds its target first, then every other replica that still
counts; `adding` are its new members, `removing` those that the target does not have (KIP-455). Two more
facts are kept than in Kafka: the original list in its order, which a cancellation restores, and the replicas
that left and whose brokers have not confirmed the deletion, so that a lost message leaves no data behind.

A later target replaces an earlier one. Replicas wanted only by the earlier one leave at once, except those in
sync: they hold what is committed and stay (`removing`) until the new target holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from logstore.replication.controller.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
)
from logstore.replication.metastore.layout import TopicAssignment

Replicas: TypeAlias = tuple[int, ...]
Racks: TypeAlias = Mapping[int, str | None]
"""The brokers that may be given replicas, and the rack of each; None or empty for no rack."""

MOST_NEW_PARTITIONS: Final = 10_000
"""The limit for one request, as with Kafka's own controller: the plan is in memory before it is written."""


# --- placement of new partitions --------------------------------------------------------------


def round_robin(brokers: Sequence[int], partitions: int, replication_factor: int) -> list[Replicas]:
    """Place replica j of partition i on broker (i + j) mod n of the sorted brokers."""
    _check_counts(len(brokers), partitions, replication_factor)
    ordered = sorted(brokers)
    return [
        tuple(ordered[(i + j) % len(ordered)] for j in range(replication_factor)) for i in range(partitions)
    ]


def placed(
    racks: Racks, partitions: int, replication_factor: int,
    *, start: int, shift: int, first_partition: int = 0,
) -> list[Replicas]:  # fmt: skip
    """Place with Kafka's formula: by racks if any broker has one, and then all must have one."""
    known = {broker: rack or None for broker, rack in racks.items()}
    numbers = {"start": start, "shift": shift, "first_partition": first_partition}
    if any(known.values()):
        return spread_over_racks(known, partitions, replication_factor, **numbers)
    return spread(sorted(known), partitions, replication_factor, **numbers)


def spread(
    brokers: Sequence[int], partitions: int, replication_factor: int,
    *, start: int, shift: int, first_partition: int = 0,
) -> list[Replicas]:  # fmt: skip
    """Place with Kafka's formula without racks, over `brokers` in the order given.

    The caller draws `start` and `shift` from [0, n); `first_partition` is the number of existing partitions.
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


def spread_over_racks(
    racks: Racks, partitions: int, replication_factor: int,
    *, start: int, shift: int, first_partition: int = 0,
) -> list[Replicas]:  # fmt: skip
    """Place with Kafka's formula for racks: every partition covers min(replicas, racks) of them."""
    _check_counts(len(racks), partitions, replication_factor)
    brokers = interleave_racks(racks)
    count, rack_count = len(brokers), len(set(racks.values()))
    assignment = []
    for i in range(first_partition, first_partition + partitions):
        shift += i > 0 and i % count == 0
        first = (i + start) % count
        replicas, used_racks, step = [brokers[first]], {racks[brokers[first]]}, 0
        while len(replicas) < replication_factor:
            candidate = brokers[_follower(first, shift * rack_count, step, count)]
            step += 1
            rack_wasted = racks[candidate] in used_racks and len(used_racks) < rack_count
            if not rack_wasted and candidate not in replicas:
                replicas.append(candidate)
                used_racks.add(racks[candidate])
        assignment.append(tuple(replicas))
    return assignment


def interleave_racks(racks: Racks) -> list[int]:
    """List one broker of each rack in turn: racks sorted by name, brokers sorted inside their rack."""
    if unknown := sorted(broker for broker, rack in racks.items() if rack is None):
        raise InvalidReplicationFactor(
            f"brokers {unknown} have no rack and others do; give every broker a rack, or none"
        )
    by_rack: dict[str, list[int]] = {}
    for broker, rack in sorted(racks.items()):
        assert rack is not None
        by_rack.setdefault(rack, []).append(broker)
    longest = max(map(len, by_rack.values()), default=0)
    turns = ((rack, turn) for turn in range(longest) for rack in sorted(by_rack))
    return [by_rack[rack][turn] for rack, turn in turns if turn < len(by_rack[rack])]


def added_partitions(
    existing: Mapping[int, Replicas], racks: Racks, total_partitions: int
) -> dict[int, Replicas]:
    """Return the lists of the partitions that bring a topic to `total_partitions`; the old ones stay.

    Keys map to other partitions afterwards: warn applications that depend on a key's partition.
    """
    if 0 not in existing:
        raise InvalidReplicaAssignment("the topic has no partition 0 to take the replication factor from")
    count, factor, first = total_partitions - len(existing), len(existing[0]), len(existing)
    check_growth(first, total_partitions)
    start = next((slot for slot, broker in enumerate(sorted(racks)) if broker >= existing[0][0]), 0)
    new = placed(racks, count, factor, start=start, shift=start, first_partition=first)
    return dict(enumerate(new, first))


def check_growth(existing: int, total: int) -> None:
    """Raise `InvalidPartitions` unless `total` partitions are more than there are."""
    if total <= existing:
        raise InvalidPartitions(
            f"the topic has {existing} partitions; {total} is not more, and their number cannot shrink"
        )


def check_manual(assignment: Sequence[Replicas], brokers: Collection[int]) -> None:
    """Raise `InvalidReplicaAssignment` unless these lists, one a partition, can be assigned.

    `brokers` are registered. A replica elsewhere may never exist, and its partition would have no leader.
    """
    if not assignment or not assignment[0]:
        raise InvalidReplicaAssignment("an assignment needs at least one partition and one replica")
    for partition, replicas in enumerate(assignment):
        if len(replicas) != len(assignment[0]):
            raise InvalidReplicaAssignment(
                f"partition {partition} has {len(replicas)} replicas, partition 0 has {len(assignment[0])}; "
                "give every partition the same number"
            )
        if not are_distinct(replicas):
            raise InvalidReplicaAssignment(
                f"partition {partition} lists {list(replicas)}; list each broker once, none negative"
            )
    if unknown := sorted({broker for replicas in assignment for broker in replicas} - set(brokers)):
        raise InvalidReplicaAssignment(
            f"brokers {unknown} are in the assignment and not registered; start them or choose others"
        )


def are_distinct(replicas: Replicas) -> bool:
    """Return whether this list names brokers, at least one, and each once."""
    return bool(replicas) and len(set(replicas)) == len(replicas) and min(replicas) >= 0


def check_new_partitions(count: int) -> None:
    """Raise `InvalidPartitions` for more partitions than one request may create."""
    if count > MOST_NEW_PARTITIONS:
        raise InvalidPartitions(
            f"{count} new partitions in one request; at most {MOST_NEW_PARTITIONS} are allowed: "
            "use several requests"
        )


def _follower(first: int, shift: int, step: int, count: int) -> int:
    # count - 1 is only 0 with one broker, which has no followers to place.
    return (first + 1 + (shift + step) % (count - 1)) % count


def _check_counts(brokers: int, partitions: int, replication_factor: int) -> None:
    if partitions <= 0:
        raise InvalidPartitions(f"{partitions} partitions requested; at least 1 is needed")
    if replication_factor <= 0:
        raise InvalidReplicationFactor(f"replication factor {replication_factor}; at least 1 is needed")
    if replication_factor > brokers:
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} is larger than the number of live brokers ({brokers}): "
            "start more brokers, or lower it"
        )


# --- moves of existing replicas ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition's replicas in the topic node; all fields but `replicas` are empty at rest."""

    replicas: Replicas
    adding: Replicas = ()
    removing: Replicas = ()
    original: Replicas = ()
    """The list before the reassignment, in its order; empty at rest, and in nodes written by Kafka."""
    leaving: Replicas = ()
    """Former replicas; the deletion of their logs is not confirmed."""

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> Replicas:
        return without(self.replicas, self.removing)

    @property
    def origin(self) -> Replicas:
        """The list that a cancellation restores."""
        return self.original or without(self.replicas, self.adding)

    def is_at(self, target: Replicas) -> bool:
        """Return whether these are the replicas already, confirmed or not."""
        return not self.is_reassigning and self.replicas == target

    def reassign_to(self, target: Replicas, isr: Collection[int] = ()) -> Assignment:
        """Return the assignment that leads to `target` from any other; itself if nothing changes."""
        origin = self.origin
        replicas = _united(target, origin, (each for each in self.replicas if each in isr))
        adding, removing = without(target, origin), without(replicas, target)
        return Assignment(
            replicas,
            adding,
            removing,
            origin if adding or removing else (),
            without(_united(self.leaving, self.replicas), replicas),
        )

    def finished(self) -> Assignment:
        """Return the target alone; all other replicas leave."""
        return Assignment(self.target, leaving=_united(without(self.leaving, self.target), self.removing))

    def confirmed(self, broker_id: int) -> Assignment:
        """Return the assignment after `broker_id` has deleted its replica."""
        return replace(self, leaving=without(self.leaving, (broker_id,)))


def _united(*lists: Iterable[int]) -> Replicas:
    return tuple(dict.fromkeys(each for replicas in lists for each in replicas))


def without(replicas: Iterable[int], others: Collection[int]) -> Replicas:
    """Return `replicas` without `others`, in their order."""
    return tuple(each for each in replicas if each not in others)


def assignment_in(node: TopicAssignment, partition: int) -> Assignment:
    """Return the assignment of a partition that is in the topic node."""
    return Assignment(
        node.partitions[partition],
        *(
            lists.get(partition, ())
            for lists in (
                node.adding_replicas, node.removing_replicas, node.original_replicas, node.leaving_replicas,
            )
        ),
    )  # fmt: skip


def with_assignment(node: TopicAssignment, partition: int, assignment: Assignment) -> TopicAssignment:
    """Return the topic node with this partition's assignment replaced."""

    def changed(lists: Mapping[int, Replicas], replicas: Replicas) -> dict[int, Replicas]:
        others = {each: lists[each] for each in lists if each != partition}
        return {**others, partition: replicas} if replicas else others

    return TopicAssignment(
        node.topic_id,
        changed(node.partitions, assignment.replicas),
        changed(node.adding_replicas, assignment.adding),
        changed(node.removing_replicas, assignment.removing),
        changed(node.original_replicas, assignment.original),
        changed(node.leaving_replicas, assignment.leaving),
    )
