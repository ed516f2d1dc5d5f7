"""Shapes that many administrative requests share: partitions listed by topic, there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from checkpoint.topic_partition import TopicPartition

R = TypeVar("R")


def by_topic(results: Mapping[TopicPartition, R]) -> dict[str, list[tuple[int, R]]]:
    """Results as answers list them: partition number and result, under each topic, in the order given."""
    found: dict[str, list[tuple[int, R]]] = {}
    for (topic, partition), result in results.items():
        found.setdefault(topic, []).append((partition, result))
    return found


def listed(
    topics: Iterable[Any], partitions_of: Callable[[Any], Iterable[int]], name_of: Callable[[Any], str]
) -> list[TopicPartition]:
    """The partitions that a request lists by topic, each once."""
    return list(
        dict.fromkeys(
            TopicPartition(name_of(topic), number) for topic in topics for number in partitions_of(topic)
        )
    )
