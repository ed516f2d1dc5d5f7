"""The requests that wait: acks=all until it is committed or cannot be, a fetch until it has enough,
DeleteRecords until every live replica has deleted.

All look again when a partition they watch has moved (`delayed.py`) and answer once. How things stand,
and where the answer goes, the replica manager tells them by callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.delayed import DelayedOperation
from logstore.replication.messages import FetchResponse, FetchResult

R = TypeVar("R")


@dataclass(slots=True)
class Status(Generic[R]):
    """One partition of a request that waits until `offset` is reached, or cannot be any more.

    What was promised holds for one `tenure` of the leader: after it the offset may hold another record.
    `result` is the answer once it is not pending.
    """

    result: R
    offset: int = -1
    tenure: int = -1
    is_pending: bool = field(default=False, kw_only=True)


class DelayedByPartition(DelayedOperation, Generic[R]):
    """Answered when every partition is decided; at the deadline the undecided have timed out.

    acks=all waits for high watermarks, DeleteRecords for every live replica to begin at its target.
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
        """`progress` says how a partition's part ended, None while it is under way."""
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
    """A fetch with too little to say: answered from a second reading, which counts for nothing else."""

    __slots__ = ("_min_bytes", "_read", "_reply", "_results")

    def __init__(
        self,
        min_bytes: int,
        deadline_ms: int,
        *,
        read: Callable[[], tuple[dict[TopicPartition, FetchResult], int, bool]],
        reply: Callable[[FetchResponse], None],
    ) -> None:
        """`read` gives what there is, how many bytes that is, and whether some of it cannot wait."""
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
