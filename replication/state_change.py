"""What happened to a partition, as each party saw it: the facts behind a line of the state-change log.

The controller records what it decided, a broker what it did about it or why it refused. Both carry the
epochs, so the records of many nodes, merged, tell one story. The engine hands them to a sink that it was
given and knows nothing of files; a sink must not call back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from checkpoint.topic_partition import TopicPartition


class Side(Enum):
    CONTROLLER = "controller"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class StateChange:
    """One decision about one partition.

    `change` is a short fixed phrase ("elects a leader", "becomes follower"), `reason` says why in a few
    words of its own, empty if there is nothing to add. Epochs are -1 where the party does not know them.
    """

    time_ms: int
    node_id: int
    side: Side
    controller_epoch: int
    topic_partition: TopicPartition
    change: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    reason: str = ""


Sink: TypeAlias = Callable[[StateChange], None]


def unheard(change: StateChange) -> None:
    """The sink of those who keep no state-change log."""
