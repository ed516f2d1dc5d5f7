"""How far leadership has strayed from the preferred replicas. Pure: the assignment and the leaders in.

    broker 1 is preferred by 10 partitions; 3 are led by others; of these, 1 could go home now

    ratio            3 / 10     Kafka's: says that something is wrong
    electable ratio  1 / 10     what an election would mend now

After a broker has died, or while it lacks records, its ratio is high and nothing can be done about it: so
both are told, and only what can go home is elected (KAFKA-9866).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from logstore.disk.topic_partition import TopicPartition


class Seat(NamedTuple):
    """A partition's leadership: whose it should be, whose it is, and whether it may go home now."""

    topic_partition: TopicPartition
    preferred: int
    leader: int
    is_electable: bool


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The partitions that prefer one broker: how many, which of them it does not lead, and which it could."""

    total: int
    astray: tuple[TopicPartition, ...]
    electable: tuple[TopicPartition, ...]

    @property
    def ratio(self) -> float:
        return len(self.astray) / self.total

    @property
    def electable_ratio(self) -> float:
        return len(self.electable) / self.total

    def exceeds(self, percentage: int) -> bool:
        """Whether more than `percentage` per cent are led by others; in whole numbers: 10 % is 10 %."""
        return 100 * len(self.astray) > percentage * self.total


def imbalances(seats: Iterable[Seat]) -> dict[int, Imbalance]:
    """By preferred broker, in ascending order of both."""
    by_preferred: dict[int, list[Seat]] = {}
    for seat in sorted(seats):
        by_preferred.setdefault(seat.preferred, []).append(seat)
    found = {}
    for preferred, seated in sorted(by_preferred.items()):
        astray = [seat for seat in seated if seat.leader != preferred]
        found[preferred] = Imbalance(
            len(seated),
            tuple(seat.topic_partition for seat in astray),
            tuple(seat.topic_partition for seat in astray if seat.is_electable),
        )
    return found
