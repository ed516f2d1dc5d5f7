"""The report of a broker about its log dirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from logstore.disk.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log dir as its broker reports it; sizes in bytes, -1 if unknown.

    `sizes` and `end_offsets` are of the replicas in it, `hanging` has the moves to it that cannot go on, with
    the reason. Brokers of ours alone report `problem`, `end_offsets` and `hanging`.
    """

    broker: int
    path: str
    error: str = ""
    total_bytes: int = -1
    usable_bytes: int = -1
    replicas: frozenset[TopicPartition] = frozenset()
    problem: str = ""
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    hanging: Mapping[TopicPartition, str] = field(default_factory=dict)


def hanging(dirs: Iterable[LogDir]) -> Iterator[tuple[LogDir, TopicPartition, str]]:
    """Yield the moves that are stuck, with their log dir and the reason."""
    for log_dir in dirs:
        for topic_partition, problem in sorted(log_dir.hanging.items()):
            yield log_dir, topic_partition, problem
