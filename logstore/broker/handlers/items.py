"""A shape that many administrative requests share: partitions listed by topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from logstore.disk.topic_partition import TopicPartition


def listed(
    topics: Iterable[Any], partitions_of: Callable[[Any], Iterable[int]], name_of: Callable[[Any], str]
) -> list[TopicPartition]:
    """The partitions that a request lists by topic, each once."""
    return list(
        dict.fromkeys(
            TopicPartition(name_of(topic), number) for topic in topics for number in partitions_of(topic)
        )
    )
