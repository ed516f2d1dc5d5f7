"""The request that moves replicas between the log dirs of a node, and its answer; see `messages.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition


class AlterReplicaLogDirsRequest(NamedTuple):
    """Let the replicas on this node move to these log dirs of it."""

    dirs: Mapping[TopicPartition, str]


class AlterReplicaLogDirsResponse(NamedTuple):
    codes: Mapping[TopicPartition, ErrorCode]
