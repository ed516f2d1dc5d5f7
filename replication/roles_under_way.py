"""Roles that wait for a flush: a LeaderAndIsr is answered once the files that its roles need are durable.

    LeaderAndIsr ─▶ directories made, epochs begun ─▶ Syncs ─▶ the last SyncDone ─▶ roles taken, answer

A new log's name, topic id and first epoch take an fsync each, the new epoch of an existing log two. They are
made outside the loop, by the threads that flush logs, and the new logs of a request share the fsync of their
log dir. Meanwhile the node serves others, and takes none of these roles. A replica that waits to lead follows
nobody. Later requests of the controller wait (`Node`), so their order stays.
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
    """The partitions whose roles wait, in the order of the roles."""
    unflushed: set[TopicPartition] = field(default_factory=set)
    """Those of them whose flush has not ended yet."""
