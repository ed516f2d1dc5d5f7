"""Roles that wait for new logs: a LeaderAndIsr is answered when the logs it creates are durable.

    LeaderAndIsr ──▶ directories made ──▶ Sync for each ──▶ the last SyncDone ──▶ roles taken, answer

A new log's name, topic id and first epoch take an fsync each. They are made outside the loop, by the threads
that flush logs, and those of a request share the fsync of their log dir. Meanwhile the node serves others,
and has no role in these partitions. Later requests of the controller wait (`Node`), so their order stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.effects import Address
from logstore.replication.messages import LeaderAndIsrRequest


@dataclass(slots=True)
class RolesUnderWay:
    """A LeaderAndIsr that is not answered yet."""

    address: Address
    body: LeaderAndIsrRequest
    is_late: bool
    codes: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    """The results so far."""
    waiting: dict[TopicPartition, None] = field(default_factory=dict)
    """The partitions whose roles wait for new logs, in the order of the roles."""
    unflushed: set[TopicPartition] = field(default_factory=set)
    """Those of them whose logs are not durable yet."""
