"""Replication: leaders, in-sync replicas, and committed offsets.

    driver           several nodes in one process; also how to embed one
    node             one node's engine: events in, effects out
      replica_manager  requests on one side, partitions on the other; over orders (the controller's),
                       over replicas (their turns and who waits)
        partition      a replica as leader or follower; rules in replica, isr, reconcile
        follower       requests to leaders (fetcher) and the effects of their responses
        delayed        requests that wait
        isr_channel    ISR proposals on their way to the controller
      controller/    elections, topics, the procedures that move leadership
      metastore/     versioned nodes and watches: in memory, on disk
    durability       what a record's acknowledgement means, topic by topic
    messages, effects  the vocabulary

Nothing here reads a clock, waits, opens a socket or starts a thread.
"""

from __future__ import annotations

from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.driver import InProcessCluster
from logstore.replication.durability import Durability
from logstore.replication.in_process import Envelope, PendingReply
from logstore.replication.node import Node

__all__ = [
    "ControllerConfig",
    "Durability",
    "Envelope",
    "InProcessCluster",
    "Node",
    "NodeConfig",
    "PendingReply",
]
