"""Waiting requests: acks=all for the high watermark, fetches for bytes, DeleteRecords for all replicas.

Each watches its partitions (`delayed.py`), is checked again when one of them moves, and answers once. How a
partition stands, and the answer's way out, are callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.delayed import DelayedOperation, Purgatory
from logstore.replication.messages import DeleteRecordsResult, FetchResponse, FetchResult, ProduceResult

R = TypeVar("R")


@dataclass(slots=True)
class Status(Generic[R]):
    """One partition of a request that waits for `offset`.

    The promise holds for one `tenure` of the leader: afterwards the offset may hold another record. `result`
    is the answer once nothing is pending.
    """

    result: R
    offset: int = -1
    tenure: int = -1
    is_pending: bool = field(default=False, kw_only=True)


class DelayedByPartition(DelayedOperation, Generic[R]):
    """Waits until every partition is decided; at the deadline the undecided ones have timed out.

    acks=all waits for high watermarks, DeleteRecords for the log start offset of every live replica.
    """

    __slots__ = ("_progress", "_reply", "_statuses", "_timed_out")

    def __init__(
        self,
        statuses: dict[TopicPartition, Status[R]],
        deadline_ms: int,
        *,
        progress: Callable[[TopicPartition, Status[R]], R | None],
        timed_out: Callable[[Status[R]], R],
        reply: Callable[[dict[TopicPartition, R]], None],
    ) -> None:
        """`progress` returns the result of a partition, None while it is pending."""
        super().__init__(deadline_ms)
        self._statuses = statuses
        self._progress = progress
        self._timed_out = timed_out
        self._reply = reply

    def is_ready(self, now_ms: int) -> bool:
        for topic_partition, status in self._statuses.items():
            if status.is_pending and (result := self._progress(topic_partition, status)) is not None:
                status.result, status.is_pending = result, False
        return not any(status.is_pending for status in self._statuses.values())

    def on_complete(self, now_ms: int) -> None:
        self._reply(
            {
                topic_partition: self._timed_out(status) if status.is_pending else status.result
                for topic_partition, status in self._statuses.items()
            }
        )


class DelayedFetch(DelayedOperation):
    """A fetch with too few bytes, answered from a later read. That read has no other effect."""

    __slots__ = ("_min_bytes", "_read", "_reply", "_results")

    def __init__(
        self,
        min_bytes: int,
        deadline_ms: int,
        *,
        read: Callable[[], tuple[dict[TopicPartition, FetchResult], int, bool]],
        reply: Callable[[FetchResponse], None],
    ) -> None:
        """`read` returns the results, their size in bytes, and whether one of them cannot wait."""
        super().__init__(deadline_ms)
        self._min_bytes = min_bytes
        self._read = read
        self._reply = reply
        self._results: dict[TopicPartition, FetchResult] | None = None

    def is_ready(self, now_ms: int) -> bool:
        results, size, is_final = self._read()
        if not is_final and size < self._min_bytes:
            return False
        self._results = results
        return True

    def on_complete(self, now_ms: int) -> None:
        self._reply(FetchResponse(self._results if self._results is not None else self._read()[0]))


Produces: TypeAlias = Purgatory[TopicPartition, DelayedByPartition[ProduceResult]]
Fetches: TypeAlias = Purgatory[TopicPartition, DelayedFetch]
Deletions: TypeAlias = Purgatory[TopicPartition, DelayedByPartition[DeleteRecordsResult]]


class WaitingRequests:
    """The waiting requests of a node, and the partitions to check at the end of the turn."""

    def __init__(self, config: NodeConfig) -> None:
        produce_interval = config.producer_purgatory_purge_interval_requests
        fetch_interval = config.fetch_purgatory_purge_interval_requests
        self.produces: Produces = Purgatory(purge_interval_requests=produce_interval)
        self.fetches: Fetches = Purgatory(purge_interval_requests=fetch_interval)
        self.deletions: Deletions = Purgatory(purge_interval_requests=produce_interval)
        self._all: tuple[Purgatory[TopicPartition, Any], ...] = (self.produces, self.fetches, self.deletions)
        self._woken: dict[TopicPartition, None] = {}

    @property
    def count(self) -> int:
        """How many requests wait."""
        return sum(purgatory.delayed for purgatory in self._all)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the next request expires; None if none waits."""
        deadlines = (self.produces.deadline_ms, self.fetches.deadline_ms, self.deletions.deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def wake(self, topic_partition: TopicPartition) -> None:
        """Have the requests that watch a partition checked at the end of this turn."""
        self._woken[topic_partition] = None

    def check_woken(self, now_ms: int) -> None:
        """Complete the requests that became ready; completing one may wake others."""
        while self._woken:
            topic_partition = next(iter(self._woken))
            del self._woken[topic_partition]
            for purgatory in self._all:
                if topic_partition in purgatory.watchers:
                    purgatory.check(topic_partition, now_ms)

    def expire(self, now_ms: int) -> None:
        """Complete the requests whose deadline has passed."""
        for purgatory in self._all:
            purgatory.expire(now_ms)
