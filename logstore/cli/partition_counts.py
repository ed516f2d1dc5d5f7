"""The number of partitions with a problem, in one line, for `logstore cluster status`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.broker.wire import types as t

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """All partitions, those without a leader, and those with replicas out of sync; an error if unknown."""

    partitions: int = 0
    without_leader: tuple[str, ...] = ()
    not_in_sync: tuple[str, ...] = ()
    error: str = ""

    @property
    def are_sound(self) -> bool:
        """Whether all are known, led and in sync."""
        return not (self.without_leader or self.not_in_sync or self.error)

    def facts(self) -> dict[str, object]:
        """Return the fields, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.error:
            return f"unknown: {self.error}"
        problems = {
            "without a leader": self.without_leader,
            "with replicas out of sync": self.not_in_sync,
        }
        wrong = [
            f"{len(names)} {what} ({', '.join(names[:_MOST_NAMED])}{', …' * (len(names) > _MOST_NAMED)})"
            for what, names in problems.items()
            if names
        ]
        return f"{self.partitions}, {'; '.join(wrong) or 'all led and in sync'}"


def of_metadata(metadata: t.MetadataResponse) -> Counts:
    """Count the partitions of an answer."""
    known = {
        f"{topic.name}-{each.partition_index}": each for topic in metadata.topics for each in topic.partitions
    }
    without = [name for name, each in known.items() if each.leader_id < 0]
    short = [name for name, each in known.items() if len(each.isr_nodes) < len(each.replica_nodes)]
    return Counts(len(known), tuple(without), tuple(name for name in short if name not in without))


def counted(addresses: Sequence[str], command_config: Path | None = None) -> Counts:
    """Ask the first of these brokers that answers."""
    from logstore.broker.errors import RequestUnanswered
    from logstore.cli.operator import asked_at

    if not addresses:
        return Counts(error="no broker is running")
    with asked_at(",".join(addresses), command_config) as brokers:
        try:
            return of_metadata(brokers.metadata())
        except RequestUnanswered as error:
            return Counts(error=str(error))
