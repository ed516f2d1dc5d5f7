"""One problem of a cluster, or one operation in progress: how bad it is, what it is about, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from logstore.disk.topic_partition import TopicPartition

OPERATOR = "you"
ITSELF = "nobody: it continues automatically"
"""The values of `Trouble.acts`: the operator has to act, or the cluster does."""


class Rank(IntEnum):
    """Severity of a problem."""

    UNAVAILABLE = 0
    REFUSES_WRITES = 1
    AT_RISK = 2
    UNDER_WAY = 3


class Kind(Enum):
    """The kind of a partition's problem, with its singular and plural texts."""

    NO_LEADER = ("partition has no leader", "partitions have no leader")
    REFUSES_WRITES = ("partition refuses writes with acks=all", "partitions refuse writes with acks=all")
    NOT_IN_SYNC = ("partition lacks a replica in sync", "partitions lack a replica in sync")
    REASSIGNMENT = ("reassignment waits for it", "reassignments wait for it")
    DELETION = ("deletion waits for it", "deletions wait for it")
    TRANSACTION = ("partition has a transaction that hangs", "partitions have a transaction that hangs")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One problem, or one operation in progress."""

    rank: Rank
    subject: str
    """a partition, a broker, a log dir or the cluster"""
    says: str
    evidence: str
    next_step: str
    partitions: frozenset[TopicPartition] = frozenset()
    """the partitions that it explains"""
    waits_for: str = ""
    acts: str = OPERATOR
    no_help: str = ""
    """what would not help"""
    kind: Kind | None = None
    """of a trouble of a partition"""
    roots: frozenset[str] = frozenset()
    """subjects of the troubles that explain this one; empty if none does"""
    cause: str = ""
    """the reason alone, the same for all partitions that have it"""

    def facts(self) -> dict[str, object]:
        """Return the problem as an object for JSON."""
        return {
            "rank": self.rank.name.lower(),
            "subject": self.subject,
            "partitions": len(self.partitions),
            "says": self.says,
            "evidence": self.evidence,
            "waits_for": self.waits_for,
            "acts": self.acts,
            "next_step": self.next_step,
            "no_help": self.no_help,
        }
