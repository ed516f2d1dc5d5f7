"""How far a stream is behind, by partition: from the progress that Spark reports of its queries.

Spark's interface for sources in Python has no place for metrics of their own, which is where its source for
Kafka tells them. What is read here is in every progress: the end of the batch, and the end of the log.

    class Lag(StreamingQueryListener):
        def onQueryProgress(self, event):
            for behind in lags(event.progress):
                gauge.set(behind.total)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.offsets import flat


@dataclass(frozen=True, slots=True)
class Behind:
    """One source of a query: how many offsets each of its partitions has that no batch took yet."""

    partitions: Mapping[TopicPartition, int]

    @property
    def total(self) -> int:
        return sum(self.partitions.values())

    @property
    def largest(self) -> int:
        return max(self.partitions.values(), default=0)

    def metrics(self) -> dict[str, str]:
        """The sums under the names, and in the form, that Spark's source for Kafka has them in."""
        sizes = list(self.partitions.values()) or [0]
        return {
            "minOffsetsBehindLatest": str(min(sizes)),
            "maxOffsetsBehindLatest": str(max(sizes)),
            "avgOffsetsBehindLatest": str(sum(sizes) / len(sizes)),
        }


def lags(progress: Mapping[str, Any]) -> list[Behind]:
    """Of each source of a query, in their order, as `query.lastProgress` or a listener has it.

    Offsets of other kinds of sources may be of any form; they have no partitions.
    """
    return [_behind(source) for source in progress["sources"]]


def _behind(source: Mapping[str, Any]) -> Behind:
    end, latest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
    return Behind({each: max(offset - end.get(each, 0), 0) for each, offset in sorted(latest.items())})


def _offsets(told: Any) -> dict[TopicPartition, int]:
    try:
        return flat(json.loads(told) if isinstance(told, str) else told)
    except (AttributeError, TypeError, ValueError):
        return {}
