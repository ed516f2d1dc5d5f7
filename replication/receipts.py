"""Receipts: the durability of a record, as far as its leader can prove it. Pure.

    written here → synced here → committed → synced on k of n replicas

A leader learns what a follower holds from the follower's fetches. Only at the durability level `synced` do
they say what the follower has flushed. At `replicated` the leader knows of its own disk alone, and a receipt
says no more than that. Followers count only for committed records: an uncommitted one may be cut from them
by another leader, of which this one has not heard yet.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.errors import OffsetOutOfRange
from logstore.log.partition_log import PartitionLog
from logstore.replication.durability import Durability
from logstore.replication.partition import Partition


class Receipt(NamedTuple):
    """The proven durability of the record at `offset` at this moment.

    `written_on` and `synced_on` of the `replicas` are known to have it, in their page cache or on their disk;
    there may be more. `is_committed`: no leader that is elected cleanly lacks it.
    """

    offset: int
    replicas: int
    written_on: int
    synced_on: int
    is_committed: bool

    def proves(self, durability: Durability, copies: int) -> bool:
        """Return whether the record is committed and on that many replicas, synced there for SYNCED."""
        held_on = self.synced_on if durability is Durability.SYNCED else self.written_on
        return self.is_committed and held_on >= copies


class NotWrittenYet(OffsetOutOfRange):
    """A question about a record past the end of the log."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(offset, log_start_offset, log_end_offset)
        self.args = (f"offset {offset} is not written yet: the log ends at {log_end_offset}",)


def receipt_of(partition: Partition, offset: int) -> Receipt:
    """Return the durability that this leader can prove for the record at `offset`.

    Raises `NotLeaderOrFollower`, and `OffsetOutOfRange` for a record that is deleted or not written yet.
    """
    partition.check_leader()
    log = partition.log
    if offset >= log.log_end_offset:
        raise NotWrittenYet(offset, log.log_start_offset, log.log_end_offset)
    if offset < log.log_start_offset:
        raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
    is_committed = offset < log.high_watermark
    followers = followers_with(partition, offset) if is_committed else 0
    return Receipt(
        offset,
        len(partition.replicas),
        written_on=1 + followers,
        synced_on=int(offset < log.recovery_point) + (followers if claims_are_flushed(partition) else 0),
        is_committed=is_committed,
    )


def followers_with(partition: Partition, offset: int) -> int:
    """Count the in-sync followers whose fetches claimed the record at `offset`."""
    members = partition.isr.committed
    remote = partition.remote_replicas.values()
    return sum(each.replica_id in members and each.log_end_offset > offset for each in remote)


def claims_are_flushed(partition: Partition) -> bool:
    """Return whether followers claim only what they have flushed."""
    return partition.is_synced


def at_risk(log: PartitionLog) -> int:
    """Return how many committed offsets of this replica are not synced here."""
    return max(0, log.high_watermark - max(log.recovery_point, log.log_start_offset))
